//! The kernel as the program sees it: its system calls, signals, threads and memory.

pub mod ask;
pub mod baton;
pub mod brk;
pub mod clone;
pub mod headers;
pub mod interruptible;
pub mod old_calls;
pub mod replay;
pub mod ring;
pub mod signals;
pub mod switch;
pub mod syscalls;
pub mod threads;
pub mod vsyscall;
pub mod watched;
