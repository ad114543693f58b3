//! Tables of code outside of the program's window: a table for each 4 GiB in which the program generates code.
//!
//! They are mapped piece by piece, where code was translated. An entry that was never set is zero, as new
//! memory is, and what is looked up there comes to the runtime.

use super::map_free;
use crate::base::own::{not_in_dumps, KEPT_FREE};
use crate::base::sys::{self, nr};
use crate::code::span::Span;
use abi::ids::LiveAddr;
use abi::layout::{page_down, page_up, TableShape, FAR_TABLES, PAGE, WINDOW_SIZE};
use abi::options::{torture, Options};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};
use instrument::block::FarWindow;

/// An entry that leads nowhere.
pub const NOTHING: u64 = 0;

/// Bytes of a table that are mapped at once.
const PIECE: u64 = 8 << 20;
/// More are not mapped: what is looked up there misses by a fault.
const MOST_PIECES: usize = 4096;

/// Tables of far windows.
pub struct FarTables {
    /// There may be so many.
    most: usize,
    windows: Vec<FarWindow>,
    program_high: u32,
    miss: u64,
    /// Where mapped pieces start.
    pieces: RefCell<BTreeSet<u64>>,
}

impl FarTables {
    /// `miss`: the stub that looks up whatever has no entry.
    pub fn new(window: u64, options: Options, miss: u64) -> FarTables {
        FarTables {
            most: match options.process.torture & torture::SCATTERED {
                _ if !options.process.high_tables => 0,
                0 => FAR_TABLES.len(),
                _ => 1,
            },
            windows: Vec::new(),
            program_high: (window >> 32) as u32,
            miss,
            pieces: RefCell::default(),
        }
    }

    /// Where all such tables lie, and what lies between them.
    pub fn range() -> Range<u64> {
        let starts = FAR_TABLES.iter().map(|table| table.base);
        let ends = FAR_TABLES.iter().map(|table| table.end());
        starts.min().unwrap_or(0)..ends.max().unwrap_or(0)
    }

    /// The window that has `address`, from now on if there was none. `None`: there can be no more.
    pub fn window(&mut self, address: LiveAddr) -> Option<FarWindow> {
        let high = u32::try_from(address.0 >> 32).ok().filter(|&high| high < 1 << 16)?;
        if let Some(&known) = self.windows.iter().find(|window| window.high == high) {
            return Some(known);
        }
        let &table = FAR_TABLES.iter().take(self.most).nth(self.windows.len())?;
        let (program_high, miss) = (self.program_high, self.miss);
        let window = FarWindow { high, table, program_high, miss };
        self.windows.push(window);
        Some(window)
    }

    /// The table that has an entry at `address`.
    pub fn shape_at(&self, address: u64) -> Option<TableShape> {
        let mut shapes = self.windows.iter().map(|window| window.table);
        shapes.find(|table| (table.base..table.end()).contains(&address))
    }

    /// Maps the piece of a table with `entry`. False if it cannot be there.
    pub fn map(&self, entry: u64) -> bool {
        let pieces = &mut *self.pieces.borrow_mut();
        let piece = entry & !(PIECE - 1);
        if pieces.contains(&piece) {
            return true;
        }
        let is_full = pieces.len() == MOST_PIECES || self.shape_at(entry).is_none();
        if is_full || map_free(piece, PIECE, KEPT_FREE, -1, 0).is_err() {
            return false;
        }
        not_in_dumps(piece, PIECE);
        pieces.insert(piece)
    }

    /// What is mapped of them.
    pub fn pieces(&self) -> Vec<Range<u64>> {
        self.pieces.borrow().iter().map(|&piece| piece..piece + PIECE).collect()
    }

    /// Whether anything of them is mapped in `range`.
    pub fn has_pieces(&self, range: &Range<u64>) -> bool {
        let first = range.start.saturating_sub(PIECE - 1);
        first < range.end && self.pieces.borrow().range(first..range.end).next().is_some()
    }

    /// The entry of `address` becomes `code`.
    pub fn set(&self, address: LiveAddr, code: u64) {
        let high = address.0 >> 32;
        let Some(window) = self.windows.iter().find(|window| u64::from(window.high) == high) else {
            return;
        };
        let entry = window.table.entry_of(address.0);
        let is_there = match code {
            NOTHING => self.pieces.borrow().contains(&(entry & !(PIECE - 1))),
            _ => self.map(entry),
        };
        if is_there {
            // SAFETY: mapped; other threads read it as one word.
            unsafe { (*(entry as *const AtomicU64)).store(code, Release) };
        }
    }

    /// What lies in `span` (whole pages) misses.
    pub fn clear(&self, span: Span) {
        for window in &self.windows {
            let start = u64::from(window.high) << 32;
            let part = span.common(Span::new(start, start + WINDOW_SIZE));
            if part.is_empty() {
                continue;
            }
            let first = window.table.entry_of(part.start.0);
            let end = first + window.table.entry * part.len();
            let pieces = self.pieces.borrow();
            for &piece in pieces.range(first & !(PIECE - 1)..end) {
                const DONTNEED: usize = 4;
                // (All of `span`, and so these, are whole pages.)
                let from = page_down(first.max(piece));
                let len = page_up(end.min(piece + PIECE)) - from;
                debug_assert!(len.is_multiple_of(PAGE));
                // SAFETY: our own mapping, which is zero then; a look-up finds what was there, or nothing.
                let _ = unsafe { sys::call(nr::MADVISE, &[from as usize, len as usize, DONTNEED]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::options::{Instrument, ProcessOptions, RecordingOptions};

    #[test]
    fn what_is_generated_has_tables_in_recordings_of_inputs_and_in_replays() {
        let address = LiveAddr(0x7f00_1234_5678);
        for (instrument, replays, high_tables, most) in [
            (Instrument::Inputs, false, true, FAR_TABLES.len()),
            (Instrument::Dep, true, true, FAR_TABLES.len()),
            (Instrument::Inputs, false, false, 0),
        ] {
            let recording = RecordingOptions { instrument, ..RecordingOptions::default() };
            let process = ProcessOptions { replays, high_tables, ..ProcessOptions::default() };
            let options = Options { process, recording };
            let mut tables = FarTables::new(0, options, 0);
            let windows = (0..8).filter_map(|n| tables.window(address.plus(n * WINDOW_SIZE)));
            assert_eq!(windows.count(), most);
        }
    }

    #[test]
    fn pieces_are_known_to_their_ends() {
        let options = Options::default();
        let tables = FarTables::new(0, options, 0);
        tables.pieces.borrow_mut().insert(3 * PIECE);
        let is_it = |piece: &Range<u64>| *piece == (3 * PIECE..4 * PIECE);
        assert!(tables.pieces().len() == 1 && tables.pieces().iter().all(is_it));
        let has = |start, end| tables.has_pieces(&(start..end));
        assert!(
            has(3 * PIECE, 3 * PIECE + 1) && has(4 * PIECE - 1, 9 * PIECE) && has(0, 5 * PIECE)
        );
        assert!(!has(0, 3 * PIECE) && !has(4 * PIECE, 5 * PIECE) && !has(7, 7));
    }
}
