//! System calls of a replay: answered as they were; what changes the address space, the signal state or the
//! thread itself is made again.

use crate::base::digest::Digest;
use crate::base::last_words::Line;
use crate::base::program::read_program_value;
use crate::base::replaying::is_alone;
use crate::base::signal::{self, SigInfo};
use crate::base::sys::{self, failed, nr};
use crate::kernel::brk::brk;
use crate::kernel::replay::arrive::compare;
use crate::kernel::replay::outcome::{conclude, differs, Call, Expected};
use crate::kernel::replay::stepping::is_in_call;
use crate::kernel::replay::{
    coming, contexts, event_of, memory, next_entry, replay, steer, take, tree, write, Coming,
};
use crate::kernel::signals::{actions, pending, sigreturn, virtual_state};
use crate::kernel::syscalls::{arch_prctl, mapping, note, temporary_mask, SET_TSC};
use crate::kernel::threads;
use crate::logs::inputs::passed::passed;
use crate::logs::inputs::written::Image;
use crate::logs::writes::Writes;
use crate::logs::{log, moment};
use crate::thread::ending::end_recording;
use crate::thread::seek::Moment;
use crate::thread::Thread;
use abi::event::{End, Event, Kind, WHOLE_UNIT};
use abi::script::Verdict;
use abi::syscalls::{find, MayWrite};
use abi::thread::Registers;
use core::fmt::Write;

const ARCH_SET_GS: usize = 0x1001;
const ARCH_SET_FS: usize = 0x1002;

/// Ends the replay if what the program passes to the kernel is not what it passed in the recording.
fn compare_passed(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    here: Digest,
    recorded: Option<Digest>,
) {
    let Some(recorded) = recorded.filter(|recorded| *recorded != here) else { return };
    let (pc, turns) = (thread.syscall_pc, thread.turns());
    let arguments = args.map(|arg| arg as u64);
    let call = Call { number: number as u64, arguments: &arguments };
    let (bytes, theirs) = (here.bytes, recorded.bytes);
    differs(
        thread,
        pc,
        format_args!("{call} at {pc:#x}, turn {turns}, passes {bytes} bytes to the kernel that are not the {theirs} of the recording"),
    )
}

/// What the script has for a call.
enum Found {
    /// It returned this.
    Result(usize),
    /// It did not start: something comes first.
    Interrupted,
}

/// Answers the system call in the thread's registers; `next` is the pc behind it, `r11` what that register
/// had in front of it. Returns the original pc where the program goes on.
pub fn handle(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64, r11: u64) -> u64 {
    let pc = thread.syscall_pc;
    steer::before_call(thread, number as u64);
    shown(thread);
    match number {
        nr::RT_SIGRETURN => {
            return sigreturn::sigreturn(thread).unwrap_or_else(|| {
                let info = SigInfo::fault(signal::SIGSEGV, signal::SI_KERNEL, 0);
                pending::raise(thread, signal::SIGSEGV, info);
                next
            });
        }
        nr::EXIT_GROUP | nr::EXIT => exits(thread, number, args),
        nr::EXECVE | nr::EXECVEAT => executes(thread, number, args),
        _ => {}
    }
    let passed = passed(number, args);
    // It had begun before what is kept: what it was given then may have changed.
    let has_begun = thread.stood.take() == Some((pc, thread.turns()));
    if !is_alone() {
        contexts::before_vfork(thread, number, args, next);
    }
    let mut coming = coming_in_call(thread);
    if let Some(pid) = forked(&coming) {
        if tree::forks(pid, coming.begins) {
            coming = coming_in_call(thread);
        }
    }
    contexts::after_vfork(thread);
    let result = match found(thread, &coming, number, args) {
        Found::Result(result) => {
            let recorded = coming.passed.filter(|_| !has_begun);
            compare_passed(thread, number, args, passed, recorded);
            result
        }
        Found::Interrupted => {
            write(thread, pc, &coming.written);
            thread.block.registers.gpr[1] = next;
            if matches!(&coming.event, Event::Arrived(recorded) if recorded.gpr[11] == r11) {
                // It had not begun: rcx is from the call before, which was made here, too.
                thread.block.registers.gpr[11] = r11;
            }
            thread.transfer_undone = true;
            return pc;
        }
    };
    let may_write = |&(address, bytes): &(u64, &[u8])| MayWrite {
        address,
        length: bytes.len() as u64,
        unit: 0,
    };
    let ranges = coming.written.iter().map(may_write).collect();
    let brk = brk().current;
    let call = moment::Call {
        number,
        args: *args,
        writes: Writes { ranges, elsewhere: false },
        brk,
        before: Image::default(),
    };
    log().before_call(thread, &call);
    make(thread, &call, result, &coming);
    write(thread, pc, &coming.written);
    take(&coming.entry);
    steer::after_call(thread, number as u64);
    if result == 0 && matches!(number, nr::FORK | nr::VFORK | nr::CLONE | nr::CLONE3) {
        goes_on_as_child(thread, number, args, next);
        return next;
    }
    thread.block.registers.gpr[0] = result as u64;
    note(thread, number, args, result);
    log().after_call(thread, &call, result);
    if sys::check(result).is_ok() {
        replay().output.after(number, args, result);
    }
    if result == failed(sys::EINTR) {
        thread.handler_mask =
            temporary_mask(number, args).filter(|_| is_interrupted_at(thread, next));
    }
    next
}

