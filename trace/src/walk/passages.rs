//! Units that are executed one after another again and again, taken as one: a *passage*.
//!
//! What the next bytes of the control-flow stream name is the same whenever the same window is current, as far as
//! units go that were met. So those bytes are the key under which a passage is found; they are compared, not
//! followed. Of a passage, as of a unit, each address and each register behind it is a
//! [sum](crate::plain::Plain). Whatever is in the way (an event, a register that is not known, the end of a
//! stream) is left to the walk from unit to unit.

use std::cell::Cell;

use abi::unit::MAX_SILENT;

use super::compiled::{CompiledUnits, Leads, UnitNumber};
use super::course::Decoder;
use super::passage::{bits, blocks, column, words, Member, Passage, LONG};
use super::stream::Stream;
use crate::plain::plain;

/// Words of the keys that passages have.
const KEYS: [usize; 3] = [1, 2, LONG];
/// A key was met so often when its passage is made, which costs what dozens of units do.
const OFTEN: u32 = 12;
/// The same of the longest key. Its passage saves little beside those that there are by then, and where the way of
/// a program is hard to foretell there are so many that they push each other out of the processor's caches.
const LONG_OFTEN: u32 = if cfg!(test) { 48 } else { 1000 };
/// Where a passage is guessed, one time in so many it is looked if there is a longer one, which counts for all.
const ROUNDS: u32 = 16;
/// A passage that was met so often was worth its making.
const WORTH: u32 = 64;
/// How often the limits may be doubled: where little comes again keys have to be met more often.
const MOST_PATIENCE: u32 = 4;
/// Places that a key may have, side by side.
const WAYS: usize = 4;
const SETS: usize = 1 << 14;
/// How far a number of 16 bits is shifted to be that of a set.
const SHIFT: u32 = 16 - SETS.trailing_zeros();
/// Passages that are kept, of about 1 KiB each: half of the places. With more, all are forgotten and made anew.
const MOST: usize = if cfg!(test) { 32 } else { SETS * WAYS / 2 };

/// What is known of a key.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// A part of its hash.
    check: u32,
    /// How often it was met; or [`NEVER`]; or the number of its passage, and [`FOUND`].
    state: u32,
}

