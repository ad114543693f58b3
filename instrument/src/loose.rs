//! What the code of a region leaves open until all of it is placed.

use abi::ids::{CodeOff, Gpr, OrigAddr, UnitId};
use alloc::vec::Vec;

/// A branch of the region that goes to an original address, decided when all blocks are placed.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub at: CodeOff,
    pub target: OrigAddr,
    pub from: UnitId,
    pub size: Size,
}

/// The distance of a [`Pending`] branch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// 4 bytes, whatever its target.
    Long,
    /// 4 bytes; the branch has this number, and may be a short one when the region is woven again.
    Numbered(usize),
    /// One byte.
    Short,
}

/// Work that is emitted behind the region's hot code.
#[derive(Clone, Copy)]
pub(crate) enum Cold {
    /// Thunk of a direct call: `call` at `at` goes here.
    Call { at: CodeOff, return_address: OrigAddr, target: OrigAddr, from: UnitId },
    /// Thunk of an indirect call, whose translated target is in the thread block.
    IndirectCall { at: CodeOff, return_address: OrigAddr },
    /// An indirect call or jump out of the window: jump at `at` goes here, back to `back`.
    /// `pc`: the instruction's original address.
    ForeignTarget { at: CodeOff, back: CodeOff, pc: OrigAddr },
    /// The last turn of a replay's stretch: jump at `at` goes here, back to `back`, in front of the
    /// instruction at `pc`.
    Turn { at: CodeOff, back: CodeOff, pc: OrigAddr, saves: bool },
    /// Memory is not as in the view.
    Mend(Mend),
    /// A return whose address is not in the window: jump at `at` goes here, back to `back`.
    ForeignReturn { at: CodeOff, back: CodeOff, pc: OrigAddr },
}

/// Loose ends of one region.
#[derive(Default)]
pub(crate) struct LooseEnds {
    pub pending: Vec<Pending>,
    pub cold: Vec<Cold>,
    /// Branches that are known to be short, by number.
    pub short: Vec<bool>,
    /// Branches emitted so far.
    pub branches: usize,
}

impl LooseEnds {
    /// The region is woven from its start; what is known about its branches stays.
    pub fn restart(&mut self) {
        self.pending.clear();
        self.cold.clear();
        self.branches = 0;
    }

    /// The number of the next branch, and whether it is known to be short.
    pub fn next_branch(&mut self) -> (usize, bool) {
        let number = self.branches;
        self.branches += 1;
        (number, self.short.get(number).copied().unwrap_or(false))
    }
}

/// What [`Cold::Mend`] has.
#[derive(Clone, Copy)]
pub(crate) struct Mend {
    pub at: CodeOff,
    pub back: CodeOff,
    pub pc: OrigAddr,
    /// Registers that are in `spill`.
    pub spilled: [Option<Gpr>; 2],
    pub rcx_is_saved: bool,
    /// Of [`abi::thread::watch`].
    pub why: u32,
}