/// Puts in place what others have stored, and the call shows.
fn shown(thread: &mut Thread) {
    let pc = thread.syscall_pc;
    loop {
        let entry = next_entry(thread, pc);
        let is_mine = (entry.thread, entry.turns) == (thread.index, thread.turns());
        if !is_mine || entry.kind() != Kind::Seen {
            return;
        }
        let Event::Seen { pc: at, address, bytes, .. } = event_of(thread, pc, &entry) else {
            return;
        };
        if at.0 != pc {
            return;
        }
        write(thread, pc, &[(address.0, bytes)]);
        take(&entry);
    }
}

/// What comes next for a call. What is compared in it is compared.
fn coming_in_call(thread: &mut Thread) -> Coming {
    let pc = thread.syscall_pc;
    loop {
        let_others_run(thread);
        let next = coming(thread, pc);
        let mine = (thread.index, thread.turns());
        if matches!(next.event, Event::Yields) && (next.entry.thread, next.entry.turns) == mine {
            // The call was made again, as a signal kept it from starting and nobody handled it; or it goes on, and the
            // others see what it has written.
            write(thread, pc, &next.written);
            continue;
        }
        let Event::Checked(registers) = &next.event else { return next };
        let moment = Moment { rip: registers.rip, rcx: registers.gpr[1] };
        if moment.rip != pc || !is_in_call(&moment) || next.entry.turns != thread.turns() {
            return next;
        }
        let mine = Registers { rip: pc, ..thread.block.registers };
        compare(thread, &mine, registers);
        take(&next.entry);
    }
}

/// The process that the call has made, if it has one with a copy of all memory.
fn forked(coming: &Coming) -> Option<u32> {
    match coming.event {
        Event::Syscall { number, arguments, result } => {
            let (number, arguments) = (number as usize, arguments.map(|a| a as usize));
            let makes = matches!(number, nr::FORK | nr::CLONE | nr::CLONE3);
            let pid = sys::check(result as usize).ok().filter(|&pid| makes && pid != 0)?;
            (!threads::shares_memory(number, &arguments)).then_some(pid as u32)
        }
        _ => None,
    }
}

