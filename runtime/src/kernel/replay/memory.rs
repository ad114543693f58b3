//! Calls that change the address space: made again, at the addresses that were recorded.

use crate::base::program::{read_program_bytes, write_bytes};
use crate::base::replaying::is_alone;
use crate::base::sys::{self, nr};
use crate::base::{guards, maps};
use crate::code::jit::jit;
use crate::code::window::{library_at, placed};
use crate::kernel::brk::brk;
use crate::kernel::replay::outcome::{differs, impossible};
use crate::kernel::replay::{replay, steer, Mapped};
use crate::kernel::syscalls::mapping::{self, Placed};
use crate::logs::dropped::drops;
use crate::logs::inputs::mappings;
use crate::thread::Thread;
use abi::event::DEVICE;
use abi::layout::page_up;
use abi::script::TAKEN;
use core::ops::Range;

const MADV_DONTNEED: usize = 4;
const MADV_FREE: usize = 8;
const MAP_GROWSDOWN: usize = 0x100;
const MAP_STACK: usize = 0x2_0000;
/// What is kept of the flags of a mapping.
const FLAGS: usize = sys::MAP_SHARED
    | sys::MAP_PRIVATE
    | sys::MAP_ANONYMOUS
    | sys::MAP_NORESERVE
    | MAP_GROWSDOWN
    | MAP_STACK;

/// Makes the call again that returned `result`. It is one of those that change the address space.
pub(super) fn again(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    result: usize,
    mapped: Option<&Mapped>,
) {
    if is_alone() {
        return;
    }
    let failed = sys::check(result).err();
    // These may have been carried out for a part.
    let partly = matches!(number, nr::MPROTECT | nr::PKEY_MPROTECT | nr::MADVISE)
        && failed == Some(sys::ENOMEM);
    if failed.is_some() && !partly {
        return;
    }
    for (start, end) in opened(number, args).into_iter().flatten() {
        guards::open(start, end.saturating_sub(start));
    }
    let pc = thread.syscall_pc;
    mappings::follow(number, args, result);
    let got = match number {
        nr::MMAP => return mmap(thread, args, result as u64, mapped),
        // Where it is not known what is attached, threads are watched from there on.
        nr::SHMAT => return mapped.map_or((), |segment| attach(thread, args, result, segment)),
        nr::SHMDT => {
            if let Some(range) = mappings::detached(args[0] as u64) {
                let len = (range.end - range.start) as usize;
                let _ = mapping::munmap(&[args[0], len, 0, 0, 0, 0]);
            }
            result
        }
        nr::MUNMAP => mapping::munmap(args),
        nr::MPROTECT | nr::PKEY_MPROTECT => {
            // Keys are not asked for again.
            let [at, len, prot, ..] = *args;
            mapping::mprotect(thread, nr::MPROTECT, &[at, len, prot, 0, 0, 0])
        }
        nr::MADVISE if drops(args[2] as u64) => {
            // What the kernel may drop when it likes was dropped at once.
            let [at, len, advice, ..] = *args;
            let advice = if advice == MADV_FREE { MADV_DONTNEED } else { advice };
            drop_alone(at as u64, page_up(len as u64), advice, result)
        }
        nr::MREMAP => {
            keep_out(thread, result as u64, page_up(args[2] as u64));
            mapping::mremap(&moved(args, result))
        }
        // A limit that was in the way there may not be in the way here.
        nr::BRK if result != args[0] => brk().current as usize,
        nr::BRK => brk().set(args[0] as u64) as usize,
        _ => result,
    };
    if got != result {
        let name = abi::syscalls::find(number as u64).map_or("a call", |call| call.name);
        differs(
            thread,
            pc,
            format_args!("{name} at {pc:#x} returns {got:#x} when it is made again; the recording has {result:#x}"),
        )
    }
}

/// The memory that the call is about: it opens what is guarded there.
fn opened(number: usize, args: &[usize; 6]) -> [Option<(u64, u64)>; 2] {
    let [at, len, ..] = args.map(|arg| arg as u64);
    match number {
        // What lies behind the new end goes.
        nr::BRK => [Some((at, brk().current)), None],
        // Not what lies behind it, where it may have no room to grow.
        nr::MREMAP => {
            [Some((at, at.saturating_add(page_up(len)))), mapping::named(number, args)[1]]
        }
        _ => mapping::named(number, args),
    }
}

/// Advice that drops memory: not what the recorded program shared, which may be private here.
fn drop_alone(at: u64, len: u64, advice: usize, result: usize) -> usize {
    let end = at.saturating_add(len);
    let mut shared = mappings::shared(at, end).peekable();
    if shared.peek().is_none() {
        return mapping::madvise(&[at as usize, len as usize, advice, 0, 0, 0]);
    }
    let mut from = at;
    for range in shared.chain(core::iter::once(end..end)) {
        if from < range.start {
            let len = (range.start - from) as usize;
            let _ = mapping::madvise(&[from as usize, len, advice, 0, 0, 0]);
        }
        from = from.max(range.end);
    }
    result
}

