//! The log of first loads, as BugNet (ISCA 2005, section 4.3) makes it of the loads of a thread.
//!
//! Within an interval a load of a word is logged if it is the first access to it. An entry says how many
//! loads were not logged in front of it, in 5 bits or in as many as the interval's length needs, and the
//! value, in full or as its place in a dictionary of the most frequent values, which each load changes. A
//! word has 32 bits, as there; a load of 8 bytes counts as two.

use std::collections::HashSet;

/// Instructions of an interval.
pub const INTERVAL: u64 = 10_000_000;
/// Bits of a count that is smaller than 32, and of a word.
pub const SHORT_COUNT: u64 = 5;
pub const WORD: u64 = 32;
/// What an interval begins with: process and thread, number and time of the interval, pc, flags, 16 registers.
/// (Vector registers are left out, as there.)
pub const HEADER: u64 = 8 * (4 + 4 + 8 + 8 + 8 + 8 + 16 * 8);
/// Bits of any count within an interval of so many instructions.
pub const fn full_count(interval: u64) -> u64 {
    interval.ilog2() as u64 + 1
}

/// Counters have 3 bits.
const MOST: u8 = 7;

/// The most frequent values; the first ones are the most frequent.
#[derive(Clone, Debug)]
struct Dictionary {
    size: usize,
    entries: Vec<(u32, u8)>,
}

impl Dictionary {
    fn new(size: usize) -> Dictionary {
        Dictionary { size, entries: Vec::with_capacity(size) }
    }

    /// Whether it has the value; then counts it.
    fn look_up(&mut self, value: u32) -> bool {
        let entries = &mut self.entries;
        if let Some(at) = entries.iter().position(|&(known, _)| known == value) {
            entries[at].1 = (entries[at].1 + 1).min(MOST);
            if at > 0 && entries[at].1 >= entries[at - 1].1 {
                entries.swap(at, at - 1);
            }
            return true;
        }
        if entries.len() < self.size {
            entries.push((value, 1));
            return false;
        }
        let least = entries.iter().map(|&(_, count)| count).min();
        let at = entries.iter().rposition(|&(_, count)| Some(count) == least);
        if let Some(at) = at {
            entries[at] = (value, 1);
        }
        false
    }
}

/// What a coder has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub intervals: u64,
    /// Words that were loaded, and those of them that are in the log.
    pub loads: u64,
    pub logged: u64,
    /// Values of all loads that were in the dictionary, and of those in the log.
    pub found: u64,
    pub found_logged: u64,
    /// Bits of the log, and what they were without a dictionary.
    pub bits: u64,
    pub plain_bits: u64,
}

impl Counts {
    /// Those of another thread, too.
    pub fn add(&mut self, other: &Counts) {
        self.intervals += other.intervals;
        self.loads += other.loads;
        self.logged += other.logged;
        self.found += other.found;
        self.found_logged += other.found_logged;
        self.bits += other.bits;
        self.plain_bits += other.plain_bits;
    }
}

/// Makes the log of one thread.
#[derive(Clone, Debug)]
pub struct Coder {
    counts: Counts,
    known: HashSet<u64>,
    dictionary: Dictionary,
    /// Loads since the last one that was logged.
    skipped: u64,
    /// Instructions of the interval; none: it has not begun.
    instructions: u64,
}

impl Coder {
    /// With a dictionary of so many values, a power of two.
    pub fn new(size: usize) -> Coder {
        Coder {
            counts: Counts::default(),
            known: HashSet::new(),
            dictionary: Dictionary::new(size),
            skipped: 0,
            instructions: 0,
        }
    }

    /// An instruction is executed.
    pub fn instruction(&mut self) {
        if self.instructions == INTERVAL {
            self.ends();
        }
        if self.instructions == 0 {
            self.counts.intervals += 1;
            self.counts.bits += HEADER;
            self.counts.plain_bits += HEADER;
        }
        self.instructions += 1;
    }

    /// The interval ends here: a system call, a signal, its length.
    pub fn ends(&mut self) {
        self.known.clear();
        self.dictionary.entries.clear();
        (self.skipped, self.instructions) = (0, 0);
    }

    /// The word at this address is loaded.
    pub fn loads(&mut self, word: u64, value: u32) {
        let counts = &mut self.counts;
        let found = self.dictionary.look_up(value);
        counts.loads += 1;
        counts.found += u64::from(found);
        if !self.known.insert(word) {
            self.skipped += 1;
            return;
        }
        let count =
            if self.skipped < 1 << SHORT_COUNT { SHORT_COUNT } else { full_count(INTERVAL) };
        let place = u64::from(self.dictionary.size.ilog2());
        counts.logged += 1;
        counts.found_logged += u64::from(found);
        counts.bits += 1 + count + 1 + if found { place } else { WORD };
        counts.plain_bits += 1 + count + WORD;
        self.skipped = 0;
    }

    /// The whole word is stored to: a load finds what the replay has stored.
    pub fn stores(&mut self, word: u64) {
        self.known.insert(word);
    }

    /// Somebody else has stored to the word: the next load is logged.
    pub fn changed(&mut self, word: u64) {
        self.known.remove(&word);
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_loads_only() {
        let mut coder = Coder::new(64);
        coder.instruction();
        coder.loads(0x1000, 5);
        coder.loads(0x1000, 5);
        coder.stores(0x1004);
        coder.loads(0x1004, 6);
        coder.loads(0x1008, 5);
        let counts = coder.counts();
        assert_eq!((counts.loads, counts.logged, counts.intervals), (4, 2, 1));
        assert_eq!((counts.found, counts.found_logged), (2, 1));
        assert_eq!(counts.bits, HEADER + (1 + 5 + 1 + 32) + (1 + 5 + 1 + 6));
        assert_eq!(counts.plain_bits, HEADER + 2 * (1 + 5 + 32));
        coder.ends();
        coder.instruction();
        coder.loads(0x1000, 5);
        assert_eq!(coder.counts().logged, 3, "another interval");
        coder.changed(0x1000);
        coder.loads(0x1000, 5);
        assert_eq!(coder.counts().logged, 4, "another thread's store");
    }

    #[test]
    fn long_distances_have_full_counts() {
        let mut coder = Coder::new(64);
        coder.loads(0x1000, 1);
        (0..32).for_each(|_| coder.loads(0x1000, 1));
        let before = coder.counts().bits;
        coder.loads(0x2000, 1);
        assert_eq!(coder.counts().bits - before, 1 + 24 + 1 + 6);
    }

    #[test]
    fn frequent_values_come_first_and_stay() {
        let mut dictionary = Dictionary::new(2);
        assert!(!dictionary.look_up(1) && !dictionary.look_up(2));
        assert!(dictionary.look_up(2), "it takes the first place");
        assert_eq!(dictionary.entries, [(2, 2), (1, 1)]);
        assert!(!dictionary.look_up(3), "in place of the least frequent one");
        assert_eq!(dictionary.entries, [(2, 2), (3, 1)]);
        (0..20).for_each(|_| assert!(dictionary.look_up(2)));
        assert_eq!(dictionary.entries[0], (2, MOST));
    }
}
