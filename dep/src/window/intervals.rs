//! How many first loads a window has, for checkpoint intervals of several lengths (BugNet, ISCA 2005, Figures 3 and 4).
//!
//! This needs addresses only, so that it goes at the speed of reading a trace. What a dictionary saves depends on
//! values, which only stepping shows ([`super::loads`]).

use std::collections::{BTreeMap, HashMap};

use trace::events::Event;

use super::coder::{full_count, HEADER, SHORT_COUNT, WORD};
use crate::feed::Listener;

/// Words of 32 bits in a page of stamps.
const WORDS: u64 = 1024;

/// When a thread referred to each word last: the number of its instruction, from 1 on; 0: never.
#[derive(Default)]
struct Stamps {
    pages: Vec<Box<[u64; WORDS as usize]>>,
    places: HashMap<u64, usize>,
    /// The page of the last reference, and its place.
    last: Option<(u64, usize)>,
}

impl Stamps {
    fn of(&mut self, word: u64) -> &mut u64 {
        let number = word / 4;
        let page = number / WORDS;
        let place = match self.last {
            Some((last, place)) if last == page => place,
            _ => *self.places.entry(page).or_insert_with(|| {
                self.pages.push(Box::new([0; WORDS as usize]));
                self.pages.len() - 1
            }),
        };
        self.last = Some((page, place));
        &mut self.pages[place][(number % WORDS) as usize]
    }

    /// Somebody else has stored to the word.
    fn forget(&mut self, word: u64) {
        if self.places.contains_key(&(word / 4 / WORDS)) {
            *self.of(word) = 0;
        }
    }
}

/// The log with intervals of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Instructions of an interval.
    pub length: u64,
    pub intervals: u64,
    /// Words of 32 bits that are in the log.
    pub logged: u64,
    /// Of the log, without a dictionary.
    pub bits: u64,
}

/// One thread's log with intervals of one length.
#[derive(Clone, Copy)]
struct Interval {
    log: Log,
    /// The number of the first instruction of the interval that is open; 0: none is.
    begin: u64,
    /// Loads since the last one that was logged.
    skipped: u64,
}

impl Interval {
    fn begins(&mut self, now: u64) {
        self.begin = now;
        self.skipped = 0;
        self.log.intervals += 1;
        self.log.bits += HEADER;
    }

    fn loads(&mut self, stamp: u64) {
        if stamp >= self.begin && stamp != 0 {
            self.skipped += 1;
            return;
        }
        let short = self.skipped < 1 << SHORT_COUNT;
        let count = if short { SHORT_COUNT } else { full_count(self.log.length) };
        self.log.logged += 1;
        self.log.bits += 1 + count + WORD;
        self.skipped = 0;
    }
}

struct Thread {
    stamps: Stamps,
    intervals: Vec<Interval>,
    /// Instructions that it has executed.
    instructions: u64,
}

impl Thread {
    fn new(lengths: &[u64]) -> Thread {
        let new = |&length: &u64| Interval {
            log: Log { length, ..Log::default() },
            begin: 0,
            skipped: 0,
        };
        let intervals = lengths.iter().map(new).collect();
        Thread { stamps: Stamps::default(), intervals, instructions: 0 }
    }

    /// The number of the instruction that refers to memory, or of an earlier one of the same unit: a unit's
    /// instructions are counted behind its references.
    fn now(&self) -> u64 {
        self.instructions + 1
    }

    fn ran(&mut self, instructions: u64) {
        let (first, end) = (self.now(), self.instructions + instructions);
        for interval in &mut self.intervals {
            if interval.begin == 0 && instructions > 0 {
                interval.begins(first);
            }
            while interval.begin != 0 && end + 1 >= interval.begin + interval.log.length {
                let next = interval.begin + interval.log.length;
                match next <= end {
                    true => interval.begins(next),
                    false => interval.begin = 0,
                }
            }
        }
        self.instructions = end;
    }

    fn loads(&mut self, word: u64) {
        let now = self.now();
        let stamp = self.stamps.of(word);
        for interval in &mut self.intervals {
            if interval.begin == 0 {
                interval.begins(now);
            }
            interval.loads(*stamp);
        }
        *stamp = now;
    }

    /// The whole word is stored to.
    fn stores(&mut self, word: u64) {
        let now = self.now();
        self.intervals.iter_mut().filter(|i| i.begin == 0).for_each(|i| i.begins(now));
        *self.stamps.of(word) = now;
    }

    /// Every interval ends here.
    fn ends(&mut self) {
        self.intervals.iter_mut().for_each(|interval| interval.begin = 0);
    }
}

/// Makes the logs of a window: from instruction `start` of all threads on, to the end.
pub struct Logs {
    lengths: Vec<u64>,
    start: u64,
    threads: BTreeMap<usize, Thread>,
    thread: usize,
    instructions: u64,
    turns: u64,
    /// Where it began: the thread, instructions and turns in front of it.
    began: Option<Begin>,
    loads: u64,
}

/// Where a window begins: the thread that runs there, and what all threads did in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    pub thread: usize,
    pub instructions: u64,
    pub turns: u64,
}

/// What the threads' logs come to.
pub struct Sums {
    pub began: Option<Begin>,
    /// Words of 32 bits that were loaded.
    pub loads: u64,
    /// For each length.
    pub logs: Vec<Log>,
}

