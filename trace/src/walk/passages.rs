//! Units that are executed one after another again and again, taken as one: a *passage*.
//!
//! What the next bytes of the control-flow stream name is the same whenever the same window is current, as far as
//! units go that were met. So those bytes are the key under which a passage is found; they are compared, not
//! followed. Of a passage, as of a unit, each address and each register behind it is a
//! [sum](crate::plain::Plain). Whatever is in the way (an event, a register that is not known, the end of a
//! stream) is left to the walk from unit to unit.

use std::cell::Cell;

use abi::ids::LiveAddr;
use abi::unit::MAX_SILENT;

use super::compiled::{CompiledUnits, Leads, UnitNumber};
use super::course::Decoder;
use super::sink::Sink;
use super::stream::Stream;
use crate::compile::CompiledUnit;
use crate::plain::{plain, Plain, Referred};

/// Words of the longest key.
const LONG: usize = 4;
/// Words of the keys that passages have, the longest one first.
const KEYS: [usize; 3] = [LONG, 2, 1];
/// A key was met so often when its passage is made, which costs what dozens of units do.
const OFTEN: u32 = 12;
/// The same of the longest key, for which only one time in [`ROUNDS`] is looked if there is a shorter one.
const LONG_OFTEN: u32 = 3;
const ROUNDS: u32 = 16;
/// Places that a key may have, side by side.
const WAYS: usize = 4;
const SETS: usize = 1 << 14;
/// How far a number of 16 bits is shifted to be that of a set.
const SHIFT: u32 = 16 - SETS.trailing_zeros();
/// Passages that are kept, of about 1 KiB each: half of the places. With more, all are forgotten and made anew.
const MOST: usize = if cfg!(test) { 32 } else { SETS * WAYS / 2 };
/// Of columns so many rows are side by side: a copy of constant size costs less than one of a few bytes.
pub const LANES: usize = 8;

/// A unit of a passage.
struct Member {
    unit: UnitNumber,
    /// A block begins with it. Of the first unit that is not known.
    begins: bool,
}

/// Units one after another.
pub(super) struct Passage {
    /// The next words of the stream, as far as they count.
    key: [u64; LONG],
    mask: [u64; LONG],
    /// What the decoder has to say in front of it, and says behind it.
    context: u32,
    pub behind: u32,
    /// What came behind it last time.
    next: Cell<u32>,
    /// How often it was guessed since it was last looked for a longer one; of the longest, never.
    rounds: Cell<u32>,
    /// Bytes of the control-flow stream.
    pub bytes: usize,
    pub memory_bytes: usize,
    /// Instructions.
    pub count: u64,
    /// Where the first unit is.
    pub address: LiveAddr,
    pub leads: Leads,
    /// No unit without a tag follows.
    pub settled: bool,
    members: Box<[Member]>,
    /// Blocks that begin behind the first unit's start.
    blocks: u64,
    /// `None` if no references are wanted.
    pub plain: Option<Plain>,
    /// Of each reference.
    pcs: Box<[[u64; LANES]]>,
    kinds: Box<[[Kind; LANES]]>,
}

impl Passage {
    /// Units.
    pub fn len(&self) -> u64 {
        self.members.len() as u64
    }

    pub fn last(&self) -> UnitNumber {
        self.members[self.members.len() - 1].unit
    }

    /// References.
    fn references(&self) -> usize {
        self.plain.as_ref().map_or(0, |plain| plain.references.len())
    }

    #[inline(always)]
    fn is_next(&self, rest: &[u8], context: u32) -> bool {
        let Some(words) = words::<LONG>(rest) else { return false };
        let differs = |n: usize| (words[n] ^ self.key[n]) & self.mask[n];
        differs(0) | differs(1) | differs(2) | differs(3) == 0 && self.context == context
    }
}

/// Units that were executed one after another, and what they referred to.
pub struct Passed<'a> {
    /// The number of the passage, dense. It has the same units each time, until all passages are forgotten.
    pub number: u32,
    /// How often that was so.
    pub forgotten: u32,
    /// A block begins with the first unit.
    pub begins: bool,
    /// Addresses, and behind them anything, so that it is whole lanes.
    pub(super) room: &'a [u64],
    pub(super) passage: &'a Passage,
    pub(super) units: &'a CompiledUnits<'a>,
}

