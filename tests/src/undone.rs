//! Whether an undo log takes memory back: the program's memory when the log starts and when the
//! program ends, and the log's lines written over the latter.
//!
//! The start is the last thing that the runtime does before it only translates: it makes gs point to
//! the first thread's block. The end is the exit of the last thread, when its memory is still there.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Error, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::launch::Launch;
use crate::sys::{self, Pid, Status};

/// Memory by address: pieces that do not overlap.
pub type Memory = BTreeMap<u64, Vec<u8>>;

/// What was seen of a run.
pub struct Seen {
    pub before: Memory,
    /// Everything private and readable at the end, without what the kernel and the runtime made.
    pub after: Memory,
    pub status: Status,
    /// Threads were still running when the program ended: what they did last is not known.
    pub cut_off: bool,
}

/// Where the program itself lies in a file of it.
pub struct Image {
    range: Range<u64>,
    fixed: bool,
    interpreter: String,
}

impl Image {
    pub fn read(path: &Path) -> Result<Image> {
        let bytes = std::fs::read(path)?;
        let bad = || Error::other("not a program");
        let u16_at =
            |at: usize| bytes.get(at..at + 2).map(|b| u64::from(b[0]) | u64::from(b[1]) << 8);
        let u64_at = |at: usize| {
            bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
        };
        let headers = u64_at(32).ok_or_else(bad)? as usize;
        let count = u16_at(56).ok_or_else(bad)? as usize;
        let mut range = Range { start: u64::MAX, end: 0 };
        let mut interpreter = String::new();
        for at in (0..count).map(|n| headers + 56 * n) {
            let field = |offset| u64_at(at + offset).ok_or_else(bad);
            match bytes.get(at..at + 4) {
                Some([1, 0, 0, 0]) => {
                    range.start = range.start.min(field(16)? & !0xfff);
                    range.end = range.end.max((field(16)? + field(40)? + 0xfff) & !0xfff);
                }
                Some([3, 0, 0, 0]) => {
                    let (from, len) = (field(8)? as usize, field(32)? as usize);
                    let text = bytes.get(from..from + len - 1).ok_or_else(bad)?;
                    interpreter = String::from_utf8_lossy(text).into_owned();
                }
                _ => {}
            }
        }
        Ok(Image { range, fixed: u16_at(16) == Some(2), interpreter })
    }
}

struct Line {
    range: Range<u64>,
    readable: bool,
    shared: bool,
    name: String,
}

fn maps(pid: Pid) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let perms = words.next()?.as_bytes();
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Line {
            range: number(start)?..number(end)?,
            readable: perms[0] == b'r',
            shared: perms[3] == b's',
            name: words.nth(3).unwrap_or("").to_owned(),
        })
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// The program's ranges when it is about to start: its image, its interpreter, its stack.
fn own_ranges(pid: Pid, program: &Path, image: &Image) -> Result<Vec<Range<u64>>> {
    let lines = maps(pid)?;
    let interpreter = std::fs::canonicalize(&image.interpreter).unwrap_or_default();
    let program = program.to_string_lossy();
    // The look-up tables are mapped from the file, too.
    let of_program = |l: &&Line| l.name == program && !TABLES.contains(&l.range.start);
    let lowest = lines.iter().find(of_program).map_or(0, |l| l.range.start);
    let load = if image.fixed { 0 } else { lowest - image.range.start };
    let own = image.range.start + load..image.range.end + load;
    let mut ranges = Vec::new();
    let mut behind_interpreter = 0;
    for line in lines.iter().filter(|l| l.readable && !l.shared) {
        let is_interpreter = !line.name.is_empty() && Path::new(&line.name) == interpreter;
        let bss = line.name.is_empty() && line.range.start == behind_interpreter;
        if is_interpreter || bss {
            behind_interpreter = line.range.end;
        }
        let inside = own.start <= line.range.start && line.range.end <= own.end;
        if inside || is_interpreter || bss || line.name == "[stack]" {
            ranges.push(line.range.clone());
        }
    }
    Ok(ranges)
}

