//! System calls of the program: most go to the kernel as they are; those that change what the
//! runtime knows are carried out on the program's behalf.

mod aligned;
pub mod bpf;
mod clock;
pub mod errand;
pub mod exe_link;
pub mod exec;
pub mod filters;
pub mod leaving;
mod limits;
pub mod listing;
pub mod mapping;
mod near;
pub mod objects;
pub mod seccomp;
mod traced;

use crate::base::ceiling;
use crate::base::descriptors;
use crate::base::keys;
use crate::base::program;
use crate::base::signal;
use crate::base::sys::{self, failed, nr};
use crate::code::jit::has_protected_pages;
use crate::code::writing::{before_writing, write_program_value};
use crate::kernel::baton;
use crate::kernel::brk::brk;
use crate::kernel::interruptible::{interruptible, interruptible_old, NOT_STARTED};
use crate::kernel::replay::{calls, is_replay};
use crate::kernel::ring::parts;
use crate::kernel::signals::{actions, pending, pressure, sigreturn, virtual_state};
use crate::kernel::threads;
use crate::kernel::watched;
use crate::logs::inputs::written::Image;
use crate::logs::inputs::{foreign, view};
use crate::logs::log;
use crate::logs::moment::Call;
use crate::logs::writes::Writes;
use crate::thread::ending::{end_recording, refuse_program};
use crate::thread::Thread;
use abi::event::{End, Event, WHOLE_UNIT};

const SYSCALL_LEN: u64 = 2;
const MLOCKALL: usize = 151;
/// Of `prctl`.
pub(in crate::kernel) const SET_TSC: usize = 26;

/// Added to the number of a 32-bit call, which is made as such ([`crate::kernel::old_calls`]).
pub const OLD: usize = abi::syscalls::OLD as usize;

/// Carries out the system call in the thread's registers; `next` is the pc behind it. Returns the
/// original pc where the program goes on.
pub fn handle(thread: &mut Thread, next: u64) -> u64 {
    let gpr = thread.block.registers.gpr;
    // The kernel looks at eax only.
    let number = gpr[0] as u32 as usize;
    let args = [7, 6, 2, 10, 8, 9].map(|r: usize| gpr[r] as usize);
    thread.block.registers.gpr[11] = thread.block.registers.rflags;
    make(thread, number, &args, next, gpr[11])
}

/// Carries out a system call for the program, which goes on at `next` behind it; `r11` is what that register had in
/// front of it. Returns the original pc where it goes on.
pub fn make(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64, r11: u64) -> u64 {
    let args = *args;
    thread.syscall_pc = next.wrapping_sub(SYSCALL_LEN);
    if is_replay() {
        return calls::handle(thread, number, &args, next, r11);
    }
    thread.at_hand = true;
    let next = with_memory_at_hand(thread, number, args, next);
    thread.at_hand = false;
    next
}

