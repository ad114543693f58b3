//! Mappings: the files that are mapped, and memory that others may write.
//!
//! The contents of a file are copied into the recording unless the file is larger than `COPIED`, or it
//! is an ELF file, of which `dep pack` takes all: these are known by their identity. What has no name any
//! more can only be copied.

use crate::base::last_words::Line;
use crate::base::lock::{Forked, Lock};
use crate::base::program::read_program_value;
use crate::base::sys::{self, nr};
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::inputs::written;
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::layout::page_up;
use alloc::vec::Vec;
use core::fmt::Write;

/// Most bytes of a file with a name that are copied.
const COPIED: u64 = 64 << 10;
/// Most bytes of a file without a name that are copied.
const COPIED_UNNAMED: u64 = 64 << 20;

/// Memory that is not as other memory is for a forked child, or for others.
#[derive(Clone, Copy)]
struct Special {
    start: u64,
    end: u64,
    kind: Kind,
    /// Device and inode, if it is of a file.
    file: [u64; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of a file, shared with whoever maps that.
    File,
    /// Of a file: what is written to that shows here where the program has not written itself.
    Private,
    /// Without a name: shared with children.
    Shared,
    /// A child finds zeros there.
    Wiped,
    /// A child finds nothing there.
    Missing,
}

static SPECIAL: Lock<Vec<Special>> = Lock::new(Vec::new());

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    SPECIAL.force_unlock(forked);
}

fn has(kind: Kind) -> bool {
    SPECIAL.lock().iter().any(|special| special.kind == kind)
}

/// Why a copy of the process would not have the memory that the process has now, or has it when it is
/// looked at later.
pub fn cannot_be_copied() -> Option<&'static str> {
    [
        (Kind::Shared, "memory is shared (mmap with MAP_SHARED)"),
        (Kind::Missing, "memory is not inherited (madvise with MADV_DONTFORK)"),
        (Kind::Wiped, "memory is wiped in a child (madvise with MADV_WIPEONFORK)"),
    ]
    .into_iter()
    .find_map(|(kind, why)| has(kind).then_some(why))
}

/// A child is made that has a copy of all other memory: in both.
fn shared_with_child(thread: &mut Thread) {
    if has(Kind::Shared) {
        unfollowed(thread, "memory is shared between processes (mmap with MAP_SHARED, and fork)");
    }
}

/// In such a child.
pub fn child_starts(thread: &mut Thread) {
    shared_with_child(thread);
    if has(Kind::Missing) {
        unfollowed(thread, "a child does not inherit all memory (madvise with MADV_DONTFORK)");
    }
    let all: Vec<_> = SPECIAL.lock().clone();
    for wiped in all.iter().filter(|special| special.kind == Kind::Wiped) {
        written::all(thread, wiped.start, wiped.end - wiped.start);
    }
}

/// The call has returned `result`: what does that mean for mappings?
pub fn note(thread: &mut Thread, call: &Call, result: usize) {
    let Ok(result) = sys::check(result) else { return };
    let [a0, a1, a2, ..] = call.args.map(|arg| arg as u64);
    match call.number {
        nr::MMAP => mapped(thread, call, result as u64),
        nr::MUNMAP => forget(a0, a0.saturating_add(page_up(a1))),
        nr::MREMAP => moved(a0, page_up(a1), result as u64, page_up(a2)),
        nr::MPROTECT | nr::PKEY_MPROTECT if a2 as usize & sys::PROT_WRITE != 0 => {
            let end = a0.saturating_add(page_up(a1));
            let of_file = |s: &Special| s.kind == Kind::File && s.start < end && a0 < s.end;
            let found = SPECIAL.lock().iter().any(of_file);
            if found {
                unfollowed(thread, "a shared mapping of a file is made writable (mprotect)");
            }
        }
        nr::MADVISE => advised(a0, a0.saturating_add(page_up(a1)), a2),
        nr::FORK => shared_with_child(thread),
        nr::CLONE | nr::CLONE3 => {
            const CLONE_VM: u64 = 0x100;
            let mut flags = a0;
            let known = call.number == nr::CLONE || read_program_value(a0, &mut flags);
            if known && flags & CLONE_VM == 0 {
                shared_with_child(thread);
            }
        }
        _ => {}
    }
}

