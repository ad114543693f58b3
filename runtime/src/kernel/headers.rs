//! The ELF header and the program headers in memory: the program reads its own, and who looks at the
//! process when it has died, those of the output.

use crate::base::facts::facts;
use crate::base::sys::{self, nr};
use abi::image::ImageHeader;
use abi::layout::{page_down, page_up};
use goblin::elf64::program_header::{ProgramHeader, PF_W, PT_LOAD};

/// Puts the program's own ELF header and program headers back where it can read them.
///
/// # Safety
/// The header is the rewriter's, of the file that is mapped at `window`, and no code of the program has
/// run.
pub unsafe fn restore_elf_header(header: &ImageHeader, window: u64) {
    if header.elf_header_copy == 0 {
        return;
    }
    let copy = (window + header.elf_header_copy) as *const u8;
    change_headers(header, window, |own, at| {
        // SAFETY: the copy lies in the added tables, the program headers behind the ELF header.
        unsafe {
            let from = if at == 0 { copy } else { copy.add(64) };
            core::ptr::copy_nonoverlapping(from, own.as_mut_ptr(), own.len());
        }
    });
}

/// The other way round, for who looks at the process when it has died: a debugger knows the output
/// by them.
pub fn show_output_headers() {
    let facts = facts();
    if facts.header.elf_header_copy == 0 {
        return;
    }
    let path = c"/proc/self/exe".as_ptr() as usize;
    // SAFETY: the kernel reads the path.
    let Ok(fd) = (unsafe { sys::call(nr::OPEN, &[path, sys::O_CLOEXEC]) }) else { return };
    change_headers(&facts.header, facts.window, |own, at| {
        // SAFETY: the kernel fills them.
        let _ = unsafe {
            sys::call(nr::PREAD64, &[fd, own.as_mut_ptr() as usize, own.len(), at as usize])
        };
    });
    // SAFETY: opened above.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
}

/// Lets `change` write the ELF header and the program headers of the program's image, wherever its
/// segments have the file's first page; it is told where they are in the file.
fn change_headers(header: &ImageHeader, window: u64, change: impl Fn(&mut [u8], u64)) {
    let table = header.program_headers.saturating_sub(header.elf_header);
    let end = table + 56 * header.program_header_count;
    let own = window + header.elf_header_copy + 64;
    // SAFETY: in the added tables.
    let own = unsafe {
        let count = header.program_header_count as usize;
        core::slice::from_raw_parts(own as *const ProgramHeader, count)
    };
    let loads = own.iter().filter(|p| p.p_type == PT_LOAD && p.p_filesz != 0);
    for p in loads.filter(|p| page_down(p.p_offset) == 0) {
        let at = (window + p.p_vaddr - p.p_offset) as usize;
        // Behind the segment's bytes is more of the file, or there are zeros.
        let file_end = p.p_offset + p.p_filesz;
        let file_end = if p.p_memsz > p.p_filesz { file_end } else { page_up(file_end) };
        let there = file_end.min(end.max(64)) as usize;
        let len = page_up(there as u64) as usize;
        let writable = if p.p_flags & PF_W != 0 { sys::PROT_WRITE } else { 0 };
        // SAFETY: pages of the program's own image, which the kernel mapped readable.
        unsafe {
            if sys::call(nr::MPROTECT, &[at, len, sys::PROT_READ | sys::PROT_WRITE]).is_ok() {
                let bytes = core::slice::from_raw_parts_mut(at as *mut u8, there);
                if let Some(bytes) = bytes.get_mut(..64) {
                    change(bytes, 0);
                }
                // 0: no segment has it.
                let bytes = bytes.get_mut(table as usize..end as usize);
                if let Some(bytes) = bytes.filter(|_| table != 0) {
                    change(bytes, table);
                }
                let _ = sys::call(nr::MPROTECT, &[at, len, sys::PROT_READ | writable]);
            }
        }
    }
}
