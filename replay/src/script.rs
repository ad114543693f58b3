//! Writes the script.

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::event::{EventHeader, Kind, Position};
use abi::layout::tables;
use abi::script::{EntryHeader, Header, ENTRY_HEADER_SIZE, HEADER_SIZE, MAGIC, VERSION};
use recording::originals::Wanted;
use trace::events::Event;
use trace::Error;

use crate::end::End;
use crate::lineage::Lineage;
use crate::order::{order, Child, Item, Ordered};
use crate::space::Used;

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// Its header.
    pub header: Header,
    /// Number of entries.
    pub events: u64,
    /// Turns of all threads, up to their last entries.
    pub turns: u64,
    /// Turns in front of the part that is kept.
    pub before: u64,
    /// How far it goes.
    pub end: End,
    /// Kernel thread ids by the threads' indexes.
    pub threads: Vec<Option<u32>>,
    /// Indexes of the threads that run in it.
    pub running: BTreeSet<u32>,
    /// Of a forked process: where it begins.
    pub child: Option<Child>,
    /// The files of which code was mapped.
    pub code: Vec<PathBuf>,
    /// Events at which a replay has to be stopped: all but those at calls, at instructions that ask the machine, and
    /// by faults.
    pub sought: u64,
    /// There are none, and no thread was watched.
    pub straight: bool,
}

impl Script {
    /// The turn at its end, counted from the program's start.
    #[must_use]
    pub fn last_turn(&self) -> u64 {
        self.before + self.turns
    }

    /// Kernel thread id of the thread with this index.
    #[must_use]
    pub fn thread_name(&self, index: u32) -> u32 {
        let tid = usize::try_from(index).ok().and_then(|at| *self.threads.get(at)?);
        tid.unwrap_or(index)
    }
}

/// What the replay of a process needs to know of those that it forks, and that are replayed with it.
#[derive(Debug, Default)]
pub struct Family {
    used: Used,
    /// Calls that map memory, as entries.
    maps: Vec<u8>,
    /// The files of which they mapped code.
    code: Vec<PathBuf>,
}

impl Family {
    /// Adds the last process of the lineage, of which this script was written.
    pub fn add(&mut self, lineage: &Lineage, script: &Script) -> Result<(), Error> {
        const MAPPING: [u64; 2] = [9, 25];
        let trace = lineage.last();
        self.used.add_trace(trace);
        for event in trace.threads.iter().flat_map(|t| &t.events).filter_map(|e| e.event.as_ref()) {
            if matches!(event, Event::Syscall { number, .. } if MAPPING.contains(number)) {
                let item = Item { thread: 0, position: Position::NONE, event: event.into() };
                self.maps.extend(entry(&item, &item.event)?);
            }
        }
        self.code.extend(script.code.iter().cloned());
        Ok(())
    }
}

/// What a script is for.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// The replay of one process.
    Alone,
    /// A tree, whose first process this is.
    First(&'a Family),
    /// A process of a tree, which is forked there: what came before is left out.
    Forked,
}

/// The start of the process, from the trace that has it.
fn header(lineage: &Lineage, part: Part<'_>) -> Result<Header, Error> {
    let first = lineage.first();
    let layout = first.process_events.iter().find_map(|placed| match placed.event {
        Some(Event::Layout { window, brk, interpreter, stack, stack_end }) => {
            Some((window, brk, interpreter, stack, stack_end))
        }
        _ => None,
    });
    let Some((window, brk, interpreter, stack, stack_end)) = layout else {
        return Err(Error("where its parts lay is missing: the trace is damaged".into()));
    };
    let stack_limit = first.process_events.iter().find_map(|placed| match placed.event {
        Some(Event::StackLimit(limit)) => Some(limit),
        _ => None,
    });
    let free = match part {
        Part::Alone => free(lineage, None)?,
        Part::First(family) => free(lineage, Some(family))?,
        // It goes on where the runtime of its parent lies.
        Part::Forked => 0..0,
    };
    Ok(Header {
        magic: MAGIC,
        version: VERSION,
        alone: 0,
        window: window.0,
        brk: brk.0,
        interpreter: interpreter.0,
        stack: stack.0,
        stack_end: stack_end.0,
        stack_limit: stack_limit.unwrap_or(0),
        free: [free.start, free.end],
        pid: first.pid,
        len: 0,
        beside: 0,
    })
}

/// Addresses for the runtime.
fn free(lineage: &Lineage, family: Option<&Family>) -> Result<Range<u64>, Error> {
    let mut used = Used::default();
    // Its tables are there, high or low.
    for tables in [tables(false), tables(true)] {
        used.add(tables.start, tables.end - tables.start);
    }
    used.add_all(lineage.used());
    if let Some(family) = family {
        used.add_all(&family.used);
    }
    used.free().ok_or_else(|| {
        Error(
            "the program used so much of the address space that no room is left for a replay"
                .into(),
        )
    })
}