/// Others run now, if the recorded thread let them run for this call.
fn let_others_run(thread: &mut Thread) {
    let pc = thread.syscall_pc;
    loop {
        let entry = next_entry(thread, pc);
        match entry.kind() {
            Kind::Yields if (entry.thread, entry.turns) == (thread.index, thread.turns()) => {
                take(&entry);
            }
            // It was in this call for so long that others did not wait for it. If it never came back from
            // there, nothing says so.
            Kind::Runs | Kind::ThreadStart if entry.thread != thread.index => {}
            _ => return,
        }
        contexts::others_run(thread, pc, WHOLE_UNIT);
    }
}

/// What the recorded call returned, if it was this one.
fn found(thread: &mut Thread, coming: &Coming, number: usize, args: &[usize; 6]) -> Found {
    let pc = thread.syscall_pc;
    let turns = thread.turns();
    let arguments = args.map(|arg| arg as u64);
    let here = (coming.entry.thread, coming.entry.turns) == (thread.index, turns);
    match &coming.event {
        Event::Syscall { number: theirs, arguments: recorded, result }
            if here && *theirs == number as u64 && *recorded == arguments =>
        {
            Found::Result(*result as usize)
        }
        // (What a watched thread had seen for the call, it has seen.)
        Event::Arrived(registers)
            if here && registers.rip == pc && (coming.written.is_empty() || is_alone()) =>
        {
            Found::Interrupted
        }
        // A filter of the program's (seccomp) may do that, too.
        Event::ProcessEnd { reason, status, .. } if here && *reason != End::Exit => {
            let (reason, status) = (*reason, *status);
            take(&coming.entry);
            end_recording(thread, reason, status, 0);
            let name = find(number as u64).map_or("a system call", |call| call.name);
            let why = format_args!("the process ends in {name} at {pc:#x} ({status})");
            conclude(thread, Verdict::Ended, pc, why)
        }
        Event::ThreadEnd { reason, status } if here => {
            let (reason, status) = (*reason, *status);
            write(thread, pc, &coming.written);
            take(&coming.entry);
            ends(thread, reason, status)
        }
        other => {
            let call = Call { number: number as u64, arguments: &arguments };
            let expected = Expected(&coming.entry, other);
            differs(
                thread,
                pc,
                format_args!(
                    "the replay makes the system call {call} at {pc:#x}, turn {turns}; {expected}"
                ),
            )
        }
    }
}

/// PR_SET_TSC, PR_TSC_SIGSEGV.
const FORBIDS_TSC: [usize; 2] = [SET_TSC, 2];

/// Carries out what has to be.
fn make(thread: &mut Thread, call: &moment::Call, result: usize, coming: &Coming) {
    let moment::Call { number, args, .. } = call;
    let pc = thread.syscall_pc;
    if !is_alone() {
        // As the recorded process did, whatever the call returned.
        let named = mapping::named(*number, args);
        named.into_iter().flatten().for_each(|(start, end)| brk().uncover(start, end));
    }
    let succeeded = sys::check(result).is_ok();
    let sp = thread.block.registers.gpr[4];
    let got = match *number {
        nr::MMAP
        | nr::MUNMAP
        | nr::MPROTECT
        | nr::PKEY_MPROTECT
        | nr::MADVISE
        | nr::MREMAP
        | nr::SHMAT
        | nr::SHMDT
        | nr::BRK => {
            memory::again(thread, *number, args, result, coming.mapped.as_ref());
            result
        }
        _ if !succeeded => result,
        nr::SETRLIMIT if args[0] == sys::RLIMIT_STACK => limit_stack(args[1] as u64, result),
        nr::PRLIMIT64 if args[1] == sys::RLIMIT_STACK => limit_stack(args[2] as u64, result),
        // What was there is not asked of this process, which has inherited something else: where the
        // program found it new, it is among what was written.
        nr::RT_SIGACTION => virtual_state::sigaction(thread, &without(args, 2)),
        nr::RT_SIGPROCMASK => virtual_state::sigprocmask(thread, &without(args, 2)),
        nr::SIGALTSTACK => virtual_state::sigaltstack(thread, &without(args, 1), sp),
        nr::ARCH_PRCTL if matches!(args[0], ARCH_SET_FS | ARCH_SET_GS) => arch_prctl(thread, args),
        // Where the program read the time stamp counter, the recording has the answer; where that was refused, the
        // processor refuses it here, too. (It may, from here on, whatever the program asks for later.)
        nr::PRCTL if args[..2] == FORBIDS_TSC => {
            // SAFETY: no memory involved; the runtime does not read the counter.
            let _ = unsafe { sys::call(nr::PRCTL, &FORBIDS_TSC) };
            result
        }
        nr::FORK | nr::VFORK | nr::CLONE | nr::CLONE3 => {
            clones(thread, *number, args, result);
            result
        }
        _ => result,
    };
    if got != result {
        let mut line = Line::new();
        let arguments = args.map(|arg| arg as u64);
        let _ = write!(line, "{}", Call { number: *number as u64, arguments: &arguments });
        let shown = core::str::from_utf8(line.text()).unwrap_or("a call");
        differs(
            thread,
            pc,
            format_args!("{shown} at {pc:#x} returns {got:#x}; the recording has {result:#x}"),
        )
    }
}

