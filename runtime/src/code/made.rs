//! Which pages hold code that the program has made and that has open translations which watch: their bytes are in
//! no file, so a replay of one thread knows them from what the thread has noted.
//!
//! A page is among them from when code on it is about to be opened, with all threads stopped, until its bytes may
//! change. Each has the number of the moment since when it is; threads note those that are newer than what they
//! know, before they go on.

use crate::code::span::Span;
use abi::ids::LiveAddr;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

#[derive(Default)]
pub struct Made {
    /// Numbers of pages, in their order, each with its moment.
    pages: Vec<(u64, u64)>,
    last: u64,
}

/// The newest moment, for whoever asks without the lock.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The newest moment at which a page came to be among them; 0: none did.
pub fn last() -> u64 {
    LAST.load(Acquire)
}

impl Made {
    /// The pages that `span` touches are among them.
    #[inline(never)]
    pub fn add(&mut self, span: Span) {
        for page in span.pages() {
            if let Err(at) = self.find(page) {
                self.last += 1;
                self.pages.insert(at, (page, self.last));
            }
        }
        LAST.store(self.last, Release);
    }

    /// The bytes in `span` may change.
    #[inline(never)]
    pub fn remove(&mut self, span: Span) {
        let pages = span.pages();
        let first = self.pages.partition_point(|&(page, _)| page < pages.start);
        let gone = self.pages.iter().skip(first).take_while(|&&(page, _)| page < pages.end).count();
        self.pages.drain(first..first + gone);
    }

    /// Whether all pages that `span` touches are among them.
    pub fn has(&self, span: Span) -> bool {
        span.pages().all(|page| self.find(page).is_ok())
    }

    /// Where those begin that came behind `moment`.
    #[inline(never)]
    pub fn since(&self, moment: u64) -> Vec<LiveAddr> {
        let newer = self.pages.iter().filter(|&&(_, came)| came > moment);
        newer.map(|&(page, _)| Span::page(page).start).collect()
    }

    fn find(&self, page: u64) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&page, |&(page, _)| page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::test_support::{page, pages};

    #[test]
    fn a_page_that_may_have_changed_is_noted_again() {
        let mut made = Made::default();
        made.add(pages(1, 3));
        assert!(made.has(pages(1, 3)) && !made.has(pages(0, 2)) && !made.has(pages(2, 4)));
        assert_eq!(made.since(0), [page(1).start, page(2).start]);
        let known = made.last;
        made.add(pages(1, 4));
        assert_eq!(made.since(known), [page(3).start]);
        let known = made.last;
        made.remove(Span { start: page(2).start.plus(7), end: page(2).start.plus(8) });
        assert!(!made.has(page(2)) && made.has(page(1)) && made.has(page(3)));
        made.add(page(2));
        assert_eq!(made.since(known), [page(2).start]);
        made.remove(Span::ALL);
        assert_eq!(made.since(0), []);
    }
}
