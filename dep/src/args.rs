//! The command line.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use recording::compress::Strength;
use recording::Recording;

use crate::list::Table;
use crate::{ask, cache, compare, debug, prepare, recorder, replay};

/// Records programs, shows what a recording holds, and what recording costs.
///
/// Exit codes: 0 all right, 1 the trace or the output file that it needs cannot be read or is not
/// what the format promises, 2 wrong usage. Of `compare`: 1 also if a rewritten program is WRONG, or
/// something could not be measured. Of `replay`: 1 it differs from the recording, 2 it cannot be run. Of `record`: what the program ends with; 125 it cannot be recorded,
/// 126 it cannot be executed, 127 it is not found.
#[derive(Parser)]
#[command(name = "dep", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    #[command(flatten)]
    Quick(Quick),
    /// The processes of a recording, as a tree
    Ps(Folder),
    /// Program, threads, modules, sizes, shares of ahead-of-time code, and how it ended
    Info(Common),
    /// Executed blocks: a line `TID PC` for each
    Blocks(BlockSelection),
    /// Memory references: a line `TID PC R|W ADDRESS SIZE` for each
    Memrefs(Selection),
    /// System calls: a line `TID NAME(ARGUMENTS) = RESULT` for each, with all six argument registers
    Syscalls(CallSelection),
    /// The undo log: a line `TID PC ADDRESS SIZE OLDBYTES` for each store, and procedure entries with
    /// registers, and contents that could not be saved
    Undo(UndoSelection),
    /// Of a recording of inputs: all that was loaded from a place and stored there, with the values
    Values(Box<ask::values::Arguments>),
    /// Of a recording of inputs: where a condition on pc, registers and memory holds
    When(Box<ask::when::Arguments>),
    /// Accesses of different threads to the same bytes that nothing orders, of a recording of inputs;
    /// exit code 1 if there are any
    Races(Races),
    /// How much was executed from an instruction, when it was last executed, to the end
    Window(Window),
    /// Check everything that the format promises, of each trace; a violation ends with exit code 1
    Verify(Common),
    /// Run a recording of inputs again, without the outside, and compare
    Replay(replay::Arguments),
    /// Look at a recording of inputs in gdb: replay it, forwards and backwards
    Debug(debug::Arguments),
    /// Make one file of a recording, which every command reads
    Pack {
        /// The recording
        recording: PathBuf,
        /// The file to write; without it RECORDING.tar.zst
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Compress the traces of a recording, or one trace: every command reads them as before
    Compress {
        /// The recording, or the trace
        path: PathBuf,
        /// How much time is spent on it
        #[arg(long, value_name = "LEVEL", default_value = "fast")]
        level: Compression,
    },
    /// Leave out of a ring what its replay never looks at: pages of the memory that it begins with
    Trim(crate::trim::Arguments),
    /// Make a recording of the file that `dep pack` wrote
    Unpack {
        /// The file
        file: PathBuf,
        /// The folder to make; without it the file's name without .tar.zst
        #[arg(short, long, value_name = "FOLDER")]
        output: Option<PathBuf>,
    },
    /// Record a program that runs, all of its threads, from now on
    On(SwitchArguments),
    /// Do not record a program that runs from now on, until `dep on`
    Off(SwitchArguments),
    /// Note this moment in the trace of a program that runs
    Mark(MarkArguments),
    /// Write what the ring of a program has that runs (`dep record --keep-last`) to a trace of its own
    Dump(DumpArguments),
    /// What recording costs: a program native, rewritten ahead of time, and at run time, in turn
    Compare(Box<compare::Arguments>),
    /// Rewritten programs and libraries that are kept: list them, or remove them
    Cache(cache::Arguments),
}

/// Commands that are to be quick: making the descriptions of all the others took as long as what they do.
#[derive(Subcommand)]
pub enum Quick {
    /// Run a program, and leave a recording of it and of all that it starts
    Record(Box<recorder::Arguments>),
    /// What to run instead of a path, for the runtime
    #[command(hide = true)]
    Prepare(prepare::Arguments),
}

/// How much time is spent on compressing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Compression {
    /// Half a gigabyte a second on one processor
    Fast,
    /// A quarter of that, for fewer bytes
    Small,
}

impl From<Compression> for Strength {
    fn from(level: Compression) -> Strength {
        match level {
            Compression::Fast => Strength::Fast,
            Compression::Small => Strength::Small,
        }
    }
}

