//! Our handler: where was the thread, and what follows from it.

use crate::base::facts::facts;
use crate::base::program::{read_program_bytes, read_program_value};
use crate::base::signal::*;
use crate::code::found::Found;
use crate::code::jit::jit;
use crate::gate::dispatch::{fetch_fault, is_canonical, popped_by};
use crate::gate::stubs;
use crate::kernel::brk::is_reserved;
use crate::kernel::interruptible::abort_of;
use crate::kernel::signals::deliver::{deliver, interrupted, Kernel, State};
use crate::kernel::signals::frame::UContext;
use crate::kernel::signals::pending::{hold, queue_held};
use crate::logs::log;
use crate::logs::moment::Fault;
use crate::recording::trace_file::trace;
use crate::thread::Thread;
use abi::event::{LAST_NOT_DONE, WHOLE_UNIT};
use abi::ids::{CodeAddr, LiveAddr};
use abi::layout::{page_down, page_up, PAGE, TABLE_BASE, TABLE_END};
use abi::thread::SAVED_RCX;
use abi::trace::RegisterState;
use instrument::emit::LookUp;
use instrument::recipe::{Entry, Kind, Recipe, NO_SCRATCH, SPILLED};
use lifter::regs::GprSet;

const TRAP_FLAG: u64 = 0x100;
const TRAP_BRKPT: i32 = 1;
const TRAP_TRACE: i32 = 2;
const ALIGNMENT_FLAG: u64 = 0x4_0000;
const BUS_ALIGNMENT: i32 = 1;

/// Entered by the kernel, on the thread's signal stack.
///
/// # Safety
/// Only the kernel calls it.
pub unsafe extern "C" fn handler(signal: i32, info: *mut SigInfo, uc: *mut UContext) {
    // SAFETY: the kernel leaves the program's alignment check on; this is code of ours. The stack
    // below the frame is free.
    unsafe { core::arch::asm!("pushfq", "and dword ptr [rsp], ~0x40000", "popfq") };
    // SAFETY: gs points to the thread's block as long as it lives; the kernel's frame is ours.
    let (thread, info, uc) = unsafe { (Thread::current(), &mut *info, &mut *uc) };
    let pc = uc.context.rip;
    if thread.unaligned && signal == SIGTRAP && info.code() == TRAP_TRACE {
        thread.unaligned = false;
        uc.context.rflags |= ALIGNMENT_FLAG;
        if !thread.stepping {
            uc.context.rflags &= !TRAP_FLAG;
            uc.mask = thread.mask_of_unaligned;
            return;
        }
    }
    // The kernel lets a signal that is blocked in under the mask of a call (sigsuspend, ppoll).
    let let_in = uc.mask & bit(signal) != 0 || thread.let_in == signal;
    let raised = is_fault(signal, info, pc);
    let sent = bit(signal) & SYNCHRONOUS != 0 && !raised;
    // The kernel's mask does not say that of a signal that faults raise.
    let blocked = sent && thread.mask & bit(signal) != 0;
    if sent && !let_in && (thread.stepping || blocked) {
        return hold(thread, signal, info);
    }
    if stubs::in_tail(pc) && !thread.stepping {
        return in_tail(thread, signal, info, uc);
    }
    if facts().runtime.contains(&pc) {
        if blocked {
            thread.let_in = signal;
        }
        return in_runtime(thread, signal, info, uc, raised);
    }
    // What is reported behind itself may be in the next unit already.
    let behind = is_behind(signal, info, uc);
    let place = locate(pc - u64::from(behind));
    let outside = pc >> 32 != thread.block.window_high && info.address() == pc;
    if outside && signal == SIGSEGV && info.code() > 0 {
        return leave_window(thread, uc);
    }
    let Some(place) = place else {
        if thread.stepping || !raised {
            // Cold code between units: on to the next boundary.
            return step_on(thread, signal, info, uc);
        }
        return lost(signal, info, uc);
    };
    if signal == SIGBUS && info.code() == BUS_ALIGNMENT && boundary(&place, pc).is_none() {
        return step_unaligned(thread, uc);
    }
    take_pointers(thread, uc, &place);
    if thread.stepping && signal == SIGTRAP && info.code() == TRAP_TRACE {
        return stepped(thread, uc, &place);
    }
    if raised {
        return fault(thread, signal, info, uc, &place, behind);
    }
    match boundary(&place, pc) {
        Some(entry) => {
            let state = state_at(thread, uc, &place, &entry, pc);
            resume(thread, signal, info, uc, state);
        }
        None => step_on(thread, signal, info, uc),
    }
}