impl Passed<'_> {
    /// References, if the sink wants them: rows of [`Passed::columns`].
    #[inline]
    pub fn references(&self) -> usize {
        self.passage.references()
    }

    /// Columns of all references, in their order: the instructions, and what does not change. Rows behind the last
    /// one mean nothing.
    #[inline]
    pub fn columns(&self) -> (&[[u64; LANES]], &[[Kind; LANES]]) {
        (&self.passage.pcs, &self.passage.kinds)
    }

    /// The addresses in the same form, if the sink wants them.
    #[inline]
    pub fn address_column(&self) -> &[[u64; LANES]] {
        self.room.as_chunks::<LANES>().0
    }

    /// The addresses.
    #[inline]
    pub fn addresses(&self) -> &[u64] {
        self.room.get(..self.references()).unwrap_or_default()
    }

    /// Where the first unit is.
    #[inline]
    pub fn start(&self) -> LiveAddr {
        self.passage.address
    }

    /// The units, with their numbers, and their references.
    pub fn units(&self) -> impl Iterator<Item = (u32, &CompiledUnit, &[Referred])> + '_ {
        self.passage.members.iter().map(|member| {
            let plain = self.units.quick(member.unit).plain.as_ref();
            let references = plain.map_or(&[][..], |plain| &plain.references);
            (member.unit.0, self.units.get(member.unit), references)
        })
    }

    /// How many blocks begin behind the first unit's start.
    #[inline]
    pub fn block_count(&self) -> u64 {
        self.passage.blocks
    }

    /// Those blocks.
    pub fn blocks(&self) -> impl Iterator<Item = LiveAddr> + '_ {
        self.passage.members.iter().enumerate().flat_map(|(n, member)| {
            let unit = self.units.get(member.unit);
            let own = (n > 0 && member.begins).then_some(unit.address);
            let inner = unit.inner_blocks.iter().map(|&at| unit.address.plus(u64::from(at)));
            own.into_iter().chain(inner)
        })
    }

    /// Tells the units one by one.
    pub fn each<S: Sink>(&self, sink: &mut S) {
        let mut addresses = self.addresses();
        for (n, member) in self.passage.members.iter().enumerate() {
            let (unit, quick) = (self.units.get(member.unit), self.units.quick(member.unit));
            let begins = if n == 0 { self.begins } else { member.begins };
            sink.unit(unit, false);
            if begins {
                sink.block(unit.address, false);
            }
            match &quick.plain {
                Some(plain) if S::REFERENCES => {
                    let these = plain.references.len().min(addresses.len());
                    let (these, rest) = addresses.split_at(these);
                    addresses = rest;
                    sink.plain(member.unit.0, unit, &plain.references, these);
                }
                _ => {
                    for &at in &unit.inner_blocks {
                        sink.block(unit.address.plus(u64::from(at)), false);
                    }
                }
            }
            sink.executed(unit, quick.count as usize);
        }
    }
}

/// What a reference is every time, but for its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kind {
    /// Bytes.
    pub size: u16,
    /// It writes.
    pub write: bool,
}

impl Kind {
    fn of(referred: &Referred) -> Kind {
        Kind { size: referred.size, write: referred.write }
    }
}

/// In lanes, of which the last is filled up.
fn column<T: Copy + Default>(rows: impl Iterator<Item = T>) -> Box<[[T; LANES]]> {
    let mut rows: Vec<T> = rows.collect();
    rows.resize(rows.len().next_multiple_of(LANES), T::default());
    rows.as_chunks::<LANES>().0.into()
}

/// What is known of a key.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// A part of its hash.
    check: u32,
    /// How often it was met; or [`NEVER`]; or the number of its passage, and [`FOUND`].
    state: u32,
}

/// No passage starts so.
const NEVER: u32 = FOUND - 1;
const FOUND: u32 = 1 << 31;

/// Passages that were met. Those of walks with references and of others are not the same.
#[derive(Default)]
pub(super) struct Passages {
    list: Vec<Passage>,
    /// How often they were forgotten.
    pub forgotten: u32,
    /// By the hashes of their keys.
    slots: Box<[Slot]>,
}

/// The next words of the stream, if there are so many.
#[inline(always)]
fn words<const WORDS: usize>(rest: &[u8]) -> Option<[u64; WORDS]> {
    let (words, _) = rest.as_chunks::<8>();
    words.first_chunk::<WORDS>().map(|words| words.map(u64::from_le_bytes))
}

