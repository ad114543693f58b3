//! What the kernel says of a file.

use crate::base::sys::{self, nr};
use abi::file::State;

/// Device and inode of what `fd` is open for.
pub fn identity(fd: usize) -> Option<[u64; 2]> {
    Stat::of(fd).map(|stat| stat.identity())
}

/// What `fstat` says, as far as it is needed.
pub struct Stat([u64; 18]);

impl Stat {
    /// Of an open file.
    pub fn of(fd: usize) -> Option<Stat> {
        Stat::asked(nr::FSTAT, fd)
    }

    /// Of the file at the program's `path`, which the kernel has just read.
    pub fn of_path(path: usize) -> Option<Stat> {
        Stat::asked(nr::STAT, path)
    }

    fn asked(number: usize, of: usize) -> Option<Stat> {
        let mut words = [0u64; 18];
        // SAFETY: the kernel reads the path, if it is one, and writes `struct stat`, which has this size.
        unsafe { sys::call(number, &[of, words.as_mut_ptr() as usize]) }.ok()?;
        Some(Stat(words))
    }

    /// Who may do what with it: the lower 12 bits of its mode.
    pub fn rights(&self) -> u32 {
        self.0[3] as u32 & 0o7777
    }

    pub fn is_regular(&self) -> bool {
        const FORMAT: u64 = 0o170000;
        const REGULAR: u64 = 0o100000;
        self.0[3] & FORMAT == REGULAR
    }

    /// Whether it is /dev/zero: mapped as private memory, it is memory like any other.
    pub fn is_zeros(&self) -> bool {
        const FORMAT: u64 = 0o170000;
        const CHARACTERS: u64 = 0o020000;
        const ZEROS: u64 = 1 << 8 | 5;
        self.0[3] & FORMAT == CHARACTERS && self.0[5] == ZEROS
    }

    /// Device and inode.
    pub fn identity(&self) -> [u64; 2] {
        [self.0[0], self.0[1]]
    }

    pub fn state(&self) -> State {
        State::of_stat(&self.0)
    }

    pub fn has_name(&self) -> bool {
        self.0[2] != 0
    }

    pub fn device(&self) -> u64 {
        self.0[0]
    }

    pub fn inode(&self) -> u64 {
        self.0[1]
    }

    pub fn size(&self) -> u64 {
        self.0[6]
    }

    pub fn changed_ns(&self) -> u64 {
        self.0[11].wrapping_mul(1_000_000_000).wrapping_add(self.0[12])
    }
}
