//! A copy of the process writes down what it is: Snapshot frames.
//!
//! Mappings are those of the kernel's list, without the runtime's. Of a file, or zero, is what the kernel
//! says was never changed (`/proc/self/pagemap`); the rest is written.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::ceiling;
use crate::base::stat::Stat;
use crate::base::sys::{self, nr};
use crate::kernel::ring::copied::Copied;
use crate::kernel::ring::lines::{parse, Line};
use crate::recording::appender::{put_event, put_frame};
use abi::event::{Event, RegionKind};
use abi::ids::LiveAddr;
use abi::layout::{page_down, page_up, PAGE};
use abi::trace::{FrameKind, PAYLOAD, PROCESS};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where a copy is to write.
pub enum Told<'a> {
    /// To the trace, from there on.
    InPlace { from: u64 },
    /// To a new file at `path`, behind the first `end` bytes of the trace. If that `is_cut`, what the copy is
    /// comes behind.
    Elsewhere { path: &'a [u8], end: u64, is_cut: bool },
}

/// Frames get longer than this by one event.
const FRAME: usize = 1 << 20;
/// Most bytes in one event.
const RUN: u64 = 256 << 10;
/// Larger files, and libraries, are known by what they are called, as where they are mapped.
const COPIED: u64 = 64 << 10;

/// Appends frames to a file.
struct Frames<'a> {
    fd: i32,
    at: u64,
    seq: &'a AtomicU32,
    payload: Vec<u8>,
}

impl Frames<'_> {
    fn event(&mut self, event: &abi::event::EventRef<'_>) -> Result<(), i32> {
        put_event(&mut self.payload, event);
        match self.payload.len() >= FRAME {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), i32> {
        if self.payload.is_empty() {
            return Ok(());
        }
        let len = page_up(PAYLOAD as u64 + self.payload.len() as u64 + 8);
        let mut bytes = Vec::with_capacity(len as usize);
        let seq = self.seq.fetch_add(1, Relaxed);
        put_frame(&mut bytes, FrameKind::Snapshot, PROCESS, seq, len, &self.payload, true);
        write_at(self.fd, self.at, &bytes)?;
        self.at += len;
        self.payload.clear();
        Ok(())
    }
}

