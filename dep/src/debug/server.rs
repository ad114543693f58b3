//! What gdb asks, and what a timeline answers.

use std::io;
use std::num::NonZeroUsize;

use abi::steer::{Stop, Watched, Why};
use gdbstub::common::{Pid, Signal, Tid};
use gdbstub::stub::run_blocking::{BlockingEventLoop, Event as Waited, WaitForStopReasonError};
use gdbstub::stub::{DisconnectReason, GdbStub, GdbStubError, MultiThreadStopReason};
use gdbstub::target::ext::auxv::{Auxv, AuxvOps};
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume,
    MultiThreadResumeOps, MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps,
    MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::reverse_exec::{
    ReplayLogPosition, ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps,
};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::catch_syscalls::{
    CatchSyscallPosition, CatchSyscalls, CatchSyscallsOps, SyscallNumbers,
};
use gdbstub::target::ext::exec_file::{ExecFile, ExecFileOps};
use gdbstub::target::ext::monitor_cmd::{outputln, ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::{Target, TargetError, TargetResult};

use crate::debug::machine::{Calls, Failed, Machine, Watch};
use crate::debug::registers::{Amd64, Amd64Registers};
use crate::debug::timeline::{Event, Timeline};
use crate::debug::wire::Wire;

const EFAULT: u8 = 14;
const EROFS: u8 = 30;

/// What gdb wants to be done next.
#[derive(Clone, Copy)]
enum Wanted {
    Continue,
    Step,
    /// Step as long as the pc is in here.
    Range(u64, u64),
    StepBack,
    Back,
}

/// A replay as gdb sees it.
pub struct Server<M> {
    timeline: Timeline<M>,
    wanted: Wanted,
    auxv: Vec<u8>,
    /// Path of the program.
    program: Vec<u8>,
    /// Turns of the whole recording, if known.
    turns: Option<u64>,
    /// That the past cannot be written was said.
    said_read_only: bool,
    /// The next movement, whichever it is, goes to the first place behind so many turns. The inner `None`:
    /// nowhere.
    ahead: Option<Option<u64>>,
}

impl<M: Machine + 'static> Server<M> {
    /// `stack`: rsp at the program's first instruction, if the recording does not begin there.
    pub fn new(
        timeline: Timeline<M>,
        program: &str,
        turns: Option<u64>,
        stack: Option<u64>,
    ) -> Server<M> {
        let auxv = auxiliary_vector(timeline.now(), stack);
        Server {
            timeline,
            wanted: Wanted::Continue,
            auxv,
            program: program.as_bytes().to_vec(),
            turns,
            said_read_only: false,
            ahead: None,
        }
    }

    /// Where the program and its interpreter lie, if memory does not say so.
    pub fn places(&mut self, auxiliary_vector: Vec<u8>) {
        self.auxv = auxiliary_vector;
    }

    /// Answers gdb until it goes.
    pub fn serve(&mut self, wire: Wire) -> Result<(), Failed> {
        match GdbStub::new(wire).run_blocking::<Loop<M>>(self) {
            Ok(
                DisconnectReason::Disconnect
                | DisconnectReason::Kill
                | DisconnectReason::TargetExited(_)
                | DisconnectReason::TargetTerminated(_),
            ) => Ok(()),
            Err(error) => gone(error),
        }
    }

    fn tid(&self) -> Tid {
        tid_of(self.timeline.stop())
    }

    /// Does what is wanted. `None`: somebody has interrupted it.
    fn go(&mut self, wire: &mut Wire) -> Option<MultiThreadStopReason<u64>> {
        let interrupt: &mut dyn FnMut() -> bool = &mut || wire.has_news();
        if let Some(to) = self.ahead.take() {
            return self.seek(to, interrupt);
        }
        let moved = match self.wanted {
            Wanted::Continue => self.timeline.forward(interrupt),
            Wanted::Step => self.timeline.step(),
            Wanted::Range(start, end) => self.step_range(start, end, interrupt),
            Wanted::StepBack => self.timeline.step_back(),
            Wanted::Back => self.timeline.back(interrupt),
        };
        let event = match moved {
            Ok(event) => event,
            Err(Failed(why)) => {
                eprintln!("dep: {why}");
                if let Err(Failed(why)) = self.timeline.recover() {
                    eprintln!("dep: {why}");
                }
                Event::End(0)
            }
        };
        let tid = self.tid();
        Some(match event {
            Event::Stepped => {
                MultiThreadStopReason::SignalWithThread { tid, signal: Signal::SIGTRAP }
            }
            Event::Breakpoint => MultiThreadStopReason::SwBreak(tid),
            Event::Watchpoint(addr) => {
                let watches = &self.timeline.points.watches;
                let met = |w: &&Watch| addr.wrapping_sub(w.address) < w.len;
                let kind = watches.iter().find(met).map(Watch::kind);
                let kind = match kind {
                    Some(Watched::Read) => WatchKind::Read,
                    Some(Watched::Access) => WatchKind::ReadWrite,
                    _ => WatchKind::Write,
                };
                MultiThreadStopReason::Watch { tid, kind, addr }
            }
            Event::Signal(number) => {
                MultiThreadStopReason::SignalWithThread { tid, signal: signal_of(number) }
            }
            Event::Call(number) => MultiThreadStopReason::CatchSyscall {
                tid: Some(tid),
                number,
                position: CatchSyscallPosition::Entry,
            },
            Event::CallReturn(number) => MultiThreadStopReason::CatchSyscall {
                tid: Some(tid),
                number,
                position: CatchSyscallPosition::Return,
            },
            Event::Begin => {
                MultiThreadStopReason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::Begin }
            }
            Event::End(_) => {
                MultiThreadStopReason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::End }
            }
            Event::Interrupted => return None,
        })
    }

    /// Goes to a turn in place of a movement of gdb's, so that gdb asks for everything anew: which thread is
    /// there, too.
    fn seek(
        &mut self,
        to: Option<u64>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Option<MultiThreadStopReason<u64>> {
        let before = self.tid();
        if let Some(turn) = to {
            match self.timeline.seek_turn(turn, interrupt) {
                Ok(Event::Interrupted) => return None,
                Ok(_) => {}
                Err(Failed(why)) => {
                    eprintln!("dep: {why}");
                    if let Err(Failed(why)) = self.timeline.recover() {
                        eprintln!("dep: {why}");
                    }
                }
            }
        }
        let tid = self.tid();
        // For gdb another thread than the one that it has stepped stands for no reason.
        let signal = if tid == before { Signal::SIGTRAP } else { Signal(0) };
        Some(MultiThreadStopReason::SignalWithThread { tid, signal })
    }

    fn step_range(
        &mut self,
        start: u64,
        end: u64,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Event, Failed> {
        for n in 1u32.. {
            let event = self.timeline.step()?;
            let pc = self.timeline.here().pc;
            if event != Event::Stepped || !(start..end).contains(&pc) {
                return Ok(event);
            }
            if self.timeline.points.breaks.contains(&pc) {
                return Ok(Event::Breakpoint);
            }
            if n % 4096 == 0 && interrupt() {
                return Ok(Event::Interrupted);
            }
        }
        Ok(Event::Stepped)
    }

    /// Each thread's state.
    fn threads(&mut self) -> Vec<Stop> {
        let now = *self.timeline.stop();
        let machine = self.timeline.now_mut();
        let others = 0..now.threads.saturating_sub(1);
        let mut all: Vec<Stop> = others.filter_map(|i| machine.thread(i).ok()).collect();
        all.push(now);
        all
    }

    fn refuse_write(&mut self) -> TargetError<Failed> {
        if !std::mem::replace(&mut self.said_read_only, true) {
            eprintln!("dep: this is the past: memory and registers cannot be written");
        }
        TargetError::Errno(EROFS)
    }

    // --- monitor ---

    fn monitor(&mut self, command: &str, out: &mut ConsoleOutput<'_>) -> Result<(), Failed> {
        let mut words = command.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("when"), None, _) => self.say_where(out),
            (Some("checkpoint"), None, _) => {
                self.timeline.pin()?;
                outputln!(out, "kept; checkpoints are at the turns");
                let turns: Vec<String> =
                    self.timeline.kept().map(|place| place.turns.to_string()).collect();
                outputln!(out, "{}", turns.join(" "));
            }
            // What `seek` says in front of its step.
            (Some("ahead"), Some(to), None) => match self.turn(to) {
                Ok(turn) => self.ahead = Some(Some(turn)),
                Err(why) => {
                    self.ahead = Some(None);
                    outputln!(out, "{why}");
                }
            },
            (Some("seek"), Some(to), None) => match self.turn(to) {
                Ok(turn) => {
                    self.timeline.seek_turn(turn, &mut || false)?;
                    self.say_where(out);
                    outputln!(
                        out,
                        "gdb does not know yet that it is elsewhere: `maintenance flush \
                         register-cache` (or use `seek`, where dep has started gdb)"
                    );
                }
                Err(why) => outputln!(out, "{why}"),
            },
            _ => outputln!(
                out,
                "when: the position\n\
                 seek TURN|PERCENT%|begin|end: to there\n\
                 checkpoint: make coming back here quick"
            ),
        }
        Ok(())
    }

    fn turn(&self, to: &str) -> Result<u64, String> {
        let unknown = "how long the recording is, is not known";
        match to.strip_suffix('%') {
            _ if to == "begin" => Ok(0),
            _ if to == "end" => Ok(u64::MAX),
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|e| format!("{percent}: {e}"))?;
                let turns = self.turns.ok_or(unknown)?;
                Ok((turns as f64 * percent.clamp(0.0, 100.0) / 100.0) as u64)
            }
            None => to.parse().map_err(|e| format!("{to}: {e}")),
        }
    }

    fn say_where(&self, out: &mut ConsoleOutput<'_>) {
        let stop = self.timeline.stop();
        let here = stop.position;
        let of = self.turns.map_or(String::new(), |turns| format!(" of {turns}"));
        // At the end everything has happened.
        let input = match here.entry {
            u64::MAX => String::new(),
            entry => format!(", input {entry}"),
        };
        outputln!(out, "turn {}{of}{input}, pc {:#x}", here.turns, here.pc);
        if stop.why == Why::End {
            outputln!(out, "the recording ends here");
        }
    }
}

