//! The table, for a terminal and for a page.
//!
//! One program: a line for each way of running it. Several: a line for each program, and a column
//! for each way.

use std::collections::BTreeMap;
use std::fmt::Write;

use bench::{geometric_mean, ProgramReport, Report, Role, Spread, TraceFigures, VariantReport};

/// Columns of a terminal. A wider table goes on below.
const WIDTH: usize = 100;
/// Natively less than this is mostly start-up.
pub const SHORT: f64 = 0.05;

pub type Lines = Vec<Vec<String>>;

pub fn text(report: &Report) -> String {
    page(report, &|lines| folded(lines), false)
}

pub fn markdown(report: &Report) -> String {
    page(report, &piped, true)
}

fn page(report: &Report, form: &dyn Fn(&Lines) -> String, markdown: bool) -> String {
    let code = |text: &str| if markdown { format!("`{text}`") } else { text.to_owned() };
    let mut out = format!("{}; {}\n", report.machine, report.rounds());
    let startup = match report.startup.join(" ").as_str() {
        "" => "without arguments".to_string(),
        arguments => format!("with {}", code(arguments)),
    };
    let null = code("DEP_FILE=null:");
    let ahead =
        "ahead: executed blocks whose code was made ahead of time, of the main program's/of \
                 all. RSS: largest process of the tree; < is the least that can be told.";
    match report.programs.as_slice() {
        [program] => {
            out.push_str(&format!("{}\n\n", code(&program.command)));
            out.push_str(&form(&one(program)));
            out.push_str(&wrapped(&format!(
                "cpu: user and system time of the process tree, median; x native: against the \
                 native median. start: wall time {startup}. {ahead} Recordings are \
                 discarded ({null}), except for B/instr and ahead."
            )));
        }
        programs => {
            let shown = shown(programs);
            let spread = if markdown { ", smallest-largest in brackets" } else { "" };
            out.push_str(&wrapped(&format!(
                "Median processor time (user and system) of the process tree, times the native \
                 median{spread}. Recordings are discarded ({null})."
            )));
            out.push('\n');
            out.push_str(&form(&slowdowns(programs, markdown)));
            out.push_str(&wrapped(&format!(
                "start, RSS, file: {}. start: wall time {startup}. {ahead} B/instr and \
                 ahead: of {}, from a run that left a trace.",
                shown.join("/"),
                shown.get(1).copied().unwrap_or("nothing")
            )));
            out.push('\n');
            out.push_str(&form(&sizes(programs)));
        }
    }
    let notes = notes(report);
    if !notes.is_empty() {
        out.push('\n');
    }
    for (text, of) in notes {
        let of = match of.as_slice() {
            [first, second, third, _, ..] => {
                format!("{first}, {second}, {third} and {} more", of.len() - 3)
            }
            few => few.join(", "),
        };
        let _ = writeln!(out, "* {of}: {text}");
    }
    out
}

/// A paragraph of its own.
pub fn wrapped(text: &str) -> String {
    let mut out = String::from("\n");
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out + "\n"
}

/// A line for each way of running the program.
fn one(program: &ProgramReport) -> Lines {
    let head = [
        "", "cpu s", "x native", "min-max", "wall s", "start ms", "B/instr", "ahead %", "RSS MiB",
        "file MiB",
    ];
    let mut lines = vec![head.map(String::from).to_vec()];
    for variant in &program.variants {
        let mut line = vec![variant.name.clone()];
        match &variant.figures {
            Some(f) => line.extend([
                seconds(f.cpu_seconds.median),
                ratio(f.cpu_ratio.median),
                format!("{}-{}", ratio(f.cpu_ratio.min), ratio(f.cpu_ratio.max)),
                seconds(f.wall_seconds.median),
            ]),
            None => line.extend([state(program, Some(variant)), "", "", ""].map(String::from)),
        }
        line.extend([
            start(variant),
            bytes_per_instruction(variant.trace.get()),
            ahead(variant.trace.get()),
            resident(program, variant),
            variant.file_bytes.map_or(dash(), mebibytes),
        ]);
        lines.push(line);
    }
    lines
}

