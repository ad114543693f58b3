//! Each target for a short time: what was found once stays fixed, and a little is tried anew.
//! FUZZ_SECONDS=N gives each N seconds.

use std::process::Command;

fn runs_clean(target: &str) {
    let seconds = std::env::var("FUZZ_SECONDS").unwrap_or_else(|_| "8".into());
    let output = Command::new(target).arg(seconds).output().expect("the target starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn programs() {
    runs_clean(env!("CARGO_BIN_EXE_fuzz-elf"));
}

#[test]
fn traces() {
    runs_clean(env!("CARGO_BIN_EXE_fuzz-trace"));
}

#[test]
fn moved_instructions() {
    runs_clean(env!("CARGO_BIN_EXE_fuzz-moves"));
}