/// A unit that a host pc lies in, with the recipe copied out of the lock.
struct At {
    start: u64,
    window: u32,
    entry: u64,
    recipe: [u8; MAX_RECIPE],
    recipe_len: usize,
}

const MAX_RECIPE: usize = 1024;

impl At {
    fn recipe(&self) -> Option<Recipe<'_>> {
        Recipe::new(&self.recipe[..self.recipe_len])
    }

    /// Bytes of original code.
    fn original_len(&self) -> u32 {
        self.recipe().map_or(0, |recipe| recipe.entries().map(|e| e.length).sum())
    }
}

fn copy(found: Found) -> At {
    let bytes = found.recipe.bytes();
    let n = bytes.len().min(MAX_RECIPE);
    let mut at = At {
        start: found.start.0,
        window: found.window,
        entry: found.entry.0,
        recipe: [0; MAX_RECIPE],
        recipe_len: n,
    };
    at.recipe[..n].copy_from_slice(&bytes[..n]);
    at
}

fn locate(pc: u64) -> Option<At> {
    if let Some(found) = crate::code::statics::find(pc) {
        return Some(copy(found));
    }
    jit().find(CodeAddr(pc)).map(copy)
}

/// The instruction boundary at exactly `pc`.
fn boundary(place: &At, pc: u64) -> Option<Entry> {
    let offset = (pc - place.entry) as u32;
    place.recipe()?.entries().find(|entry| entry.code == offset)
}

// --- the buffer pointers ---

/// zmm30 and zmm31 of the interrupted code.
fn claimed_vectors(uc: &UContext) -> Option<*mut [[u64; 8]; 2]> {
    let offset = facts().xsave.zmm30()?;
    Some((uc.context.fpstate + offset) as *mut [[u64; 8]; 2])
}

/// xmm31 of the interrupted code.
fn xmm31(uc: &UContext) -> Option<*mut [u64; 2]> {
    claimed_vectors(uc).map(|zmm30| zmm30.wrapping_byte_add(64).cast())
}

/// Copies the buffer pointers into the thread block, unless the code was just using the program's
/// own zmm31: then they are there already.
fn take_pointers(thread: &mut Thread, uc: &UContext, place: &At) {
    let offset = (uc.context.rip - place.entry) as u32;
    let exchanged = place
        .recipe()
        .and_then(|r| r.at(offset))
        .is_some_and(|entry| entry.kind.exchanges_pointers() && offset > entry.code);
    if thread.vector != 0 && !exchanged {
        if let Some(at) = xmm31(uc) {
            // SAFETY: inside the kernel's frame, which has this component as it is in use.
            thread.block.pointers = unsafe { at.read_unaligned() };
        }
    }
}

/// The other way round.
fn give_pointers(thread: &Thread, uc: &mut UContext) {
    if thread.vector != 0 {
        if let Some(at) = xmm31(uc) {
            // SAFETY: as in `take_pointers`.
            unsafe { at.write_unaligned(thread.block.pointers) };
            mark_vectors(uc);
        }
    }
}

/// The upper vector registers are in use: they are loaded from the kernel's frame.
fn mark_vectors(uc: &mut UContext) {
    // SAFETY: the header of the XSAVE area in the kernel's frame.
    unsafe {
        let present = (uc.context.fpstate + 512) as *mut u64;
        present.write_unaligned(present.read_unaligned() | 0x80);
    }
}

// --- faults ---

/// Whether the instruction at `pc` (or in front of it, for a trap) has raised the signal, and nobody
/// has sent it.
fn is_fault(signal: i32, info: &SigInfo, pc: u64) -> bool {
    const TRAP_PERF: i32 = 6;
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    if bit(signal) & SYNCHRONOUS == 0 || info.code() <= 0 {
        return false;
    }
    // A call may raise one, or send one with any code (rt_tgsigqueueinfo).
    // SAFETY: the runtime's code is readable, and does not start here.
    let by_call = facts().runtime.contains(&pc)
        && !stubs::in_tail(pc)
        && unsafe { ((pc - 2) as *const [u8; 2]).read_unaligned() } == SYSCALL;
    let by_counter = signal == SIGTRAP && info.code() == TRAP_PERF;
    !by_call && !by_counter
}

