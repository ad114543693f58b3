//! The tables, for a terminal and for a page.

use std::collections::BTreeMap;
use std::fmt::Write;

use bench::{
    geometric_mean, Compressed, FormatSettings, FormatSizes, Formats, Part, ProgramReport, Report,
    StreamKind, VariantReport,
};

use super::super::table::{
    dash, folded, mebibytes, piped, ratio, seconds, state, wrapped, Lines, SHORT,
};
use super::look::ENTRY;
use super::{ADDRESSES, OURS, WHOLE};

/// What the paper says, which is what the tables are made after. Of SPECint 2000 on 32 bits.
pub const PAPER: &str =
    "Q. Zhao, J. E. Sim, W.-F. Wong, L. Rudolph: DEP: Detailed Execution Profile. PACT 2006";
const PAPER_ROW: &str = "the paper";
/// The geometric means of the twelve programs of its table 1.
const PAPER_TIMES: [([&str; 2], f64); 2] = [(WHOLE, 5.75), (OURS, 4.29)];
/// The averages of its table 2: DEPc and CF_bit against BB_pc, DEPm against Mem_addr, in percent.
const PAPER_SIZES: [f64; 3] = [60.33, 23.23, 47.79];
/// What it says of its figure 6, times native: reading a list, recovery.
const PAPER_RECOVERY: [f64; 2] = [7.5, 21.0];

/// What the columns of the tables of sizes are of.
const STREAMS: [(&str, StreamKind, [&str; 2]); 5] = [
    ("full-pc", StreamKind::ControlFlow, WHOLE),
    ("tags", StreamKind::ControlFlow, OURS),
    ("bits", StreamKind::ControlFlow, ["bits", "registers"]),
    (ADDRESSES, StreamKind::Memory, WHOLE),
    ("registers", StreamKind::Memory, OURS),
];
/// The bytes that a compressor has left.
pub type Bytes = fn(&Compressed) -> u64;
pub const COMPRESSORS: [(&str, Bytes); 3] =
    [("Sequitur", |c| c.sequitur.bytes), ("bzip2", |c| c.bzip2_bytes), ("zstd", |c| c.zstd_bytes)];

pub fn text(report: &Report) -> String {
    page(report, &|lines| folded(lines), false)
}

pub fn markdown(report: &Report) -> String {
    page(report, &piped, true)
}

