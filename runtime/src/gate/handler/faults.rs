//! Signals that an instruction has raised: ours to mend, or the program's to know of.

use crate::base::costs;
use crate::base::facts::facts;
use crate::base::program::read_program_bytes;
use crate::base::signal::{
    bit, SigInfo, SEGV_ACCERR, SEGV_MAPERR, SIGFPE, SIGILL, SIGSEGV, SIGTRAP, SI_KERNEL,
    SYNCHRONOUS, TRAP_BRKPT,
};
use crate::code::jit::jit;
use crate::code::span::Span;
use crate::code::table::FarTables;
use crate::gate::dispatch::{fetch_fault, may_fetch};
use crate::gate::handler::buffers::{give_pointers, make_room};
use crate::gate::handler::interrupted::{Interrupted, TRAP_FLAG};
use crate::gate::handler::onward::{fetch_at, lost, resume};
use crate::gate::handler::place::{locate, Place};
use crate::gate::handler::shared;
use crate::gate::handler::state::state_at;
use crate::gate::handler::transfers::{
    finish_look_up, is_return, pass_over, refused_jump, refused_return, unwritable_return,
};
use crate::gate::stubs;
use crate::kernel::brk::is_reserved;
use crate::kernel::signals::deliver::Origin;
use crate::kernel::watched;
use crate::logs::log;
use crate::logs::moment::Fault;
use crate::thread::seek::Sought;
use crate::thread::traps::{BY_FETCH, PAGE_FAULT};
use crate::thread::Thread;
use abi::event::Cost;
use abi::layout::{page_down, PAGE};
use iced_x86::{Decoder, DecoderOptions};
use instrument::recipe::Kind;

/// The numbers of traps.
const DEBUG: u64 = 1;
const BREAKPOINT: u64 = 3;
const OVERFLOW: u64 = 4;
const INT1: u8 = 0xf1;

/// Whether this is a step that does not say so. Where a virtual machine is interrupted between the trap and the
/// kernel's look at the debug registers, they may say nothing, and the kernel takes the trap for an `int1`.
pub fn is_unnamed_step(info: &SigInfo, at: &Interrupted, is_stepping: bool) -> bool {
    let steps = is_stepping || at.context.rflags & TRAP_FLAG != 0;
    let pc = at.pc();
    // A trap has pc as its address; what somebody has sent, the sender there.
    steps
        && at.context.trap == DEBUG
        && info.code() == TRAP_BRKPT
        && info.address() == pc
        && (facts().runtime.contains(&pc) || !is_at_int1(pc))
}

/// Whether an instruction of the program's at `pc` is an `int1`, or the one in front of it.
fn is_at_int1(pc: u64) -> bool {
    let is_int1 = |pc| {
        let place = locate(pc);
        place.is_some_and(|place| place.code::<1>() == [INT1] && place.boundary(pc).is_some())
    };
    is_int1(pc.wrapping_sub(1)) || is_int1(pc)
}

/// Whether the instruction at `pc` (or in front of it, for a trap) has raised the signal, and nobody
/// has sent it.
pub fn is_fault(signal: i32, info: &SigInfo, pc: u64) -> bool {
    const TRAP_PERF: i32 = 6;
    if bit(signal) & SYNCHRONOUS == 0 || info.code() <= 0 {
        return false;
    }
    // A call may raise one, or send one with any code (rt_tgsigqueueinfo).
    let by_call = !stubs::in_tail(pc) && is_behind_call(pc);
    let by_counter = signal == SIGTRAP && info.code() == TRAP_PERF;
    !by_call && !by_counter
}

/// Whether `pc` lies behind a `syscall` of the runtime.
fn is_behind_call(pc: u64) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let runtime = &facts().runtime;
    let in_front = pc.wrapping_sub(2);
    runtime.contains(&pc)
        && runtime.contains(&in_front)
        // SAFETY: two bytes of the runtime's own code or data, all of which is readable.
        && unsafe { (in_front as *const [u8; 2]).read_unaligned() } == SYSCALL
}

/// Whether the processor reports the instruction behind the one that raised the signal: `int3` and
/// `int 3`, `int 4`, `int1`.
pub fn is_behind(signal: i32, info: &SigInfo, at: &Interrupted) -> bool {
    if info.code() <= 0 || !matches!(signal, SIGTRAP | SIGSEGV) {
        return false;
    }
    match at.context.trap {
        BREAKPOINT | OVERFLOW => true,
        DEBUG if info.code() == TRAP_BRKPT => {
            // Some virtual machines report it where it stands.
            let byte = |pc| locate(pc).map_or(0, |place| place.code::<1>()[0]);
            byte(at.pc().wrapping_sub(1)) == INT1 || byte(at.pc()) != INT1
        }
        _ => false,
    }
}

