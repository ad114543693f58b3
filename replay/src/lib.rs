//! Makes the script of a replay ([`abi::script`]) of the traces of a recording of inputs.
//!
//! In reading order: [`lineage`] finds the traces that one process needs, its ancestors' first;
//! [`order`] puts the events of all threads into the one order in which they are to happen, and [`alone`] those of a
//! watched thread; [`space`] finds addresses that the program never used; [`script`] writes it all; [`end`] says how far that goes. Which file stands for one that
//! the program had mapped, `recording::originals` says.
//!
//! Nothing here runs anything, and nothing that a trace says is trusted: what does not fit together is an
//! error, or the place where the script ends.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::cast_possible_truncation)]

pub mod alone;
pub mod end;
pub mod lineage;
mod mapped;
pub mod order;
pub mod script;
pub mod space;

pub use end::End;
pub use lineage::{has_not_begun, Lineage};
pub use script::Script;
