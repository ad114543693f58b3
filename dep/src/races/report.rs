//! What was found, for people and programs.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use abi::ids::LiveAddr;
use serde::Serialize;
use trace::Trace;

use super::detect::Race;
use super::shadow::Access;
use crate::row::{Form, Hex, Row};
use crate::symbols::Symbols;
use crate::Stop;

/// One of the two accesses.
#[derive(Serialize)]
struct AccessRow {
    tid: u32,
    access: &'static str,
    pc: Hex,
    function: String,
    file: String,
    turn: u64,
}

/// A line, and two more, for each race.
#[derive(Serialize)]
struct RaceRow {
    address: Hex,
    size: u64,
    count: u64,
    before: AccessRow,
    behind: AccessRow,
}

impl Row for RaceRow {
    fn text(&self, out: &mut Vec<u8>) {
        let (address, size) = (self.address.0, self.size);
        let bytes = if size == 1 { "byte" } else { "bytes" };
        let times = match self.count {
            1 => String::new(),
            n => format!(", {n} times"),
        };
        let mut text = format!("race: {size} {bytes} at {address:#x}{times}");
        for row in [&self.before, &self.behind] {
            let AccessRow { tid, access, pc, function, file, turn } = row;
            let line = format!(
                "\n  {access} by thread {tid} at {:#x} {function} ({file}), turn {turn}",
                pc.0
            );
            text.push_str(&line);
        }
        out.extend_from_slice(text.as_bytes());
    }
}

/// The races of a recording.
pub struct Report {
    rows: Vec<RaceRow>,
    /// Pairs that are not listed.
    hidden: u64,
}

impl Report {
    /// `trace` has the threads. `instead`: a file among the symbols', and what it stands for.
    pub fn new(
        trace: &Trace,
        mut symbols: Symbols,
        found: &HashMap<(u64, u64), Race>,
        instead: Option<(&Path, &Path)>,
        strict: bool,
    ) -> Report {
        let (shown, hidden): (Vec<&Race>, Vec<&Race>) =
            found.values().partition(|race| strict || !is_the_librarys_own(&symbols, race));
        let mut shown = shown;
        // In the order in which they were found.
        shown.sort_by_key(|race| {
            (race.behind.turn, race.before.turn, race.behind.pc, race.before.pc)
        });
        let mut one = |access: &Access| access_row(trace, instead, &mut symbols, access);
        let rows = shown.into_iter().map(|race| RaceRow {
            address: Hex(race.address),
            size: race.size,
            count: race.count,
            before: one(&race.before),
            behind: one(&race.behind),
        });
        Report { rows: rows.collect(), hidden: hidden.len() as u64 }
    }

    /// Writes the rows; how many there were.
    pub fn write(&self, json: bool, out: &mut impl Write) -> Result<usize, Stop> {
        let form = Form::new(json);
        for row in &self.rows {
            form.write(row, out)?;
        }
        if self.hidden > 0 && !json {
            let pairs = if self.hidden == 1 { "pair" } else { "pairs" };
            let hidden = self.hidden;
            writeln!(
                out,
                "{hidden} {pairs} of the C library's own instructions (--strict lists them)"
            )?;
        }
        Ok(self.rows.len())
    }
}

fn access_row(
    trace: &Trace,
    instead: Option<(&Path, &Path)>,
    symbols: &mut Symbols,
    access: &Access,
) -> AccessRow {
    let pc = LiveAddr(access.pc);
    let place = symbols.file(pc).map(|(path, offset)| {
        let stands_for = instead.filter(|(file, _)| *file == path).map(|(_, other)| other);
        (file_name(stands_for.unwrap_or(path)), offset)
    });
    let (file, offset) = place.unwrap_or_else(|| ("no file".into(), access.pc));
    let function = symbols.name(pc).unwrap_or_else(|| format!("{file}+{offset:#x}"));
    let thread = trace.threads.get(usize::from(access.thread));
    AccessRow {
        tid: thread.map_or(0, trace::Thread::name),
        access: match (access.atomic, access.write) {
            (true, true) => "atomic store",
            (true, false) => "atomic load",
            (false, true) => "store",
            (false, false) => "load",
        },
        pc: Hex(access.pc),
        function,
        file,
        turn: access.turn,
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Whether the pair is how the C library works inside: it uses words without a lock where it does not mind
/// which value it finds (the owner of a mutex, the size of a chunk of memory, an entry of the table of
/// functions). They are words of 4 or 8 bytes, or in its own data; what it copies for the program is
/// neither as a rule.
fn is_the_librarys_own(symbols: &Symbols, race: &Race) -> bool {
    let file = |address: u64| {
        symbols.file(LiveAddr(address)).map_or_else(String::new, |(path, _)| file_name(path))
    };
    let [before, behind] = [file(race.before.pc), file(race.behind.pc)];
    let is_loader = |name: &str| name.starts_with("ld-") || name == "ld.so";
    let is_library = |name: &str| {
        is_loader(name)
            || name.starts_with("libc.")
            || name.starts_with("libc-")
            || name.starts_with("libpthread")
    };
    // The loader copies nothing for the program.
    if is_loader(&before) || is_loader(&behind) {
        return true;
    }
    let of_words = !race.before.odd && !race.behind.odd;
    is_library(&before) && is_library(&behind) && (of_words || is_library(&file(race.address)))
}
