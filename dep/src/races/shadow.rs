//! What every byte of memory remembers of its last accesses.
//!
//! A byte has its last store, and the loads behind that which no other load is known to follow. Bytes that
//! were accessed together share a [`Slot`]: eight bytes have as many slots as they need. Two slots are in
//! place, more are rare and lie aside. A page exists once something in it was accessed, so memory grows
//! with what the program touched, not with how often.

use std::collections::HashMap;

use super::clocks::Clock;

const PAGE: u64 = 4096;
const GRANULES: usize = 512;
/// Slots of a granule that are in place.
const INLINE: usize = 2;

/// An access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its place among the threads.
    pub thread: u16,
    /// The thread's own time.
    pub clock: u32,
    pub pc: u64,
    /// Turns of all threads in front of it.
    pub turn: u64,
    pub write: bool,
    /// It is not of one word of 4 or 8 bytes.
    pub odd: bool,
    /// A locked instruction makes it.
    pub atomic: bool,
}

const WRITE: u8 = 1;
const ODD: u8 = 2;
const ATOMIC: u8 = 4;

/// An access to some bytes of a granule.
#[derive(Clone, Copy, Default)]
struct Slot {
    clock: u32,
    pc_low: u32,
    turn_low: u32,
    pc_high: u16,
    turn_high: u16,
    thread: u16,
    /// Its bytes; none: the slot is free.
    mask: u8,
    flags: u8,
}

#[allow(clippy::cast_possible_truncation, reason = "halves of a number")]
impl Slot {
    fn new(access: &Access, mask: u8) -> Slot {
        let write = if access.write { WRITE } else { 0 };
        let odd = if access.odd { ODD } else { 0 };
        Slot {
            clock: access.clock,
            pc_low: access.pc as u32,
            pc_high: (access.pc >> 32) as u16,
            turn_low: access.turn as u32,
            turn_high: (access.turn >> 32) as u16,
            thread: access.thread,
            mask,
            flags: write | odd | if access.atomic { ATOMIC } else { 0 },
        }
    }

    fn is_write(&self) -> bool {
        self.flags & WRITE != 0
    }

    fn access(&self) -> Access {
        Access {
            thread: self.thread,
            clock: self.clock,
            pc: u64::from(self.pc_high) << 32 | u64::from(self.pc_low),
            turn: u64::from(self.turn_high) << 32 | u64::from(self.turn_low),
            write: self.is_write(),
            odd: self.flags & ODD != 0,
            atomic: self.flags & ATOMIC != 0,
        }
    }
}

struct Page {
    slots: Box<[[Slot; INLINE]; GRANULES]>,
    /// Of a granule.
    more: HashMap<usize, Vec<Slot>>,
    /// Of each granule the bytes that threads synchronise with.
    sync: Option<Box<[u8; GRANULES]>>,
}

impl Page {
    fn new() -> Page {
        let slots = vec![[Slot::default(); INLINE]; GRANULES].into_boxed_slice();
        let slots =
            slots.try_into().unwrap_or_else(|_| Box::new([[Slot::default(); INLINE]; GRANULES]));
        Page { slots, more: HashMap::new(), sync: None }
    }

    /// The access to the bytes of `mask`; tells `conflict` of the slots that it is not ordered with.
    fn access(
        &mut self,
        granule: usize,
        mask: u8,
        access: &Access,
        seen: &Clock,
        conflict: &mut impl FnMut(Access, u8),
    ) {
        let inline = &mut self.slots[granule];
        let same = |slot: &Slot| {
            slot.thread == access.thread
                && slot.clock == access.clock
                && slot.mask & mask == mask
                && slot.is_write() == access.write
        };
        let crowded = !self.more.is_empty() && self.more.contains_key(&granule);
        // What comes again in the same epoch changes nothing, unless others came in between: then their
        // slots are there, beside this one.
        let alone = !crowded
            && inline.iter().all(|slot| slot.mask & mask == 0 || slot.thread == access.thread);
        if alone && inline.iter().any(same) {
            return;
        }
        let mut rest = match crowded {
            true => self.more.remove(&granule).unwrap_or_default(),
            false => Vec::new(),
        };
        for slot in inline.iter_mut().chain(&mut rest) {
            let common = slot.mask & mask;
            if common == 0 {
                continue;
            }
            let ordered =
                slot.thread == access.thread || slot.clock <= seen.get(usize::from(slot.thread));
            let atomic = access.atomic && slot.flags & ATOMIC != 0;
            if !ordered && !atomic && (access.write || slot.is_write()) {
                conflict(slot.access(), common);
            }
            // A store takes the place of everything; a load that of the loads that it follows.
            if access.write || ordered && !slot.is_write() {
                slot.mask &= !mask;
            }
        }
        let new = Slot::new(access, mask);
        match inline.iter_mut().find(|slot| slot.mask == 0) {
            Some(slot) => *slot = new,
            None => rest.push(new),
        }
        rest.retain(|slot| slot.mask != 0);
        if !rest.is_empty() {
            self.more.insert(granule, rest);
        }
    }
}

/// The memory of a process.
#[derive(Default)]
pub struct Shadow {
    numbers: HashMap<u64, usize>,
    pages: Vec<Page>,
    /// The pages that were used last.
    recent: [(u64, usize); 8],
}

/// The pieces of an access: address of a granule, and its bytes.
pub fn pieces(address: u64, size: u32) -> impl Iterator<Item = (u64, u8)> {
    let end = address.saturating_add(u64::from(size));
    let mut at = address;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let granule = at & !7;
        let (from, to) = (at - granule, (end - granule).min(8));
        at = granule.checked_add(8)?;
        let mask = (0xffu64 >> (8 - (to - from))) << from;
        Some((granule, mask.to_le_bytes()[0]))
    })
}

