//! What a rewriting did, for people and for programs.

use crate::say;
use serde::Serialize;
use std::time::{Duration, Instant};

#[derive(Serialize, Debug, Default)]
pub struct Summary {
    pub functions: usize,
    pub blocks: usize,
    pub text_bytes: u64,
    pub lifted_bytes: u64,
    pub jump_tables: usize,
    /// Indirect jumps whose targets are looked up when the program runs.
    pub unresolved_indirect: usize,
    pub libraries: Vec<crate::library::Report>,
    /// Names of needed libraries that are not found.
    pub libraries_missing: Vec<String>,
    /// What of the program is left to run time, and why.
    pub left: Option<String>,
    /// What of the translation this machine's processor cannot run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<&'static str>,
    pub units: usize,
    pub code_bytes: usize,
    pub seconds: f64,
    pub input_bytes: usize,
    pub output_bytes: usize,
    /// Seconds of each stage, in order.
    pub stages: Vec<(&'static str, f64)>,
}

impl Summary {
    pub fn print(&self) {
        let share = 100.0 * self.lifted_bytes as f64 / (self.text_bytes.max(1)) as f64;
        say!(
            "{} functions, {} blocks, {share:.2} % of {} code bytes lifted",
            self.functions,
            self.blocks,
            self.text_bytes
        );
        say!(
            "{} jump tables resolved, {} indirect jumps left to run time",
            self.jump_tables,
            self.unresolved_indirect
        );
        say!(
            "{} units, {} bytes of translated code; {} bytes before, {} after; {:.2} s",
            self.units,
            self.code_bytes,
            self.input_bytes,
            self.output_bytes,
            self.seconds
        );
        for library in self.libraries.iter().filter(|library| library.left.is_none()) {
            library.print();
        }
        self.print_slow();
    }

    /// What makes the program slow.
    pub fn print_slow(&self) {
        for library in self.libraries.iter().filter(|library| library.left.is_some()) {
            library.print();
        }
        for name in &self.libraries_missing {
            say!("{name}: not found; left to run time (--with-library FILE says where it is)");
        }
        if let Some(why) = self.processor {
            say!("{why}");
        }
    }

    pub fn print_stages(&self) {
        for (name, seconds) in &self.stages {
            say!("{name:<10} {seconds:8.3} s");
        }
    }
}

/// Times stages one after the other.
pub struct Stages {
    start: Instant,
    last: Instant,
    done: Vec<(&'static str, f64)>,
}

impl Default for Stages {
    fn default() -> Stages {
        let now = Instant::now();
        Stages { start: now, last: now, done: Vec::new() }
    }
}

impl Stages {
    /// Closes a stage.
    pub fn done(&mut self, name: &'static str) {
        let now = Instant::now();
        self.done.push((name, (now - self.last).as_secs_f64()));
        self.last = now;
    }

    pub fn finish(self) -> (Duration, Vec<(&'static str, f64)>) {
        (self.start.elapsed(), self.done)
    }
}
