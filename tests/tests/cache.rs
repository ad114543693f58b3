//! The cache: what it holds is whole and shared, whatever happens to those who fill it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use abi::library::PackHeader;
use serde_json::Value;
use tests::harness::Tools;

/// A folder with a cache and a recording.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.path("rec")).unwrap();
        std::fs::write(place.path("rec/recording.json"), r#"{"rewrite": []}"#).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("DEP_CACHE", self.path("cache")).env_remove("DEP_CACHE_SIZE");
        command
    }

    fn dep(&self, arguments: &[&str]) -> Output {
        self.command(&Tools::get().dep).args(arguments).output().unwrap()
    }

    /// `dep prepare`, not started yet.
    fn prepare(&self, program: &Path) -> Command {
        let mut command = self.command(&Tools::get().dep);
        command.args(["prepare", "--recording"]).arg(self.path("rec")).arg(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// What runs instead of a program.
    fn prepared(&self, program: &Path) -> PathBuf {
        run_of(&self.prepare(program).output().unwrap())
    }

    /// Rewrites with the libraries in the cache.
    fn rewrite(&self, program: &Path, output: &str, more: &[&str]) -> PathBuf {
        let to = self.path(output);
        let mut command = self.command(&Tools::get().deprewrite);
        command.arg(program).arg("-o").arg(&to).args(["--quiet", "--libraries", "cache"]);
        let done = command.args(more).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_eq!(text(&done.stderr), "");
        to
    }

    /// The only version's folder in the cache.
    fn version(&self) -> PathBuf {
        let mut all = std::fs::read_dir(self.path("cache")).unwrap().flatten();
        let folder = all.next().unwrap().path();
        assert!(all.next().is_none());
        folder
    }

    /// All files that are in place: path in the version's folder, and contents.
    fn entries(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let folders = std::fs::read_dir(self.path("cache")).into_iter().flatten().flatten();
        let mut all = BTreeMap::new();
        for version in folders.map(|folder| folder.path()) {
            let programs = std::fs::read_dir(version.join("programs")).into_iter().flatten();
            let mut folders: Vec<_> = programs.flatten().map(|folder| folder.path()).collect();
            folders.push(version.join("libraries"));
            for folder in folders {
                for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                    let is_pack = file.path().extension().is_some_and(|e| e == "dep-library");
                    if is_pack || !file.path().starts_with(version.join("libraries")) {
                        let name = file.path().strip_prefix(&version).unwrap().to_owned();
                        all.insert(name, std::fs::read(file.path()).unwrap());
                    }
                }
            }
        }
        all
    }

    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (from, to) = (self.path(&format!("{name}.c")), self.path(name));
        std::fs::write(&from, source).unwrap();
        let done = Command::new("gcc").arg(&from).args(flags).arg("-o").arg(&to).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        to
    }

    /// `dep info --json` of a trace.
    fn info(&self, trace: &Path) -> Value {
        let done = self.dep(&["info", "--json", trace.to_str().unwrap()]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        serde_json::from_slice(&done.stdout).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fields(done: &Output) -> Vec<String> {
    assert!(done.status.success(), "{}{}", done.status, text(&done.stderr));
    assert!(done.stdout.ends_with(b"\0"), "{:?}", text(&done.stdout));
    text(&done.stdout[..done.stdout.len() - 1]).split('\0').map(str::to_owned).collect()
}

fn run_of(done: &Output) -> PathBuf {
    let fields = fields(done);
    assert_eq!(fields[0], "run", "{fields:?}");
    PathBuf::from(&fields[1])
}

/// Runs a rewritten program; what it prints.
fn run(program: &Path, arguments: &[&str], trace: &Path) -> String {
    let done = Command::new(program).args(arguments).env("DEP_FILE", trace).output().unwrap();
    assert!(done.status.success(), "{}{}", done.status, text(&done.stderr));
    text(&done.stdout)
}

/// A program of the system: what comes first in PATH may be a script.
fn find(name: &str) -> Option<PathBuf> {
    Path::new("/usr/bin").join(name).canonicalize().ok()
}

#[test]
fn real_programs_run_ahead_of_time_out_of_the_cache() {
    let place = Place::new();
    for (name, arguments) in [
        ("perl", &["-e", "print join(',', sort map { $_ * 7 % 13 } 1..12), \"\\n\""][..]),
        ("python3", &["-c", "import json, math; print(json.dumps([math.sin(3)]))"]),
        ("sqlite3", &[":memory:", "select sum(value) from generate_series(1, 100);"]),
        ("gzip", &["--version"]),
    ] {
        let Some(program) = find(name) else {
            eprintln!("skipped: no {name}");
            continue;
        };
        let native = Command::new(&program).args(arguments).output().unwrap();
        let output = place.rewrite(&program, name, &[]);
        let trace = place.path("trace.dep");
        assert_eq!(run(&output, arguments, &trace), text(&native.stdout), "{name}");
        Tools::get().verify(&trace, &output).unwrap();
        let libraries = &place.info(&trace)["embedded_libraries"];
        let (all, ahead) = (&libraries["blocks"], &libraries["static"]);
        assert!(all.as_u64().unwrap() > 10_000 && all == ahead, "{name}: {libraries}");
        std::fs::remove_file(trace).unwrap();
    }
    // libc and ld.so are there once.
    let listed = place.dep(&["cache", "list", "--json"]);
    let lines = text(&listed.stdout);
    let files: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(files.len(), place.entries().len());
    assert!(files.iter().all(|file| file["bytes"].as_u64().unwrap() > 4096));
}

/// Copies its input, and stays.
fn start(program: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(program);
    command.env("DEP_FILE", "null:").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

const ECHO: &str = r#"
#include <stdio.h>
int main(void) {
    char line[100];
    while (fgets(line, sizeof line, stdin)) { fputs(line, stdout); fflush(stdout); }
}"#;

#[test]
fn programs_share_a_translation_and_go_on_without_the_cache() {
    let place = Place::new();
    let programs = ["one", "two"].map(|name| {
        let flags = ["-O1", &format!("-DNAME={name}"), "-Wl,--build-id=none"];
        place.compile(name, &format!("char *name = \"{name}\";{ECHO}"), &flags)
    });
    let outputs = [0, 1].map(|i| place.rewrite(&programs[i], ["1.out", "2.out"][i], &[]));
    let mut running = outputs.map(|output| start(&output));
    let mut say = |line: &str| {
        for (child, out) in &mut running {
            writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
            let mut answer = String::new();
            out.read_line(&mut answer).unwrap();
            assert_eq!(answer.trim_end(), line);
        }
        running.each_ref().map(|(child, _)| {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
            let packs = maps.lines().filter(|line| line.contains(".dep-library"));
            // Device and inode.
            let files = packs.map(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                format!("{} {}", words[3], words[4])
            });
            files.collect::<std::collections::BTreeSet<_>>()
        })
    };
    let [one, two] = say("first");
    // ld.so and libc.
    assert_eq!((one.len(), &one), (2, &two));
    let done = place.dep(&["cache", "clear"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(std::fs::read_dir(place.path("cache")).unwrap().count(), 0);
    say("second");
    for (mut child, _) in running {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

/// Bytes from the start of a pack to a field of its header.
const CONTENT: usize = offset_of!(PackHeader, content);
const FILE: usize = offset_of!(PackHeader, file);

#[test]
fn a_library_that_has_not_changed_is_not_compared() {
    let place = Place::new();
    let output = place.rewrite(Path::new("/bin/true"), "true.out", &[]);
    let folder = place.version().join("libraries");
    let packs: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().map(|f| f.path()).collect();
    let packs: Vec<_> =
        packs.iter().filter(|p| p.extension() == Some("dep-library".as_ref())).collect();
    // ld.so and libc.
    assert_eq!(packs.len(), 2);
    let change = |field: usize| {
        for pack in &packs {
            let mut bytes = std::fs::read(pack).unwrap();
            assert_ne!(bytes[FILE..][..56], [0; 56], "{}", pack.display());
            bytes[field] ^= 1;
            std::fs::write(pack, bytes).unwrap();
        }
    };
    // Whether code of the libraries ran that was translated ahead of time.
    let used = |name: &str| {
        run(&output, &[], &place.path(name));
        let info = place.info(&place.path(name));
        info["embedded_libraries"]["static"].as_u64().unwrap() > 0
    };
    assert!(used("1.dep"));
    // It is the same file: whether its contents are the same need not be found out.
    change(CONTENT);
    assert!(used("2.dep"));
    // It is not, or is not known to be.
    change(FILE);
    assert!(!used("3.dep"));
    change(CONTENT);
    assert!(used("4.dep"));
}

const OPENER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int sum = 0;
    for (int i = 1; i < argc; i++) {
        void *h = dlopen(argv[i], RTLD_NOW);
        if (!h) { puts(dlerror()); return 1; }
        int (*run)(int) = dlsym(h, "x_run");
        sum += run(50);
    }
    printf("%d\n", sum);
}"#;

#[test]
fn sixty_libraries_of_one_process_have_numbers_of_their_own() {
    const COUNT: usize = 60;
    let place = Place::new();
    let source = |n: usize| {
        format!("int x_run(int n) {{ int s = {n}; while (n--) s = s * 3 % 9973 + {n}; return s; }}")
    };
    let libraries: Vec<_> = (0..COUNT)
        .map(|n| place.compile(&format!("lib{n}.so"), &source(n), &["-shared", "-fPIC", "-O1"]))
        .collect();
    let names: Vec<_> = libraries.iter().map(|path| path.to_str().unwrap()).collect();
    let opener = place.compile("opener", OPENER, &["-O1", "-ldl"]);
    let more: Vec<_> = names.iter().flat_map(|name| ["--with-library", name]).collect();
    let output = place.rewrite(&opener, "out", &more);
    let native = Command::new(&opener).args(&names).output().unwrap();
    let trace = place.path("trace.dep");
    assert_eq!(run(&output, &names, &trace), text(&native.stdout));
    Tools::get().verify(&trace, &output).unwrap();
    let info = place.info(&trace);
    let notes: Vec<_> = info["modules"].as_array().unwrap().iter().map(|m| &m["note"]).collect();
    assert!(notes.len() > COUNT && notes.iter().all(|note| **note == ""), "{notes:?}");
    // Of the first window's unit numbers every library would have the same.
    let libraries = &info["embedded_libraries"];
    assert_eq!(libraries["blocks"], libraries["static"]);
    assert_eq!(place.entries().len(), COUNT + 2);
}

#[test]
fn a_missing_or_damaged_translation_costs_time_only() {
    let place = Place::new();
    let library = place.compile(
        "libx.so",
        "int x_run(int n) { int s = 1; while (n--) s = s * 3 % 9973; return s; }",
        &["-shared", "-fPIC", "-O1"],
    );
    let opener = place.compile("opener", OPENER, &["-O1", "-ldl"]);
    let path = library.to_str().unwrap();
    let before = {
        place.rewrite(&opener, "out", &[]);
        place.entries()
    };
    let output = place.rewrite(&opener, "out", &["--with-library", path]);
    let pack = place.entries().into_keys().find(|name| !before.contains_key(name)).unwrap();
    let pack = place.version().join(pack);
    let native = Command::new(&opener).arg(path).output().unwrap();
    let note = || {
        let trace = place.path("trace.dep");
        let _ = std::fs::remove_file(&trace);
        assert_eq!(run(&output, &[path], &trace), text(&native.stdout));
        Tools::get().verify(&trace, &output).unwrap();
        let info = place.info(&trace);
        let modules = info["modules"].as_array().unwrap();
        let real = library.canonicalize().unwrap();
        let module = modules.iter().find(|m| m["path"] == *real.to_str().unwrap()).unwrap();
        module["note"].as_str().unwrap().to_owned()
    };
    assert_eq!(note(), "");
    let bytes = std::fs::read(&pack).unwrap();
    let missing = "(the cache has no translation of it)";
    for cut in [bytes.len() - 4096, 100, 0] {
        std::fs::remove_file(&pack).unwrap();
        std::fs::write(&pack, &bytes[..cut]).unwrap();
        assert_eq!(note(), missing, "{cut} bytes");
    }
    std::fs::remove_file(&pack).unwrap();
    assert_eq!(note(), missing);
    // Rewriting repairs it, and the output is the same.
    let whole = std::fs::read(&output).unwrap();
    place.rewrite(&opener, "out", &["--with-library", path]);
    assert_eq!(note(), "");
    assert_eq!(std::fs::read(&output).unwrap(), whole);
}

#[test]
fn without_a_cache_libraries_travel_along() {
    let place = Place::new();
    std::fs::write(place.path("cache"), "in the way").unwrap();
    let to = place.path("out");
    let mut command = place.command(&Tools::get().deprewrite);
    let done = command.arg("/bin/true").arg("-o").arg(&to).args(["-q", "--libraries", "cache"]);
    let done = done.output().unwrap();
    let line = text(&done.stderr);
    assert!(done.status.success(), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("the cache cannot be used: ") && line.contains("are embedded"), "{line}");
    let embedded = place.path("embedded");
    Tools::get().rewrite(Path::new("/bin/true"), &embedded, &[]).unwrap();
    assert!(std::fs::read(to).unwrap() == std::fs::read(embedded).unwrap());
}

/// Whatever is in place is whole, at whatever moment its maker was killed.
#[test]
fn a_maker_that_is_killed_leaves_no_half_entry() {
    let rounds: u64 = std::env::var("MOMENTS").map_or(24, |n| n.parse().unwrap());
    let place = Place::new();
    let program = find("gzip").unwrap_or(PathBuf::from("/bin/true"));
    let began = Instant::now();
    place.prepared(&program);
    let whole = began.elapsed();
    let reference = place.entries();
    assert!(reference.len() >= 3);
    let mut interrupted = 0;
    for round in 0..rounds {
        if round % 3 == 0 {
            assert!(place.dep(&["cache", "clear"]).status.success());
        }
        let mut child = place.prepare(&program).spawn().unwrap();
        // Spread over the whole time, in no order.
        std::thread::sleep(whole.mul_f64((round * 7 % rounds) as f64 / rounds as f64));
        child.kill().unwrap();
        interrupted += u32::from(!child.wait().unwrap().success());
        for (name, bytes) in place.entries() {
            let expected = &reference[&name];
            // The numbers of a library's units may differ, its size not.
            let is_pack = name.starts_with("libraries");
            assert!(bytes.len() == expected.len() && (is_pack || bytes == *expected), "{name:?}");
        }
    }
    assert!(interrupted > 0);
    let output = place.prepared(&program);
    assert_eq!(place.entries().len(), reference.len());
    let native = Command::new(&program).arg("--version").output().unwrap();
    assert_eq!(run(&output, &["--version"], Path::new("null:")), text(&native.stdout));
    // Who was killed holds nothing any more.
    let locks = std::fs::read_dir(place.version().join("locks")).unwrap().flatten();
    for lock in locks {
        assert!(std::fs::File::open(lock.path()).unwrap().try_lock().is_ok());
    }
}

#[test]
fn all_who_prepare_at_once_make_it_once() {
    let place = Place::new();
    let program = find("gzip").unwrap_or(PathBuf::from("/bin/true"));
    let children: Vec<_> = (0..6).map(|_| place.prepare(&program).spawn().unwrap()).collect();
    let mut answers: Vec<_> =
        children.into_iter().map(|child| fields(&child.wait_with_output().unwrap())).collect();
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    // A second one would have replaced the first: another inode than the recording's.
    let kept = PathBuf::from(&answers[0][1]);
    let programs = place.version().join("programs");
    let folder = std::fs::read_dir(programs).unwrap().flatten().next().unwrap().path();
    let entry = std::fs::read_dir(folder).unwrap().flatten().next().unwrap();
    assert_eq!(entry.metadata().unwrap().ino(), std::fs::metadata(&kept).unwrap().ino());
    assert_eq!(std::fs::read_dir(place.version().join("new")).unwrap().count(), 0);
}

fn notes(place: &Place) -> String {
    let all = std::fs::read_dir(place.path("rec/notes")).into_iter().flatten().flatten();
    all.map(|note| std::fs::read_to_string(note.path()).unwrap()).collect()
}

/// A file system for the cache that takes less than what goes into it.
#[test]
fn a_full_disk_is_noted_and_recording_goes_on() {
    let place = Place::new();
    let cache = place.path("cache");
    std::fs::create_dir(&cache).unwrap();
    let program = find("gzip").unwrap_or(PathBuf::from("/bin/true"));
    let script = "mount -t tmpfs -o size=3m none \"$1\" && shift && exec \"$@\"";
    let tools = Tools::get();
    let mut command = place.command(Path::new("unshare"));
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&cache).arg(&tools.dep);
    command.args(["prepare", "--recording"]).arg(place.path("rec")).arg(&program);
    let done = command.output().unwrap();
    if text(&done.stderr).contains("mount") || text(&done.stderr).contains("unshare") {
        eprintln!("skipped: {}", text(&done.stderr));
        return;
    }
    let output = run_of(&done);
    assert!(notes(&place).contains("No space left on device"), "{}", notes(&place));
    assert_eq!(notes(&place).lines().count(), 1);
    run(&output, &["--version"], Path::new("null:"));
}

/// A limit for files: the process may be killed by a signal, or told.
#[test]
fn a_limit_for_files_leaves_the_cache_as_it_was() {
    let place = Place::new();
    let program = find("gzip").unwrap_or(PathBuf::from("/bin/true"));
    let tools = Tools::get();
    let mut command = place.command(Path::new("sh"));
    command.args(["-c", "ulimit -f 500 && exec \"$@\"", "sh"]).arg(&tools.dep);
    command.args(["prepare", "--recording"]).arg(place.path("rec")).arg(&program);
    let done = command.output().unwrap();
    assert!(!done.status.success() || fields(&done)[0] == "native");
    assert!(place.entries().values().all(|bytes| bytes.len() < 500 * 1024));
    let output = place.prepared(&program);
    run(&output, &["--version"], Path::new("null:"));
}

#[test]
fn a_cache_of_others_or_that_cannot_be_written_is_not_used() {
    let place = Place::new();
    let cache = place.path("cache");
    let program = Path::new("/bin/true");
    place.prepared(program);
    // SAFETY: asks only.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: not root");
        return;
    }
    std::fs::remove_dir_all(place.path("rec/notes")).ok();
    // Of nobody now: root does not trust it.
    for path in [place.version(), place.version().join("CACHEDIR.TAG")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    let output = place.prepared(program);
    assert!(notes(&place).contains("it belongs to another user"), "{}", notes(&place));
    run(&output, &[], Path::new("null:"));
    // One that cannot be written, for somebody to whom that matters.
    std::fs::remove_dir_all(place.path("rec")).unwrap();
    std::fs::remove_dir_all(&cache).unwrap();
    let place = Place { dir: place.dir };
    std::fs::create_dir(&cache).unwrap();
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o555)).unwrap();
    std::fs::create_dir(place.path("rec")).unwrap();
    std::fs::write(place.path("rec/recording.json"), r#"{"rewrite": []}"#).unwrap();
    std::fs::set_permissions(place.path("rec"), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let dep = place.path("dep");
    std::fs::copy(&Tools::get().dep, &dep).unwrap();
    let mut command = place.command(Path::new("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&dep);
    command.args(["prepare", "--recording"]).arg(place.path("rec")).arg(program);
    let Ok(done) = command.output() else {
        eprintln!("skipped: no setpriv");
        return;
    };
    if text(&done.stderr).contains("Permission denied") {
        eprintln!("skipped: nobody cannot start programs here");
        return;
    }
    let output = run_of(&done);
    assert!(notes(&place).contains("Permission denied"), "{}", notes(&place));
    run(&output, &[], Path::new("null:"));
}

/// Another version has a folder of its own; what lies there is nothing to this one.
#[test]
fn other_versions_stay_out_of_the_way() {
    let place = Place::new();
    let other = place.path("cache/0.0.9-0123456789abcdef");
    std::fs::create_dir_all(other.join("records")).unwrap();
    std::fs::write(other.join("records/nonsense"), "nonsense").unwrap();
    std::fs::write(place.path("cache/file"), "nonsense").unwrap();
    place.prepared(Path::new("/bin/true"));
    assert_eq!(notes(&place), "");
    let listed = text(&place.dep(&["cache", "list"]).stdout);
    assert!(!listed.contains("nonsense") && listed.contains("programs/"), "{listed}");
    assert!(place.dep(&["cache", "clear"]).status.success());
    assert!(other.join("records/nonsense").exists() && place.path("cache/file").exists());
    // Too small a limit: the entries of now stay all the same, and a wrong one is named.
    let mut command = place.prepare(Path::new("/bin/true"));
    let done = command.env("DEP_CACHE_SIZE", "a lot").output().unwrap();
    let output = run_of(&done);
    assert!(notes(&place).contains("DEP_CACHE_SIZE=a lot is not a size"), "{}", notes(&place));
    run(&output, &[], Path::new("null:"));
}
