//! The program's memory, reached in a way that cannot fault.

use crate::base::sys::{self, nr};
use crate::base::{attempt, guards};
use core::mem::{size_of, size_of_val};

/// Plain data: whatever bytes the program's memory has there are a value.
///
/// # Safety
/// Any bytes are a valid value of the type, and it has no padding.
pub unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: numbers.
unsafe impl Plain for u16 {}
// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for u64 {}
// SAFETY: of plain data, without gaps.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The bytes of a value.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: plain data has no padding.
    unsafe { core::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }
}

/// The same, to be read into.
pub fn bytes_of_mut<T: Plain>(value: &mut T) -> &mut [u8] {
    // SAFETY: any bytes are a value, and there is no padding.
    unsafe { core::slice::from_raw_parts_mut((value as *mut T).cast(), size_of::<T>()) }
}

/// Whether anything is mapped at `address`.
pub fn is_mapped(address: u64) -> bool {
    const MS_ASYNC: usize = 1;
    let page = abi::layout::page_down(address) as usize;
    // SAFETY: asks only.
    unsafe { sys::call(nr::MSYNC, &[page, 4096, MS_ASYNC]) }.is_ok()
}

/// # Safety
/// `local` has `len` bytes, which nobody else uses if `number` reads into them.
unsafe fn transfer(number: usize, local: usize, remote: u64, len: usize) -> sys::Result {
    guards::open(remote, len as u64);
    let (here, there) = ([local, len], [remote as usize, len]);
    // Not the process's id: its first thread may have ended, and then has no memory.
    let args = [sys::gettid() as usize, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0];
    // SAFETY: as promised; the kernel checks the other side.
    let result = unsafe { sys::call(number, &args) };
    if result != Err(sys::EFAULT) || !touch(remote) {
        return result;
    }
    // SAFETY: as above.
    unsafe { sys::call(number, &args) }
}

/// Lets the kernel read the program's memory at `at` on the program's behalf, which makes the stack
/// grow that far if it can: `process_vm_readv` and `process_vm_writev` do not. False if nothing can
/// be read there.
fn touch(at: u64) -> bool {
    const NO_SUCH_HOW: usize = 99;
    guards::open(at, 8);
    // SAFETY: the kernel reads a word and then refuses to do anything.
    let result = unsafe { sys::call(nr::RT_SIGPROCMASK, &[NO_SUCH_HOW, at as usize, 0, 8]) };
    result == Err(sys::EINVAL)
}

/// Reads bytes of the program's memory; false if they are not all there.
pub fn read_program_bytes(at: u64, out: &mut [u8]) -> bool {
    try_read_program_bytes(at, out) == Ok(out.len())
}

/// As [`read_program_bytes`], where they are most likely there: without a system call then.
///
/// Not for the handler of signals, nor for memory that may only be written: see [`attempt`].
pub fn read_at_hand(at: u64, out: &mut [u8]) -> bool {
    // SAFETY: `out` is borrowed; the rest is the program's memory.
    let reached = unsafe { attempt::copy(out.as_mut_ptr() as u64, at, out.len() as u64) };
    reached || read_program_bytes(at, out)
}

/// Reads bytes of the program's memory, as far as they are there; EFAULT if the first one is not.
pub fn try_read_program_bytes(at: u64, out: &mut [u8]) -> sys::Result {
    match out.len() {
        0 => Ok(0),
        // SAFETY: `out` is borrowed, and of this length.
        len => unsafe { transfer(nr::PROCESS_VM_READV, out.as_mut_ptr() as usize, at, len) },
    }
}

/// Reads a zero-terminated string of the program's. Returns its length; the error is EFAULT, or
/// ENAMETOOLONG if there is no room for it and its zero. What can be read is read in any case.
pub fn read_program_string(at: u64, out: &mut [u8]) -> sys::Result {
    program_string(at, out, read_program_bytes)
}

/// The same, by way of `read`, which says whether all was there.
pub fn program_string(
    at: u64,
    out: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> sys::Result {
    let mut len = 0;
    while len < out.len() {
        let from = at.wrapping_add(len as u64);
        // The next page may not be there.
        let in_page = (abi::layout::PAGE - from % abi::layout::PAGE) as usize;
        let end = out.len().min(len + in_page.min(256));
        let Some(piece) = out.get_mut(len..end) else { break };
        if !read(from, piece) {
            piece.fill(0);
            return Err(sys::EFAULT);
        }
        match piece.iter().position(|&byte| byte == 0) {
            Some(zero) => return Ok(len + zero),
            None => len = end,
        }
    }
    Err(sys::ENAMETOOLONG)
}

/// The program's memory where it lies, if all of it is there: for a look at a few pages that costs less
/// than a copy. `pending`: the processor says whether it is there, as [`attempt::can_load_unless`] has it; else the kernel does.
///
/// # Safety
/// Nobody unmaps or changes the memory while the slice is in use: the process has one thread, which is
/// in the runtime. `pending` is of its mailbox.
pub unsafe fn look_at<'a>(at: u64, len: u64, pending: Option<*const u32>) -> Option<&'a [u8]> {
    let end = at.checked_add(len)?;
    let mut next = at;
    while next < end {
        // SAFETY: the mailbox's, as promised.
        let at_hand = pending.is_some_and(|word| unsafe { attempt::can_load_unless(word, next) });
        if !at_hand && !touch(next & !7) {
            return None;
        }
        next = abi::layout::page_down(next) + abi::layout::PAGE;
    }
    // SAFETY: a byte of each of the pages could be read; the rest is as promised.
    Some(unsafe { core::slice::from_raw_parts(at as *const u8, len as usize) })
}

/// Reads plain data of the program's; false if it is not there.
pub fn read_program_value<T: Plain>(at: u64, out: &mut T) -> bool {
    read_program_bytes(at, bytes_of_mut(out))
}

/// Reads words of the program's memory; false if they are not there.
pub fn read_program_words(at: u64, out: &mut [u64]) -> bool {
    let len = size_of_val(out);
    // SAFETY: `out` is borrowed, of this length, and any bytes are words.
    len == 0
        || unsafe { transfer(nr::PROCESS_VM_READV, out.as_mut_ptr() as usize, at, len) } == Ok(len)
}

/// Writes bytes to the program's memory; false if they cannot be written there. Pages that the
/// runtime has write-protected are the caller's business (see [`crate::code::writing`]).
///
/// # Safety
/// What is overwritten is the program's own, and is to be overwritten at its request.
pub unsafe fn write_bytes(at: u64, bytes: &[u8]) -> bool {
    // SAFETY: the bytes are borrowed; the rest is as promised.
    let written =
        || unsafe { transfer(nr::PROCESS_VM_WRITEV, bytes.as_ptr() as usize, at, bytes.len()) };
    bytes.is_empty() || written() == Ok(bytes.len())
}

/// As [`write_bytes`], of plain data.
///
/// # Safety
/// As for [`write_bytes`].
pub unsafe fn write_value<T: Plain>(at: u64, value: &T) -> bool {
    // SAFETY: as promised.
    unsafe { write_bytes(at, bytes_of(value)) }
}
