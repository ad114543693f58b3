//! A command that the runtime runs for itself, in a process that the program does not get to see: no
//! SIGCHLD, no status for its `wait`, none of its files.
//!
//! A child that executes a program reports to its parent with SIGCHLD, whatever it was made with. So
//! there is one in between, which executes nothing and reports with no signal. It waits for the
//! command.

use crate::base::last_words::Line;
use crate::base::signal::{self, block_all, set_default_action, set_kernel_action, set_real_mask};
use crate::base::sys::{self, nr};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, Ordering::*};

const CLONE_VM: usize = 0x100;
const CLONE_VFORK: usize = 0x4000;
/// A tracer of the program does not get to see it either.
const CLONE_UNTRACED: usize = 0x80_0000;
const SIGCHLD: i32 = 17;
/// Children that report with no signal, too.
const WAIT_ALL: usize = 0x4000_0000;

/// The last descriptor that there can be.
const ALL_FILES: usize = u32::MAX as usize;
/// Bytes of an answer; a longer one is cut.
const LONGEST: usize = 64 << 10;
const STACK: usize = 32 << 10;

/// What the two processes need, which have this memory and no other.
struct Order {
    program: usize,
    arguments: usize,
    environment: usize,
    answer: usize,
    complaint: usize,
    stack: usize,
    /// Why the command was not started, or 0.
    error: AtomicI32,
    /// As `wait` gives it; -1: it has not ended.
    status: AtomicI32,
}

