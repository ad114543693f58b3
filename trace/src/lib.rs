//! Reads a trace (`abi::trace`) and recovers what the program did.
//!
//! In reading order: [`source`] has the bytes, those of compressed [`pieces`] too, [`file`](mod@file) finds the frames, [`streams`] has
//! what a chunk's frame holds, [`events`] and [`units`] give meaning to their
//! payloads, [`open`] puts them together into a [`Trace`]; [`compile`] turns a unit into
//! the few steps that an execution costs, [`plain`] those into sums, [`walk`] follows one chunk, [`pipeline`] follows all of
//! them in parallel and in order, [`undo`] reads the undo log and applies it backwards, [`verify`] checks
//! what the format promises, [`trim`] writes a trace again, [`growing`] is one that is read while it is written.
//!
//! Memory: the index (a frame costs 100 bytes), all events and unit descriptions, compiled units
//! once per worker, and for each worker one chunk (at most [`file::MAX_FRAME`]) and a few batches
//! of output, and at most 32,768 passages of about 1 KiB. Nothing grows with the number of references.
//!
//! The file is never trusted: damage is reported with its place, and what is intact is read.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::cast_possible_truncation, clippy::wildcard_imports)]

pub mod columns;
pub mod compile;
pub mod events;
pub mod file;
mod first_use;
pub mod growing;
pub mod inputs;
mod lanes;
pub mod open;
pub mod output;
pub mod pieces;
pub mod pipeline;
pub mod plain;
pub mod source;
pub mod streams;
pub mod test_support;
pub mod trim;
pub mod undo;
pub mod units;
pub mod verify;
pub mod walk;

pub use open::{Chunk, Thread, Trace, NOT_STARTED};

/// What can go wrong before recovery starts. One line, no trailing period.
#[derive(Clone, Debug)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
