//! A thread and memory that other processes may store to.

use alloc::vec::Vec;
use core::ops::Range;

/// How it stands with such memory.
#[derive(Default)]
pub struct Foreign {
    /// It is in a call that was given some of what begins at these addresses.
    pub uses: Vec<u64>,
    /// It is in a call that was given these pages, which are closed else.
    pub lent: Vec<Range<u64>>,
    /// Where its list of locks lies that the kernel gives up for it, or 0, as far as that is known.
    pub locks: Option<u64>,
    /// All of it is open for the call that it is about to make, and it has seen what others have stored.
    pub is_shown: bool,
    /// It waits for a word of it.
    pub waits: bool,
    /// It is stepped over an instruction that accesses these pages, which are open for that.
    pub pages: Vec<u64>,
    /// The access that was done again last, although nothing was closed there: address and turns.
    pub again: (u64, u64),
    /// The processor's state in front of that instruction.
    pub before: Before,
    /// How often it was executed again.
    pub tries: u32,
}

/// What is loaded again where an instruction is executed once more.
#[derive(Default)]
pub struct Before {
    /// Its original pc.
    pub pc: u64,
    /// Instructions that were done in its unit.
    pub insn: u32,
    /// It is a turn, which is counted.
    pub is_turn: bool,
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    /// The vector and floating-point state, as the kernel saves it.
    pub floating: Vec<u8>,
}
