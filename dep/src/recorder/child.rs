//! Runs a program as a child that notices nothing of its parent: the same streams, process group and
//! terminal, the same signals ignored and blocked.

use std::ffi::{CString, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::spawn::{posix_spawn, PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags};
use nix::sys::resource::{setrlimit, Resource};
use nix::sys::signal::{kill, SigSet, Signal};
use nix::unistd::Pid;
use recording::manifest::Status;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{pidfd_open, waitid, PidfdFlags, WaitId, WaitIdOptions};
use rustix::time::Timespec;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::Cause;

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
pub type Answer = Box<dyn Fn() + Send>;

/// A running program, and the signals that it is sent by way of this process.
pub struct Child {
    pid: Pid,
    /// Nothing is sent to a number that may belong to somebody else by now.
    alive: Arc<Mutex<bool>>,
}

fn text(bytes: OsString) -> Result<CString, Errno> {
    CString::new(bytes.into_vec()).map_err(|_| Errno::EINVAL)
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
        // Caught, they are what they were in the child: a handler does not survive an exec. Those that
        // the caller ignores, it ignores for the program, too.
        let caught: Vec<i32> = PASSED_ON.into_iter().filter(|&s| !caller::ignores(s)).collect();
        let signals = SignalsInfo::<WithOrigin>::new(&caught)
            .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
        let mut attributes = PosixSpawnAttr::init()?;
        let mut flags = PosixSpawnFlags::empty();
        if !caller::ignores(signal_hook::consts::SIGPIPE) {
            let mut default = SigSet::empty();
            default.add(Signal::SIGPIPE);
            attributes.set_sigdefault(&default)?;
            flags |= PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
        }
        if let Some(mask) = start.mask {
            attributes.set_sigmask(&mask)?;
            flags |= PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
        }
        attributes.set_flags(flags)?;
        let mut files = PosixSpawnFileActions::init()?;
        for fd in caller::closed() {
            files.add_close(fd)?;
        }
        let pid = posix_spawn(start.file, &files, &attributes, &arguments?, &environment?)?;
        let alive = Arc::new(Mutex::new(true));
        pass_on(signals, pid, Arc::clone(&alive), start.answered);
        Ok(Child { pid, alive })
    }

    /// Process id.
    pub fn pid(&self) -> u64 {
        u64::try_from(self.pid.as_raw()).unwrap_or(0)
    }

    /// Whether it has ended after this time. Where the kernel cannot tell (before 5.3), it has not.
    pub fn ends_within(&self, time: Duration) -> bool {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
            return false;
        };
        let Ok(time) = Timespec::try_from(time) else { return false };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for its end.
    pub fn wait(self) -> std::io::Result<Status> {
        // First without taking its number away.
        let interactive = std::io::stdin().is_terminal() || std::io::stderr().is_terminal();
        let status = self.ended(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT, interactive)?;
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.ended(WaitIdOptions::EXITED, false)?;
        Ok(status)
    }

    /// `stops`: when the program stops, so does this process, for which an interactive shell waits; and
    /// the program goes on when this process does.
    fn ended(&self, options: WaitIdOptions, stops: bool) -> std::io::Result<Status> {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
        loop {
            if stops {
                let both = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
                match waitid(WaitId::Pid(pid), both) {
                    Ok(Some(status)) if status.stopped() => {
                        // Seen now: the next one is another.
                        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED);
                        let _ = kill(Pid::this(), Signal::SIGSTOP);
                        let _ = kill(self.pid, Signal::SIGCONT);
                        continue;
                    }
                    Err(rustix::io::Errno::INTR) => continue,
                    _ => {}
                }
            }
            let status = match waitid(WaitId::Pid(pid), options) {
                Err(rustix::io::Errno::INTR) => continue,
                status => status?,
            };
            let Some(status) = status else { continue };
            if let Some(status) = status.exit_status() {
                return Ok(Status::Exit(status));
            }
            if let Some(signal) = status.terminating_signal() {
                return Ok(Status::Signal(signal));
            }
        }
    }
}

/// Sends the program what this process is sent, until it has ended. What the terminal sends, it sends
/// to the program itself; and what the program sends to its group, it has sent to itself.
fn pass_on(
    mut signals: SignalsInfo<WithOrigin>,
    pid: Pid,
    alive: Arc<Mutex<bool>>,
    answered: Option<(i32, Answer)>,
) {
    std::thread::spawn(move || {
        for origin in signals.forever() {
            if let Some((_, answer)) = answered.as_ref().filter(|(s, _)| *s == origin.signal) {
                // The end of the program waits for what is under way.
                let _alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
                answer();
                continue;
            }
            let own = origin.process.is_some_and(|process| process.pid == pid.as_raw());
            if own || matches!(origin.cause, Cause::Kernel) {
                continue;
            }
            let alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
            if let (true, Ok(signal)) = (*alive, Signal::try_from(origin.signal)) {
                // It cannot fail but for rights that the program has got, and then nobody could do it.
                let _ = kill(pid, signal);
            }
        }
    });
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
