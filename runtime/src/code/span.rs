//! A piece of the program's address space.

use abi::ids::LiveAddr;
use abi::layout::{page_down, page_up, PAGE};
use core::ops::Range;

/// From `start` to in front of `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    pub start: LiveAddr,
    pub end: LiveAddr,
}

impl Span {
    /// All there is.
    pub const ALL: Span = Span { start: LiveAddr(0), end: LiveAddr(u64::MAX) };

    pub const fn new(start: u64, end: u64) -> Span {
        Span { start: LiveAddr(start), end: LiveAddr(end) }
    }

    /// The page that `address` lies in.
    pub fn page_of(address: LiveAddr) -> Span {
        let start = page_down(address.0);
        Span::new(start, start + PAGE)
    }

    /// The page with this number.
    pub fn page(number: u64) -> Span {
        Span::new(number * PAGE, (number + 1) * PAGE)
    }

    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    pub fn contains(self, address: LiveAddr) -> bool {
        self.start <= address && address < self.end
    }

    pub fn lies_in(self, other: Span) -> bool {
        other.start <= self.start && self.end <= other.end
    }

    /// Whether they have a part in common.
    pub fn touches(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The part that they have in common; may be empty.
    pub fn common(self, other: Span) -> Span {
        Span { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The numbers of the pages that it touches.
    pub fn pages(self) -> Range<u64> {
        self.start.0 / PAGE..self.end.0.div_ceil(PAGE)
    }

    /// Grown to whole pages.
    pub fn whole_pages(self) -> Span {
        Span::new(page_down(self.start.0), page_up(self.end.0))
    }
}