fn write_at(fd: i32, at: u64, bytes: &[u8]) -> Result<(), i32> {
    const ENOSPC: i32 = 28;
    if at + bytes.len() as u64 > sys::limit(sys::RLIMIT_FSIZE) {
        return Err(sys::EFBIG);
    }
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let args = [fd as usize, rest.as_ptr() as usize, rest.len(), at as usize + done];
        // SAFETY: the kernel only reads the bytes.
        match unsafe { sys::call(nr::PWRITE64, &args) } {
            Ok(0) => return Err(ENOSPC),
            Ok(n) => done += n,
            Err(sys::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads all that a file has at `at`, up to the size of `out`. Returns how much.
fn read_at(fd: i32, at: u64, out: &mut [u8]) -> Result<usize, i32> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let args = [fd as usize, rest.as_mut_ptr() as usize, rest.len(), at as usize + done];
        // SAFETY: the kernel writes to the rest of the buffer.
        match unsafe { sys::call(nr::PREAD64, &args) } {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(sys::EINTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// A file that is closed again.
struct File(i32);

impl File {
    /// `path` ends in a zero.
    fn open(path: &[u8], flags: usize) -> Result<File, i32> {
        let args = [path.as_ptr() as usize, flags | sys::O_CLOEXEC, 0o600];
        // SAFETY: the kernel reads a zero-terminated path.
        unsafe { sys::call(nr::OPEN, &args) }.map(|fd| File(fd as i32))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: opened here.
        let _ = unsafe { sys::call(nr::CLOSE, &[self.0 as usize]) };
    }
}

/// Adds what the copy is to the trace in `fd`, from there on, or behind its end. Returns where that ends.
pub(super) fn in_place(
    copied: &Copied,
    fd: i32,
    from: Option<u64>,
    seq: &AtomicU32,
) -> Result<u64, i32> {
    let end = || Stat::of(fd as usize).map_or(0, |stat| stat.size());
    let at = page_up(from.unwrap_or_else(end));
    write(copied, Frames { fd, at, seq, payload: Vec::new() })
}

/// Copies the first `end` bytes of the trace in `fd` to a new file, and adds what the copy is if the trace
/// `is_cut`. Returns its size.
pub(super) fn elsewhere(
    copied: &Copied,
    fd: i32,
    path: &[u8],
    end: u64,
    is_cut: bool,
) -> Result<u64, i32> {
    let (file, at) = copied_to(fd, path, end)?;
    if !is_cut {
        return Ok(at);
    }
    write(copied, Frames { fd: file.0, at, seq: &AtomicU32::new(0), payload: Vec::new() })
}

/// Copies the first `end` bytes of the trace in `fd` to a new file at `path`, which ends in a zero. Returns its size.
pub(super) fn copy(fd: i32, path: &[u8], end: u64) -> Result<u64, i32> {
    copied_to(fd, path, end).map(|(_, size)| size)
}

/// The same; the file, too.
fn copied_to(fd: i32, path: &[u8], end: u64) -> Result<(File, u64), i32> {
    const WRITE_ONLY_CREATE_NEW: usize = 1 | 0o100 | 0o200;
    let file = File::open(path, WRITE_ONLY_CREATE_NEW)?;
    let mut buffer = alloc::vec![0u8; FRAME];
    let mut at = 0;
    while at < end {
        let len = (end - at).min(FRAME as u64) as usize;
        let room = buffer.get_mut(..len).unwrap_or_default();
        let got = read_at(fd, at, room)?;
        if got == 0 {
            break;
        }
        let mut offset = at;
        for page in room.get(..got).unwrap_or_default().chunks(PAGE as usize) {
            // What was given up stays a hole.
            if page.iter().any(|&byte| byte != 0) {
                write_at(file.0, offset, page)?;
            }
            offset += page.len() as u64;
        }
        at += got as u64;
    }
    let at = page_up(end);
    // SAFETY: no memory involved.
    unsafe { sys::call(nr::FTRUNCATE, &[file.0 as usize, at as usize]) }?;
    Ok((file, at))
}

fn write(copied: &Copied, frames: Frames<'_>) -> Result<u64, i32> {
    const GET_DUMPABLE: usize = 3;
    const SET_DUMPABLE: usize = 4;
    // SAFETY: no memory involved.
    let prctl = |what, to| unsafe { sys::call(nr::PRCTL, &[what, to]) };
    // What is not dumpable, as a process that has given up its rights, may not open its own pagemap.
    let before = prctl(GET_DUMPABLE, 0).unwrap_or(1);
    if before != 1 {
        let _ = prctl(SET_DUMPABLE, 1);
    }
    let written = write_all(copied, frames);
    if before != 1 {
        // (2, root alone, cannot be asked for.)
        let _ = prctl(SET_DUMPABLE, 0);
    }
    written
}

fn write_all(copied: &Copied, mut frames: Frames<'_>) -> Result<u64, i32> {
    frames.payload.extend_from_slice(&copied.events);
    let maps = list()?;
    let pages = File::open(b"/proc/self/pagemap\0", 0)?;
    let all = || maps.split(|&byte| byte == b'\n').filter_map(parse);
    let of_interpreter = all()
        .find(|line| copied.interpreter != 0 && line.range.contains(&copied.interpreter))
        .map_or(0, |line| line.inode);
    for line in all() {
        if matches!(line.path, b"[vsyscall]" | b"[vdso]" | b"[vvar]" | b"[vvar_vclock]") {
            continue;
        }
        let mut written = Ok(());
        line.outside(&copied.hidden, |part| {
            if is_reserved(copied, &part) {
                return;
            }
            let cuts = copied
                .executable
                .iter()
                .flat_map(|e| [page_down(e.span.start.0), page_up(e.span.end.0)]);
            let image = [copied.image.start, copied.image.end];
            part.between(cuts.chain(image), |piece| {
                if written.is_ok() {
                    written = region(copied, &mut frames, &pages, &piece, of_interpreter);
                }
            });
        });
        written?;
    }
    let brk = LiveAddr(copied.brk);
    frames.event(&Event::Snapshot { stretch: copied.stretch, brk })?;
    frames.flush()?;
    Ok(frames.at)
}

/// `/proc/self/maps`, all of it.
fn list() -> Result<Vec<u8>, i32> {
    let file = File::open(b"/proc/self/maps\0", 0)?;
    let mut all = Vec::new();
    let mut buffer = alloc::vec![0u8; 64 << 10];
    loop {
        let args = [file.0 as usize, buffer.as_mut_ptr() as usize, buffer.len()];
        // SAFETY: the kernel writes to the buffer.
        match unsafe { sys::call(nr::READ, &args) } {
            Ok(0) => return Ok(all),
            Ok(n) => all.extend_from_slice(buffer.get(..n).unwrap_or_default()),
            Err(sys::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether the runtime keeps other things away from there.
fn is_reserved(copied: &Copied, line: &Line<'_>) -> bool {
    let in_area = copied.area.start <= line.range.start && line.range.end <= copied.area.end;
    let is_kept = ceiling::is_kept(&line.range);
    (in_area || is_kept) && line.inode == 0 && !line.readable && !line.writable
}

fn region(
    copied: &Copied,
    frames: &mut Frames<'_>,
    pages: &File,
    line: &Line<'_>,
    of_interpreter: u64,
) -> Result<(), i32> {
    let Range { start, end } = line.range;
    let executable =
        copied.executable.iter().find(|e| e.span.start.0 < end && start < e.span.end.0);
    let rights = [
        (line.readable, sys::PROT_READ),
        // Pages that have translations are write-protected by us.
        (line.writable || executable.is_some_and(|e| e.writable), sys::PROT_WRITE),
        (executable.is_some(), sys::PROT_EXEC),
    ];
    let protection = rights.iter().filter(|(has, _)| *has).fold(0, |all, (_, right)| all | right);
    let is_program = copied.image.start <= start && end <= copied.image.end
        || line.inode != 0 && line.inode == of_interpreter;
    let file = match line.inode {
        0 => None,
        _ if is_program => None,
        _ => named(copied, line),
    };
    let kind = match &file {
        _ if is_program => RegionKind::Program,
        _ if line.path == b"[stack]" => RegionKind::Stack,
        Some(_) => RegionKind::File,
        None => RegionKind::Anonymous,
    };
    if let Some(stat) = &file {
        let [file, size, changed_ns] = [stat.inode(), stat.size(), stat.changed_ns()];
        let file = [stat.device(), file];
        frames.event(&Event::Mapped { file, size, changed_ns, contents: b"", path: line.path })?;
    }
    let is_copied = line.inode != 0 && !is_program && file.is_none();
    let end = if is_copied { readable_end(line) } else { end };
    if end == start {
        return Ok(());
    }
    frames.event(&Event::Region {
        start: LiveAddr(start),
        len: end - start,
        offset: if file.is_some() { line.offset } else { 0 },
        protection: protection as u32,
        kind,
    })?;
    if !line.readable {
        let args = [start as usize, (end - start) as usize, sys::PROT_READ];
        // SAFETY: the copy's own memory, which nobody uses any more.
        unsafe { sys::call(nr::MPROTECT, &args) }?;
    }
    let keeps_zeros = kind != RegionKind::Anonymous && kind != RegionKind::Stack;
    contents(frames, pages, start..end, is_copied, keeps_zeros)
}

/// The file of the mapping, if a replay finds it by its name.
fn named(copied: &Copied, line: &Line<'_>) -> Option<Stat> {
    let path = [line.path, b"\0"].concat();
    if !line.path.starts_with(b"/") || line.path.ends_with(b" (deleted)") {
        return None;
    }
    let file = File::open(&path, 0).ok()?;
    let stat = Stat::of(file.0 as usize)?;
    let mut head = [0u8; 4];
    let is_elf = read_at(file.0, 0, &mut head) == Ok(4) && head == *b"\x7fELF";
    let is_it = stat.is_regular() && stat.inode() == line.inode;
    let is_old = stat.changed_ns() < copied.since_ns;
    (is_it && is_old && (is_elf || stat.size() > COPIED)).then_some(stat)
}

/// Up to where a mapping of a file has contents.
fn readable_end(line: &Line<'_>) -> u64 {
    let Range { start, end } = line.range;
    let Ok(memory) = File::open(b"/proc/self/mem\0", 0) else { return start };
    let mut byte = [0u8];
    let has = |at: u64, byte: &mut [u8]| read_at(memory.0, at, byte) == Ok(1);
    let mut at = start;
    while at < end && has(at, &mut byte) {
        at += PAGE;
    }
    at
}

/// The contents of `range`, which can be read; `all`: not only what was changed.
fn contents(
    frames: &mut Frames<'_>,
    pages: &File,
    range: Range<u64>,
    all: bool,
    keeps_zeros: bool,
) -> Result<(), i32> {
    const ENTRIES: usize = 4096;
    const PRESENT: u64 = 3 << 62;
    const OF_FILE: u64 = 1 << 61;
    let mut entries = alloc::vec![0u8; ENTRIES * 8];
    let mut run: Option<Range<u64>> = None;
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).div_ceil(PAGE).min(ENTRIES as u64) as usize;
        let room = entries.get_mut(..count * 8).unwrap_or_default();
        if !all && read_at(pages.0, at / PAGE * 8, room)? != room.len() {
            const EIO: i32 = 5;
            return Err(EIO);
        }
        for entry in room.chunks_exact(8) {
            let entry = entry.try_into().map_or(0, u64::from_le_bytes);
            let changed = entry & PRESENT != 0 && entry & OF_FILE == 0;
            let wanted = (all || changed) && (keeps_zeros || !is_zero(at));
            match &mut run {
                Some(run) if wanted && run.end == at && run.end - run.start < RUN => {
                    run.end += PAGE;
                }
                _ if !wanted => {}
                other => {
                    put(frames, other.take())?;
                    *other = Some(at..at + PAGE);
                }
            }
            at += PAGE;
        }
    }
    put(frames, run)
}

fn put(frames: &mut Frames<'_>, run: Option<Range<u64>>) -> Result<(), i32> {
    let Some(Range { start, end }) = run else { return Ok(()) };
    // SAFETY: mapped and readable, and nobody else is in this process.
    let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
    frames.event(&Event::Written { address: LiveAddr(start), bytes })
}

fn is_zero(page: u64) -> bool {
    // SAFETY: as in `put`.
    let words = unsafe { core::slice::from_raw_parts(page as *const u64, PAGE as usize / 8) };
    words.iter().all(|&word| word == 0)
}
