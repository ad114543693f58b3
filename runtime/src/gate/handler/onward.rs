//! Ways on from the handler: to the program's own handler, to the next instruction, back into the
//! runtime, or no further.

use crate::base::attempt::interrupted_at;
use crate::base::control;
use crate::base::facts::facts;
use crate::base::program::read_program_bytes;
use crate::base::signal::{PendingSignal, SigInfo, SIGTRAP, TRAP_TRACE};
use crate::base::sys;
use crate::code::jit::jit;
use crate::gate::dispatch::fetch_fault;
use crate::gate::handler::buffers::give_pointers;
use crate::gate::handler::interrupted::{Interrupted, ALIGNMENT_FLAG, TRAP_FLAG};
use crate::gate::handler::place::locate;
use crate::gate::stubs;
use crate::kernel::ask::refused_of;
use crate::kernel::interruptible::{abort_of, broken_off};
use crate::kernel::replay::is_replay;
use crate::kernel::signals::deliver::{deliver, handlers_begin_anew, Led, Origin};
use crate::kernel::signals::pending::{queue, queue_held, send_again, wait};
use crate::kernel::signals::pressure;
use crate::kernel::signals::state::{interrupted, State};
use crate::kernel::{baton, ring, switch};
use crate::logs::inputs::view;
use crate::thread::mailbox::Mailbox;
use crate::thread::traps::{Fetch, Traps, RESUME_FLAG};
use crate::thread::Thread;
use abi::event::{LAST_NOT_DONE, WHOLE_UNIT};
use abi::ids::LiveAddr;

// --- to the program ---

/// Delivers the signal and goes on where that leads, through the kernel's return from our handler.
pub fn resume(
    thread: &mut Thread,
    signal: i32,
    info: &SigInfo,
    origin: Origin,
    at: &mut Interrupted,
    state: State,
) {
    if control::is_own_kick(signal, info) {
        return kicked(thread, at, &state);
    }
    let next = match deliver(thread, signal, info, origin, state, &at.kernel()) {
        Led::ToHandler(next) => {
            if handlers_begin_anew() {
                thread.block.program_vectors = Default::default();
                at.begin_anew();
            }
            at.begin_with_keys();
            next
        }
        Led::Nowhere(next) => next,
    };
    go(thread, at, &next);
}

/// The thread was brought out of generated code, to do what the way back from the runtime does.
fn kicked(thread: &mut Thread, at: &mut Interrupted, state: &State) {
    if pressure::end_spell(thread) {
        thread.pressure.returned = sys::monotonic_ns();
        thread.pressure.returned_to = state.rip;
    }
    let has_baton = ring::is_active() && (baton::is_wanted() || ring::is_due());
    // It may wait, and be watched when it goes on.
    let may_join = thread.in_order && view::waits();
    // It may have to note code that others have made.
    if has_baton || may_join || view::has(thread) {
        // By way of the runtime: there the thread's whole state is the processor's, or in its block.
        return go_round(thread, at, state);
    }
    switch::arrive(thread, state);
    loop {
        go(thread, at, state);
        if switch::may_go(thread) {
            return;
        }
        switch::settle(thread);
    }
}

/// The thread comes to the runtime, and goes on at `state` from there.
pub fn go_round(thread: &mut Thread, at: &mut Interrupted, state: &State) {
    interrupted(thread, state);
    thread.mailbox.set_stepping(false);
    at.context.set_gpr(&state.gpr);
    thread.traps = Traps { fresh: state.rflags & TRAP_FLAG != 0, ..Traps::default() };
    at.context.rflags = state.rflags;
    at.mask = thread.mailbox.real_mask();
    by_runtime(thread, at, state.rip);
    give_pointers(thread, at);
}

/// What goes on goes by way of the runtime, which loads the program's trap flag, and comes to `rip` from there.
fn by_runtime(thread: &mut Thread, at: &mut Interrupted, rip: u64) {
    thread.mailbox.keep_trap_flag(at.context.rflags & TRAP_FLAG != 0);
    at.context.rflags &= !TRAP_FLAG;
    thread.block.target = rip;
    at.context.rip = facts().entries.arrive;
}

/// A thread in the runtime looks before it goes on.
pub fn kicked_in_runtime(mailbox: &Mailbox, at: &mut Interrupted) {
    if mailbox.is_in_spell() {
        // It is over: signals are let in on the way back.
        mailbox.set_pending();
    }
    if let Some(broken_off) = broken_off(at.pc(), at.context.rcx) {
        at.context.rip = broken_off;
    }
    if let Some(late) = stubs::late_of(at.pc()) {
        at.context.rip = late;
    }
}

