//! What the units of a region record: data, no bytes.
//!
//! A plan says everything that is recorded, of control flow and of memory. [`crate::planner`]
//! decides it, `weave` emits it; nothing behind the planner asks which formats were chosen.

use abi::ids::{Gpr, UnitId};
use abi::options::{ControlFlow, RecordingOptions};
use abi::unit::Record;
use alloc::vec::Vec;
use core::ops::Range;

/// The plan of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitPlan {
    /// What it writes to the control-flow stream.
    pub control: ControlRecord,
    /// What it writes to the memory stream, in stream order.
    pub records: Vec<Record>,
    /// It relies on its predecessors in the region.
    pub closed: bool,
    /// It is not selected: if it records anything, that is a mark.
    pub outside: bool,
    /// The runtime logs what its first instruction stores, in front of it.
    pub announces_store: bool,
    /// The registers that are recorded in front of an instruction are written in a row, with one
    /// load of the pointer: at a call the undo log has all of them, and none is dead.
    pub registers_together: bool,
}

impl UnitPlan {
    /// Bytes that an execution of the whole unit adds to the memory stream.
    pub fn memory_bytes(&self) -> u32 {
        self.records.iter().map(|r| r.what.size()).sum()
    }

    /// Where a branch comes from that leaves the unit, which is `id`. Behind code that is not
    /// selected no window is current.
    pub fn from(&self, id: UnitId) -> UnitId {
        if self.outside {
            NOWHERE
        } else {
            id
        }
    }
}

/// The unit that a branch out of code that is not selected comes from. No unit has its window.
pub const NOWHERE: UnitId = UnitId(0);

/// What a unit writes to the control-flow stream: something at its entry, something at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlRecord {
    /// Written in the prologue.
    pub entry: AtEntry,
    /// Written at the last instruction.
    pub end: AtEnd,
}

/// What a unit writes to the control-flow stream when it is entered.
///
/// Open to grow: the number of a path through the region, which stands for the tags of all its units,
/// is one more case, and so is the turn of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtEntry {
    /// Nothing: it follows from what is recorded elsewhere, or nothing is recorded.
    #[default]
    Nothing,
    /// Nothing, nor does it look whether the chunk is full: other units tell that it is executed
    /// (`silent`).
    Silent,
    /// The unit's number in its window, in 2 bytes.
    Narrow,
    /// The unit's whole number, in 4 bytes.
    Wide,
    /// The unit's whole address with its version, in 8 bytes.
    Address,
    /// The same behind a byte that announces it.
    Target,
    /// The unit is not selected: a mark of [`abi::trace::outside`], in 2 bytes.
    Outside(u8),
    /// The same, in 8 bytes.
    OutsideWord(u8),
}

/// What a unit writes to the control-flow stream at its last instruction. Open to grow, as
/// [`AtEntry`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtEnd {
    /// Nothing.
    #[default]
    Nothing,
    /// Which way a conditional branch goes, in one byte. The prologue sees that there is room.
    Outcome,
}

impl ControlRecord {
    /// Bytes that an execution of the unit adds to the control-flow stream.
    pub fn bytes(self) -> u8 {
        let entry = match self.entry {
            AtEntry::Nothing | AtEntry::Silent => 0,
            AtEntry::Narrow | AtEntry::Outside(_) => 2,
            AtEntry::Wide => 4,
            AtEntry::Address | AtEntry::OutsideWord(_) => 8,
            AtEntry::Target => 9,
        };
        let end = match self.end {
            AtEnd::Nothing => 0,
            AtEnd::Outcome => 1,
        };
        entry + end
    }

    /// Whether unit `id`, which has this record, may be entered by a direct branch from unit `from`:
    /// a narrow tag is only right where the current window is the unit's own, and so is none.
    pub fn may_be_entered(self, from: UnitId, id: UnitId) -> bool {
        !matches!(self.entry, AtEntry::Narrow | AtEntry::Silent) || from.window() == id.window()
    }
}

/// A block as the planner sees it.
pub struct PlanBlock {
    /// Its instructions in the region's list.
    pub insns: Range<usize>,
    /// It can be reached indirectly.
    pub wide: bool,
    /// It may be entered from outside the region.
    pub open: bool,
    /// It is not selected.
    pub outside: Option<Outside>,
    /// Blocks of the region that follow it; `leaves`: control may go elsewhere, too.
    pub successors: [Option<usize>; 2],
    /// See there.
    pub leaves: bool,
    /// See [`crate::block::Block::is_linked`].
    pub is_linked: bool,
}

/// What a block that is not selected has to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outside {
    /// Control may get from its end to selected code unnoticed, or to the kernel: it writes a mark.
    pub marks: bool,
    /// Bits of [`abi::trace::outside`].
    pub mark: u8,
    /// The last instruction that changes the fs base, and from which register.
    pub base: Option<(u8, Gpr)>,
}

/// Whether all units of a region must be open: what does not announce itself must be the only one at
/// its address, in the whole run. It may be entered from everywhere, so that nobody translates it again
/// while it is what is there, and what comes after it announces itself.
pub fn all_open(recording: RecordingOptions) -> bool {
    recording.control_flow == ControlFlow::Bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_lengths_that_the_thread_block_has_steps_for() {
        use AtEntry::{Address, Narrow, Nothing, Outside, OutsideWord, Silent, Target, Wide};
        for entry in [Nothing, Silent, Narrow, Wide, Address, Target, Outside(8), OutsideWord(8)] {
            let whole = ControlRecord { entry, end: AtEnd::Nothing }.bytes();
            assert!(abi::thread::CF_LENGTHS.contains(&whole.into()), "{entry:?}");
        }
        for entry in [Nothing, Target] {
            let whole = ControlRecord { entry, end: AtEnd::Outcome }.bytes();
            assert!(abi::thread::CF_LENGTHS.contains(&whole.into()), "{entry:?} and an outcome");
        }
    }

    #[test]
    fn narrow_units_are_entered_from_their_own_window() {
        let [here, there] = [UnitId::new(1, 20), UnitId::new(2, 20)];
        let narrow = ControlRecord { entry: AtEntry::Narrow, end: AtEnd::Nothing };
        assert!(narrow.may_be_entered(here, UnitId::new(1, 21)));
        assert!(!narrow.may_be_entered(there, here));
        let wide = ControlRecord { entry: AtEntry::Wide, end: AtEnd::Nothing };
        assert!(wide.may_be_entered(there, here));
    }
}
