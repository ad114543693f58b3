//! The gate: every way from translated code into the runtime and back.

pub mod dispatch;
pub mod handler;
pub mod stubs;
