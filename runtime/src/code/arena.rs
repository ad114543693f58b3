//! Memory for translated code: one piece of shared memory, mapped twice.
//!
//! The program executes the one mapping, the runtime writes through the other; nothing is ever
//! writable and executable at once. Unwritten bytes trap (`int3`).

use crate::base::census;
use crate::base::own::{not_in_dumps, own};
use crate::base::populate::{populate, Access};
use crate::base::sys::{self, nr};
use crate::code::far::{FRONT, FRONT_LEN};
use crate::code::world::CodeMemory;
use abi::ids::{CodeAddr, CodeOff};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};
use instrument::emit::Code;

pub struct Arena {
    /// Where the code runs.
    execute: u64,
    /// Where it is written.
    write: u64,
    len: u64,
    /// Bytes after which code is forgotten: all, but for torture.
    full: u64,
    used: u32,
    /// So far both mappings have their pages.
    populated: u32,
    /// The memory may be a forked child's or a parent's, too: it is not changed any more.
    shared: bool,
}

/// What lies in front of the units: no code, the look-up of far addresses, and the routine that the calls of an undo log
/// share. A signal that comes in there is delivered at the next boundary, as in any other cold code.
const FIRST: u32 = LOG_CALL.0 + LOG_CALL_LEN;
/// Where that routine is.
const LOG_CALL: CodeOff = CodeOff(FRONT.0 + FRONT_LEN);
/// Its room.
const LOG_CALL_LEN: u32 = 112;

impl Arena {
    /// Maps `len` bytes, to be executed at `at`.
    pub fn new(at: u64, len: u64) -> Result<Arena, i32> {
        let flags = sys::MAP_SHARED | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        let write = own(len, prot, flags, -1, 0)?;
        let full = len;
        let arena =
            Arena { execute: at, write, len, full, used: FIRST, populated: 0, shared: false };
        arena.map_executable()?;
        Ok(arena)
    }

    /// So many bytes are taken for all that it has (torture).
    pub fn fills_up_at(&mut self, bytes: u64) {
        self.full = bytes;
    }

    /// Duplicates the shared mapping at the place where it is executed. Other threads may be
    /// executing what is there: it is exchanged at once.
    fn map_executable(&self) -> Result<(), i32> {
        const MOVE: usize = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;
        let (from, len, to) = (self.write as usize, self.len as usize, self.execute as usize);
        // SAFETY: an old length of 0 duplicates a shared mapping; the target range is reserved for
        // the arena by the layout.
        unsafe {
            let duplicate = |args: &[usize]| sys::beyond_limits(|| sys::call(nr::MREMAP, args));
            let at = match duplicate(&[from, 0, len, sys::MREMAP_MAYMOVE]) {
                // There is no address space for a third mapping; nobody else executes the second one.
                Err(sys::ENOMEM) if census::live() <= 1 => duplicate(&[from, 0, len, MOVE, to])?,
                other => other?,
            };
            sys::call(nr::MPROTECT, &[at, len, sys::PROT_READ | sys::PROT_EXEC])?;
            if at != to {
                sys::call(nr::MREMAP, &[at, len, len, MOVE, to])?;
            }
        }
        not_in_dumps(self.write, self.len);
        not_in_dumps(self.execute, self.len);
        Ok(())
    }

    /// What a fork has left to two processes stays as it is: who changes it makes a copy, which takes
    /// the place where it is executed.
    fn separate(&mut self) {
        if !core::mem::take(&mut self.shared) {
            return;
        }
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        let flags = sys::MAP_SHARED | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED;
        // In the place of the old one, which takes no address space: the program may have used it up. The
        // old bytes are still there where they are executed.
        // SAFETY: our own mapping, and nobody writes there meanwhile.
        let copy = || unsafe { sys::mmap(self.write, self.len, prot, flags, -1, 0) };
        let Ok(copy) = sys::beyond_limits(copy) else {
            crate::die!("no memory for the code cache of a process that has forked");
        };
        populate(self.execute, self.used.into(), Access::Read);
        populate(copy, self.used.into(), Access::Write);
        // SAFETY: both mappings have at least `used` bytes, and nobody writes to the first one.
        unsafe {
            core::ptr::copy_nonoverlapping(
                self.execute as *const u8,
                copy as *mut u8,
                self.used as usize,
            )
        };
        self.populated = 0;
        if self.map_executable().is_err() {
            crate::die!("no memory for the code cache of a process that has forked");
        }
    }

