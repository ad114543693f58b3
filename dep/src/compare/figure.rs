//! The figure: bars of processor time against the native median, as SVG.
//!
//! The background is transparent, and every colour is readable on white and on black.

use std::fmt::Write;

use bench::{ProgramReport, Report, Role, Spread, VariantReport};

use super::table;

pub const WIDTH: f64 = 840.0;
pub const MARGIN: f64 = 12.0;
/// Right of the longest bar, for its value.
pub const VALUE: f64 = 56.0;
pub const BAR: f64 = 12.0;
pub const BETWEEN_GROUPS: f64 = 10.0;
pub const LINE: f64 = 18.0;
/// Of a character, roughly.
pub const CHARACTER: f64 = 6.8;

pub const TEXT: &str = "#747d87";
/// Ahead of time and at run time are neighbours: two shades of one colour.
const REWRITTEN: [&str; 8] =
    ["#1f77d0", "#74b3f2", "#1a936f", "#74c9ab", "#8757c9", "#b795e6", "#a3751f", "#cfa75a"];
const PEERS: [&str; 2] = ["#d9541e", "#d6458b"];

/// From a ratio to a place.
struct Scale {
    left: f64,
    width: f64,
    first: f64,
    last: f64,
    logarithmic: bool,
}

impl Scale {
    fn new(ratios: &[f64], left: f64) -> Scale {
        let width = WIDTH - left - VALUE - MARGIN;
        let max = ratios.iter().copied().fold(1.0, f64::max);
        let min = ratios.iter().copied().fold(1.0, f64::min);
        let logarithmic = max > 12.0;
        let first = match logarithmic {
            true if min < 1.0 => 0.5,
            true => 1.0,
            false => 0.0,
        };
        Scale { left, width, first, last: max, logarithmic }
    }

    fn at(&self, ratio: f64) -> f64 {
        let ratio = ratio.clamp(self.first, self.last);
        let share = match self.logarithmic {
            true => (ratio / self.first).ln() / (self.last / self.first).ln(),
            false => ratio / self.last,
        };
        self.left + self.width * share
    }

    fn ticks(&self) -> Vec<f64> {
        let steps = (-1..=6).flat_map(|e| [1.0, 2.0, 5.0].map(|d| d * 10f64.powi(e)));
        if self.logarithmic {
            return steps.filter(|t| (self.first..=self.last).contains(t)).collect();
        }
        let step = steps.into_iter().find(|step| self.last / step <= 8.0).unwrap_or(1.0);
        (0..).map(|n| f64::from(n) * step).take_while(|t| *t <= self.last).collect()
    }
}

pub fn svg(report: &Report) -> String {
    let programs = &report.programs;
    let all = programs.iter().map(|p| p.variants.as_slice()).max_by_key(|v| v.len());
    let columns = all.and_then(|v| v.get(1..)).unwrap_or(&[]);
    let longest = programs.iter().map(|p| p.name.chars().count()).max().unwrap_or(0);
    let left = MARGIN + longest as f64 * CHARACTER + 10.0;
    let spreads = programs.iter().flat_map(|p| &p.variants).filter_map(spread);
    let scale = Scale::new(&spreads.flat_map(|s| [s.min, s.max]).collect::<Vec<_>>(), left);

    let mut body = String::new();
    let mut y = MARGIN + LINE;
    text(&mut body, MARGIN, y, "start", &title(report), "font-size=\"14\"");
    y = legend(&mut body, columns, y + LINE + 4.0);
    let top = y;
    for program in programs {
        y = group(&mut body, program, columns.len(), &scale, y);
    }
    let mut grid = String::new();
    for tick in scale.ticks() {
        let x = scale.at(tick);
        let strength = if tick == 1.0 { "0.9" } else { "0.3" };
        let _ = writeln!(
            grid,
            "<path d=\"M{x:.1} {top:.1}V{y:.1}\" stroke=\"{TEXT}\" stroke-opacity=\"{strength}\"/>"
        );
        text(&mut body, x, y + LINE, "middle", &format!("{tick}"), "");
    }
    y += 2.0 * LINE;
    let axis = match scale.logarithmic {
        true => "processor time, times native (1 = native; logarithmic)",
        false => "processor time, times native (1 = native)",
    };
    text(&mut body, left + scale.width / 2.0, y, "middle", axis, "");
    let machine = report.machine.to_string();
    text(&mut body, MARGIN, y + LINE + 4.0, "start", &machine, "font-size=\"10\"");
    let height = y + LINE + 4.0 + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"{TEXT}\">\n{grid}{body}</svg>\n"
    )
}

