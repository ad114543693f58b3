//! Delivery to the program: the frame, and the way back from it.

use crate::base::facts::facts;
use crate::base::program::read_program_value;
use crate::base::replaying::is_alone;
use crate::base::signal::{
    bit, block_all, die_of, set_default_action, Action, AltStack, PendingSignal, SigInfo,
    SA_NODEFER, SA_ONSTACK, SIGSEGV, SIGSTOP, SIG_DFL, SIG_IGN, SI_KERNEL, SS_AUTODISARM,
    SS_DISABLE, SYNCHRONOUS,
};
use crate::base::sys;
use crate::code::writing::{write_program, write_program_value};
use crate::kernel::headers::show_output_headers;
use crate::kernel::replay::arrive::faulted;
use crate::kernel::replay::is_replay;
use crate::kernel::signals::actions::{self, Which};
use crate::kernel::signals::frame::{Context, Frame, UContext};
use crate::kernel::signals::pending::queue;
use crate::kernel::signals::pressure;
use crate::kernel::signals::state::{interrupted, State};
use crate::kernel::switch;
use crate::kernel::watched;
use crate::logs::inputs::view;
use crate::logs::{log, moment};
use crate::thread::ending::end_recording_at;
use crate::thread::traps::RESUME_FLAG;
use crate::thread::{claims, Thread};
use abi::event::{End, Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::thread::FIRST_VECTOR;
use abi::trace::RegisterState;

/// What the kernel told us besides.
pub struct Kernel<'a> {
    /// The floating-point state in its frame.
    pub floating: &'a [u8],
    pub context: &'a Context,
}

const RED_ZONE: u64 = 128;
/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
const FRAME_FLAGS: u64 = 7;
const TRAP_FLAG: u64 = 0x100;
const DIRECTION_FLAG: u64 = 0x400;

/// Where a signal comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The program's instruction, at the state's pc, has raised it, and would again.
    Instruction,
    /// Somebody has sent it: it might have come elsewhere.
    Outside,
}

/// Where a signal has led.
pub enum Led {
    /// To the start of a handler of the program's.
    ToHandler(State),
    /// Nowhere: the program goes on.
    Nowhere(State),
}

/// Whether a handler's floating-point and vector registers are those of a program's start, as they are natively. A
/// watched thread keeps the interrupted ones: with others its replay alone was seen to differ.
pub fn handlers_begin_anew() -> bool {
    !view::is_watched() && !is_alone()
}

/// Delivers `signal` to the program, which is in `state`. Returns where it goes on, and with what;
/// does not return if the signal ends the process.
pub fn deliver(
    thread: &mut Thread,
    mut signal: i32,
    info: &SigInfo,
    origin: Origin,
    state: State,
    kernel: &Kernel,
) -> Led {
    if is_replay() {
        return Led::ToHandler(faulted(thread, signal, info, state));
    }
    interrupted(thread, &state);
    let mask = thread.handler_mask.take().unwrap_or(thread.mailbox.mask());
    let mut info = *info;
    if info.is_kept() {
        info.set_kept(false);
        actions::release(thread, signal);
    }
    let mut arrived = false;
    loop {
        let which = info.registration().map_or(Which::Now, Which::Registered);
        let action = actions::take(thread, signal, which);
        let forced = bit(signal) & SYNCHRONOUS != 0 && info.code() > 0;
        let blocked = thread.mailbox.blocks(signal);
        let immortal = action.handler == SIG_DFL && sys::getpid() == sys::FIRST_PROCESS;
        if (action.handler == SIG_IGN || immortal) && !forced {
            return Led::Nowhere(state);
        }
        if action.handler <= SIG_IGN || (forced && blocked) {
            if ignored_by_default(signal) && action.handler == SIG_DFL {
                return Led::Nowhere(state);
            }
            if !arrived {
                note(thread, origin, &state);
            }
            if stops_by_default(signal) && !forced {
                // It comes by way of us although the kernel would stop us.
                stop();
                return Led::Nowhere(state);
            }
            fatal(thread, signal, &info, &state, kernel);
        }
        if !arrived && (origin == Origin::Outside || view::has(thread)) {
            note(thread, origin, &state);
            arrived = true;
        }
        switch::before_handler(signal);
        if let Some(next) = build(thread, signal, &action, &info, &state, kernel) {
            let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(signal) };
            thread.mailbox.set_mask(mask | action.mask | own);
            record(thread, signal, &info, &state, &next);
            if origin == Origin::Outside {
                pressure::delivered(thread, signal, &info, state.rip);
            }
            return Led::ToHandler(next);
        }
        info = SigInfo::fault(SIGSEGV, SI_KERNEL, 0);
        if signal == SIGSEGV {
            if !arrived {
                note(thread, origin, &state);
            }
            fatal(thread, SIGSEGV, &info, &state, kernel);
        }
        // There may be a handler for that, on another stack.
        signal = SIGSEGV;
    }
}