/// Writes the script of the process that the last trace of the lineage is of. `interpreter`: the file that
/// stands for the program's. `resolve` says which file stands for one that the program mapped, or why
/// there is none.
pub fn write(
    lineage: &Lineage,
    interpreter: Option<&Path>,
    resolve: &mut dyn FnMut(&Wanted) -> Result<PathBuf, Error>,
    out: &mut (impl Write + Seek),
) -> Result<Script, Error> {
    write_part(lineage, Part::Alone, interpreter, resolve, out)
}

/// As [`write()`], of one watched thread, which is replayed alone.
pub fn write_thread(
    lineage: &Lineage,
    thread: u32,
    interpreter: Option<&Path>,
    resolve: &mut dyn FnMut(&Wanted) -> Result<PathBuf, Error>,
    out: &mut (impl Write + Seek),
) -> Result<Script, Error> {
    let alone = crate::alone::order(lineage, thread)?;
    write_ordered(lineage, Part::Alone, Some((alone, true)), interpreter, resolve, out)
}

/// The same, of what was done until threads were watched.
pub fn write_beginning(
    lineage: &Lineage,
    interpreter: Option<&Path>,
    resolve: &mut dyn FnMut(&Wanted) -> Result<PathBuf, Error>,
    out: &mut (impl Write + Seek),
) -> Result<Script, Error> {
    let ordered = crate::order::beginning(&lineage.traces())?;
    write_ordered(lineage, Part::Alone, Some((ordered, false)), interpreter, resolve, out)
}

/// The same, for a tree.
pub fn write_part(
    lineage: &Lineage,
    part: Part<'_>,
    interpreter: Option<&Path>,
    resolve: &mut dyn FnMut(&Wanted) -> Result<PathBuf, Error>,
    out: &mut (impl Write + Seek),
) -> Result<Script, Error> {
    write_ordered(lineage, part, None, interpreter, resolve, out)
}

