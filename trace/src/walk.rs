//! Follows one chunk: from its two streams, the events in between and the units' programs back to
//! units, blocks and memory references.

use std::collections::HashMap;
use std::ops::ControlFlow::{self, Break, Continue};

use abi::event::{End, Loss, LAST_NOT_DONE};
use abi::options;
use abi::trace::{full_pc, RegisterState};
use lifter::recompute::Known;
use lifter::regs::GprSet;

use crate::events::{Event, Placed};
use crate::open::{Chunk, Thread, Trace};
use crate::program::{compile, Exit, Program, Tells};
use crate::units::Predecessor;

mod addresses;
mod formats;

/// A memory reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryReference {
    pub pc: u64,
    pub address: u64,
    pub size: u32,
    pub write: bool,
}

/// What something is about to overwrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overwritten<'a> {
    pub pc: u64,
    pub address: u64,
    pub old: &'a [u8],
}

/// Registers at the first instruction of a procedure that was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entered {
    /// The call.
    pub pc: u64,
    /// The procedure; 0 if nothing was recorded of it.
    pub to: u64,
    pub registers: [u64; 16],
}

/// Listens to nothing.
struct Nobody;

impl Sink for Nobody {
    const REFERENCES: bool = false;
}

/// What is done with what a walk finds.
pub trait Sink {
    /// Whether references are wanted at all.
    const REFERENCES: bool;
    /// A unit starts to execute. `partial`: it may have stopped anywhere (end of an open chunk).
    fn unit(&mut self, _program: &Program, _partial: bool) {}
    /// A block starts. `uncertain`: at the start of a chunk it may continue the last block of the
    /// previous one, see [`ChunkEnd::falls_to`].
    fn block(&mut self, _pc: u64, _uncertain: bool) {}
    fn reference(&mut self, _reference: MemoryReference) {}
    /// Many references of one instruction. A sink that only counts need not look at each.
    fn references(&mut self, all: impl Iterator<Item = MemoryReference>, _count: u64) {
        all.for_each(|reference| self.reference(reference));
    }
    /// Undo log: something is about to be overwritten.
    fn store(&mut self, _store: Overwritten) {}
    /// Undo log: registers at the entry of a procedure.
    fn enter(&mut self, _entry: Entered) {}
    /// Undo log: a moment in the order of all threads. `exact`: what follows, up to
    /// [`Sink::ordered`], happens at that very moment, not behind it.
    fn order(&mut self, _number: u64, _exact: bool) {}
    /// Undo log: the instruction that [`Sink::order`] announced is done.
    fn ordered(&mut self) {}
    /// Undo log: contents were dropped (length 0: nobody knows where).
    fn lost(&mut self, _pc: u64, _start: u64, _len: u64, _why: &[u8]) {}
    /// Recording stopped here.
    fn stopped(&mut self, _reason: Loss) {}
    /// Asked now and then: whether to go on.
    fn go_on(&mut self) -> bool {
        true
    }
}

/// The trace is not what the format promises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub thread: u32,
    pub chunk: u32,
    /// Offset in the control-flow stream.
    pub control_flow: u64,
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Violation { thread, chunk, control_flow, what } = self;
        write!(f, "thread {thread}, chunk {chunk}, control-flow offset {control_flow:#x}: {what}")
    }
}

impl std::error::Error for Violation {}

/// Where a walk stood when its chunk ended.
#[derive(Clone, Debug)]
pub struct ChunkEnd {
    pub start: RegisterState,
    pub first_unit: Option<u64>,
    /// The block of the first unit was reported as uncertain.
    pub uncertain: bool,
    /// What must come next, as far as the code says.
    pub next: Next,
    /// The next unit, if it starts here, continues the last block.
    pub falls_to: Option<u64>,
    pub known: Known,
    pub fs_base: u64,
    pub units: u64,
    pub instructions: u64,
    pub control_flow_bytes: u64,
    pub memory_bytes: u64,
    /// The last unit may be incomplete (open chunk).
    pub partial: bool,
    /// The sink asked to stop.
    pub stopped: bool,
    /// The recording was lost: what follows is not described.
    pub lost: bool,
}

/// Which unit may come next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Anywhere,
    At(u64),
    Either(u64, u64),
}

impl Next {
    pub fn allows(self, address: u64) -> bool {
        match self {
            Next::Anywhere => true,
            Next::At(a) => a == address,
            Next::Either(a, b) => a == address || b == address,
        }
    }
}