fn page(report: &Report, form: &dyn Fn(&Lines) -> String, markdown: bool) -> String {
    let Some(settings) = &report.formats else { return String::new() };
    let mut out = format!("{}; {}\n", report.machine, report.rounds());
    if let [program] = report.programs.as_slice() {
        let code = if markdown { "`" } else { "" };
        let _ = writeln!(out, "{code}{}{code}", program.command);
    }
    let flags = flags(report);
    if !flags.is_empty() {
        let _ = writeln!(out, "Rewritten with {}", flags.join(" "));
    }
    out.push_str(&wrapped(&format!(
        "The row '{PAPER_ROW}' has the averages of: {PAPER}; SPECint 2000 on 32 bits."
    )));
    let title = |out: &mut String, text: &str, what: &str| {
        let _ = match markdown {
            true => writeln!(out, "\n**{text}**"),
            false => writeln!(out, "\n{text}"),
        };
        out.push_str(&wrapped(what));
        out.push('\n');
    };
    let programs = &report.programs;
    title(
        &mut out,
        "Time (its table 1)",
        "Median processor time (user and system) of the process tree, times the native median. Recordings are \
         discarded, but for those 'to' a folder.",
    );
    out.push_str(&form(&times(programs)));
    title(
        &mut out,
        "Streams (its table 2)",
        "Bytes per instruction of each stream, and in percent of full-pc and of addresses. tags and registers are of \
         one trace, full-pc and addresses are, and bits is of one with registers. A full-pc and an address have 8 \
         bytes here and 4 in the paper.",
    );
    out.push_str(&form(&streams(programs)));
    title(
        &mut out,
        "Traces",
        "Bytes per instruction of the two streams of each trace, control flow + memory, and in brackets of its \
         file, which also has registers where each chunk starts, events, descriptions of units, and what rounds \
         frames up.",
    );
    out.push_str(&form(&files(programs)));
    let threads = threads(programs);
    if threads.len() > 1 {
        title(
            &mut out,
            "Streams of each thread (its table 3)",
            "Of traces with more than one thread: MiB of the smallest, the largest and the average thread.",
        );
        out.push_str(&form(&threads));
    }
    let FormatSettings { zstd_level, bzip2_block, .. } = settings;
    let of = format!(
        "a sample: the first {} million instructions of each program, shared out among its threads. Sequitur: \
         numbers of equal width for the symbols of the grammar and the ends of its rules, and a list of the words \
         that occur; no coder behind it; at most {} Mi words a grammar. bzip2 -{bzip2_block}, zstd -{zstd_level}.",
        settings.sample_instructions / 1_000_000,
        settings.sequitur_words >> 20
    );
    title(
        &mut out,
        "Compressed control flow (its figure 4)",
        &format!("In percent of full-pc that is not compressed. Of {of}"),
    );
    out.push_str(&form(&compressed(programs, &STREAMS[..3])));
    title(
        &mut out,
        "Compressed memory references (its figure 5)",
        "In percent of addresses that are not compressed. Of the same sample.",
    );
    out.push_str(&form(&compressed(programs, &STREAMS[3..])));
    title(
        &mut out,
        "Recovery (its figure 6)",
        &format!(
            "Processor time of one thread to get at {{pc, address, size, type}} of every reference, least of the \
             rounds: nanoseconds a reference, files in memory. list: reads a list of them, {ENTRY} bytes each (the \
             first {} Mi references). bytes: reads the words of both streams of full-pc addresses, and understands \
             nothing. Others: recovers from a trace. Times native: where the whole run is in the trace.",
            settings.list_references >> 20
        ),
    );
    out.push_str(&form(&recovery(programs)));
    let notes = notes(report);
    if !notes.is_empty() {
        out.push('\n');
    }
    for (text, of) in notes {
        let note = wrapped(&format!("* {}: {text}", of.join(", ")));
        out.push_str(note.trim_start_matches('\n'));
    }
    out
}

/// Flags that all have, but for the formats.
fn flags(report: &Report) -> Vec<String> {
    let variants = report.programs.iter().flat_map(|p| &p.variants);
    let flags = variants.map(|v| &v.flags).find(|flags| !flags.is_empty());
    flags.map_or(Vec::new(), |flags| flags[..flags.len().saturating_sub(4)].to_vec())
}

fn head(columns: impl IntoIterator<Item = impl Into<String>>) -> Lines {
    let columns = columns.into_iter().map(Into::into);
    vec![std::iter::once("program".to_string()).chain(columns).collect()]
}

fn known(program: &ProgramReport) -> Option<&Formats> {
    program.formats.as_ref()?.get()
}

fn percent(share: f64) -> String {
    match share.is_finite() {
        true if share >= 0.09995 => format!("{:.1}", 100.0 * share),
        true if share >= 0.00995 => format!("{:.2}", 100.0 * share),
        true => format!("{:.3}", 100.0 * share),
        false => dash(),
    }
}

