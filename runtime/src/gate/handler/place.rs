//! The unit that a host pc lies in.

use crate::base::facts::facts;
use crate::code::found::{Found, MAX_RECIPE};
use crate::code::jit::jit;
use crate::code::statics;
use abi::event::{in_silent_unit, WHOLE_UNIT};
use abi::ids::{CodeAddr, OrigAddr};
use abi::options::Turns;
use iced_x86::{Decoder, DecoderOptions};
use instrument::recipe::{Entry, Recipe};
use lifter::flow::Flow;

/// A unit that was interrupted at `pc`, with the recipe copied out of the lock.
pub struct Place {
    /// Original start of the unit.
    start: u64,
    /// Number window of the unit's id.
    window: u32,
    /// Its tag, if it writes none.
    silent: Option<u16>,
    /// Live address of its code.
    entry: u64,
    /// End of its code.
    end: u64,
    /// The instruction in it that the signal is about.
    pc: u64,
    recipe: [u8; MAX_RECIPE],
    recipe_len: usize,
}

/// The unit that the translated instruction at `pc` belongs to.
pub fn locate(pc: u64) -> Option<Place> {
    let mut room = [0; MAX_RECIPE];
    if let Some(found) = statics::find(pc, &mut room) {
        return Some(copy(found, pc));
    }
    // The lock is the code's: only translated code was interrupted, which holds none.
    jit().find(CodeAddr(pc)).map(|found| copy(found, pc))
}

fn copy(found: Found, pc: u64) -> Place {
    let bytes = found.recipe.bytes();
    let n = bytes.len().min(MAX_RECIPE);
    let mut place = Place {
        start: found.start.0,
        window: found.window,
        silent: found.silent,
        entry: found.entry.0,
        end: found.end.0,
        pc,
        recipe: [0; MAX_RECIPE],
        recipe_len: n,
    };
    place.recipe[..n].copy_from_slice(&bytes[..n]);
    place
}

impl Place {
    /// Original start of the unit.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Number window of the unit's id.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Live address of the unit's code.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    pub fn recipe(&self) -> Option<Recipe<'_>> {
        Recipe::new(&self.recipe[..self.recipe_len])
    }

    /// Offset of `pc` in the unit's code.
    pub fn offset(&self, pc: u64) -> u32 {
        (pc - self.entry) as u32
    }

    /// The instruction boundary at exactly `pc`.
    pub fn boundary(&self, pc: u64) -> Option<Entry> {
        let offset = self.offset(pc);
        self.recipe()?.entries().find(|entry| entry.code == offset)
    }

    /// Whether the instruction of `entry` is a turn.
    pub fn is_turn(&self, entry: &Entry) -> bool {
        if facts().options.turns() == Turns::NotCounted {
            return false;
        }
        let pc = OrigAddr(self.start() + u64::from(entry.original));
        self.flow(entry).is_turn(pc)
    }

    /// Whether the instruction of `entry` ends its unit.
    pub fn is_transfer(&self, entry: &Entry) -> bool {
        self.flow(entry).ends_unit()
    }

    fn flow(&self, entry: &Entry) -> Flow {
        let from = self.original().get(entry.original as usize..).unwrap_or_default();
        let pc = self.start() + u64::from(entry.original);
        Flow::of(&Decoder::with_ip(64, from, pc, DecoderOptions::NONE).decode())
    }

    /// The original address of the instruction that the signal is about, if that calls where a register or memory says.
    pub fn indirect_call(&self) -> Option<u64> {
        let entry = self.recipe()?.at(self.offset(self.pc))?;
        let bytes = self.original().get(entry.original as usize..)?;
        let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        let is_call = Flow::of(&insn) == Flow::IndirectCall;
        is_call.then_some(self.start + u64::from(entry.original))
    }

    /// The unit is not selected: no position counts its instructions.
    pub fn is_outside(&self) -> bool {
        self.recipe().is_some_and(|recipe| recipe.header().outside)
    }

    /// How a position says that `insn` instructions of the unit are done.
    pub fn position(&self, insn: u32) -> u32 {
        match self.silent {
            _ if self.is_outside() => WHOLE_UNIT,
            Some(tag) => in_silent_unit(tag, insn),
            None => insn,
        }
    }

    /// Bytes of original code.
    pub fn original_len(&self) -> u32 {
        self.recipe().map_or(0, |recipe| recipe.entries().map(|e| e.length).sum())
    }

    /// The original code.
    pub fn original(&self) -> &[u8] {
        // SAFETY: only `locate` makes a place, of a unit with a translation, which is dropped before
        // its original code is unmapped.
        unsafe {
            core::slice::from_raw_parts(self.start as *const u8, self.original_len() as usize)
        }
    }

    /// The unit's translated code from `offset` on to the interrupted instruction.
    pub fn code_until_here(&self, offset: u32) -> &[u8] {
        let start = self.entry() + u64::from(offset);
        let len = self.pc.saturating_sub(start) as usize;
        // SAFETY: only `locate` makes a place. The unit's code is readable, and not dropped while it is executed.
        unsafe { core::slice::from_raw_parts(start as *const u8, len) }
    }

    /// The bytes of translated code from the interrupted instruction on, as far as they are the
    /// unit's; zeros follow.
    pub fn code<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        let len = N.min(self.end.saturating_sub(self.pc) as usize);
        // SAFETY: only `locate` makes a place. The unit's code up to its end is readable.
        let code = unsafe { core::slice::from_raw_parts(self.pc as *const u8, len) };
        bytes[..len].copy_from_slice(code);
        bytes
    }

    /// The bytes of translated code in front of the interrupted instruction, if they are the unit's.
    pub fn code_before<const N: usize>(&self) -> Option<[u8; N]> {
        if self.pc - self.entry < N as u64 {
            return None;
        }
        // SAFETY: as above, from the unit's entry on.
        Some(unsafe { ((self.pc - N as u64) as *const [u8; N]).read_unaligned() })
    }
}
