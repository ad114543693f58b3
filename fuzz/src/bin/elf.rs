//! Programs that are none: everything that `deprewrite` does with its input. What is accepted
//! gives an output that is recognised as ours, and the same each time.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use fuzz::word::{get, set, strange};
use fuzz::{mutate, Choices, Outcome, Target};
use rewriter::error::Error;
use rewriter::input::Input;
use rewriter::options::Arguments;

struct Elf {
    runs: u64,
}

/// Small programs of each kind: what is compiled, how.
const KINDS: [(&str, &[&str]); 7] = [
    ("switch.c", &["-O2", "-static", "-nostdlib"]),
    ("switch.c", &["-O2", "-static-pie", "-nostdlib", "-s"]),
    ("switch.c", &["-O1", "-no-pie", "-nostdlib", "-Wl,-z,noseparate-code", "-s"]),
    ("hello.c", &["-O2", "-fPIE", "-pie"]),
    ("hello.c", &["-O2", "-no-pie", "-s"]),
    ("hello.c", &["-O2", "-fPIE", "-pie", "-g", "-Wl,-z,pack-relative-relocs"]),
    ("hello.c", &["-shared", "-fPIC"]),
];

fn compile(source: &str, flags: &[&str], output: &Path) -> std::io::Result<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(source);
    let status = Command::new("cc").args(flags).arg(source).arg("-o").arg(output).status()?;
    match status.success() {
        true => std::fs::read(output),
        false => Err(std::io::Error::other(format!("cc {flags:?} failed"))),
    }
}

const HEADER: usize = 64;

/// Offset, size of an entry, and number of the program headers or section headers, as far as they
/// are in the file.
fn table(bytes: &[u8], sections: bool) -> (usize, usize, usize) {
    let (at, entry, count) = if sections { (40, 64, 60) } else { (32, 56, 56) };
    let start = get(bytes, at, 8) as usize;
    let room = bytes.len().saturating_sub(start) / entry;
    (start, entry, (get(bytes, count, 2) as usize).min(room))
}

/// Where the bytes of a random section or segment lie.
fn part(choices: &mut Choices, bytes: &[u8]) -> std::ops::Range<usize> {
    let sections = choices.one_in(2);
    let (start, entry, count) = table(bytes, sections);
    let at = start + entry * choices.below(count);
    let (offset, size) = if sections { (24, 32) } else { (8, 32) };
    let start = (get(bytes, at + offset, 8) as usize).min(bytes.len());
    start..start.saturating_add(get(bytes, at + size, 8) as usize).min(bytes.len())
}

impl Target for Elf {
    const NAME: &'static str = "elf";
    const MEGABYTES: u64 = 2048;

    fn seeds(&mut self) -> Vec<Vec<u8>> {
        let directory = tempfile::tempdir().expect("a directory");
        let mut seeds: Vec<Vec<u8>> = KINDS
            .iter()
            .map(|(source, flags)| {
                compile(source, flags, &directory.path().join("seed")).expect("a C compiler")
            })
            .collect();
        seeds.extend([Vec::new(), b"#!/bin/sh\n".to_vec(), seeds[0][..HEADER].to_vec()]);
        seeds.extend(fuzz::kept("elf"));
        seeds
    }

    fn mutate(&mut self, choices: &mut Choices, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        for _ in 0..1 + choices.below(4) {
            if input.len() < HEADER {
                input.resize(HEADER, 0);
            }
            let len = input.len();
            match choices.below(12) {
                0 => mutate::in_place(choices, input, 0..HEADER),
                1..=3 => {
                    // A field of a program header.
                    let (start, entry, count) = table(input, false);
                    let at = start + entry * choices.below(count);
                    let (offset, size) = *choices.pick(&[
                        (0, 4),
                        (4, 4),
                        (8, 8),
                        (16, 8),
                        (32, 8),
                        (40, 8),
                        (48, 8),
                    ]);
                    let value = strange(choices, get(input, at + offset, size), len);
                    set(input, at + offset, size, value);
                }
                4 | 5 => {
                    let (start, entry, count) = table(input, true);
                    let at = start + entry * choices.below(count);
                    let (offset, size) = *choices.pick(&[
                        (0, 4),
                        (4, 4),
                        (8, 8),
                        (16, 8),
                        (24, 8),
                        (32, 8),
                        (40, 4),
                        (44, 4),
                        (56, 8),
                    ]);
                    let value = strange(choices, get(input, at + offset, size), len);
                    set(input, at + offset, size, value);
                }
                6..=9 => {
                    let range = part(choices, input);
                    mutate::in_place(choices, input, range);
                }
                10 => mutate::splice(choices, input, corpus),
                _ if choices.one_in(3) => mutate::length(choices, input),
                _ => mutate::in_place(choices, input, 0..len),
            }
        }
    }

    fn run(&mut self, input: &[u8], file: &Path) -> Result<Outcome, String> {
        self.runs += 1;
        let output = file.with_extension("output");
        let _ = std::fs::remove_file(&output);
        let ways: [&[&str]; 7] = [
            &[],
            &["--translate", "dynamic"],
            &["--control-flow", "bits", "--memory", "addresses"],
            &["--instrument", "none"],
            &["--torture", "spill", "--control-flow", "full-pc"],
            &["--pointers", "thread-block"],
            &["--pointers", "xmm15"],
        ];
        // The way follows from the input, so that a kept input goes it again.
        let way = ways[input.iter().map(|&b| b as usize).sum::<usize>() % ways.len()];
        let rewrite = |to: &Path| {
            let named = ["deprewrite".as_ref(), file.as_os_str(), "-o".as_ref(), to.as_os_str()];
            let rest = way.iter().map(|flag| flag.as_ref()).chain(["--quiet".as_ref()]);
            let arguments = Arguments::parse_from(named.into_iter().chain(rest));
            rewriter::rewrite::run(&arguments)
        };
        match rewrite(&output) {
            Ok(()) => {
                let bytes = std::fs::read(&output).map_err(|e| e.to_string())?;
                self.is_ours(&bytes)?;
                if self.runs.is_multiple_of(16) {
                    let again: PathBuf = file.with_extension("again");
                    rewrite(&again).map_err(|e| format!("only the second time: {e}"))?;
                    if std::fs::read(&again).map_err(|e| e.to_string())? != bytes {
                        return Err("two outputs of one input differ".into());
                    }
                }
                Ok(Outcome { accepted: true, name: format!("written {way:?}") })
            }
            Err(_) if output.exists() => Err("an output, and an error".into()),
            Err(error @ Error::Internal(_)) => Err(error.to_string()),
            Err(error) => {
                let name = error.to_string();
                match name.lines().count() {
                    1 => Ok(Outcome { accepted: false, name }),
                    _ => Err(format!("not one line: {name}")),
                }
            }
        }
    }
}

impl Elf {
    /// An output is refused as an input, whatever the input was.
    fn is_ours(&self, output: &[u8]) -> Result<(), String> {
        match Input::parse(output.to_vec()) {
            Err(e) if e.to_string().contains("was written by deprewrite") => Ok(()),
            Err(e) => Err(format!("the output is not recognised: {e}")),
            Ok(_) => Err("the output is accepted as an input".into()),
        }
    }
}

fn main() -> ExitCode {
    fuzz::main(Elf { runs: 0 })
}
