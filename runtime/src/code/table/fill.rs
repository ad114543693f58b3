//! Entries are set by the page: it is copied from the file anyway, and what follows is likely to be looked up next.

use super::{page_down, page_up, LookUps};
use crate::code::span::Span;
use crate::code::world::{For, LookUpTables};
use abi::ids::{CodeAddr, LiveAddr};
use abi::layout::PAGE;

impl LookUps {
    /// Sets `entries`, which are those of all ahead-of-time code in `span`, where all has entries.
    pub(super) fn set_all(
        &self,
        what: For,
        span: Span,
        entries: impl Iterator<Item = (LiveAddr, CodeAddr)>,
    ) {
        let whole = (span.start.0, span.end.0);
        if self.part_in_window(span) != Some(whole) {
            return entries.for_each(|(address, code)| self.set(what, address, code));
        }
        let table = self.table(what);
        let shape = table.shape;
        let pages = page_down(shape.entry_of(span.start.0))
            ..page_up(shape.entry_of(span.end.0 - 1) + shape.entry);
        for (address, code) in entries {
            self.set_entry(what, address, code);
        }
        pages.step_by(PAGE as usize).for_each(|page| self.note_written(page));
        if core::ptr::eq(table, self.looked_up_by_jumps()) {
            let entry = |target: LiveAddr| Some(table.get(target.0)).filter(|&c| c != table.miss);
            self.bound.borrow().follow(span, entry);
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use crate::base::facts::Entries;
    use crate::code::table::{write_file, Prepared};
    use abi::misses::{Misses, Stubs};
    use abi::options::{DeadRegisters, Options, ProcessOptions};
    use instrument::emit::PUTS_BACK;
    use std::vec::Vec;

    const WINDOW: u64 = 0x5600_0000_0000;
    const MISS: u64 = WINDOW + 0x123_4560;
    const RETURN_MISS: u64 = WINDOW + 0x765_4320;

    /// `prepared`: mapped from what an output has, behind a page of something else. `shared`: jumps and returns have one.
    fn tables(prepared: bool, shared: bool) -> LookUps {
        let entries = Entries {
            miss: MISS,
            far: 0,
            return_miss: RETURN_MISS,
            syscall: 0,
            exit: 0,
            refuse: 0,
            store: 0,
            arrive: 0,
            turn: 0,
            ask: 0,
            watch: 0,
            log_call: 0,
            fill: 0,
            new_thread: 0,
            handler: 0,
            restorer: 0,
        };
        let dead_registers = match shared {
            true => DeadRegisters::Reuse,
            false => DeadRegisters::Preserve,
        };
        let process =
            ProcessOptions { high_tables: true, dead_registers, ..ProcessOptions::default() };
        let options = Options { process, ..Options::default() };
        let prepared = prepared.then(|| {
            let misses = Misses::new(0, false, options).unwrap();
            let bytes = misses.bytes(Stubs { jumps: MISS, returns: RETURN_MISS }, false);
            let start = bytes.as_ptr() as u64;
            let fd = write_file(&[[start, PAGE], [start, bytes.len() as u64]]).unwrap();
            Prepared { fd, offset: PAGE, misses }
        });
        LookUps::new(WINDOW, options, entries, 0, prepared)
    }

    #[test]
    fn what_begins_there_is_found_and_all_else_misses() {
        finds(tables(false, false), MISS);
        finds(tables(true, false), MISS);
        for prepared in [false, true] {
            finds(tables(prepared, true), RETURN_MISS);
        }
    }

    fn finds(mut tables: LookUps, miss: u64) {
        let shared = !tables.puts_back;
        let code = Span::new(WINDOW + 0x40_0000, WINDOW + 0x40_4000);
        tables.cover(code);
        let kinds = [(For::Return, RETURN_MISS), (For::Jump, miss)];
        for (what, miss) in kinds.into_iter().skip(usize::from(shared)) {
            let at_once = tables.code_at_once(what);
            let span = Span::new(code.start.0 + at_once, code.start.0 + 2 * at_once);
            // Of each page, and at both ends.
            let originals = (span.start.0..span.end.0).step_by(at_once as usize / 8);
            let originals: Vec<u64> = originals.chain([span.end.0 - 1]).collect();
            let translated = |original: u64| original + 0x100_0000;
            let entries = originals.iter().map(|&o| (LiveAddr(o), CodeAddr(translated(o))));
            tables.fill(what, span, entries);
            let table = tables.table(what);
            let in_front = match what == For::Return && tables.puts_back {
                true => PUTS_BACK.len() as u64,
                false => 0,
            };
            for address in code.start.0..code.end.0 {
                let expected = match originals.contains(&address) {
                    true => translated(address) - in_front,
                    false => miss,
                };
                assert_eq!(table.get(address), expected, "{what:?} {address:#x}");
            }
            tables.sort_written();
            assert!(originals.iter().all(|&o| tables.may_be_set(table, LiveAddr(o))));
            assert!(!tables.may_be_set(table, LiveAddr(span.end.0)));
            let written: Vec<u64> = tables.written.borrow_mut().drain(..).collect();
            let first = table.shape.entry_of(span.start.0);
            assert_eq!(written, [first]);
        }
        // What has a low half with two meanings keeps on missing.
        let contested = code.start.plus(8);
        tables.contested.push(contested.0 as u32);
        let entries = [(contested, CodeAddr(WINDOW + 16)), (code.start, CodeAddr(WINDOW + 32))];
        tables.fill(For::Return, Span::new(code.start.0, code.start.0 + 64), entries.into_iter());
        let table = tables.table(For::Return);
        assert_eq!(table.get(contested.0), RETURN_MISS);
        assert_eq!(table.get(code.start.0), WINDOW + if shared { 32 } else { 24 });
        tables.uncover(code);
    }
}
