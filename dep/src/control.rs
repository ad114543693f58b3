//! `dep on`, `dep off`, `dep mark`, `dep dump`: requests to a program that runs.
//!
//! [`abi::control`] says how the program is reached. It carries a request out by itself when one of its
//! threads goes back to generated code; one that is there is sent a signal.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abi::control::{
    at, command, outcome, place, slot, KICKERS, MAGIC, NAME, SLOTS_MOST, SLOT_SIZE, TEXT_MOST,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{kill_process, pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use serde::Serialize;
use trace::Error;

use crate::args::{DumpArguments, MarkArguments, SwitchArguments};
use crate::row::{Form, Row};
use crate::Stop;

/// A program that runs does it in well under a second, whatever else the machine does.
const PATIENCE: Duration = Duration::from_secs(5);
/// A program all of whose threads wait for so long does not do anything.
const AT_REST: Duration = Duration::from_millis(20);
/// And if it was looked at so often meanwhile: a machine that stands still does not do anything, either.
const LOOKS: u32 = 100;
/// The same if the kernel holds one of them: a page of the trace that has to wait for the disk is no rest, a
/// `vfork` whose child takes its time is.
const HELD: Duration = Duration::from_secs(1);

/// What became of a request.
#[derive(Serialize)]
struct Done {
    command: &'static str,
    pid: u32,
    /// It was carried out. Else all threads wait in the kernel, and the first one that goes on does
    /// it before it executes anything.
    done: bool,
    /// It was so already.
    already: bool,
    threads: u32,
    interrupted: u32,
    /// From the request until the last thread was ready.
    nanoseconds: u64,
}

impl Row for Done {
    fn text(&self, out: &mut Vec<u8>) {
        let Done { command, pid, done, already, threads, interrupted, nanoseconds } = self;
        let text = match (*already, *done) {
            (true, _) => format!("{command}: {pid}: it was so already"),
            (_, false) => {
                format!("{command}: {pid}: when the first of its threads, which all wait, goes on")
            }
            _ if *command == "dump" => format!("{command}: {pid}: written"),
            _ if *command == "mark" => format!("{command}: {pid}: noted"),
            _ => format!(
                "{command}: {pid}: {threads} threads, {interrupted} of them interrupted, {:.3} ms",
                *nanoseconds as f64 / 1e6
            ),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

pub fn switch(on: bool, what: &SwitchArguments, out: &mut impl Write) -> Result<(), Stop> {
    let (name, command) = if on { ("on", command::ON) } else { ("off", command::OFF) };
    let done = request(name, command, what.pid, &[])?;
    Ok(Form::new(what.json).write(&done, out)?)
}

pub fn mark(what: &MarkArguments, out: &mut impl Write) -> Result<(), Stop> {
    let text = what.text.as_bytes();
    if text.len() > TEXT_MOST {
        let len = text.len();
        return Err(Error(format!("the text has {len} bytes, at most {TEXT_MOST} fit")).into());
    }
    let done = request("mark", command::MARK, what.pid, text)?;
    Ok(Form::new(what.json).write(&done, out)?)
}

pub fn dump(what: &DumpArguments, out: &mut impl Write) -> Result<(), Stop> {
    let default = || PathBuf::from(format!("{}.dump.dep", what.pid));
    let path = what.output.clone().unwrap_or_else(default);
    let done = dump_of(what.pid, &path)?;
    Ok(Form::new(what.json).write(&done, out)?)
}

/// What `dep dump` does, and the line that it writes.
pub fn dump_to(pid: u32, path: &Path) -> Result<String, Error> {
    let mut line = Vec::new();
    dump_of(pid, path)?.text(&mut line);
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn dump_of(pid: u32, path: &Path) -> Result<Done, Error> {
    // The program runs elsewhere.
    let path = std::path::absolute(path).map_err(|e| Error(format!("{}: {e}", path.display())))?;
    let text = path.as_os_str().as_encoded_bytes();
    if text.len() > TEXT_MOST {
        return Err(Error(format!("{}: the path is too long", path.display())));
    }
    if path.symlink_metadata().is_ok() {
        return Err(Error(format!("{}: it is there already", path.display())));
    }
    request("dump", command::DUMP, pid, text)
}

/// The page of a process.
struct Page {
    pid: u32,
    file: File,
}

fn request(name: &'static str, command: u32, pid: u32, text: &[u8]) -> Result<Done, Error> {
    let page = Page::open(pid)?;
    let deadline = Instant::now() + PATIENCE;
    page.lock(deadline)?;
    let before = page.word(at::POSTED)?;
    let mut rest = Rest::new();
    while page.word(at::DONE)? != before {
        page.wait(deadline, before, &mut rest)?;
        if rest.lasts() {
            return Err(
                page.error("an earlier request still waits until one of its threads goes on")
            );
        }
    }
    let number = before % 255 + 1;
    page.put(at::TEXT, text)?;
    page.put(at::TEXT_LEN, &(text.len() as u32).to_le_bytes())?;
    page.put(at::COMMAND, &command.to_le_bytes())?;
    let kicker = at::KICKERS + 4 * (u64::from(number) % KICKERS);
    page.put(kicker, &std::process::id().to_le_bytes())?;
    page.put(at::REQUESTED, &monotonic().to_le_bytes())?;
    page.put(at::POSTED, &[number as u8])?;
    let mut rest = Rest::new();
    while page.word(at::DONE)? != number {
        page.wait(deadline, number, &mut rest)?;
        if rest.lasts() {
            let threads = rest.threads;
            let (done, already, interrupted, nanoseconds) = (false, false, 0, 0);
            return Ok(Done {
                command: name,
                pid,
                done,
                already,
                threads,
                interrupted,
                nanoseconds,
            });
        }
    }
    let already = match page.word(at::OUTCOME)? {
        outcome::DONE => false,
        outcome::ALREADY => true,
        outcome::NO_TRACE => return Err(page.error("it has no trace, or the trace takes no more")),
        outcome::UNDO => {
            return Err(page.error("it keeps an undo log, which has no gaps: rewrite it without"))
        }
        outcome::INPUTS => {
            let what = "its inputs are recorded, which has no gaps: record a profile (`dep record --instrument \
                        dep`), which can be switched";
            return Err(page.error(what));
        }
        outcome::BITS => {
            let what = "it records in the format bits, which cannot be switched: rewrite it with \
                        --control-flow tags";
            return Err(page.error(what));
        }
        outcome::NO_RING => {
            return Err(page.error("it has no ring: record it with `dep record --keep-last`"))
        }
        outcome::FAILED => {
            let errno = page.word(at::INTERRUPTED)?.cast_signed();
            let why = std::io::Error::from_raw_os_error(errno);
            return Err(page.error(&format!("the ring cannot be written: {why}")));
        }
        outcome::TOO_MANY => return Err(page.error("it has too many threads")),
        _ => return Err(page.error("it was rewritten by another version of deprewrite")),
    };
    Ok(Done {
        command: name,
        pid,
        done: true,
        already,
        threads: page.word(at::THREADS)?,
        interrupted: page.word(at::INTERRUPTED)?,
        nanoseconds: page.long(at::TOOK)?,
    })
}

/// Sends the kick to this thread. Linux before 6.9 has no name for a thread that is safe to use: there
/// it goes to the process by way of the thread, which takes it unless it is just taking another.
fn send(thread: Pid) -> rustix::io::Result<()> {
    const OF_A_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    match pidfd_open(thread, OF_A_THREAD) {
        Ok(fd) => pidfd_send_signal(fd, Signal::STKFLT),
        Err(Errno::INVAL | Errno::NOSYS) => kill_process(thread, Signal::STKFLT),
        Err(error) => Err(error),
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How long all threads have been waiting in the kernel, each time that they were looked at.
struct Rest {
    since: Option<Instant>,
    looks: u32,
    threads: u32,
    /// The kernel held a thread at one of these looks: it can neither go on nor be interrupted.
    held: bool,
}

impl Rest {
    fn new() -> Rest {
        Rest { since: None, looks: 0, threads: 0, held: false }
    }

    fn lasts(&self) -> bool {
        let enough = if self.held { HELD } else { AT_REST };
        self.looks >= LOOKS && self.since.is_some_and(|since| since.elapsed() > enough)
    }
}

impl Page {
    fn open(pid: u32) -> Result<Page, Error> {
        let error = |why: &str| Error(format!("process {pid}: {why}"));
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        let ours = format!("/memfd:{NAME} (deleted)");
        let failed = |e: std::io::Error| match e.kind() {
            ErrorKind::NotFound => error("there is none"),
            ErrorKind::PermissionDenied => error("it belongs to another user"),
            _ => error(&e.to_string()),
        };
        let mut found = None;
        for entry in folder.read_dir().map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.read_link().is_ok_and(|link| link.as_os_str() == ours.as_str()) {
                found = Some(path);
            }
        }
        let Some(path) = found else {
            return Err(error(
                "it does not run a program that deprewrite has rewritten to be recorded",
            ));
        };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let page = Page { pid, file };
        match page.long(at::MAGIC)? {
            MAGIC => Ok(page),
            _ => Err(error("it was rewritten by another version of deprewrite")),
        }
    }

    fn error(&self, why: &str) -> Error {
        Error(format!("process {}: {why}", self.pid))
    }

    /// One request at a time.
    fn lock(&self, deadline: Instant) -> Result<(), Error> {
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(self.error("other requests take too long"));
                }
                Err(TryLockError::Error(e)) => return Err(self.error(&e.to_string())),
            }
        }
    }

    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).map_err(|e| self.error(&e.to_string()))?;
        Ok(bytes)
    }

    fn word(&self, at: u64) -> Result<u32, Error> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn long(&self, at: u64) -> Result<u64, Error> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, at).map_err(|e| self.error(&e.to_string()))
    }

    /// Sees that a thread looks for the request, and waits a little.
    fn wait(&self, deadline: Instant, number: u32, rest: &mut Rest) -> Result<(), Error> {
        let mut busy = false;
        rest.threads = 0;
        let slots = u64::from(self.word(at::SLOTS)?).min(SLOTS_MOST);
        for i in 0..slots {
            let slot = at::FIRST_SLOT + SLOT_SIZE * i;
            let place = self.word(slot + slot::PLACE)?;
            rest.threads += u32::from(place != place::GONE);
            if place == place::RUNTIME && !busy {
                let tid = self.word(slot + slot::TID)?;
                match state(&format!("/proc/{}/task/{tid}/stat", self.pid)) {
                    // It does something, or would if there were a processor for it.
                    Some('R') => busy = true,
                    Some('D') => rest.held = true,
                    _ => {}
                }
            }
            if place == place::CODE {
                busy = true;
                if self.kick(slot)? {
                    break;
                }
            }
        }
        rest.looks += 1;
        if busy {
            *rest = Rest::new();
        } else {
            rest.since.get_or_insert_with(Instant::now);
        }
        if !self.has_process() {
            return Err(self.error("it has ended"));
        }
        if Instant::now() > deadline && self.word(at::DONE)? != number {
            let why = "no answer (is it stopped?): it is done as soon as it goes on";
            return Err(self.error(why));
        }
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    }

    /// Sends a signal to the thread of the slot, unless it is in the runtime, where that might
    /// interrupt a system call. True if one is on its way.
    fn kick(&self, slot: u64) -> Result<bool, Error> {
        let [kicked] = self.bytes(slot + slot::KICKED)?;
        if kicked != 0 {
            return Ok(true);
        }
        self.put(slot + slot::KICKED, &[1])?;
        let tid = self.word(slot + slot::TID)?;
        if self.word(slot + slot::PLACE)? == place::CODE {
            let thread = i32::try_from(tid).ok().and_then(Pid::from_raw);
            if thread.is_some_and(|thread| send(thread).is_ok()) {
                return Ok(true);
            }
        }
        self.put(slot + slot::KICKED, &[0])?;
        Ok(false)
    }

    fn has_process(&self) -> bool {
        !matches!(state(&format!("/proc/{}/stat", self.pid)), None | Some('Z' | 'X'))
    }
}

/// The state of a process or a thread, as the kernel abbreviates it.
fn state(path: &str) -> Option<char> {
    let stat = std::fs::read_to_string(path).ok()?;
    // It stands behind the name, which is in parentheses.
    stat.rsplit(')').next()?.trim_start().chars().next()
}
