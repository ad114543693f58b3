//! Translations of libraries: found when a library is mapped, checked, and put beside it.
//!
//! A pack ([`abi::library`]) lies in the output, or in a folder that `DEP_LIBRARIES` or the output's
//! header names. When the file of a library is mapped for the first time, its head says which pack may
//! fit, and room for the code is kept behind it. When an executable segment is mapped, that segment's
//! bytes decide. A library with several has a pack for each.

use crate::base::facts::facts;
use crate::base::own::own;
use crate::base::populate::{populate, Access};
use crate::base::stat::Stat;
use crate::base::sys::{self, nr};
use crate::code::selection::Selection;
use crate::code::span::Span;
use crate::code::statics::{self, Module};
use crate::recording::trace_file::trace;
use abi::event::{Event, Left};
use abi::file::State;
use abi::ids::{LiveAddr, OrigAddr};
use abi::image::ImageHeader;
use abi::layout::page_up;
use abi::library::{
    flags, key, PackHeader, Thunks, DIRECT_THUNK, HEAD, HEADER_SIZE, INDIRECT_THUNK,
};
use abi::library::{END_OF_SHARED_WINDOWS, FIRST_SHARED_WINDOW, THUNK_ADDRESS};
use abi::options::Options;
use abi::selection::Ranges;
use alloc::vec::Vec;
use core::ops::Range;

/// A pack that is mapped.
struct Pack {
    at: u64,
    header: PackHeader,
    /// File it came from (zero-terminated); empty: the output.
    path: Vec<u8>,
    /// Where the library was mapped first: its translation stays there.
    home: Option<u64>,
}

impl Pack {
    /// Where its code lies.
    fn place(&self) -> Option<Range<u64>> {
        let start = self.home? + self.header.code_distance;
        Some(start..start + page_up(self.header.code_len()))
    }

    /// Tells the code that records nothing where it lies, if it is in place. (Most processes never need
    /// it, and each page that is written is a page of their own.)
    fn prepare_plain(&self) {
        let header = &self.header;
        let Some(base) = self.home.filter(|_| header.plain.code_len != 0) else { return };
        let recorded = base + header.code_distance;
        let code = recorded + (header.plain.code - header.tables.code);
        // SAFETY: the code is in place, nobody runs it before it is said to be ready, and that is said
        // once, as there is one home.
        if unsafe { relocate(code, &header.plain_thunks, base) }.is_ok() {
            statics::plain_is_ready(recorded);
        }
        // Else it is translated when it runs.
    }
}

/// A library whose first pages are mapped.
#[derive(Clone, Copy)]
struct Expected {
    base: u64,
    len: u64,
    /// Bytes behind that where its translation belongs.
    room: u64,
    /// `None`: there should be a pack in the folder of the header, and there is none.
    pack: Option<usize>,
}

/// All packs of the process.
#[derive(Default)]
pub struct Packs {
    list: Vec<Pack>,
    expected: Vec<Expected>,
    /// Folders with further packs, separated by colons.
    folders: Vec<u8>,
    /// The folder that the output's header names, or nothing: every library should have a pack there.
    cache: &'static [u8],
    options: u64,
    /// Of the rewriter's rules.
    rules: u64,
    avx512vl: bool,
    usable: bool,
    /// The code that records nothing is used, too.
    plain: bool,
    /// Inputs are recorded.
    leaves_spare_room: bool,
    /// In a replay: [`Packs::replays`].
    reserved: Range<u64>,
    mapped: Vec<Range<u64>>,
}

/// A replay's translation of a library may be larger by so many times the size of what it was recorded with:
/// turns are counted in more instructions, and references are recorded.
const SPARE: u64 = 3;

/// What is known about a library before it is mapped.
#[derive(Clone, Copy)]
pub struct Candidate {
    pack: Option<usize>,
    /// Bytes to keep free behind the library's `len`: its translation belongs there.
    pub room: u64,
    /// More of them, if there is much room: a replay's translation is larger.
    pub spare: u64,
    /// Where it was mapped before, if it was.
    pub home: Option<u64>,
}

