//! Programs to rewrite, and the command itself.
// Each test binary uses a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn deprewrite(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deprewrite"))
        .args(arguments)
        .output()
        .expect("deprewrite starts")
}

pub fn run(program: impl AsRef<Path>) -> Option<i32> {
    Command::new(program.as_ref()).output().expect("the output starts").status.code()
}

/// Compiles a small C program; `None` if there is no compiler for it.
pub fn compile(directory: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = directory.join("source.c");
    let text =
        "#include <stdio.h>\nint main(int c, char **v) { printf(\"%d\\n\", c); return 7; }\n";
    std::fs::write(&source, text).expect("source is written");
    let program = directory.join(name);
    let status = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&program).status();
    status.is_ok_and(|s| s.success()).then_some(program)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
