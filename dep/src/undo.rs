//! `dep undo`: what was overwritten.

use std::io::Write;

use abi::ids::LiveAddr;
use trace::undo::{Item, Items, Log, Store};
use trace::{undo, Error, Trace};

use crate::args::UndoSelection;
use crate::symbols::Symbols;
use crate::text::{hex, json_string, loss_reason};
use crate::Stop;

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

pub fn list(trace: &Trace, what: &UndoSelection, out: &mut impl Write) -> Result<(), Stop> {
    if let Some(tid) = what.thread.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(Error(format!("the trace has no thread {tid}")).into());
    }
    match what.address.is_some() || what.backwards {
        true => newest_first(trace, what, out),
        false => everything(trace, what, out),
    }
}

fn everything(trace: &Trace, what: &UndoSelection, out: &mut impl Write) -> Result<(), Stop> {
    let mut left = what.limit.unwrap_or(u64::MAX);
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
            match what.common.json {
                true => json(&mut line, tid, item, &items, None),
                false => text(&mut line, tid, item, &items, None),
            }
            result = out.write_all(&line);
            if result.is_err() {
                return false;
            }
        }
        left > 0
    })?;
    Ok(result?)
}

/// Newest first, over all threads: all of it, or what concerns one address, with function names.
fn newest_first(trace: &Trace, what: &UndoSelection, out: &mut impl Write) -> Result<(), Stop> {
    let log = match what.address {
        Some(address) => Log::new_about(trace, LiveAddr(address))?,
        None => Log::new(trace)?,
    };
    let mut symbols = Symbols::new(trace, what.common.output.as_deref());
    for pair in log.unordered() {
        let [one, other] = pair.threads.map(|thread| trace.threads[thread].name());
        eprintln!(
            "dep: warning: threads {one} (at {}) and {other} (at {}) write to {} without \
             an order between them",
            pair.pcs[0], pair.pcs[1], pair.address
        );
    }
    let mut left = what.limit.unwrap_or(u64::MAX);
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
        let pc = match item {
            Item::Store(store) => Some(store.pc),
            Item::Lost { pc, .. } => Some(*pc),
            Item::Enter(_) | Item::Stopped(_) | Item::Forgotten => None,
        };
        let name = pc.filter(|_| what.address.is_some());
        let name = name.map(|pc| symbols.name(pc).unwrap_or_else(|| "?".into()));
        line.clear();
        match what.common.json {
            true => json(&mut line, tid, item, &log.threads[thread], name.as_deref()),
            false => text(&mut line, tid, item, &log.threads[thread], name.as_deref()),
        }
        out.write_all(&line)?;
    }
    Ok(())
}

fn bytes(line: &mut Vec<u8>, old: &[u8]) {
    for byte in old {
        let digit = |n: u8| b"0123456789abcdef"[usize::from(n)];
        line.extend([digit(byte >> 4), digit(byte & 15)]);
    }
}

fn text(line: &mut Vec<u8>, tid: u32, item: &Item, items: &Items, name: Option<&str>) {
    line.extend_from_slice(format!("{tid} ").as_bytes());
    match item {
        Item::Store(store) => {
            let Store { pc, address, size, .. } = *store;
            hex(line, pc.0);
            line.push(b' ');
            hex(line, address.0);
            line.extend_from_slice(format!(" {size} ").as_bytes());
            bytes(line, items.old(store));
        }
        Item::Enter(entered) => {
            hex(line, entered.pc.0);
            line.extend_from_slice(b" enter ");
            hex(line, entered.to.0);
            for (name, value) in NAMES.iter().zip(entered.registers) {
                line.extend_from_slice(format!(" {name}=").as_bytes());
                hex(line, value);
            }
        }
        Item::Lost { pc, start, len, why } => {
            hex(line, pc.0);
            line.extend_from_slice(b" lost ");
            if *len == 0 {
                line.extend_from_slice(b"somewhere");
            } else {
                hex(line, start.0);
                line.extend_from_slice(b"..");
                hex(line, start.0.saturating_add(*len));
            }
            line.extend_from_slice(format!(" {why}").as_bytes());
        }
        Item::Stopped(why) => {
            line.extend_from_slice(format!("recording stopped: {}", loss_reason(*why)).as_bytes());
        }
        Item::Forgotten => line.extend_from_slice(b"forgotten what it did before (ring)"),
    }
    if let Some(name) = name {
        line.extend_from_slice(format!(" {name}").as_bytes());
    }
    line.push(b'\n');
}

fn json(line: &mut Vec<u8>, tid: u32, item: &Item, items: &Items, name: Option<&str>) {
    line.extend_from_slice(format!("{{\"tid\":{tid}").as_bytes());
    let mut field = |name: &str, value: u64| {
        line.extend_from_slice(format!(",\"{name}\":\"{value:#x}\"").as_bytes());
    };
    match item {
        Item::Store(store) => {
            field("pc", store.pc.0);
            field("address", store.address.0);
            line.extend_from_slice(format!(",\"size\":{},\"old\":\"", store.size).as_bytes());
            bytes(line, items.old(store));
            line.push(b'"');
        }
        Item::Enter(entered) => {
            field("pc", entered.pc.0);
            field("enter", entered.to.0);
            for (name, value) in NAMES.iter().zip(entered.registers) {
                field(name, value);
            }
        }
        Item::Lost { pc, start, len, why } => {
            field("pc", pc.0);
            field("lost", start.0);
            line.extend_from_slice(format!(",\"size\":{len},\"why\":").as_bytes());
            line.extend_from_slice(json_string(why).as_bytes());
        }
        Item::Stopped(why) => {
            let why = json_string(loss_reason(*why));
            line.extend_from_slice(format!(",\"stopped\":{why}").as_bytes());
        }
        Item::Forgotten => line.extend_from_slice(b",\"forgotten\":true"),
    }
    if let Some(name) = name {
        line.extend_from_slice(format!(",\"function\":{}", json_string(name)).as_bytes());
    }
    line.extend_from_slice(b"}\n");
}
