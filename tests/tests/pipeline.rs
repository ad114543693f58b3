//! Outputs in the hands of other tools: what a build pipeline does with a program, it can do with
//! a rewritten one. A tool that is not installed is a skip, by name.

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tests::harness::{Tally, Tools};

const KINDS: [(&str, &[&str]); 8] = [
    ("pie", &["-O1", "-fPIE", "-pie"]),
    ("pie with debug information", &["-g", "-fPIE", "-pie"]),
    ("fixed", &["-O1", "-no-pie"]),
    ("one segment", &["-no-pie", "-Wl,-z,noseparate-code"]),
    ("static", &["-static"]),
    ("static pie", &["-static-pie"]),
    // No room for our program headers.
    ("few headers", &["-pie", "-Wl,-z,norelro,--no-eh-frame-hdr,--build-id=none"]),
    ("static, few headers", &["-static", "-Wl,-z,norelro,--build-id=none"]),
];

const SOURCE: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
    int helper(int x) { return 3 * x; }\n\
    __attribute__((noinline)) int fall(const char *how) {\n\
        if (!strcmp(how, \"store\")) *(volatile int *)16 = 1;\n\
        if (!strcmp(how, \"abort\")) abort();\n\
        if (!strcmp(how, \"jump\")) ((void (*)(void))0x1234)();\n\
        return 7;\n\
    }\n\
    int main(int c, char **v) { printf(\"%d %s\\n\", helper(c), v[c - 1]); return fall(v[c - 1]); }\n";

struct Program {
    input: PathBuf,
    output: PathBuf,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|e| format!("{command:?}: {e}"))
}

fn installed(tool: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|directory| directory.join(tool).is_file())
}

/// One program of each kind, and what is made of it. Skips all if a tool is missing.
fn each_kind(
    test: &'static str,
    tools: &[&str],
    check: impl Fn(&str, &Program, &Path) -> Result<(), String>,
) {
    let mut tally = Tally::start(test);
    if let Some(missing) = tools.iter().find(|tool| !installed(tool)) {
        tally.skip("all", &format!("{missing} is not installed"));
        return tally.finish();
    }
    for (kind, flags) in KINDS {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("program.c"), SOURCE).unwrap();
        let program = Program { input: path("program"), output: path("output") };
        let mut compile = Command::new("cc");
        compile.args(flags).arg("-o").arg(&program.input).arg(path("program.c"));
        let outcome = run(&mut compile).and_then(|compiled| {
            if !compiled.status.success() {
                return Err(text(&compiled.stderr));
            }
            Tools::get().rewrite(&program.input, &program.output, &[])?;
            check(kind, &program, directory.path())
        });
        tally.record(kind, outcome);
    }
    tally.finish();
}

/// Runs the program; what it says and how it ends must be as the original's. Returns its trace.
fn works(program: &Path, directory: &Path) -> Result<PathBuf, String> {
    let trace = directory.join("trace.dep");
    let _ = std::fs::remove_file(&trace);
    let mut command = Command::new(program);
    let output = run(command.arg("word").env("DEP_FILE", &trace))?;
    match (output.status.code(), text(&output.stdout).as_str(), text(&output.stderr).as_str()) {
        (Some(7), "6 word\n", "") => Ok(trace),
        other => Err(format!("{}: {other:?}", program.display())),
    }
}

fn works_and_verifies(program: &Path, directory: &Path) -> Result<(), String> {
    let trace = works(program, directory)?;
    Tools::get().verify(&trace, program)
}

