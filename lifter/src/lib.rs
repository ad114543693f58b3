//! From bytes to facts about x86-64 code. Nothing here performs I/O, emits code or keeps state.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![warn(missing_docs)]

extern crate alloc;

pub mod asks;
pub mod cut;
pub mod discover;
pub mod flow;
pub mod image;
mod jump_table;
pub mod masks;
pub mod needs;
pub mod operands;
pub mod program;
pub mod recompute;
pub mod region;
pub mod regs;
pub mod stores;
mod text;
pub mod use_def;
