//! `dep info`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use abi::event::{Cost, End, Left, Why};
use abi::ids::LiveAddr;
use abi::options::{ControlFlow, Instrument, Memory};
use abi::unit::JitReason;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use trace::events::{Event, Placed};
use trace::Trace;

use crate::row::{Form, Hex};
use crate::syscalls::{tally_object, tally_text, Calls, Tally};
use crate::text::loss_reason;
use crate::{Stop, Warnings};
use count::{count, Shares, ThreadInfo, ORIGINS, REASONS};

mod count;

fn instrument_name(instrument: Instrument) -> &'static str {
    match instrument {
        Instrument::Dep => "profile",
        Instrument::Undo => "undo log",
        Instrument::Inputs => "inputs",
        Instrument::InputsAndDep => "inputs and profile",
        Instrument::None => "nothing",
    }
}

fn control_flow_name(format: ControlFlow) -> &'static str {
    match format {
        ControlFlow::Tags => "tags",
        ControlFlow::FullPc => "full-pc",
        ControlFlow::Bits => "bits",
    }
}

fn memory_name(format: Memory) -> &'static str {
    match format {
        Memory::Registers => "registers",
        Memory::Addresses => "addresses",
        Memory::None => "none",
    }
}

/// How it ended, in words.
fn ending(trace: &Trace) -> String {
    let all = trace.threads.iter().flat_map(|t| &t.events).chain(&trace.process_events);
    let mut ending = None;
    for event in all {
        if let Some(Event::ProcessEnd { reason, status, address }) = event.event {
            ending = Some(match reason {
                End::Exit => format!("exit status {status}"),
                End::Signal if address != 0 => format!("signal {status} at address {address:#x}"),
                End::Signal => format!("signal {status}"),
                End::Refused => "stopped because it needs something unsupported".to_string(),
                End::Unknown(other) => format!("ended for unknown reason {other}"),
            });
        }
    }
    ending.unwrap_or_else(|| "killed, or still running (no end is recorded)".to_string())
}

fn losses(trace: &Trace) -> Vec<String> {
    let all = trace.threads.iter().flat_map(|t| &t.events).chain(&trace.process_events);
    let named = all.filter_map(|event| match event.event {
        Some(Event::Loss { reason, errno: 0 }) => Some(loss_reason(reason).to_string()),
        Some(Event::Loss { reason, errno }) => {
            Some(format!("{} (errno {errno})", loss_reason(reason)))
        }
        _ => None,
    });
    // Each thread says where it lost what followed, and the process why.
    named.collect::<BTreeSet<String>>().into_iter().collect()
}

fn why_switched(why: Why) -> &'static str {
    match why {
        Why::Start => "start",
        Why::Request => "request",
        Why::Main => "main",
        Why::SecondThread => "second thread",
        Why::Signal => "signal",
        Why::Unknown(_) => "unknown",
    }
}

/// From the start of the process until `time_ns`.
fn seconds(trace: &Trace, time_ns: u64) -> f64 {
    time_ns.saturating_sub(trace.start_ns) as f64 / 1e9
}

fn switches(trace: &Trace) -> Vec<SwitchRow> {
    let row = |event: &Placed| match event.event {
        Some(Event::Switch { on, why, time_ns, took_ns, threads, interrupted }) => {
            let (why, seconds) = (why_switched(why), seconds(trace, time_ns));
            Some(SwitchRow { on, why, seconds, took_ns, threads, interrupted })
        }
        _ => None,
    };
    trace.process_events.iter().filter_map(row).collect()
}

fn marks(trace: &Trace) -> Vec<MarkRow> {
    let row = |event: &Placed| match &event.event {
        Some(Event::Mark { time_ns, on, text }) => {
            let text = String::from_utf8_lossy(text).into_owned();
            Some(MarkRow { text, seconds: seconds(trace, *time_ns), recorded: *on })
        }
        _ => None,
    };
    trace.process_events.iter().filter_map(row).collect()
}

fn costs(trace: &Trace) -> Vec<CostRow> {
    let row = |event: &Placed| match &event.event {
        Some(Event::Cost { what, count, pcs }) => {
            let (what, way_out) = cost(*what);
            let first = pcs.iter().filter(|&&pc| pc != 0).map(|&pc| LiveAddr(pc).into()).collect();
            Some(CostRow { what, count: *count, first, way_out })
        }
        _ => None,
    };
    trace.process_events.iter().filter_map(row).collect()
}

