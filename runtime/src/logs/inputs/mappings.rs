//! Mappings: the files that are mapped, and memory that others may write.
//!
//! The contents of a file are copied into the recording unless the file is larger than `COPIED`, or it
//! is a program or a library, of which `dep pack` takes all: these are known by their identity. What has no
//! name any more can only be copied, and so can what the program changes by storing to it, or what somebody has
//! just written: it may soon be gone.
//!
//! A shared mapping of a file that the program stores to is followed as memory of its own. What it leaves
//! there is compared as what it writes to a file is ([`super::passed`]), which tells if somebody else has
//! stored there, too.

use crate::base::facts::facts;
use crate::base::last_words::Line;
use crate::base::lock::{Forked, Lock};
use crate::base::program::{read_program_bytes, read_program_value};
use crate::base::stat::Stat;
use crate::base::sys::{self, nr};
use crate::code::jit::jit;
use crate::logs::inputs::foreign::{self, Made};
use crate::logs::inputs::regions::{self, Region};
use crate::logs::inputs::unfollowed::{unfollowed, unfollowed_unwatched};
use crate::logs::inputs::unmapped::{self, Entry};
use crate::logs::inputs::{handed, view, written};
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::event::{Event, DEVICE, WHOLE_UNIT};
use abi::layout::{page_up, PAGE};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::Write;
use core::ops::Range;

/// Most bytes of a file with a name that are copied.
const COPIED: u64 = 64 << 10;
/// Most bytes of a file that are copied if it may be gone or changed later: with the rest of its event less than a reader
/// takes in one frame, 64 MiB.
const COPIED_TEMPORARY: u64 = 63 << 20;
/// Most bytes of a file that are looked through for those that are not zero.
const LOOKED_THROUGH: u64 = 1 << 30;

/// Memory that is not as other memory is for a forked child, or for others.
#[derive(Clone, Copy)]
struct Special {
    start: u64,
    end: u64,
    kind: Kind,
    /// Device and inode, if it is of a file.
    file: [u64; 2],
    /// Where it begins in the file.
    from: u64,
    /// So far the recording has the contents, from `start` on: up to a whole page.
    copied: u64,
}

