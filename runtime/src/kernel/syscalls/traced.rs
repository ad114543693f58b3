//! A child of `vfork` that asks to be traced by its parent. From then on each signal stops it until its parent lets
//! it go on, and the parent waits for it: a fault of the runtime's own would stop both for good. Until the child
//! executes a program nobody can see whether it is traced, so the kernel is asked right before that.

use crate::base::sys::{self, failed, nr};
use crate::thread::Thread;

const PTRACE: usize = 101;
const EPERM: i32 = 1;

/// `ptrace(PTRACE_TRACEME)` of `thread`, if it has to wait.
pub fn ask(thread: &mut Thread, args: &[usize; 6]) -> Option<usize> {
    const TRACEME: usize = 0;
    if !thread.vfork_child || thread.beside || args[0] != TRACEME {
        return None;
    }
    if thread.to_be_traced || has_tracer()? {
        return Some(failed(EPERM));
    }
    thread.to_be_traced = true;
    Some(0)
}

/// The thread executes a program next.
pub fn before_exec(thread: &mut Thread) {
    if core::mem::take(&mut thread.to_be_traced) {
        // SAFETY: what the program has asked for.
        let _ = unsafe { sys::call(PTRACE, &[0; 4]) };
    }
}

/// Whether somebody traces this process. `None`: that cannot be told.
fn has_tracer() -> Option<bool> {
    const AT: usize = sys::AT_FDCWD;
    const RDONLY_CLOEXEC: usize = 0o2_000_000;
    let mut text = [0u8; 1024];
    let path = c"/proc/self/status";
    // SAFETY: reads the name.
    let fd =
        unsafe { sys::call(nr::OPENAT, &[AT, path.as_ptr() as usize, RDONLY_CLOEXEC, 0]) }.ok()?;
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { sys::call(nr::READ, &[fd, text.as_mut_ptr() as usize, text.len()]) };
    // SAFETY: opened just now.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
    names_tracer(text.get(..got.ok()?)?)
}

/// What `/proc/self/status` says.
fn names_tracer(status: &[u8]) -> Option<bool> {
    let field = b"TracerPid:\t";
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(field))?;
    Some(line != b"0")
}

#[cfg(test)]
mod tests {
    use super::names_tracer;

    #[test]
    fn a_tracer_is_named() {
        assert_eq!(names_tracer(b"Name:\tx\nTracerPid:\t0\nUid:\t0\n"), Some(false));
        assert_eq!(names_tracer(b"Name:\tx\nTracerPid:\t107\nUid:\t0\n"), Some(true));
        assert_eq!(names_tracer(b"Name:\tx\n"), None);
    }
}
