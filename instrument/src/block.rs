//! What is handed in to be translated: blocks, the bytes they are made of, where the code goes.

use abi::ids::{OrigAddr, UnitId};
use abi::layout::TableShape;
use abi::selection::Selected;

/// What is known about addresses when code is emitted.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// High half of the window, if known: 0 for a program at fixed addresses, any value at run
    /// time. `None`: position-independent code translated ahead of time, all of whose addresses
    /// are relative to the window.
    pub window_high: Option<u32>,
    /// Threads may run the code while it is changed: the distance of a direct branch never crosses
    /// a cache line, and each unit starts with [`crate::emit::GATE`], inside of 8 aligned bytes,
    /// which a jump can replace in one store (see [`crate::emit::gate_of`]).
    pub patchable: bool,
    /// The code belongs to a library, whose place in the window is not known: what depends on it is
    /// gathered in thunks of one size (see [`crate::translate::Translator::thunks`]).
    pub movable: bool,
    /// Addresses of words that do not change any more when the program runs: a jump through one of them goes
    /// by way of a slot ([`abi::tables::Tables::slots`]), as long as there are any.
    pub constant: Slots,
    /// Faults of this code must show every register (it does not belong to an ELF module).
    pub exact_registers: bool,
}

/// Words that have slots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots {
    /// The first address of such words.
    pub start: u64,
    /// The address behind them.
    pub end: u64,
    /// Slots that the code has room for, at its start.
    pub room: usize,
}

/// A window of code that the program has generated: 4 GiB outside of *the* window, with a table of its own.
///
/// An entry of that table is the whole live address of a translation, or 0 where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarWindow {
    /// High half of the addresses in it.
    pub high: u32,
    /// The table, which lies high.
    pub table: TableShape,
    /// High half of the window of the program.
    pub program_high: u32,
    /// The miss stub.
    pub miss: u64,
}

/// A block to translate; it becomes one unit.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Where its original code starts.
    pub start: OrigAddr,
    /// Bytes of original code, whole instructions.
    pub len: u32,
    /// The unit's number.
    pub id: UnitId,
    /// Version of this address, for records of whole addresses (0: ahead of time).
    pub version: u16,
    /// It can be reached indirectly.
    pub wide: bool,
    /// It can be branched to from outside the region.
    pub open: bool,
    /// Each branch, jump or call at its end that names a place outside of the region leads to a unit there, which writes
    /// a tag, and not by way of the runtime.
    pub is_linked: bool,
}

impl Block {
    /// The address behind its code.
    pub fn behind(&self) -> OrigAddr {
        self.start.plus(u64::from(self.len))
    }
}

/// Original code: `bytes[0]` is at `start`.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Where the bytes lie.
    pub start: OrigAddr,
    /// One piece of code: a segment, a mapping.
    pub bytes: &'a [u8],
    /// Which code is recorded.
    pub selected: Selected<'a>,
}

impl<'a> Source<'a> {
    /// Whether the address lies in it.
    pub fn contains(&self, address: OrigAddr) -> bool {
        address.from_start(self.start) < self.bytes.len() as u64
    }

    /// The `len` bytes at `address`, as far as there are so many.
    pub fn slice(&self, address: OrigAddr, len: usize) -> &'a [u8] {
        let offset = usize::try_from(address.from_start(self.start)).unwrap_or(usize::MAX);
        let from = offset.min(self.bytes.len());
        let end = from.saturating_add(len).min(self.bytes.len());
        &self.bytes[from..end]
    }
}
