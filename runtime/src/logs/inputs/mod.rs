//! The recording of inputs: what the program could not compute itself. A replay makes the program
//! compute the rest.
//!
//! The events of a thread come in the order in which a replay needs them: what the kernel wrote in front
//! of the call that it wrote it for, the bytes of a signal frame in front of the signal.

pub mod at_hand;
pub mod covered;
pub mod foreign;
pub mod handed;
pub mod mappings;
pub mod passed;
pub mod regions;
pub mod stamps;
pub mod unfollowed;
mod unmapped;
pub mod view;
pub mod written;

use crate::base::sys::{self, nr};
use crate::logs::moment::{Call, Fault, Frame, Log};
use crate::logs::writes::Writes;
use crate::thread::Thread;
use abi::event::{Event, Moment, WHOLE_UNIT};
use abi::trace::RegisterState;
use core::ops::Range;
use written::Image;

/// After so many system calls of a thread its registers are recorded, for a replay to compare.
const CHECKED_EACH: u32 = 64;

/// If a watched thread has made so many turns since its last event, its registers are recorded in front of a system call:
/// it may never come back, and a replay goes no further than to the last event.
const CHECKED_BEHIND: u64 = 1000;

const SYSCALL_LEN: u64 = 2;

/// What the program could not compute itself.
pub struct Inputs;

impl Log for Inputs {
    fn wants_writes(&self) -> bool {
        true
    }

    fn image(&self, writes: &Writes, before: &mut Image) {
        before.take(writes);
    }

    fn program_starts(&self, thread: &mut Thread, stack: Range<u64>) {
        written::all(thread, stack.start, stack.end - stack.start);
    }

    fn before_call(&self, thread: &mut Thread, call: &Call) {
        unmapped::at_call(call);
        if foreign::forks(call) {
            mappings::before_fork(thread);
        }
        foreign::before_call(thread, call);
        if matches!(call.number, nr::EXIT | nr::EXIT_GROUP) {
            check(thread, thread.syscall_pc);
        }
        if !thread.recorder.to_file() {
            return;
        }
        if view::has(thread) {
            if thread.turns().saturating_sub(thread.noted) >= CHECKED_BEHIND {
                check(thread, thread.syscall_pc);
            }
            // A replay of one thread has not what others have stored, but for what this call shows.
            passed::shown(thread, call.number, &call.args);
            return stamps::stamp(thread, thread.syscall_pc, Moment::BeforeCall);
        }
        thread.passed = passed::passed(call.number, &call.args);
        if matches!(call.number, nr::EXECVE | nr::EXECVEAT | nr::EXIT_GROUP) {
            // It comes back only if it fails.
            passed::note(thread);
        }
    }

    fn call_returns(&self, thread: &mut Thread, call: &Call, result: usize) {
        unmapped::at_call(call);
        if !thread.recorder.to_file() {
            // Another recording does not follow: what is known of mappings is not needed any more.
            return view::follow(call, result);
        }
        match view::has(thread) {
            true => stamps::stamp(thread, thread.syscall_pc, Moment::BehindCall),
            false => passed::note(thread),
        }
        mappings::note(thread, call, result);
        view::follow(call, result);
        unfollowed::look(thread, call, result);
        written::by_call(thread, call, sys::check(result));
        foreign::after_call(thread);
    }

    fn child_starts(&self, thread: &mut Thread, call: &Call) {
        foreign::child_starts(thread);
        mappings::child_starts(thread);
        written::by_call(thread, call, Ok(0));
    }

    fn after_call(&self, thread: &mut Thread, _call: &Call, _result: usize) {
        thread.calls = thread.calls.wrapping_add(1);
        if thread.calls.is_multiple_of(CHECKED_EACH) {
            check(thread, thread.syscall_pc + SYSCALL_LEN);
        }
    }

    fn answered(&self, thread: &mut Thread, pc: u64, values: &[u64; 4]) {
        let (pc, values) = (abi::ids::LiveAddr(pc), *values);
        thread.event(WHOLE_UNIT, &Event::Answer { pc, values });
    }

    fn before_frame(&self, thread: &mut Thread, frame: &Frame) {
        foreign::before_frame(thread, frame.start, frame.len);
    }

    fn after_frame(&self, thread: &mut Thread, frame: &Frame) {
        written::all(thread, frame.start, frame.len);
        foreign::behind_frame(frame.start, frame.len);
    }

    fn arrived(&self, thread: &mut Thread, registers: &RegisterState) {
        thread.event(WHOLE_UNIT, &Event::Arrived(registers));
    }

    fn dies(&self, thread: &mut Thread, registers: &RegisterState) {
        thread.event(WHOLE_UNIT, &Event::Checked(registers));
    }

    fn faulted(&self, _thread: &mut Thread, fault: &mut Fault<'_>) {
        const PAGE_FAULT: u64 = 14;
        const WRITE: u64 = 2;
        if fault.reads_ahead && fault.trap == PAGE_FAULT {
            // What was compared with the view would have been stored to, too.
            *fault.error |= WRITE;
        }
    }

    fn forked(&self, forked: &crate::base::lock::Forked) {
        handed::forked(forked);
        foreign::forked(forked);
        mappings::forked(forked);
        regions::forked(forked);
    }
}

/// Notes the thread's registers, which goes on at `pc`.
fn check(thread: &mut Thread, pc: u64) {
    if thread.recorder.to_file() {
        let registers = thread.register_state(pc, 0xffff);
        thread.event(WHOLE_UNIT, &Event::Checked(&registers));
    }
}
