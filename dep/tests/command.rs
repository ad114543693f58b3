//! The command as its users see it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use abi::options::{Options, RecordingOptions};
use trace::test_support::{sample, Sample};

fn dep(arguments: &[&str], trace: &[u8]) -> Output {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(trace).expect("write");
    Command::new(env!("CARGO_BIN_EXE_dep"))
        .arg(arguments[0])
        .arg(file.path())
        .args(&arguments[1..])
        .output()
        .expect("dep runs")
}

fn good() -> Vec<u8> {
    sample(&Sample {
        options: Options::default(),
        split: 2,
        carry_window: false,
        open: false,
        packed: false,
    })
}

fn text(arguments: &[&str]) -> String {
    let output = dep(arguments, &good());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn lists() {
    let blocks = "77 0x401000\n77 0x402000\n77 0x40200c\n77 0x402011\n77 0x40100d\n";
    assert_eq!(text(&["blocks"]), blocks);
    assert_eq!(text(&["blocks", "--limit", "2"]), blocks[..24]);
    assert_eq!(text(&["blocks", "--range", "0x402000..40200c"]), "77 0x402000\n");
    assert_eq!(text(&["blocks", "--thread", "77"]), blocks);
    let json = text(&["blocks", "--json", "--limit", "1"]);
    assert_eq!(json, "{\"tid\":77,\"pc\":\"0x401000\"}\n");
    let memrefs = text(&["memrefs", "--limit", "2"]);
    assert_eq!(memrefs, "77 0x401000 W 0x7ff8 8\n77 0x401001 R 0x508 8\n");
    let json = text(&["memrefs", "--json", "--limit", "1"]);
    let expected =
        "{\"tid\":77,\"pc\":\"0x401000\",\"access\":\"W\",\"address\":\"0x7ff8\",\"size\":8}\n";
    assert_eq!(json, expected);
    assert_eq!(text(&["memrefs"]).lines().count(), 16);
}

#[test]
fn system_calls() {
    let calls = text(&["syscalls"]);
    let expected = "77 write(0x1, 0x5000, 0xc, 0x0, 0x0, 0x0) = 12\n\
                    77 mmap(0x0, 0x1000, 0x3, 0x22, 0xffffffffffffffff, 0x0) = 0x7f1234567000\n\
                    77 rseq(0x6000, 0x20, 0x0, 0x0, 0x0, 0x0) = 0\n\
                    77 write(0x1, 0x5000, 0xc, 0x0, 0x0, 0x0) = -9\n";
    assert_eq!(calls, expected);
    let json = text(&["syscalls", "--json", "--limit", "1", "--thread", "77"]);
    let expected = "{\"tid\":77,\"number\":1,\"name\":\"write\",\"arguments\":\
                    [\"0x1\",\"0x5000\",\"0xc\",\"0x0\",\"0x0\",\"0x0\"],\"result\":12}\n";
    assert_eq!(json, expected);
    let info = text(&["info"]);
    assert!(info.contains("calls        4: write (2), mmap (1), rseq (1)\n"), "{info}");
    assert!(info.contains("not described: rseq (1)\n"), "{info}");
    let json = text(&["info", "--json"]);
    let expected =
        "\"syscalls\":{\"write\":2,\"mmap\":1,\"rseq\":1},\"not_described\":{\"rseq\":1}}";
    assert!(json.contains(expected), "{json}");
}

#[test]
fn info_and_verify() {
    let info = text(&["info"]);
    for part in ["/bin/sample", "\"sample\" \"-x\"", "exit status 3", "5 JIT (library)"] {
        assert!(info.contains(part), "{part}: {info}");
    }
    let json = text(&["info", "--json"]);
    assert!(json.contains("\"references\":16,"), "{json}");
    assert!(text(&["verify"]).starts_with("ok: "));
    assert!(text(&["verify", "--json"]).contains("\"blocks\":5"));
}

#[test]
fn what_is_wrong_is_one_line_and_an_exit_code() {
    let mut bad = good();
    bad[4096 + 100] ^= 1;
    let cases: [(&[&str], &[u8], i32); 4] = [
        (&["verify"], &bad, 1),
        (&["info"], b"no trace at all", 1),
        (&["blocks", "--thread", "5"], &good(), 1),
        (&["blocks", "--range", "5..4"], &good(), 2),
    ];
    for (arguments, trace, code) in cases {
        let output = dep(arguments, trace);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(
            code == 2 || message.lines().filter(|l| !l.contains("warning")).count() == 1,
            "{message}"
        );
    }
}

#[test]
fn a_process_that_was_killed_before_it_recorded_is_no_error() {
    for command in ["info", "blocks", "memrefs", "verify"] {
        for trace in [&b""[..], &[0; 16384]] {
            let output = dep(&[command], trace);
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{command}: {message}");
            assert!(message.contains("nothing was recorded"), "{command}: {message}");
        }
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(&good()).expect("write");
    let mut child = Command::new(env!("CARGO_BIN_EXE_dep"))
        .arg("memrefs")
        .arg(file.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dep runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("dep ends");
    assert!(output.stderr.is_empty() && output.status.success());
}

#[test]
fn undo_logs() {
    let instrument = abi::options::Instrument::Undo;
    let options = RecordingOptions { instrument, ..RecordingOptions::default() }.into();
    let log = trace::test_support::undo_sample(options);
    let text = |arguments: &[&str]| {
        let output = dep(arguments, &log);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let warnings = String::from_utf8(output.stderr).expect("text");
        (String::from_utf8(output.stdout).expect("text"), warnings)
    };
    let (list, _) = text(&["undo", "--thread", "78"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines[0], "78 0x401000 0x5000 4 22222222");
    assert!(lines[4].starts_with("78 0x401009 enter 0x402000 rax=0x100 rcx=0x101"));
    assert_eq!(lines[5], "78 0x402000 lost 0x9000..0xa000 munmap");
    assert_eq!(text(&["undo"]).0.lines().count(), 13);
    assert_eq!(text(&["undo", "--limit", "3"]).0.lines().count(), 3);
    let (json, _) = text(&["undo", "--json", "--limit", "1"]);
    let expected =
        "{\"tid\":77,\"pc\":\"0x401000\",\"address\":\"0x5000\",\"size\":4,\"old\":\"11111111\"}\n";
    assert_eq!(json, expected);
    let (about, warnings) = text(&["undo", "--address", "0x5001"]);
    assert_eq!(about.lines().count(), 2);
    assert!(about.lines().all(|line| line.ends_with(" ?")));
    assert!(warnings.contains("write to 0x5000 without an order"), "{warnings}");
    assert_eq!(text(&["undo", "--backwards"]).0.lines().count(), 13);
    // A profile has none, and an undo log no references.
    assert!(!dep(&["undo"], &good()).status.success());
    assert!(!dep(&["memrefs"], &log).status.success());
}
