//! Runs a program as a child that notices nothing of its parent: the same streams, process group and
//! terminal, the same signals ignored and blocked.

use std::ffi::{CString, OsString};
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::spawn::{posix_spawn, PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags};
use nix::sys::resource::{setrlimit, Resource};
use nix::sys::signal::{kill, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use recording::manifest::Status;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{pidfd_open, waitid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus};
use rustix::time::Timespec;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::caller;

/// What is meant for the program, and would end this process.
pub const PASSED_ON: [i32; 7] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// What to start.
pub struct Start<'a> {
    pub file: &'a Path,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    /// The signals that it is to have blocked; without: those that are blocked now.
    pub mask: Option<SigSet>,
    /// This signal, one of those that are passed on, is answered instead.
    pub answered: Option<(i32, Answer)>,
}

/// What a signal does.
pub type Answer = Box<dyn Fn()>;

/// Where the kernel cannot tell of a process's end (before 5.3), it is asked again after this time.
const AGAIN: Duration = Duration::from_millis(20);

/// The cause of a signal that the kernel sends, as a terminal's (`si_code`).
const SI_KERNEL: i32 = 0x80;

/// A running program, and the signals that it is sent by way of this process.
///
/// They stay blocked and are read between two looks at the program, so neither a thread nor a handler is
/// needed, and none arrives for a process whose number may be another's by now.
pub struct Child {
    pid: Pid,
    /// It can be read when the program has ended.
    end: Option<OwnedFd>,
    signals: SignalFd,
    answered: Option<(i32, Answer)>,
    /// When the program stops, so does this process, for which an interactive shell waits; and the program
    /// goes on when this process does.
    stops: bool,
}

fn text(bytes: OsString) -> Result<CString, Errno> {
    CString::new(bytes.into_vec()).map_err(|_| Errno::EINVAL)
}

/// Those signals that are passed on. Those that the caller ignores, it ignores for the program, too.
fn passed_on() -> impl Iterator<Item = Signal> {
    let own = PASSED_ON.into_iter().filter(|&signal| !caller::ignores(signal));
    own.filter_map(|signal| Signal::try_from(signal).ok())
}

impl Child {
    /// Starts the program. From now on signals that are meant for the program do not end this process.
    pub fn start(start: Start<'_>) -> Result<Child, Errno> {
        let arguments: Result<Vec<CString>, Errno> =
            start.arguments.into_iter().map(text).collect();
        let entry = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            text(name)
        };
        let environment: Result<Vec<CString>, Errno> =
            start.environment.into_iter().map(entry).collect();
        let mut read: SigSet = passed_on().collect();
        // Stops are told by it.
        read.add(Signal::SIGCHLD);
        let signals = SignalFd::with_flags(&read, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let before = read.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let mut attributes = PosixSpawnAttr::init()?;
        let mut flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
        attributes.set_sigmask(&start.mask.unwrap_or(before))?;
        if !caller::ignores(signal_hook::consts::SIGPIPE) {
            let mut default = SigSet::empty();
            default.add(Signal::SIGPIPE);
            attributes.set_sigdefault(&default)?;
            flags |= PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
        }
        attributes.set_flags(flags)?;
        let mut files = PosixSpawnFileActions::init()?;
        for fd in caller::closed() {
            files.add_close(fd)?;
        }
        let pid = posix_spawn(start.file, &files, &attributes, &arguments?, &environment?)?;
        if caller::ignores(signal_hook::consts::SIGCHLD) {
            // The kernel would not keep how the program ends. The program goes on ignoring its own children's ends.
            let _ = signal_hook::flag::register(signal_hook::consts::SIGCHLD, Arc::default());
        }
        let number = rustix::process::Pid::from_raw(pid.as_raw());
        let end = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let stops = std::io::stdin().is_terminal() || std::io::stderr().is_terminal();
        Ok(Child { pid, end, signals, answered: start.answered, stops })
    }

    /// Process id.
    pub fn pid(&self) -> u64 {
        u64::try_from(self.pid.as_raw()).unwrap_or(0)
    }