/// Tells the log where the program was: for a replay to stop there, or to compare.
fn note(thread: &mut Thread, origin: Origin, state: &State) {
    if !thread.recorder.active() {
        return;
    }
    let registers = state.registers(thread);
    match origin {
        // What memory a watched thread can reach does not follow from what it does.
        _ if view::has(thread) => log().arrived(thread, &registers),
        Origin::Outside => log().arrived(thread, &registers),
        Origin::Instruction => log().dies(thread, &registers),
    }
}

/// SIGTSTP, SIGTTIN, SIGTTOU.
fn stops_by_default(signal: i32) -> bool {
    matches!(signal, 20..=22)
}

/// Stops the process until it is told to go on.
fn stop() {
    const KILL: usize = 62;
    // SAFETY: no memory involved.
    let _ = unsafe { sys::call(KILL, &[sys::getpid() as usize, SIGSTOP as usize]) };
}

/// SIGCHLD, SIGURG, SIGWINCH, SIGCONT.
fn ignored_by_default(signal: i32) -> bool {
    matches!(signal, 17 | 18 | 23 | 28)
}

fn fatal(thread: &mut Thread, signal: i32, info: &SigInfo, state: &State, kernel: &Kernel) -> ! {
    let address = if info.code() > 0 { info.address() } else { 0 };
    watched::end::others_stand(thread);
    end_recording_at(thread, End::Signal, signal, address, state.insn);
    die_in(thread, signal, info, state, kernel)
}

/// The process dies of `signal` in `state`: what the kernel writes into a core dump, and shows a
/// debugger, are the registers of the program, at its own instruction, and what it was told.
fn die_in(thread: &mut Thread, signal: i32, info: &SigInfo, state: &State, kernel: &Kernel) -> ! {
    block_all();
    // A child of vfork leaves its parent's memory alone, and an undo log starts from memory as the
    // program had it.
    if !thread.vfork_child && !log().leaves_memory_alone() {
        show_output_headers();
    }
    set_default_action(signal);
    let queued = queue(&PendingSignal { number: signal, info: info.told() });
    if !queued || sys::getpid() == sys::FIRST_PROCESS {
        die_of(signal);
    }
    if thread.vector != 0 {
        let _ = write_own_vectors(thread, kernel.floating.as_ptr() as u64);
    }
    let mut context = *kernel.context;
    context.set_gpr(&state.gpr);
    context.rip = state.rip;
    context.rflags = state.rflags & !TRAP_FLAG;
    tell_last_fault(thread, &mut context);
    // It comes before the first instruction.
    let mask = !bit(signal);
    let stack = AltStack::DISABLED;
    let ucontext = UContext { flags: FRAME_FLAGS, link: 0, stack, context, mask };
    let frame = Frame { restorer: 0, ucontext, info: info.told() };
    let behind_restorer = &raw const frame as u64 + 8;
    // SAFETY: the kernel loads the frame; nothing of the runtime runs any more.
    unsafe {
        core::arch::asm!("mov rsp, {}", "mov eax, 15", "syscall", "ud2",
            in(reg) behind_restorer, options(noreturn))
    }
}

fn record(thread: &mut Thread, signal: i32, info: &SigInfo, state: &State, next: &State) {
    let fs_base = thread.fs_base();
    let registers = RegisterState {
        gpr: next.gpr,
        rip: next.rip,
        rflags: next.rflags,
        fs_base,
        gs_base: thread.block.program_gs,
        valid: next.valid,
    };
    let handled = Event::Signal {
        signal: signal.cast_unsigned(),
        code: info.code(),
        address: info.address(),
        pc: LiveAddr(state.rip),
        registers: &registers,
    };
    thread.event(state.insn, &handled);
}

/// Writes the frame as the kernel does; `None` if the program's stack cannot take it.
fn build(
    thread: &mut Thread,
    signal: i32,
    action: &Action,
    info: &SigInfo,
    state: &State,
    kernel: &Kernel,
) -> Option<State> {
    let mut sp = state.gpr[4].wrapping_sub(RED_ZONE);
    let alt = thread.alt_stack;
    let nested = thread.on_alt_stack(state.gpr[4]);
    let entering = action.flags & SA_ONSTACK != 0 && alt.flags & SS_DISABLE == 0 && !nested;
    if entering {
        sp = alt.sp + alt.size;
    }
    let size = kernel.floating.len() as u64;
    sp = (sp - size) & !63;
    let fpstate = sp;
    sp = ((sp - core::mem::size_of::<Frame>() as u64) & !15) - 8;
    if (nested || entering) && !alt.contains(sp) {
        // It would overwrite what lies in front of the alternate stack.
        return None;
    }
    let written =
        moment::Frame { pc: state.rip, start: sp, len: fpstate + size - sp, insn: state.insn };
    log().before_frame(thread, &written);
    let next = write_frame(thread, signal, action, info, state, kernel, (sp, fpstate));
    log().after_frame(thread, &written);
    next
}

