//! The freestanding runtime that every output carries: start, dispatch, run-time translation,
//! system calls, signals, threads, and the trace file.
//!
//! A library, so that what needs no kernel can be tested on the host, plus the thin binary `blob`
//! that the rewriter embeds. No libc; its own stacks, heap and system calls.
//!
//! The modules are floors: each uses those below it in this list, and none above.
#![cfg_attr(not(test), no_std)]
// A panic kills the program, and what formats its message is code that each output carries. What
// cannot go on says why in `base::last_words`, or hands the reason to its caller.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

extern crate alloc;

// From the kernel's first instruction to the program's.
pub mod start;
// Entering and leaving translated code.
pub mod gate;
// The kernel as the program sees it: system calls, signals, threads, memory.
pub mod kernel;
// What is recorded besides the streams: a method for each moment.
pub mod logs;
// A thread of the program, and how its recording ends.
pub mod thread;
// What is executable, translated, linked, looked up.
pub mod code;
// Chunks, events, frames, the trace file.
pub mod recording;
// The kernel without a libc, memory of our own, facts about the process.
pub mod base;
