//! Code: what the program may execute, its translations, how they are linked, looked up and written.

pub mod address_map;
pub mod arena;
pub mod breaks;
pub mod executable;
pub mod far;
pub mod found;
pub mod guarded;
pub mod jit;
pub mod links;
pub mod made;
pub mod objects;
pub mod packs;
pub mod process;
pub mod selection;
pub mod span;
pub mod statics;
pub mod table;
pub mod translation;
pub mod units;
pub mod window;
pub mod world;
pub mod writing;

#[cfg(test)]
mod test_support;