/// Why the connection has ended: that gdb has gone is no error.
fn gone(error: GdbStubError<Failed, io::Error>) -> Result<(), Failed> {
    if error.is_connection_error() {
        return Ok(());
    }
    let text = error.to_string();
    Err(error.into_target_error().unwrap_or(Failed(format!("gdb's connection: {text}"))))
}

/// gdb counts from 1.
fn tid_of(stop: &Stop) -> Tid {
    NonZeroUsize::new(stop.tid as usize).unwrap_or(NonZeroUsize::MIN)
}

/// What the kernel put above the environment, read where the program begins.
fn auxiliary_vector(machine: &impl Machine, stack: Option<u64>) -> Vec<u8> {
    let mut at = stack.unwrap_or(machine.stop().gpr[4]);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        (machine.read(at, &mut bytes) == 8).then_some(u64::from_le_bytes(bytes))
    };
    let Some(count) = word(at) else { return Vec::new() };
    at = at.wrapping_add(8 * count.wrapping_add(2));
    // The environment ends with a zero.
    for _ in 0..1 << 20 {
        at = at.wrapping_add(8);
        match word(at.wrapping_sub(8)) {
            None => return Vec::new(),
            Some(0) => break,
            Some(_) => {}
        }
    }
    let mut vector = Vec::new();
    for _ in 0..64 {
        let (Some(kind), Some(value)) = (word(at), word(at.wrapping_add(8))) else { break };
        vector.extend_from_slice(&kind.to_le_bytes());
        vector.extend_from_slice(&value.to_le_bytes());
        if kind == 0 {
            break;
        }
        at = at.wrapping_add(16);
    }
    vector
}