    /// Whether it has ended after this time. Until then it is sent what this process is sent.
    pub fn ends_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            // An error is the end's, too: whoever waits gets it.
            if !matches!(self.state(WaitIdOptions::NOWAIT), Ok(None)) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.pass_on(Some(left));
        }
    }

    /// Waits for its end, and sends it what this process is sent.
    pub fn wait(self) -> std::io::Result<Status> {
        loop {
            // Its number is its own until here.
            if let Some(status) = self.state(WaitIdOptions::empty())? {
                // From here on they do nothing, and whatever this process starts has its own.
                let passed: SigSet = passed_on().collect();
                for signal in passed.iter() {
                    let _ = signal_hook::flag::register(signal as i32, Arc::default());
                }
                let _ = passed.thread_unblock();
                return Ok(status);
            }
            self.pass_on(None);
        }
    }

    /// How it has ended, if it has. A stop is this process's, too.
    fn state(&self, options: WaitIdOptions) -> rustix::io::Result<Option<Status>> {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        let pid = WaitId::Pid(pid.ok_or(rustix::io::Errno::SRCH)?);
        let asked = |options| loop {
            match waitid(pid.clone(), options | WaitIdOptions::NOHANG) {
                Err(rustix::io::Errno::INTR) => {}
                answer => return answer,
            }
        };
        // (Of a process that has ended, nobody is told of a stop: that is an error.)
        if self.stops && matches!(asked(WaitIdOptions::STOPPED), Ok(Some(_))) {
            let _ = kill(Pid::this(), Signal::SIGSTOP);
            let _ = kill(self.pid, Signal::SIGCONT);
        }
        Ok(asked(WaitIdOptions::EXITED | options)?.as_ref().and_then(ended))
    }

    /// Waits for its end, a stop, or a signal of this process, which it is sent. `time`: no longer than this.
    ///
    /// What the terminal sends, it sends to the program itself; and what the program sends to its group, it
    /// has sent to itself.
    fn pass_on(&self, time: Option<Duration>) {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let time = match &self.end {
            Some(end) => {
                fds.push(PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN));
                time
            }
            None => Some(time.unwrap_or(AGAIN).min(AGAIN)),
        };
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // An interruption, or a process that has no memory for this: the next round looks again.
        let _ = poll(&mut fds, time.as_ref());
        while let Ok(Some(origin)) = self.signals.read_signal() {
            let Some(signal) = i32::try_from(origin.ssi_signo).ok() else { continue };
            if let Some((_, answer)) = self.answered.as_ref().filter(|(s, _)| *s == signal) {
                answer();
                continue;
            }
            let own = u32::try_from(self.pid.as_raw()).is_ok_and(|pid| origin.ssi_pid == pid);
            // Of a terminal, the program is told itself, too; but that it is gone only the session's leader is told.
            let alone = signal == SIGALRM || signal == SIGHUP && is_leader();
            let told = origin.ssi_code == SI_KERNEL && !alone;
            if own || told || signal == Signal::SIGCHLD as i32 {
                continue;
            }
            if let Ok(signal) = Signal::try_from(signal) {
                // It cannot fail but for rights that the program has got, and then nobody could do it.
                let _ = kill(self.pid, signal);
            }
        }
    }
}

/// Whether this process leads its session.
fn is_leader() -> bool {
    nix::unistd::getsid(None) == Ok(Pid::this())
}

/// How a process that is waited for has ended.
fn ended(status: &WaitIdStatus) -> Option<Status> {
    let exit = status.exit_status().map(Status::Exit);
    exit.or_else(|| status.terminating_signal().map(Status::Signal))
}

/// Ends this process as the program ended. Returns a status for those signals that cannot be had here.
pub fn end_as(status: Status) -> u8 {
    match status {
        Status::Exit(status) => u8::try_from(status & 0xff).unwrap_or(u8::MAX),
        Status::Signal(signal) => {
            // The program has left a core dump if there is to be one.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            let _ = nix::sys::prctl::set_dumpable(false);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            u8::try_from(128 + signal).unwrap_or(u8::MAX)
        }
    }
}

/// Whether it is what `execvp` gives to the shell: no ELF file, and no script that names its
/// interpreter.
pub fn is_for_the_shell(file: &Path) -> bool {
    let mut start = [0; 4];
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|mut file| std::io::Read::read(&mut file, &mut start));
    read.is_ok_and(|n| !start.starts_with(b"#!") && start[..n] != *b"\x7fELF")
}

/// A path with each percent sign doubled, for a pattern.
pub fn escaped(path: &Path) -> OsString {
    let mut bytes = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b'%' {
            bytes.push(byte);
        }
    }
    OsString::from_vec(bytes)
}
