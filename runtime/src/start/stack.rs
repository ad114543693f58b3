//! What the kernel left on the program's stack.

use core::ffi::CStr;
use core::ops::Range;

/// Auxiliary vector entries that are read or changed.
pub mod at {
    pub const PHDR: u64 = 3;
    pub const PHNUM: u64 = 5;
    pub const BASE: u64 = 7;
    pub const ENTRY: u64 = 9;
    pub const SECURE: u64 = 23;
    pub const PLATFORM: u64 = 15;
    pub const BASE_PLATFORM: u64 = 24;
    pub const RANDOM: u64 = 25;
    pub const EXECFN: u64 = 31;
    pub const SYSINFO_EHDR: u64 = 33;
}

/// What the kernel left on the stack.
pub struct Start {
    pub stack: *mut u64,
    pub argc: usize,
}

impl Start {
    fn argument(&self, i: usize) -> u64 {
        // SAFETY: the kernel put argc, argv, a zero, the environment, a zero there.
        unsafe { *self.stack.add(1 + i) }
    }

    /// Arguments as the kernel packed them: from the first byte to the last zero.
    pub fn arguments(&self) -> impl Iterator<Item = &CStr> {
        // SAFETY: argv entries are zero-terminated strings.
        (0..self.argc).map(|i| unsafe { CStr::from_ptr(self.argument(i) as *const i8) })
    }

    /// The value of `name` in the environment: of several the last one, because whoever executes a
    /// program on behalf of another puts its own behind what that one has.
    pub fn environment(&self, name: &str) -> Option<&CStr> {
        let i = self.index(name)?;
        // SAFETY: a tail of a zero-terminated entry that starts with the name and `=`.
        Some(unsafe { CStr::from_ptr((self.argument(i) as usize + name.len() + 1) as *const i8) })
    }

    /// Where the last entry of that name is.
    fn index(&self, name: &str) -> Option<usize> {
        // (How long an entry is does not matter: most are of other names, and some are very long.)
        let is_it = |&i: &usize| {
            let entry = self.argument(i) as *const u8;
            let mut wanted = name.bytes().chain([b'=']).enumerate();
            // SAFETY: entries are zero-terminated strings, and nothing is read behind what differs.
            wanted.all(|(at, byte)| unsafe { *entry.add(at) } == byte)
        };
        (self.argc + 1..).take_while(|&i| self.argument(i) != 0).filter(is_it).last()
    }

    /// Takes the last entry of that name out of the environment. What lies behind it moves, the
    /// auxiliary vector included; a word behind that one's end is left over.
    pub fn remove(&self, name: &str) {
        let Some(at) = self.index(name) else { return };
        let mut end = self.auxiliary();
        // SAFETY: the kernel ends the vector with a zero kind, and all up to there is the stack's.
        unsafe {
            while (*end)[0] != 0 {
                end = end.add(1);
            }
            let (entry, end) = (self.stack.add(1 + at), end.add(1).cast::<u64>());
            let count = end.offset_from(entry) as usize - 1;
            core::ptr::copy(entry.add(1), entry, count);
        }
    }

    /// This is a copy of what the kernel has left in `range`, `distance` away: pointers into that lead into
    /// the copy.
    pub fn relocate(&self, range: &Range<u64>, distance: u64) {
        let moved = |word: u64| match range.contains(&word) {
            true => word.wrapping_add(distance),
            false => word,
        };
        let mut i = 0;
        // Arguments and environment, each up to a zero.
        for _ in 0..2 {
            while self.argument(i) != 0 {
                // SAFETY: a word of the copy.
                unsafe { *self.stack.add(1 + i) = moved(self.argument(i)) };
                i += 1;
            }
            i += 1;
        }
        for kind in [at::EXECFN, at::PLATFORM, at::BASE_PLATFORM, at::RANDOM] {
            if let Some(value) = self.get(kind) {
                self.set(kind, moved(value));
            }
        }
    }

    fn auxiliary(&self) -> *mut [u64; 2] {
        let mut i = self.argc + 1;
        while self.argument(i) != 0 {
            i += 1;
        }
        // SAFETY: the vector follows the environment's zero.
        unsafe { self.stack.add(1 + i + 1).cast() }
    }

    pub fn get(&self, kind: u64) -> Option<u64> {
        self.entry(kind).map(|entry| entry[1])
    }

    /// The entries of the auxiliary vector, without the one of zeros that ends it.
    pub fn entries(&self) -> impl Iterator<Item = [u64; 2]> {
        let first = self.auxiliary();
        // SAFETY: the kernel ends the vector with a zero kind.
        (0..).map(move |i| unsafe { *first.add(i) }).take_while(|entry| entry[0] != 0)
    }

    fn entry(&self, kind: u64) -> Option<&'static mut [u64; 2]> {
        let mut at = self.auxiliary();
        // SAFETY: the kernel ends the vector with a zero kind.
        unsafe {
            while (*at)[0] != 0 {
                if (*at)[0] == kind {
                    return Some(&mut *at);
                }
                at = at.add(1);
            }
        }
        None
    }

    /// The program finds no entry of this kind.
    pub fn ignore(&self, kind: u64) {
        const IGNORE: u64 = 1;
        if let Some(entry) = self.entry(kind) {
            entry[0] = IGNORE;
        }
    }

    pub fn set(&self, kind: u64, value: u64) {
        if let Some(entry) = self.entry(kind) {
            entry[1] = value;
        }
    }
}

/// The path that the program was started with.
pub fn program_path(start: &Start) -> &'static [u8] {
    match start.get(at::EXECFN) {
        // SAFETY: the kernel's zero-terminated path.
        Some(path) => unsafe { CStr::from_ptr(path as *const i8) }.to_bytes(),
        None => b"program",
    }
}
