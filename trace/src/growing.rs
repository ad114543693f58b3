//! A trace that is read while a process writes it: each chunk once, as soon as nothing of it changes any more.
//!
//! A chunk is handed out when the one behind it is complete: by then its events are there, and the units that it
//! names are described. Frames come at the end of the file, but for those that are written again and again; so
//! what is there is looked through once, and again where it was not complete. A header that is not there yet stops that
//! until the next look; when the process has ended, what is still not there never comes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use abi::event::Loss;
use abi::ids::OrigAddr;
use abi::trace::{FrameKind, RegisterState, PAYLOAD, PROCESS};

use crate::events::{parse_some, Event, Placed};
use crate::file::{Damage, Frame, Place, TraceFile};
use crate::open::{Chunk, Reading, Trace};
use crate::output::{OutputFile, Places};
use crate::pipeline::{Job, Task};
use crate::Error;

const STEP: u64 = 4096;

/// What is known from the start: the trace without its threads. Units are added as they are described.
///
/// # Errors
/// It is no trace of this version, or its output is not the one that ran. `None`: there is nothing to read yet.
pub fn open(path: &Path, output: &Path) -> Result<Option<Trace>, Error> {
    let failed = |e: std::io::Error| Error(format!("{}: {e}", path.display()));
    if !path.exists() {
        return Ok(None);
    }
    let file = TraceFile::growing(path).map_err(failed)?;
    let Place::Frame(first, _) = file.look_at(0).map_err(failed)? else { return Ok(None) };
    // When a thread records, what describes the process is there.
    let mut at = first.header.frame_len;
    loop {
        match file.look_at(at).map_err(failed)? {
            Place::Frame(frame, _) if frame.kind == FrameKind::Record => break,
            Place::Frame(frame, _) => at += frame.header.frame_len,
            Place::Empty(len) => at += len,
            Place::Zeros | Place::NoFrame => return Ok(None),
        }
    }
    let mut trace = Trace::blank(path, file);
    let mut described = None;
    for placed in parse_some(&trace.file.payload(&first)?).0 {
        if let Some(Event::Process { version, options, pid, start_ns }) = placed.event {
            described = Some((version, options));
            (trace.pid, trace.start_ns) = (pid, start_ns);
        }
        trace.process_event(placed);
    }
    trace.take_options(described, Reading::Profile)?;
    let places = Places { output: Some(output.to_owned()), ..Places::default() };
    if let Some(s) = trace.statics {
        trace.output = places.program(&trace.program, s.identity);
        if s.count > 0 {
            trace.add_program(&OutputFile::open(&trace.output, s.identity)?)?;
        }
    }
    Ok(Some(trace))
}

/// A frame of events or units, of which more and more may be there.
struct List {
    frame: Frame,
    /// Bytes of its payload that were read.
    taken: usize,
}

/// A thread, as far as it was found and not handed out.
#[derive(Default)]
struct Growth {
    chunks: BTreeMap<u32, Chunk>,
    /// Number of the chunk that is expected next.
    next: u32,
    events: Vec<Placed>,
}

/// Who reads on.
pub struct Reader<'t> {
    trace: &'t Trace,
    places: Places,
    /// The program that ran, once a library needs it.
    output: Option<OutputFile>,
    /// Libraries that are known, by their first windows.
    libraries: HashSet<u64>,
    /// Up to here all frames were found.
    at: u64,
    /// Frames of chunks that were not complete.
    waiting: Vec<u64>,
    lists: Vec<List>,
    /// How many frames of a kind and thread were found that are no chunks, and the number of the last.
    numbers: BTreeMap<(u16, u32), (u32, u32)>,
    threads: BTreeMap<u32, Growth>,
    /// The threads of complete chunks that were found and not asked for, and whether each was written out.
    found: Vec<(u32, bool)>,
    /// Nothing comes any more.
    ended: bool,
    /// The recording ended before the process.
    pub is_lossy: bool,
    /// What is damaged or missing.
    pub damage: Vec<Damage>,
}

