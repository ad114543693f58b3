//! Which file it is, and whether it has changed since somebody looked.

/// What the kernel says of a file that changes when anything about the file does. (The last change alone would do, but not
/// every file system keeps it.) All zeros: nothing is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Device and inode.
    pub file: [u64; 2],
    /// Bytes.
    pub size: u64,
    /// When its contents were last changed (`st_mtim`): seconds, nanoseconds.
    pub modified: [u64; 2],
    /// When anything of it was (`st_ctim`).
    pub changed: [u64; 2],
}

impl State {
    /// Of what `fstat` says: the words of `struct stat`.
    pub fn of_stat(stat: &[u64; 18]) -> State {
        State {
            file: [stat[0], stat[1]],
            size: stat[6],
            modified: [stat[11], stat[12]],
            changed: [stat[13], stat[14]],
        }
    }

    /// Its seven words.
    pub fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let State { file, size, modified, changed } = self;
        file.iter_mut().chain([size]).chain(modified).chain(changed)
    }
}
