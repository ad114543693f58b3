//! Code: what the program may execute, its translations, how they are linked, looked up and written.

pub mod address_map;
pub mod arena;
pub mod found;
pub mod jit;
pub mod packs;
pub mod statics;
pub mod table;
mod translation;
pub mod window;
pub mod writing;
