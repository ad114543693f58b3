//! Where processes are made.

use crate::base::last_words::Line;
use crate::base::maps::read_file;
use crate::base::sys::{self, nr};
use core::ffi::CStr;
use core::fmt::Write;

const CLONE_NEWPID: u64 = 0x2000_0000;

/// The next process that this one makes is the first one of a PID namespace (`unshare` with CLONE_NEWPID), which
/// ends with it: it had better be one that the program makes.
pub fn next_child_is_first() -> bool {
    // The kernel shows the namespace as soon as it has a first process.
    own().is_some() && of_children().is_none()
}

/// Processes that this one makes are in another PID namespace than it is. The first one there waits at its end
/// until all others are gone, and waited for.
pub fn children_are_elsewhere() -> bool {
    own().is_some_and(|own| of_children() != Some(own))
}

/// The number that a child has for itself, which a call with `flags` has made and calls `child`: in another PID namespace it
/// has one of its own.
pub fn number_of(child: u32, flags: u64) -> u32 {
    const FIRST: u32 = 1;
    if flags & CLONE_NEWPID != 0 {
        return FIRST;
    }
    if !children_are_elsewhere() {
        return child;
    }
    // Where /proc is an outer namespace's, the child has another number there. Mostly it is the first one.
    innermost(child).unwrap_or(FIRST)
}

/// The last one in the line `NSpid: 4711 1` of the process's status, if it is in another namespace than /proc.
fn innermost(process: u32) -> Option<u32> {
    let mut path = Line::new();
    write!(path, "/proc/{process}/status\0").ok()?;
    let status = read_file(CStr::from_bytes_with_nul(path.text()).ok()?)?;
    let mut lines = status.split(|&byte| byte == b'\n');
    let numbers =
        core::str::from_utf8(lines.find_map(|line| line.strip_prefix(b"NSpid:"))?).ok()?;
    numbers.split_whitespace().skip(1).last()?.parse().ok()
}

fn own() -> Option<[u8; 32]> {
    name(c"/proc/thread-self/ns/pid")
}

fn of_children() -> Option<[u8; 32]> {
    name(c"/proc/thread-self/ns/pid_for_children")
}

/// `pid:[4026531836]`, and zeros.
fn name(link: &CStr) -> Option<[u8; 32]> {
    let mut room = [0u8; 32];
    let args = [link.as_ptr() as usize, room.as_mut_ptr() as usize, room.len()];
    // SAFETY: the kernel reads a path that ends in a zero, and writes to the buffer.
    unsafe { sys::call(nr::READLINK, &args) }.is_ok().then_some(room)
}