impl Shadow {
    fn page(&mut self, number: u64) -> &mut Page {
        let recent = (number % 8) as usize;
        // Page 0 is no page of a program: it is what nothing was used looks like.
        let (known, at) = self.recent[recent];
        if known == number && number != 0 {
            return &mut self.pages[at];
        }
        let pages = &mut self.pages;
        let at = *self.numbers.entry(number).or_insert_with(|| {
            pages.push(Page::new());
            pages.len() - 1
        });
        self.recent[recent] = (number, at);
        &mut self.pages[at]
    }

    /// Threads synchronise with these bytes.
    pub fn synchronises(&mut self, granule: u64, mask: u8) {
        let sync = &mut self.page(granule / PAGE).sync;
        let sync = sync.get_or_insert_with(|| Box::new([0; GRANULES]));
        sync[(granule % PAGE / 8) as usize] |= mask;
    }

    /// Those of these bytes that threads synchronise with.
    pub fn synchronising(&mut self, granule: u64, mask: u8) -> u8 {
        let sync = self.page(granule / PAGE).sync.as_ref();
        sync.map_or(0, |sync| sync[(granule % PAGE / 8) as usize] & mask)
    }

    /// The access to the bytes `mask` at `granule`.
    pub fn access(
        &mut self,
        granule: u64,
        mask: u8,
        access: &Access,
        seen: &Clock,
        conflict: &mut impl FnMut(Access, u8),
    ) {
        let index = (granule % PAGE / 8) as usize;
        self.page(granule / PAGE).access(index, mask, access, seen, conflict);
    }

    /// The memory is another one from here on.
    pub fn forget(&mut self, start: u64, len: u64) {
        let (first, end) = (start / PAGE, start.saturating_add(len).div_ceil(PAGE));
        for (&number, &at) in &self.numbers {
            if (first..end).contains(&number) {
                let page = &mut self.pages[at];
                page.slots.fill(Default::default());
                page.more.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(thread: u16, clock: u32, write: bool) -> Access {
        Access { thread, clock, pc: u64::from(thread), turn: 0, write, odd: false, atomic: false }
    }

    /// Threads of the conflicts, each with the bytes.
    fn conflicts(
        shadow: &mut Shadow,
        what: &Access,
        at: (u64, u32),
        seen: &Clock,
    ) -> Vec<(u16, u8)> {
        let mut found = Vec::new();
        for (granule, mask) in pieces(at.0, at.1) {
            shadow.access(granule, mask, what, seen, &mut |other, mask| {
                found.push((other.thread, mask));
            });
        }
        found
    }

    #[test]
    fn accesses_are_cut_into_granules() {
        assert_eq!(pieces(0x1006, 4).collect::<Vec<_>>(), [(0x1000, 0xc0), (0x1008, 0x03)]);
        assert_eq!(pieces(0x1000, 8).collect::<Vec<_>>(), [(0x1000, 0xff)]);
        assert_eq!(pieces(0x1000, 0).count(), 0);
        assert_eq!(pieces(u64::MAX - 3, 8).count(), 1);
    }

    #[test]
    fn only_common_bytes_and_only_with_a_store() {
        let mut shadow = Shadow::default();
        let nothing = Clock::default();
        assert_eq!(conflicts(&mut shadow, &access(0, 1, true), (0x1000, 4), &nothing), []);
        assert_eq!(conflicts(&mut shadow, &access(1, 1, true), (0x1004, 4), &nothing), []);
        assert_eq!(
            conflicts(&mut shadow, &access(2, 1, false), (0x1003, 2), &nothing),
            [(0, 8), (1, 16)]
        );
        assert_eq!(conflicts(&mut shadow, &access(3, 1, false), (0x1003, 1), &nothing), [(0, 8)]);
        // Both loads, and the first store, which has no successor.
        let mut found = conflicts(&mut shadow, &access(4, 1, true), (0x1003, 1), &nothing);
        found.sort_unstable();
        assert_eq!(found, [(0, 8), (2, 8), (3, 8)]);
    }

    #[test]
    fn what_is_ordered_is_no_conflict() {
        let mut shadow = Shadow::default();
        let mut seen = Clock::default();
        assert_eq!(conflicts(&mut shadow, &access(0, 5, true), (0x1000, 8), &seen), []);
        seen.set(0, 5);
        assert_eq!(conflicts(&mut shadow, &access(1, 1, false), (0x1000, 8), &seen), []);
        seen.set(0, 4);
        assert_eq!(conflicts(&mut shadow, &access(2, 1, false), (0x1000, 8), &seen), [(0, 255)]);
        shadow.forget(0x1000, 1);
        assert_eq!(conflicts(&mut shadow, &access(3, 1, true), (0x1000, 8), &seen), []);
    }

    #[test]
    fn many_readers_are_all_remembered() {
        let mut shadow = Shadow::default();
        let nothing = Clock::default();
        for reader in 0..20 {
            assert_eq!(
                conflicts(&mut shadow, &access(reader, 1, false), (0x2000, 1), &nothing),
                []
            );
        }
        let mut found = conflicts(&mut shadow, &access(30, 1, true), (0x2000, 8), &nothing);
        found.sort_unstable();
        assert_eq!(found, (0..20).map(|reader| (reader, 1)).collect::<Vec<_>>());
        assert_eq!(conflicts(&mut shadow, &access(31, 1, false), (0x2000, 1), &nothing), [(30, 1)]);
    }
}