/// Their names.
const QUICK: [&str; 2] = ["record", "prepare"];

#[derive(Parser)]
#[command(name = "dep", version)]
struct QuickArgs {
    #[command(subcommand)]
    command: Quick,
}

impl Args {
    /// The command line of this process; what is wrong with it is said, and ends the process.
    pub fn of_process() -> Args {
        let is_quick = |name: &OsString| QUICK.iter().any(|quick| name == quick);
        match std::env::args_os().nth(1).as_ref().is_some_and(is_quick) {
            true => Args { command: Command::Quick(QuickArgs::parse().command) },
            false => Args::parse(),
        }
    }
}

#[derive(ClapArgs)]
pub struct Folder {
    /// The recording: its folder, or the one file of it
    pub recording: PathBuf,
    /// A JSON object a line, one for each process
    #[arg(long)]
    pub json: bool,
}

/// A process of a recording, or one of its images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Which {
    pub pid: u64,
    pub image: Option<u32>,
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.image {
            Some(image) => write!(f, "{}.{image}", self.pid),
            None => write!(f, "{}", self.pid),
        }
    }
}

/// A process, as it is typed.
pub fn which(text: &str) -> Result<Which, String> {
    let (pid, image) = match text.split_once('.') {
        Some((pid, image)) => (pid, Some(image.parse().map_err(|e| format!("{image}: {e}"))?)),
        None => (text, None),
    };
    Ok(Which { pid: pid.parse().map_err(|e| format!("{pid}: {e}"))?, image })
}

#[derive(ClapArgs)]
pub struct Common {
    /// The trace, or the recording: its folder, or the one file of it
    pub file: PathBuf,
    /// This process of the recording; PID.K: what it was after its K-th exec
    #[arg(short, long, value_name = "PID", value_parser = which)]
    pub process: Option<Which>,
    /// JSON instead of text (lists: a JSON object a line)
    #[arg(long)]
    pub json: bool,
    /// The rewritten program, if it is no longer where it ran
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Of inputs: the program that was rewritten, if the recording does not say where it is
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Of inputs that were recorded beside a profile: what their replay does, and not the profile
    #[arg(long)]
    pub replayed: bool,
}

impl Common {
    fn place(&mut self) -> (&mut PathBuf, &mut Option<Which>) {
        (&mut self.file, &mut self.process)
    }
}

