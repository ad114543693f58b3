//! From the kernel's first instruction to the program's.

pub mod boot;
pub mod hidden;
pub mod kernel_view;
pub mod loader;
pub mod lower;
pub mod misses;
pub mod place;
pub mod replay;
pub mod selection;
pub mod stack;
pub mod trace;
pub mod vdso;
