//! Addresses that the program never used.

use std::collections::BTreeMap;
use std::ops::Range;

use abi::syscalls::find;
use trace::events::Event;
use trace::Trace;

/// Bytes that the runtime's own memory needs at least.
pub const LEAST: u64 = 64 << 30;
/// More is of no use to it.
const MOST: u64 = 256 << 30;
/// Distance to what the program had.
const MARGIN: u64 = 1 << 30;
/// What the range starts at a multiple of.
const ALIGNMENT: u64 = 4 << 30;
/// Of a code window.
const WINDOW: u64 = 4 << 30;
/// Room below the end of a stack, into which it may grow.
const STACK: u64 = 16 << 30;
/// Of memory whose size is not in the trace (`shmat`).
const UNKNOWN: u64 = 64 << 30;
/// Above this lie what the kernel maps into a process that starts, and the stack; below, and down to
/// where position-independent programs and their heaps lie, it maps nothing by itself.
const KERNEL: u64 = 0x5400_0000_0000;
/// The first addresses are for programs at fixed addresses, for what Go maps (from 0xc000000000), and for
/// shadow memory.
const LOW: u64 = 0x1400_0000_0000;
/// First address that a program cannot have.
const END: u64 = 0x7fff_0000_0000;

/// Disjoint ranges.
#[derive(Debug, Default)]
pub struct Used {
    /// First byte, and first byte behind.
    ranges: BTreeMap<u64, u64>,
}

impl Used {
    /// Adds a range; one that ends behind the address space ends there.
    pub fn add(&mut self, start: u64, len: u64) {
        let mut start = start;
        let mut end = start.saturating_add(len);
        if start >= end {
            return;
        }
        // All that touch it become one.
        while let Some((&at, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.ranges.remove(&at);
            (start, end) = (start.min(at), end.max(to));
        }
        self.ranges.insert(start, end);
    }

    /// First byte of each, and first byte behind.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }

    /// Adds what others have.
    pub fn add_all(&mut self, others: &Used) {
        others.iter().for_each(|(start, end)| self.add(start, end - start));
    }

    /// Adds all that a trace says that its process had.
    pub fn add_trace(&mut self, trace: &Trace) {
        let threads = trace.threads.iter().flat_map(|thread| &thread.events);
        let mut heap = None;
        for placed in trace.process_events.iter().chain(threads).chain(&trace.snapshot) {
            match placed.event.as_ref() {
                Some(Event::Layout { window, brk, interpreter, stack, stack_end }) => {
                    self.add(window.0, WINDOW);
                    self.add(interpreter.0, WINDOW);
                    self.add(stack_end.0.saturating_sub(STACK), STACK);
                    self.add(stack.0.saturating_sub(STACK), STACK);
                    self.add(brk.0, MARGIN);
                    heap = Some(brk.0);
                }
                Some(Event::Map { start, len, .. }) => self.add(start.0, *len),
                Some(Event::Region { start, len, .. }) => self.add(start.0, *len),
                Some(Event::Snapshot { brk, .. }) => {
                    if let Some(start) = heap {
                        self.add(start, brk.0.saturating_sub(start));
                    }
                }
                Some(Event::Written { address, bytes }) => {
                    self.add(address.0, bytes.len() as u64);
                }
                Some(Event::Syscall { number, arguments, result }) => {
                    self.add_call(*number, arguments, *result, heap);
                }
                _ => {}
            }
        }
    }

    fn add_call(&mut self, number: u64, arguments: &[u64; 6], result: i64, heap: Option<u64>) {
        let Ok(address) = u64::try_from(result) else { return };
        let Some(call) = find(number) else { return };
        match call.name {
            "mmap" => self.add(address, arguments[1]),
            "mremap" => self.add(address, arguments[2]),
            "shmat" => self.add(address, UNKNOWN),
            "brk" => {
                if let Some(start) = heap.filter(|&start| start < address) {
                    self.add(start, address - start);
                }
            }
            _ => {}
        }
    }

    /// A range of at least [`LEAST`] bytes, away from all that was added.
    #[must_use]
    pub fn free(&self) -> Option<Range<u64>> {
        self.free_in(LOW..KERNEL).or_else(|| self.free_in(ALIGNMENT..END))
    }

    fn free_in(&self, within: Range<u64>) -> Option<Range<u64>> {
        let mut start = within.start;
        let behind = (within.end, u64::MAX);
        for (&at, &to) in self.ranges.iter().chain([(&behind.0, &behind.1)]) {
            let end = at.saturating_sub(MARGIN).min(within.end);
            let from = start.checked_next_multiple_of(ALIGNMENT)?;
            if end.checked_sub(from).is_some_and(|room| room >= LEAST) {
                return Some(from..end.min(from + MOST) / ALIGNMENT * ALIGNMENT);
            }
            start = start.max(to.saturating_add(MARGIN));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(used: &Used, free: &Range<u64>) -> bool {
        used.ranges.iter().any(|(&start, &end)| start < free.end && free.start < end)
    }

    #[test]
    fn what_touches_becomes_one() {
        let mut used = Used::default();
        for (start, len) in [(10, 5), (30, 5), (15, 15), (1, 0), (100, u64::MAX), (9, 1)] {
            used.add(start, len);
        }
        let all: Vec<_> = used.ranges.into_iter().collect();
        assert_eq!(all, [(9, 35), (100, u64::MAX)]);
    }

    #[test]
    fn free_is_what_nobody_had() {
        let mut used = Used::default();
        let first = used.free().expect("all is free");
        assert!(first.start >= LOW && first.end - first.start >= LEAST);
        // One after the other, until nothing is left.
        let mut count = 0;
        while let Some(free) = used.free() {
            assert!(!overlaps(&used, &free), "{free:x?}");
            assert!(free.end - free.start >= LEAST && free.end <= END);
            assert_eq!(free.start % ALIGNMENT, 0);
            used.add(free.start, free.end - free.start);
            count += 1;
            assert!(count < 4096);
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn the_usual_places_come_last() {
        let mut used = Used::default();
        used.add(LOW, KERNEL - LOW);
        let free = used.free().expect("there is more");
        assert!(!overlaps(&used, &free));
        used.add(0, END);
        assert_eq!(used.free(), None);
    }
}
