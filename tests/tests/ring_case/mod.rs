//! Programs whose newest part is recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use tests::harness::{cache, Tools};

/// A program and its rewritten copy.
pub struct Case {
    /// Where all of it is.
    pub here: TempDir,
}

impl Case {
    pub fn new(source: &str) -> Case {
        let here = tempfile::tempdir().expect("a folder");
        fs::write(here.path().join("p.c"), source).expect("a source");
        let mut cc = Command::new("cc");
        // The dynamic linker has nothing to look up in the part that is kept.
        let flags = ["-g", "-O1", "-Wl,-z,now", "-o", "p", "p.c", "-lpthread"];
        cc.args(flags).current_dir(here.path());
        assert!(cc.status().expect("a C compiler").success());
        let tools = Tools::get();
        let (program, rewritten) = (here.path().join("p"), here.path().join("p.in"));
        tools
            .rewrite_sharing(&program, &rewritten, &["--instrument", "inputs"])
            .expect("rewritten");
        Case { here }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    pub fn run(&self, ring: &str, trace: &str) -> Command {
        let mut command = Command::new(self.path("p.in"));
        command.env("DEP_RING", ring).env("DEP_FILE", self.path(trace));
        command.current_dir(self.here.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    pub fn dep(&self, what: &str, trace: &Path) -> Command {
        let mut command = Command::new(&Tools::get().dep);
        command.arg(what).arg("--program").arg(self.path("p"));
        let output =
            if matches!(what, "replay" | "debug" | "trim") { "--rewritten" } else { "--output" };
        command.arg(output).arg(self.path("p.in")).arg(trace);
        command.envs(cache()).env("DEBUGINFOD_URLS", "");
        command.current_dir(self.here.path()).stdin(Stdio::null());
        command
    }

    /// Replays a trace that does not begin where the program does.
    pub fn replays(&self, trace: &str) -> String {
        let trace = self.path(trace);
        let info = said(&mut self.dep("info", &trace));
        assert!(info.contains("from where the part begins that was kept"), "{info}");
        said(&mut self.dep("replay", &trace))
    }
}

pub fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{status}: {text}");
    text
}
