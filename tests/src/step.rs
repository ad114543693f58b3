//! The single-step oracle: executes a program one instruction at a time and lists what it does.
//!
//! Every thread is stepped, and so are forked children, if they have listings of their own; a child
//! that shares the memory (vfork) is listed as a thread. After an exec of its own a process runs on
//! untraced. Signals are passed on and handlers run as they do natively.

use std::collections::{HashMap, HashSet};
use std::io::{Error, Result, Write};
use std::ops::Range;

use iced_x86::{Instruction, Mnemonic};

use crate::launch::Launch;
use crate::listing::{Lines, MemRef};
use crate::operands;
use crate::sys::{self, Pid, Regs, Status};
use crate::xstate::Layout;

mod code;
mod maps;
mod values;

use code::Code;
use values::Values;

/// The stop at the entry or exit of a system call.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

const SI_KERNEL: i32 = 0x80;

/// Where the listings go, and which part of the run they cover.
pub struct Options<'a> {
    pub memrefs: Option<Box<dyn Write + 'a>>,
    pub blocks: Option<Box<dyn Write + 'a>>,
    /// What became of the address space, for the comparison.
    pub maps: Option<Box<dyn Write + 'a>>,
    /// Each access to some bytes, with what they were and are.
    pub values: Option<(Range<u64>, Box<dyn Write + 'a>)>,
    /// Instructions to execute before the run is ended by SIGKILL.
    pub limit: u64,
    /// Instructions (first, number) that are listed.
    pub window: (u64, u64),
    /// Makes the listings of a forked child, which is process number N (the program is 0). None:
    /// children are left alone.
    pub children: Option<ForChild<'a>>,
}

/// Memory references and blocks of a child.
pub type Listings<'a> = [Box<dyn Write + 'a>; 2];
pub type ForChild<'a> = Box<dyn FnMut(usize) -> Result<Listings<'a>> + 'a>;

/// A forked child that was stepped.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    /// The number of the process that has made it, and of which child of that one it is, from 0.
    pub parent: usize,
    pub nth: usize,
    /// It was ended before its end.
    pub cut_short: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            memrefs: None,
            blocks: None,
            maps: None,
            values: None,
            limit: u64::MAX,
            window: (0, u64::MAX),
            children: None,
        }
    }
}

#[derive(Debug)]
pub struct Summary {
    pub status: Status,
    pub instructions: u64,
    pub records: u64,
    pub threads: usize,
    /// The limit or the window's end came before the program's.
    pub cut_short: bool,
    /// Processes number 1, 2, ...
    pub children: Vec<Child>,
}

/// What a thread was set to do when it was last resumed.
enum Doing {
    /// Execute the instruction.
    Step,
    /// Execute a system call; whether it has been entered. Stepping over it would force a SIGTRAP
    /// on the program, which loses its handler if it has just blocked that signal, and would show
    /// it the trap flag in r11.
    Syscall { entered: bool },
    /// Enter the handler of a signal that was passed on.
    EnterHandler,
}

struct Thread {
    doing: Doing,
    /// The registers before the instruction, which decide its references.
    regs: Regs,
    insn: Option<Instruction>,
    refs: Vec<MemRef>,
    starts_block: bool,
    /// The bytes whose values are listed, if the instruction may change them.
    old: Option<Vec<u8>>,
}

struct Oracle<'a> {
    threads: HashMap<Pid, Thread>,
    code: Code,
    layout: Layout,
    memrefs: Option<Lines<Box<dyn Write + 'a>>>,
    blocks: Option<Lines<Box<dyn Write + 'a>>>,
    maps: Option<maps::Log<Box<dyn Write + 'a>>>,
    values: Option<Values<'a>>,
    window: (u64, u64),
    instructions: u64,
    records: u64,
    seen: usize,
}

/// All processes that are stepped.
struct Tree<'a> {
    /// The program first.
    processes: Vec<Oracle<'a>>,
    children: Vec<Child>,
    /// The process of each thread.
    of: HashMap<Pid, usize>,
    /// Threads that have stopped before the call that made them said so.
    early: HashSet<Pid>,
    for_child: Option<ForChild<'a>>,
}

