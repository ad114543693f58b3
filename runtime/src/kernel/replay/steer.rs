//! Steering a replay from outside: where it is to stop ([`abi::steer`] has the messages).
//!
//! The replay asks here whenever a thread, with its whole state in its block, is about to go on
//! ([`at_boundary`]): what is answered there is where it has to come back next. The answer may be given
//! late: whoever steers talks with the other side first, looks at memory and registers, and forks.
//!
//! A replay that nobody steers goes on at once.

use crate::base::lock::{Guard, Lock};
use crate::base::once::Once;
use crate::base::own::anonymous;
use crate::base::program::read_program_value;
use crate::base::sys::{self, nr};
use crate::base::vectors::{put_claimed, put_low_halves, put_ymm15, save_vectors, vectors_len};
use crate::code::jit::jit;
use crate::kernel::replay::accesses;
use crate::kernel::replay::contexts::{self, Claimed, Standing};
use crate::kernel::replay::{overrun, replay};
use crate::kernel::signals::state::State;
use crate::thread::seek::Moment;
use crate::thread::{claims, Thread};
use abi::script::{Outcome, Verdict};
use abi::steer::{Action, Command, Hits, Position, Stop, Watched, Why, COMMAND_SIZE, EVERY_CALL};
use abi::thread::Registers;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How far a thread goes before it asks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// As far as it comes by itself: to the next system call, fault, answer or arrival.
    GoOn,
    /// One instruction (one iteration of a repeated one).
    Step,
    /// To the moment behind so many turns of this thread, counted from its start. If the thread never
    /// comes there it asks at the turn behind it.
    At {
        /// Turns that the thread has made then.
        turns: u64,
        /// Where it is then.
        moment: Moment,
    },
}

/// What the other side wants, and what it was told.
struct Steer {
    fd: i32,
    /// What is being done.
    command: Command,
    /// It is; else the other side is asked first.
    goes: bool,
    /// Where that began.
    start: Position,
    /// The place that was visited last.
    last: Position,
    /// From there one instruction is executed, and then comes the next visit.
    steps: bool,
    /// The place in front of the last one, if one step led from there.
    earlier: Position,
    /// What the other side was told last.
    said: Stop,
    /// Breakpoints and watchpoints that were passed: how many, and the last.
    hits: u64,
    hit: (Why, Position, u64),
    watches: Vec<Watch>,
    /// The processor does not tell of watchpoints: each instruction is looked behind.
    watches_need_steps: bool,
    /// What has to be added to the turns of the thread: those of all others.
    turns_before: u64,
    /// Numbers of system calls that are stops, and whether they are behind, too.
    caught: Vec<(u64, bool)>,
    /// Calls that have returned, and nobody was told: the thread's index, and the number.
    returned: Vec<(u32, u64)>,
    /// Breakpoints count only where these bytes are referenced: address, length.
    only: Option<(u64, u64)>,
    /// What is executed at `last`, step by step, references this watchpoint.
    references: Option<u64>,
    /// Memory for the vector state of the thread that runs, and for that of one of the others, or 0.
    vectors: [u64; 2],
}

/// The processor has told of an access to what is watched, and nobody has looked yet.
static TOUCHED: AtomicBool = AtomicBool::new(false);

/// Bytes that are looked at, and what they were.
struct Watch {
    address: u64,
    len: usize,
    was: [u8; 8],
    watched: Watched,
}

impl Watch {
    fn now(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        for (i, byte) in bytes.iter_mut().enumerate().take(self.len) {
            // What is not there reads as zero.
            let _ = read_program_value(self.address + i as u64, byte);
        }
        bytes
    }
}

static STEER: Once<Lock<Steer>> = Once::new();

const TRAP_FLAG: u64 = 0x100;
/// Bytes of `syscall`.
const CALL_LEN: u64 = 2;

/// Whether the goal is a system call that the instruction at `here` is about to make.
fn is_call_at(goal: Position, here: Position) -> bool {
    goal.rcx == goal.pc.wrapping_add(CALL_LEN) && Position { rcx: goal.rcx, ..here } == goal
}