/// The set of a key, and the part of the hash that its slot has.
#[inline]
fn place(key: &[u64], context: u32) -> (usize, u32) {
    let mut hash = u64::from(context) << 32 ^ key.len() as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for &word in key {
        let product = u128::from(hash ^ word) * 0xd6e8_feb8_6659_fd93;
        let [low, high] = halves(product);
        hash = low ^ high;
    }
    let [a, b, c, d, .., y, z] = hash.to_le_bytes();
    (usize::from(u16::from_le_bytes([y, z]) >> SHIFT) * WAYS, u32::from_le_bytes([a, b, c, d]))
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the halves are asked for")]
fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}

impl Passages {
    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<&Passage> {
        self.list.get(number as usize)
    }

    /// The passage that the stream goes on with, if it is the one that came behind `before` last time.
    #[inline(always)]
    pub fn guess(&self, before: u32, rest: &[u8], context: u32) -> Option<u32> {
        let number = self.get(before)?.next.get();
        let passage = self.get(number)?;
        if !passage.is_next(rest, context) {
            return None;
        }
        let rounds = passage.rounds.get() + u32::from(passage.mask[LONG - 1] == 0);
        passage.rounds.set(rounds);
        (rounds < ROUNDS).then_some(number)
    }

    /// The passage that the stream goes on with, the longest. One that is missed often is made.
    pub fn search<D: Decoder>(
        &mut self,
        before: u32,
        rest: &[u8],
        context: u32,
        decoder: &mut D,
        units: &CompiledUnits<'_>,
        references: bool,
    ) -> Option<u32> {
        if self.slots.is_empty() || self.list.len() >= MOST {
            self.forgotten += u32::from(!self.list.is_empty());
            self.list.clear();
            self.slots = vec![Slot::default(); SETS * WAYS].into();
        }
        let words: [u64; LONG] = words(rest)?;
        let find = |length| self.find(&words[..length], context);
        let mut found = KEYS.iter().find_map(|&length| find(length).map(|at| (length, at)));
        let shorter = found.map_or(0, |(length, _)| length);
        // A long key is counted where what it begins with comes often.
        let counts = |length: usize| length > shorter && (length < LONG || shorter > 0);
        for length in KEYS.into_iter().filter(|&length| counts(length)) {
            let made = self.miss(&words[..length], context, decoder, units, references);
            found = found.or(made.map(|at| (length, at)));
        }
        let (_, number) = found?;
        if let Some(before) = self.get(before) {
            before.next.set(number);
        }
        self.list[number as usize].rounds.set(0);
        Some(number)
    }

    fn find(&self, key: &[u64], context: u32) -> Option<u32> {
        let (set, check) = place(key, context);
        let found = self.slots[set..set + WAYS].iter().find(|slot| {
            slot.check == check && slot.state >= FOUND && {
                let passage = &self.list[(slot.state - FOUND) as usize];
                let ends = passage.mask.get(key.len()).is_none_or(|&mask| mask == 0);
                passage.key[..key.len()] == *key && ends && passage.context == context
            }
        });
        found.map(|slot| slot.state - FOUND)
    }

    /// Counts a key that has no passage. If it was met often it gets one, or none for ever.
    fn miss<D: Decoder>(
        &mut self,
        key: &[u64],
        context: u32,
        decoder: &mut D,
        units: &CompiledUnits<'_>,
        references: bool,
    ) -> Option<u32> {
        let (set, check) = place(key, context);
        let slots = &mut self.slots[set..set + WAYS];
        let Some(slot) = slots.iter_mut().find(|slot| slot.check == check) else {
            // The one that was met least gives way, but no passage.
            let least = slots.iter_mut().min_by_key(|slot| slot.state);
            if let Some(slot) = least.filter(|slot| slot.state < NEVER) {
                *slot = Slot { check, state: 1 };
            }
            return None;
        };
        let often = if key.len() == LONG { LONG_OFTEN } else { OFTEN };
        if slot.state >= often {
            return None;
        }
        slot.state += 1;
        if slot.state < often {
            return None;
        }
        slot.state = NEVER;
        let number = u32::try_from(self.list.len()).ok()?;
        let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
        let made = make(&bytes, decoder, units, references);
        decoder.resume(context);
        let mut passage = made?;
        passage.key[..key.len()].copy_from_slice(key);
        passage.mask[..key.len()].fill(u64::MAX);
        slot.state = FOUND + number;
        self.list.push(passage);
        Some(number)
    }
}

/// Where a passage can end: behind a unit with a tag, and what is known to follow without one.
struct End {
    members: usize,
    bytes: usize,
    behind: u32,
    settled: bool,
}

