//! What a process had mapped at any time: the memory in which its watched threads are replayed, each alone.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use abi::event::RegionKind;
use abi::ids::LiveAddr;
use trace::events::Event;
use trace::{Error, Trace};

use crate::space::Used;

const MMAP: u64 = 9;
const MPROTECT: u64 = 10;
const BRK: u64 = 12;
const MREMAP: u64 = 25;
const PKEY_MPROTECT: u64 = 329;
const READ_WRITE: u32 = 3;
const WRITE: u64 = 2;
const EXECUTE: u64 = 4;
const SHARED: u64 = 1;
const ALL_RIGHTS: u32 = 7;
const FIXED: u64 = 0x10;
const ANONYMOUS: u64 = 0x20;
const PAGE: u64 = 4096;
const ERRORS: u64 = 4095u64.wrapping_neg();

/// Memory that any thread has mapped at any time.
#[derive(Default, Debug)]
pub struct Mapped {
    /// Ends by starts; none touches another.
    ranges: Used,
    /// What was made executable at any time, of no file, or of a file, whose code may have been changed: what is executed
    /// there the thread has stored or seen, or it is as in the file.
    made: Used,
    code: Vec<Code>,
    /// The largest end of the heap.
    pub brk: u64,
}

/// Code of a file.
#[derive(Debug)]
struct Code {
    start: u64,
    len: u64,
    /// In the file.
    offset: u64,
    protection: u32,
    file: Arc<Event>,
    /// Parts of it, first bytes and first bytes behind, that something else was mapped over. A library whose first segment
    /// has code is mapped as long as all its segments are, which then come to lie over it.
    holes: Vec<(u64, u64)>,
}

impl Code {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// What is left of it, each part with the file that is mapped there and its offset in that.
    fn parts(&self) -> Vec<(u64, u64, u64, Cow<'_, Event>)> {
        let mut holes = self.holes.clone();
        holes.sort_unstable();
        let (mut at, mut parts) = (self.start, Vec::new());
        for (from, to) in holes.into_iter().chain([(self.end(), self.end())]) {
            if at < from {
                let skipped = at - self.start;
                parts.push((at, from - at, self.offset + skipped, self.file_behind(skipped)));
            }
            at = at.max(to);
        }
        parts
    }

    /// The file; if what is mapped of it was copied, the copy without its first bytes.
    fn file_behind(&self, skipped: u64) -> Cow<'_, Event> {
        let mut file = Cow::Borrowed(&*self.file);
        if skipped == 0 {
            return file;
        }
        if let Event::Mapped { contents, .. } = file.to_mut() {
            let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(contents.len());
            *contents = contents[skipped..].into();
        }
        file
    }
}

impl Mapped {
    /// Of the process whose trace is the last one, behind those of the processes that forked it. Its heap starts at `brk`.
    pub fn of(traces: &[&Trace], brk: u64) -> Result<Mapped, Error> {
        let mut mapped = Mapped { brk, ..Mapped::default() };
        for trace in traces {
            mapped.told(trace)?;
        }
        for thread in traces.iter().flat_map(|trace| &trace.threads) {
            let mut file = None;
            for event in thread.events.iter().filter_map(|placed| placed.event.as_ref()) {
                match event {
                    Event::Mapped { .. } => file = Some(event),
                    Event::Syscall { number, arguments, result } => {
                        let result = result.cast_unsigned();
                        if result < ERRORS {
                            mapped.call(*number, arguments, result, file)?;
                        }
                        file = None;
                    }
                    _ => {}
                }
            }
        }
        Ok(mapped)
    }

