//! Code in shared memory: guarded wherever it is mapped while only this process has it, compared each time
//! while others may have it.

use super::{Jit, World};
use crate::code::executable::ExecRange;
use crate::code::objects::{self, Piece};
use crate::code::span::Span;
use abi::ids::LiveAddr;
use alloc::vec::Vec;

impl<W: World> Jit<W> {
    /// A file in memory was made: its device and inode.
    pub fn made_object(&mut self, file: [u64; 2]) {
        self.objects.made(file);
    }

    /// The piece of an object of the process's that is mapped from `file`, or anonymously.
    pub fn piece(&mut self, file: Option<[u64; 2]>, offset: u64) -> Option<Piece> {
        self.objects.piece(file, offset)
    }

    /// `piece` is mapped at `span` now, or nothing of an object.
    pub fn set_view(&mut self, span: Span, piece: Option<Piece>, writable: bool) {
        if piece.is_none() && self.objects.at(span.start).is_none() && !objects::are_any() {
            return;
        }
        self.guarded.release(span);
        self.objects.set(span, piece, writable);
        if piece.is_some() && writable {
            self.views_change(span);
        }
    }

    /// The program is about to give `span` other rights.
    pub fn protect_view(&mut self, span: Span, writable: bool) {
        if self.objects.views_of(span).is_empty() {
            return;
        }
        self.objects.protect(span, writable);
        self.guarded.release(span);
        if writable {
            self.views_change(span);
        }
    }

    /// What is mapped in `span` may change: code in it is looked at again, wherever it is mapped.
    pub fn views_change(&mut self, span: Span) {
        for view in self.objects.views_of(span) {
            // Whoever opens them protects all views.
            self.close_units(view.span);
        }
    }

    /// Whether code at `address` lies in shared memory that only this process has.
    pub fn is_own(&self, address: u64) -> bool {
        self.objects.is_own(LiveAddr(address))
    }

    /// Whether anything of an object is mapped in `start..end`.
    pub fn is_view(&self, start: u64, end: u64) -> bool {
        !self.objects.views_of(Span::new(start, end)).is_empty()
    }

    /// Whether `file` is an object of the process's.
    pub fn is_object(&self, file: [u64; 2]) -> bool {
        self.objects.is_made(file)
    }

    /// Whether `file` is an object of the process's with code in it.
    pub fn is_executable_object(&self, file: [u64; 2]) -> bool {
        self.objects.is_made(file)
            && self.objects.spans().into_iter().any(|span| self.executable.touches(span))
    }

    /// Protects whatever `span`, which lies in `range`, is mapped as, where the program may write it. False
    /// if it is no view of an object.
    pub(super) fn guard_views(&mut self, span: Span, range: ExecRange) -> Result<bool, i32> {
        if self.objects.at(span.start).is_none() {
            return Ok(false);
        }
        for view in self.objects.views_of(span.whole_pages()) {
            if !view.writable {
                continue;
            }
            let whole = self.objects.at(view.span.start).map_or(view.span, |view| view.span);
            let range = ExecRange { span: whole, ..range };
            for page in objects::pages(&view) {
                self.guarded.guard(page, range, &mut self.world)?;
            }
        }
        Ok(true)
    }

    /// The program writes to `address`, in a view of an object: `None` if it is none, else whether it may,
    /// and can now.
    pub(super) fn unprotect_view(&mut self, address: LiveAddr) -> Option<bool> {
        let view = self.objects.at(address)?;
        if !view.writable || !self.objects.are_own() {
            return Some(false);
        }
        let page = Span::page_of(address);
        self.close_all(page);
        self.guarded.release(page);
        if self.world.set_writable(page, true).is_ok() {
            return Some(true);
        }
        // There can be no more mappings: all of it at once.
        self.close_all(view.span);
        self.guarded.release(view.span);
        Some(self.world.set_writable(view.span, true).is_ok())
    }

    fn close_all(&mut self, span: Span) {
        for view in self.objects.views_of(span) {
            self.close_units(view.span);
        }
    }

    // --- who has it ---

    /// Whether a child would have code of ours.
    pub fn would_lend(&self) -> bool {
        let touches = |span| self.executable.touches(span);
        !self.objects.spans().is_empty()
            && (self.objects.are_lent() || self.objects.spans().into_iter().any(touches))
    }

    /// A child is going to have all objects, too, until the other end of `pipe` is closed.
    pub fn lend(&mut self, pipe: i32) {
        if self.objects.are_own() {
            self.make_shared(true);
        }
        self.objects.lend(pipe);
    }

    /// Code in shared memory may change without our noticing, from now on. Returns descriptors that are
    /// not needed any more.
    pub fn give_up_objects(&mut self) -> Vec<i32> {
        if self.objects.are_own() {
            self.make_shared(true);
        }
        self.objects.give_up()
    }

    /// If something is lent: looks whether it is still. True if nothing is any more.
    pub(super) fn take_back(&mut self) -> bool {
        let world = &self.world;
        let all = self.objects.are_lent() && self.objects.take_back(|pipe| world.is_over(*pipe));
        if all {
            self.make_shared(false);
        }
        all
    }

    /// Whether what is written at `address` may be in `span`, too.
    pub fn is_in(&self, address: u64, span: Span) -> bool {
        let page = Span::page_of(LiveAddr(address));
        page.touches(span) || self.objects.views_of(page).iter().any(|view| view.span.touches(span))
    }

    /// All code in objects is of that kind now, and none of their pages is protected.
    fn make_shared(&mut self, shared: bool) {
        for span in self.objects.spans() {
            for number in self.guarded.within(span) {
                let page = Span::page(number);
                self.close_all(page);
                self.guarded.release(page);
                let writable = self.objects.at(page.start).is_some_and(|view| view.writable);
                if writable && self.world.set_writable(page, true).is_err() {
                    crate::die!("code at {} cannot be given back its rights", page.start);
                }
            }
            self.executable.set_shared(span, shared);
            let parts: Vec<ExecRange> = self
                .executable
                .ranges()
                .iter()
                .filter(|range| range.span.touches(span))
                .map(|range| ExecRange { span: range.span.common(span), shared, ..*range })
                .collect();
            for part in parts {
                self.add_executable(ExecRange { writable: true, ..part });
            }
        }
    }
}