impl Packs {
    /// The packs of the output. `avx512vl`: the processor has it. `runs`: it has what all of them need. `folders`: with further packs;
    /// `None`: no folder is to be trusted.
    ///
    /// # Safety
    /// The rewriter made the header, and the packs are mapped where it says.
    pub unsafe fn new(
        header: &ImageHeader,
        window: u64,
        avx512vl: bool,
        runs: bool,
        folders: Option<&[u8]>,
        rules: u64,
    ) -> Packs {
        let mut packs = Packs {
            options: header.options,
            rules,
            avx512vl,
            leaves_spare_room: Options::from_word(header.options)
                .is_some_and(|options| options.recording.inputs()),
            usable: runs && header.flags & abi::image::flags::DYNAMIC == 0,
            folders: absolute(folders.unwrap_or_default()),
            ..Packs::default()
        };
        if folders.is_some() && header.library_folder != 0 {
            let path = (window + header.library_folder) as *const core::ffi::c_char;
            // SAFETY: the rewriter put a zero-terminated path there, in what stays mapped.
            packs.cache = unsafe { core::ffi::CStr::from_ptr(path) }.to_bytes();
        }
        let mut at = window + header.libraries;
        for _ in 0..header.library_count {
            // SAFETY: as promised.
            let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, HEADER_SIZE) };
            let Some(pack) = PackHeader::from_bytes(bytes) else {
                crate::die!("damaged output file: a library's translation is not valid");
            };
            packs.list.push(Pack { at, header: pack, path: Vec::new(), home: None });
            at += pack.len;
        }
        packs
    }

    /// The pack for the library in `fd`, if there may be one.
    pub fn candidate(&mut self, fd: i32, len: u64) -> Option<Candidate> {
        let nowhere = self.list.is_empty() && self.folders.is_empty() && self.cache.is_empty();
        if !self.usable || nowhere {
            return None;
        }
        let mut head = [0u8; HEAD];
        let args = [fd as usize, head.as_mut_ptr() as usize, HEAD, 0];
        // SAFETY: the kernel writes at most that many bytes.
        let got = unsafe { sys::call(nr::PREAD64, &args) }.ok()?;
        let head = key(&head[..got]);
        // The first of its packs.
        let first = |i: usize| {
            i.checked_sub(1).is_none_or(|before| self.list[before].header.following == 0)
        };
        let all = || self.list.iter().enumerate();
        let all = || all().filter(|(i, p)| p.header.head == head && first(*i));
        // Of two copies, one that has no place yet.
        let free = all().find(|(_, p)| p.home.is_none()).map(|(i, _)| i);
        let any = all().next().map(|(i, _)| i);
        let Some(pack) = free.or(any).or_else(|| self.open_shared(head)) else {
            return (!self.cache.is_empty()).then_some(Candidate {
                pack: None,
                room: 0,
                spare: 0,
                home: None,
            });
        };
        let Pack { header, home, .. } = &self.list[pack];
        // More than the library is mapped: whatever that is for, it is not run.
        let between = header.code_distance.checked_sub(len)?;
        let of_library = &self.list[self.of_library(pack)];
        let code = of_library.iter().map(|p| page_up(p.header.code_len())).sum::<u64>();
        let spare = if self.leaves_spare_room { code * SPARE } else { 0 };
        Some(Candidate { pack: Some(pack), room: between + code, spare, home: *home })
    }

    /// All packs of the library whose first one this is.
    fn of_library(&self, first: usize) -> Range<usize> {
        let following = self.list[first].header.following as usize;
        first..(first + 1).saturating_add(following).min(self.list.len())
    }

    /// As [`Packs::candidate`], of a library that is to lie at `base`, in a replay: only if the recorded
    /// program never had anything where its translation belongs, and it is reserved.
    pub fn candidate_at(&mut self, fd: i32, base: u64, len: u64) -> Option<Candidate> {
        let candidate = self.candidate(fd, len).filter(|c| c.pack.is_some())?;
        let room = base + len..base + len + candidate.room;
        let overlaps = |other: &Range<u64>| room.start < other.end && other.start < room.end;
        let inside = self.reserved.start <= room.start && room.end <= self.reserved.end;
        let taken = self.mapped.iter().any(overlaps)
            || self
                .list
                .iter()
                .filter(|p| p.home != Some(base))
                .filter_map(Pack::place)
                .any(|p| overlaps(&p));
        (inside && !taken).then_some(candidate)
    }

    /// The process is a replay: `reserved` is where the runtime may put translations, but where the
    /// recorded program has `mapped` something at any time.
    pub fn replays(&mut self, reserved: Range<u64>, mapped: Vec<Range<u64>>) {
        (self.reserved, self.mapped) = (reserved, mapped);
    }

    /// The recorded program had something there besides.
    pub fn had_besides(&mut self, range: Range<u64>) {
        self.mapped.push(range);
    }

    /// The library of `candidate` is mapped at `base`, `len` bytes for now.
    pub fn expect(&mut self, candidate: Candidate, base: u64, len: u64) {
        self.expected.retain(|e| e.base + e.len <= base || base + len <= e.base);
        self.expected.push(Expected { base, len, room: candidate.room, pack: candidate.pack });
    }

    /// The parts of `start..end` where the translations of libraries belong that are mapped, or about to be.
    pub fn rooms(&self, start: u64, end: u64) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let room = |e: &Expected| e.base + e.len..e.base + e.len + e.room;
        let rooms = self.expected.iter().map(room);
        let rooms = rooms.map(move |room| room.start.max(start)..room.end.min(end));
        rooms.filter(|room| room.start < room.end)
    }

    /// `start..end` does not belong to a library any more. One whose first page is still there gets zeros
    /// between its segments; what its packs are for is compared.
    pub fn unmapped(&mut self, start: u64, end: u64) {
        self.expected.retain(|e| !(start..end).contains(&e.base));
    }

    /// Executable memory `range` is mapped, from `offset` in the file `fd`: puts the translation
    /// beside it, if it is the segment that was translated.
    pub fn attach(&mut self, range: Range<u64>, fd: i32, offset: u64, selection: &mut Selection) {
        let inside = |e: &&Expected| (e.base..e.base + e.len).contains(&range.start);
        let Some(&Expected { base, pack, .. }) = self.expected.iter().find(inside) else { return };
        let Some(first) = pack else {
            let left = Event::LibraryLeft { load: LiveAddr(base), reason: Left::Missing };
            trace().process_event(&left);
            return;
        };
        let is_here = |header: &PackHeader| {
            let segment = base + header.segment;
            abi::layout::page_down(segment) == range.start
                && abi::layout::page_down(header.segment_offset) == offset
                && segment + header.segment_len <= range.end
                // What lies behind the end of the file cannot be read although it is mapped.
                && file_len(fd).is_some_and(|len| header.segment_offset + header.segment_len <= len)
        };
        let Some(index) = self.of_library(first).find(|&i| is_here(&self.list[i].header)) else {
            return;
        };
        let header = self.list[index].header;
        let state = Stat::of(fd as usize).map(|stat| stat.state());
        let outcome = self.put(index, base, selection, state);
        let pack = &self.list[index];
        match outcome {
            Ok(()) => {
                let in_output = match pack.path.is_empty() {
                    true => pack.at.wrapping_sub(facts().window),
                    false => 0,
                };
                let library = Event::Library {
                    load: LiveAddr(base),
                    identity: header.identity,
                    first_window: header.tables.first_window,
                    count: header.tables.unit_count,
                    address: OrigAddr(in_output),
                    path: pack.path.as_slice(),
                };
                trace().process_event(&library);
            }
            Err(reason) => {
                let left = Event::LibraryLeft { load: LiveAddr(base), reason };
                trace().process_event(&left);
            }
        }
    }

    /// `state`: of the file that is mapped there.
    fn put(
        &mut self,
        index: usize,
        base: u64,
        selection: &mut Selection,
        state: Option<State>,
    ) -> Result<(), Left> {
        let pack = &mut self.list[index];
        let header = &pack.header;
        let runs = header.flags & flags::NEEDS_AVX512VL == 0 || self.avx512vl;
        if header.options != self.options || header.rules != self.rules || !runs {
            return Err(Left::Options);
        }
        // SAFETY: the pack is mapped, and its header is consistent.
        let own = unsafe { recorded(pack.at + header.selection, header.selection_count) };
        let span = Span::new(base + header.segment, base + header.segment + header.segment_len);
        if !selection.accepts(span, own) {
            return Err(Left::Selection);
        }
        let is_known = header.file != State::default() && Some(header.file) == state;
        // SAFETY: the segment has just been mapped, readable.
        if !is_known && unsafe { key_of(span) } != header.content {
            return Err(Left::Content);
        }
        match pack.home {
            None => {
                // SAFETY: the room behind the library was kept for this.
                unsafe { move_code(pack.at, header, base) }.map_err(|_| Left::NoMemory)?;
                pack.home = Some(base);
            }
            // Mapped again where it was: all is in place. A unit has one address for good.
            Some(home) if home == base => {
                if statics::revive(base + header.code_distance) {
                    return Ok(());
                }
            }
            Some(_) => return Err(Left::Elsewhere),
        }
        // SAFETY: the pack stays mapped, and its code is in place.
        let module = unsafe { Module::library(header, pack.at, base) };
        statics::add(module);
        if self.plain {
            self.list[index].prepare_plain();
        }
        Ok(())
    }

    /// From now on code that records nothing is used, the program's, too. Nobody runs any of it yet. Says whether it
    /// was not before.
    pub fn use_plain(&mut self) -> bool {
        let is_first = !core::mem::replace(&mut self.plain, true);
        if is_first {
            statics::plain_program_is_ready();
            self.list.iter().for_each(Pack::prepare_plain);
        }
        is_first
    }

    /// Looks for a pack in the folders.
    fn open_shared(&mut self, head: [u64; 2]) -> Option<usize> {
        let folders = core::mem::take(&mut self.folders);
        let mut found = None;
        let all = folders.split(|b| *b == b':').chain([self.cache]);
        for folder in all.filter(|f| !f.is_empty()) {
            let mut path = folder.to_vec();
            path.push(b'/');
            let name = abi::library::file_name_for(head, self.options, self.rules);
            path.extend_from_slice(name.as_bytes());
            path.push(0);
            found = self.open(path, head);
            if found.is_some() {
                break;
            }
        }
        self.folders = folders;
        found
    }

    fn open(&mut self, path: Vec<u8>, head: [u64; 2]) -> Option<usize> {
        // Whatever else has this name is not waited for.
        const O_NONBLOCK: usize = 0o4000;
        let args = [path.as_ptr() as usize, sys::O_CLOEXEC | O_NONBLOCK];
        // SAFETY: the kernel reads the path.
        let fd = unsafe { sys::call(nr::OPEN, &args) }.ok()?;
        let mapped = map_packs(fd as i32);
        // SAFETY: no memory involved.
        let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
        let (at, len) = mapped?;
        let opened = self.list.len();
        let mut next = at;
        while let Some(header) = pack_at(next, at + len) {
            let windows = header.windows();
            let taken = |p: &Pack| {
                let theirs = p.header.windows();
                windows.start < theirs.end && theirs.start < windows.end
            };
            let fits = header.head == head
                && header.flags & flags::FIXED_WINDOW == 0
                && windows.start >= FIRST_SHARED_WINDOW.into()
                && windows.end <= END_OF_SHARED_WINDOWS.into()
                && !self.list.iter().any(taken);
            if !fits {
                break;
            }
            self.list.push(Pack { at: next, header, path: path.clone(), home: None });
            next += header.len;
            if header.following == 0 && next == at + len {
                return Some(opened);
            }
        }
        self.list.truncate(opened);
        // SAFETY: mapped just now, and nobody else knows.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
        None
    }
}

