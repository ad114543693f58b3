//! Real gdb and a simulated replay.

use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use crate::debug::server::Server;
use crate::debug::simulated::{counting, Simulated};
use crate::debug::timeline::Timeline;
use crate::debug::wire::{Stream, Wire};

/// What gdb says to `commands`, with a program that counts to `rounds`.
fn gdb(rounds: u64, commands: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gdb");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-ex", "set architecture i386:x86-64"]);
    gdb.args(["-ex", "set confirm off", "-ex", "set sysroot /"]);
    gdb.arg("-ex").arg(format!("target remote {}", socket.display()));
    gdb.args(commands.iter().flat_map(|&command| ["-ex", command]));
    let gdb = gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let gdb = gdb.spawn().expect("gdb is there");
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let timeline: Timeline<Simulated> = Timeline::new(counting(rounds)).unwrap();
        let mut server = Server::new(timeline.with_distances(100, 10), "", Some(rounds), None);
        server.serve(Wire::new(Stream::Unix(stream))).unwrap();
    });
    let out = gdb.wait_with_output().unwrap();
    server.join().unwrap();
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Checks that `parts` are there, in this order.
fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => panic!("no {part:?} (after the others) in:\n{text}"),
        }
    }
}

#[test]
fn gdb_steps_both_ways() {
    let said = gdb(
        1000,
        &[
            "print/x $pc",
            "stepi 4",
            "print $pc",
            "print $rax",
            "reverse-stepi 3",
            "print $rcx",
            "print $pc",
            "x/i $pc",
            "reverse-stepi 5",
            "stepi",
            "print $pc",
        ],
    );
    in_order(
        &said,
        &[
            "= 0x1000",
            "= (void (*)()) 0x1018",
            "= 1",
            "= 1000",
            "0x1003",
            "dec    %rdx",
            "No more reverse-execution history",
            "= (void (*)()) 0x1003",
        ],
    );
}

#[test]
fn gdb_stops_at_breakpoints_both_ways() {
    let said = gdb(
        1000,
        &[
            "break *0x1010",
            "continue",
            "print $rax",
            "ignore 1 99",
            "continue",
            "print $rax",
            "reverse-continue",
            "print $rax",
            "condition 1 $rax == 6",
            "reverse-continue",
            "print $rax",
            "delete 1",
            "hbreak *0x1008",
            "continue",
            "print $rax",
            "reverse-continue",
            "reverse-continue",
            "print $rax",
            "reverse-continue",
            "print $rax",
        ],
    );
    in_order(
        &said,
        &[
            "Breakpoint 1",
            "= 3\n",
            "Breakpoint 1",
            "= 303\n",
            "Breakpoint 1",
            "= 300\n",
            "Breakpoint 1",
            "= 6\n",
            "Breakpoint 2",
            "= 9\n",
            "Breakpoint 2",
            "= 3\n",
            "No more reverse-execution history",
            "= 0\n",
        ],
    );
}

#[test]
fn gdb_finds_who_wrote() {
    let said = gdb(
        1000,
        &[
            "continue",
            "print $pc",
            "watch *(long*)0x2000",
            "reverse-continue",
            "print $pc",
            "print $rax",
            "reverse-continue",
            "print $rax",
            "continue",
            "continue",
            "print $pc",
            "print *(long*)0x2000",
            "delete",
            "continue",
            "continue",
        ],
    );
    in_order(
        &said,
        &[
            "SIGILL",
            "0x101a",
            "Hardware watchpoint 1",
            "Old value = 999",
            "New value = 996",
            "0x1008",
            "= 999",
            "Old value = 996",
            "New value = 993",
            "= 996",
            "Old value = 993",
            "New value = 996",
            "Old value = 996",
            "New value = 999",
            "0x1010",
            "= 999",
            "SIGILL",
            "No more reverse-execution history",
        ],
    );
}

#[test]
fn monitor_says_where_and_goes_elsewhere() {
    let said = gdb(
        1000,
        &[
            "monitor when",
            "monitor seek 50%",
            "maintenance flush register-cache",
            "print $rcx",
            "monitor checkpoint",
            "monitor seek end",
            "maintenance flush register-cache",
            "print $pc",
            "monitor seek begin",
            "maintenance flush register-cache",
            "print $pc",
            "monitor seek x",
            "monitor fly",
            "print $rax = 5",
            "set var *(long*)0x2000 = 1",
            "info threads",
        ],
    );
    // gdb prints values to the one, and what the replay says to the other.
    in_order(&said, &["= 500", "0x101a", "0x1000", "Thread 1.100"]);
    in_order(
        &said,
        &[
            "turn 0 of 1000",
            "turn 500 of 1000",
            "checkpoints are at",
            " 500",
            "the recording ends here",
            "turn 0 of 1000",
            "invalid digit",
            "seek TURN",
        ],
    );
    assert!(!said.contains("= 5\n"), "a register was written:\n{said}");
}
