//! What the program may execute.

use crate::base::sys;
use crate::code::span::Span;
use crate::code::world::ProgramBytes;
use abi::ids::LiveAddr;
use abi::layout::{page_down, page_up, PAGE};
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions};

const LONGEST_INSN: u64 = 15;

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
        if self.shared && span.start < LiveAddr(page_down(target.0)) {
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

    /// As [`Executable::at`], for code at `address`. An instruction that lies in two ranges has a range of its
    /// own, whose bytes are compared each time: a part of it may be writable.
    pub fn code_at(&self, address: LiveAddr, memory: &impl ProgramBytes) -> Option<ExecRange> {
        let range = self.at(address)?;
        let rest = range.span.end.0 - address.0;
        if rest >= LONGEST_INSN || range.shared {
            return Some(range);
        }
        let Some(next) = self.at(range.span.end) else { return Some(range) };
        let (border, end) = (range.span.end, next.span.end.0.min(address.0 + LONGEST_INSN));
        let span = Span { start: address, end: LiveAddr(end) };
        if !memory.is_readable(address) || !memory.is_readable(border) {
            return Some(range);
        }
        // SAFETY: both pages can be read, and are the program's: what it unmaps it does not execute.
        let bytes = unsafe { memory.bytes(span) };
        let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        if insn.is_invalid() || insn.len() as u64 <= rest {
            return Some(range);
        }
        let span = Span { start: address, end: address.plus(insn.len() as u64) };
        Some(ExecRange { span, writable: true, file: false, shared: true })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::test_support::{page, pages, FakeWorld};

    fn range(span: Span) -> ExecRange {
        ExecRange { span, writable: false, file: false, shared: false }
    }

    fn spans(executable: &Executable) -> Vec<Span> {
        let mut spans: Vec<Span> = executable.ranges().iter().map(|r| r.span).collect();
        spans.sort();
        spans
    }

    #[test]
    fn a_hole_splits_a_range_and_leaves_its_rights() {
        let mut executable = Executable::default();
        let whole = ExecRange { writable: true, ..range(pages(0, 6)) };
        executable.add(whole);
        assert_eq!(executable.remove(pages(2, 4)), [pages(2, 4)]);
        assert_eq!(spans(&executable), [pages(0, 2), pages(4, 6)]);
        assert!(executable.at(page(2).start).is_none());
        assert_eq!(executable.at(page(5).start), Some(ExecRange { span: pages(4, 6), ..whole }));
        assert!(!executable.touches(pages(2, 4)));
        assert!(executable.touches(pages(3, 5)));
    }

    #[test]
    fn what_overlaps_several_ranges_takes_a_piece_of_each() {
        let mut executable = Executable::default();
        executable.add(ExecRange { file: true, ..range(pages(0, 3)) });
        executable.add(ExecRange { writable: true, ..range(pages(3, 5)) });
        executable.add(range(pages(6, 8)));
        assert_eq!(executable.remove(pages(2, 7)), [page(2), pages(3, 5), page(6)]);
        assert_eq!(spans(&executable), [pages(0, 2), page(7)]);
        assert_eq!(executable.remove(pages(2, 7)), []);
    }

    #[test]
    fn anonymous_pieces_with_the_same_rights_join_on_both_sides() {
        let mut executable = Executable::default();
        executable.add(range(page(0)));
        executable.add(range(page(2)));
        executable.add(range(page(1)));
        assert_eq!(spans(&executable), [pages(0, 3)]);
        // Not with other rights, nor across a gap.
        executable.add(ExecRange { writable: true, ..range(page(3)) });
        executable.add(range(page(5)));
        assert_eq!(spans(&executable), [pages(0, 3), page(3), page(5)]);
    }

    #[test]
    fn pieces_of_files_stay_apart() {
        let mut executable = Executable::default();
        executable.add(ExecRange { file: true, ..range(page(0)) });
        executable.add(ExecRange { file: true, ..range(page(1)) });
        executable.add(range(page(2)));
        assert_eq!(spans(&executable), [page(0), page(1), page(2)]);
        assert_eq!(executable.files_around(pages(0, 2)), pages(0, 2));
        assert_eq!(executable.files_around(page(1)), page(1));
        assert!(executable.files_around(page(2)).is_empty());
    }

    #[test]
    fn only_what_cannot_have_been_written_is_known() {
        let mut executable = Executable::default();
        executable.add(range(pages(0, 4)));
        assert!(executable.has(range(pages(1, 4))));
        assert!(!executable.has(range(pages(1, 5))));
        assert!(!executable.has(ExecRange { shared: true, ..range(page(1)) }));
        executable.distrust(page(2));
        assert!(executable.at(page(0).start).unwrap().writable);
        assert!(!executable.has(range(page(1))));
        assert!(!executable.has(ExecRange { writable: true, ..range(page(1)) }));
    }

    #[test]
    fn memory_is_shared_until_all_of_it_is_replaced() {
        let mut executable = Executable::default();
        executable.set_shared(pages(0, 4), true);
        assert!(executable.is_shared(page(3).start));
        assert!(!executable.is_shared(page(4).start));
        executable.set_shared(pages(0, 2), false);
        assert!(executable.is_shared(page(3).start));
        executable.set_shared(pages(0, 5), false);
        assert!(!executable.is_shared(page(3).start));
        executable.add(ExecRange { shared: true, ..range(page(7)) });
        assert!(executable.is_shared(page(7).start));
    }

    #[test]
    fn code_reaches_no_further_than_what_can_be_read() {
        let mut world = FakeWorld::new();
        let range = range(pages(0, 4));
        let at = |n| LiveAddr(page(n).start.0 + PAGE - 16);
        let part = |world: &FakeWorld, at| range.readable_part(at, 100, world).map(|r| r.span);
        assert_eq!(part(&world, at(1)), Some(pages(0, 4)));
        world.set_readable(pages(2, 4), false);
        assert_eq!(part(&world, at(1)), Some(pages(0, 2)));
        // What is far from the end is not asked about.
        assert_eq!(part(&world, page(1).start), Some(pages(0, 4)));
        assert_eq!(part(&world, at(2)), None);
        let stack = ExecRange { shared: true, ..range };
        let part = stack.readable_part(at(1), 100, &world).map(|r| r.span);
        assert_eq!(part, Some(page(1)));
    }
}
