//! Scripts that are no recording's, or another's: what differs is said, and what is no script.

use std::path::{Path, PathBuf};
use std::process::Command;

use abi::event::{End, Event, EventHeader, EventRef, Position};
use abi::ids::StreamOff;
use abi::script::{EntryHeader, Header, HEADER_SIZE, MAGIC, VERSION};
use abi::trace::RegisterState;
use tests::harness::Tools;

/// A program that exits with status 3, rewritten for replays, and the address where it begins.
fn exits(dir: &Path) -> (PathBuf, u64) {
    let (source, program, output) = (dir.join("exits.S"), dir.join("exits"), dir.join("replays"));
    let text = ".globl _start\n_start: mov $3, %edi\n mov $231, %eax\n syscall\n";
    std::fs::write(&source, text).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-nostdlib", "-static", "-no-pie", "-o"]).arg(&program).arg(&source);
    assert!(gcc.status().unwrap().success());
    Tools::get().rewrite(&program, &output, &["--instrument", "none", "--replays"]).unwrap();
    let bytes = std::fs::read(&program).unwrap();
    (output, u64::from_le_bytes(bytes[24..32].try_into().unwrap()))
}

fn put(out: &mut Vec<u8>, event: &EventRef<'_>) {
    let len = event.payload_len().next_multiple_of(8);
    let position = Position { control_flow: StreamOff(0), ..Position::default() };
    let header = EventHeader { kind: event.kind() as u16, len: len as u32, position };
    out.extend_from_slice(&EntryHeader { thread: 0, event: header }.to_bytes());
    event.encode(out);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// A script of a process that starts at `entry` and ends with `status`.
fn script(entry: u64, status: i32) -> Vec<u8> {
    let (stack, stack_end) = (0x7ffd_0000_e000, 0x7ffd_0000_f000);
    let mut registers = RegisterState { rip: entry, rflags: 0x202, ..RegisterState::default() };
    registers.gpr[4] = stack;
    let mut entries = Vec::new();
    put(&mut entries, &Event::ThreadStart { tid: 7, parent: 0, registers: &registers });
    put(&mut entries, &Event::ProcessEnd { reason: End::Exit, status, address: 0 });
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        brk: 0x100_0000,
        stack,
        stack_end,
        free: [0x7e80_0000_0000, 0x7ec0_0000_0000],
        pid: 7,
        len: entries.len() as u64,
        ..Header::default()
    };
    [&header.to_bytes()[..], &entries].concat()
}

/// What a replay of `script` says, and its status.
fn say(output: &Path, dir: &Path, script: &[u8]) -> (String, Option<i32>) {
    let path = dir.join("script");
    std::fs::write(&path, script).unwrap();
    let mut command = Command::new(output);
    command.env_clear().env("DEP_REPLAY", &path).env("DEP_FILE", "null:");
    let run = command.output().unwrap();
    (String::from_utf8_lossy(&run.stderr).into_owned(), run.status.code())
}

#[test]
fn what_differs_or_is_no_script_is_said() {
    const NOT_REPLAYED: Option<i32> = Some(125);
    let dir = tempfile::tempdir().unwrap();
    let (output, entry) = exits(dir.path());
    let say = |script: &[u8]| say(&output, dir.path(), script);
    let whole = script(entry, 3);
    assert_eq!(say(&whole), (String::new(), Some(0)));
    let is_said = |script: &[u8], what: &str| {
        let (said, status) = say(script);
        assert!(said.contains(what), "{said}");
        assert_eq!((status, said.lines().count()), (NOT_REPLAYED, 1), "{said}");
    };
    is_said(&script(entry, 4), "exits with status 3");
    is_said(&script(entry + 1, 3), "the recording is of another program");
    is_said(b"no script", "the script is none of this version");
    is_said(&whole[..whole.len() - 1], "the script is shorter than it says");
    let mut damaged = whole.clone();
    damaged[HEADER_SIZE + 12] = 0xff;
    is_said(&damaged, "the recording does not say how its first thread starts");
    // A recording that was cut off is replayed as far as it goes.
    let mut cut = script(entry, 3);
    let end = cut.len() - 48;
    cut.truncate(end);
    // The last word but one of the header.
    cut[HEADER_SIZE - 16..HEADER_SIZE - 8]
        .copy_from_slice(&((end - HEADER_SIZE) as u64).to_le_bytes());
    let (said, status) = say(&cut);
    assert!(said.contains("the recording goes no further") && status == Some(0), "{said}");
}

#[test]
fn a_program_that_is_not_made_for_it_does_not_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (_, entry) = exits(dir.path());
    let output = dir.path().join("none");
    Tools::get().rewrite(&dir.path().join("exits"), &output, &["--instrument", "none"]).unwrap();
    let (said, status) = say(&output, dir.path(), &script(entry, 3));
    assert!(said.contains("not rewritten for replays"), "{said}");
    assert_eq!(status, Some(125));
}
