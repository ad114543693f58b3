//! What was measured, and the figures that follow from it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::formats::{FormatSettings, Formats};
use crate::machine::Machine;
use crate::measure::{Measured, Output};

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Report {
    pub machine: Machine,
    pub deprewrite: PathBuf,
    pub rounds: u32,
    /// Arguments of the run that measures start-up.
    pub startup: Vec<String>,
    /// Formats of traces were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<FormatSettings>,
    pub programs: Vec<ProgramReport>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct ProgramReport {
    pub name: String,
    pub command: String,
    /// Why there is nothing to say about the program.
    pub failed: Option<String>,
    /// Of the native run, which all others are compared with.
    pub output: Output,
    /// What a command that does nothing has in memory: smaller figures cannot be measured.
    pub resident_floor_bytes: u64,
    pub variants: Vec<VariantReport>,
    /// Of its traces, if formats are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<Known<Formats>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct VariantReport {
    pub name: String,
    pub role: Role,
    /// Of `deprewrite`, or of the peer.
    pub flags: Vec<String>,
    /// Whether its runs leave a trace.
    pub records: bool,
    /// Where its traces were written; all others' were discarded.
    pub recorded_to: Option<PathBuf>,
    /// How it behaves differently from the native program. Then there are no figures.
    pub wrong: Option<String>,
    /// Why it did not run.
    pub missing: Option<String>,
    pub rounds: Vec<Measured>,
    /// These follow from the rounds.
    #[serde(skip_deserializing)]
    pub figures: Option<Figures>,
    pub start: Known<Start>,
    pub trace: Known<TraceFigures>,
    /// Of the program, as it was given or rewritten.
    pub file_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    Native,
    Rewritten,
    /// Another tool.
    Peer,
}

/// Something that was measured, or why it was not.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(untagged)]
pub enum Known<T> {
    Known(T),
    Not { missing: String },
}

impl<T> Known<T> {
    pub fn not(why: impl Into<String>) -> Self {
        Known::Not { missing: why.into() }
    }

    pub fn get(&self) -> Option<&T> {
        match self {
            Known::Known(value) => Some(value),
            Known::Not { .. } => None,
        }
    }

    pub fn missing(&self) -> Option<&str> {
        match self {
            Known::Known(_) => None,
            Known::Not { missing } => Some(missing),
        }
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Known::not("not measured")
    }
}

/// Over the rounds.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub cpu_seconds: Spread,
    pub wall_seconds: Spread,
    /// Against the native median.
    pub cpu_ratio: Spread,
    pub wall_ratio: Spread,
    pub resident_bytes: Spread,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Start {
    pub wall_seconds: Spread,
    pub runs: Vec<f64>,
}

/// Of the run that left a trace.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct TraceFigures {
    pub instructions: u64,
    pub bytes_per_instruction: f64,
    /// Of the blocks of the main program, and of all blocks: what ran from ahead-of-time code.
    pub static_share_main: f64,
    pub static_share: f64,
    pub trace_bytes: u64,
    /// Of the streams.
    #[serde(default)]
    pub control_flow_bytes: u64,
    #[serde(default)]
    pub memory_bytes: u64,
    /// Where the recording was ended by the limit on the trace's size.
    pub only_first_bytes: Option<u64>,
}

/// Smallest, middle and largest of some figures.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted.get(middle.checked_sub(1)?)? + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Some(Spread { min: *sorted.first()?, median, max: *sorted.last()? })
    }
}

pub fn geometric_mean(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, n) = figures.into_iter().fold((0.0, 0), |(sum, n), x| (sum + x.ln(), n + 1));
    (n > 0).then(|| (sum / f64::from(n)).exp())
}

impl Report {
    /// From the JSON of an earlier measurement.
    pub fn parse(text: &str) -> Result<Report, serde_json::Error> {
        let mut report: Report = serde_json::from_str(text)?;
        report.programs.iter_mut().for_each(ProgramReport::conclude);
        Ok(report)
    }

    /// With the noun.
    pub fn rounds(&self) -> String {
        format!("{} round{}", self.rounds, if self.rounds == 1 { "" } else { "s" })
    }

    pub fn is_right(&self) -> bool {
        self.programs.iter().all(ProgramReport::is_right)
    }
}

impl ProgramReport {
    /// Another tool may fail; that says nothing about us.
    pub fn is_right(&self) -> bool {
        let rewritten = |v: &&VariantReport| v.role != Role::Peer;
        self.failed.is_none() && self.variants.iter().filter(rewritten).all(|v| v.wrong.is_none())
    }

    /// Fills in what follows from the rounds. What is wrong, or missing after all,
    /// loses everything that was measured.
    pub fn conclude(&mut self) {
        let without = |v: &&mut VariantReport| v.wrong.is_some() || v.missing.is_some();
        for variant in self.variants.iter_mut().filter(without) {
            variant.rounds.clear();
            (variant.start, variant.trace) = (Known::not("no figures"), Known::not("no figures"));
        }
        let native = self.variants.first().map(|v| v.rounds.clone()).unwrap_or_default();
        for variant in &mut self.variants {
            variant.figures = Figures::of(&variant.rounds, &native);
        }
    }
}

impl Figures {
    fn of(rounds: &[Measured], native: &[Measured]) -> Option<Figures> {
        let spread = |rounds: &[Measured], of: fn(&Measured) -> f64, base: f64| {
            Spread::of(rounds.iter().map(|m| of(m) / base))
        };
        let cpu = |m: &Measured| m.cpu_seconds;
        let wall = |m: &Measured| m.wall_seconds;
        Some(Figures {
            cpu_seconds: spread(rounds, cpu, 1.0)?,
            wall_seconds: spread(rounds, wall, 1.0)?,
            cpu_ratio: spread(rounds, cpu, spread(native, cpu, 1.0)?.median)?,
            wall_ratio: spread(rounds, wall, spread(native, wall, 1.0)?.median)?,
            resident_bytes: spread(rounds, |m| m.resident_bytes as f64, 1.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(cpu: &[f64]) -> Vec<Measured> {
        let one = |&cpu_seconds| Measured { cpu_seconds, wall_seconds: 2.0, resident_bytes: 4096 };
        cpu.iter().map(one).collect()
    }

    #[test]
    fn median_of_even_and_odd() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[3.0, 1.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(spread(&[3.0, 1.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(spread(&[]), None);
        assert_eq!(geometric_mean([]), None);
        assert!((geometric_mean([2.0, 8.0]).unwrap() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_wrong_has_no_figures() {
        let variant = |role, cpu: &[f64], wrong: Option<&str>| VariantReport {
            role,
            rounds: rounds(cpu),
            wrong: wrong.map(str::to_owned),
            ..VariantReport::default()
        };
        let mut program = ProgramReport {
            variants: vec![
                variant(Role::Native, &[1.0, 2.0, 3.0], None),
                variant(Role::Rewritten, &[2.0, 4.0, 6.0], None),
                variant(Role::Peer, &[90.0], Some("differs")),
            ],
            ..ProgramReport::default()
        };
        program.conclude();
        let figures = program.variants[1].figures.unwrap();
        assert_eq!(figures.cpu_ratio, Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(figures.wall_ratio.median, 1.0);
        assert!(program.variants[2].figures.is_none() && program.variants[2].rounds.is_empty());
        assert!(program.is_right());
        program.variants[1].wrong = Some("differs".into());
        assert!(!program.is_right());
    }
}
