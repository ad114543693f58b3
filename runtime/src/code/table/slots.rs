//! Slots: jumps through words that do not change any more ([`abi::tables::Tables::slots`]).
//!
//! A jump through a word that ld.so has filled in and made read-only (a procedure linkage table has nothing
//! else) leads to the same place for good. It takes the address in a slot, in one instruction. That is the
//! look-up which stands behind it, until the program makes the word's page read-only; from then on it is
//! what the look-up would find: whatever happens to the entry of the word's target happens to the slot. In front
//! of any call that may change the word the slot leads to the look-up again. One store does each of that, and a
//! thread takes the old address or the new one, as it would find the old word or the new one, or entry.
//!
//! Where code exists twice, each translation has slots of its own, of the same words and tables. Those of the one in use
//! follow the entries, which lead to that one. A switch makes all entries miss, and so all slots look up, each in its own
//! translation: none leads to the other one. The one that records nothing gets its slots when it is first used: what
//! cannot change until then is kept for that.
//!
//! A jump through a table ([`abi::tables::Tables::jump_tables`]) has a slot for each entry. There are tens of thousands
//! of them, and a run takes few. So when the table can no longer change, its slots lead to what enters the runtime:
//! that is when a slot becomes one of those above.

use crate::base::program::{read_at_hand, read_program_words};
use crate::code::span::Span;
use crate::code::statics::{
    has_words, slots_in, switch_at, switches_in, words_in, Slot, Switch, Variants,
};
use abi::ids::LiveAddr;
use abi::tables::JumpTable;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// What cannot change.
#[derive(Default)]
pub struct Bound {
    /// Slots of words, by what the words say and where the slots are.
    slots: BTreeMap<(LiveAddr, u64), Slot>,
    /// Memory in which modules have words and tables.
    constant: Vec<Constant>,
    /// The entries lead to code that records nothing, beside code that does.
    is_plain: bool,
}

/// Memory of the program's that it cannot change without a call that says so.
#[derive(Clone, Copy)]
struct Constant {
    span: Span,
    /// It was mapped read-only in the first place.
    mapped: bool,
}

impl Bound {
    /// `span` is mapped read-only: tables of jumps in there cannot change, if they are private. (Words can: ld.so may
    /// be going to fill them in.)
    pub fn arm(&mut self, span: Span, is_private: impl Fn(LiveAddr) -> bool) {
        let known = Constant { span, mapped: true };
        self.note(known);
        self.ask(Variants::Both, known, is_private);
    }

    /// The program has made `span` read-only: what is private in there cannot change. `entry`: where a look-up of an
    /// address leads, if it finds anything.
    pub fn add(
        &mut self,
        span: Span,
        is_private: impl Fn(LiveAddr) -> bool,
        entry: impl Fn(LiveAddr) -> Option<u64>,
    ) {
        let known = Constant { span, mapped: false };
        self.note(known);
        self.bind(Variants::Both, span, &is_private, entry);
        self.ask(Variants::Both, known, is_private);
    }

    /// From now on entries lead to the other code; none does yet.
    pub fn switch(&mut self, is_plain: bool) {
        self.slots.values().for_each(|slot| lead(*slot, slot.slow));
        self.is_plain = is_plain;
    }

    /// The code that records nothing has its slots from now on, and is used from now on. No entry leads to it yet.
    pub fn add_plain(&mut self, is_private: impl Fn(LiveAddr) -> bool) {
        for known in self.constant.clone() {
            if !known.mapped {
                self.bind(Variants::Plain, known.span, &is_private, |_| None);
            }
            self.ask(Variants::Plain, known, &is_private);
        }
    }

    /// What else was known of this memory is over, if there is anything.
    fn note(&mut self, known: Constant) {
        let Constant { span, mapped } = known;
        self.remove(span);
        let parts = words_in(span.start.0, span.end.0);
        let parts = parts.map(|part| Constant { span: Span::new(part.start, part.end), mapped });
        self.constant.extend(parts);
    }

    /// Slots of tables ask the first time.
    fn ask(&mut self, of: Variants, known: Constant, is_private: impl Fn(LiveAddr) -> bool) {
        let Constant { span, mapped } = known;
        for switch in switches_in(span.start.0, span.end.0, of) {
            let is_inside = span.start.0 <= switch.table && switch.end() <= span.end.0;
            let may = !mapped || switch.jump.is(JumpTable::READ_ONLY);
            let asks = is_inside && may && is_private(LiveAddr(switch.table));
            let to = if asks { switch.first } else { switch.slow };
            switch.slots().for_each(|slot| lead(slot, to));
        }
    }

    /// Slots of words lead where their words do.
    fn bind(
        &mut self,
        of: Variants,
        span: Span,
        is_private: impl Fn(LiveAddr) -> bool,
        entry: impl Fn(LiveAddr) -> Option<u64>,
    ) {
        let mut words = Words::default();
        for slot in slots_in(span.start.0, span.end.0, of) {
            if !is_private(LiveAddr(slot.word)) {
                continue;
            }
            let Some(target) = words.read(slot.word, span) else { continue };
            if let Some(code) = entry(target).filter(|_| slot.is_plain == self.is_plain) {
                lead(slot, code);
            }
            self.slots.insert((target, slot.at), slot);
        }
    }