/// Whether the processor reports the instruction behind the one that raised the signal: `int3` and
/// `int 3`, `int 4`, `int1`.
fn is_behind(signal: i32, info: &SigInfo, uc: &UContext) -> bool {
    const DEBUG: u64 = 1;
    const BREAKPOINT: u64 = 3;
    const OVERFLOW: u64 = 4;
    const INT1: u8 = 0xf1;
    if info.code() <= 0 || !matches!(signal, SIGTRAP | SIGSEGV) {
        return false;
    }
    match uc.context.trap {
        BREAKPOINT | OVERFLOW => true,
        DEBUG if info.code() == TRAP_BRKPT => {
            // Some virtual machines report it where it stands.
            // SAFETY: translated code is readable, and does not start here.
            let around = unsafe { ((uc.context.rip - 1) as *const [u8; 2]).read_unaligned() };
            around[0] == INT1 || around[1] != INT1
        }
        _ => false,
    }
}

/// The instruction that raised the signal lies in `place`; `behind`: it is the one in front of pc.
fn fault(
    thread: &mut Thread,
    mut signal: i32,
    info: &mut SigInfo,
    uc: &mut UContext,
    place: &At,
    behind: bool,
) {
    let pc = uc.context.rip;
    let address = info.address();
    if signal == SIGSEGV && thread.recorder.is_guard(address) {
        if store_outcome(thread, uc, place) {
            return;
        }
        return full_buffer(thread, uc, place);
    }
    if signal == SIGSEGV && thread.recorder.is_overflow(address) {
        let mut pointers = thread.block.pointers;
        thread.recorder.overflow(&mut pointers);
        thread.block.pointers = pointers;
        return give_pointers(thread, uc);
    }
    let Some(recipe) = place.recipe() else { return lost(signal, info, uc) };
    let Some(entry) = recipe.at((pc - u64::from(behind) - place.entry) as u32) else {
        return lost(signal, info, uc);
    };
    if signal == SIGSEGV
        && entry.kind == Kind::SavedRcx
        && pc - place.entry > u64::from(entry.code)
        && (TABLE_BASE..TABLE_END).contains(&address)
        && finish_look_up(uc, address)
    {
        return;
    }
    if signal == SIGSEGV
        && info.code() == SEGV_ACCERR
        && uc.context.error & 2 != 0
        && is_code_write(thread, uc, place, address)
    {
        return;
    }
    if signal == SIGSEGV && info.code() == SI_KERNEL && entry.kind == Kind::SavedRcx {
        let original = place.start + u64::from(entry.original);
        if refused_return(thread, uc, original) {
            give_pointers(thread, uc);
            return;
        }
    }
    let reads_ahead = entry.reads_ahead((pc - place.entry) as u32 - entry.code);
    let (trap, error) = (uc.context.trap, &mut uc.context.error);
    log().faulted(thread, &mut Fault { trap, error, reads_ahead });
    let mut state = state_at(thread, uc, place, &entry, pc);
    if signal == SIGSEGV && entry.kind == Kind::SavedRcx && is_return(uc) {
        // The program's return reads eight bytes from rsp on.
        let in_page = address % abi::layout::PAGE;
        info.set_address(address - in_page.min(4));
    }
    if signal == SIGSEGV && info.code() == SEGV_ACCERR && is_reserved(address) {
        info.set_code(SEGV_MAPERR);
    }
    if behind {
        state.rip = place.start + u64::from(entry.original + entry.length);
        state.insn = entry.insn + 1;
    }
    if matches!(signal, SIGILL | SIGFPE | SIGTRAP) && info.code() != SI_KERNEL {
        info.set_address(state.rip);
    }
    if signal == SIGILL {
        if let Some(page) = cut_off(state.rip) {
            (signal, *info) = fetch_fault(page);
        }
    }
    resume(thread, signal, info, uc, state);
}

/// If the instruction at `pc` goes on in a page where nothing can be executed: that page.
fn cut_off(pc: u64) -> Option<u64> {
    use iced_x86::{Decoder, DecoderOptions};
    let page = page_down(pc) + PAGE;
    // The longest instruction, and more.
    let mut bytes = [0u8; 32];
    let len = (page - pc) as usize;
    if len >= 15 || !read_program_bytes(pc, &mut bytes[..len]) || may_execute(page) {
        return None;
    }
    // It is longer than that, with some bytes behind it: one, or, behind a VEX or EVEX prefix, more.
    let mut goes_on = |next, rest| {
        bytes[len..].fill(rest);
        bytes[len] = next;
        let insn = Decoder::new(64, &bytes, DecoderOptions::NO_INVALID_CHECK).decode();
        !insn.is_invalid() && insn.len() > len
    };
    (0..=255).any(|next| goes_on(next, 0) || goes_on(next, next)).then_some(page)
}

