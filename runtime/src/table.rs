//! The look-up tables: from the low half of an original code address to its translation.
//!
//! Only the pieces that belong to executable memory of the program are mapped, privately, from
//! a small file that is filled with the addresses of the miss stubs: an entry that was never set
//! leads there without a compare.

use crate::stubs::{stub_miss, stub_return_miss};
use crate::sys::{self, nr};
use abi::layout::{TableShape, NEVER_CODE, PAGE, WINDOW_SIZE};
use abi::options::Options;
use abi::thread::{STUB_MISS, TARGET};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Entries of a table that the file holds, all alike.
const FILE_ENTRIES: u64 = 1 << 17;
/// It is written in pieces of this many bytes.
const PIECE: u64 = 64 << 10;

/// What a look-up was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    Return,
    Jump,
}

/// All tables of the process.
pub struct Tables {
    jumps: Table,
    returns: Option<Table>,
    /// Descriptor of the file that they are mapped from, or -1.
    fd: i32,
    window: u64,
    /// High halves of addresses outside the window that have been given a landing page.
    landings: Vec<u32>,
}

impl Tables {
    pub fn new(window: u64, options: Options) -> Tables {
        let shape = options.jump_table();
        let jumps = Table { shape, place: 0, miss: stub_miss as *const () as u64 };
        let returns = options.return_table().map(|shape| Table {
            shape,
            place: jumps.file_len(),
            miss: stub_return_miss as *const () as u64,
        });
        let mut tables = Tables { jumps, returns, fd: -1, window, landings: Vec::new() };
        tables.fd = tables.file().unwrap_or(-1);
        if let Some(returns) = &tables.returns {
            let never = u64::from(NEVER_CODE);
            returns.cover(tables.fd, never, never + PAGE);
        }
        tables
    }

    fn file(&self) -> Result<i32, i32> {
        let name = c"deprewrite-table";
        const MFD_CLOEXEC: usize = 1;
        // SAFETY: the kernel reads the name.
        let fd = unsafe { sys::call(nr::MEMFD_CREATE, &[name.as_ptr() as usize, MFD_CLOEXEC]) }?;
        let fd = crate::descriptors::hide(fd as i32);
        self.each().try_for_each(|table| table.write(fd))?;
        Ok(fd)
    }

    fn each(&self) -> impl Iterator<Item = &Table> {
        [&self.jumps].into_iter().chain(&self.returns)
    }

    fn in_window(&self, address: u64) -> bool {
        address.wrapping_sub(self.window) < WINDOW_SIZE
    }

    /// Bytes of code whose entries share a page of the table for `what`.
    pub fn code_of_page(&self, what: For) -> u64 {
        PAGE / self.table(what).shape.entry
    }

    fn table(&self, what: For) -> &Table {
        match (what, &self.returns) {
            (For::Return, Some(table)) => table,
            _ => &self.jumps,
        }
    }

    /// Makes entries for `start..end` (page-aligned): all of them miss.
    pub fn cover(&mut self, start: u64, end: u64) {
        if self.in_window(start) && self.in_window(end - 1) {
            return self.each().for_each(|table| table.cover(self.fd, start, end));
        }
        // Code outside the window has no entries, but a look-up of its low half should miss rather
        // than fault, unless code in the window has that low half.
        if start >> 32 == (end - 1) >> 32 && self.fd != -1 {
            self.each().for_each(|table| table.cover_free(self.fd, start, end));
        }
        if self.returns.is_some() {
            self.land(start, end);
        }
    }

    /// Drops the entries for `start..end`.
    pub fn uncover(&self, start: u64, end: u64) {
        if self.in_window(start) && self.in_window(end - 1) {
            self.each().for_each(|table| table.uncover(start, end));
        }
    }

    /// Points the entry of `address`, which [`Tables::cover`] has made, at `code`.
    pub fn set(&self, what: For, address: u64, code: u64) {
        if self.in_window(address) {
            self.table(what).set(address, code);
        }
    }

    /// Lets `address` miss again.
    pub fn clear(&self, address: u64) {
        if self.in_window(address) {
            self.each().for_each(|table| table.set(address, table.miss));
        }
    }

    /// A return to code outside the window keeps its high half: it lands, with the low half of the
    /// miss stub, on a page of ours that goes on to the runtime. Where there is none (the place is
    /// taken), it faults, and the handler does the same.
    fn land(&mut self, start: u64, end: u64) {
        for high in start >> 32..=(end - 1) >> 32 {
            let half = high as u32;
            if half == (self.window >> 32) as u32 || self.landings.contains(&half) {
                continue;
            }
            self.landings.push(half);
            let stub = stub_return_miss as *const () as u64 & 0xffff_ffff;
            let _ = landing(high << 32 | stub, half);
        }
    }
}

