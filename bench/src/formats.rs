//! What the formats of a trace cost beside time: bytes, compressed bytes, and recovery. Whoever can read traces
//! finds it out, while the traces of a program are there.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A trace that a run has left.
pub struct Left {
    /// Name of the variant.
    pub variant: String,
    pub trace: PathBuf,
    /// The rewritten program.
    pub output: PathBuf,
    /// Where the recording was ended by the limit on the trace's size.
    pub only_first_bytes: Option<u64>,
    /// Where the trace is.
    pub(crate) _dir: tempfile::TempDir,
}

/// Looks at the traces of a program.
pub trait Look {
    /// `say` is told what is about to be done.
    fn look(&mut self, traces: &[Left], say: &mut dyn FnMut(&str)) -> Result<Formats, String>;
}

/// How formats were compared.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct FormatSettings {
    /// What is compressed: so many instructions of each program, from where its threads begin.
    pub sample_instructions: u64,
    pub zstd_level: i32,
    /// In units of 100,000 bytes, as bzip2 has it.
    pub bzip2_block: u32,
    /// Longer streams are several sequences.
    pub sequitur_words: u64,
    /// References of the list that is read.
    pub list_references: u64,
    /// A trace ends here.
    pub trace_bytes: u64,
}

/// Of one program.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Formats {
    /// Of each trace.
    pub sizes: Vec<FormatSizes>,
    pub compressed: Vec<Compressed>,
    pub recovery: Vec<Recovery>,
}

/// Of one trace.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct FormatSizes {
    pub control_flow: String,
    pub memory: String,
    pub file_bytes: u64,
    pub only_first_bytes: Option<u64>,
    /// That were recovered; none where memory is not recorded.
    pub references: Option<u64>,
    pub threads: Vec<ThreadSizes>,
}

/// Of one thread of a trace.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default)]
pub struct ThreadSizes {
    /// From 0.
    pub thread: u32,
    pub all: Part,
    /// Where a trace was cut: the part that the traces in all formats have, to the end of a chunk. Else all.
    pub compared: Part,
}

/// Of what a thread did, from its beginning.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub instructions: u64,
    pub control_flow_bytes: u64,
    pub memory_bytes: u64,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum StreamKind {
    #[default]
    ControlFlow,
    Memory,
}

/// The sample of one stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Compressed {
    pub stream: StreamKind,
    pub format: String,
    /// What the sample is of.
    pub instructions: u64,
    pub bytes: u64,
    pub zstd_bytes: u64,
    pub bzip2_bytes: u64,
    pub sequitur: Grammars,
    /// That came back: from each of the three all of the sample.
    pub expanded_bytes: u64,
}

/// What Sequitur makes of a sample.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grammars {
    pub bytes: u64,
    /// Sequences that it was split into.
    pub sequences: u64,
    /// On the right sides of all rules.
    pub symbols: u64,
    pub rules: u64,
    /// Different words, which are listed beside the rules.
    pub words: u64,
}

/// A way to get at {pc, address, size, type} of references.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Recovery {
    pub way: String,
    pub references: u64,
    /// That were read.
    pub bytes: u64,
    /// Processor time of each round.
    pub cpu_seconds: Vec<f64>,
}

impl FormatSizes {
    pub fn name(&self) -> String {
        format!("{} {}", self.control_flow, self.memory)
    }

    pub fn all(&self) -> Part {
        self.threads.iter().map(|t| t.all).sum()
    }

    pub fn compared(&self) -> Part {
        self.threads.iter().map(|t| t.compared).sum()
    }
}

impl std::iter::Sum for Part {
    fn sum<I: Iterator<Item = Part>>(parts: I) -> Part {
        parts.fold(Part::default(), |sum, part| Part {
            instructions: sum.instructions + part.instructions,
            control_flow_bytes: sum.control_flow_bytes + part.control_flow_bytes,
            memory_bytes: sum.memory_bytes + part.memory_bytes,
        })
    }
}

impl Formats {
    pub fn of(&self, control_flow: &str, memory: &str) -> Option<&FormatSizes> {
        self.sizes.iter().find(|s| s.control_flow == control_flow && s.memory == memory)
    }

    pub fn stream(&self, stream: StreamKind, format: &str) -> Option<&Compressed> {
        self.compressed.iter().find(|c| c.stream == stream && c.format == format)
    }

    pub fn is_cut(&self) -> bool {
        self.sizes.iter().any(|sizes| sizes.only_first_bytes.is_some())
    }
}
