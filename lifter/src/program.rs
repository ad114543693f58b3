//! What discovery finds: a program as functions and blocks.

use crate::flow::End;
use abi::ids::OrigAddr;
use alloc::vec::Vec;

/// The code of a program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Ascending by start. A block belongs to one function only, and no two blocks of the program
    /// start at the same address; blocks of different functions may overlap.
    pub functions: Vec<Function>,
    /// Indirect jumps whose table was found.
    pub jump_tables: usize,
    /// Indirect jumps whose targets are known at run time only.
    pub unresolved_indirect: usize,
    /// Executable bytes, padding between functions left out.
    pub text_bytes: u64,
    /// Those that belong to a block.
    pub lifted_bytes: u64,
}

impl Program {
    /// Blocks of all functions.
    pub fn block_count(&self) -> usize {
        self.functions.iter().map(|f| f.blocks.len()).sum()
    }
}

/// A function, or a reading of bytes that stands alone.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its first block's start.
    pub start: OrigAddr,
    /// Ascending, without overlap.
    pub blocks: Vec<Block>,
}

/// A straight run of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Where it starts.
    pub start: OrigAddr,
    /// Its bytes, whole instructions.
    pub len: u32,
    /// How it ends.
    pub end: End,
    /// May be reached other than by a direct branch.
    pub indirect: bool,
}

impl Block {
    /// The address behind it.
    pub fn behind(&self) -> OrigAddr {
        self.start.plus(u64::from(self.len))
    }
}
