//! Our handler of all signals: where was the thread, and what follows from it.
//!
//! **What it may touch.** While the runtime works for a thread, there is one `&mut Thread`: a stub
//! hands it to [`crate::gate::dispatch`], and it ends with the return to that stub. A signal may come
//! in there. So the handler begins with the thread's mailbox alone, which is not part of the `Thread`
//! (see [`crate::thread::mailbox`]), and with the pc:
//!
//! * anywhere in the runtime's code but the tail: `onward::in_runtime`, with the mailbox only. No
//!   lock is taken there and nothing is allocated, because the interrupted code may be just doing it;
//! * in the tail of the way back, or in translated code: no code of the runtime is in progress on this
//!   thread. No other `&mut Thread` exists, so the handler makes one, and the thread holds no lock of the
//!   runtime, so the handler may take any (the code's, the heap's, the trace's): whoever holds one is
//!   another thread, and gives it back.
//!
//! While the handler runs, all signals are blocked (see [`crate::kernel::signals::actions::install`]):
//! it does not interrupt itself. A fault of its own ends the process.

mod buffers;
mod debugged;
mod faults;
mod interrupted;
mod onward;
mod place;
mod shared;
mod state;
mod steps;
mod transfers;

use crate::base::control;
use crate::base::facts::facts;
use crate::base::guards;
use crate::base::keys;
use crate::base::signal::SI_KERNEL;
use crate::base::signal::{
    bit, PendingSignal, SigInfo, SEGV_ACCERR, SIGBUS, SIGSEGV, SIGTRAP, TRAP_TRACE, UNBLOCKED,
};
use crate::gate::handler::buffers::{make_room_for_call, take_pointers};
use crate::gate::handler::faults::{fault, is_behind, is_fault, is_unnamed_step};
use crate::gate::handler::interrupted::Interrupted;
use crate::gate::handler::onward::{
    after_step_unaligned, at_fetch, deliver_in_tail, in_runtime, kicked_in_runtime, lost, resume,
    step_on, step_unaligned, trapped_in_runtime,
};
use crate::gate::handler::place::locate;
use crate::gate::handler::state::state_at;
use crate::gate::handler::steps::{stepped, trapped};
use crate::gate::handler::transfers::{finish_cold_look_up, leave_window, refused_jump};
use crate::gate::stubs;
use crate::kernel::replay::{is_replay, overrun};
use crate::kernel::signals::actions;
use crate::kernel::signals::deliver::Origin;
use crate::kernel::signals::frame::UContext;
use crate::logs::inputs::foreign;
use crate::thread::vectors::InterruptedVectors;
use crate::thread::Thread;

const BUS_ALIGNMENT: i32 = 1;

/// Entered by the kernel, on the thread's signal stack.
///
/// # Safety
/// Only the kernel calls it.
pub unsafe extern "C" fn handler(signal: i32, info: *mut SigInfo, uc: *mut UContext) {
    // SAFETY: the kernel leaves the program's alignment check on; this is code of ours. The stack
    // below the frame is free.
    unsafe { core::arch::asm!("pushfq", "and dword ptr [rsp], ~0x40000", "popfq") };
    keys::open_in_handler();
    // SAFETY: gs points to the thread as long as it lives; the kernel has made its frame for us alone.
    let (mailbox, info, mut at) =
        unsafe { (Thread::mailbox_here(), &mut *info, Interrupted::new(&mut *uc)) };
    if signal == SIGSEGV && info.code() == SEGV_ACCERR && guards::open_at(info.address()) {
        // Once more.
        return;
    }
    let at = &mut at;
    let pc = at.pc();
    if info.registration().is_none() {
        info.set_registration(actions::registration(at.restorer()));
    }
    if signal == SIGTRAP && is_unnamed_step(info, at, mailbox.is_stepping()) {
        info.set_code(TRAP_TRACE);
    }
    let trace = signal == SIGTRAP && info.code() == TRAP_TRACE;
    if trace && !after_step_unaligned(mailbox, at) {
        return;
    }
    if trace && stubs::in_tail(pc) {
        // A replay steps on its way back to the program, or the program has set the trap flag itself.
        return;
    }
    if trace && !mailbox.is_stepping() && facts().is_runtime(pc) {
        return trapped_in_runtime(mailbox, at);
    }
    if signal == SIGTRAP && debugged::is_for_debugger(info) {
        if stubs::in_tail(pc) || facts().is_runtime(pc) {
            // Whoever goes on from there looks.
            return;
        }
        // SAFETY: as below; translated code was interrupted.
        return debugged::watched(unsafe { &mut *Thread::here() }, at);
    }
    if is_replay() && control::is_timed_kick(signal, info) {
        return overruns(at);
    }
    // The kernel lets a signal that is blocked in under the mask of a call (sigsuspend, ppoll).
    // SAFETY: as above; the slot never changes while the thread lives.
    let slot = unsafe { (&raw const (*Thread::here()).slot).read() };
    let kick = control::take_kick(slot, signal, info);
    let let_in = at.mask & bit(signal) != 0 || mailbox.lets_in(signal);
    let raised = is_fault(signal, info, pc);
    let sent = bit(signal) & UNBLOCKED != 0 && !raised && !kick;
    // The kernel's mask does not say that of a signal that faults raise.
    let blocked = sent && mailbox.blocks(signal);
    if sent && !let_in && (mailbox.is_stepping() || blocked) {
        // What the program blocks has not been delivered to it: it has the action that holds then.
        let info = if blocked { info.told() } else { *info };
        return mailbox.hold(PendingSignal { number: signal, info });
    }
    let refused = signal == SIGSEGV && info.code() == SEGV_ACCERR;
    if refused && facts().runtime.contains(&pc) && foreign::opens(info.address()) {
        return;
    }
    let in_tail = stubs::in_tail(pc) && !mailbox.is_stepping();
    if !in_tail && facts().is_runtime(pc) {
        if trace && mailbox.is_stepping() {
            // SAFETY: the step led to its first instruction: none of its code is in progress.
            let thread = unsafe { &mut *Thread::here() };
            if steps::stepped_between(thread, at) {
                return;
            }
        }
        if kick {
            return kicked_in_runtime(mailbox, at);
        }
        if blocked {
            mailbox.let_in(signal);
        }
        return in_runtime(mailbox, signal, info, at, raised);
    }
    // SAFETY: no code of the runtime is in progress on this thread but this handler: see above. It
    // makes no other reference to the thread, and this one ends with it.
    let thread = unsafe { &mut *Thread::here() };
    while_interrupted(thread, at, |thread, at| match in_tail {
        true => deliver_in_tail(thread, signal, info, at),
        false => in_translated(thread, signal, info, at, raised),
    });
}

