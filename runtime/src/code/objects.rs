//! Shared memory that nobody but this process has, and where it is mapped.
//!
//! A just-in-time compiler maps one object twice, to write through the one mapping and to execute the
//! other, or maps anonymous shared memory that its children are to have. As long as no other process has
//! it, all its mappings are known, and code in it can be guarded as any other: whichever of them is
//! written. A forked child has it, too, until it ends or executes another program. Then the object is
//! *lent*; what tells of that is a pipe, whose other end the kernel closes for the child.

use crate::code::span::Span;
use abi::ids::LiveAddr;
use abi::layout::PAGE;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether there is any object; asks without the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether the process has made shared memory that nobody else has.
pub fn are_any() -> bool {
    ANY.load(Relaxed)
}

/// A piece of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    object: u32,
    offset: u64,
}

/// Where a piece of an object is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    pub span: Span,
    piece: Piece,
    /// The program may write through it.
    pub writable: bool,
}

impl View {
    /// Its part in `span`.
    fn part(self, span: Span) -> Option<View> {
        let span = self.span.common(span);
        let offset = self.piece.offset + span.start.0.saturating_sub(self.span.start.0);
        (!span.is_empty()).then_some(View { span, piece: Piece { offset, ..self.piece }, ..self })
    }

    /// Where `other`'s piece is mapped here, too.
    fn same(self, other: View) -> Option<View> {
        if self.piece.object != other.piece.object {
            return None;
        }
        let start = self.piece.offset.max(other.piece.offset);
        let end = (self.piece.offset + self.span.len()).min(other.piece.offset + other.span.len());
        (start < end).then_some(())?;
        let at = self.span.start.0 + (start - self.piece.offset);
        self.part(Span::new(at, at + (end - start)))
    }
}

/// Who has the objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Owner {
    #[default]
    We,
    /// Children, too, for now.
    Lent,
    /// Nobody knows.
    Anybody,
}

#[derive(Default)]
pub struct Objects {
    views: Vec<View>,
    /// Files in memory that the process has made: device, inode, number of the object.
    made: Vec<([u64; 2], u32)>,
    count: u32,
    owner: Owner,
    /// The ends of pipes whose other ends children have.
    loans: Vec<i32>,
}

impl Objects {
    /// A file in memory was made.
    pub fn made(&mut self, file: [u64; 2]) {
        if self.owner != Owner::Anybody {
            self.count += 1;
            self.made.push((file, self.count));
            ANY.store(true, Relaxed);
        }
    }

    /// The piece at `offset` of `file`, or of anonymous memory that is new.
    pub fn piece(&mut self, file: Option<[u64; 2]>, offset: u64) -> Option<Piece> {
        if self.owner == Owner::Anybody {
            return None;
        }
        match file {
            Some(file) => {
                let object = self.made.iter().find(|made| made.0 == file)?.1;
                Some(Piece { object, offset })
            }
            None => {
                self.count += 1;
                ANY.store(true, Relaxed);
                Some(Piece { object: self.count, offset: 0 })
            }
        }
    }

    pub fn is_made(&self, file: [u64; 2]) -> bool {
        self.made.iter().any(|made| made.0 == file)
    }

    /// `piece` is mapped at `span`, or nothing of an object (any more).
    pub fn set(&mut self, span: Span, piece: Option<Piece>, writable: bool) {
        self.replace(span, |_| None);
        self.views.extend(piece.map(|piece| View { span, piece, writable }));
    }

    /// The program may write in `span`, or may not.
    pub fn protect(&mut self, span: Span, writable: bool) {
        self.replace(span, |view| Some(View { writable, ..view }));
    }

    fn replace(&mut self, span: Span, change: impl Fn(View) -> Option<View>) {
        if !self.views.iter().any(|view| view.span.touches(span)) {
            return;
        }
        for view in core::mem::take(&mut self.views) {
            let front = view.part(Span { start: LiveAddr(0), end: span.start });
            let back = view.part(Span { start: span.end, end: Span::ALL.end });
            let inside = view.part(span).and_then(&change);
            self.views.extend([front, inside, back].into_iter().flatten());
        }
    }

    /// The view with `address`.
    pub fn at(&self, address: LiveAddr) -> Option<View> {
        self.views.iter().copied().find(|view| view.span.contains(address))
    }

    /// Whether code at `address` is in memory that only this process has.
    pub fn is_own(&self, address: LiveAddr) -> bool {
        self.owner == Owner::We && self.at(address).is_some()
    }