/// In a window's table: not looked up yet.
const NO_PROGRAM: u32 = u32::MAX;
/// Windows that get a table (256 KiB); units of further ones are looked up by their ids.
const MAX_TABLES: usize = 256;

/// Recovers chunks of one trace, one after another; keeps compiled units.
pub struct Walker<'t> {
    trace: &'t Trace,
    programs: Vec<Program>,
    by_id: HashMap<u32, u32>,
    /// For windows in use, the program of each tag.
    tables: Vec<Box<[u32]>>,
    /// Where the table of a window is.
    windows: HashMap<u32, usize>,
    /// The last window and its table.
    current: (u32, usize),
    tells: Tells,
}

/// The mutable state of a walk through one chunk.
pub(crate) struct Cursor<'a> {
    pub(crate) known: Known,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
    pub(crate) memory: &'a [u8],
    pub(crate) memory_at: usize,
    pub(crate) held: u64,
    pub(crate) addresses: [u64; 4],
    pub(crate) masks: [u64; 8],
    pub(crate) vectors: Box<[[u8; 64]; 32]>,
    pub(crate) xsave: Option<&'a (u64, Vec<(u32, u32)>)>,
    /// The last unit ended with an indirect call, whose target is the next unit.
    pub(crate) entered: Option<Entered>,
}

impl Cursor<'_> {
    fn set(&mut self, state: &RegisterState) {
        self.known = Known { values: state.gpr, known: GprSet(state.valid as u16) };
        self.fs_base = state.fs_base;
        self.gs_base = state.gs_base;
    }
}

/// Result of looking for the next unit.
enum Found {
    Unit(u32),
    End,
}

/// Why the next unit was not found.
enum Trouble {
    /// Nothing describes it. Right where a recording was lost, and wrong anywhere else.
    Undescribed(String),
    Wrong(String),
}

impl From<String> for Trouble {
    fn from(what: String) -> Trouble {
        Trouble::Wrong(what)
    }
}

impl From<&str> for Trouble {
    fn from(what: &str) -> Trouble {
        Trouble::Wrong(what.into())
    }
}

