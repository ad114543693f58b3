//! The documents of the repository: each link leads to a file and, behind `#`, to a heading; each
//! place in the code that the map and the guide name is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents that name places in the code as `abi/layout.rs`, `runtime/code/` or
/// `lifter/{needs,cut}.rs`.
const MAPS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

/// Every Markdown file, relative to the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let entry = entry.expect("a readable folder");
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let kind = entry.file_type().expect("a type");
            if kind.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
                folders.push(entry.path());
            } else if kind.is_file() && name.ends_with(".md") {
                let path = entry.path();
                found.push(path.strip_prefix(root()).expect("below the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The lines that are text, not code: without indented blocks and fences. Number and line.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// The line with its code spans blanked, and the spans.
fn spans(line: &str) -> (String, Vec<&str>) {
    let mut rest = String::new();
    let mut spans = Vec::new();
    for (n, part) in line.split('`').enumerate() {
        match n % 2 {
            0 => rest.push_str(part),
            _ => spans.push(part),
        }
    }
    (rest, spans)
}

/// The targets of the links and images in a line.
fn targets(line: &str) -> Vec<String> {
    let (text, _) = spans(line);
    let inside = |rest: &str| rest.split_once(')').map(|(target, _)| target.to_owned());
    text.split("](").skip(1).filter_map(inside).collect()
}

/// The anchor of a heading: lower case, spaces as dashes, other punctuation left out.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    letters.collect()
}

/// The anchors of a document. Of headings with one name, the second is `name-1`, and so on.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name = anchor(title);
        let taken = |n: usize| match n {
            0 => name.clone(),
            n => format!("{name}-{n}"),
        };
        let free = (0..).map(taken).find(|a| !found.contains(a)).expect("there are numbers");
        found.insert(free);
    }
    found
}

/// What is wrong with a link of `document`, if something is.
fn broken(document: &Path, target: &str) -> Option<String> {
    if ["http://", "https://", "mailto:"].iter().any(|s| target.starts_with(s)) {
        return None;
    }
    let (file, wanted) = match target.split_once('#') {
        Some((file, wanted)) => (file, Some(wanted)),
        None => (target, None),
    };
    let path = match file {
        "" => root().join(document),
        file => root().join(document).parent().expect("a folder").join(file),
    };
    if !path.exists() {
        return Some(format!("{file} does not exist"));
    }
    let wanted = wanted?;
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) => return Some(format!("{file} cannot be read: {e}")),
    };
    (!anchors(&text).contains(wanted)).then(|| format!("no heading #{wanted}"))
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn unfold(span: &str) -> Vec<String> {
    match span.split_once('{').and_then(|(a, b)| Some((a, b.split_once('}')?))) {
        Some((head, (names, tail))) => {
            names.split(',').map(|name| format!("{head}{name}{tail}")).collect()
        }
        None => vec![span.to_owned()],
    }
}

/// Whether a code span names a place in the repository: a path of at least two parts that ends as a
/// source file or a folder does.
fn names_a_place(span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.{},".contains(c);
    let relative = span.starts_with(|c: char| c.is_ascii_alphabetic());
    let ends = [".rs", ".S", ".c", ".cc", ".tsv", ".md", "/"].iter().any(|e| span.ends_with(e));
    relative && ends && span.contains('/') && span.chars().all(plain)
}

/// A place is named from the root, or with the `src/` of its crate left out.
fn exists(place: &str) -> bool {
    let inside = place.split_once('/').map(|(part, rest)| root().join(part).join("src").join(rest));
    root().join(place).exists() || inside.is_some_and(|path| path.exists())
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut links = 0;
    for document in documents() {
        let text = fs::read_to_string(root().join(&document)).expect("a readable document");
        for (number, line) in prose(&text) {
            for target in targets(line) {
                links += 1;
                let shown = document.display();
                wrong.extend(
                    broken(&document, &target)
                        .map(|why| format!("{shown}:{number}: ({target}): {why}")),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(links > 20, "only {links} links were found");
}

#[test]
fn named_places_exist() {
    let mut wrong = Vec::new();
    let mut places = 0;
    for document in MAPS {
        let text = fs::read_to_string(root().join(document)).expect("a readable document");
        for (number, line) in prose(&text) {
            for span in spans(line).1.into_iter().filter(|span| names_a_place(span)) {
                for place in unfold(span) {
                    places += 1;
                    if !exists(&place) {
                        wrong.push(format!("{document}:{number}: `{place}`"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "places that do not exist:\n{}", wrong.join("\n"));
    assert!(places > 20, "only {places} places were found");
}

#[test]
fn the_checks_can_fail() {
    let document = Path::new("docs/limits.md");
    assert_eq!(broken(document, "commands.md"), None);
    assert_eq!(broken(document, "commands.md#dep-undo"), None);
    assert_eq!(broken(document, "#core-dumps"), None);
    assert_eq!(broken(document, "https://rustup.rs"), None);
    assert!(broken(document, "no-such-page.md").is_some());
    assert!(broken(document, "commands.md#no-such-heading").is_some());
    assert!(broken(document, "#no-such-heading").is_some());
    assert_eq!(targets("a [b](c.md#d) ![e](f.svg) `[g](h)`"), ["c.md#d", "f.svg"]);
    assert_eq!(anchor(" A library's `x` is-checked, twice"), "a-librarys-x-is-checked-twice");
    assert_eq!(
        anchors("# A\n\ntext\n\n## B c\n\n## A\n\n    # code\n").into_iter().collect::<Vec<_>>(),
        ["a", "a-1", "b-c"]
    );
    assert_eq!(unfold("abi/{ids,unit}.rs"), ["abi/ids.rs", "abi/unit.rs"]);
    assert!(names_a_place("runtime/code/") && !names_a_place("/proc/self/fd/"));
    assert!(exists("abi/layout.rs") && exists("tests/tests/docs.rs") && !exists("abi/no_such.rs"));
}
