//! The trace file: where frames come from.
//!
//! Frames are allocated at the end of the file, their blocks reserved before they are mapped, so
//! that a full disk is an error here and never a SIGBUS in generated code. All mappings are shared
//! (what is stored survives the process) and not inherited by children. Where a thread's chunks have
//! their full size, they are recorded in one frame again and again and written behind the others when
//! they are full: `slots`.

use crate::base::descriptors;
use crate::base::heap::is_child;
use crate::base::lock::{Guard, Lock};
use crate::base::mapping::Mapping;
use crate::base::once::Once;
use crate::base::sys::{self, nr};
use crate::recording::appender::{complete, new_header, put_event, put_frame, Appender, Place};
use crate::recording::description::Description;
use crate::recording::lifecycle::{Lifecycle, Phase};
use crate::recording::naming::Naming;
use abi::event::{Event, EventRef, Loss, Position};
use abi::layout::page_up;
use abi::options::Options;
use abi::trace::{FrameHeader, FrameKind, PAYLOAD, PROCESS};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

mod slots;

pub use slots::{is_paced, paced_by, Full};

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
    /// Of a ring of inputs: the part that is being recorded, from 0.
    interval: AtomicU32,
    /// How a child's trace is named; none: children are not recorded.
    naming: Option<Naming>,
}

struct Frames {
    /// What a trace says first. It outlives the file.
    description: Description,
    end: u64,
    /// Up to here the file has its blocks.
    reserved: u64,
    /// The File frame, where room for a last word is kept, and its bytes of payload.
    file: Option<(Place, u64)>,
    units: Option<Appender>,
    units_seq: u32,
    /// Where the payloads of the complete Units frames are.
    units_written: Vec<Place>,
    events: Option<Appender>,
    events_seq: u32,
    /// Bytes of the threads' frames that are in the file.
    log: u64,
    /// Those of them that are complete, the oldest first; only kept for a ring.
    sealed: VecDeque<Sealed>,
    /// Frames that threads have recorded in, and that the next one may have.
    slots: Vec<Place>,
}

impl Frames {
    const fn new() -> Frames {
        Frames {
            description: Description::new(),
            end: 0,
            reserved: 0,
            file: None,
            units: None,
            units_seq: 0,
            units_written: Vec::new(),
            events: None,
            events_seq: 0,
            log: 0,
            sealed: VecDeque::new(),
            slots: Vec::new(),
        }
    }

    /// As for a file that is empty, or not there. What was mapped of the one before is not given
    /// back: in a forked child it is not there.
    fn renew(&mut self) {
        let description = core::mem::take(&mut self.description);
        *self = Frames { description, ..Frames::new() };
    }
}

/// What a forked child has of its parent's trace.
#[derive(Default)]
pub struct Inherited {
    /// The file's descriptor.
    fd: Option<i32>,
    /// Where the units are described that were translated so far; none: not all of them are.
    units: Option<Vec<Place>>,
}

impl Inherited {
    /// The descriptions of all units that were translated so far, of each frame; none if they
    /// cannot be had.
    pub fn units(&self) -> Option<Vec<Vec<u8>>> {
        let fd = self.fd?;
        self.units.as_ref()?.iter().map(|place| read_at(fd, *place)).collect()
    }
}

fn read_at(fd: i32, place: Place) -> Option<Vec<u8>> {
    let mut bytes = alloc::vec![0u8; place.len as usize];
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        let at = place.offset as usize + done;
        let args = [fd as usize, rest.as_mut_ptr() as usize, rest.len(), at];
        // SAFETY: the kernel writes to the rest of the buffer.
        match unsafe { sys::call(nr::PREAD64, &args) } {
            Ok(n) if n > 0 => done += n,
            Err(sys::EINTR) => {}
            _ => return None,
        }
    }
    Some(bytes)
}

