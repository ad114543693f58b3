//! What comes to a thread from outside: signals, interruptions, the moments at which its registers are
//! compared; and faults, which come by themselves.

use crate::base::facts::facts;
use crate::base::replaying::is_alone;
use crate::base::signal::{bit, AltStack, SigInfo, SA_NODEFER, SIGSEGV, SI_KERNEL, SS_AUTODISARM};
use crate::code::jit::jit;
use crate::code::statics;
use crate::kernel::replay::outcome::{conclude, differs, Expected};
use crate::kernel::replay::script::{Entry, Next};
use crate::kernel::replay::steer::{self, Wish};
use crate::kernel::replay::{
    alone, coming, contexts, event_of, next_entry, replay, stepping, take, write,
};
use crate::kernel::signals::actions::{self, Which};
use crate::kernel::signals::deliver::handlers_begin_anew;
use crate::kernel::signals::sigreturn::restore_floating;
use crate::kernel::signals::state::{interrupted, State};
use crate::kernel::switch;
use crate::logs::{log, moment};
use crate::thread::ending::end_recording_at;
use crate::thread::seek::{Moment, Sought};
use crate::thread::Thread;
use abi::event::{End, Event, Kind, LAST_NOT_DONE, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::script::Verdict;
use abi::thread::Registers;
use abi::trace::RegisterState;

/// Trap flag and resume flag, which are the processor's business.
const NOT_COMPARED: u64 = 0x10100;
/// What the comparisons of a watched thread have left, where the flags were dead.
const ARITHMETIC: u64 = 0x8d5;

/// The thread is about to go on at `resume_original`, with the registers in its block: takes what the
/// script has for this moment, and sees to it that the thread comes back for what follows.
/// `at_boundary`: it is in front of that instruction (and not inside of what belongs to it). Returns where
/// it goes on, if that is somewhere else now.
pub fn before_leaving(thread: &mut Thread, at_boundary: bool) -> Option<u64> {
    stepping::end(thread);
    jit().lift_stop();
    let begins = thread.resume_original;
    // What the runtime has raised comes first.
    let raised = thread.mailbox.waiting.number().is_some();
    let here = at_boundary && !raised;
    loop {
        let wanted = match next_moment(thread, here) {
            Some(Ahead::Here(registers)) => {
                arrived(thread, &registers);
                continue;
            }
            Some(Ahead::Passes(registers)) => {
                let pc = thread.resume_original;
                let mine = Registers { rip: pc, ..thread.block.registers };
                compare(thread, &mine, &registers);
                continue;
            }
            Some(Ahead::Sees(address, bytes)) => {
                let pc = thread.resume_original;
                write(thread, pc, &[(address, bytes)]);
                continue;
            }
            Some(Ahead::Later(turns, moment)) => Some((turns, moment)),
            None => None,
        };
        let wish = if here { steer::at_boundary(thread) } else { steer::wish(thread) };
        lead(thread, wanted, wish, at_boundary, raised);
        break;
    }
    thread.seek.insn = None;
    (thread.resume_original != begins).then_some(thread.resume_original)
}

/// Behind [`before_leaving`] the code was translated that the thread goes on in.
pub fn translated(thread: &mut Thread) {
    let Some(sought) = thread.seek.sought.filter(|_| !thread.mailbox.is_stepping()) else { return };
    if sought.moment.is_some_and(|moment| !jit().stop_at(moment.rip)) {
        stepping::begin(thread, sought);
    }
}

/// What the script has next.
enum Ahead {
    /// Now, with these registers: it was interrupted.
    Here(RegisterState),
    /// Now, with these registers: it was looked at. If its process ends next, an instruction raises that.
    Passes(RegisterState),
    /// Now it sees what others have stored, there.
    Sees(u64, &'static [u8]),
    /// Behind so many turns.
    Later(u64, Moment),
}

/// The next moment that has to be sought; `None`: what comes next comes by itself.
fn next_moment(thread: &mut Thread, here: bool) -> Option<Ahead> {
    let pc = thread.resume_original;
    loop {
        let entry = next_entry(thread, pc);
        let made = thread.turns();
        match entry.kind() {
            Kind::Runs if entry.thread == thread.index => take(&entry),
            Kind::ThreadStart if entry.thread == thread.index => {
                // A forked child's own entries begin here, with what the kernel wrote for it.
                steer::turns_begin(made, entry.turns);
                thread.begin_turns(entry.turns);
                take(&entry);
                write_now(thread, pc, entry.turns);
            }
            Kind::Anew if entry.thread == thread.index => {
                // What was compared in front of it stands here, too.
                take(&entry);
                alone::begins_anew();
            }
            Kind::Seen if entry.thread == thread.index => {
                let Event::Seen { pc: at, rcx, address, bytes } = event_of(thread, pc, &entry)
                else {
                    return None;
                };
                let moment = Moment { rip: at.0, rcx };
                if stepping::is_in_call(&moment) {
                    // What a call shows comes with it.
                    return None;
                }
                if entry.turns < made {
                    differs(
                        thread,
                        pc,
                        format_args!("the thread comes to turn {made} at {pc:#x}; the recording has what it sees at {:#x}, turn {}", at.0, entry.turns),
                    )
                }
                let here = here && entry.turns == made && pc == moment.rip;
                if !here || thread.block.registers.gpr[1] != rcx {
                    return Some(Ahead::Later(entry.turns, moment));
                }
                take(&entry);
                return Some(Ahead::Sees(address.0, bytes));
            }
            Kind::Arrived | Kind::Checked if entry.thread == thread.index => {
                let event = event_of(thread, pc, &entry);
                let (Event::Arrived(registers) | Event::Checked(registers)) = event else {
                    return None;
                };
                let moment = Moment { rip: registers.rip, rcx: registers.gpr[1] };
                if entry.kind() == Kind::Checked && stepping::is_in_call(&moment) {
                    // It comes by itself.
                    return None;
                }
                if entry.turns < made {
                    let expected = Expected(&entry, &event);
                    differs(
                        thread,
                        pc,
                        format_args!("the thread comes to turn {made} at {pc:#x}; {expected}"),
                    )
                }
                if entry.turns > made || !here || pc != moment.rip {
                    return Some(Ahead::Later(entry.turns, moment));
                }
                let r11 = thread.block.registers.gpr[11];
                if stepping::is_in_call(&moment) && r11 != registers.gpr[11] {
                    // In the call, which comes by itself: rcx is from the call before, which was made here, too.
                    return None;
                }
                if thread.block.registers.gpr[1] != moment.rcx && stepping::may_come_again(pc) {
                    return Some(Ahead::Later(entry.turns, moment));
                }
                take(&entry);
                return Some(match entry.kind() {
                    Kind::Arrived => Ahead::Here(registers),
                    _ => Ahead::Passes(registers),
                });
            }
            _ => return None,
        }
    }
}

/// Whether the thread, which has made its last turn in front of the moment, will be stopped there: that is much quicker
/// than step by step, and can be where all code was translated at run time.
fn stops_at(thread: &Thread, moment: &Moment, at_boundary: bool) -> bool {
    const TRAP_FLAG: u64 = 0x100;
    let is_here = at_boundary && thread.resume_original == moment.rip;
    let traps = thread.mailbox.has_trap_flag() || thread.block.registers.rflags & TRAP_FLAG != 0;
    !is_here
        && !traps
        && !steer::is_steered()
        && statics::is_empty()
        && !stepping::may_come_again(moment.rip)
        && jit().stop_at(moment.rip)
}

/// Puts in place what the kernel had written by now.
fn write_now(thread: &mut Thread, pc: u64, turns: u64) {
    loop {
        let entry = next_entry(thread, pc);
        if (entry.thread, entry.turns) != (thread.index, turns) || entry.kind() != Kind::Written {
            return;
        }
        if let Event::Written { address, bytes } = event_of(thread, pc, &entry) {
            write(thread, pc, &[(address.0, bytes)]);
        }
        take(&entry);
    }
}

/// Sees to it that the thread comes back at what the script has next, and at what is wished for.
fn lead(
    thread: &mut Thread,
    wanted: Option<(u64, Moment)>,
    wish: Wish,
    at_boundary: bool,
    raised: bool,
) {
    let made = thread.turns();
    let (wished, step) = match wish {
        Wish::GoOn => (None, false),
        Wish::Step => (None, true),
        Wish::At { turns, moment } => (Some((turns, moment)), false),
    };
    let first = [wanted, wished].into_iter().flatten().map(|(turns, _)| turns).min();
    let is_straight = facts().options.process.straight;
    let near =
        |moment: &Option<(u64, Moment)>| moment.filter(|&(turns, _)| turns <= made || is_straight);
    let sought = match (near(&wanted), near(&wished)) {
        _ if step => Some(None),
        (Some(_), Some(_)) => Some(None),
        (Some((_, moment)), None) | (None, Some((_, moment))) => Some(Some(moment)),
        (None, None) => None,
    };
    match first {
        Some(turns) if turns > made => thread.leave_in(turns - made),
        Some(_) => thread.leave_in(1),
        None => thread.leave_in(0),
    }
    let Some(moment) = sought.filter(|_| !raised) else { return };
    let sought = Sought { moment, first: at_boundary };
    match moment.is_some_and(|moment| stops_at(thread, &moment, at_boundary)) {
        true => thread.seek.sought = Some(sought),
        false => stepping::begin(thread, sought),
    }
}

/// The thread has come to a moment at which the recorded one had these registers.
fn arrived(thread: &mut Thread, recorded: &RegisterState) {
    let mine = Registers { rip: thread.resume_original, ..thread.block.registers };
    compare(thread, &mine, recorded);
    thread.block.registers.rflags = flags_of(mine.rflags, recorded);
    let pc = thread.resume_original;
    let insn = thread.seek.insn.unwrap_or(match thread.transfer_undone {
        true => LAST_NOT_DONE,
        false => WHOLE_UNIT,
    });
    let next = coming_here(thread, pc);
    match next {
        Some(Following::Checked(registers)) => compare(thread, &mine, &registers),
        Some(Following::Yields) => contexts::others_run(thread, pc, insn),
        Some(Following::Signal) => {
            let registers = &thread.block.registers;
            let state = State {
                gpr: registers.gpr,
                rip: pc,
                rflags: registers.rflags,
                insn,
                valid: 0xffff,
            };
            let next = handler_starts(thread, &state, None);
            if handlers_begin_anew() {
                // The runtime works here: the registers are in the processor and in the thread.
                let _ = restore_floating(thread, 0);
            }
            thread.block.registers.gpr = next.gpr;
            thread.block.registers.rflags = next.rflags;
            thread.resume_original = next.rip;
            thread.transfer_undone = false;
            thread.seek.insn = None;
        }
        None => {}
    }
}

/// The thread's flags as a handler sees them: dead ones are those of the recording.
fn flags_of(mine: u64, recorded: &RegisterState) -> u64 {
    match is_alone() {
        true => mine & !ARITHMETIC | recorded.rflags & ARITHMETIC,
        false => mine,
    }
}

/// What may stand right behind an interruption.
enum Following {
    Checked(RegisterState),
    /// Others run now.
    Yields,
    /// With what was written for it in front of it.
    Signal,
}

fn coming_here(thread: &mut Thread, pc: u64) -> Option<Following> {
    let entry = peek()?;
    if (entry.thread, entry.turns) != (thread.index, thread.turns()) {
        return None;
    }
    match entry.kind() {
        Kind::Checked => {
            let event = event_of(thread, pc, &entry);
            take(&entry);
            match event {
                Event::Checked(registers) => Some(Following::Checked(registers)),
                _ => None,
            }
        }
        Kind::Yields => {
            take(&entry);
            Some(Following::Yields)
        }
        Kind::Written | Kind::Signal | Kind::ProcessEnd | Kind::ThreadEnd => {
            Some(Following::Signal)
        }
        _ => None,
    }
}

fn peek() -> Option<Entry> {
    match replay().script.peek() {
        Next::Entry(entry) => Some(entry),
        _ => None,
    }
}

/// Compares the thread's registers with those that were recorded here.
pub(super) fn compare(thread: &mut Thread, mine: &Registers, recorded: &RegisterState) {
    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
    let pc = mine.rip;
    let all = NAMES.iter().zip(mine.gpr).zip(recorded.gpr).enumerate();
    for (i, ((name, mine), theirs)) in all {
        if mine != theirs && recorded.valid >> i & 1 == 1 {
            let turns = thread.turns();
            differs(
                thread,
                pc,
                format_args!(
                    "{name} is {mine:#x} at {pc:#x}, turn {turns}; the recording has {theirs:#x}"
                ),
            )
        }
    }
    let not_compared = NOT_COMPARED | if is_alone() { ARITHMETIC } else { 0 };
    let [mine, theirs] = [mine.rflags, recorded.rflags].map(|flags| flags & !not_compared);
    if mine != theirs {
        let turns = thread.turns();
        differs(
            thread,
            pc,
            format_args!(
                "the flags are {mine:#x} at {pc:#x}, turn {turns}; the recording has {theirs:#x}"
            ),
        )
    }
}

/// An instruction has raised `signal`, in `state`: the script says what follows from it. Returns where the
/// program goes on, and with what.
pub fn faulted(thread: &mut Thread, signal: i32, info: &SigInfo, state: State) -> State {
    interrupted(thread, &state);
    handler_starts(thread, &state, Some((signal, info)))
}

/// The next entry is a signal's, or the end of the process by one. `raised`: what has come by itself.
fn handler_starts(thread: &mut Thread, state: &State, raised: Option<(i32, &SigInfo)>) -> State {
    let pc = state.rip;
    let mut rflags = state.rflags;
    let mut next = coming(thread, pc);
    let noted = match &next.event {
        Event::Checked(registers) => Some(registers),
        // What comes by itself all the same.
        Event::Arrived(registers) if is_alone() && raised.is_some() => Some(registers),
        _ => None,
    };
    if let Some(registers) = noted {
        if registers.rip == pc && next.entry.turns == thread.turns() {
            let mine = Registers { gpr: state.gpr, rip: pc, rflags: state.rflags };
            compare(thread, &mine, registers);
            rflags = flags_of(rflags, registers);
            take(&next.entry);
            next = coming(thread, pc);
        }
    }
    let state = &State { rflags, ..*state };
    let turns = thread.turns();
    let here = (next.entry.thread, next.entry.turns) == (thread.index, turns);
    let number = raised.map(|(signal, _)| signal);
    match next.event {
        // Where the frame of another signal finds no room, that is raised instead.
        Event::Signal { signal, code, address, pc: there, registers }
            if here
                && there.0 == pc
                && (number.is_none_or(|number| number.cast_unsigned() == signal)
                    || (signal.cast_signed(), code) == (SIGSEGV, SI_KERNEL)) =>
        {
            steer::before_signal(thread, state, signal.cast_signed());
            take(&next.entry);
            let told = Told { signal: signal.cast_signed(), code, address };
            if let Some((number, info)) = raised.filter(|&(number, _)| number == told.signal) {
                told.compare(thread, pc, number, info);
            }
            start(thread, state, &told, &registers, &next.written)
        }
        Event::ProcessEnd { reason: End::Signal, status, address }
            if here && number.is_none_or(|number| number == status || status == SIGSEGV) =>
        {
            steer::before_signal(thread, state, status);
            take(&next.entry);
            end_recording_at(thread, End::Signal, status, address, state.insn);
            thread.block.registers.gpr = state.gpr;
            thread.block.registers.rflags = state.rflags;
            thread.resume_original = pc;
            conclude(
                thread,
                Verdict::Ended,
                pc,
                format_args!("signal {status} ends the process at {pc:#x}"),
            )
        }
        // A child of vfork.
        Event::ThreadEnd { reason: End::Signal, status } if here && thread.vfork_child => {
            take(&next.entry);
            contexts::ends(thread, End::Signal, status)
        }
        _ => {
            let expected = Expected(&next.entry, &next.event);
            match raised {
                Some((signal, info)) => differs(
                    thread,
                    pc,
                    format_args!(
                        "the instruction at {pc:#x} raises signal {signal} (address {:#x}), turn {turns}; {expected}",
                        info.address()
                    ),
                ),
                None => differs(thread, pc, format_args!("a signal comes at {pc:#x}; {expected}")),
            }
        }
    }
}

/// What a handler is told.
struct Told {
    signal: i32,
    code: i32,
    address: u64,
}

impl Told {
    fn compare(&self, thread: &mut Thread, pc: u64, signal: i32, info: &SigInfo) {
        let (code, address) = (info.code(), info.address());
        if (code, address) != (self.code, self.address) {
            differs(
                thread,
                pc,
                format_args!(
                    "signal {signal} at {pc:#x} has code {code} and address {address:#x}; the recording has {} and {:#x}",
                    self.code, self.address
                ),
            )
        }
    }
}

/// The program's handler starts, with the frame and the registers that were recorded.
fn start(
    thread: &mut Thread,
    state: &State,
    told: &Told,
    registers: &RegisterState,
    written: &[(u64, &[u8])],
) -> State {
    let mut action = actions::take(thread, told.signal, Which::Handler(registers.rip));
    if is_alone() {
        // Another thread may have said so.
        action.handler = registers.rip;
    }
    if action.handler != registers.rip {
        differs(
            thread,
            state.rip,
            format_args!(
                "the handler of signal {} is at {:#x}; the recording has {:#x}",
                told.signal, action.handler, registers.rip
            ),
        )
    }
    for &(start, bytes) in written {
        let len = bytes.len() as u64;
        let frame = moment::Frame { pc: state.rip, start, len, insn: state.insn };
        log().before_frame(thread, &frame);
    }
    write(thread, state.rip, written);
    let mask = thread.handler_mask.take().unwrap_or(thread.mailbox.mask());
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(told.signal) };
    thread.mailbox.set_mask(mask | action.mask | own);
    if thread.alt_stack.flags & SS_AUTODISARM != 0 {
        thread.alt_stack = AltStack::DISABLED;
    }
    switch::before_handler(told.signal);
    let handled = Event::Signal {
        signal: told.signal.cast_unsigned(),
        code: told.code,
        address: told.address,
        pc: LiveAddr(state.rip),
        registers,
    };
    thread.event(state.insn, &handled);
    State {
        gpr: registers.gpr,
        rip: registers.rip,
        rflags: registers.rflags,
        insn: WHOLE_UNIT,
        valid: registers.valid,
    }
}