fn title(report: &Report) -> String {
    let of = match report.programs.as_slice() {
        [program] => format!("{}: ", program.name),
        _ => String::new(),
    };
    format!("{of}what recording costs: median of {}, smallest to largest", report.rounds())
}

fn spread(variant: &VariantReport) -> Option<Spread> {
    let spread = variant.figures?.cpu_ratio;
    (variant.role != Role::Native && spread.max.is_finite()).then_some(spread)
}

fn colour(variants: &[VariantReport], at: usize) -> &'static str {
    let before = variants[..at].iter().filter(|v| is_peer(v) == is_peer(&variants[at])).count();
    match is_peer(&variants[at]) {
        true => PEERS[before % PEERS.len()],
        false => REWRITTEN[before % REWRITTEN.len()],
    }
}

fn is_peer(variant: &VariantReport) -> bool {
    variant.role == Role::Peer
}

/// Names of the ways, as many in a line as fit; what is below it.
fn legend(out: &mut String, variants: &[VariantReport], mut y: f64) -> f64 {
    let mut x = MARGIN;
    for (at, variant) in variants.iter().enumerate() {
        let width = 34.0 + variant.name.chars().count() as f64 * CHARACTER;
        if x + width > WIDTH - MARGIN && x > MARGIN {
            (x, y) = (MARGIN, y + LINE);
        }
        let fill = colour(variants, at);
        let box_y = y - 10.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{box_y:.1}\" width=\"11\" height=\"11\" fill=\"{fill}\"/>"
        );
        text(out, x + 16.0, y, "start", &variant.name, "");
        x += width;
    }
    y + LINE
}

/// The bars of one program; what is below them.
fn group(out: &mut String, program: &ProgramReport, bars: usize, scale: &Scale, y: f64) -> f64 {
    let height = bars.max(1) as f64 * (BAR + 1.0);
    text(out, scale.left - 8.0, y + height / 2.0 + 4.0, "end", &program.name, "");
    let zero = scale.at(scale.first);
    let variants = program.variants.get(1..).unwrap_or(&[]);
    if let Some(why) = program.failed.as_ref().map(|_| "FAILED") {
        text(out, zero + 6.0, y + height / 2.0 + 4.0, "start", why, "");
    }
    for (at, variant) in variants.iter().enumerate().filter(|_| program.failed.is_none()) {
        let top = y + at as f64 * (BAR + 1.0);
        let Some(spread) = spread(variant) else {
            let state = match &variant.missing {
                Some(why) => format!("{}: {why}", variant.name),
                None => format!("{}: {}", variant.name, table::state(program, Some(variant))),
            };
            text(out, zero + 6.0, top + 10.0, "start", &state, "font-size=\"10\"");
            continue;
        };
        let (fill, end) = (colour(variants, at), scale.at(spread.median));
        let _ = writeln!(
            out,
            "<rect x=\"{zero:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>",
            end - zero
        );
        let (from, to, middle) = (scale.at(spread.min), scale.at(spread.max), top + BAR / 2.0);
        let _ = writeln!(
            out,
            "<path d=\"M{from:.1} {middle:.1}H{to:.1}\" stroke=\"{TEXT}\" stroke-width=\"2\"/>"
        );
        let value = table::ratio(spread.median);
        text(out, to.max(end) + 5.0, top + 10.0, "start", &value, "font-size=\"10\"");
    }
    y + height + BETWEEN_GROUPS
}

pub fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str, more: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let more = if more.is_empty() { String::new() } else { format!(" {more}") };
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{text}</text>"
    );
}
