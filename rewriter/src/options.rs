//! The command line, as typed and as meant.

use abi::options::{torture, ControlFlow, Instrument, Memory, Options, Pointers};
use clap::{Parser, ValueEnum};
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
    /// What is inserted.
    #[arg(long, value_enum, default_value = "dep")]
    instrument: InstrumentArg,
    /// How control flow is recorded.
    #[arg(long, value_enum, default_value = "tags")]
    control_flow: ControlFlowArg,
    /// How memory references are recorded.
    #[arg(long, value_enum, default_value = "registers")]
    memory: MemoryArg,
    /// When code is translated: ahead of time, or only when it runs.
    #[arg(long, value_enum, default_value = "static")]
    translate: TranslateArg,
    /// Whether the translations of the libraries travel in the output, or are made when they run.
    #[arg(long, value_enum, default_value = "embed")]
    libraries: LibrariesArg,
    /// A further library whose translation travels in the output (for dlopen).
    #[arg(long, value_name = "FILE")]
    pub with_library: Vec<PathBuf>,
    /// A trace of the rewritten program: code that was found only when it ran is translated ahead
    /// of time, and so are the libraries that it opened.
    #[arg(long, value_name = "TRACE")]
    pub learn: Vec<PathBuf>,
    /// Where the buffer pointers live; `vector` needs AVX-512VL.
    #[arg(long, value_enum, default_value = "vector")]
    pointers: PointersArg,
    /// Rare paths made common, for tests.
    #[arg(long, hide = true, value_enum, value_delimiter = ',')]
    torture: Vec<TortureArg>,
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
    /// Print nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
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
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum ControlFlowArg {
    Tags,
    FullPc,
    Bits,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum MemoryArg {
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
    Runtime,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum PointersArg {
    Vector,
    ThreadBlock,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum TortureArg {
    Spill,
    Drop,
    TinyBuffers,
}

impl Arguments {
    pub fn dynamic(&self) -> bool {
        self.translate == TranslateArg::Dynamic
    }

    pub fn embeds_libraries(&self) -> bool {
        self.libraries == LibrariesArg::Embed && !self.dynamic()
    }

    pub fn options(&self) -> Options {
        Options {
            instrument: match self.instrument {
                InstrumentArg::Dep => Instrument::Dep,
                InstrumentArg::None => Instrument::None,
            },
            control_flow: match self.control_flow {
                ControlFlowArg::Tags => ControlFlow::Tags,
                ControlFlowArg::FullPc => ControlFlow::FullPc,
                ControlFlowArg::Bits => ControlFlow::Bits,
            },
            memory: match self.memory {
                MemoryArg::Registers => Memory::Registers,
                MemoryArg::Addresses => Memory::Addresses,
                MemoryArg::None => Memory::None,
            },
            pointers: match self.pointers {
                PointersArg::Vector => Pointers::Vector,
                PointersArg::ThreadBlock => Pointers::ThreadBlock,
            },
            torture: self.torture.iter().fold(0, |bits, t| {
                bits | match t {
                    TortureArg::Spill => torture::SPILL,
                    TortureArg::Drop => torture::DROP,
                    TortureArg::TinyBuffers => torture::TINY_BUFFERS,
                }
            }),
        }
    }
}