impl<'t> Walker<'t> {
    /// A walker for `trace`. Without references it is enough to know where units lie.
    pub fn new(trace: &'t Trace) -> Walker<'t> {
        Walker {
            trace,
            programs: Vec::new(),
            by_id: HashMap::new(),
            tables: Vec::new(),
            windows: HashMap::new(),
            current: (0, usize::MAX),
            tells: match trace.options {
                options if options.recording.undo() => Tells::Stores,
                options if options.recording.records_memory() => Tells::References,
                _ => Tells::Nothing,
            },
        }
    }

    /// Walks chunk number `number` (a position in `thread.chunks`) and tells `sink`.
    pub fn walk<S: Sink>(
        &mut self,
        thread: &Thread,
        number: usize,
        sink: &mut S,
    ) -> Result<ChunkEnd, Violation> {
        let chunk = &thread.chunks[number];
        let streams =
            self.trace.file.streams(&chunk.frame, &chunk.registers).map_err(|e| Violation {
                thread: thread.name(),
                chunk: chunk.frame.header.seq,
                control_flow: 0,
                what: e.0,
            })?;
        let mut walk = Walk {
            following: thread.chunks.get(number + 1),
            chunk,
            control_flow: streams.control_flow(),
            at: 0,
            window: Some(chunk.frame.header.window).filter(|&window| window != 0),
            bits: self.trace.options.recording.control_flow == options::ControlFlow::Bits,
            started: false,
            behind: match chunk.frame.header.window {
                0 => Predecessor::None,
                window => self.trace.units.kind_of_window(window),
            },
            events: thread.events_of(chunk.frame.header.seq),
            cursor: Cursor {
                known: Known::default(),
                fs_base: 0,
                gs_base: 0,
                memory: streams.memory(),
                memory_at: 0,
                held: 0,
                addresses: [0; 4],
                masks: [0; 8],
                vectors: Box::new([[0; 64]; 32]),
                xsave: self.trace.xsave.as_ref(),
                entered: None,
            },
            end: ChunkEnd {
                start: chunk.registers,
                first_unit: None,
                uncertain: false,
                next: Next::Anywhere,
                falls_to: None,
                known: Known::default(),
                fs_base: 0,
                units: 0,
                instructions: 0,
                control_flow_bytes: 0,
                memory_bytes: 0,
                partial: false,
                stopped: false,
                lost: false,
            },
            fresh: true,
            uncertain: true,
            silent: 0,
            system: false,
            inside: false,
        };
        walk.cursor.set(&chunk.registers);
        let result = match self.trace.options.recording.control_flow {
            options::ControlFlow::Tags => walk.run(self, sink, Walk::next_tag),
            options::ControlFlow::FullPc => walk.run(self, sink, Walk::next_pc),
            options::ControlFlow::Bits => walk.run(self, sink, Walk::next_bits),
        };
        match result {
            Ok(()) => Ok(walk.finish()),
            Err(what) => Err(Violation {
                thread: thread.name(),
                chunk: chunk.frame.header.seq,
                control_flow: walk.at as u64,
                what,
            }),
        }
    }

    /// Number of the program of a unit id, compiled on first use.
    fn by_id(&mut self, id: u32) -> Result<u32, Trouble> {
        if let Some(&number) = self.by_id.get(&id) {
            return Ok(number);
        }
        let undescribed = || Trouble::Undescribed(format!("unknown unit {id:#x}"));
        let unit = self.trace.units.get(id).ok_or_else(undescribed)?;
        let program = compile(&unit, self.tells)
            .map_err(|what| format!("unit {id:#x} at {:#x}: {what}", unit.address))?;
        let number = self.programs.len() as u32;
        self.programs.push(program);
        self.by_id.insert(id, number);
        Ok(number)
    }

    #[inline]
    fn by_tag(&mut self, window: u32, tag: u16) -> Result<u32, Trouble> {
        if self.current.0 == window {
            if let Some(table) = self.tables.get(self.current.1) {
                let number = table[usize::from(tag)];
                if number != NO_PROGRAM {
                    return Ok(number);
                }
            }
        }
        self.by_other_tag(window, tag)
    }

    /// The slow path: another window, or a unit that is met for the first time.
    fn by_other_tag(&mut self, window: u32, tag: u16) -> Result<u32, Trouble> {
        let number = self.by_id(window << 16 | u32::from(tag))?;
        let table = match self.windows.get(&window) {
            Some(&table) => table,
            None if self.tables.len() >= MAX_TABLES => return Ok(number),
            None => {
                self.tables.push(vec![NO_PROGRAM; 0x1_0000].into_boxed_slice());
                self.windows.insert(window, self.tables.len() - 1);
                self.tables.len() - 1
            }
        };
        self.tables[table][usize::from(tag)] = number;
        self.current = (window, table);
        Ok(number)
    }

    fn by_word(&mut self, word: u64) -> Result<u32, Trouble> {
        let (address, version) = split(word);
        let undescribed =
            || Trouble::Undescribed(format!("no unit at {address:#x}, version {version}"));
        let id = self.trace.units.at(address, version).ok_or_else(undescribed)?;
        self.by_id(id)
    }
}

fn split(word: u64) -> (u64, u16) {
    (word & ((1 << full_pc::ADDRESS_BITS) - 1), (word >> full_pc::ADDRESS_BITS) as u16)
}

struct Walk<'a> {
    chunk: &'a Chunk,
    following: Option<&'a Chunk>,
    control_flow: &'a [u8],
    at: usize,
    window: Option<u32>,
    bits: bool,
    /// `bits`: the chunk's first unit was found.
    started: bool,
    /// `bits`: what the next unit follows.
    behind: Predecessor,
    events: &'a [Placed],
    cursor: Cursor<'a>,
    end: ChunkEnd,
    /// A block starts with the next unit.
    fresh: bool,
    /// Nothing is known about what came before.
    uncertain: bool,
    /// `bits`: units since the stream last moved.
    silent: u32,
    /// The last unit ended with a system call.
    system: bool,
    /// The last unit was left before its end.
    inside: bool,
}

/// Units in a row that add nothing to the `bits` stream; more are an endless loop.
const MAX_SILENT: u32 = 1 << 24;

