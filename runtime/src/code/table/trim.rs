//! The look-up tables take no more memory than the pages that have entries.
//!
//! A look-up that reads a page of the file maps those around it, too: in a large program more than half of the tables'
//! resident memory would be such pages. Once in a while they are given back.

use super::{page_down, LookUps, Table};
use crate::base::sys::{self, nr};
use crate::code::span::Span;
use crate::code::world::For;
use abi::ids::LiveAddr;
use abi::layout::PAGE;
use alloc::vec::Vec;
use core::ops::Range;

/// What the kernel maps at once of a file that is read (`fault_around_bytes`).
const AROUND: u64 = 64 << 10;
/// Places that are remembered before they are looked at, and how many of them have to be different ones: the former times
/// [`AROUND`] is what may be mapped in vain.
const REMEMBERED: usize = 1024;
const PLACES: usize = 512;

impl LookUps {
    /// A look-up has read the entry of `address`, which has missed; `span` has entries.
    pub(super) fn note_around(&self, what: For, address: LiveAddr, span: Span) {
        // What is filled is no file's.
        if self.each().any(|table| table.is_filled.get()) {
            return;
        }
        let Some((start, end)) = self.part_in_window(span) else { return };
        let shape = self.table(what).shape;
        let whole = shape.entry_of(start)..shape.entry_of(end - 1) + shape.entry;
        let place = shape.entry_of(address.0) & !(AROUND - 1);
        let place = place.max(whole.start)..(place + AROUND).min(whole.end);
        let mut around = self.around.borrow_mut();
        if around.last() == Some(&place) {
            return;
        }
        around.push(place);
        if around.len() < REMEMBERED {
            return;
        }
        around.sort_unstable_by_key(|place| place.start);
        around.dedup();
        if around.len() >= PLACES {
            self.sort_written();
            let written = self.written.borrow();
            let all: Vec<Range<u64>> =
                around.drain(..).flat_map(|place| not_written(place, &written)).collect();
            give_back(&all);
        }
    }

    /// Puts the pages that were written in their order.
    pub(super) fn sort_written(&self) {
        let written = &mut *self.written.borrow_mut();
        written.sort_unstable();
        written.dedup();
    }

    /// Whether the entry of `address` in the window may be another one than that which misses. The pages that were written
    /// are in their order.
    pub(super) fn may_be_set(&self, table: &Table, address: LiveAddr) -> bool {
        let page = page_down(table.shape.entry_of(address.0));
        let is_among = |pages: &[u64]| pages.binary_search(&page).is_ok();
        table.is_filled.get() || is_among(&self.written.borrow()) || is_among(&self.filed)
    }
}

/// The pages of `place` that are not among those that were `written`, which ascend.
fn not_written(place: Range<u64>, written: &[u64]) -> impl Iterator<Item = Range<u64>> + '_ {
    let first = written.partition_point(|&page| page < place.start);
    let end = place.end;
    let inside = written.iter().skip(first).copied().take_while(move |&page| page < end);
    let mut at = place.start;
    inside.chain([end]).filter_map(move |page| {
        let free = at..page_down(page);
        at = page + PAGE;
        (!free.is_empty()).then_some(free)
    })
}

/// Gives pages back to which nothing was written: what the file has is there, and a look-up finds it again.
fn give_back(all: &[Range<u64>]) {
    const DONTNEED: usize = 4;
    /// This thread, for calls that take a descriptor of one.
    const PIDFD_SELF_THREAD: usize = -10000isize as usize;
    /// As many pieces as the kernel takes at once.
    const MOST: usize = 1024;
    for some in all.chunks(MOST) {
        // There are as many pieces as pages between others: a call and a flush of the processor's tables each would cost
        // a short program more than all else that it does here.
        let pieces: Vec<[u64; 2]> = some.iter().map(|p| [p.start, p.end - p.start]).collect();
        let len: u64 = pieces.iter().map(|piece| piece[1]).sum();
        let at = pieces.as_ptr() as usize;
        let args = [PIDFD_SELF_THREAD, at, pieces.len(), DONTNEED, 0];
        // SAFETY: pieces of tables, mapped privately from their file, which has what is there. Linux before 6.14 refuses.
        if unsafe { sys::call(nr::PROCESS_MADVISE, &args) } == Ok(len as usize) {
            continue;
        }
        for [at, len] in pieces {
            // SAFETY: as above.
            let _ = unsafe { sys::call(nr::MADVISE, &[at as usize, len as usize, DONTNEED]) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use crate::base::sys::{mmap, MAP_PRIVATE, PROT_READ, PROT_WRITE};

    /// Bytes of the mapping at `start` that are resident.
    fn resident(start: u64) -> u64 {
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = std::format!("{start:x}-");
        let own = all.split_once(&head).unwrap().1;
        let line = own.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    fn what_was_written_stays_and_all_else_is_given_back() {
        const PAGES: u64 = 48;
        let words: std::vec::Vec<u64> = std::vec![7; (PAGES * PAGE / 8) as usize];
        let part = [words.as_ptr() as u64, PAGES * PAGE];
        let fd = super::super::write_file(&[part]).unwrap();
        let prot = PROT_READ | PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(0, PAGES * PAGE, prot, MAP_PRIVATE, fd, 0) }.unwrap();
        // SAFETY: mapped above.
        let word = |page: u64| unsafe { &mut *((start + page * PAGE) as *mut u64) };
        assert!((0..PAGES).all(|page| *word(page) == 7));
        assert_eq!(resident(start), PAGES * PAGE);
        let pages = [3, 16, 17, 31, 40];
        pages.iter().for_each(|&page| *word(page) = page);
        let written = pages.map(|page| start + page * PAGE);
        let give_back = |place| {
            let all: Vec<_> = not_written(place, &written).collect();
            super::give_back(&all);
        };
        give_back(start + 16 * PAGE..start + 32 * PAGE);
        assert_eq!(resident(start), (PAGES - 13) * PAGE);
        give_back(start..start + PAGES * PAGE);
        assert_eq!(resident(start), 5 * PAGE);
        let expected = |page| if pages.contains(&page) { page } else { 7 };
        assert!((0..PAGES).all(|page| *word(page) == expected(page)));
    }
}