/// The passage that these bytes name. The decoder is at their end then.
fn make<D: Decoder>(
    bytes: &[u8],
    decoder: &mut D,
    units: &CompiledUnits<'_>,
    references: bool,
) -> Option<Passage> {
    let context = decoder.context()?;
    let (members, mut ends) = follow(bytes, decoder, units, references);
    // What follows the last tag is not known: the walk has to look.
    if ends.len() > 1 && ends.last().is_some_and(|end| !end.settled) {
        ends.pop();
    }
    // Of a loop whole rounds, so that the same passage comes again.
    let is_period = |&period: &usize| bytes[period..] == bytes[..bytes.len() - period];
    if let Some(period) = (2..=bytes.len() / 2).step_by(2).find(is_period) {
        if ends.iter().any(|end| end.bytes.is_multiple_of(period)) {
            ends.retain(|end| end.bytes.is_multiple_of(period));
        }
    }
    while let Some(end) = ends.pop().filter(|end| end.members > 1) {
        let members = &members[..end.members];
        let steps = members.iter().flat_map(|member| &units.get(member.unit).steps);
        let sums = match references {
            true => plain(steps).map(Some),
            false => Some(None),
        };
        let Some(plain) = sums else { continue };
        let quicks = || members.iter().map(|member| units.quick(member.unit));
        let pcs = quicks().flat_map(|quick| {
            let all = quick.plain.iter().flat_map(|plain| &plain.references);
            all.map(|referred| quick.address.plus(u64::from(referred.offset)).0)
        });
        let kinds = plain.iter().flat_map(|plain| &plain.references).map(Kind::of);
        let last = quicks().next_back()?;
        let inner = members.iter().map(|member| units.get(member.unit).inner_blocks.len() as u64);
        let own = members[1..].iter().filter(|member| member.begins).count() as u64;
        return Some(Passage {
            key: [0; LONG],
            mask: [0; LONG],
            next: Cell::new(NEVER),
            rounds: Cell::new(0),
            context,
            behind: end.behind,
            bytes: end.bytes,
            memory_bytes: quicks().map(|quick| quick.memory_bytes as usize).sum(),
            count: quicks().map(|quick| u64::from(quick.count)).sum(),
            address: quicks().next()?.address,
            leads: last.leads,
            settled: end.settled,
            pcs: if references { column(pcs) } else { Box::default() },
            kinds: column(kinds),
            members: members.iter().map(|m| Member { unit: m.unit, begins: m.begins }).collect(),
            blocks: own + inner.sum::<u64>(),
            plain,
        });
    }
    None
}

/// The units that these bytes name, with those that write nothing, and the places behind each tag and what
/// follows it without one.
fn follow<D: Decoder>(
    bytes: &[u8],
    decoder: &mut D,
    units: &CompiledUnits<'_>,
    references: bool,
) -> (Vec<Member>, Vec<End>) {
    let (mut members, mut ends) = (Vec::new(), Vec::new());
    let mut stream = Stream::new(bytes, false);
    let mut leads: Option<Leads> = None;
    let mut add = |members: &mut Vec<Member>, unit: UnitNumber| {
        let quick = units.quick(unit);
        let follows = leads.is_none_or(|leads| leads.allows(quick.address));
        if !follows || references && quick.plain.is_none() {
            return None;
        }
        let begins = leads.is_none_or(|leads| !leads.falls_to(quick.address));
        members.push(Member { unit, begins });
        leads = Some(quick.leads);
        Some(quick)
    };
    let mut next = decoder.plain(&stream);
    while let Some((number, taken)) = next {
        let Some(behind) = decoder.context() else { break };
        let Some(quick) = add(&mut members, number) else { break };
        stream.skip(taken);
        next = decoder.plain(&stream);
        let mut silent = quick.silent.as_ref();
        let mut end = End { members: members.len(), bytes: stream.mark(), behind, settled: false };
        end.settled = silent.is_none();
        if let Some((named, _)) = next {
            let named = units.quick(named).address;
            for _ in 0..=MAX_SILENT {
                let Some(follows) = silent.filter(|silent| silent.follows(named)) else {
                    (end.members, end.settled) = (members.len(), true);
                    break;
                };
                let Some(unit) = follows.number(units) else { break };
                let Some(quick) = add(&mut members, unit) else { break };
                silent = quick.silent.as_ref();
            }
        }
        let settled = end.settled;
        ends.push(end);
        if !settled {
            break;
        }
    }
    (members, ends)
}

#[cfg(test)]
mod tests;