/// Runs the program to its end, or to the limit.
pub fn run(launch: &Launch, options: Options) -> Result<Summary> {
    let pid = launch.start()?;
    let _pinned = launch.cpu.map(sys::Pinned::to);
    let mut wanted = libc::PTRACE_O_EXITKILL
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACESYSGOOD;
    if options.children.is_some() {
        wanted |= libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
    }
    sys::set_options(pid, wanted)?;
    let end = options.limit.min(options.window.0.saturating_add(options.window.1));
    let mut oracle = Oracle::new(pid, [options.memrefs, options.blocks], options.window)?;
    oracle.maps = options.maps.map(|out| maps::Log::start(out, pid)).transpose()?;
    oracle.values = options.values.map(|(range, out)| Values::new(range, out));
    oracle.add_thread(pid)?;
    let mut tree = Tree {
        processes: vec![oracle],
        children: Vec::new(),
        of: HashMap::from([(pid, 0)]),
        early: HashSet::new(),
        for_child: options.children,
    };
    let mut cut_short = false;
    let status = loop {
        if tree.instructions() >= end && !cut_short {
            cut_short = true;
            sys::kill(pid, libc::SIGKILL);
        }
        let Some((tid, status)) = sys::wait(-1) else {
            return Err(Error::other("the program vanished"));
        };
        match status {
            Status::Exited(_) | Status::Killed(_) => {
                tree.ended(tid)?;
                if tid == pid {
                    break status;
                }
            }
            Status::Stopped(signal, event) => match tree.stopped(tid, signal, event) {
                // A thread that another one is killing answers to nothing.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            },
        }
    };
    tree.end_all();
    let (children, instructions) = (std::mem::take(&mut tree.children), tree.instructions());
    let (records, threads) = (tree.processes[0].records, tree.processes[0].seen);
    for Oracle { memrefs, blocks, maps, values, .. } in tree.processes {
        values.map_or(Ok(()), Values::finish)?;
        memrefs.map_or(Ok(()), Lines::finish)?;
        blocks.map_or(Ok(()), Lines::finish)?;
        maps.map_or(Ok(()), maps::Log::finish)?;
    }
    Ok(Summary { status, instructions, records, threads, cut_short, children })
}

impl Tree<'_> {
    fn instructions(&self) -> u64 {
        self.processes.iter().map(|p| p.instructions).sum()
    }

    fn ended(&mut self, tid: Pid) -> Result<()> {
        self.early.remove(&tid);
        match self.of.remove(&tid) {
            Some(process) => self.processes[process].end_thread(tid),
            None => Ok(()),
        }
    }

    fn stopped(&mut self, tid: Pid, signal: i32, event: i32) -> Result<()> {
        let Some(&process) = self.of.get(&tid) else {
            self.early.insert(tid);
            return Ok(());
        };
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let new = sys::event_message(tid)? as Pid;
                let is_process = match event {
                    libc::PTRACE_EVENT_FORK => true,
                    libc::PTRACE_EVENT_CLONE => process_of(new)? != process_of(tid)?,
                    _ => false,
                };
                let of = if is_process { self.add_child(process, new)? } else { process };
                self.of.insert(new, of);
                if self.early.remove(&new) {
                    self.processes[of].add_thread(new)?;
                }
                // In the middle of a system call: let it finish.
                sys::to_syscall_stop(tid, 0)
            }
            libc::PTRACE_EVENT_EXEC => {
                self.processes[process].executes(tid)?;
                self.of.remove(&tid);
                sys::detach(tid, 0)
            }
            _ => self.processes[process].stopped(tid, signal),
        }
    }

    fn add_child(&mut self, parent: usize, pid: Pid) -> Result<usize> {
        let number = self.processes.len();
        let listings = self.for_child.as_mut().map(|make| make(number)).transpose()?;
        let [memrefs, blocks] = listings.map_or([None, None], |both| both.map(Some));
        self.processes.push(Oracle::new(pid, [memrefs, blocks], (0, u64::MAX))?);
        let nth = self.children.iter().filter(|child| child.parent == parent).count();
        self.children.push(Child { parent, nth, cut_short: false });
        Ok(number)
    }

    /// The program has ended: whoever is left ends, too.
    fn end_all(&mut self) {
        for (&tid, &process) in &self.of {
            if let Some(child) = process.checked_sub(1) {
                self.children[child].cut_short = true;
                sys::kill(tid, libc::SIGKILL);
            }
        }
        self.early.iter().for_each(|&tid| sys::kill(tid, libc::SIGKILL));
        if self.for_child.is_some() {
            while sys::wait(-1).is_some() {}
        }
    }
}

/// The process of a thread.
fn process_of(tid: Pid) -> Result<Option<Pid>> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))?;
    Ok(status.lines().find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok()))
}

