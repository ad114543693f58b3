//! Where processes are made.

use crate::base::sys::{self, nr};
use core::ffi::CStr;

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
