//! What the program may execute.

use crate::base::sys;
use crate::code::span::Span;
use crate::code::world::ProgramBytes;
use abi::ids::LiveAddr;
use abi::layout::{page_down, page_up, PAGE};
use alloc::vec::Vec;

/// Executable memory of the program, as the program believes it to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecRange {
    pub span: Span,
    /// The program may write it, too.
    pub writable: bool,
    /// It is part of a file (a library, the program).
    pub file: bool,
    /// It may change unnoticed, by way of another mapping or because it is a stack: its bytes are
    /// compared each time.
    pub shared: bool,
}

impl ExecRange {
    /// What a stack that may be executed, whose upper end is `end`, can grow to.
    pub fn stack(end: u64) -> ExecRange {
        const MOST: u64 = 1 << 30;
        let room = page_up(sys::limit(sys::RLIMIT_STACK).min(MOST));
        let span = Span::new(end.saturating_sub(room), end);
        ExecRange { span, writable: true, file: false, shared: true }
    }

    /// Whether its pages are write-protected while they have translations.
    pub fn is_guarded(self) -> bool {
        self.writable && !self.shared
    }

    /// The part that code at `target`, which reaches no further than `reach` bytes, may lie in:
    /// behind the end of a mapped file nothing can be read, let alone executed. `None`: not even
    /// `target`.
    pub fn readable_part(
        self,
        target: LiveAddr,
        reach: u64,
        memory: &impl ProgramBytes,
    ) -> Option<ExecRange> {
        memory.is_readable(target).then_some(())?;
        let mut span = self.span;
        let next = LiveAddr(page_down(target.0) + PAGE);
        let near = target.plus(reach) >= next && next < span.end;
        if near && !memory.is_readable(next) {
            span.end = next;
        }
        if self.shared {
            // Nor may there be anything in front of it, if it is a stack.
            span.start = LiveAddr(page_down(target.0));
        }
        Some(ExecRange { span, ..self })
    }
}

/// The program's executable memory, and what of its memory is shared.
///
/// No two ranges overlap. Two pieces of anonymous memory with the same rights are one range if they
/// meet: an instruction may lie on both sides. Pieces of files stay apart.
#[derive(Default)]
pub struct Executable {
    ranges: Vec<ExecRange>,
    /// Shared mappings and stacks that are not executable: they may become so.
    shared_maps: Vec<Span>,
}

impl Executable {
    /// The range that `address` lies in.
    pub fn at(&self, address: LiveAddr) -> Option<ExecRange> {
        self.ranges.iter().copied().find(|r| r.span.contains(address))
    }

    pub fn ranges(&self) -> &[ExecRange] {
        &self.ranges
    }

    /// Whether any part of `span` is executable.
    pub fn touches(&self, span: Span) -> bool {
        self.ranges.iter().any(|r| r.span.touches(span))
    }

    /// `span` is a shared mapping now, or is not (any more).
    pub fn set_shared(&mut self, span: Span, shared: bool) {
        self.shared_maps.retain(|map| !map.lies_in(span));
        if shared {
            self.shared_maps.push(span);
        }
    }

    /// Whether `address` lies in a shared mapping.
    pub fn is_shared(&self, address: LiveAddr) -> bool {
        self.at(address).is_some_and(|r| r.shared)
            || self.shared_maps.iter().any(|map| map.contains(address))
    }

    /// Whether adding `range` would change nothing. (What can be written may have been.)
    pub fn has(&self, range: ExecRange) -> bool {
        let known = self.at(range.span.start);
        !range.writable && known.is_some_and(|r| range.span.end <= r.span.end && r.is_like(range))
    }

    /// Adds `range`, no part of which is executable.
    pub fn add(&mut self, range: ExecRange) {
        let mut whole = range;
        if !range.file {
            self.ranges.retain(|r| {
                let meets = r.span.end == whole.span.start || r.span.start == whole.span.end;
                let joins = !r.file && r.is_like(range) && meets;
                if joins {
                    whole.span.start = whole.span.start.min(r.span.start);
                    whole.span.end = whole.span.end.max(r.span.end);
                }
                !joins
            });
        }
        self.ranges.push(whole);
    }

    /// `span` is not executable any more. Returns the pieces that were.
    pub fn remove(&mut self, span: Span) -> Vec<Span> {
        let mut gone = Vec::new();
        for r in core::mem::take(&mut self.ranges) {
            if !r.span.touches(span) {
                self.ranges.push(r);
                continue;
            }
            gone.push(r.span.common(span));
            let front = Span { start: r.span.start, end: span.start };
            let back = Span { start: span.end, end: r.span.end };
            let left = [front, back].into_iter().filter(|left| !left.is_empty());
            self.ranges.extend(left.map(|span| ExecRange { span, ..r }));
        }
        gone
    }

    /// Whatever lies in part in `span` may have become writable.
    pub fn distrust(&mut self, span: Span) {
        for r in self.ranges.iter_mut().filter(|r| r.span.touches(span)) {
            r.writable = true;
        }
    }

    /// From the first to behind the last of the pieces of files that touch `span`; empty if there
    /// are none.
    pub fn files_around(&self, span: Span) -> Span {
        let files = self.ranges.iter().filter(|r| r.file && r.span.touches(span));
        let nothing = Span { start: span.start, end: span.start };
        files.fold(nothing, |all, r| Span {
            start: all.start.min(r.span.start),
            end: all.end.max(r.span.end),
        })
    }
}

impl ExecRange {
    fn is_like(&self, other: ExecRange) -> bool {
        (self.writable, self.shared) == (other.writable, other.shared)
    }
}