impl<'t> Reader<'t> {
    /// Of a trace that [`open`] has opened, with its output.
    #[must_use]
    pub fn new(trace: &'t Trace, output: PathBuf) -> Reader<'t> {
        let damage = trace.damage.clone();
        let places = Places { output: Some(output), ..Places::default() };
        Reader {
            trace,
            places,
            output: None,
            libraries: HashSet::new(),
            at: 0,
            waiting: Vec::new(),
            lists: Vec::new(),
            numbers: BTreeMap::new(),
            threads: BTreeMap::new(),
            found: Vec::new(),
            ended: false,
            is_lossy: false,
            damage,
        }
    }

    /// Looks for what was written meanwhile. `ended`: nobody writes any more.
    ///
    /// # Errors
    /// The file cannot be read, or a library's translation is not there.
    pub fn look(&mut self, ended: bool) -> Result<(), Error> {
        let path = &self.trace.path;
        let failed = |e: std::io::Error| Error(format!("{}: {e}", path.display()));
        self.ended = ended;
        // In this order: what belongs to a chunk was there before it was complete.
        for at in std::mem::take(&mut self.waiting) {
            if let Place::Frame(frame, wrong) = self.trace.file.look_at(at).map_err(failed)? {
                self.frame(frame, wrong)?;
            } else if !ended {
                self.waiting.push(at);
            }
        }
        self.find_frames(ended).map_err(failed)??;
        self.read_lists()?;
        if ended {
            self.find_gaps();
        }
        Ok(())
    }

    /// Whether events or descriptions of units are missing.
    fn find_gaps(&mut self) {
        let gaps = self.numbers.iter().filter(|(_, &(count, last))| count != last.wrapping_add(1));
        let gaps: Vec<_> = gaps.map(|(&key, &numbers)| (key, numbers)).collect();
        for ((kind, thread), (count, last)) in gaps {
            let owner = crate::open::owner(thread);
            let kind =
                FrameKind::from_u16(kind).map_or_else(String::new, |kind| format!("{kind:?}"));
            let what = format!("{kind} frames of {owner} are missing: {count} were found, the last is number {last}");
            self.report(self.at, what);
        }
        self.numbers.clear();
    }

    fn find_frames(&mut self, ended: bool) -> std::io::Result<Result<(), Error>> {
        let len = self.trace.file.length_now()?;
        let mut bad_since = None;
        while self.at < len {
            let (frame_len, frame) = match self.trace.file.look_at(self.at)? {
                Place::Zeros if ended => (STEP, None),
                Place::NoFrame if ended => {
                    bad_since.get_or_insert(self.at);
                    self.at += STEP;
                    continue;
                }
                Place::Zeros | Place::NoFrame => break,
                Place::Empty(len) => {
                    // A chunk is being written here, or will be.
                    if !ended {
                        self.waiting.push(self.at);
                    }
                    (len, None)
                }
                Place::Frame(frame, wrong) => (frame.header.frame_len, Some((frame, wrong))),
            };
            if let Some(start) = bad_since.take() {
                self.bad(start, self.at);
            }
            self.at += frame_len;
            if let Some((frame, wrong)) = frame {
                if let Err(error) = self.frame(frame, wrong) {
                    return Ok(Err(error));
                }
            }
        }
        if let Some(start) = bad_since {
            self.bad(start, len);
        }
        Ok(Ok(()))
    }

    fn bad(&mut self, start: u64, end: u64) {
        self.report(start, format!("{} bytes that are no frame", end - start));
    }

    fn report(&mut self, offset: u64, what: String) {
        self.damage.push(Damage { offset, what });
    }

    /// A frame that holds something.
    fn frame(&mut self, frame: Frame, wrong: Vec<String>) -> Result<(), Error> {
        if frame.kind != FrameKind::Record {
            wrong.into_iter().for_each(|what| self.report(frame.offset, what));
            self.lists.push(List { frame, taken: 0 });
            let numbers = self.numbers.entry((frame.kind as u16, frame.header.thread));
            let (count, last) = numbers.or_default();
            (*count, *last) = (*count + 1, frame.header.seq.max(*last));
            return Ok(());
        }
        let seq = frame.header.seq;
        if !frame.is_sealed() {
            if !self.ended {
                self.waiting.push(frame.offset);
                return Ok(());
            }
            let failed = |e: std::io::Error| Error(format!("{}: {e}", self.trace.path.display()));
            self.trace.file.keep_open(&frame).map_err(failed)?;
        }
        wrong.into_iter().for_each(|what| self.report(frame.offset, what));
        let registers = self.trace.file.registers(&frame)?;
        let Some(registers) = RegisterState::from_bytes(&registers) else {
            self.report(frame.offset, "a chunk without registers".into());
            return Ok(());
        };
        let thread = self.threads.entry(frame.header.thread).or_default();
        // In its thread's buffer and where it was written to it is the same.
        if seq >= thread.next && (frame.is_sealed() || !thread.chunks.contains_key(&seq)) {
            thread.chunks.insert(seq, Chunk { frame, registers });
            self.found.push((frame.header.thread, frame.was_written_out()));
        }
        Ok(())
    }

    /// Reads what was added to the frames of events and units.
    fn read_lists(&mut self) -> Result<(), Error> {
        let mut lists = std::mem::take(&mut self.lists);
        let mut kept = Vec::new();
        for mut list in lists.drain(..) {
            if !self.read_list(&mut list)? && !self.ended {
                kept.push(list);
            }
        }
        // What a library needs may have failed: nothing is read twice.
        kept.append(&mut self.lists);
        self.lists = kept;
        Ok(())
    }

    /// Whether nothing is added to it any more.
    fn read_list(&mut self, list: &mut List) -> Result<bool, Error> {
        let file = &self.trace.file;
        let offset = list.frame.offset;
        let now = file.look_at(offset).map_err(|e| Error(e.to_string()))?;
        if let Place::Frame(frame, _) = now {
            list.frame = frame;
        }
        let frame = list.frame;
        let sealed = frame.is_sealed();
        let at = offset + (PAYLOAD + list.taken) as u64;
        let is_list = !self.ended && !sealed;
        if is_list && file.read(at, 4)?.iter().all(|&byte| byte == 0) {
            return Ok(false);
        }
        let extent = {
            let payload = file.payload(&frame)?;
            let from = list.taken.min(payload.len());
            self.extent(frame.kind, &payload[from..])
        };
        // Read again: all that began by then is there now, whatever the order was in which it was read.
        let payload = file.payload(&frame)?;
        if sealed && !file.checksum_holds(&frame, &payload) {
            let (seq, kind) = (frame.header.seq, frame.kind);
            let owner = crate::open::owner(frame.header.thread);
            self.report(offset, format!("{kind:?} frame {seq} of {owner}: wrong checksum"));
        }
        let whole = sealed || self.ended;
        let from = list.taken.min(payload.len());
        let to = if whole { payload.len() } else { payload.len().min(from + extent) };
        list.taken += self.take(&frame, &payload[from..to], whole)?;
        Ok(sealed)
    }

    /// Bytes that whole items take.
    fn extent(&self, kind: FrameKind, payload: &[u8]) -> usize {
        if kind != FrameKind::Units {
            return parse_some(payload).1;
        }
        let mut at = 0;
        while let Ok(Some(_)) = abi::unit::JitUnit::decode(payload, &mut at) {}
        at
    }

    /// Takes items; how many bytes they have. `whole`: there are no more behind them.
    fn take(&mut self, frame: &Frame, payload: &[u8], whole: bool) -> Result<usize, Error> {
        if frame.kind == FrameKind::Units {
            let mut at = 0;
            let added = self.trace.units.add_more_jit(payload, &mut at);
            if let Err(what) = added {
                self.report(frame.offset, what.into());
            }
            return Ok(at);
        }
        let (events, taken, sound) = parse_some(payload);
        if !sound && whole {
            let what = "an event is damaged; those behind it are lost";
            self.report(frame.offset, what.into());
        }
        for placed in events {
            self.is_lossy |= matches!(
                placed.event,
                Some(Event::Loss { reason, .. }) if reason != Loss::Paused
            );
            match frame.header.thread {
                PROCESS => self.of_process(&placed)?,
                _ if frame.kind == FrameKind::File => {}
                thread => self.threads.entry(thread).or_default().events.push(placed),
            }
        }
        Ok(taken)
    }

    fn of_process(&mut self, placed: &Placed) -> Result<(), Error> {
        let Some(event @ Event::Library { first_window, address, .. }) = &placed.event else {
            return Ok(());
        };
        // Mapped again, it is where it was before.
        if !self.libraries.insert(*first_window) {
            return Ok(());
        }
        if let (None, Some(s)) = (&self.output, self.trace.statics) {
            if *address != OrigAddr(0) {
                self.output = Some(OutputFile::open(&self.trace.output, s.identity)?);
            }
        }
        self.trace.add_library(event, self.output.as_ref(), &self.places)
    }

    /// The thread of each chunk that was found since this was asked for, and whether it came from the thread's buffer
    /// ([`Frame::was_written_out`]).
    pub fn found(&mut self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.found)
    }

