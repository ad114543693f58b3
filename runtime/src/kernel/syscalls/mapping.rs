//! mmap and its kin: executable memory is only executable in the program's eyes.

use crate::base::ceiling;
use crate::base::facts::facts;
use crate::base::own::{keep_room, kept, own_range};
use crate::base::program::read_program_value;
use crate::base::replaying::is_replay;
use crate::base::stat::identity;
use crate::base::sys::{self, failed, nr};
use crate::base::{census, last_words, maps};
use crate::code::executable::ExecRange;
use crate::code::jit::jit;
use crate::code::packs::Packs;
use crate::code::span::Span;
use crate::code::statics;
use crate::code::table::keep_tables;
use crate::code::window::{map_in_window, map_library};
use crate::kernel::switch;
use crate::kernel::syscalls::{aligned, near, objects};
use crate::logs::dropped::drops;
use crate::logs::inputs::{mappings, view};
use crate::logs::log;
use crate::recording::trace_file::trace;
use crate::thread::ending::refuse_program;
use crate::thread::Thread;
use abi::event::{Event, BUILD_ID_SIZE};
use abi::ids::LiveAddr;
use abi::layout::page_up;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// What the kernel is asked for when the program asks for `prot`.
pub fn real_protection(prot: usize) -> usize {
    match prot & sys::PROT_EXEC {
        0 => prot,
        _ => prot & !sys::PROT_EXEC | sys::PROT_READ,
    }
}

/// Whether `start..start + len` touches memory of the runtime.
pub fn is_ours(start: u64, len: u64) -> bool {
    let end = start.saturating_add(len);
    is_of_process(start, end) || statics::codes_in(start, end).next().is_some()
}

/// Whether anything in `start..end` is the runtime's, and no translation of a library.
fn is_of_process(start: u64, end: u64) -> bool {
    let facts = facts();
    let jit = jit();
    if jit.tables.far.has_pieces(&(start..end)) {
        return true;
    }
    let arena = jit.arena.range();
    drop(jit);
    let ours = [facts.added.clone(), arena, facts.options.tables(), log().memory(), kept()];
    ours.iter().any(|r| start < r.end && r.start < end)
}

/// The program has mapped memory where the runtime's own lies.
static AMONG_OWN: AtomicBool = AtomicBool::new(false);

/// Whether `start..start + len` touches the range in which the runtime's own memory lies.
pub fn touches_own(start: u64, len: u64) -> bool {
    let own = own_range();
    start < own.end && own.start < start.saturating_add(len)
}

/// Whether a call that names memory which is there names some of the runtime: what a program finds in its list of
/// mappings, and has not mapped.
fn names_ours(start: u64, len: u64) -> bool {
    is_ours(start, len) || names_own(start, len)
}

/// The same of the range in which the runtime's own memory lies.
fn names_own(start: u64, len: u64) -> bool {
    touches_own(start, len) && !AMONG_OWN.load(Relaxed)
}

/// The pieces of memory, from where to where, that a call names.
pub fn named(number: usize, args: &[usize; 6]) -> [Option<(u64, u64)>; 2] {
    const MINCORE: usize = 27;
    const MLOCK: usize = 149;
    const MUNLOCK: usize = 150;
    const MLOCK2: usize = 325;
    const MSEAL: usize = 462;
    const LONGEST: usize = 1 << 46;
    let piece =
        |at: usize, len: usize| (at != 0).then(|| (at as u64, at.saturating_add(len) as u64));
    match number {
        nr::MMAP
        | nr::MUNMAP
        | nr::MPROTECT
        | nr::PKEY_MPROTECT
        | nr::MADVISE
        | nr::MSYNC
        | MINCORE
        | MLOCK
        | MUNLOCK
        | MLOCK2
        | MSEAL => [piece(args[0], args[1]), None],
        nr::MREMAP if args[3] & sys::MREMAP_FIXED != 0 => {
            [piece(args[0], args[1]), piece(args[4], args[2])]
        }
        nr::MREMAP => [piece(args[0], args[1].max(args[2])), None],
        // Nobody knows how long it is.
        nr::SHMAT => [piece(args[1], LONGEST), None],
        _ => [None; 2],
    }
}