/// The key of what is mapped at `span`.
///
/// # Safety
/// It can be read, and nobody changes it.
unsafe fn key_of(span: Span) -> [u64; 2] {
    let pages = span.whole_pages();
    populate(pages.start.0, pages.len(), Access::Read);
    // SAFETY: as promised.
    key(unsafe { core::slice::from_raw_parts(span.start.0 as *const u8, span.len() as usize) })
}

/// The header of the pack at `at`, if there is a whole one before `end`.
fn pack_at(at: u64, end: u64) -> Option<PackHeader> {
    if at + HEADER_SIZE as u64 > end {
        return None;
    }
    // SAFETY: in the file that is mapped.
    let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, HEADER_SIZE) };
    PackHeader::from_bytes(bytes).filter(|header| at + header.len <= end)
}

/// The pieces of code that the rewriter has chosen.
///
/// # Safety
/// So many pairs of u64 are mapped at `at`.
pub unsafe fn recorded(at: u64, count: u64) -> Ranges {
    // SAFETY: as promised. They need no alignment as they are read.
    let pairs = unsafe { core::slice::from_raw_parts(at as *const [u8; 16], count as usize) };
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ranges::new(pairs.iter().map(|pair| [word(&pair[..8]), word(&pair[8..])]))
}

/// The folders by absolute paths: the program may change its working directory, and the trace must
/// make sense elsewhere.
fn absolute(folders: &[u8]) -> Vec<u8> {
    const GETCWD: usize = 79;
    let mut here = [0u8; 4096];
    let args = [here.as_mut_ptr() as usize, here.len()];
    // SAFETY: the kernel writes a path, with its zero, into the buffer.
    let len = unsafe { sys::call(GETCWD, &args) }.unwrap_or(1).saturating_sub(1);
    let mut all = Vec::new();
    for folder in folders.split(|b| *b == b':').filter(|f| !f.is_empty()) {
        if !folder.starts_with(b"/") {
            all.extend_from_slice(&here[..len]);
            all.push(b'/');
        }
        all.extend_from_slice(folder);
        all.push(b':');
    }
    all
}

