//! The trace file: where frames come from.
//!
//! Frames are allocated at the end of the file, their blocks reserved before they are mapped, so
//! that a full disk is an error here and never a SIGBUS in generated code. All mappings are shared
//! (what is stored survives the process) and not inherited by children.

use crate::base::lock::{Forked, Lock};
use crate::base::mapping::Mapping;
use crate::base::once::Once;
use crate::base::sys::{self, nr};
use crate::recording::lifecycle::{Lifecycle, Phase};
use abi::event::{Event, EventHeader, EventRef, Loss, Position, Sink, EVENT_HEADER_SIZE};
use abi::layout::page_up;
use abi::options::Options;
use abi::trace::{crc32c, FrameHeader, FrameKind, FRAME_MAGIC, PAYLOAD, PROCESS, SEALED};
use alloc::collections::VecDeque;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// The trace of a process: the file that threads take frames of, and how far its recording is.
pub struct TraceFile {
    life: Lifecycle,
    pub fd: AtomicI32,
    state: Lock<Frames>,
    /// What ended the recording: reason, and errno in the upper half. 0: nothing.
    loss: AtomicU64,
    /// The recording is switched off: it pauses, whoever wants it to go on.
    off: AtomicBool,
    /// Chunks that were begun; only counted for torture.
    chunks: AtomicU32,
    /// Most bytes of the threads' frames.
    limit: u64,
    ring: bool,
}

struct Frames {
    end: u64,
    /// The File frame, where room for a last word is kept.
    file: Option<Appender>,
    units: Option<Appender>,
    units_seq: u32,
    events: Option<Appender>,
    events_seq: u32,
    /// Bytes of the threads' frames that are in the file.
    log: u64,
    /// Those of them that are complete, the oldest first; only kept for a ring.
    sealed: VecDeque<Sealed>,
}

impl Frames {
    /// Of a file that is empty, or not there.
    const fn new() -> Frames {
        Frames {
            end: 0,
            file: None,
            units: None,
            units_seq: 0,
            events: None,
            events_seq: 0,
            log: 0,
            sealed: VecDeque::new(),
        }
    }
}

/// A complete frame of a thread.
#[derive(Clone, Copy)]
pub struct Sealed {
    pub kind: FrameKind,
    pub thread: u32,
    /// Its number, or that of the last chunk that its events belong to.
    pub chunk: u32,
    pub place: Place,
}

/// A mapped frame that small items are appended to.
pub struct Appender {
    memory: Mapping,
    used: u64,
    pub place: Place,
}

/// A frame in the file.
#[derive(Clone, Copy)]
pub struct Place {
    pub offset: u64,
    pub len: u64,
}

/// In place of an errno: the size that was asked for when rewriting is used up.
const LOG_FULL: i32 = 0x1000;
const SMALL_FRAME: u64 = 16 << 10;
const UNITS_FRAME: u64 = 256 << 10;

static TRACE: Once<TraceFile> = Once::new();

/// Puts the trace in place.
pub fn install(trace: TraceFile) {
    TRACE.install(trace);
}

/// The trace of this process.
pub fn trace() -> &'static TraceFile {
    TRACE.get()
}

impl TraceFile {
    /// A recording with these options that has no file.
    pub fn new(options: Options) -> TraceFile {
        TraceFile {
            limit: options.recording.log_bytes().unwrap_or(u64::MAX),
            ring: options.recording.ring,
            life: Lifecycle::new(options.recording.records()),
            fd: AtomicI32::new(-1),
            state: Lock::new(Frames::new()),
            loss: AtomicU64::new(0),
            off: AtomicBool::new(false),
            chunks: AtomicU32::new(0),
        }
    }