fn with_memory_at_hand(thread: &mut Thread, number: usize, args: [usize; 6], next: u64) -> u64 {
    pressure::before_call(thread, number);
    thread.slot.let_kicks_in(|| thread.mailbox.is_pending());
    if let Some(result) = seccomp::check(thread, number, &args, next) {
        thread.block.registers.gpr[0] = result as u64;
        note(thread, number, &args, result);
        return next;
    }
    if number == nr::RT_SIGRETURN {
        let frame = thread.block.registers.gpr[4].wrapping_sub(8);
        foreign::before_return(thread, frame);
        sigreturn::shows(thread);
        let returned = sigreturn::sigreturn(thread);
        foreign::behind_frame(frame, foreign::LONGEST_FRAME);
        return match returned {
            Some(pc) => pc,
            None => {
                let info = signal::SigInfo::fault(signal::SIGSEGV, signal::SI_KERNEL, 0);
                pending::raise(thread, signal::SIGSEGV, info);
                next
            }
        };
    }
    let makes = matches!(number, nr::CLONE | nr::CLONE3 | nr::VFORK);
    if makes && !view::only_if_shared() && threads::shares_memory(number, &args) {
        watched::start::from_here_on(thread, thread.syscall_pc);
    }
    let mut writes = match log().wants_writes() || has_protected_pages() {
        true => Writes::of(number, &args),
        false => Writes::default(),
    };
    if writes.elsewhere && foreign::is_shown(thread) {
        // What says where may lie there.
        writes = Writes::of(number, &args);
    }
    let brk = match number {
        nr::BRK if log().wants_writes() => brk().current,
        _ => 0,
    };
    let mut call = Call { number, args, writes, brk, before: Image::default() };
    log().image(&call.writes, &mut call.before);
    if foreign::is_beyond(thread, &call) {
        watched::start::from_here_on(thread, thread.syscall_pc);
    }
    log().before_call(thread, &call);
    if has_protected_pages() {
        unprotect(&call.writes);
    }
    objects::before_call(number, &args);
    if makes_process(number) {
        // All signals are blocked meanwhile, and where a child begins.
        thread.at_hand = false;
    }
    let result = match carry_out(thread, number, &args, next) {
        Outcome::Done(result) => result,
        Outcome::Again => {
            foreign::not_made(thread);
            thread.block.registers.gpr[1] = next;
            thread.transfer_undone = true;
            return thread.syscall_pc;
        }
    };
    if result == 0 && makes_process(number) {
        // A child, whose recording begins here.
        log().child_starts(thread, &call);
        // Whatever else is in its memory it sees when it comes to it.
        watched::start::begins(thread, next);
        return next;
    }
    thread.block.registers.gpr[0] = result as u64;
    aligned::after_call(number, result);
    log().call_returns(thread, &call, result);
    note(thread, number, &args, result);
    log().after_call(thread, &call, result);
    if view::is_wanted() {
        watched::start::from_here_on(thread, next);
    }
    watched::start::up_to_here(thread);
    parts::behind_call(thread, next);
    next
}

/// Whether the call makes a process, or a thread.
fn makes_process(number: usize) -> bool {
    matches!(number, nr::FORK | nr::VFORK | nr::CLONE | nr::CLONE3)
}

/// What the call may write is not write-protected by us.
fn unprotect(writes: &Writes) {
    if writes.elsewhere {
        return before_writing(0, u64::MAX);
    }
    for range in &writes.ranges {
        before_writing(range.address, range.address.saturating_add(range.length));
    }
}

enum Outcome {
    Done(usize),
    /// A signal comes first; the program makes the call again afterwards.
    Again,
}