/// Maps the file of a library's packs, if it begins with one: where, and how long it is.
fn map_packs(fd: i32) -> Option<(u64, u64)> {
    let mut bytes = [0u8; HEADER_SIZE];
    let args = [fd as usize, bytes.as_mut_ptr() as usize, HEADER_SIZE, 0];
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { sys::call(nr::PREAD64, &args) }.ok()?;
    PackHeader::from_bytes(&bytes[..got])?;
    let len = file_len(fd)?;
    Some((own(len, sys::PROT_READ, sys::MAP_PRIVATE, fd, 0).ok()?, len))
}

fn file_len(fd: i32) -> Option<u64> {
    const SIZE: usize = 48 / 8;
    let mut stat = [0u64; 18];
    // SAFETY: struct stat has 144 bytes.
    unsafe { sys::call(nr::FSTAT, &[fd as usize, stat.as_mut_ptr() as usize]) }.ok()?;
    Some(stat[SIZE])
}

/// Moves the code of the pack at `pack` to where it belongs beside the library at `base`.
///
/// # Safety
/// The pack is mapped, its code has not been moved before, and nothing is at the place.
unsafe fn move_code(pack: u64, header: &PackHeader, base: u64) -> Result<(), i32> {
    const MAYMOVE_FIXED: usize = 3;
    const DONTUNMAP: usize = 4;
    let (from, to) = (pack + header.tables.code, base + header.code_distance);
    let len = page_up(header.code_len()) as usize;
    // SAFETY: as promised; the header is consistent.
    unsafe {
        // The place that it leaves must stay taken: the program would get it for its own memory,
        // between ours.
        let args = [from as usize, len, len, MAYMOVE_FIXED | DONTUNMAP, to as usize];
        if sys::call(nr::MREMAP, &args).is_err() {
            // Linux before 5.13 keeps anonymous memory only.
            sys::call(nr::MREMAP, &[from as usize, len, len, MAYMOVE_FIXED, to as usize])?;
            crate::base::own::reserve(from, len as u64);
        }
        relocate(to, &header.thunks, base)?;
        sys::call(nr::MPROTECT, &[to as usize, len, sys::PROT_READ | sys::PROT_EXEC])?;
        statics::prepare_slots(&header.tables, pack, to)?;
    }
    Ok(())
}

