//! Runs programs in several ways and says how they differ.

mod run;
mod tools;

pub use run::{first_trace, Run, RunSpec};
pub use tools::{cache, Mode, Tools};

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::sys::{self, Status};

/// What the programs of one test did; every skip has a reason, every failure a report.
///
/// While it lives, it holds a processor: of one binary's tests as many run as there are processors. With more of them
/// at once, programs would time out.
pub struct Tally {
    test: &'static str,
    started: Instant,
    /// None while what it checks side by side holds processors of its own.
    processor: Option<Processor>,
    outcomes: Outcomes,
}

/// What some programs did.
#[derive(Default)]
pub struct Outcomes {
    passed: usize,
    prefix_only: Vec<String>,
    skipped: Vec<(String, String)>,
    failed: Vec<(String, String)>,
}

/// One of the machine's processors, for as long as it is held.
struct Processor(usize);

/// Which of [`all_processors`] are held.
static HELD: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static RELEASED: Condvar = Condvar::new();

thread_local! {
    /// The one that this thread has waited for last.
    static OURS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The processors that tests may run on, as the first of them has found them: one may have pinned itself since.
fn all_processors() -> &'static [usize] {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    ALL.get_or_init(sys::allowed_cpus)
}

/// The processor for what the calling thread is about to pin: the one that it holds.
pub fn processor() -> usize {
    OURS.get().unwrap_or_else(sys::current_cpu)
}

impl Processor {
    /// Waits for one that is free.
    fn wait() -> Self {
        let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let all = |held: &mut Vec<usize>| held.len() >= all_processors().len();
        let mut held = RELEASED.wait_while(held, all).unwrap_or_else(PoisonError::into_inner);
        let free = all_processors().iter().copied().find(|cpu| !held.contains(cpu));
        let cpu = free.expect("one is free");
        held.push(cpu);
        OURS.set(Some(cpu));
        Self(cpu)
    }
}

/// Also where a test fails.
impl Drop for Processor {
    fn drop(&mut self) {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).retain(|&cpu| cpu != self.0);
        RELEASED.notify_one();
    }
}

impl Tally {
    /// Waits for a processor.
    pub fn start(test: &'static str) -> Self {
        let processor = Some(Processor::wait());
        Self { test, started: Instant::now(), processor, outcomes: Outcomes::default() }
    }

    /// Checks all of `items`, as many at a time as there are processors: where nothing depends on how fast
    /// a program runs. What is told of them is in their order.
    pub fn side_by_side<T: Sync>(&mut self, items: &[T], check: impl Fn(&mut Outcomes, &T) + Sync) {
        self.processor = None;
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(i) else { return done };
                let _processor = Processor::wait();
                let mut outcomes = Outcomes::default();
                check(&mut outcomes, item);
                done.push((i, outcomes));
            }
        };
        let mut all = std::thread::scope(|scope| {
            let workers: Vec<_> = all_processors().iter().map(|_| scope.spawn(work)).collect();
            let done = workers.into_iter().map(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            done.flatten().collect::<Vec<_>>()
        });
        all.sort_by_key(|(i, _)| *i);
        for (_, outcomes) in all {
            self.outcomes.add(outcomes);
        }
        self.processor = Some(Processor::wait());
    }

    pub fn skip(&mut self, name: &str, why: &str) {
        self.outcomes.skip(name, why);
    }

    pub fn record(&mut self, name: &str, outcome: Result<(), String>) {
        self.outcomes.record(name, outcome);
    }

    /// See [`Outcomes::prefix_only`].
    pub fn prefix_only(&mut self, name: &str) {
        self.outcomes.prefix_only(name);
    }

    /// Prints the counts; panics if anything failed.
    pub fn finish(self) {
        let Self { test, .. } = self;
        let Outcomes { passed, prefix_only, skipped: all_skipped, failed: all_failed } =
            self.outcomes;
        let (skipped, failed) = (all_skipped.len(), all_failed.len());
        let (prefix, seconds) = (prefix_only.len(), self.started.elapsed().as_secs_f32());
        // A line for each reason, and failures behind them: who sees only a part sees these.
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, why) in &all_skipped {
            reasons.entry(why).or_default().push(name);
        }
        for (why, names) in reasons {
            eprintln!("skipped {} ({why}): {}", names.len(), names.join(" "));
        }
        if prefix > 0 {
            eprintln!("prefix only: {}", prefix_only.join(", "));
        }
        for (name, report) in &all_failed {
            eprintln!("FAILED {name}: {report}");
        }
        eprintln!(
            "{test}: {passed} passed, {skipped} skipped, {failed} failed, {prefix} prefix only, \
            {seconds:.1} s"
        );
        let names: Vec<_> = all_failed.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.is_empty(), "{test}: {failed} failed: {}", names.join(", "));
    }
}

impl Outcomes {
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

    /// Those of others, behind its own.
    fn add(&mut self, others: Outcomes) {
        self.passed += others.passed;
        self.prefix_only.extend(others.prefix_only);
        self.skipped.extend(others.skipped);
        self.failed.extend(others.failed);
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
