//! The table, for a terminal and for a page.

use std::fmt::Write;

use crate::{ModeRow, Row, MODES};

/// Smallest, middle and largest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Spread {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (n, middle) = (sorted.len(), sorted.len() / 2);
        let median = match n % 2 {
            _ if n == 0 => f64::NAN,
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        let end = |at: Option<&f64>| at.copied().unwrap_or(f64::NAN);
        Spread { min: end(sorted.first()), median, max: end(sorted.last()) }
    }
}

fn geomean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = figures.fold((0.0, 0), |(sum, n), x| (sum + x.ln(), n + 1));
    (n > 0).then(|| (sum / f64::from(n)).exp())
}

fn native(row: &Row) -> Spread {
    Spread::of(&row.native.iter().map(|t| t.cpu).collect::<Vec<_>>())
}

/// Processor time against the native median.
fn slowdown(row: &Row, mode: &ModeRow) -> Option<Spread> {
    let base = native(row).median;
    let ratios: Vec<f64> = mode.times.iter().map(|t| t.cpu / base).collect();
    (mode.wrong.is_none() && !ratios.is_empty()).then(|| Spread::of(&ratios))
}

/// Median wall time against the native one.
fn wall(row: &Row, mode: &ModeRow) -> Option<f64> {
    let base = Spread::of(&row.native.iter().map(|t| t.wall).collect::<Vec<_>>()).median;
    let walls: Vec<f64> = mode.times.iter().map(|t| t.wall).collect();
    (mode.wrong.is_none() && !walls.is_empty()).then(|| Spread::of(&walls).median / base)
}

/// A column for each mode, in the order of [`MODES`]; WRONG where a run was.
fn mode_cells(row: &Row, cell: impl Fn(&ModeRow) -> Option<String>) -> Vec<String> {
    let wrong = |why: &Option<String>| if why.is_some() { "WRONG" } else { "-" }.to_string();
    (0..MODES.len())
        .map(|i| match row.modes.get(i) {
            Some(mode) => cell(mode).unwrap_or_else(|| wrong(&mode.wrong)),
            None => wrong(&row.failed),
        })
        .collect()
}

/// Head and lines of the table of slowdowns; the last line is the geometric mean.
fn slowdowns(rows: &[Row]) -> Vec<Vec<String>> {
    let mut head = vec!["program".to_string(), "native s".to_string()];
    head.extend(MODES.iter().map(|m| m.name.to_string()));
    head.extend(["static, wall", "B/instruction", "static share"].map(String::from));
    let mut table = vec![head];
    for row in rows {
        let mut line = vec![row.name.clone(), format!("{:.2}", native(row).median)];
        line.extend(mode_cells(row, |mode| {
            let Spread { min, median, max } = slowdown(row, mode)?;
            Some(format!("{min:.2}/{median:.2}/{max:.2}"))
        }));
        let walls = mode_cells(row, |mode| Some(format!("{:.2}", wall(row, mode)?)));
        line.push(walls[0].clone());
        line.extend(match &row.trace {
            Some(t) => [
                format!("{:.3}", t.bytes_per_instruction),
                format!("{:.1} % ({:.1} %)", 100.0 * t.static_share_main, 100.0 * t.static_share),
            ],
            None => ["-".to_string(), "-".to_string()],
        });
        table.push(line);
    }
    let mean = |of: &dyn Fn(&Row) -> Option<f64>| {
        geomean(rows.iter().filter_map(of)).map_or("-".to_string(), |m| format!("{m:.3}"))
    };
    let mut last = vec!["geomean".to_string(), String::new()];
    for i in 0..MODES.len() {
        last.push(mean(&|row| slowdown(row, row.modes.get(i)?).map(|s| s.median)));
    }
    last.push(mean(&|row| wall(row, row.modes.first()?)));
    last.push(mean(&|row| row.trace.as_ref().map(|t| t.bytes_per_instruction)));
    last.push(String::new());
    table.push(last);
    table
}

