//! Filters of system calls (seccomp). The kernel would apply them to the calls that the runtime makes
//! of its own accord, so it only gets to know one that lets everything pass, and what a call of the
//! program's comes to is decided here. It gets the program's filters when the thread starts another
//! program.

use crate::dispatch::{end_recording, refuse_program};
use crate::process::process;
use crate::signals::{self, frame::SigInfo, SIGKILL, SIG_IGN};
use crate::sys::{self, failed, nr};
use crate::thread::Thread;
use crate::threads;
use abi::event::End;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

/// One instruction of classic BPF (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Insn {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    k: u32,
}

/// A filter that was installed, and the one that the thread had before: its number, or 0.
pub struct Filter {
    program: Vec<Insn>,
    by_prctl: bool,
    before: u32,
}

/// In place of a filter's number: read, write, exit and sigreturn are all that is allowed.
const STRICT: u32 = u32::MAX;

const X86_64: u32 = 0xc000_003e;
const SIGSYS: i32 = 31;
const PR_SET_SECCOMP: usize = 22;

mod action {
    pub const KILL_PROCESS: u32 = 0x8000_0000;
    pub const KILL_THREAD: u32 = 0;
    pub const TRAP: u32 = 0x0003_0000;
    pub const ERRNO: u32 = 0x0005_0000;
    pub const USER_NOTIF: u32 = 0x7fc0_0000;
    pub const TRACE: u32 = 0x7ff0_0000;
    pub const ALLOW: u32 = 0x7fff_0000;
    pub const ACTION: u32 = 0xffff_0000;
}

/// `struct seccomp_data`, in words.
type Data = [u32; 16];

/// What a call comes to that the thread's filters do not let pass; `None`: it may be made.
pub fn check(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64) -> Option<usize> {
    // Other threads may have installed one for all.
    thread.filter = thread.filter.max(process().filter_of_all.load(Relaxed));
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
        action::KILL_THREAD if !thread.vfork_child && process().threads.live.load(Relaxed) > 1 => {
            threads::exit_thread(thread, SIGSYS)
        }
        action::TRAP => Some(trap(thread, number, next, value)),
        action::ERRNO => Some(failed(value.min(4095) as i32)),
        action::USER_NOTIF | action::TRACE => Some(failed(sys::ENOSYS)),
        kind if kind > action::TRACE && kind < action::KILL_PROCESS => None,
        _ => die(thread, SIGSYS),
    }
}

/// The strictest answer of a chain of filters: the lowest action, as a signed number.
fn verdict(filter: u32, data: &Data) -> u32 {
    let filters = process().filters.lock();
    let mut strictest = action::ALLOW;
    let mut number = filter;
    while let Some(filter) = (number as usize).checked_sub(1).and_then(|i| filters.get(i)) {
        let answer = run(&filter.program, data);
        let rank = |answer: u32| (answer & action::ACTION) as i32;
        if rank(answer) < rank(strictest) {
            strictest = answer;
        }
        number = filter.before;
    }
    strictest
}

fn die(thread: &mut Thread, signal: i32) -> ! {
    end_recording(thread, End::Signal, signal, 0);
    signals::die_of(signal)
}