    /// Wherever what is mapped in `span` is mapped, there included.
    pub fn views_of(&self, span: Span) -> Vec<View> {
        let mut all = Vec::new();
        for here in self.views.iter().filter_map(|view| view.part(span)) {
            all.extend(self.views.iter().filter_map(|view| view.same(here)));
        }
        all
    }

    pub fn spans(&self) -> Vec<Span> {
        self.views.iter().map(|view| view.span).collect()
    }

    /// Whether all are known to be this process's alone.
    pub fn are_own(&self) -> bool {
        self.owner == Owner::We
    }

    pub fn are_lent(&self) -> bool {
        self.owner == Owner::Lent
    }

    /// A child has them, too, until the other end of `pipe` is closed.
    pub fn lend(&mut self, pipe: i32) {
        if self.owner != Owner::Anybody {
            self.owner = Owner::Lent;
            self.loans.push(pipe);
        }
    }

    /// Forgets the loans that are over. True if those were all.
    pub fn take_back(&mut self, is_over: impl Fn(&i32) -> bool) -> bool {
        self.loans.retain(|pipe| !is_over(pipe));
        let all = self.owner == Owner::Lent && self.loans.is_empty();
        if all {
            self.owner = Owner::We;
        }
        all
    }

    /// From now on nobody knows who has them.
    pub fn give_up(&mut self) -> Vec<i32> {
        self.owner = Owner::Anybody;
        self.made.clear();
        self.views.clear();
        ANY.store(false, Relaxed);
        core::mem::take(&mut self.loans)
    }
}

/// The pages of a view.
pub fn pages(view: &View) -> impl Iterator<Item = Span> {
    let (start, end) = (view.span.start.0, view.span.end.0);
    (start / PAGE..end.div_ceil(PAGE)).map(Span::page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::test_support::{page, pages};

    const FILE: [u64; 2] = [1, 77];

    /// The file's first four pages at 0, and its second and third at 8.
    fn twice() -> Objects {
        let mut objects = Objects::default();
        objects.made(FILE);
        let piece = objects.piece(Some(FILE), 0);
        objects.set(pages(0, 4), piece, false);
        let piece = objects.piece(Some(FILE), PAGE);
        objects.set(pages(8, 10), piece, true);
        objects
    }

    fn spans(objects: &Objects, span: Span) -> Vec<Span> {
        let mut spans: Vec<Span> = objects.views_of(span).iter().map(|view| view.span).collect();
        spans.sort();
        spans
    }

    #[test]
    fn a_piece_is_found_wherever_it_is_mapped() {
        let objects = twice();
        assert_eq!(spans(&objects, page(0)), [page(0)]);
        assert_eq!(spans(&objects, page(1)), [page(1), page(8)]);
        assert_eq!(spans(&objects, page(9)), [page(2), page(9)]);
        assert_eq!(spans(&objects, pages(2, 4)), [pages(2, 4), page(9)]);
        assert_eq!(spans(&objects, page(5)), []);
    }

    #[test]
    fn rights_and_holes_split_a_view() {
        let mut objects = twice();
        objects.protect(page(8), false);
        let writable = |objects: &Objects, n| objects.at(page(n).start).map(|v| v.writable);
        assert_eq!((writable(&objects, 8), writable(&objects, 9)), (Some(false), Some(true)));
        objects.set(page(1), None, false);
        assert_eq!(spans(&objects, page(8)), [page(8)]);
        assert_eq!(spans(&objects, page(9)), [page(2), page(9)]);
    }

    #[test]
    fn each_anonymous_mapping_is_an_object_of_its_own() {
        let mut objects = Objects::default();
        for n in 0..2 {
            let piece = objects.piece(None, 0);
            objects.set(page(n), piece, true);
        }
        assert_eq!(spans(&objects, page(1)), [page(1)]);
        assert_eq!(objects.piece(Some(FILE), 0), None);
    }

    #[test]
    fn what_is_lent_comes_back_when_all_have_gone() {
        let mut objects = twice();
        objects.lend(3);
        objects.lend(4);
        assert!(!objects.is_own(page(0).start) && objects.are_lent());
        assert!(!objects.take_back(|pipe| *pipe == 3));
        assert!(!objects.is_own(page(0).start));
        assert!(objects.take_back(|pipe| *pipe == 4));
        assert!(objects.is_own(page(0).start));
        assert!(!objects.take_back(|_| true));
        objects.give_up();
        assert!(objects.at(page(0).start).is_none() && objects.piece(None, 0).is_none());
    }
}