impl Logs {
    pub fn new(lengths: Vec<u64>, start: u64) -> Logs {
        Logs {
            lengths,
            start,
            threads: BTreeMap::new(),
            thread: 0,
            instructions: 0,
            turns: 0,
            began: None,
            loads: 0,
        }
    }

    pub fn sums(self) -> Sums {
        let mut logs: Vec<Log> =
            self.lengths.iter().map(|&length| Log { length, ..Log::default() }).collect();
        for thread in self.threads.values() {
            for (sum, interval) in logs.iter_mut().zip(&thread.intervals) {
                sum.intervals += interval.log.intervals;
                sum.logged += interval.log.logged;
                sum.bits += interval.log.bits;
            }
        }
        Sums { began: self.began, loads: self.loads, logs }
    }

    fn own(&mut self) -> &mut Thread {
        let lengths = &self.lengths;
        self.threads.entry(self.thread).or_insert_with(|| Thread::new(lengths))
    }

    fn in_window(&mut self) -> bool {
        if self.began.is_none() && self.instructions >= self.start {
            let Logs { thread, instructions, turns, .. } = *self;
            self.began = Some(Begin { thread, instructions, turns });
        }
        self.began.is_some()
    }
}

impl Listener for Logs {
    fn runs(&mut self, thread: usize) {
        self.thread = thread;
    }

    fn ran(&mut self, instructions: u32, turns: u32) {
        if self.in_window() {
            self.own().ran(u64::from(instructions));
        }
        self.instructions += u64::from(instructions);
        self.turns += u64::from(turns);
    }

    fn referred(&mut self, _pc: u64, address: u64, size: u32, write: bool, _atomic: bool) {
        if !self.in_window() {
            return;
        }
        let end = address.saturating_add(u64::from(size));
        for word in (address & !3..end).step_by(4) {
            if !write {
                self.loads += 1;
                self.own().loads(word);
                continue;
            }
            // A replay has what its thread has stored only if that is the whole word.
            if address <= word && word.saturating_add(4) <= end {
                self.own().stores(word);
            }
            if self.threads.len() > 1 {
                let thread = self.thread;
                let others = self.threads.iter_mut().filter(|(other, _)| **other != thread);
                others.for_each(|(_, other)| other.stamps.forget(word));
            }
        }
    }

    fn happened(&mut self, event: &Event, _pc: u64) {
        if matches!(event, Event::Syscall { .. } | Event::Signal { .. }) && self.in_window() {
            self.own().ends();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(start: u64, tell: impl FnOnce(&mut Logs)) -> Sums {
        let mut logs = Logs::new(vec![4, 100], start);
        tell(&mut logs);
        logs.sums()
    }

    fn plain(intervals: u64, logged: u64) -> u64 {
        intervals * HEADER + logged * (1 + SHORT_COUNT + WORD)
    }

    #[test]
    fn a_word_is_logged_once_in_an_interval() {
        let sums = logs(0, |logs| {
            for _ in 0..4 {
                logs.referred(0, 0x1000, 8, false, false);
                logs.ran(2, 0);
            }
        });
        assert_eq!(sums.loads, 8);
        let log = |length, intervals, logged| Log {
            length,
            intervals,
            logged,
            bits: plain(intervals, logged),
        };
        assert_eq!(sums.logs, [log(4, 2, 4), log(100, 1, 2)]);
    }

    #[test]
    fn a_whole_store_makes_a_word_known_until_somebody_else_stores() {
        let sums = logs(0, |logs| {
            logs.ran(1, 0);
            logs.referred(0, 0x1000, 4, true, false);
            logs.referred(0, 0x1004, 2, true, false);
            logs.referred(0, 0x1000, 8, false, false);
            logs.runs(1);
            logs.ran(1, 0);
            logs.referred(0, 0x1000, 1, true, false);
            logs.runs(0);
            logs.referred(0, 0x1000, 4, false, false);
        });
        assert_eq!((sums.logs[1].logged, sums.logs[1].intervals), (2, 2), "two threads");
    }

    #[test]
    fn a_call_ends_all_intervals() {
        let sums = logs(0, |logs| {
            logs.referred(0, 0x1000, 4, false, false);
            logs.ran(1, 0);
            logs.own().ends();
            logs.referred(0, 0x1000, 4, false, false);
            logs.ran(1, 0);
        });
        assert_eq!((sums.logs[0].logged, sums.logs[1].logged), (2, 2));
        assert_eq!((sums.logs[0].intervals, sums.logs[1].intervals), (2, 2));
    }

    #[test]
    fn long_distances_have_full_counts() {
        let sums = logs(0, |logs| {
            (0..33).for_each(|_| logs.referred(0, 0x1000, 4, false, false));
            logs.referred(0, 0x2000, 4, false, false);
        });
        assert_eq!(sums.logs[1].bits, plain(1, 2) - SHORT_COUNT + full_count(100));
    }

    #[test]
    fn what_is_in_front_of_the_window_does_not_count() {
        let sums = logs(3, |logs| {
            logs.referred(0, 0x1000, 4, false, false);
            logs.ran(3, 2);
            logs.referred(0, 0x1000, 4, false, false);
            logs.ran(2, 1);
        });
        assert_eq!(sums.began, Some(Begin { thread: 0, instructions: 3, turns: 2 }));
        assert_eq!((sums.loads, sums.logs[1].logged), (1, 1));
    }
}