/// SIGSYS for the program's handler, or its death.
fn trap(thread: &mut Thread, number: usize, next: u64, errno: u32) -> usize {
    const SYS_SECCOMP: i32 = 1;
    let blocked = thread.mask & signals::bit(SIGSYS) != 0;
    if blocked || thread.actions().0[SIGSYS as usize].handler <= SIG_IGN {
        die(thread, SIGSYS);
    }
    let mut info = SigInfo::fault(SIGSYS, SYS_SECCOMP, next);
    info.0[4..8].copy_from_slice(&errno.to_le_bytes());
    info.0[24..28].copy_from_slice(&(number as u32).to_le_bytes());
    info.0[28..32].copy_from_slice(&X86_64.to_le_bytes());
    signals::raise(thread, SIGSYS, info);
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
        let mut filters = process().filters.lock();
        filters.push(Filter { program, by_prctl: number == nr::PRCTL, before: thread.filter });
        thread.filter = filters.len() as u32;
        if flags & TSYNC != 0 {
            process().filter_of_all.store(thread.filter, Relaxed);
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
        let filters = process().filters.lock();
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
    signals::read_program_value(at, &mut header).then_some(())?;
    let len = usize::from(header[0] as u16);
    (1..=MOST).contains(&len).then_some(())?;
    let mut words = alloc::vec![0u64; len];
    signals::read_program(header[1], &mut words).then_some(())?;
    let insn = |word: u64| Insn {
        code: word as u16,
        jump_true: (word >> 16) as u8,
        jump_false: (word >> 24) as u8,
        k: (word >> 32) as u32,
    };
    Some(words.into_iter().map(insn).collect())
}

/// Whether the kernel would take it.
fn is_valid(program: &[Insn]) -> bool {
    let last_returns = program.last().is_some_and(|insn| insn.code & 7 == 6);
    let each = |(i, insn): (usize, &Insn)| {
        let left = program.len() - i - 1;
        match insn.code {
            // ld [k]
            0x20 => insn.k < 64 && insn.k.is_multiple_of(4),
            // ld and ldx: constant, length; tax, txa; return
            0x00 | 0x01 | 0x80 | 0x81 | 0x07 | 0x87 | 0x06 | 0x16 => true,
            // ld, ldx, st and stx: scratch memory
            0x60 | 0x61 | 0x02 | 0x03 => insn.k < 16,
            // div and shifts by a constant
            0x34 => insn.k != 0,
            0x64 | 0x74 => insn.k < 32,
            // add, sub, mul, or, and, xor, neg; by X, too
            0x04 | 0x14 | 0x24 | 0x44 | 0x54 | 0xa4 | 0x84 => true,
            0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0xac => true,
            // ja
            0x05 => (insn.k as usize) < left,
            // jeq, jgt, jge, jset; with X, too
            0x15 | 0x25 | 0x35 | 0x45 | 0x1d | 0x2d | 0x3d | 0x4d => {
                usize::from(insn.jump_true.max(insn.jump_false)) < left
            }
            _ => false,
        }
    };
    last_returns && program.iter().enumerate().all(each)
}

/// Runs a valid program: bpf(4) in its classic form, as in Linux's networking/filter.
fn run(program: &[Insn], data: &Data) -> u32 {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    while let Some(insn) = program.get(at) {
        at += 1;
        let k = insn.k;
        let slot = (k & 15) as usize;
        let operand = if insn.code & 8 != 0 { x } else { k };
        match (insn.code & 7, insn.code) {
            (_, 0x20) => a = data[(k as usize / 4) & 15],
            (_, 0x00) => a = k,
            (_, 0x60) => a = memory[slot],
            (_, 0x01) => x = k,
            (_, 0x61) => x = memory[slot],
            (_, 0x80) => a = 64,
            (_, 0x81) => x = 64,
            (_, 0x02) => memory[slot] = a,
            (_, 0x03) => memory[slot] = x,
            (_, 0x07) => x = a,
            (_, 0x87) => a = x,
            (_, 0x16) => return a,
            (6, _) => return k,
            (4, code) => {
                a = match code & 0xf0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    // The kernel ends the program with 0: kill.
                    0x30 => match a.checked_div(operand) {
                        Some(quotient) => quotient,
                        None => return 0,
                    },
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 => a.wrapping_shl(operand),
                    0x70 => a.wrapping_shr(operand),
                    0x80 => a.wrapping_neg(),
                    _ => a ^ operand,
                }
            }
            (5, 0x05) => at += k as usize,
            (5, code) => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { insn.jump_true } else { insn.jump_false });
            }
            _ => return action::KILL_PROCESS,
        }
    }
    action::KILL_PROCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Insn {
        Insn { code, jump_true, jump_false, k }
    }

    #[test]
    fn filters_answer_as_the_kernel() {
        // ld [0]; jeq #39, 0, 1; ret errno 5; ld [16]; and #0xff; tax; ld #3; add x; ret a
        let program = [
            insn(0x20, 0, 0, 0),
            insn(0x15, 0, 1, 39),
            insn(0x06, 0, 0, action::ERRNO | 5),
            insn(0x20, 0, 0, 16),
            insn(0x54, 0, 0, 0xff),
            insn(0x07, 0, 0, 0),
            insn(0x00, 0, 0, 3),
            insn(0x0c, 0, 0, 0),
            insn(0x16, 0, 0, 0),
        ];
        assert!(is_valid(&program));
        let mut data: Data = [0; 16];
        data[0] = 39;
        assert_eq!(run(&program, &data), action::ERRNO | 5);
        (data[0], data[4]) = (40, 0x1207);
        assert_eq!(run(&program, &data), 10);
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        assert!(!is_valid(&[]));
        // No return at the end; a load that is not aligned; a jump behind the end; a division by 0.
        assert!(!is_valid(&[insn(0x20, 0, 0, 0)]));
        assert!(!is_valid(&[insn(0x20, 0, 0, 2), insn(0x06, 0, 0, 0)]));
        assert!(!is_valid(&[insn(0x15, 1, 0, 0), insn(0x06, 0, 0, 0)]));
        assert!(!is_valid(&[insn(0x34, 0, 0, 0), insn(0x06, 0, 0, 0)]));
        assert!(is_valid(&[insn(0x15, 0, 0, 0), insn(0x06, 0, 0, 0)]));
    }
}
