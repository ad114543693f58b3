//! Delivery to the program: the frame, and the way back from it.

use super::frame::*;
use super::*;
use crate::dispatch::end_recording_at;
use crate::thread::{AltStack, SS_AUTODISARM, SS_DISABLE};
use abi::event::{End, Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::trace::RegisterState;

/// The program's registers at an instruction boundary.
#[derive(Clone, Copy)]
pub struct State {
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    /// Instructions done in the last unit that was recorded.
    pub insn: u32,
    /// Registers that hold the program's values.
    pub valid: u64,
}

/// What the kernel told us besides.
pub struct Kernel<'a> {
    pub fpstate: u64,
    pub context: &'a Context,
}

const RED_ZONE: u64 = 128;
/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
const FRAME_FLAGS: u64 = 7;
/// Of a container: only its own faults end it.
pub const FIRST_PROCESS: u32 = 1;
const TRAP_FLAG: u64 = 0x100;
const DIRECTION_FLAG: u64 = 0x400;
const RESUME_FLAG: u64 = 0x10000;

/// Delivers `signal` to the program, which is in `state`. Returns where it goes on, and with what;
/// does not return if the signal ends the process.
pub fn deliver(
    thread: &mut Thread,
    mut signal: i32,
    info: &SigInfo,
    state: State,
    kernel: &Kernel,
) -> State {
    interrupted(thread, &state);
    let mask = thread.handler_mask.take().unwrap_or(thread.mask);
    let mut info = *info;
    loop {
        let action = take_action(thread, signal);
        let forced = bit(signal) & SYNCHRONOUS != 0 && info.code() > 0;
        let blocked = thread.mask & bit(signal) != 0;
        let immortal = action.handler == SIG_DFL && sys::getpid() == FIRST_PROCESS;
        if (action.handler == SIG_IGN || immortal) && !forced {
            return state;
        }
        if action.handler <= SIG_IGN || (forced && blocked) {
            if ignored_by_default(signal) && action.handler == SIG_DFL {
                return state;
            }
            fatal(thread, signal, &info, &state, kernel);
        }
        if let Some(next) = build(thread, signal, &action, &info, &state, kernel) {
            let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(signal) };
            thread.set_mask(mask | action.mask | own);
            record(thread, signal, &info, &state, &next);
            return next;
        }
        info = SigInfo::fault(SIGSEGV, SI_KERNEL, 0);
        if signal == SIGSEGV {
            fatal(thread, SIGSEGV, &info, &state, kernel);
        }
        // There may be a handler for that, on another stack.
        signal = SIGSEGV;
    }
}

fn take_action(thread: &mut Thread, signal: i32) -> Action {
    let take = |slot: &mut Action| {
        let action = *slot;
        if action.flags & SA_RESETHAND != 0 && action.handler > SIG_IGN {
            slot.handler = SIG_DFL;
        }
        action
    };
    match &mut thread.own_actions {
        Some(own) => take(&mut own.0[signal as usize]),
        None => take(&mut process().actions.lock().0[signal as usize]),
    }
}

/// Notes where inside a unit the thread was interrupted, and with which registers: iterations of a
/// repeated string instruction that are done already follow from them.
pub(super) fn interrupted(thread: &mut Thread, state: &State) {
    if state.insn == WHOLE_UNIT || !thread.recorder.active() {
        return;
    }
    let registers = RegisterState {
        gpr: state.gpr,
        rip: state.rip,
        rflags: state.rflags,
        fs_base: thread.fs_base(),
        gs_base: 0,
        valid: state.valid,
    };
    thread.event(state.insn, &Event::Interrupted(&registers));
}

/// SIGCHLD, SIGURG, SIGWINCH, SIGCONT.
fn ignored_by_default(signal: i32) -> bool {
    matches!(signal, 17 | 18 | 23 | 28)
}

fn fatal(thread: &mut Thread, signal: i32, info: &SigInfo, state: &State, kernel: &Kernel) -> ! {
    let address = if info.code() > 0 { info.address() } else { 0 };
    end_recording_at(thread, End::Signal, signal, address, state.insn);
    die_in(thread, signal, info, state, kernel)
}

