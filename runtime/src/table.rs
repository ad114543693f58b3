//! The look-up table: from the low half of an original code address to its translation.
//!
//! Only the pieces that belong to executable memory of the program are mapped, privately, from a
//! small file that is filled with the address of the miss stub: an entry that was never set leads
//! there without a compare.

use crate::stubs::stub_miss;
use crate::sys::{self, nr};
use abi::layout::{TABLE_BASE, WINDOW_SIZE};
use core::sync::atomic::{AtomicU64, Ordering::*};

const FILE_LEN: u64 = 1 << 20;
/// It is written in pieces of this size.
const PIECE: u64 = 64 << 10;

pub struct Table {
    /// Descriptor of the file, or -1.
    pub fd: i32,
    window: u64,
}

impl Table {
    pub fn new(window: u64) -> Table {
        Table { fd: miss_file().unwrap_or(-1), window }
    }

    fn in_window(&self, address: u64) -> bool {
        address.wrapping_sub(self.window) < WINDOW_SIZE
    }

    fn entry(&self, address: u64) -> u64 {
        TABLE_BASE + 8 * u64::from(address as u32)
    }

    /// Makes entries for `start..end` (page-aligned, in the window): all of them miss.
    pub fn cover(&self, start: u64, end: u64) {
        if !self.in_window(start) || !self.in_window(end - 1) {
            return;
        }
        let (mut at, last) = (self.entry(start), self.entry(start) + 8 * (end - start));
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        while at < last {
            let len = FILE_LEN.min(last - at);
            let flags = sys::MAP_PRIVATE | sys::MAP_FIXED | sys::MAP_NORESERVE;
            let mapped = match self.fd {
                -1 => Err(0),
                // SAFETY: this part of the address space is the table's.
                fd => unsafe { sys::mmap(at, len, prot, flags, fd, 0) },
            };
            if mapped.is_err() {
                // SAFETY: as above.
                let anonymous =
                    unsafe { sys::mmap(at, len, prot, flags | sys::MAP_ANONYMOUS, -1, 0) };
                if anonymous.is_err() {
                    crate::die!("no address space for the table of translations");
                }
                fill(at, len);
            }
            const MADV_DONTDUMP: usize = 16;
            // SAFETY: just mapped.
            let _ = unsafe { sys::call(nr::MADVISE, &[at as usize, len as usize, MADV_DONTDUMP]) };
            at += len;
        }
    }

    /// Drops the entries for `start..end`.
    pub fn uncover(&self, start: u64, end: u64) {
        if self.in_window(start) && self.in_window(end - 1) {
            let len = 8 * (end - start);
            // SAFETY: this part of the address space is the table's.
            let _ = unsafe { sys::call(nr::MUNMAP, &[self.entry(start) as usize, len as usize]) };
        }
    }

    /// Points the entry of `address`, which [`Table::cover`] has made, at `code`.
    pub fn set(&self, address: u64, code: u64) {
        if self.in_window(address) {
            // SAFETY: the entry is mapped; other threads read it as one word.
            unsafe { (*(self.entry(address) as *const AtomicU64)).store(code, Release) };
        }
    }

    /// Lets `address` miss again.
    pub fn clear(&self, address: u64) {
        self.set(address, stub_miss as *const () as u64);
    }
}

fn fill(at: u64, len: u64) {
    let miss = stub_miss as *const () as u64;
    // SAFETY: freshly mapped memory of this length.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u64, (len / 8) as usize) }.fill(miss);
}

fn miss_file() -> Result<i32, i32> {
    let name = c"deprewrite-table";
    const MFD_CLOEXEC: usize = 1;
    // SAFETY: the kernel reads the name.
    let fd = unsafe { sys::call(nr::MEMFD_CREATE, &[name.as_ptr() as usize, MFD_CLOEXEC]) }? as i32;
    let fd = crate::descriptors::hide(fd);
    // Written rather than mapped and filled: that would cost a page fault each.
    let at = sys::anonymous(PIECE)?;
    fill(at, PIECE);
    let pieces = [[at, PIECE]; (FILE_LEN / PIECE) as usize];
    let args = [fd as usize, pieces.as_ptr() as usize, pieces.len()];
    // SAFETY: the kernel reads the pieces.
    let written = unsafe { sys::call(nr::WRITEV, &args) };
    // SAFETY: mapped above.
    unsafe { sys::call(nr::MUNMAP, &[at as usize, PIECE as usize]) }?;
    match written {
        Ok(n) if n as u64 == FILE_LEN => Ok(fd),
        Ok(_) => Err(sys::ENOMEM),
        Err(errno) => Err(errno),
    }
}
