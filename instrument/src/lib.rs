//! Facts to instrumented code, for the rewriter and for the run-time translator alike.
//!
//! [`translate`](translate::Translator::translate) turns the [blocks](block::Block) of one region
//! into a [`Fragment`](fragment::Fragment). In the order in which it happens:
//!
//! * [`liveness`] finds scratch registers, [`explore`] looks further than the region for it;
//! * [`planner`] says what is recorded, as data ([`plan`]); `silent` which units need no tag;
//! * `weave` emits a unit as its plan says, with the hand of `weaver`: `records` are what is inserted,
//!   `moved` what is the program's, `transfer` calls, returns and jumps, of which `dispatch` knows those that go
//!   through tables, `undo` what only the undo
//!   log needs, `gs` what is reached by way of gs; `cold` what lies behind the hot code;
//! * [`recipe`] remembers for every original instruction where it went and how to get the program's
//!   state back there.
//!
//! Bytes are written by [`emit`], and nowhere else.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

extern crate alloc;

mod ahead;
pub mod block;
mod cold;
mod dispatch;
pub mod emit;
pub mod explore;
pub mod flags;
pub mod fragment;
mod gs;
pub mod liveness;
mod loose;
mod manner;
mod marked;
pub mod moved;
mod operand;
pub mod plan;
pub mod planner;
mod quick;
pub mod recipe;
mod records;
pub mod refusal;
mod silent;
mod transfer;
pub mod translate;
mod turns;
mod undo;
pub mod watched;
mod weave;
mod weaver;