/// Commands come from `fd`.
pub fn start(fd: i32) {
    STEER.install(Lock::new(Steer {
        fd,
        command: Command::default(),
        goes: false,
        start: Position::default(),
        last: Position::default(),
        steps: false,
        earlier: Position::default(),
        said: Stop::default(),
        hits: 0,
        hit: (Why::Goal, Position::default(), 0),
        watches: Vec::new(),
        watches_need_steps: false,
        turns_before: 0,
        caught: Vec::new(),
        returned: Vec::new(),
        only: None,
        references: None,
        vectors: [0; 2],
    }));
}

fn steer() -> Option<Guard<'static, Steer>> {
    STEER.try_get().map(Lock::lock)
}

/// Whether somebody steers.
pub fn is_steered() -> bool {
    STEER.try_get().is_some()
}

/// Another thread is about to go on in place of this one.
pub fn leaves(thread: &Thread) {
    if let Some(mut steer) = steer() {
        steer.turns_before = steer.turns_before.wrapping_add(thread.turns());
    }
}

/// The thread goes on in place of another one.
pub fn enters(thread: &Thread) {
    if let Some(mut steer) = steer() {
        steer.turns_before = steer.turns_before.wrapping_sub(thread.turns());
    }
}

/// The thread's turns, `made` so far, are counted from `from` on.
pub fn turns_begin(made: u64, from: u64) {
    if let Some(mut steer) = steer() {
        steer.turns_before = steer.turns_before.wrapping_add(made).wrapping_sub(from);
    }
}

/// The thread is about to execute the instruction at `resume_original` (or, if a signal waits in its
/// mailbox, to be interrupted there); `block.registers` has its general registers and flags, `xmm` the
/// low halves of its vectors, [`Thread::turns`] its turns. What the script had for this moment has
/// happened.
pub fn at_boundary(thread: &mut Thread) -> Wish {
    let Some(mut steer) = steer() else { return Wish::GoOn };
    jit().place_breaks();
    let registers = Registers { rip: thread.resume_original, ..thread.block.registers };
    let here = steer.place(thread, &registers);
    steer.visit(thread, here, &registers);
    let wish = steer.wish(here);
    let over = jit().is_break(here.pc);
    if over {
        jit().lift_breaks(here.pc);
    }
    let wish = if over { Wish::Step } else { wish };
    steer.earlier =
        if steer.steps && steer.last != here { steer.last } else { Position::default() };
    (steer.last, steer.steps) = (here, wish == Wish::Step);
    steer.references = match wish {
        Wish::Step => steer.referenced(thread, here.pc),
        _ => None,
    };
    wish
}

/// Behind [`at_boundary`] the instruction at `resume_original`, which comes next, was translated.
pub fn translated(thread: &Thread) {
    if is_steered() {
        let mut jit = jit();
        jit.place_breaks();
        jit.lift_breaks(thread.resume_original);
    }
}

/// What was wished for last: the thread has come to the runtime for a reason of the runtime's, inside of
/// an instruction.
pub fn wish(thread: &mut Thread) -> Wish {
    let Some(mut steer) = steer() else { return Wish::GoOn };
    jit().place_breaks();
    let registers = Registers { rip: thread.resume_original, ..thread.block.registers };
    let wish = steer.wish(steer.place(thread, &registers));
    steer.steps = wish == Wish::Step;
    wish
}

/// The thread has been stopped in front of the instruction at `resume_original`, a turn that is counted
/// already.
pub fn in_front_of_turn(thread: &mut Thread) {
    let Some(mut steer) = steer() else { return };
    let registers = Registers { rip: thread.resume_original, ..thread.block.registers };
    let here = steer.place(thread, &registers);
    steer.last = Position { turns: here.turns.wrapping_sub(1), ..here };
}

/// The thread gets a signal in `state`: nothing of that has happened yet.
pub fn before_signal(thread: &mut Thread, state: &State, signal: i32) {
    let Some(mut steer) = steer() else { return };
    jit().place_breaks();
    let registers = Registers { gpr: state.gpr, rip: state.rip, rflags: state.rflags };
    let here = steer.place(thread, &registers);
    if here != steer.last {
        steer.visit(thread, here, &registers);
    }
    if steer.goes && steer.command.hits == Hits::Stop {
        let stop = steer.stop(thread, here, &registers, Why::Signal, signal as u64);
        steer.ask(thread, stop);
        steer.start = here;
    }
    // The handler's first instruction comes next.
    (steer.last, steer.steps) = (here, true);
}

