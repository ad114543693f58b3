//! The end of a recording: the process ends, or has to.

use crate::recording::trace_file::trace;
use crate::thread::Thread;
use abi::event::{End, Event, WHOLE_UNIT};

/// The program does `what` at `pc`, which is not supported.
pub fn refuse_program(thread: &mut Thread, pc: u64, what: &str) -> ! {
    crate::say!(
        "the program {what} at {pc:#x}, which is not supported: stopped (run the original instead)"
    );
    let status = crate::base::last_words::STATUS_REFUSED;
    end_recording(thread, End::Refused, status, pc);
    crate::base::sys::exit_group(status)
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
    let noted = thread.recorder.to_file() || !thread.recorder.active();
    thread.event(insn, &end);
    thread.recorder.close_at_end(&pointers);
    trace().seal(&end, noted);
}
