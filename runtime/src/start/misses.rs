//! The part of the output that the look-up tables are mapped from ([`abi::misses`]): the kernel has mapped it, but
//! only a descriptor of the file leads to further mappings of it.
//!
//! Where there is none (no `/proc`, or a file that may be executed but not read), the tables make a file.

use crate::base::descriptors;
use crate::base::sys::{self, nr};
use crate::code::table::{map_free_with, Prepared};
use abi::image::ImageHeader;
use abi::layout::PAGE;
use abi::misses::{Misses, MISS_CODE};
use abi::options::Options;
use goblin::elf64::header::Header;
use goblin::elf64::program_header::{ProgramHeader, PT_LOAD};

/// Most program headers that are looked at.
const MOST: usize = 64;

/// Finds it, and maps its code if that is used.
///
/// # Safety
/// The rewriter made the header, of the file that is mapped at the window.
pub unsafe fn find(header: &ImageHeader, window: u64, options: Options) -> Option<Prepared> {
    let misses = Misses::of(header)?;
    if window != 0 && !options.process.high_tables {
        return None;
    }
    let path = c"/proc/self/exe".as_ptr() as usize;
    // SAFETY: the kernel reads the path.
    let fd = unsafe { sys::call(nr::OPEN, &[path, sys::O_CLOEXEC]) }.ok()? as i32;
    let offset = offset_of(fd, header.misses).filter(|offset| {
        let mut word = [0u64];
        // SAFETY: as promised; the kernel has mapped the segment. A word is any bytes.
        let (mapped, got) = unsafe {
            let mapped = *((window + header.misses + misses.jumps()) as *const u64);
            (mapped, read(fd, offset + misses.jumps(), &mut word))
        };
        got == 1 && word == [mapped]
    });
    let needs_code = window != 0 && misses.jump_entry == Some(8);
    let offset = offset.filter(|&offset| !needs_code || map_code(fd, offset).is_ok());
    if offset.is_none() {
        // SAFETY: opened above.
        let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
    }
    Some(Prepared { offset: offset?, fd: descriptors::hide(fd), misses })
}

/// Where the segment that starts at `address` lies in the file. (Where the kernel has put the program headers in memory is
/// not known any more when the program has been moved.)
fn offset_of(fd: i32, address: u64) -> Option<u64> {
    let mut first = [Header::default()];
    let mut table = [ProgramHeader::default(); MOST];
    // SAFETY: both are nothing but numbers, in the order of the file.
    let (headers, segments) = unsafe {
        let headers = read(fd, 0, &mut first);
        (headers, read(fd, first[0].e_phoff, &mut table))
    };
    let count = usize::from(first[0].e_phnum).min(segments);
    let segments = table.get(..count).filter(|_| headers == 1)?;
    let segment = segments.iter().find(|p| p.p_type == PT_LOAD && p.p_vaddr == address)?;
    Some(segment.p_offset).filter(|offset| offset.is_multiple_of(PAGE))
}

/// Reads from `offset` on; returns how many items there were.
///
/// # Safety
/// Any bytes are a `T`.
unsafe fn read<T>(fd: i32, offset: u64, to: &mut [T]) -> usize {
    let args = [fd as usize, to.as_mut_ptr() as usize, size_of_val(to), offset as usize];
    // SAFETY: the kernel writes at most that many bytes, which are of the type, as promised.
    unsafe { sys::call(nr::PREAD64, &args) }.unwrap_or(0) / size_of::<T>()
}

fn map_code(fd: i32, offset: u64) -> Result<(), i32> {
    let prot = sys::PROT_READ | sys::PROT_EXEC;
    map_free_with(MISS_CODE, PAGE, prot, sys::MAP_PRIVATE, fd, offset)
}
