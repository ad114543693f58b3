//! The process that replays, steered through its socket.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSlice, Read, Seek, SeekFrom};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};
use std::rc::Rc;

use abi::script::{Outcome, OUTCOME_SIZE};
use abi::steer::{Action, Command, Hits, Stop, Watched, Why, EVERY_CALL, STOP_SIZE};
use nix::sys::ptrace;
use nix::sys::wait::{waitpid, WaitPidFlag};
use nix::unistd::Pid;
use rustix::net::{
    recv, sendmsg, socketpair, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};

use crate::debug::machine::{vectors_of, Calls, Failed, Goal, Machine, Points, Watch};
use crate::known::Known;
use crate::replay::{spawn, Ready};

/// The processor's registers for watchpoints.
const REGISTERS: usize = 4;

/// What all processes of one replay share.
struct Shared {
    /// Where a replay says how it has ended.
    said: File,
    /// Debug registers cannot be set: watchpoints are looked at after each instruction.
    slow: std::cell::Cell<bool>,
    /// What the recording has not kept of the memory, in the order of addresses, and the pages that were asked for.
    untouched: Vec<Range<u64>>,
    told: RefCell<BTreeSet<u64>>,
    /// Of a thread that is replayed alone: which bytes it knows. Others cannot be read.
    known: std::cell::OnceCell<Known>,
}

/// At most so many pages that are not there are named.
const TOLD: usize = 20;

impl Shared {
    /// How many of the bytes in front of those that were not kept. Says it if there is none.
    fn kept(&self, address: u64, len: usize) -> usize {
        let next = self.untouched.partition_point(|range| range.end <= address);
        let Some(next) = self.untouched.get(next) else { return len };
        let before = next.start.saturating_sub(address);
        if before == 0 && len > 0 {
            let mut told = self.told.borrow_mut();
            if told.len() < TOLD && told.insert(address & !0xfff) {
                eprintln!("dep: {}", not_kept(address));
            }
        }
        usize::try_from(before).map_or(len, |before| before.min(len))
    }
}

/// That what is at `address` is not in the recording, for a person.
fn not_kept(address: u64) -> String {
    format!("the memory at {address:#x} is not in the recording: the part that is kept never touches that page (dep record --whole-memory keeps all)")
}

/// One process, which stands.
pub struct Steered {
    socket: OwnedFd,
    pid: Pid,
    memory: File,
    stop: Stop,
    /// What it knows of.
    points: Points,
    shared: Rc<Shared>,
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Failed {
    move |e| Failed(format!("{what}: {e}"))
}

fn pair() -> Result<(OwnedFd, OwnedFd), Failed> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(failed("cannot make a socket for the replay"))
}

