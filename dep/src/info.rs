//! `dep info`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;

use abi::event::{End, Left};
use abi::options::{ControlFlow, Instrument, Memory};
use abi::unit::JitReason;
use trace::events::Event;
use trace::pipeline::{self, BatchSink, Outlet, Piece, Seam};
use trace::program::Program;
use trace::units::Origin;
use trace::walk::{MemoryReference, Sink};
use trace::Trace;

use crate::syscalls::{tally_json, tally_text, Calls};
use crate::text::{json_string, loss_reason};
use crate::{Stop, Warnings};

/// Where executed code can lie: key in JSON, name in text.
const PLACES: [(&str, &str); 3] = [
    ("main_program", "main program"),
    ("embedded_libraries", "libraries"),
    ("elsewhere", "elsewhere"),
];
/// Ahead of time, and each reason for the JIT.
const ORIGINS: usize = 1 + REASONS.len();

/// Live addresses of the program and of the libraries that have a translation.
#[derive(Clone)]
struct Images {
    program: Range<u64>,
    /// Ascending.
    libraries: Vec<Range<u64>>,
}

impl Images {
    /// Index in [`PLACES`].
    fn place(&self, address: u64) -> usize {
        if self.program.contains(&address) {
            return 0;
        }
        let next = self.libraries.partition_point(|r| r.start <= address);
        match next.checked_sub(1) {
            Some(i) if self.libraries[i].contains(&address) => 1,
            _ => 2,
        }
    }
}

/// Executed blocks by where they are and where their code came from.
#[derive(Clone, Default)]
struct Shares {
    /// `[place][static, then by JIT reason]`; the places are those of [`PLACES`].
    blocks: [[u64; ORIGINS]; 3],
}

#[derive(Clone, Default)]
struct Counts {
    shares: Shares,
    references: u64,
    /// The first block, which may continue the chunk before: address and its slot in the shares.
    uncertain: Option<(u64, (usize, usize))>,
}

struct Counter<const REFERENCES: bool> {
    outlet: Outlet<Counts>,
    images: Images,
    slot: (usize, usize),
    counts: Counts,
}

fn slot(origin: Origin) -> usize {
    match origin {
        Origin::Static => 0,
        Origin::Jit(reason) => reason as usize,
    }
}

impl<const REFERENCES: bool> Sink for Counter<REFERENCES> {
    const REFERENCES: bool = REFERENCES;

    fn unit(&mut self, program: &Program, _partial: bool) {
        self.slot = (self.images.place(program.address), slot(program.origin));
    }

    fn block(&mut self, pc: u64, uncertain: bool) {
        if uncertain {
            self.counts.uncertain = Some((pc, self.slot));
        }
        self.counts.shares.blocks[self.slot.0][self.slot.1] += 1;
    }

    fn reference(&mut self, _reference: MemoryReference) {
        self.counts.references += 1;
    }

    fn references(&mut self, _all: impl Iterator<Item = MemoryReference>, count: u64) {
        self.counts.references += count;
    }
}

impl<const REFERENCES: bool> BatchSink for Counter<REFERENCES> {
    type Batch = Counts;

    fn finish(mut self) -> Outlet<Counts> {
        let counts = std::mem::take(&mut self.counts);
        self.outlet.send(counts);
        self.outlet
    }
}

#[derive(Clone, Default)]
struct ThreadInfo {
    chunks: u64,
    counts: Counts,
    units: u64,
    instructions: u64,
    control_flow: u64,
    memory: u64,
}

/// The program's range from the output file, else from where its path is mapped.
fn images(trace: &Trace) -> Images {
    let own = trace.statics.filter(|s| s.count > 0).map(|s| s.first_window);
    let (mut program, mut libraries) = (None, Vec::new());
    for (window, range) in trace.units.images() {
        match own == Some(window) {
            true => program = Some(range),
            false => libraries.push(range),
        }
    }
    libraries.sort_by_key(|r| r.start);
    Images { program: program.unwrap_or_else(|| mapped_program(trace)), libraries }
}