fn write_ordered(
    lineage: &Lineage,
    part: Part<'_>,
    given: Option<(Ordered<'_>, bool)>,
    interpreter: Option<&Path>,
    resolve: &mut dyn FnMut(&Wanted) -> Result<PathBuf, Error>,
    out: &mut (impl Write + Seek),
) -> Result<Script, Error> {
    let (mut ordered, watched) = match given {
        Some(given) => given,
        None => (order(&lineage.traces())?, false),
    };
    // Items that are left out.
    let mut hole = match (part, ordered.child) {
        (Part::Forked, Some(child)) => child.begins,
        _ => 0,
    };
    if let Some(path) = interpreter {
        let before = ordered.items.len();
        name_interpreter(&mut ordered.items, path);
        if hole > 0 {
            hole += ordered.items.len() - before;
        }
    }
    let mut header = header(lineage, part)?;
    header.alone = u32::from(watched);
    let failed = |e: std::io::Error| Error(format!("cannot write the script of the replay: {e}"));
    out.write_all(&[0; HEADER_SIZE]).map_err(failed)?;
    let mut known: Vec<(Wanted, PathBuf)> = Vec::new();
    let mut turns: Vec<u64> = Vec::new();
    // Those that are not replayed.
    let mut before = 0u64;
    let mut threads: Vec<Option<u32>> = Vec::new();
    let mut running = BTreeSet::new();
    let mut code = Code::default();
    code.add(interpreter);
    let mut sought = 0u64;
    let mut passed_over = 0u64;
    for (at, item) in ordered.items.iter().enumerate() {
        let thread = usize::try_from(item.thread).ok().filter(|&thread| thread < MOST_THREADS);
        let thread = thread.ok_or_else(|| Error("damaged: it has too many threads".into()))?;
        if turns.len() <= thread {
            turns.resize(thread + 1, 0);
            threads.resize(thread + 1, None);
        }
        match *item.event {
            Event::ThreadStart { tid, .. } => threads[thread] = Some(tid),
            Event::State { index, tid, turns: made, .. } => {
                let index = usize::try_from(index).ok().filter(|&index| index < MOST_THREADS);
                let index =
                    index.ok_or_else(|| Error("damaged: it has too many threads".into()))?;
                if threads.len() <= index {
                    turns.resize(index + 1, 0);
                    threads.resize(index + 1, None);
                }
                threads[index] = Some(tid);
                before = before.saturating_add(made);
                turns[index] = made;
            }
            _ => {}
        }
        sought += u64::from(!comes_by_itself(&item.event));
        running.insert(item.thread);
        if item.position != Position::NONE {
            turns[thread] = item.position.control_flow.0;
        }
        let resolved = match Wanted::of(&item.event) {
            None => None,
            Some(wanted) => {
                let path = match known.iter().find(|(one, _)| *one == wanted) {
                    Some((_, path)) => path.clone(),
                    None => {
                        let path = resolve(&wanted)?;
                        known.push((wanted, path.clone()));
                        path
                    }
                };
                code.is_mapped(item.thread, &path);
                Some(in_place(&item.event, &path))
            }
        };
        code.call(item);
        let event = resolved.as_ref().unwrap_or(&item.event);
        if at < hole {
            let len = ENTRY_HEADER_SIZE as u64 + u64::from(payload_len(event)?);
            header.len += len;
            passed_over += len;
            continue;
        }
        let entry = entry(item, event)?;
        header.len += entry.len() as u64;
        if passed_over > 0 {
            let to = HEADER_SIZE as u64 + std::mem::take(&mut passed_over);
            out.seek(SeekFrom::Start(to)).map_err(failed)?;
        }
        out.write_all(&entry).map_err(failed)?;
    }
    if let Part::First(family) = part {
        header.beside = family.maps.len() as u64;
        out.write_all(&family.maps).map_err(failed)?;
        family.code.iter().for_each(|file| code.add(Some(file)));
    }
    out.seek(SeekFrom::Start(0)).map_err(failed)?;
    out.write_all(&header.to_bytes()).map_err(failed)?;
    out.flush().map_err(failed)?;
    let turns = turns.iter().fold(0u64, |sum, &turns| sum.saturating_add(turns));
    let turns = turns.saturating_sub(before);
    let (events, child) = (ordered.items.len() as u64, ordered.child);
    if let Some(Child { thread, tid, .. }) = child {
        let name = usize::try_from(thread).ok().and_then(|thread| threads.get_mut(thread));
        name.into_iter().for_each(|name| *name = tid);
    }
    let (end, code) = (ordered.end, code.files);
    let straight = sought == 0 && !watched;
    Ok(Script {
        header,
        events,
        turns,
        before,
        end,
        threads,
        running,
        child,
        code,
        sought,
        straight,
    })
}

/// Whether the program comes to the event without being stopped there: a signal, another thread's turn and what another one
/// has stored come at any place.
fn comes_by_itself(event: &Event) -> bool {
    match event {
        Event::Arrived(_) | Event::Yields | Event::Seen { .. } => false,
        // In a call or behind it: as the kernel leaves rcx.
        Event::Checked(registers) => {
            [registers.rip, registers.rip.wrapping_add(2)].contains(&registers.gpr[1])
        }
        _ => true,
    }
}

/// Which files the program had mapped code of.
#[derive(Default)]
struct Code {
    files: Vec<PathBuf>,
    /// The file that the next call of this thread maps.
    next: Option<(u32, PathBuf)>,
}

impl Code {
    fn add(&mut self, file: Option<&Path>) {
        if let Some(file) = file.filter(|file| !self.files.iter().any(|one| one == file)) {
            self.files.push(file.to_owned());
        }
    }

    fn is_mapped(&mut self, thread: u32, path: &Path) {
        self.next = Some((thread, path.to_owned()));
    }

    fn call(&mut self, item: &Item<'_>) {
        const PROT_EXEC: u64 = 4;
        let protection = match &*item.event {
            Event::Syscall { arguments, .. } => arguments[2],
            Event::Region { protection, .. } => u64::from(*protection),
            _ => return,
        };
        let Some((thread, path)) = self.next.take() else { return };
        if thread == item.thread && protection & PROT_EXEC != 0 {
            self.add(Some(&path));
        }
    }
}

/// Says which file the interpreter is, as if it had been mapped by a call: behind the first thread's start,
/// in front of what the stack holds.
fn name_interpreter(items: &mut Vec<Item<'_>>, path: &Path) {
    let is_start =
        |item: &&Item<'_>| matches!(*item.event, Event::ThreadStart { .. } | Event::Actions(_));
    let Some(start) = items.first().filter(is_start) else {
        return;
    };
    if items.get(1).is_some_and(|item| matches!(*item.event, Event::Mapped { .. })) {
        return;
    }
    let event = Event::Mapped {
        file: [0; 2],
        size: 0,
        changed_ns: 0,
        contents: Box::default(),
        path: path.as_os_str().as_bytes().into(),
    };
    let item = Item { thread: start.thread, position: start.position, event: event.into() };
    // A snapshot begins with no start of a thread.
    let place = usize::from(matches!(*start.event, Event::ThreadStart { .. }));
    items.insert(place, item);
}

/// A process has fewer; a damaged trace may claim any number.
const MOST_THREADS: usize = 1 << 22;

/// The event, with another path.
fn in_place(event: &Event, with: &Path) -> Event {
    let mut event = event.clone();
    if let Event::Mapped { path, .. } = &mut event {
        *path = with.as_os_str().as_bytes().into();
    }
    event
}

/// Bytes of the event behind the header of its entry.
fn payload_len(event: &Event) -> Result<u32, Error> {
    let len = u32::try_from(event.payload_len().next_multiple_of(8));
    len.map_err(|_| Error("damaged: an event is too long".into()))
}

fn entry(item: &Item<'_>, event: &Event) -> Result<Vec<u8>, Error> {
    let len = payload_len(event)?;
    let kind: Kind = event.kind();
    let header = EventHeader { kind: kind as u16, len, position: item.position };
    let header = EntryHeader { thread: item.thread, event: header }.to_bytes();
    let mut bytes = Vec::with_capacity(header.len() + usize::try_from(len).unwrap_or(0));
    bytes.extend_from_slice(&header);
    event.encode(&mut bytes);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    Ok(bytes)
}
