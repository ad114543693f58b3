//! The look-up tables of a process that forks: few pages to copy, and few mappings.
//!
//! A fork copies what is mapped of a piece of a table as soon as one page of it was written, and that is
//! mostly pages of the file: a look-up maps those around it, too. A process that forks again and again
//! gets rid of those, and has the pages that were written, and those only.
//!
//! One that goes on forking gives its tables a file of their own, with the entries that are set: nothing
//! of that was written, so a fork copies none of it, and one mapping takes the place of many. What is set
//! from then on is the process's own, as ever; the file stays as it is.

use super::{page_down, page_up, part_of, LookUps, Table};
use crate::base::census;
use crate::base::own::not_in_dumps;
use crate::base::sys::{self, nr};
use crate::code::span::Span;
use abi::layout::PAGE;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// From this fork on pages are got rid of.
const FORKS: u32 = 3;
/// From this one on the tables have a file of their own, which costs as much as it saves in about so many.
const MANY_FORKS: u32 = 64;
/// More pages are not worth copying.
const MOST_KEPT: usize = 1 << 10;
/// So far from the end of a piece its entries may end.
const NEAR: u64 = 512 << 10;
/// A longer file is not worth its memory.
const LONGEST_FILE: u64 = 32 << 20;

impl LookUps {
    /// The process forks; `spans`: what has entries.
    pub(super) fn before_fork(&mut self, spans: impl Iterator<Item = Span>) {
        self.forks = self.forks.saturating_add(1);
        let is_turn = self.forks == FORKS || self.forks > FORKS && self.forks.is_power_of_two();
        if !is_turn || self.each().any(|table| table.is_filled.get()) {
            return;
        }
        let spans: Vec<Span> = spans.collect();
        // The number that its descriptor has for a moment might be another thread's.
        let has_file =
            self.forks >= MANY_FORKS && census::live() <= 1 && self.move_to_file(&spans).is_ok();
        if !has_file {
            self.keep_written(&spans);
        }
    }

    pub(super) fn note_written(&self, page: u64) {
        let written = &mut *self.written.borrow_mut();
        if written.last() == Some(&page) {
            return;
        }
        if written.len() == written.capacity() {
            written.sort_unstable();
            written.dedup();
        }
        if written.len() > written.capacity() / 2 {
            written.reserve(written.len().max(Self::MORE));
        }
        written.push(page);
    }

    /// Room that a child has without asking for memory.
    const MORE: usize = 128;

    /// The pieces of both tables for `spans`, and which table it is.
    fn pieces<'a>(
        &'a self,
        spans: &'a [Span],
    ) -> impl Iterator<Item = (usize, &'a Table, Range<u64>)> + 'a {
        let parts = spans.iter().filter_map(|&span| self.part_in_window(span));
        parts.flat_map(|(start, end)| {
            self.each().enumerate().map(move |(i, table)| {
                let first = table.shape.entry_of(start);
                let last = table.shape.entry_of(end - 1) + table.shape.entry;
                (i, table, page_down(first)..page_up(last))
            })
        })
    }

    /// Those of `pages` that lie in pieces for `spans`, in their order.
    fn in_pieces(&self, mut pages: Vec<u64>, spans: &[Span]) -> Vec<u64> {
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|page| self.pieces(spans).any(|(_, _, piece)| piece.contains(page)));
        pages
    }

    fn keep_written(&mut self, spans: &[Span]) {
        let pages = core::mem::take(self.written.get_mut());
        let pages = self.in_pieces(pages, spans);
        if pages.len() <= MOST_KEPT {
            let words = |page: u64| (0..PAGE / 8).map(move |i| page + 8 * i);
            let mut kept = Vec::with_capacity(pages.len() * PAGE as usize / 8);
            for at in pages.iter().copied().flat_map(words) {
                // SAFETY: mapped, as a piece of a table; entries are read as other threads do.
                kept.push(unsafe { (*(at as *const AtomicU64)).load(Relaxed) });
            }
            for (_, _, piece) in self.pieces(spans) {
                const DONTNEED: usize = 4;
                let args = [piece.start as usize, (piece.end - piece.start) as usize, DONTNEED];
                // SAFETY: mapped from a file, which is what is there then. A look-up finds either
                // of two entries that are right: the one that was set, and the one that misses.
                let _ = unsafe { sys::call(nr::MADVISE, &args) };
            }
            for (at, word) in pages.iter().copied().flat_map(words).zip(kept) {
                // SAFETY: mapped, as above; other threads read it as one word.
                unsafe { (*(at as *const AtomicU64)).store(word, Release) };
            }
        }
        *self.written.get_mut() = pages;
    }

    /// Gives the tables a file of their own. The error is the kernel's; all is as it was then.
    fn move_to_file(&mut self, spans: &[Span]) -> Result<(), i32> {
        let pages = core::mem::take(self.written.get_mut());
        let pages = self.in_pieces(pages, spans);
        if pages.is_empty() {
            return Ok(());
        }
        let all = pages.iter().chain(&self.filed).copied().collect();
        let all = self.in_pieces(all, spans);
        *self.written.get_mut() = pages;
        // Of each piece, what lies between its first entry and its last one.
        let pieces = self.pieces(spans).filter_map(|(i, table, piece)| {
            let from = all.partition_point(|&page| page < piece.start);
            let to = all.partition_point(|&page| page < piece.end);
            let pages = all.get(from..to)?;
            let mut part = *pages.first()?..pages.last()? + PAGE;
            // A mapping less, where it takes little more of the file.
            if part.start - piece.start <= NEAR {
                part.start = piece.start;
            }
            if piece.end - part.end <= NEAR {
                part.end = piece.end;
            }
            Some((i, table, part, pages))
        });
        let pieces: Vec<_> = pieces.collect();
        let lens = pieces.iter().map(|(_, _, part, _)| part.end - part.start);
        if lens.clone().sum::<u64>() > LONGEST_FILE {
            return Err(sys::ENOMEM);
        }
        let fd = self.make_file(|without_entries| {
            let default_of = |table: usize| without_entries.get(table).copied().unwrap_or_default();
            let mut parts = Vec::new();
            for (i, _, part, pages) in &pieces {
                let mut at = part.start;
                for &page in *pages {
                    parts.extend(part_of(default_of(*i), page - at));
                    parts.push([page, PAGE]);
                    at = page + PAGE;
                }
                parts.extend(part_of(default_of(*i), part.end - at));
            }
            parts
        })?;
        let mut offset = 0;
        for ((_, table, part, _), len) in pieces.iter().zip(lens) {
            let prot = sys::PROT_READ | sys::PROT_WRITE;
            let flags = sys::MAP_PRIVATE | sys::MAP_FIXED | sys::MAP_NORESERVE;
            // SAFETY: this part of the address space is the table's, and what is there then is the same.
            match unsafe { sys::mmap(part.start, len, prot, flags, fd, offset) } {
                Ok(_) => not_in_dumps(part.start, len),
                // Its entries may be gone: they miss.
                Err(_) => table.map(self.fd, part.start, part.end),
            }
            offset += len;
        }
        // SAFETY: made above.
        let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
        self.filed = all;
        self.written.get_mut().clear();
        Ok(())
    }
}