/// `mmap(address, length, protection, flags, descriptor, offset)`
pub fn mmap(thread: &mut Thread, args: &[usize; 6]) -> usize {
    let [address, length, prot, flags, fd, offset] = *args;
    let (mut at, len) = (address as u64, page_up(length as u64));
    let fixed = flags & (sys::MAP_FIXED | sys::MAP_FIXED_NOREPLACE) != 0;
    let exec = prot & sys::PROT_EXEC != 0;
    let real = real_protection(prot);
    if fixed && at.checked_add(len).is_none_or(|end| end > NO_ADDRESS) {
        // Refused before anything changes, whatever lies there.
        // SAFETY: the program's own call, without the right to execute.
        return unsafe { sys::raw(nr::MMAP, [address, length, real, flags, fd, offset]) };
    }
    // Natively nothing is where room is kept for views.
    let is_new =
        flags & sys::MAP_FIXED_NOREPLACE != 0 && view::is_kept_free(&(at..at.saturating_add(len)));
    let flags = match is_new {
        true => flags & !sys::MAP_FIXED_NOREPLACE | sys::MAP_FIXED,
        false => flags,
    };
    if fixed && len > 0 && is_ours(at, len) {
        if flags & sys::MAP_FIXED_NOREPLACE != 0 {
            return failed(sys::EEXIST);
        }
        refuse_program(
            thread,
            thread.syscall_pc,
            "maps memory over the runtime (mmap with MAP_FIXED)",
        );
    }
    if !fixed && at != 0 && (is_ours(at, len) || view::is_out_of_reach(at, len)) {
        at = 0;
    }
    if at != 0 && len > 0 {
        jit().tables.give_up_landings(at, at.saturating_add(len));
    }
    if fixed {
        jit().changes(at, at.saturating_add(len));
    }
    let file = flags & sys::MAP_ANONYMOUS == 0;
    let library = file && flags & sys::MAP_PRIVATE != 0 && !fixed && at == 0 && is_library(fd);
    // What lies there is below 2 GiB in a program at fixed addresses only.
    let fits = flags & MAP_32BIT == 0 || facts().window == 0;
    let wanted = fits && (exec || library) && len < 1 << 30;
    let result = if !fixed && at == 0 && len > 0 && wanted {
        match library && offset == 0 {
            true => map_library(len, real, flags, fd as i32, 0),
            false => map_in_window(len, 0, real, flags, fd as i32, offset as u64),
        }
        .map(|a| a as usize)
    } else {
        Err(sys::ENOMEM)
    };
    let nameless = flags & (sys::MAP_ANONYMOUS | sys::MAP_PRIVATE | MAP_32BIT);
    let any = prot == 0 && !fixed && at == 0 && len > 0;
    let for_library = any && nameless == sys::MAP_ANONYMOUS | sys::MAP_PRIVATE;
    let result = match for_library {
        true => aligned::reserve(len, flags).map(|at| at as usize).ok_or(sys::ENOMEM),
        false => result,
    };
    let wishes = flags & !MAP_NORESERVE == sys::MAP_ANONYMOUS | sys::MAP_PRIVATE;
    let wishes = wishes && !facts().options.is_repeatable();
    let result = result.or_else(|error| match wishes {
        true => near::map(facts().window, at, len, real, flags).map(|at| at as usize).ok_or(error),
        false => Err(error),
    });
    let result = match result {
        Ok(at) => at,
        Err(_) => beside_ours(fixed, len, || {
            beside_landings(fixed, len, || {
                // SAFETY: the program's own call, without the right to execute.
                unsafe { sys::raw(nr::MMAP, [at as usize, length, real, flags, fd, offset]) }
            })
        }),
    };
    let result = match flags & MAP_32BIT != 0 && !fixed && result == failed(sys::ENOMEM) {
        // What is free there is ours, for libraries.
        true if facts().window == 0 => {
            map_in_window(len, 0, real, flags & !MAP_32BIT, fd as i32, offset as u64)
                .map_or(result, |at| at as usize)
        }
        _ => result,
    };
    let Ok(start) = sys::check(result).map(|a| a as u64) else { return result };
    let placed = Placed { start, len, prot, flags, fd: fd as i32, offset: offset as u64, fixed };
    note(&placed, true, None);
    result
}

