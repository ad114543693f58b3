//! Runs programs in several ways and says how they differ.

mod run;
mod tools;

pub use run::{Run, RunSpec};
pub use tools::{Mode, Tools};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::sys::Status;

/// What the programs of one test did; every skip has a reason, every failure a report.
///
/// While it lives, no other test of the same binary runs: each of them keeps the processors busy,
/// and times out or disturbs what others measure if they run side by side.
pub struct Tally {
    test: &'static str,
    started: Instant,
    _turn: MutexGuard<'static, ()>,
    passed: usize,
    prefix_only: Vec<String>,
    skipped: Vec<(String, String)>,
    failed: Vec<(String, String)>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Tally {
    /// Waits for the test's turn.
    pub fn start(test: &'static str) -> Self {
        // A test that failed has released its turn all the same.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            test,
            started: Instant::now(),
            _turn: turn,
            passed: 0,
            prefix_only: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
        }
    }

    pub fn skip(&mut self, name: &str, why: &str) {
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

    /// What is compared under this name is compared only as far as the oracle went.
    pub fn prefix_only(&mut self, name: &str) {
        self.prefix_only.push(name.to_owned());
    }

    /// Prints the counts; panics if anything failed.
    pub fn finish(self) {
        let Self { test, passed, .. } = self;
        let (skipped, failed) = (self.skipped.len(), self.failed.len());
        let (prefix, seconds) = (self.prefix_only.len(), self.started.elapsed().as_secs_f32());
        // A line for each reason, and failures behind them: who sees only a part sees these.
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, why) in &self.skipped {
            reasons.entry(why).or_default().push(name);
        }
        for (why, names) in reasons {
            eprintln!("skipped {} ({why}): {}", names.len(), names.join(" "));
        }
        if prefix > 0 {
            eprintln!("prefix only: {}", self.prefix_only.join(", "));
        }
        for (name, report) in &self.failed {
            eprintln!("FAILED {name}: {report}");
        }
        eprintln!(
            "{test}: {passed} passed, {skipped} skipped, {failed} failed, {prefix} prefix only, \
            {seconds:.1} s"
        );
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

/// What a run must look like that the runtime stops because of what the program does.
pub fn is_refused(run: &Run) -> Result<(), String> {
    const REFUSED: Status = Status::Exited(121);
    let text = String::from_utf8_lossy(&run.stderr);
    if run.status != REFUSED {
        return Err(format!("ended with {:?}, expected {REFUSED:?}\n{text}", run.status));
    }
    if text.lines().count() != 1 || !text.starts_with("deprewrite: the program ") {
        return Err(format!("expected one line on stderr that says why:\n{text}"));
    }
    Ok(())
}
