//! Which file it is, and whether it has changed since somebody looked.

/// What the kernel says of a file that changes when anything about the file does. All zeros: nothing is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Device and inode.
    pub file: [u64; 2],
    /// When it was last changed (`st_ctim`): seconds, nanoseconds.
    pub changed: [u64; 2],
}

impl State {
    /// Its four words.
    pub fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.file.iter_mut().chain(&mut self.changed)
    }
}
