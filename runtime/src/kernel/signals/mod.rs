//! Signals: the program's view of them, and ours.
//!
//! The kernel knows one handler, ours, on a stack of ours. It asks where the thread was:
//!
//! * in translated code, with a full buffer: the next chunk, and the unit starts again;
//! * in translated code, with a fault: the recipe gives the program's state, and the signal is
//!   delivered to the program's handler with a frame as the kernel would have written it;
//! * in translated code, with an asynchronous signal: the thread is stepped to the next
//!   instruction boundary (a few instructions of a snippet), and the signal is delivered there;
//! * on the way back from the runtime: the thread block is the program's state;
//! * in the runtime: the signal waits, all others are blocked, and it is let in on the way back.
//!   A system call that has not started yet is not started.

pub mod actions;
pub mod deliver;
pub mod frame;
pub mod pending;
pub mod pressure;
pub mod sigreturn;
pub mod state;
pub mod virtual_state;
