//! The end of a recording: the process ends, or has to.

use crate::base::costs;
use crate::base::facts::facts;
use crate::recording::trace_file::trace;
use crate::thread::Thread;
use abi::event::{End, Event, WHOLE_UNIT};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What is done in front of the last words of a trace; 0: nothing.
static BEFORE_LAST_WORDS: AtomicUsize = AtomicUsize::new(0);

/// `hook` is called when all events of a process that ends are in its trace.
pub fn set_before_last_words(hook: fn()) {
    BEFORE_LAST_WORDS.store(hook as usize, Relaxed);
}

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
    for (what, count, pcs) in costs::all().filter(|_| !facts().options.is_repeatable()) {
        trace().process_event(&Event::Cost { what, count, pcs });
    }
    let noted = thread.recorder.to_file() || !thread.recorder.active();
    thread.event(insn, &end);
    thread.recorder.close_at_end(&pointers);
    let hook = BEFORE_LAST_WORDS.load(Relaxed);
    if hook != 0 {
        // SAFETY: `set_before_last_words` stored a function of this type.
        let hook: fn() = unsafe { core::mem::transmute(hook) };
        hook();
    }
    trace().seal(&end, noted);
}
