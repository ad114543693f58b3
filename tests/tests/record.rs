//! `dep record` and what reads a recording, as users see them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tests::command::{dep, folder, text};
use tests::harness::{cache, Tools};

fn output(mut command: Command) -> Output {
    command.output().expect("it runs")
}

/// The one line of a command that must fail with this status.
fn refused(here: &Path, arguments: &[&str], status: i32) -> String {
    let Output { status: got, stderr, .. } = output(dep(here, arguments));
    let said = String::from_utf8(stderr).expect("text");
    assert_eq!(got.code(), Some(status), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    said
}

/// The processes of a recording.
fn processes(here: &Path, recording: &str) -> Vec<Value> {
    let lines = text(here, &["ps", "--json", recording]);
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn images(processes: &[Value]) -> impl Iterator<Item = &Value> {
    processes.iter().flat_map(|process| process["images"].as_array().expect("images"))
}

/// Names of images as `-p` takes them.
fn names(processes: &[Value]) -> Vec<String> {
    images(processes).map(|image| image["name"].as_str().expect("a name").to_owned()).collect()
}

fn record_sh<'a>(recording: &'a str, script: &'a str) -> [&'a str; 6] {
    ["record", "-o", recording, "sh", "-c", script]
}

#[test]
fn a_pipeline_is_recorded_whole_and_can_be_moved() {
    const SCRIPT: &str = "printf 'b\\na\\nb\\n' | sort | uniq -c; exit 3";
    let here = folder();
    let native = Command::new("sh").args(["-c", SCRIPT]).output().expect("a shell");
    let recorded = output(dep(here.path(), &record_sh("one", SCRIPT)));
    assert_eq!(recorded.stdout, native.stdout);
    assert_eq!(recorded.status, native.status);
    // No terminal: nothing to say.
    assert_eq!(String::from_utf8_lossy(&recorded.stderr), "");

    let all = processes(here.path(), "one");
    let started = |program: &str| images(&all).filter(|i| i["command"][0] == program).count();
    assert_eq!((started("sort"), started("uniq")), (1, 1), "{all:?}");
    let root = all[0]["pid"].as_u64().expect("a process");
    assert_eq!(all[0]["parent"], Value::Null);
    assert_eq!(all[0]["images"][0]["status"], 3);
    for child in &all[1..] {
        assert_eq!(child["parent"].as_u64(), Some(root), "{child}");
        let last = child["images"].as_array().and_then(|all| all.last()).expect("an image");
        assert_eq!((&last["ended"], &last["status"]), (&"exit".into(), &0.into()), "{child}");
    }
    for image in images(&all) {
        assert!(image["end_ns"].as_u64() >= image["start_ns"].as_u64(), "{image}");
        assert!(image["bytes"].as_u64() > Some(0), "{image}");
    }
    // The tree names each of them, and so does -p.
    let tree = text(here.path(), &["ps", "one"]);
    assert_eq!(tree.lines().count(), 1 + names(&all).len(), "{tree}");
    let verified = text(here.path(), &["verify", "one"]);
    assert_eq!(verified.lines().filter(|line| line.contains(" ok: ")).count(), names(&all).len());
    let listings = |recording: &str| {
        names(&all)
            .iter()
            .map(|name| text(here.path(), &["blocks", "-p", name, recording]))
            .collect()
    };
    let blocks: Vec<String> = listings("one");
    assert!(blocks.iter().all(|listing| !listing.is_empty()));

    // What it needs is in it: neither the cache nor its place matter.
    let own = folder();
    let mut again = dep(here.path(), &record_sh("two", SCRIPT));
    assert_eq!(output_of(again.env("DEP_CACHE", own.path())).stdout, native.stdout);
    drop(own);
    fs::rename(here.path().join("two"), here.path().join("moved")).expect("moved");
    let verified = text(here.path(), &["verify", "moved"]);
    assert_eq!(verified.lines().count(), names(&processes(here.path(), "moved")).len());

    // One file of it says the same.
    assert_eq!(text(here.path(), &["pack", "one", "-o", "file"]), "");
    fs::remove_dir_all(here.path().join("one")).expect("removed");
    assert_eq!(listings("file"), blocks);
    assert_eq!(text(here.path(), &["ps", "file"]), tree);
    assert_eq!(text(here.path(), &["unpack", "file", "-o", "back"]), "");
    assert_eq!(listings("back"), blocks);
    assert_eq!(text(here.path(), &["ps", "back"]), tree);
}

fn output_of(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

#[test]
fn it_ends_as_the_program_ends() {
    let here = folder();
    for (n, (script, expected)) in [
        ("exit 0", ExitStatus::from_raw(0)),
        ("exit 7", ExitStatus::from_raw(7 << 8)),
        ("exit 127", ExitStatus::from_raw(127 << 8)),
        ("kill -9 $$", ExitStatus::from_raw(9)),
        ("kill -TERM $$", ExitStatus::from_raw(15)),
        ("kill -SEGV $$", ExitStatus::from_raw(11)),
        ("kill -USR1 $$", ExitStatus::from_raw(10)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = n.to_string();
        let got = output(dep(here.path(), &record_sh(&name, script))).status;
        // A core dump of the program is none of the recorder.
        assert_eq!((got.code(), got.signal()), (expected.code(), expected.signal()), "{script}");
        assert!(!got.core_dumped(), "{script}");
        let manifest = fs::read(here.path().join(&name).join("recording.json")).expect("there");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let status = &manifest["end"]["status"];
        assert_eq!(status["exit"].as_i64(), expected.code().map(i64::from), "{script}: {status}");
        assert_eq!(
            status["signal"].as_i64(),
            expected.signal().map(i64::from),
            "{script}: {status}"
        );
        // The program itself could not record that SIGKILL ended it.
        let shown = &processes(here.path(), &name)[0]["images"][0];
        let number = expected.code().or(expected.signal());
        assert_eq!(shown["status"].as_i64(), number.map(i64::from), "{script}: {shown}");
    }
}

#[test]
fn what_cannot_be_recorded_is_not_run() {
    let here = folder();
    let path = |name: &str| here.path().join(name);
    let mut elf = vec![0; 64];
    // A program of 32 bits.
    elf[..20].copy_from_slice(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0");
    fs::write(path("old"), &elf).expect("written");
    fs::write(path("data"), "echo never").expect("written");
    fs::copy("/bin/true", path("set")).expect("copied");
    fs::set_permissions(path("old"), PermissionsExt::from_mode(0o755)).expect("mode");
    fs::set_permissions(path("set"), PermissionsExt::from_mode(0o4755)).expect("mode");
    fs::set_permissions(path("data"), PermissionsExt::from_mode(0o644)).expect("mode");
    let before = fs::read_dir(here.path()).expect("a folder").count();
    // An option that there is not is no program.
    let run = output(dep(here.path(), &["record", "--no-such", "true"]));
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    let said = refused(here.path(), &["record", "./old"], 125);
    assert!(said.contains("./old: cannot be recorded: "), "{said}");
    let said = refused(here.path(), &["record", "./set"], 125);
    assert!(said.contains("set-user-id"), "{said}");
    let said = refused(here.path(), &["record", "./data"], 126);
    assert!(said.contains("./data: cannot be executed: "), "{said}");
    let said = refused(here.path(), &["record", "no-such-program-anywhere", "-x"], 127);
    assert!(said.contains("no-such-program-anywhere: not found"), "{said}");
    assert_eq!(fs::read_dir(here.path()).expect("a folder").count(), before, "nothing is left");

    fs::create_dir(path("there")).expect("a folder");
    let said = refused(here.path(), &["record", "-o", "there", "true"], 125);
    assert!(said.contains("there is something of this name"), "{said}");
    let said = refused(here.path(), &["record", "-o", "no/where", "true"], 125);
    assert!(said.contains("cannot make the folder of the recording"), "{said}");
}

#[test]
fn scripts_are_recorded_by_what_runs_them() {
    let here = folder();
    for (name, script) in [
        ("named", "#!/bin/sh -u\nset -- \"$0\" \"$@\"\necho \"$@\"\n"),
        // As `execvp` does with what names none.
        ("plain", "echo \"$0\" \"$@\"\n"),
    ] {
        let path = here.path().join(name);
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("mode");
        let program = format!("./{name}");
        let said = text(here.path(), &["record", &program, "a b", "-c"]);
        assert_eq!(said, format!("./{name} a b -c\n"));
        let recording = format!("{name}.0.rec");
        let all = processes(here.path(), &recording);
        let command = &all[0]["images"][0]["command"];
        assert_eq!(command[0], "/bin/sh", "{command}");
        let typed = text(here.path(), &["info", "--json", &recording]);
        let typed: Value = serde_json::from_str(&typed).expect("JSON");
        assert_eq!(typed["command"], serde_json::json!([program, "a b", "-c"]));
    }
}

#[test]
fn recorders_at_once_have_folders_of_their_own() {
    let here = folder();
    let start = |_| {
        let mut command = dep(here.path(), &["record", "true"]);
        command.stderr(Stdio::piped()).spawn().expect("it runs")
    };
    let all: Vec<Child> = (0..5).map(start).collect();
    for child in all {
        let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    }
    for n in 0..5 {
        let recording = format!("true.{n}.rec");
        assert_eq!(processes(here.path(), &recording).len(), 1, "{recording}");
        text(here.path(), &["verify", &recording]);
    }
}

/// A recorder whose program has said that it is ready.
fn ready(here: &Path, script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let recorder = dep(here, &record_sh("rec", script));
    // A shell cannot trap what its caller ignores, and these tests may run under nohup.
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(recorder.get_program()).args(recorder.get_args());
    command.current_dir(here);
    for (name, value) in recorder.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "ready\n");
    (child, lines)
}

fn send(signal: &str, child: &Child) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status().expect("kill");
    assert!(sent.success());
}

#[test]
fn signals_reach_the_program() {
    for signal in ["TERM", "HUP", "INT", "QUIT", "USR1"] {
        let here = folder();
        let script = format!("trap 'echo got; exit 3' {signal}; echo ready; read x; read x");
        let (mut child, mut lines) = ready(here.path(), &script);
        send(signal, &child);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("it speaks");
        assert_eq!(
            (rest.as_str(), child.wait().expect("it ends").code()),
            ("got\n", Some(3)),
            "{signal}"
        );
    }
}

/// On a terminal, whose stops are the recorder's, too, the end of the program is the recorder's as it is elsewhere.
#[test]
fn a_program_ends_on_a_terminal_as_elsewhere() {
    for (name, script, status, end) in [
        ("exit", "echo on; exit 7", 7, serde_json::json!({"exit": 7})),
        ("signal", "echo on; kill -TERM $$", 128 + 15, serde_json::json!({"signal": 15})),
        ("long", "echo on; sleep .2; exit 3", 3, serde_json::json!({"exit": 3})),
    ] {
        let here = folder();
        let dep = Tools::get().dep.display();
        let recorded = format!("{dep} record -o {name} sh -c '{script}'");
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &recorded, "/dev/null"]);
        terminal.current_dir(here.path()).envs(cache()).stdin(Stdio::null());
        let done = output(terminal);
        let said = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(status), "{name}: {said}");
        assert!(said.contains("on") && said.contains(" process"), "{name}: {said}");
        let manifest = std::fs::read(here.path().join(name).join("recording.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["end"]["status"], end, "{name}");
    }
}

/// A caller that ignores the ends of its children has the kernel forget them: the recorder is told all the same.
#[test]
fn the_end_is_known_where_the_caller_ignores_ends() {
    let here = folder();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' CHLD; exec \"$0\" record -o rec sh -c 'exit 5'"]);
    command.arg(&Tools::get().dep).current_dir(here.path()).envs(cache());
    let done = output(command);
    assert_eq!(done.status.code(), Some(5), "{}", String::from_utf8_lossy(&done.stderr));
}

/// An alarm that was set before the recorder was started is the program's.
#[test]
fn an_alarm_that_is_set_before_ends_the_program() {
    let here = folder();
    let mut command = Command::new("perl");
    command.args(["-e", "alarm 1; exec @ARGV"]).arg(&Tools::get().dep);
    command.args(["record", "-o", "rec", "sleep", "60"]);
    command.current_dir(here.path()).envs(cache());
    let done = output(command);
    assert_eq!(done.status.signal(), Some(14), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn what_the_caller_ignores_is_ignored() {
    const SHOW: &str =
        "while read name value; do case $name in Sig[IB]*) echo $name $value;; esac; \
                        done </proc/self/status";
    let here = folder();
    for (n, setting) in ["true", "trap '' PIPE INT USR2"].iter().enumerate() {
        let native = format!("{setting}; exec sh -c \"$1\"");
        let native = Command::new("sh").args(["-c", &native, "sh", SHOW]).output().expect("sh");
        let recorded = format!("{setting}; exec \"$2\" record -o {n} sh -c \"$1\"");
        let mut command = Command::new("sh");
        command.args(["-c", &recorded, "sh", SHOW]).arg(&Tools::get().dep);
        command.current_dir(here.path()).envs(cache());
        let recorded = output(command);
        assert_eq!(
            String::from_utf8_lossy(&recorded.stdout),
            String::from_utf8_lossy(&native.stdout),
            "{setting}: {}",
            String::from_utf8_lossy(&recorded.stderr)
        );
    }
}

/// Waits until something holds that another process is to bring about.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("waited for a minute: {what}");
}

#[test]
fn a_killed_recorder_loses_nothing() {
    let here = folder();
    let (mut child, mut lines) = ready(here.path(), "echo ready; read x; echo got $x; exit 4");
    let mut stdin = child.stdin.take().expect("a pipe");
    send("KILL", &child);
    child.wait().expect("it ends");
    let one = |key: &str| processes(here.path(), "rec")[0]["images"][0][key].clone();
    assert_eq!(one("ended"), "running");
    let info = text(here.path(), &["info", "rec"]);
    assert!(info.contains("1 still running"), "{info}");
    let said = refused(here.path(), &["pack", "rec"], 1);
    assert!(said.contains("rec: still recording: process "), "{said}");

    stdin.write_all(b"this\n").expect("it listens");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("it speaks");
    assert_eq!(rest, "got this\n");
    until("the end of the program", || one("ended") == "exit");
    assert_eq!(one("status"), 4);
    let info = text(here.path(), &["info", "rec"]);
    assert!(info.contains("no end: the program runs, or the recorder was killed"), "{info}");
    text(here.path(), &["verify", "rec"]);
    text(here.path(), &["pack", "rec"]);
    assert_eq!(text(here.path(), &["ps", "rec.tar.zst"]), text(here.path(), &["ps", "rec"]));
}

#[test]
fn a_process_that_outlives_the_program_goes_on_recording() {
    let here = folder();
    let fifo = here.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let script = "(read x <fifo; echo $x >out) >/dev/null 2>&1 & exit 5";
    let Output { status, .. } = output(dep(here.path(), &record_sh("rec", script)));
    assert_eq!(status.code(), Some(5));
    let ended = || {
        let all = processes(here.path(), "rec");
        let all: Vec<String> =
            images(&all).map(|i| i["ended"].as_str().unwrap_or("").into()).collect();
        all
    };
    assert_eq!(ended(), ["exit", "running"]);
    fs::write(&fifo, "late\n").expect("it listens");
    until("the end of the child", || ended() == ["exit", "exit"]);
    assert_eq!(fs::read_to_string(here.path().join("out")).expect("written"), "late\n");
    assert_eq!(text(here.path(), &["verify", "rec"]).lines().count(), 2);
}

#[test]
fn the_commands_take_one_process() {
    let here = folder();
    text(here.path(), &record_sh("rec", "(exit 1) & wait; exec true"));
    let all = processes(here.path(), "rec");
    assert_eq!(all.len(), 2, "{all:?}");
    let (root, child) = (all[0]["pid"].to_string(), all[1]["pid"].to_string());
    assert_eq!(names(&all), [format!("{root}.0"), format!("{root}.1"), format!("{child}.0")]);
    for command in ["blocks", "memrefs", "syscalls"] {
        let said = refused(here.path(), &[command, "rec"], 1);
        let choices = format!("choose with -p: {root}.0 (sh), {root}.1 (true), {child} (sh)");
        assert!(said.contains(&choices), "{said}");
        let said = refused(here.path(), &[command, "-p", &root, "rec"], 1);
        assert!(
            said.contains(&format!("choose with -p: {root}.0 (sh), {root}.1 (true)\n")),
            "{said}"
        );
        let one = text(here.path(), &[command, "-p", &child, "rec"]);
        assert!(
            !one.is_empty()
                && one == text(here.path(), &[command, "-p", &format!("{child}.0"), "rec"])
        );
        // The trace is a file like any other, but for the places of what ran.
        let program = all[1]["images"][0]["name"].as_str().expect("a name");
        assert_eq!(program, format!("{child}.0"));
        let file = format!("rec/traces/{child}.dep");
        let listed = output(dep(here.path(), &[command, &file]));
        assert_eq!(String::from_utf8_lossy(&listed.stdout), one);
        let said = refused(here.path(), &[command, "-p", &child, &file], 1);
        assert!(said.contains("is for a recording"), "{said}");
    }
    let said = refused(here.path(), &["verify", "-p", "1", "rec"], 1);
    assert!(said.contains("no process 1; choose with -p: "), "{said}");
    assert_eq!(text(here.path(), &["verify", "-p", &root, "rec"]).lines().count(), 2);
    let info = text(here.path(), &["info", "-p", &root, "rec"]);
    assert_eq!(info.matches("exit status").count(), 1, "{info}");

    // A bad one does not keep the others from being verified.
    let trace = here.path().join(format!("rec/traces/{root}.dep"));
    let bytes = fs::read(&trace).expect("there");
    fs::write(&trace, &bytes[..bytes.len() / 2]).expect("written");
    let Output { status, stdout, stderr } = output(dep(here.path(), &["verify", "rec"]));
    let (shown, said) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(1));
    assert!(shown.starts_with(&format!("{root}.0 violation: ")), "{shown}");
    assert_eq!(shown.matches(" ok: ").count(), 2, "{shown}");
    assert_eq!(said, "dep: rec: 1 of 3 traces are not what the format promises\n");
}

#[test]
fn what_is_no_recording_is_named() {
    let here = folder();
    let path = |name: &str| here.path().join(name);
    fs::create_dir(path("empty")).expect("a folder");
    fs::create_dir(path("garbage")).expect("a folder");
    fs::write(path("garbage/recording.json"), b"\0\x01{").expect("written");
    fs::create_dir(path("later")).expect("a folder");
    fs::write(path("later/recording.json"), "{\"version\": 99}").expect("written");
    fs::write(path("packed"), b"\x28\xb5\x2f\xfd and nothing that follows").expect("written");
    for command in ["ps", "info", "verify", "blocks"] {
        let said = refused(here.path(), &[command, "empty"], 1);
        assert_eq!(said, "dep: empty: not a recording: it has no recording.json\n");
        let said = refused(here.path(), &[command, "garbage"], 1);
        assert!(said.contains("garbage/recording.json: damaged, or of something else"), "{said}");
        let said = refused(here.path(), &[command, "later"], 1);
        assert!(said.contains("recording of version 99, this reader knows 1"), "{said}");
        let said = refused(here.path(), &[command, "packed"], 1);
        assert!(said.contains("packed: damaged, truncated, or not a packed recording"), "{said}");
        refused(here.path(), &[command, "missing"], 1);
    }
}

/// A truncated file, and one without its contents: one line, and nothing is left of it.
#[test]
fn a_damaged_pack_is_refused() {
    let here = folder();
    let temporary = folder();
    text(here.path(), &["record", "-o", "rec", "true"]);
    text(here.path(), &["pack", "rec"]);
    let said = refused(here.path(), &["pack", "rec"], 1);
    assert!(said.contains("rec.tar.zst: there is something of this name"), "{said}");
    let whole = fs::read(here.path().join("rec.tar.zst")).expect("there");
    let bad: PathBuf = here.path().join("bad");
    for len in [whole.len() / 2, whole.len() - 1] {
        fs::write(&bad, &whole[..len]).expect("written");
        for arguments in [&["ps", "bad"][..], &["verify", "bad"], &["unpack", "bad", "-o", "to"]] {
            let mut command = dep(here.path(), arguments);
            let Output { status, stderr, .. } = output_of(command.env("TMPDIR", temporary.path()));
            let said = String::from_utf8_lossy(&stderr);
            assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
            assert!(said.starts_with("dep: bad: "), "{said}");
        }
    }
    assert!(!here.path().join("to").exists());
    assert_eq!(fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}

#[test]
fn without_following_there_is_one_process() {
    let here = folder();
    let said = text(
        here.path(),
        &["record", "--no-follow", "-o", "rec", "sh", "-c", "(echo a); /bin/echo b"],
    );
    assert_eq!(said, "a\nb\n");
    let all = processes(here.path(), "rec");
    assert_eq!(names(&all).len(), 1, "{all:?}");
    text(here.path(), &["verify", "rec"]);
}

/// What a signal ends at once cannot record its end: its parent was told.
#[test]
fn a_child_that_is_killed_has_the_end_that_its_parent_was_told() {
    let here = folder();
    let here = here.path();
    for (name, signal, number) in [("k", "KILL", 9), ("t", "TERM", 15)] {
        let script = format!("sleep 20 & sleep 1; kill -{signal} $!; wait $!");
        let run = output(dep(here, &record_sh(name, &script)));
        assert_eq!(run.status.code(), Some(128 + number), "{run:?}");
        let all = processes(here, name);
        let ends: Vec<_> = images(&all)
            .filter(|image| image["ended"] == "signal")
            .map(|image| image["status"].as_i64())
            .collect();
        assert_eq!(ends, [Some(number.into())], "{all:?}");
    }
}

/// A selector may be meant for one program of many: only the end tells that it is for none.
#[test]
fn selectors_that_name_nothing_at_all_are_said() {
    let here = folder();
    let here = here.path();
    let selectors =
        "main,dash,libc.so.6:mem*,uniq:1..2,[jit],nosuch.so,:no_such_function,uniq:main.c";
    let script = "printf a | uniq";
    let run = output(dep(here, &["record", "-o", "r", "--only", selectors, "sh", "-c", script]));
    assert!(run.status.success(), "{run:?}");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let named: Vec<&str> = said.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(named, ["nosuch.so", ":no_such_function", "uniq:main.c"], "{said}");
}

/// A thread in its parent's trace says nothing of how the process ended.
#[test]
fn a_process_without_a_trace_has_the_end_that_its_parent_was_told() {
    let here = folder();
    let here = here.path();
    let source = "#include <sys/wait.h>\n#include <unistd.h>\n\
                  int main(void) { int s; if (!vfork()) _exit(3); wait(&s); }\n";
    fs::write(here.join("leaves.c"), source).expect("written");
    let gcc = Command::new("gcc").args(["-o", "leaves", "leaves.c"]).current_dir(here).status();
    assert!(gcc.expect("gcc").success());
    text(here, &["record", "-o", "rec", "./leaves"]);
    let all = processes(here, "rec");
    assert_eq!(all[1]["images"].as_array().map(Vec::len), Some(0), "{all:?}");
    assert_eq!((&all[1]["ended"], &all[1]["status"]), (&Value::from("exit"), &Value::from(3)));
    let listed = text(here, &["ps", "rec"]);
    assert!(listed.lines().nth(2).is_some_and(|line| line.contains("  exit 3  ")), "{listed}");
}

/// A process that executes other programs while nothing is recorded is one process all the same.
#[test]
fn exec_while_switched_off_goes_on_as_the_same_process() {
    let here = folder();
    let here = here.path();
    let script = "exec sh -c 'exec echo end'";
    let recorded = ["record", "-o", "off", "--start", "off", "sh", "-c", script];
    assert_eq!(text(here, &recorded), "end\n");
    let all = processes(here, "off");
    assert_eq!((all.len(), images(&all).count()), (1, 3), "{all:?}");
    text(here, &["verify", "off"]);
}

/// A standard file that the caller has closed is closed in the program.
#[test]
fn closed_standard_files_stay_closed() {
    let here = folder();
    let here = here.path();
    let line =
        |recorder: &str| format!("{recorder} cat <&-; echo $?; {recorder} ls / >&-; echo $?");
    let shell = |line: String| {
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(here).envs(cache());
        output(command)
    };
    let native = shell(line(""));
    let recorded = shell(line(&format!("{} record", Tools::get().dep.display())));
    assert_eq!(recorded, native);
    assert!(!native.stderr.is_empty());
}