/// The thread is about to make the system call `number`; nothing of it has happened yet. The place is that of the
/// instruction, with rcx as it is in the call: as such it is a goal, too.
pub fn before_call(thread: &mut Thread, number: u64) {
    let Some(mut steer) = steer() else { return };
    if !steer.goes {
        return;
    }
    let registers = Registers { rip: thread.syscall_pc, ..thread.block.registers };
    let here = Position {
        rcx: thread.syscall_pc.wrapping_add(CALL_LEN),
        ..steer.place(thread, &registers)
    };
    let Command { action, hits, position: goal, .. } = steer.command;
    let caught = steer.is_caught(number).is_some() && here != steer.start;
    let (why, detail) = match hits {
        _ if action == Action::RunTo && here == goal => (Why::Goal, 0),
        Hits::Stop if caught => (Why::Call, number),
        Hits::Last if caught => return steer.met(Why::Call, here, number),
        _ => return,
    };
    jit().place_breaks();
    let mut stop = steer.stop(thread, here, &registers, why, detail);
    // In front of the instruction is no other place.
    stop.before = if steer.steps { steer.earlier } else { Position::default() };
    steer.finish(&mut stop);
    steer.ask(thread, stop);
    steer.start = here;
    (steer.last, steer.steps) = (here, true);
}

/// The thread's system call `number` has returned.
pub fn after_call(thread: &Thread, number: u64) {
    let Some(mut steer) = steer() else { return };
    if steer.is_caught(number) == Some(true) {
        steer.returned.push((thread.index, number));
    }
}

/// The processor says that what is watched was accessed.
pub fn touched() {
    TOUCHED.store(true, Relaxed);
}

/// The replay ends here: its state can be looked at for a last time.
pub fn at_end(thread: &mut Thread, outcome: &Outcome) {
    let Some(mut steer) = steer() else { return };
    let registers = Registers { rip: outcome.pc, ..thread.block.registers };
    let turns = steer.turns_before.wrapping_add(outcome.turns);
    let here = Position { turns, entry: u64::MAX, pc: outcome.pc, rcx: 0 };
    let why = match outcome.verdict {
        Verdict::Ended | Verdict::Exhausted => Why::End,
        Verdict::Differs | Verdict::Impossible => Why::Failed,
    };
    loop {
        let is_goal = steer.goes
            && match steer.command.action {
                Action::RunTo => steer.command.position == here,
                Action::RunToTurn => here.turns >= steer.command.position.turns && why == Why::End,
                _ => false,
            };
        let why = if is_goal { Why::Goal } else { why };
        let mut stop = steer.stop(thread, here, &registers, why, outcome.verdict as u64);
        steer.finish(&mut stop);
        steer.steps = false;
        steer.ask(thread, stop);
        if why == Why::Failed {
            // It is said elsewhere why.
            return;
        }
    }
}

impl Steer {
    fn place(&self, thread: &Thread, registers: &Registers) -> Position {
        Position {
            turns: self.turns_before.wrapping_add(thread.turns()),
            entry: replay().script.at(),
            pc: registers.rip,
            rcx: registers.gpr[1],
        }
    }

    /// The thread is at `here`: looks whether it is to stop there, and asks how to go on if it is.
    fn visit(&mut self, thread: &Thread, here: Position, registers: &Registers) {
        let mut met = self.accessed(here);
        let mut returned = self.has_returned(thread.index);
        loop {
            let (why, detail) = match self.goes {
                false => (Why::Goal, 0),
                true => match self.reason(thread, here, met.take(), returned.take()) {
                    Some(reason) => reason,
                    None => return,
                },
            };
            let mut stop = self.stop(thread, here, registers, why, detail);
            self.finish(&mut stop);
            self.ask(thread, stop);
            met = None;
            self.start = here;
        }
    }