    /// Opens the recording: frames go to the empty file `fd` from now on. False if there is one
    /// already.
    pub fn open(&self, fd: i32) -> bool {
        let mut state = self.state.lock();
        if !matches!(self.phase(), Phase::Closed | Phase::Ended) {
            return false;
        }
        *state = Frames::new();
        self.loss.store(0, Release);
        self.fd.store(fd, Release);
        let opened = self.life.open();
        if self.off.load(Acquire) {
            self.life.pause();
        }
        opened
    }

    /// The recording is switched off, and pauses from here on, or it is switched on.
    pub fn set_off(&self, off: bool) {
        self.off.store(off, Release);
        let _ = if off { self.life.pause() } else { self.life.resume() };
    }

    pub fn phase(&self) -> Phase {
        self.life.phase()
    }

    /// Which recording of the process it is: what a thread has in hand belongs to one of them.
    pub fn epoch(&self) -> u32 {
        self.life.epoch()
    }

    /// What threads record is discarded from their next chunk on, until [`TraceFile::resume`].
    pub fn pause(&self) -> bool {
        self.life.pause()
    }

    /// What threads record is kept again from their next chunk on.
    pub fn resume(&self) -> bool {
        !self.off.load(Acquire) && self.life.resume()
    }

    /// Torture: every other chunk of the process is not kept.
    pub fn pause_now_and_then(&self) {
        match self.chunks.fetch_add(1, Relaxed) % 4 {
            1 => self.pause(),
            2 => self.resume(),
            _ => return,
        };
    }

    /// In a forked child: the lock's holder is not there, and neither are the mapped frames.
    pub fn forked(&self, forked: &Forked) {
        self.life.forked();
        self.state.force_unlock(forked);
        // Its holder may have been in the midst of changing what is there: it is not dropped.
        core::mem::forget(core::mem::replace(&mut *self.state.lock(), Frames::new()));
        self.fd.store(-1, Relaxed);
        self.loss.store(0, Relaxed);
    }

    /// Reserves a frame of `len` bytes (a multiple of 4096) for a thread, at the end of the file.
    pub fn allocate(&self, len: u64) -> Result<Place, i32> {
        let mut state = self.state.lock();
        self.make_room(&mut state, len)?;
        let place = self.allocate_locked(&mut state, len)?;
        state.log += len;
        Ok(place)
    }

    /// Largest chunk that leaves a ring more than one.
    pub fn largest_chunk(&self) -> u64 {
        self.limit / 8
    }

    /// Whether events of this many bytes in one chunk should end it: a ring gives chunks up whole.
    pub fn ends_chunk(&self, events: u64) -> bool {
        self.ring && events > self.limit / 8
    }

    /// Sees that `len` more bytes keep the log within its size. The chunks that are being written
    /// stay, whatever their size.
    fn make_room(&self, state: &mut Frames, len: u64) -> Result<(), i32> {
        while state.log + len > self.limit {
            if !self.ring {
                return Err(LOG_FULL);
            }
            let oldest = state.sealed.iter().position(|s| s.kind == FrameKind::Record);
            let Some(chunk) = oldest.and_then(|i| state.sealed.remove(i)) else { break };
            self.drop_frame(state, &chunk)?;
            let mut i = 0;
            while i < state.sealed.len() {
                let s = state.sealed[i];
                let events = s.kind == FrameKind::Events;
                if events && s.thread == chunk.thread && s.chunk <= chunk.chunk {
                    state.sealed.remove(i);
                    self.drop_frame(state, &s)?;
                } else {
                    i += 1;
                }
            }
        }
        Ok(())
    }

    /// Gives a frame's blocks back; it reads as zeros from then on.
    fn drop_frame(&self, state: &mut Frames, frame: &Sealed) -> Result<(), i32> {
        const PUNCH_HOLE_KEEP_SIZE: usize = 3;
        let (fd, place) = (self.fd.load(Relaxed) as usize, frame.place);
        let args = [fd, PUNCH_HOLE_KEEP_SIZE, place.offset as usize, place.len as usize];
        // SAFETY: no memory involved.
        unsafe { sys::call(nr::FALLOCATE, &args) }?;
        state.log -= place.len;
        Ok(())
    }