#[test]
fn copies_and_stripped_ones_work() {
    let tools = ["strip", "objcopy", "cp", "eu-strip"];
    each_kind("copies_and_stripped_ones_work", &tools, |_, program, directory| {
        let path = |name: &str| directory.join(name);
        for step in [
            "cp output copy",
            "strip -o stripped output",
            "strip -g -o no-debug output",
            "eu-strip -o eu-stripped output",
            "objcopy output objcopy",
            "objcopy --strip-debug output strip-debug",
            "objcopy --strip-all output strip-all",
            "objcopy --only-keep-debug output debug",
            "strip -g -o linked output",
            "objcopy --add-gnu-debuglink=debug linked",
        ] {
            let mut words = step.split(' ');
            let mut command = Command::new(words.next().unwrap_or_default());
            let done = run(command.args(words).current_dir(directory))?;
            let said = text(&done.stderr);
            if !done.status.success() || !said.is_empty() {
                return Err(format!("{step}: {said}"));
            }
        }
        works_and_verifies(&program.output, directory)?;
        for copy in [
            "copy",
            "stripped",
            "no-debug",
            "eu-stripped",
            "objcopy",
            "strip-debug",
            "strip-all",
            "linked",
        ] {
            works_and_verifies(&path(copy), directory).map_err(|e| format!("{copy}: {e}"))?;
        }
        // Debug information that was put aside is found again.
        if installed("gdb") {
            let gdb = run(gdb().args(["-ex", "info line main"]).arg(path("linked")))?;
            let has = run(gdb_on(&program.output).args(["-ex", "info line main"]))?;
            let line = |output: &Output| text(&output.stdout).lines().next().map(str::to_owned);
            if line(&gdb) != line(&has) {
                return Err(format!("gdb: {:?}, not {:?}", line(&gdb), line(&has)));
            }
        }
        Ok(())
    });
}

fn gdb() -> Command {
    let mut gdb = Command::new("timeout");
    gdb.args(["60", "gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off"]);
    gdb
}

fn gdb_on(program: &Path) -> Command {
    let mut command = gdb();
    command.arg(program);
    command
}

#[test]
fn readelf_says_nothing_new() {
    each_kind("readelf_says_nothing_new", &["readelf"], |_, program, _| {
        let complaints = |path: &Path| -> Result<BTreeSet<String>, String> {
            let output = run(Command::new("readelf").args(["-a", "-W"]).arg(path))?;
            let lines = format!("{}\n{}", text(&output.stderr), text(&output.stdout));
            let bad = |line: &&str| line.contains("Warning") || line.contains("Error");
            let mut bad: BTreeSet<String> = lines.lines().filter(bad).map(str::to_owned).collect();
            if !output.status.success() {
                bad.insert(output.status.to_string());
            }
            Ok(bad)
        };
        let (before, after) = (complaints(&program.input)?, complaints(&program.output)?);
        let new: Vec<_> = after.difference(&before).collect();
        if new.is_empty() {
            Ok(())
        } else {
            Err(format!("{new:?}"))
        }
    });
}

/// Faults that an output has because of what it is.
const INHERENT: [&str; 4] = [
    // The original code is data: sections of code in a segment that cannot be executed. Without
    // the sections' flag neither gdb nor objdump would know that there is code.
    "is executable in nonexecutable segment",
    // ld.so is named where the kernel does not look, because the runtime starts it.
    "static executable cannot have dynamic sections",
    // The program headers stay where the input has them, because strip puts them there; the least
    // important make room. The program itself sees all of them.
    "alloc flag set but section not in any loaded segment",
    "program header entry",
];

#[test]
fn elflint_finds_no_new_fault() {
    each_kind("elflint_finds_no_new_fault", &["eu-elflint"], |kind, program, _| {
        let faults = |path: &Path| -> Result<BTreeSet<String>, String> {
            let output = run(Command::new("eu-elflint").arg("--gnu-ld").arg(path))?;
            let lines = format!("{}{}", text(&output.stdout), text(&output.stderr));
            Ok(lines.lines().filter(|&line| line != "No errors").map(str::to_owned).collect())
        };
        let (before, after) = (faults(&program.input)?, faults(&program.output)?);
        let is_inherent = |fault: &str| {
            let of_static = kind.starts_with("static");
            let known = INHERENT.iter().position(|part| fault.contains(part));
            known.is_some_and(|at| at < 2 || of_static)
        };
        let new: Vec<_> = after.difference(&before).filter(|fault| !is_inherent(fault)).collect();
        if new.is_empty() {
            Ok(())
        } else {
            Err(format!("{new:?}"))
        }
    });
}