#[derive(ClapArgs)]
pub struct SwitchArguments {
    /// Its process id
    pub pid: u32,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct MarkArguments {
    /// Its process id
    pub pid: u32,
    /// What the moment is called
    pub text: String,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct DumpArguments {
    /// Its process id
    pub pid: u32,
    /// The trace to write; without it PID.dump.dep in the working directory
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct Selection {
    #[command(flatten)]
    pub common: Common,
    /// Only this thread (kernel thread id)
    #[arg(long, value_name = "TID")]
    pub thread: Option<u32>,
    /// Only code from A to before B, in hexadecimal
    #[arg(long, value_name = "A..B", value_parser = range)]
    pub range: Option<Range<u64>>,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// A table of numbers in the Arrow format instead of lines; -: to stdout, as a stream
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub columns: Option<Table>,
}

#[derive(ClapArgs)]
pub struct BlockSelection {
    #[command(flatten)]
    pub what: Selection,
    /// A line `TID outside`, too, where code ran that is not recorded (`--only`, `--skip`)
    #[arg(long)]
    pub outside: bool,
}

#[derive(ClapArgs)]
pub struct CallSelection {
    #[command(flatten)]
    pub common: Common,
    /// Only this thread (kernel thread id)
    #[arg(long, value_name = "TID")]
    pub thread: Option<u32>,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

#[derive(ClapArgs)]
pub struct Races {
    #[command(flatten)]
    pub common: Common,
    /// List pairs of the C library's own instructions, too, and plain accesses to memory that is
    /// synchronised with
    #[arg(long)]
    pub strict: bool,
    /// Functions with this in their symbols synchronise with plain loads and stores, too (acquire and
    /// release of C11); those of Rust's std::sync always do
    #[arg(long, value_name = "TEXT")]
    pub synchronising: Vec<String>,
}

#[derive(ClapArgs)]
pub struct Window {
    #[command(flatten)]
    pub common: Common,
    /// From the last time that this instruction was executed: a symbol of the program, or an address of the
    /// recorded process in hexadecimal (0x...)
    #[arg(long, value_name = "SYMBOL|ADDRESS", required_unless_present = "last")]
    pub from: Option<String>,
    /// The last N instructions of all threads (10M)
    #[arg(long, value_name = "N", conflicts_with = "from", value_parser = count)]
    pub last: Option<u64>,
    /// How many first loads there are, and how large their log is without a dictionary, in checkpoint intervals
    /// of so many instructions
    #[arg(long, value_name = "LENGTH,...", value_delimiter = ',', value_parser = count, num_args = 0..=1,
        require_equals = true, default_missing_values = ["10k", "100k", "1M", "10M", "100M"])]
    pub loads: Vec<u64>,
    /// How large a log of first loads of it is, as BugNet makes it: by stepping, some thousand
    /// instructions a second
    #[arg(long)]
    pub log: bool,
}

#[derive(ClapArgs)]
pub struct UndoSelection {
    #[command(flatten)]
    pub common: Common,
    /// Only writes to this address (hexadecimal), newest first, with the function that wrote
    #[arg(long, value_name = "A", value_parser = address)]
    pub address: Option<u64>,
    /// All threads, newest first: written back line by line, it takes memory to the start of the log (threads that were
    /// watched: one after another, as far as each knows)
    #[arg(long, conflicts_with = "address")]
    pub backwards: bool,
    /// Only this thread (kernel thread id)
    #[arg(long, value_name = "TID")]
    pub thread: Option<u32>,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

impl UndoSelection {
    pub fn is_newest_first(&self) -> bool {
        self.address.is_some() || self.backwards
    }
}

impl Command {
    /// The table that is written instead of lines.
    pub fn table(&self) -> Option<&Table> {
        match self {
            Command::Blocks(blocks) => blocks.what.columns.as_ref(),
            Command::Memrefs(what) => what.columns.as_ref(),
            _ => None,
        }
    }

    /// A trace in the folder of a recording is that process of the recording: a replay needs what is beside it.
    pub fn find_recording(&mut self) {
        let (file, process) = match self {
            Command::Blocks(blocks) => blocks.what.common.place(),
            Command::Memrefs(what) => what.common.place(),
            Command::Syscalls(what) => what.common.place(),
            Command::Undo(what) => what.common.place(),
            Command::Races(what) => what.common.place(),
            Command::Window(what) => what.common.place(),
            Command::Values(what) => what.common.place(),
            Command::When(what) => what.common.place(),
            Command::Replay(what) => (&mut what.file, &mut what.process),
            Command::Debug(what) => (&mut what.file, &mut what.process),
            _ => return,
        };
        if process.is_some() {
            return;
        }
        if let Some((recording, name)) = Recording::with_trace(file) {
            *file = recording;
            *process = Some(Which { pid: name.pid, image: Some(name.image) });
        }
    }

    /// Of a command that reads a trace.
    pub fn common(&self) -> Option<&Common> {
        match self {
            Command::Info(common) | Command::Verify(common) => Some(common),
            Command::Blocks(blocks) => Some(&blocks.what.common),
            Command::Memrefs(what) => Some(&what.common),
            Command::Syscalls(what) => Some(&what.common),
            Command::Undo(what) => Some(&what.common),
            Command::Races(what) => Some(&what.common),
            Command::Window(what) => Some(&what.common),
            Command::Quick(_)
            | Command::Ps(_)
            | Command::Replay(_)
            | Command::Debug(_)
            | Command::Values(_)
            | Command::When(_)
            | Command::Pack { .. }
            | Command::Compress { .. }
            | Command::Trim(_)
            | Command::Unpack { .. }
            | Command::On(_)
            | Command::Off(_)
            | Command::Mark(_)
            | Command::Dump(_)
            | Command::Compare(_)
            | Command::Cache(_) => None,
        }
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (start, end) = text.split_once("..").ok_or("expected A..B")?;
    let range = address(start)?..address(end)?;
    if range.start >= range.end {
        return Err("the range is empty".into());
    }
    Ok(range)
}

/// `500`, `10k`, `100M`, `1G`; more than nothing.
fn count(text: &str) -> Result<u64, String> {
    match abi::ring::Ring::parse(text) {
        Some(abi::ring::Ring::Turns(count)) => Ok(count),
        _ => Err("expected a number, as 500, 10k, 100M or 1G".into()),
    }
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|e| format!("{text}: {e}"))
}
