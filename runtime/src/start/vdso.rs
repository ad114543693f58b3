//! The kernel's vdso: code of the program's that the kernel has placed, with its data in front.

use crate::base::facts::Vdso;
use crate::base::maps;
use crate::base::own::own;
use crate::base::sys::{self, nr};
use crate::code::executable::ExecRange;
use crate::code::jit::jit;
use crate::code::span::Span;
use crate::start::stack::at::SYSINFO_EHDR;
use crate::start::stack::Start;
use abi::layout::{page_up, PAGE};
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::Range;
use goblin::elf64::header::Header;
use goblin::elf64::program_header::{ProgramHeader, PT_LOAD};
use goblin::elf64::section_header::{SectionHeader, SHT_DYNSYM};
use goblin::elf64::sym::Sym;

/// It is executable, in the program's eyes.
pub fn add(start: &Start) {
    let Some(at) = start.get(SYSINFO_EHDR).filter(|&at| at != 0) else { return };
    // SAFETY: the kernel maps an ELF image there, program headers in its first page.
    let end = unsafe {
        let header = &*(at as *const Header);
        let first = (at + header.e_phoff) as *const ProgramHeader;
        core::slice::from_raw_parts(first, usize::from(header.e_phnum))
            .iter()
            .filter(|p| p.p_type == PT_LOAD)
            .map(|p| at + p.p_vaddr + p.p_memsz)
            .max()
    };
    let end = page_up(end.unwrap_or(at + PAGE));
    // SAFETY: stays readable. A kernel that has sealed it may refuse; nothing leads there then but an
    // address that the program has made up.
    let _ = unsafe { sys::call(nr::MPROTECT, &[at as usize, (end - at) as usize, sys::PROT_READ]) };
    let range = ExecRange { span: Span::new(at, end), writable: false, file: true, shared: false };
    let mut jit = jit();
    jit.add_vdso(range.span);
    jit.add_executable(range);
}

/// Takes it away: its functions read what the kernel writes, when it likes. A program without it makes
/// system calls.
pub fn remove(start: &Start) {
    start.ignore(SYSINFO_EHDR);
    for (at, end) in pieces() {
        // SAFETY: nobody has been told where it is. Where the kernel refuses, it stays, and nothing leads
        // there but an address that the program has made up.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, (end - at) as usize]) };
    }
}

/// Takes it away, as [`remove`] does, and keeps it for the runtime, which asks it for the program: that costs a tenth of
/// what the kernel takes. Where it cannot be moved, or may not be used, there is none.
pub fn keep(start: &Start) -> Vdso {
    let pieces = pieces();
    let image = pieces.iter().find(|piece| Some(piece.0) == start.get(SYSINFO_EHDR));
    let moved = image.filter(|_| may_be_used() && moved(start, &pieces));
    let at = moved.and_then(|&(from, end)| Some((start.get(SYSINFO_EHDR)?, end - from)));
    let vdso = at.map(|(at, len)| found(at..at + len)).unwrap_or_default();
    match vdso.code.is_empty() {
        true => remove(start),
        false => start.ignore(SYSINFO_EHDR),
    }
    vdso
}

/// Whether the time stamp counter, which it reads, is not forbidden.
fn may_be_used() -> bool {
    const PR_GET_TSC: usize = 25;
    const PR_TSC_ENABLE: u32 = 1;
    let mut allowed = 0u32;
    // SAFETY: the kernel writes to the word.
    let asked = unsafe { sys::call(nr::PRCTL, &[PR_GET_TSC, &raw mut allowed as usize]) };
    asked.is_ok() && allowed == PR_TSC_ENABLE
}

/// What there is of it in the ELF image that lies there.
fn found(code: Range<u64>) -> Vdso {
    let (at, len) = (code.start, (code.end - code.start) as usize);
    // SAFETY: the kernel has made the image and mapped it, readable, and nobody takes it away.
    let image = unsafe { core::slice::from_raw_parts(at as *const u8, len) };
    let function = |name| function(image, name).map_or(0, |value| at + value);
    Vdso {
        code,
        clock_gettime: function(b"__vdso_clock_gettime"),
        gettimeofday: function(b"__vdso_gettimeofday"),
        time: function(b"__vdso_time"),
        getcpu: function(b"__vdso_getcpu"),
    }
}

