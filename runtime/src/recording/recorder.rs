//! What one thread records: its chunk, its events, its position.
//!
//! The chunk's two streams lie in a fixed region of the thread, each ending at a guard:
//!
//! ```text
//! region: [ ... header page | memory stream | overflow ][guard][ ... control flow ][guard]
//! ```
//!
//! so that a chunk of any size can be mapped there, and only the starts move. A control-flow record
//! into the guard comes back as a fault before its unit has changed anything, and the runtime puts
//! the next chunk in place. The overflow area is part of the chunk, large enough for what one unit
//! adds, and inaccessible until a record meets it: then it is opened, and the control-flow pointer
//! goes to the guard, so that the next unit ends the chunk.
//!
//! Chunks of full size are recorded in one frame, the thread's slot, again and again, and written behind
//! the other frames when they are complete.
//!
//! Where inputs are recorded there are no streams, and no chunks: generated code counts turns in place
//! of the first pointer, and the count is an event's place ([`Recorder::open_counting`]). Where a profile is
//! recorded beside them, events of their own say the count ([`Recorder::turns`]).
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::mapping::Mapping;
use crate::base::sys;
use crate::recording::appender::{add_words, seal_header, Appender, Place};
use crate::recording::lifecycle::Phase;
use crate::recording::packer::Packer;
use crate::recording::trace_file::{is_paced, Full, Sealed, TraceFile};
use abi::event::{Event, EventRef, Position, EVENT_HEADER_SIZE, WHOLE_UNIT};
use abi::ids::StreamOff;
use abi::trace::{
    Checksum, FrameHeader, FrameKind, RegisterState, EMPTY, FRAME_MAGIC, HEADER_SIZE, PACKED,
    RECORD_DATA, RECORD_REGISTERS, REGISTER_STATE_SIZE, SEALED,
};
use core::mem::offset_of;

const MEMORY_MAX: u64 = 4 << 20;
const FLOW_MAX: u64 = 1 << 20;
/// More than one unit can ever add to a stream.
const GUARD: u64 = 64 << 10;
const REGION: u64 = MEMORY_MAX + GUARD + FLOW_MAX + GUARD;

/// At the end of the memory stream, for the unit that fills it.
const OVERFLOW: u64 = 16 << 10;

/// First chunk: header page and this much for both streams; each next one is four times as large.
const FIRST: u64 = 12 << 10;
const LARGEST: u64 = 2 << 20;
const TINY: u64 = 4 << 10;

/// Kept free in each frame of events: the loss that ends the recording is always noted.
const LOSS_SIZE: usize = EVENT_HEADER_SIZE + 8;

/// Without streams, each frame of events is twice as large as the one before.
const SMALLEST_EVENTS: u64 = 12 << 10;
const LARGEST_EVENTS: u64 = 1 << 20;

/// The thread that records, as its first event says it.
#[derive(Clone, Copy, Default)]
pub struct Identity {
    /// Dense index of the thread.
    pub index: u32,
    pub tid: u32,
    /// Index of the thread that started it.
    pub parent: u32,
}

#[derive(Default)]
pub struct Recorder {
    /// Where chunks go; there while the recorder is active.
    trace: Option<&'static TraceFile>,
    thread: Identity,
    /// Chunks of two pages.
    tiny: bool,
    /// There are no streams: the first pointer is the number of turns.
    counts: bool,
    /// The recording that `events` and the chunk belong to.
    epoch: u32,
    /// Not empty: generated code of this thread records.
    region: Mapping,
    memory_start: u64,
    flow_start: u64,
    frame: u64,
    next_size: u64,
    /// Number of the next chunk.
    seq: u32,
    /// The current buffers are those of a chunk in the file. It may have been sealed because no
    /// event could follow: then `frame` is 0, and what is stored behind its end means nothing.
    to_file: bool,
    /// The memory stream has met its overflow area: the control-flow pointer while it points to
    /// the guard.
    parked: Option<u64>,
    /// The overflow area can be written.
    overflow_is_open: bool,
    events: Option<Appender>,
    events_seq: u32,
    /// Of a ring: the first frame of the part.
    part_seq: u32,
    /// Where the current chunk is in the file.
    place: Option<Place>,
    /// The frame that full chunks are written from.
    slot: Option<Place>,
    /// What is mapped is the slot.
    in_slot: bool,
    /// Where full chunks are packed.
    packer: Packer,
    /// The unit's window where the current chunk starts.
    window: u32,
    /// Bytes of control flow of the last chunk that was kept, behind which nothing is for now. Without
    /// streams: the turns behind which nothing is any more.
    gap: Option<u64>,
    /// Bytes of events since the chunk began.
    event_bytes: u64,
    /// The chunk is to end with the next unit.
    ends: bool,
    /// The last number of turns that an event says.
    told: Option<u64>,
}

/// Buffer pointers as generated code holds them: control flow, memory.
pub type Pointers = [u64; 2];

fn checksum(parts: &[&[u64]]) -> u32 {
    let mut sum = Checksum::default();
    parts.iter().for_each(|part| add_words(&mut sum, part));
    sum.finish()
}

impl Recorder {
    pub fn active(&self) -> bool {
        self.trace.is_some()
    }

