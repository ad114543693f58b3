//! What the fuzz targets share: a deterministic source of choices, a corpus that grows by what
//! inputs reach, and a process around it that survives whatever the code under test does.
//!
//! A target is a program: `fuzz-NAME SECONDS [--seed N]` runs it, `fuzz-NAME --reproduce FILE` runs
//! one input in plain sight. The parent starts a worker with little address space and watches it. The
//! worker writes each input to a file before it tries it, so the input is there whatever happened:
//! a panic is caught, an abort or a hang ends the worker, and the input is kept in `target/fuzz`.
//!
//! What an input reaches is the outcome that the target names, and, in a build with
//! `-Cinstrument-coverage --cfg fuzz_counters`, the counters of every region of the code.

mod counters;
pub mod machine;
pub mod mutate;
mod run;
pub mod word;

pub use run::main;

use std::path::Path;

/// A deterministic source of choices (xorshift).
pub struct Choices(u64);

impl Choices {
    pub fn new(seed: u64) -> Choices {
        Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555_1234_dead_beef | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() >> 11) as usize % end.max(1)
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// What became of an input.
pub struct Outcome {
    pub accepted: bool,
    /// What inputs with the same name have in common; numbers in it do not count.
    pub name: String,
}

/// Code under test.
pub trait Target {
    const NAME: &'static str;
    /// Megabytes of address space for the worker.
    const MEGABYTES: u64;

    /// What the search starts from.
    fn seeds(&mut self) -> Vec<Vec<u8>>;

    /// Changes `input`, which came from the corpus.
    fn mutate(&mut self, choices: &mut Choices, input: &mut Vec<u8>, corpus: &[Vec<u8>]);

    /// Tries an input, which is also in a file. The error is what must never be.
    fn run(&mut self, input: &[u8], file: &Path) -> Result<Outcome, String>;
}

/// Inputs that failed once.
pub fn kept(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect()
}
