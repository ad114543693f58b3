//! `dep` as a user calls it, with one cache for all tests.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::harness::{cache, Tools};

/// A folder that is gone when the test has ended.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// `dep` with these arguments, in `here`.
pub fn dep(here: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(&Tools::get().dep);
    command.args(arguments).current_dir(here).envs(cache()).stdin(Stdio::null());
    command
}

/// What `dep` writes, which must succeed and say nothing.
pub fn text(here: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = dep(here, arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&stderr);
    let shown: String = String::from_utf8_lossy(&stdout).chars().take(1000).collect();
    assert!(status.success() && said.is_empty(), "{arguments:?}: {status}: {said}; {shown}");
    String::from_utf8(stdout).expect("text")
}

/// The turns that a line of `dep replay` tells of.
pub fn turns_of(line: &str) -> u64 {
    let behind = line.split("replayed ").nth(1).unwrap_or_default();
    behind.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
