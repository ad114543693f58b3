//! State recipes: from a translated instruction back to the program's state.
//!
//! A recipe belongs to a unit: 8 bytes of header, then one entry for each original instruction in
//! order. It is asked when something is interrupted or faults, so it is compact rather than fast.
//!
//! ```text
//! header:  u8 scratch[2]   registers that the prologue uses: number, bit 7: spilled (to SPILL[i]);
//!                          0x7f: none
//!          u16 live_in     registers whose values are the program's at the unit's entry
//!          u16 live_out    the same behind its last instruction
//!          u16 flags       bit 0: the unit is not selected, so no position counts its instructions;
//!                          bit 1: it writes no tag, so a position inside of it has to name it
//! entry:   u8  delta       code bytes since the previous entry (since the unit's entry);
//!                          0xff: a u16 with the delta follows
//!          u8  length << 4 | kind
//!          kinds with a scratch register: u8 its number
//!          Watched, Marked: as those that read ahead
//!          kinds that read ahead: u8 the registers in spill[0] and spill[1], low and high nibble
//!          (4, which is rsp: none), and the same for UsedUp; Sync: u8 code bytes in front of the instruction itself, and
//!          u8 the register that it borrows itself (4: none)
//! ```
//!
//! An entry of length 0 belongs to the instruction of the next entry: a snippet in front of it that
//! may fault in its place. (The look-up ahead of a return may not: see [`Kind::Ahead`].)
//!
//! The entry's code offset is an *instruction boundary*: everything before is done, nothing of the
//! instruction has happened, and every live register holds the program's value. Between it and the
//! next entry a fault belongs to this instruction, and `kind` says what to undo first.

pub mod packed;

use crate::emit::{SAVES_RCX, SAVES_XMM7};
use abi::ids::Gpr;
use alloc::vec::Vec;
use lifter::regs::{GprSet, RAX, RSP};

/// What an instruction's translated sequence has borrowed while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Nothing.
    Plain = 0,
    /// rcx is in the thread block (`saved_rcx`).
    SavedRcx = 1,
    /// The named register is in `spill[1]`.
    Scratch = 2,
    /// Vector registers that translated code claims hold the program's values, from where the sequence loads them from
    /// the thread block to where it loads something else; the buffer pointers are there while their register does.
    Pointers = 3,
    /// [`Kind::Pointers`] and [`Kind::Scratch`] at once.
    PointersScratch = 4,
    /// A snippet reads what the instruction is going to overwrite.
    ReadAhead = 5,
    /// The thread has the lock of the synchronising instructions, first in a snippet as
    /// [`Kind::ReadAhead`], then in the instruction itself.
    Sync = 6,
    /// Memory is compared with the thread's view, and the instruction runs there: two registers are in
    /// `spill`, and rcx is in the thread block.
    Watched = 7,
    /// Nothing: the unit's return is looked up ahead, with registers that are dead. In an entry of length 0 that
    /// is done, and what it reads it reads too early to fault for the program; the other one is the return.
    Ahead = 8,
    /// As [`Kind::Ahead`], but the registers are in `spill`: in an entry of length 0, which looks up, behind the
    /// instructions that put them there; in others, up to those that overwrite them, from the boundary on.
    UsedUp = 10,
    /// rcx is in the thread block (`saved_rcx`), and xmm7 is, too, behind the instruction that puts it there.
    SavedVector = 9,
    /// The instruction may access memory that others store to, in its place or where that is open: what is borrowed is as
    /// with [`Kind::Watched`].
    Marked = 11,
}

/// In place of a register that is borrowed: none is.
pub const NOT_BORROWED: Gpr = RSP;

impl Kind {
    fn from_nibble(nibble: u8) -> Option<Kind> {
        Some(match nibble {
            0 => Kind::Plain,
            1 => Kind::SavedRcx,
            2 => Kind::Scratch,
            3 => Kind::Pointers,
            4 => Kind::PointersScratch,
            5 => Kind::ReadAhead,
            6 => Kind::Sync,
            7 => Kind::Watched,
            8 => Kind::Ahead,
            9 => Kind::SavedVector,
            10 => Kind::UsedUp,
            11 => Kind::Marked,
            _ => return None,
        })
    }

