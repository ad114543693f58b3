//! Watched threads: what translated code leaves to the runtime.
//!
//! Most loads are compared with the view where they stand (`instrument::watched`). The runtime mends the view
//! where memory is not as in it, and carries out what has more than one reference, what is atomic, and what
//! is rare.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod arithmetic;
pub mod atomic;
pub mod end;
pub mod made;
pub mod marked;
mod moves;
pub mod once;
pub mod start;
mod strings;

use crate::base::signal::{SigInfo, SEGV_ACCERR, SEGV_MAPERR, SIGSEGV};
use crate::base::{attempt, program};
use crate::code::guarded;
use crate::code::writing::write_program;
use crate::kernel::ask::{fetch, instruction};
use crate::kernel::brk;
use crate::kernel::ring::parts;
use crate::kernel::signals::pending;
use crate::logs::extent::extent;
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::inputs::{covered, view};
use crate::thread::traps::PAGE_FAULT;
use crate::thread::{Ranges, Thread};
use abi::event::{Event, WHOLE_UNIT};
use abi::layout::{page_down, PAGE};
use abi::thread::watch;
use alloc::vec::Vec;
use iced_x86::{Instruction, InstructionInfoFactory, Register};
use lifter::operands::references;

/// Memory that cannot be reached: where, and whether it was to be written.
struct Fault {
    address: u64,
    write: bool,
}

/// What came of an instruction that the runtime was to carry out.
enum Done {
    Yes,
    /// It is none that is known: the processor is to carry it out.
    No,
}

type Outcome = Result<Done, Fault>;

/// Bytes that are looked at together.
const LINE: u64 = 64;
/// After the view has been mended so often the registers are noted.
const CHECKED_EACH: u32 = 16;

/// What an instruction does with memory.
#[derive(Default)]
struct Extents {
    loaded: Ranges,
    stored: Ranges,
}

/// The thread has come from the instruction at `pc`; `why` is of [`watch`]. `resume` is set, unless what is
/// returned is where it goes on.
pub fn enter(thread: &mut Thread, pc: u64, why: u32) -> Option<u64> {
    // What has been stored may be code that follows.
    let released = guarded::released();
    let anew = || guarded::released() != released;
    let insn = fetch(pc);
    thread.resume_original = pc;
    if !matches!(why, watch::AFTER | watch::LOADED) {
        parts::look(thread, pc);
    }
    match why {
        watch::MEND => {
            for (at, len) in extents(thread, &insn).loaded {
                // What cannot be read is read again by the instruction, and faults there.
                let _ = mend(thread, pc, at, len);
            }
            check(thread, pc);
        }
        watch::LOADED => match moves::load_register(thread, pc, &insn) {
            Ok(()) => {
                thread.resume_original = insn.next_ip();
                check(thread, insn.next_ip());
            }
            Err(fault) => raise(thread, &fault),
        },
        watch::BEFORE => {
            let Extents { loaded, stored } = extents(thread, &insn);
            for &(at, len) in loaded.iter().chain(&stored) {
                if is_known(thread, at, len) {
                    continue;
                }
                if let Err(fault) = mend(thread, pc, at, len) {
                    raise(thread, &fault);
                    return None;
                }
            }
            thread.stored_on_view = stored;
        }
        watch::AFTER => {
            thread.resume_original = insn.next_ip();
            for (at, len) in core::mem::take(&mut thread.stored_on_view) {
                let Some(bytes) = view::bytes(thread, at, len) else { continue };
                if !put(at, bytes) {
                    thread.resume_original = pc;
                    raise(thread, &Fault { address: at, write: true });
                    return None;
                }
            }
            return anew().then_some(insn.next_ip());
        }
        _ => match carry_out(thread, pc, &insn) {
            Ok(Done::Yes) => {
                thread.resume_original = insn.next_ip();
                thread.block.resume = thread.block.behind;
                return anew().then_some(insn.next_ip());
            }
            Ok(Done::No) => {
                thread.syscall_pc = pc;
                if insn.memory_segment() == Register::FS {
                    crate::die!("an instruction with an fs operand at {pc:#x} is not known to watched threads: use --threads serial");
                }
                if !core::mem::replace(&mut thread.unwatched, true) {
                    unfollowed(thread, "an instruction is not known to --threads watched");
                }
                thread.transfer_undone = true;
            }
            Err(fault) => raise(thread, &fault),
        },
    }
    None
}

/// Whether the instruction at `pc` stores.
pub fn stores(pc: u64) -> bool {
    let mut all = Vec::new();
    references(&instruction(pc), &mut InstructionInfoFactory::new(), &mut all);
    all.iter().any(|reference| reference.write)
}

/// The instruction at `pc`, which runs on the view, could not reach memory. What it has stored on the view is not
/// in memory.
pub fn faulted(thread: &mut Thread, pc: u64) {
    let insn = instruction(pc);
    for (at, len) in extents(thread, &insn).stored {
        // The handler of signals is no place for a fault.
        let mut bytes = alloc::vec![0u8; len.min(PAGE - at % PAGE) as usize];
        if program::read_program_bytes(at, &mut bytes) {
            view::sees(thread, pc, at, &bytes);
        }
    }
}