/// Arguments with which a mapping comes to lie where it was recorded.
fn moved(args: &[usize; 6], result: usize) -> [usize; 6] {
    const MREMAP_DONTUNMAP: usize = 4;
    let [at, old, new, flags, ..] = *args;
    match result == at {
        true => [at, old, new, 0, 0, 0],
        false => {
            let flags = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED | flags & MREMAP_DONTUNMAP;
            [at, old, new, flags, result, 0]
        }
    }
}

/// Ends the replay if the runtime has something there that it needs.
fn keep_out(thread: &mut Thread, start: u64, len: u64) {
    // A recorded process whose addresses were limited had reserved no room for its heap.
    brk().uncover(start, start.saturating_add(len));
    if mapping::is_ours(start, len) || mapping::touches_own(start, len) {
        let end = start.saturating_add(len);
        let pc = thread.syscall_pc;
        let what = "the runtime of this replay has memory there";
        impossible(
            thread,
            pc,
            format_args!("the recorded program maps {start:#x} to {end:#x}, and {what}"),
        )
    }
}

/// `shmat(id, address, flags)`, which has returned `start`: memory of this replay's own, as shared memory without a name is.
fn attach(thread: &mut Thread, args: &[usize; 6], start: usize, segment: &Mapped) {
    const SHM_REMAP: usize = 0o40000;
    let fixed = if args[2] & SHM_REMAP != 0 { sys::MAP_FIXED } else { 0 };
    let flags = sys::MAP_SHARED | sys::MAP_ANONYMOUS | fixed;
    let rights = sys::PROT_READ | sys::PROT_WRITE;
    let (at, len) = (start as u64, segment.size);
    mmap(thread, &[start, len as usize, rights, flags, 0, 0], at, None);
    mappings::attached_again(at, at.saturating_add(page_up(len)));
}

/// `mmap(address, length, protection, flags, descriptor, offset)`, which has returned `start`.
fn mmap(thread: &mut Thread, args: &[usize; 6], start: u64, mapped: Option<&Mapped>) {
    let pc = thread.syscall_pc;
    let [_, length, prot, flags, _, offset] = *args;
    let len = page_up(length as u64);
    let file = flags & sys::MAP_ANONYMOUS == 0;
    keep_out(thread, start, len);
    let replaces = flags & sys::MAP_FIXED != 0;
    let area = replay().area.clone();
    let reserved = area.contains(&start) && start + len <= area.end;
    let place = match replaces || reserved {
        true => sys::MAP_FIXED,
        false => sys::MAP_FIXED_NOREPLACE,
    };
    jit().tables.give_up_landings(start, start + len);
    let real = mapping::real_protection(prot);
    let (fd, from) = match (file, mapped) {
        (false, _) => (-1, 0),
        (true, Some(mapped)) => open(thread, mapped, offset as u64),
        (true, None) => impossible(
            thread,
            pc,
            format_args!("the recording does not say which file is mapped at {pc:#x}"),
        ),
    };
    let mut kept = flags & FLAGS;
    if file || steer::is_steered() {
        // Nobody else is to see what is stored there, not even a checkpoint.
        kept = kept & !sys::MAP_SHARED | sys::MAP_PRIVATE;
    }
    // SAFETY: at the place where the program had it, and nothing of the runtime's is there.
    let result = unsafe { sys::mmap(start, len, real, kept | place, fd, from) };
    match result {
        Ok(at) if at == start => {}
        Ok(_) | Err(sys::EEXIST) => {
            let end = start + len;
            let maps = maps::read().unwrap_or_default();
            let by = maps::mapped_in(&maps, start..end);
            impossible(
                thread,
                pc,
                format_args!("the addresses {start:#x} to {end:#x} {TAKEN} ({by})"),
            )
        }
        Err(errno) => impossible(
            thread,
            pc,
            format_args!("{len} bytes cannot be mapped at {start:#x} (error {errno})"),
        ),
    }
    if area.contains(&start) {
        placed(start);
    }
    let library = file && flags & (sys::MAP_PRIVATE | sys::MAP_FIXED) == sys::MAP_PRIVATE;
    if library && offset == 0 && fd >= 0 {
        library_at(fd, start, len);
    }
    let path = mapped.map_or(&b""[..], |mapped| mapped.path);
    let offset = offset as u64;
    mapping::note(&Placed { start, len, prot, flags, fd, offset, fixed: true }, true, Some(path));
    if fd >= 0 {
        // SAFETY: opened here.
        let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
    }
}

