//! `dep window`: how much of a run lies between an instruction, when it was last executed, and the end; and how
//! large the log of first loads of that part, or of the last instructions, is.
//!
//! If the instruction is where a program goes wrong and the end is its crash, that is how much of the run
//! somebody needs who looks for the cause.

mod coder;
mod intervals;
mod loads;

use std::io::Write;

use abi::ids::LiveAddr;
use serde::Serialize;
use trace::{Error, Trace};

use crate::args;
use crate::feed::{stretches, Listener, References, Wanted};
use crate::replay::Ready;
use crate::row::{Form, Hex, Row};
use crate::symbols::Symbols;
use crate::Stop;
use coder::Counts;
use intervals::{Begin, Log, Sums};
use loads::{Logs, SIZES};

/// What is between the two.
#[derive(Serialize)]
struct WindowRow {
    /// The instruction, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Hex>,
    /// The thread that ran where it begins, and the one that ran last.
    thread: u32,
    last_thread: u32,
    /// How often the instruction was executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
    /// Of all threads, that instruction among them.
    instructions: u64,
    turns: u64,
    /// Of the whole run.
    all_instructions: u64,
    all_turns: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    first_loads: Option<FirstLoads>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    log: Option<LogRow>,
}

/// First loads, in intervals of several lengths.
#[derive(Serialize)]
struct FirstLoads {
    /// Words of 32 bits that were loaded.
    loaded_words: u64,
    intervals_of: Vec<IntervalRow>,
}

#[derive(Serialize)]
struct IntervalRow {
    /// Instructions of an interval.
    length: u64,
    intervals: u64,
    /// Words that are in the log.
    logged: u64,
    /// Without a dictionary.
    plain_log_bytes: u64,
}

impl FirstLoads {
    fn new(sums: &Sums) -> FirstLoads {
        let one = |log: &Log| IntervalRow {
            length: log.length,
            intervals: log.intervals,
            logged: log.logged,
            plain_log_bytes: log.bits.div_ceil(8),
        };
        FirstLoads { loaded_words: sums.loads, intervals_of: sums.logs.iter().map(one).collect() }
    }

    fn text(&self, out: &mut Vec<u8>) {
        let mut text = format!("\n{} words loaded", self.loaded_words);
        for IntervalRow { length, intervals, logged, plain_log_bytes } in &self.intervals_of {
            text.push_str(&format!(
                "\n  intervals of {length}: {logged} words are first loads, {plain_log_bytes} bytes without a \
                 dictionary, {intervals} intervals"
            ));
        }
        out.extend_from_slice(text.as_bytes());
    }
}

/// The log of first loads of the window, as BugNet makes it.
#[derive(Serialize)]
struct LogRow {
    /// With a dictionary of 64 values.
    log_bytes: u64,
    /// Without one.
    plain_log_bytes: u64,
    intervals: u64,
    /// Words of 32 bits that were loaded, and those of them that are in the log.
    loads: u64,
    logged: u64,
    steps: u64,
    left_out: u64,
    dictionaries: Vec<DictionaryRow>,
}

#[derive(Serialize)]
struct DictionaryRow {
    values: usize,
    log_bytes: u64,
    /// Percent of the loads whose values it had, and of the log that it saves.
    found: f64,
    saved: f64,
}

impl LogRow {
    fn new(logs: &Logs) -> LogRow {
        let first = logs.counts.first().copied().unwrap_or_default();
        let percent = |part: u64, of: u64| match of {
            0 => 0.0,
            of => (part as f64 * 1000.0 / of as f64).round() / 10.0,
        };
        let one = |(&values, counts): (&usize, &Counts)| DictionaryRow {
            values,
            log_bytes: counts.bits.div_ceil(8),
            found: percent(counts.found, counts.loads),
            saved: percent(counts.plain_bits.saturating_sub(counts.bits), counts.plain_bits),
        };
        let mut dictionaries: Vec<DictionaryRow> =
            SIZES.iter().zip(&logs.counts).map(one).collect();
        dictionaries.sort_by_key(|row| row.values);
        LogRow {
            log_bytes: first.bits.div_ceil(8),
            plain_log_bytes: first.plain_bits.div_ceil(8),
            intervals: first.intervals,
            loads: first.loads,
            logged: first.logged,
            steps: logs.steps,
            left_out: logs.left_out,
            dictionaries,
        }
    }

    fn text(&self, out: &mut Vec<u8>) {
        let LogRow { log_bytes, plain_log_bytes, intervals, loads, logged, .. } = self;
        let mut text = format!(
            "\nfirst loads: {log_bytes} bytes ({plain_log_bytes} without a dictionary), {intervals} intervals, \
             {logged} of {loads} words"
        );
        for row in &self.dictionaries {
            let DictionaryRow { values, log_bytes, found, saved } = row;
            let line = format!(
                "\n  dictionary of {values}: {log_bytes} bytes, {found} % of the values, {saved} % saved"
            );
            text.push_str(&line);
        }
        if self.left_out > 0 {
            text.push_str(&format!("\n  {} instructions are left out", self.left_out));
        }
        out.extend_from_slice(text.as_bytes());
    }
}