    /// What the trace says of calls that are not kept.
    fn told(&mut self, trace: &Trace) -> Result<(), Error> {
        let mut file = None;
        for event in trace.process_events.iter().filter_map(|placed| placed.event.as_ref()) {
            match event {
                Event::Mapped { .. } => file = Some(event),
                Event::Snapshot { brk, .. } => self.brk = self.brk.max(brk.0),
                Event::Region { start, len, offset, protection, kind } => {
                    match kind {
                        RegionKind::File => {
                            self.code(start.0, *len, *offset, *protection, file.take())?;
                        }
                        _ => {
                            self.covers(start.0, *len);
                            self.may_be_made(start.0, *len, (*protection).into());
                        }
                    }
                    self.ranges.add(start.0, *len);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        number: u64,
        arguments: &[u64; 6],
        result: u64,
        file: Option<&Event>,
    ) -> Result<(), Error> {
        let len = match number {
            MMAP => arguments[1],
            MREMAP => arguments[2],
            MPROTECT | PKEY_MPROTECT => {
                self.may_be_made(arguments[0], arguments[1], arguments[2]);
                return Ok(());
            }
            BRK => {
                self.brk = self.brk.max(result);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let len = len.next_multiple_of(PAGE);
        let was_made = self.made.iter().any(|range| (range.0..range.1).contains(&arguments[0]));
        let [_, _, rights, flags, ..] = *arguments;
        // Of a file nobody changes.
        let is_code = flags & (SHARED | ANONYMOUS) == 0 && rights & (EXECUTE | WRITE) == EXECUTE;
        match number {
            MREMAP if was_made => self.made.add(result, len),
            MMAP if !is_code => self.may_be_made(result, len, rights),
            _ => {}
        }
        if number == MMAP && is_code {
            let protection = u32::try_from(arguments[2]).unwrap_or(READ_WRITE);
            self.code(result, len, arguments[5], protection, file)?;
        } else if number == MMAP && arguments[3] & FIXED != 0 {
            self.covers(result, len);
        }
        self.ranges.add(result, len);
        Ok(())
    }

    /// Memory that is not just mapped from a file has these rights.
    fn may_be_made(&mut self, start: u64, len: u64, protection: u64) {
        if protection & EXECUTE != 0 {
            self.made.add(start, len.next_multiple_of(PAGE));
        }
    }

    fn code(
        &mut self,
        start: u64,
        len: u64,
        offset: u64,
        protection: u32,
        file: Option<&Event>,
    ) -> Result<(), Error> {
        let Some(file) = file else {
            return Err(Error("damaged: it does not say which code is mapped".into()));
        };
        let end = start.saturating_add(len);
        let meets = |code: &&Code| code.start < end && start < code.end();
        match self.code.iter().find(meets) {
            Some(known) => {
                let where_from = (known.start, known.len, known.offset);
                if where_from != (start, len, offset) || *known.file != *file {
                    return Err(Error(format!(
                        "different code was mapped at {start:#x} at different times: threads cannot be replayed alone (record with --threads serial)"
                    )));
                }
            }
            None => {
                let (file, holes) = (Arc::new(file.clone()), Vec::new());
                self.code.push(Code { start, len, offset, protection, file, holes });
            }
        }
        Ok(())
    }

    /// Something else is mapped over a part of code. (What covers all of it came when the code was of no use any more.)
    fn covers(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let has_it = |code: &&mut Code| {
            code.start <= start && end <= code.end() && len < code.len && start < end
        };
        if let Some(code) = self.code.iter_mut().find(has_it) {
            code.holes.push((start, end));
        }
    }

    /// The memory that a replay has, but for the program's own, and for `stack`, which the program begins with.
    pub fn events(&self, stack: &Range<u64>) -> Vec<Cow<'_, Event>> {
        let mut events = Vec::new();
        let region = |start: u64, len, offset, protection, kind| Event::Region {
            start: LiveAddr(start),
            len,
            offset,
            protection,
            kind,
        };
        for (start, end) in self.ranges.iter() {
            let event = region(start, end - start, 0, READ_WRITE, RegionKind::Anonymous);
            events.push(Cow::Owned(event));
        }
        let is_of_stack = |start, end| start < stack.end && stack.start < end;
        for (start, end) in self.made.iter().filter(|&(start, end)| !is_of_stack(start, end)) {
            let mut at = start;
            for (from, to) in self.ranges.iter().chain([(end, end)]) {
                let (from, to) = (from.clamp(at, end), to.clamp(at, end));
                // The program's own, or its interpreter's, or the heap, which are there already.
                if at < from {
                    let event = region(at, from - at, 0, ALL_RIGHTS, RegionKind::Program);
                    events.push(Cow::Owned(event));
                }
                if from < to {
                    let event = region(from, to - from, 0, ALL_RIGHTS, RegionKind::Anonymous);
                    events.push(Cow::Owned(event));
                }
                at = at.max(to);
            }
        }
        for code in &self.code {
            for (start, len, offset, file) in code.parts() {
                events.push(file);
                let is_made = self.made.iter().any(|made| made.0 < start + len && start < made.1);
                let protection = if is_made { ALL_RIGHTS } else { code.protection };
                let region = region(start, len, offset, protection, RegionKind::File);
                events.push(Cow::Owned(region));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &[u8]) -> Event {
        let path = b"/lib/x.so".as_slice().into();
        Event::Mapped { file: [1, 2], size: 9, changed_ns: 3, contents: contents.into(), path }
    }

    #[test]
    fn segments_lie_over_the_code_of_their_library() {
        const START: u64 = 0x7000_0000;
        let file = file(&[]);
        let mut mapped = Mapped::default();
        mapped.call(MMAP, &[0, 0x6000, 5, 2, 3, 0], START, Some(&file)).unwrap();
        // The data, and the same library once more; what covers all of it is no part of it.
        for _ in 0..2 {
            mapped.call(MMAP, &[0, 0x1000, 3, 0x12, 3, 0x4000], START + 0x4000, None).unwrap();
            mapped.call(MMAP, &[0, 0x6000, 5, 2, 3, 0], START, Some(&file)).unwrap();
            mapped.call(MMAP, &[0, 0x6000, 3, 0x12, 3, 0], START, None).unwrap();
        }
        let parts = mapped.code[0].parts();
        let places: Vec<_> =
            parts.iter().map(|(at, len, from, _)| (at - START, *len, *from)).collect();
        assert_eq!(places, [(0, 0x4000, 0), (0x5000, 0x1000, 0x5000)]);
        assert_eq!(mapped.ranges.iter().collect::<Vec<_>>(), [(START, START + 0x6000)]);
    }

    #[test]
    fn parts_of_what_was_copied_have_their_own_bytes() {
        let contents: Vec<u8> = (0..0x3000u32).map(|at| u8::try_from(at >> 12).unwrap()).collect();
        let file = file(&contents);
        let mut mapped = Mapped::default();
        mapped.call(MMAP, &[0, 0x3000, 5, 2, 3, 0x8000], 0x10000, Some(&file)).unwrap();
        mapped.call(MMAP, &[0, 0x1000, 3, 0x12, 3, 0], 0x11000, None).unwrap();
        let parts = mapped.code[0].parts();
        let firsts: Vec<_> = parts
            .iter()
            .map(|(at, len, from, file)| {
                let Event::Mapped { contents, .. } = &**file else { panic!() };
                (*at, *len, *from, contents.len(), contents[0])
            })
            .collect();
        assert_eq!(
            firsts,
            [(0x10000, 0x1000, 0x8000, 0x3000, 0), (0x12000, 0x1000, 0xa000, 0x1000, 2)]
        );
    }
}