/// What it is, and what can be done about it.
fn cost(what: Cost) -> (&'static str, &'static str) {
    match what {
        Cost::Fault => (
            "faults mended",
            "code and data that is written should not share a page; generated code should lie in few places",
        ),
        Cost::Closed => (
            "translations closed",
            "code that is done should lie in pages that are not written any more",
        ),
        Cost::Compared => (
            "comparisons of code",
            "code should not lie on the stack, nor in memory that another process may write",
        ),
        Cost::Missed => (
            "look-ups that found nothing",
            "generated code should lie in few places, or near the program",
        ),
        Cost::Unknown(_) => ("events of an unknown kind", "a newer dep knows it"),
    }
}

/// What to do where the translation was for another processor.
const OTHER_PROCESSOR: &str = "was translated for another kind of processor, and again when it ran: rewrite it on a \
                               machine of this kind, or with --pointers thread-block for every kind";

/// Switches that are named in the text.
const SHOWN_SWITCHES: usize = 10;

/// Files that were mapped, with their lowest address.
fn mapped_files(trace: &Trace) -> Vec<(LiveAddr, String, String)> {
    let mut modules: BTreeMap<&[u8], (LiveAddr, String)> = BTreeMap::new();
    for event in &trace.process_events {
        if let Some(Event::Map { start, build_id, path, .. }) = &event.event {
            let module = modules.entry(path).or_insert((*start, String::new()));
            module.0 = module.0.min(*start);
            if module.1.is_empty() {
                module.1 = build_id.iter().map(|b| format!("{b:02x}")).collect();
            }
        }
    }
    let named = modules.into_iter();
    let mut list: Vec<_> = named
        .map(|(path, (start, id))| (start, String::from_utf8_lossy(path).into_owned(), id))
        .collect();
    list.sort();
    list
}

/// The file that is mapped at an address.
fn file_at(trace: &Trace, address: LiveAddr) -> Option<String> {
    // The last mapping of a place counts.
    let mut maps = trace.process_events.iter().rev().filter_map(|event| match &event.event {
        Some(Event::Map { start, len, path, .. }) => Some((start, len, path)),
        _ => None,
    });
    let (_, _, path) = maps.find(|(start, len, _)| address.from_start(**start) < **len)?;
    Some(String::from_utf8_lossy(path).into_owned())
}

/// Why the translation of the library at `start` was not used, if there was one.
fn left(trace: &Trace, start: LiveAddr) -> &'static str {
    let reason = trace.process_events.iter().find_map(|event| match event.event {
        Some(Event::LibraryLeft { load, reason }) if load == start => Some(reason),
        _ => None,
    });
    match reason {
        None => "",
        Some(Left::Content) => "(its translation is of another file: not used)",
        Some(Left::Options) => "(its translation is for other options or processors: not used)",
        Some(Left::Elsewhere) => "(mapped elsewhere before: its translation is not used)",
        Some(Left::Missing) => "(the cache has no translation of it)",
        Some(Left::Selection) => "(its translation records other code: not used)",
        Some(Left::NoMemory | Left::Unknown(_)) => "(no memory for its translation: not used)",
    }
}

/// System calls that are named for each thread in the text.
const TOP_CALLS: usize = 8;

/// What is said about a trace. In JSON these are the fields of one object.
#[derive(Serialize)]
struct Report {
    program: String,
    arguments: Vec<String>,
    instrument: &'static str,
    ring: bool,
    /// All threads ran at once, each with a view of memory.
    watched: bool,
    control_flow: &'static str,
    memory: &'static str,
    /// Which code was recorded; empty: all.
    recorded: Vec<String>,
    pid: u64,
    parent: Option<u64>,
    children: Vec<u64>,
    ended: String,
    /// Of inputs: how far they can be replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayable: Option<String>,
    losses: Vec<String>,
    switches: Vec<SwitchRow>,
    marks: Vec<MarkRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    costs: Vec<CostRow>,
    damage: Vec<String>,
    static_units: usize,
    jit_units: usize,
    modules: Vec<ModuleRow>,
    threads: Vec<ThreadRow>,
    control_flow_bytes: u64,
    memory_bytes: u64,
    /// Of all frames: what holes a file has is not counted.
    file_bytes: u64,
    /// Bytes on the disk, if they are fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    compressed_bytes: Option<u64>,
    instructions: u64,
    /// Of the file.
    #[serde(serialize_with = "six_digits")]
    bytes_per_instruction: f64,
    main_program: Share,
    embedded_libraries: Share,
    elsewhere: Share,
    not_recovered: Option<String>,
}

