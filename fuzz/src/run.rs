//! The parent that watches, and the worker that tries.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::counters::Seen;
use crate::{Choices, Target};

/// A worker that says nothing for so much processor time hangs; where the machine itself stands
/// still, or others use it, it may take longer.
const HANG: Duration = Duration::from_secs(30);
/// A worker that says nothing for so many times as long hangs, too, although it computes nothing.
const PATIENCE: u32 = 10;
/// How often a worker says how far it is.
const SAY: Duration = Duration::from_millis(500);
/// Inputs that the corpus holds.
const CORPUS: usize = 4000;
/// Failing inputs after which a worker gives up.
const FAILURES: usize = 20;

#[derive(Parser)]
struct Arguments {
    /// How long to try
    #[arg(default_value_t = 60)]
    seconds: u64,
    /// Which inputs to try
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Try this input only
    #[arg(long, value_name = "FILE")]
    reproduce: Option<PathBuf>,
    /// Where failing inputs are kept
    #[arg(long, default_value = "target/fuzz")]
    keep: PathBuf,
    /// Where the worker writes its inputs
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

/// The command of a target.
pub fn main<T: Target>(target: T) -> ExitCode {
    let arguments = Arguments::parse();
    match (&arguments.reproduce, &arguments.worker) {
        (Some(file), _) => reproduce(target, file),
        (None, Some(directory)) => work(target, &arguments, directory),
        (None, None) => watch::<T>(&arguments),
    }
}

fn reproduce<T: Target>(mut target: T, file: &Path) -> ExitCode {
    let input = match std::fs::read(file) {
        Ok(input) => input,
        Err(e) => {
            eprintln!("{}: {e}", file.display());
            return ExitCode::from(2);
        }
    };
    target.seeds();
    match target.run(&input, file) {
        Ok(outcome) => {
            println!(
                "{}: {}",
                if outcome.accepted { "accepted" } else { "rejected" },
                outcome.name
            );
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("FAILED: {what}");
            ExitCode::FAILURE
        }
    }
}

/// What a worker counts.
#[derive(Default, Clone)]
struct Counts {
    inputs: u64,
    accepted: u64,
    corpus: usize,
    reached: usize,
    failures: usize,
    outcomes: BTreeMap<String, u64>,
}

static PANIC: Mutex<String> = Mutex::new(String::new());

fn work<T: Target>(mut target: T, arguments: &Arguments, directory: &Path) -> ExitCode {
    limit_memory(T::MEGABYTES << 20);
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut text) = PANIC.lock() {
            *text = info.to_string().replace('\n', " ");
        }
    }));
    let file = directory.join("input");
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut choices = Choices::new(arguments.seed);
    let (mut counts, mut seen, mut names) = (Counts::default(), Seen::default(), HashSet::new());
    let mut failed = HashSet::new();
    let seeds = target.seeds();
    let mut corpus = Vec::new();
    let mut said = Instant::now();
    let mut number = 0;
    while Instant::now() < end && counts.failures < FAILURES {
        let input = match seeds.get(number) {
            Some(seed) => seed.clone(),
            None => {
                let mut input = choices.pick(&corpus as &[Vec<u8>]).clone();
                target.mutate(&mut choices, &mut input, &corpus);
                input
            }
        };
        if let Err(e) = std::fs::write(&file, &input) {
            println!("E {}: {e}", file.display());
            return ExitCode::from(2);
        }
        seen.start();
        let result = catch_unwind(AssertUnwindSafe(|| target.run(&input, &file)));
        let result = result
            .unwrap_or_else(|_| Err(PANIC.lock().map(|text| text.clone()).unwrap_or_default()));
        counts.inputs += 1;
        match result {
            Ok(outcome) => {
                counts.accepted += u64::from(outcome.accepted);
                let name = without_numbers(&outcome.name);
                *counts.outcomes.entry(name.clone()).or_insert(0) += 1;
                let new = seen.is_new() | names.insert(name);
                let room = corpus.len() < CORPUS;
                if number < seeds.len() || (new && room) {
                    corpus.push(input);
                } else if new {
                    let at = seeds.len() + choices.below(corpus.len() - seeds.len());
                    corpus[at] = input;
                }
            }
            Err(what) => {
                if failed.insert(without_numbers(&what)) {
                    counts.failures += 1;
                    println!("F {}", keep::<T>(&input, &what, &arguments.keep));
                }
                if number < seeds.len() {
                    corpus.push(input);
                }
            }
        }
        number += 1;
        if said.elapsed() > SAY {
            said = Instant::now();
            (counts.corpus, counts.reached) = (corpus.len(), seen.reached());
            say(&counts);
        }
    }
    (counts.corpus, counts.reached) = (corpus.len(), seen.reached());
    say(&counts);
    for (name, count) in &counts.outcomes {
        println!("O {count} {name}");
    }
    ExitCode::from(u8::from(counts.failures > 0))
}

fn say(c: &Counts) {
    let outcomes = c.outcomes.len();
    println!("P {} {} {outcomes} {} {}", c.inputs, c.accepted, c.corpus, c.reached);
    let _ = std::io::stdout().flush();
}