    /// Why the thread is to stop at `here`, if it is.
    fn reason(
        &mut self,
        thread: &Thread,
        here: Position,
        accessed: Option<u64>,
        returned: Option<u64>,
    ) -> Option<(Why, u64)> {
        let Command { action, hits, position: goal, .. } = self.command;
        let accessed = accessed.map(|address| (Why::Watchpoint, address));
        // What is behind a call is no part of what leads there.
        let leads_here = hits == Hits::Last && action == Action::RunTo && here == goal;
        let returned = returned.filter(|_| !leads_here).map(|number| (Why::CallReturn, number));
        for (why, detail) in [returned, accessed].into_iter().flatten() {
            match hits {
                Hits::Ignore => {}
                Hits::Stop => return Some((why, detail)),
                Hits::Last => self.met(why, here, detail),
            }
        }
        match action {
            Action::RunToTurn if here.turns >= goal.turns => {
                return Some((Why::Goal, self.references_at_break(thread, here.pc)))
            }
            Action::RunTo if here == goal => return Some((Why::Goal, 0)),
            // It has come past it.
            Action::RunTo if here > goal && !is_call_at(goal, here) => {
                return Some((Why::Refused, 0))
            }
            Action::Step if here != self.start => {
                return Some((Why::Goal, self.references_at_break(thread, here.pc)))
            }
            _ => {}
        }
        if here != self.start && jit().is_break(here.pc) {
            let references = self.references_at_break(thread, here.pc);
            match hits {
                Hits::Ignore => {}
                _ if self.only.is_some() && references == 0 => {}
                Hits::Stop => return Some((Why::Breakpoint, references)),
                Hits::Last => self.met(Why::Breakpoint, here, references),
            }
        }
        None
    }

    /// Of [`Action::Only`]: how many references count of the instruction at `pc`.
    fn references_at_break(&self, thread: &Thread, pc: u64) -> u64 {
        match self.only.filter(|_| jit().is_break(pc)) {
            Some((address, len)) => accesses::count(thread, pc, address, len),
            None => 0,
        }
    }

    /// Whether the call is a stop; and behind it, too?
    fn is_caught(&self, number: u64) -> Option<bool> {
        let mut all = self.caught.iter();
        all.find(|&&(caught, _)| caught == number || caught == EVERY_CALL)
            .map(|&(_, behind)| behind)
    }

    /// The call of the thread that has returned since anybody looked.
    fn has_returned(&mut self, thread: u32) -> Option<u64> {
        let at = self.returned.iter().position(|&(index, _)| index == thread)?;
        Some(self.returned.remove(at).1)
    }

    /// The watchpoint that the instruction at `pc`, which comes next, references, of those that mean more than
    /// changes.
    fn referenced(&self, thread: &Thread, pc: u64) -> Option<u64> {
        let wanted = self.watches.iter().filter(|watch| watch.watched != Watched::Write);
        let mut touched =
            wanted.filter(|watch| accesses::count(thread, pc, watch.address, watch.len as u64) > 0);
        touched.next().map(|watch| watch.address)
    }

    /// The watchpoint that was met by what led to `here`.
    fn accessed(&mut self, here: Position) -> Option<u64> {
        let told = TOUCHED.swap(false, Relaxed);
        let stepped = self.references.take().filter(|_| here != self.last);
        let changed = self.changed();
        let kind = |address: u64| {
            let watch = self.watches.iter().find(|watch| watch.address == address);
            watch.map(|watch| watch.watched)
        };
        // What has changed was stored to.
        let changed_and_wanted = changed.filter(|&at| kind(at) != Some(Watched::Read));
        let more = self.watches.iter().find(|watch| watch.watched != Watched::Write);
        let touched = stepped.or(more.map(|watch| watch.address).filter(|_| told));
        changed_and_wanted
            .or(touched.filter(|&at| changed.is_none() || kind(at) == Some(Watched::Access)))
    }

    fn met(&mut self, why: Why, here: Position, detail: u64) {
        self.hits += 1;
        self.hit = (why, here, detail);
    }

    /// A watched address whose bytes are others than at the last look.
    fn changed(&mut self) -> Option<u64> {
        let mut changed = None;
        for watch in &mut self.watches {
            let now = watch.now();
            if now != watch.was {
                watch.was = now;
                changed = Some(watch.address);
            }
        }
        changed
    }

    /// What the thread is to do from `here` on.
    fn wish(&self, here: Position) -> Wish {
        let slowly = self.watches_need_steps && !self.watches.is_empty();
        let Command { action, position: goal, .. } = self.command;
        match action {
            _ if slowly || jit_needs_steps() => Wish::Step,
            Action::Step => Wish::Step,
            Action::RunTo | Action::RunToTurn if here.turns < goal.turns => Wish::At {
                turns: goal.turns.wrapping_sub(self.turns_before),
                // At that turn it asks again.
                moment: Moment { rip: goal.pc, rcx: goal.rcx },
            },
            Action::RunTo | Action::RunToTurn => Wish::Step,
            _ => Wish::GoOn,
        }
    }

