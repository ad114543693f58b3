//! Small programs with known behaviour: one source file each, with directives in comments on top.
//!
//! | directive | meaning |
//! |---|---|
//! | `//#args: a b` | arguments |
//! | `//#stdin: text` | standard input, `\n` for a newline |
//! | `//#expect-status: N`, `//#expect-signal: N` | how it ends (default: status 0) |
//! | `//#requires: avx2 fma` | CPU features without which it is skipped; `vsyscall`: the kernel has that page |
//! | `//#flags: -lm` | further flags for the compiler |
//! | `//#variants: pie O0` | how to build it (the first lines of `build.rs` list the words) |
//! | `//#shared: x.c`, `//#link: x.c` | builds `libx.so` next to it, and links with it |
//! | `//#oracle: no: why` | two runs of it do not execute the same instructions |
//! | `//#refused: why` | rewritten, it is stopped: status 121 and one line on standard error |
//! | `//#except: WAY: why` | it is not checked with the undo log's watcher (`undo`), as a recording of inputs (`inputs`), in a replay (`replay`), or in the format `bits` (`bits`) |
//! | `//#library` | not a program but a library of others |
//!
//! A program prints the same text in every run and checks itself where it can.

#![forbid(unsafe_code)]

mod build;
mod directives;
pub mod features;
pub mod generated;

use std::path::PathBuf;

pub use build::{build_all, BuildError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Status(i32),
    Signal(i32),
}

/// One program, built in one way.
#[derive(Clone, Debug)]
pub struct Case {
    /// `language/program.variant`
    pub name: String,
    pub path: PathBuf,
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    pub end: End,
    /// CPU features by the names of /proc/cpuinfo, and `vsyscall`.
    pub requires: Vec<String>,
    /// Why its single-stepped listing cannot be compared, if so.
    pub no_oracle: Option<String>,
    /// Why it is stopped when it runs rewritten, if so; natively it ends as `end` says.
    pub refused: Option<String>,
    /// Ways of running it that it cannot be checked in, and why.
    pub except: Vec<(String, String)>,
}

impl Case {
    /// Why the case cannot run here.
    pub fn skip_reason(&self) -> Option<String> {
        let missing: Vec<_> = features::missing(&self.requires);
        (!missing.is_empty()).then(|| format!("this machine lacks {}", missing.join(", ")))
    }

    /// Why the case is not checked in this way, one of those that the directive knows.
    pub fn skip_reason_in(&self, way: &str) -> Option<String> {
        assert!(directives::WAYS.contains(&way), "no case can be excepted from {way}");
        let excepted = self.except.iter().find(|(name, _)| name == way);
        self.skip_reason().or_else(|| excepted.map(|(_, why)| why.clone()))
    }
}
