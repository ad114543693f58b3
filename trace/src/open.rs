//! Opens a trace: puts frames, events and units together.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::event::{xsave_from_bytes, Loss, Position, XsaveComponent, WHOLE_UNIT};
use abi::ids::{LiveAddr, OrigAddr};
use abi::options::{ControlFlow, Instrument, Options};
use abi::trace::{FrameKind, RegisterState, PROCESS, VERSION};

use crate::events::{parse, parse_outline, Event, Placed};
use crate::file::{Damage, Frame, TraceFile};
use crate::output::{OutputFile, Places};
use crate::units::Units;
use crate::Error;

/// One Record frame.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Where it is.
    pub frame: Frame,
    /// Registers with which it starts.
    pub registers: RegisterState,
}

/// A thread and its recording.
#[derive(Debug, Default)]
pub struct Thread {
    /// Dense index.
    pub index: u32,
    /// Kernel thread id, if the start of the thread is in the trace.
    pub tid: Option<u32>,
    /// By sequence number.
    pub chunks: Vec<Chunk>,
    /// In the order in which they happened.
    pub events: Vec<Placed>,
}

impl Thread {
    /// What to call the thread: its kernel id, or its index if that is not known.
    pub fn name(&self) -> u32 {
        self.tid.unwrap_or(self.index)
    }

    /// The process that the thread is by itself, if it is one: a child that shares the memory
    /// (`vfork`, `posix_spawn`).
    pub fn own_process(&self) -> Option<u64> {
        self.events.iter().find_map(|e| match e.event {
            Some(Event::OwnProcess { pid }) => Some(pid),
            _ => None,
        })
    }

    /// The chunk with this number.
    pub fn chunk(&self, seq: u32) -> Option<&Chunk> {
        let at = self.chunks.binary_search_by_key(&seq, |chunk| chunk.frame.header.seq).ok()?;
        self.chunks.get(at)
    }

    /// Events that happened in chunk `seq`.
    pub fn events_of(&self, seq: u32) -> &[Placed] {
        let start = self.events.partition_point(|e| e.position.chunk < seq);
        let end = self.events.partition_point(|e| e.position.chunk <= seq);
        &self.events[start..end]
    }
}

/// The ahead-of-time units of the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticUnits {
    /// Load address of the window.
    pub load: LiveAddr,
    /// Of the output file.
    pub identity: [u64; 2],
    /// First window of tags of the units.
    pub first_window: u32,
    /// First window of tags of the JIT.
    pub jit_window: u32,
    /// Number of units.
    pub count: u64,
}

/// How large the state is that XSAVE saves.
#[derive(Clone, Debug)]
pub struct Xsave {
    /// State components that the system has enabled.
    pub xcr0: u64,
    /// Of each component.
    pub components: Vec<XsaveComponent>,
}

/// What is said of a trace in which there is nothing ([`Trace::not_started`]).
pub const NOT_STARTED: &str = "nothing was recorded: the process ended before its first unit";

/// A trace whose frames, events and units have been read.
#[derive(Debug)]
pub struct Trace {
    /// The file.
    pub file: TraceFile,
    /// How it was recorded.
    pub options: Options,
    /// Process id.
    pub pid: u64,
    /// The process that it was forked from or started by, if the trace says so.
    pub parent: Option<u64>,
    /// When the process started, in nanoseconds since the epoch.
    pub start_ns: u64,
    /// When it ended, if the trace says so.
    pub end_ns: Option<u64>,
    /// The output file that ran.
    pub program: PathBuf,
    /// Where that file is now, once the trace was opened with it.
    pub output: PathBuf,
    /// Its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Its ahead-of-time units.
    pub statics: Option<StaticUnits>,
    /// How large the state is that XSAVE saves.
    pub xsave: Option<Xsave>,
    /// All units that the streams can name.
    pub units: Units,
    /// By their dense index.
    pub threads: Vec<Thread>,
    /// What happened to the process.
    pub process_events: Vec<Placed>,
    /// A ring of inputs: what the process was where the part begins that is kept. The last event is a
    /// SNAPSHOT. Empty: it is kept from the start.
    pub snapshot: Vec<Placed>,
    /// The recording ended before the process: what is translated later is not described.
    pub is_lossy: bool,
    /// Of the file, when the process ended; 0 if it did not.
    pub length: u64,
    /// What is damaged or missing.
    pub damage: Vec<Damage>,
    /// Which code was recorded, as text; empty: all.
    pub rules: String,
    /// The process ended before it recorded anything.
    pub not_started: bool,
    /// It has inputs and the profile of the same run. The options are those of the one that is read
    /// ([`Reading`]).
    pub both: bool,
    /// Where it is.
    pub path: PathBuf,
    /// Damage that is none if the log is a ring.
    gave_way: Vec<Damage>,
}

