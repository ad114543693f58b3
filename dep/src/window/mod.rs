//! `dep window`: how much of a run lies between an instruction, when it was last executed, and the end.
//!
//! If the instruction is where a program goes wrong and the end is its crash, that is how much of the run
//! somebody needs who looks for the cause.

mod coder;
mod loads;

use std::io::Write;

use abi::ids::LiveAddr;
use serde::Serialize;
use trace::{Error, Trace};

use crate::args;
use crate::feed::{self, Listener, References, Wanted};
use crate::replay::Ready;
use crate::row::{Form, Hex, Row};
use crate::symbols::Symbols;
use crate::Stop;
use coder::Counts;
use loads::{Logs, SIZES};

/// What is between the two.
#[derive(Serialize)]
struct WindowRow {
    from: Hex,
    /// The thread that executed it last, and the one that ran last.
    thread: u32,
    last_thread: u32,
    /// How often it was executed.
    times: u64,
    /// Of all threads, that instruction among them.
    instructions: u64,
    turns: u64,
    /// Of the whole run.
    all_instructions: u64,
    all_turns: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    log: Option<LogRow>,
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
        let WindowRow { from, thread, last_thread, times, instructions, turns, .. } = self;
        let (all_instructions, all_turns) = (self.all_instructions, self.all_turns);
        let text = format!(
            "{instructions} instructions, {turns} turns from {:#x} in thread {thread} (executed {times} \
             times) to the end in thread {last_thread}; of {all_instructions} instructions, \
             {all_turns} turns",
            from.0
        );
        out.extend_from_slice(text.as_bytes());
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
    /// Thread, instructions and turns when it was last executed.
    last: Option<(usize, u64, u64)>,
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
        self.last = Some((self.thread, self.instructions, self.turns));
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
    let from = address(trace, &what.from).map_err(failed)?;
    let mut counter = Counter::default();
    let wanted =
        Wanted { references: References::Nothing, synchronising: &[], passing: Some(from) };
    feed::run(trace, feed::first(trace, ready), wanted, &mut counter).map_err(|e| failed(e.0))?;
    let Some((thread, instructions, turns)) = counter.last else {
        return Err(failed(format!("the instruction at {from} was not executed")).into());
    };
    let name = |thread: usize| trace.threads.get(thread).map_or(0, trace::Thread::name);
    let log = match what.log {
        true => {
            let turn = ready.script.before + turns;
            Some(LogRow::new(&loads::logs(ready, from, turn).map_err(|e| failed(e.0))?))
        }
        false => None,
    };
    let row = WindowRow {
        from: from.into(),
        thread: name(thread),
        last_thread: name(counter.thread),
        times: counter.times,
        instructions: counter.instructions - instructions,
        turns: counter.turns - turns,
        all_instructions: counter.instructions,
        all_turns: counter.turns,
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
