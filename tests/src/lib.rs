//! What the whole-program tests trust: a launcher that starts a native and a rewritten program
//! alike, a single-step oracle with operand rules of its own, and a comparison of two listings
//! that knows nothing of how either was made.
//!
//! Nothing here uses the project's lifter, instrumenter or trace reader. `iced-x86` serves as a
//! decoder only (mnemonic, operands, operand sizes).

pub mod command;
pub mod compare;
pub mod guest;
pub mod harness;
pub mod inputs;
pub mod launch;
pub mod listing;
pub mod moments;
pub mod operands;
pub mod step;
pub mod sys;
pub mod undone;
pub mod window;
pub mod xstate;
