//! All units that a trace can name: of the JIT (in the trace) and ahead-of-time (in the output).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use abi::ids::{LiveAddr, OrigAddr, UnitId};
use abi::trace::full_pc::ADDRESS_BITS;
use abi::unit::{
    decode_static, flags, unit_id, unit_number, JitReason, JitUnit, UnitBody, TAGS_PER_WINDOW,
};

use crate::output::Translation;
use crate::Error;

/// Where a unit came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was translated ahead of time.
    Static,
    /// It was translated when it ran.
    Jit(JitReason),
}

/// A unit with its code, as the trace or the output file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedUnit {
    /// Its number.
    pub id: UnitId,
    /// Where it starts.
    pub address: LiveAddr,
    /// Where description and code came from.
    pub origin: Origin,
    /// What it records.
    pub body: UnitBody,
    /// Its original code.
    pub code: Vec<u8>,
}

/// The ahead-of-time units of one image: where the description of each lies.
#[derive(Debug)]
struct Statics {
    translation: Translation,
    load: LiveAddr,
    first_window: u32,
    /// Address in the image, position in the descriptions.
    entries: Vec<(OrigAddr, u32)>,
    /// Addresses and numbers of units that write no tag, ascending.
    silent: Vec<(OrigAddr, u32)>,
}

/// All units that a trace can name. Of one that is being written they become more while others read.
#[derive(Debug, Default)]
pub struct Units {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    jit: HashMap<UnitId, JitUnit>,
    /// The program's first, if it has any, then those of libraries; by their windows.
    statics: BTreeMap<u32, Statics>,
    /// (address, version) to id.
    places: HashMap<u64, UnitId>,
    /// Units that nothing announces, by address: ahead-of-time, and of the JIT.
    narrow_statics: HashMap<LiveAddr, UnitId>,
    narrow_jit: HashMap<LiveAddr, UnitId>,
    /// Addresses with several of the JIT.
    ambiguous: HashSet<LiveAddr>,
}

/// What a unit that is not announced follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Predecessor {
    /// It is the first of its chunk.
    None,
    /// An ahead-of-time unit.
    Static,
    /// A unit of the JIT.
    Jit,
}

/// The word of the `full-pc` format that names the unit at this address.
fn word(address: LiveAddr, version: u16) -> u64 {
    address.0 & ((1 << ADDRESS_BITS) - 1) | u64::from(version) << ADDRESS_BITS
}

/// Address and version that a word of the `full-pc` format names.
#[must_use]
pub fn split_word(word: u64) -> (LiveAddr, u16) {
    let version = word.to_le_bytes();
    let version = u16::from_le_bytes([version[6], version[7]]);
    (LiveAddr(word & ((1 << ADDRESS_BITS) - 1)), version)
}

impl Units {
    /// Adds the units of a Units frame; an error if its list does not end properly.
    pub fn add_jit(&self, payload: &[u8]) -> Result<(), &'static str> {
        self.known_mut().add_jit(payload, &mut 0)
    }

    /// The same, of those from `at` on, which goes on behind them.
    pub(crate) fn add_more_jit(&self, payload: &[u8], at: &mut usize) -> Result<(), &'static str> {
        self.known_mut().add_jit(payload, at)
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the ahead-of-time units of an image that ran at `load`. `by_address`: they will be
    /// looked up by address too.
    pub fn add_static(
        &self,
        translation: Translation,
        load: LiveAddr,
        first_window: u32,
        count: u64,
        by_address: bool,
    ) -> Result<(), Error> {
        self.known_mut().add_static(translation, load, first_window, count, by_address)
    }

    /// Tells the units of the JIT, in no particular order.
    pub fn each_jit(&self, tell: impl FnMut(&JitUnit)) {
        self.known().jit.values().for_each(tell);
    }

    /// Number of units of the JIT.
    pub fn jit_count(&self) -> usize {
        self.known().jit.len()
    }

    /// Number of ahead-of-time units.
    pub fn static_count(&self) -> usize {
        self.known().statics.values().map(|s| s.entries.len()).sum()
    }

    /// Live ranges of the images that have ahead-of-time units, by the window of their first unit.
    pub fn images(&self) -> Vec<(u32, Range<LiveAddr>)> {
        let known = self.known();
        let all = known.statics.values().map(|s| {
            let image = &s.translation.image;
            (s.first_window, s.load.plus(image.start.0)..s.load.plus(image.end.0))
        });
        all.collect()
    }

    /// Id of the unit at a live address.
    pub fn at(&self, address: LiveAddr, version: u16) -> Option<UnitId> {
        self.known().places.get(&word(address, version)).copied()
    }

    /// Id of the unit that runs at a live address without being announced.
    ///
    /// # Errors
    /// Several do.
    pub fn narrow_at(
        &self,
        address: LiveAddr,
        behind: Predecessor,
    ) -> Result<Option<UnitId>, String> {
        self.known().narrow_at(address, behind)
    }

    /// The unit that writes no tag at a live address, where an ahead-of-time unit `from` leads directly.
    pub fn silent_at(&self, address: LiveAddr, from: UnitId) -> Option<UnitId> {
        self.known().silent_at(address, from)
    }

    /// Whether ahead-of-time units have numbers in this window, or units of the JIT.
    pub fn kind_of_window(&self, window: u32) -> Predecessor {
        self.known().kind_of_window(window)
    }

    /// The unit with this id.
    pub fn get(&self, id: UnitId) -> Option<DescribedUnit> {
        self.known().get(id)
    }
}

