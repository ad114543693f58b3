//! /proc/self/exe, where the program runs in place of another: calls that name it find the other's
//! file.

use crate::base::last_words::Line;
use crate::base::lineage::lineage;
use crate::base::program::read_program_value;
use crate::base::sys::{self, failed, nr};
use crate::code::writing::write_program;
use crate::kernel::syscalls::{plain, Outcome};
use crate::logs::inputs::at_hand;
use crate::thread::Thread;
use core::ffi::CStr;
use core::fmt::Write;

const PATH_MAX: usize = 4096;

/// What a call does with a path.
enum Use {
    /// Reads the link: where to, and how many bytes.
    Read(usize, usize),
    /// Goes where it leads.
    Follow,
    /// Something that the link itself is good for.
    Neither,
}

/// A call that has a path: the directory that it starts from, the argument that the path is, its use.
fn described(number: usize, args: &[usize; 6]) -> Option<(usize, usize, Use)> {
    let here = sys::AT_FDCWD;
    let unless = |unlike: bool| if unlike { Use::Neither } else { Use::Follow };
    let of_link = |flags: usize| unless(flags & sys::AT_SYMLINK_NOFOLLOW != 0);
    Some(match number {
        nr::READLINK => (here, 0, Use::Read(args[1], args[2])),
        nr::READLINKAT => (args[0], 1, Use::Read(args[2], args[3])),
        nr::OPEN => (here, 0, unless(is_special(args[1]))),
        nr::OPENAT => (args[0], 1, unless(is_special(args[2]))),
        nr::OPENAT2 => {
            // struct open_how: flags, mode, how to resolve
            let mut how = [0u64; 3];
            let known = read_program_value(args[2] as u64, &mut how);
            (args[0], 1, unless(!known || is_special(how[0] as usize) || how[2] != 0))
        }
        nr::STAT | nr::ACCESS => (here, 0, Use::Follow),
        nr::FACCESSAT => (args[0], 1, Use::Follow),
        nr::NEWFSTATAT | nr::FACCESSAT2 => (args[0], 1, of_link(args[3])),
        nr::STATX => (args[0], 1, of_link(args[2])),
        _ => return None,
    })
}

/// Opened for writing the file that runs is busy, and so is the other one natively. Or the link is meant.
fn is_special(flags: usize) -> bool {
    const ACCESS: usize = 0o3;
    const CHANGES: usize = 0o100 | 0o200 | 0o1000; // O_CREAT | O_EXCL | O_TRUNC
    let reads = flags & sys::O_PATH != 0 || flags & (ACCESS | CHANGES) == 0;
    flags & sys::O_NOFOLLOW != 0 || !reads
}