impl Steered {
    /// Starts `output` under the script; it stands where the recording begins.
    pub fn start(ready: &Ready, output: &std::path::Path) -> Result<Steered, Failed> {
        let (socket, theirs) = pair()?;
        let said = tempfile::tempfile().map_err(failed("cannot make a file for the replay"))?;
        let result = said.try_clone().map_err(failed("cannot make a file for the replay"))?;
        for fd in [theirs.as_fd(), result.as_fd()] {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())
                .map_err(failed("cannot hand a descriptor on"))?;
        }
        let mut command = Process::new(output);
        command
            .env_clear()
            .env("DEP_REPLAY", &ready.script_path)
            .env("DEP_REPLAY_RESULT", result.as_raw_fd().to_string())
            .env("DEP_STEER", theirs.as_raw_fd().to_string())
            .env("DEP_FOLLOW", "0")
            .env("DEP_FILE", "null:")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // What is typed for gdb is not for the replay.
            .process_group(0);
        let child = spawn(&mut command)
            .map_err(|e| Failed(format!("cannot run {}: {e}", output.display())))?;
        let pid = Pid::from_raw(child.id().cast_signed());
        drop(child);
        drop((theirs, result));
        let shared = Rc::new(Shared {
            said,
            slow: std::cell::Cell::new(false),
            untouched: trace::trim::untouched(ready.lineage.first()),
            told: RefCell::default(),
            known: std::cell::OnceCell::new(),
        });
        Steered::at(socket, pid, Points::default(), shared)
    }

    /// Of memory only what is known can be read from now on.
    pub fn knows(&self, known: Known) {
        // (It is told once.)
        let _ = self.shared.known.set(known);
    }

    /// What is known of memory, if not all of it is.
    pub fn known(&self) -> Option<&Known> {
        self.shared.known.get()
    }

    /// A process that is about to say for the first time where it stands.
    fn at(
        socket: OwnedFd,
        pid: Pid,
        points: Points,
        shared: Rc<Shared>,
    ) -> Result<Steered, Failed> {
        let path = format!("/proc/{pid}/mem");
        let memory = File::open(&path).map_err(|e| Failed(format!("{path}: {e}")))?;
        let mut new = Steered { socket, pid, memory, stop: Stop::default(), points, shared };
        new.stop = new.hear()?;
        Ok(new)
    }

    fn send(&self, command: &Command) -> Result<(), Failed> {
        let bytes = command.to_bytes();
        let mut nothing = SendAncillaryBuffer::default();
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut nothing, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|e| self.gone(e))
    }

    fn hear(&self) -> Result<Stop, Failed> {
        let mut bytes = [0; STOP_SIZE];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(self.gone(e)),
                Ok((_, 0)) => return Err(self.gone("it has ended")),
                Ok(_) => {
                    return Stop::from_bytes(&bytes)
                        .ok_or_else(|| Failed("the replay says what nobody understands".into()))
                }
            }
        }
    }

    /// The replay does not answer any more: why, as far as it has said.
    fn gone(&self, why: impl std::fmt::Display) -> Failed {
        match self.last_words() {
            Some(said) => Failed(said),
            None => Failed(format!("the replay (process {}) does not answer: {why}", self.pid)),
        }
    }

    fn last_words(&self) -> Option<String> {
        let mut said = Vec::new();
        let mut file = &self.shared.said;
        file.seek(SeekFrom::Start(0)).ok()?;
        file.read_to_end(&mut said).ok()?;
        // The next one begins anew: all have one place in the file.
        file.set_len(0).ok()?;
        file.seek(SeekFrom::Start(0)).ok()?;
        let outcome = Outcome::from_bytes(&said)?;
        let text = String::from_utf8_lossy(said.get(OUTCOME_SIZE..)?).trim_end().replace('\n', " ");
        let Outcome { turns, pc, .. } = outcome;
        Some(format!("the replay ends at turn {turns}, pc {pc:#x}: {text}"))
    }

    /// Asks for what is answered where the replay stands.
    fn ask(&self, command: &Command) -> Result<Stop, Failed> {
        self.send(command)?;
        self.hear()
    }

    fn go(&mut self, command: &Command, points: &Points) -> Result<(), Failed> {
        // Without hits nothing is to be stopped at; what is in place may stay.
        if command.hits != Hits::Ignore {
            self.set_points(points)?;
        }
        self.stop = self.ask(command)?;
        if self.stop.why == Why::Failed {
            // It says why when it goes on, and ends.
            return Err(self.ask(command).err().unwrap_or_else(|| self.gone("it has failed")));
        }
        Ok(())
    }

    fn set_points(&mut self, points: &Points) -> Result<(), Failed> {
        if self.points == *points {
            return Ok(());
        }
        for (these, others, action) in [
            (&self.points.breaks, &points.breaks, Action::Unbreak),
            (&points.breaks, &self.points.breaks, Action::Break),
        ] {
            for &address in these.difference(others) {
                self.expect(&Command { action, address, ..Command::default() })?;
            }
        }
        if self.points.watches != points.watches {
            for (these, action) in
                [(&self.points.watches, Action::Unwatch), (&points.watches, Action::Watch)]
            {
                for (address, len, watched) in pieces(these) {
                    let command = Command { action, watched, address, len, ..Command::default() };
                    self.expect(&command)?;
                }
            }
            self.watch(&points.watches)?;
        }
        if self.points.calls != points.calls {
            let catch = |address, len| {
                let action = Action::Catch;
                self.expect(&Command { action, address, len, ..Command::default() })
            };
            catch(0, 0)?;
            match &points.calls {
                Calls::None => {}
                Calls::All => catch(EVERY_CALL, 2)?,
                Calls::These(numbers) => numbers.iter().try_for_each(|&n| catch(n, 2))?,
                Calls::InFront(numbers) => numbers.iter().try_for_each(|&n| catch(n, 1))?,
            }
        }
        if self.points.only != points.only {
            let (address, len) = points.only.unwrap_or_default();
            let action = Action::Only;
            self.expect(&Command { action, address, len, ..Command::default() })?;
        }
        self.points = points.clone();
        Ok(())
    }

    fn expect(&self, command: &Command) -> Result<(), Failed> {
        match self.ask(command)?.why {
            Why::Refused => Err(Failed(format!("the replay refuses to {:?}", command.action))),
            _ => Ok(()),
        }
    }

    /// The processor is to stop the replay where something is written.
    fn watch(&self, watches: &BTreeSet<Watch>) -> Result<(), Failed> {
        let all = pieces(watches);
        if !self.shared.slow.get() {
            if let Err(e) = self.set_debug_registers(&all) {
                eprintln!(
                    "dep: warning: the processor's debug registers cannot be set ({e}): \
                     watchpoints are looked at after each instruction, which is slow"
                );
                self.shared.slow.set(true);
            }
        }
        let address = u64::from(self.shared.slow.get());
        self.expect(&Command { action: Action::WatchByStepping, address, ..Command::default() })
    }

    fn set_debug_registers(&self, all: &[Piece]) -> Result<(), nix::Error> {
        ptrace::seize(self.pid, ptrace::Options::empty())?;
        let set = self.write_debug_registers(all);
        // What was set stays.
        let left = ptrace::detach(self.pid, None);
        set.and(left)
    }

    fn write_debug_registers(&self, all: &[Piece]) -> Result<(), nix::Error> {
        ptrace::interrupt(self.pid)?;
        waitpid(self.pid, Some(WaitPidFlag::__WALL))?;
        let register = |i: usize| (offset_of!(nix::libc::user, u_debugreg) + 8 * i) as *mut _;
        ptrace::write_user(self.pid, register(7), 0)?;
        let mut control = 0u64;
        for (i, &(address, len, watched)) in all.iter().enumerate() {
            ptrace::write_user(self.pid, register(i), address.cast_signed())?;
            let size = match len {
                1 => 0,
                2 => 1,
                4 => 3,
                _ => 2,
            };
            // The processor tells of writes (1), or of reads and writes.
            let accesses = if watched == Watched::Write { 1 } else { 3 };
            // Of so many bytes, in this thread.
            control |= 1 << (2 * i) | (accesses | size << 2) << (16 + 4 * i);
        }
        ptrace::write_user(self.pid, register(7), control.cast_signed())
    }
}