fn carry_out(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64) -> Outcome {
    let sp = thread.block.registers.gpr[4];
    for (start, end) in mapping::named(number, args).into_iter().flatten() {
        brk().uncover(start, end);
    }
    Outcome::Done(match number {
        nr::EXIT_GROUP => exit_group(thread, args[0] as i32),
        nr::EXIT => threads::exit_thread(thread, args[0] as i32),
        nr::RT_SIGACTION => virtual_state::sigaction(thread, args),
        nr::RT_SIGPROCMASK => virtual_state::sigprocmask(thread, args),
        nr::SIGALTSTACK => virtual_state::sigaltstack(thread, args, sp),
        nr::MMAP => mapping::mmap(thread, args),
        nr::MUNMAP => mapping::munmap(args),
        nr::MPROTECT | nr::PKEY_MPROTECT => mapping::mprotect(thread, number, args),
        nr::MADVISE => mapping::madvise(args),
        nr::MREMAP => mapping::mremap(args),
        // SAFETY: the program's own call.
        nr::SHMAT => mapping::shmat(args, || unsafe { sys::raw(number, *args) }),
        nr::SHMDT | nr::IO_DESTROY => mapping::detach(number, args),
        nr::IO_SETUP => {
            let outcome = plain(thread, number, args);
            if matches!(outcome, Outcome::Done(0)) {
                mapping::ring_made(args);
            }
            return outcome;
        }
        nr::BRK => brk().set(args[0] as u64) as usize,
        nr::ARCH_PRCTL => arch_prctl(thread, args),
        nr::RSEQ => failed(sys::ENOSYS),
        nr::CLONE | nr::CLONE3 | nr::FORK | nr::VFORK => threads::clone(thread, number, args, next),
        nr::EXECVE | nr::EXECVEAT => return exec::exec(thread, number, args),
        nr::CLOSE if descriptors::is_hidden(args[0] as i32) => failed(sys::EBADF),
        nr::DUP2 | nr::DUP3 if descriptors::is_hidden(args[0] as i32) => failed(sys::EBADF),
        nr::DUP2 | nr::DUP3 if descriptors::is_hidden(args[1] as i32) => {
            refuse_program(thread, thread.syscall_pc, "claims a file descriptor of the runtime")
        }
        nr::CLOSE_RANGE => close_range(args),
        nr::GETDENTS | nr::GETDENTS64 => return listing::list(thread, number, args),
        nr::PRCTL | nr::SECCOMP => {
            if number == nr::PRCTL && args[0] == SET_TSC {
                clock::counter_may_be_forbidden();
            }
            if let Some(what) = refused_prctl(args).filter(|_| number == nr::PRCTL) {
                refuse_program(thread, thread.syscall_pc, what);
            }
            match seccomp::install(thread, number, args) {
                Some(result) => result,
                None => return plain(thread, number, args),
            }
        }
        101 if thread.beside => threads::ptrace(args),
        101 => match traced::ask(thread, args) {
            Some(result) => result,
            None => return plain(thread, number, args),
        },
        nr::SETRLIMIT | nr::PRLIMIT64 => {
            let wanted = limits::wanted(number, args);
            wanted.into_iter().for_each(limits::before);
            let outcome = plain(thread, number, args);
            if matches!(outcome, Outcome::Done(0)) {
                wanted.into_iter().for_each(limits::after);
            }
            return outcome;
        }
        nr::CLOCK_GETTIME | nr::GETTIMEOFDAY | nr::TIME | nr::GETCPU => {
            match clock::call(thread, number, args) {
                Some(result) => result,
                None => return plain(thread, number, args),
            }
        }
        nr::MEMFD_CREATE => {
            let outcome = plain(thread, number, args);
            if let Outcome::Done(result) = outcome {
                if sys::check(result).is_ok() {
                    objects::made(result);
                }
            }
            return outcome;
        }
        nr::PKEY_ALLOC => {
            let outcome = plain(thread, number, args);
            if let Outcome::Done(result) = outcome {
                if sys::check(result).is_ok() {
                    keys::use_them();
                }
            }
            return outcome;
        }
        nr::RT_SIGTIMEDWAIT => {
            let outcome = plain(thread, number, args);
            if let Outcome::Done(result @ 1..=64) = outcome {
                pending::taken(thread, result as i32);
            }
            return outcome;
        }
        nr::TGKILL | 62 | 200 => return kill(thread, number, args),
        MLOCKALL if view::have_begun() => {
            // All of a view would be filled: it is as large as what may lie above it.
            const MCL_ONFAULT: usize = 4;
            return plain(thread, number, &[args[0] | MCL_ONFAULT, args[1], 0, 0, 0, 0]);
        }
        MLOCKALL => {
            // What is kept free would count.
            ceiling::gives_up();
            return plain(thread, number, args);
        }
        nr::FUTEX => match baton::call_with_priorities(thread, args) {
            Some(NOT_STARTED) => {
                pressure::keeps(thread);
                return Outcome::Again;
            }
            Some(result) => {
                pressure::made(thread);
                result
            }
            None => return plain(thread, number, args),
        },
        _ => match exe_link::call(thread, number, args) {
            Some(outcome) => return outcome,
            None => {
                leaving::before(number, args);
                return plain(thread, number, args);
            }
        },
    })
}

/// What the kernel would do to the runtime as well, or cannot see for us.
fn refused_prctl(args: &[usize; 6]) -> Option<&'static str> {
    const SET_SYSCALL_USER_DISPATCH: usize = 59;
    const SET_MDWE: usize = 65;
    match (args[0], args[1]) {
        (SET_SYSCALL_USER_DISPATCH, 1..) => {
            Some("takes its own system calls (prctl with PR_SET_SYSCALL_USER_DISPATCH)")
        }
        (SET_MDWE, 1..) => Some("gives up making memory executable (prctl with PR_SET_MDWE)"),
        _ => None,
    }
}

