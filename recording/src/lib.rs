//! A recording: the folder that `dep record` leaves (`docs/format.md` says it in words).
//!
//! In reading order: [`manifest`] is `recording.json`; [`folder`] knows the paths, lists the traces and
//! opens one; [`processes`] makes processes of traces; [`gather`] brings in the files that ran, so that
//! the folder can be read elsewhere; [`originals`] are the files that were rewritten and mapped;
//! [`compress`] makes the traces smaller, [`packed`] one file of a folder.
//!
//! Nothing here rewrites or runs a program, and nothing that a folder holds is trusted.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::cast_possible_truncation)]

pub mod compress;
pub mod folder;
pub mod gather;
pub mod manifest;
pub mod originals;
pub mod packed;
pub mod processes;

pub use folder::{Recording, TraceName};
pub use trace::Error;

use std::path::Path;

/// An [`Error`] that names a file.
fn at(path: &Path, what: impl std::fmt::Display) -> Error {
    Error(format!("{}: {what}", path.display()))
}
