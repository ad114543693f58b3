//! What generated code, the runtime, the rewriter and the trace reader agree on.
//!
//! Every constant and structure that two of those four share is defined here and nowhere else:
//! the address-space layout of a running output ([`layout`]), the per-thread block that `gs`
//! points to ([`thread`]), the header that the rewriter leaves for the runtime ([`image`]), the
//! description of a translation unit ([`mod@unit`]), which code is recorded ([`selection`]), the trace
//! file ([`trace`], [`packing`]) and what happens in it ([`event`]), what a system call does to memory
//! ([`syscalls`]), how a running program is reached from outside ([`control`]), and what a recording remembers
//! of the programs that it starts ([`answer`], [`mod@file`]).
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod answer;
pub mod control;
pub mod event;
pub mod file;
pub mod ids;
pub mod image;
pub mod layout;
pub mod library;
pub mod misses;
pub mod options;
pub mod packing;
pub mod ring;
pub mod script;
pub mod selection;
pub mod start;
pub mod steer;
pub mod syscalls;
pub mod tables;
pub mod thread;
pub mod trace;
pub mod unit;
