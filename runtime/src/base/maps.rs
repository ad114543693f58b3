//! What the kernel lists as mapped (`/proc/self/maps`).

use crate::base::program::read_program_value;
use crate::base::sys::{self, nr};
use abi::layout::page_up;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;

/// All of it; `None` without `/proc`.
pub fn read() -> Option<Vec<u8>> {
    read_file(c"/proc/self/maps")
}

/// What is mapped at `at`, or else what comes next: from where to where, and whether nothing can be there: neither read nor
/// written nor executed, private, and of no file. `None` where the kernel cannot tell of one alone (Linux before 6.11).
pub fn piece_from(at: u64) -> Option<(Range<u64>, bool)> {
    const IOCTL: usize = 16;
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: usize = 0xc068_6611;
    const COVERING_OR_NEXT: u64 = 0x10;
    const READ_WRITE_EXECUTE_SHARED: u64 = 15;
    // Its own size, what is wanted, where; then from where to where, the rights, the size of its pages, offset and inode;
    // what is of no interest here.
    let mut query = [0u64; 13];
    (query[0], query[1], query[2]) = (size_of_val(&query) as u64, COVERING_OR_NEXT, at);
    let path = c"/proc/self/maps".as_ptr() as usize;
    // SAFETY: the kernel reads a zero-terminated path, and writes to what is borrowed.
    let asked = unsafe {
        let fd = sys::call(nr::OPEN, &[path, 0]).ok()?;
        let asked = sys::call(IOCTL, &[fd, PROCMAP_QUERY, query.as_mut_ptr() as usize]);
        let _ = sys::call(nr::CLOSE, &[fd]);
        asked
    };
    asked.ok()?;
    let [_, _, _, start, end, rights, _, _, inode, ..] = query;
    Some((start..end, rights & READ_WRITE_EXECUTE_SHARED == 0 && inode == 0))
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

/// Whether `maps` has a mapping with these rights (`rw-s`) and all of `wanted`.
pub fn is_in_one(maps: &[u8], wanted: &Range<u64>, rights: &[u8]) -> bool {
    maps.split(|&byte| byte == b'\n').any(|line| {
        let has_rights = line.split(|&byte| byte == b' ').nth(1) == Some(rights);
        let is_around = |(start, end)| start <= wanted.start && wanted.end <= end;
        has_rights && range(line).is_some_and(is_around)
    })
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

/// The ring of events that `io_setup` has mapped, which its program finds at `context`.
pub fn ring(context: u64) -> Option<Range<u64>> {
    let mut start = 0u64;
    if !read_program_value(context, &mut start) {
        return None;
    }
    mapped_from(start)
}

/// The object that is mapped from its beginning on at `start`.
pub fn mapped_from(start: u64) -> Option<Range<u64>> {
    let len = length_from(&read()?, start);
    (len != 0).then_some(start..start + len)
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
    fn the_kernel_tells_of_one_piece_as_its_list_does() {
        // The first line may be gone when it is asked for; all of them are not.
        let maps = read().expect("/proc is there");
        let lines = maps.split(|&byte| byte == b'\n').filter_map(range);
        let mut equal = 0;
        for (start, end) in lines {
            let Some((piece, _)) = piece_from(start) else {
                eprintln!("skipped: PROCMAP_QUERY is from Linux 6.11 on");
                return;
            };
            equal += u32::from(piece == (start..end));
        }
        assert!(equal > 0, "no piece is as /proc/self/maps says");
        let page = page_up(1) as usize;
        // SAFETY: a place of the kernel's choice.
        let at =
            unsafe { sys::mmap(0, page as u64, 0, sys::MAP_PRIVATE | sys::MAP_ANONYMOUS, -1, 0) };
        let at = at.expect("a page");
        let there = piece_from(at);
        assert!(there.is_some_and(|(piece, nothing)| piece.contains(&at) && nothing));
        // SAFETY: as above; it is not used.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, page]) };
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
