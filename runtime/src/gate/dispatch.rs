//! What happens when translated code comes to the runtime.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::costs;
use crate::base::facts::facts;
use crate::base::own::own_range;
use crate::base::signal::{self, SigInfo};
use crate::base::{attempt, program, sys};
use crate::code::found::{Found, MAX_RECIPE};
use crate::code::jit::jit;
use crate::code::links::ExitId;
use crate::code::statics;
use crate::code::world::For;
use crate::code::writing;
use crate::gate::stubs::{ARRIVE, ASK, EXIT, FILL, MISS, RETURN_MISS, STORE, SYSCALL, TURN, WATCH};
use crate::kernel::ask;
use crate::kernel::baton;
use crate::kernel::brk::is_reserved;
use crate::kernel::old_calls;
use crate::kernel::replay::{arrive, calls, contexts, is_replay, steer};
use crate::kernel::ring::parts;
use crate::kernel::signals::{actions, pending};
use crate::kernel::switch;
use crate::kernel::syscalls::{self, mapping};
use crate::kernel::threads::begin_recording;
use crate::kernel::vsyscall;
use crate::kernel::watched;
use crate::logs::inputs::view;
use crate::logs::log;
use crate::thread::ending::refuse_program;
use crate::thread::traps::{Fetch, BY_FETCH, GENERAL_PROTECTION, PAGE_FAULT};
use crate::thread::Thread;
use abi::control::place;
use abi::event::Cost;
use abi::ids::CodeAddr;
use abi::layout::page_down;
use abi::options::Turns;
use abi::thread::refuse;
use instrument::emit::takes_back;

const TRAP_FLAG: u64 = 0x100;

/// Called by the entry stubs; the thread block holds the program's registers. On return `resume`
/// and `resume_original` are set.
pub extern "C" fn enter(thread: &mut Thread, kind: u32) {
    thread.transfer_undone = false;
    if thread.mailbox.take_trap_flag() {
        thread.block.registers.rflags |= TRAP_FLAG;
        // The kernel loads the flag in front of the next instruction.
        thread.traps.fresh |= kind == SYSCALL;
    }
    match kind {
        MISS | RETURN_MISS => {
            let mut target = thread.block.target;
            thread.block.target = facts().window;
            if kind == RETURN_MISS {
                target = left_by_return(target).unwrap_or(target);
                put_back_at_hand(thread.block.registers.gpr[4], target);
            }
            costs::count(Cost::Missed, target);
            let what = if kind == MISS { For::Jump } else { For::Return };
            go_on(thread, target, Some(what));
        }
        EXIT => {
            let exit = ExitId(thread.block.exit_id as u32);
            let linked = watched::made::link(thread, exit);
            match linked.code {
                Some(code) => {
                    thread.block.resume = code.0;
                    thread.resume_original = linked.target.0;
                }
                None => not_executable(thread, linked.target.0),
            }
        }
        SYSCALL => {
            let next = thread.block.registers.gpr[1];
            let next = syscalls::handle(thread, next);
            prepare(thread, next);
        }
        STORE => {
            let pc = thread.block.target;
            thread.block.target = facts().window;
            thread.resume_original = pc;
            log().before_store(thread, pc);
        }
        ARRIVE => {
            let pc = thread.block.target;
            thread.block.target = facts().window;
            watched::end::look(thread, pc);
            prepare(thread, pc);
            parts::look(thread, pc);
        }
        TURN => {
            // Counted, and not made yet: what comes in on the way back finds the thread in front of it.
            thread.resume_original = thread.block.target;
            thread.block.target = facts().window;
            thread.transfer_undone = true;
            steer::in_front_of_turn(thread);
        }
        ASK => {
            let pc = thread.block.target;
            thread.block.target = facts().window;
            match ask::ask(thread, pc) {
                Some(answered) => {
                    thread.resume_original = answered.next_ip();
                    thread.block.resume = ask::behind(thread.block.resume, &answered);
                }
                None => {
                    // The processor raises what it raises.
                    thread.resume_original = pc;
                    thread.transfer_undone = true;
                }
            }
        }
        FILL => {
            // In front of the jump, whose look-up goes on.
            thread.resume_original = thread.block.target;
            thread.block.target = facts().window;
            thread.transfer_undone = true;
            jit().fill_slot(thread.block.resume, &thread.block.registers.gpr);
            let options = facts().options;
            if options.turns() != Turns::NotCounted {
                // The look-up begins with what takes it back.
                thread.take_back_turn();
                thread.block.resume += takes_back(options.process.pointers);
            }
        }
        WATCH => {
            let pc = thread.block.target;
            thread.block.target = facts().window;
            let why = thread.block.exit_id as u32;
            let next = match view::has(thread) {
                true => watched::enter(thread, pc, why),
                false => watched::marked::enter(thread, pc, why),
            };
            if let Some(next) = next {
                prepare(thread, next);
            }
        }
        _ => refused(thread),
    }
    if is_replay() {
        let inside = matches!(kind, STORE | TURN | FILL) || kind == ASK && thread.transfer_undone;
        replayed(thread, !inside);
    }
    let mut pointers = thread.block.pointers;
    thread.recorder.end_chunk_if_asked(&mut pointers);
    thread.block.pointers = pointers;
    switch::at_main(thread);
    settle(thread);
    if kind == SYSCALL && !is_replay() {
        switch::makes_again(thread);
    }
    pending::before_leaving(thread);
}

