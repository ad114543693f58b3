//! Units that a walk has met, compiled once and kept.

use std::cell::Cell;
use std::collections::HashMap;

use abi::ids::{LiveAddr, UnitId};
use abi::unit::flags;

use super::chunk_end::Next;
use crate::compile::{compile, CompiledUnit, Exit, Silent, Tells};
use crate::open::Trace;
use crate::plain::{plain, Plain};
use crate::units::{Origin, Units};

/// Position of a unit in [`CompiledUnits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnitNumber(pub u32);

/// Why the next unit was not found.
pub(super) enum Trouble {
    /// Nothing describes it. Right where a recording was lost, and wrong anywhere else.
    Undescribed(String),
    Wrong(String),
}

impl From<String> for Trouble {
    fn from(what: String) -> Trouble {
        Trouble::Wrong(what)
    }
}

impl From<&str> for Trouble {
    fn from(what: &str) -> Trouble {
        Trouble::Wrong(what.into())
    }
}

/// What most executions of a unit need, side by side.
pub(super) struct Quick {
    pub address: LiveAddr,
    pub leads: Leads,
    pub memory_bytes: u32,
    /// Instructions.
    pub count: u32,
    /// The unit in the form in which it costs least, if it has that.
    pub plain: Option<Plain>,
    /// What may follow without a tag.
    pub silent: Option<QuickSilent>,
}

/// [`Silent`], with the number of the unit once it was met.
pub(super) struct QuickSilent {
    what: Silent,
    number: Cell<Option<UnitNumber>>,
}

impl QuickSilent {
    /// Whether it follows where the stream goes on with a unit at `next`.
    #[inline(always)]
    pub fn follows(&self, next: LiveAddr) -> bool {
        self.what.other != Some(next)
    }

    /// The unit, if it was met before.
    #[inline(always)]
    pub fn number(&self, units: &CompiledUnits<'_>) -> Option<UnitNumber> {
        if self.number.get().is_none() {
            self.number.set(units.by_id.get(&self.what.id).copied());
        }
        self.number.get()
    }
}

/// Where a unit leads to, for one comparison each.
#[derive(Clone, Copy)]
pub(super) struct Leads {
    /// It may lead to these, or anywhere.
    to: [LiveAddr; 2],
    anywhere: bool,
    /// The block goes on there.
    falls: Option<LiveAddr>,
}

impl Leads {
    /// Behind a unit, or where a walk is.
    pub fn new(next: Next, fresh: bool) -> Leads {
        let (to, anywhere) = match next {
            Next::Anywhere => ([LiveAddr(0); 2], true),
            Next::At(address) => ([address; 2], false),
            Next::Either(a, b) => ([a, b], false),
        };
        let falls = (!fresh && matches!(next, Next::At(_))).then_some(to[0]);
        Leads { to, anywhere, falls }
    }

    #[inline(always)]
    pub fn allows(&self, address: LiveAddr) -> bool {
        self.anywhere || self.to[0] == address || self.to[1] == address
    }

    #[inline(always)]
    pub fn falls_to(&self, address: LiveAddr) -> bool {
        self.falls == Some(address)
    }
}

impl Quick {
    fn new(unit: &CompiledUnit, plain: Option<Plain>) -> Quick {
        Quick {
            address: unit.address,
            leads: Leads::new(Next::behind(unit.exit), unit.transfers),
            memory_bytes: unit.memory_bytes,
            count: u32::try_from(unit.starts.len() - 1).unwrap_or(u32::MAX),
            plain,
            silent: unit.silent.map(|what| QuickSilent { what, number: Cell::new(None) }),
        }
    }
}

/// All units that were met, in the order in which they were.
pub(super) struct CompiledUnits<'t> {
    trace: &'t Trace,
    list: Vec<CompiledUnit>,
    /// Of each of them, what most executions need.
    quick: Vec<Quick>,
    by_id: HashMap<UnitId, UnitNumber>,
    tells: Tells,
}

impl<'t> CompiledUnits<'t> {
    pub fn new(trace: &'t Trace) -> CompiledUnits<'t> {
        let tells = match trace.options.recording {
            options if options.undo() => Tells::Stores,
            options if options.records_memory() => Tells::References,
            _ => Tells::Nothing,
        };
        CompiledUnits { trace, list: Vec::new(), quick: Vec::new(), by_id: HashMap::new(), tells }
    }

    #[inline]
    pub fn get(&self, number: UnitNumber) -> &CompiledUnit {
        &self.list[number.0 as usize]
    }

    /// What most executions of it need.
    #[inline(always)]
    pub fn quick(&self, number: UnitNumber) -> &Quick {
        &self.quick[number.0 as usize]
    }

    /// What describes the units.
    pub fn described(&self) -> &'t Units {
        &self.trace.units
    }

    /// The number of the unit with this id, which is compiled when it is first asked for.
    pub fn by_id(&mut self, id: UnitId) -> Result<UnitNumber, Trouble> {
        if let Some(&number) = self.by_id.get(&id) {
            return Ok(number);
        }
        let undescribed = || Trouble::Undescribed(format!("unknown unit {id}"));
        let unit = self.trace.units.get(id).ok_or_else(undescribed)?;
        if unit.body.flags & flags::OUTSIDE != 0 || !self.trace.records(unit.address) {
            let what = format!("unit {id} at {} is of code that is not recorded", unit.address);
            return Err(what.into());
        }
        let mut compiled = compile(&unit, self.tells)
            .map_err(|what| format!("unit {id} at {}: {what}", unit.address))?;
        compiled.silent = self.silent_behind(&compiled);
        let number = u32::try_from(self.list.len()).map_err(|_| "too many units")?;
        let number = UnitNumber(number);
        let is_plain = self.tells == Tells::References;
        let plain = is_plain.then(|| plain(&compiled.steps)).flatten();
        self.quick.push(Quick::new(&compiled, plain));
        self.list.push(compiled);
        self.by_id.insert(id, number);
        Ok(number)
    }

    /// What follows a unit without a tag of its own, unless the stream says otherwise.
    fn silent_behind(&self, unit: &CompiledUnit) -> Option<Silent> {
        if unit.origin != Origin::Static {
            return None;
        }
        let silent =
            |to, other| Some(Silent { id: self.trace.units.silent_at(to, unit.id)?, other });
        match unit.exit {
            Exit::To(to) => silent(to, None),
            Exit::Branch { taken, not_taken } => {
                silent(not_taken, Some(taken)).or_else(|| silent(taken, Some(not_taken)))
            }
            Exit::System(_) | Exit::Anywhere => None,
        }
    }

    /// The same, of a unit that a `full-pc` word names.
    pub fn by_word(&mut self, word: u64) -> Result<UnitNumber, Trouble> {
        let undescribed = |(address, version)| {
            Trouble::Undescribed(format!("no unit at {address}, version {version}"))
        };
        let (address, version) = crate::units::split_word(word);
        let id = self.trace.units.at(address, version);
        self.by_id(id.ok_or_else(|| undescribed((address, version)))?)
    }
}
