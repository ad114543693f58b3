//! Runs programs in several ways and says how they differ.

mod run;
mod tools;

pub use run::{Run, RunSpec};
pub use tools::{Mode, Tools};

use std::fmt::Write as _;

/// What the programs of one test did; every skip has a reason, every failure a report.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    skipped: Vec<(String, String)>,
    failed: Vec<(String, String)>,
}

impl Tally {
    pub fn skip(&mut self, name: &str, why: &str) {
        eprintln!("skipped {name}: {why}");
        self.skipped.push((name.to_owned(), why.to_owned()));
    }

    pub fn record(&mut self, name: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(report) => {
                eprintln!("FAILED {name}: {report}");
                self.failed.push((name.to_owned(), report));
            }
        }
    }

    /// Prints the counts; panics if anything failed.
    pub fn finish(self, test: &str) {
        let (passed, skipped, failed) = (self.passed, self.skipped.len(), self.failed.len());
        eprintln!("{test}: {passed} passed, {skipped} skipped, {failed} failed");
        let names: Vec<_> = self.failed.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.is_empty(), "{test}: {failed} failed: {}", names.join(", "));
    }
}

/// Describes how two runs of a program differ, if they do.
pub fn difference(expected: &Run, got: &Run) -> Result<(), String> {
    let mut text = String::new();
    if expected.status != got.status {
        let _ = writeln!(text, "ended with {:?}, expected {:?}", got.status, expected.status);
    }
    if expected.timed_out != got.timed_out {
        let _ = writeln!(text, "timed out: {}, expected {}", got.timed_out, expected.timed_out);
    }
    for (name, a, b) in
        [("stdout", &expected.stdout, &got.stdout), ("stderr", &expected.stderr, &got.stderr)]
    {
        if a != b {
            let _ = writeln!(text, "{name} differs:\n{}", line_diff(a, b));
        }
    }
    if text.is_empty() {
        Ok(())
    } else {
        Err(text)
    }
}

/// The first lines that differ, with one line before them.
fn line_diff(a: &[u8], b: &[u8]) -> String {
    const SHOWN: usize = 6;
    let split = |bytes: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(bytes).lines().map(|l| l.chars().take(200).collect()).collect()
    };
    let (a, b) = (split(a), split(b));
    let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let mut text = String::new();
    if let Some(line) = same.checked_sub(1).map(|i| &a[i]) {
        let _ = writeln!(text, "  {:4}   {line}", same);
    }
    for (mark, lines) in [('-', &a), ('+', &b)] {
        for (i, line) in lines.iter().enumerate().skip(same).take(SHOWN) {
            let _ = writeln!(text, "  {:4} {mark} {line}", i + 1);
        }
    }
    text
}
