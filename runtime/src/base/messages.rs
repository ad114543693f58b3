//! Descriptors in messages between processes (SCM_RIGHTS).

use alloc::vec::Vec;

/// Bytes of a `struct mmsghdr`: a message and its length.
pub const MESSAGE: u64 = 64;

/// The descriptors in the `struct msghdr` at `at`, in memory that `read` reads. `None`: that cannot be told.
pub fn descriptors(at: u64, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<Vec<u32>> {
    const SOL_SOCKET: u64 = 1;
    const RIGHTS: u64 = 1 << 32 | SOL_SOCKET;
    const MOST: u64 = 4096;
    /// Of a `struct cmsghdr`.
    const HEADER: u64 = 16;
    let word = |at: u64| {
        let mut word = [0; 8];
        read(at, &mut word).then_some(u64::from_le_bytes(word))
    };
    let (control, len) = (word(at.wrapping_add(32))?, word(at.wrapping_add(40))?);
    let (mut found, mut from) = (Vec::new(), 0);
    while from + HEADER <= len {
        let piece = control.wrapping_add(from);
        let (size, kind) = (word(piece)?, word(piece.wrapping_add(8))?);
        if !(HEADER..=MOST).contains(&size) {
            return None;
        }
        let count = if kind == RIGHTS { (size - HEADER) / 4 } else { 0 };
        for i in 0..count {
            let mut fd = [0; 4];
            if !read(piece.wrapping_add(HEADER + 4 * i), &mut fd) {
                return None;
            }
            found.push(u32::from_le_bytes(fd));
        }
        from += size.next_multiple_of(8);
    }
    Some(found)
}
