//! Other tools that run a program translated, for comparison.

use std::ffi::OsString;
use std::path::PathBuf;

/// A tool that takes the program and its arguments at the end of its command line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Peer {
    pub name: &'static str,
    command: &'static str,
    arguments: &'static [&'static str],
}

/// Translation alone, and translation that counts instructions and references without listing them.
pub const PEERS: [Peer; 2] = [
    Peer {
        name: "valgrind none",
        command: "valgrind",
        arguments: &["--tool=none", "--quiet", "--log-file=/dev/null"],
    },
    Peer {
        name: "lackey counts",
        command: "valgrind",
        arguments: &[
            "--tool=lackey",
            "--basic-counts=yes",
            "--trace-mem=no",
            "--quiet",
            "--log-file=/dev/null",
        ],
    },
];

impl Peer {
    pub fn flags(&self) -> Vec<String> {
        self.arguments.iter().map(|a| a.to_string()).collect()
    }

    /// The words before the program; or what is not installed.
    pub fn words(&self) -> Result<Vec<OsString>, String> {
        let command = in_path(self.command).ok_or(format!("{} is not installed", self.command))?;
        let mut words = vec![command.into_os_string()];
        words.extend(self.arguments.iter().map(OsString::from));
        Ok(words)
    }
}

fn in_path(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(command)).find(|file| file.is_file())
}