/// The trace while a process forks: nobody is in the midst of changing what the child will find.
pub struct Held(Guard<'static, Frames>);

/// A complete frame of a thread.
#[derive(Clone, Copy)]
pub struct Sealed {
    pub kind: FrameKind,
    pub thread: u32,
    /// Its number, or that of the last chunk that its events belong to; in a recording of inputs the
    /// [`TraceFile::interval`].
    pub chunk: u32,
    pub place: Place,
}

/// In place of an errno: the size that was asked for when rewriting is used up.
const LOG_FULL: i32 = 0x1000;
static ZEROS: [u8; 4096] = [0; 4096];
/// In place of an errno: code has changed more often than the format can name.
const NO_VERSION: i32 = 0x1001;
const SMALL_FRAME: u64 = 16 << 10;
/// The first frame of events of a process that has been forked, which may end soon.
const FIRST_OF_CHILD: u64 = 4 << 10;
const UNITS_FRAME: u64 = 256 << 10;
/// Kept free in the File frame: the layout, a loss, the file's length, the end of the process.
const LAST_WORDS: u64 = 320;
/// What a thread takes behind its first frame of events: reserved with what comes before it.
const FIRST_CHUNK: u64 = 36 << 10;

#[link_section = ".data.at_fork"]
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
            interval: AtomicU32::new(0),
            life: Lifecycle::new(options.recording.records()),
            fd: AtomicI32::new(-1),
            state: Lock::new(Frames::new()),
            loss: AtomicU64::new(0),
            off: AtomicBool::new(false),
            chunks: AtomicU32::new(0),
            naming: None,
        }
    }

    /// Children have traces of their own, which are named like this.
    pub fn follow(&mut self, naming: Naming) {
        self.state.lock().description.keep();
        self.naming = Some(naming);
    }

    /// The program is about to go where the path of the traces may lead elsewhere: the traces of its children stay in the
    /// folder. Returns a descriptor of it.
    pub fn keep_folder(&self) -> Option<i32> {
        self.naming.as_ref()?.keep_folder()
    }

    /// Whether a forked child has a trace of its own.
    pub fn follows(&self) -> bool {
        self.naming.is_some() && self.phase() != Phase::Off
    }

    /// Opens the recording: frames go to the empty file `fd` from now on. False if there is one
    /// already.
    pub fn open(&self, fd: i32) -> bool {
        let mut state = self.state.lock();
        if !matches!(self.phase(), Phase::Closed | Phase::Ended) {
            return false;
        }
        state.renew();
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

    /// What every trace of this process and its children says of the program: events.
    pub fn introduce(&self, program: Vec<u8>) {
        self.state.lock().description.introduce(program);
    }

    /// Says one more thing of the program, which was not known when it was introduced: in this trace,
    /// which has been described, and in those of children.
    pub fn say_of_program(&self, event: &EventRef<'_>) {
        let mut state = self.state.lock();
        let mut program = state.description.program().to_vec();
        put_event(&mut program, event);
        state.description.introduce(program);
        self.last_words(&mut state, core::slice::from_ref(event), false);
    }

    /// Writes what a trace says first: the process that it is of, now, the program, what is mapped,
    /// and `units`, the descriptions of those that were translated before.
    pub fn describe(&self, process: &EventRef<'_>, parent: u32, units: &[Vec<u8>]) {
        let written = self.write_description(process, parent, units);
        if let Err(errno) = written {
            self.lost(errno);
        }
    }

    fn write_description(
        &self,
        process: &EventRef<'_>,
        parent: u32,
        units: &[Vec<u8>],
    ) -> Result<(), i32> {
        let mut state = self.state.lock();
        let mut file = Vec::with_capacity(state.description.program().len() + 256);
        put_event(&mut file, process);
        put_event(&mut file, &Event::Parent { pid: u64::from(parent) });
        file.extend_from_slice(state.description.program());
        let mut mapped = Vec::new();
        state.description.put_mapped(&mut mapped);
        let first = page_up(PAYLOAD as u64 + file.len() as u64 + LAST_WORDS);
        let frame_of = |payload: &[u8]| page_up(PAYLOAD as u64 + payload.len() as u64 + 8);
        let each = units.iter().map(Vec::as_slice).chain([mapped.as_slice()]);
        let mut rest = Vec::with_capacity(each.map(frame_of).sum::<u64>() as usize);
        if !mapped.is_empty() {
            let (kind, len) = (FrameKind::Events, frame_of(&mapped));
            put_frame(&mut rest, kind, PROCESS, 0, len, &mapped, true);
            state.events_seq = 1;
        }
        for descriptions in units {
            let (kind, len, seq) = (FrameKind::Units, frame_of(descriptions), state.units_seq);
            let offset = first + rest.len() as u64 + PAYLOAD as u64;
            put_frame(&mut rest, kind, PROCESS, seq, len, descriptions, true);
            state.units_written.push(Place { offset, len: descriptions.len() as u64 });
            state.units_seq += 1;
        }
        let ahead = frame_len(FrameKind::Events, 0, 0) + FIRST_CHUNK;
        self.reserve(&mut state, first + rest.len() as u64 + ahead);
        self.allocate_locked(&mut state, first + rest.len() as u64)?;
        // The File frame comes last: with it the trace has started.
        self.write_at(first, &rest)?;
        let mut bytes = Vec::with_capacity(first as usize);
        put_frame(&mut bytes, FrameKind::File, PROCESS, 0, first, &file, false);
        self.write_at(0, &bytes)?;
        state.file = Some((Place { offset: 0, len: first }, file.len() as u64));
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        let fd = self.fd.load(Relaxed) as usize;
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let at = offset as usize + done;
            // SAFETY: the kernel only reads the bytes.
            let wrote =
                unsafe { sys::call(nr::PWRITE64, &[fd, rest.as_ptr() as usize, rest.len(), at]) };
            match wrote {
                Ok(n) if n > 0 => done += n,
                Ok(_) => return Err(28),
                Err(sys::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Opens a recording in a forked child: a file of its own in place of its parent's. Where it is
    /// not followed, or there can be none, what it records is discarded.
    /// `shares`: the descriptor that it inherited is its parent's, too.
    pub fn open_again(
        &self,
        from: &Inherited,
        shares: bool,
        parent: u32,
        units: &[Vec<u8>],
        now: &EventRef<'_>,
    ) {
        let Some(naming) = &self.naming else { return };
        match naming.create(sys::getpid()) {
            Ok(fd) => {
                if self.open(descriptors::replace(from.fd.filter(|_| !shares), fd)) {
                    self.describe(now, parent, units);
                }
            }
            Err(refused) => crate::say!(
                "cannot create {} (error {}): process {} is not recorded",
                refused.path(),
                refused.errno,
                sys::getpid()
            ),
        }
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

    /// Keeps everybody else from changing what a child of a fork will find. Whoever holds this asks
    /// nothing else of the trace.
    pub fn hold(&'static self) -> Held {
        Held(self.state.lock())
    }

    /// In a forked child: the file is its parent's, and the mapped frames are not there.
    pub fn forked(&self, mut held: Held) -> Inherited {
        let fd = Some(self.fd.load(Relaxed)).filter(|&fd| fd >= 0);
        let state = &mut *held.0;
        let described = self.phase().describes() && fd.is_some();
        let units = described.then(|| {
            let mut all = core::mem::take(&mut state.units_written);
            all.extend(state.units.as_ref().map(Appender::written));
            all
        });
        self.life.forked();
        state.renew();
        self.fd.store(-1, Relaxed);
        self.loss.store(0, Relaxed);
        Inherited { fd, units }
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
        self.punch(frame.place)?;
        state.log -= frame.place.len;
        Ok(())
    }

    fn punch(&self, place: Place) -> Result<(), i32> {
        const PUNCH_HOLE_KEEP_SIZE: usize = 3;
        let fd = self.fd.load(Relaxed) as usize;
        let args = [fd, PUNCH_HOLE_KEEP_SIZE, place.offset as usize, place.len as usize];
        // SAFETY: no memory involved.
        unsafe { sys::call(nr::FALLOCATE, &args) }.map(drop)
    }

    /// Of a ring of inputs: the part that is being recorded.
    pub fn interval(&self) -> u32 {
        self.interval.load(Relaxed)
    }

    /// Another part of a ring of inputs begins. Returns the bytes of events that are kept.
    pub fn next_interval(&self, interval: u32) -> u64 {
        self.interval.store(interval, Relaxed);
        self.log()
    }

    /// Bytes of the threads' frames that are in the file.
    pub fn log(&self) -> u64 {
        self.state.lock().log
    }

    /// Gives up what was recorded in parts in front of `interval` alone. False if the file system cannot.
    pub fn drop_before(&self, interval: u32) -> bool {
        self.drop_frames(|_, part| part < interval)
    }

    /// Gives up the frames that `go`, by their threads' indexes and the parts in which they were completed. False if
    /// the file system cannot.
    pub fn drop_frames(&self, go: impl Fn(u32, u32) -> bool) -> bool {
        let mut state = self.state.lock();
        while let Some(oldest) = state.sealed.iter().position(|s| go(s.thread, s.chunk)) {
            let Some(frame) = state.sealed.remove(oldest) else { break };
            if self.drop_frame(&mut state, &frame).is_err() {
                return false;
            }
        }
        true
    }

    /// Where the next frame would go, for somebody else to append some.
    pub fn end_of_frames(&self) -> u64 {
        self.state.lock().end
    }

    /// Somebody else has appended frames, up to `end`.
    pub fn appended(&self, end: u64) {
        let mut state = self.state.lock();
        state.end = state.end.max(page_up(end));
        state.reserved = state.reserved.max(state.end);
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
        if offset + len > state.reserved {
            within_limit(offset + len)?;
            self.get_blocks(offset.max(state.reserved), offset + len)?;
            state.reserved = offset + len;
        }
        state.end = offset + len;
        Ok(Place { offset, len })
    }

    fn get_blocks(&self, from: u64, end: u64) -> Result<(), i32> {
        match self.fallocate(from, end) {
            Err(sys::EOPNOTSUPP) => self.write_zeros(from, end - from),
            other => other,
        }
    }

    /// Gets the blocks up to `end` ahead of the frames that will need them, if there are so many:
    /// asking for a few takes as long as asking for one.
    fn reserve(&self, state: &mut Frames, end: u64) {
        if end <= sys::limit(sys::RLIMIT_FSIZE) && self.fallocate(state.end, end).is_ok() {
            state.reserved = end;
        }
    }

    fn fallocate(&self, from: u64, end: u64) -> Result<(), i32> {
        let fd = self.fd.load(Relaxed) as usize;
        let args = [fd, 0, from as usize, (end - from) as usize];
        loop {
            // SAFETY: no memory involved.
            match unsafe { sys::call(nr::FALLOCATE, &args) } {
                Err(sys::EINTR) => {}
                other => return other.map(drop),
            }
        }
    }

    fn write_zeros(&self, offset: u64, len: u64) -> Result<(), i32> {
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

    /// Why what a thread records is not kept in `phase`, if that is worth an event: the recording was
    /// lost, or pauses.
    pub fn gap(&self, phase: Phase) -> Option<EventRef<'static>> {
        let paused = Event::Loss { reason: Loss::Paused, errno: 0 };
        self.loss().or_else(|| (phase == Phase::Paused).then_some(paused))
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
            NO_VERSION => (
                Loss::Versions,
                "code has changed 65535 times at one address (--control-flow tags has no such limit)",
            ),
            sys::EFBIG => (Loss::FileSizeLimit, "the trace has reached the file size limit"),
            sys::ENOMEM => (Loss::NoMemory, "no memory to map the trace"),
            _ => (Loss::IoError, "the trace cannot be written"),
        };
        let is_error = !matches!(errno, LOG_FULL | NO_VERSION);
        let shown = if is_error { errno as u32 } else { 0 };
        let loss = u64::from(reason.to_u32()) | u64::from(shown) << 32;
        if self.loss.compare_exchange(0, loss, AcqRel, Relaxed).is_ok() {
            let mut state = self.state.lock();
            self.last_words(&mut state, &[Event::Loss { reason, errno: shown }], false);
            drop(state);
            match errno {
                LOG_FULL | NO_VERSION => {
                    crate::say!("{text}: the rest of this run is not recorded");
                }
                _ => crate::say!("{text} (error {errno}): the rest of this run is not recorded"),
            }
        }
        self.life.lose();
    }

    /// Code has changed more often than the format can name.
    pub fn ran_out_of_versions(&self) {
        self.lost(NO_VERSION);
    }

    /// A frame for small items, mapped and with its header written: by one call, which a kill does not interrupt.
    pub fn new_appender(
        &self,
        kind: FrameKind,
        thread: u32,
        seq: u32,
        least: u64,
    ) -> Result<Appender, i32> {
        let mut state = self.state.lock();
        let len = frame_len(kind, seq, least);
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
        let len = frame_len(kind, seq, least);
        let place = self.allocate_locked(state, len)?;
        self.write_header(place.offset, &new_header(kind, thread, seq, place.len))?;
        Appender::map(self.fd.load(Relaxed), place, 0)
    }

    /// Appends the description of a unit of the JIT. It is in the file when this returns.
    pub fn add_units(&self, bytes: &[u8]) {
        if !self.phase().describes() {
            return;
        }
        let mut state = self.state.lock();
        if state.units.as_ref().is_none_or(|u| !u.has_room(bytes.len())) {
            if let Some(full) = state.units.take() {
                state.units_written.push(full.written());
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
        let mut state = self.state.lock();
        state.description.note(event);
        if !self.phase().describes() {
            return;
        }
        let size = event.size();
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

    /// What was mapped in `start..end` is not any more.
    pub fn unmapped(&self, start: u64, end: u64) {
        if self.naming.is_some() {
            self.state.lock().description.unmapped(start, end);
        }
    }

    /// The recording ends, and the process goes on: what threads record from their next chunk on is
    /// discarded. False if there is none.
    pub fn end(&self) -> bool {
        let ended = self.life.end();
        if ended {
            self.seal_frames(None, true);
        }
        ended
    }

    /// Seals what belongs to the process: it ends here, and `how` says in which way. (The recording
    /// stays open: other threads run until the kernel ends them.)
    ///
    /// `noted`: the thread that says how could note it itself.
    pub fn seal(&self, how: &EventRef<'_>, noted: bool) {
        self.seal_frames(Some(how), noted);
    }

    fn seal_frames(&self, how: Option<&EventRef<'_>>, noted: bool) {
        let mut state = self.state.lock();
        let length = Event::Length(state.end);
        let time = Event::EndTime(sys::now_ns());
        // The thread that says how was not recorded any more.
        match how.filter(|_| !noted || self.gap(self.phase()).is_some()) {
            Some(how) => self.last_words(&mut state, &[length, time, how.clone()], true),
            None => self.last_words(&mut state, &[length, time], true),
        }
        let (units, events) = (state.units.take(), state.events.take());
        // A child that is forked before the kernel ends this process runs them, too.
        state.units_written.extend(units.as_ref().map(Appender::written));
        for appender in [units, events].into_iter().flatten() {
            match how {
                Some(_) => appender.seal_at_end(),
                None => appender.seal(),
            }
        }
    }

    /// Adds events to the File frame, which has its blocks: so these can always be noted. `last`: it
    /// is complete then.
    fn last_words(&self, state: &mut Frames, events: &[EventRef<'_>], last: bool) {
        let Some((place, used)) = state.file.take() else { return };
        // A mapping has no limit, and needs no blocks.
        let written = match within_limit(place.offset + place.len) {
            Ok(()) => self.write_last_words(place, used, events, last),
            Err(_) => None,
        };
        let used = written.or_else(|| self.map_last_words(place, used, events, last));
        state.file = used.filter(|_| !last).map(|used| (place, used));
    }

    /// As [`TraceFile::last_words`], by calls: a mapping that is used once costs several times as much.
    /// Returns the bytes of payload.
    fn write_last_words(
        &self,
        place: Place,
        used: u64,
        events: &[EventRef<'_>],
        last: bool,
    ) -> Option<u64> {
        let from = PAYLOAD as u64 + used;
        let mut more = Vec::with_capacity(LAST_WORDS as usize);
        for event in events {
            if from + (more.len() + event.size() + 8) as u64 <= place.len {
                put_event(&mut more, event);
            }
        }
        // The first kind comes last, and then the state: whoever reads meanwhile, or when the process has been
        // killed, finds all of it or nothing.
        if let Some((kind, rest)) = more.split_at_checked(4) {
            self.write_at(place.offset + from + 4, rest).ok()?;
            self.write_at(place.offset + from, kind).ok()?;
        }
        let used = used + more.len() as u64;
        if last {
            let frame =
                read_at(self.fd.load(Relaxed), Place { len: PAYLOAD as u64 + used, ..place })?;
            let (header, payload) = frame.split_at_checked(PAYLOAD)?;
            let mut header = FrameHeader::from_bytes(header)?;
            complete(&mut header, payload);
            self.write_at(place.offset, &header.to_bytes()).ok()?;
        }
        Some(used)
    }

    fn map_last_words(
        &self,
        place: Place,
        used: u64,
        events: &[EventRef<'_>],
        last: bool,
    ) -> Option<u64> {
        let mut file = Appender::map(self.fd.load(Relaxed), place, used).ok()?;
        for event in events {
            if file.has_room(event.size()) {
                file.event(Position::NONE, event);
            }
        }
        let used = file.written().len;
        match last {
            true => file.seal(),
            false => file.unmap(),
        }
        Some(used)
    }
}

/// Whether the file may be written up to `end`. The kernel answers more than that with SIGXFSZ, which
/// would reach the program.
fn within_limit(end: u64) -> Result<(), i32> {
    match end <= sys::limit(sys::RLIMIT_FSIZE) {
        true => Ok(()),
        false => Err(sys::EFBIG),
    }
}

/// Bytes of frame number `seq` of a list of small items, of which the next takes `least`.
fn frame_len(kind: FrameKind, seq: u32, least: u64) -> u64 {
    let usual = match kind {
        FrameKind::Units => UNITS_FRAME,
        _ if seq == 0 && is_child() => FIRST_OF_CHILD,
        _ => SMALL_FRAME,
    };
    page_up((least + PAYLOAD as u64 + 8).max(usual))
}