fn copy(pid: Pid, ranges: impl Iterator<Item = Range<u64>>) -> Result<Memory> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut copies = Memory::new();
    for range in ranges {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        // A page of a file that has become shorter cannot be read.
        if memory.read_exact_at(&mut bytes, range.start).is_ok() {
            copies.insert(range.start, bytes);
        }
    }
    Ok(copies)
}

/// Where the runtime has its own memory.
const RUNTIMES: Range<u64> = 0x7e80_0000_0000..0x7ec0_0000_0000;
/// Where it has its look-up tables.
const TABLES: Range<u64> = 0x7ec0_0000_0000..0x7ed0_0000_0000;

/// More than this is no memory of the program: reservations of the runtime.
const MOST: u64 = 1 << 30;

fn everything(pid: Pid) -> Result<Memory> {
    let lines = maps(pid)?;
    // What is shared is not compared, and the runtime's code caches, of a quarter of a gigabyte, are.
    let may_be_compared = |l: &&Line| {
        let is_runtimes = RUNTIMES.contains(&l.range.start) || TABLES.contains(&l.range.start);
        l.readable && !l.shared && !is_runtimes && !l.name.starts_with("[v")
    };
    let wanted =
        lines.iter().filter(may_be_compared).filter(|l| l.range.end - l.range.start < MOST);
    copy(pid, wanted.map(|l| l.range.clone()))
}

/// Runs a rewritten program and looks at its memory at the start of the log and at its end. `None`:
/// it was replaced by another program.
pub fn watch(launch: &Launch, image: &Image, limit: Duration) -> Result<Option<Seen>> {
    let pid = launch.start()?;
    let (finished, wait) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            sys::kill(-pid, libc::SIGKILL);
        }
    });
    let seen = follow(pid, &launch.program, image);
    if !matches!(seen, Ok(Some(_))) {
        sys::kill(-pid, libc::SIGKILL);
        // Each of its threads still stops on its way out.
        while let Some((who, status)) = sys::wait(-1) {
            match status {
                Status::Stopped(..) => drop(sys::resume(who, 0)),
                _ if who == pid => break,
                _ => {}
            }
        }
    }
    drop(finished);
    watch.join().map_err(|_| Error::other("the watch panicked"))?;
    seen
}

fn follow(pid: Pid, program: &Path, image: &Image) -> Result<Option<Seen>> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    sys::set_options(pid, options)?;
    to_start(pid)?;
    let before = copy(pid, own_ranges(pid, program, image)?.into_iter())?;
    // Threads that run; that ended before they were seen to start; that stopped on their way out.
    let (mut live, mut gone) = (HashSet::from([pid]), HashSet::new());
    let mut stopped = HashSet::new();
    let mut after = Memory::new();
    let (mut leader_waits, mut cut_off) = (false, false);
    sys::resume(pid, 0)?;
    loop {
        let (who, status) = sys::wait(-1).ok_or_else(|| Error::other("the program vanished"))?;
        match status {
            Status::Stopped(_, libc::PTRACE_EVENT_CLONE) => {
                let new = unless_killed(sys::event_message(who))?;
                if let Some(new) = new.map(|new| new as Pid).filter(|new| !gone.remove(new)) {
                    live.insert(new);
                }
                unless_killed(sys::resume(who, 0))?;
            }
            Status::Stopped(_, libc::PTRACE_EVENT_EXEC) => return Ok(None),
            Status::Stopped(_, libc::PTRACE_EVENT_EXIT) => {
                // It may be seen to end before it is seen to start.
                stopped.insert(who);
                if !live.remove(&who) {
                    gone.insert(who);
                }
                // Threads that are ended by exit_group do not stop on their way out: they are waited
                // for while the first one keeps the memory.
                let registers = unless_killed(sys::registers(who))?;
                let killed = registers.is_none();
                let alone = registers.is_none_or(|r| r.orig_rax as i64 == libc::SYS_exit);
                if who == pid && !alone && !live.is_empty() {
                    leader_waits = true;
                    continue;
                }
                cut_off |= leader_waits;
                if live.is_empty() {
                    after = everything(if killed { pid } else { who })?;
                }
                unless_killed(sys::resume(who, 0))?;
                if leader_waits && live.is_empty() && who != pid {
                    sys::resume(pid, 0)?;
                }
            }
            // A new thread stops before it runs.
            Status::Stopped(libc::SIGSTOP, _) => drop(unless_killed(sys::resume(who, 0))?),
            Status::Stopped(signal, 0) => drop(unless_killed(sys::resume(who, signal))?),
            Status::Stopped(..) => drop(unless_killed(sys::resume(who, 0))?),
            status if who == pid => return Ok(Some(Seen { before, after, status, cut_off })),
            _ if stopped.remove(&who) => {}
            _ => {
                cut_off = true;
                if !live.remove(&who) {
                    gone.insert(who);
                }
                if leader_waits && live.is_empty() {
                    after = everything(pid)?;
                    sys::resume(pid, 0)?;
                }
            }
        }
    }
}

