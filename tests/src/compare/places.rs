//! Which place of the second run a place of the first run corresponds to.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, Error, Result};

const PAGE: u64 = 12;
const OFFSET: u64 = (1 << PAGE) - 1;

/// A range of the first run's address space whose parts stay together.
struct Region {
    end: u64,
    /// How far the second run's lies from it, once seen.
    distance: Option<u64>,
}

struct Event {
    record: u64,
    what: String,
    start: u64,
    end: u64,
}

#[derive(Default)]
pub struct Places {
    there: BTreeMap<u64, u64>,
    back: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, Region>,
    events: VecDeque<Event>,
    /// The pages that were found equal last; most references are to one of them.
    recent: [(u64, u64); 4],
    oldest: usize,
}

impl Places {
    pub fn new(log: Option<impl BufRead>) -> Result<Self> {
        let mut places = Self { recent: [(u64::MAX, 0); 4], ..Self::default() };
        if let Some(log) = log {
            for line in log.lines() {
                let line = line?;
                let event = parse(&line)
                    .ok_or_else(|| Error::other(format!("not of a log of mappings: {line:?}")))?;
                places.events.push_back(event);
            }
        }
        Ok(places)
    }

    pub fn pages(&self) -> usize {
        self.there.len()
    }

    /// Applies what happened to the mappings before record number `record`.
    pub fn advance(&mut self, record: u64) {
        while let Some(event) = self.events.pop_front_if(|e| e.record <= record) {
            let Event { what, start, end, .. } = event;
            let before = self.regions.range_mut(..=start).next_back();
            match (what.as_str(), before) {
                ("fixed", Some((_, region))) if start < region.end && end <= region.end => {}
                ("grow", Some((_, region))) if region.end == start => region.end = end,
                ("unmap", _) => self.forget(start, end),
                _ => {
                    self.forget(start, end);
                    self.regions.insert(start, Region { end, distance: None });
                }
            }
        }
    }

    fn forget(&mut self, start: u64, end: u64) {
        self.recent = [(u64::MAX, 0); 4];
        let gone: Vec<_> =
            self.there.range(start >> PAGE..end >> PAGE).map(|(a, b)| (*a, *b)).collect();
        for (a, b) in gone {
            self.there.remove(&a);
            self.back.remove(&b);
        }
        let hit: Vec<_> = self
            .regions
            .range(..end)
            .rev()
            .take_while(|(_, r)| r.end > start)
            .map(|(s, _)| *s)
            .collect();
        for at in hit {
            let Some(Region { end: until, distance }) = self.regions.remove(&at) else { continue };
            if at < start {
                self.regions.insert(at, Region { end: start, distance });
            }
            if end < until {
                self.regions.insert(end, Region { end: until, distance });
            }
        }
    }

    /// Whether address `a` of the first run corresponds to `b` of the second.
    pub fn same(&mut self, a: u64, b: u64) -> std::result::Result<(), String> {
        if a & OFFSET != b & OFFSET {
            return Err(format!("{a:#x} and {b:#x} differ within their pages"));
        }
        let (page_a, page_b) = (a >> PAGE, b >> PAGE);
        if self.recent.contains(&(page_a, page_b)) {
            return Ok(());
        }
        self.same_region(a, b)?;
        let known = (self.there.get(&page_a), self.back.get(&page_b));
        match known {
            (Some(x), Some(y)) if (*x, *y) == (page_b, page_a) => {}
            (None, None) => {
                self.there.insert(page_a, page_b);
                self.back.insert(page_b, page_a);
            }
            (Some(x), _) => {
                return Err(format!("{a:#x} and {b:#x}, but its page was {:#x}", x << PAGE))
            }
            (None, Some(y)) => {
                return Err(format!("{a:#x} and {b:#x}, whose page was that of {:#x}", y << PAGE))
            }
        }
        self.recent[self.oldest] = (page_a, page_b);
        self.oldest = (self.oldest + 1) % self.recent.len();
        Ok(())
    }

    fn same_region(&mut self, a: u64, b: u64) -> std::result::Result<(), String> {
        let Some((start, region)) = self.regions.range_mut(..=a).next_back() else {
            return Ok(());
        };
        if a >= region.end {
            return Ok(());
        }
        let distance = b.wrapping_sub(a);
        if *region.distance.get_or_insert(distance) == distance {
            return Ok(());
        }
        let end = region.end;
        Err(format!("{a:#x} and {b:#x} are torn out of region {start:#x}..{end:#x}"))
    }
}

fn parse(line: &str) -> Option<Event> {
    let hex = |s: &str| u64::from_str_radix(s.strip_prefix("0x")?, 16).ok();
    let mut words = line.split_ascii_whitespace();
    Some(Event {
        record: words.next()?.parse().ok()?,
        what: words.next()?.to_owned(),
        start: hex(words.next()?)?,
        end: hex(words.next()?)?,
    })
}