/// The text with each number replaced, so that it names a kind.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for (i, c) in text.char_indices() {
        // A hexadecimal number starts with a digit here.
        let digit = c.is_ascii_digit() || inside && (c.is_ascii_hexdigit() || c == 'x');
        if digit && !inside {
            let word = text[..i].chars().next_back().is_some_and(char::is_alphabetic);
            out.push(if word { c } else { '#' });
            inside = !word;
        } else if !digit {
            out.push(c);
            inside = false;
        }
    }
    out.truncate(160);
    out
}

/// Keeps a failing input; says how to try it again.
fn keep<T: Target>(input: &[u8], what: &str, directory: &Path) -> String {
    // FNV-1a: a name for the input.
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = directory.join(format!("{}-{hash:016x}", T::NAME));
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, input));
    let again = match written {
        Ok(()) => format!(
            "cargo run --release -p fuzz --bin fuzz-{} -- --reproduce {}",
            T::NAME,
            path.display()
        ),
        Err(e) => format!("not kept: {}: {e}", path.display()),
    };
    format!("FAILED {}: {}: {again}", T::NAME, what.replace('\n', " "))
}

fn limit_memory(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads one structure.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
}

/// What the parent hears.
enum Heard {
    Line(String),
    Ended,
}

fn watch<T: Target>(arguments: &Arguments) -> ExitCode {
    let shared = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    let directory = match shared.is_dir() {
        true => builder.tempdir_in(shared),
        false => builder.tempdir(),
    };
    let started = directory.and_then(|directory| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([&arguments.seconds.to_string(), "--seed", &arguments.seed.to_string()]);
        command.arg("--worker").arg(directory.path()).arg("--keep").arg(&arguments.keep);
        // A build with coverage wants to leave a file.
        command.env("LLVM_PROFILE_FILE", "/dev/null");
        // What the code under test says about each input is for nobody.
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        Ok((directory, command.spawn()?))
    });
    let (directory, mut child) = match started {
        Ok(started) => started,
        Err(e) => {
            eprintln!("{}: cannot start: {e}", T::NAME);
            return ExitCode::from(2);
        }
    };
    let start = Instant::now();
    let (progress, outcomes, hangs) = listen(&mut child);
    let status = child.wait();
    let [inputs, accepted, kinds, corpus, reached] = progress;
    println!(
        "{}: {inputs} inputs in {} s, {accepted} accepted, {} rejected, {kinds} distinct outcomes, \
         {corpus} in the corpus, {reached} code regions reached",
        T::NAME,
        start.elapsed().as_secs(),
        inputs - accepted
    );
    for outcome in outcomes.iter().take(12) {
        println!("  {outcome}");
    }
    match status {
        Ok(status) if status.success() && inputs > 0 => ExitCode::SUCCESS,
        Ok(status) if status.code() == Some(1) => ExitCode::FAILURE,
        Ok(_) | Err(_) => {
            let what = match (hangs, status) {
                (true, _) => format!("nothing for {} s", HANG.as_secs()),
                (false, Ok(status)) => format!("the worker ended: {status}"),
                (false, Err(e)) => e.to_string(),
            };
            let input = std::fs::read(directory.path().join("input")).unwrap_or_default();
            println!("{}", keep::<T>(&input, &what, &arguments.keep));
            ExitCode::FAILURE
        }
    }
}

/// Follows a worker to its end: its last figures, its outcomes, and whether it had to be killed.
fn listen(child: &mut Child) -> ([u64; 5], Vec<String>, bool) {
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    std::thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()).flatten() {
            let _ = sender.send(Heard::Line(line));
        }
        let _ = sender.send(Heard::Ended);
    });
    let (mut progress, mut outcomes) = ([0; 5], Vec::new());
    let (mut heard, mut computed) = (Instant::now(), Duration::ZERO);
    loop {
        match receiver.recv_timeout(HANG) {
            Ok(Heard::Line(line)) => match line.split_at_checked(2) {
                Some(("P ", figures)) => {
                    (heard, computed) = (Instant::now(), processor_time(child));
                    for (to, figure) in progress.iter_mut().zip(figures.split(' ')) {
                        *to = figure.parse().unwrap_or(0);
                    }
                }
                Some(("F ", failure)) => println!("{failure}"),
                Some(("O ", outcome)) => outcomes.push(outcome.to_owned()),
                _ => {}
            },
            Ok(Heard::Ended) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let busy = processor_time(child).saturating_sub(computed) >= HANG;
                if busy || heard.elapsed() >= HANG * PATIENCE {
                    let _ = child.kill();
                    return (progress, outcomes, true);
                }
            }
        }
    }
    let count = |line: &String| line.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    outcomes.sort_by_key(|line| std::cmp::Reverse(count(line)));
    (progress, outcomes, false)
}

/// What the worker has computed for, all of its threads together.
fn processor_time(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // Behind the name, which may contain anything: state is the first field, utime the 12th.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}