/// `None`: the thread is not stopped any more, as another one has ended the process. How it ends is waited for.
fn unless_killed<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        done => done.map(Some),
    }
}

/// Lets the runtime work up to where the log starts.
fn to_start(pid: Pid) -> Result<()> {
    const ARCH_SET_GS: u64 = 0x1001;
    loop {
        sys::to_syscall_stop(pid, 0)?;
        match sys::wait(pid) {
            Some((_, Status::Stopped(..))) => {}
            other => return Err(Error::other(format!("ended before it started: {other:?}"))),
        }
        let r = sys::registers(pid)?;
        if r.orig_rax as i64 == libc::SYS_arch_prctl && r.rdi == ARCH_SET_GS {
            return Ok(());
        }
    }
}

// --- the way back ---

/// What `dep undo --backwards` says.
pub struct Undone {
    pub stores: u64,
    pub lost: Vec<(Range<u64>, String)>,
}

/// Writes the old bytes of a listing over memory, line by line.
pub fn apply(listing: &Path, memory: &mut Memory) -> Result<Undone> {
    let mut undone = Undone { stores: 0, lost: Vec::new() };
    let bad = |line: &str| Error::other(format!("not a line of dep undo: {line}"));
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    for line in BufReader::new(File::open(listing)?).lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [_, _, "enter", ..] => {}
            [_, _, "lost", "somewhere", ref why @ ..] => undone.lost.push((0..0, why.join(" "))),
            [_, _, "lost", range, ref why @ ..] => {
                let (start, end) = range.split_once("..").ok_or_else(|| bad(&line))?;
                let range = number(start).zip(number(end)).ok_or_else(|| bad(&line))?;
                undone.lost.push((range.0..range.1, why.join(" ")));
            }
            [_, _, address, size, old] => {
                let address = number(address).ok_or_else(|| bad(&line))?;
                let size: usize = size.parse().map_err(|_| bad(&line))?;
                let old: Option<Vec<u8>> = (0..old.len() / 2)
                    .map(|i| u8::from_str_radix(&old[2 * i..2 * i + 2], 16).ok())
                    .collect();
                let old = old.filter(|old| old.len() == size).ok_or_else(|| bad(&line))?;
                write(memory, address, &old);
                undone.stores += 1;
            }
            _ => return Err(bad(&line)),
        }
    }
    Ok(undone)
}

/// Writes as much of `bytes` as there is memory for.
fn write(memory: &mut Memory, address: u64, bytes: &[u8]) {
    let end = address.saturating_add(bytes.len() as u64);
    let first = memory.range(..=address).next_back().map_or(address, |(start, _)| *start);
    for (start, piece) in memory.range_mut(first..end) {
        let (from, to) = (address.max(*start), end.min(start + piece.len() as u64));
        if from < to {
            let source = &bytes[(from - address) as usize..(to - address) as usize];
            piece[(from - start) as usize..(to - start) as usize].copy_from_slice(source);
        }
    }
}

