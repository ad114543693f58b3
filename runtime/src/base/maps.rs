//! What the kernel lists as mapped (`/proc/self/maps`).

use crate::base::sys::{self, nr};
use abi::layout::page_up;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;

/// All of it; `None` without `/proc`.
pub fn read() -> Option<Vec<u8>> {
    read_file(c"/proc/self/maps")
}

/// The contents of a file, as the kernel makes them; `None` if there is none.
pub fn read_file(path: &CStr) -> Option<Vec<u8>> {
    // SAFETY: the kernel reads a zero-terminated path.
    let fd = unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, 0]) }.ok()?;
    let mut all = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        let args = [fd, buffer.as_mut_ptr() as usize, buffer.len()];
        // SAFETY: the kernel writes to the buffer.
        match unsafe { sys::call(nr::READ, &args) } {
            Ok(n) if n > 0 => all.extend_from_slice(buffer.get(..n).unwrap_or_default()),
            Err(sys::EINTR) => {}
            _ => break,
        }
    }
    // SAFETY: nobody else has the descriptor.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
    Some(all)
}

/// From where to where a line is about.
pub fn range(line: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = words(line).next()?.split_once('-')?;
    Some((hexadecimal(start)?, hexadecimal(end)?))
}

/// The first line of what is mapped in `wanted`, and otherwise nothing.
pub fn mapped_in(maps: &[u8], wanted: Range<u64>) -> &str {
    let meets = |line: &&[u8]| {
        range(line).is_some_and(|(start, end)| start < wanted.end && wanted.start < end)
    };
    let line = maps.split(|&byte| byte == b'\n').find(meets).unwrap_or_default();
    core::str::from_utf8(line).unwrap_or_default()
}

/// How long the object is that is mapped from its beginning on at `at`, pieces with other rights and holes included.
pub fn length_from(maps: &[u8], at: u64) -> u64 {
    /// A piece: from where to where, its offset, and what it is a piece of.
    fn piece(line: &[u8]) -> Option<(u64, u64, u64, [&str; 2])> {
        let (start, end) = range(line)?;
        let mut rest = words(line).skip(2);
        let offset = hexadecimal(rest.next()?)?;
        Some((start, end, offset, [rest.next()?, rest.next()?]))
    }
    let pieces = || maps.split(|&byte| byte == b'\n').filter_map(piece);
    let Some((.., object)) = pieces().find(|piece| piece.0 == at) else { return 0 };
    let belongs =
        |&(start, _, offset, of): &(u64, u64, u64, _)| of == object && start == at + offset;
    pieces().filter(belongs).map(|(_, end, ..)| end - at).max().unwrap_or(0)
}

fn words(line: &[u8]) -> impl Iterator<Item = &str> {
    line.split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
        .map(|word| core::str::from_utf8(word).unwrap_or_default())
}

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16).ok()
}

/// Bytes of the pages of the System V shared memory `id`; `None`: it may be attached, and not looked at.
pub fn attached_len(id: usize) -> Option<u64> {
    const SHMCTL: usize = 31;
    const IPC_STAT: usize = 2;
    // struct shmid_ds: struct ipc_perm, then the size.
    let mut state = [0u64; 14];
    // SAFETY: the kernel writes 112 bytes.
    unsafe { sys::call(SHMCTL, &[id, IPC_STAT, state.as_mut_ptr() as usize]) }.ok()?;
    Some(page_up(state[6]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_about_a_range() {
        let line = b"7ffff7fc9000-7ffff7fcb000 r--p 00000000 00:00 0     [vvar_vclock]";
        assert_eq!(range(line), Some((0x7fff_f7fc_9000, 0x7fff_f7fc_b000)));
        assert_eq!(range(b""), None);
    }

    #[test]
    fn what_is_in_the_way_is_the_first_that_overlaps() {
        let maps = b"10000-11000 r--p\n12000-14000 rw-p\n14000-15000 r-xp\n";
        assert_eq!(mapped_in(maps, 0x11000..0x13000), "12000-14000 rw-p");
        assert_eq!(mapped_in(maps, 0x13000..0x20000), "12000-14000 rw-p");
        assert_eq!(mapped_in(maps, 0x11000..0x12000), "");
    }

    #[test]
    fn an_object_is_as_long_as_its_pieces() {
        let maps = b"\
            10000-11000 rwxs 00000000 00:01 7                  /SYSV00000000 (deleted)\n\
            11000-12000 r--s 00001000 00:01 7                  /SYSV00000000 (deleted)\n\
            13000-14000 rwxs 00003000 00:01 7                  /SYSV00000000 (deleted)\n\
            14000-16000 rwxs 00000000 00:01 7                  /SYSV00000000 (deleted)\n\
            16000-17000 rwxs 00006000 00:01 8                  /SYSV00000000 (deleted)\n";
        assert_eq!(length_from(maps, 0x10000), 0x4000);
        assert_eq!(length_from(maps, 0x14000), 0x2000);
        assert_eq!(length_from(maps, 0x12000), 0);
        assert_eq!(length_from(b"", 0x10000), 0);
    }
}