#[test]
fn gdb_finds_symbols() {
    each_kind("gdb_finds_symbols", &["gdb"], |kind, program, directory| {
        let dynamic = !kind.starts_with("static");
        let library = ["-ex", "sharedlibrary", "-ex", "info sharedlibrary"];
        let mut gdb = gdb_on(&program.output);
        gdb.env("DEP_FILE", directory.join("gdb.dep")).args(["-ex", "break helper"]);
        // Breakpoints lie in the original code, which is data.
        gdb.args(["-ex", "info symbol main", "-ex", "delete"]);
        gdb.args(["-ex", "handle SIGSEGV nostop noprint pass"]);
        gdb.args(["-ex", "catch syscall exit_group", "-ex", "run word"]);
        gdb.args(if dynamic { &library[..] } else { &[] });
        gdb.args([
            "-ex",
            "info symbol main",
            "-ex",
            "info symbol printf",
            "-ex",
            "info address helper",
        ]);
        gdb.args(["-ex", "kill"]);
        let output = run(&mut gdb)?;
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        let mut expected =
            vec!["main in section .text", "Breakpoint 1 at 0x", "6 word\n", "helper"];
        if dynamic {
            expected.extend(["libc.so.6", "ld-linux-x86-64.so.2"]);
        }
        match expected.iter().find(|part| !said.contains(**part)) {
            None => Ok(()),
            Some(missing) => Err(format!("no {missing:?} in\n{said}")),
        }
    });
}

/// What gdb makes of a core dump: the signal, and the functions that were active.
fn autopsy(program: &Path, how: &str, directory: &Path) -> Result<Vec<String>, String> {
    let core = directory.join("core");
    let _ = std::fs::remove_file(&core);
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -c unlimited; exec \"$0\" \"$1\" >/dev/null"])
        .arg(program)
        .arg(how);
    run(command.current_dir(directory).env("DEP_FILE", directory.join("core.dep")))?;
    let show = ["-ex", "bt", "-ex", "print $_siginfo.si_signo", "-ex", "print $_siginfo.si_code"];
    let output = run(gdb_on(program).arg(&core).args(show))?;
    let function = |line: &str| {
        let frame = line.strip_prefix('#')?.split_once("  ")?.1;
        let frame = frame.split_once(" in ").map_or(frame, |(_, rest)| rest);
        Some(frame.split_once(" (").map_or(frame, |(name, _)| name).to_owned())
    };
    let interesting = |line: &str| match line.starts_with('$') {
        true => Some(line.to_owned()),
        false => function(line),
    };
    Ok(text(&output.stdout).lines().filter_map(interesting).collect())
}

#[test]
fn core_dumps_show_the_crash() {
    let name = "core_dumps_show_the_crash";
    let setting = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        text.unwrap_or_default().trim().to_owned()
    };
    let unlimited = Command::new("sh").args(["-c", "ulimit -c unlimited"]).status();
    let why = match () {
        _ if setting("core_pattern") != "core" || setting("core_uses_pid") != "0" => {
            Some("core dumps go elsewhere (kernel.core_pattern)")
        }
        _ if !unlimited.is_ok_and(|status| status.success()) => Some("core dumps are not allowed"),
        _ => None,
    };
    if let Some(why) = why {
        let mut tally = Tally::start(name);
        tally.skip("all", why);
        return tally.finish();
    }
    each_kind(name, &["gdb"], |_, program, directory| {
        for how in ["store", "abort", "jump"] {
            let native = autopsy(&program.input, how, directory)?;
            let rewritten = autopsy(&program.output, how, directory)?;
            let expected = ["main", "fall"].iter().all(|f| native.iter().any(|n| n == f));
            if !expected || native != rewritten {
                return Err(format!("{how}: {rewritten:?}, natively {native:?}"));
            }
        }
        Ok(())
    });
}