/// What is read of a trace that has inputs and the profile of the same run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// The streams, and the events in their places there.
    Profile,
    /// The events alone, placed by turns.
    Inputs,
    /// As [`Reading::Inputs`], without what a busy program makes most of.
    Outline,
}

/// What the frames with this thread number belong to.
pub(crate) fn owner(thread: u32) -> String {
    match thread {
        PROCESS => "the process".into(),
        thread => format!("thread {thread}"),
    }
}

impl Trace {
    /// The processes that this one has made, those that share its memory among them.
    pub fn children(&self) -> impl Iterator<Item = u64> + '_ {
        let all = self.threads.iter().flat_map(|t| &t.events);
        all.filter_map(|e| match e.event {
            Some(Event::Fork { pid }) => Some(pid),
            _ => None,
        })
    }

    /// Opens the trace; the output file is where it ran.
    pub fn open(path: &Path) -> Result<Trace, Error> {
        Trace::open_with(path, None)
    }

    /// Opens the trace without the output file: it has no ahead-of-time units, and so nothing can
    /// be recovered from its streams. If it has inputs, those are read.
    pub fn open_alone(path: &Path) -> Result<Trace, Error> {
        Ok(Trace::read(path, Reading::Inputs)?.0)
    }

    /// As [`Trace::open_alone`], without most of the program's calls, and of what they wrote: what became of the process is
    /// known, and what it used. It costs little of a trace that is long because the program makes many calls.
    pub fn open_outline(path: &Path) -> Result<Trace, Error> {
        Ok(Trace::read(path, Reading::Outline)?.0)
    }

    /// Opens the trace; the output file is looked for at `output` instead of where it ran.
    pub fn open_with(path: &Path, output: Option<&Path>) -> Result<Trace, Error> {
        Trace::open_in(path, &Places { output: output.map(Path::to_owned), ..Places::default() })
    }

    /// Opens the trace; the files that it needs are looked for in these places first.
    pub fn open_in(path: &Path, places: &Places) -> Result<Trace, Error> {
        let (mut trace, described) = Trace::read(path, Reading::Profile)?;
        if described {
            trace.open_output(places)?;
        }
        Ok(trace)
    }

    /// Reads the file; the flag says whether the process is described in it.
    fn read(path: &Path, reading: Reading) -> Result<(Trace, bool), Error> {
        let in_file = |what: &str| Error(format!("{}: {what}", path.display()));
        let file = TraceFile::open(path)?;
        let not_started = file.is_not_started();
        if file.frames.is_empty() && !not_started {
            return Err(in_file("not a trace: it has no valid frame"));
        }
        let mut trace = Trace::blank(path, file);
        let described = trace.read_frames(reading)?;
        if not_started && described.is_none() {
            trace.damage.clear();
            trace.not_started = true;
            return Ok((trace, false));
        }
        trace.take_options(described, reading)?;
        if trace.options.recording.ring {
            trace.forget_what_gave_way();
        }
        Ok((trace, true))
    }

    /// Nothing has been read yet.
    pub(crate) fn blank(path: &Path, file: TraceFile) -> Trace {
        Trace {
            options: Options::default(),
            pid: 0,
            parent: None,
            start_ns: 0,
            end_ns: None,
            program: PathBuf::new(),
            output: PathBuf::new(),
            arguments: Vec::new(),
            statics: None,
            xsave: None,
            units: Units::default(),
            threads: Vec::new(),
            process_events: Vec::new(),
            snapshot: Vec::new(),
            is_lossy: false,
            length: 0,
            damage: file.damage.clone(),
            rules: String::new(),
            not_started: false,
            gave_way: Vec::new(),
            both: false,
            path: path.to_owned(),
            file,
        }
    }

    /// Format version and options, as the trace says them.
    pub(crate) fn take_options(
        &mut self,
        described: Option<(u32, u64)>,
        reading: Reading,
    ) -> Result<(), Error> {
        let path = self.path.clone();
        let in_file = |what: &str| Error(format!("{}: {what}", path.display()));
        let trace = self;
        let Some((version, options)) = described else {
            return Err(in_file("the frame that describes the process is missing or damaged"));
        };
        if version != VERSION {
            return Err(in_file(&format!("format version {version}, this reader knows {VERSION}: read it with the dep of the deprewrite that made the program")));
        }
        trace.options = Options::from_word(options).ok_or_else(|| {
            in_file("it was recorded with options that this reader does not know")
        })?;
        if trace.options.recording.both() {
            trace.both = true;
            trace.options.recording.instrument = match reading {
                Reading::Profile => Instrument::Dep,
                Reading::Inputs | Reading::Outline => Instrument::Inputs,
            };
        }
        Ok(())
    }

    /// Reads all that is not a stream. Returns format version and options.
    fn read_frames(&mut self, reading: Reading) -> Result<Option<(u32, u64)>, Error> {
        let mut frames = self.file.frames.clone();
        frames.sort_by_key(|f| (f.kind as u16, f.header.thread, f.header.seq));
        self.find_gaps(&frames);
        let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
        let mut described = None;
        for frame in &frames {
            let thread = frame.header.thread;
            match frame.kind {
                FrameKind::Record => {
                    let registers = RegisterState::from_bytes(&self.file.registers(frame)?);
                    let chunks = &mut threads.entry(thread).or_default().chunks;
                    let again =
                        chunks.last().is_some_and(|c| c.frame.header.seq == frame.header.seq);
                    match registers {
                        Some(_) if again => {}
                        Some(registers) => chunks.push(Chunk { frame: *frame, registers }),
                        None => self.report(frame, "a chunk without registers"),
                    }
                }
                FrameKind::Units => {
                    let payload = self.payload(frame)?;
                    if let Err(what) = self.units.add_jit(&payload) {
                        self.report(frame, what);
                    }
                }
                FrameKind::Snapshot => {
                    let (events, whole) = parse(&self.payload(frame)?);
                    if !whole {
                        self.report(frame, "an event is damaged; those behind it are lost");
                    }
                    self.snapshot.extend(events);
                }
                FrameKind::File | FrameKind::Events => {
                    let payload = self.payload(frame)?;
                    let (events, whole) = match reading {
                        Reading::Outline => parse_outline(&payload),
                        Reading::Profile | Reading::Inputs => parse(&payload),
                    };
                    if !whole {
                        self.report(frame, "an event is damaged; those behind it are lost");
                    }
                    for event in events {
                        self.is_lossy |= matches!(
                            event.event,
                            Some(Event::Loss { reason, .. }) if reason != Loss::Paused
                        );
                        if let Some(Event::Process { version, options, pid, start_ns }) =
                            event.event
                        {
                            described = Some((version, options));
                            (self.pid, self.start_ns) = (pid, start_ns);
                        }
                        if thread == PROCESS || frame.kind == FrameKind::File {
                            self.process_event(event);
                        } else {
                            threads.entry(thread).or_default().events.push(event);
                        }
                    }
                }
            }
        }
        self.keep_last_snapshot();
        if self.length > self.file.len {
            let missing = self.length - self.file.len;
            let what = format!("the last {missing} bytes of the file are missing");
            self.damage.push(Damage { offset: self.file.len, what });
        }
        // Those of a recording of inputs are in the order in which they happened.
        let options = described.and_then(|(_, word)| Options::from_word(word));
        let both = options.is_some_and(|options| options.recording.both());
        let inputs = options.is_some_and(|options| options.recording.inputs());
        let inputs = inputs && (!both || reading != Reading::Profile);
        for (index, mut thread) in threads {
            thread.index = index;
            let mut states = self.snapshot.iter().filter_map(|e| match e.event {
                Some(Event::State { index: of, tid, .. }) if of == index => Some(tid),
                _ => None,
            });
            let mut starts = thread.events.iter().filter_map(|e| match e.event {
                Some(Event::ThreadStart { tid, .. }) => Some(tid),
                _ => None,
            });
            thread.tid = starts.next().or_else(|| states.next_back());
            match reading {
                _ if !both => {}
                Reading::Inputs | Reading::Outline => crate::inputs::alone(&mut thread),
                Reading::Profile => crate::inputs::without(&mut thread),
            }
            if !inputs {
                thread.events.sort_by_key(|e| e.position.place());
            }
            self.threads.push(thread);
        }
        Ok(described)
    }

    /// The payload, which is used as far as it makes sense even if its checksum is wrong.
    fn payload(&mut self, frame: &Frame) -> Result<Vec<u8>, Error> {
        let payload = self.file.payload(frame)?;
        if !self.file.checksum_holds(frame, &payload) {
            let (seq, owner) = (frame.header.seq, owner(frame.header.thread));
            let what = format!("{:?} frame {seq} of {owner}: wrong checksum", frame.kind);
            self.report(frame, &what);
        }
        Ok(payload)
    }

    /// The log is a ring: the first chunks of a thread may be gone, and their events with them, but
    /// for the first frame of events, which says which thread it is.
    fn forget_what_gave_way(&mut self) {
        let gave_way = std::mem::take(&mut self.gave_way);
        self.damage.retain(|damage| !gave_way.contains(damage));
        if self.options.recording.inputs() {
            // Its events say themselves where they belong.
            if self.options.recording.watches() {
                self.threads.retain_mut(crate::inputs::begins_in_part);
            }
            return;
        }
        for thread in &mut self.threads {
            let first = thread.chunks.first().map_or(u32::MAX, |c| c.frame.header.seq);
            thread.events.retain(|e| {
                e.position.chunk >= first || matches!(e.event, Some(Event::ThreadStart { .. }))
            });
        }
    }

    /// Forgets what thread `first` did before its chunk `chunk`, where it starts now, and all threads but
    /// those with a larger index than `above`.
    pub fn forget_before(&mut self, first: u32, chunk: u32, above: u32) {
        self.threads.retain(|thread| thread.index == first || thread.index > above);
        if let Some(thread) = self.threads.iter_mut().find(|thread| thread.index == first) {
            thread.chunks.retain(|c| c.frame.header.seq >= chunk);
            thread.events.retain(|e| {
                e.position.chunk >= chunk || matches!(e.event, Some(Event::ThreadStart { .. }))
            });
            // What it executes first begins a block.
            let starts = thread.chunks.first().map(|chunk| chunk.registers);
            for placed in &mut thread.events {
                if let (Some(Event::ThreadStart { registers, .. }), Some(now)) =
                    (&mut placed.event, starts)
                {
                    **registers = now;
                    placed.position = Position { chunk, insn: WHOLE_UNIT, ..Position::NONE };
                }
            }
        }
    }

    fn report(&mut self, frame: &Frame, what: &str) {
        self.damage.push(Damage { offset: frame.offset, what: what.to_string() });
    }

    /// `frames` are sorted by kind, thread and sequence number.
    fn find_gaps(&mut self, frames: &[Frame]) {
        let mut expected = (0, 0, 0);
        for frame in frames {
            let (kind, thread, seq) = (frame.kind as u16, frame.header.thread, frame.header.seq);
            let next = if (kind, thread) == (expected.0, expected.1) { expected.2 } else { 0 };
            if seq > next {
                let what = format!(
                    "{:?} frames {next} to {} of {} are missing",
                    frame.kind,
                    seq - 1,
                    owner(thread)
                );
                self.report(frame, &what);
                // In a ring that is as it should be.
                // (Of inputs not even the first frame of events stays.)
                let may_be = match frame.kind {
                    FrameKind::Record => next == 0,
                    FrameKind::Events if thread != PROCESS => next <= 1,
                    _ => false,
                };
                if may_be {
                    self.gave_way.extend(self.damage.last().cloned());
                }
            } else if seq < next {
                let what = format!("a second {:?} frame {seq} of {}", frame.kind, owner(thread));
                self.report(frame, &what);
            }
            expected = (kind, thread, seq.saturating_add(1));
        }
    }

    /// Of several snapshots the last one that is complete counts.
    fn keep_last_snapshot(&mut self) {
        let is_end = |e: &Placed| matches!(e.event, Some(Event::Snapshot { .. }));
        let Some(last) = self.snapshot.iter().rposition(is_end) else {
            return self.snapshot.clear();
        };
        self.snapshot.truncate(last + 1);
        let before = self.snapshot[..last].iter().rposition(is_end);
        self.snapshot.drain(..before.map_or(0, |before| before + 1));
    }

    /// A ring of inputs: number of the first stretch that is kept, if that is not the first of all.
    pub fn first_stretch(&self) -> Option<u64> {
        match self.snapshot.last().and_then(|placed| placed.event.as_ref()) {
            Some(Event::Snapshot { stretch, .. }) => Some(*stretch),
            _ => None,
        }
    }

    pub(crate) fn process_event(&mut self, placed: Placed) {
        match placed.event {
            Some(Event::Program(path)) => self.program = PathBuf::from(OsStr::from_bytes(&path)),
            Some(Event::Arguments(all)) => {
                // The padding cannot be told from empty last arguments: those are lost.
                let len = all.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                self.arguments = all[..len].split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
            }
            Some(Event::StaticUnits { load, identity, first_window, jit_window, count }) => {
                self.statics =
                    Some(StaticUnits { load, identity, first_window, jit_window, count });
            }
            Some(Event::Length(length)) => self.length = length,
            Some(Event::Parent { pid }) => self.parent = Some(pid),
            Some(Event::EndTime(time)) => self.end_ns = Some(time),
            Some(Event::Selection(text)) => {
                self.rules = String::from_utf8_lossy(&text).into_owned();
            }
            Some(Event::Xsave { xcr0, components }) => {
                let components = xsave_from_bytes(&components).collect();
                self.xsave = Some(Xsave { xcr0, components });
            }
            _ => self.process_events.push(placed),
        }
    }

    /// Whether code at this address was recorded, as far as the trace says it.
    pub fn records(&self, address: LiveAddr) -> bool {
        let mut known = false;
        for event in &self.process_events {
            let Some(Event::Selected { start, len, base, pieces }) = &event.event else {
                // What comes there later is something else.
                let gone = matches!(&event.event, Some(Event::Unmap { start, len })
                    if address.from_start(*start) < *len);
                if known && gone {
                    return true;
                }
                continue;
            };
            if address.from_start(*start) >= *len {
                continue;
            }
            known = true;
            let offset = address.from_start(*base);
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            let mut all = pieces.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
            if all.any(|(start, end)| (start..end).contains(&offset)) {
                return true;
            }
        }
        // Another mapping of the same place may have been recorded; what is in none is generated.
        !known
    }

    /// Adds the ahead-of-time units of the program and of the libraries that it mapped.
    fn open_output(&mut self, places: &Places) -> Result<(), Error> {
        let mut libraries = BTreeMap::new();
        for event in self.process_events.iter().filter_map(|placed| placed.event.as_ref()) {
            if let Event::Library { first_window, .. } = event {
                // Mapped again, it is where it was before.
                let Ok(window) = u32::try_from(*first_window) else { continue };
                libraries.entry(window).or_insert(event.clone());
            }
        }
        let embedded =
            |event: &Event| matches!(event, Event::Library { address, .. } if address.0 != 0);
        let statics = self.statics.filter(|s| s.count > 0 || libraries.values().any(embedded));
        if let Some(s) = self.statics {
            self.output = places.program(&self.program, s.identity);
        }
        if self.options.recording.inputs() {
            // There is no stream that names a unit.
            return Ok(());
        }
        let output = match statics {
            Some(s) => Some(OutputFile::open(&self.output, s.identity)?),
            None => None,
        };
        if let Some(output) = &output {
            self.add_program(output)?;
        }
        for event in libraries.values() {
            self.add_library(event, output.as_ref(), places)?;
        }
        Ok(())
    }

    /// Adds the ahead-of-time units of the program.
    pub(crate) fn add_program(&self, output: &OutputFile) -> Result<(), Error> {
        let Some(s) = self.statics.filter(|s| s.count > 0) else { return Ok(()) };
        let by_address = self.options.recording.control_flow != ControlFlow::Tags;
        let program = output.program()?;
        self.units.add_static(program, s.load, s.first_window, s.count, by_address)
    }

    /// Adds those of the library that an event names.
    pub(crate) fn add_library(
        &self,
        event: &Event,
        output: Option<&OutputFile>,
        places: &Places,
    ) -> Result<(), Error> {
        let Event::Library { load, identity, count, address, path, first_window, .. } = event
        else {
            return Ok(());
        };
        let Ok(window) = u32::try_from(*first_window) else { return Ok(()) };
        let translation = match output {
            Some(output) if *address != OrigAddr(0) => output.library(*address, *identity)?,
            _ => places.library(path, *identity)?,
        };
        let by_address = self.options.recording.control_flow != ControlFlow::Tags;
        self.units.add_static(translation, *load, window, *count, by_address)
    }
}
