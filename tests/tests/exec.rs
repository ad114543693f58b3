//! Programs that execute others, with a recorder: all of them go on recorded, and neither they nor who
//! waits for them can tell.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use abi::answer;
use abi::file::State;
use abi::layout::TOO_FEW_ADDRESSES;
use serde_json::Value;
use tests::harness::{cache, Tally, Tools};

const RECORDER: &str = env!("CARGO_BIN_EXE_stand-in-recorder");

/// A folder for a recording, and one to work in.
struct Session {
    root: tempfile::TempDir,
}

impl Session {
    fn new() -> Session {
        let root = tempfile::tempdir().unwrap();
        let session = Session { root };
        for folder in ["rec/traces", "rec/notes", "work"] {
            fs::create_dir_all(session.root.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(&Tools::get().deprewrite, session.recording("deprewrite"))
            .unwrap();
        session
    }

    fn recording(&self, name: &str) -> PathBuf {
        self.root.path().join("rec").join(name)
    }

    fn work(&self, name: &str) -> PathBuf {
        self.root.path().join("work").join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.work(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn behave(&self, how: &str) {
        fs::write(self.recording("behave"), how).unwrap();
    }

    fn plain(&self, program: &Path, arg0: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg0(arg0).args(arguments).current_dir(self.work("")).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LC_ALL", "C");
        command
    }

    /// The program as it is.
    fn native(&self, program: &str, arguments: &[&str]) -> Command {
        self.plain(Path::new(program), program, arguments)
    }

    /// The program as a recorder starts it.
    fn recorded(&self, program: &str, arguments: &[&str]) -> Command {
        let real = fs::canonicalize(program).unwrap();
        let asked = Command::new(RECORDER)
            .args(["prepare", "--recording"])
            .args([self.recording(""), real.clone()])
            .envs(cache())
            .output()
            .unwrap();
        let answer = String::from_utf8(asked.stdout).unwrap();
        let output = match answer.split('\0').collect::<Vec<_>>()[..] {
            ["run", output, ..] => PathBuf::from(output),
            _ => panic!("{program}: {answer}{}", String::from_utf8_lossy(&asked.stderr)),
        };
        let mut command = self.plain(&output, program, arguments);
        command
            .env("DEP_RECORDER", RECORDER)
            .env("DEP_RECORDING", self.recording(""))
            .env("DEP_FILE", self.recording("traces/%p.dep"))
            .envs(cache())
            .env("DEP_EXECFN", program)
            .env("DEP_EXE", real);
        command
    }

    /// Runs both; what they say and how they end has to be the same. Returns that.
    fn same(&self, program: &str, arguments: &[&str]) -> Result<Output, String> {
        let native = self.native(program, arguments).output().map_err(|e| e.to_string())?;
        let recorded = self.recorded(program, arguments).output().map_err(|e| e.to_string())?;
        same(&native, &recorded)?;
        self.verify()?;
        Ok(recorded)
    }

    fn traces(&self) -> Vec<PathBuf> {
        let mut traces: Vec<_> = files(&self.recording("traces")).collect();
        traces.sort();
        traces
    }

    fn verify(&self) -> Result<(), String> {
        for trace in self.traces() {
            let run = Command::new(&Tools::get().dep).arg("verify").arg(&trace).output();
            let run = run.map_err(|e| e.to_string())?;
            if !run.status.success() {
                return Err(format!("{}: {}", trace.display(), text(&run.stderr)));
            }
        }
        Ok(())
    }

    /// Names of the programs that have traces.
    fn programs(&self) -> BTreeSet<String> {
        let name = |trace: &PathBuf| {
            let info = Command::new(&Tools::get().dep).args(["info", "--json"]).arg(trace).output();
            let info: Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
            let path = info["program"].as_str().unwrap_or_else(|| panic!("{info}"));
            Path::new(path).file_name().unwrap().to_string_lossy().into_owned()
        };
        self.traces().iter().map(name).collect()
    }

    fn has(&self, programs: &[&str]) -> Result<(), String> {
        let there = self.programs();
        match programs.iter().find(|name| !there.contains(**name)) {
            None => Ok(()),
            Some(missing) => Err(format!("{missing} is not recorded, but {there:?}")),
        }
    }

    /// What the recorder was asked, one path a line.
    fn asked(&self) -> String {
        fs::read_to_string(self.recording("asked")).unwrap_or_default()
    }

    fn notes(&self) -> String {
        let mut notes: Vec<_> =
            files(&self.recording("notes")).map(|f| fs::read_to_string(f).unwrap()).collect();
        notes.sort();
        notes.concat()
    }
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn same(native: &Output, recorded: &Output) -> Result<(), String> {
    if native == recorded {
        return Ok(());
    }
    let show =
        |run: &Output| format!("{:?}\n{}{}", run.status, text(&run.stdout), text(&run.stderr));
    Err(format!("natively {}\nrecorded {}", show(native), show(recorded)))
}

/// A program that executes in all ways.
fn ways(session: &Session) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/ways.c");
    let program = session.work("ways");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-pthread", "-o"]).arg(&program).arg(source);
    let compiled = compile.output().unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    program.to_str().unwrap().to_owned()
}

fn check(tally: &mut Tally, name: &str, run: impl FnOnce(&Session) -> Result<(), String>) {
    let session = Session::new();
    tally.record(name, run(&session));
}

fn expect(what: &str, got: impl AsRef<str>, expected: &str) -> Result<(), String> {
    match got.as_ref() == expected {
        true => Ok(()),
        false => Err(format!("{what}: {:?}, not {expected:?}", got.as_ref())),
    }
}

#[test]
fn each_way_to_execute_is_as_natively() {
    let mut tally = Tally::start("each_way_to_execute_is_as_natively");
    check(&mut tally, "all ways", |session| {
        let program = ways(session);
        let run = session.same(&program, &["all"])?;
        let reports = text(&run.stdout).matches("  comm ").count();
        // One does not print its report.
        expect("reports", reports.to_string(), "23")?;
        let why = "the program's filter of system calls (seccomp) would apply to the runtime";
        expect("notes", session.notes(), &format!("{program}: {why}\n"))?;
        // Each program that was executed has a trace of its own.
        let images = session.traces().len();
        match images {
            24.. => Ok(()),
            _ => Err(format!("{images} traces")),
        }
    });
    tally.finish();
}

#[test]
fn shells_and_scripts_go_on_recorded() {
    let mut tally = Tally::start("shells_and_scripts_go_on_recorded");
    let sh = |session: &Session, line: &str| session.same("/bin/sh", &["-c", line]);
    check(&mut tally, "a pipeline", |session| {
        sh(session, "printf 'b\\na\\nb\\n' | sort | uniq -c | cat; sort /nonexistent; exit 7")?;
        session.has(&["dash", "sort", "uniq", "cat"])
    });
    check(&mut tally, "an empty environment", |session| {
        let run = sh(session, "env -i /usr/bin/env A=1 sh -c '/usr/bin/env; env -i env'")?;
        let shown = text(&run.stdout);
        session.has(&["dash", "env"])?;
        // A shell makes some of its own.
        match shown.contains("A=1") && !shown.contains("DEP_") && !shown.contains("HOME") {
            true => Ok(()),
            false => Err(shown),
        }
    });
    check(&mut tally, "the environment's order", |session| {
        let run = sh(session, "export C=3 A=1 B=2; env; unset A; env | cat; DEP_FILE=x env")?;
        expect("DEP_FILE", text(&run.stdout).matches("DEP_").count().to_string(), "1")?;
        expect("traces elsewhere", files(&session.work("")).count().to_string(), "0")
    });
    check(&mut tally, "scripts", |session| {
        let show = "read c < /proc/$$/comm; echo \"$0 [$*] $# $- $c\"; cat /proc/self/comm\n";
        session.write("plain", &format!("#!/bin/sh\n{show}"), 0o755);
        session.write("with-option", &format!("#! /bin/sh -e\t\n{show}exit 3"), 0o755);
        session.write("outer", "#!./plain one  two \n", 0o755);
        session.write("a name that is longer than fifteen", &format!("#!/bin/sh\n{show}"), 0o755);
        session.write("text", "echo without interpreter $0 $*", 0o755);
        session.write("found-by-env", "#!/usr/bin/env perl\nprint \"$0 @ARGV\\n\";", 0o755);
        sh(
            session,
            "./plain 'a b' '' c; ./with-option x; echo $?; ./outer y; $PWD/plain; PATH=. plain; \
             './a name that is longer than fifteen' z; ./text q; ./found-by-env 1 2; exec ./plain e",
        )?;
        session.has(&["dash", "env", "perl", "cat"])?;
        match session.notes().lines().all(|line| line.starts_with("./text: ")) {
            true => Ok(()),
            false => Err(session.notes()),
        }
    });
    check(&mut tally, "what does not exist", |session| {
        let path = "/nonexistent:/usr/bin/env:/etc:/root/none:/usr/bin";
        sh(session, &format!("PATH={path}; nosuchprogram; env nosuchprogram; env true; echo $?"))?;
        let asked = session.asked();
        let asked: Vec<_> = asked.lines().map(|line| line.rsplit('/').next().unwrap()).collect();
        // First the shell that the test starts; then what exists, each time that it is executed.
        let expected = ["dash", "env", "env", "true"];
        expect("asked", asked.join(" "), &expected.join(" "))
    });
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    if numbers < vec![6, 14] {
        tally.skip("a busy file", "the kernel does not say so beforehand");
    } else {
        check(&mut tally, "a busy file", |session| {
            let run = sh(session, "cp /bin/true busy; (exec 5>>busy; ./busy); echo $?; ./busy")?;
            expect("status", text(&run.stdout), "126\n")?;
            session.has(&["busy"])
        });
    }
    check(&mut tally, "ignored and blocked signals", |session| {
        let show = "grep -E '^(SigBlk|SigIgn)' /proc/self/status";
        sh(session, &format!("{show}; trap '' PIPE INT USR1; {show}; env {show}; exec {show}"))?;
        session.has(&["grep", "env"])
    });
    check(&mut tally, "statuses", |session| {
        sh(
            session,
            "sh -c 'exit 5'; echo $?; sh -c 'kill -TERM $$'; echo $?; sh -c 'kill -9 $$'; echo $?; \
             (sleep 0.01 & sh -c 'exit 2' & wait $!; echo $?; wait); ! false; exec sh -c 'exit 9'",
        )?;
        session.has(&["sleep", "dash"])
    });
    tally.finish();
}

#[test]
fn what_cannot_be_followed_runs_as_it_is() {
    let mut tally = Tally::start("what_cannot_be_followed_runs_as_it_is");
    let copy = |session: &Session, name: &str, mode: u32| {
        let path = session.work(name);
        fs::copy("/bin/cat", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let run = |session: &Session, line: &str| session.same("/bin/sh", &["-c", line]);
    for (name, mode, why) in
        [("user", 0o4755, "a set-user-id program"), ("group", 0o2755, "a set-group-id program")]
    {
        check(&mut tally, why, |session| {
            copy(session, name, mode);
            run(session, &format!("echo a | ./{name}; echo $?; cat /dev/null"))?;
            expect("notes", session.notes(), &format!("./{name}: {why}\n"))?;
            let asked = session.asked();
            match asked.lines().any(|line| line.ends_with(name)) {
                true => Err("the recorder was asked".to_owned()),
                false => session.has(&["cat"]),
            }
        });
    }
    check(&mut tally, "few addresses", |session| {
        run(session, "ulimit -v 1000000; echo a | cat; echo $?")?;
        expect("notes", session.notes(), &format!("/usr/bin/cat: {TOO_FEW_ADDRESSES}\n"))
    });
    check(&mut tally, "an output of deprewrite", |session| {
        Tools::get().rewrite(Path::new("/bin/cat"), &session.work("cat.dep"), &[])?;
        run(session, "echo a | DEP_FILE=null: ./cat.dep")?;
        match session.notes().contains("./cat.dep: ") {
            true => Ok(()),
            false => Err("no note".to_owned()),
        }
    });
    for (how, why) in [
        ("fail", "ended with status 1: "),
        ("kill", "was ended by signal 9"),
        ("nonsense", "the recorder's answer is not understood"),
        ("silent", "the recorder's answer is not understood"),
        ("missing", "its rewritten copy cannot be executed (error 2)"),
    ] {
        check(&mut tally, how, |session| {
            let mut shell =
                session.recorded("/bin/sh", &["-c", "echo a | cat; /nonexistent; exit 3"]);
            let native = session.native("/bin/sh", &["-c", "echo a | cat; /nonexistent; exit 3"]);
            let native = { native }.output().unwrap();
            session.behave(how);
            same(&native, &shell.output().unwrap())?;
            session.verify()?;
            let notes = session.notes();
            match notes.starts_with("/usr/bin/cat: ")
                && notes.contains(why)
                && notes.lines().count() == 1
            {
                true => Ok(()),
                false => Err(notes),
            }
        });
    }
    // Whoever executes something else has no children yet: the first one is the program's.
    let why = "the recorder would be the first process of a PID namespace";
    check(&mut tally, why, |session| {
        let line = ["-p", "/bin/sh", "-c", "/bin/ls -d /; echo $?"];
        let run = session.same("/usr/bin/unshare", &line)?;
        expect("stdout", text(&run.stdout), "/\n0\n")?;
        expect("notes", session.notes(), &format!("/bin/sh: {why}\n"))
    });
    check(&mut tally, "no recorder", |session| {
        let mut shell = session.recorded("/bin/sh", &["-c", "echo a | cat"]);
        let run = shell.env("DEP_RECORDER", "/nonexistent/dep").output().unwrap();
        expect("stdout", text(&run.stdout), "a\n")?;
        expect("notes", session.notes(), "/usr/bin/cat: cannot start /nonexistent/dep (error 2)\n")
    });
    check(&mut tally, "another recorder", |session| {
        let mut shell = session.recorded("/bin/sh", &["-c", "DEP_RECORDER=/x env | grep DEP"]);
        expect("stdout", text(&shell.output().unwrap().stdout), "DEP_RECORDER=/x\n")?;
        let note = "/usr/bin/env: it has a recorder of its own\n";
        expect("notes", session.notes(), note)
    });
    check(&mut tally, "not asked to follow", |session| {
        let mut shell = session.recorded("/bin/sh", &["-c", "echo a | cat; env | grep DEP"]);
        let run = shell.env("DEP_FOLLOW", "0").output().unwrap();
        expect("stdout", text(&run.stdout), "a\n")?;
        expect("traces", session.traces().len().to_string(), "1")?;
        expect("notes", session.notes(), "")
    });
    tally.finish();
}

#[test]
fn signals_come_through_while_the_recorder_works() {
    let mut tally = Tally::start("signals_come_through_while_the_recorder_works");
    check(&mut tally, "a handler", |session| {
        let program = ways(session);
        let mut command = session.recorded(&program, &["ticking"]);
        session.behave("slow");
        let run = command.output().unwrap();
        session.verify()?;
        let shown = text(&run.stdout);
        // The handler is that of the program that executes: it comes first, and once.
        match shown.starts_with("signal 14\n/") && shown.matches("signal").count() == 1 {
            true => expect("asked", session.asked().lines().count().to_string(), "2"),
            false => Err(shown),
        }
    });
    check(&mut tally, "a deadly one", |session| {
        let mut command = session.recorded("/bin/sh", &["-c", "exec cat"]);
        session.behave("slow");
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        while session.asked().lines().count() < 2 {
            if start.elapsed() > Duration::from_secs(60) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // SAFETY: a child of ours, which was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let status = child.wait().unwrap();
        expect("signal", format!("{:?}", status.signal()), "Some(15)")?;
        session.verify()
    });
    tally.finish();
}

#[test]
fn what_a_recording_remembers_is_not_asked_for() {
    let mut tally = Tally::start("what_a_recording_remembers_is_not_asked_for");
    check(&mut tally, "as long as it holds", |session| {
        let program = fs::canonicalize("/bin/true").unwrap();
        let other = session.write("other", "1", 0o644);
        let state = |path: &Path| {
            let of = fs::metadata(path).unwrap();
            State {
                file: [of.dev(), of.ino()],
                size: of.size(),
                modified: [of.mtime() as u64, of.mtime_nsec() as u64],
                changed: [of.ctime() as u64, of.ctime_nsec() as u64],
            }
        };
        // (How often it is asked for `true`, which is run twice.)
        let asked = || {
            let before = session.asked();
            session.same("/bin/sh", &["-c", "/bin/true && /bin/true"])?;
            let after = session.asked();
            let lines = after[before.len()..].lines();
            Ok(lines.filter(|line| Path::new(line) == program).count())
        };
        let remember = |files: &[(&Path, Option<State>)], cut: usize| {
            let run = Command::new(RECORDER)
                .args(["prepare", "--recording"])
                .args([&session.recording(""), &program])
                .envs(cache())
                .output();
            let files = files.iter().map(|&(path, state)| (path.as_os_str().as_bytes(), state));
            let bytes = answer::encode(files, &run.unwrap().stdout);
            fs::create_dir_all(session.recording(answer::FOLDER)).unwrap();
            let name = answer::name(program.as_os_str().as_bytes(), state(&program));
            fs::write(session.recording(&name), &bytes[..bytes.len() - cut]).unwrap();
        };
        let expect = |what: &str, times: usize, tally: Result<usize, String>| {
            expect(what, tally?.to_string(), &times.to_string())
        };
        expect("at first", 2, asked())?;
        let missing = session.work("missing");
        let files =
            [(&*program, Some(state(&program))), (&*other, Some(state(&other))), (&*missing, None)];
        remember(&files, 0);
        expect("remembered", 0, asked())?;
        remember(&files, 1);
        expect("damaged", 2, asked())?;
        remember(&files[1..], 0);
        expect("of another", 2, asked())?;
        remember(&files, 0);
        fs::write(&missing, "").unwrap();
        expect("a file more", 2, asked())?;
        fs::remove_file(&missing).unwrap();
        expect("as it was", 0, asked())?;
        session.write("other", "2", 0o644);
        expect("another file", 2, asked())?;
        session.has(&["true"])
    });
    tally.finish();
}

#[test]
fn a_program_in_the_place_of_another_finds_the_other() {
    let mut tally = Tally::start("a_program_in_the_place_of_another_finds_the_other");
    check(&mut tally, "the link", |session| {
        let lines = "readlink /proc/self/exe; (cd /proc/self; exec readlink exe); cd /; \
            readlink proc/self/exe /proc//self/exe; stat -L -c '%i %s %A' /proc/self/exe; \
            stat -c '%A %N' /proc/self/exe; cmp /proc/self/exe /usr/bin/cmp; \
            cat /proc/self/exe | cmp - /bin/cat; head -c 4 /proc/$$/exe | od -c; \
            test -x /proc/self/exe; echo $?; (echo x >> /proc/self/exe) 2>/dev/null || echo busy";
        let run = session.same("/bin/bash", &["-c", lines])?;
        session.has(&["bash", "readlink", "stat", "cmp", "cat"])?;
        match text(&run.stdout).contains("busy") {
            true => Ok(()),
            false => Err("written to".to_owned()),
        }
    });
    check(&mut tally, "without a recorder", |session| {
        Tools::get().rewrite(Path::new("/bin/readlink"), &session.work("link"), &[])?;
        let run = |exe: &[(&str, &str)]| {
            let mut command = session.plain(&session.work("link"), "x", &["/proc/self/exe"]);
            command.env("DEP_FILE", "null:").envs(exe.iter().copied());
            text(&command.output().unwrap().stdout)
        };
        expect("itself", run(&[]), &format!("{}\n", session.work("link").display()))?;
        expect("another", run(&[("DEP_EXE", "/some/where")]), "/some/where\n")
    });
    check(&mut tally, "libraries beside the program", |session| {
        session.write("part.c", "int part(void) { return 42; }\n", 0o644);
        let main = "int part(void); int main(void) { return part(); }\n";
        session.write("main.c", main, 0o644);
        let built = "mkdir lib && cc -shared -fPIC -o lib/libpart.so part.c && \
            cc -o main main.c -Llib -lpart -Wl,-rpath,'$ORIGIN/lib'";
        let built = session.native("/bin/sh", &["-c", built]).output().unwrap();
        expect("cc", text(&built.stderr), "")?;
        let run = session.same("/bin/sh", &["-c", "./main; echo $?"])?;
        expect("status", text(&run.stdout), "42\n")
    });
    tally.finish();
}