/// The listing without the addresses, which differ from run to run.
fn libraries(program: &Path) -> Result<(Option<i32>, String), String> {
    let directory = program.parent().unwrap();
    let output = run(Command::new("ldd").arg(program).current_dir(directory))?;
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    let lines =
        said.lines().map(|line| line.split(" (0x").next().unwrap_or(line).to_owned() + "\n");
    Ok((output.status.code(), lines.collect()))
}

#[test]
fn ldd_lists_the_same_libraries() {
    each_kind("ldd_lists_the_same_libraries", &["ldd"], |_, program, directory| {
        let files = || std::fs::read_dir(directory).map_or(0, Iterator::count);
        let before = files();
        let (native, rewritten) = (libraries(&program.input)?, libraries(&program.output)?);
        if native != rewritten {
            return Err(format!("{rewritten:?}, not {native:?}"));
        }
        if files() == before {
            Ok(())
        } else {
            Err("it left a file".into())
        }
    });
}

#[test]
fn started_by_ld_so_it_works_or_says_why_not() {
    each_kind("started_by_ld_so_it_works_or_says_why_not", &[], |kind, program, directory| {
        let ld_so = Path::new("/lib64/ld-linux-x86-64.so.2");
        let mut command = Command::new(ld_so);
        command.arg(&program.output).arg("word").env("DEP_FILE", directory.join("trace"));
        let output = run(&mut command)?;
        let said = text(&output.stderr);
        if kind.starts_with("static") {
            let native = run(Command::new(ld_so).arg(&program.input).arg("word"))?;
            return match (native.status, native.stdout) == (output.status, output.stdout) {
                true => Ok(()),
                false => Err(format!("{}: {said}", output.status)),
            };
        }
        let line = "deprewrite: started by ld.so: start this file itself, it loads what it needs\n";
        match (output.status.code(), said == line, directory.join("trace").exists()) {
            (Some(122), true, false) => Ok(()),
            other => Err(format!("{other:?}: {said}")),
        }
    });
}

/// The program writes nothing there, so nothing that happens to our lines may happen to it.
#[test]
fn lines_of_ours_that_nobody_reads_change_nothing() {
    let test = "lines_of_ours_that_nobody_reads_change_nothing";
    each_kind(test, &[], |_, program, directory| {
        let (reader, writer) = std::io::pipe().map_err(|e| e.to_string())?;
        drop(reader);
        let mut command = Command::new(&program.output);
        command.arg("word").env("DEP_FILE", directory.join("no/trace")).stderr(writer);
        let output = run(&mut command)?;
        match (output.status.code(), text(&output.stdout).as_str()) {
            (Some(7), "6 word\n") => Ok(()),
            other => Err(format!("{other:?}, {}", output.status)),
        }
    });
}

/// The descriptors that a program gets are the lowest, whatever its limit.
#[test]
fn the_lowest_descriptors_are_the_programs() {
    let mut tally = Tally::start("the_lowest_descriptors_are_the_programs");
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let source = "#include <fcntl.h>\n#include <stdio.h>\n\
        int main(void) { for (int i = 0; i < 3; i++) printf(\"%d \", open(\"/\", 0)); }\n";
    std::fs::write(path("opens.c"), source).unwrap();
    let mut compile = Command::new("cc");
    run(compile.arg("-o").arg(path("opens")).arg(path("opens.c"))).unwrap();
    Tools::get().rewrite(&path("opens"), &path("output"), &[]).unwrap();
    for limit in [8, 9, 12, 20, 1024] {
        let line = format!("ulimit -n {limit}; exec \"$0\"");
        let mut command = Command::new("sh");
        command.args(["-c", &line]).arg(path("output")).env("DEP_FILE", path("trace.dep"));
        let output = run(&mut command).unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        let outcome = if said == "3 4 5 " { Ok(()) } else { Err(said) };
        tally.record(&format!("a limit of {limit}"), outcome);
    }
    tally.finish();
}

