//! What comes out: code, and what is said about it.

use crate::emit::Code;
use crate::plan::ControlRecord;
use crate::recipe::Recipe;
use abi::ids::{CodeOff, OrigAddr, UnitId};
use abi::tables::JumpTable;
use abi::unit::UnitBody;
use alloc::vec::Vec;

/// A translated unit.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Where its original code starts.
    pub start: OrigAddr,
    /// Its number.
    pub id: UnitId,
    /// Version of its address.
    pub version: u16,
    /// It can be reached indirectly.
    pub wide: bool,
    /// It relies on the units before it in its region: not to be entered from elsewhere.
    pub closed: bool,
    /// What it writes to the control-flow stream.
    pub control: ControlRecord,
    /// Its code in [`Fragment::code`], cold parts excluded.
    pub entry: CodeOff,
    /// Where its code ends.
    pub end: CodeOff,
    /// Its recipe in [`Fragment::recipes`].
    pub recipe: u32,
    /// Where its recipe ends.
    pub recipe_end: u32,
    /// What the reader is told about it.
    pub body: UnitBody,
}

/// A direct branch out of the region: a rel32 that still has to be pointed somewhere.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    /// Where the rel32 lies in [`Fragment::code`].
    pub at: CodeOff,
    /// Original address it goes to.
    pub target: OrigAddr,
    /// Unit that it leaves.
    pub from: UnitId,
}

/// Where the processor expects a call to return to: the translation of the return address, or a jump to it.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// The return address.
    pub address: OrigAddr,
    /// The place right behind the call in [`Fragment::code`].
    pub at: CodeOff,
}

/// Code and facts that [`crate::translate::Translator::translate`] appends to.
pub struct Fragment {
    /// The code.
    pub code: Code,
    /// Its units, in the order of their code.
    pub units: Vec<Unit>,
    /// What leaves it.
    pub branches: Vec<Branch>,
    /// Where calls return to.
    pub returns: Vec<Return>,
    /// The recipes of the units, one behind the other.
    pub recipes: Vec<u8>,
    /// Slots in use.
    pub slots: Vec<Slot>,
    /// Jumps that take slots of tables.
    pub tables: Vec<Table>,
}

/// A jump that takes slots of a table, see [`abi::tables::JumpTable`]. Where they lie is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// Where the displacement of the slots from `base` lies in [`Fragment::code`].
    pub at: CodeOff,
    /// See there.
    pub base: u64,
    /// Address of the table.
    pub table: u64,
    /// All else.
    pub jump: JumpTable,
}

/// A slot, see [`abi::tables::Tables::slots`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Original address of the word.
    pub word: OrigAddr,
    /// What looks up the address in it.
    pub slow: CodeOff,
}

impl Fragment {
    /// An empty fragment whose first byte will be at `base`.
    pub fn new(base: u64) -> Fragment {
        Fragment {
            code: Code { bytes: Vec::new(), base },
            units: Vec::new(),
            branches: Vec::new(),
            returns: Vec::new(),
            recipes: Vec::new(),
            slots: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Where the next recipe goes.
    #[allow(clippy::cast_possible_truncation, reason = "recipes are smaller than their code")]
    pub(crate) fn next_recipe(&self) -> u32 {
        self.recipes.len() as u32
    }
}

/// Where the thunks of movable code are, see [`abi::library`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Thunks {
    /// Where the first one lies in the code.
    pub start: CodeOff,
    /// Number of thunks of direct calls.
    pub direct: u32,
    /// Number of thunks of indirect calls, which lie behind them.
    pub indirect: u32,
}

/// The recipe of `unit`, out of its fragment's bytes.
pub fn recipe_of<'a>(unit: &Unit, recipes: &'a [u8]) -> Option<Recipe<'a>> {
    Recipe::new(recipes.get(unit.recipe as usize..unit.recipe_end as usize)?)
}