fn may_execute(page: u64) -> bool {
    let executable = jit().executable(page).is_some();
    executable && read_program_bytes(page, &mut [0])
}

/// The next chunk, and the unit starts again: it has not changed anything.
fn full_buffer(thread: &mut Thread, uc: &mut UContext, place: &At) {
    let mut gpr = uc.context.gpr();
    let mut valid = GprSet::ALL;
    if let Some(recipe) = place.recipe() {
        let header = recipe.header();
        valid = header.live_in;
        for (slot, scratch) in header.scratch.iter().enumerate() {
            if *scratch != NO_SCRATCH && scratch & SPILLED != 0 {
                gpr[usize::from(scratch & 15)] = thread.block.spill[slot];
            }
        }
    }
    uc.context.set_gpr(&gpr);
    let state = RegisterState {
        gpr,
        rip: place.start,
        rflags: uc.context.rflags,
        fs_base: thread.fs_base(),
        gs_base: 0,
        // The stack pointer is the program's, whether anything here needs it or not.
        valid: u64::from(valid.bits()) | 1 << 4,
    };
    if facts().pauses {
        trace().pause_now_and_then();
    }
    let pointers = thread.block.pointers;
    thread.block.pointers = thread.recorder.next_chunk(&pointers, &state, place.window);
    log().chunk_starts(thread);
    give_pointers(thread, uc);
    // Undo log: what the runtime has saved in front of the unit is not saved again.
    let announced = (place.entry..=uc.context.rip).contains(&thread.block.resume);
    uc.context.rip = if announced { thread.block.resume } else { place.entry };
}

/// `bits`: the outcome of a unit whose control-flow pointer was parked after it had claimed the
/// byte. The store is done again, with the pointer that it meant.
fn store_outcome(thread: &Thread, uc: &mut UContext, place: &At) -> bool {
    let in_prologue = place
        .recipe()
        .is_none_or(|recipe| recipe.at((uc.context.rip - place.entry) as u32).is_none());
    let Some(flow) = thread.recorder.parked().filter(|_| !in_prologue) else { return false };
    // SAFETY: translated code is readable.
    let code = unsafe { core::slice::from_raw_parts(uc.context.rip as *const u8, 15) };
    let insn = iced_x86::Decoder::new(64, code, iced_x86::DecoderOptions::NONE).decode();
    let Some(base) = lifter::regs::gpr_number(insn.memory_base()) else { return false };
    let mut gpr = uc.context.gpr();
    gpr[usize::from(base)] = flow;
    uc.context.set_gpr(&gpr);
    true
}

/// A look-up at `address`, outside the mapped parts of the tables: is done again when that part is
/// there, or goes on as if it had found a miss stub.
fn finish_look_up(uc: &mut UContext, address: u64) -> bool {
    let tables = &mut jit().tables;
    let rip = uc.context.rip;
    // SAFETY: translated code is readable, and the sequence has begun before this instruction.
    let (before, code) = unsafe {
        ((rip as *const [u8; 9]).sub(1).read_unaligned(), (rip as *const [u8; 11]).read_unaligned())
    };
    // The program's own load of a target, which comes first, may look the same.
    let saves_rcx = before == [0x65, 0x48, 0x89, 0x0c, 0x25, SAVED_RCX as u8, 0, 0, 0];
    let found = tables.look_up(&code, uc.context.rcx, address);
    let Some((look_up, miss)) = found.filter(|_| !saves_rcx) else { return false };
    if tables.cover_missing(address) {
        return true;
    }
    uc.context.rip += look_up.length();
    match look_up {
        LookUp::Whole | LookUp::LowHalf => uc.context.rcx = miss,
        LookUp::LowHalfToVector => {
            if let Some(vectors) = claimed_vectors(uc) {
                // SAFETY: inside the kernel's frame, which has this component.
                unsafe { vectors.cast::<[u64; 8]>().write_unaligned([miss, 0, 0, 0, 0, 0, 0, 0]) };
                mark_vectors(uc);
            }
        }
    }
    true
}

/// A return has kept the high half of an address outside the window: it goes on by way of a miss.
fn leave_window(thread: &mut Thread, uc: &mut UContext) {
    jit().tables.land(uc.context.rip);
    thread.block.target = uc.context.rip >> 32 << 32 | thread.block.target & 0xffff_ffff;
    uc.context.rip = thread.block.stub_miss;
}