/// gdb's number of a signal of Linux.
fn signal_of(number: u64) -> Signal {
    let gdb = match number {
        7 => 10,
        10 => 30,
        12 => 31,
        17 => 20,
        18 => 19,
        19 => 17,
        20 => 18,
        23 => 16,
        29 => 23,
        30 => 32,
        31 => 12,
        32 => 77,
        33..64 => number as u8 + 12,
        64 => 78,
        // The same in both, but for what neither has.
        1..29 => number as u8,
        _ => 143,
    };
    Signal(gdb)
}

fn part(of: &[u8], offset: u64, length: usize, buffer: &mut [u8]) -> usize {
    let from = of.get(offset as usize..).unwrap_or_default();
    let len = from.len().min(length).min(buffer.len());
    buffer[..len].copy_from_slice(&from[..len]);
    len
}

impl<M: Machine + 'static> Target for Server<M> {
    type Arch = Amd64;
    type Error = Failed;

    fn base_ops(&mut self) -> BaseOps<'_, Amd64, Failed> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_auxv(&mut self) -> Option<AuxvOps<'_, Self>> {
        Some(self)
    }

    fn support_catch_syscalls(&mut self) -> Option<CatchSyscallsOps<'_, Self>> {
        Some(self)
    }

    fn support_exec_file(&mut self) -> Option<ExecFileOps<'_, Self>> {
        Some(self)
    }
}

