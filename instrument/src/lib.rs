//! Facts to instrumented code, for the rewriter and for the run-time translator alike.
//!
//! [`translate`](translate::Translator::translate) turns the blocks of one region into a
//! [`Fragment`](translate::Fragment): liveness finds scratch registers, [`plan`] says what is
//! recorded (data, no bytes), [`weave`] emits prologue, records and moved instructions,
//! [`transfer`] the call, return and jump sequences, [`recipe`] remembers for every original
//! instruction where it went and how to get the program's state back there. [`undo`] emits what only
//! the undo log needs.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod emit;
pub mod explore;
pub mod liveness;
pub mod plan;
pub mod recipe;
pub mod refusal;
pub mod transfer;
pub mod translate;
mod undo;
pub mod weave;