/// A return to an address that is not canonical: the processor has refused it, with the merged
/// address on the stack. It goes on by way of a miss, which knows what to make of it.
fn refused_return(thread: &mut Thread, uc: &mut UContext, pc: u64) -> bool {
    // SAFETY: translated code is readable.
    let code = unsafe { core::slice::from_raw_parts(uc.context.rip as *const u8, 15) };
    let insn = iced_x86::Decoder::new(64, code, iced_x86::DecoderOptions::NONE).decode();
    if insn.flow_control() != iced_x86::FlowControl::Return {
        return false;
    }
    let mut merged = 0u64;
    if !read_program_value(uc.context.rsp, &mut merged) {
        return false;
    }
    let target = merged >> 32 << 32 | thread.block.target & 0xffff_ffff;
    if is_canonical(target) {
        return false;
    }
    thread.block.target = target;
    thread.block.exit_id = pc;
    uc.context.rsp += popped_by(&insn);
    uc.context.rip = thread.block.stub_miss;
    true
}

/// Whether the interrupted instruction is the first look at the stack of a return that compares the
/// high half: at that.
fn is_return(uc: &UContext) -> bool {
    // SAFETY: translated code is readable.
    let code = unsafe { (uc.context.rip as *const [u8; 4]).read_unaligned() };
    code == [0x8b, 0x4c, 0x24, 0x04]
}

/// The program writes to code that it may write: translations are closed, and the write is done
/// again.
fn is_code_write(thread: &mut Thread, uc: &mut UContext, place: &At, address: u64) -> bool {
    if !jit().unprotect(address) {
        return false;
    }
    let pages = page_down(place.start)..page_up(place.start + u64::from(place.original_len()));
    if pages.contains(&address) {
        // What follows may have changed: only this instruction, and then a look at it.
        thread.stepping = true;
        uc.context.rflags |= TRAP_FLAG;
        uc.mask = !SYNCHRONOUS;
    }
    true
}

// --- state ---

/// The program's state; `pc` lies in the sequence of `entry`.
fn state_at(thread: &mut Thread, uc: &UContext, place: &At, entry: &Entry, pc: u64) -> State {
    let mut gpr = uc.context.gpr();
    let inside = pc - place.entry > u64::from(entry.code);
    if inside {
        if entry.kind == Kind::SavedRcx {
            gpr[1] = thread.block.saved_rcx;
        }
        let spilled = entry.spilled((pc - place.entry) as u32 - entry.code);
        for (register, value) in spilled.into_iter().zip(thread.block.spill) {
            if let Some(register) = register {
                gpr[usize::from(register & 15)] = value;
            }
        }
        if entry.kind.exchanges_pointers() {
            restore_pointers(thread, uc);
        }
    }
    let valid = place.recipe().map_or(0xffff, |r| valid_at(place, &r, entry));
    State {
        gpr,
        rip: place.start + u64::from(entry.original),
        rflags: uc.context.rflags & !TRAP_FLAG,
        insn: entry.insn,
        valid,
    }
}

