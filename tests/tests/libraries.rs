//! Libraries whose translation travels in the output, or in a file of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::harness::Tools;

const LIBRARY: &str = "
#include <stdio.h>
int x_step(int a) { return a * 3 + 1000; }
int x_run(int n) { int s = 0; for (int i = 0; i < n; i++) s = x_step(s) % 9973; return s; }
";
const LINKED: &str = "
#include <stdio.h>
int x_run(int);
int main(void) { printf(\"%d\\n\", x_run(1000)); }
";
const OPENED: &str = "
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 0; i < 3; i++) {
        void *h = dlopen(argv[1], RTLD_NOW);
        if (!h) { puts(dlerror()); return 1; }
        int (*run)(int) = dlsym(h, \"x_run\");
        printf(\"%d\\n\", run(1000));
        dlclose(h);
    }
}
";

/// A folder with a library, and what is made from it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        place.compile("libx.so", LIBRARY, &["-shared", "-fPIC", "-O1"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (from, to) = (self.path(&format!("{name}.c")), self.path(name));
        std::fs::write(&from, source).unwrap();
        let done = Command::new("gcc").arg(&from).args(flags).arg("-o").arg(&to).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        to
    }

    fn linked(&self) -> PathBuf {
        let dir = self.dir.path().display();
        self.compile(
            "linked",
            LINKED,
            &["-O1", &format!("-L{dir}"), &format!("-Wl,-rpath,{dir}"), "-lx"],
        )
    }

    fn rewrite(&self, program: &Path, flags: &[&str]) -> PathBuf {
        let output = self.path("rewritten");
        Tools::get().rewrite(program, &output, flags).unwrap();
        output
    }

    /// Runs a program, and tells what it printed.
    fn run(&self, program: &Path, argument: &Path, environment: &[(&str, &Path)]) -> String {
        let mut command = Command::new(program);
        command.arg(argument).envs(environment.iter().copied());
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// Runs a rewritten program, checks its trace, and returns output and profile.
    fn record(&self, program: &Path, argument: &Path, folder: Option<&Path>) -> (String, Value) {
        let trace = self.path("trace.dep");
        let _ = std::fs::remove_file(&trace);
        let mut environment = vec![("DEP_FILE", trace.as_path())];
        environment.extend(folder.map(|folder| ("DEP_LIBRARIES", folder)));
        let printed = self.run(program, argument, &environment);
        let tools = Tools::get();
        tools.verify(&trace, program).unwrap();
        let info = self.path("info.json");
        let mut command = Command::new(&tools.dep);
        let done = command.args(["info", "--json"]).arg(&trace).output().unwrap();
        std::fs::write(info, &done.stdout).unwrap();
        (printed, serde_json::from_slice(&done.stdout).unwrap())
    }
}

/// Blocks of the JIT in libraries without a translation. The vdso counts among them; nothing here
/// calls it.
fn jit_in_libraries(info: &Value) -> u64 {
    let jit = |place: &str| -> u64 {
        info[place]["jit"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    jit("embedded_libraries") + jit("elsewhere")
}

fn note_of(info: &Value, library: &Path) -> String {
    let real = library.canonicalize().unwrap();
    let modules = info["modules"].as_array().unwrap();
    let module = modules.iter().find(|m| m["path"] == *real.to_str().unwrap());
    module.expect("the library is a module")["note"].as_str().unwrap().to_owned()
}

#[test]
fn linked_libraries_run_ahead_of_time() {
    let place = Place::new();
    let linked = place.linked();
    let native = place.run(&linked, Path::new(""), &[]);
    let (printed, info) = place.record(&place.rewrite(&linked, &[]), Path::new(""), None);
    assert_eq!(printed, native);
    assert_eq!(jit_in_libraries(&info), 0);
    let (embedded, all) = (&info["embedded_libraries"], &info["elsewhere"]["blocks"]);
    assert!(embedded["static"].as_u64().unwrap() > 1000, "{embedded}");
    assert_eq!(*all, 0);
    // Left to run time, the same code comes from the JIT.
    let (printed, info) =
        place.record(&place.rewrite(&linked, &["--libraries", "runtime"]), Path::new(""), None);
    assert_eq!(printed, native);
    assert!(info["elsewhere"]["jit"]["library"].as_u64().unwrap() > 1000);
}

/// Code in a segment of its own, behind data with zeros, as rewriters of binaries leave it.
const DIVIDED: &str = "
#include <stdio.h>
#define HOT __attribute__((section(\".hot\"), noinline))
int x_zeros[5000];
HOT int x_step(int a) { return a * 3 + 1000; }
__attribute__((noinline)) int x_cold(int a) { return a + x_zeros[a & 4095]; }
HOT int x_run(int n) {
    int s = 0;
    for (int i = 0; i < n; i++) { s = x_step(s) % 9973; if (i % 7 == 0) s = x_cold(s); }
    return s;
}
";

/// A program that is linked with the library, and one that opens it three times.
fn runs_ahead_of_time(flags: &[&str]) {
    let place = Place::new();
    let library =
        place.compile("libx.so", DIVIDED, &[&["-shared", "-fPIC", "-O1"], flags].concat());
    let linked = place.linked();
    let native = place.run(&linked, Path::new(""), &[]);
    for from in ["embed", "cache"] {
        let rewritten = place.rewrite(&linked, &["--libraries", from]);
        let (printed, info) = place.record(&rewritten, Path::new(""), None);
        assert_eq!(printed, native, "{from}");
        assert_eq!(jit_in_libraries(&info), 0, "{from}: {info}");
        assert_eq!(note_of(&info, &library), "", "{from}");
    }
    let folder = place.path("translations/");
    Tools::get().rewrite(&library, &folder, &[]).unwrap();
    let outside = place.rewrite(&linked, &["--libraries", "runtime"]);
    let (printed, info) = place.record(&outside, Path::new(""), Some(&folder));
    assert_eq!((printed, note_of(&info, &library)), (native.clone(), String::new()));
    let opened = place.compile("opened", OPENED, &["-O1"]);
    let with = place.rewrite(&opened, &["--with-library", library.to_str().unwrap()]);
    let (printed, _) = place.record(&with, &library, None);
    assert_eq!(printed, native.repeat(3));
    // A recording that is switched off has another translation.
    let switchable = place.rewrite(&linked, &["--switchable"]);
    assert_eq!(place.record(&switchable, Path::new(""), None).0, native);
}

#[test]
fn a_library_with_two_executable_segments_runs_ahead_of_time() {
    runs_ahead_of_time(&["-Wl,--section-start=.hot=0x400000"]);
}

#[test]
fn a_library_that_is_aligned_to_large_pages_runs_ahead_of_time() {
    runs_ahead_of_time(&["-Wl,-z,max-page-size=0x200000"]);
}

#[test]
fn a_library_with_both_runs_ahead_of_time() {
    runs_ahead_of_time(&["-Wl,--section-start=.hot=0xa00000", "-Wl,-z,max-page-size=0x200000"]);
}

/// More blocks than the tables of an ahead-of-time translation have room for: nobody calls them.
const LARGE: &str = "
#include <stdio.h>
__asm__(\".pushsection .text\\n.globl filler\\n.type filler, @function\\nfiller: .fill 7000000, 2, 0x0072\\n\"
        \"ret\\n.size filler, . - filler\\n.popsection\");
void filler(void);
__attribute__((noinline)) int step(int a) { return a * 3 + 1000; }
int main(int argc, char **argv) {
    int s = 0;
    for (int i = 0; i < 1000; i++) s = step(s) % 9973;
    if (argc > 2) filler();
    printf(\"%d\\n\", s);
}
";

#[test]
fn what_is_too_large_to_be_translated_ahead_of_time_runs() {
    let place = Place::new();
    let large = place.compile("large", LARGE, &["-O1"]);
    let native = place.run(&large, Path::new(""), &[]);
    let count = |info: &Value, place: &str| info[place]["static"].as_u64().unwrap();
    let (printed, info) = place.record(&place.rewrite(&large, &[]), Path::new(""), None);
    assert_eq!(printed, native);
    assert_eq!(count(&info, "main_program"), 0);
    assert!(count(&info, "embedded_libraries") > 1000, "{info}");
    // What a run needed fits.
    let trace = place.path("first.dep");
    std::fs::rename(place.path("trace.dep"), &trace).unwrap();
    let learned = place.rewrite(&large, &["--learn", trace.to_str().unwrap()]);
    let (printed, info) = place.record(&learned, Path::new(""), None);
    assert_eq!(printed, native);
    assert!(count(&info, "main_program") > 2000, "{info}");
    let dynamic = place.rewrite(&large, &["--translate", "dynamic"]);
    assert_eq!(place.record(&dynamic, Path::new(""), None).0, native);
}

#[test]
fn a_library_that_has_changed_is_translated_when_it_runs() {
    let place = Place::new();
    let linked = place.linked();
    let rewritten = place.rewrite(&linked, &[]);
    // 1000 becomes 1001, in the code, and nowhere else: the file's head is what it was.
    let library = place.path("libx.so");
    let mut bytes = std::fs::read(&library).unwrap();
    let at = bytes.windows(4).position(|w| w == 1000u32.to_le_bytes()).unwrap();
    bytes[at] += 1;
    std::fs::write(&library, bytes).unwrap();
    let native = place.run(&linked, Path::new(""), &[]);
    let (printed, info) = place.record(&rewritten, Path::new(""), None);
    assert_eq!(printed, native);
    assert_eq!(note_of(&info, &library), "(its translation is of another file: not used)");
    assert!(info["elsewhere"]["jit"]["library"].as_u64().unwrap() > 1000);
}

#[test]
fn a_library_translated_on_its_own_is_picked_up() {
    let place = Place::new();
    let (library, folder) = (place.path("libx.so"), place.path("translations/"));
    let mut command = Command::new(&Tools::get().deprewrite);
    let done = command.arg(&library).arg("-o").arg(&folder).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let linked = place.linked();
    let native = place.run(&linked, Path::new(""), &[]);
    let rewritten = place.rewrite(&linked, &["--libraries", "runtime"]);
    for (given, own) in [(None, false), (Some(folder.as_path()), true)] {
        let (printed, info) = place.record(&rewritten, Path::new(""), given);
        assert_eq!(printed, native);
        let from_pack = info["embedded_libraries"]["static"].as_u64().unwrap();
        assert_eq!(from_pack > 1000, own, "{from_pack} blocks");
    }
    // Of other options it is not picked up, and the program runs all the same.
    let other = place.rewrite(&linked, &["--libraries", "runtime", "--memory", "addresses"]);
    let (printed, info) = place.record(&other, Path::new(""), Some(&folder));
    assert_eq!(printed, native);
    assert_eq!(info["embedded_libraries"]["blocks"], 0);
}

#[test]
fn opened_libraries_are_named_or_learned() {
    let place = Place::new();
    let library = place.path("libx.so");
    let opened = place.compile("opened", OPENED, &["-O1", "-ldl"]);
    let native = place.run(&opened, &library, &[]);
    let (printed, info) = place.record(&place.rewrite(&opened, &[]), &library, None);
    assert_eq!(printed, native);
    assert!(info["elsewhere"]["jit"]["library"].as_u64().unwrap() > 1000);
    std::fs::rename(place.path("trace.dep"), place.path("first.dep")).unwrap();
    let learn = place.path("first.dep");
    for flags in
        [["--with-library", library.to_str().unwrap()], ["--learn", learn.to_str().unwrap()]]
    {
        let (printed, info) = place.record(&place.rewrite(&opened, &flags), &library, None);
        assert_eq!(printed, native);
        // Opened three times: the translation is found again each time.
        assert_eq!(jit_in_libraries(&info), 0, "{flags:?}");
    }
}

/// What could only be ignored is refused.
#[test]
fn nothing_is_learned_from_other_programs() {
    let place = Place::new();
    let library = place.path("libx.so");
    let opened = place.compile("opened", OPENED, &["-O1", "-ldl", "-Wl,--build-id"]);
    place.record(&place.rewrite(&opened, &[]), &library, None);
    let trace = place.path("trace.dep");
    let trace = trace.to_str().unwrap();
    let output = place.path("learned");
    let refused = |input: &Path, to: &Path, flag: &str| {
        let mut command = Command::new(&Tools::get().deprewrite);
        let done = command.arg(input).arg("-o").arg(to).args([flag, trace]).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(1) && said.lines().count() == 1, "{said}");
        assert!(!output.exists());
        said
    };
    let said = refused(&place.linked(), &output, "--learn");
    assert!(
        said.contains("cannot learn from") && said.contains("was made of another file"),
        "{said}"
    );
    let rebuilt = place.compile("rebuilt", OPENED, &["-O2", "-ldl", "-Wl,--build-id"]);
    let said = refused(&rebuilt, &output, "--learn");
    assert!(said.contains("made of another file"), "{said}");
    for flag in ["--learn", "--with-library"] {
        let said = refused(&library, place.dir.path(), flag);
        assert!(said.contains("take a program, not a library"), "{said}");
    }
}

#[test]
fn outputs_are_deterministic() {
    let place = Place::new();
    let linked = place.linked();
    let bytes = || std::fs::read(place.rewrite(&linked, &[])).unwrap();
    assert!(bytes() == bytes());
}
