//! The command line, as typed and as meant.

use abi::options::{
    torture, ControlFlow, DeadRegisters, Instrument, Memory, Options, Pointers, ProcessOptions,
    RecordingOptions, Turns, LOG_MOST, LOG_STEP,
};
use abi::ring::Ring;
use abi::selection::Rules;
use abi::start::Start;
use clap::{Args, Parser, ValueEnum};
use std::path::PathBuf;

/// Rewrites an x86-64 Linux program so that it records what it executes.
///
/// Exit codes: 0 written, 1 not written and one line on stderr says why, 2 wrong usage.
#[derive(Parser, Debug)]
#[command(name = "deprewrite", version)]
pub struct Arguments {
    /// The program to rewrite.
    pub input: PathBuf,
    /// The program to write.
    #[arg(short, long, required_unless_present = "dump")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub how: How,
    /// Whether the translations of the libraries travel in the output, are shared in the cache, or are
    /// made when they run.
    #[arg(long, value_enum, default_value = "embed")]
    libraries: LibrariesArg,
    /// A further library whose translation travels in the output, or is put into the cache (for
    /// dlopen).
    #[arg(long, value_name = "FILE")]
    pub with_library: Vec<PathBuf>,
    /// A trace of the rewritten program: code that was found only when it ran is translated ahead
    /// of time, and so are the libraries that it opened.
    #[arg(long, value_name = "TRACE")]
    pub learn: Vec<PathBuf>,
    /// Print a stage on stdout.
    #[arg(long, value_enum)]
    pub dump: Option<Dump>,
    /// Restrict the dump to one function.
    #[arg(long, value_name = "NAME|ADDRESS", requires = "dump")]
    pub function: Option<String>,
    /// Say how long each stage took.
    #[arg(long)]
    pub time: bool,
    /// Print the summary as JSON on stdout.
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors, and what makes the program slow.
    #[arg(short, long)]
    pub quiet: bool,
    /// The options are for several programs: what --only and --skip name need not be in each.
    #[arg(skip)]
    pub for_several: bool,
}