/// The process dies of `signal` in `state`: what the kernel writes into a core dump, and shows a
/// debugger, are the registers of the program, at its own instruction, and what it was told.
fn die_in(thread: &mut Thread, signal: i32, info: &SigInfo, state: &State, kernel: &Kernel) -> ! {
    block_all();
    // A child of vfork leaves its parent's memory alone, and an undo log starts from memory as the
    // program had it.
    if !thread.vfork_child && !process().options.undo() {
        crate::boot::show_output_headers();
    }
    set_kernel_action(signal, &Action::default());
    let queued = queue(&PendingSignal { number: signal, info: *info });
    if !queued || sys::getpid() == FIRST_PROCESS {
        die_of(signal);
    }
    if thread.vector != 0 {
        let _ = write_own_vectors(thread, kernel.fpstate);
    }
    let mut context = *kernel.context;
    context.set_gpr(&state.gpr);
    context.rip = state.rip;
    context.rflags = state.rflags & !TRAP_FLAG;
    // It comes before the first instruction.
    let mask = !bit(signal);
    let stack = AltStack::DISABLED;
    let ucontext = UContext { flags: FRAME_FLAGS, link: 0, stack, context, mask };
    let frame = Frame { restorer: 0, ucontext, info: *info };
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
        gs_base: 0,
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
    // SAFETY: the kernel's own frame on our stack.
    let legacy = unsafe { &*(kernel.fpstate as *const [u8; 512]) };
    let size = software(legacy).map_or(512, |s| u64::from(s.extended_size));
    sp = (sp - size) & !63;
    let fpstate = sp;
    // SAFETY: as above; `size` bytes are the kernel's.
    let floating =
        unsafe { core::slice::from_raw_parts(kernel.fpstate as *const u8, size as usize) };
    sp = ((sp - core::mem::size_of::<Frame>() as u64) & !15) - 8;
    if (nested || entering) && !alt.contains(sp) {
        // It would overwrite what lies in front of the alternate stack.
        return None;
    }
    crate::undo::save(thread, state.rip, sp, fpstate + size - sp, state.insn);
    write_program(fpstate, floating).then_some(())?;
    if thread.vector != 0 {
        write_own_vectors(thread, fpstate)?;
    }
    let mut context = *kernel.context;
    context.set_gpr(&state.gpr);
    context.rip = state.rip;
    context.rflags = state.rflags;
    context.fpstate = fpstate;
    context.old_mask = thread.mask;
    let frame = Frame {
        restorer: action.restorer,
        ucontext: UContext { flags: FRAME_FLAGS, link: 0, stack: alt, context, mask: thread.mask },
        info: *info,
    };
    write_program_value(sp, &frame).then_some(())?;
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

/// The program's zmm30 and zmm31, in place of ours, in the XSAVE area at `fpstate`.
fn write_own_vectors(thread: &Thread, fpstate: u64) -> Option<()> {
    let at = fpstate + process().xsave.zmm30()?;
    write_program_value(at, &thread.block.program_vectors).then_some(())?;
    // The kernel leaves the component out where nothing but zeros was in the registers.
    let mut present = 0u64;
    read_program_value(fpstate + 512, &mut present).then_some(())?;
    write_program_value(fpstate + 512, &(present | 0x80)).then_some(())
}

/// `rt_sigreturn`: back to what the frame says. `None` if the frame cannot be read.
pub fn sigreturn(thread: &mut Thread) -> Option<u64> {
    let at = thread.block.registers.gpr[4].wrapping_sub(8)
        + core::mem::offset_of!(Frame, ucontext) as u64;
    let mut uc = UContext::default();
    read_program_value(at, &mut uc).then_some(())?;
    thread.set_mask(uc.mask);
    if thread.pending == 0 {
        set_real_mask(thread.real_mask);
    }
    if uc.context.fpstate != 0 {
        restore_floating(thread, uc.context.fpstate)?;
    }
    thread.block.registers.gpr = uc.context.gpr();
    const USER_FLAGS: u64 = 0x0024_0dd5; // what a program may set: CF..OF, DF, AC, ID, TF excluded
    thread.block.registers.rflags = uc.context.rflags & (USER_FLAGS | 2) | 0x202;
    if uc.stack.flags & 1 == 0 {
        let flags = uc.stack.flags;
        thread.alt_stack = crate::thread::AltStack { flags: flags & !1, ..uc.stack };
    }
    let registers = crate::boot::register_state(thread, uc.context.rip, 0xffff);
    thread.event(WHOLE_UNIT, &Event::Resume(&registers));
    Some(uc.context.rip)
}

/// Loads the floating-point state at `fpstate` into the processor, zmm30 and zmm31 into the thread
/// block.
fn restore_floating(thread: &mut Thread, fpstate: u64) -> Option<()> {
    #[repr(C, align(64))]
    struct Area([u8; 16384]);
    let mut area = Area([0; 16384]);
    let mut legacy = [0u8; 512];
    read_program_value(fpstate, &mut legacy).then_some(())?;
    let (size, components) = match software(&legacy) {
        Some(s) if (s.extended_size as usize) <= area.0.len() => (s.extended_size, s.components),
        Some(_) => return None,
        None => (512, 3),
    };
    let words = &mut area.0[..(size as usize) & !7];
    transfer(nr::PROCESS_VM_READV, words.as_mut_ptr() as usize, fpstate, words.len())
        .then_some(())?;
    // The processor faults on bits that must be zero.
    if size > 512 {
        let valid = components & process().xsave.xcr0;
        for (i, byte) in area.0[512..520].iter_mut().enumerate() {
            *byte &= (valid >> (8 * i)) as u8;
        }
        area.0[520..576].fill(0);
    }
    area.0[26] = 0;
    area.0[27] = 0;
    let at = &area as *const Area as u64;
    // SAFETY: a 64-byte aligned area in the standard format; the registers that it changes are the
    // program's, or saved in the thread and written back from there.
    unsafe {
        if size > 512 {
            core::arch::asm!("xrstor64 [{}]", in(reg) at, in("eax") components as u32,
                in("edx") (components >> 32) as u32, options(nostack));
        } else {
            core::arch::asm!("fxrstor64 [{}]", in(reg) at, options(nostack));
        }
    }
    // The way back loads xmm0 to xmm15 from the thread.
    for i in 0..16 {
        for (half, word) in thread.xmm[i].iter_mut().enumerate() {
            let from = 160 + 16 * i + 8 * half;
            *word = u64::from_le_bytes(area.0[from..from + 8].try_into().ok()?);
        }
    }
    if thread.vector != 0 {
        let from = process().xsave.zmm30()? as usize;
        let present = area.0[512] & 0x80 != 0;
        let words = thread.block.program_vectors.as_flattened_mut();
        for (i, word) in words.iter_mut().enumerate() {
            let bytes = area.0[from + 8 * i..from + 8 * i + 8].try_into().ok()?;
            *word = if present { u64::from_le_bytes(bytes) } else { 0 };
        }
    }
    Some(())
}
