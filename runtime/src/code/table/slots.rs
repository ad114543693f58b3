//! Slots: jumps through words that do not change any more ([`abi::tables::Tables::slots`]).
//!
//! A jump through a word that ld.so has filled in and made read-only (a procedure linkage table has nothing
//! else) leads to the same place for good. It takes the address in a slot, in one instruction. That is the
//! look-up which stands behind it, until the program makes the word's page read-only; from then on it is
//! what the look-up would find: whatever happens to the entry of the word's target happens to the slot. In front
//! of any call that may change the word the slot leads to the look-up again. One store does each of that, and a
//! thread takes the old address or the new one, as it would find the old word or the new one, or entry.
//!
//! Where code exists twice, both translations have slots of the same words. All of them follow the entries, which
//! lead to the one in use; nobody is in the other one.
//!
//! A jump through a table ([`abi::tables::Tables::jump_tables`]) has a slot for each entry. There are tens of thousands
//! of them, and a run takes few. So when the table can no longer change, its slots lead to what enters the runtime:
//! that is when a slot becomes one of those above.

use crate::base::program::{read_program_bytes, read_program_words};
use crate::code::span::Span;
use crate::code::statics::{has_words, slots_in, switch_at, switches_in, Slot, Switch};
use abi::ids::LiveAddr;
use abi::tables::JumpTable;
use alloc::collections::{BTreeMap, BTreeSet};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Slots of words that cannot change, by what the words say and where the slots are.
#[derive(Default)]
pub struct Bound(BTreeMap<(LiveAddr, u64), Slot>);

impl Bound {
    /// The tables of jumps that lie in `span`, and are private, cannot change; `mapped`: only those that are mapped
    /// read-only in the first place. Their slots ask the first time.
    pub fn arm(&mut self, span: Span, mapped: bool, is_private: impl Fn(LiveAddr) -> bool) {
        for switch in switches_in(span.start.0, span.end.0) {
            let is_inside = span.start.0 <= switch.table && switch.end() <= span.end.0;
            let may = !mapped || switch.jump.is(JumpTable::READ_ONLY);
            if is_inside && may && is_private(LiveAddr(switch.table)) {
                self.forget(Span::new(switch.table, switch.end()));
                switch.slots().for_each(|slot| lead(slot, switch.first));
            }
        }
    }

    /// A jump has come by way of a slot of a table that asks, with these registers; its look-up starts at `slow`.
    /// The slots of entries that lead where it does lead there from now on, `entry` as in [`Bound::add`].
    pub fn fill(&mut self, slow: u64, gpr: &[u64; 16], entry: impl Fn(LiveAddr) -> Option<u64>) {
        let Some(switch) = switch_at(slow) else { return };
        let asks = |slot: &Slot| led(*slot) == switch.first;
        if !switch.slots().any(|slot| asks(&slot)) {
            // It is not what it was when the jump was taken.
            return;
        }
        let mut bytes = alloc::vec![0; (switch.end() - switch.table) as usize];
        if !read_program_bytes(switch.table, &mut bytes) {
            return;
        }
        let Some(&register) = gpr.get(switch.jump.register()) else { return };
        let target = match switch.jump.is(JumpTable::READS) {
            true => target_of(&switch, &bytes, register as usize),
            false => Some(LiveAddr(register)),
        };
        let Some(target) = target else { return };
        let code = entry(target);
        for (i, slot) in switch.slots().enumerate() {
            if asks(&slot) && target_of(&switch, &bytes, i) == Some(target) {
                lead(slot, code.unwrap_or(slot.slow));
                self.0.insert((target, slot.at), slot);
            }
        }
    }

    /// The words in `span` that are private cannot change. `entry`: where a look-up of an address leads, if
    /// it finds anything.
    pub fn add(
        &mut self,
        span: Span,
        is_private: impl Fn(LiveAddr) -> bool,
        entry: impl Fn(LiveAddr) -> Option<u64>,
    ) {
        // What they were is over, if the program has said so twice.
        self.remove(span);
        for slot in slots_in(span.start.0, span.end.0) {
            let mut word = [0];
            if !is_private(LiveAddr(slot.word)) || !read_program_words(slot.word, &mut word) {
                continue;
            }
            let target = LiveAddr(word[0]);
            if let Some(code) = entry(target) {
                lead(slot, code);
            }
            self.0.insert((target, slot.at), slot);
        }
    }

    /// There are further slots of the same words: those of the other variant of the code, which is used from now on.
    /// Slots of both follow the entries. Nobody runs the one that the entries do not lead to.
    pub fn add_others(&mut self) {
        let words: BTreeMap<u64, LiveAddr> =
            self.0.iter().map(|((target, _), slot)| (slot.word, *target)).collect();
        let known: BTreeSet<u64> = self.0.values().map(|slot| slot.at).collect();
        for slot in slots_in(0, u64::MAX).filter(|slot| !known.contains(&slot.at)) {
            if let Some(target) = words.get(&slot.word) {
                self.0.insert((*target, slot.at), slot);
            }
        }
    }

    /// Words in `span` may change.
    pub fn remove(&mut self, span: Span) {
        if !has_words(span.start.0, span.end.0) {
            return;
        }
        self.forget(span);
        for switch in switches_in(span.start.0, span.end.0) {
            switch.slots().for_each(|slot| lead(slot, slot.slow));
        }
    }

    fn forget(&mut self, span: Span) {
        self.0.retain(|_, &mut slot| {
            let word = Span::new(slot.word, slot.word + 8);
            let stays = !word.touches(span);
            if !stays {
                lead(slot, slot.slow);
            }
            stays
        });
    }

    /// A look-up of `target` leads to `code`.
    pub fn set(&self, target: LiveAddr, code: u64) {
        let span = Span { start: target, end: target.plus(1) };
        self.of(span).for_each(|slot| lead(slot, code));
    }

    /// Look-ups of what lies in `span` find nothing.
    pub fn forget_targets(&self, span: Span) {
        self.of(span).for_each(|slot| lead(slot, slot.slow));
    }

    fn of(&self, span: Span) -> impl Iterator<Item = Slot> + '_ {
        self.0.range((span.start, 0)..(span.end, 0)).map(|(_, slot)| *slot)
    }
}

/// Where entry `i` of a table leads, whose bytes these are.
fn target_of(switch: &Switch, bytes: &[u8], i: usize) -> Option<LiveAddr> {
    let size = switch.jump.entry_size() as usize;
    let entry = bytes.chunks_exact(size).nth(i)?;
    Some(LiveAddr(match *entry {
        [a, b, c, d] => {
            let distance = i32::from_le_bytes([a, b, c, d]);
            switch.table.wrapping_add_signed(distance.into())
        }
        _ => u64::from_le_bytes(entry.try_into().ok()?),
    }))
}

/// Where a slot leads.
fn led(slot: Slot) -> u64 {
    // SAFETY: as in `lead`.
    unsafe { (*(slot.at as *const AtomicU64)).load(Acquire) }
}

fn lead(slot: Slot, code: u64) {
    // SAFETY: a module's slots are writable from when it was added on, and stay; other threads read them as one word.
    unsafe { (*(slot.at as *const AtomicU64)).store(code, Release) };
}