/// Puts the return addresses of the code at `code` into its thunks, for the library at `base`.
///
/// # Safety
/// It is the code of these thunks, nobody runs it, and this has not been done before.
unsafe fn relocate(code: u64, thunks: &Thunks, base: u64) -> Result<(), i32> {
    let Some([indirect, end]) = thunks.ends() else { return Ok(()) };
    let first = abi::layout::page_down(code + thunks.start);
    let args = [first as usize, (page_up(code + end) - first) as usize];
    let protect = |prot| {
        // SAFETY: whole pages of the code, which nobody runs.
        unsafe { sys::call(nr::MPROTECT, &[args[0], args[1], prot]) }
    };
    protect(sys::PROT_READ | sys::PROT_WRITE)?;
    populate(first, args[1] as u64, Access::Write);
    // SAFETY: as promised; the header is consistent.
    unsafe {
        add_to_each(code + thunks.start, thunks.direct, DIRECT_THUNK, base as u32);
        add_to_each(code + indirect, thunks.indirect, INDIRECT_THUNK, base as u32);
    }
    protect(sys::PROT_READ | sys::PROT_EXEC).map(drop)
}

/// Adds `add` to the return addresses of `count` thunks.
///
/// # Safety
/// They lie at `at`, `stride` bytes each, and are writable.
unsafe fn add_to_each(at: u64, count: u64, stride: u32, add: u32) {
    for i in 0..count {
        let address = (at + i * u64::from(stride) + u64::from(THUNK_ADDRESS)) as *mut u32;
        // SAFETY: as promised.
        unsafe { address.write_unaligned(address.read_unaligned().wrapping_add(add)) };
    }
}