/// The program has limited its stack: the kernel makes ours grow as far.
fn limit_stack(at: u64, result: usize) -> usize {
    let mut wanted = [0u64; 2];
    if at == 0 || !read_program_value(at, &mut wanted) {
        return result;
    }
    let [soft, _] = wanted;
    // The hard limit is left alone: this process may not be allowed what that one was.
    sys::set_limit(sys::RLIMIT_STACK, soft);
    result
}

/// The program does what is not supported: if the recording ended with that, so does the replay.
pub fn refused(thread: &mut Thread, pc: u64, what: &str) {
    let next = coming(thread, pc);
    match next.event {
        Event::ProcessEnd { reason: End::Refused, status, .. }
            if (next.entry.thread, next.entry.turns) == (thread.index, thread.turns()) =>
        {
            take(&next.entry);
            end_recording(thread, End::Refused, status, pc);
            let why = format_args!("the program {what} at {pc:#x}, and was stopped");
            conclude(thread, Verdict::Ended, pc, why)
        }
        _ => {
            let expected = Expected(&next.entry, &next.event);
            differs(thread, pc, format_args!("the program {what} at {pc:#x}; {expected}"))
        }
    }
}

/// The arguments, but for this one, which is a null pointer.
fn without(args: &[usize; 6], argument: usize) -> [usize; 6] {
    let mut rest = *args;
    rest[argument] = 0;
    rest
}

/// A child is made, or a thread.
fn clones(thread: &mut Thread, number: usize, args: &[usize; 6], result: usize) {
    let pc = thread.syscall_pc;
    if is_alone() {
        return;
    }
    if threads::shares_memory(number, args) && !threads::is_vfork(number, args) {
        return contexts::add(thread, number, args, pc + 2, result as u32);
    }
    if result != 0 {
        thread.event(WHOLE_UNIT, &Event::Fork { pid: result as u64 });
    }
}

/// What is replayed is the child of a fork: from here on, it is that.
fn goes_on_as_child(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64) {
    thread.block.registers.gpr[0] = 0;
    if let Some(stack) = threads::stack_of_child(number, args) {
        thread.block.registers.gpr[4] = stack;
    }
    if threads::clears_actions(number, args) {
        actions::clear(thread);
    }
    replay().output.forked();
    memory::child_starts();
    // What is listed of the child begins with a chunk, and the event says with which.
    let state = thread.register_state(next, 0xffff);
    let pointers = thread.block.pointers;
    thread.block.pointers = thread.recorder.switched(&pointers, &state, WHOLE_UNIT);
    log().chunk_starts(thread);
    let arguments = args.map(|arg| arg as u64);
    thread.event(WHOLE_UNIT, &Event::Syscall { number: number as u64, arguments, result: 0 });
}