impl Row for WindowRow {
    fn text(&self, out: &mut Vec<u8>) {
        let WindowRow { thread, last_thread, instructions, turns, .. } = self;
        let (all_instructions, all_turns) = (self.all_instructions, self.all_turns);
        let begin = match (&self.from, self.times) {
            (Some(from), Some(times)) => {
                format!("{:#x} in thread {thread} (executed {times} times)", from.0)
            }
            _ => format!("thread {thread}"),
        };
        let text = format!(
            "{instructions} instructions, {turns} turns from {begin} to the end in thread {last_thread}; of \
             {all_instructions} instructions, {all_turns} turns"
        );
        out.extend_from_slice(text.as_bytes());
        if let Some(first_loads) = &self.first_loads {
            first_loads.text(out);
        }
        if let Some(log) = &self.log {
            log.text(out);
        }
    }
}

/// Counts.
#[derive(Default)]
struct Counter {
    thread: usize,
    instructions: u64,
    turns: u64,
    times: u64,
    /// When it was last executed.
    last: Option<Begin>,
}

impl Listener for Counter {
    fn runs(&mut self, thread: usize) {
        self.thread = thread;
    }

    fn ran(&mut self, instructions: u32, turns: u32) {
        self.instructions += u64::from(instructions);
        self.turns += u64::from(turns);
    }

    fn passed(&mut self) {
        self.times += 1;
        let Counter { thread, instructions, turns, .. } = *self;
        self.last = Some(Begin { thread, instructions, turns });
    }
}

/// Shows the window of a replay, which has left `trace`.
pub fn show(
    trace: &Trace,
    ready: &Ready,
    what: &args::Window,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let failed = |why: String| Error(format!("{}: {why}", what.common.file.display()));
    let first = stretches::first(trace, ready);
    let from = what.from.as_deref().map(|from| address(trace, from)).transpose().map_err(failed)?;
    let mut all = Counter::default();
    let wanted = Wanted {
        first_of_masked: false,
        references: References::Nothing,
        synchronising: &[],
        passing: from,
    };
    stretches::run(trace, first, wanted, &mut all).map_err(|e| failed(e.0))?;
    let mut begin = match (from, all.last) {
        (Some(_), Some(begin)) => begin,
        (Some(from), None) => {
            return Err(failed(format!("the instruction at {from} was not executed")).into())
        }
        (None, _) => {
            let last = what.last.unwrap_or(u64::MAX);
            Begin { instructions: all.instructions.saturating_sub(last), ..Begin::default() }
        }
    };
    let mut first_loads = None;
    // Where the last instructions begin, their references tell, too.
    if from.is_none() || !what.loads.is_empty() {
        let mut logs = intervals::Logs::new(what.loads.clone(), begin.instructions);
        let wanted = Wanted { references: References::All, ..wanted };
        stretches::run(trace, first, wanted, &mut logs).map_err(|e| failed(e.0))?;
        let sums = logs.sums();
        begin = sums.began.unwrap_or(begin);
        first_loads = (!what.loads.is_empty()).then(|| FirstLoads::new(&sums));
    }
    let name = |thread: usize| trace.threads.get(thread).map_or(0, trace::Thread::name);
    let log = match what.log {
        true => {
            let turn = ready.script.before + begin.turns;
            Some(LogRow::new(&loads::logs(ready, from, turn).map_err(|e| failed(e.0))?))
        }
        false => None,
    };
    let row = WindowRow {
        from: from.map(Into::into),
        thread: name(begin.thread),
        last_thread: name(all.thread),
        times: from.map(|_| all.times),
        instructions: all.instructions - begin.instructions,
        turns: all.turns - begin.turns,
        all_instructions: all.instructions,
        all_turns: all.turns,
        first_loads,
        log,
    };
    Ok(Form::new(what.common.json).write(&row, out)?)
}

/// The address that is meant.
fn address(trace: &Trace, text: &str) -> Result<LiveAddr, String> {
    if let Some(digits) = text.strip_prefix("0x") {
        let address = u64::from_str_radix(digits, 16);
        return address.map(LiveAddr).map_err(|e| format!("{text}: {e}"));
    }
    let found = Symbols::new(trace).ranges(|name| name == text);
    match found.as_slice() {
        [] => Err(format!("no function or label is called {text}")),
        [one] => Ok(one.start),
        several => {
            let all: Vec<String> = several.iter().map(|r| r.start.to_string()).collect();
            Err(format!("{text} is at {}: which of them?", all.join(", ")))
        }
    }
}