    /// Bytes behind the entry's first ones.
    fn operands(self) -> usize {
        match self {
            Kind::Plain | Kind::SavedRcx | Kind::SavedVector | Kind::Pointers | Kind::Ahead => 0,
            Kind::Scratch | Kind::PointersScratch => 1,
            Kind::ReadAhead | Kind::Watched | Kind::Marked | Kind::UsedUp => 1,
            Kind::Sync => 3,
        }
    }

    /// Whether vector registers that translated code claims hold the program's values.
    pub fn exchanges_pointers(self) -> bool {
        matches!(self, Kind::Pointers | Kind::PointersScratch)
    }
}

pub const HEADER: usize = 8;

const NO_SCRATCH: u8 = 0x7f;
const SPILLED: u8 = 0x80;

/// A register that the prologue uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scratch {
    pub register: Gpr,
    /// The program's value is in the thread block meanwhile.
    pub spilled: bool,
}

impl Scratch {
    fn to_byte(self) -> u8 {
        self.register.0 | if self.spilled { SPILLED } else { 0 }
    }

    fn from_byte(byte: u8) -> Option<Scratch> {
        let scratch = Scratch { register: Gpr(byte & 15), spilled: byte & SPILLED != 0 };
        (byte != NO_SCRATCH).then_some(scratch)
    }
}

/// The byte for the registers in `spill[0]` and `spill[1]`.
pub fn pair(first: Gpr, second: Gpr) -> u8 {
    first.0 | second.0 << 4
}

fn from_pair(byte: u8) -> [Gpr; 2] {
    [Gpr(byte & 15), Gpr(byte >> 4)]
}

/// First bytes of a recipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Those in `spill[0]` and `spill[1]`, if they are spilled.
    pub scratch: [Option<Scratch>; 2],
    pub live_in: GprSet,
    pub live_out: GprSet,
    /// The unit is not selected: positions do not count its instructions.
    pub outside: bool,
    /// The unit writes no tag, where others do: positions inside of it name it.
    pub silent: bool,
}

/// One instruction boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Code bytes behind the unit's entry.
    pub code: u32,
    /// Original bytes behind the unit's original start.
    pub original: u32,
    /// Index of the instruction in its unit.
    pub insn: u32,
    /// Length of the original instruction.
    pub length: u32,
    pub kind: Kind,
    /// The register of [`Kind::Scratch`] and of the instruction of [`Kind::Sync`].
    pub register: Gpr,
    /// The registers that the snippet of [`Kind::ReadAhead`] and [`Kind::Sync`], or [`Kind::UsedUp`], has in
    /// `spill[0]` and `spill[1]`, or [`NOT_BORROWED`].
    pub borrowed: [Gpr; 2],
    /// Code bytes of the snippet of [`Kind::Sync`].
    pub snippet: u32,
}

impl Entry {
    /// The registers that are in `spill[0]` and `spill[1]` `inside` code bytes behind the boundary.
    pub fn spilled(&self, inside: u32) -> [Option<Gpr>; 2] {
        let named = |register: Gpr| Some(register).filter(|&r| r != NOT_BORROWED);
        match self.kind {
            Kind::UsedUp if self.length != 0 => self.borrowed.map(named),
            _ if inside == 0 => [None; 2],
            Kind::Plain | Kind::SavedRcx | Kind::SavedVector | Kind::Pointers | Kind::Ahead => {
                [None; 2]
            }
            Kind::Scratch | Kind::PointersScratch => [None, Some(self.register)],
            Kind::Sync if inside >= self.snippet => [None, named(self.register)],
            Kind::ReadAhead | Kind::Sync | Kind::Watched | Kind::Marked | Kind::UsedUp => {
                self.borrowed.map(named)
            }
        }
    }

    /// Whether rcx is in the thread block meanwhile.
    pub fn saves_rcx(&self) -> bool {
        use Kind::{Marked, SavedRcx, SavedVector, Watched};
        matches!(self.kind, SavedRcx | SavedVector | Watched | Marked)
    }

