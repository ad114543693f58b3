//! The kernel's vdso: code of the program's that the kernel has placed, with its data in front.

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
use core::ops::Range;
use goblin::elf64::program_header::{ProgramHeader, PT_LOAD};

/// It is executable, in the program's eyes.
pub fn add(start: &Start) {
    let Some(at) = start.get(SYSINFO_EHDR).filter(|&at| at != 0) else { return };
    // SAFETY: the kernel maps an ELF image there, program headers in its first page.
    let end = unsafe {
        let header = &*(at as *const goblin::elf64::header::Header);
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
    let Some(maps) = maps::read() else { return };
    for (at, end) in maps.split(|&b| b == b'\n').filter_map(piece) {
        // SAFETY: nobody has been told where it is. Where the kernel refuses, it stays, and nothing leads
        // there but an address that the program has made up.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, (end - at) as usize]) };
    }
}

/// Moves it, with its data, out of the window, where the kernel has placed it in the way of what has
/// to lie in reach of the program's code. False if that cannot be done.
pub fn move_away(start: &Start) -> bool {
    let Some(maps) = maps::read() else { return false };
    let pieces: Vec<(u64, u64)> = maps.split(|&b| b == b'\n').filter_map(piece).collect();
    let from = pieces.iter().map(|p| p.0).min().unwrap_or(0);
    let end = pieces.iter().map(|p| p.1).max().unwrap_or(0);
    // Nothing in between may belong to anybody else.
    if from == end || pieces.iter().map(|p| p.1 - p.0).sum::<u64>() != end - from {
        return false;
    }
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let Ok(to) = own(end - from, 0, flags, -1, 0) else { return false };
    const FLAGS: usize = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;
    for (piece, piece_end) in pieces {
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
    use super::piece;

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