/// Address, length, accesses.
type Piece = (u64, u64, Watched);

/// What is watched in pieces that the processor can watch: of 1, 2, 4 or 8 bytes, at multiples of that.
fn pieces(watches: &BTreeSet<Watch>) -> Vec<Piece> {
    let mut all = Vec::new();
    for watch in watches {
        let (mut at, end) = (watch.address, watch.address.saturating_add(watch.len));
        while at < end && all.len() <= REGISTERS {
            let len = [8, 4, 2, 1].into_iter().find(|len| at % len == 0 && at + len <= end);
            let len = len.unwrap_or(1);
            if !all.contains(&(at, len, watch.kind())) {
                all.push((at, len, watch.kind()));
            }
            at += len;
        }
    }
    all
}

impl Machine for Steered {
    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn run(&mut self, goal: Goal, hits: Hits, points: &Points) -> Result<(), Failed> {
        let mut command = Command { hits, ..Command::default() };
        match goal {
            Goal::Turn(turn) => {
                command.action = Action::RunToTurn;
                command.position.turns = turn;
            }
            Goal::Place(place) => {
                command.action = Action::RunTo;
                command.position = place;
            }
        }
        self.go(&command, points)
    }

    fn step(&mut self, points: &Points) -> Result<(), Failed> {
        let command = Command { action: Action::Step, hits: Hits::Stop, ..Command::default() };
        self.go(&command, points)
    }

    fn fork(&mut self) -> Result<Steered, Failed> {
        let (socket, theirs) = pair()?;
        let command = Command { action: Action::Fork, ..Command::default() };
        let bytes = command.to_bytes();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        let fds = [theirs.as_fd()];
        with.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut with, SendFlags::NOSIGNAL)
            .map_err(|e| self.gone(e))?;
        drop(theirs);
        let answer = self.hear()?;
        if answer.why == Why::Refused {
            return Err(Failed("the replay cannot make another process (fork fails)".into()));
        }
        let mut bytes = [0; STOP_SIZE];
        let first = recv(&socket, &mut bytes[..], RecvFlags::PEEK).map_err(|e| self.gone(e))?;
        let stop = Stop::from_bytes(&bytes).filter(|_| first.1 == STOP_SIZE);
        let stop = stop.ok_or_else(|| self.gone("the new process says nothing"))?;
        let pid = Pid::from_raw(stop.pid as i32);
        // The processor's registers are not copied.
        let points = Points { watches: BTreeSet::new(), ..self.points.clone() };
        let mut new = Steered::at(socket, pid, points, self.shared.clone())?;
        for (address, len, _) in pieces(&self.points.watches) {
            new.expect(&Command { action: Action::Unwatch, address, len, ..Command::default() })?;
        }
        new.stop = Stop { why: self.stop.why, detail: self.stop.detail, ..stop };
        Ok(new)
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        // The kernel's own errors, too, mean that nothing is there.
        let len = self.shared.kept(address, buffer.len());
        let len = match self.shared.known.get() {
            Some(known) => known.count(&self.stop.position, address, len),
            None => len,
        };
        self.memory.read_at(&mut buffer[..len], address).unwrap_or(0)
    }

    fn thread(&mut self, number: u64) -> Result<Stop, Failed> {
        let stop =
            self.ask(&Command { action: Action::Thread, address: number, ..Command::default() })?;
        match stop.why {
            Why::Refused => Err(Failed(format!("there is no other thread {number}"))),
            _ => Ok(stop),
        }
    }

    fn vectors(&self, stop: &Stop) -> Vec<u8> {
        // The runtime's memory, which is none of the program's.
        vectors_of(stop, |address, area| self.memory.read_at(area, address).unwrap_or(0))
    }

    fn can_watch(watches: &BTreeSet<Watch>) -> bool {
        // What was met is told by changes. Of accesses the processor does not tell us which: of one only.
        let writes = watches.iter().all(|watch| watch.kind() == Watched::Write);
        (writes || watches.len() == 1) && pieces(watches).len() <= REGISTERS
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        let _ = self.send(&Command { action: Action::Quit, ..Command::default() });
        let _ = waitpid(self.pid, Some(WaitPidFlag::__WALL));
    }
}
