//! The program's heap end, and the places that the runtime chooses in the window.

use crate::process::process;
use crate::sys;
use abi::layout::{page_up, PAGE};

/// The virtual `brk`: the heap stays behind the program's own segments, where it would be without
/// the segments that were added.
pub struct Brk {
    pub start: u64,
    pub current: u64,
    /// End of what is mapped.
    mapped: u64,
    /// The heap cannot grow beyond.
    pub limit: u64,
}

impl Brk {
    pub fn new(start: u64, limit: u64) -> Brk {
        Brk { start, current: start, mapped: page_up(start), limit }
    }

    /// `brk(wanted)`: the new end, or the old one if it cannot be had.
    pub fn set(&mut self, wanted: u64) -> u64 {
        if wanted < self.start || wanted > self.limit {
            return self.current;
        }
        let end = page_up(wanted);
        if end > self.mapped {
            let prot = sys::PROT_READ | sys::PROT_WRITE;
            let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED_NOREPLACE;
            // SAFETY: NOREPLACE: nothing is there.
            match unsafe { sys::mmap(self.mapped, end - self.mapped, prot, flags, -1, 0) } {
                Ok(at) if at == self.mapped => {}
                Ok(at) => {
                    // SAFETY: an old kernel placed it elsewhere; it is new.
                    let _ = unsafe {
                        sys::call(sys::nr::MUNMAP, &[at as usize, (end - self.mapped) as usize])
                    };
                    return self.current;
                }
                Err(_) => return self.current,
            }
        } else if end < self.mapped {
            // SAFETY: the program gives this part of its heap back.
            let _ = unsafe {
                sys::call(sys::nr::MUNMAP, &[end as usize, (self.mapped - end) as usize])
            };
        }
        self.mapped = end;
        self.current = wanted;
        wanted
    }
}

/// Looks for `len` free bytes in the part of the window where libraries go and maps them with
/// `prot`, `flags`, `fd` and `offset` as the program asked.
pub fn map_in_window(
    len: u64,
    prot: usize,
    flags: usize,
    fd: i32,
    offset: u64,
) -> Result<u64, i32> {
    let area = match process().header.flags & abi::image::flags::PIE {
        0 => abi::layout::LIBRARIES_FIXED,
        _ => abi::layout::LIBRARIES_PIE,
    };
    let (low, high) = (process().window + area.start, process().window + area.end);
    let len = page_up(len);
    let mut next = process().jit.lock().library_top(high);
    while next >= low + len {
        let at = (next - len) & !(PAGE - 1);
        // SAFETY: NOREPLACE: nothing is there.
        match unsafe { sys::mmap(at, len, prot, flags | sys::MAP_FIXED_NOREPLACE, fd, offset) } {
            Ok(got) if got == at => {
                process().jit.lock().set_library_top(at);
                return Ok(at);
            }
            Ok(got) => {
                // SAFETY: an old kernel placed it elsewhere; it is new.
                let _ = unsafe { sys::call(sys::nr::MUNMAP, &[got as usize, len as usize]) };
                return Err(sys::ENOMEM);
            }
            Err(sys::EEXIST) => next = at - (1 << 20).min(at),
            Err(errno) => return Err(errno),
        }
    }
    Err(sys::ENOMEM)
}
