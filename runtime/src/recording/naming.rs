//! The names of trace files: what the pattern says, and a file of that name that was not there.

use crate::base::descriptors;
use crate::base::last_words::Line;
use crate::base::sys::{self, nr};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, Ordering::*};

/// A pattern: `%e` stands for the name of the program, `%p` for the process id, `%%` for a percent
/// sign.
pub struct Naming {
    pattern: Vec<u8>,
    program: Vec<u8>,
    /// A descriptor of the folder that they are all in, or -1.
    folder: AtomicI32,
}

/// The longest path that the kernel takes, with its zero.
const LONGEST: usize = 4096;

/// A file that cannot be made.
pub struct Refused {
    path: Vec<u8>,
    pub errno: i32,
}

impl Refused {
    /// Where it was to be.
    pub fn path(&self) -> &str {
        core::str::from_utf8(&self.path).unwrap_or("the file that DEP_FILE names")
    }
}

impl Naming {
    /// The pattern, and the path of the program.
    pub fn new(pattern: &[u8], program: &[u8]) -> Naming {
        let name = program.rsplit(|&byte| byte == b'/').next().unwrap_or(program);
        Naming { pattern: pattern.to_vec(), program: name.to_vec(), folder: AtomicI32::new(-1) }
    }

    /// Whether each process has a name of its own.
    pub fn has_pid(&self) -> bool {
        let mut escaped = false;
        self.pattern.iter().any(|&byte| {
            let found = escaped && byte == b'p';
            escaped = !escaped && byte == b'%';
            found
        })
    }

    /// The same, wherever the process goes: from the root on.
    pub fn absolute(self) -> Naming {
        const GETCWD: usize = 79;
        let mut here = [0u8; LONGEST];
        let args = [here.as_mut_ptr() as usize, here.len()];
        // SAFETY: the kernel writes a path, with its zero, into the buffer.
        let len = unsafe { sys::call(GETCWD, &args) }.unwrap_or(1).saturating_sub(1);
        // (Outside of its root there is no path.)
        let here = &here[..len];
        if self.pattern.starts_with(b"/") || !here.starts_with(b"/") {
            return self;
        }
        let mut pattern = Vec::new();
        for &byte in here {
            // The folder's own percent signs mean nothing.
            pattern.extend_from_slice(if byte == b'%' {
                b"%%"
            } else {
                core::slice::from_ref(&byte)
            });
        }
        pattern.push(b'/');
        pattern.extend_from_slice(&self.pattern);
        Naming { pattern, ..self }
    }

    /// Keeps a descriptor of the folder, where the path may soon lead elsewhere. None: each process has another folder, or
    /// it cannot be opened.
    pub fn keep_folder(&self) -> Option<i32> {
        const DIRECTORY: usize = 0o200000;
        let known = self.folder.load(Relaxed);
        if known >= 0 {
            return Some(known);
        }
        let mut path = folder_of(&self.path(1)).to_vec();
        if path != folder_of(&self.path(2)) {
            return None;
        }
        path.push(0);
        let args = [path.as_ptr() as usize, DIRECTORY | sys::O_CLOEXEC];
        // SAFETY: the path is zero-terminated.
        let fd = unsafe { sys::call(nr::OPEN, &args) }.ok()?;
        let fd = descriptors::hide(fd as i32);
        self.folder.store(fd, Relaxed);
        Some(fd)
    }

    /// The path for process `pid`.
    fn path(&self, pid: u32) -> Vec<u8> {
        let mut path = Vec::new();
        let mut rest = self.pattern.as_slice();
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            let put = match (byte, tail.first()) {
                (b'%', Some(b'e')) => self.program.as_slice(),
                (b'%', Some(b'p')) => {
                    path.extend_from_slice(number(pid).text());
                    &[]
                }
                (b'%', Some(b'%')) => b"%",
                _ => {
                    path.push(byte);
                    continue;
                }
            };
            path.extend_from_slice(put);
            rest = &tail[1..];
        }
        path
    }

    /// Makes a file for process `pid` that was not there, and returns its descriptor. If there is one
    /// of that name, `.1` or the next number is added.
    pub fn create(&self, pid: u32) -> Result<i32, Refused> {
        // O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
        const FLAGS: usize = 0o2 | 0o100 | 0o200 | 0o400000 | sys::O_CLOEXEC;
        const ENAMETOOLONG: i32 = 36;
        let path = self.path(pid);
        let folder = self.folder.load(Relaxed);
        // From there on, if it is kept.
        let (start, from) =
            if folder < 0 { (sys::AT_FDCWD, 0) } else { (folder as usize, folder_of(&path).len()) };
        let mut errno = sys::EEXIST;
        for n in 0..1000 {
            let mut candidate = path.clone();
            if n > 0 {
                candidate.push(b'.');
                candidate.extend_from_slice(number(n).text());
            }
            candidate.push(0);
            if candidate.len() > LONGEST {
                errno = ENAMETOOLONG;
                break;
            }
            let args = [start, candidate[from..].as_ptr() as usize, FLAGS, 0o644];
            // SAFETY: the path is zero-terminated.
            match unsafe { sys::call(nr::OPENAT, &args) } {
                Err(sys::EEXIST) => {}
                Err(sys::EINTR) => errno = sys::EINTR,
                Err(other) => {
                    errno = other;
                    break;
                }
                Ok(fd) => return Ok(fd as i32),
            }
        }
        Err(Refused { path, errno })
    }
}

/// Up to its last slash, with it.
fn folder_of(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    &path[..end]
}

fn number(n: u32) -> Line {
    let mut digits = Line::new();
    let _ = write!(digits, "{n}");
    digits
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;

    fn naming(pattern: &str) -> Naming {
        Naming::new(pattern.as_bytes(), b"/usr/bin/make")
    }

    fn path(pattern: &str) -> std::string::String {
        std::string::String::from_utf8(naming(pattern).path(77)).unwrap()
    }

    #[test]
    fn a_pattern_names_program_and_process() {
        assert_eq!(path("/t/%e.%p.dep"), "/t/make.77.dep");
        assert_eq!(path("%%p%%"), "%p%");
        assert_eq!(path("100%"), "100%");
        assert_eq!(path("%x%p"), "%x77");
    }

    #[test]
    fn only_a_process_id_tells_processes_apart() {
        assert!(naming("%e.%p.dep").has_pid());
        assert!(naming("%%%p").has_pid());
        assert!(!naming("%%p.%e").has_pid());
        assert!(!naming("p%").has_pid());
    }

    #[test]
    fn a_relative_pattern_is_made_absolute_once() {
        let here = std::env::current_dir().unwrap();
        let wanted = std::format!("{}/77.dep", here.display());
        let absolute = naming("%p.dep").absolute();
        assert_eq!(absolute.path(77), wanted.as_bytes());
        assert_eq!(absolute.absolute().path(77), wanted.as_bytes());
        assert_eq!(naming("/x/%p").absolute().path(77), b"/x/77");
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        let folder = std::env::temp_dir().join(std::format!("naming.{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let naming = naming(&std::format!("{}/%p", folder.display()));
        for _ in 0..3 {
            assert!(naming.create(7).is_ok());
        }
        let mut names: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["7", "7.1", "7.2"]);
        std::fs::remove_dir_all(&folder).unwrap();
        let refused = naming.create(7).err().unwrap();
        assert_eq!((refused.errno, refused.path().ends_with("/7")), (2, true));
    }
}
