//! What is recorded besides the streams.

pub mod undo;
pub mod writes;
