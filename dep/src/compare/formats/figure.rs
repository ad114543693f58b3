//! The figure: time, compressed streams and recovery, a panel of bars each, as SVG.

use std::fmt::Write;

use bench::{Formats, ProgramReport, Report, StreamKind};

use super::super::figure::{
    text, BAR, BETWEEN_GROUPS, CHARACTER, LINE, MARGIN, TEXT, VALUE, WIDTH,
};
use super::super::table::ratio;
use super::table::{nanoseconds, share, COMPRESSORS};
use super::{ADDRESSES, OURS, WHOLE};

/// Three shades of three colours: a format is a colour, a compressor a shade.
const COLOURS: [&str; 9] = [
    "#1f77d0", "#4e97e0", "#8fc0f2", "#1a936f", "#49b392", "#8bd6bd", "#8757c9", "#a37ddb",
    "#c4a8ea",
];

/// Bars of one kind for each program.
struct Panel {
    title: String,
    axis: &'static str,
    bars: Vec<String>,
    /// Of each program; what it has no figure of is left out.
    groups: Vec<(String, Vec<Option<f64>>)>,
}

pub fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = MARGIN;
    for panel in panels(report) {
        y = draw(&mut body, &panel, y);
    }
    let machine = report.machine.to_string();
    text(&mut body, MARGIN, y + LINE, "start", &machine, "font-size=\"10\"");
    let height = y + LINE + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"{TEXT}\">\n{body}</svg>\n"
    )
}

fn panels(report: &Report) -> [Panel; 4] {
    let each = |bars: &dyn Fn(&ProgramReport) -> Vec<Option<f64>>| {
        report.programs.iter().map(|p| (p.name.clone(), bars(p))).collect::<Vec<_>>()
    };
    let time = [OURS, WHOLE].map(|format| format.join(" "));
    let times = |p: &ProgramReport| -> Vec<Option<f64>> {
        let of = |name: &String| p.variants.iter().find(|v| v.name == *name);
        time.iter().map(|name| Some(of(name)?.figures?.cpu_ratio.median)).collect()
    };
    let compressed = |kind: StreamKind, formats: &'static [&'static str], title: &str| {
        let each_bar = || formats.iter().flat_map(|f| COMPRESSORS.iter().map(move |c| (f, c)));
        let shares = |p: &ProgramReport| -> Vec<Option<f64>> {
            let known = p.formats.as_ref().and_then(|f| f.get());
            let first = (formats[0], kind);
            let of =
                |known: &Formats, format: &str, by| Some(100.0 * share(known, first, format, by)?);
            each_bar().map(|(format, (_, by))| of(known?, format, *by)).collect()
        };
        Panel {
            title: title.to_string(),
            axis: "percent",
            bars: each_bar().map(|(format, (name, _))| format!("{format} {name}")).collect(),
            groups: each(&shares),
        }
    };
    let ways = report.programs.iter().filter_map(|p| p.formats.as_ref()?.get());
    let ways = ways.map(|f| f.recovery.iter().map(|r| r.way.clone()).collect::<Vec<_>>());
    let ways = ways.max_by_key(|ways| ways.len()).unwrap_or_default();
    let recovery = |p: &ProgramReport| -> Vec<Option<f64>> {
        let known = p.formats.as_ref().and_then(|f| f.get());
        let all = known.map(nanoseconds).unwrap_or_default();
        let of = |way: &String| all.iter().find(|(name, _)| name == way).map(|(_, ns)| *ns);
        ways.iter().map(of).collect()
    };
    [
        Panel {
            title: format!("Recording, discarded: median of {}", report.rounds()),
            axis: "processor time, times native",
            bars: time.to_vec(),
            groups: each(&times),
        },
        compressed(
            StreamKind::ControlFlow,
            &["full-pc", "tags", "bits"],
            "Compressed control flow, in percent of full-pc that is not compressed",
        ),
        compressed(
            StreamKind::Memory,
            &[ADDRESSES, "registers"],
            "Compressed memory references, in percent of addresses that are not compressed",
        ),
        Panel {
            title: "Getting at {pc, address, size, type}".into(),
            axis: "nanoseconds a reference",
            bars: ways.clone(),
            groups: each(&recovery),
        },
    ]
}

/// A panel below `y`; what is below it.
fn draw(out: &mut String, panel: &Panel, mut y: f64) -> f64 {
    y += LINE;
    text(out, MARGIN, y, "start", &panel.title, "font-size=\"14\"");
    let (mut x, mut line) = (MARGIN, y + LINE + 4.0);
    for (bar, fill) in panel.bars.iter().zip(COLOURS.iter().cycle()) {
        let width = 34.0 + bar.chars().count() as f64 * CHARACTER;
        if x + width > WIDTH - MARGIN && x > MARGIN {
            (x, line) = (MARGIN, line + LINE);
        }
        let top = line - 10.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"11\" height=\"11\" fill=\"{fill}\"/>"
        );
        text(out, x + 16.0, line, "start", bar, "");
        x += width;
    }
    y = line + LINE;
    let longest = panel.groups.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let left = MARGIN + longest as f64 * CHARACTER + 10.0;
    let values = panel.groups.iter().flat_map(|(_, values)| values).flatten();
    let most = values.copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    let scale = |value: f64| match most > 0.0 {
        true => (WIDTH - left - VALUE - MARGIN) * value / most,
        false => 0.0,
    };
    for (name, values) in &panel.groups {
        let height = panel.bars.len().max(1) as f64 * (BAR + 1.0);
        text(out, left - 8.0, y + height / 2.0 + 4.0, "end", name, "");
        for (at, (value, fill)) in values.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let top = y + at as f64 * (BAR + 1.0);
            let value = value.filter(|value| value.is_finite());
            let width = value.map_or(0.0, scale);
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>"
            );
            let shown = value.map_or("-".to_string(), ratio);
            let end = left + width + 5.0;
            text(out, end, top + 10.0, "start", &shown, "font-size=\"10\"");
        }
        y += height + BETWEEN_GROUPS;
    }
    text(out, left, y + 6.0, "start", panel.axis, "font-size=\"10\"");
    y + LINE + BETWEEN_GROUPS
}
