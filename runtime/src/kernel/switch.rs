//! Switching the recording on and off while the program runs.
//!
//! There are two variants of the code, and one set of tables, so all threads go over at once. Whoever
//! wants a switch makes [`GENERATION`] odd: from then on no thread goes back into generated code. Threads
//! that are there are kicked, and come to the runtime with the program's state at an instruction; those
//! in the runtime, most of them in system calls, are left alone. When nobody is in generated code, the
//! tables are led to the other variant, and the generation is even again. Each thread goes over for
//! itself, before it goes on: it ends its chunk or begins one ([`settle`]).
//!
//! The generation is compared on the way into generated code, behind a store of the thread's place
//! ([`crate::gate::stubs`]): a thread that does not see the switch is seen by it.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::control::{self, Answer, Request, Slot};
use crate::base::facts::facts;
use crate::base::futex::{self, wake};
use crate::base::lineage::lineage;
use crate::base::lock::Forked;
use crate::base::sys::{self, nr};
use crate::code::jit::jit;
use crate::kernel::signals::pending::queue;
use crate::kernel::signals::state::{interrupted, State};
use crate::kernel::watched::end;
use crate::kernel::{baton, ring};
use crate::logs::inputs::view;
use crate::logs::log;
use crate::recording::lifecycle::Phase;
use crate::recording::trace_file::trace;
use crate::thread::Thread;
use abi::control::{command, outcome, place, SLOTS_MOST, TEXT_MOST};
use abi::event::{Event, Why, LAST_NOT_DONE, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::options::ControlFlow;
use abi::start::Start;
use core::sync::atomic::{fence, AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// Counts switches, by twos; odd: one is under way.
#[link_section = ".data.at_fork"]
pub static GENERATION: AtomicU32 = AtomicU32::new(0);
/// What a thread has seen that is to look again: no generation that threads go on in.
pub const NEVER: u32 = 1;
/// Counts arrivals of threads that were kicked.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Not 0: a thread carries out a request of `dep`.
#[link_section = ".data.at_fork"]
static SERVING: AtomicU32 = AtomicU32::new(0);
/// Not 0: recording is to begin, and why ([`Why`]).
#[link_section = ".data.at_fork"]
static WANTED: AtomicU32 = AtomicU32::new(0);

/// The address of `main`, while recording is to begin there; else 0.
static MAIN: AtomicU64 = AtomicU64::new(0);
/// Recording is to begin when a second thread does.
static SECOND_THREAD: AtomicBool = AtomicBool::new(false);
/// The signal that recording is to begin with, or 0.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

const CLOCK_REALTIME: usize = 0;
const CLOCK_MONOTONIC: usize = 1;

fn wait(word: &AtomicU32, value: u32, at_most: Option<[u64; 2]>) {
    let _ = futex::wait(word, value, at_most);
}

fn now(clock: usize) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { sys::call(nr::CLOCK_GETTIME, &[clock, time.as_mut_ptr() as usize]) };
    let [seconds, nanoseconds] = time;
    seconds * 1_000_000_000 + nanoseconds
}

// --- a thread ---

/// The thread, in the runtime and with its state in its block, is about to go on at `resume_original`:
/// carries out what is wanted, waits for a switch that is under way, and goes over to the variant in
/// use. It may have to be done again ([`may_go`]).
pub fn settle(thread: &mut Thread) {
    let insn = if thread.transfer_undone { LAST_NOT_DONE } else { WHOLE_UNIT };
    settle_at(thread, insn, 0xffff, false);
}

/// As [`settle`], `insn` instructions into the last unit, with these registers `valid`. `is_noted`: the
/// trace has them.
fn settle_at(thread: &mut Thread, insn: u32, valid: u64, is_noted: bool) {
    baton::let_others_run(thread, valid);
    ring::look(thread, valid);
    loop {
        // (A look costs less than an exchange.)
        if WANTED.load(Relaxed) != 0 {
            match WANTED.swap(0, AcqRel) {
                0 => {}
                why => drop(switch(true, Why::from_u32(why), now(CLOCK_MONOTONIC))),
            }
        }
        if control::is_posted() {
            serve();
            continue;
        }
        let generation = GENERATION.load(Acquire);
        if generation & 1 == 1 {
            end::look(thread, thread.resume_original);
            wait(&GENERATION, generation, None);
            continue;
        }
        if thread.seen == generation {
            return;
        }
        thread.seen = generation;
        go_over(thread, insn, valid, is_noted);
    }
}

/// Whether the thread, which has settled, may go into generated code; the tail of the way back asks
/// the same. If not, it has to settle again.
pub fn may_go(thread: &Thread) -> bool {
    thread.slot.set_place(place::CODE);
    fence(SeqCst);
    if GENERATION.load(SeqCst) == thread.seen && !control::is_posted() {
        return true;
    }
    thread.slot.set_place(place::RUNTIME);
    false
}

/// The variant of the code may be another one than before.
fn go_over(thread: &mut Thread, insn: u32, valid: u64, is_noted: bool) {
    let target = LiveAddr(thread.resume_original);
    let (plain, code) = {
        let mut jit = jit();
        // What has to be noted first is looked up by way of a miss.
        (jit.is_plain(), jit.at_hand(target))
    };
    match code {
        Some(code) => {
            thread.block.resume = code.0;
            // The way may have led to a miss before.
            thread.block.target = facts().window;
        }
        // What that raises may wait already.
        None if thread.mailbox.is_pending() => {}
        None => {
            thread.block.target = target.0;
            thread.block.resume = thread.block.stub_miss;
        }
    }
    view::leave(thread);
    // Another switch, or two, may have come between what a thread that begins saw of the code and of the trace.
    // (Neither a recording of inputs nor an undo log is switched.)
    let recording = facts().options.recording;
    let keeps = thread.recorder.to_file();
    let differs = !recording.inputs()
        && !recording.undo()
        && match plain {
            true => keeps,
            false => !keeps && trace().phase() == Phase::Open,
        };
    if thread.plain == plain && !differs {
        return;
    }
    if recording.inputs() {
        // There are no chunks to end.
        thread.plain = plain;
        return;
    }
    // What follows has nothing to do with the last unit.
    (thread.plain, thread.transfer_undone) = (plain, false);
    if thread.recorder.active() {
        let state = thread.register_state(target.0, valid);
        if plain && !is_noted {
            // How far it came, where units record nothing.
            thread.event(insn, &Event::Interrupted(&state));
        }
        let pointers = thread.block.pointers;
        thread.block.pointers = thread.recorder.switched(&pointers, &state, insn);
        log().chunk_starts(thread);
    }
}

/// The thread, which has settled, makes a call again that was kept from being made. If no signal waits, nothing else
/// says that the thread goes on in front of the call: a request of `dep` has kept it, or the end of a spell.
pub fn makes_again(thread: &mut Thread) {
    // A recording of inputs is not switched.
    let may_be_asked = thread.recorder.to_file() && !facts().options.recording.inputs();
    let is_delivered_to = thread.mailbox.waiting.number().is_some();
    if thread.transfer_undone && may_be_asked && !is_delivered_to {
        let state = thread.register_state(thread.resume_original, 0xffff);
        thread.event(LAST_NOT_DONE, &Event::Interrupted(&state));
    }
}

/// The thread was kicked out of generated code, at `state`; returns when it may settle into the
/// variant in use, and has.
pub fn arrive(thread: &mut Thread, state: &State) {
    interrupted(thread, state);
    thread.block.registers.gpr = state.gpr;
    thread.block.registers.rflags = state.rflags;
    thread.resume_original = state.rip;
    thread.slot.set_place(place::RUNTIME);
    ARRIVED.fetch_add(1, AcqRel);
    wake(&ARRIVED);
    settle_at(thread, state.insn, state.valid, state.insn != WHOLE_UNIT);
}

/// The thread begins: it looks what the code is like before it first goes on.
pub fn begin(thread: &mut Thread) {
    thread.seen = NEVER;
    thread.plain = jit().is_plain();
    thread.slot.is_mine();
}

/// In the only thread of a forked child. `shares`: descriptors are those of its parent, too.
pub fn forked(thread: &Thread, forked: &Forked, shares: bool) {
    control::forked(forked, shares);
    // The parent's thread that wants it sees to it.
    WANTED.store(0, Relaxed);
    // It was made while nobody changed the tables; who was about to is not there.
    GENERATION.store((GENERATION.load(Relaxed) | 1).wrapping_add(1), Relaxed);
    SERVING.store(0, Relaxed);
    // Of a switch, the parent may have done one half.
    trace().set_off(is_off());
    control::set_off(is_off());
    thread.slot.begin();
    thread.slot.is_mine();
}

// --- all threads ---

// --- what a recording begins with ---

/// The program starts; `main`: its function of that name, or 0.
pub fn start(when: Start, main: u64) {
    if view::only_if_shared() {
        // Until others may write to its memory.
        view::wait();
        jit().other_watches();
    }
    if view::may_be_watched() && facts().options.watches_later() {
        // Until there is a second thread.
        view::wait();
        jit().switch();
        return;
    }
    let phase = trace().phase();
    // Where nothing is kept, what is asked for is which code runs, and what it costs.
    let discards = phase == Phase::Closed && !facts().options.process.replays;
    if when == Start::Entry || !(phase.describes() || discards) {
        return;
    }
    if facts().options.recording.undo() {
        crate::die!("an undo log has no gaps: it cannot be started later (DEP_START)");
    }
    if facts().options.recording.inputs() {
        crate::die!("a recording of inputs has no gaps: it cannot be started later (DEP_START)");
    }
    if facts().options.recording.control_flow == ControlFlow::Bits {
        crate::die!("the format bits cannot be started later (DEP_START; rewrite the program with --control-flow tags)");
    }
    match when {
        // Of several programs that are executed in turn not every one must have it.
        Start::Main if main == 0 && lineage().recorder.is_some() => return,
        Start::Main if main == 0 => {
            crate::die!("where the program's function main is cannot be told (use DEP_START=entry)")
        }
        Start::Main => {
            jit().watch(LiveAddr(main));
            MAIN.store(main, Relaxed);
        }
        Start::SecondThread => SECOND_THREAD.store(true, Relaxed),
        Start::Signal(number) => SIGNAL.store(number.into(), Relaxed),
        Start::Off | Start::Entry => {}
    }
    jit().switch();
    trace().set_off(true);
    control::set_off(true);
    note_start();
}

/// The trace of a process that starts switched off, as its parent was, says so.
pub fn note_start() {
    if is_off() {
        let (on, why, time_ns) = (false, Why::Start, now(CLOCK_REALTIME));
        let event = Event::Switch { on, why, time_ns, took_ns: 0, threads: 1, interrupted: 0 };
        trace().process_event(&event);
    }
}

/// Nothing is waited for any more.
fn started() {
    MAIN.store(0, Relaxed);
    SECOND_THREAD.store(false, Relaxed);
    SIGNAL.store(0, Relaxed);
}

/// The thread is about to go on, in the runtime: is it in front of `main`?
pub fn at_main(thread: &Thread) {
    let main = MAIN.load(Relaxed);
    if main != 0 && thread.resume_original == main {
        switch(true, Why::Main, now(CLOCK_MONOTONIC));
    }
}

/// A thread is about to be made.
pub fn before_thread() {
    if SECOND_THREAD.load(Relaxed) {
        switch(true, Why::SecondThread, now(CLOCK_MONOTONIC));
    }
}

/// `signal` is about to be delivered to a handler: the thread comes here again before its first
/// instruction.
pub fn before_handler(signal: i32) {
    if signal == SIGNAL.load(Relaxed) {
        WANTED.store(Why::Signal.to_u32(), Release);
        queue(&control::kick_of_own());
    }
}

/// Whether a recording that is switched off waits for something to be switched on by.
pub fn is_off() -> bool {
    jit().is_plain() && !facts().options.recording.inputs()
}

/// The only thread, which is in the runtime, goes on in code that watches.
pub fn watches(thread: &mut Thread) {
    begin_switch();
    let mut jit = jit();
    jit.switch();
    thread.plain = jit.is_plain();
    drop(jit);
    end_switch();
}

/// All threads go on in code that does not watch. False if there are too many to stop them.
pub fn unwatches() -> bool {
    let Some(_stopped) = stop_others() else { return false };
    if view::give_up() {
        jit().switch();
    }
    true
}

/// The code cache, if it is full, is empty again: all threads look their code up anew.
pub fn starts_over() {
    // (If there are too many to stop them, it fills up.)
    if let Some(_stopped) = stop_others() {
        jit().start_over_if_full();
    }
}

/// Switches the recording, and returns when no thread is recorded any more, or before one is. `since`:
/// when that was wanted.
pub fn switch(on: bool, why: Why, since: u64) -> Answer {
    let refused = |outcome| Answer { outcome, threads: 0, interrupted: 0, took: 0 };
    let recording = facts().options.recording;
    let phase = trace().phase();
    // Whoever asks for a recording is told that there is none; what the program was started with holds.
    let may = phase.describes() || phase == Phase::Closed && why != Why::Request;
    if !recording.records() || !may {
        return refused(outcome::NO_TRACE);
    }
    if recording.undo() {
        return refused(outcome::UNDO);
    }
    if recording.inputs() {
        return refused(outcome::INPUTS);
    }
    if recording.control_flow == ControlFlow::Bits {
        return refused(outcome::BITS);
    }
    if !are_known() {
        return refused(outcome::TOO_MANY);
    }
    if is_off() != on {
        return refused(outcome::ALREADY);
    }
    begin_switch();
    let (threads, interrupted) = stop();
    let took = now(CLOCK_MONOTONIC).saturating_sub(since);
    let changes = is_off() == on;
    if changes {
        started();
        jit().switch();
        trace().set_off(!on);
        control::set_off(!on);
        let time_ns = now(CLOCK_REALTIME);
        let event = Event::Switch { on, why, time_ns, took_ns: took, threads, interrupted };
        trace().process_event(&event);
    }
    end_switch();
    let outcome = if changes { outcome::DONE } else { outcome::ALREADY };
    Answer { outcome, threads, interrupted, took }
}

/// As long as this is there, no thread is in generated code: each looks its translation up again before it goes on.
pub struct Stopped(());

impl Drop for Stopped {
    fn drop(&mut self) {
        end_switch();
    }
}

/// Brings all other threads out of generated code, and keeps them out. `None`: there are too many to tell where
/// they are. No lock of the runtime may be held.
pub fn stop_others() -> Option<Stopped> {
    if !are_known() {
        return None;
    }
    begin_switch();
    let stopped = Stopped(());
    stop();
    Some(stopped)
}

/// The process is about to end: no thread goes into generated code any more.
pub fn keep_out() {
    begin_switch();
}

/// Whether it can be told of all threads where they are: else there are too many.
pub fn are_known() -> bool {
    (Slot::all().count() as u64) < SLOTS_MOST
}

/// From here on no thread goes into generated code. One at a time.
fn begin_switch() {
    loop {
        let generation = GENERATION.load(Acquire);
        if generation & 1 == 1 {
            wait(&GENERATION, generation, None);
            continue;
        }
        let odd = generation.wrapping_add(1);
        if GENERATION.compare_exchange(generation, odd, SeqCst, Relaxed).is_ok() {
            return fence(SeqCst);
        }
    }
}

fn end_switch() {
    GENERATION.fetch_add(1, SeqCst);
    wake(&GENERATION);
}

/// Brings all threads out of generated code. Returns how many there are, and how many were kicked.
fn stop() -> (u32, u32) {
    const STEP: [u64; 2] = [0, 100_000];
    let mut interrupted = 0;
    for slot in Slot::all() {
        interrupted += u32::from(slot.place() == place::CODE && slot.kick());
    }
    loop {
        let arrived = ARRIVED.load(Acquire);
        if Slot::all().all(|slot| slot.place() != place::CODE) {
            break;
        }
        wait(&ARRIVED, arrived, Some(STEP));
    }
    let threads = Slot::all().filter(|slot| slot.place() != place::GONE).count();
    (threads as u32, interrupted)
}

// --- requests ---

/// Carries out the request of `dep`, if no other thread does.
#[inline(never)]
fn serve() {
    if SERVING.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        return wait(&SERVING, 1, None);
    }
    if let Some(request) = control::posted() {
        let answer = carry_out(&request);
        control::answer(&request, &answer);
    }
    SERVING.store(0, Release);
    wake(&SERVING);
}