    /// Whether it is a return, and what its sequence borrows is as it says.
    pub fn may_return(&self) -> bool {
        matches!(self.kind, Kind::SavedRcx | Kind::SavedVector | Kind::Ahead) || self.looks_ahead()
    }

    /// Whether xmm7 is in the thread block `inside` code bytes behind the boundary.
    pub fn saves_vector(&self, inside: u32) -> bool {
        self.kind == Kind::SavedVector && inside as usize >= SAVES_RCX.len() + SAVES_XMM7.len()
    }

    /// Whether it is no instruction's, but the look-up ahead of the unit's return.
    pub fn looks_ahead(&self) -> bool {
        matches!(self.kind, Kind::Ahead | Kind::UsedUp) && self.length == 0
    }

    /// Whether what faults `inside` code bytes behind the boundary only reads ahead for a store.
    pub fn reads_ahead(&self, inside: u32) -> bool {
        match self.kind {
            Kind::ReadAhead => true,
            Kind::Sync => inside < self.snippet,
            _ => false,
        }
    }
}

/// Appends a recipe, entry by entry.
pub struct Writer {
    last: u32,
}

impl Writer {
    pub fn begin(out: &mut Vec<u8>, header: Header) -> Writer {
        out.extend_from_slice(&header.scratch.map(|s| s.map_or(NO_SCRATCH, Scratch::to_byte)));
        out.extend_from_slice(&header.live_in.bits().to_le_bytes());
        out.extend_from_slice(&header.live_out.bits().to_le_bytes());
        out.extend_from_slice(&[u8::from(header.outside) | u8::from(header.silent) << 1, 0]);
        Writer { last: 0 }
    }

    /// `code` is relative to the unit's entry and never decreases; `length` is at most 15.
    /// `operands`: what the kind says.
    pub fn entry(
        &mut self,
        out: &mut Vec<u8>,
        code: u32,
        length: usize,
        kind: Kind,
        operands: &[u8],
    ) {
        let delta = code - self.last;
        self.last = code;
        let second = u8::try_from(length).unwrap_or(15) << 4 | kind as u8;
        match u8::try_from(delta) {
            Ok(delta) if delta != 0xff => out.extend_from_slice(&[delta, second]),
            _ => {
                out.extend_from_slice(&[0xff, second]);
                out.extend_from_slice(&u16::try_from(delta).unwrap_or(u16::MAX).to_le_bytes());
            }
        }
        debug_assert_eq!(operands.len(), kind.operands());
        out.extend_from_slice(operands);
    }
}

/// A recipe as it lies in memory or in a file.
#[derive(Clone, Copy)]
pub struct Recipe<'a> {
    bytes: &'a [u8],
}