/// What stands for figures that there are not.
pub fn state(program: &ProgramReport, variant: Option<&VariantReport>) -> &'static str {
    match variant {
        _ if program.failed.is_some() => "FAILED",
        // Nothing that has to be mended here.
        Some(v) if v.wrong.is_some() && v.role == Role::Peer => "differs",
        Some(v) if v.wrong.is_some() => "WRONG",
        Some(v) if v.missing.is_some() => "missing",
        _ => "-",
    }
}

pub fn dash() -> String {
    "-".to_string()
}

pub fn ratio(ratio: f64) -> String {
    match ratio.is_finite() {
        true if ratio >= 99.95 => format!("{ratio:.0}"),
        true if ratio >= 9.995 => format!("{ratio:.1}"),
        true => format!("{ratio:.2}"),
        false => dash(),
    }
}

pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.0995 => format!("{s:.3}"),
        s => format!("{s:.2}"),
    }
}

fn start(variant: &VariantReport) -> String {
    variant.start.get().map_or(dash(), |s| format!("{:.1}", 1e3 * s.wall_seconds.median))
}

fn bytes_per_instruction(trace: Option<&TraceFigures>) -> String {
    trace.map_or(dash(), |t| format!("{:.3}", t.bytes_per_instruction))
}

fn ahead(trace: Option<&TraceFigures>) -> String {
    let percent = |share: f64| match share {
        // 100.0 is all of them.
        s if s < 1.0 => format!("{:.1}", (1e3 * s).floor() / 10.0),
        _ => "100".to_string(),
    };
    trace
        .map_or(dash(), |t| format!("{}/{}", percent(t.static_share_main), percent(t.static_share)))
}

fn resident(program: &ProgramReport, variant: &VariantReport) -> String {
    let Some(figures) = &variant.figures else { return dash() };
    let (floor, median) = (program.resident_floor_bytes, figures.resident_bytes.median);
    match median as u64 <= floor + floor / 16 {
        true => format!("<{}", mebibytes(floor)),
        false => mebibytes(median as u64),
    }
}

pub fn mebibytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    match mebibytes {
        m if m >= 99.95 => format!("{m:.0}"),
        m if m >= 0.095 => format!("{m:.1}"),
        m => format!("{m:.2}"),
    }
}

/// Of the first program that was measured: all have the same.
fn variants(programs: &[ProgramReport]) -> &[VariantReport] {
    programs.iter().map(|p| p.variants.as_slice()).max_by_key(|v| v.len()).unwrap_or(&[])
}

/// Head and lines of the table of slowdowns; the last line is the geometric mean.
fn slowdowns(programs: &[ProgramReport], spread: bool) -> Lines {
    let rest = variants(programs).get(1..).unwrap_or(&[]);
    let mut head = vec!["program".to_string(), "native s".to_string()];
    head.extend(rest.iter().map(|v| v.name.clone()));
    let mut lines = vec![head];
    let ratios = |program: &ProgramReport, at: usize| -> Option<Spread> {
        Some(program.variants.get(at)?.figures?.cpu_ratio)
    };
    for program in programs {
        let native = program.variants.first().and_then(|v| v.figures);
        let native = native.map_or(dash(), |f| seconds(f.cpu_seconds.median));
        let mut line = vec![program.name.clone(), native];
        for at in 1..=rest.len() {
            line.push(match ratios(program, at) {
                Some(Spread { min, median, max }) if spread => {
                    format!("{} ({}-{})", ratio(median), ratio(min), ratio(max))
                }
                Some(spread) => ratio(spread.median),
                None => state(program, program.variants.get(at)).to_string(),
            });
        }
        lines.push(line);
    }
    let mut last = vec!["geometric mean".to_string(), String::new()];
    for at in 1..=rest.len() {
        let medians = programs.iter().filter_map(|p| ratios(p, at)).map(|s| s.median);
        last.push(geometric_mean(medians.filter(|m| m.is_finite())).map_or(dash(), ratio));
    }
    lines.push(last);
    lines
}

/// Of native and the two main ways of rewriting.
fn shown(programs: &[ProgramReport]) -> Vec<&str> {
    variants(programs)
        .iter()
        .filter(|v| v.role != Role::Peer)
        .take(3)
        .map(|v| v.name.as_str())
        .collect()
}