impl Special {
    /// The part that lies in `start..end`.
    fn part(self, start: u64, end: u64) -> Special {
        let (start, end) = (self.start.max(start), self.end.min(end));
        let less = start.saturating_sub(self.start);
        Special {
            start,
            end,
            from: self.from.wrapping_add(less),
            copied: self.copied.saturating_sub(less),
            ..self
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Of a file, shared with whoever maps that, and only read here.
    File,
    /// Of a file that the program changes by storing here.
    Through,
    /// Of a file: what is written to that shows here where the program has not written itself.
    Private,
    /// Without a name: shared with children.
    Shared,
    /// A child finds zeros there.
    Wiped,
    /// A child finds nothing there.
    Missing,
}

const OF_FILES: [Kind; 3] = [Kind::File, Kind::Through, Kind::Private];

impl Kind {
    /// Whether all that others write to the file shows.
    fn shows_changes(self) -> bool {
        matches!(self, Kind::File | Kind::Through)
    }
}

/// A flag of `shmat`: the memory is only read.
pub const SHM_RDONLY: usize = 0o10000;

/// Why a recording ends where memory is attached that is not followed.
pub const ATTACHED: &str = "memory is shared with other processes (shmat)";

static SPECIAL: Lock<Specials> = Lock::new(Specials(BTreeMap::new()));

/// By kind and first address. Those of one kind do not overlap. (There may be many, and each call that maps memory asks.)
struct Specials(BTreeMap<(Kind, u64), Special>);

impl Specials {
    fn all(&self) -> impl Iterator<Item = &Special> {
        self.0.values()
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Special> {
        self.0.range((kind, 0)..=(kind, u64::MAX)).map(|(_, special)| special)
    }

    fn of_files(&self) -> impl Iterator<Item = &Special> {
        OF_FILES.into_iter().flat_map(|kind| self.of(kind))
    }

    /// Those of this kind in `start..end`, by their addresses.
    fn within(&self, kind: Kind, start: u64, end: u64) -> impl Iterator<Item = &Special> {
        let first = self.0.range((kind, 0)..(kind, start)).next_back().map(|(_, special)| special);
        let others = self.0.range((kind, start)..(kind, end.max(start)));
        first.filter(|first| first.end > start).into_iter().chain(others.map(|(_, other)| other))
    }

    /// Adds one, in place of which there is none of its kind.
    fn add(&mut self, special: Special) {
        if special.start < special.end {
            self.0.insert((special.kind, special.start), special);
        }
    }

    /// What lies in `start..end` is not of this kind any more.
    fn forget(&mut self, kind: Kind, start: u64, end: u64) {
        loop {
            let found = self.within(kind, start, end).next().copied();
            let Some(special) = found else { return };
            self.0.remove(&(kind, special.start));
            self.add(special.part(0, start));
            self.add(special.part(end, u64::MAX));
        }
    }
}

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    SPECIAL.force_unlock(forked);
}

/// From here on the thread is watched: what is known of memory whose contents others change is of no use, but for
/// code of files.
pub fn watched() {
    foreign::end();
    let jit = jit();
    SPECIAL.lock().0.retain(|_, special| match special.kind {
        Kind::Wiped | Kind::Missing => true,
        Kind::Private => jit.touches_code(special.start, special.end),
        // Code that others may change is compared, and noted.
        Kind::File | Kind::Through | Kind::Shared => false,
    });
}

fn has(kind: Kind) -> bool {
    SPECIAL.lock().of(kind).next().is_some()
}

/// Why a copy of the process would not have the memory that the process has now, or has it when it is
/// looked at later.
pub fn cannot_be_copied() -> Option<&'static str> {
    [
        (Kind::Shared, "memory is shared (mmap with MAP_SHARED)"),
        (Kind::Through, "a file is changed by storing to memory (mmap with MAP_SHARED)"),
        (Kind::Missing, "memory is not inherited (madvise with MADV_DONTFORK)"),
        (Kind::Wiped, "memory is wiped in a child (madvise with MADV_WIPEONFORK)"),
    ]
    .into_iter()
    .find_map(|(kind, why)| has(kind).then_some(why))
}

/// Whether a forked child shares memory with its parent that is not followed while no thread is watched.
pub fn are_shared() -> bool {
    let is_shared = |special: &&Special| {
        matches!(special.kind, Kind::Shared | Kind::Through)
            && !foreign::covers(special.start, special.end - special.start)
    };
    SPECIAL.lock().all().any(|special| is_shared(&special))
}

/// A process is about to be made that has all of that, too: what can be followed while no thread is watched is.
pub fn before_fork(thread: &Thread) {
    let is_known = |range: &Range<u64>| foreign::covers(range.start, range.end - range.start);
    let shared = parts(0, u64::MAX, &[Kind::Shared, Kind::Through]).filter(|r| !is_known(r));
    // (Code is read when it is translated, and compared.)
    let has_code = |range: &Range<u64>| jit().touches_code(range.start, range.end);
    if may_be_closed(thread) {
        foreign::comes_to_be_shared(thread, shared.take_while(|range| !has_code(range)));
    }
}

/// A child is made that has a copy of all other memory: in both.
fn shared_with_child(thread: &mut Thread) {
    if are_shared() {
        unfollowed_unwatched(
            thread,
            "memory is shared between processes (mmap with MAP_SHARED, and fork)",
        );
    }
}

/// In such a child.
pub fn child_starts(thread: &mut Thread) {
    shared_with_child(thread);
    let wiped = parts(0, u64::MAX, &[Kind::Wiped]);
    for missing in missing() {
        forget(missing.start, missing.end);
    }
    for wiped in wiped {
        written::all(thread, wiped.start, wiped.end - wiped.start);
    }
}

/// The call has returned `result`: what does that mean for mappings?
pub fn note(thread: &mut Thread, call: &Call, result: usize) {
    let Ok(result) = sys::check(result) else { return };
    let [a0, a1, a2, ..] = call.args.map(|arg| arg as u64);
    match call.number {
        // What a watched thread loads is compared, whoever has stored it: code alone has to be known.
        nr::MMAP if view::has(thread) && !is_file_code(call.args[2], call.args[3]) => {
            forget(result as u64, (result as u64).saturating_add(page_up(a1)));
        }
        nr::MMAP => mapped(thread, call, result as u64),
        nr::MUNMAP => forget(a0, a0.saturating_add(page_up(a1))),
        nr::SHMDT => drop(detached(a0)),
        nr::MREMAP => {
            if page_up(a2) > page_up(a1) && is_copied(a0) {
                unfollowed_unwatched(thread, "more of a file is mapped than was copied (mremap)");
            }
            moved(a0, page_up(a1), result as u64, page_up(a2));
        }
        nr::MPROTECT | nr::PKEY_MPROTECT if a2 as usize & sys::PROT_WRITE != 0 => {
            let end = a0.saturating_add(page_up(a1));
            let found = SPECIAL.lock().within(Kind::File, a0, end).next().is_some();
            if found {
                unfollowed_unwatched(
                    thread,
                    "a shared mapping of a file is made writable (mprotect)",
                );
            }
        }
        nr::MADVISE => {
            const REMOVE: u64 = 9;
            let end = a0.saturating_add(page_up(a1));
            if a2 == REMOVE && shared(a0, end).any(|_| true) {
                unfollowed_unwatched(
                    thread,
                    "shared memory is given back (madvise with MADV_REMOVE)",
                );
            }
            advised(a0, end, a2);
        }
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

/// Nobody is in the midst of a look at these lists.
pub fn hold() -> impl Sized {
    SPECIAL.lock()
}

/// What lies in `start..end` is of none of these kinds any more.
fn forget_kinds(start: u64, end: u64, kinds: &[Kind]) {
    let mut all = SPECIAL.lock();
    kinds.iter().for_each(|&kind| all.forget(kind, start, end));
}

const ALL: [Kind; 6] =
    [Kind::File, Kind::Through, Kind::Private, Kind::Shared, Kind::Wiped, Kind::Missing];

fn forget(start: u64, end: u64) {
    forget_kinds(start, end, &ALL);
}

/// Whether what is mapped at `at` is of a file, and was copied.
fn is_copied(at: u64) -> bool {
    let all = SPECIAL.lock();
    let mut there = ALL.into_iter().flat_map(|kind| all.within(kind, at, at.saturating_add(1)));
    there.any(|special| special.copied > 0)
}

/// The memory in `start..end` that others have, too: what is dropped there is not lost.
pub fn shared(start: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    parts(start, end, &[Kind::Through, Kind::Shared])
}

/// The memory without a name that a forked child shares with its parent.
pub fn inherited() -> impl Iterator<Item = Range<u64>> {
    parts(0, u64::MAX, &[Kind::Shared])
}

/// The memory in `start..end` by which the program changes files: what it leaves there goes outside.
pub fn written_through(start: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    parts(start, end, &[Kind::Through])
}

fn parts(start: u64, end: u64, kinds: &[Kind]) -> impl Iterator<Item = Range<u64>> {
    let all = SPECIAL.lock();
    let of_kinds = kinds.iter().flat_map(|&kind| all.within(kind, start, end));
    let parts = of_kinds.map(|special| special.part(start, end));
    let mut found: Vec<_> =
        parts.filter(|part| part.start < part.end).map(|part| part.start..part.end).collect();
    found.sort_unstable_by_key(|range| range.start);
    found.into_iter()
}

/// In a replay, which has carried out a call: what is shared memory now? It returned `result`.
pub fn follow(number: usize, args: &[usize; 6], result: usize) {
    let [a0, a1, a2, flags, ..] = args.map(|arg| arg as u64);
    match number {
        nr::MMAP => {
            let (start, end) = (result as u64, (result as u64).saturating_add(page_up(a1)));
            forget(start, end);
            let kind = kind_of(args[2], flags as usize);
            if let Some(kind) = kind.filter(|kind| matches!(kind, Kind::Through | Kind::Shared)) {
                SPECIAL.lock().add(Special { start, end, kind, file: [0; 2], from: 0, copied: 0 });
            }
        }
        nr::MUNMAP => forget(a0, a0.saturating_add(page_up(a1))),
        nr::MREMAP => moved(a0, page_up(a1), result as u64, page_up(a2)),
        nr::MADVISE => advised(a0, a0.saturating_add(page_up(a1)), a2),
        _ => {}
    }
}

/// The memory that a forked child has not inherited.
pub fn missing() -> impl Iterator<Item = Range<u64>> {
    parts(0, u64::MAX, &[Kind::Missing])
}

/// Whether code of a file is mapped that neither the program nor anybody else changes there.
pub fn is_file_code(prot: usize, flags: usize) -> bool {
    flags & (sys::MAP_SHARED | sys::MAP_ANONYMOUS) == 0
        && prot & (sys::PROT_EXEC | sys::PROT_WRITE) == sys::PROT_EXEC
}

/// What is mapped with this protection and these flags.
fn kind_of(prot: usize, flags: usize) -> Option<Kind> {
    const MAP_TYPE: usize = 15;
    let file = flags & sys::MAP_ANONYMOUS == 0;
    let shared = flags & MAP_TYPE != sys::MAP_PRIVATE;
    match (file, shared) {
        (true, true) if prot & sys::PROT_WRITE != 0 => Some(Kind::Through),
        (true, true) => Some(Kind::File),
        (true, false) => Some(Kind::Private),
        (false, true) => Some(Kind::Shared),
        (false, false) => None,
    }
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
        SPECIAL.lock().add(Special { start, end, kind, file: [0; 2], from: 0, copied: 0 });
    }
}

fn moved(old: u64, old_len: u64, new: u64, new_len: u64) {
    let found: Vec<_> = {
        let all = SPECIAL.lock();
        ALL.into_iter()
            .flat_map(|kind| all.within(kind, old, old.saturating_add(1)))
            .copied()
            .collect()
    };
    forget(new, new.saturating_add(new_len));
    if new != old {
        // An old length of 0 makes a second mapping.
        forget(old, old.saturating_add(old_len));
    }
    let end = new.saturating_add(new_len);
    let mut all = SPECIAL.lock();
    for special in found {
        let part = special.part(old, u64::MAX);
        all.add(Special { start: new, end, ..part });
    }
}

fn mapped(thread: &mut Thread, call: &Call, start: u64) {
    let [_, len, prot, flags, fd, offset] = call.args;
    let len = page_up(len as u64);
    let end = start.saturating_add(len);
    forget(start, end);
    let Some(kind) = kind_of(prot, flags) else { return };
    let mut special = Special { start, end, kind, file: [0; 2], from: 0, copied: 0 };
    if flags & sys::MAP_ANONYMOUS == 0 {
        // To the end of the page: the program sees what the file has there.
        let code = is_file_code(prot, flags).then_some(Region { start, len, prot });
        // As ld.so maps a library: it is loaded, and not read.
        const MAP_DENYWRITE: usize = 0x800;
        let loads = flags & MAP_DENYWRITE != 0 || code.is_some();
        let file = Opened { fd, offset: offset as u64, loads };
        let mut contents = Vec::new();
        let (mut for_others, mut is_recent, mut is_known) = (false, false, false);
        if let Some(known) = of_file(thread, &file, start..end, kind, code) {
            special.file = known.stat.identity();
            special.from = offset as u64;
            special.copied = page_up(known.copied);
            contents = known.contents;
            (for_others, is_recent) = (known.for_others, known.is_recent);
            is_known = known.is_followed;
        }
        let is_twice = |other: &Special| {
            other.file == special.file
                && other.from < special.from.saturating_add(len)
                && special.from < other.from.saturating_add(other.end - other.start)
        };
        let is_handed = kind.shows_changes() && handed::is(special.file);
        let is_shared = for_others || is_handed;
        let is_writable = kind == Kind::Through && prot == OPEN;
        // Who reads a file that was changed just now may wait for the next change.
        let is_awaited =
            kind == Kind::File && prot == sys::PROT_READ && (is_handed || is_recent && !loads);
        let closes = (is_writable || is_awaited) && !contents.is_empty() && may_be_closed(thread);
        let made = Made::File { contents, is_shared, is_writable };
        let is_followed = is_known || closes && foreign::lies_at(thread, start..end, made);
        let awaits = is_awaited && facts().options.recording.watches();
        if is_handed && !is_followed {
            unfollowed_unwatched(thread, handed::WHY);
        } else if (for_others || awaits) && !is_followed {
            unfollowed_unwatched(
                thread,
                "a file is mapped that others may change (mmap with MAP_SHARED)",
            );
        }
        let twice = {
            let all = SPECIAL.lock();
            match kind {
                Kind::Through => all.of_files().any(is_twice),
                _ => all.of(Kind::Through).any(is_twice),
            }
        };
        if twice {
            unfollowed_unwatched(
                thread,
                "a file is mapped twice, and changed by storing to memory (mmap)",
            );
        }
    } else if kind == Kind::Shared && prot == OPEN && may_be_closed(thread) {
        foreign::lies_at(thread, start..end, Made::ForChildren);
    }
    SPECIAL.lock().add(special);
}

const OPEN: usize = sys::PROT_READ | sys::PROT_WRITE;

/// Whether memory can be closed to the program, to see what others store there.
fn may_be_closed(thread: &Thread) -> bool {
    let filters = thread.filter != 0 || thread.kernel_filter != 0;
    let recording = &facts().options.recording;
    !filters && !thread.vfork_child && !recording.ring && !recording.watches() && !view::is_wanted()
}

/// Memory of `len` bytes, if that is known, lies at `start` that no call of the program's has mapped: System V shared memory, a ring of
/// the kernel's. Others may write there from now on, which is `why` threads are watched.
pub fn attached(thread: &mut Thread, start: u64, len: Option<u64>, why: &str) {
    let Some(len) = len else {
        return unfollowed(thread, why);
    };
    let end = start.saturating_add(len);
    forget(start, end);
    regions::attached(start, end);
    view::lies_at(start, len);
    // What a watched thread loads is compared, whoever has stored it, and so is what its children load.
    if !view::is_watched() {
        let kind = Kind::Shared;
        SPECIAL.lock().add(Special { start, end, kind, file: [0; 2], from: 0, copied: 0 });
        unfollowed_unwatched(thread, why);
    }
}

/// System V shared memory is attached at `start`, in a way that `flags` says.
pub fn attached_segment(thread: &mut Thread, flags: usize, start: u64, len: Option<u64>) {
    let is_open = flags & SHM_RDONLY == 0;
    let known =
        len.filter(|&len| is_open && !view::is_watched() && may_be_closed(thread) && len <= COPIED);
    let Some(len) = known else { return attached(thread, start, len, ATTACHED) };
    let mut contents = alloc::vec![0; len as usize];
    let end = start.saturating_add(len);
    let is_read = read_program_bytes(start, &mut contents);
    let made = Made::Segment { contents: contents.clone() };
    if !is_read || !foreign::lies_at(thread, start..end, made) {
        return attached(thread, start, Some(len), ATTACHED);
    }
    forget(start, end);
    view::lies_at(start, len);
    let (file, contents_of_file) = ([0; 2], &[][..]);
    let mapped =
        Event::Mapped { file, size: len, changed_ns: 0, contents: contents_of_file, path: b"" };
    thread.event(WHOLE_UNIT, &mapped);
    written::piece(thread, start, &contents);
    attached_again(start, end);
}

/// Such memory, of which the recording has the contents, is at `start..end`.
pub fn attached_again(start: u64, end: u64) {
    let kind = Kind::Shared;
    SPECIAL.lock().add(Special { start, end, kind, file: [0; 2], from: 0, copied: 0 });
}

/// What is attached at `start` is not any more: where it was, if that is known.
pub fn detached(start: u64) -> Option<Range<u64>> {
    let all = SPECIAL.lock();
    let found = all.within(Kind::Shared, start, start.saturating_add(1)).next();
    let range = found.filter(|special| special.start == start).map(|s| s.start..s.end)?;
    drop(all);
    forget(range.start, range.end);
    Some(range)
}

/// The call has changed the file behind `fd`: what if it is mapped? `bytes` finds out which of it, if that can be known.
pub fn changed(thread: &mut Thread, fd: usize, bytes: impl FnOnce() -> Option<Range<u64>>) {
    let entry = unmapped::entry(fd);
    if entry.is_some_and(Entry::is_known) || SPECIAL.lock().of_files().next().is_none() {
        return;
    }
    let Some(stat) = Stat::of(fd) else { return };
    let is_mapped = changed_file(thread, &stat, bytes);
    if let Some(entry) = entry.filter(|_| !is_mapped) {
        entry.keep();
    }
}

/// The call has changed the file at the program's `path`.
pub fn changed_path(thread: &mut Thread, path: usize) {
    if let Some(stat) = Stat::of_path(path) {
        changed_file(thread, &stat, || None);
    }
}

/// Whether it is mapped in a way that shows what others change, and that is not followed while no thread is watched.
pub fn shows_changes(file: [u64; 2]) -> bool {
    let is_followed =
        |special: &Special| foreign::is_shared(special.start, special.end - special.start);
    let all = SPECIAL.lock();
    let mut mapped = all.of_files().filter(|s| s.kind.shows_changes() && s.file == file);
    mapped.any(|special| !is_followed(special))
}

/// The file was changed. Whether it is mapped.
fn changed_file(
    thread: &mut Thread,
    stat: &Stat,
    bytes: impl FnOnce() -> Option<Range<u64>>,
) -> bool {
    if !stat.is_regular() {
        return false;
    }
    let is_mapped = |special: &&Special| special.file == stat.identity();
    let found: Vec<_> = SPECIAL.lock().of_files().filter(is_mapped).copied().collect();
    if found.is_empty() {
        return false;
    }
    let Some(bytes) = bytes() else {
        unfollowed_unwatched(thread, "a file is changed while it is mapped");
        return true;
    };
    for special in found {
        let end = special.from.saturating_add(special.end - special.start);
        let (first, last) = (bytes.start.max(special.from), bytes.end.min(end));
        if first >= last {
            continue;
        }
        // A replay maps what was copied, and nothing behind it.
        if last - special.from > special.copied {
            unfollowed_unwatched(thread, "a file is changed while it is mapped");
            return true;
        }
        foreign::written_to(thread);
        // Where the program has stored in a private mapping it goes on to see that.
        written::all(thread, special.start + (first - special.from), last - first);
    }
    true
}

/// What is mapped of an open file, from where on; as a program or library that is loaded?
struct Opened {
    fd: usize,
    offset: u64,
    loads: bool,
}

/// What is known of a file that is mapped.
struct Known {
    stat: Stat,
    /// So many bytes were copied.
    copied: u64,
    /// These, if they were copied in one piece.
    contents: Vec<u8>,
    /// It is made for others.
    for_others: bool,
    /// It was changed within the last hour, and is not mapped to be changed.
    is_recent: bool,
    /// What others store there is seen.
    is_followed: bool,
}

/// Notes which file is mapped at `at`, and what of it if that has to be copied, as it has if it changes.
/// `code`: where it may be executed.
fn of_file(
    thread: &mut Thread,
    &Opened { fd, offset, loads }: &Opened,
    at: Range<u64>,
    kind: Kind,
    code: Option<Region>,
) -> Option<Known> {
    let Some(stat) = Stat::of(fd) else {
        unfollowed(thread, "it is not known which file is mapped (mmap)");
        return None;
    };
    let mut path = [0u8; 4096];
    let path = path_of(fd, &mut path);
    if !stat.is_regular() {
        let (file, contents) = (stat.identity(), &[][..]);
        let mapped = Event::Mapped { file, size: DEVICE, changed_ns: 0, contents, path };
        thread.event(WHOLE_UNIT, &mapped);
        if !(kind == Kind::Private && stat.is_zeros()) {
            unfollowed_unwatched(thread, "a device is mapped (mmap)");
        }
        return None;
    }
    let changes = kind == Kind::Through;
    let mapped = at.end - at.start;
    let len = mapped.min(stat.size().saturating_sub(offset));
    // A filter of system calls may keep us from asking for it.
    let has_name = stat.has_name() && !path.is_empty();
    let is_recent = !changes && is_recent(&stat);
    let lasting = has_name && !changes && !is_recent;
    // What lies there is made for others.
    let for_others = changes && stat.has_name() && path.starts_with(b"/dev/shm/");
    let file = File { fd, offset, len };
    // Behind the end of a file is not nothing: it cannot be touched.
    // (What can only be read stays as it is here: an engine's code, which is written elsewhere, begins with nothing.)
    let rest = match kind {
        Kind::Through => Some(len / 4),
        Kind::File if !has_name => Some(0),
        _ => None,
    };
    let is_whole = len == mapped && code.is_none();
    if rest.is_some_and(|most| is_whole && file.is_mostly_zeros(most)) {
        let (id, contents) = (stat.identity(), &[][..]);
        let mapped = Event::Mapped { file: id, size: DEVICE, changed_ns: 0, contents, path };
        thread.event(WHOLE_UNIT, &mapped);
        let mut pieces = Vec::new();
        let _ = file.each_page(|from, bytes| {
            written::piece(thread, at.start + from, bytes);
            if for_others {
                pieces.push((from, bytes.to_vec()));
            }
        });
        let is_followed = for_others
            && kind == Kind::Through
            && may_be_closed(thread)
            && foreign::lies_among_zeros(thread, at, &pieces);
        let contents = Vec::new();
        return Some(Known { stat, copied: len, contents, for_others, is_recent, is_followed });
    }
    let most = if lasting { COPIED } else { COPIED_TEMPORARY };
    // A program that has just been made is there when it is replayed, if it is loaded. Who reads one may be making it, as
    // linkers do.
    let is_kept = has_name && !changes && (lasting || loads) && is_program(fd);
    let copied = len <= most && !is_kept;
    let mut contents = alloc::vec![0; if copied { len as usize } else { 0 }];
    if !read_at(fd, offset, &mut contents) {
        contents.clear();
    }
    let complete = contents.len() as u64 == len;
    if !has_name && !complete {
        unfollowed(thread, "a file is mapped that has no name, or not any more (mmap)");
    } else if changes && !complete {
        unfollowed_unwatched(
            thread,
            "much of a file is mapped, and may be changed (mmap with MAP_SHARED)",
        );
    }
    let mapped = Event::Mapped {
        file: stat.identity(),
        size: stat.size(),
        changed_ns: stat.changed_ns(),
        contents: contents.as_slice(),
        path,
    };
    thread.event(WHOLE_UNIT, &mapped);
    if let Some(region) = code {
        regions::code(&region, offset, &mapped);
    }
    let (copied, is_followed) = (contents.len() as u64, false);
    Some(Known { stat, copied, contents, for_others, is_recent, is_followed })
}

/// What is mapped of an open file.
struct File {
    fd: usize,
    offset: u64,
    len: u64,
}

impl File {
    /// Whether it is large, and has at most so many bytes besides zeros: memory that is made for others is mapped before it
    /// is filled.
    fn is_mostly_zeros(&self, most: u64) -> bool {
        if !(COPIED..=LOOKED_THROUGH).contains(&self.len) {
            return false;
        }
        let mut bytes = 0;
        self.each_page(|_, page| bytes += page.len() as u64) && bytes <= most
    }

    /// Calls `with` for each page that is not all zeros, with where it lies from the start on. False if something cannot
    /// be read.
    fn each_page(&self, mut with: impl FnMut(u64, &[u8])) -> bool {
        let mut piece = alloc::vec![0; COPIED as usize];
        let mut from = 0;
        while from < self.len {
            let piece = &mut piece[..COPIED.min(self.len - from) as usize];
            if !read_at(self.fd, self.offset + from, piece) {
                return false;
            }
            for page in piece.chunks(PAGE as usize) {
                if page.iter().any(|&byte| byte != 0) {
                    with(from, page);
                }
                from += page.len() as u64;
            }
        }
        true
    }
}

/// Whether it is an ELF file that can be executed: a program or a library.
fn is_program(fd: usize) -> bool {
    const EXECUTABLE_OR_SHARED: [u8; 2] = [2, 3];
    let mut head = [0u8; 17];
    read_at(fd, 0, &mut head)
        && head.starts_with(b"\x7fELF")
        && EXECUTABLE_OR_SHARED.contains(&head[16])
}

/// Whether somebody may still be at work on it: it may be another one, or gone, when it is replayed.
fn is_recent(stat: &Stat) -> bool {
    const WHILE_NS: u64 = 3_600_000_000_000;
    const CLOCK_REALTIME: usize = 0;
    let mut now = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let asked =
        unsafe { sys::call(nr::CLOCK_GETTIME, &[CLOCK_REALTIME, now.as_mut_ptr() as usize]) };
    let now = now[0].wrapping_mul(1_000_000_000).wrapping_add(now[1]);
    asked.is_err() || now.saturating_sub(stat.changed_ns()) < WHILE_NS
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
