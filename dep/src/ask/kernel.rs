//! What the kernel did to the program's memory, in the order in which a replay does it again: read from the
//! script, without running anything.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use abi::event::{Kind, Position};
use abi::script::{EntryHeader, ENTRY_HEADER_SIZE, HEADER_SIZE};
use abi::syscalls::{effects, find, Access};
use trace::events::Event;
use trace::Error;

/// An entry of the script.
pub struct Entry {
    /// Bytes of the entries in front of it: it has happened where more than these have.
    pub at: u64,
    /// Index of its thread.
    pub thread: u32,
    /// Turns of that thread. `None`: it belongs to what the recording begins with.
    pub turns: Option<u64>,
    pub event: Event,
}

/// Who it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    Call(u64),
    /// The frame of a signal.
    Signal(u32),
    /// For an instruction that asks the machine.
    Answer,
    /// What is there when the thread starts.
    Start,
    /// What is done when the thread ends.
    End,
    /// Nobody for this thread: it sees, of what others have stored, what it has not stored itself. Where a part of it
    /// begins anew, that is all.
    Others,
}

impl Who {
    pub fn name(&self) -> String {
        match self {
            Who::Call(number) => match find(*number) {
                Some(call) => call.name.into(),
                None => format!("syscall_{number}"),
            },
            Who::Signal(number) => format!("signal {number}"),
            Who::Answer => "instruction".into(),
            Who::Start => "start".into(),
            Who::End => "end of the thread".into(),
            Who::Others => "others".into(),
        }
    }
}

/// The kernel changed something of a range.
pub struct Effect {
    /// As of an [`Entry`].
    pub at: u64,
    pub thread: u32,
    /// Turns of all threads together.
    pub turns: u64,
    pub who: Who,
    /// Where, if the script says so.
    pub pc: Option<u64>,
    /// The bytes that it has touched.
    pub touched: Range<u64>,
    /// What they are then, if they have changed; `None`: other memory is mapped there, or none.
    pub bytes: Option<Vec<u8>>,
    /// It is sure that all of them were written.
    pub is_sure: bool,
}

/// The entries of the script at `path`.
pub fn entries(path: &Path) -> Result<impl Iterator<Item = Result<Entry, Error>>, Error> {
    let failed = |e: std::io::Error| Error(format!("the script of the replay: {e}"));
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
    file.seek(SeekFrom::Start(HEADER_SIZE as u64)).map_err(failed)?;
    let mut at = 0;
    Ok(std::iter::from_fn(move || loop {
        match next(&mut file, &mut at) {
            // Kinds that nobody knows.
            Ok(Some(None)) => {}
            Ok(Some(Some(entry))) => return Some(Ok(entry)),
            Ok(None) => return None,
            Err(e) => return Some(Err(failed(e))),
        }
    }))
}

/// The outer `None`: there is none.
fn next(file: &mut impl Read, at: &mut u64) -> Result<Option<Option<Entry>>, std::io::Error> {
    let mut header = [0; ENTRY_HEADER_SIZE];
    match file.read_exact(&mut header) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let damaged = || std::io::Error::new(ErrorKind::InvalidData, "damaged");
    let EntryHeader { thread, event } = EntryHeader::from_bytes(&header).ok_or_else(damaged)?;
    let mut payload = vec![0; event.len as usize];
    file.read_exact(&mut payload)?;
    let begin = *at;
    let size = (ENTRY_HEADER_SIZE + payload.len()) as u64;
    *at += size.next_multiple_of(8);
    std::io::copy(&mut file.take(*at - begin - size), &mut std::io::sink())?;
    let is_placed = event.position != Position::NONE;
    let turns = is_placed.then_some(event.position.control_flow.0);
    let kind = Kind::from_u16(event.kind);
    let decoded = kind.and_then(|kind| Event::decode(kind, &payload).ok());
    Ok(Some(decoded.map(|event| Entry { at: begin, thread, turns, event })))
}

/// What is written to a range.
struct Written {
    start: u64,
    bytes: Vec<u8>,
}

/// What happens to a thread.
#[derive(Default)]
struct Thread {
    turns: u64,
    /// Nothing has happened since it started.
    starts: bool,
    written: Vec<Written>,
}

/// What the kernel did to a range of memory.
pub struct Effects {
    range: Range<u64>,
    threads: BTreeMap<u32, Thread>,
    brk: u64,
    found: Vec<Effect>,
}

impl Effects {
    /// All that the script at `path` has about `range`. `brk`: where the heap begins.
    pub fn of(path: &Path, range: Range<u64>, brk: u64) -> Result<Vec<Effect>, Error> {
        let threads = BTreeMap::new();
        let mut effects = Effects { range, threads, brk, found: Vec::new() };
        for entry in entries(path)? {
            effects.add(entry?);
        }
        effects.found.sort_by_key(|effect| effect.at);
        Ok(effects.found)
    }