/// Head and lines of the table of everything else.
fn sizes(programs: &[ProgramReport]) -> Lines {
    let head = ["program", "start ms", "B/instr", "ahead %", "RSS MiB", "file MiB"];
    let mut lines = vec![head.map(String::from).to_vec()];
    let count = shown(programs).len();
    for program in programs {
        let variants = &program.variants[..count.min(program.variants.len())];
        let each = |cell: &dyn Fn(&VariantReport) -> String| match variants.is_empty() {
            true => dash(),
            false => variants.iter().map(cell).collect::<Vec<_>>().join("/"),
        };
        let trace = variants.get(1).and_then(|v| v.trace.get());
        lines.push(vec![
            program.name.clone(),
            each(&start),
            bytes_per_instruction(trace),
            ahead(trace),
            each(&|v| resident(program, v)),
            each(&|v| v.file_bytes.map_or(dash(), mebibytes)),
        ]);
    }
    lines
}

/// What the figures do not say, and where it applies; what applies to several is said once.
fn notes(report: &Report) -> Vec<(String, Vec<String>)> {
    let mut notes: BTreeMap<(u8, String), Vec<String>> = BTreeMap::new();
    let alone = report.programs.len() == 1;
    for program in &report.programs {
        let mut note = |rank: u8, text: String, of: Option<&str>| {
            let of = match (alone, of) {
                (false, Some(of)) => format!("{} {of}", program.name),
                (true, Some(of)) => of.to_owned(),
                (_, None) => program.name.clone(),
            };
            notes.entry((rank, text)).or_default().push(of);
        };
        if let Some(why) = &program.failed {
            note(0, format!("FAILED: {why}"), None);
            continue;
        }
        if program.output.bytes == 0 {
            note(3, "nothing on stdout: only how it ends is compared".into(), None);
        }
        let native = program.variants.first().and_then(|v| v.figures);
        if native.is_some_and(|f| f.cpu_seconds.median < SHORT) {
            note(3, format!("less than {SHORT} s natively: mostly start-up"), None);
        }
        for variant in &program.variants {
            let of = Some(variant.name.as_str());
            if let Some(why) = &variant.wrong {
                let state = state(program, Some(variant));
                note(1, format!("{state}: {why}"), of);
                continue;
            }
            if let Some(why) = &variant.missing {
                note(2, why.clone(), of);
                continue;
            }
            if let Some(why) = variant.start.missing() {
                note(4, format!("no start-up time: {why}"), None);
            }
            if !variant.records {
                continue;
            }
            match (variant.trace.missing(), variant.trace.get()) {
                (Some(why), _) => note(5, format!("no trace: {why}"), of),
                (_, Some(TraceFigures { only_first_bytes: Some(bytes), .. })) => {
                    let size = mebibytes(*bytes);
                    note(6, format!("B/instr and ahead: the first {size} MiB of trace"), of);
                }
                _ => {}
            }
        }
    }
    let programs = &report.programs;
    for (at, variant) in variants(programs).iter().enumerate().filter(|_| !alone) {
        let with = |p: &&ProgramReport| p.variants.get(at).is_some_and(|v| v.figures.is_some());
        let (n, of) = (programs.iter().filter(with).count(), programs.len());
        if n < of && n > 0 && at > 0 {
            let text = format!("the mean is of {n} of {of} programs");
            notes.entry((7, text)).or_default().push(variant.name.clone());
        }
    }
    let notes = notes.into_iter().map(|((_, text), mut of)| {
        of.dedup();
        (text, of)
    });
    notes.collect()
}

/// Columns that do not fit go on below, beside the first column again.
pub fn folded(lines: &Lines) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    let mut from = 1;
    while from < columns {
        let mut to = from;
        let mut total = widths[0];
        while to < columns && (to == from || total + 2 + widths[to] <= WIDTH) {
            total += 2 + widths[to];
            to += 1;
        }
        for line in lines {
            let mut text = format!("{:<1$}", line[0], widths[0]);
            for at in from..to {
                let _ = write!(text, "  {:>1$}", line[at], widths[at]);
            }
            let _ = writeln!(out, "{}", text.trim_end());
        }
        if to < columns {
            out.push('\n');
        }
        from = to;
    }
    out
}

pub fn piped(lines: &Lines) -> String {
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let _ = writeln!(out, "| {} |", line.join(" | "));
        if i == 0 {
            let _ = writeln!(out, "|---{}|", "|--:".repeat(line.len() - 1));
        }
    }
    out
}
