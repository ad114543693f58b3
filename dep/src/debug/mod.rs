//! `dep debug`: a replay under gdb, forwards and backwards.

pub mod machine;
mod registers;
mod server;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod simulated;
pub mod timeline;
#[cfg(test)]
mod timeline_tests;
mod wire;