impl Known {
    fn add_jit(&mut self, payload: &[u8], at: &mut usize) -> Result<(), &'static str> {
        while let Some(unit) =
            JitUnit::decode(payload, at).map_err(|_| "a unit description is damaged")?
        {
            self.places.insert(word(unit.address, unit.version), unit.id);
            let narrow = unit.body.flags & flags::WIDE == 0;
            if narrow && self.narrow_jit.insert(unit.address, unit.id).is_some() {
                self.ambiguous.insert(unit.address);
            }
            if self.jit.insert(unit.id, unit).is_some() {
                return Err("two units have the same id");
            }
        }
        Ok(())
    }

    fn add_static(
        &mut self,
        translation: Translation,
        load: LiveAddr,
        first_window: u32,
        count: u64,
        by_address: bool,
    ) -> Result<(), Error> {
        let (mut entries, mut silent) = (Vec::new(), Vec::new());
        let damaged = || Error("the output file's unit descriptions are damaged".into());
        let (mut at, mut previous) = (0, OrigAddr(0));
        for number in 0..count {
            let start = u32::try_from(at).map_err(|_| damaged())?;
            let (address, body) =
                decode_static(&translation.descriptions, &mut at, previous).ok_or_else(damaged)?;
            let number = u32::try_from(number).map_err(|_| damaged())?;
            if body.flags & flags::SILENT != 0 {
                silent.push((address, number));
            }
            if by_address {
                let id = unit_id(first_window, number);
                let live = load.plus(address.0);
                self.places.entry(word(live, 0)).or_insert(id);
                if body.flags & flags::WIDE == 0 {
                    self.narrow_statics.entry(live).or_insert(id);
                }
            }
            entries.push((address, start));
            previous = address;
        }
        silent.sort_unstable();
        let statics = Statics { translation, load, first_window, entries, silent };
        self.statics.insert(first_window, statics);
        Ok(())
    }

    fn narrow_at(&self, address: LiveAddr, behind: Predecessor) -> Result<Option<UnitId>, String> {
        if behind != Predecessor::Static && self.ambiguous.contains(&address) {
            return Err(format!("two units at {address} announce themselves by nothing"));
        }
        let jit = || self.narrow_jit.get(&address).copied();
        let ahead_of_time = || self.narrow_statics.get(&address).copied();
        Ok(match behind {
            Predecessor::None => jit().or_else(ahead_of_time),
            Predecessor::Static => ahead_of_time(),
            Predecessor::Jit => jit(),
        })
    }

    fn silent_at(&self, address: LiveAddr, from: UnitId) -> Option<UnitId> {
        let (_, statics) = self.statics.range(..=from.window()).next_back()?;
        let address = OrigAddr(address.0.wrapping_sub(statics.load.0));
        let i = statics.silent.binary_search_by_key(&address, |s| s.0).ok()?;
        Some(unit_id(statics.first_window, statics.silent[i].1))
    }

    fn kind_of_window(&self, window: u32) -> Predecessor {
        let before = self.statics.range(..=window).next_back();
        let is_static = before.is_some_and(|(first, statics)| {
            u64::from(window - first)
                < (statics.entries.len() as u64).div_ceil(u64::from(TAGS_PER_WINDOW))
        });
        match is_static {
            true => Predecessor::Static,
            false => Predecessor::Jit,
        }
    }

    fn get(&self, id: UnitId) -> Option<DescribedUnit> {
        if let Some(unit) = self.jit.get(&id) {
            return Some(DescribedUnit {
                id,
                address: unit.address,
                origin: Origin::Jit(unit.reason),
                body: unit.body.clone(),
                code: unit.code.clone(),
            });
        }
        let (_, statics) = self.statics.range(..=id.window()).next_back()?;
        let number = unit_number(statics.first_window, id)? as usize;
        let &(address, at) = statics.entries.get(number)?;
        // The body does not depend on the predecessor's address.
        let (_, body) =
            decode_static(&statics.translation.descriptions, &mut (at as usize), OrigAddr(0))?;
        let code = statics.translation.code(address, usize::from(body.code_len))?;
        Some(DescribedUnit {
            id,
            address: statics.load.plus(address.0),
            origin: Origin::Static,
            body,
            code,
        })
    }
}