/// What lies in `start..end` is of none of these kinds any more.
fn forget_kinds(start: u64, end: u64, kinds: &[Kind]) {
    let mut all = SPECIAL.lock();
    let old = core::mem::take(&mut *all);
    for special in old {
        if !kinds.contains(&special.kind) {
            all.push(special);
            continue;
        }
        let in_front = Special { end: special.end.min(start), ..special };
        let behind = Special { start: special.start.max(end), ..special };
        all.extend([in_front, behind].into_iter().filter(|part| part.start < part.end));
    }
}

fn forget(start: u64, end: u64) {
    let all = [Kind::File, Kind::Private, Kind::Shared, Kind::Wiped, Kind::Missing];
    forget_kinds(start, end, &all);
}

/// Advice for `start..end` was taken.
fn advised(start: u64, end: u64, advice: u64) {
    const DONTFORK: u64 = 10;
    const DOFORK: u64 = 11;
    const WIPEONFORK: u64 = 18;
    const KEEPONFORK: u64 = 19;
    let kind = match advice {
        DONTFORK | DOFORK => Kind::Missing,
        WIPEONFORK | KEEPONFORK => Kind::Wiped,
        _ => return,
    };
    forget_kinds(start, end, &[kind]);
    if matches!(advice, DONTFORK | WIPEONFORK) {
        SPECIAL.lock().push(Special { start, end, kind, file: [0; 2] });
    }
}

fn moved(old: u64, old_len: u64, new: u64, new_len: u64) {
    let is_in = |s: &&Special| s.start <= old && old < s.end;
    let found: Vec<_> = SPECIAL.lock().iter().filter(is_in).copied().collect();
    forget(new, new.saturating_add(new_len));
    if new != old {
        // An old length of 0 makes a second mapping.
        forget(old, old.saturating_add(old_len));
    }
    let end = new.saturating_add(new_len);
    let moved = found.into_iter().map(|special| Special { start: new, end, ..special });
    SPECIAL.lock().extend(moved);
}

fn mapped(thread: &mut Thread, call: &Call, start: u64) {
    const MAP_TYPE: usize = 15;
    let [_, len, prot, flags, fd, offset] = call.args;
    let end = start.saturating_add(page_up(len as u64));
    let file = flags & sys::MAP_ANONYMOUS == 0;
    let shared = flags & MAP_TYPE != sys::MAP_PRIVATE;
    forget(start, end);
    let kind = match (file, shared) {
        (true, true) => Some(Kind::File),
        (true, false) => Some(Kind::Private),
        (false, true) => Some(Kind::Shared),
        (false, false) => None,
    };
    if let Some(kind) = kind {
        let file = Stat::of(fd).filter(|_| file).map_or([0; 2], |stat| stat.identity());
        SPECIAL.lock().push(Special { start, end, kind, file });
    }
    if file {
        // To the end of the page: the program sees what the file has there.
        of_file(thread, fd, offset as u64, page_up(len as u64));
    }
    if file && shared && prot & sys::PROT_WRITE != 0 {
        unfollowed(thread, "a file is mapped that others may change (mmap with MAP_SHARED)");
    }
}

/// The call has changed the file behind `fd`: what if that is mapped?
pub fn changed(thread: &mut Thread, fd: usize) {
    let of_file = |special: &Special| matches!(special.kind, Kind::File | Kind::Private);
    if !SPECIAL.lock().iter().any(of_file) {
        return;
    }
    changed_file(thread, Stat::of(fd));
}

/// The call has changed the file at the program's `path`.
pub fn changed_path(thread: &mut Thread, path: usize) {
    let mut words = [0u64; 18];
    // SAFETY: the kernel reads the path, which it has just read, and writes `struct stat`.
    let found = unsafe { sys::call(nr::STAT, &[path, words.as_mut_ptr() as usize]) };
    changed_file(thread, found.is_ok().then_some(Stat(words)));
}