/// What is recorded, and by which code: the same for all programs of a recording.
#[derive(Args, Clone, Debug)]
pub struct How {
    /// What is inserted.
    #[arg(long, value_enum, default_value = "dep")]
    instrument: InstrumentArg,
    /// How control flow is recorded [default: tags]
    // Without a default value: whether it was given says something of itself.
    #[arg(long, value_enum)]
    control_flow: Option<ControlFlowArg>,
    /// How memory references are recorded [default: registers]
    #[arg(long, value_enum)]
    memory: Option<MemoryArg>,
    /// Whether scratch registers are dead ones, or are spilled so that every register keeps its value.
    #[arg(long, value_enum, default_value = "reuse")]
    dead_registers: DeadRegistersArg,
    /// Most bytes of chunks and events that a trace keeps, also as a size (64MiB, 2GiB; default: unlimited). When it is full,
    /// recording stops.
    #[arg(long, value_name = "SIZE", value_parser = log_size)]
    log_size: Option<u32>,
    /// When the log is full, drop its oldest chunks and go on.
    #[arg(long, requires = "log_size")]
    ring: bool,
    /// Record only this code: MODULE, [MODULE]:FUNCTION or [MODULE:]A..B, with globs for names; `main`
    /// is the program. The rest runs unrecorded.
    #[arg(long, value_name = "SELECTOR", value_delimiter = ',')]
    only: Vec<String>,
    /// Do not record this code. It is stronger than --only.
    #[arg(long, value_name = "SELECTOR", value_delimiter = ',')]
    skip: Vec<String>,
    /// When the recording begins: entry (the default), main, second-thread, signal:N, or off (with `dep on`);
    /// DEP_START says otherwise for one run.
    #[arg(long, value_name = "WHEN", value_parser = start)]
    start: Option<Start>,
    /// Code that is translated ahead of time is so twice, so that a recording that is switched off costs
    /// no more than --instrument none. --start implies it.
    #[arg(long)]
    switchable: bool,
    /// When code is translated: ahead of time, or only when it runs.
    #[arg(long, value_enum, default_value = "static")]
    translate: TranslateArg,
    /// Where the look-up tables lie: `high` leaves addresses from 2 GiB on to the program; `low` is a
    /// little faster.
    #[arg(long, value_enum, default_value = "high")]
    tables: TablesArg,
    /// Where the buffer pointers live; `vector` needs AVX-512VL, `xmm15` AVX without AVX-512. [default: what this processor
    /// has; thread-block, which every processor has, if that is neither]
    #[arg(long, value_enum, default_value_t = PointersArg::here(), hide_default_value = true)]
    pointers: PointersArg,
    /// The code is for `dep replay`: it counts turns, and takes inputs from a script.
    #[arg(long, hide = true)]
    replays: bool,
    /// The replay stops at calls only.
    #[arg(long, hide = true, requires = "replays")]
    straight: bool,
    /// Of inputs: one thread runs at a time, or all at once, each with a view of memory of its own and to be
    /// replayed alone (experimental).
    #[arg(long, value_enum, default_value = "serial")]
    threads: ThreadsArg,
    /// Rare paths made common, for tests.
    #[arg(long, hide = true, value_enum, value_delimiter = ',')]
    torture: Vec<TortureArg>,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
pub enum Dump {
    Cfg,
    Live,
    Plan,
    Code,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum InstrumentArg {
    Dep,
    None,
    Undo,
    Inputs,
    #[value(name = "inputs,dep")]
    InputsAndDep,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
enum ThreadsArg {
    Serial,
    Watched,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum DeadRegistersArg {
    Reuse,
    Preserve,
}

fn start(text: &str) -> std::result::Result<Start, String> {
    Start::parse(text).ok_or_else(|| format!("expected {}", abi::start::EXPECTED))
}

/// Bytes, or a size as `64MiB`, as steps of the options word.
fn log_size(text: &str) -> std::result::Result<u32, String> {
    let bytes = match (text.parse(), Ring::parse(text)) {
        (Ok(bytes), _) | (_, Some(Ring::Bytes(bytes))) => bytes,
        _ => return Err("expected bytes (1000000) or a size (64KiB, 64MiB, 2GiB)".into()),
    };
    let steps = bytes.div_ceil(LOG_STEP);
    match u32::try_from(steps) {
        Ok(steps @ 1..=LOG_MOST) => Ok(steps),
        _ => Err(format!("between 1 and {} bytes", u64::from(LOG_MOST) * LOG_STEP)),
    }
}

#[derive(Clone, Copy, Default, ValueEnum, Debug)]
enum ControlFlowArg {
    #[default]
    Tags,
    FullPc,
    Bits,
}

#[derive(Clone, Copy, Default, ValueEnum, Debug)]
enum MemoryArg {
    #[default]
    Registers,
    Addresses,
    None,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
enum TranslateArg {
    Static,
    Dynamic,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
enum LibrariesArg {
    Embed,
    Cache,
    Runtime,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum TablesArg {
    High,
    Low,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum PointersArg {
    Vector,
    Xmm15,
    ThreadBlock,
}

impl PointersArg {
    /// Of code that this processor runs as it was made.
    fn here() -> PointersArg {
        use std::is_x86_feature_detected as has;
        match () {
            () if has!("avx512vl") => PointersArg::Vector,
            () if has!("avx") && !has!("avx512f") => PointersArg::Xmm15,
            () => PointersArg::ThreadBlock,
        }
    }
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum TortureArg {
    Spill,
    Drop,
    TinyBuffers,
    Pauses,
    Misplaced,
    Serial,
    Scattered,
    KeptCalls,
}

/// The name of a value, as it is typed.
fn typed(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Arguments {
    pub fn dynamic(&self) -> bool {
        self.how.translate == TranslateArg::Dynamic
    }

    pub fn embeds_libraries(&self) -> bool {
        self.libraries == LibrariesArg::Embed && !self.dynamic()
    }

    /// Whether one translation of a library serves all programs.
    pub fn shares_libraries(&self) -> bool {
        self.libraries == LibrariesArg::Cache && !self.dynamic()
    }

    /// What cannot be had together.
    pub fn check(&self) -> std::result::Result<(), &'static str> {
        self.how.check()
    }

    pub fn options(&self) -> Options {
        self.how.options()
    }
}

impl How {
    /// Records inputs, whatever `--instrument` says.
    pub fn record_inputs(&mut self) {
        self.instrument = InstrumentArg::Inputs;
    }

    fn has_inputs(&self) -> bool {
        matches!(self.instrument, InstrumentArg::Inputs | InstrumentArg::InputsAndDep)
    }

    /// Whether inputs are recorded beside a profile.
    pub fn records_both(&self) -> bool {
        matches!(self.instrument, InstrumentArg::InputsAndDep)
    }

    fn control_flow(&self) -> ControlFlowArg {
        self.control_flow.unwrap_or_default()
    }

    /// When the recording begins.
    pub fn start(&self) -> Start {
        self.start.unwrap_or(Start::Entry)
    }

    /// Whether inputs are recorded, and nothing beside them.
    pub fn records_inputs_alone(&self) -> bool {
        matches!(self.instrument, InstrumentArg::Inputs)
    }

    /// The recording is to be one that can be switched off for the price of none, if it can be switched.
    pub fn be_switchable(&mut self) {
        let is_profile = matches!(self.instrument, InstrumentArg::Dep);
        self.switchable |= is_profile && !matches!(self.control_flow(), ControlFlowArg::Bits);
    }

    /// All threads run at once, each with a view of memory.
    pub fn is_watched(&self) -> bool {
        self.threads == ThreadsArg::Watched && self.has_inputs()
    }

    /// The flags that mean the same, each with its value.
    pub fn flags(&self) -> Vec<String> {
        let How {
            instrument,
            control_flow,
            memory,
            dead_registers,
            log_size,
            ring,
            translate,
            tables,
            pointers,
            torture,
            only,
            skip,
            start,
            switchable,
            replays,
            straight,
            threads,
        } = self;
        let mut flags = Vec::new();
        let mut add = |flag: &str, value: String| flags.extend([flag.to_owned(), value]);
        add("--instrument", typed(*instrument));
        add("--control-flow", typed(control_flow.unwrap_or_default()));
        add("--memory", typed(memory.unwrap_or_default()));
        add("--dead-registers", typed(*dead_registers));
        add("--translate", typed(*translate));
        add("--tables", typed(*tables));
        add("--pointers", typed(*pointers));
        if *threads == ThreadsArg::Watched {
            add("--threads", typed(*threads));
        }
        if let Some(start) = start.filter(|&start| start != Start::Entry) {
            add("--start", start.to_string());
        }
        if let Some(steps) = log_size {
            add("--log-size", (u64::from(*steps) * LOG_STEP).to_string());
        }
        if !torture.is_empty() {
            let all: Vec<String> = torture.iter().copied().map(typed).collect();
            add("--torture", all.join(","));
        }
        for (flag, selectors) in [("--only", only), ("--skip", skip)] {
            for selector in selectors {
                add(flag, selector.clone());
            }
        }
        let set = [
            ("--ring", *ring),
            ("--switchable", *switchable),
            ("--replays", *replays),
            ("--straight", *straight),
        ];
        flags.extend(set.iter().filter(|(_, set)| *set).map(|(flag, _)| (*flag).to_owned()));
        flags
    }

    /// What cannot be had together.
    pub fn check(&self) -> std::result::Result<(), &'static str> {
        let recording = self.options().recording;
        if recording.undo() && recording.control_flow == ControlFlow::Bits {
            return Err("--instrument undo needs --control-flow tags or full-pc");
        }
        if recording.undo() && recording.memory == Memory::None {
            return Err("--instrument undo needs --memory registers or addresses");
        }
        if self.rules().is_ok_and(|rules| !rules.is_everything()) {
            if recording.control_flow == ControlFlow::Bits {
                return Err("--only and --skip need --control-flow tags or full-pc");
            }
            if recording.undo() {
                return Err("--only and --skip need --instrument dep: an undo log with holes cannot be undone");
            }
        }
        if self.switchable && (recording.undo() || recording.inputs()) {
            return Err("--switchable needs --instrument dep: no other recording has gaps");
        }
        if self.switchable && recording.control_flow == ControlFlow::Bits {
            return Err("--switchable needs --control-flow tags or full-pc");
        }
        if recording.undo() && self.start() != Start::Entry {
            return Err("--instrument undo needs --start entry: an undo log has no gaps");
        }
        if recording.control_flow == ControlFlow::Bits && self.start() != Start::Entry {
            return Err("--start needs --control-flow tags or full-pc");
        }
        if self.threads == ThreadsArg::Watched && !recording.inputs() {
            return Err("--threads needs --instrument inputs");
        }
        if recording.both() && recording.watched {
            return Err("--instrument inputs,dep needs --threads serial: a replay of watched threads has no order of all of them");
        }
        if recording.both() && self.replays {
            return Err("a replay has its inputs already: --replays needs another --instrument");
        }
        if self.straight && recording.streams() {
            return Err(
                "--straight needs --instrument none: what is recorded has its own count of turns",
            );
        }
        if recording.inputs() {
            if self.start() != Start::Entry {
                return Err("--instrument inputs needs --start entry: a replay begins there");
            }
            if recording.ring || recording.log_size != 0 {
                return Err("--instrument inputs has no --ring and no --log-size");
            }
            if recording.selective {
                return Err(
                    "--instrument inputs records all inputs: --only and --skip are for a replay",
                );
            }
        }
        // A chunk and its events take more than 40 KiB.
        if recording.ring && recording.log_bytes().is_some_and(|bytes| bytes < 256 << 10) {
            return Err("--ring needs a --log-size of at least 262144");
        }
        Ok(())
    }

    /// What is recorded of the code: all of it, if nothing is recorded anyway.
    pub fn rules(&self) -> std::result::Result<Rules, String> {
        let rules = Rules::parse(&self.only.join(","), &self.skip.join(","))
            .map_err(|why| format!("--only, --skip: {why}"))?;
        match self.instrument {
            InstrumentArg::None => Ok(Rules::default()),
            _ => Ok(rules),
        }
    }

    /// Rules were given, but nothing is recorded.
    pub fn ignores_rules(&self) -> bool {
        let given = !self.only.is_empty() || !self.skip.is_empty();
        given && matches!(self.instrument, InstrumentArg::None)
    }

    pub fn options(&self) -> Options {
        let process = ProcessOptions {
            pointers: match self.pointers {
                PointersArg::Vector => Pointers::Vector,
                PointersArg::Xmm15 => Pointers::Xmm15,
                PointersArg::ThreadBlock => Pointers::ThreadBlock,
            },
            torture: self.torture.iter().fold(0, |bits, t| {
                bits | match t {
                    TortureArg::Spill => torture::SPILL,
                    TortureArg::Drop => torture::DROP,
                    TortureArg::TinyBuffers => torture::TINY_BUFFERS,
                    TortureArg::Pauses => torture::PAUSES,
                    TortureArg::Misplaced => torture::MISPLACED,
                    TortureArg::Serial => torture::SERIAL,
                    TortureArg::Scattered => torture::SCATTERED,
                    TortureArg::KeptCalls => torture::KEPT_CALLS,
                }
            }),
            // A replay compares registers, and a program may read what it never set.
            dead_registers: match self.dead_registers {
                _ if self.has_inputs() || self.replays => DeadRegisters::Preserve,
                DeadRegistersArg::Preserve => DeadRegisters::Preserve,
                DeadRegistersArg::Reuse => DeadRegisters::Reuse,
            },
            // Where nothing is recorded there is nothing to switch. One thread alone is not watched.
            switchable: (self.switchable || self.start() != Start::Entry || self.is_watched())
                && !matches!(self.instrument, InstrumentArg::None),
            replays: self.replays,
            straight: self.straight,
            increments_in_memory: false,
            high_tables: matches!(self.tables, TablesArg::High),
        };
        let recording = RecordingOptions {
            instrument: match self.instrument {
                InstrumentArg::Dep => Instrument::Dep,
                InstrumentArg::None => Instrument::None,
                InstrumentArg::Undo => Instrument::Undo,
                InstrumentArg::Inputs => Instrument::Inputs,
                InstrumentArg::InputsAndDep => Instrument::InputsAndDep,
            },
            control_flow: match self.control_flow() {
                ControlFlowArg::Tags => ControlFlow::Tags,
                ControlFlowArg::FullPc => ControlFlow::FullPc,
                ControlFlowArg::Bits => ControlFlow::Bits,
            },
            memory: match self.memory.unwrap_or_default() {
                MemoryArg::Registers => Memory::Registers,
                MemoryArg::Addresses => Memory::Addresses,
                MemoryArg::None => Memory::None,
            },
            selective: self.rules().is_ok_and(|rules| !rules.is_everything()),
            ring: self.ring,
            watched: self.is_watched(),
            log_size: self.log_size.unwrap_or(0),
        };
        let mut options = Options { process, recording };
        // In the processor they would be in the way of programs with many vectors, for nothing.
        options.process.increments_in_memory =
            !recording.streams() || options.turns() != Turns::NotCounted;
        if options.process.pointers == Pointers::Xmm15 && !options.may_take_xmm15() {
            // The program's register is left alone where there is nothing to hold.
            options.process.pointers = Pointers::ThreadBlock;
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flags: &[&str]) -> std::result::Result<Options, String> {
        let all = ["deprewrite", "in", "-o", "out"].iter().chain(flags);
        let arguments = Arguments::try_parse_from(all).map_err(|e| e.to_string())?;
        arguments.check().map_err(str::to_owned).map(|()| arguments.options())
    }

    #[test]
    fn flags_say_what_was_meant() {
        for flags in [
            &[][..],
            &["--instrument", "undo", "--control-flow", "full-pc", "--dead-registers", "preserve"],
            &["--ring", "--log-size", "1000000", "--memory", "addresses"],
            &["--switchable"],
            &["--only", "main:f*,libc.so.6", "--only", "main:10..20", "--skip", "main:g"],
            &["--instrument", "inputs"],
            &["--instrument", "inputs,dep", "--control-flow", "full-pc"],
            &["--replays", "--instrument", "none"],
            &["--replays", "--straight", "--instrument", "none"],
            &["--translate", "dynamic", "--pointers", "thread-block", "--torture", "spill,drop"],
            &["--pointers", "xmm15"],
        ] {
            let all = ["deprewrite", "in", "-o", "out"].iter().chain(flags);
            let mut meant = Arguments::try_parse_from(all).expect("flags").how;
            let typed = meant.flags();
            // What was left open is typed.
            meant.control_flow.get_or_insert_default();
            meant.memory.get_or_insert_default();
            let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
            let all = ["deprewrite", "in", "-o", "out"].iter().chain(&typed);
            let again = Arguments::try_parse_from(all).expect("flags").how;
            assert_eq!(format!("{meant:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn xmm15_holds_pointers_where_it_may() {
        let of = |flags: &[&str]| check(flags).expect("options").process.pointers;
        let instruments = ["dep", "undo", "none", "inputs", "inputs,dep"];
        for (instrument, may) in instruments.into_iter().zip([true, true, false, true, true]) {
            let instrument = ["--instrument", instrument];
            let low = of(&[&instrument[..], &["--pointers", "xmm15"]].concat());
            assert_eq!(low, if may { Pointers::Xmm15 } else { Pointers::ThreadBlock });
            // What nobody has asked for is what this processor runs.
            let expected = match PointersArg::here() {
                PointersArg::Vector => Pointers::Vector,
                PointersArg::Xmm15 => low,
                PointersArg::ThreadBlock => Pointers::ThreadBlock,
            };
            assert_eq!(of(&instrument), expected);
        }
        assert_eq!(of(&["--replays", "--pointers", "xmm15"]), Pointers::Xmm15);
    }

    #[test]
    fn what_can_be_switched_is_made_switchable() {
        let after = |flags: &[&str]| {
            let all = ["deprewrite", "in", "-o", "out"].iter().chain(flags);
            let mut arguments = Arguments::try_parse_from(all).expect("flags");
            arguments.how.be_switchable();
            arguments.check().map(|()| arguments.options().process.switchable)
        };
        assert_eq!(after(&[]), Ok(true));
        assert_eq!(after(&["--control-flow", "full-pc", "--skip", "libc.so.6"]), Ok(true));
        for never in
            [["--control-flow", "bits"], ["--instrument", "inputs"], ["--instrument", "undo"]]
        {
            assert_eq!(after(&never), Ok(false));
        }
        assert_eq!(after(&["--instrument", "none"]), Ok(false));
    }

    #[test]
    fn what_cannot_be_had_together_is_refused() {
        assert!(check(&["--instrument", "undo", "--control-flow", "full-pc"]).is_ok());
        assert!(check(&["--instrument", "undo", "--control-flow", "bits"]).is_err());
        assert!(check(&["--instrument", "undo", "--memory", "none"]).is_err());
        assert!(check(&["--only", "main", "--control-flow", "bits"]).is_err());
        assert!(check(&["--skip", "lib*", "--instrument", "undo"]).is_err());
        assert!(check(&["--skip", "lib*", "--control-flow", "full-pc"]).is_ok());
        assert!(check(&["--instrument", "undo", "--start", "off"]).is_err());
        assert!(check(&["--control-flow", "bits", "--start", "main"]).is_err());
        assert!(check(&["--start", "signal:10"]).is_ok_and(|o| o.process.switchable));
        assert!(check(&["--switchable"]).is_ok_and(|o| o.process.switchable));
        assert!(
            check(&["--instrument", "none", "--switchable"]).is_ok_and(|o| !o.process.switchable)
        );
        assert!(check(&["--instrument", "undo", "--switchable"]).is_err());
        assert!(check(&["--instrument", "inputs", "--switchable"]).is_err());
        let both = ["--instrument", "inputs,dep"];
        assert!(check(&both).is_ok());
        for further in [&["--switchable"][..], &["--threads", "watched"], &["--replays"]] {
            assert!(check(&[&both, further].concat()).is_err(), "{further:?}");
        }
        assert!(check(&["--control-flow", "bits", "--switchable"]).is_err());
        assert!(check(&["--start", "sometime"]).is_err());
        assert!(check(&["--ring"]).is_err());
        assert!(check(&["--ring", "--log-size", "100000"]).is_err());
        for wrong in ["0", "", "12 MiB", "10s", "100M", "-1", "1000000GiB"] {
            assert!(check(&["--log-size", wrong]).is_err(), "{wrong}");
        }
        let options = check(&["--log-size", "3GiB"]).expect("options");
        assert_eq!(options.recording.log_bytes(), Some(3 << 30));
        let options = check(&["--ring", "--log-size", "1000000"]).expect("options");
        let RecordingOptions { ring, .. } = options.recording;
        // In whole steps, and never less than was asked for.
        assert_eq!((ring, options.recording.log_bytes()), (true, Some(1_015_808)));
    }
}