/// Maps what a snapshot has, writable for now.
pub(super) fn region(
    thread: &mut Thread,
    range: Range<u64>,
    prot: usize,
    grows: bool,
    file: Option<(&Mapped, u64)>,
) {
    let pc = thread.resume_original;
    let (start, len) = (range.start, range.end - range.start);
    keep_out(thread, start, len);
    let (fd, from) = match file {
        Some((mapped, offset)) => open(thread, mapped, offset),
        None => (-1, 0),
    };
    let mut flags = sys::MAP_PRIVATE | sys::MAP_NORESERVE;
    if grows {
        flags |= MAP_GROWSDOWN;
    }
    if fd < 0 {
        flags |= sys::MAP_ANONYMOUS;
    }
    let writable = mapping::real_protection(prot) | sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: at the place where the program had it, and nothing of the runtime's is there.
    let result = unsafe { sys::mmap(start, len, writable, flags | sys::MAP_FIXED, fd, from) };
    if let Err(errno) = result {
        impossible(
            thread,
            pc,
            format_args!("{len} bytes cannot be mapped at {start:#x} (error {errno})"),
        )
    }
    let area = replay().area.clone();
    if area.contains(&start) {
        crate::code::window::placed(start);
    }
    let path = file.map_or(&b""[..], |(mapped, _)| mapped.path);
    let placed = Placed { start, len, prot, flags, fd, offset: from, fixed: true };
    mapping::note(&placed, false, Some(path));
    if fd >= 0 {
        // SAFETY: opened here.
        let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
    }
}

/// A descriptor of what is mapped, and where that begins in it.
fn open(thread: &mut Thread, mapped: &Mapped, offset: u64) -> (i32, u64) {
    match mapped.contents {
        [] if mapped.size == DEVICE => (open_file(thread, b"/dev/zero"), 0),
        [] if mapped.size > 0 => (open_file(thread, mapped.path), offset),
        contents => (copy(thread, contents), 0),
    }
}

/// (By itself: a path is no part of the stack of every call.)
#[inline(never)]
fn open_file(thread: &mut Thread, path: &[u8]) -> i32 {
    let pc = thread.syscall_pc;
    let mut zero_terminated = [0u8; 4096];
    let shown = core::str::from_utf8(path).unwrap_or("?");
    let Some(place) = zero_terminated.get_mut(..path.len()).filter(|_| path.len() < 4096) else {
        impossible(thread, pc, format_args!("the path of a mapped file is too long: {shown}"))
    };
    place.copy_from_slice(path);
    let at = zero_terminated.as_ptr() as usize;
    // SAFETY: the kernel reads a zero-terminated path.
    match unsafe { sys::call(nr::OPEN, &[at, sys::O_CLOEXEC]) } {
        Ok(fd) => fd as i32,
        Err(errno) => {
            let what = "which the recorded program maps, cannot be opened";
            impossible(thread, pc, format_args!("the file {shown}, {what} (error {errno})"))
        }
    }
}

/// A file of nobody else's with these contents.
fn copy(thread: &mut Thread, contents: &[u8]) -> i32 {
    const MFD_CLOEXEC: usize = 1;
    let pc = thread.syscall_pc;
    let name = c"mapped".as_ptr() as usize;
    // SAFETY: the kernel reads the name.
    let made = unsafe { sys::call(nr::MEMFD_CREATE, &[name, MFD_CLOEXEC]) };
    let fd = match made {
        Ok(fd) => fd as i32,
        Err(errno) => impossible(
            thread,
            pc,
            format_args!("no memory for the contents of a mapped file (error {errno})"),
        ),
    };
    let mut left = contents;
    while !left.is_empty() {
        match sys::write(fd, left) {
            Ok(n @ 1..) => left = left.get(n..).unwrap_or_default(),
            _ => {
                impossible(thread, pc, format_args!("no memory for the contents of a mapped file"))
            }
        }
    }
    fd
}

/// What is replayed goes on as a child that was forked: it has not inherited all memory.
pub(super) fn child_starts() {
    for range in mappings::missing() {
        let args = [range.start as usize, (range.end - range.start) as usize, 0, 0, 0, 0];
        let _ = mapping::munmap(&args);
        mappings::follow(nr::MUNMAP, &args, 0);
    }
}

/// What is replayed is about to fork: the replays of both have a copy of what they shared when they were recorded, and are
/// told what others have stored there.
pub(super) fn forks() {
    let all = mappings::inherited().filter(|_| !is_alone());
    for range in all {
        let (start, len) = (range.start, range.end - range.start);
        let mut contents = alloc::vec![0; len as usize];
        if !read_program_bytes(start, &mut contents) {
            continue;
        }
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED;
        // SAFETY: memory of the program's, whose contents are there again before it goes on.
        let mapped =
            unsafe { sys::mmap(start, len, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0) };
        // SAFETY: as above.
        if mapped.is_err() || !unsafe { write_bytes(start, &contents) } {
            crate::die!("no memory for the mappings of a replay");
        }
    }
}

/// Writes to memory that the program may only read: a file was changed that it has mapped. False if that
/// cannot be done.
pub(super) fn force(at: u64, bytes: &[u8]) -> bool {
    const O_RDWR: usize = 2;
    const PWRITE64: usize = 18;
    let path = c"/proc/self/mem".as_ptr() as usize;
    // SAFETY: the kernel reads the path.
    let Ok(fd) = (unsafe { sys::call(nr::OPEN, &[path, O_RDWR | sys::O_CLOEXEC]) }) else {
        return false;
    };
    let args = [fd, bytes.as_ptr() as usize, bytes.len(), at as usize];
    // SAFETY: the kernel reads the bytes, and writes to the program's memory what it wrote there before.
    let written = unsafe { sys::call(PWRITE64, &args) };
    // SAFETY: opened here.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
    written == Ok(bytes.len())
}