/// Carries out what maps `len` bytes, where the kernel chooses unless it is `fixed`. The kernel may choose where
/// returns to that memory are going to land, if code is made there: each of them would be a fault. Then the page
/// is made before the memory.
fn beside_landings(fixed: bool, len: u64, map: impl Fn() -> usize) -> usize {
    let result = map();
    let Ok(at) = sys::check(result).map(|at| at as u64) else { return result };
    if fixed || len == 0 || is_replay() {
        return result;
    }
    let mut jit = jit();
    let Some(landing) = jit.tables.landing_in(at, at.saturating_add(len)) else { return result };
    // SAFETY: mapped just now for the program, which does not know of it yet.
    let unmapped = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
    if unmapped.is_err() {
        // Of huge pages that length may be none.
        return result;
    }
    jit.tables.land(landing, 0);
    drop(jit);
    map()
}

/// Carries out what maps `len` bytes, where the kernel chooses unless it is `fixed`. The kernel may choose what
/// the runtime is going to need, if the program has used up all above it: that is kept free from then on.
fn beside_ours(fixed: bool, len: u64, map: impl Fn() -> usize) -> usize {
    loop {
        let result = map();
        let Ok(at) = sys::check(result).map(|at| at as u64).and_then(|at| match fixed {
            true => Err(0),
            false => Ok(at),
        }) else {
            return result;
        };
        let meets = |range: core::ops::Range<u64>| at < range.end && range.start < at + len;
        let tables = facts().options.tables();
        if !meets(own_range()) && !meets(tables.clone()) {
            return result;
        }
        // SAFETY: mapped just now for the program, which does not know of it yet.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
        let has_changed = [keep_room(), keep_tables(tables.clone())];
        if has_changed == [false; 2] {
            // It has its place among ours, or would again.
            let result = map();
            let at = sys::check(result).map_or(0, |at| at as u64);
            if !(at < tables.end && tables.start < at.saturating_add(len)) {
                return result;
            }
            // SAFETY: as above.
            let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
            return failed(sys::ENOMEM);
        }
    }
}

/// No processor has a program's memory there.
const NO_ADDRESS: u64 = 1 << 56;

const MAP_32BIT: usize = 0x40;
const MAP_NORESERVE: usize = 0x4000;

/// `shmat(id, address, flags)`: a mapping that other processes write, too.
pub fn shmat(args: &[usize; 6], next: impl FnOnce() -> usize) -> usize {
    const SHM_RND: usize = 0o20000;
    const SHM_REMAP: usize = 0o40000;
    const SHM_EXEC: usize = 0o100000;
    let flags = args[2];
    let known = maps::attached_len(args[0]);
    let len = known.unwrap_or(0);
    let at = match flags & SHM_RND {
        0 => args[1] as u64,
        _ => abi::layout::page_down(args[1] as u64),
    };
    if at != 0 && known.is_some() && is_ours(at, len) {
        return failed(sys::EINVAL);
    }
    if at != 0 {
        jit().tables.give_up_landings(at, at.saturating_add(len));
    }
    let result = next();
    let Ok(start) = sys::check(result).map(|at| at as u64) else { return result };
    let mut prot = sys::PROT_READ;
    if flags & mappings::SHM_RDONLY == 0 {
        prot |= sys::PROT_WRITE;
    }
    if flags & SHM_EXEC != 0 && len != 0 {
        // SAFETY: attached just now; it keeps the rights that it needs.
        let _ = unsafe { sys::call(nr::MPROTECT, &[start as usize, len as usize, prot]) };
        prot |= sys::PROT_EXEC;
    }
    note_attached(start, len, prot, flags & SHM_REMAP != 0);
    result
}

