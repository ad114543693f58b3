//! Filters of system calls (seccomp). The kernel would apply them to the calls that the runtime makes
//! of its own accord, so it only gets to know one that lets everything pass, and what a call of the
//! program's comes to is decided here. It gets the program's filters when the thread starts another
//! program.

use crate::base::census;
use crate::base::program;
use crate::base::signal::{self, SigInfo, SIGKILL, SIG_IGN};
use crate::base::sys::{self, failed, nr};
use crate::kernel::signals::{actions, pending};
use crate::kernel::syscalls::bpf::{action, is_valid, Data, Insn};
use crate::kernel::syscalls::filters::{self, filters, verdict, Filter};
use crate::kernel::threads;
use crate::logs::inputs::view;
use crate::thread::ending::{end_recording, refuse_program};
use crate::thread::Thread;
use abi::event::End;
use alloc::vec::Vec;

/// In place of a filter's number: read, write, exit and sigreturn are all that is allowed.
const STRICT: u32 = u32::MAX;

const X86_64: u32 = 0xc000_003e;
const SIGSYS: i32 = 31;
const PR_SET_SECCOMP: usize = 22;

/// What a call comes to that the thread's filters do not let pass; `None`: it may be made.
pub fn check(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64) -> Option<usize> {
    // Other threads may have installed one for all.
    thread.filter = thread.filter.max(filters::of_all());
    if thread.filter == 0 {
        return None;
    }
    if thread.filter == STRICT {
        return match number {
            nr::READ | nr::WRITE | nr::EXIT | nr::RT_SIGRETURN => None,
            _ => die(thread, SIGKILL),
        };
    }
    let mut data: Data = [0; 16];
    data[..4].copy_from_slice(&[number as u32, X86_64, next as u32, (next >> 32) as u32]);
    for (slot, arg) in data[4..].chunks_exact_mut(2).zip(args) {
        slot.copy_from_slice(&[*arg as u32, (*arg >> 32) as u32]);
    }
    let verdict = verdict(thread.filter, &data);
    let value = verdict & !action::ACTION;
    match verdict & action::ACTION {
        action::KILL_THREAD if !thread.vfork_child && census::live() > 1 => {
            threads::exit_thread(thread, SIGSYS)
        }
        action::TRAP => Some(trap(thread, number, next, value)),
        action::ERRNO => Some(failed(value.min(4095) as i32)),
        action::USER_NOTIF | action::TRACE => Some(failed(sys::ENOSYS)),
        kind if kind > action::TRACE && kind < action::KILL_PROCESS => None,
        _ => die(thread, SIGSYS),
    }
}

fn die(thread: &mut Thread, signal: i32) -> ! {
    end_recording(thread, End::Signal, signal, 0);
    signal::die_of(signal)
}

/// SIGSYS for the program's handler, or its death.
fn trap(thread: &mut Thread, number: usize, next: u64, errno: u32) -> usize {
    const SYS_SECCOMP: i32 = 1;
    let blocked = thread.mailbox.blocks(SIGSYS);
    if blocked || actions::with(thread, SIGSYS, |action| action.handler) <= SIG_IGN {
        die(thread, SIGSYS);
    }
    let mut info = SigInfo::fault(SIGSYS, SYS_SECCOMP, next);
    info.0[4..8].copy_from_slice(&errno.to_le_bytes());
    info.0[24..28].copy_from_slice(&(number as u32).to_le_bytes());
    info.0[28..32].copy_from_slice(&X86_64.to_le_bytes());
    pending::raise(thread, SIGSYS, info);
    // A replay has no filters.
    thread.raised = 0;
    // The handler finds the number of the call in rax.
    number
}