/// Now and then the thread's registers are noted, for a replay to compare (not the flags, which may be dead).
fn check(thread: &mut Thread, pc: u64) {
    thread.mends = thread.mends.wrapping_add(1);
    if thread.mends.is_multiple_of(CHECKED_EACH) {
        let registers = thread.register_state(pc, 0xffff);
        thread.event(WHOLE_UNIT, &Event::Checked(&registers));
    }
}

fn carry_out(thread: &mut Thread, pc: u64, insn: &Instruction) -> Outcome {
    if insn.is_string_instruction() {
        return strings::carry_out(thread, pc, insn);
    }
    let extents = extents(thread, insn);
    match moves::carry_out(thread, pc, insn, &extents)? {
        Done::Yes => Ok(Done::Yes),
        Done::No => atomic::carry_out(thread, pc, insn, &extents),
    }
}

/// What the instruction loads and stores.
fn extents(thread: &mut Thread, insn: &Instruction) -> Extents {
    let mut found = Extents::default();
    let mut all = core::mem::take(&mut thread.references);
    all.clear();
    references(insn, &mut thread.factory, &mut all);
    for reference in &all {
        let Extents { loaded, stored } = &mut found;
        extent(thread, insn, reference, if reference.write { stored } else { loaded });
    }
    thread.references = all;
    found
}

/// The view gets what is in memory, whole lines of it.
fn mend(thread: &mut Thread, pc: u64, at: u64, len: u64) -> Result<(), Fault> {
    let end = at.saturating_add(len);
    let mut from = at;
    while from < end {
        let to = end.min(page_down(from) + PAGE);
        // More of a page that is seen again and again.
        let often = thread.mended == page_down(from);
        let start = if often { page_down(from) } else { from / LINE * LINE };
        let stop = match often {
            true => page_down(from) + PAGE,
            false => to.next_multiple_of(LINE),
        };
        thread.mended = page_down(from);
        let mut page = [0u8; PAGE as usize];
        let wanted = (stop - start) as usize;
        let Some(part) = page.get_mut(..wanted) else { break };
        // SAFETY: the bytes are borrowed; the rest is the program's memory.
        let reached = unsafe { attempt::copy(part.as_mut_ptr() as u64, start, wanted as u64) };
        if !reached && !program::read_program_bytes(start, part) {
            return Err(Fault { address: from, write: false });
        }
        if !covered::covers(start, wanted as u64) {
            // Never seen: what is mapped there ends the program.
            return Err(Fault { address: from, write: false });
        }
        view::sees(thread, pc, start, part);
        from = to;
    }
    Ok(())
}

/// The value of 1 to 8 bytes that the thread sees at `at`.
fn load(thread: &mut Thread, pc: u64, at: u64, size: u64) -> Result<u64, Fault> {
    let mut bytes = [0u8; 8];
    load_bytes(thread, pc, at, bytes.get_mut(..size as usize).unwrap_or_default())?;
    Ok(u64::from_le_bytes(bytes))
}

/// Whether a few bytes of memory are as in the view.
fn is_known(thread: &Thread, at: u64, len: u64) -> bool {
    let mut seen = [0u8; LINE as usize];
    let Some(seen) = seen.get_mut(..len as usize) else { return false };
    // SAFETY: the bytes are borrowed; the rest is the program's memory.
    let reached = unsafe { attempt::copy(seen.as_mut_ptr() as u64, at, len) };
    reached && view::bytes(thread, at, len).is_some_and(|known| view::is_equal(known, seen))
}

fn load_bytes(thread: &mut Thread, pc: u64, at: u64, out: &mut [u8]) -> Result<(), Fault> {
    let len = out.len() as u64;
    let fault = Fault { address: at, write: false };
    if !is_known(thread, at, len) {
        mend(thread, pc, at, len)?;
    }
    let Some(bytes) = view::bytes(thread, at, len) else { return Err(fault) };
    out.copy_from_slice(bytes);
    Ok(())
}

/// Stores bytes for the program; false if they cannot be stored there.
fn put(at: u64, bytes: &[u8]) -> bool {
    // SAFETY: as the instruction would, which is carried out.
    unsafe { attempt::store(at, bytes) || write_program(at, bytes) }
}

/// The program stores these bytes.
fn store(thread: &mut Thread, at: u64, bytes: &[u8]) -> Result<(), Fault> {
    if !put(at, bytes) {
        return Err(Fault { address: at, write: true });
    }
    view::put(thread, at, bytes);
    Ok(())
}

/// The instruction at `resume_original` has met memory that cannot be reached.
fn raise(thread: &mut Thread, fault: &Fault) {
    const IN_USER: u64 = 4;
    const BY_WRITE: u64 = 2;
    const THERE: u64 = 1;
    let there = program::is_mapped(fault.address) && !brk::is_reserved(fault.address);
    let error = IN_USER | if fault.write { BY_WRITE } else { 0 } | if there { THERE } else { 0 };
    thread.fault.note(PAGE_FAULT, error, fault.address);
    let code = if there { SEGV_ACCERR } else { SEGV_MAPERR };
    thread.transfer_undone = true;
    pending::raise(thread, SIGSEGV, SigInfo::fault(SIGSEGV, code, fault.address));
}
