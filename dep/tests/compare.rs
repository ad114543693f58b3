//! `dep compare` as its users see it, with rewriters that do nothing, or the wrong thing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn rewriter(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deprewrite").join(name)
}

fn compare(deprewrite: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dep"))
        .args(["compare", "--rounds", "1", "--deprewrite"])
        .arg(deprewrite)
        .args(arguments)
        .output()
        .expect("dep runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn named<'a>(variants: &'a Value, name: &str) -> &'a Value {
    let list = variants.as_array().expect("variants");
    list.iter().find(|v| v["name"] == name).unwrap_or_else(|| panic!("no {name}: {variants}"))
}

#[test]
fn every_variant_has_its_figures() {
    let more = ["--instrument", "none", "--control-flow", "bits", "--variant", "x=--memory none"];
    let run = ["--json", "/bin/echo", "--", "a", "b c"];
    let output = compare(&rewriter("copies"), &[&more[..], &run[..]].concat());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let report = json(&output);
    let program = &report["programs"][0];
    assert_eq!(program["command"], "/bin/echo a 'b c'");
    // `echo "a b c" | sha256sum`
    let sha256 = "1a25953465ab671d54b30108a9951b5500fa40994098ef9463853004da7933e1";
    assert_eq!(program["output"]["bytes"], 6);
    assert_eq!(program["output"]["sha256"], sha256);
    let names = ["native", "static", "dynamic", "static none", "dynamic none", "static bits"];
    for name in names.into_iter().chain(["dynamic bits", "x"]) {
        let variant = named(&program["variants"], name);
        assert_eq!(variant["rounds"].as_array().map(Vec::len), Some(1), "{variant}");
        assert!(variant["wrong"].is_null(), "{variant}");
        assert!(variant["figures"]["wall_ratio"]["median"].is_f64(), "{variant}");
        assert!(variant["figures"]["resident_bytes"]["median"].as_f64() > Some(1e5), "{variant}");
        assert_eq!(variant["start"]["runs"].as_array().map(Vec::len), Some(15), "{variant}");
        assert!(variant["file_bytes"].as_u64() > Some(1000), "{variant}");
    }
    let variant = |name| named(&program["variants"], name);
    let flags = ["--translate", "dynamic", "--control-flow", "bits"];
    assert_eq!(variant("dynamic bits")["flags"], serde_json::json!(flags));
    assert_eq!(variant("static")["trace"]["missing"], "the program left no trace");
    assert_eq!(variant("static")["records"], true);
    assert_eq!(variant("static none")["records"], false);
    assert_eq!(variant("static none")["trace"]["missing"], "nothing is recorded");
    assert_eq!(report["rounds"], 1);
    assert!(report["machine"]["processor"].is_string());
}

#[test]
fn formats_of_what_leaves_no_trace_have_a_time_and_no_sizes() {
    let run = ["--formats", "--flags", "--x --y", "/bin/echo", "--", "a"];
    let output = compare(&rewriter("copies"), &[&["--json"], &run[..]].concat());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let report = json(&output);
    let program = &report["programs"][0];
    let why = "tags registers: the program left no trace";
    assert_eq!(program["formats"]["missing"], why);
    assert_eq!(program["variants"].as_array().map(Vec::len), Some(10));
    let variant = named(&program["variants"], "bits addresses");
    let flags = ["--x", "--y", "--control-flow", "bits", "--memory", "addresses"];
    assert_eq!(variant["flags"], serde_json::json!(flags));
    assert!(variant["figures"]["cpu_ratio"]["median"].is_f64(), "{variant}");
    assert_eq!(report["formats"]["sample_instructions"], 10_000_000);
    // And shown again, from a file.
    let dir = tempfile::tempdir().expect("a directory");
    let kept = dir.path().join("report.json");
    std::fs::write(&kept, &output.stdout).expect("a report");
    let again = compare(&rewriter("no"), &["--report", &kept.to_string_lossy()]);
    let table = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(table.contains(&format!("* echo: no sizes: {why}\n")), "{table}");
    assert!(table.contains("Rewritten with --x --y\n"), "{table}");

    // The flags of one format make a program that ends with another status.
    let output = compare(&rewriter("mistakes"), &run);
    let (table, said) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{table}{said}");
    assert_eq!(said.lines().filter(|l| l.contains("WRONG: echo ")).count(), 3, "{said}");
    assert!(table.contains("WRONG: bits none: ends with status 121"), "{table}");
}

#[test]
fn what_behaves_differently_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let svg = dir.path().join("figure.svg");
    let figure = svg.to_string_lossy();
    let arguments = ["--no-trace", "--memory", "none", "--svg", &figure, "/bin/echo", "--", "a"];
    let output = compare(&rewriter("mistakes"), &arguments);
    let (table, said) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{table}{said}");
    assert!(said.contains("WRONG: echo dynamic: its output has 6 bytes, natively 2\n"), "{said}");
    let stopped = "static none: ends with status 121, natively status 0 (deprewrite: stopped)\n";
    assert!(said.contains(stopped), "{said}");
    assert_eq!(table.lines().filter(|l| l.contains("  WRONG  ")).count(), 3, "{table}");
    let figure = std::fs::read_to_string(svg).expect("a figure");
    assert!(figure.starts_with("<svg") && figure.contains("dynamic: WRONG"), "{figure}");

    let output = compare(&rewriter("mistakes"), &["--json", "--no-trace", "/bin/echo", "--", "a"]);
    let kept = dir.path().join("report.json");
    std::fs::write(&kept, &output.stdout).expect("a report");
    let again = compare(&rewriter("no"), &["--json", "--report", &kept.to_string_lossy()]);
    assert_eq!((again.status.code(), stderr(&again)), (Some(1), stderr(&output)));
    assert!(again.stdout == output.stdout);
    let report = json(&output);
    let variants = &report["programs"][0]["variants"];
    assert!(named(variants, "dynamic")["figures"].is_null());
    assert!(named(variants, "static")["figures"].is_object());
}