impl<'a> Walk<'a> {
    fn run<S: Sink>(
        &mut self,
        walker: &mut Walker<'_>,
        sink: &mut S,
        next: impl Fn(&mut Self, &mut Walker<'_>) -> Result<Found, Trouble>,
    ) -> Result<(), String> {
        loop {
            if self.event_is_due() {
                self.boundary_events(sink);
            }
            let before = self.at;
            let number = match next(self, walker) {
                Ok(Found::Unit(number)) => number,
                Ok(Found::End) => break,
                Err(Trouble::Undescribed(_)) if walker.trace.is_lossy => {
                    self.end.lost = true;
                    return Ok(());
                }
                Err(Trouble::Undescribed(what) | Trouble::Wrong(what)) => return Err(what),
            };
            let program = &walker.programs[number as usize];
            if !self.end.next.allows(program.address) {
                self.at = before;
                return Err(format!(
                    "unit {:#x} at {:#x} cannot follow: expected {:x?}",
                    program.id, program.address, self.end.next
                ));
            }
            if self.unit(program, sink)?.is_break() {
                break;
            }
        }
        if !self.end.partial && !self.end.stopped && self.event_is_due() {
            self.boundary_events(sink);
        }
        if let Some(entered) = self.cursor.entered.take() {
            let to = self.following.map_or(0, |chunk| chunk.registers.rip);
            sink.enter(Entered { to, ..entered });
        }
        Ok(())
    }

    fn finish(self) -> ChunkEnd {
        let falls_to = match self.end.next {
            Next::At(address) if !self.fresh => Some(address),
            _ => None,
        };
        ChunkEnd {
            falls_to,
            known: self.cursor.known,
            fs_base: self.cursor.fs_base,
            control_flow_bytes: self.at as u64,
            memory_bytes: self.cursor.memory_at as u64,
            ..self.end
        }
    }

    fn event_is_due(&self) -> bool {
        self.events.first().is_some_and(|e| e.position.control_flow.0 <= self.at as u64)
    }

    /// Applies the events at the current position.
    fn boundary_events<S: Sink>(&mut self, sink: &mut S) {
        while let Some((event, rest)) = self.events.split_first() {
            if event.position.control_flow.0 > self.at as u64 || self.bits_event_is_early(event) {
                break;
            }
            self.events = rest;
            match &event.event {
                Some(Event::FsBase(base)) => self.cursor.fs_base = *base,
                Some(Event::Interrupted(state)) => self.cursor.set(state),
                Some(Event::Undo { pc, address, old }) => {
                    sink.store(Overwritten { pc: pc.0, address: address.0, old });
                }
                Some(Event::Lost { pc, start, len, why }) => sink.lost(pc.0, start.0, *len, why),
                Some(Event::Order(number)) => sink.order(*number, false),
                Some(Event::Loss { reason, .. }) => {
                    sink.stopped(*reason);
                    self.end.next = Next::Anywhere;
                    self.cursor.known.known = GprSet::EMPTY;
                    self.fresh = true;
                }
                None => {}
                Some(other) => {
                    if let Some(state) = other.goes_on_with() {
                        self.cursor.set(state);
                        self.end.next =
                            if state.rip == 0 { Next::Anywhere } else { Next::At(state.rip) };
                        let starts_block = !matches!(other, Event::Registers(_));
                        if starts_block {
                            (self.fresh, self.uncertain) = (true, false);
                        }
                    }
                }
            }
        }
    }

    /// In `bits`, units that add nothing may still come before an event at this position: before a
    /// signal those up to the interrupted pc, before what a system call does the one that ends
    /// with it, before what happens inside of a unit that unit.
    fn bits_event_is_early(&self, event: &Placed) -> bool {
        let next = match self.expected() {
            Some(next) if self.bits && self.silent < MAX_SILENT => next,
            _ => return false,
        };
        match &event.event {
            _ if event.position.is_inside() => !self.inside,
            Some(Event::Signal { pc, .. }) => next != pc.0,
            // What is left of the memory stream was recorded before.
            Some(Event::Loss { .. }) => {
                self.chunk.frame.is_sealed() && self.cursor.memory_at < self.cursor.memory.len()
            }
            Some(Event::Syscall { .. } | Event::FsBase(_) | Event::Resume(_) | Event::Exec(_)) => {
                !self.system
            }
            Some(Event::ThreadEnd { reason, .. } | Event::ProcessEnd { reason, .. }) => {
                *reason == End::Exit && !self.system
            }
            _ => false,
        }
    }

    /// Where the next unit lies, if that is known: at the start of a chunk its registers say.
    fn expected(&self) -> Option<u64> {
        let rip = self.chunk.registers.rip;
        match self.end.next {
            Next::At(address) => Some(address),
            Next::Anywhere if self.end.units == 0 && rip != 0 => Some(rip),
            _ => None,
        }
    }

    /// In `bits`, units that add nothing may still come before the one that a signal interrupted.
    fn event_is_later(&self, event: &Placed, program: &Program) -> bool {
        let pc = match &event.event {
            Some(Event::Signal { pc, .. }) => pc.0,
            Some(Event::Interrupted(state)) => state.rip,
            _ => return false,
        };
        if !self.started || !event.position.is_inside() {
            return false;
        }
        let start = program.starts.get(done_before(event.position.insn, program.starts.len() - 1));
        let at = start.map(|s| program.address.wrapping_add(u64::from(s.offset)));
        at != Some(pc) && self.silent < MAX_SILENT
    }

    /// Executes one unit.
    fn unit<S: Sink>(
        &mut self,
        program: &Program,
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let continues = match self.end.next {
            Next::At(address) => !self.fresh && address == program.address,
            _ => false,
        };
        let last = program.starts.len() - 1;
        let mut stop = last;
        let mut named = false;
        let outcome = self.claimed_outcome(program);
        if let Some(event) = self.events.first() {
            let inside = event.position.is_inside();
            let behind = self.at as u64 + if inside { outcome } else { 0 };
            named = event.position.control_flow.0 <= behind;
            if named && inside && !self.event_is_later(event, program) {
                stop = done_before(event.position.insn, last);
            }
        }
        // The last unit of a recording that just ended: nobody knows how far it came.
        let partial = !named
            && self.following.is_none()
            && !self.chunk.frame.is_sealed()
            && self.at_open_end();
        if let Some(entered) = self.cursor.entered.take() {
            sink.enter(Entered { to: program.address, ..entered });
        }
        sink.unit(program, partial);
        if !continues {
            sink.block(program.address, self.uncertain && self.end.units == 0);
        }
        if self.end.units == 0 {
            self.end.first_unit = Some(program.address);
            self.end.uncertain = self.uncertain && !continues;
        }
        self.end.units += 1;
        self.end.partial = partial;
        // The unit claimed room for all of its records when it started, however far it came.
        let claimed = program.memory_bytes as usize;
        let room = self.cursor.memory.len() - self.cursor.memory_at;
        let behind = self.cursor.memory_at + claimed.min(room);
        if partial {
            self.cursor.memory_at = behind;
            return Ok(Break(()));
        }
        self.end.instructions += stop as u64;
        let steps = &program.steps[..program.starts[stop].step as usize];
        if claimed > room {
            return Err(format!(
                "the memory stream ends inside unit {:#x} at {:#x}",
                program.id, program.address
            ));
        }
        if !S::REFERENCES {
            let inner = program.inner_blocks.iter().filter(|&&b| b < program.starts[stop].offset);
            inner.for_each(|&b| sink.block(program.address.wrapping_add(u64::from(b)), false));
        } else if self.cursor.run(program, steps, sink)?.is_break() {
            self.end.stopped = true;
            return Ok(Break(()));
        } else if let Some(Event::Interrupted(state)) =
            self.events.first().and_then(|e| e.event.as_ref()).filter(|_| stop < last)
        {
            if self.cursor.run_interrupted(program, stop, state, sink)?.is_break() {
                self.end.stopped = true;
                return Ok(Break(()));
            }
        }
        self.cursor.memory_at = behind;
        if stop < last {
            self.at += outcome as usize;
        }
        self.leave(program, stop, stop == last);
        if self.end.units & 0xfff == 0 && !sink.go_on() {
            self.end.stopped = true;
            return Ok(Break(()));
        }
        Ok(Continue(()))
    }

    /// In `bits`, a unit that ends with a conditional branch claims a byte for its outcome when it
    /// starts; it is read when the unit has come that far.
    fn claimed_outcome(&self, program: &Program) -> u64 {
        u64::from(self.started && matches!(program.exit, Exit::Branch { .. }))
    }

    fn leave(&mut self, program: &Program, stop: usize, whole: bool) {
        self.inside = !whole;
        self.system = whole && matches!(program.exit, Exit::System(_));
        self.fresh = whole && program.transfers;
        self.end.next = if !whole {
            Next::At(program.address.wrapping_add(u64::from(program.starts[stop].offset)))
        } else {
            match program.exit {
                Exit::To(address) | Exit::System(address) => Next::At(address),
                Exit::Branch { taken, not_taken } => Next::Either(taken, not_taken),
                Exit::Anywhere => Next::Anywhere,
            }
        };
    }

    fn at_open_end(&self) -> bool {
        self.control_flow[self.at..].iter().take(2).all(|&b| b == 0)
    }
}

/// Instructions of a unit of `count` that were done when an event at `insn` happened.
fn done_before(insn: u32, count: usize) -> usize {
    match insn {
        LAST_NOT_DONE => count.saturating_sub(1),
        insn => count.min(insn as usize),
    }
}