    /// A thread's frame is complete.
    pub fn sealed(&self, frame: Sealed) {
        if self.ring {
            self.state.lock().sealed.push_back(frame);
        }
    }

    fn allocate_locked(&self, state: &mut Frames, len: u64) -> Result<Place, i32> {
        if !self.phase().describes() {
            return Err(sys::EBADF);
        }
        let offset = state.end;
        // The kernel answers growth beyond the limit with SIGXFSZ, which would reach the program.
        if offset + len > sys::limit(sys::RLIMIT_FSIZE) {
            return Err(sys::EFBIG);
        }
        let fd = self.fd.load(Relaxed) as usize;
        // SAFETY: no memory involved.
        let reserved = unsafe { sys::call(nr::FALLOCATE, &[fd, 0, offset as usize, len as usize]) };
        match reserved {
            Ok(_) => {}
            Err(sys::EINTR) => return self.allocate_locked(state, len),
            Err(sys::EOPNOTSUPP) => self.write_zeros(offset, len)?,
            Err(errno) => return Err(errno),
        }
        state.end = offset + len;
        Ok(Place { offset, len })
    }

    fn write_zeros(&self, offset: u64, len: u64) -> Result<(), i32> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let fd = self.fd.load(Relaxed) as usize;
        let mut done = 0;
        while done < len {
            let args = [fd, ZEROS.as_ptr() as usize, 4096, (offset + done) as usize];
            // SAFETY: the kernel only reads the zeros.
            match unsafe { sys::call(nr::PWRITE64, &args) } {
                Ok(n) if n > 0 => done += n as u64,
                Ok(_) => return Err(28),
                Err(sys::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Maps part of a frame in place of what is at `at` in `region`.
    pub fn map_into(
        &self,
        region: &mut Mapping,
        at: u64,
        place: Place,
        from: u64,
        len: u64,
    ) -> Result<(), i32> {
        region.put_file(at, len, self.fd.load(Relaxed), place.offset + from)
    }

    /// Keeps the File frame, in which a loss can be noted when there is no room anywhere else.
    pub fn keep(&self, file: Appender) {
        self.state.lock().file = Some(file);
    }

    /// Why what a thread records is not kept, if that is worth an event: the recording was lost, or
    /// pauses.
    pub fn gap(&self) -> Option<EventRef<'static>> {
        let paused = Event::Loss { reason: Loss::Paused, errno: 0 };
        self.loss().or_else(|| (self.phase() == Phase::Paused).then_some(paused))
    }

    /// What ended the recording.
    fn loss(&self) -> Option<EventRef<'static>> {
        let loss = Some(self.loss.load(Acquire)).filter(|&loss| loss != 0)?;
        Some(Event::Loss { reason: Loss::from_u32(loss as u32), errno: (loss >> 32) as u32 })
    }

    /// Says and notes once that recording has stopped, and why; from now on everything is
    /// discarded, and what is translated is not described any more.
    pub fn lost(&self, errno: i32) {
        if !self.phase().describes() {
            // It has ended, or was lost before.
            return;
        }
        let (reason, text) = match errno {
            28 | 122 => (Loss::DiskFull, "no space left for the trace"),
            LOG_FULL => (Loss::LogFull, "the log is full"),
            sys::EFBIG => (Loss::FileSizeLimit, "the trace has reached the file size limit"),
            sys::ENOMEM => (Loss::NoMemory, "no memory to map the trace"),
            _ => (Loss::IoError, "the trace cannot be written"),
        };
        let shown = if errno == LOG_FULL { 0 } else { errno as u32 };
        let loss = u64::from(reason.to_u32()) | u64::from(shown) << 32;
        if self.loss.compare_exchange(0, loss, AcqRel, Relaxed).is_ok() {
            if let Some(file) = &mut self.state.lock().file {
                file.event(Position::NONE, &Event::Loss { reason, errno: shown });
            }
            match errno {
                LOG_FULL => crate::say!("{text}: the rest of this run is not recorded"),
                _ => crate::say!("{text} (error {errno}): the rest of this run is not recorded"),
            }
        }
        self.life.lose();
    }

    /// A frame for small items, mapped and with its header written.
    pub fn new_appender(
        &self,
        kind: FrameKind,
        thread: u32,
        seq: u32,
        least: u64,
    ) -> Result<Appender, i32> {
        let mut state = self.state.lock();
        let len = frame_len(kind, least);
        if thread != PROCESS {
            self.make_room(&mut state, len)?;
        }
        let appender = self.appender_locked(&mut state, kind, thread, seq, least)?;
        if thread != PROCESS {
            state.log += len;
        }
        Ok(appender)
    }

    fn appender_locked(
        &self,
        state: &mut Frames,
        kind: FrameKind,
        thread: u32,
        seq: u32,
        least: u64,
    ) -> Result<Appender, i32> {
        let len = frame_len(kind, least);
        let place = self.allocate_locked(state, len)?;
        let mut memory = Mapping::of_file(len, self.fd.load(Relaxed), place.offset)?;
        let mut header = FrameHeader {
            magic: FRAME_MAGIC,
            kind: kind as u16,
            thread,
            seq,
            frame_len: len,
            ..FrameHeader::default()
        };
        header.header_checksum = header.fixed_checksum();
        memory.store(memory.start(), header.to_bytes());
        Ok(Appender { memory, used: 0, place })
    }

    /// Appends the description of a unit of the JIT. It is in the file when this returns.
    pub fn add_units(&self, bytes: &[u8]) {
        if !self.phase().describes() {
            return;
        }
        let mut state = self.state.lock();
        if state.units.as_ref().is_none_or(|u| !u.has_room(bytes.len())) {
            if let Some(full) = state.units.take() {
                full.seal();
            }
            let seq = state.units_seq;
            match self.appender_locked(
                &mut state,
                FrameKind::Units,
                PROCESS,
                seq,
                bytes.len() as u64,
            ) {
                Ok(new) => {
                    state.units = Some(new);
                    state.units_seq += 1;
                }
                Err(errno) => {
                    drop(state);
                    self.lost(errno);
                    return;
                }
            }
        }
        if let Some(units) = &mut state.units {
            units.append(bytes);
        }
    }

    /// Appends an event of the process.
    pub fn process_event(&self, event: &EventRef<'_>) {
        if !self.phase().describes() {
            return;
        }
        let size = event.size();
        let mut state = self.state.lock();
        if state.events.as_ref().is_none_or(|e| !e.has_room(size)) {
            if let Some(full) = state.events.take() {
                full.seal();
            }
            let seq = state.events_seq;
            let kind = FrameKind::Events;
            match self.appender_locked(&mut state, kind, PROCESS, seq, size as u64) {
                Ok(new) => {
                    state.events = Some(new);
                    state.events_seq += 1;
                }
                Err(errno) => {
                    drop(state);
                    self.lost(errno);
                    return;
                }
            }
        }
        if let Some(events) = &mut state.events {
            events.event(Position::NONE, event);
        }
    }

    /// The recording ends, and the process goes on: what threads record from their next chunk on is
    /// discarded. False if there is none.
    pub fn end(&self) -> bool {
        let ended = self.life.end();
        if ended {
            self.seal_frames(None);
        }
        ended
    }

    /// Seals what belongs to the process: it ends here, and `how` says in which way. (The recording
    /// stays open: other threads run until the kernel ends them.)
    pub fn seal(&self, how: &EventRef<'_>) {
        self.seal_frames(Some(how));
    }

    fn seal_frames(&self, how: Option<&EventRef<'_>>) {
        let mut state = self.state.lock();
        let end = state.end;
        if let Some(file) = &mut state.file {
            file.event(Position::NONE, &Event::Length(end));
            if let Some(how) = how.filter(|_| self.gap().is_some()) {
                // The thread that says so was not recorded any more.
                file.event(Position::NONE, how);
            }
        }
        let (file, units, events) = (state.file.take(), state.units.take(), state.events.take());
        for appender in [file, units, events].into_iter().flatten() {
            appender.seal();
        }
    }
}

fn frame_len(kind: FrameKind, least: u64) -> u64 {
    let usual = if kind == FrameKind::Units { UNITS_FRAME } else { SMALL_FRAME };
    page_up((least + PAYLOAD as u64 + 8).max(usual))
}

/// Writes the payload of an event where it belongs.
struct Payload<'a> {
    to: &'a mut Appender,
    at: u64,
}