/// Takes what the script has for this moment; `at_boundary`: see [`arrive::before_leaving`].
pub fn replayed(thread: &mut Thread, at_boundary: bool) {
    if let Some(next) = arrive::before_leaving(thread, at_boundary) {
        prepare(thread, next);
        steer::translated(thread);
        arrive::translated(thread);
    }
}

/// The thread is about to go on: nothing is left that it has to do first, and it is recorded as the others are.
fn settle(thread: &mut Thread) {
    switch::settle(thread);
    watched::start::joins(thread);
    watched::made::catches_up(thread);
}

/// Something has come up on the way back: once more.
pub extern "C" fn once_more(thread: &mut Thread) {
    thread.slot.set_place(place::RUNTIME);
    settle(thread);
    pending::before_leaving(thread);
}

/// A return that merges the halves of an address has left one of ours below `sp`; the program's was
/// `target`. Where others stay as they are, the address of a miss does not: it stands for nothing.
pub fn put_back(sp: u64, target: u64) {
    let at = sp.wrapping_sub(8);
    let is_of_a_miss = || {
        let mut left = 0u64;
        program::read_program_value(at, &mut left)
            && left as u32 == facts().entries.return_miss as u32
    };
    if view::options().puts_back() || is_of_a_miss() {
        // SAFETY: the program's return address was there. Where it can no longer be written, nobody reads.
        let _ = unsafe { writing::write_program_value(at, &target) };
    }
}

/// The same, where a fault of its own does no harm: the return has just read and written this memory, so it is
/// most likely there, and the kernel need not be asked. (A run of a compiler has thousands of misses.)
fn put_back_at_hand(sp: u64, target: u64) {
    let (at, len) = (sp.wrapping_sub(8), size_of_val(&target) as u64);
    let mut left = 0u64;
    // SAFETY: `left` is borrowed; the program's return address was at the other place.
    let is_there = unsafe { attempt::copy(&raw mut left as u64, at, len) };
    let stays = left as u32 != facts().entries.return_miss as u32 && !view::options().puts_back();
    // SAFETY: as above.
    let is_done = || stays || unsafe { attempt::copy(at, &raw const target as u64, len) };
    if !is_there || !is_done() {
        put_back(sp, target);
    }
}

/// The thread goes on at original address `target`.
pub fn prepare(thread: &mut Thread, target: u64) {
    go_on(thread, target, None)
}

/// As [`prepare`]; `missed`: the look-up that found nothing.
fn go_on(thread: &mut Thread, target: u64, missed: Option<For>) {
    thread.resume_original = target;
    match watched::made::resolve(thread, target, missed) {
        Some(code) => thread.block.resume = code.0,
        None => not_executable(thread, target),
    }
}

/// The program jumped where it may not execute: the fault that the processor would raise.
fn not_executable(thread: &mut Thread, target: u64) {
    thread.resume_original = target;
    if !is_canonical(target) {
        undo_transfer(thread, target);
        thread.fault.note(GENERAL_PROTECTION, 0, 0);
        let info = SigInfo::fault(signal::SIGSEGV, signal::SI_KERNEL, 0);
        return pending::raise_fault(thread, signal::SIGSEGV, info);
    }
    if let Some(call) = vsyscall::at(target) {
        return old_call(thread, target, call);
    }
    if vsyscall::refuses(target) {
        let info = SigInfo::fault(signal::SIGSEGV, signal::SI_KERNEL, 0);
        return pending::raise_fault(thread, signal::SIGSEGV, info);
    }
    if may_fetch(target) {
        // The processor raises it: it knows what is there.
        thread.block.resume = target;
        thread.fetching = Some(Fetch { address: target, inside: None });
        return;
    }
    let (signal, info) = fetch_fault(target, None);
    thread.fault.note(PAGE_FAULT, BY_FETCH, target);
    pending::raise_fault(thread, signal, info);
}

/// The original address in whose place a return has left `target`, where nothing puts it back: the program returns there
/// once more, as threaded code does that walks the same row of addresses twice.
fn left_by_return(target: u64) -> Option<u64> {
    if view::options().puts_back() || jit().executable(target).is_some() {
        return None;
    }
    let at_start = |found: Found| (found.entry.0 == target).then_some(found.start.0);
    let mut room = [0; MAX_RECIPE];
    if let Some(found) = statics::find(target, &mut room) {
        return at_start(found);
    }
    jit().find(CodeAddr(target)).and_then(at_start)
}

/// The program has called what the kernel has at `target`.
fn old_call(thread: &mut Thread, target: u64, call: vsyscall::OldCall) {
    match vsyscall::call(thread, call) {
        vsyscall::Outcome::Back(back) if vsyscall::at(back).is_none() => prepare(thread, back),
        vsyscall::Outcome::Back(back) => go_round(thread, back),
        vsyscall::Outcome::Again => go_round(thread, target),
        vsyscall::Outcome::Fault => {}
    }
}

