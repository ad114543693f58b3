//! The processes of a tree are replayed together: where the recorded process forked another one whose script
//! is there, this one forks, and the child goes on with that script.
//!
//! So many forked processes run at once as there are tokens in a pipe. Without one the parent waits for
//! its child: nobody waits for a token, as whoever has one may be gone.

use crate::base::last_words::Line;
use crate::base::lock::Lock;
use crate::base::sys::{self, nr};
use crate::code::jit::jit;
use crate::kernel::replay::script::{header, map, Script};
use crate::kernel::replay::{memory, overrun, replay};
use crate::kernel::syscalls::objects;
use abi::script;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};

/// The path of the first script; empty if this is no tree.
static PATH: Lock<Line> = Lock::new(Line::new());
/// The pipe with the tokens, or -1.
static TOKENS: AtomicI32 = AtomicI32::new(-1);
/// The process has one.
static HAS_TOKEN: AtomicBool = AtomicBool::new(false);
/// Which process of the tree this one is a replay of.
static MEMBER: AtomicU64 = AtomicU64::new(0);

/// Scripts of forked processes stand beside `path`; a path that is too long has none.
pub fn begins(path: &CStr, tokens: i32) {
    let Ok(path) = path.to_str() else { return };
    // A point, a number, and the zero behind it.
    if path.len() + 24 <= Line::ROOM {
        // The runtime may start again, with another stack.
        let mut line = Line::new();
        let _ = line.write_str(path);
        *PATH.lock() = line;
        TOKENS.store(tokens, Relaxed);
    }
}

/// Which process of the tree this one is a replay of.
pub fn member() -> u64 {
    MEMBER.load(Relaxed)
}

/// The recorded process has forked `pid`; `at`: how far its script has come, in front of that call. True in
/// the child, which then has a script of its own.
pub fn forks(pid: u32, at: u64) -> bool {
    let member = script::member(member(), pid.into());
    let Some(fd) = script_of(member) else { return false };
    let has_token = take_token();
    memory::forks();
    // Whoever changes the code from now on makes a copy of it.
    let mut jit = jit();
    jit.forks();
    // What is shared both have from now on.
    objects::give_up(&mut jit);
    drop(jit);
    // Nobody is told of its end.
    // SAFETY: no memory involved; the child runs on a copy of this stack.
    let made = unsafe { sys::call(nr::CLONE, &[0, 0, 0, 0, 0]) };
    if made == Ok(0) {
        MEMBER.store(member, Relaxed);
        HAS_TOKEN.store(has_token, Relaxed);
        overrun::begins();
        let script = header(fd).and_then(|header| Script::of_child(map(fd, header.len).ok()?, at));
        close(fd);
        match script {
            Some(script) => replay().script = script,
            // It says nothing: whoever wanted to hear it does without.
            None => sys::exit_group(1),
        }
        return true;
    }
    close(fd);
    match made {
        Ok(child) if !has_token => wait_for(child),
        Err(_) if has_token => give_token(),
        _ => {}
    }
    false
}

/// The process ends.
pub fn ends() {
    if HAS_TOKEN.swap(false, Relaxed) {
        give_token();
    }
}

fn script_of(member: u64) -> Option<i32> {
    let mut name = Line::new();
    {
        let path = PATH.lock();
        let path = core::str::from_utf8(path.text()).ok().filter(|path| !path.is_empty())?;
        write!(name, "{path}.{member}\0").ok()?;
    }
    let args = [name.text().as_ptr() as usize, sys::O_CLOEXEC];
    // SAFETY: the kernel reads the path, which ends with a zero.
    unsafe { sys::call(nr::OPEN, &args) }.ok().map(|fd| fd as i32)
}

fn take_token() -> bool {
    let mut byte = 0u8;
    let args = [TOKENS.load(Relaxed) as usize, &raw mut byte as usize, 1];
    // SAFETY: the kernel writes at most one byte. The pipe does not make anybody wait.
    unsafe { sys::call(nr::READ, &args) == Ok(1) }
}

fn give_token() {
    let _ = sys::write(TOKENS.load(Relaxed), b"+");
}

fn wait_for(child: usize) {
    const ANY_CHILD: usize = 0x4000_0000;
    // SAFETY: the kernel writes nothing.
    while unsafe { sys::call(nr::WAIT4, &[child, 0, ANY_CHILD, 0]) } == Err(sys::EINTR) {}
}

fn close(fd: i32) {
    // SAFETY: opened here, and nobody uses it any more.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
}
