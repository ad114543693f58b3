//! Which pages of the program are write-protected because code was translated there.

use crate::code::executable::ExecRange;
use crate::code::span::Span;
use crate::code::world::Protection;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