/// Carries out a call that may name the link; `None`: it does not.
pub(super) fn call(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Option<Outcome> {
    let exe = lineage().exe.as_deref()?;
    let (directory, index, what) = described(number, args)?;
    if matches!(what, Use::Neither) {
        return None;
    }
    by_path(thread, number, args, exe, (directory, index, what))
}

/// (By itself: a path is no part of the stack of every call.)
#[inline(never)]
fn by_path(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    exe: &CStr,
    (directory, index, what): (usize, usize, Use),
) -> Option<Outcome> {
    let mut path = [0u8; PATH_MAX];
    let len = at_hand::read_string(args[index] as u64, &mut path).ok()?;
    // (Of a descriptor of the link all but `readlinkat` tell of the link.)
    let is_of_descriptor = len == 0 && !matches!(what, Use::Read(..));
    if is_of_descriptor || !is_link(directory, &path[..len]) {
        return None;
    }
    if let Use::Read(to, room) = what {
        // The size is an int, and the kernel says what is wrong with it.
        let room = Some(room as i32).filter(|&room| room > 0)? as usize;
        let shown = exe.to_bytes();
        let shown = shown.get(..room).unwrap_or(shown);
        // SAFETY: the program wants it there.
        let written = unsafe { write_program(to as u64, shown) };
        return Some(Outcome::Done(if written { shown.len() } else { failed(sys::EFAULT) }));
    }
    let mut other = *args;
    other[index] = exe.as_ptr() as usize;
    match plain(thread, number, &other) {
        // The link leads to a file that has no such path here any more. What runs is at hand.
        Outcome::Done(result) if is_lost(result) => None,
        outcome => Some(outcome),
    }
}

fn is_lost(result: usize) -> bool {
    matches!(sys::check(result), Err(sys::ENOENT | sys::ENOTDIR | sys::EACCES))
}

/// Whether a path is the link to this process's program.
pub(super) fn is_link(directory: usize, path: &[u8]) -> bool {
    if path.is_empty() {
        // Of a descriptor of the link itself.
        return directory != sys::AT_FDCWD && is_descriptor_of_link(directory);
    }
    if path.rsplit(|&byte| byte == b'/').next() != Some(b"exe") {
        return false;
    }
    if is_name_of_link(path) {
        return true;
    }
    // Any other way there. What it leads to knows its name.
    let mut zero_terminated = [0u8; PATH_MAX];
    let Some(place) = zero_terminated.get_mut(..path.len()) else { return false };
    place.copy_from_slice(path);
    let flags = sys::O_PATH | sys::O_NOFOLLOW | sys::O_CLOEXEC;
    let args = [directory, zero_terminated.as_ptr() as usize, flags];
    // SAFETY: the kernel reads the path, which has a zero: none is as long as the array.
    let Ok(descriptor) = (unsafe { sys::call(nr::OPENAT, &args) }) else { return false };
    let is_it = is_descriptor_of_link(descriptor);
    // SAFETY: opened above.
    let _ = unsafe { sys::call(nr::CLOSE, &[descriptor]) };
    is_it
}

fn is_descriptor_of_link(descriptor: usize) -> bool {
    let mut link = Line::new();
    let _ = write!(link, "/proc/self/fd/{}\0", descriptor as i32);
    let mut path = [0u8; 64];
    let Ok(link) = CStr::from_bytes_with_nul(link.text()) else { return false };
    let args = [link.as_ptr() as usize, path.as_mut_ptr() as usize, path.len()];
    // SAFETY: the kernel reads the path, and writes at most that many bytes.
    let read = unsafe { sys::call(nr::READLINK, &args) };
    read.is_ok_and(|len| len < path.len() && is_name_of_link(&path[..len]))
}

/// `/proc/PID/exe` or `/proc/PID/task/TID/exe`, of this process.
fn is_name_of_link(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/proc/") else { return false };
    let mut parts = rest.split(|&byte| byte == b'/');
    let mut part = || parts.next().unwrap_or_default();
    let own = |part: &[u8]| matches!(part, b"self" | b"thread-self") || is_own_thread(part);
    match [part(), part(), part(), part(), part()] {
        [process, b"exe", b"", b"", b""] => !rest.ends_with(b"/") && own(process),
        [process, b"task", thread, b"exe", b""] => {
            !rest.ends_with(b"/") && own(process) && is_own_thread(thread)
        }
        _ => false,
    }
}

/// Whether these are the digits of a thread of this process.
fn is_own_thread(digits: &[u8]) -> bool {
    let Some(id) = core::str::from_utf8(digits).ok().and_then(|text| text.parse::<u32>().ok())
    else {
        return false;
    };
    let own = sys::getpid();
    // SAFETY: signal 0 only asks.
    let asks = || unsafe { sys::call(nr::TGKILL, &[own as usize, id as usize, 0]) };
    id == own || id == sys::gettid() || id != 0 && asks().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(id: u32, pattern: [&str; 2]) -> Line {
        let mut line = Line::new();
        let _ = write!(line, "{}{id}{}", pattern[0], pattern[1]);
        line
    }

    #[test]
    fn the_link_has_these_names() {
        let own = names(sys::getpid(), ["/proc/", "/exe"]);
        let thread = names(sys::gettid(), ["/proc/self/task/", "/exe"]);
        let other = names(if sys::getpid() == 1 { 2 } else { 1 }, ["/proc/", "/exe"]);
        let here = sys::AT_FDCWD;
        assert!(is_link(here, own.text()) && is_link(here, thread.text()));
        assert!(!is_link(here, other.text()));
        for name in ["/proc/self/exe", "/proc/thread-self/exe"] {
            assert!(is_link(here, name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "/proc/self/exe/",
            "/proc/self/exe/exe",
            "/proc/self/fd/exe",
            "/proc/exe",
            "/exe",
            "exe",
            "/tmp/nothing.exe",
            "/proc/self/task/exe",
        ] {
            assert!(!is_link(here, name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn other_ways_lead_to_the_link() {
        for name in ["/proc/self/../self/exe", "//proc/self/exe", "/proc/./self//exe"] {
            assert!(is_link(sys::AT_FDCWD, name.as_bytes()), "{name}");
        }
        let proc = std::fs::File::open("/proc").unwrap();
        let directory = std::os::fd::AsRawFd::as_raw_fd(&proc) as usize;
        assert!(is_link(directory, b"self/exe"));
        assert!(!is_link(directory, b"1/exe") && !is_link(directory, b"exe"));
    }
}
