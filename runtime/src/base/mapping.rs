//! Memory that belongs to one value: what is read and written through it is checked to lie inside.

use crate::base::heap::is_child;
use crate::base::own::{not_in_dumps, own, KEPT_FREE};
use crate::base::populate::{populate, Access};
use crate::base::program::Plain;
use crate::base::sys::{self, nr};
use core::mem::{align_of, size_of};

/// A range of addresses that the runtime has mapped for itself. Addresses that its methods are given
/// are those of the process, and have to lie inside.
///
/// It is unmapped by [`Mapping::unmap`] only: where a value is dropped, the memory stays, or is not
/// there any more (in a forked child).
#[derive(Default)]
pub struct Mapping {
    start: u64,
    len: u64,
}

/// Of a file: up to here the kernel is kept from looking for the pages around the first one that is used, 128 KiB, most of
/// which are there: that takes 100 us, where these alone take 30.
const FEW: u64 = 32 << 10;

/// Whether all pages are got at once, rather than by a fault each. A child that has just been forked may never come to
/// most of its first ones.
fn is_populated(len: u64) -> bool {
    const FIRST: u64 = 64 << 10;
    !is_child() || len > FIRST
}

/// The caller has lost its way.
#[cold]
fn outside() -> ! {
    crate::die!("internal error: an access outside of a mapping")
}

impl Mapping {
    /// New memory, anonymous and private.
    pub fn anonymous(len: u64) -> Result<Mapping, i32> {
        let start = own(len, sys::PROT_READ | sys::PROT_WRITE, KEPT_FREE, -1, 0)?;
        Ok(Mapping { start, len })
    }

    /// Addresses that are kept free, and cannot be accessed.
    pub fn reserve(len: u64) -> Result<Mapping, i32> {
        Ok(Mapping { start: own(len, 0, KEPT_FREE, -1, 0)?, len })
    }

    /// Part of a file, shared with it and not inherited by children.
    pub fn of_file(len: u64, fd: i32, offset: u64) -> Result<Mapping, i32> {
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        let start = own(len, prot, sys::MAP_SHARED, fd, offset)?;
        let mut mapping = Mapping { start, len };
        mapping.is_of_file(start, len);
        Ok(mapping)
    }

    /// The first address; 0 if there is no memory.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no memory.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pointer to `len` bytes from `at` on, aligned for `T`.
    fn place<T>(&self, at: u64, len: u64) -> *mut T {
        let offset = at.wrapping_sub(self.start);
        let is_inside = offset <= self.len && len <= self.len - offset;
        if !is_inside || !at.is_multiple_of(align_of::<T>() as u64) {
            outside();
        }
        at as *mut T
    }

    // --- what is mapped ---

    /// Maps part of a file in place of what is at `at`, as [`Mapping::of_file`].
    pub fn put_file(&mut self, at: u64, len: u64, fd: i32, offset: u64) -> Result<(), i32> {
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        self.put(at, len, prot, sys::MAP_SHARED, fd, offset)?;
        self.is_of_file(at, len);
        Ok(())
    }

    /// Maps new memory, anonymous and private, in place of what is at `at`.
    pub fn put_anonymous(&mut self, at: u64, len: u64, prot: usize) -> Result<(), i32> {
        self.put(at, len, prot, KEPT_FREE, -1, 0)
    }

    fn put(
        &mut self,
        at: u64,
        len: u64,
        prot: usize,
        flags: usize,
        fd: i32,
        offset: u64,
    ) -> Result<(), i32> {
        self.place::<u8>(at, len);
        // SAFETY: inside of memory that is ours, and that nobody has a reference to.
        let map = || unsafe { sys::mmap(at, len, prot, flags | sys::MAP_FIXED, fd, offset) };
        sys::beyond_limits(map).map(drop)
    }

    fn is_of_file(&mut self, at: u64, len: u64) {
        const MADV_DONTFORK: usize = 10;
        // SAFETY: our own mapping. A child does not use it: see `forked` of its owners.
        let _ = unsafe { sys::call(nr::MADVISE, &[at as usize, len as usize, MADV_DONTFORK]) };
        not_in_dumps(at, len);
        if len <= FEW {
            const MADV_RANDOM: usize = 1;
            // SAFETY: it stays as it is.
            let _ = unsafe { sys::call(nr::MADVISE, &[at as usize, len as usize, MADV_RANDOM]) };
        }
        if is_populated(len) {
            // (MAP_POPULATE would leave the first store to each page to fault.)
            populate(at, len, Access::Write);
        }
    }

    /// Changes how a part may be accessed.
    pub fn protect(&mut self, at: u64, len: u64, prot: usize) -> Result<(), i32> {
        self.place::<u8>(at, len);
        // SAFETY: inside of memory that is ours.
        unsafe { sys::call(nr::MPROTECT, &[at as usize, len as usize, prot]) }.map(drop)
    }

    /// Gives the memory back.
    pub fn unmap(self) {
        // SAFETY: it is ours, and nobody has a reference to it.
        let _ = unsafe { sys::call(nr::MUNMAP, &[self.start as usize, self.len as usize]) };
    }

    // --- what is in it (a part that cannot be accessed faults) ---

    /// Copies `bytes` to `at`.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let to = self.place::<u8>(at, bytes.len() as u64);
        // SAFETY: inside of memory that is ours; `bytes` are borrowed, so they are not part of it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Stores a value at `at`, behind all that was stored before: a process that is killed leaves it
    /// so in a file.
    pub fn store<T: Plain>(&mut self, at: u64, value: T) {
        let to = self.place::<T>(at, size_of::<T>() as u64);
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        // SAFETY: inside of memory that is ours, and aligned.
        unsafe { to.write_volatile(value) };
    }

    /// Clears `len` bytes at `at`.
    pub fn clear(&mut self, at: u64, len: u64) {
        let to = self.place::<u8>(at, len);
        // SAFETY: inside of memory that is ours.
        unsafe { core::ptr::write_bytes(to, 0, len as usize) };
    }

    /// The words at `at`; `len`: bytes. Not to be kept while generated code writes there.
    pub fn words(&self, at: u64, len: u64) -> &[u64] {
        let from = self.place::<u64>(at, len);
        // SAFETY: inside of memory that is ours, and aligned; any bytes are words.
        unsafe { core::slice::from_raw_parts(from, (len / 8) as usize) }
    }

    /// The same, to write there.
    pub fn words_mut(&mut self, at: u64, len: u64) -> &mut [u64] {
        let from = self.place::<u64>(at, len);
        // SAFETY: as above, and nobody else has a reference to it.
        unsafe { core::slice::from_raw_parts_mut(from, (len / 8) as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut mapping = Mapping::anonymous(8192).expect("memory");
        let start = mapping.start();
        mapping.write(start + 3, &[1, 2]);
        mapping.store(start + 8, 7u64);
        assert_eq!(mapping.words(start, 16), [0x02_0100_0000, 7]);
        mapping.clear(start, 8);
        assert_eq!(mapping.words(start, 16), [0, 7]);
        mapping.put_anonymous(start, 4096, sys::PROT_READ).expect("new memory");
        assert_eq!(mapping.words(start, 16), [0, 0]);
        mapping.unmap();
    }

    #[test]
    fn a_range_ends_with_the_mapping() {
        let mapping = Mapping::anonymous(4096).expect("memory");
        assert_eq!(mapping.words(mapping.start(), 4096).len(), 512);
        assert!(mapping.words(mapping.start() + 4096, 0).is_empty());
        mapping.unmap();
    }
}