fn mapped_program(trace: &Trace) -> Range<u64> {
    let program = trace.program.as_os_str().as_encoded_bytes();
    let (mut first, mut last) = (u64::MAX, 0);
    for event in &trace.process_events {
        if let Some(Event::Map { start, len, path, .. }) = &event.event {
            if **path == *program {
                (first, last) = (first.min(start.0), last.max(start.0.saturating_add(*len)));
            }
        }
    }
    first..last
}

fn count<const REFERENCES: bool>(
    trace: &Trace,
    warnings: &mut Warnings,
) -> (Vec<ThreadInfo>, Option<String>) {
    let mut threads = vec![ThreadInfo::default(); trace.threads.len()];
    let mut wrong = None;
    let images = images(trace);
    let make = |_, outlet| Counter::<REFERENCES> {
        outlet,
        images: images.clone(),
        slot: (0, 0),
        counts: Counts::default(),
    };
    let mut seam = Seam::default();
    pipeline::run(trace, &pipeline::jobs(trace, |_| true), make, |job, piece| {
        let thread = &mut threads[job.thread];
        match piece {
            Piece::Batch(counts) => {
                let mine = &mut thread.counts;
                for (to, from) in mine.shares.blocks.iter_mut().zip(counts.shares.blocks) {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
                mine.references += counts.references;
                if let Some((pc, (place, origin))) = counts.uncertain {
                    if !seam.begins_block(trace, &job, pc) {
                        mine.shares.blocks[place][origin] -= 1;
                    }
                }
            }
            Piece::End(end) => {
                thread.chunks += 1;
                let falls_to = match *end {
                    Ok(end) => {
                        thread.units += end.units;
                        thread.instructions += end.instructions;
                        thread.control_flow += end.control_flow_bytes;
                        thread.memory += end.memory_bytes;
                        Some(end.falls_to)
                    }
                    Err(violation) => {
                        warnings.add(&violation);
                        wrong.get_or_insert_with(|| violation.to_string());
                        None
                    }
                };
                seam.ended(trace, &job, falls_to);
            }
        }
        true
    });
    (threads, wrong)
}

fn sum(threads: &[ThreadInfo], field: impl Fn(&ThreadInfo) -> u64) -> u64 {
    threads.iter().map(field).sum()
}

impl ThreadInfo {
    fn blocks(&self) -> u64 {
        self.counts.shares.blocks.iter().flatten().sum()
    }
}

fn instrument_name(instrument: Instrument) -> &'static str {
    match instrument {
        Instrument::Dep => "profile",
        Instrument::Undo => "undo log",
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

/// Files that were mapped, with their lowest address.
fn modules(trace: &Trace) -> Vec<(u64, String, String)> {
    let mut modules: BTreeMap<&[u8], (u64, String)> = BTreeMap::new();
    for event in &trace.process_events {
        if let Some(Event::Map { start, build_id, path, .. }) = &event.event {
            let module = modules.entry(path).or_insert((start.0, String::new()));
            module.0 = module.0.min(start.0);
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

/// Why the translation of the library at `start` was not used, if there was one.
fn left(trace: &Trace, start: u64) -> &'static str {
    let reason = trace.process_events.iter().find_map(|event| match event.event {
        Some(Event::LibraryLeft { load, reason }) if load.0 == start => Some(reason),
        _ => None,
    });
    match reason {
        None => "",
        Some(Left::Content) => " (its translation is of another file: not used)",
        Some(Left::Options) => " (its translation is for other options or processors: not used)",
        Some(Left::Elsewhere) => " (mapped elsewhere before: its translation is not used)",
        Some(Left::NoMemory | Left::Unknown(_)) => " (no memory for its translation: not used)",
    }
}

/// System calls that `dep info` names for each thread.
const TOP_CALLS: usize = 8;

const REASONS: [(&str, JitReason); 6] = [
    ("library", JitReason::Library),
    ("missed", JitReason::Missed),
    ("anonymous", JitReason::Anonymous),
    ("dynamic", JitReason::Dynamic),
    ("processor", JitReason::Processor),
    ("modified", JitReason::Modified),
];

pub fn info(
    trace: &Trace,
    json: bool,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let (threads, wrong) = match trace.options.recording.records_memory() {
        true => count::<true>(trace, warnings),
        false => count::<false>(trace, warnings),
    };
    let mut shares = Shares::default();
    for thread in &threads {
        for (to, from) in shares.blocks.iter_mut().zip(thread.counts.shares.blocks) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }
    let calls = trace.threads.iter().map(Calls::of).collect();
    let report = Report { trace, threads, calls, shares, wrong };
    if json {
        report.json(out)
    } else {
        report.text(out)
    }
}

struct Report<'a> {
    trace: &'a Trace,
    threads: Vec<ThreadInfo>,
    calls: Vec<Calls>,
    shares: Shares,
    wrong: Option<String>,
}

impl Report<'_> {
    fn bytes_per_instruction(&self, bytes: u64) -> f64 {
        bytes as f64 / sum(&self.threads, |t| t.instructions).max(1) as f64
    }

    fn text(&self, out: &mut impl Write) -> Result<(), Stop> {
        let trace = self.trace;
        let arguments = trace.arguments.iter().map(|a| String::from_utf8_lossy(a));
        let arguments: Vec<_> = arguments.map(|a| format!("{a:?}")).collect();
        writeln!(out, "program        {}", trace.program.display())?;
        writeln!(out, "arguments      {}", arguments.join(" "))?;
        writeln!(
            out,
            "options        {}, control flow {}, memory {}{}",
            instrument_name(trace.options.recording.instrument),
            control_flow_name(trace.options.recording.control_flow),
            memory_name(trace.options.recording.memory),
            if trace.options.recording.ring { ", the newest part only" } else { "" }
        )?;
        writeln!(out, "process        {}, ended: {}", trace.pid, ending(trace))?;
        for loss in losses(trace) {
            writeln!(out, "recording lost {loss}")?;
        }
        writeln!(
            out,
            "units          {} ahead of time, {} from the JIT",
            trace.units.static_count(),
            trace.units.jit_count()
        )?;
        for (start, path, id) in modules(trace) {
            let id = if id.is_empty() { "-" } else { &id };
            writeln!(out, "module         {start:#x} {path} {id}{}", left(trace, start))?;
        }
        for ((thread, t), calls) in trace.threads.iter().zip(&self.threads).zip(&self.calls) {
            writeln!(
                out,
                "thread {:<7} {} chunks, {} instructions, {} blocks, {} references, {} bytes of \
                 control flow, {} of memory",
                thread.name(),
                t.chunks,
                t.instructions,
                t.blocks(),
                t.counts.references,
                t.control_flow,
                t.memory
            )?;
            if calls.count() > 0 {
                let top = tally_text(&calls.all, TOP_CALLS);
                writeln!(out, "  calls        {}: {top}", calls.count())?;
            }
            if !calls.not_described.is_empty() {
                let names = tally_text(&calls.not_described, usize::MAX);
                writeln!(out, "  not described: {names}")?;
            }
        }
        let control_flow = sum(&self.threads, |t| t.control_flow);
        let memory = sum(&self.threads, |t| t.memory);
        writeln!(
            out,
            "streams        {control_flow} bytes of control flow, {memory} of memory: {:.3} + {:.3} \
             bytes per instruction",
            self.bytes_per_instruction(control_flow),
            self.bytes_per_instruction(memory)
        )?;
        for ((_, name), counts) in PLACES.iter().zip(&self.shares.blocks) {
            let all: u64 = counts.iter().sum();
            if all == 0 && *name != "main program" {
                continue;
            }
            let share = 100.0 * counts[0] as f64 / all.max(1) as f64;
            write!(out, "{name:<15}{all} blocks, {share:.2} % ahead of time")?;
            for (reason, number) in REASONS {
                if counts[number as usize] > 0 {
                    write!(out, ", {} JIT ({reason})", counts[number as usize])?;
                }
            }
            writeln!(out)?;
        }
        if let Some(wrong) = &self.wrong {
            writeln!(out, "not recovered  {wrong}")?;
        }
        Ok(())
    }

    fn json(&self, out: &mut impl Write) -> Result<(), Stop> {
        let trace = self.trace;
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let text = |bytes: &[u8]| json_string(&String::from_utf8_lossy(bytes));
        let threads = trace.threads.iter().zip(&self.threads).zip(&self.calls);
        let threads = threads.map(|((thread, t), calls)| {
            format!(
                "{{\"tid\":{},\"chunks\":{},\"units\":{},\"instructions\":{},\"blocks\":{},\
                 \"references\":{},\"control_flow_bytes\":{},\"memory_bytes\":{},\
                 \"syscalls\":{},\"not_described\":{}}}",
                thread.name(),
                t.chunks,
                t.units,
                t.instructions,
                t.blocks(),
                t.counts.references,
                t.control_flow,
                t.memory,
                tally_json(&calls.all),
                tally_json(&calls.not_described)
            )
        });
        let modules = modules(trace).into_iter().map(|(start, path, id)| {
            format!(
                "{{\"start\":\"{start:#x}\",\"path\":{},\"build_id\":\"{id}\",\"note\":{}}}",
                json_string(&path),
                json_string(left(trace, start).trim())
            )
        });
        let shares = |((key, _), counts): (&(&str, &str), &[u64; ORIGINS])| {
            let reasons = REASONS.map(|(name, n)| format!("\"{name}\":{}", counts[n as usize]));
            format!(
                "\"{key}\":{{\"blocks\":{},\"static\":{},\"jit\":{{{}}}}}",
                counts.iter().sum::<u64>(),
                counts[0],
                reasons.join(",")
            )
        };
        let control_flow = sum(&self.threads, |t| t.control_flow);
        let memory = sum(&self.threads, |t| t.memory);
        writeln!(
            out,
            "{{\"program\":{},\"arguments\":{},\"instrument\":\"{}\",\"ring\":{},\"control_flow\":\"{}\",\"memory\":\"{}\",\
             \"pid\":{},\"ended\":{},\"losses\":{},\"damage\":{},\"static_units\":{},\
             \"jit_units\":{},\"modules\":{},\"threads\":{},\"control_flow_bytes\":{control_flow},\
             \"memory_bytes\":{memory},\"instructions\":{},\"bytes_per_instruction\":{:.6},\
             {},\"not_recovered\":{}}}",
            text(trace.program.as_os_str().as_encoded_bytes()),
            list(trace.arguments.iter().map(|a| text(a)).collect()),
            instrument_name(trace.options.recording.instrument),
            trace.options.recording.ring,
            control_flow_name(trace.options.recording.control_flow),
            memory_name(trace.options.recording.memory),
            trace.pid,
            json_string(&ending(trace)),
            list(losses(trace).iter().map(|l| json_string(l)).collect()),
            list(trace.damage.iter().map(|d| json_string(&d.to_string())).collect()),
            trace.units.static_count(),
            trace.units.jit_count(),
            list(modules.collect()),
            list(threads.collect()),
            sum(&self.threads, |t| t.instructions),
            self.bytes_per_instruction(control_flow + memory),
            PLACES.iter().zip(&self.shares.blocks).map(shares).collect::<Vec<_>>().join(","),
            self.wrong.as_ref().map_or("null".to_string(), |w| json_string(w)),
        )?;
        Ok(())
    }
}