/// Whoever looks at the thread during `work` is shown the vector registers that were interrupted.
fn while_interrupted(
    thread: &mut Thread,
    at: &mut Interrupted,
    work: impl FnOnce(&mut Thread, &mut Interrupted),
) {
    // SAFETY: it is forgotten before the handler returns.
    thread.interrupted = Some(unsafe { InterruptedVectors::new(at.kernel().floating) });
    work(thread, at);
    thread.interrupted = None;
}

/// A replay's timer: whether it is past what comes next is told in translated code.
fn overruns(at: &mut Interrupted) {
    let pc = at.pc();
    if facts().is_runtime(pc) {
        return;
    }
    // SAFETY: as below; translated code was interrupted.
    let thread = unsafe { &mut *Thread::here() };
    if let Some(place) = locate(pc) {
        take_pointers(thread, at, &place);
        while_interrupted(thread, at, |thread, _| overrun::look(thread, place.start()));
    }
}

/// The thread was in translated code.
fn in_translated(
    thread: &mut Thread,
    signal: i32,
    info: &mut SigInfo,
    at: &mut Interrupted,
    raised: bool,
) {
    if signal == SIGTRAP && debugged::at_breakpoint(thread, at) {
        return;
    }
    let (mailbox, pc) = (thread.mailbox, at.pc());
    if thread.fetching.is_some_and(|fetch| fetch.address == pc) {
        return at_fetch(thread, signal, info, at, raised);
    }
    // What is reported behind itself may be in the next unit already.
    let behind = is_behind(signal, info, at);
    let place = locate(pc - u64::from(behind));
    let outside = pc >> 32 != thread.block.window_high && info.address() == pc;
    if outside && signal == SIGSEGV && info.code() > 0 {
        return leave_window(thread, at);
    }
    let trace = signal == SIGTRAP && info.code() == TRAP_TRACE;
    let (is_step, traps) =
        (trace && mailbox.is_stepping(), trace && !mailbox.is_stepping() && raised);
    let Some(place) = place else {
        if traps {
            // On to an instruction.
            return;
        }
        // What a return loads may be loaded between units.
        if is_step && steps::stepped_between(thread, at) {
            return;
        }
        if raised && signal == SIGSEGV && foreign::opens(info.address()) {
            return;
        }
        if raised && signal == SIGSEGV && make_room_for_call(thread, at, info.address()) {
            return;
        }
        if raised && signal == SIGSEGV && finish_cold_look_up(at, info.address()) {
            return;
        }
        let refused = raised && signal == SIGSEGV && info.code() == SI_KERNEL;
        if refused && refused_jump(thread, at, None) {
            return;
        }
        if mailbox.is_stepping() || !raised {
            // Cold code between units: on to the next boundary.
            return step_on(mailbox, signal, info, at);
        }
        return lost(signal, info, at);
    };
    let boundary = place.boundary(pc);
    if signal == SIGBUS && info.code() == BUS_ALIGNMENT && boundary.is_none() {
        return step_unaligned(mailbox, at);
    }
    take_pointers(thread, at, &place);
    if is_step {
        return stepped(thread, info, at, &place);
    }
    if traps {
        return trapped(thread, info, at, &place);
    }
    if raised {
        return fault(thread, signal, info, at, &place, behind);
    }
    match boundary {
        Some(entry) => {
            let state = state_at(thread, at, &place, &entry);
            resume(thread, signal, info, Origin::Outside, at, state);
        }
        None => step_on(mailbox, signal, info, at),
    }
}