/// The thread comes here once more, as if it had jumped to `target`.
fn go_round(thread: &mut Thread, target: u64) {
    thread.resume_original = target;
    thread.block.target = target;
    thread.block.resume = thread.block.stub_miss;
}

/// Whether nothing can happen at `address`, where the program may not execute, but what natively would.
pub fn may_fetch(address: u64) -> bool {
    const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;
    !is_replay() && !is_own(address) && page_down(address) != VSYSCALL
}

/// Whether memory of the runtime's lies at `address`.
fn is_own(address: u64) -> bool {
    let own = facts().runtime.contains(&address) || own_range().contains(&address);
    own || mapping::is_ours(address, 1)
}

/// What fetching code at `address` raises, where none can be executed; `told`: what the processor has raised
/// there, natively for the most part.
pub fn fetch_fault(address: u64, told: Option<(i32, SigInfo)>) -> (i32, SigInfo) {
    const BUS_ADRERR: i32 = 2;
    let is_executable = jit().executable(address).is_some();
    let is_mapped = || program::is_mapped(address) && !is_own(address);
    let (signal, code) = match (!is_reserved(address) && is_mapped(), is_executable) {
        // Behind the end of the file that is mapped there.
        (true, true) => (signal::SIGBUS, BUS_ADRERR),
        (true, false) => match told {
            Some(told) => return told,
            None => (signal::SIGSEGV, signal::SEGV_ACCERR),
        },
        (false, _) => (signal::SIGSEGV, signal::SEGV_MAPERR),
    };
    (signal, SigInfo::fault(signal, code, address))
}

/// The processor refuses to load an address that is not canonical: the fault belongs to the
/// transfer, which has not happened.
fn undo_transfer(thread: &mut Thread, target: u64) {
    use iced_x86::{Decoder, DecoderOptions};
    use lifter::flow::Flow;
    let pc = thread.block.exit_id;
    let mut bytes = [0u8; 15];
    if !program::read_program_value(pc, &mut bytes) {
        return;
    }
    let insn = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE).decode();
    let sp = &mut thread.block.registers.gpr[4];
    match Flow::of(&insn) {
        Flow::Return => {
            *sp = sp.wrapping_sub(popped_by(&insn));
            // SAFETY: the return address that the program's return has read there.
            unsafe { writing::write_program_value(*sp, &target) };
        }
        Flow::IndirectCall => {
            let recording = facts().options.recording;
            if recording.undo() && !recording.selective {
                // What the return address has overwritten is what the call has recorded last; it has not happened.
                if let Some(old) = thread.recorder.last_word(&thread.block.pointers) {
                    // SAFETY: the word that the translated call has stored.
                    unsafe { writing::write_program_value(*sp, &old) };
                }
            }
            *sp = sp.wrapping_add(8);
        }
        Flow::IndirectJump => {}
        _ => return,
    }
    thread.take_back_turn();
    thread.resume_original = pc;
    thread.transfer_undone = true;
}

/// Whether the processor accepts `address` (48 bits, the way it is without 5-level paging).
pub fn is_canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

/// Bytes that the return `insn` takes from the stack.
pub fn popped_by(insn: &iced_x86::Instruction) -> u64 {
    8 + if insn.op_count() > 0 { u64::from(insn.immediate16()) } else { 0 }
}

/// An instruction that cannot be run translated: the runtime does what it does, or says so and ends the program.
fn refused(thread: &mut Thread) {
    let pc = thread.block.target;
    thread.block.target = facts().window;
    let why = thread.block.exit_id as u32;
    if why == refuse::OLD_SYSCALL {
        if let Some(next) = old_calls::enter(thread, pc) {
            return prepare(thread, next);
        }
    }
    let what = match why {
        refuse::GS => "uses the gs segment in an unusual way",
        refuse::OLD_SYSCALL => {
            "makes a 32-bit system call that is not followed (int 0x80, sysenter)"
        }
        refuse::FAR_TRANSFER => "changes the code segment",
        _ => "starts a memory transaction",
    };
    if is_replay() {
        calls::refused(thread, pc, what);
    }
    refuse_program(thread, pc, what)
}

/// First Rust code of a new thread, on its own runtime stack; signals are blocked.
pub extern "C" fn started(thread: &mut Thread) {
    thread.adopt();
    view::enter(thread);
    match is_replay() {
        true => contexts::begins(thread),
        false => thread.tid = sys::gettid(),
    }
    if core::mem::take(&mut thread.clears_actions) {
        actions::clear(thread);
    }
    let parent = thread.parent;
    baton::enter(thread);
    watched::start::begins_late(thread);
    switch::begin(thread);
    begin_recording(thread, parent);
    baton::entered(thread);
    prepare(thread, thread.resume_original);
    if is_replay() {
        contexts::begun(thread);
        replayed(thread, true);
    }
    settle(thread);
    thread.mailbox.let_in_at_tail(thread.mailbox.real_mask());
}
