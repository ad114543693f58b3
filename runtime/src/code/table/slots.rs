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

use crate::base::program::read_program_words;
use crate::code::span::Span;
use crate::code::statics::{slots_in, Slot};
use abi::ids::LiveAddr;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Slots of words that cannot change, each with the word, ascending by it.
#[derive(Default)]
pub struct Bound(Vec<(LiveAddr, Slot)>);

impl Bound {
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
            self.0.push((target, slot));
        }
        self.0.sort_unstable_by_key(|(target, _)| *target);
    }

    /// There are further slots of the same words: those of the other variant of the code, which is used from now on.
    /// Slots of both follow the entries. Nobody runs the one that the entries do not lead to.
    pub fn add_others(&mut self) {
        let words: BTreeMap<u64, LiveAddr> =
            self.0.iter().map(|(target, slot)| (slot.word, *target)).collect();
        let known: BTreeSet<u64> = self.0.iter().map(|(_, slot)| slot.at).collect();
        for slot in slots_in(0, u64::MAX).filter(|slot| !known.contains(&slot.at)) {
            if let Some(target) = words.get(&slot.word) {
                self.0.push((*target, slot));
            }
        }
        self.0.sort_unstable_by_key(|(target, _)| *target);
    }

    /// Words in `span` may change.
    pub fn remove(&mut self, span: Span) {
        self.0.retain(|&(_, slot)| {
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
        let first = self.0.partition_point(|(target, _)| *target < span.start);
        let rest = self.0.get(first..).unwrap_or_default();
        let inside = rest.iter().take_while(move |(target, _)| *target < span.end);
        inside.map(|&(_, slot)| slot)
    }
}

fn lead(slot: Slot, code: u64) {
    // SAFETY: a module's slots are writable from when it was added on, and stay; other threads read them as one word.
    unsafe { (*(slot.at as *const AtomicU64)).store(code, Release) };
}