    // --- the other side ---

    fn stop(
        &mut self,
        thread: &Thread,
        here: Position,
        registers: &Registers,
        why: Why,
        detail: u64,
    ) -> Stop {
        let (vectors, vectors_len) = self.vectors_of(thread);
        Stop {
            why,
            detail,
            pid: u64::from(sys::getpid()),
            thread: u64::from(thread.index),
            tid: tid_of(thread.index, thread.tid),
            threads: 1 + contexts::others(thread).len() as u64,
            position: here,
            before: if self.steps && self.last != here { self.last } else { Position::default() },
            hits: 0,
            hit: Why::Goal,
            hit_position: Position::default(),
            hit_detail: 0,
            gpr: registers.gpr,
            rflags: registers.rflags & !TRAP_FLAG,
            fs_base: fs_base(),
            gs_base: thread.block.program_gs,
            vectors,
            vectors_len,
        }
    }

    /// Where the vector state of the thread, which runs, is from now on, as XSAVE stores it, and of how many bytes.
    fn vectors_of(&mut self, thread: &Thread) -> (u64, u64) {
        let claimed = (claims::first(thread.vector), thread.block.program_vectors);
        self.vectors_as(0, &claimed, |area| match thread.interrupted {
            Some(interrupted) => {
                interrupted.copy_to(area);
                if thread.vector == claims::XMM15 {
                    put_ymm15(area, &thread.block.program_vectors);
                }
            }
            None => {
                // SAFETY: as large as a state, and aligned to a page.
                unsafe { save_vectors(area.as_mut_ptr() as u64) };
                put_low_halves(area, &thread.xmm);
            }
        })
    }

    /// The same in memory `n`, of a state that `fill` stores but for those registers that translated code claims.
    fn vectors_as(
        &mut self,
        n: usize,
        claimed: &Claimed,
        fill: impl FnOnce(&mut [u8]),
    ) -> (u64, u64) {
        let len = vectors_len();
        let Some(at) = self.vectors.get_mut(n) else { return (0, 0) };
        if *at == 0 {
            *at = anonymous(len).unwrap_or(0);
        }
        if *at == 0 {
            return (0, 0);
        }
        // SAFETY: the area is as large as a state, and nobody else's.
        let area = unsafe { core::slice::from_raw_parts_mut(*at as *mut u8, len as usize) };
        fill(area);
        let (first, own) = claimed;
        put_claimed(area, *first, own);
        (*at, len)
    }

    /// Says in `stop` what was passed.
    fn finish(&self, stop: &mut Stop) {
        stop.hits = self.hits;
        (stop.hit, stop.hit_position, stop.hit_detail) = self.hit;
    }

    /// Says where the replay stands, and answers what is asked, until it is to go on.
    fn ask(&mut self, thread: &Thread, stop: Stop) {
        self.said = stop;
        self.goes = false;
        self.say(stop.why);
        while !self.goes {
            let (command, socket) = self.hear();
            self.obey(thread, command, socket);
        }
    }

    fn say(&mut self, why: Why) {
        let bytes = Stop { why, ..self.said }.to_bytes();
        if sys::write(self.fd, &bytes) != Ok(bytes.len()) {
            // Nobody listens any more.
            sys::exit_group(0);
        }
    }

    fn obey(&mut self, thread: &Thread, command: Command, socket: Option<i32>) {
        match command.action {
            Action::Run | Action::RunToTurn | Action::RunTo | Action::Step => {
                self.command = command;
                self.goes = true;
                self.start = self.said.position;
                self.hits = 0;
                self.hit = (Why::Goal, Position::default(), 0);
                return;
            }
            Action::Quit => sys::exit_group(0),
            Action::Fork => return self.fork(socket),
            Action::Break | Action::Unbreak => {
                jit().set_break(command.address, command.action == Action::Break);
            }
            Action::Watch | Action::Unwatch => {
                let (address, len) = (command.address, command.len as usize);
                self.watches.retain(|w| (w.address, w.len) != (address, len));
                if len > 8 {
                    return self.say(Why::Refused);
                }
                if command.action == Action::Watch {
                    let watched = command.watched;
                    let mut watch = Watch { address, len, was: [0; 8], watched };
                    watch.was = watch.now();
                    self.watches.push(watch);
                }
            }
            Action::WatchByStepping => self.watches_need_steps = command.address != 0,
            Action::Catch if command.len == 0 => self.caught.clear(),
            Action::Catch => self.caught.push((command.address, command.len > 1)),
            Action::Only => {
                self.only = Some((command.address, command.len)).filter(|&(_, len)| len > 0);
            }
            Action::Thread => return self.say_of(thread, command.address),
        }
        self.say(Why::Goal);
    }