fn note_attached(start: u64, len: u64, prot: usize, fixed: bool) {
    let flags = sys::MAP_SHARED | sys::MAP_ANONYMOUS;
    let (fd, offset) = (NO_OBJECT, 0);
    note(&Placed { start, len, prot, flags, fd, offset, fixed }, false, None);
}

/// The program has called `io_setup(number, context)`: the kernel has mapped a ring, which it writes to.
pub fn ring_made(args: &[usize; 6]) {
    if let Some(ring) = maps::ring(args[1] as u64) {
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        note_attached(ring.start, ring.end - ring.start, prot, false);
    }
}

/// `shmdt(address)`, `io_destroy(context)`: what is attached there goes. (The latter waits for what is under way, which
/// needs nothing of the program's.)
pub fn detach(number: usize, args: &[usize; 6]) -> usize {
    let start = args[0] as u64;
    // What is attached behind it may have the same rights.
    let Range { start, end } = maps::mapped_from(start).unwrap_or(start..start);
    let len = end - start;
    let mut jit = jit();
    // SAFETY: the program's own memory.
    let result = unsafe { sys::raw(number, *args) };
    if result == 0 {
        jit.set_shared(start, end, false);
    }
    if result == 0 && jit.touches_code(start, end) {
        jit.remove_executable(start, end);
        drop(jit);
        trace().process_event(&Event::Unmap { start: LiveAddr(start), len });
    }
    result
}

/// In place of a descriptor: memory that may be attached elsewhere, too, by this process or by others.
const NO_OBJECT: i32 = -2;

/// Memory that was mapped for the program, and how.
pub struct Placed {
    pub start: u64,
    pub len: u64,
    /// As the program asked for it.
    pub prot: usize,
    pub flags: usize,
    pub fd: i32,
    pub offset: u64,
    /// At the address that was asked for, whatever was there.
    pub fixed: bool,
}

/// The runtime and the trace know of it. `may_have_pack`: it may be a library whose translation is at
/// hand. `path`: of the file, if it is known.
pub fn note(placed: &Placed, may_have_pack: bool, path: Option<&[u8]>) {
    let &Placed { start, len, prot, flags, fd, offset, fixed } = placed;
    let file = flags & sys::MAP_ANONYMOUS == 0;
    let exec = prot & sys::PROT_EXEC != 0;
    if touches_own(start, len) {
        AMONG_OWN.store(true, Relaxed);
    }
    let mut jit = jit();
    // A thread's stack that becomes executable holds what the kernel writes, too.
    const MAP_STACK: usize = 0x2_0000;
    let shared = flags & sys::MAP_SHARED != 0;
    let writable = prot & sys::PROT_WRITE != 0;
    // A replay has what the program mapped of files for itself alone.
    let is_private = file && is_replay();
    let piece = match shared && !is_private {
        true if fd == NO_OBJECT => None,
        true if !file => jit.piece(None, 0),
        true => identity(fd as usize).and_then(|id| jit.piece(Some(id), offset)),
        false => None,
    };
    jit.set_view(Span::new(start, start + len), piece, writable);
    let own = jit.is_own(start);
    let unnoticed = flags & MAP_STACK != 0 || shared && !own && !is_private;
    jit.set_shared(start, start + len, unnoticed);
    jit.forget_file(start, start + len);
    if fixed {
        jit.changes(start, start + len);
        jit.remove_executable(start, start + len);
        if !file {
            jit.packs.unmapped(start, start + len);
        }
    }
    if exec {
        jit.add_executable(ExecRange {
            span: Span::new(start, start + len),
            // Through another mapping, maybe.
            writable: writable || own,
            file: file && !own,
            shared: unnoticed,
        });
        if file && !own {
            let packed = prot & sys::PROT_WRITE == 0 && flags & sys::MAP_PRIVATE != 0;
            jit.add_file(start, start + len, fd, offset, packed && may_have_pack);
        }
    }
    if file && flags & sys::MAP_PRIVATE != 0 && !writable && !own {
        jit.is_read_only(start, start + len);
    }
    drop(jit);
    if file && flags & sys::MAP_PRIVATE != 0 && facts().options.recording.records() {
        match path {
            Some(path) => report(start, len, offset, prot as u32, path),
            None => report_descriptor(start, len, offset, prot as u32, fd as usize),
        }
    }
}