fn carry_out(request: &Request) -> Answer {
    let done = |outcome| {
        let took = now(CLOCK_MONOTONIC).saturating_sub(request.since);
        Answer { outcome, threads: 0, interrupted: 0, took }
    };
    match request.command {
        command::ON => switch(true, Why::Request, request.since),
        command::OFF => switch(false, Why::Request, request.since),
        command::MARK if !matches!(trace().phase(), Phase::Open | Phase::Paused) => {
            done(outcome::NO_TRACE)
        }
        command::MARK => {
            let mut text = [0; TEXT_MOST];
            let (time_ns, on) = (now(CLOCK_REALTIME), !is_off());
            let text = control::text(&mut text);
            trace().process_event(&Event::Mark { time_ns, on, text });
            done(outcome::DONE)
        }
        command::DUMP => {
            let mut text = [0; TEXT_MOST];
            let path = control::text(&mut text);
            let written = match ring::parts::is_active() {
                true => {
                    // (If there are too many to stop them, the copy may have a little more of one than of another.)
                    let _stopped = stop_others();
                    ring::parts::write_to(path)
                }
                false => ring::write_to(path),
            };
            match written {
                Ok(_) => done(outcome::DONE),
                Err(sys::EINVAL) if !ring::is_active() && !ring::parts::is_active() => {
                    done(outcome::NO_RING)
                }
                Err(errno) => Answer { interrupted: errno as u32, ..done(outcome::FAILED) },
            }
        }
        _ => done(outcome::UNKNOWN),
    }
}