/// Where the function of this name begins in an ELF image.
fn function(image: &[u8], name: &[u8]) -> Option<u64> {
    let word = |at: usize| {
        let bytes = image.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let half = |at: usize| Some(word(at)? & 0xffff_ffff);
    let sections = word(offset_of!(Header, e_shoff))? as usize;
    let count = image.get(offset_of!(Header, e_shnum)..)?.first_chunk::<2>()?;
    let section = |n: usize| sections + n * size_of::<SectionHeader>();
    let field = |n: usize, of: usize| Some(word(section(n) + of)? as usize);
    let symbols = (0..u16::from_le_bytes(*count).into()).find(|&n| {
        half(section(n) + offset_of!(SectionHeader, sh_type)) == Some(SHT_DYNSYM.into())
    })?;
    let strings = half(section(symbols) + offset_of!(SectionHeader, sh_link))? as usize;
    let names = image.get(field(strings, offset_of!(SectionHeader, sh_offset))?..)?;
    let first = field(symbols, offset_of!(SectionHeader, sh_offset))?;
    let len = field(symbols, offset_of!(SectionHeader, sh_size))?;
    let symbol = (first..first + len).step_by(size_of::<Sym>()).find(|at| {
        let from = half(at + offset_of!(Sym, st_name)).and_then(|from| names.get(from as usize..));
        from.and_then(|from| from.strip_prefix(name)).is_some_and(|rest| rest.first() == Some(&0))
    })?;
    let value = word(symbol + offset_of!(Sym, st_value))?;
    (value != 0 && value < image.len() as u64).then_some(value)
}

/// Moves it, with its data, out of the window, where the kernel has placed it in the way of what has
/// to lie in reach of the program's code. False if that cannot be done.
pub fn move_away(start: &Start) -> bool {
    moved(start, &pieces())
}

/// The same, of these pieces.
fn moved(start: &Start, pieces: &[(u64, u64)]) -> bool {
    let from = pieces.iter().map(|p| p.0).min().unwrap_or(0);
    let end = pieces.iter().map(|p| p.1).max().unwrap_or(0);
    // Nothing in between may belong to anybody else.
    if from == end || pieces.iter().map(|p| p.1 - p.0).sum::<u64>() != end - from {
        return false;
    }
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let Ok(to) = own(end - from, 0, flags, -1, 0) else { return false };
    const FLAGS: usize = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;
    for &(piece, piece_end) in pieces {
        let (at, len) = (piece as usize, (piece_end - piece) as usize);
        let new = (to + (piece - from)) as usize;
        // SAFETY: nobody has been told yet where it is, and the new place was just reserved.
        if unsafe { sys::call(nr::MREMAP, &[at, len, len, FLAGS, new]) }.is_err() {
            return false;
        }
    }
    if let Some(at) = start.get(SYSINFO_EHDR).filter(|at| (from..end).contains(at)) {
        start.set(SYSINFO_EHDR, to + (at - from));
    }
    true
}

/// It and its data, as far as the kernel tells.
fn pieces() -> Vec<(u64, u64)> {
    let maps = maps::read().unwrap_or_default();
    maps.split(|&b| b == b'\n').filter_map(piece).collect()
}

/// The range in a line of /proc/self/maps, if it is of the vdso or its data.
fn piece(line: &[u8]) -> Option<(u64, u64)> {
    let name = line.rsplit(|&b| b == b' ').next()?;
    if name != b"[vdso]" && !name.starts_with(b"[vvar") {
        return None;
    }
    maps::range(line)
}

/// Where the mapping of that name is.
pub fn mapping_of(name: &[u8]) -> Option<Range<u64>> {
    let maps = maps::read()?;
    let line = maps.split(|&b| b == b'\n').find(|line| line.ends_with(name))?;
    maps::range(line).map(|(start, end)| start..end)
}

#[cfg(test)]
mod tests {
    use super::{function, piece};

    #[test]
    fn functions_are_found_in_the_image_of_this_process() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let line = maps.split(|&b| b == b'\n').find(|line| line.ends_with(b"[vdso]"));
        let Some((start, end)) = line.and_then(crate::base::maps::range) else {
            std::println!("skipped: this process has no vdso");
            return;
        };
        // SAFETY: mapped, and it stays.
        let image =
            unsafe { core::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
        let time = function(image, b"__vdso_time").unwrap();
        // SAFETY: it takes a null pointer, and returns seconds.
        let told = unsafe {
            let time: extern "C" fn(u64) -> i64 = core::mem::transmute(start + time);
            time(0)
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(now.as_secs().abs_diff(told as u64) < 60);
        assert_eq!(function(image, b"__vdso_tim"), None);
        let cut = image.get(..image.len() / 2).unwrap();
        assert_eq!(function(cut, b"__vdso_none"), None);
        assert_eq!(function(&[], b"__vdso_time"), None);
    }

    #[test]
    fn pieces_are_those_of_the_vdso() {
        let line = b"7ffff7fc5000-7ffff7fc9000 r--p 00000000 00:00 0                  [vvar]";
        assert_eq!(piece(line), Some((0x7fff_f7fc_5000, 0x7fff_f7fc_9000)));
        let line = b"7ffff7fc9000-7ffff7fcb000 r--p 00000000 00:00 0            [vvar_vclock]";
        assert_eq!(piece(line), Some((0x7fff_f7fc_9000, 0x7fff_f7fc_b000)));
        let line = b"7ffff7fcb000-7ffff7fcd000 r-xp 00000000 00:00 0                  [vdso]";
        assert_eq!(piece(line), Some((0x7fff_f7fc_b000, 0x7fff_f7fc_d000)));
        assert_eq!(piece(b"7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0  [stack]"), None);
        assert_eq!(piece(b""), None);
    }
}