/// Registers that hold the program's values before the instruction of `entry`.
fn valid_at(place: &At, recipe: &Recipe, entry: &Entry) -> u64 {
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
    let header = recipe.header();
    // SAFETY: the unit's original code, which is mapped as long as its translation exists.
    let bytes = unsafe {
        let len = place.original_len() as usize;
        core::slice::from_raw_parts(place.start as *const u8, len)
    };
    let mut decoder = Decoder::with_ip(64, bytes, place.start, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let effects: alloc::vec::Vec<_> = core::iter::from_fn(|| {
        decoder.can_decode().then(|| instrument::use_def::use_def(&decoder.decode(), &mut factory))
    })
    .collect();
    let done = (entry.insn as usize).min(effects.len());
    let written = effects[..done].iter().fold(header.live_in, |set, e| set.union(e.defined));
    let live = effects[done..]
        .iter()
        .rev()
        .fold(header.live_out, |live, e| live.minus(e.defined).union(e.used));
    u64::from(written.bits() & live.bits()) | 1 << 4
}

/// The exchange of zmm30 and zmm31 was interrupted: the program's values go to the block, the
/// pointers are there already.
fn restore_pointers(thread: &mut Thread, uc: &UContext) {
    if let Some(at) = claimed_vectors(uc) {
        // SAFETY: inside the kernel's frame.
        thread.block.program_vectors = unsafe { at.read_unaligned() };
    }
}

// --- ways on ---

/// Delivers the signal and goes on where that leads, through the kernel's return from our handler.
fn resume(thread: &mut Thread, signal: i32, info: &SigInfo, uc: &mut UContext, state: State) {
    let kernel = Kernel { fpstate: uc.context.fpstate, context: &uc.context };
    let next = deliver(thread, signal, info, state, &kernel);
    go(thread, uc, &next);
}

fn go(thread: &mut Thread, uc: &mut UContext, next: &State) {
    thread.stepping = false;
    uc.context.set_gpr(&next.gpr);
    uc.context.rflags = next.rflags & !TRAP_FLAG;
    uc.mask = thread.real_mask;
    let resolved = jit().resolve(LiveAddr(next.rip), None);
    match resolved {
        Some(code) => uc.context.rip = code.0,
        None => {
            // The handler's own address is not executable: by way of the runtime, which says so.
            thread.block.target = next.rip;
            uc.context.rip = thread.block.stub_miss;
        }
    }
    let mut pointers = thread.block.pointers;
    thread.recorder.end_chunk_if_asked(&mut pointers);
    thread.block.pointers = pointers;
    give_pointers(thread, uc);
    queue_held(thread);
}

fn in_tail(thread: &mut Thread, signal: i32, info: &SigInfo, uc: &mut UContext) {
    let state = State {
        gpr: thread.block.registers.gpr,
        rip: thread.resume_original,
        rflags: thread.block.registers.rflags,
        insn: if thread.transfer_undone { LAST_NOT_DONE } else { WHOLE_UNIT },
        valid: 0xffff,
    };
    thread.transfer_undone = false;
    thread.unblock = 0;
    thread.let_in = 0;
    resume(thread, signal, info, uc, state);
}

fn in_runtime(thread: &mut Thread, signal: i32, info: &SigInfo, uc: &mut UContext, raised: bool) {
    let pc = uc.context.rip;
    if thread.stepping && signal == SIGTRAP && info.code() == TRAP_TRACE {
        // The step led into the runtime: the signal waits for the way back.
        thread.stepping = false;
        thread.pending = 1;
        uc.context.rflags &= !TRAP_FLAG;
        return;
    }
    if raised {
        return lost(signal, info, uc);
    }
    if let Some(other) = abort_of(pc).or_else(|| stubs::late_of(pc)) {
        uc.context.rip = other;
    }
    thread.waiting = Some(PendingSignal { number: signal, info: *info });
    thread.pending = 1;
    uc.mask = !0;
}

/// Lets the thread run to the next instruction, and looks again.
fn step_on(thread: &mut Thread, signal: i32, info: &SigInfo, uc: &mut UContext) {
    if !thread.stepping {
        thread.waiting = Some(PendingSignal { number: signal, info: *info });
        thread.stepping = true;
    }
    uc.context.rflags |= TRAP_FLAG;
    uc.mask = !SYNCHRONOUS;
}

/// A record is not aligned, and the program has alignment checked: one step without.
fn step_unaligned(thread: &mut Thread, uc: &mut UContext) {
    thread.unaligned = true;
    thread.mask_of_unaligned = uc.mask;
    uc.context.rflags = uc.context.rflags & !ALIGNMENT_FLAG | TRAP_FLAG;
    uc.mask = !SYNCHRONOUS;
}

fn stepped(thread: &mut Thread, uc: &mut UContext, place: &At) {
    let pc = uc.context.rip;
    let Some(entry) = boundary(place, pc) else { return };
    uc.context.rflags &= !TRAP_FLAG;
    thread.stepping = false;
    let state = state_at(thread, uc, place, &entry, pc);
    let Some(waiting) = thread.waiting.take() else {
        // The unit may have changed itself: on with what is there now. Writable code keeps all
        // registers.
        let state = State { valid: u64::from(GprSet::ALL.bits()), ..state };
        interrupted(thread, &state);
        return go(thread, uc, &state);
    };
    resume(thread, waiting.number, &waiting.info, uc, state);
}

/// A fault where none can be: ours.
fn lost(signal: i32, info: &SigInfo, uc: &UContext) {
    let (pc, runtime) = (uc.context.rip, &facts().runtime);
    let relative = pc.wrapping_sub(runtime.start);
    crate::die!(
        "internal error: signal {signal} at {pc:#x} (runtime+{relative:#x}), address {:#x}",
        info.address()
    )
}
