//! Bytes to facts: what the code of a program is and does.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cut;
pub mod discover;
pub mod flow;
pub mod image;
mod jump_table;
mod text;
