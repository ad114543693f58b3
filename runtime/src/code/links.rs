//! Direct branches that still lead to the runtime.

use abi::ids::{CodeOff, LiveAddr, UnitId};
use abi::thread::{EXIT_ID, STUB_EXIT};
use alloc::vec::Vec;
use instrument::emit::Code;

/// The number of a unit in the code cache, from 0 since the last flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnitIndex(pub u32);

/// The number of an exit, from 0 since the last flush. Its stub tells the runtime.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ExitId(pub u32);

/// A direct branch, or a closed gate, that leads to the runtime.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    pub at: Site,
    /// Where the program goes.
    pub target: LiveAddr,
    /// The unit that it leaves.
    pub from: UnitId,
}

/// Where an exit is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// The branch whose distance is here.
    Branch(CodeOff),
    /// The gate of this unit.
    Gate(UnitIndex),
}

/// All exits.
///
/// An exit is never taken back: threads may be on their way in its stub. A stub that is taken after
/// its branch was patched finds the translation, and patches it again.
#[derive(Default)]
pub struct Links {
    exits: Vec<Exit>,
}

impl Links {
    pub fn add(&mut self, exit: Exit) -> ExitId {
        let id = ExitId(self.exits.len() as u32);
        self.exits.push(exit);
        id
    }

    pub fn get(&self, id: ExitId) -> Exit {
        self.exits[id.0 as usize]
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.exits.len()
    }

    /// Forgets all; no stub of theirs is ever taken again.
    pub fn clear(&mut self) {
        self.exits.clear();
    }
}

/// Appends the stub of an exit.
pub fn put_stub(code: &mut Code, exit: ExitId) {
    code.store_imm(EXIT_ID, exit.0);
    code.jump_gs(STUB_EXIT);
}