    fn add(&mut self, entry: Entry) {
        let Entry { at, thread, turns, event } = entry;
        // A thread in the snapshot that the recording begins with.
        if let Event::State { index, turns, .. } = event {
            self.threads.entry(index).or_default().turns = turns;
            return;
        }
        let of = self.threads.entry(thread).or_default();
        match turns {
            Some(turns) => of.turns = turns,
            // So are the contents of memory.
            None => of.starts = true,
        }
        let (who, pc) = match event {
            Event::ThreadStart { .. } => {
                of.starts = true;
                return;
            }
            Event::Written { address, bytes } => {
                let starts = of.starts;
                let written = self.range.start.max(address.0)
                    ..self.range.end.min(address.0.saturating_add(bytes.len() as u64));
                if !written.is_empty() {
                    let part =
                        (written.start - address.0) as usize..(written.end - address.0) as usize;
                    let bytes = bytes[part].to_vec();
                    of.written.push(Written { start: written.start, bytes });
                }
                if starts {
                    self.done(at, thread, Who::Start, None);
                }
                return;
            }
            Event::Seen { pc, address, bytes, .. } => {
                let touched = self.range.start.max(address.0)
                    ..self.range.end.min(address.0.saturating_add(bytes.len() as u64));
                if !touched.is_empty() {
                    let part =
                        (touched.start - address.0) as usize..(touched.end - address.0) as usize;
                    let bytes = Some(bytes[part].to_vec());
                    let (who, pc, turns) = (Who::Others, Some(pc.0), self.turns());
                    self.found.push(Effect {
                        at,
                        thread,
                        turns,
                        who,
                        pc,
                        touched,
                        bytes,
                        is_sure: true,
                    });
                }
                return self.goes_on(thread);
            }
            // What the thread has seen up to here is empty again.
            Event::Anew => {
                let (who, turns, touched) = (Who::Others, self.turns(), self.range.clone());
                let (pc, bytes, is_sure) = (None, None, true);
                self.found.push(Effect { at, thread, turns, who, pc, touched, bytes, is_sure });
                return;
            }
            Event::Mapped { .. } | Event::Runs(_) => return,
            Event::Syscall { number, arguments, result } => {
                let found = self.found.len();
                self.done(at, thread, Who::Call(number), None);
                if self.found.len() == found {
                    self.unchanged(at, thread, number, &arguments, result);
                }
                self.remapped(at, thread, number, &arguments, result);
                return self.goes_on(thread);
            }
            Event::Signal { signal, pc, .. } => (Who::Signal(signal), Some(pc.0)),
            Event::Answer { pc, .. } => (Who::Answer, Some(pc.0)),
            Event::ThreadEnd { .. } => (Who::End, None),
            _ => return self.goes_on(thread),
        };
        self.done(at, thread, who, pc);
        self.goes_on(thread);
    }

    fn goes_on(&mut self, thread: u32) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.starts = false;
        }
    }

    fn turns(&self) -> u64 {
        self.threads.values().fold(0, |sum: u64, thread| sum.wrapping_add(thread.turns))
    }

    /// With the entry at `at` the kernel has written what it has written for it, all at once.
    fn done(&mut self, at: u64, thread: u32, who: Who, pc: Option<u64>) {
        let turns = self.turns();
        let Some(of) = self.threads.get_mut(&thread) else { return };
        for Written { start, bytes } in std::mem::take(&mut of.written) {
            let touched = start..start + bytes.len() as u64;
            let (who, bytes, is_sure) = (who.clone(), Some(bytes), true);
            self.found.push(Effect { at, thread, turns, who, pc, touched, bytes, is_sure });
        }
    }

    /// A call that has written what was there already: that is not recorded, and follows from the call.
    fn unchanged(&mut self, at: u64, thread: u32, number: u64, args: &[u64; 6], result: i64) {
        let (Some(call), turns) = (find(number), self.turns()) else { return };
        let mut written = Vec::new();
        let mut add = |access, start: u64, len: u64| {
            if access == Access::Write {
                written.push(start..start.saturating_add(len));
            }
        };
        let is_sure = effects(call, args, result, &mut |_, _| false, &mut add);
        for range in written {
            let touched = self.range.start.max(range.start)..self.range.end.min(range.end);
            if !touched.is_empty() {
                let (who, pc, bytes) = (Who::Call(number), None, Some(Vec::new()));
                self.found.push(Effect { at, thread, turns, who, pc, touched, bytes, is_sure });
            }
        }
    }

    /// A call that puts other memory there, or none.
    fn remapped(&mut self, at: u64, thread: u32, number: u64, arguments: &[u64; 6], result: i64) {
        let turns = self.turns();
        for range in mapped(number, arguments, result, &mut self.brk) {
            let touched = self.range.start.max(range.start)..self.range.end.min(range.end);
            if !touched.is_empty() {
                let (who, pc, bytes, is_sure) = (Who::Call(number), None, None, true);
                self.found.push(Effect { at, thread, turns, who, pc, touched, bytes, is_sure });
            }
        }
    }
}

/// Where a call has put other memory, or none. `brk`: where the heap ends, then and behind it.
pub fn mapped(number: u64, arguments: &[u64; 6], result: i64, brk: &mut u64) -> Vec<Range<u64>> {
    const DROPS: [u64; 4] = [4, 8, 9, 24];
    const ENOMEM: i64 = -12;
    let [first, len, third, ..] = *arguments;
    let pages = |start: u64, len: u64| {
        start..start.saturating_add(len.checked_next_multiple_of(4096).unwrap_or(u64::MAX))
    };
    let Some(call) = find(number) else { return Vec::new() };
    if call.name == "madvise" && result == ENOMEM && DROPS.contains(&third) {
        // It has dropped what is in front of a hole, and behind it.
        return vec![pages(first, len)];
    }
    let Ok(address) = u64::try_from(result) else { return Vec::new() };
    match call.name {
        "mmap" => vec![pages(address, len)],
        "munmap" => vec![pages(first, len)],
        "mremap" => vec![pages(first, len), pages(address, third)],
        "madvise" if DROPS.contains(&third) => vec![pages(first, len)],
        "brk" => {
            let before = std::mem::replace(brk, address);
            let page = |at: u64| at.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
            let (start, end) = (page(before.min(address)), page(before.max(address)));
            vec![pages(start, end - start)]
        }
        _ => Vec::new(),
    }
}