/// The recording was switched on or off. Times are seconds since the process started.
#[derive(Serialize)]
struct SwitchRow {
    on: bool,
    why: &'static str,
    #[serde(serialize_with = "six_digits")]
    seconds: f64,
    took_ns: u64,
    threads: u32,
    interrupted: u32,
}

/// A moment that the user has marked.
#[derive(Serialize)]
struct MarkRow {
    text: String,
    #[serde(serialize_with = "six_digits")]
    seconds: f64,
    recorded: bool,
}

/// What has cost time again and again.
#[derive(Serialize)]
struct CostRow {
    what: &'static str,
    count: u64,
    /// The first places in the program.
    first: Vec<Hex>,
    way_out: &'static str,
}

/// A file that was mapped.
#[derive(Serialize)]
struct ModuleRow {
    start: Hex,
    path: String,
    build_id: String,
    note: &'static str,
    /// Bytes of its code that were recorded, and of all of its code, if only a part was.
    recorded: Option<[u64; 2]>,
}

#[derive(Serialize)]
struct ThreadRow {
    tid: u32,
    /// The process that it is by itself, in the memory of this one.
    process: Option<u64>,
    chunks: u64,
    units: u64,
    instructions: u64,
    blocks: u64,
    references: u64,
    /// Stays in code that is not recorded.
    stays_outside: u64,
    control_flow_bytes: u64,
    memory_bytes: u64,
    #[serde(serialize_with = "tally_object")]
    syscalls: Tally,
    #[serde(serialize_with = "tally_object")]
    not_described: Tally,
}

/// Executed blocks in one place, by where their code came from.
#[derive(Serialize)]
struct Share {
    blocks: u64,
    #[serde(rename = "static")]
    ahead_of_time: u64,
    jit: Reasons,
}

/// Blocks for each of the [`REASONS`].
struct Reasons([u64; REASONS.len()]);

impl Reasons {
    fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        REASONS.iter().zip(self.0).map(|((name, _), blocks)| (*name, blocks))
    }
}

impl Reasons {
    fn of(&self, wanted: JitReason) -> u64 {
        let one = REASONS.iter().zip(self.0).find(|((_, reason), _)| *reason == wanted);
        one.map_or(0, |(_, blocks)| blocks)
    }
}

impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.named())
    }
}

impl Share {
    fn new(counts: &[u64; ORIGINS]) -> Share {
        Share {
            blocks: counts.iter().sum(),
            ahead_of_time: counts[0],
            jit: Reasons(REASONS.map(|(_, reason)| counts[reason as usize])),
        }
    }
}

/// More digits would be noise, and fewer would look like a count.
fn six_digits<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let digits = RawValue::from_string(format!("{value:.6}"));
    digits.map_err(serde::ser::Error::custom)?.serialize(serializer)
}