/// The instruction that raised the signal lies in `place`; `behind`: it is the one in front of pc.
pub fn fault(
    thread: &mut Thread,
    mut signal: i32,
    info: &mut SigInfo,
    at: &mut Interrupted,
    place: &Place,
    behind: bool,
) {
    let address = info.address();
    if signal == SIGSEGV && make_room(thread, at, place, address) {
        return;
    }
    if thread.recorder.is_own(address) {
        // More than one unit adds was recorded with nothing that ends the chunk.
        return lost(signal, info, at);
    }
    let offset = place.offset(at.pc());
    let Some(recipe) = place.recipe() else { return lost(signal, info, at) };
    let Some(entry) = recipe.at(offset - u32::from(behind)) else {
        return lost(signal, info, at);
    };
    let original = place.start() + u64::from(entry.original);
    if signal == SIGSEGV
        && info.code() == SEGV_ACCERR
        && shared::marks(thread, at, place, &entry, address)
    {
        costs::count(Cost::Fault, original);
        return;
    }
    if signal == SIGSEGV
        && info.code() == SEGV_ACCERR
        && shared::opens(thread, at, place, &entry, address)
    {
        return give_pointers(thread, at);
    }
    if signal == SIGSEGV
        && entry.may_return()
        && offset > entry.code
        && (facts().options.tables().contains(&address) || FarTables::range().contains(&address))
        && finish_look_up(at, place, address)
    {
        costs::count(Cost::Fault, original);
        return;
    }
    if entry.looks_ahead() && pass_over(thread, at, place) {
        costs::count(Cost::Fault, original);
        return give_pointers(thread, at);
    }
    if signal == SIGSEGV
        && info.code() == SEGV_ACCERR
        && at.context.error & 2 != 0
        && is_code_write(thread, at, place, address)
    {
        costs::count(Cost::Fault, original);
        return;
    }
    if signal == SIGSEGV
        && info.code() == SEGV_ACCERR
        && at.context.error & 2 != 0
        && entry.may_return()
        && unwritable_return(thread, at, place, &entry)
    {
        costs::count(Cost::Fault, original);
        return give_pointers(thread, at);
    }
    if signal == SIGSEGV
        && info.code() == SI_KERNEL
        && entry.may_return()
        && refused_return(thread, at, place, original)
    {
        return give_pointers(thread, at);
    }
    if signal == SIGSEGV && info.code() == SI_KERNEL && refused_jump(thread, at, Some(original)) {
        return give_pointers(thread, at);
    }
    if entry.kind == Kind::Marked && shared::unmarks(thread, at, place, &entry) {
        // It faults once more, where the program has it.
        return;
    }
    let watched = entry.kind == Kind::Watched;
    if place.is_turn(&entry) && !watched {
        // It was counted in front of what has faulted. (What is compared with a view is compared before.)
        thread.take_back_turn();
    }
    shared::breaks_off(thread);
    let original = place.start() + u64::from(entry.original);
    let reads_ahead =
        entry.reads_ahead(offset - entry.code) || watched && watched::stores(original);
    let (trap, error) = (at.context.trap, &mut at.context.error);
    log().faulted(thread, &mut Fault { trap, error, reads_ahead });
    let mut state = state_at(thread, at, place, &entry);
    if watched {
        thread.block.registers.gpr = state.gpr;
        thread.block.registers.rflags = state.rflags;
        watched::faulted(thread, original);
    }
    let mut address = address;
    if signal == SIGSEGV && entry.may_return() && is_return(place) {
        // The program's return reads eight bytes from rsp on.
        let in_page = address % PAGE;
        address -= in_page.min(4);
        info.set_address(address);
    }
    thread.fault.note(at.context.trap, at.context.error, address);
    if signal == SIGSEGV && info.code() == SEGV_ACCERR && is_reserved(address) {
        info.set_code(SEGV_MAPERR);
    }
    if behind {
        state.rip = place.start() + u64::from(entry.original + entry.length);
        state.insn = place.position(entry.insn + 1);
    }
    if matches!(signal, SIGILL | SIGFPE | SIGTRAP) && info.code() != SI_KERNEL {
        info.set_address(state.rip);
    }
    if signal == SIGILL {
        if let Some(page) = cut_off(state.rip) {
            if may_fetch(page) {
                return fetch_at(thread, page, at, &state);
            }
            (signal, *info) = fetch_fault(page, None);
            thread.fault.note(PAGE_FAULT, BY_FETCH, page);
        }
    }
    resume(thread, signal, info, Origin::Instruction, at, state);
}

/// The program writes to code that it may write: translations are closed, and the write is done
/// again.
fn is_code_write(thread: &mut Thread, at: &mut Interrupted, place: &Place, address: u64) -> bool {
    if !jit().unprotect(address) {
        return false;
    }
    let end = place.start() + u64::from(place.original_len());
    if jit().is_in(address, Span::new(place.start(), end).whole_pages()) {
        // What follows may have changed: only this instruction, and then a look at it.
        thread.seek.sought = Some(Sought { moment: None, first: false });
        if !thread.mailbox.is_stepping() {
            thread.mailbox.keep_trap_flag(at.context.rflags & TRAP_FLAG != 0);
        }
        thread.mailbox.set_stepping(true);
        at.step();
    }
    true
}

/// If the instruction at `pc` goes on in a page where nothing can be executed: that page.
fn cut_off(pc: u64) -> Option<u64> {
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
