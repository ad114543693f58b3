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
    let report = report(program, &["--instrument", "none", "--control-flow", "full-pc"])?;
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

#[test]
fn formats_agree() {
    let mut tally = Tally::start("formats_agree");
    let gzip = Path::new("/usr/bin/gzip");
    if gzip.exists() {
        tally.record("gzip", check_formats(gzip));
    } else {
        tally.skip("gzip", "not installed");
    }
    tally.finish();
}

/// Each figure of a trace against `dep info` of that trace, and the traces against each other.
fn check_formats(program: &Path) -> Result<(), String> {
    let report = report(program, &["--formats", "--sample", "1"])?;
    let program = &report["programs"][0];
    let formats = &program["formats"];
    let list = |of: &Value| of.as_array().cloned().ok_or(format!("no list: {of}"));
    let (sizes, variants) = (list(&formats["sizes"])?, list(&program["variants"])?);
    if sizes.len() != 9 || variants.len() != 10 {
        return Err(format!("{} sizes, {} variants", sizes.len(), variants.len()));
    }
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let number = |of: &Value, path: &str| {
        of.pointer(path).and_then(Value::as_u64).ok_or(format!("no {path} in {of}"))
    };
    let sum = |of: &Value, what: &str| -> Result<u64, String> {
        list(&of["threads"])?.iter().map(|thread| number(thread, &format!("/all/{what}"))).sum()
    };
    let mut counts = Vec::new();
    for of in &sizes {
        let (control_flow, memory) = (text(of, "control_flow"), text(of, "memory"));
        let name = format!("{control_flow} {memory}");
        let variant = variants.iter().find(|v| v["name"] == name.as_str());
        let trace = &variant.ok_or(format!("{name}: no variant"))?["trace"];
        let mut streams = 0;
        for what in ["instructions", "control_flow_bytes", "memory_bytes"] {
            let (here, info) = (sum(of, what)?, number(trace, &format!("/{what}"))?);
            if here != info {
                return Err(format!("{name}: {here} {what}, dep info says {info}"));
            }
            if what != "instructions" {
                streams += here;
            }
        }
        let file = number(of, "/file_bytes")?;
        // Full chunks are packed, so the file may be smaller than its streams, but not that much;
        // around them are descriptions, and ends of chunks that have room.
        let sizes = streams / 64..streams + (4 << 20);
        if file != number(trace, "/trace_bytes")? || streams == 0 || !sizes.contains(&file) {
            return Err(format!("{name}: {streams} bytes of streams: {of}"));
        }
        let is_recorded = memory != "none";
        if (sum(of, "memory_bytes")? > 0) != is_recorded || of["references"].is_u64() != is_recorded
        {
            return Err(format!("{name}: {of}"));
        }
        counts.push((name, sum(of, "instructions")?, of["references"].as_u64()));
    }
    let (instructions, references) = (counts[0].1, counts[0].2.unwrap_or(0));
    for (name, i, r) in &counts {
        if *i != instructions || r.is_some_and(|r| r != references) {
            return Err(format!("{name} has other counts: {counts:?}"));
        }
    }
    for of in list(&formats["compressed"])? {
        let bytes = number(&of, "/bytes")?;
        let sample = number(&of, "/instructions")?;
        let packed =
            ["/zstd_bytes", "/bzip2_bytes", "/sequitur/bytes"].map(|path| number(&of, path));
        let smaller = packed.iter().all(|p| p.as_ref().is_ok_and(|p| (1..bytes).contains(p)));
        if number(&of, "/expanded_bytes")? != bytes || !smaller {
            return Err(format!("not compressed: {of}"));
        }
        // It ends behind one of the next few thousand units.
        if !(1_000_000..1_200_000).contains(&sample) {
            return Err(format!("a sample of {sample} instructions: {of}"));
        }
    }
    let ways = list(&formats["recovery"])?;
    for of in &ways {
        if number(of, "/references")? != references || list(&of["cpu_seconds"])?.len() != 1 {
            return Err(format!("not {references} references: {of}"));
        }
    }
    match ways.len() {
        4 => Ok(()),
        n => Err(format!("{n} ways to recover")),
    }
}

/// At the same addresses each time, so that a program does the same in each run.
fn report(program: &Path, arguments: &[&str]) -> Result<Value, String> {
    let tools = Tools::get();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let mut command = Command::new("setarch");
    command
        .arg("--addr-no-randomize")
        .arg(&tools.dep)
        .args(["compare", "--json", "--rounds", "1", "--deprewrite"])
        .arg(&tools.deprewrite)
        .args(arguments)
        .arg(program)
        .args(["--", "-6", "-n", "-c"])
        .arg(root.join("Cargo.lock"));
    let output = command.output().map_err(|e| format!("setarch: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("no JSON: {e}"))
}