fn mean(figures: &[f64]) -> Option<f64> {
    let figures: Vec<f64> = figures.iter().copied().filter(|f| f.is_finite()).collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// Of the program with the most: one that failed may have none.
fn variants(programs: &[ProgramReport]) -> &[VariantReport] {
    let all = programs.iter().map(|p| p.variants.as_slice()).max_by_key(|v| v.len());
    all.and_then(|v| v.get(1..)).unwrap_or(&[])
}

fn times(programs: &[ProgramReport]) -> Lines {
    let columns = variants(programs);
    let names = columns.iter().map(|v| v.name.clone());
    let mut lines = head(std::iter::once("native s".to_string()).chain(names));
    let mut all = vec![Vec::new(); columns.len()];
    for program in programs {
        let native = program.variants.first().and_then(|v| v.figures);
        let native = native.map_or(dash(), |f| seconds(f.cpu_seconds.median));
        let mut line = vec![program.name.clone(), native];
        for (at, of_all) in all.iter_mut().enumerate() {
            let variant = program.variants.get(at + 1);
            line.push(match variant.and_then(|v| v.figures) {
                Some(f) => {
                    of_all.push(f.cpu_ratio.median);
                    ratio(f.cpu_ratio.median)
                }
                None => state(program, variant).to_string(),
            });
        }
        lines.push(line);
    }
    if programs.len() > 1 {
        let means = all.iter().map(|all| {
            let all = all.iter().copied().filter(|m| m.is_finite());
            geometric_mean(all).map_or(dash(), ratio)
        });
        lines
            .push(["geometric mean".to_string(), String::new()].into_iter().chain(means).collect());
    }
    let of_paper = |v: &VariantReport| {
        let found = PAPER_TIMES.iter().find(|(format, _)| v.name == format.join(" "));
        found.map_or(String::new(), |(_, time)| ratio(*time))
    };
    let paper = columns.iter().map(of_paper);
    lines.push([PAPER_ROW.to_string(), String::new()].into_iter().chain(paper).collect());
    lines
}

/// Bytes per instruction of a stream of the part that is compared.
fn per_instruction(formats: &Formats, kind: StreamKind, [control_flow, memory]: [&str; 2]) -> f64 {
    let part = formats.of(control_flow, memory).map_or(Part::default(), FormatSizes::compared);
    bytes(&part, kind) as f64 / part.instructions as f64
}

fn bytes(part: &Part, kind: StreamKind) -> u64 {
    match kind {
        StreamKind::ControlFlow => part.control_flow_bytes,
        StreamKind::Memory => part.memory_bytes,
    }
}

/// A row for each program, whose last cells are shares, the means of these, and what the paper has.
fn with_means(
    programs: &[ProgramReport],
    mut lines: Lines,
    row: impl Fn(&Formats) -> Vec<Cell>,
    paper: &[(usize, f64)],
) -> Lines {
    let columns = lines[0].len() - 1;
    let mut shares = vec![Vec::new(); columns];
    for program in programs {
        let cells = match known(program) {
            Some(formats) => row(formats),
            None => {
                let why = if program.failed.is_some() { "FAILED" } else { "-" };
                (0..columns).map(|_| Cell::Text(why.to_string())).collect()
            }
        };
        let mut line = vec![program.name.clone()];
        for (cell, shares) in cells.iter().zip(&mut shares) {
            line.push(match cell {
                Cell::Text(text) => text.clone(),
                Cell::Share(share) => {
                    shares.push(*share);
                    percent(*share)
                }
            });
        }
        lines.push(line);
    }
    if programs.len() > 1 {
        let means = shares.iter().map(|all| mean(all).map_or(String::new(), percent));
        lines.push(std::iter::once("mean".to_string()).chain(means).collect());
    }
    if !paper.is_empty() {
        let of = |at: usize| paper.iter().find(|(column, _)| *column == at);
        let cells =
            (0..columns).map(|at| of(at).map_or(String::new(), |(_, f)| percent(f / 100.0)));
        lines.push(std::iter::once(PAPER_ROW.to_string()).chain(cells).collect());
    }
    lines
}

enum Cell {
    Text(String),
    Share(f64),
}

fn streams(programs: &[ProgramReport]) -> Lines {
    let head = head([
        "M instr",
        "full-pc",
        "tags",
        "tags %",
        "bits",
        "bits %",
        ADDRESSES,
        "registers",
        "registers %",
    ]);
    let row = |formats: &Formats| {
        let of = STREAMS.map(|(_, kind, format)| per_instruction(formats, kind, format));
        let instructions = formats.of(OURS[0], OURS[1]).map_or(0, |s| s.compared().instructions);
        let text = |b: f64| Cell::Text(if b.is_finite() { format!("{b:.3}") } else { dash() });
        vec![
            Cell::Text(format!("{:.1}", instructions as f64 / 1e6)),
            text(of[0]),
            text(of[1]),
            Cell::Share(of[1] / of[0]),
            text(of[2]),
            Cell::Share(of[2] / of[0]),
            text(of[3]),
            text(of[4]),
            Cell::Share(of[4] / of[3]),
        ]
    };
    let [tags, bits, registers] = PAPER_SIZES;
    with_means(programs, head, row, &[(3, tags), (5, bits), (8, registers)])
}

fn files(programs: &[ProgramReport]) -> Lines {
    let all = programs.iter().filter_map(known).map(|f| f.sizes.as_slice());
    let names: Vec<[String; 2]> = all
        .max_by_key(|sizes| sizes.len())
        .unwrap_or(&[])
        .iter()
        .map(|s| [s.control_flow.clone(), s.memory.clone()])
        .collect();
    let row = |formats: &Formats| {
        let cell = |[control_flow, memory]: &[String; 2]| {
            let sizes = formats.of(control_flow, memory);
            Cell::Text(sizes.map_or(dash(), |s| {
                let all = s.all();
                let of = |bytes: u64| bytes as f64 / all.instructions as f64;
                let [control_flow, memory, file] =
                    [all.control_flow_bytes, all.memory_bytes, s.file_bytes].map(of);
                match file.is_finite() {
                    true => format!("{control_flow:.3}+{memory:.3} ({file:.3})"),
                    false => dash(),
                }
            }))
        };
        names.iter().map(cell).collect()
    };
    let mut lines = with_means(programs, head(names.iter().map(|n| n.join(" "))), row, &[]);
    // These are no shares.
    lines.retain(|line| line[0] != "mean");
    lines
}

fn threads(programs: &[ProgramReport]) -> Lines {
    let names = STREAMS.map(|(name, ..)| name.to_string());
    let mut lines = head(std::iter::once("threads".to_string()).chain(names));
    for (program, formats) in programs.iter().filter_map(|p| Some((p, known(p)?))) {
        let of = |format: [&str; 2]| formats.of(format[0], format[1]);
        let count = of(OURS).map_or(0, |s| s.threads.len());
        if count < 2 {
            continue;
        }
        let mut line = vec![program.name.clone(), count.to_string()];
        for (_, kind, format) in STREAMS {
            let threads = of(format).map_or(&[][..], |s| s.threads.as_slice());
            let all = threads.iter().map(|t| bytes(&t.compared, kind));
            let sum: u64 = all.clone().sum();
            let figures = [all.clone().min(), all.max(), sum.checked_div(threads.len() as u64)];
            let figures = figures.map(|bytes| bytes.map_or(dash(), mebibytes));
            line.push(figures.join("/"));
        }
        lines.push(line);
    }
    lines
}

/// Of a stream's sample, and how much that is of the first of the streams, not compressed.
pub fn share(
    formats: &Formats,
    (first, kind): (&str, StreamKind),
    format: &str,
    by: Bytes,
) -> Option<f64> {
    let (base, of) = (formats.stream(kind, first)?, formats.stream(kind, format)?);
    let base = base.bytes as f64 / base.instructions as f64;
    Some(by(of) as f64 / of.instructions as f64 / base)
}

fn compressed(programs: &[ProgramReport], streams: &[(&str, StreamKind, [&str; 2])]) -> Lines {
    let each = COMPRESSORS.iter().flat_map(|c| streams.iter().map(move |s| (c, s)));
    let head = head(each.clone().map(|((name, _), (format, ..))| format!("{format} {name}")));
    let first = (streams[0].0, streams[0].1);
    let row = |formats: &Formats| {
        let share = each.clone().map(|((_, by), (format, ..))| share(formats, first, format, *by));
        share.map(|share| Cell::Share(share.unwrap_or(f64::NAN))).collect()
    };
    with_means(programs, head, row, &[])
}

/// Nanoseconds a reference of each way.
pub fn nanoseconds(formats: &Formats) -> Vec<(&str, f64)> {
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let of = formats.recovery.iter();
    of.map(|r| (r.way.as_str(), 1e9 * least(&r.cpu_seconds) / r.references as f64)).collect()
}

fn recovery(programs: &[ProgramReport]) -> Lines {
    let mut lines = head([
        "M references".to_string(),
        "list".into(),
        "bytes".into(),
        WHOLE.join(" "),
        OURS.join(" "),
        "x list".into(),
        "list x native".into(),
        format!("{} x native", OURS.join(" ")),
    ]);
    for program in programs {
        let mut line = vec![program.name.clone()];
        let Some(formats) = known(program) else {
            line.resize(lines[0].len(), dash());
            lines.push(line);
            continue;
        };
        let references = formats.recovery.last().map_or(0, |r| r.references);
        line.push(format!("{:.1}", references as f64 / 1e6));
        let all: Vec<f64> = nanoseconds(formats).into_iter().map(|(_, ns)| ns).collect();
        line.extend(all.iter().map(|ns| ratio(*ns)));
        if let ([list, .., ours], native) = (all.as_slice(), program.variants.first()) {
            line.push(ratio(ours / list));
            let native = native.and_then(|v| v.figures).map(|f| f.cpu_seconds.median);
            let whole = native.filter(|_| !formats.is_cut());
            let times = |ns: f64| {
                whole.map_or(dash(), |native| ratio(ns * references as f64 / 1e9 / native))
            };
            line.extend([times(*list), times(*ours)]);
        }
        line.resize(lines[0].len(), dash());
        lines.push(line);
    }
    let [list, ours] = PAPER_RECOVERY;
    let mut paper = vec![PAPER_ROW.to_string()];
    paper.resize(lines[0].len() - 3, String::new());
    paper.extend([ratio(ours / list), ratio(list), ratio(ours)]);
    lines.push(paper);
    lines
}

/// What the figures do not say, and where it applies.
fn notes(report: &Report) -> Vec<(String, Vec<String>)> {
    let mut notes: BTreeMap<(u8, String), Vec<String>> = BTreeMap::new();
    for program in &report.programs {
        let mut note = |rank: u8, text: String| {
            notes.entry((rank, text)).or_default().push(program.name.clone());
        };
        if let Some(why) = &program.failed {
            note(0, format!("FAILED: {why}"));
            continue;
        }
        for variant in &program.variants {
            if let Some(why) = &variant.wrong {
                note(1, format!("WRONG: {}: {why}", variant.name));
            } else if let Some(why) = &variant.missing {
                note(2, format!("{}: {why}", variant.name));
            }
        }
        let native = program.variants.first().and_then(|v| v.figures);
        if native.is_some_and(|f| f.cpu_seconds.median < SHORT) {
            note(3, format!("less than {SHORT} s natively: mostly start-up"));
        }
        let ahead = program.variants.iter().filter_map(|v| v.trace.get());
        if ahead.map(|t| t.static_share_main).fold(1.0, f64::min) < 0.5 {
            note(
                3,
                "most of the main program's code was translated at run time: what was made ahead of time is not \
                 for this processor (--flags '--pointers thread-block'), or was not asked for"
                    .into(),
            );
        }
        let Some(known) = &program.formats else { continue };
        let Some(formats) = known.get() else {
            note(4, format!("no sizes: {}", known.missing().unwrap_or_default()));
            continue;
        };
        let trace = report.formats.as_ref().map_or(0, |s| s.trace_bytes);
        if formats.is_cut() {
            note(
                5,
                format!(
                    "a trace ends at {} MiB. Streams are those of the instructions that all of its traces have; \
                     files, and what is recovered, are of each trace as far as it goes",
                    mebibytes(trace)
                ),
            );
        }
        let counts = formats.sizes.iter().filter(|s| s.only_first_bytes.is_none());
        let counts: Vec<u64> = counts.map(|s| s.all().instructions).collect();
        if let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) {
            let apart = (most - least) as f64 / *most as f64;
            if apart > 1e-3 {
                let apart = percent(apart);
                note(6, format!("the number of instructions differs by {apart} % from run to run"));
            }
        }
    }
    let (n, of) = (report.programs.iter().filter_map(known).count(), report.programs.len());
    if (1..of).contains(&n) {
        let text = format!("those of bytes are of {n} of {of} programs");
        notes.entry((7, text)).or_default().push("means".into());
    }
    notes.into_iter().map(|((_, text), of)| (text, of)).collect()
}