fn changed_file(thread: &mut Thread, stat: Option<Stat>) {
    let of_file = |special: &Special| matches!(special.kind, Kind::File | Kind::Private);
    let Some(stat) = stat.filter(Stat::is_regular) else { return };
    let is_mapped = |special: &Special| of_file(special) && special.file == stat.identity();
    let found = SPECIAL.lock().iter().any(is_mapped);
    if found {
        unfollowed(thread, "a file is changed while it is mapped");
    }
}

/// What `fstat` says of a file, as far as it is needed.
pub struct Stat([u64; 18]);

impl Stat {
    /// Of an open file.
    pub fn of(fd: usize) -> Option<Stat> {
        let mut words = [0u64; 18];
        // SAFETY: the kernel writes `struct stat`, which has this size.
        unsafe { sys::call(nr::FSTAT, &[fd, words.as_mut_ptr() as usize]) }.ok()?;
        Some(Stat(words))
    }

    pub fn is_regular(&self) -> bool {
        const FORMAT: u64 = 0o170000;
        const REGULAR: u64 = 0o100000;
        self.0[3] & FORMAT == REGULAR
    }

    fn identity(&self) -> [u64; 2] {
        [self.0[0], self.0[1]]
    }

    fn has_name(&self) -> bool {
        self.0[2] != 0
    }

    pub fn device(&self) -> u64 {
        self.0[0]
    }

    pub fn inode(&self) -> u64 {
        self.0[1]
    }

    pub fn size(&self) -> u64 {
        self.0[6]
    }

    pub fn changed_ns(&self) -> u64 {
        self.0[11].wrapping_mul(1_000_000_000).wrapping_add(self.0[12])
    }
}

fn of_file(thread: &mut Thread, fd: usize, offset: u64, len: u64) {
    let Some(stat) = Stat::of(fd) else {
        return unfollowed(thread, "it is not known which file is mapped (mmap)");
    };
    if !stat.is_regular() {
        return unfollowed(thread, "a device is mapped (mmap)");
    }
    let len = len.min(stat.size().saturating_sub(offset));
    let most = if stat.has_name() { COPIED } else { COPIED_UNNAMED };
    let copied = len <= most && (!stat.has_name() || !is_elf(fd));
    let mut contents = alloc::vec![0; if copied { len as usize } else { 0 }];
    if !read_at(fd, offset, &mut contents) {
        contents.clear();
    }
    if !stat.has_name() && contents.len() as u64 != len {
        return unfollowed(thread, "a file is mapped that has no name any more (mmap)");
    }
    let mut path = [0u8; 4096];
    let mapped = Event::Mapped {
        file: stat.identity(),
        size: stat.size(),
        changed_ns: stat.changed_ns(),
        contents: contents.as_slice(),
        path: path_of(fd, &mut path),
    };
    thread.event(WHOLE_UNIT, &mapped);
}

fn is_elf(fd: usize) -> bool {
    let mut head = [0u8; 4];
    read_at(fd, 0, &mut head) && head == *b"\x7fELF"
}

/// Reads all of `out`; false if there is less.
fn read_at(fd: usize, offset: u64, out: &mut [u8]) -> bool {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        let args = [fd, rest.as_mut_ptr() as usize, rest.len(), offset as usize + done];
        // SAFETY: the kernel writes to the rest of the buffer.
        match unsafe { sys::call(nr::PREAD64, &args) } {
            Ok(n) if n > 0 => done += n,
            Err(sys::EINTR) => {}
            _ => return false,
        }
    }
    true
}

/// The path of an open file, as far as it fits.
pub fn path_of(fd: usize, buffer: &mut [u8]) -> &[u8] {
    let mut name = Line::new();
    let _ = write!(name, "/proc/self/fd/{fd}\0");
    let args = [name.text().as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY: the kernel reads the name and fills the buffer.
    let len = unsafe { sys::call(nr::READLINK, &args) }.unwrap_or(0);
    &buffer[..len]
}
