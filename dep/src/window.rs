//! `dep window`: how much of a run lies between an instruction, when it was last executed, and the end.
//!
//! If the instruction is where a program goes wrong and the end is its crash, that is how much of the run
//! somebody needs who looks for the cause.

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
    let row = WindowRow {
        from: from.into(),
        thread: name(thread),
        last_thread: name(counter.thread),
        times: counter.times,
        instructions: counter.instructions - instructions,
        turns: counter.turns - turns,
        all_instructions: counter.instructions,
        all_turns: counter.turns,
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
