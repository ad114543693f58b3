//! `dep compare` with the real rewriter: one round of everything, and nothing about time.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::harness::{Tally, Tools};

#[test]
fn compare_measures_everything() {
    let mut tally = Tally::start("compare_measures_everything");
    let gzip = Path::new("/usr/bin/gzip");
    if gzip.exists() {
        tally.record("gzip", check(gzip));
    } else {
        tally.skip("gzip", "not installed");
    }
    tally.finish();
}

fn check(program: &Path) -> Result<(), String> {
    let report = report(program)?;
    let variants = report.pointer("/programs/0/variants").and_then(|v| v.as_array());
    let variants = variants.ok_or("no variants")?;
    // Name, whether it leaves a trace, whether its code is made ahead of time.
    let expected = [
        ("native", false, false),
        ("static", true, true),
        ("dynamic", true, false),
        ("static none", false, true),
        ("dynamic none", false, false),
        ("static full-pc", true, true),
        ("dynamic full-pc", true, false),
    ];
    let names: Vec<_> = variants.iter().filter_map(|v| v["name"].as_str()).collect();
    if names != expected.map(|(name, ..)| name) {
        return Err(format!("variants: {names:?}"));
    }
    for (variant, (name, traced, ahead)) in variants.iter().zip(expected) {
        let number = |path: &str| variant.pointer(path).and_then(|v| v.as_f64());
        let positive = |path: &str| number(path).is_some_and(|n| n > 0.0);
        let measured = ["cpu_ratio", "wall_ratio", "resident_bytes"];
        let measured = measured.iter().all(|what| positive(&format!("/figures/{what}/median")));
        let start = positive("/start/wall_seconds/median");
        if !measured || !start || !variant["wrong"].is_null() || !positive("/file_bytes") {
            return Err(format!("{name}: {variant}"));
        }
        if positive("/trace/bytes_per_instruction") != traced {
            return Err(format!("{name}: trace: {}", variant["trace"]));
        }
        let share = number("/trace/static_share_main");
        if traced && share.map(|share| share > 0.999) != Some(ahead) {
            return Err(format!("{name}: of the main program's blocks, {share:?} ahead of time"));
        }
    }
    // A tag of eight bytes is more than one of two.
    let size = |at: usize| variants[at].pointer("/trace/bytes_per_instruction")?.as_f64();
    match size(5) > size(1) {
        true => Ok(()),
        false => Err(format!("full-pc: {:?} bytes, tags: {:?}", size(5), size(1))),
    }
}

fn report(program: &Path) -> Result<Value, String> {
    let tools = Tools::get();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let mut command = Command::new(&tools.dep);
    command
        .args(["compare", "--json", "--rounds", "1", "--deprewrite"])
        .arg(&tools.deprewrite)
        .args(["--instrument", "none", "--control-flow", "full-pc"])
        .arg(program)
        .args(["--", "-6", "-n", "-c"])
        .arg(root.join("Cargo.lock"));
    let output = command.output().map_err(|e| format!("dep: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("no JSON: {e}"))
}