impl Sink for Payload<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.to.put(self.at, bytes);
        self.at += bytes.len() as u64;
    }
}

impl Appender {
    fn payload(&self) -> u64 {
        self.memory.start() + PAYLOAD as u64
    }

    /// Whether `bytes` fit, and the zero that ends the list behind them.
    pub fn has_room(&self, bytes: usize) -> bool {
        PAYLOAD as u64 + self.used + bytes as u64 + 8 <= self.memory.len()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let to = self.payload() + at;
        self.memory.write(to, bytes);
    }

    /// Appends items that start with a non-zero word, which is written last.
    pub fn append(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(4);
        self.put(self.used + 4, rest);
        core::sync::atomic::compiler_fence(SeqCst);
        self.put(self.used, first);
        self.used += bytes.len() as u64;
    }

    /// Appends an event, for which there is room; its kind is written last.
    pub fn event(&mut self, position: Position, event: &EventRef<'_>) {
        let (start, size) = (self.used, event.size());
        let behind_header = start + EVENT_HEADER_SIZE as u64;
        event.encode(&mut Payload { to: self, at: behind_header });
        let len = (size - EVENT_HEADER_SIZE) as u32;
        let header = EventHeader { kind: event.kind() as u16, len, position }.to_bytes();
        let (kind, rest) = header.split_at(4);
        self.put(start + 4, rest);
        core::sync::atomic::compiler_fence(SeqCst);
        self.put(start, kind);
        self.used = start + size as u64;
    }

