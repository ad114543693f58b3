//! Which pages of the program are write-protected because code was translated there.

use crate::code::executable::ExecRange;
use crate::code::span::Span;
use crate::code::world::Protection;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// How often pages were write-protected.
static TIMES: AtomicUsize = AtomicUsize::new(0);

/// How often pages were write-protected: whoever could not write, and finds this changed, may try again.
pub fn times() -> usize {
    TIMES.load(SeqCst)
}

/// How often pages got their rights back.
static RELEASED: AtomicUsize = AtomicUsize::new(0);

/// How often pages got their rights back: whoever has written, and finds this changed, may have written code.
pub fn released() -> usize {
    RELEASED.load(SeqCst)
}

/// Pages that the program may write and that are write-protected for now.
///
/// A page is among them from when it is protected until the kernel gives it other rights. How many
/// they are is published, for whoever asks without the lock.
pub struct Guarded {
    /// Numbers of pages.
    pages: BTreeSet<u64>,
    count: &'static AtomicUsize,
}

impl Guarded {
    pub fn new(count: &'static AtomicUsize) -> Guarded {
        Guarded { pages: BTreeSet::new(), count }
    }

    /// Write-protects the pages with `span`, which lies in `range`. The error is the kernel's.
    pub fn guard(
        &mut self,
        span: Span,
        range: ExecRange,
        rights: &mut impl Protection,
    ) -> Result<(), i32> {
        TIMES.fetch_add(1, SeqCst);
        for page in span.pages() {
            if !self.add(page) {
                continue;
            }
            if rights.set_writable(Span::page(page), false).is_err() {
                // There can be no more mappings: all of it at once.
                rights.set_writable(range.span, false)?;
                self.add_all(range.span.pages());
            }
        }
        Ok(())
    }

    /// The kernel has given, or is about to give, the pages in `span` other rights.
    pub fn release(&mut self, span: Span) {
        for page in self.within(span) {
            self.pages.remove(&page);
            RELEASED.fetch_add(1, SeqCst);
        }
        self.publish();
    }

    /// The numbers of those with a part of `span`.
    pub fn within(&self, span: Span) -> Vec<u64> {
        let pages = span.pages();
        match pages.is_empty() {
            true => Vec::new(),
            false => self.pages.range(pages).copied().collect(),
        }
    }

    /// How many they are, as is published.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// False if it is among them already.
    fn add(&mut self, page: u64) -> bool {
        let new = self.pages.insert(page);
        self.publish();
        new
    }

    fn add_all(&mut self, pages: Range<u64>) {
        self.pages.extend(pages);
        self.publish();
    }

    fn publish(&self) {
        self.count.store(self.pages.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::test_support::{page, pages, FakeWorld};
    use alloc::boxed::Box;

    fn guarded() -> Guarded {
        Guarded::new(Box::leak(Box::new(AtomicUsize::new(0))))
    }

    fn range(span: Span) -> ExecRange {
        ExecRange { span, writable: true, file: false, shared: false }
    }

    #[test]
    fn pages_are_protected_and_counted_once() {
        let (mut guarded, mut world) = (guarded(), FakeWorld::new());
        let range = range(pages(0, 8));
        let inside = Span { start: page(1).start.plus(9), end: page(2).start.plus(1) };
        guarded.guard(inside, range, &mut world).unwrap();
        assert_eq!(guarded.count(), 2);
        guarded.guard(page(2), range, &mut world).unwrap();
        assert_eq!((guarded.count(), world.requests), (2, 2));
        let writable: Vec<bool> = (0..4).map(|n| world.is_writable(page(n).start)).collect();
        assert_eq!(writable, [true, false, false, true]);
        assert_eq!(guarded.within(pages(2, 8)), [page(2).start.0 / abi::layout::PAGE]);
        guarded.release(pages(2, 8));
        assert_eq!(guarded.count(), 1);
        guarded.release(inside);
        assert_eq!(guarded.count(), 0);
    }

    #[test]
    fn a_released_page_is_protected_again() {
        let (mut guarded, mut world) = (guarded(), FakeWorld::new());
        let range = range(pages(0, 8));
        guarded.guard(page(3), range, &mut world).unwrap();
        guarded.release(page(3));
        world.set_rights(page(3), true);
        guarded.guard(page(3), range, &mut world).unwrap();
        assert!(!world.is_writable(page(3).start));
    }

    #[test]
    fn without_mappings_all_of_the_range_is_protected() {
        let (mut guarded, mut world) = (guarded(), FakeWorld::new());
        world.no_more_mappings = true;
        guarded.guard(page(3), range(pages(2, 6)), &mut world).unwrap();
        assert_eq!(guarded.count(), 4);
        let writable: Vec<bool> = (1..7).map(|n| world.is_writable(page(n).start)).collect();
        assert_eq!(writable, [true, false, false, false, false, true]);
        world.sealed = true;
        assert!(guarded.guard(page(7), range(pages(7, 8)), &mut world).is_err());
    }
}
