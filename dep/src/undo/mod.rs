//! `dep undo`: what was overwritten.

pub mod alone;

use std::io::Write;

use abi::ids::LiveAddr;
use serde::{Serialize, Serializer};
use trace::undo::{Item, Log, Store};
use trace::{undo, Error, Trace};

use crate::args::UndoSelection;
use crate::row::{Form, Hex, HexBytes, Row};
use crate::symbols::Symbols;
use crate::text::{decimal, hex, loss_reason, pair};
use crate::Stop;

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Something that a log holds.
#[derive(Serialize)]
struct UndoRow<'a> {
    tid: u32,
    #[serde(flatten)]
    what: What<'a>,
    /// Which function did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum What<'a> {
    Store {
        pc: Hex,
        address: Hex,
        size: u32,
        old: Old<'a>,
    },
    Enter {
        pc: Hex,
        enter: Hex,
        #[serde(flatten)]
        registers: Registers,
    },
    Lost {
        pc: Hex,
        lost: Hex,
        size: u64,
        why: &'a str,
    },
    Stopped {
        stopped: &'static str,
    },
    Forgotten {
        forgotten: bool,
    },
}

/// Old bytes, as far as they are known.
struct Old<'a> {
    bytes: &'a [u8],
    /// Which of them; `None`: all.
    known: Option<&'a [bool]>,
}

impl<'a> Old<'a> {
    fn all(bytes: &'a [u8]) -> Old<'a> {
        Old { bytes, known: None }
    }

    fn append(&self, out: &mut Vec<u8>) {
        match self.known {
            None => HexBytes(self.bytes).append(out),
            Some(known) => {
                out.extend(self.bytes.iter().zip(known).flat_map(|(&byte, known)| match known {
                    true => pair(byte),
                    false => *b"??",
                }))
            }
        }
    }
}

impl Serialize for Old<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.known.is_none() {
            return HexBytes(self.bytes).serialize(serializer);
        }
        let mut digits = Vec::with_capacity(2 * self.bytes.len());
        self.append(&mut digits);
        serializer.serialize_str(str::from_utf8(&digits).unwrap_or_default())
    }
}

/// By their names.
struct Registers([u64; 16]);

impl Serialize for Registers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(NAMES.iter().zip(self.0.map(Hex)))
    }
}

impl<'a> UndoRow<'a> {
    fn new(
        tid: u32,
        item: &'a Item,
        old: impl FnOnce(&'a Store) -> Old<'a>,
        function: Option<&'a str>,
    ) -> UndoRow<'a> {
        let what = match item {
            Item::Store(store) => What::Store {
                pc: store.pc.into(),
                address: store.address.into(),
                size: store.size,
                old: old(store),
            },
            Item::Enter(entered) => What::Enter {
                pc: entered.pc.into(),
                enter: entered.to.into(),
                registers: Registers(entered.registers),
            },
            Item::Lost { pc, start, len, why } => {
                What::Lost { pc: (*pc).into(), lost: (*start).into(), size: *len, why }
            }
            Item::Stopped(why) => What::Stopped { stopped: loss_reason(*why) },
            Item::Forgotten => What::Forgotten { forgotten: true },
        };
        UndoRow { tid, what, function }
    }
}

impl Row for UndoRow<'_> {
    fn text(&self, out: &mut Vec<u8>) {
        decimal(out, u64::from(self.tid));
        out.push(b' ');
        match &self.what {
            What::Store { pc, address, size, old } => {
                hex(out, pc.0);
                out.push(b' ');
                hex(out, address.0);
                out.push(b' ');
                decimal(out, u64::from(*size));
                out.push(b' ');
                old.append(out);
            }
            What::Enter { pc, enter, registers } => {
                hex(out, pc.0);
                out.extend_from_slice(b" enter ");
                hex(out, enter.0);
                for (name, value) in NAMES.iter().zip(registers.0) {
                    out.push(b' ');
                    out.extend_from_slice(name.as_bytes());
                    out.push(b'=');
                    hex(out, value);
                }
            }
            What::Lost { pc, lost, size, why } => {
                hex(out, pc.0);
                out.extend_from_slice(b" lost ");
                if *size == 0 {
                    out.extend_from_slice(b"somewhere");
                } else {
                    hex(out, lost.0);
                    out.extend_from_slice(b"..");
                    hex(out, lost.0.saturating_add(*size));
                }
                out.push(b' ');
                out.extend_from_slice(why.as_bytes());
            }
            What::Stopped { stopped } => {
                out.extend_from_slice(b"recording stopped: ");
                out.extend_from_slice(stopped.as_bytes());
            }
            What::Forgotten { .. } => {
                out.extend_from_slice(b"forgotten what it did before (ring)");
            }
        }
        if let Some(name) = self.function {
            out.push(b' ');
            out.extend_from_slice(name.as_bytes());
        }
    }
}

/// The function that has done it, if it is to be named.
fn function(item: &Item, symbols: &mut Symbols) -> Option<String> {
    let (Item::Store(Store { pc, .. }) | Item::Lost { pc, .. }) = item else { return None };
    Some(symbols.name(*pc).unwrap_or_else(|| "?".into()))
}

/// Lists what a trace has: `left` lines at most. Returns how many more there could be.
pub fn list(
    trace: &Trace,
    what: &UndoSelection,
    left: u64,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    if let Some(tid) = what.thread.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(Error(format!("the trace has no thread {tid}")).into());
    }
    match what.is_newest_first() {
        true => newest_first(trace, what, left, out),
        false => everything(trace, what, left, out),
    }
}

fn everything(
    trace: &Trace,
    what: &UndoSelection,
    mut left: u64,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let form = Form::new(what.common.json);
    let mut result = Ok(());
    let mut line = Vec::new();
    let wanted = |t: &trace::Thread| what.thread.is_none_or(|tid| tid == t.name());
    undo::read(trace, wanted, |thread, items| {
        let tid = trace.threads[thread].name();
        for item in &items.items {
            if left == 0 {
                return false;
            }
            left -= 1;
            line.clear();
            let row = UndoRow::new(tid, item, |store| Old::all(items.old(store)), None);
            result = form.append(&row, &mut line).and_then(|()| out.write_all(&line));
            if result.is_err() {
                return false;
            }
        }
        left > 0
    })?;
    result?;
    Ok(left)
}

/// Newest first, over all threads: all of it, or what concerns one address, with function names.
fn newest_first(
    trace: &Trace,
    what: &UndoSelection,
    mut left: u64,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let log = match what.address {
        Some(address) => Log::new_about(trace, LiveAddr(address))?,
        None => Log::new(trace)?,
    };
    let mut symbols = Symbols::new(trace);
    for pair in log.unordered() {
        let [one, other] = pair.threads.map(|thread| trace.threads[thread].name());
        eprintln!(
            "dep: warning: threads {one} (at {}) and {other} (at {}) write to {} without \
             an order between them",
            pair.pcs[0], pair.pcs[1], pair.address
        );
    }
    let form = Form::new(what.common.json);
    let mut line = Vec::new();
    for (thread, item) in log.newest_first() {
        let tid = trace.threads[thread].name();
        if what.thread.is_some_and(|wanted| wanted != tid) {
            continue;
        }
        if left == 0 {
            break;
        }
        left -= 1;
        let name = what.address.and_then(|_| function(item, &mut symbols));
        let old = |store| Old::all(log.threads[thread].old(store));
        line.clear();
        form.append(&UndoRow::new(tid, item, old, name.as_deref()), &mut line)?;
        out.write_all(&line)?;
    }
    Ok(left)
}