    /// Completes the frame and unmaps it.
    pub fn seal(mut self) {
        let padded = self.used.next_multiple_of(8);
        let mut sum = abi::trace::Checksum::default();
        add_words(&mut sum, self.memory.words(self.payload(), padded));
        let frame = self.memory.start();
        seal_header(&mut self.memory, frame, self.used, 0, sum.finish());
        self.memory.unmap();
    }
}

/// Fills in the fields of the sealed frame at `frame`; the state comes last.
pub fn seal_header(memory: &mut Mapping, frame: u64, used: u64, used_memory: u64, checksum: u32) {
    let at = |offset: usize| frame + offset as u64;
    memory.store(at(offset_of!(FrameHeader, used)), used);
    memory.store(at(offset_of!(FrameHeader, used_memory)), used_memory);
    memory.store(at(offset_of!(FrameHeader, checksum)), checksum);
    memory.store(at(offset_of!(FrameHeader, state)), SEALED);
}

/// One step of [`crc32c`] over a word, in hardware where there is SSE 4.2.
pub fn fast_crc(crc: u32, word: u64) -> u32 {
    if crate::base::processor::has_sse42() {
        let mut wide = u64::from(crc);
        // SAFETY: the processor has the instruction.
        unsafe {
            core::arch::asm!("crc32 {0}, {1}", inout(reg) wide, in(reg) word,
                options(pure, nomem, nostack, preserves_flags));
        }
        wide as u32
    } else {
        crc32c(crc, &word.to_le_bytes())
    }
}

/// Adds words of a frame.
pub fn add_words(sum: &mut abi::trace::Checksum, words: &[u64]) {
    sum.add_with(words.iter().copied(), fast_crc);
}