/// Writes the code of a landing page: `mov dword gs:[TARGET + 4], high; jmp gs:[STUB_MISS]`.
fn landing(at: u64, high: u32) -> Result<(), i32> {
    let mut code = instrument::emit::Code { bytes: Vec::new(), base: at };
    code.store_imm(TARGET + 4, high);
    code.jump_gs(STUB_MISS);
    let page = abi::layout::page_down(at);
    let len = abi::layout::page_up(at + code.bytes.len() as u64) - page;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    map_free(page, len, flags, -1, 0)?;
    // SAFETY: a new mapping; only this function knows of it.
    unsafe {
        core::ptr::copy_nonoverlapping(code.bytes.as_ptr(), at as *mut u8, code.bytes.len());
        let prot = sys::PROT_READ | sys::PROT_EXEC;
        sys::call(nr::MPROTECT, &[page as usize, len as usize, prot])?;
    }
    Ok(())
}

/// Maps `start..start + len`, readable and writable, where nothing is.
fn map_free(start: u64, len: u64, flags: usize, fd: i32, offset: u64) -> Result<(), i32> {
    const FIXED_NOREPLACE: usize = 0x10_0000;
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: replaces nothing.
    let mapped = unsafe { sys::mmap(start, len, prot, flags | FIXED_NOREPLACE, fd, offset) }?;
    if mapped != start {
        // Linux before 4.17 takes the address for a hint.
        // SAFETY: just mapped.
        unsafe { sys::call(nr::MUNMAP, &[mapped as usize, len as usize]) }?;
        return Err(sys::EEXIST);
    }
    Ok(())
}

struct Table {
    shape: TableShape,
    /// Where its part of the file starts.
    place: u64,
    /// Where an entry leads that was never set.
    miss: u64,
}

impl Table {
    fn file_len(&self) -> u64 {
        FILE_ENTRIES * self.shape.entry
    }

    /// As [`Tables::cover`].
    fn cover(&self, fd: i32, start: u64, end: u64) {
        let first = self.shape.entry_of(start);
        let last = first + self.shape.entry * (end - start);
        let mut at = first;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        while at < last {
            let len = self.file_len().min(last - at);
            let flags = sys::MAP_PRIVATE | sys::MAP_FIXED | sys::MAP_NORESERVE;
            let mapped = match fd {
                -1 => Err(0),
                // SAFETY: this part of the address space is the table's.
                fd => unsafe { sys::mmap(at, len, prot, flags, fd, self.place) },
            };
            if mapped.is_err() {
                // SAFETY: as above.
                let anonymous =
                    unsafe { sys::mmap(at, len, prot, flags | sys::MAP_ANONYMOUS, -1, 0) };
                if anonymous.is_err() {
                    crate::die!("no address space for the table of translations");
                }
                self.fill(at, len);
            }
            at += len;
        }
        const MADV_DONTDUMP: usize = 16;
        let args = [first as usize, (last - first) as usize, MADV_DONTDUMP];
        // SAFETY: just mapped.
        let _ = unsafe { sys::call(nr::MADVISE, &args) };
    }

    /// As [`Table::cover`], but what is there stays as it is.
    fn cover_free(&self, fd: i32, start: u64, end: u64) {
        let (mut at, last) = (self.shape.entry_of(start), self.shape.entry_of(end - 1));
        while at < last {
            let len = self.file_len().min(abi::layout::page_up(last - at));
            let flags = sys::MAP_PRIVATE | sys::MAP_NORESERVE;
            let _ = map_free(at, len, flags, fd, self.place);
            at += len;
        }
    }

    fn uncover(&self, start: u64, end: u64) {
        let (at, len) = (self.shape.entry_of(start), self.shape.entry * (end - start));
        // SAFETY: this part of the address space is the table's.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
    }

    fn set(&self, address: u64, code: u64) {
        let entry = self.shape.entry_of(address);
        // SAFETY: the entry is mapped; other threads read it as one word.
        unsafe {
            match self.shape.entry {
                4 => (*(entry as *const AtomicU32)).store(code as u32, Release),
                _ => (*(entry as *const AtomicU64)).store(code, Release),
            }
        }
    }

    fn fill(&self, at: u64, len: u64) {
        let word = match self.shape.entry {
            4 => self.miss << 32 | self.miss & 0xffff_ffff,
            _ => self.miss,
        };
        // SAFETY: freshly mapped memory of this length.
        unsafe { core::slice::from_raw_parts_mut(at as *mut u64, (len / 8) as usize) }.fill(word);
    }

    /// Appends its part to the file.
    fn write(&self, fd: i32) -> Result<(), i32> {
        // Written rather than mapped and filled: that would cost a page fault each.
        let at = sys::anonymous(PIECE)?;
        self.fill(at, PIECE);
        let pieces = [[at, PIECE]; (8 * FILE_ENTRIES / PIECE) as usize];
        let count = (self.file_len() / PIECE) as usize;
        // SAFETY: the kernel reads the pieces.
        let written =
            unsafe { sys::call(nr::WRITEV, &[fd as usize, pieces.as_ptr() as usize, count]) };
        // SAFETY: mapped above.
        unsafe { sys::call(nr::MUNMAP, &[at as usize, PIECE as usize]) }?;
        match written {
            Ok(n) if n as u64 == self.file_len() => Ok(()),
            Ok(_) => Err(sys::ENOMEM),
            Err(errno) => Err(errno),
        }
    }
}
