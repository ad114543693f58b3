//! Libraries that are aligned to more than pages. The dynamic linker reserves memory for such a one without
//! saying what for, so that it can choose a place in it; then it maps the file there and gives back the rest.
//! What it is going to map is known by the file that was opened last: how much is reserved follows from its
//! program headers.

use crate::base::sys::{self, nr};
use crate::code::window::reserve_library;
use abi::layout::{page_up, PAGE};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The descriptor that the program opened last; negative: none.
static OPENED: AtomicI32 = AtomicI32::new(-1);

/// A call of the program has returned.
pub fn after_call(number: usize, result: usize) {
    if let (nr::OPEN | nr::OPENAT, Ok(fd)) = (number, sys::check(result)) {
        OPENED.store(fd as i32, Relaxed);
    }
}

/// Where the program gets `len` bytes that it asks for without any right and at no place of choice, if that
/// is for a library.
pub fn reserve(len: u64, flags: usize) -> Option<u64> {
    let fd = OPENED.load(Relaxed);
    let Needs { image, align } = Needs::of(fd)?;
    let fits = [image + align, 2 * align].contains(&len) && align > PAGE && len < 1 << 30;
    fits.then(|| reserve_library(fd, page_up(image), len, align, flags).ok()).flatten()
}

/// What a file needs as a library.
#[derive(PartialEq, Eq, Debug)]
struct Needs {
    /// From its first page to the end of its last one.
    image: u64,
    align: u64,
}

impl Needs {
    fn of(fd: i32) -> Option<Needs> {
        let mut head = [0u8; 4096];
        let args = [fd as usize, head.as_mut_ptr() as usize, head.len(), 0];
        // SAFETY: the kernel writes at most that many bytes.
        let got = unsafe { sys::call(nr::PREAD64, &args) }.ok()?;
        Needs::from_head(&head[..got])
    }

    /// From the first bytes of the file.
    fn from_head(head: &[u8]) -> Option<Needs> {
        const PT_LOAD: u64 = 1;
        const HEADER: usize = 56;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let field = |at: usize, len: usize| Some(number(head.get(at..at.checked_add(len)?)?));
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        let (first, count) = (field(32, 8)? as usize, field(56, 2)? as usize);
        let table = head.get(first..first.checked_add(HEADER * count)?)?;
        let of_header = |header: &[u8], at: usize| number(&header[at..at + 8]);
        let loads = || table.chunks_exact(HEADER).filter(|h| number(&h[..4]) == PT_LOAD);
        let start = loads().map(|h| of_header(h, 16)).min()? & !(PAGE - 1);
        let end = loads().map(|h| of_header(h, 16).saturating_add(of_header(h, 40))).max()?;
        let align = loads().map(|h| of_header(h, 48)).filter(|a| a.is_power_of_two()).max()?;
        let image = end.checked_sub(start).filter(|len| *len < 1 << 40 && align < 1 << 40)?;
        Some(Needs { image: page_up(image), align })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn head(loads: &[[u64; 3]]) -> Vec<u8> {
        let mut head = alloc::vec![0u8; 64];
        head[..4].copy_from_slice(b"\x7fELF");
        head[32] = 64;
        head[56] = loads.len() as u8;
        for [address, size, align] in loads {
            let mut header = [0u8; 56];
            header[0] = 1;
            header[16..24].copy_from_slice(&address.to_le_bytes());
            header[40..48].copy_from_slice(&size.to_le_bytes());
            header[48..].copy_from_slice(&align.to_le_bytes());
            head.extend_from_slice(&header);
        }
        head
    }

    #[test]
    fn the_largest_alignment_and_all_of_the_image_count() {
        let of = |loads: &[[u64; 3]]| Needs::from_head(&head(loads));
        let two = [[0, 0x1234, 0x1000], [0x20_0000, 0x10, 0x20_0000]];
        assert_eq!(of(&two), Some(Needs { image: 0x20_1000, align: 0x20_0000 }));
        assert_eq!(of(&[[u64::MAX, 1, 0x1000], [0, 1, 0x1000]]), None);
        assert_eq!(of(&[[0, 1, 3]]), None, "no alignment");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn what_is_cut_off_is_no_library() {
        let whole = head(&[[0, 0x1000, 0x20_0000]]);
        for len in 0..whole.len() {
            assert_eq!(Needs::from_head(&whole[..len]), None, "{len}");
        }
    }
}
