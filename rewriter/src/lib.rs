//! `deprewrite`: input -> image -> program -> translation -> layout -> file.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

/// Package version, and a hash of everything that an output or a library's translation depends on
/// besides its input: name of the folder in the cache.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("DEPREWRITE_BUILD"));

pub mod convert;
pub mod coverage;
pub mod dump;
pub mod elf;
pub mod error;
pub mod input;
pub mod layout;
pub mod learn;
pub mod library;
pub mod main_function;
pub mod options;
pub mod returned;
pub mod rewrite;
pub mod roots;
pub mod runtime_blob;
pub mod selection;
pub mod shared;
pub mod summary;
pub mod translate;
pub mod variants;
pub mod write;