/// Goes on in state `next`.
pub fn go(thread: &mut Thread, at: &mut Interrupted, next: &State) {
    thread.mailbox.set_stepping(false);
    at.context.set_gpr(&next.gpr);
    at.context.rflags = next.rflags;
    let traps = next.rflags & TRAP_FLAG != 0;
    thread.traps = Traps { fresh: traps, ..Traps::default() };
    at.mask = thread.mailbox.real_mask();
    if is_replay() {
        // It sees what the script has next.
        thread.seek.insn = Some(next.insn);
        by_runtime(thread, at, next.rip);
        return give_pointers(thread, at);
    }
    let resolved = jit().at_hand(LiveAddr(next.rip));
    match resolved {
        Some(code) => {
            at.context.rip = code.0;
            // Where the next instruction is the program's, the first trap is behind it.
            thread.traps.fresh = traps && !is_boundary(code.0);
        }
        None => {
            // The handler's own address is not executable, or its code has to be noted first: by way of the runtime.
            thread.block.target = next.rip;
            at.context.rip = thread.block.stub_miss;
        }
    }
    let mut pointers = thread.block.pointers;
    thread.recorder.end_chunk_if_asked(&mut pointers);
    thread.block.pointers = pointers;
    give_pointers(thread, at);
    if let Some(waiting) = thread.mailbox.waiting.take() {
        // The instruction to which it was to be brought has faulted.
        send_again(thread, waiting);
    }
    queue_held(thread.mailbox);
}

/// Whether an instruction of the program begins right here in the translation.
fn is_boundary(code: u64) -> bool {
    locate(code).is_some_and(|place| place.boundary(code).is_some())
}

/// The processor was to fetch code where the program has none, and has (`raised`), or something was sent
/// first. The block is the program's state.
pub fn at_fetch(
    thread: &mut Thread,
    mut signal: i32,
    info: &mut SigInfo,
    at: &mut Interrupted,
    raised: bool,
) {
    let inside = thread.fetching.take().and_then(|fetch| fetch.inside);
    let boundary = if thread.transfer_undone { LAST_NOT_DONE } else { WHOLE_UNIT };
    let (insn, valid) = inside.unwrap_or((boundary, 0xffff));
    let mut state = State {
        gpr: thread.block.registers.gpr,
        rip: thread.resume_original,
        rflags: thread.block.registers.rflags,
        insn,
        valid,
    };
    thread.transfer_undone = false;
    let mut origin = Origin::Outside;
    if raised {
        origin = Origin::Instruction;
        state.rflags |= RESUME_FLAG;
        let registration = info.registration();
        thread.fault.note(at.context.trap, at.context.error, info.address());
        (signal, *info) = fetch_fault(info.address(), Some((signal, *info)));
        if let Some(registration) = registration {
            info.set_registration(registration);
        }
    }
    resume(thread, signal, info, origin, at, state);
}

/// An instruction of the program's, at `state`, goes on in a page from which nothing can be fetched: the
/// processor is to raise what it raises there.
pub fn fetch_at(thread: &mut Thread, page: u64, at: &mut Interrupted, state: &State) {
    thread.block.registers.gpr = state.gpr;
    thread.block.registers.rflags = state.rflags;
    thread.resume_original = state.rip;
    thread.transfer_undone = false;
    thread.fetching = Some(Fetch { address: page, inside: Some((state.insn, state.valid)) });
    at.context.set_gpr(&state.gpr);
    at.context.rip = page;
}

/// The thread was at the tail of the way back: its block is the program's state.
pub fn deliver_in_tail(thread: &mut Thread, signal: i32, info: &SigInfo, at: &mut Interrupted) {
    let state = State {
        gpr: thread.block.registers.gpr,
        rip: thread.resume_original,
        rflags: thread.block.registers.rflags,
        insn: if thread.transfer_undone { LAST_NOT_DONE } else { WHOLE_UNIT },
        valid: 0xffff,
    };
    thread.transfer_undone = false;
    // The way back may have led to a miss.
    thread.block.target = facts().window;
    thread.mailbox.leave_tail();
    let is_raised = thread.raised == signal && info.code() > 0;
    let origin = match is_raised {
        true => Origin::Instruction,
        false => Origin::Outside,
    };
    if is_raised {
        thread.raised = 0;
    }
    resume(thread, signal, info, origin, at, state);
}

