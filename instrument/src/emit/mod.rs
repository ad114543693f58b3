//! The few instructions that snippets and transfer sequences are made of, as bytes.
//!
//! Decides nothing: each function appends one instruction, or a few that belong together. None of
//! them touches a flag. Memory of the thread block is addressed as `gs:[disp32]`, the look-up tables
//! as `[rcx*8 + disp32]`, `[rcx*4 + disp32]` and `[rcx + register*8]`. Only in here is a register the bare number of a
//! field, which may as well hold a vector's number or a part of the opcode.
//!
//! No other module of this crate writes bytes of its own.

mod code;
mod look_up;
mod sequences;
mod vector;

pub use code::{closed_gate, gate_of, At, Code, GATE};
pub use look_up::{
    By, Found, LookUp, ToVector, JUMPS_ON, MERGES_HIGH_HALF, PUTS_BACK, PUTS_RETURN_ADDRESS,
    READS_HIGH_HALF, SAVES_RCX, SAVES_XMM7,
};
pub use sequences::FarLink;
pub use vector::takes_back;

#[cfg(test)]
mod tests;
