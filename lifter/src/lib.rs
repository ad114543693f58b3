//! From bytes to facts about x86-64 code. Nothing here performs I/O, emits code or keeps state.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod needs;
pub mod operands;
pub mod recompute;
pub mod regs;