/// Whether the file is a shared object: only those are worth a place in the window.
fn is_library(fd: usize) -> bool {
    const ET_DYN: u8 = 3;
    let mut head = [0u8; 18];
    let args = [fd, head.as_mut_ptr() as usize, head.len(), 0];
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { sys::call(nr::PREAD64, &args) };
    got == Ok(head.len()) && head.starts_with(b"\x7fELF") && head[16..] == [ET_DYN, 0]
}

/// `munmap(address, length)`
pub fn munmap(args: &[usize; 6]) -> usize {
    let (start, len) = (args[0] as u64, page_up(args[1] as u64));
    let end = start.saturating_add(len);
    if ceiling::is_nobodys(&(start..end)) {
        // Natively nothing is there.
        return if ceiling::is_kept(&(start..end)) { 0 } else { failed(sys::EINVAL) };
    }
    if is_of_process(start, end) || names_own(start, len) {
        return failed(sys::EINVAL);
    }
    let mut jit = jit();
    let in_room = |code: Range<u64>| jit.packs.rooms(code.start, code.end).next().is_some();
    if !statics::codes_in(start, end).all(in_room) {
        return failed(sys::EINVAL);
    }
    jit.changes(start, end);
    let has_room = jit.packs.rooms(start, end).next().is_some();
    let result = match has_room {
        true => give_back(&jit.packs, start, end),
        // SAFETY: the program's own memory.
        false => unsafe { sys::raw(nr::MUNMAP, *args) },
    };
    if result == 0 {
        jit.packs.unmapped(start, start + len);
        jit.set_shared(start, start + len, false);
        jit.set_view(Span::new(start, start + len), None, false);
        trace().unmapped(start, start + len);
        jit.forget_file(start, start + len);
    }
    if result == 0 && jit.touches_code(start, start + len) {
        jit.remove_executable(start, start + len);
        drop(jit);
        trace().process_event(&Event::Unmap { start: LiveAddr(start), len });
    }
    result
}

/// The program's loader gives back what it has reserved behind a library. The library's translation may lie there already:
/// it does where the first segment is the one with code.
fn give_back(packs: &Packs, start: u64, end: u64) -> usize {
    let has_code = |room: &Range<u64>| statics::codes_in(room.start, room.end).next().is_some();
    let mut taken: Vec<_> = packs.rooms(start, end).filter(has_code).collect();
    taken.sort_unstable_by_key(|room| room.start);
    let mut at = start;
    let behind = end..end;
    for room in taken.into_iter().chain(core::iter::once(behind)) {
        let result = match at < room.start {
            true => crate::base::own::keep_free(at, room.start - at),
            false => 0,
        };
        if result != 0 {
            return result;
        }
        at = at.max(page_up(room.end));
    }
    0
}