/// What a key is when it is looked up.
enum Known {
    /// It has this passage.
    Passage(u32),
    /// It never has one, but a longer key may.
    Nothing,
    /// It was not met often, and so no longer one was.
    Seldom,
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
    /// How often the limits are doubled.
    patience: u32,
    /// The last one that was looked up has the longest key.
    long: bool,
    /// By the hashes of their keys.
    slots: Box<[Slot]>,
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
        let uses = passage.used();
        let looks = uses.is_multiple_of(ROUNDS) && passage.mask[LONG - 1] == 0;
        (!looks).then_some(number)
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
            self.forget();
        }
        let words: [u64; LONG] = words(rest)?;
        // Often the longest key follows the longest. Where none has a passage the shortest one tells soonest.
        let mut found = if self.long { self.find(&words, context) } else { None };
        self.long = found.is_some();
        if found.is_none() {
            let guessed = self.get(before).map(|before| before.next.get());
            for length in KEYS {
                let weight = if found.is_some() && found == guessed { ROUNDS } else { 1 };
                match self.look(&words[..length], weight, context, decoder, units, references) {
                    Known::Passage(number) => {
                        found = Some(number);
                        self.long = length == LONG;
                    }
                    Known::Nothing => {}
                    Known::Seldom => break,
                }
            }
        }
        let number = found?;
        if let Some(before) = self.get(before) {
            before.next.set(number);
        }
        self.get(number)?.used();
        Some(number)
    }

    /// All passages. Where most of them were not worth their making the next ones have to be met more often, until
    /// the program does what makes them worth it.
    #[cold]
    fn forget(&mut self) {
        if !self.list.is_empty() {
            self.forgotten += 1;
            let paid = self.list.iter().filter(|passage| passage.uses.get() >= WORTH).count();
            self.patience = patience_behind(self.patience, paid, self.list.len());
        }
        self.list.clear();
        self.slots = vec![Slot::default(); SETS * WAYS].into();
    }

    fn find(&self, key: &[u64], context: u32) -> Option<u32> {
        let (set, check) = place(key, context);
        let found = self.slots[set..set + WAYS].iter().find(|slot| {
            slot.check == check && slot.state >= FOUND && self.has(slot, key, context)
        });
        found.map(|slot| slot.state - FOUND)
    }

    /// Whether the passage of the slot has this key.
    fn has(&self, slot: &Slot, key: &[u64], context: u32) -> bool {
        let Some(passage) = self.get(slot.state - FOUND) else { return false };
        let ends = passage.mask.get(key.len()).is_none_or(|&mask| mask == 0);
        passage.key[..key.len()] == *key && ends && passage.context == context
    }

    /// Looks a key up. If it has no passage it is counted, as so many; met often it gets one, or none for ever.
    fn look<D: Decoder>(
        &mut self,
        key: &[u64],
        weight: u32,
        context: u32,
        decoder: &mut D,
        units: &CompiledUnits<'_>,
        references: bool,
    ) -> Known {
        let (set, check) = place(key, context);
        let at = (set..set + WAYS).find(|&at| self.slots[at].check == check);
        let Some(at) = at else {
            // The one that was met least gives way, but no passage.
            let least = self.slots[set..set + WAYS].iter_mut().min_by_key(|slot| slot.state);
            if let Some(slot) = least.filter(|slot| slot.state < NEVER) {
                *slot = Slot { check, state: weight };
            }
            return Known::Seldom;
        };
        let slot = self.slots[at];
        if slot.state >= FOUND {
            return match self.has(&slot, key, context) {
                true => Known::Passage(slot.state - FOUND),
                false => Known::Seldom,
            };
        }
        if slot.state == NEVER {
            return Known::Nothing;
        }
        let often = if key.len() == LONG { LONG_OFTEN } else { OFTEN };
        self.slots[at].state += weight;
        if slot.state + weight < often << self.patience {
            return Known::Seldom;
        }
        self.slots[at].state = NEVER;
        let Ok(number) = u32::try_from(self.list.len()) else { return Known::Seldom };
        let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
        let made = make(&bytes, decoder, units, references);
        decoder.resume(context);
        let Some(mut passage) = made else { return Known::Nothing };
        passage.key[..key.len()].copy_from_slice(key);
        passage.mask[..key.len()].fill(u64::MAX);
        self.slots[at].state = FOUND + number;
        self.list.push(passage);
        Known::Passage(number)
    }
}

/// How often the limits are to be doubled, where that was so and `paid` of `all` passages were worth their making.
fn patience_behind(patience: u32, paid: usize, all: usize) -> u32 {
    if paid < all / 2 {
        (patience + 1).min(MOST_PATIENCE)
    } else if paid > all / 4 * 3 {
        patience.saturating_sub(1)
    } else {
        patience
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
        let referred = || plain.iter().flat_map(|plain| &plain.references);
        let last = quicks().next_back()?;
        let blocks = || blocks(members, units).map(|pc| pc.0);
        return Some(Passage {
            key: [0; LONG],
            mask: [0; LONG],
            next: Cell::new(NEVER),
            uses: Cell::new(0),
            context,
            behind: end.behind,
            bytes: end.bytes,
            memory_bytes: quicks().map(|quick| quick.memory_bytes as usize).sum(),
            count: quicks().map(|quick| u64::from(quick.count)).sum(),
            address: quicks().next()?.address,
            leads: last.leads,
            settled: end.settled,
            pcs: if references { column(pcs) } else { Box::default() },
            sizes: column(referred().map(|referred| referred.size.into())),
            writes: bits(referred().map(|referred| referred.write)),
            members: members.iter().map(|m| Member { unit: m.unit, begins: m.begins }).collect(),
            block_count: blocks().count() as u64,
            blocks: if references { Box::default() } else { column(blocks()) },
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