    /// Writes the routine that the calls of an undo log share; returns where it is.
    pub fn put_log_call(&mut self) -> u64 {
        let code = log_call(self.live(LOG_CALL));
        self.write(LOG_CALL.0, &code.bytes);
        code.base
    }

    /// Where the code runs.
    pub fn range(&self) -> core::ops::Range<u64> {
        self.execute..self.execute + self.len
    }

    /// Gets the pages up to `end` and as many again at once, rather than by a fault each: many programs have a function
    /// or two translated when they run, and others thousands.
    fn populate(&mut self, end: u32) {
        const STEPS: core::ops::RangeInclusive<u32> = 16 << 10..=256 << 10;
        while self.populated < end {
            let at = u64::from(self.populated);
            let step = self.populated.clamp(*STEPS.start(), *STEPS.end());
            let len = u64::from(step).min(self.len - at);
            populate(self.write + at, len, Access::Write);
            populate(self.execute + at, len, Access::Read);
            self.populated += step;
        }
    }

    /// Ends the process if `len` bytes at `offset` are not all in the code cache.
    fn check(&self, offset: u32, len: usize) {
        if u64::from(offset) + len as u64 > self.len {
            crate::die!("internal error: a write outside of the code cache");
        }
    }

    /// Overwrites code that may be running.
    pub fn write(&mut self, offset: u32, code: &[u8]) {
        self.check(offset, code.len());
        self.separate();
        let to = self.write + u64::from(offset);
        // SAFETY: inside the mapping.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), to as *mut u8, code.len()) };
    }
}

impl CodeMemory for Arena {
    fn append(&mut self, code: &[u8]) {
        let end = (self.used as usize + code.len()).next_multiple_of(16);
        if end as u64 + 64 > self.len {
            crate::die!(
                "the code cache of {} MiB is full, and several threads run",
                self.len >> 20
            );
        }
        self.separate();
        self.populate(end as u32);
        self.write(self.used, code);
        self.used = end as u32;
    }

    /// The distance never crosses a cache line.
    fn patch(&mut self, at: CodeOff, target: CodeAddr) {
        let next = self.live(at).plus(4);
        let Ok(distance) = i32::try_from(target.from_start(next) as i64) else { return };
        self.check(at.0, 4);
        self.separate();
        // SAFETY: inside the mapping; a 4-byte store within a cache line is not torn.
        unsafe { ((self.write + u64::from(at.0)) as *mut i32).write_unaligned(distance) };
    }

    fn replace(&mut self, at: CodeOff, code: [u8; 5]) {
        let (at, past) = (at.0 & !7, at.0 & 7);
        debug_assert!(past + 5 <= 8);
        self.check(at, 8);
        self.separate();
        // SAFETY: inside the mapping, and aligned.
        let word = unsafe { &*((self.write + u64::from(at)) as *const AtomicU64) };
        let mut bytes = word.load(Relaxed).to_le_bytes();
        bytes[past as usize..past as usize + 5].copy_from_slice(&code);
        word.store(u64::from_le_bytes(bytes), Release);
    }

    fn live(&self, at: CodeOff) -> CodeAddr {
        CodeAddr(self.execute + u64::from(at.0))
    }

    fn offset(&self, pc: CodeAddr) -> Option<CodeOff> {
        let offset = pc.from_start(CodeAddr(self.execute));
        (offset < u64::from(self.used)).then_some(CodeOff(offset as u32))
    }

    fn used(&self) -> CodeOff {
        CodeOff(self.used)
    }

    fn room(&self) -> u64 {
        self.full.saturating_sub(self.used.into())
    }

    fn restart(&mut self) {
        self.used = FIRST;
    }

    fn forks(&mut self) {
        self.shared = true;
    }
}

/// That routine, to be executed at `at`.
fn log_call(at: CodeAddr) -> Code {
    let mut code = Code { bytes: Vec::new(), base: at.0 };
    code.log_call();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routine_of_the_undo_log_fits_into_its_room_anywhere() {
        for at in [0x7000_0000, 0x7fff_0000_0000] {
            assert!(log_call(CodeAddr(at)).bytes.len() <= LOG_CALL_LEN as usize);
        }
    }
}