impl<'a> Recipe<'a> {
    /// `bytes` start with the header and end with the last entry.
    pub fn new(bytes: &'a [u8]) -> Option<Recipe<'a>> {
        (bytes.len() >= HEADER).then_some(Recipe { bytes })
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn header(&self) -> Header {
        let b = self.bytes;
        Header {
            scratch: [Scratch::from_byte(b[0]), Scratch::from_byte(b[1])],
            live_in: GprSet::from_bits(u16::from_le_bytes([b[2], b[3]])),
            live_out: GprSet::from_bits(u16::from_le_bytes([b[4], b[5]])),
            outside: b[6] & 1 != 0,
            silent: b[6] & 2 != 0,
        }
    }

    pub fn entries(&self) -> Entries<'a> {
        Entries { bytes: &self.bytes[HEADER..], code: 0, original: 0, insn: 0 }
    }

    /// The entry that `code` (relative to the unit's entry) belongs to; `None` in the prologue.
    pub fn at(&self, code: u32) -> Option<Entry> {
        self.entries().take_while(|entry| entry.code <= code).last()
    }
}

/// Iterates over the entries of a recipe.
pub struct Entries<'a> {
    bytes: &'a [u8],
    code: u32,
    original: u32,
    insn: u32,
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let (&first, rest) = self.bytes.split_first()?;
        let (&second, mut rest) = rest.split_first()?;
        let mut delta = u32::from(first);
        if first == 0xff {
            delta = u32::from(u16::from_le_bytes([*rest.first()?, *rest.get(1)?]));
            rest = &rest[2..];
        }
        let kind = Kind::from_nibble(second & 15)?;
        let (operands, rest) = rest.split_at_checked(kind.operands())?;
        let (mut register, mut borrowed, mut snippet) = (RAX, [NOT_BORROWED; 2], 0);
        match (kind, operands) {
            (Kind::ReadAhead | Kind::Watched | Kind::Marked | Kind::UsedUp, &[both]) => {
                borrowed = from_pair(both);
            }
            (Kind::Sync, &[both, length, own]) => {
                (borrowed, snippet, register) = (from_pair(both), u32::from(length), Gpr(own));
            }
            (_, &[one]) => register = Gpr(one),
            _ => {}
        }
        self.bytes = rest;
        let length = u32::from(second >> 4);
        let entry = Entry {
            code: self.code + delta,
            original: self.original,
            insn: self.insn,
            length,
            kind,
            register,
            borrowed,
            snippet,
        };
        self.code += delta;
        self.original += length;
        self.insn += u32::from(length != 0);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_survive_encoding() {
        let header = Header {
            scratch: [Some(Scratch { register: Gpr(3), spilled: true }), None],
            live_in: GprSet::from_bits(0x1234),
            live_out: GprSet::ALL,
            outside: true,
            silent: true,
        };
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, header);
        writer.entry(&mut out, 30, 5, Kind::Plain, &[]);
        writer.entry(&mut out, 400, 15, Kind::Scratch, &[9]);
        writer.entry(&mut out, 410, 1, Kind::SavedRcx, &[]);
        writer.entry(&mut out, 500, 0, Kind::ReadAhead, &[pair(NOT_BORROWED, Gpr(7))]);
        writer.entry(&mut out, 520, 3, Kind::Plain, &[]);
        writer.entry(&mut out, 525, 0, Kind::UsedUp, &[pair(Gpr(5), NOT_BORROWED)]);
        writer.entry(&mut out, 528, 1, Kind::UsedUp, &[pair(Gpr(5), NOT_BORROWED)]);
        writer.entry(&mut out, 530, 4, Kind::Sync, &[pair(Gpr(1), Gpr(2)), 60, NOT_BORROWED.0]);
        let recipe = Recipe::new(&out).unwrap();
        assert_eq!(recipe.header(), header);
        assert_eq!(recipe.at(29), None);
        assert_eq!(recipe.at(30).unwrap().original, 0);
        let middle = recipe.at(405).unwrap();
        assert_eq!((middle.original, middle.kind, middle.register), (5, Kind::Scratch, Gpr(9)));
        assert_eq!(recipe.at(499).unwrap().original, 20);
        assert_eq!(recipe.at(499).unwrap().insn, 2);
        let ahead = recipe.at(510).unwrap();
        assert_eq!((ahead.insn, ahead.original, ahead.length), (3, 21, 0));
        assert_eq!((ahead.spilled(10), ahead.reads_ahead(10)), ([None, Some(Gpr(7))], true));
        assert_eq!(recipe.at(520).unwrap().insn, 3);
        let looks_up = recipe.at(527).unwrap();
        assert_eq!((looks_up.insn, looks_up.looks_ahead()), (4, true));
        assert_eq!([0, 2].map(|inside| looks_up.spilled(inside)[0]), [None, Some(Gpr(5))]);
        let overwrites = recipe.at(528).unwrap();
        assert_eq!((overwrites.insn, overwrites.may_return()), (4, false));
        assert_eq!([0, 1].map(|inside| overwrites.spilled(inside)), [[Some(Gpr(5)), None]; 2]);
        let sync = recipe.at(1000).unwrap();
        assert_eq!((sync.insn, sync.original, sync.length), (5, 25, 4));
        assert_eq!((sync.spilled(59), sync.reads_ahead(59)), ([Some(Gpr(1)), Some(Gpr(2))], true));
        assert_eq!((sync.spilled(60), sync.reads_ahead(60)), ([None, None], false));
    }
}