    /// Says where the `n`th of the other threads stands.
    fn say_of(&mut self, thread: &Thread, n: u64) {
        let Some(other) = contexts::others(thread).into_iter().nth(n as usize) else {
            return self.say(Why::Refused);
        };
        let Standing { index, tid, registers, fs_base, gs_base, vectors, claimed } = other;
        let (vectors, vectors_len) = self.vectors_as(1, &claimed, |area| {
            let standing = vectors as *const u8;
            // SAFETY: the context's area, which is as large, and stays while it stands.
            unsafe { standing.copy_to_nonoverlapping(area.as_mut_ptr(), area.len()) };
        });
        let said = Stop {
            thread: u64::from(index),
            tid: tid_of(index, tid),
            position: Position { pc: registers.rip, rcx: registers.gpr[1], ..self.said.position },
            gpr: registers.gpr,
            rflags: registers.rflags & !TRAP_FLAG,
            fs_base,
            gs_base,
            vectors,
            vectors_len,
            ..self.said
        };
        let now = core::mem::replace(&mut self.said, said);
        self.say(Why::Goal);
        self.said = now;
    }

    /// The next message, and the descriptor that came with it.
    fn hear(&self) -> (Command, Option<i32>) {
        let mut bytes = [0u8; COMMAND_SIZE];
        let mut vector = [bytes.as_mut_ptr() as u64, COMMAND_SIZE as u64];
        // A header of a control message, and room for one descriptor.
        let mut control = [0u64; 3];
        let mut message = [0, 0, vector.as_mut_ptr() as u64, 1, 0, 0, 0];
        loop {
            message[4] = control.as_mut_ptr() as u64;
            message[5] = 24;
            let at = message.as_mut_ptr() as usize;
            // SAFETY: the kernel writes the message, what belongs to it and how much that is into these
            // arrays, which are as long as it is told.
            let got = unsafe { sys::call(RECVMSG, &[self.fd as usize, at, MSG_CMSG_CLOEXEC]) };
            match got {
                Err(sys::EINTR) => {}
                Ok(COMMAND_SIZE) => break,
                _ => sys::exit_group(0),
            }
        }
        let Some(command) = Command::from_bytes(&bytes) else { sys::exit_group(0) };
        let socket = (message[5] >= 20).then_some(control[2] as i32);
        (command, socket)
    }

    /// A checkpoint: another process that stands here, too.
    fn fork(&mut self, socket: Option<i32>) {
        let Some(socket) = socket else { return self.say(Why::Refused) };
        // Whoever changes the code from now on makes a copy of it.
        jit().forks();
        // Whoever steers is the parent of all.
        // SAFETY: no memory involved; the child runs on a copy of this stack.
        let made = unsafe { sys::call(nr::CLONE, &[CLONE_PARENT | SIGCHLD]) };
        let unused = match made {
            Ok(0) => core::mem::replace(&mut self.fd, socket),
            _ => socket,
        };
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::call(nr::CLOSE, &[unused as usize]) };
        match made {
            Ok(0) => {
                overrun::begins();
                self.said.pid = u64::from(sys::getpid());
                self.say(Why::Goal);
            }
            Ok(_) => self.say(Why::Goal),
            Err(_) => self.say(Why::Refused),
        }
    }
}

const RECVMSG: usize = 47;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const CLONE_PARENT: usize = 0x8000;
const SIGCHLD: usize = 17;

/// Thread id in the recording.
fn tid_of(index: u32, tid: u32) -> u64 {
    match index {
        0 => replay().header.pid,
        _ => u64::from(tid),
    }
}

fn jit_needs_steps() -> bool {
    jit().breaks_need_steps()
}

fn fs_base() -> u64 {
    const ARCH_GET_FS: usize = 0x1003;
    let mut base = 0u64;
    // SAFETY: the kernel writes the word.
    let _ = unsafe { sys::call(nr::ARCH_PRCTL, &[ARCH_GET_FS, &raw mut base as usize]) };
    base
}