// --- back into the runtime ---

/// The runtime was interrupted: what it holds stays alone, and the signal waits for the way back.
pub fn in_runtime(
    mailbox: &Mailbox,
    signal: i32,
    info: &SigInfo,
    at: &mut Interrupted,
    raised: bool,
) {
    if mailbox.is_stepping() && signal == SIGTRAP && info.code() == TRAP_TRACE {
        // The step led into the runtime: the signal waits for the way back.
        mailbox.set_stepping(false);
        mailbox.set_pending();
        at.context.rflags &= !TRAP_FLAG;
        return;
    }
    if let Some(refused) = refused_of(at.pc()).filter(|_| raised) {
        at.context.rip = refused;
        return;
    }
    if raised {
        return lost(signal, info, at);
    }
    let given_up = abort_of(at.pc()).or_else(|| interrupted_at(at.pc()));
    if let Some(other) = given_up.or_else(|| stubs::late_of(at.pc())) {
        at.context.rip = other;
    }
    wait(mailbox, PendingSignal { number: signal, info: *info });
    at.mask = !0;
}

// --- to the next instruction ---

/// Lets the thread run to the next instruction, and looks again.
pub fn step_on(mailbox: &Mailbox, signal: i32, info: &SigInfo, at: &mut Interrupted) {
    if !mailbox.is_stepping() {
        mailbox.keep_trap_flag(at.context.rflags & TRAP_FLAG != 0);
        let signal = PendingSignal { number: signal, info: *info };
        if !mailbox.waiting.put(signal) {
            queue(&signal);
        }
        mailbox.set_stepping(true);
    }
    at.step();
}

/// A record is not aligned, and the program has alignment checked: one step without.
pub fn step_unaligned(mailbox: &Mailbox, at: &mut Interrupted) {
    if !mailbox.is_stepping() {
        mailbox.keep_trap_flag(at.context.rflags & TRAP_FLAG != 0);
    }
    mailbox.step_unaligned(at.mask);
    at.context.rflags &= !ALIGNMENT_FLAG;
    at.step();
}

/// The program's trap flag has led into the runtime, which keeps it for the way back. (The entry saves the
/// flags behind its first instructions.)
pub fn trapped_in_runtime(mailbox: &Mailbox, at: &mut Interrupted) {
    mailbox.keep_trap_flag(true);
    at.context.rflags &= !TRAP_FLAG;
}

/// That step is over, if there was one. False if nothing else is to be done.
pub fn after_step_unaligned(mailbox: &Mailbox, at: &mut Interrupted) -> bool {
    let Some(mask) = mailbox.take_unaligned() else { return true };
    at.context.rflags |= ALIGNMENT_FLAG;
    if mailbox.is_stepping() {
        return true;
    }
    at.mask = mask;
    if mailbox.take_trap_flag() {
        return true;
    }
    at.context.rflags &= !TRAP_FLAG;
    false
}

// --- no further ---

/// A fault where none can be: ours.
pub fn lost(signal: i32, info: &SigInfo, at: &Interrupted) {
    let (pc, runtime) = (at.pc(), &facts().runtime);
    let relative = pc.wrapping_sub(runtime.start);
    let (code, address) = (info.code(), info.address());
    crate::say!(
        "internal error: signal {signal} (code {code}) at {pc:#x} (runtime+{relative:#x}), address {address:#x}"
    );
    // What follows is to find the cause from a report alone.
    let gpr = at.context.gpr();
    let (trap, error, rflags) = (at.context.trap, at.context.error, at.context.rflags);
    crate::say!("trap {trap}, error {error:#x}, flags {rflags:#x}, registers {gpr:x?}");
    match locate(pc) {
        Some(place) => {
            crate::say!("in the unit of {:#x}, offset {:#x}", place.start(), place.offset(pc))
        }
        None => crate::say!("in no unit"),
    }
    // SAFETY: translated code was interrupted: no reference to the thread exists but the handler's, which
    // is not used any more.
    let thread = unsafe { &*Thread::here() };
    let resume = thread.block.resume;
    let last = thread.recorder.last_flow(&thread.block.pointers);
    crate::say!("last resumed at {resume:#x}; its last control flow: {last:x?}");
    let mut code = [0; 32];
    let start = pc.wrapping_sub(code.len() as u64 / 2);
    let is_there = read_program_bytes(start, &mut code);
    crate::die!("code from {start:#x} on: {:02x?}", is_there.then_some(code))
}