#[test]
fn a_tool_that_is_not_installed_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_dep"))
        .args(["compare", "--rounds", "1", "--no-trace", "--peers", "--json", "--deprewrite"])
        .arg(rewriter("copies"))
        .args(["/bin/echo", "--", "a"])
        .env("PATH", "/nowhere")
        .output()
        .expect("dep runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    for name in ["valgrind none", "lackey counts"] {
        let peer = named(&report["programs"][0]["variants"], name);
        assert_eq!(
            (&peer["role"], &peer["missing"]),
            (&"peer".into(), &"valgrind is not installed".into())
        );
        assert!(peer["figures"].is_null(), "{peer}");
    }
}

#[test]
fn a_list_of_programs() {
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("list.tsv");
    let lines = "echo\t/bin/echo $((6 * 7)) | cat\nno\t/bin/nowhere\nfails\t/bin/false x\n";
    std::fs::write(&list, format!("# programs\n\n{lines}")).expect("a list");
    let list = list.to_string_lossy();
    let output = compare(&rewriter("copies"), &["--no-trace", "--workloads", &list]);
    let (table, said) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{table}{said}");
    for line in ["echo ", "no .*FAILED", "fails .*FAILED", "geometric mean "] {
        let (name, state) = line.split_once(".*").unwrap_or((line, ""));
        let found = table.lines().any(|l| l.starts_with(name) && l.contains(state));
        assert!(found, "{line}: {table}");
    }
    assert!(said.contains("dep: fails: natively, it ends with status 1\n"), "{said}");

    let only = ["--json", "--no-trace", "--only", "echo", "--workloads", &list];
    let output = compare(&rewriter("copies"), &only);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["programs"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["programs"][0]["output"]["bytes"], 3);
}

#[test]
fn what_cannot_be_compared_is_one_line_and_an_exit_code() {
    let (copies, refuses, nothing) = (rewriter("copies"), rewriter("refuses"), rewriter("no"));
    let refused = "dep: deprewrite: /bin/false: unsupported input: not an ELF file\n";
    let unknown = "dep: deprewrite: invalid value 'x' for '--memory <MEMORY>'\n";
    let missing = "dep: no-list: No such file or directory (os error 2)\n";
    let status = "dep: natively, it ends with status 3 (words)\n";
    let differ = "dep: two native runs differ: the second: its output ";
    let no_input = "dep: natively: no-input: No such file or directory";
    let late = "dep: natively: it did not end within 1 s\n";
    let nowhere = "dep: cannot record to /nowhere: not a folder\n";
    let no_place = "dep: no folder for rewritten programs in /nowhere: ";
    let idle = "dep: /bin/true has written nothing\n";
    let cases: [(&Path, &[&str], i32, &str); 11] = [
        (&refuses, &["/bin/false"], 1, refused),
        (&refuses, &["--memory", "x", "/bin/echo"], 2, unknown),
        (&nothing, &["/bin/echo"], 1, "tests/deprewrite/no: no such file\n"),
        (&copies, &["--workloads", "no-list"], 1, missing),
        (&copies, &["/bin/sh", "--", "-c", "echo words >&2; exit 3"], 1, status),
        (&copies, &["--limit", "1", "/bin/sleep", "--", "9"], 1, late),
        (&copies, &["/bin/sh", "--", "-c", "echo $$"], 1, differ),
        (&copies, &["--stdin", "no-input", "/bin/cat"], 1, no_input),
        (&copies, &["--record-to", "/nowhere", "/bin/echo"], 1, nowhere),
        (&copies, &["--dir", "/nowhere", "/bin/echo"], 1, no_place),
        (Path::new("/bin/true"), &["/bin/echo"], 1, idle),
    ];
    for (deprewrite, arguments, code, line) in cases {
        let output = compare(deprewrite, arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(line) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    let usage: [(&[&str], &str); 8] = [
        (
            &["--formats", "--memory", "none", "/bin/true"],
            "'--formats' cannot be used with '--memory <VALUE,...>'",
        ),
        (&["--sample", "3", "/bin/true"], "required arguments were not provided"),
        (
            &["--formats", "--sample", "0", "/bin/true"],
            "invalid value '0' for '--sample <MILLIONS>'",
        ),
        (
            &["--workloads", "list", "/bin/echo"],
            "'--workloads <FILE>' cannot be used with '[INPUT]'",
        ),
        (&["--only", "x", "/bin/true"], "'--only <NAME,...>' cannot be used with '[INPUT]'"),
        (&["--limit", "0", "/bin/true"], "invalid value '0' for '--limit <SECONDS>'"),
        (&["--trace-limit", "0", "/bin/true"], "invalid value '0' for '--trace-limit <MIB>'"),
        (&[], "required arguments were not provided"),
    ];
    for (arguments, line) in usage {
        let output = compare(&copies, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(line), "{arguments:?}: {}", stderr(&output));
    }
}