/// `mprotect(address, length, protection)`, and `pkey_mprotect` with a key behind that.
pub fn mprotect(thread: &mut Thread, number: usize, args: &[usize; 6]) -> usize {
    const PROT_GROWSDOWN: usize = 0x100_0000;
    let [address, length, prot, key, ..] = *args;
    let (start, len) = (address as u64, page_up(length as u64));
    if start.checked_add(len).is_none() {
        // Refused before anything changes, whatever lies there.
        // SAFETY: the program's own call, without the right to execute.
        return unsafe { sys::raw(number, [address, length, real_protection(prot), key, 0, 0]) };
    }
    if ceiling::is_nobodys(&(start..start + len)) {
        return failed(sys::ENOMEM);
    }
    if names_ours(start, len) {
        refuse_program(thread, thread.syscall_pc, "changes the runtime's memory (mprotect)");
    }
    let may_run = |m: &statics::Module| m.entered.load(Relaxed);
    let others_run = prot & sys::PROT_WRITE != 0
        && census::live() > 1
        && statics::modules_in(start, start + len).any(may_run);
    // Its translation goes. Nobody may be in there, or on the way.
    let stopped = others_run.then(switch::stop_others);
    if matches!(stopped, Some(None)) {
        refuse_program(
            thread,
            thread.syscall_pc,
            "makes code writable that more threads may be running than can be stopped (mprotect)",
        );
    }
    let mut jit = jit();
    jit.protect_view(Span::new(start, start.saturating_add(len)), prot & sys::PROT_WRITE != 0);
    jit.changes(start, start.saturating_add(len));
    // SAFETY: the program's own memory, without the right to execute.
    let result = unsafe { sys::raw(number, [address, length, real_protection(prot), key, 0, 0]) };
    if result == 0 && number == nr::MPROTECT && prot == sys::PROT_READ {
        jit.becomes_constant(start, start.saturating_add(len));
    }
    if prot & sys::PROT_WRITE != 0 {
        jit.may_change_file(start, start.saturating_add(len));
    }
    if result != 0 {
        if prot & sys::PROT_WRITE != 0 {
            // It may have been carried out for a part.
            jit.distrust(start, start.saturating_add(len));
        }
        return result;
    }
    if prot & PROT_GROWSDOWN != 0 {
        // From there on down, the whole stack.
        let stack = ExecRange::stack(start + len);
        match prot & sys::PROT_EXEC {
            0 => jit.remove_executable(stack.span.start.0, stack.span.end.0),
            _ => jit.add_executable(stack),
        }
        return result;
    }
    let old = jit.executable(start);
    let file = old.is_some_and(|r| r.file);
    let shared = jit.is_shared(start);
    if prot & sys::PROT_EXEC != 0 {
        let writable = prot & sys::PROT_WRITE != 0 || jit.is_own(start);
        jit.add_executable(ExecRange {
            span: Span::new(start, start + len),
            writable,
            file,
            shared,
        });
    } else if jit.touches_code(start, start + len) {
        jit.remove_executable(start, start + len);
    }
    result
}

/// `madvise(address, length, advice)`: some advice replaces what is there.
pub fn madvise(args: &[usize; 6]) -> usize {
    const MADV_DONTNEED: usize = 4;
    const MADV_FREE: usize = 8;
    let (start, len) = (args[0] as u64, page_up(args[1] as u64));
    let replaces = drops(args[2] as u64);
    if ceiling::is_nobodys(&(start..start.saturating_add(len))) {
        return failed(sys::ENOMEM);
    }
    if replaces && names_ours(start, len) {
        return failed(sys::EINVAL);
    }
    jit().changes(start, start.saturating_add(len));
    // SAFETY: the program's own memory.
    let result = unsafe { sys::raw(nr::MADVISE, *args) };
    if result == 0 && args[2] == MADV_FREE && facts().options.is_repeatable() {
        // When the kernel drops it nobody can say.
        // SAFETY: the program does not want what is there.
        let _ = unsafe { sys::raw(nr::MADVISE, [args[0], args[1], MADV_DONTNEED, 0, 0, 0]) };
    }
    let mut jit = jit();
    if replaces && jit.touches_code(start, start + len) {
        jit.code_may_change(start, start + len);
    }
    if replaces {
        jit.views_change(Span::new(start, start + len));
    }
    result
}