    /// A jump has come by way of a slot of a table that asks, with these registers; its look-up starts at `slow`.
    /// The slots of entries that lead where it does lead there from now on, `entry` as in [`Bound::add`].
    pub fn fill(&mut self, slow: u64, gpr: &[u64; 16], entry: impl Fn(LiveAddr) -> Option<u64>) {
        let Some(switch) = switch_at(slow) else { return };
        let asks = |slot: &Slot| led(*slot) == switch.first;
        if switch.is_plain != self.is_plain || !switch.slots().any(|slot| asks(&slot)) {
            // It is not what it was when the jump was taken.
            return;
        }
        let mut bytes = alloc::vec![0; (switch.end() - switch.table) as usize];
        // (Python's start takes 1,200 entries of tables with 256.)
        if !read_at_hand(switch.table, &mut bytes) {
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
                self.slots.insert((target, slot.at), slot);
            }
        }
    }

    /// Words in `span` may change.
    pub fn remove(&mut self, span: Span) {
        if !has_words(span.start.0, span.end.0) {
            return;
        }
        self.slots.retain(|_, &mut slot| {
            let word = Span::new(slot.word, slot.word + 8);
            let stays = !word.touches(span);
            if !stays {
                lead(slot, slot.slow);
            }
            stays
        });
        // Slots of other tables look up, or are as the file has them, which is what is going to be known.
        let is_known = |switch: &Switch| {
            let table = Span::new(switch.table, switch.end());
            self.constant.iter().any(|known| known.span.touches(table))
        };
        for switch in switches_in(span.start.0, span.end.0, Variants::Both).filter(is_known) {
            switch.slots().for_each(|slot| lead(slot, slot.slow));
        }
        let known = core::mem::take(&mut self.constant);
        let rest = known.iter().flat_map(|known| known.without(span));
        self.constant = rest.collect();
    }

    /// A look-up of `target` leads to `code`.
    pub fn set(&self, target: LiveAddr, code: u64) {
        let span = Span { start: target, end: target.plus(1) };
        let in_use = self.of(span).filter(|slot| slot.is_plain == self.is_plain);
        in_use.for_each(|slot| lead(slot, code));
    }

    /// Entries of targets in `span` have been set: `entry` says what they have, if it is code.
    pub fn follow(&self, span: Span, entry: impl Fn(LiveAddr) -> Option<u64>) {
        let inside = self.slots.range((span.start, 0)..(span.end, 0));
        for ((target, _), slot) in inside.filter(|(_, slot)| slot.is_plain == self.is_plain) {
            if let Some(code) = entry(*target) {
                lead(*slot, code);
            }
        }
    }

    /// Look-ups of what lies in `span` find nothing.
    pub fn forget_targets(&self, span: Span) {
        self.of(span).for_each(|slot| lead(slot, slot.slow));
    }

    fn of(&self, span: Span) -> impl Iterator<Item = Slot> + '_ {
        self.slots.range((span.start, 0)..(span.end, 0)).map(|(_, slot)| *slot)
    }
}

/// Words of the program's memory, read many at once: they lie side by side.
#[derive(Default)]
struct Words {
    /// Where those start that have been read.
    start: u64,
    read: Vec<u64>,
}

impl Words {
    const AT_ONCE: u64 = 512;

    /// What the word at `at` in `span` says, if it can be read.
    fn read(&mut self, at: u64, span: Span) -> Option<LiveAddr> {
        let known = |words: &Words| {
            let distance = at.checked_sub(words.start).filter(|distance| distance % 8 == 0)?;
            words.read.get((distance / 8) as usize).map(|&word| LiveAddr(word))
        };
        if let Some(word) = known(self) {
            return Some(word);
        }
        let behind = span.end.0.checked_sub(at)? / 8;
        // The end of what is mapped may be near.
        [behind.min(Self::AT_ONCE), 1].into_iter().find_map(|count| {
            self.start = at;
            self.read.clear();
            self.read.resize(count as usize, 0);
            if !read_program_words(at, &mut self.read) {
                self.read.clear();
            }
            known(self)
        })
    }
}

impl Constant {
    /// What is left of it.
    fn without(self, span: Span) -> impl Iterator<Item = Constant> {
        let front = Span { end: self.span.end.min(span.start), ..self.span };
        let behind = Span { start: self.span.start.max(span.end), ..self.span };
        let parts = [front, behind].into_iter().filter(|part| !part.is_empty());
        parts.map(move |span| Constant { span, ..self })
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
    // (What is written becomes a page of the process's own.)
    if led(slot) == code {
        return;
    }
    // SAFETY: a module's slots are writable from when it was added on, and stay; other threads read them as one word.
    unsafe { (*(slot.at as *const AtomicU64)).store(code, Release) };
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use crate::base::sys::{call, mmap, nr, MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
    use abi::layout::PAGE;

    #[test]
    fn words_are_those_of_memory_up_to_what_cannot_be_read() {
        let prot = PROT_READ | PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(0, 3 * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) }.unwrap();
        let hole = start + 2 * PAGE;
        for at in (start..hole).step_by(8) {
            // SAFETY: mapped above.
            unsafe { (at as *mut u64).write(!at) };
        }
        // SAFETY: mapped above, and not used any more.
        unsafe { call(nr::MUNMAP, &[hole as usize, PAGE as usize]) }.unwrap();
        let span = Span::new(start, start + 3 * PAGE);
        let mut words = Words::default();
        let there = |at: u64| (at < hole).then_some(LiveAddr(!at));
        // In their order, from the last one back, and between.
        let all: Vec<u64> = (start..span.end.0).step_by(8).collect();
        for &at in all.iter().chain(all.iter().rev()).chain(all.iter().step_by(7)) {
            assert_eq!(words.read(at, span), there(at), "{at:#x}");
        }
        // Not of a multiple of 8 bytes from what has been read.
        words.read(start, span);
        let between = u64::from_le_bytes({
            let [a, b] = [!start, !(start + 8)].map(u64::to_le_bytes);
            [a[4], a[5], a[6], a[7], b[0], b[1], b[2], b[3]]
        });
        assert_eq!(words.read(start + 4, span), Some(LiveAddr(between)));
    }
}