/// A call that only the kernel is concerned with. Signals may interrupt it, or keep it from
/// starting. (Whether it starts again then, the kernel decides: our handler has the program's SA_RESTART.)
fn plain(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Outcome {
    let given = foreign::for_kernel(thread, number, args);
    let lent = baton::before_call(thread, number, args);
    let starts_anyway = thread.mailbox.is_pending() && pressure::has_kept(thread);
    let result = match starts_anyway && number & OLD == 0 {
        true => {
            let sets_mask = temporary_mask(number, args).is_some();
            // SAFETY: the program's own call with the program's own arguments.
            unsafe { pressure::start_anyway(thread, number, &given, sets_mask) }
        }
        false => thread.with_true_mask(|thread| {
            let pending = thread.mailbox.pending_word();
            // SAFETY: the program's own call with the program's own arguments.
            unsafe {
                match number & OLD {
                    0 => interruptible(pending, number, &given),
                    _ => interruptible_old(pending, number & !OLD, &given),
                }
            }
        }),
    };
    let is_ended = result == failed(sys::EINTR) && thread.mailbox.is_pending();
    baton::after_call(thread, lent);
    foreign::has_waited(thread);
    if result == NOT_STARTED {
        pressure::keeps(thread);
        return Outcome::Again;
    }
    pressure::made(thread);
    if is_ended {
        thread.handler_mask = temporary_mask(number, args);
    }
    if number == nr::SET_TID_ADDRESS {
        thread.clear_tid = args[0] as u64;
    }
    Outcome::Done(result)
}

/// The signal mask that a call sets for as long as it waits: a handler that ends it runs with that,
/// too.
pub(in crate::kernel) fn temporary_mask(number: usize, args: &[usize; 6]) -> Option<u64> {
    let mut at = match number {
        nr::RT_SIGSUSPEND => args[0],
        nr::PPOLL => args[3],
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => args[4],
        nr::PSELECT6 | nr::IO_PGETEVENTS => args[5],
        _ => return None,
    } as u64;
    // There is a pointer to it, and its size.
    let behind = matches!(number, nr::PSELECT6 | nr::IO_PGETEVENTS);
    if behind && !program::read_program_value(at, &mut at) {
        return None;
    }
    let mut mask = 0u64;
    (at != 0 && program::read_program_value(at, &mut mask)).then_some(mask)
}

fn exit_group(thread: &mut Thread, status: i32) -> usize {
    if thread.vfork_child {
        signal::block_all();
        threads::exit_vfork_child(thread, status, nr::EXIT_GROUP);
    }
    signal::block_all();
    watched::end::others_stand(thread);
    end_recording(thread, End::Exit, status & 0xff, 0);
    sys::exit_group(status)
}

pub(in crate::kernel) fn arch_prctl(thread: &mut Thread, args: &[usize; 6]) -> usize {
    const SET_GS: usize = 0x1001;
    const SET_FS: usize = 0x1002;
    const GET_FS: usize = 0x1003;
    const GET_GS: usize = 0x1004;
    const ADDRESSES: usize = 0x7fff_ffff_f000;
    let is_watched = thread.block.view != 0;
    // Translated code returns to other addresses than it pushed: as a processor without.
    const SHADOW_STACK: core::ops::RangeInclusive<usize> = 0x5001..=0x5005;
    match args[0] {
        code if SHADOW_STACK.contains(&code) => failed(sys::EOPNOTSUPP),
        SET_GS if args[1] >= ADDRESSES => failed(sys::EPERM),
        SET_GS => {
            thread.block.program_gs = args[1] as u64;
            thread.event(WHOLE_UNIT, &Event::GsBase(args[1] as u64));
            0
        }
        GET_GS => {
            let base = thread.block.program_gs;
            // SAFETY: the program wants the word there.
            match unsafe { write_program_value(args[1] as u64, &base) } {
                true => 0,
                false => failed(sys::EFAULT),
            }
        }
        SET_FS if is_watched && args[1] >= ADDRESSES => failed(sys::EPERM),
        SET_FS if is_watched => {
            thread.block.program_fs = args[1] as u64;
            thread.event(WHOLE_UNIT, &Event::FsBase(args[1] as u64));
            0
        }
        GET_FS if is_watched => {
            let base = thread.block.program_fs;
            // SAFETY: the program wants the word there.
            match unsafe { write_program_value(args[1] as u64, &base) } {
                true => 0,
                false => failed(sys::EFAULT),
            }
        }
        code => {
            // SAFETY: the program's own call.
            let result = unsafe { sys::raw(nr::ARCH_PRCTL, *args) };
            if code == SET_FS && result == 0 {
                thread.event(WHOLE_UNIT, &Event::FsBase(args[1] as u64));
            }
            result
        }
    }
}

/// `close_range` around the descriptors of the runtime.
fn close_range(args: &[usize; 6]) -> usize {
    let (first, last, flags) = (args[0] as u32, args[1] as u32, args[2]);
    if first > last {
        return failed(sys::EINVAL);
    }
    let mut from = first;
    for fd in descriptors::hidden_in(first..=last) {
        if fd > from {
            // SAFETY: descriptors of the program.
            let _ = unsafe { sys::call(nr::CLOSE_RANGE, &[from as usize, fd as usize - 1, flags]) };
        }
        from = fd + 1;
    }
    match from > last {
        true => 0,
        // SAFETY: descriptors of the program.
        false => unsafe {
            sys::raw(nr::CLOSE_RANGE, [from as usize, last as usize, flags, 0, 0, 0])
        },
    }
}

/// kill, tkill, tgkill: a signal that ends this process is noted before it does.
fn kill(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Outcome {
    let (target, signal) = match number {
        nr::TGKILL => (args[1], args[2]),
        _ => (args[0], args[1]),
    };
    let own = target as u32 == thread.tid || target as u32 == sys::getpid();
    let deadly = (1..32).contains(&signal)
        && signal::ends_by_default(signal as i32)
        && actions::with(thread, signal as i32, |action| action.handler) == signal::SIG_DFL
        && !thread.mailbox.blocks(signal as i32);
    if own && deadly && !thread.vfork_child {
        if signal == 9 {
            if thread.filter == 0 && thread.kernel_filter == 0 {
                // (Nothing refuses the call.)
                watched::end::others_stand(thread);
            }
            end_recording(thread, End::Signal, signal as i32, 0);
        } else if sys::getpid() != sys::FIRST_PROCESS {
            // It comes by way of us.
            actions::install(signal as i32);
        }
    }
    plain(thread, number, args)
}

/// The trace says what the call returned.
pub(in crate::kernel) fn note(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    result: usize,
) {
    if !thread.recorder.active() {
        return;
    }
    let arguments = args.map(|arg| arg as u64);
    let call = Event::Syscall { number: number as u64, arguments, result: result as i64 };
    thread.event(WHOLE_UNIT, &call);
    if let Some((pid, status)) = reaped(number, args, result) {
        thread.event(WHOLE_UNIT, &Event::Reaped { pid, status });
    }
}

/// The child that the program was told the end of: its process id, and its status as `wait4` gives it.
fn reaped(number: usize, args: &[usize; 6], result: usize) -> Option<(u64, u64)> {
    const WAITID: usize = 247;
    const CORE: u64 = 0x80;
    match number {
        nr::WAIT4 => {
            let mut status = 0u32;
            let pid = sys::check(result).ok().filter(|&pid| pid != 0)? as u64;
            program::read_program_value(args[1] as u64, &mut status).then_some(())?;
            // Stopped, or going on: not the end.
            (status & 0xff != 0x7f && status != 0xffff).then_some((pid, status.into()))
        }
        WAITID => {
            // siginfo: three words, padding, the process id, the user id, the status.
            let mut info = [0u64; 4];
            sys::check(result).ok()?;
            program::read_program_words(args[2] as u64, &mut info).then_some(())?;
            let (code, pid, status) = (info[1] as u32, info[2] as u32, info[3] as u32);
            let status = match code {
                1 => u64::from(status & 0xff) << 8,
                2 => status.into(),
                3 => u64::from(status) | CORE,
                _ => return None,
            };
            (pid != 0).then_some((pid.into(), status))
        }
        _ => None,
    }
}