/// `mremap(address, old length, new length, flags, new address)`
pub fn mremap(args: &[usize; 6]) -> usize {
    let (start, old, new) = (args[0] as u64, page_up(args[1] as u64), page_up(args[2] as u64));
    if ceiling::is_nobodys(&(start..start.saturating_add(old.max(1)))) {
        return failed(sys::EFAULT);
    }
    let to_ours = args[3] & sys::MREMAP_FIXED != 0 && is_ours(args[4] as u64, new.max(1));
    if names_ours(start, old.max(1)) || to_ours {
        return failed(sys::EINVAL);
    }
    let mut jit = jit();
    if jit.is_view(start, start.saturating_add(old.max(1))) {
        objects::give_up(&mut jit);
    }
    jit.changes(start, start.saturating_add(old.max(new)));
    if args[3] & sys::MREMAP_FIXED != 0 {
        let (to, end) = (args[4] as u64, (args[4] as u64).saturating_add(new));
        jit.tables.give_up_landings(to, end);
        jit.changes(to, end);
    }
    let range = jit.executable(start);
    // What has other rights in the middle cannot be moved.
    jit.unprotect_range(start, start.saturating_add(old));
    // SAFETY: the program's own memory.
    let result = unsafe { sys::raw(nr::MREMAP, *args) };
    let Ok(at) = sys::check(result).map(|at| at as u64) else { return result };
    if touches_own(at, new) {
        AMONG_OWN.store(true, Relaxed);
    }
    if at != start {
        // What was there is replaced.
        jit.remove_executable(at, at + new);
    }
    if let Some(range) = range {
        jit.remove_executable(start, start + old);
        jit.moved_file(Span::new(start, start + old), Span::new(at, at + new));
        jit.add_executable(ExecRange { span: Span::new(at, at + new), ..range });
    }
    result
}

// --- what the trace says about mappings ---

fn report_descriptor(start: u64, len: u64, offset: u64, prot: u32, fd: usize) {
    use core::fmt::Write;
    let mut name = last_words::Line::new();
    let _ = write!(name, "/proc/self/fd/{fd}\0");
    let mut path = [0u8; 1024];
    let args = [name.text().as_ptr() as usize, path.as_mut_ptr() as usize, path.len()];
    // SAFETY: the kernel reads the name and fills the path.
    let n = unsafe { sys::call(nr::READLINK, &args) }.unwrap_or(0);
    report(start, len, offset, prot, &path[..n]);
}

/// A file of which the runtime itself mapped all segments.
pub fn report_file(start: u64, len: u64, offset: u64, path: &[u8]) {
    report(start, len, offset, (sys::PROT_READ | sys::PROT_EXEC) as u32, path);
}

fn report(start: u64, len: u64, offset: u64, prot: u32, path: &[u8]) {
    if !facts().options.recording.records() {
        return;
    }
    let mut id = [0u8; BUILD_ID_SIZE];
    let n = if offset == 0 { build_id(start, len, &mut id) } else { 0 };
    let build_id = id.get(..n).unwrap_or_default();
    let start = LiveAddr(start);
    let map = Event::Map { start, len, offset, protection: prot, build_id, path };
    trace().process_event(&map);
}

/// The GNU build-id of the ELF image mapped at `start`, if its note lies in the first page.
fn build_id(start: u64, len: u64, out: &mut [u8; BUILD_ID_SIZE]) -> usize {
    let mut page = [0u64; 512];
    if len < 4096 || !read_program_value(start, &mut page) {
        return 0;
    }
    let byte = |i: usize| page.get(i / 8).map_or(0, |w| (w >> (i % 8 * 8)) as u8);
    let u32_at = |i: usize| u32::from_le_bytes([byte(i), byte(i + 1), byte(i + 2), byte(i + 3)]);
    if u32_at(0) != 0x464c_457f {
        return 0;
    }
    // A note: name length 4, description length, type 3 (NT_GNU_BUILD_ID), "GNU\0".
    for at in (64..4096 - 16).step_by(4) {
        if u32_at(at) == 4 && u32_at(at + 8) == 3 && u32_at(at + 12) == 0x0055_4e47 {
            let n = (u32_at(at + 4) as usize).min(out.len());
            if at + 16 + n > 4096 {
                return 0;
            }
            for (i, slot) in out[..n].iter_mut().enumerate() {
                *slot = byte(at + 16 + i);
            }
            return n;
        }
    }
    0
}