impl<M: Machine + 'static> MultiThreadBase for Server<M> {
    fn read_registers(
        &mut self,
        registers: &mut Amd64Registers,
        tid: Tid,
    ) -> TargetResult<(), Self> {
        let now = *self.timeline.stop();
        *registers = match tid == tid_of(&now) {
            true => Amd64Registers::new(&now, &self.timeline.now().vectors(&now)),
            false => {
                let machine = self.timeline.now_mut();
                let mut others = (0..now.threads.saturating_sub(1)).map(|n| machine.thread(n));
                let stop = others.find_map(|stop| stop.ok().filter(|stop| tid_of(stop) == tid));
                let stop = stop.ok_or(TargetError::NonFatal)?;
                Amd64Registers::new(&stop, &self.timeline.now().vectors(&stop))
            }
        };
        Ok(())
    }

    fn write_registers(&mut self, _: &Amd64Registers, _: Tid) -> TargetResult<(), Self> {
        Err(self.refuse_write())
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        match self.timeline.now().read(start, data) {
            0 if !data.is_empty() => Err(TargetError::Errno(EFAULT)),
            len => Ok(len),
        }
    }

    fn write_addrs(&mut self, _: u64, _: &[u8], _: Tid) -> TargetResult<(), Self> {
        Err(self.refuse_write())
    }

    fn list_active_threads(&mut self, active: &mut dyn FnMut(Tid)) -> Result<(), Failed> {
        self.threads().iter().for_each(|stop| active(tid_of(stop)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl<M: Machine + 'static> MultiThreadResume for Server<M> {
    fn resume(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Failed> {
        self.wanted = Wanted::Continue;
        Ok(())
    }

    /// Signals come from the recording, whatever gdb passes on.
    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Failed> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl<M: Machine + 'static> MultiThreadSingleStep for Server<M> {
    fn set_resume_action_step(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Failed> {
        self.wanted = Wanted::Step;
        Ok(())
    }
}

impl<M: Machine + 'static> MultiThreadRangeStepping for Server<M> {
    fn set_resume_action_range_step(&mut self, _: Tid, start: u64, end: u64) -> Result<(), Failed> {
        self.wanted = Wanted::Range(start, end);
        Ok(())
    }
}

impl<M: Machine + 'static> MultiThreadSchedulerLocking for Server<M> {
    /// Which thread runs is recorded.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Failed> {
        Ok(())
    }
}

impl<M: Machine + 'static> ReverseStep<Tid> for Server<M> {
    fn reverse_step(&mut self, _: Tid) -> Result<(), Failed> {
        self.wanted = Wanted::StepBack;
        Ok(())
    }
}

impl<M: Machine + 'static> ReverseCont<Tid> for Server<M> {
    fn reverse_cont(&mut self) -> Result<(), Failed> {
        self.wanted = Wanted::Back;
        Ok(())
    }
}