/// Runs a command to its end. Returns what it wrote to its standard output, or why there is nothing.
/// `arguments` and `environment` are strings; the first argument is the command.
///
/// Signals that come in meanwhile wait in the thread's mailbox, or end the program, as always.
pub fn run(arguments: &[&CStr], environment: &[&CStr]) -> Result<Vec<u8>, Vec<u8>> {
    let command = arguments.first().copied().unwrap_or_default();
    let shown = command.to_str().unwrap_or("the recorder");
    let files = scratch().and_then(|answer| Ok([answer, scratch()?]));
    let [answer, complaint] = files.map_err(|errno| cannot_start(shown, errno))?;
    let pointers = |strings: &[&CStr]| -> Vec<usize> {
        strings.iter().map(|string| string.as_ptr() as usize).chain([0]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    let mut stacks = alloc::vec![0u64; 2 * STACK / 8];
    let stack = stacks.as_mut_ptr() as usize;
    // A program that is killed meanwhile leaves the process in between behind: in a child of vfork this
    // memory stays its then, whatever the parent does with ours.
    let order = Box::into_raw(Box::new(Order {
        program: command.as_ptr() as usize,
        arguments: arguments.as_ptr() as usize,
        environment: environment.as_ptr() as usize,
        answer: answer.0,
        complaint: complaint.0,
        stack: stack + STACK,
        error: AtomicI32::new(0),
        status: AtomicI32::new(-1),
    }));
    // SAFETY: it is given back below.
    let order = unsafe { &*order };
    let mask = block_all();
    // SAFETY: the stack and the order are used by that process alone, which ends before they do.
    let child = unsafe { start_on(CLONE_VM | CLONE_UNTRACED, stack + 2 * STACK, middle, order) };
    set_real_mask(mask);
    match sys::check(child) {
        Ok(child) => wait(child),
        Err(errno) => order.error.store(errno, Relaxed),
    }
    drop(stacks);
    let (status, error) = (order.status.load(Acquire), order.error.load(Relaxed));
    // SAFETY: made above, and the process that had it has ended.
    drop(unsafe { Box::from_raw(core::ptr::from_ref(order).cast_mut()) });
    match error {
        0 if status == 0 => Ok(answer.contents(LONGEST)),
        0 => Err(ended(shown, status, &complaint.contents(256))),
        errno => Err(cannot_start(shown, errno)),
    }
}

fn cannot_start(command: &str, errno: i32) -> Vec<u8> {
    let mut line = Line::new();
    let _ = write!(line, "cannot start {command} (error {errno})");
    line.text().into()
}

/// How the command ended, which is not as it should, and the first line that it said.
fn ended(command: &str, status: i32, said: &[u8]) -> Vec<u8> {
    let mut line = Line::new();
    let _ = match status {
        -1 => write!(line, "{command} was lost"),
        status if status & 0x7f == 0 => {
            write!(line, "{command} ended with status {}", status >> 8 & 0xff)
        }
        status => write!(line, "{command} was ended by signal {}", status & 0x7f),
    };
    let first = said.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if let Ok(first) = core::str::from_utf8(first) {
        if !first.is_empty() {
            let _ = write!(line, ": {first}");
        }
    }
    line.text().into()
}

/// Waits for a child of ours to end.
fn wait(child: usize) {
    // SAFETY: nothing is written.
    while unsafe { sys::call(nr::WAIT4, &[child, 0, WAIT_ALL, 0]) } == Err(sys::EINTR) {}
}

/// A file in memory, without a name.
struct Scratch(usize);

fn scratch() -> Result<Scratch, i32> {
    const CLOEXEC: usize = 1;
    const NOEXEC_SEAL: usize = 8;
    let name = c"deprewrite-answer".as_ptr() as usize;
    // SAFETY: the kernel reads the name.
    let make = |flags| unsafe { sys::call(nr::MEMFD_CREATE, &[name, flags]) };
    // Linux before 6.3 knows one of the flags only.
    make(CLOEXEC | NOEXEC_SEAL).or_else(|_| make(CLOEXEC)).map(Scratch)
}

impl Scratch {
    /// What was written to it, up to `most` bytes.
    fn contents(&self, most: usize) -> Vec<u8> {
        let mut bytes = alloc::vec![0u8; most];
        let args = [self.0, bytes.as_mut_ptr() as usize, most, 0];
        // SAFETY: the kernel writes at most that many bytes.
        let read = unsafe { sys::call(nr::PREAD64, &args) };
        bytes.truncate(read.unwrap_or(0));
        bytes
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: a descriptor of ours.
        let _ = unsafe { sys::call(nr::CLOSE, &[self.0]) };
    }
}

/// `clone` for a child that calls `function` with `order`, on a stack that ends at `stack`.
///
/// # Safety
/// Stack and order stay until the child has ended or executed a program; the function never returns,
/// and does with this memory only what the two agree upon.
#[unsafe(naked)]
unsafe extern "C" fn start_on(
    flags: usize,
    stack: usize,
    function: unsafe extern "C" fn(&Order) -> !,
    order: &Order,
) -> usize {
    naked_asm!(
        "mov [rsi - 8], rcx",
        "mov [rsi - 16], rdx",
        "sub rsi, 16",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "xor ebp, ebp",
        "pop rax",
        "pop rdi",
        // The end of the stack is aligned: so is this call.
        "call rax",
        "ud2",
        clone = const nr::CLONE,
    )
}

/// The process in between. It has all signals blocked, and takes no lock: it may be left alone.
unsafe extern "C" fn middle(order: &Order) -> ! {
    // Where they are ignored, the kernel keeps no status. This process has actions of its own.
    set_default_action(SIGCHLD);
    let flags = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED | SIGCHLD as usize;
    // SAFETY: it executes the command or ends before this returns.
    match sys::check(unsafe { start_on(flags, order.stack, command, order) }) {
        Err(errno) => order.error.store(errno, Relaxed),
        Ok(child) => {
            // If the program is killed meanwhile, nothing of its files is left open here.
            // SAFETY: the files of this process are its own.
            let _ = unsafe { sys::call(nr::CLOSE_RANGE, &[0, ALL_FILES, 0]) };
            let mut status = 0i32;
            let args = [child, &mut status as *mut i32 as usize, WAIT_ALL, 0];
            // SAFETY: the kernel writes the status.
            while unsafe { sys::call(nr::WAIT4, &args) } == Err(sys::EINTR) {}
            order.status.store(status, Release);
        }
    }
    exit(0)
}

/// The process that becomes the command.
unsafe extern "C" fn command(order: &Order) -> ! {
    if let Err(errno) = set_files(order) {
        order.error.store(errno, Relaxed);
        exit(127);
    }
    raise_limits();
    set_signals();
    let args = [order.program, order.arguments, order.environment];
    // SAFETY: zero-terminated strings and vectors.
    if let Err(errno) = unsafe { sys::call(nr::EXECVE, &args) } {
        order.error.store(errno, Relaxed);
    }
    exit(127)
}

/// Ends this process, and nothing else.
fn exit(status: usize) -> ! {
    loop {
        // SAFETY: one thread.
        let _ = unsafe { sys::call(nr::EXIT, &[status]) };
    }
}

/// The answer and the complaint, and nothing of the program's.
fn set_files(order: &Order) -> Result<(), i32> {
    const F_DUPFD: usize = 0;
    // SAFETY: the files of this process are its own.
    unsafe {
        // Out of the way first, if the program has closed its standard files.
        let answer = sys::call(nr::FCNTL, &[order.answer, F_DUPFD, 3])?;
        let complaint = sys::call(nr::FCNTL, &[order.complaint, F_DUPFD, 3])?;
        let null = sys::call(nr::OPEN, &[c"/dev/null".as_ptr() as usize, 0]);
        sys::call(nr::DUP2, &[null.unwrap_or(complaint), 0])?;
        sys::call(nr::DUP2, &[answer, 1])?;
        sys::call(nr::DUP2, &[complaint, 2])?;
        // Before Linux 5.9 the command has the program's files for as long as it runs.
        let _ = sys::call(nr::CLOSE_RANGE, &[3, ALL_FILES, 0]);
    }
    Ok(())
}

/// What the program allows itself is not meant for the command.
fn raise_limits() {
    const CPU: usize = 0;
    const DATA: usize = 2;
    const CORE: usize = 4;
    let all = [CPU, sys::RLIMIT_FSIZE, DATA, CORE, sys::RLIMIT_NOFILE, sys::RLIMIT_AS];
    for resource in all {
        let mut limit = [0u64; 2];
        let old = limit.as_mut_ptr() as usize;
        // SAFETY: the kernel writes two words.
        if unsafe { sys::call(nr::PRLIMIT64, &[0, resource, 0, old]) }.is_err() {
            continue;
        }
        let new = [if resource == CORE { 0 } else { limit[1] }, limit[1]];
        // SAFETY: the kernel reads two words.
        let _ = unsafe { sys::call(nr::PRLIMIT64, &[0, resource, new.as_ptr() as usize, 0]) };
    }
}

/// The actions of a new program, and nothing blocked. What would end or stop it together with the
/// program is ignored where the program ignores it: who waits for it would wait for ever.
fn set_signals() {
    const KEPT_IGNORED: u64 = signal::bit(1) | signal::bit(2) | signal::bit(3) | signal::bit(15);
    const STOPS: u64 = signal::bit(20) | signal::bit(21) | signal::bit(22);
    for number in 1..65 {
        let mut action = signal::Action::default();
        let at = &mut action as *mut signal::Action as usize;
        // SAFETY: the kernel writes one action.
        let _ = unsafe { sys::call(nr::RT_SIGACTION, &[number as usize, 0, at, 8]) };
        let ignored = action.handler == signal::SIG_IGN && KEPT_IGNORED & signal::bit(number) != 0;
        let handler = match ignored || STOPS & signal::bit(number) != 0 {
            true => signal::SIG_IGN,
            false => signal::SIG_DFL,
        };
        // SAFETY: no handler.
        unsafe { set_kernel_action(number, &signal::Action { handler, ..Default::default() }) };
    }
    set_real_mask(0);
}