/// Head and lines of the table of start-up times.
fn starts(rows: &[Row]) -> Vec<Vec<String>> {
    let mut head = vec!["program --version, ms".to_string(), "native".to_string()];
    head.extend(MODES.iter().map(|m| m.name.to_string()));
    let mut table = vec![head];
    for row in rows.iter().filter(|row| !row.start.is_empty()) {
        let mut line = vec![row.name.clone()];
        line.extend(row.start.iter().map(|s| {
            if s.is_nan() {
                "-".to_string()
            } else {
                format!("{:.1}", s * 1e3)
            }
        }));
        table.push(line);
    }
    table
}

/// A line for each mode, while the table is not complete.
pub fn progress(row: &Row) -> String {
    let mut out = String::new();
    for mode in &row.modes {
        if let Some(s) = slowdown(row, mode) {
            let _ = writeln!(out, "  {:<12} {:.2}", mode.name, s.median);
        }
    }
    out
}

pub fn text(rows: &[Row]) -> String {
    format!("{}\n{}", aligned(&slowdowns(rows)), aligned(&starts(rows)))
}

fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.first().map_or(0, Vec::len);
    let width = |i: usize| table.iter().map(|l| l.get(i).map_or(0, |c| c.chars().count())).max();
    let widths: Vec<usize> = (0..columns).map(|i| width(i).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in table {
        let mut text = String::new();
        for (i, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = if i == 0 {
                write!(text, "{cell:<width$}")
            } else {
                write!(text, "  {cell:>width$}")
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

pub fn markdown(rows: &[Row], rounds: u32) -> String {
    let mut out = piped(&slowdowns(rows));
    let _ = write!(
        out,
        "\nProcessor time (user and system) of the process tree against the native median, \
         minimum/median/maximum of {rounds} rounds; the profile is discarded when a buffer is full \
         (`DEP_FILE=null:`). Static share: blocks executed from ahead-of-time code, of the main \
         program's (of all, libraries and ld.so included).\n\n"
    );
    out.push_str(&piped(&starts(rows)));
    out
}

fn piped(table: &[Vec<String>]) -> String {
    let mut out = String::new();
    for (i, line) in table.iter().enumerate() {
        let _ = writeln!(out, "| {} |", line.join(" | "));
        if i == 0 {
            let _ = writeln!(out, "|---{}|", "|--:".repeat(line.len() - 1));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Times;

    fn times(cpu: &[f64]) -> Vec<Times> {
        cpu.iter().map(|&cpu| Times { cpu, wall: cpu }).collect()
    }

    #[test]
    fn median_of_even_and_odd() {
        assert_eq!(Spread::of(&[3.0, 1.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(&[3.0, 1.0, 9.0]).median, 3.0);
        assert!(Spread::of(&[]).median.is_nan());
    }

    #[test]
    fn wrong_rows_say_so_and_stay_out_of_the_mean() {
        let row = |name: &str, wrong: Option<&str>, cpu: &[f64]| Row {
            name: name.into(),
            native: times(&[1.0, 2.0, 3.0]),
            modes: vec![ModeRow {
                name: MODES[0].name,
                times: times(cpu),
                wrong: wrong.map(str::to_owned),
            }],
            ..Row::default()
        };
        let rows = [
            row("a", None, &[2.0, 4.0, 6.0]),
            row("b", Some("differs"), &[90.0]),
            row("c", None, &[1.0, 1.0]),
        ];
        let out = text(&rows);
        assert!(out.contains("1.00/2.00/3.00"), "{out}");
        assert!(out.contains("WRONG"), "{out}");
        assert!(out.lines().any(|l| l.starts_with("geomean") && l.contains("1.000")), "{out}");
        assert!(rows[1].is_wrong() && !rows[0].is_wrong());
        assert!(markdown(&rows, 3).contains("| b | 2.00 | WRONG |"));
    }
}