/// Nobody's rights, no capabilities, an empty environment: nothing of it is needed.
#[test]
fn no_rights_are_needed() {
    each_kind("no_rights_are_needed", &["setpriv"], |_, program, directory| {
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory, all).map_err(|e| e.to_string())?;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        command.args(["--inh-caps=-all", "--no-new-privs"]);
        command.arg(&program.output).arg("word").current_dir(directory).env_clear();
        let output = run(&mut command)?;
        if output.status.code() != Some(7) || text(&output.stdout) != "6 word\n" {
            return Err(format!("{}: {}", output.status, text(&output.stderr)));
        }
        let files = std::fs::read_dir(directory).map_err(|e| e.to_string())?.flatten();
        let trace =
            files.map(|file| file.path()).find(|path| path.extension() == Some("dep".as_ref()));
        Tools::get().verify(&trace.ok_or("no trace")?, &program.output)
    });
}

#[test]
fn the_output_depends_on_nothing_but_the_input() {
    each_kind("the_output_depends_on_nothing_but_the_input", &[], |_, program, directory| {
        let elsewhere = directory.join("a folder with another name");
        std::fs::create_dir(&elsewhere).map_err(|e| e.to_string())?;
        let copy = elsewhere.join("another name");
        std::fs::copy(&program.input, &copy).map_err(|e| e.to_string())?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o705))
            .map_err(|e| e.to_string())?;
        let mut command = Command::new(&Tools::get().deprewrite);
        command.args(["another name", "-q", "-o", "x"]).current_dir(&elsewhere).env_clear();
        let done = run(&mut command)?;
        if !done.status.success() || !done.stdout.is_empty() || !done.stderr.is_empty() {
            return Err(format!("{}: {}", done.status, text(&done.stderr)));
        }
        let read = |path: &Path| std::fs::read(path).map_err(|e| e.to_string());
        if read(&program.output)? != read(&elsewhere.join("x"))? {
            return Err("two outputs of one input differ".into());
        }
        let mode = std::fs::metadata(elsewhere.join("x")).map_err(|e| e.to_string())?.permissions();
        match mode.mode() & 0o7777 {
            0o705 => Ok(()),
            mode => Err(format!("its mode is {mode:o}")),
        }
    });
}

/// Both commands install, and say how they end.
#[test]
fn commands_are_installed_by_cargo() {
    let mut tally = Tally::start("commands_are_installed_by_cargo");
    let root = tempfile::tempdir().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (package, command) in [("rewriter", "deprewrite"), ("dep", "dep")] {
        let check = || -> Result<(), String> {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut install = Command::new(cargo);
            install.args(["install", "--locked", "--offline", "--quiet", "--path", package]);
            install.arg("--root").arg(root.path()).current_dir(workspace);
            let done = run(&mut install)?;
            if !done.status.success() {
                return Err(text(&done.stderr));
            }
            let installed = root.path().join("bin").join(command);
            let help = text(&run(Command::new(&installed).arg("--help"))?.stdout);
            if !help.contains("Exit codes: 0 ") {
                return Err(format!("no exit codes:\n{help}"));
            }
            let version = run(Command::new(&installed).arg("--version"))?;
            if !text(&version.stdout).starts_with(command) {
                return Err(text(&version.stdout));
            }
            match run(Command::new(&installed).arg("--no-such-option"))?.status.code() {
                Some(2) => Ok(()),
                status => Err(format!("wrong usage ends with {status:?}")),
            }
        };
        tally.record(command, check());
    }
    tally.finish();
}