impl<M: Machine + 'static> Breakpoints for Server<M> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl<M: Machine + 'static> SwBreakpoint for Server<M> {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.timeline.points.breaks.insert(address);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.timeline.points.breaks.remove(&address))
    }
}

impl<M: Machine + 'static> HwBreakpoint for Server<M> {
    fn add_hw_breakpoint(&mut self, address: u64, kind: usize) -> TargetResult<bool, Self> {
        self.add_sw_breakpoint(address, kind)
    }

    fn remove_hw_breakpoint(&mut self, address: u64, kind: usize) -> TargetResult<bool, Self> {
        self.remove_sw_breakpoint(address, kind)
    }
}

fn watched(kind: WatchKind) -> Watched {
    match kind {
        WatchKind::Write => Watched::Write,
        WatchKind::Read => Watched::Read,
        WatchKind::ReadWrite => Watched::Access,
    }
}

impl<M: Machine + 'static> HwWatchpoint for Server<M> {
    fn add_hw_watchpoint(
        &mut self,
        address: u64,
        len: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let watch = Watch::new(address, len, watched(kind));
        let watches = &mut self.timeline.points.watches;
        watches.insert(watch);
        if M::can_watch(watches) {
            return Ok(true);
        }
        watches.remove(&watch);
        Ok(false)
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        len: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        Ok(self.timeline.points.watches.remove(&Watch::new(address, len, watched(kind))))
    }
}

impl<M: Machine + 'static> Auxv for Server<M> {
    fn get_auxv(&self, offset: u64, length: usize, buf: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(&self.auxv, offset, length, buf))
    }
}

impl<M: Machine + 'static> CatchSyscalls for Server<M> {
    fn enable_catch_syscalls(
        &mut self,
        filter: Option<SyscallNumbers<'_, u64>>,
    ) -> TargetResult<(), Self> {
        self.timeline.points.calls = match filter {
            None => Calls::All,
            Some(numbers) => Calls::These(numbers.collect()),
        };
        Ok(())
    }

    fn disable_catch_syscalls(&mut self) -> TargetResult<(), Self> {
        self.timeline.points.calls = Calls::None;
        Ok(())
    }
}

impl<M: Machine + 'static> ExecFile for Server<M> {
    fn get_exec_file(
        &self,
        _: Option<Pid>,
        offset: u64,
        length: usize,
        buf: &mut [u8],
    ) -> TargetResult<usize, Self> {
        Ok(part(&self.program, offset, length, buf))
    }
}

impl<M: Machine + 'static> MonitorCmd for Server<M> {
    fn handle_monitor_cmd(&mut self, cmd: &[u8], mut out: ConsoleOutput<'_>) -> Result<(), Failed> {
        let command = String::from_utf8_lossy(cmd).into_owned();
        if let Err(Failed(why)) = self.monitor(&command, &mut out) {
            outputln!(out, "{why}");
            self.timeline.recover()?;
        }
        Ok(())
    }
}

struct Loop<M>(std::marker::PhantomData<M>);

impl<M: Machine + 'static> BlockingEventLoop for Loop<M> {
    type Target = Server<M>;
    type Connection = Wire;
    type StopReason = MultiThreadStopReason<u64>;

    fn wait_for_stop_reason(
        target: &mut Server<M>,
        wire: &mut Wire,
    ) -> Result<Waited<MultiThreadStopReason<u64>>, WaitForStopReasonError<Failed, io::Error>> {
        match target.go(wire) {
            Some(reason) => Ok(Waited::TargetStopped(reason)),
            None => {
                let byte = gdbstub::conn::ConnectionExt::read(wire);
                byte.map(Waited::IncomingData).map_err(WaitForStopReasonError::Connection)
            }
        }
    }

    fn on_interrupt(target: &mut Server<M>) -> Result<Option<MultiThreadStopReason<u64>>, Failed> {
        let tid = target.tid();
        Ok(Some(MultiThreadStopReason::SignalWithThread { tid, signal: Signal::SIGINT }))
    }
}
