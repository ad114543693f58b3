//! Programs that generate code, or run from libraries of hundreds of megabytes: each with a short program that
//! makes it compile, throw, collect and start threads.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use tests::harness::{difference, Mode, RunSpec, Tally, Tools};

const MODES: [Mode; 6] = [STATIC, DYNAMIC, STATIC_NONE, DYNAMIC_NONE, UNDO_STATIC, UNDO_DYNAMIC];
/// Most programs run in one half of the modes, some in the other: `ENGINES=all` has each run in all of them.
const HALVES: [[Mode; 3]; 2] =
    [[STATIC, DYNAMIC_NONE, UNDO_STATIC], [DYNAMIC, STATIC_NONE, UNDO_DYNAMIC]];
/// Its traces are kept and read, which takes longer than all else; those of the others are discarded.
const KEPT: &str = "static";

fn source(name: &str) -> String {
    format!("{}/tests/engines/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The program itself, behind links.
fn program(path: &str) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

/// What stands first in `dir`, with `rest` behind.
fn newest(dir: &str, prefix: &str, rest: &str) -> PathBuf {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path());
    let fits = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            && path.join(rest).exists()
    };
    names.filter(fits).max().unwrap_or_else(|| Path::new(dir).join(prefix)).join(rest)
}

fn same_behaviour(test: &'static str, spec: &RunSpec) {
    same_in(&MODES, test, spec);
}

fn same_in_half(half: usize, test: &'static str, spec: &RunSpec) {
    match std::env::var("ENGINES").as_deref() {
        Ok("all") => same_in(&MODES, test, spec),
        _ => same_in(&HALVES[half], test, spec),
    }
}

fn same_in(modes: &[Mode], test: &'static str, spec: &RunSpec) {
    let mut tally = Tally::start(test);
    if spec.program.exists() {
        for &mode in modes {
            tally.record(mode.name, same(spec, mode));
        }
    } else {
        tally.skip(test, &format!("not installed: {}", spec.program.display()));
    }
    tally.finish();
}

fn same(spec: &RunSpec, mode: Mode) -> Result<(), String> {
    let mut spec = spec.clone();
    if mode.name != KEPT {
        spec.env.push(("DEP_FILE".to_owned(), "null:".to_owned()));
    }
    let tools = Tools::get();
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let rewritten = dir.path().join(mode.name);
    tools.rewrite_sharing(&spec.program, &rewritten, mode.flags)?;
    let run = |file| spec.run(file, dir.path()).map_err(|e| e.to_string());
    let native = run(None)?;
    let mut got = run(Some(rewritten.as_path()))?;
    if String::from_utf8_lossy(&got.stderr).contains("deprewrite:") {
        return Err(String::from_utf8_lossy(&got.stderr).into_owned());
    }
    // Some name processes and addresses there.
    got.stderr.clone_from(&native.stderr);
    difference(&native, &got)?;
    verify_all(&got.traces, tools, &rewritten)
}

/// Side exits are patched into traces, which lie within a gigabyte of the program; calls to C and back.
#[test]
fn luajit() {
    let spec = RunSpec::new(program("/usr/bin/luajit")).args(&[&source("test.lua")]);
    same_behaviour("luajit", &spec);
}

/// One shared mapping has the code.
#[test]
fn php() {
    let options = [
        "-d",
        "opcache.enable_cli=1",
        "-d",
        "opcache.jit_buffer_size=16M",
        "-d",
        "opcache.jit=tracing",
    ];
    let test = source("test.php");
    let args: Vec<&str> = options.into_iter().chain([test.as_str()]).collect();
    same_in_half(1, "php", &RunSpec::new(program("/usr/bin/php")).args(&args));
}

/// Lisp's memory is one mapping of data and code, write-protected by the collector.
#[test]
fn sbcl() {
    let test = source("test.lisp");
    let args = ["--no-sysinit", "--no-userinit", "--disable-debugger", "--load", &test];
    same_in_half(1, "sbcl", &RunSpec::new(program("/usr/bin/sbcl")).args(&args));
}

#[test]
fn node() {
    let spec = RunSpec::new(program("/usr/bin/node")).args(&[&source("test.js")]);
    same_in_half(0, "node", &spec);
}

#[test]
fn java() {
    let dir = tempfile::tempdir().unwrap();
    let classes = dir.path().to_str().unwrap();
    let built = Command::new("javac").args(["-d", classes, &source("Test.java")]).status();
    let java = match built.is_ok_and(|status| status.success()) {
        true => program("/usr/bin/java"),
        false => "/usr/bin/javac".into(),
    };
    let args = ["-XX:+UseSerialGC", "-Xshare:auto", "-cp", classes, "Test"];
    same_in_half(0, "java", &RunSpec::new(java).args(&args));
}

#[test]
fn erlang() {
    const ROOT: &str = "/usr/lib/erlang";
    let emulator = newest(ROOT, "erts-", "bin/beam.smp");
    let bin = emulator.parent().unwrap_or(Path::new("")).display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let modules = dir.path().to_str().unwrap();
    let built = Command::new("erlc").args(["-o", modules, &source("test.erl")]).status();
    if emulator.exists() {
        assert!(built.is_ok_and(|status| status.success()), "erlc fails");
    }
    let args = [
        "-S",
        "2:2",
        "--",
        "-root",
        ROOT,
        "-bindir",
        &bin,
        "-progname",
        "erl",
        "--",
        "-home",
        "/tmp",
        "--",
        "-noshell",
        "-pa",
        modules,
        "-s",
        "test",
        "main",
    ];
    let mut spec = RunSpec::new(emulator).args(&args);
    let env = [("BINDIR", bin.as_str()), ("ROOTDIR", ROOT), ("EMU", "beam"), ("PROGNAME", "erl")];
    spec.env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    same_in_half(0, "erlang", &spec);
}

/// Of 100 megabytes, and the program lies at a fixed address.
#[test]
fn llvm() {
    let compiler = newest("/usr/lib", "llvm-", "bin/clang");
    let args = ["-x", "c", "-O1", "-S", "-o", "-", "-"];
    let source =
        b"int sum(int n) { int s = 0; for (int i = 0; i < n; i++) s += i * n; return s; }\n";
    same_in_half(
        0,
        "llvm",
        &RunSpec::new(program(&compiler.display().to_string())).args(&args).stdin(source),
    );
}

/// Exceptions come from faults, and code is generated close to the program.
#[test]
fn mono() {
    let dir = tempfile::tempdir().unwrap();
    let compiled = dir.path().join("test.exe");
    let (out, source) = (format!("-out:{}", compiled.display()), source("Test.cs"));
    let built = Command::new("mcs").args([&out, &source]).status();
    let compiled = compiled.display().to_string();
    let args = match built.is_ok_and(|status| status.success()) {
        true => &compiled,
        // Without a program it says how to use it.
        false => "--version",
    };
    same_in_half(1, "mono", &RunSpec::new(program("/usr/bin/mono")).args(&[args]));
}

/// Another translator, which guards the code that it has read, and chooses low addresses.
#[test]
fn qemu_user() {
    let args = ["/bin/sh", "-c", "i=0; while [ $i -lt 200 ]; do i=$((i+1)); done; echo $i; exit 7"];
    same_in_half(0, "qemu_user", &RunSpec::new(program("/usr/bin/qemu-x86_64")).args(&args));
}