/// What the kernel would tell of the last fault.
fn tell_last_fault(thread: &Thread, context: &mut Context) {
    (context.trap, context.error) = (thread.fault.trap, thread.fault.error);
    context.cr2 = thread.fault.address;
}

/// The frame at `sp`, with its floating-point state at `fpstate`.
fn write_frame(
    thread: &mut Thread,
    signal: i32,
    action: &Action,
    info: &SigInfo,
    state: &State,
    kernel: &Kernel,
    (sp, fpstate): (u64, u64),
) -> Option<State> {
    let alt = thread.alt_stack;
    // SAFETY: as the kernel would, below the program's stack pointer.
    unsafe { write_program(fpstate, kernel.floating) }.then_some(())?;
    if thread.vector != 0 {
        write_own_vectors(thread, fpstate)?;
    }
    let mut context = *kernel.context;
    context.set_gpr(&state.gpr);
    context.rip = state.rip;
    context.rflags = state.rflags;
    context.fpstate = fpstate;
    tell_last_fault(thread, &mut context);
    context.old_mask = thread.mailbox.mask();
    let frame = Frame {
        restorer: action.restorer,
        ucontext: UContext {
            flags: FRAME_FLAGS,
            link: 0,
            stack: alt,
            context,
            mask: thread.mailbox.mask(),
        },
        info: info.told(),
    };
    // SAFETY: the frame that the kernel would write there.
    unsafe { write_program_value(sp, &frame) }.then_some(())?;
    if alt.flags & SS_AUTODISARM != 0 {
        thread.alt_stack = AltStack::DISABLED;
    }
    let ucontext = sp + core::mem::offset_of!(Frame, ucontext) as u64;
    let mut gpr = state.gpr;
    gpr[0] = 0;
    gpr[2] = ucontext;
    gpr[4] = sp;
    gpr[6] = sp + core::mem::offset_of!(Frame, info) as u64;
    gpr[7] = signal as u64;
    Some(State {
        gpr,
        rip: action.handler,
        rflags: state.rflags & !(TRAP_FLAG | DIRECTION_FLAG | RESUME_FLAG),
        insn: WHOLE_UNIT,
        // The dead registers are as dead in the handler, which saves what it uses.
        valid: state.valid | 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7,
    })
}

/// The program's vector registers that translated code claims, in place of ours, in the XSAVE area at `fpstate`.
fn write_own_vectors(thread: &Thread, fpstate: u64) -> Option<()> {
    if thread.vector == claims::XMM15 {
        return write_ymm15(thread, fpstate);
    }
    let first = claims::first(thread.vector)?;
    for (number, value) in (FIRST_VECTOR..).zip(&thread.block.program_vectors) {
        if number >= first {
            let at = fpstate + facts().xsave.zmm(number)?;
            // SAFETY: in the frame that is being made on the program's stack.
            unsafe { write_program_value(at, value) }.then_some(())?;
        }
    }
    // The kernel leaves the component out where nothing but zeros was in the registers.
    let mut present = 0u64;
    read_program_value(fpstate + 512, &mut present).then_some(())?;
    // SAFETY: as above.
    unsafe { write_program_value(fpstate + 512, &(present | 0x80)) }.then_some(())
}

/// The program's ymm15, in place of our pointers.
fn write_ymm15(thread: &Thread, fpstate: u64) -> Option<()> {
    let mut present = 0u64;
    read_program_value(fpstate + 512, &mut present).then_some(())?;
    let halves = facts().xsave.ymm15();
    let [.., own] = &thread.block.program_vectors;
    for (half, words) in halves.into_iter().zip(own.chunks_exact(2)) {
        let words = [words[0], words[1]];
        if present & half.component == 0 {
            // The kernel leaves the component out where nothing but zeros was in the registers.
            if words == [0; 2] {
                continue;
            }
            let zeros = [0u8; 15 * 16];
            // SAFETY: in the frame that is being made on the program's stack.
            unsafe { write_program(fpstate + half.first, &zeros) }.then_some(())?;
        }
        present |= half.component;
        // SAFETY: as above.
        unsafe { write_program_value(fpstate + half.last, &words) }.then_some(())?;
    }
    // SAFETY: as above.
    unsafe { write_program_value(fpstate + 512, &present) }.then_some(())
}