/// `prctl(PR_SET_SECCOMP, ...)` and `seccomp(...)`. `None`: another request.
pub fn install(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Option<usize> {
    // The two number the modes differently.
    let (operation, flags, program) = match number {
        nr::PRCTL if args[0] == PR_SET_SECCOMP => (args[1].checked_sub(1)?, 0, args[2]),
        nr::SECCOMP => (args[0], args[1], args[2]),
        _ => return None,
    };
    match operation {
        0 if number == nr::SECCOMP && (flags != 0 || program != 0) => None,
        // As the kernel answers where it has a filter.
        0 if thread.filter != 0 || is_filtered() => Some(failed(sys::EINVAL)),
        0 => {
            thread.filter = STRICT;
            view::has_filter();
            Some(0)
        }
        1 => install_filter(thread, number, args, flags, program as u64),
        _ => None,
    }
}

/// Whether the kernel has a filter for this thread.
fn is_filtered() -> bool {
    const PR_GET_SECCOMP: usize = 21;
    // SAFETY: asks only.
    let mode = unsafe { sys::call(nr::PRCTL, &[PR_GET_SECCOMP]) };
    mode != Ok(0)
}

fn install_filter(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    flags: usize,
    at: u64,
) -> Option<usize> {
    const TSYNC: usize = 1;
    const NEW_LISTENER: usize = 8;
    // What cannot be read the kernel refuses itself, with the right error.
    let program = read(at)?;
    if !is_valid(&program) {
        return Some(failed(sys::EINVAL));
    }
    if flags & NEW_LISTENER != 0 {
        refuse_program(
            thread,
            thread.syscall_pc,
            "has another process decide about its system calls (seccomp with a listener)",
        );
    }
    let all = [Insn { code: 0x06, k: action::ALLOW, ..Insn::default() }];
    let all = [1, all.as_ptr() as usize];
    let mut own = *args;
    own[2] = all.as_ptr() as usize;
    // Whether it may is the kernel's decision.
    // SAFETY: the program's own call, with a filter that changes nothing.
    let result = unsafe { sys::raw(number, own) };
    if result == 0 {
        let mut filters = filters();
        filters.push(Filter { program, by_prctl: number == nr::PRCTL, before: thread.filter });
        thread.filter = filters.len() as u32;
        view::has_filter();
        if flags & TSYNC != 0 {
            filters::set_for_all(thread.filter);
        }
    }
    Some(result)
}

/// Another program starts: the kernel gets the filters of the thread that it does not have yet, the
/// oldest one first.
pub fn before_exec(thread: &mut Thread) {
    const SET_MODE_FILTER: usize = 1;
    const MODE_FILTER: usize = 2;
    let mut chain = Vec::new();
    let mut number = thread.filter;
    while number != thread.kernel_filter {
        let filters = filters();
        let Some(filter) = (number as usize).checked_sub(1).and_then(|i| filters.get(i)) else {
            break;
        };
        chain.push((number, filter.by_prctl, filter.program.clone()));
        number = filter.before;
    }
    // Not under the lock: a filter may end a child that shares it with its parent.
    for (number, by_prctl, program) in chain.into_iter().rev() {
        let fprog = [program.len(), program.as_ptr() as usize];
        let at = fprog.as_ptr() as usize;
        // SAFETY: the kernel reads the program.
        let installed = unsafe {
            match by_prctl {
                true => sys::call(nr::PRCTL, &[PR_SET_SECCOMP, MODE_FILTER, at]),
                false => sys::call(nr::SECCOMP, &[SET_MODE_FILTER, 0, at]),
            }
        };
        if installed.is_err() {
            refuse_program(
                thread,
                thread.syscall_pc,
                "starts another program under a filter that the kernel does not take any more",
            );
        }
        thread.kernel_filter = number;
    }
}

/// Copies a `struct sock_fprog`.
fn read(at: u64) -> Option<Vec<Insn>> {
    const MOST: usize = 4096;
    let mut header = [0u64; 2];
    program::read_program_value(at, &mut header).then_some(())?;
    let len = usize::from(header[0] as u16);
    (1..=MOST).contains(&len).then_some(())?;
    let mut words = alloc::vec![0u64; len];
    program::read_program_words(header[1], &mut words).then_some(())?;
    let insn = |word: u64| Insn {
        code: word as u16,
        jump_true: (word >> 16) as u8,
        jump_false: (word >> 24) as u8,
        k: (word >> 32) as u32,
    };
    Some(words.into_iter().map(insn).collect())
}
