//! What happens when translated code comes to the runtime.

use crate::process::process;
use crate::signals::{self, frame::SigInfo};
use crate::stubs::{EXIT, MISS, RETURN_MISS, STORE, SYSCALL};
use crate::table::For;
use crate::thread::Thread;
use abi::event::{End, Event, WHOLE_UNIT};
use abi::thread::refuse;

/// Called by the entry stubs; the thread block holds the program's registers. On return `resume`
/// and `resume_original` are set.
pub extern "C" fn enter(thread: &mut Thread, kind: u32) {
    match kind {
        MISS | RETURN_MISS => {
            let target = thread.block.target;
            thread.block.target = process().window;
            let what = if kind == MISS { For::Jump } else { For::Return };
            go_on(thread, target, Some(what));
        }
        EXIT => {
            let linked = process().jit.lock().link(thread.block.exit_id as u32);
            match linked.code {
                Some(code) => {
                    thread.block.resume = code;
                    thread.resume_original = linked.target;
                }
                None => not_executable(thread, linked.target),
            }
        }
        SYSCALL => {
            let next = thread.block.registers.gpr[1];
            let next = crate::syscalls::handle(thread, next);
            prepare(thread, next);
        }
        STORE => {
            let pc = thread.block.target;
            thread.block.target = process().window;
            thread.resume_original = pc;
            crate::undo::before_store(thread, pc);
        }
        _ => refused(thread),
    }
    let mut pointers = thread.block.pointers;
    thread.recorder.end_chunk_if_asked(&mut pointers);
    thread.block.pointers = pointers;
    signals::before_leaving(thread);
}

/// The thread goes on at original address `target`.
pub fn prepare(thread: &mut Thread, target: u64) {
    go_on(thread, target, None)
}

/// As [`prepare`]; `missed`: the look-up that found nothing.
fn go_on(thread: &mut Thread, target: u64, missed: Option<For>) {
    thread.resume_original = target;
    let resolved = process().jit.lock().resolve(target, missed);
    match resolved {
        Some(code) => thread.block.resume = code,
        None => not_executable(thread, target),
    }
}

/// The program jumped where it may not execute: the fault that the processor would raise.
fn not_executable(thread: &mut Thread, target: u64) {
    thread.resume_original = target;
    let (signal, info) = match is_canonical(target) {
        true => fetch_fault(target),
        false => {
            undo_transfer(thread, target);
            (signals::SIGSEGV, SigInfo::fault(signals::SIGSEGV, signals::SI_KERNEL, 0))
        }
    };
    signals::raise(thread, signal, info);
}

/// What fetching code at `address` raises, where none can be executed.
pub fn fetch_fault(address: u64) -> (i32, SigInfo) {
    const BUS_ADRERR: i32 = 2;
    let is_executable = process().jit.lock().executable(address).is_some();
    let is_mapped = signals::is_mapped(address) && !crate::memory::is_reserved(address);
    let (signal, code) = match (is_mapped, is_executable) {
        // Behind the end of the file that is mapped there.
        (true, true) => (signals::SIGBUS, BUS_ADRERR),
        (true, false) => (signals::SIGSEGV, signals::SEGV_ACCERR),
        (false, _) => (signals::SIGSEGV, signals::SEGV_MAPERR),
    };
    (signal, SigInfo::fault(signal, code, address))
}

/// The processor refuses to load an address that is not canonical: the fault belongs to the
/// transfer, which has not happened.
fn undo_transfer(thread: &mut Thread, target: u64) {
    use iced_x86::{Decoder, DecoderOptions, FlowControl};
    let pc = thread.block.exit_id;
    let mut bytes = [0u8; 15];
    if !signals::read_program_value(pc, &mut bytes) {
        return;
    }
    let insn = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE).decode();
    let sp = &mut thread.block.registers.gpr[4];
    match insn.flow_control() {
        FlowControl::Return => {
            *sp = sp.wrapping_sub(popped_by(&insn));
            signals::write_program_value(*sp, &target);
        }
        FlowControl::IndirectCall => *sp = sp.wrapping_add(8),
        FlowControl::IndirectBranch => {}
        _ => return,
    }
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

/// An instruction that cannot be run: says so and ends the program.
fn refused(thread: &mut Thread) {
    let what = match thread.block.exit_id as u32 {
        refuse::GS => "uses the gs segment",
        refuse::OLD_SYSCALL => "makes a system call with int or sysenter",
        refuse::FAR_TRANSFER => "changes the code segment",
        _ => "starts a memory transaction",
    };
    let pc = thread.block.target;
    refuse_program(thread, pc, what)
}

/// The program does `what` at `pc`, which is not supported.
pub fn refuse_program(thread: &mut Thread, pc: u64, what: &str) -> ! {
    crate::say!(
        "the program {what} at {pc:#x}, which is not supported: stopped (run the original instead)"
    );
    let status = crate::last_words::STATUS_REFUSED;
    end_recording(thread, End::Refused, status, pc);
    crate::sys::exit_group(status)
}

/// Completes the trace: the process ends with `reason`.
pub fn end_recording(thread: &mut Thread, reason: End, status: i32, address: u64) {
    end_recording_at(thread, reason, status, address, WHOLE_UNIT)
}

/// As [`end_recording`], `insn` instructions into the thread's last unit.
pub fn end_recording_at(thread: &mut Thread, reason: End, status: i32, address: u64, insn: u32) {
    if thread.vfork_child {
        // It is a process by itself; its parent goes on, and so does the recording.
        return thread.event(insn, &Event::ThreadEnd { reason, status });
    }
    let pointers = thread.block.pointers;
    let end = Event::ProcessEnd { reason, status, address };
    thread.event(insn, &end);
    thread.recorder.close(&pointers);
    process().trace.seal(&end);
}