pub fn info(
    trace: &Trace,
    json: bool,
    replayable: Option<String>,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let (threads, wrong) = match trace.options.recording.records_memory() {
        true => count::<true>(trace, warnings),
        false => count::<false>(trace, warnings),
    };
    let report = Report { replayable, ..Report::new(trace, &threads, wrong) };
    match Form::new(json) {
        Form::Json => {
            serde_json::to_writer(&mut *out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Form::Text => report.text(out)?,
    }
    Ok(())
}

fn sum(threads: &[ThreadInfo], field: impl Fn(&ThreadInfo) -> u64) -> u64 {
    threads.iter().map(field).sum()
}

fn modules(trace: &Trace) -> Vec<ModuleRow> {
    let row = |(start, path, build_id): (LiveAddr, String, String)| ModuleRow {
        start: start.into(),
        path,
        build_id,
        note: left(trace, start),
        recorded: None,
    };
    let mut rows: Vec<ModuleRow> = mapped_files(trace).into_iter().map(row).collect();
    for event in &trace.process_events {
        let Some(Event::Selected { start, len, pieces, .. }) = &event.event else { continue };
        let Some(path) = file_at(trace, *start) else { continue };
        let Some(row) = rows.iter_mut().find(|row| row.path == path) else { continue };
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let piece = |pair: &[u8]| word(&pair[8..]).saturating_sub(word(&pair[..8]));
        let bytes = pieces.chunks_exact(16).map(piece).fold(0u64, u64::saturating_add);
        let [recorded, all] = row.recorded.get_or_insert([0, 0]);
        (*recorded, *all) = (recorded.saturating_add(bytes), all.saturating_add(*len));
    }
    rows
}

fn threads(trace: &Trace, counts: &[ThreadInfo]) -> Vec<ThreadRow> {
    let row = |(thread, counts): (&trace::Thread, &ThreadInfo)| {
        let calls = Calls::of(thread);
        ThreadRow {
            tid: thread.name(),
            process: thread.own_process(),
            chunks: counts.chunks,
            units: counts.units,
            instructions: counts.instructions,
            blocks: counts.blocks(),
            references: counts.references(),
            stays_outside: counts.stays,
            control_flow_bytes: counts.control_flow,
            memory_bytes: counts.memory,
            syscalls: calls.all,
            not_described: calls.not_described,
        }
    };
    trace.threads.iter().zip(counts).map(row).collect()
}

impl Report {
    fn new(trace: &Trace, counts: &[ThreadInfo], not_recovered: Option<String>) -> Report {
        let mut shares = Shares::default();
        counts.iter().for_each(|thread| shares.add(thread.shares()));
        let [main_program, embedded_libraries, elsewhere] =
            [0, 1, 2].map(|place| Share::new(&shares.blocks[place]));
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let control_flow_bytes = sum(counts, |t| t.control_flow);
        let memory_bytes = sum(counts, |t| t.memory);
        let instructions = sum(counts, |t| t.instructions);
        let file_bytes = trace.file.frames.iter().map(|frame| frame.present).sum();
        Report {
            program: trace.program.to_string_lossy().into_owned(),
            arguments: trace.arguments.iter().map(|a| lossy(a)).collect(),
            instrument: match trace.both {
                true => instrument_name(Instrument::InputsAndDep),
                false => instrument_name(trace.options.recording.instrument),
            },
            ring: trace.options.recording.ring,
            watched: trace.options.recording.watches(),
            control_flow: control_flow_name(trace.options.recording.control_flow),
            memory: memory_name(trace.options.recording.memory),
            recorded: trace.rules.lines().map(str::to_owned).collect(),
            pid: trace.pid,
            parent: trace.parent,
            children: trace.children().collect(),
            ended: ending(trace),
            replayable: None,
            losses: losses(trace),
            switches: switches(trace),
            marks: marks(trace),
            costs: costs(trace),
            damage: trace.damage.iter().map(ToString::to_string).collect(),
            static_units: trace.units.static_count(),
            jit_units: trace.units.jit_count(),
            modules: modules(trace),
            threads: threads(trace, counts),
            control_flow_bytes,
            memory_bytes,
            instructions,
            file_bytes,
            compressed_bytes: Some(trace.file.stored()).filter(|_| trace.file.is_compressed()),
            bytes_per_instruction: per_instruction(file_bytes, instructions),
            main_program,
            embedded_libraries,
            elsewhere,
            not_recovered,
        }
    }

    fn text(&self, out: &mut impl Write) -> Result<(), Stop> {
        let arguments: Vec<_> = self.arguments.iter().map(|a| format!("{a:?}")).collect();
        writeln!(out, "program        {}", self.program)?;
        writeln!(out, "arguments      {}", arguments.join(" "))?;
        writeln!(
            out,
            "options        {}, control flow {}, memory {}{}{}",
            self.instrument,
            self.control_flow,
            self.memory,
            if self.ring { ", the newest part only" } else { "" },
            if self.watched { ", threads watched" } else { "" }
        )?;
        if !self.recorded.is_empty() {
            writeln!(out, "recorded       {}", self.recorded.join(", "))?;
        }
        writeln!(out, "process        {}, ended: {}", self.pid, self.ended)?;

        if let Some(replayable) = &self.replayable {
            writeln!(out, "replayable     {replayable}")?;
        }
        if let Some(parent) = self.parent {
            writeln!(out, "parent         {parent}")?;
        }
        if !self.children.is_empty() {
            let children: Vec<_> = self.children.iter().map(u64::to_string).collect();
            writeln!(out, "children       {}", children.join(" "))?;
        }
        for loss in &self.losses {
            writeln!(out, "recording lost {loss}")?;
        }
        for switch in self.switches.iter().take(SHOWN_SWITCHES) {
            let SwitchRow { on, why, seconds, took_ns, threads, .. } = switch;
            let what = if *on { "on" } else { "off" };
            let took = *took_ns as f64 / 1e6;
            writeln!(
                out,
                "switched {what:<5} {seconds:.6} s, {why}, {threads} threads, {took:.3} ms"
            )?;
        }
        if let more @ 1.. = self.switches.len().saturating_sub(SHOWN_SWITCHES) {
            writeln!(out, "switched       {more} times more")?;
        }
        for MarkRow { text, seconds, recorded } in &self.marks {
            let recorded = if *recorded { "" } else { " (not recorded)" };
            writeln!(out, "mark           {seconds:.6} s{recorded} {text}")?;
        }
        for CostRow { what, count, first, way_out } in &self.costs {
            let first: Vec<_> = first.iter().map(|pc| format!("{:#x}", pc.0)).collect();
            writeln!(
                out,
                "cost           {count} {what}, first at {}: {way_out}",
                first.join(" ")
            )?;
        }
        if self.main_program.jit.of(JitReason::Processor) != 0 {
            writeln!(out, "cost           the program {OTHER_PROCESSOR}")?;
        }
        writeln!(
            out,
            "units          {} ahead of time, {} from the JIT",
            self.static_units, self.jit_units
        )?;
        for ModuleRow { start, path, build_id, note, recorded } in &self.modules {
            let id = if build_id.is_empty() { "-" } else { build_id };
            let space = if note.is_empty() { "" } else { " " };
            write!(out, "module         {:#x} {path} {id}{space}{note}", start.0)?;
            if let Some([recorded, all]) = recorded {
                write!(out, " (recorded: {recorded} of {all} bytes of code)")?;
            }
            writeln!(out)?;
        }
        writeln!(
            out,
            "file           {} bytes: {:.3} per instruction",
            self.file_bytes, self.bytes_per_instruction
        )?;
        if let Some(bytes) = self.compressed_bytes {
            let each = per_instruction(bytes, self.instructions);
            writeln!(out, "compressed     {bytes} bytes: {each:.3} per instruction")?;
        }
        for thread in &self.threads {
            thread.text(out)?;
        }
        writeln!(
            out,
            "streams        {} bytes of control flow, {} of memory: {:.3} + {:.3} bytes per \
             instruction",
            self.control_flow_bytes,
            self.memory_bytes,
            per_instruction(self.control_flow_bytes, self.instructions),
            per_instruction(self.memory_bytes, self.instructions)
        )?;
        // That of the program is told even if nothing of it ran.
        self.main_program.text("main program", out)?;
        for (name, share) in
            [("libraries", &self.embedded_libraries), ("elsewhere", &self.elsewhere)]
        {
            if share.blocks > 0 {
                share.text(name, out)?;
            }
        }
        if let Some(wrong) = &self.not_recovered {
            writeln!(out, "not recovered  {wrong}")?;
        }
        Ok(())
    }
}

fn per_instruction(bytes: u64, instructions: u64) -> f64 {
    bytes as f64 / instructions.max(1) as f64
}

impl ThreadRow {
    fn text(&self, out: &mut impl Write) -> Result<(), Stop> {
        writeln!(
            out,
            "thread {:<7} {} chunks, {} instructions, {} blocks, {} references, {} bytes of \
             control flow, {} of memory",
            self.tid,
            self.chunks,
            self.instructions,
            self.blocks,
            self.references,
            self.control_flow_bytes,
            self.memory_bytes
        )?;
        if let Some(pid) = self.process {
            writeln!(out, "  process      {pid}: a child in this process's memory (vfork)")?;
        }
        let calls: u64 = self.syscalls.iter().map(|(_, count)| count).sum();
        if calls > 0 {
            let top = tally_text(&self.syscalls, TOP_CALLS);
            writeln!(out, "  calls        {calls}: {top}")?;
        }
        if self.stays_outside > 0 {
            writeln!(
                out,
                "  outside      {} stays in code that is not recorded",
                self.stays_outside
            )?;
        }
        if !self.not_described.is_empty() {
            let names = tally_text(&self.not_described, usize::MAX);
            writeln!(out, "  not described: {names}")?;
        }
        Ok(())
    }
}

impl Share {
    fn text(&self, name: &str, out: &mut impl Write) -> Result<(), Stop> {
        let share = 100.0 * self.ahead_of_time as f64 / self.blocks.max(1) as f64;
        write!(out, "{name:<15}{} blocks, {share:.2} % ahead of time", self.blocks)?;
        for (reason, blocks) in self.jit.named().filter(|&(_, blocks)| blocks > 0) {
            write!(out, ", {blocks} JIT ({reason})")?;
        }
        Ok(writeln!(out)?)
    }
}
