//! All units that a trace can name: of the JIT (in the trace) and ahead-of-time (in the output).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use abi::trace::full_pc::ADDRESS_BITS;
use abi::unit::{
    decode_static, flags, unit_id, unit_number, JitReason, JitUnit, UnitBody, TAGS_PER_WINDOW,
};

use crate::output::Translation;
use crate::Error;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Static,
    Jit(JitReason),
}

/// A unit with its code, as the trace or the output file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    pub id: u32,
    /// Live address.
    pub address: u64,
    pub version: u16,
    pub origin: Origin,
    pub body: UnitBody,
    pub code: Vec<u8>,
}

/// The ahead-of-time units of one image: where the description of each lies.
#[derive(Debug)]
struct Statics {
    translation: Translation,
    load: u64,
    first_window: u32,
    /// Address in the image, position in the descriptions.
    entries: Vec<(u64, u32)>,
}

#[derive(Debug, Default)]
pub struct Units {
    jit: HashMap<u32, JitUnit>,
    /// The program's first, if it has any, then those of libraries; by their windows.
    statics: BTreeMap<u32, Statics>,
    /// (address, version) to id.
    places: HashMap<u64, u32>,
    /// Units that nothing announces, by address: ahead-of-time, and of the JIT with their version.
    narrow_statics: HashMap<u64, u32>,
    narrow_jit: HashMap<u64, (u16, u32)>,
}

/// What a unit that is not announced follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Predecessor {
    /// It is the first of its chunk.
    None,
    Static,
    Jit,
}

fn place(address: u64, version: u16) -> u64 {
    address & ((1 << ADDRESS_BITS) - 1) | u64::from(version) << ADDRESS_BITS
}

impl Units {
    /// Adds the units of a Units frame; an error if its list does not end properly.
    pub fn add_jit(&mut self, payload: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        while let Some(unit) =
            JitUnit::decode(payload, &mut at).map_err(|_| "a unit description is damaged")?
        {
            self.places.insert(place(unit.address, unit.version), unit.id);
            if unit.body.flags & flags::WIDE == 0 {
                let newest = (unit.version, unit.id);
                let known = self.narrow_jit.entry(unit.address).or_insert(newest);
                *known = newest.max(*known);
            }
            if self.jit.insert(unit.id, unit).is_some() {
                return Err("two units have the same id");
            }
        }
        Ok(())
    }

    /// Adds the ahead-of-time units of an image that ran at `load`. `by_address`: they will be
    /// looked up by address too.
    pub fn add_static(
        &mut self,
        translation: Translation,
        load: u64,
        first_window: u32,
        count: u64,
        by_address: bool,
    ) -> Result<(), Error> {
        let mut entries = Vec::new();
        let (mut at, mut previous) = (0, 0);
        while (entries.len() as u64) < count {
            let start = at as u32;
            let (address, body) = decode_static(&translation.descriptions, &mut at, previous)
                .ok_or_else(|| Error("the output file's unit descriptions are damaged".into()))?;
            if by_address {
                let id = unit_id(first_window, entries.len() as u32);
                let live = load.wrapping_add(address);
                self.places.entry(place(live, 0)).or_insert(id);
                if body.flags & flags::WIDE == 0 {
                    self.narrow_statics.entry(live).or_insert(id);
                }
            }
            entries.push((address, start));
            previous = address;
        }
        let statics = Statics { translation, load, first_window, entries };
        self.statics.insert(first_window, statics);
        Ok(())
    }

    /// The units of the JIT, in no particular order.
    pub fn jit(&self) -> impl Iterator<Item = &JitUnit> {
        self.jit.values()
    }

    pub fn jit_count(&self) -> usize {
        self.jit.len()
    }

    pub fn static_count(&self) -> usize {
        self.statics.values().map(|s| s.entries.len()).sum()
    }

    /// Live ranges of the images that have ahead-of-time units, by the window of their first unit.
    pub fn images(&self) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        self.statics.values().map(|s| {
            let image = &s.translation.image;
            (s.first_window, s.load.wrapping_add(image.start)..s.load.wrapping_add(image.end))
        })
    }

    /// Id of the unit at a live address.
    pub fn at(&self, address: u64, version: u16) -> Option<u32> {
        self.places.get(&place(address, version)).copied()
    }

    /// Id of the unit that runs at a live address without being announced.
    pub fn narrow_at(&self, address: u64, behind: Predecessor) -> Option<u32> {
        let jit = || self.narrow_jit.get(&address).map(|&(_, id)| id);
        let ahead_of_time = || self.narrow_statics.get(&address).copied();
        match behind {
            Predecessor::None => jit().or_else(ahead_of_time),
            Predecessor::Static => ahead_of_time(),
            Predecessor::Jit => jit(),
        }
    }

    /// Whether ahead-of-time units have numbers in this window, or units of the JIT.
    pub fn kind_of_window(&self, window: u32) -> Predecessor {
        let before = self.statics.range(..=window).next_back();
        let is_static = before.is_some_and(|(first, statics)| {
            window - first < (statics.entries.len() as u32).div_ceil(TAGS_PER_WINDOW)
        });
        match is_static {
            true => Predecessor::Static,
            false => Predecessor::Jit,
        }
    }

    /// The unit with this id.
    pub fn get(&self, id: u32) -> Option<Unit> {
        if let Some(unit) = self.jit.get(&id) {
            return Some(Unit {
                id,
                address: unit.address,
                version: unit.version,
                origin: Origin::Jit(unit.reason),
                body: unit.body.clone(),
                code: unit.code.clone(),
            });
        }
        let (_, statics) = self.statics.range(..=id >> 16).next_back()?;
        let number = unit_number(statics.first_window, id)? as usize;
        let &(address, at) = statics.entries.get(number)?;
        // The body does not depend on the predecessor's address.
        let (_, body) = decode_static(&statics.translation.descriptions, &mut (at as usize), 0)?;
        let code = statics.translation.code(address, usize::from(body.code_len))?;
        Some(Unit {
            id,
            address: statics.load.wrapping_add(address),
            version: 0,
            origin: Origin::Static,
            body,
            code,
        })
    }
}
