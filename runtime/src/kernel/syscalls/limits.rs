//! Limits that the program sets.

use crate::base::ceiling;
use crate::base::program::read_program_value;
use crate::base::sys::{self, nr};
use crate::code::window;
use crate::kernel::brk::brk;
use crate::logs::inputs::view;

/// What the call is going to do to this process: a resource, and its new soft limit.
pub fn wanted(number: usize, args: &[usize; 6]) -> Option<(usize, u64)> {
    let (resource, at) = match number {
        nr::SETRLIMIT => (args[0], args[1]),
        _ if args[0] == 0 || args[0] == sys::getpid() as usize => (args[1], args[2]),
        _ => return None,
    };
    let mut limits = [0u64; 2];
    (at != 0 && read_program_value(at as u64, &mut limits)).then_some((resource, limits[0]))
}

/// It is going to do that.
pub fn before((resource, soft): (usize, u64)) {
    if resource != sys::RLIMIT_AS || soft == u64::MAX {
        return;
    }
    // What is reserved would count.
    window::gives_up();
    brk().uncover(0, u64::MAX);
    if !view::have_begun() {
        ceiling::gives_up();
    }
}

/// It has done that.
pub fn after((resource, soft): (usize, u64)) {
    if resource == sys::RLIMIT_STACK {
        ceiling::limit_stack(soft);
    }
}