    /// Indexes of the threads that were found so far.
    pub fn threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.keys().copied()
    }

    /// The next chunk of a thread that nothing is added to, if there is one by now.
    pub fn next(&mut self, index: u32, name: u32) -> Option<Task<'static>> {
        let (ended, is_lossy) = (self.ended, self.is_lossy);
        let thread = self.threads.get_mut(&index)?;
        let (&seq, chunk) = thread.chunks.first_key_value()?;
        let chunk = *chunk;
        let following = thread.chunks.range(seq + 1..).next().map(|(_, chunk)| *chunk);
        // (Where one is missing the next look may find it.)
        let is_next = seq == thread.next;
        let is_followed = following.is_some_and(|chunk| chunk.frame.header.seq == seq + 1);
        let is_settled = is_next && is_followed;
        if !ended && !is_settled {
            return None;
        }
        let expected = std::mem::replace(&mut thread.next, seq + 1);
        thread.chunks.pop_first();
        let (mut events, rest) = std::mem::take(&mut thread.events)
            .into_iter()
            .filter(|placed| placed.position.chunk >= seq)
            .partition::<Vec<_>, _>(|placed| placed.position.chunk == seq);
        thread.events = rest;
        events.sort_by_key(|placed| placed.position.place());
        if !is_next {
            let owner = crate::open::owner(index);
            let what = format!("Record frames {expected} to {} of {owner} are missing", seq - 1);
            self.report(chunk.frame.offset, what);
        }
        Some(Task {
            job: Job { thread: index as usize, name, seq },
            chunk,
            following,
            events: Cow::Owned(events),
            is_lossy,
        })
    }
}
