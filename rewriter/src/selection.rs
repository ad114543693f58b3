//! What `--only` and `--skip` amount to in the program and in its libraries.

use crate::convert::index;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::say;
use abi::selection::{functions, matches, names_of, soname, Function, Part, Ranges};
use abi::selection::{Rules, Selected, Selector, MAIN};
use std::cell::RefCell;
use std::path::Path;

/// The rules, and which of them have been found to name something.
#[derive(Default)]
pub struct Selection {
    pub rules: Rules,
    found: RefCell<Vec<Selector>>,
}

/// What is recorded of one module.
#[derive(Clone, Default)]
pub struct Choice {
    pub rules: Rules,
    pub ranges: Ranges,
}

impl Choice {
    /// As the translator asks.
    pub fn selected(&self) -> Selected<'_> {
        match self.rules.is_everything() {
            true => Selected::EVERYTHING,
            false => Selected {
                base: 0,
                len: u64::MAX,
                pieces: self.ranges.pieces(),
                elsewhere: !self.rules.is_nothing(),
            },
        }
    }
}

impl Selection {
    pub fn new(rules: Rules) -> Selection {
        Selection { rules, found: RefCell::default() }
    }

    /// Of the program at `path`.
    pub fn of_program(&self, path: &Path, input: &Input) -> Choice {
        let (name, real) = (base_name(path), real_name(path));
        self.choose(&[&name, &real, MAIN], input)
    }

    /// Of the library at `path`.
    pub fn of_library(&self, path: &Path, input: &Input) -> Choice {
        let name = base_name(path);
        match soname(reader(input)).filter(|other| *other != name) {
            Some(other) => self.choose(&[&name, &other], input),
            None => self.choose(&[&name], input),
        }
    }

    fn choose(&self, names: &[&str], input: &Input) -> Choice {
        if self.rules.is_everything() {
            return Choice { rules: Rules::default(), ranges: Ranges::everything() };
        }
        let all = match self.rules.asks_for_functions(names) {
            true => functions_of(input),
            false => Vec::new(),
        };
        for selector in self.rules.only.iter().chain(&self.rules.skip) {
            let ranges = selector.ranges(names, &all);
            let has_code = |piece: &[u64; 2]| {
                let mut code = input.loads().filter(|p| p.is_executable());
                code.any(|p| piece[0] < p.end() && p.address < piece[1])
            };
            if ranges.pieces().iter().any(has_code) {
                self.found.borrow_mut().push(selector.clone());
            }
        }
        Choice { rules: self.rules.clone(), ranges: self.rules.ranges(names, &all) }
    }

    /// Says what is wrong with selectors that name nothing: an error, if nothing can come that they
    /// name. `libraries`: whether the program's libraries have been looked at.
    pub fn check(&self, path: &Path, input: &Input, libraries: bool, quiet: bool) -> Result<()> {
        let found = self.found.borrow();
        let (name, real) = (base_name(path), real_name(path));
        let names = [&*name, &*real, MAIN];
        for selector in self.rules.only.iter().chain(&self.rules.skip) {
            let is_generated = selector.module.starts_with('[') || selector.module.contains('*');
            if found.contains(selector) || (is_generated && selector.part == Part::Whole) {
                continue;
            }
            let of_program = !selector.module.is_empty() && selector.is_of(&names);
            let certain = of_program || (selector.module.is_empty() && libraries);
            let what = match &selector.part {
                Part::Function(name) => format!("no function {name}{}", nearest(name, input)),
                Part::Range(start, end) => format!("no code at {start:x}..{end:x}"),
                Part::Whole => "no such module".to_owned(),
            };
            if certain {
                return Err(Error::File(format!("{selector}: {what}")));
            }
            if !quiet {
                say!(
                    "{selector}: {what} so far; it can only be of a library that the program opens"
                );
            }
        }
        Ok(())
    }
}

/// The functions that a file names.
pub fn functions_of(input: &Input) -> Vec<Function> {
    functions(reader(input))
}

/// Bytes of the file at an offset.
fn reader(input: &Input) -> impl Fn(u64, u64) -> Option<Vec<u8>> + '_ {
    |at, len| {
        let end = at.checked_add(len)?;
        input.bytes.get(index(at)..index(end)).map(<[u8]>::to_vec)
    }
}

/// The base name behind symbolic links.
fn real_name(path: &Path) -> String {
    path.canonicalize().map_or_else(|_| base_name(path), |real| base_name(&real))
}

fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The names that come nearest to one that does not exist.
fn nearest(wanted: &str, input: &Input) -> String {
    let all = functions_of(input);
    if all.is_empty() {
        return " (the file names no functions; it is stripped)".into();
    }
    let mut names: Vec<(usize, String)> = all
        .iter()
        .flat_map(|f| names_of(&f.symbol))
        .map(|name| (distance(wanted, &name), name))
        .filter(|(far, name)| *far <= wanted.len() / 3 + 1 || matches(&format!("*{wanted}*"), name))
        .collect();
    names.sort();
    names.dedup();
    let shown: Vec<_> = names.into_iter().take(3).map(|(_, name)| name).collect();
    match shown.is_empty() {
        true => String::new(),
        false => format!(" (is it {}?)", shown.join(" or ")),
    }
}

/// How many letters have to be added, dropped or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distances_count_letters() {
        assert_eq!(distance("sort", "sort"), 0);
        assert_eq!(distance("sort", "sorted"), 2);
        assert_eq!(distance("sort", "port"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