    /// Whether what is recorded is kept.
    pub fn to_file(&self) -> bool {
        if !self.counts {
            return self.active() && self.frame != 0;
        }
        let is_open =
            |trace: &TraceFile| trace.phase() == Phase::Open && trace.epoch() == self.epoch;
        self.gap.is_none() && self.trace.is_some_and(is_open)
    }

    fn has_streams(&self) -> bool {
        !self.region.is_empty()
    }

    /// Whether a fault at `address` is a full buffer.
    pub fn is_guard(&self, address: u64) -> bool {
        if !self.has_streams() {
            return false;
        }
        (REGION - GUARD..REGION).contains(&address.wrapping_sub(self.region.start()))
    }

    /// Whether a fault at `address` is a memory stream that has met its end.
    pub fn is_overflow(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.region.start());
        self.has_streams() && (MEMORY_MAX - OVERFLOW..MEMORY_MAX).contains(&offset)
    }

    /// Whether `address` is in the thread's region: a fault there is not the program's.
    pub fn is_own(&self, address: u64) -> bool {
        self.has_streams() && address.wrapping_sub(self.region.start()) < REGION
    }

    /// Opens the overflow area and parks the control-flow pointer at the guard.
    pub fn overflow(&mut self, pointers: &mut Pointers) {
        if !self.overflow_is_open {
            self.open_overflow();
        }
        if self.parked.is_none() {
            self.park(pointers);
        }
    }

    /// Makes the next unit end the chunk, if that was asked for; called between units.
    pub fn end_chunk_if_asked(&mut self, pointers: &mut Pointers) {
        if core::mem::take(&mut self.ends) && self.has_streams() && self.parked.is_none() {
            self.park(pointers);
        }
    }

    fn park(&mut self, pointers: &mut Pointers) {
        self.parked = Some(pointers[0]);
        // One byte in, so that the byte before it, where a unit may still store an outcome, is
        // part of the guard, too.
        pointers[0] = self.region.start() + REGION - GUARD + 1;
    }

    /// The control-flow pointer, if it is parked.
    pub fn parked(&self) -> Option<u64> {
        self.parked
    }

    /// Maps the end of the chunk's memory stream. (Most chunks of a process that soon ends never come to
    /// it.)
    fn open_overflow(&mut self) {
        let at = self.region.start() + MEMORY_MAX - OVERFLOW;
        // (A file that has ended may be closed, or another one be open: what comes now is kept in neither.)
        let is_there =
            |trace: &TraceFile| trace.epoch() == self.epoch && trace.phase() != Phase::Ended;
        let opened = match (self.trace.filter(|trace| is_there(trace)), self.place) {
            (Some(trace), Some(place)) => {
                let from = at - self.frame;
                trace.map_into(&mut self.region, at, place, from, OVERFLOW)
            }
            _ => self.region.put_anonymous(at, OVERFLOW, sys::PROT_READ | sys::PROT_WRITE),
        };
        if opened.is_err() {
            crate::die!("no memory for a thread's buffers");
        }
        self.overflow_is_open = true;
    }

    /// The next chunk has not come to its overflow area.
    fn close_overflow(&mut self) {
        if core::mem::take(&mut self.overflow_is_open) {
            let at = self.region.start() + MEMORY_MAX - OVERFLOW;
            if self.region.put_anonymous(at, OVERFLOW, 0).is_err() {
                crate::die!("no memory for a thread's buffers");
            }
        }
    }

    /// The last words of control flow of the current chunk, if there are any.
    pub fn last_flow(&self, pointers: &Pointers) -> &[u64] {
        const MOST: u64 = 64;
        let end = self.flow_pointer(pointers) & !7;
        let chunk = self.flow_start..=self.region.start() + REGION - GUARD;
        if !self.to_file || !chunk.contains(&end) {
            return &[];
        }
        let len = MOST.min(end - self.flow_start);
        self.region.words(end - len, len)
    }

    /// The last word of the current chunk's memory stream, if it has one.
    pub fn last_word(&self, pointers: &Pointers) -> Option<u64> {
        let last = pointers[1].checked_sub(8).filter(|&last| last >= self.memory_start)?;
        let has_one = last < self.region.start() + MEMORY_MAX && self.memory_start != 0;
        has_one.then(|| self.region.words(last, 8).first().copied()).flatten()
    }

    fn flow_pointer(&self, pointers: &Pointers) -> u64 {
        self.parked.unwrap_or(pointers[0])
    }

    /// Reserves the region and notes the start of `thread` with `registers`, before there is anything
    /// that needs it. The first chunk comes with [`Recorder::next_chunk`].
    pub fn open(
        &mut self,
        trace: &'static TraceFile,
        thread: Identity,
        registers: &RegisterState,
        tiny: bool,
    ) -> Result<(), i32> {
        self.region = Mapping::reserve(REGION)?;
        self.next_size = if tiny { TINY } else { FIRST };
        (self.trace, self.thread, self.tiny) = (Some(trace), thread, tiny);
        if trace.phase().describes() {
            self.begin(trace, registers, 0);
        }
        Ok(())
    }

    /// As [`Recorder::open`], of a thread that has no streams. Its first pointer, a count, is 0.
    pub fn open_counting(
        &mut self,
        trace: &'static TraceFile,
        thread: Identity,
        registers: &RegisterState,
        tiny: bool,
    ) {
        (self.trace, self.thread, self.tiny, self.counts) = (Some(trace), thread, tiny, true);
        if trace.phase().describes() {
            self.begin(trace, registers, 0);
        }
    }

    /// The first event of the thread in this recording, `flow` bytes (or turns) behind the start.
    fn begin(&mut self, trace: &'static TraceFile, registers: &RegisterState, flow: u64) {
        self.epoch = trace.epoch();
        if let Some(of_another) = self.events.take() {
            of_another.seal();
        }
        (self.seq, self.events_seq, self.gap, self.told) = (0, 0, None, None);
        self.part_seq = 0;
        (self.slot, self.in_slot) = (None, false);
        if self.new_events(trace, 0) {
            let Identity { tid, parent, .. } = self.thread;
            self.event_at(WHOLE_UNIT, flow, &Event::ThreadStart { tid, parent, registers });
        }
    }

    /// The thread is a process of its own, which shares the memory of this one.
    pub fn own_process(&mut self) {
        let pid = u64::from(self.thread.tid);
        self.event_at(WHOLE_UNIT, 0, &Event::OwnProcess { pid });
    }

    /// Bytes that the thread has recorded in its current chunk: control flow, memory.
    pub fn used(&self, pointers: &Pointers) -> (u64, u64) {
        (
            self.flow_pointer(pointers).wrapping_sub(self.flow_start),
            pointers[1].wrapping_sub(self.memory_start),
        )
    }

    /// Seals the current chunk, puts the next one in place and returns its pointers. `registers`
    /// are those at the unit boundary where the thread is, `window` the unit's number window.
    pub fn next_chunk(
        &mut self,
        pointers: &Pointers,
        registers: &RegisterState,
        window: u32,
    ) -> Pointers {
        self.next_chunk_at(pointers, registers, window, WHOLE_UNIT)
    }

    /// The recording was switched on or off: the current chunk, if there is one, ends `insn`
    /// instructions into its last unit, and the next one, if it is kept, begins with `registers`. The
    /// unit that follows says its whole number.
    pub fn switched(
        &mut self,
        pointers: &Pointers,
        registers: &RegisterState,
        insn: u32,
    ) -> Pointers {
        self.next_chunk_at(pointers, registers, 0, insn)
    }

    fn next_chunk_at(
        &mut self,
        pointers: &Pointers,
        registers: &RegisterState,
        window: u32,
        insn: u32,
    ) -> Pointers {
        let Some(trace) = self.trace.filter(|_| !self.counts) else { return *pointers };
        let was_recorded = self.frame != 0 || self.seq == 0;
        let end = self.used(pointers).0;
        let stayed = self.seal_chunk(pointers);
        self.parked = None;
        if let Err(errno) = stayed {
            trace.lost(errno);
        }
        // Asked once: whether this is kept, and what is said of it, must not differ.
        let phase = trace.phase();
        if phase == Phase::Open {
            if self.epoch != trace.epoch() {
                self.begin(trace, registers, 0);
            }
            let starts_late = self.seq == 0 && self.gap.is_some();
            match self.map_chunk(trace, registers, window) {
                Ok(()) => {
                    if starts_late {
                        // Not where the thread's first event says.
                        self.event_at(WHOLE_UNIT, 0, &Event::Registers(registers));
                    }
                    return [self.flow_start, self.memory_start];
                }
                Err(errno) => trace.lost(errno),
            }
        }
        if was_recorded {
            // What is lost begins behind the chunk that ended here.
            self.gap = Some(end);
            // A thread that starts in a pause has lost nothing yet.
            if self.seq > 0 || phase != Phase::Paused {
                self.loss(trace, phase, insn, end);
            }
        }
        self.discard();
        [self.flow_start, self.memory_start]
    }

    fn map_chunk(
        &mut self,
        trace: &TraceFile,
        registers: &RegisterState,
        window: u32,
    ) -> Result<(), i32> {
        let least = if self.tiny { TINY } else { FIRST };
        let size = self.next_size.min(trace.largest_chunk()).max(least);
        // The paper's split: four fifths for memory references.
        let memory = abi::layout::page_up(size / 5 * 4) + OVERFLOW;
        let flow = abi::layout::page_up(size / 5).min(FLOW_MAX);
        let split = RECORD_DATA as u64 + memory;
        let len = split + flow;
        let recycles = self.tiny || size == LARGEST.min(trace.largest_chunk()).max(least);
        let place: Place = match self.slot.filter(|slot| slot.len == len) {
            Some(slot) => slot,
            None if recycles => {
                // The first thread is read first, and at once: its chunks need little room as they are.
                if !(is_paced() && self.thread.index == 0) {
                    self.packer.prepare(len);
                }
                *self.slot.insert(trace.take_slot(len)?)
            }
            None => trace.allocate(len)?,
        };
        let frame = self.region.start() + MEMORY_MAX - split;
        let flow_at = self.region.start() + REGION - GUARD - flow;
        if !(self.in_slot && self.to_file) {
            trace.map_into(&mut self.region, frame, place, 0, split - OVERFLOW)?;
            trace.map_into(&mut self.region, flow_at, place, split, flow)?;
            self.in_slot = recycles;
        }
        self.window = window;
        let mut header = FrameHeader { frame_len: len, split, ..self.header() };
        header.header_checksum = header.fixed_checksum();
        if recycles {
            self.region.clear(flow_at, flow);
        }
        self.region.store(frame + RECORD_REGISTERS as u64, registers.to_bytes());
        trace.write_header(place.offset, &header)?;
        self.flow_start = flow_at;
        self.frame = frame;
        (self.place, self.gap) = (Some(place), None);
        (self.event_bytes, self.ends) = (0, false);
        self.memory_start = frame + RECORD_DATA as u64;
        self.close_overflow();
        self.seq += 1;
        self.to_file = true;
        if !self.tiny {
            self.next_size = (size * 4).min(LARGEST);
        }
        Ok(())
    }

    /// Of the current chunk, without lengths.
    fn header(&self) -> FrameHeader {
        FrameHeader {
            magic: FRAME_MAGIC,
            kind: FrameKind::Record as u16,
            thread: self.thread.index,
            seq: self.seq,
            window: self.window,
            ..FrameHeader::default()
        }
    }

    /// Fills the region with memory that is written again and again and read by nobody.
    fn discard(&mut self) {
        if !self.to_file && self.memory_start != 0 {
            return self.close_overflow();
        }
        self.to_file = false;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        let (memory, flow) = match self.tiny {
            true => (8192, 4096),
            false => ((LARGEST / 5 * 4) & !4095, (LARGEST / 5) & !4095),
        };
        self.memory_start = self.region.start() + MEMORY_MAX - OVERFLOW - memory;
        self.flow_start = self.region.start() + REGION - GUARD - flow;
        for (at, len) in [(self.memory_start, memory), (self.flow_start, flow)] {
            if self.region.put_anonymous(at, len, prot).is_err() {
                crate::die!("no memory for a thread's buffers");
            }
        }
        self.close_overflow();
    }

    /// Completes the current chunk. An error: the file takes no more, and the chunk, which was to make
    /// room for the next one, stays where it was recorded.
    fn seal_chunk(&mut self, pointers: &Pointers) -> Result<(), i32> {
        if !self.to_file || self.frame == 0 {
            return Ok(());
        }
        let (flow, memory) = self.used(pointers);
        // A record that was begun in the last bytes and belongs to the next chunk.
        let flow_end = self.region.start() + REGION - GUARD;
        let end = self.flow_pointer(pointers);
        let clear = (flow_end - end).min(16);
        self.region.clear(end, clear);
        // What fills the last word of the memory stream may be of a chunk before.
        let memory_end = self.memory_start + memory;
        self.region.clear(memory_end, memory_end.next_multiple_of(8) - memory_end);
        let written = self.write_out(flow, memory);
        if written != Ok(true) {
            (self.slot, self.in_slot) = (None, false);
            let checksum = checksum(&self.parts(flow, memory));
            seal_header(&mut self.region, self.frame, flow, memory, checksum);
        }
        self.frame = 0;
        if let Some(place) = self.place.take() {
            let (kind, chunk) = (FrameKind::Record, self.seq.saturating_sub(1));
            if let Some(trace) = self.trace.filter(|trace| trace.epoch() == self.epoch) {
                trace.sealed(Sealed { kind, thread: self.thread.index, chunk, place });
            }
        }
        written.map(drop)
    }

    /// Register state, memory stream and control flow of the current chunk, of which so many bytes are in
    /// use.
    fn parts(&self, flow: u64, memory: u64) -> [&[u64]; 3] {
        [
            (self.frame + RECORD_REGISTERS as u64, REGISTER_STATE_SIZE as u64),
            (self.memory_start, memory.next_multiple_of(8)),
            (self.flow_start, flow.next_multiple_of(8)),
        ]
        .map(|(at, len)| self.region.words(at, len))
    }

    /// Writes the current chunk, if it is in the slot, behind the other frames. Otherwise it stays where
    /// it is, for good.
    fn write_out(&mut self, flow: u64, memory: u64) -> Result<bool, i32> {
        let Some(trace) = self.trace.filter(|_| self.in_slot) else { return Ok(false) };
        let seq = self.seq.saturating_sub(1);
        let header = FrameHeader { used: flow, used_memory: memory, seq, ..self.header() };
        // (Not borrowed with all of `self`.)
        let mut packer = core::mem::take(&mut self.packer);
        let raw = self.parts(flow, memory);
        let chunk = match packer.pack(raw[0], raw[1], raw[2]) {
            Some(packed) => Full {
                header: FrameHeader {
                    state: PACKED,
                    split: packed.split,
                    checksum: checksum(&[packed.words]),
                    ..header
                },
                parts: [packed.words, &[]],
            },
            None => {
                let len = (RECORD_DATA - HEADER_SIZE) as u64 + memory.next_multiple_of(8);
                let first = self.region.words(self.frame + HEADER_SIZE as u64, len);
                let split = HEADER_SIZE as u64 + len;
                let header =
                    FrameHeader { state: SEALED, split, checksum: checksum(&raw), ..header };
                Full { header, parts: [first, raw[2]] }
            }
        };
        let written = trace.write_out(self.epoch, &chunk);
        self.packer = packer;
        let Some(place) = written? else { return Ok(false) };
        self.region.store(self.frame + offset_of!(FrameHeader, state) as u64, EMPTY);
        self.place = Some(place);
        Ok(true)
    }

    /// The thread's recording ends, and its slot holds nothing.
    fn give_slot_back(&mut self, trace: &TraceFile) {
        if let Some(slot) = self.slot.take() {
            trace.give_slot_back(self.epoch, slot);
        }
    }

    /// The position now: chunk and bytes of control flow.
    fn position(&self, pointers: &Pointers) -> (u32, u64) {
        (self.seq.saturating_sub(1), self.used(pointers).0)
    }

    /// Notes an event at the current position, `insn` instructions into the last unit.
    pub fn event(&mut self, pointers: &Pointers, insn: u32, event: &EventRef<'_>) {
        let Some(trace) = self.trace.filter(|trace| trace.epoch() == self.epoch) else { return };
        if self.counts {
            return self.count_event(trace, pointers[0], event);
        }
        if !self.to_file() {
            if let (Event::ThreadEnd { .. }, Some(end), Phase::Paused) =
                (event, self.gap, trace.phase())
            {
                self.event_at(WHOLE_UNIT, end, event);
            }
            return;
        }
        let (_, flow) = self.position(pointers);
        let needed = event.size() + LOSS_SIZE;
        let has_room = self.events.as_ref().is_some_and(|e| e.has_room(needed));
        if has_room || self.new_events(trace, needed as u64) {
            self.event_bytes += (needed - LOSS_SIZE) as u64;
            self.ends |= trace.ends_chunk(self.event_bytes);
            return self.event_at(insn, flow, event);
        }
        // What comes next cannot be understood without this event.
        self.loss(trace, trace.phase(), insn, flow);
        let _ = self.seal_chunk(pointers);
    }

    /// Notes that what follows happened behind so many turns, unless that is known.
    pub fn turns(&mut self, pointers: &Pointers, turns: u64) {
        if self.told != Some(turns) && self.to_file() {
            self.event(pointers, WHOLE_UNIT, &Event::Turns(turns));
            self.told = Some(turns);
        }
    }

    /// Notes an event behind so many turns. (The count does not say how far the thread has come in its
    /// unit, and need not: no instruction runs twice between two turns.)
    fn count_event(&mut self, trace: &'static TraceFile, turns: u64, event: &EventRef<'_>) {
        if self.gap.is_some() {
            return;
        }
        let needed = event.size() + LOSS_SIZE;
        let has_room = || self.events.as_ref().is_some_and(|e| e.has_room(needed));
        let phase = trace.phase();
        let kept = phase == Phase::Open && (has_room() || self.new_events(trace, needed as u64));
        if kept {
            return self.event_at(WHOLE_UNIT, turns, event);
        }
        self.loss(trace, phase, WHOLE_UNIT, turns);
        self.gap = Some(turns);
    }

    /// Notes that the thread's recording ends here, for now or for good: in `phase` nothing is kept.
    fn loss(&mut self, trace: &TraceFile, phase: Phase, insn: u32, flow: u64) {
        if let Some(loss) = trace.gap(phase) {
            // One fits always. Where more follow, room for the next one has to be made.
            let full = self.events.as_ref().is_some_and(|e| !e.has_room(2 * LOSS_SIZE));
            if full && trace.phase().describes() {
                self.new_events(trace, 0);
            }
            self.event_at(insn, flow, &loss);
        }
    }

    fn event_at(&mut self, insn: u32, flow: u64, event: &EventRef<'_>) {
        let chunk = self.seq.saturating_sub(1);
        if let Some(events) = &mut self.events {
            if events.has_room(event.size()) {
                let control_flow = StreamOff(flow);
                events.event(Position { chunk, control_flow, insn }, event);
            }
        }
    }

    /// Puts the next frame of events in place; false if there is none: the one before stays.
    fn new_events(&mut self, trace: &TraceFile, least: u64) -> bool {
        let index = self.thread.index;
        let least = match self.counts && !self.tiny {
            true => {
                let behind = self.events_seq.wrapping_sub(self.part_seq).min(16);
                least.max((SMALLEST_EVENTS << behind).min(LARGEST_EVENTS))
            }
            false => least,
        };
        match trace.new_appender(FrameKind::Events, index, self.events_seq, least) {
            Ok(new) => {
                if let Some(full) = self.events.replace(new) {
                    self.seal_events(trace, full);
                }
                self.events_seq += 1;
                true
            }
            Err(errno) => {
                trace.lost(errno);
                false
            }
        }
    }

    /// What comes next may be all that is kept of the thread: it has frames of its own.
    pub fn begin_part(&mut self) {
        if let Some(trace) = self.trace.filter(|_| self.to_file()) {
            self.part_seq = self.events_seq;
            self.new_events(trace, 0);
        }
    }

    fn seal_events(&self, trace: &TraceFile, events: Appender) {
        let place = events.place;
        events.seal();
        // The first one says which thread this is, and stays; with inputs a snapshot says that, too.
        if (self.counts || self.events_seq > 1) && self.epoch == trace.epoch() {
            let chunk = if self.counts { trace.interval() } else { self.seq.saturating_sub(1) };
            let kind = FrameKind::Events;
            trace.sealed(Sealed { kind, thread: self.thread.index, chunk, place });
        }
    }

    /// The thread ends: what it recorded is complete.
    pub fn close(&mut self, pointers: &Pointers) {
        let Some(trace) = self.trace else { return };
        // Where it stays does not matter: nothing follows.
        let _ = self.seal_chunk(pointers);
        self.give_slot_back(trace);
        if let Some(events) = self.events.take() {
            self.seal_events(trace, events);
        }
        // Generated code of this thread is over.
        self.packer.close();
        let region = core::mem::take(self).region;
        if !region.is_empty() {
            region.unmap();
        }
    }

    /// As [`Recorder::close`], and the process ends: the kernel takes the memory back.
    pub fn close_at_end(&mut self, pointers: &Pointers) {
        let _ = self.seal_chunk(pointers);
        if let Some(trace) = self.trace {
            self.give_slot_back(trace);
        }
        if let Some(events) = self.events.take() {
            events.seal_at_end();
        }
        core::mem::take(self);
    }

    /// In a forked child: the mappings of the chunk did not come along. What follows belongs to a
    /// recording that has been opened meanwhile, of thread `who`, which starts with `registers`, or
    /// is discarded. Returns the pointers; a count of turns goes on.
    pub fn forked(
        &mut self,
        pointers: &Pointers,
        who: Identity,
        registers: &RegisterState,
    ) -> Pointers {
        if !self.active() {
            return [0, 0];
        }
        if self.counts {
            let (trace, tiny) = (self.trace, self.tiny);
            *self = Recorder { trace, tiny, counts: true, thread: who, ..Recorder::default() };
            if let Some(trace) = trace.filter(|trace| trace.phase().describes()) {
                self.begin(trace, registers, pointers[0]);
            }
            return *pointers;
        }
        // Part of it is unmapped in the child.
        let _ = self.region.put_anonymous(self.region.start(), REGION, 0);
        // Its frame of events is not there, and not given back (a mapping is not, unless asked for).
        let (trace, tiny) = (self.trace, self.tiny);
        let (region, packer) =
            (core::mem::take(&mut self.region), core::mem::take(&mut self.packer));
        *self = Recorder { trace, tiny, region, packer, thread: who, ..Recorder::default() };
        self.next_size = if tiny { TINY } else { FIRST };
        if let Some(trace) = trace.filter(|trace| trace.phase().describes()) {
            self.begin(trace, registers, 0);
        }
        self.next_chunk(&[0, 0], registers, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::event::{EventHeader, Kind};
    use abi::options::Options;
    use abi::trace::PAYLOAD;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::vec::Vec;

    const REGISTERS: RegisterState = RegisterState {
        gpr: [7; 16],
        rip: 0x1000,
        rflags: 0x202,
        fs_base: 0,
        gs_base: 0,
        valid: !0,
    };

    /// An empty file that only its descriptor leads to.
    fn file() -> File {
        // SAFETY: the kernel reads the name.
        let fd = unsafe { sys::call(sys::nr::MEMFD_CREATE, &[c"trace".as_ptr() as usize, 0]) };
        // SAFETY: made just now.
        unsafe { std::os::fd::FromRawFd::from_raw_fd(fd.expect("a memory file") as i32) }
    }

    /// The events of a frame: kind, position, payload.
    type Events = Vec<(u16, Position, Vec<u8>)>;

    /// The frames of a file: kind, header, and the events of event frames.
    fn frames(file: &mut File) -> Vec<(u16, FrameHeader, Events)> {
        let mut bytes = Vec::new();
        std::io::Seek::rewind(file).expect("rewind");
        file.read_to_end(&mut bytes).expect("read");
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            if bytes[at..at + HEADER_SIZE].iter().all(|&byte| byte == 0) {
                at += 4096;
                continue;
            }
            let header = FrameHeader::from_bytes(&bytes[at..]).expect("a header");
            if header.state == EMPTY {
                at += header.frame_len as usize;
                continue;
            }
            assert_eq!(header.header_checksum, header.fixed_checksum(), "frame at {at:#x}");
            let frame = &bytes[at..at + header.frame_len as usize];
            let mut events = Vec::new();
            let mut from = PAYLOAD;
            let has_events = header.kind == FrameKind::Events as u16;
            while let Some(event) = has_events
                .then(|| EventHeader::from_bytes(&frame[from..]).expect("an event"))
                .filter(|event| event.kind != 0)
            {
                from += EVENT_HEADER_SIZE;
                events.push((
                    event.kind,
                    event.position,
                    frame[from..][..event.len as usize].to_vec(),
                ));
                from += event.len as usize;
            }
            found.push((header.kind, header, events));
            at += header.frame_len as usize;
        }
        found
    }

    fn trace() -> &'static TraceFile {
        std::boxed::Box::leak(std::boxed::Box::new(TraceFile::new(Options::default())))
    }

    /// Writes control flow as generated code does, and moves the pointer.
    fn execute(pointers: &mut Pointers, words: &[u16]) {
        for word in words {
            // SAFETY: inside the current chunk, which has kilobytes.
            unsafe { (pointers[0] as *mut u16).write_unaligned(*word) };
            pointers[0] += 2;
        }
    }

    fn numbers(frames: &[(u16, FrameHeader, Events)], kind: FrameKind) -> Vec<(u32, u64)> {
        let of_kind = frames.iter().filter(|f| f.0 == kind as u16);
        // A chunk that stays in its slot lies before those that were written from there.
        let mut numbers: Vec<_> = of_kind.map(|f| (f.1.seq, f.1.used)).collect();
        numbers.sort_unstable();
        numbers
    }

    fn kinds(frames: &[(u16, FrameHeader, Events)]) -> Vec<u16> {
        frames.iter().flat_map(|f| &f.2).map(|e| e.0).collect()
    }

    #[test]
    fn a_recording_pauses_goes_on_ends_and_is_followed_by_another() {
        let (mut first, mut second) = (file(), file());
        let trace = trace();
        assert!(trace.open(first.as_raw_fd()));
        assert!(!trace.open(second.as_raw_fd()), "one at a time");
        let mut recorder = Recorder::default();
        let who = Identity { index: 3, tid: 77, parent: 1 };
        recorder.open(trace, who, &REGISTERS, true).expect("a region");
        let mut pointers = recorder.next_chunk(&[0, 0], &REGISTERS, 0);
        execute(&mut pointers, &[16, 17, 18]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(1));

        assert!(trace.pause());
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        execute(&mut pointers, &[19; 50]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(2));
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        assert!(trace.resume());
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        execute(&mut pointers, &[20, 21]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(3));

        assert!(trace.end());
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        execute(&mut pointers, &[22; 9]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(4));

        assert!(trace.open(second.as_raw_fd()));
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        execute(&mut pointers, &[23]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(5));
        recorder.close(&pointers);
        assert!(trace.end());

        let frames_of_first = frames(&mut first);
        assert_eq!(numbers(&frames_of_first, FrameKind::Record), [(0, 6), (1, 4)]);
        let [start, fs_base, loss] =
            [Kind::ThreadStart, Kind::FsBase, Kind::Loss].map(|kind| kind as u16);
        assert_eq!(kinds(&frames_of_first), [start, fs_base, loss, fs_base]);
        let events: Vec<_> = frames_of_first.iter().flat_map(|f| &f.2).collect();
        assert_eq!(events[1].2, 1u64.to_le_bytes());
        let behind = Position { chunk: 0, control_flow: StreamOff(6), insn: WHOLE_UNIT };
        assert_eq!(events[2].1, behind, "the gap begins behind the first chunk");
        assert_eq!((events[3].1.chunk, events[3].2.as_slice()), (1, 3u64.to_le_bytes().as_slice()));

        let frames_of_second = frames(&mut second);
        assert_eq!(numbers(&frames_of_second, FrameKind::Record), [(0, 2)]);
        assert_eq!(kinds(&frames_of_second), [start, fs_base]);
    }

    /// Whoever pauses a recording does not wait for its threads.
    #[test]
    fn each_gap_is_said_however_often_others_pause_the_recording() {
        let mut file = file();
        let trace = trace();
        assert!(trace.open(file.as_raw_fd()));
        let mut recorder = Recorder::default();
        recorder.open(trace, Identity::default(), &REGISTERS, true).expect("a region");
        let mut pointers = recorder.next_chunk(&[0, 0], &REGISTERS, 0);
        let mut gaps = 0;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    trace.pause();
                    trace.resume();
                }
            });
            while gaps < 5000 {
                let was_kept = recorder.to_file();
                execute(&mut pointers, &[16]);
                pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
                gaps += usize::from(was_kept && !recorder.to_file());
            }
            done.store(true, Relaxed);
        });
        recorder.close(&pointers);
        assert!(trace.end());
        let said = kinds(&frames(&mut file)).into_iter().filter(|&kind| kind == Kind::Loss as u16);
        assert_eq!(said.count(), gaps);
    }

    #[test]
    fn without_streams_the_place_of_an_event_is_a_count() {
        let (mut of_parent, mut of_child) = (file(), file());
        let trace = trace();
        assert!(trace.open(of_parent.as_raw_fd()));
        let mut recorder = Recorder::default();
        recorder.open_counting(trace, Identity::default(), &REGISTERS, false);
        assert_eq!(recorder.next_chunk(&[0, 0], &REGISTERS, 0), [0, 0]);
        assert!(recorder.active() && recorder.to_file());
        assert!(!recorder.is_guard(0) && !recorder.is_overflow(MEMORY_MAX - 1));
        recorder.event(&[5, 0], 3, &Event::FsBase(1));
        // More than one frame.
        let bytes = [7u8; 50_000];
        let written = Event::Written { address: abi::ids::LiveAddr(1), bytes: bytes.as_slice() };
        recorder.event(&[9, 0], WHOLE_UNIT, &written);
        trace.forked(trace.hold());
        assert!(trace.open(of_child.as_raw_fd()));
        let who = Identity { index: 0, tid: 78, parent: 0 };
        assert_eq!(recorder.forked(&[9, 0], who, &REGISTERS), [9, 0], "it goes on");
        recorder.event(&[11, 0], WHOLE_UNIT, &Event::FsBase(2));
        recorder.close(&[11, 0]);
        let places = |frames: &[(u16, FrameHeader, Events)]| -> Vec<_> {
            let all = frames.iter().flat_map(|f| &f.2);
            all.map(|e| (e.0, e.1.chunk, e.1.control_flow.0, e.1.insn)).collect()
        };
        let [start, fs_base, written] =
            [Kind::ThreadStart, Kind::FsBase, Kind::Written].map(|kind| kind as u16);
        let of_parent = frames(&mut of_parent);
        assert_eq!(numbers(&of_parent, FrameKind::Record), []);
        assert_eq!(of_parent.len(), 2);
        let at = |kind, turns| (kind, 0, turns, WHOLE_UNIT);
        assert_eq!(places(&of_parent), [at(start, 0), at(fs_base, 5), at(written, 9)]);
        assert_eq!(places(&frames(&mut of_child)), [at(start, 9), at(fs_base, 11)]);
    }

    #[test]
    fn without_streams_a_loss_is_the_last_event() {
        let mut kept = file();
        let options = abi::options::RecordingOptions {
            instrument: abi::options::Instrument::Inputs,
            log_size: 4,
            ..Default::default()
        };
        let trace = std::boxed::Box::leak(std::boxed::Box::new(TraceFile::new(options.into())));
        assert!(trace.open(kept.as_raw_fd()));
        let mut recorder = Recorder::default();
        recorder.open_counting(trace, Identity::default(), &REGISTERS, false);
        for turns in 0..10_000 {
            recorder.event(&[turns, 0], WHOLE_UNIT, &Event::FsBase(turns));
        }
        assert!(!recorder.to_file());
        recorder.close(&[10_000, 0]);
        let frames = frames(&mut kept);
        let events: Vec<_> = frames.iter().flat_map(|f| &f.2).collect();
        let (last, before) = events.split_last().expect("events");
        assert_eq!(last.0, Kind::Loss as u16);
        // Behind the start and the events of the turns before it.
        assert_eq!(last.1.control_flow.0, before.len() as u64 - 1);
        assert!(before.len() > 500);
    }

    #[test]
    fn the_end_of_a_thread_is_noted_in_a_pause() {
        let mut kept = file();
        let trace = trace();
        assert!(trace.open(kept.as_raw_fd()) && trace.pause());
        let mut recorder = Recorder::default();
        recorder.open(trace, Identity::default(), &REGISTERS, true).expect("a region");
        let pointers = recorder.next_chunk(&[0, 0], &REGISTERS, 0);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(1));
        let reason = abi::event::End::Exit;
        recorder.event(&pointers, WHOLE_UNIT, &Event::ThreadEnd { reason, status: 0 });
        recorder.close(&pointers);
        let found = frames(&mut kept);
        assert_eq!(numbers(&found, FrameKind::Record), []);
        let wanted = [Kind::ThreadStart, Kind::ThreadEnd].map(|kind| kind as u16);
        assert_eq!(kinds(&found), wanted);
    }

    #[test]
    fn a_child_records_nothing_until_it_opens_a_recording() {
        let (mut of_parent, mut of_child) = (file(), file());
        let trace = trace();
        assert!(trace.open(of_parent.as_raw_fd()));
        let mut recorder = Recorder::default();
        recorder.open(trace, Identity::default(), &REGISTERS, true).expect("a region");
        let mut pointers = recorder.next_chunk(&[0, 0], &REGISTERS, 0);
        execute(&mut pointers, &[16]);
        // What a child does first.
        trace.forked(trace.hold());
        let who = Identity { index: 0, tid: 78, parent: 0 };
        pointers = recorder.forked(&pointers, who, &REGISTERS);
        execute(&mut pointers, &[17; 20]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(1));
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        assert!(trace.open(of_child.as_raw_fd()));
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        execute(&mut pointers, &[18]);
        recorder.close(&pointers);
        assert_eq!(numbers(&frames(&mut of_parent), FrameKind::Record), [(0, 0)], "still open");
        let found = frames(&mut of_child);
        assert_eq!(numbers(&found, FrameKind::Record), [(0, 2)]);
        assert_eq!(kinds(&found), [Kind::ThreadStart as u16]);
    }

    #[test]
    fn a_child_records_from_its_first_unit_on() {
        let (mut of_parent, mut of_child) = (file(), file());
        let trace = trace();
        assert!(trace.open(of_parent.as_raw_fd()));
        let mut recorder = Recorder::default();
        recorder.open(trace, Identity::default(), &REGISTERS, false).expect("a region");
        let mut pointers = recorder.next_chunk(&[0, 0], &REGISTERS, 0);
        execute(&mut pointers, &[16; 1000]);
        pointers = recorder.next_chunk(&pointers, &REGISTERS, 0);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(1));
        trace.forked(trace.hold());
        assert!(trace.open(of_child.as_raw_fd()));
        let who = Identity { index: 0, tid: 78, parent: 0 };
        pointers = recorder.forked(&pointers, who, &REGISTERS);
        execute(&mut pointers, &[18, 19]);
        recorder.event(&pointers, WHOLE_UNIT, &Event::FsBase(2));
        recorder.close(&pointers);
        let found = frames(&mut of_child);
        assert_eq!(numbers(&found, FrameKind::Record), [(0, 4)]);
        assert_eq!(kinds(&found), [Kind::ThreadStart, Kind::FsBase].map(|kind| kind as u16));
        assert!(found.iter().all(|frame| frame.1.thread == 0));
        assert_eq!(kinds(&frames(&mut of_parent)), kinds(&found));
    }
}
