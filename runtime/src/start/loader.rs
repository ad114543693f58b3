//! Maps the program's interpreter (`ld.so`) as the kernel would, in the window.

use crate::base::sys::{self, nr};
use crate::code::executable::ExecRange;
use crate::code::jit::jit;
use crate::code::span::Span;
use crate::code::window::{map_in_window, placed, room_for};
use crate::kernel::syscalls::mapping::report_file;
use abi::layout::{page_down, page_up};
use goblin::elf64::header::{Header, ELFMAG, EM_X86_64, ET_DYN};
use goblin::elf64::program_header::{ProgramHeader, PF_R, PF_W, PF_X, PT_LOAD};

pub struct Loaded {
    pub base: u64,
    pub entry: u64,
}

fn protection(flags: u32) -> usize {
    let mut prot = 0;
    if flags & PF_R != 0 {
        prot |= sys::PROT_READ;
    }
    if flags & PF_W != 0 {
        prot |= sys::PROT_WRITE;
    }
    if flags & PF_X != 0 {
        prot |= sys::PROT_EXEC;
    }
    prot
}

/// Maps the file at zero-terminated `path`. `wanted`: its load address, where nothing is; `None`: there is
/// room for it in the window.
pub fn load(path: &core::ffi::CStr, wanted: Option<u64>) -> Result<Loaded, i32> {
    const ENOEXEC: i32 = 8;
    // SAFETY: the kernel reads the path and fills the header.
    let fd = unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, sys::O_CLOEXEC]) }? as i32;
    let mut first = [0u8; 4096];
    // SAFETY: the kernel writes at most 4096 bytes.
    let got =
        unsafe { sys::call(nr::PREAD64, &[fd as usize, first.as_mut_ptr() as usize, 4096, 0]) }?;
    let header: &Header = Header::from_bytes(first[..64].try_into().map_err(|_| ENOEXEC)?);
    let count = usize::from(header.e_phnum);
    let from = header.e_phoff as usize;
    if got < 64
        || &header.e_ident[..4] != ELFMAG
        || header.e_type != ET_DYN
        || header.e_machine != EM_X86_64
        || !from.is_multiple_of(8)
        || from + 56 * count > got
    {
        return Err(ENOEXEC);
    }
    // SAFETY: goblin's header type is plain data of 56 bytes, in bounds and aligned.
    let segments: &[ProgramHeader] =
        unsafe { core::slice::from_raw_parts(first.as_ptr().add(from).cast(), count) };
    let loads = || segments.iter().filter(|s| s.p_type == PT_LOAD);
    let end = loads().map(|s| s.p_vaddr + s.p_memsz).max().ok_or(ENOEXEC)?;
    let low = loads().map(|s| page_down(s.p_vaddr)).min().ok_or(ENOEXEC)?;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let len = page_up(end) - low;
    let candidate = match wanted {
        Some(base) => jit().packs.candidate_at(fd, base + low, len),
        None => jit().packs.candidate(fd, len),
    };
    let place = match wanted {
        // SAFETY: nothing is there but the window's reservation.
        Some(base) => unsafe { sys::mmap(base + low, len, 0, flags | sys::MAP_FIXED, -1, 0) }?,
        None => {
            let room = candidate.map_or(0, |c| room_for(&c, len));
            map_in_window(len, room, 0, flags, -1, 0)?
        }
    };
    placed(place);
    if wanted.is_some() {
        jit().packs.had_besides(place..place + len);
    }
    let base = place - low;
    if let Some(candidate) = candidate {
        jit().packs.expect(candidate, base, len);
    }
    for s in loads() {
        map_segment(fd, base, s)?;
    }
    // The gaps between segments stay reserved, as the kernel leaves them unmapped; harmless.
    // SAFETY: no memory involved.
    unsafe { sys::call(nr::CLOSE, &[fd as usize]) }?;
    report_file(base, page_up(end) - low, 0, path.to_bytes());
    Ok(Loaded { base, entry: base + header.e_entry })
}

fn map_segment(fd: i32, base: u64, s: &ProgramHeader) -> Result<(), i32> {
    let start = page_down(base + s.p_vaddr);
    let file_end = base + s.p_vaddr + s.p_filesz;
    let memory_end = page_up(base + s.p_vaddr + s.p_memsz);
    let prot = protection(s.p_flags);
    let real = prot & !sys::PROT_EXEC | if prot & sys::PROT_EXEC != 0 { sys::PROT_READ } else { 0 };
    let flags = sys::MAP_PRIVATE | sys::MAP_FIXED;
    // SAFETY: inside the reservation of this image.
    unsafe {
        sys::mmap(start, page_up(file_end) - start, real, flags, fd, page_down(s.p_offset))?;
        if s.p_memsz > s.p_filesz {
            let zeros = page_up(file_end) - file_end;
            if real & sys::PROT_WRITE != 0 {
                core::ptr::write_bytes(file_end as *mut u8, 0, zeros as usize);
            }
            if memory_end > page_up(file_end) {
                let flags = flags | sys::MAP_ANONYMOUS;
                sys::mmap(page_up(file_end), memory_end - page_up(file_end), real, flags, -1, 0)?;
            }
        }
    }
    if prot & sys::PROT_EXEC != 0 {
        let mut jit = jit();
        jit.add_executable(ExecRange {
            span: Span::new(start, page_up(file_end)),
            writable: prot & sys::PROT_WRITE != 0,
            file: true,
            shared: false,
        });
        jit.add_file(start, page_up(file_end), fd, page_down(s.p_offset), true);
    }
    Ok(())
}