/// `exit` and `exit_group`: the replay ends if the recording does.
fn exits(thread: &mut Thread, number: usize, args: &[usize; 6]) {
    let pc = thread.syscall_pc;
    let status = args[0] as i32 & 0xff;
    let passed = passed(number, args);
    let coming = coming_in_call(thread);
    let here = (coming.entry.thread, coming.entry.turns) == (thread.index, thread.turns());
    if here {
        compare_passed(thread, number, args, passed, coming.passed);
    }
    match coming.event {
        Event::ProcessEnd { reason: End::Exit, status: theirs, .. }
            if here && theirs & 0xff == status =>
        {
            if number == nr::EXIT {
                log().before_exit(thread);
            }
            take(&coming.entry);
            end_recording(thread, End::Exit, status, 0);
            conclude(
                thread,
                Verdict::Ended,
                pc,
                format_args!("the process exits with status {status}"),
            )
        }
        Event::ThreadEnd { reason: End::Exit, status: theirs }
            if here && theirs & 0xff == status =>
        {
            log().before_exit(thread);
            // What the kernel does for a thread that ends.
            write(thread, pc, &coming.written);
            take(&coming.entry);
            ends(thread, End::Exit, args[0] as i32)
        }
        // It is refused, or interrupted: as any other call.
        Event::Syscall { .. } | Event::Arrived(_) if coming.written.is_empty() => {}
        // A filter of the program's kills the process for it.
        Event::ProcessEnd { reason, .. } if here && reason != End::Exit => {}
        _ => {
            let expected = Expected(&coming.entry, &coming.event);
            differs(
                thread,
                pc,
                format_args!("the process exits with status {status} at {pc:#x}; {expected}"),
            )
        }
    }
}

/// The thread ends: others go on, if there are any in this replay.
fn ends(thread: &mut Thread, reason: End, status: i32) -> ! {
    if is_alone() {
        let pc = thread.syscall_pc;
        end_recording(thread, reason, status, 0);
        conclude(thread, Verdict::Ended, pc, format_args!("the thread ends"))
    }
    contexts::ends(thread, reason, status)
}

/// `execve`: if that succeeded, what is replayed has come to its end.
fn executes(thread: &mut Thread, number: usize, args: &[usize; 6]) {
    let pc = thread.syscall_pc;
    let mut entry = next_entry(thread, pc);
    while entry.thread == thread.index {
        match event_of(thread, pc, &entry) {
            Event::Passed { bytes, digest: value } => {
                let here = passed(number, args);
                compare_passed(thread, number, args, here, Some(Digest { bytes, value }));
            }
            // The call shows it.
            Event::Seen { address, bytes, .. } => write(thread, pc, &[(address.0, bytes)]),
            _ => break,
        }
        take(&entry);
        entry = next_entry(thread, pc);
    }
    if entry.thread != thread.index || entry.kind() != Kind::Exec {
        return;
    }
    let event = event_of(thread, pc, &entry);
    take(&entry);
    let fails = matches!(
        replay().script.peek(),
        crate::kernel::replay::script::Next::Entry(entry)
            if entry.thread == thread.index
                && matches!(entry.kind(), Kind::Syscall | Kind::Written | Kind::Arrived)
    );
    let Event::Exec(path) = event else { return };
    thread.event(WHOLE_UNIT, &Event::Exec(path));
    if fails {
        return;
    }
    if thread.vfork_child {
        contexts::is_gone(thread);
    }
    let pointers = thread.block.pointers;
    thread.recorder.close(&pointers);
    let shown = core::str::from_utf8(path).unwrap_or("?");
    conclude(thread, Verdict::Ended, pc, format_args!("the process starts the program {shown}"))
}

/// Whether a signal comes right behind the call, at `next`.
fn is_interrupted_at(thread: &mut Thread, next: u64) -> bool {
    let crate::kernel::replay::script::Next::Entry(entry) = replay().script.peek() else {
        return false;
    };
    entry.kind() == Kind::Arrived
        && matches!(event_of(thread, next, &entry), Event::Arrived(at) if at.rip == next)
}