impl<'a> Oracle<'a> {
    fn new(
        pid: Pid,
        listings: [Option<Box<dyn Write + 'a>>; 2],
        window: (u64, u64),
    ) -> Result<Self> {
        let [memrefs, blocks] = listings.map(|out| out.map(Lines::new));
        Ok(Self {
            threads: HashMap::new(),
            code: Code::of(pid)?,
            layout: Layout::of_this_cpu(),
            memrefs,
            blocks,
            maps: None,
            values: None,
            window,
            instructions: 0,
            records: 0,
            seen: 0,
        })
    }

    fn add_thread(&mut self, tid: Pid) -> Result<()> {
        let regs = sys::registers(tid)?;
        let doing = Doing::Step;
        let refs = Vec::new();
        let thread = Thread { doing, regs, insn: None, refs, starts_block: true, old: None };
        self.threads.insert(tid, thread);
        self.seen += 1;
        self.step(tid, 0)
    }

    /// Of what the thread was about to execute, nothing but a system call was executed.
    fn end_thread(&mut self, tid: Pid) -> Result<()> {
        let thread = self.threads.get(&tid);
        if thread.is_some_and(|t| matches!(t.doing, Doing::Syscall { entered: true })) {
            self.list_block(tid)?;
        }
        self.threads.remove(&tid);
        Ok(())
    }

    /// The thread runs another program.
    fn executes(&mut self, tid: Pid) -> Result<()> {
        self.list_block(tid)?;
        self.threads.remove(&tid);
        Ok(())
    }

    fn stopped(&mut self, tid: Pid, signal: i32) -> Result<()> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return self.add_thread(tid);
        };
        match (&mut thread.doing, signal) {
            (Doing::Syscall { entered: entered @ false }, SYSCALL_STOP) => {
                *entered = true;
                sys::to_syscall_stop(tid, 0)
            }
            (Doing::Syscall { .. }, SYSCALL_STOP) => {
                self.completed(tid, sys::registers(tid)?)?;
                self.step(tid, 0)
            }
            (Doing::EnterHandler, libc::SIGTRAP) => {
                sys::unblock(tid, libc::SIGTRAP)?;
                thread.regs = sys::registers(tid)?;
                thread.starts_block = true;
                self.step(tid, 0)
            }
            (Doing::Step, libc::SIGTRAP) => self.trapped(tid),
            _ => self.signalled(tid, signal),
        }
    }

    /// A SIGTRAP after a step: nearly always the step's own.
    fn trapped(&mut self, tid: Pid) -> Result<()> {
        let after = sys::registers(tid)?;
        let thread = &self.threads[&tid];
        let by_instruction = match thread.insn.as_ref().map(Instruction::mnemonic) {
            Some(Mnemonic::Int3 | Mnemonic::Int1) => true,
            Some(Mnemonic::Int) => sys::signal_code(tid)? == SI_KERNEL,
            _ => false,
        };
        // One that was sent to the program comes before the instruction.
        if after.rip == thread.regs.rip && !by_instruction && sys::signal_code(tid)? <= 0 {
            return self.signalled(tid, libc::SIGTRAP);
        }
        self.completed(tid, after)?;
        if by_instruction {
            self.pass_on(tid, libc::SIGTRAP)
        } else {
            self.step(tid, 0)
        }
    }

    /// The instruction has been executed (a repeated one: an iteration of it).
    fn completed(&mut self, tid: Pid, after: Regs) -> Result<()> {
        self.list_block(tid)?;
        let listed = self.is_listed();
        self.instructions += 1;
        let thread = self.threads.get_mut(&tid).unwrap();
        let Some(insn) = thread.insn else {
            thread.regs = after;
            return Ok(());
        };
        let mut times = 1;
        if operands::is_repeated(&insn) && !thread.refs.is_empty() {
            times = operands::counter(&insn, &thread.regs) - operands::counter(&insn, &after);
        }
        if listed {
            self.records += times * thread.refs.len() as u64;
            if let Some(out) = &mut self.memrefs {
                let down = thread.regs.eflags & 0x400 != 0;
                for i in 0..times {
                    for r in &thread.refs {
                        let step = i * u64::from(r.size);
                        let addr = if down {
                            r.addr.wrapping_sub(step)
                        } else {
                            r.addr.wrapping_add(step)
                        };
                        out.memref(tid, thread.regs.rip, MemRef { addr, ..*r })?;
                    }
                }
            }
        }
        if let (Some(values), Some(old)) = (&mut self.values, thread.old.take()) {
            values.after(tid, thread.regs.rip, &insn, &thread.refs, &old)?;
        }
        let before = std::mem::replace(&mut thread.regs, after);
        thread.starts_block = operands::ends_block(insn.mnemonic());
        match insn.mnemonic() {
            Mnemonic::Pushf | Mnemonic::Pushfq => self.code.hide_trap_flag(after.rsp),
            Mnemonic::Syscall => self.after_syscall(tid, &before, &after),
            // Numbers of its own: it may have been any call.
            Mnemonic::Int if insn.immediate8() == 0x80 => {
                self.code.mappings_changed();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn after_syscall(&mut self, tid: Pid, before: &Regs, after: &Regs) -> Result<()> {
        if [libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn].contains(&(before.rax as i64)) {
            sys::unblock(tid, libc::SIGTRAP)?;
        }
        // The number is in orig_rax also where the call had been interrupted and restarted.
        if maps::changes_mappings(after.orig_rax) {
            self.code.mappings_changed();
            if let Some(log) = &mut self.maps {
                log.after_syscall(self.records, before, after)?;
            }
        }
        Ok(())
    }

    /// A signal is about to be delivered; the instruction that was to be executed was not.
    fn signalled(&mut self, tid: Pid, signal: i32) -> Result<()> {
        // Without signal information this is a group stop, not a delivery.
        let Ok(code) = sys::signal_code(tid) else {
            return sys::single_step(tid, 0);
        };
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        // An instruction that cannot be fetched is not executed, not even up to its fault.
        // (Behind the end of a mapped file there is nothing to be fetched, either.)
        let thread = &self.threads[&tid];
        let beyond = signal == libc::SIGBUS && thread.insn.is_none();
        let fetched =
            || maps::is_executable(tid, thread.regs.rip).map(|executable| executable && !beyond);
        if code > 0 && faults.contains(&signal) && fetched()? {
            self.list_block(tid)?;
        }
        self.pass_on(tid, signal)
    }

    fn pass_on(&mut self, tid: Pid, signal: i32) -> Result<()> {
        if catches(tid, signal)? {
            self.threads.get_mut(&tid).unwrap().doing = Doing::EnterHandler;
            return sys::single_step(tid, signal);
        }
        self.threads.get_mut(&tid).unwrap().regs = sys::registers(tid)?;
        self.step(tid, signal)
    }

    /// Lists the block that the thread's instruction starts, once.
    fn list_block(&mut self, tid: Pid) -> Result<()> {
        let listed = self.is_listed();
        let thread = self.threads.get_mut(&tid).unwrap();
        if std::mem::take(&mut thread.starts_block) && listed {
            if let Some(out) = &mut self.blocks {
                out.block(tid, thread.regs.rip)?;
            }
        }
        Ok(())
    }

    fn is_listed(&self) -> bool {
        self.instructions.checked_sub(self.window.0).is_some_and(|n| n < self.window.1)
    }

    /// Executes the next instruction, after working out what it will refer to.
    fn step(&mut self, tid: Pid, signal: i32) -> Result<()> {
        let thread = self.threads.get_mut(&tid).unwrap();
        thread.doing = Doing::Step;
        thread.refs.clear();
        if interrupted_syscall(thread) {
            // The kernel goes back to the `syscall`, which is executed a second time.
            thread.doing = Doing::Syscall { entered: false };
            return sys::to_syscall_stop(tid, signal);
        }
        thread.insn = self.code.at(thread.regs.rip)?;
        if let Some(insn) = &thread.insn {
            let xstate = || sys::xstate(tid).unwrap_or_default();
            let state =
                operands::State { regs: &thread.regs, layout: &self.layout, xstate: &xstate };
            operands::references(insn, &state, &mut thread.refs);
            thread.old = match &self.values {
                Some(values) => values.before(tid, insn, &thread.refs)?,
                None => None,
            };
            if is_call(insn) {
                thread.doing = Doing::Syscall { entered: false };
                return sys::to_syscall_stop(tid, signal);
            }
        }
        sys::single_step(tid, signal)
    }
}

/// Whether the instruction calls the kernel.
fn is_call(insn: &Instruction) -> bool {
    let mnemonic = insn.mnemonic();
    mnemonic == Mnemonic::Syscall || mnemonic == Mnemonic::Int && insn.immediate8() == 0x80
}

/// Whether the thread has just come out of a system call that the kernel will restart.
fn interrupted_syscall(thread: &Thread) -> bool {
    let restart = -516..=-512;
    let syscall = thread.insn.as_ref().is_some_and(is_call);
    syscall && restart.contains(&(thread.regs.rax as i64)) && thread.regs.orig_rax as i64 >= 0
}

/// Whether the program has a handler for `signal`.
fn catches(tid: Pid, signal: i32) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))?;
    let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    Ok(mask >> (signal - 1) & 1 == 1)
}