/// What of `range` is in memory: pieces with their addresses.
fn pieces<'m>(memory: &'m Memory, range: &Range<u64>) -> impl Iterator<Item = (u64, &'m [u8])> {
    let first = memory.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
    let range = range.clone();
    memory.range(first..range.end).filter_map(move |(start, piece)| {
        let (from, to) = (range.start.max(*start), range.end.min(start + piece.len() as u64));
        (from < to).then(|| (from, &piece[(from - start) as usize..(to - start) as usize]))
    })
}

/// Adds to `before` what the kernel gave the program while it ran, which was zero then: anonymous
/// memory and the heap, as `dep syscalls` lists the calls. Where the address space was used for
/// something else before, that is listed as lost.
pub fn add_new_memory(calls: &Path, before: &mut Memory) -> Result<u64> {
    const ANONYMOUS: u64 = 0x20;
    const SHARED: u64 = 1;
    let number = |text: &str| {
        let text = text.trim_end_matches([',', ')']);
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let (mut heap, mut added) = (None, 0);
    for line in BufReader::new(File::open(calls)?).lines() {
        let line = line?;
        let Some((call, result)) = line.split_once(" = ") else { continue };
        let Some(result) = number(result) else { continue };
        let Some((name, arguments)) = call.split_once(' ').and_then(|(_, c)| c.split_once('('))
        else {
            continue;
        };
        let arguments: Vec<u64> = arguments.split(' ').filter_map(number).collect();
        let range = match (name, &arguments[..]) {
            ("mmap", [_, len, _, flags, ..])
                if flags & ANONYMOUS != 0 && flags & SHARED == 0 && *len < MOST =>
            {
                result..result + ((len + 0xfff) & !0xfff)
            }
            ("brk", _) => {
                let from = *heap.get_or_insert(result);
                heap = heap.max(Some(result));
                from..result.max(from)
            }
            _ => continue,
        };
        added += range.end - range.start;
        before.insert(range.start, vec![0; (range.end - range.start) as usize]);
    }
    Ok(added)
}

/// Compares what was undone with what was before, where nothing is lost. Returns how many bytes.
pub fn compare(
    before: &Memory,
    undone: &Memory,
    lost: &[(Range<u64>, String)],
) -> std::result::Result<u64, String> {
    let (mut same, mut wrong) = (0, Vec::new());
    for (start, piece) in before {
        for (at, now) in pieces(undone, &(*start..start + piece.len() as u64)) {
            let was = &piece[(at - start) as usize..][..now.len()];
            if was == now {
                same += now.len();
                continue;
            }
            for (i, (was, now)) in was.iter().zip(now).enumerate() {
                let at = at + i as u64;
                if was == now {
                    same += 1;
                } else if !lost.iter().any(|(range, _)| range.contains(&at)) {
                    wrong.push((at, *was, *now));
                }
            }
        }
    }
    if wrong.is_empty() {
        return Ok(same as u64);
    }
    let shown =
        wrong.iter().take(8).map(|(at, was, is)| format!("{at:#x}: {is:02x}, was {was:02x}"));
    let shown: Vec<_> = shown.collect();
    Err(format!("{} bytes differ ({same} do not): {}", wrong.len(), shown.join("; ")))
}

/// How many bytes differ.
pub fn changed(before: &Memory, after: &Memory) -> u64 {
    let mut changed = 0;
    for (start, piece) in before {
        for (at, now) in pieces(after, &(*start..start + piece.len() as u64)) {
            let was = &piece[(at - start) as usize..][..now.len()];
            changed += was.iter().zip(now).filter(|(was, now)| was != now).count() as u64;
        }
    }
    changed
}
