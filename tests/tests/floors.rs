//! The runtime's modules are floors: `runtime/src/lib.rs` lists them from the top down, and no file
//! names anything of a floor above its own.

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The floors as `lib.rs` lists them, the top first.
fn floors(lib: &str) -> Vec<&str> {
    lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect()
}

/// The floors that a file's code names, with the lines where it does.
fn named(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for (at, _) in code.match_indices("crate::") {
            // `$crate::` in a macro says the same.
            let rest = &code[at + "crate::".len()..];
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push((number + 1, name));
        }
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn no_floor_of_the_runtime_needs_one_above() {
    let src = root().join("runtime/src");
    let lib = std::fs::read_to_string(src.join("lib.rs")).unwrap();
    let floors = floors(&lib);
    let (mut arrows, mut upward) = (0, Vec::new());
    for (own, floor) in floors.iter().enumerate() {
        let mut files = Vec::new();
        sources(&src.join(floor), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for (line, name) in named(&text) {
                let Some(other) = floors.iter().position(|floor| *floor == name) else { continue };
                arrows += 1;
                if other < own {
                    let file = file.strip_prefix(&src).unwrap().display();
                    upward.push(format!("{file}:{line} names {name}"));
                }
            }
        }
    }
    assert!(floors.len() > 5 && arrows > 200, "{} floors, {arrows} arrows", floors.len());
    assert!(upward.is_empty(), "upward:\n{}", upward.join("\n"));
}

#[test]
fn what_points_upward_is_found() {
    let floors = floors("pub mod gate;\n// x\npub mod base;\npub mod not_here {\n");
    assert_eq!(floors, ["gate", "base"]);
    let text =
        "use crate::gate::stubs; // crate::code\nlet x = crate::base::sys::f($crate::log!());\n";
    let names: Vec<_> =
        named(text).into_iter().map(|(line, name)| format!("{line} {name}")).collect();
    assert_eq!(names, ["1 gate", "2 base", "2 log"]);
}
