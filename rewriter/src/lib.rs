//! `deprewrite`: input -> image -> program -> translation -> layout -> file.
#![forbid(unsafe_code)]

pub mod elf;
pub mod error;
pub mod input;
pub mod roots;
