//! A program that can be run in place of another.

use rewriter::shared::Pack;
use std::ffi::OsString;
use std::path::PathBuf;
use store::{Hash, Stamp};

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The rewritten program.
    pub output: PathBuf,
    /// Real path of the original.
    pub exe: PathBuf,
    /// Of a script, what replaces the first argument: interpreter, its argument, script.
    pub script_arguments: Vec<OsString>,
    /// What traces call the output.
    pub identity: [u64; 2],
    /// The output's file in the cache.
    pub stamp: Stamp,
    /// Translations of libraries that it finds in the cache.
    pub packs: Vec<Pack>,
    /// It records inputs.
    pub inputs: bool,
    /// The original's contents and where they are, if it has been made just now: it may be gone just as soon, as what
    /// `configure` tries out. Or it has no name any more.
    pub young: Option<(Hash, PathBuf)>,
    /// The files outside of the cache that all this depends on, if nothing else does: each as it was.
    pub depends: Option<Vec<(PathBuf, Option<Stamp>)>>,
}
