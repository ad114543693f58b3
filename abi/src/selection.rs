//! Which code is recorded (`--only`, `--skip`, `DEP_ONLY`, `DEP_SKIP`).
//!
//! [`Rules`] are what the user says, [`Ranges`] what they amount to in one module, and [`Selected`]
//! is how a translator asks. Rewriter and runtime run the same functions, so that code of one module
//! is selected in the same way whoever translates it.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

mod names;
mod symbols;

pub use names::{matches, names_of};
pub use symbols::{base_of, functions, soname, Function};

/// Name of the program in a selector, besides its base name.
pub const MAIN: &str = "main";
/// Name of code that belongs to no file.
pub const GENERATED: &str = "[jit]";
/// Name of the kernel's code in the process.
pub const VDSO: &str = "[vdso]";

/// What one `--only` or `--skip` names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selector {
    /// Base name or glob of the modules; empty: any.
    pub module: String,
    /// Which part of them.
    pub part: Part,
}

/// A part of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// The functions with this name or glob.
    Function(String),
    /// From the first to before the second address, as the file counts.
    Range(u64, u64),
}

impl Selector {
    /// Reads `MODULE`, `[MODULE]:FUNCTION` or `[MODULE:]A..B`.
    pub fn parse(text: &str) -> Result<Selector, &'static str> {
        if text.is_empty() {
            return Err("it is empty");
        }
        let (module, part) = match text.split_once(':') {
            Some((module, part)) => (module, Some(part)),
            None if range(text).is_some() => (MAIN, Some(text)),
            None => (text, None),
        };
        let part = match part {
            None => Part::Whole,
            Some("") => return Err("nothing behind the colon"),
            Some(part) => match range(part) {
                Some((start, end)) if start >= end => return Err("the range is empty"),
                Some(_) if module.is_empty() => {
                    return Err("a range without a module behind the colon (write MODULE:A..B)");
                }
                Some((start, end)) => Part::Range(start, end),
                None => Part::Function(part.to_string()),
            },
        };
        Ok(Selector { module: module.to_string(), part })
    }

    /// Whether it names (a part of) a module with one of these names.
    pub fn is_of(&self, names: &[&str]) -> bool {
        self.module.is_empty() || names.iter().any(|name| matches(&self.module, name))
    }

    /// Whether it names whatever code there is.
    fn is_everything(&self) -> bool {
        self.part == Part::Whole && self.module.bytes().all(|byte| byte == b'*')
    }

    /// What it names in a module with these functions.
    pub fn ranges(&self, names: &[&str], functions: &[Function]) -> Ranges {
        if !self.is_of(names) {
            return Ranges::default();
        }
        match &self.part {
            Part::Whole => Ranges::everything(),
            Part::Range(start, end) => Ranges::new([[*start, *end]]),
            Part::Function(pattern) => {
                let named = functions.iter().filter(|f| f.is_called(pattern));
                Ranges::new(named.map(|f| [f.start, f.end]))
            }
        }
    }
}

impl core::fmt::Display for Selector {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.part {
            Part::Whole => f.write_str(&self.module),
            Part::Function(name) => write!(f, "{}:{name}", self.module),
            Part::Range(start, end) => write!(f, "{}:{start:x}..{end:x}", self.module),
        }
    }
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (start, end) = text.split_once("..")?;
    let hex = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u64::from_str_radix(digits, 16).ok())?
    };
    Some((hex(start)?, hex(end)?))
}

/// What is recorded: what `only` names (everything, if it names nothing) without what `skip` names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// `--only`
    pub only: Vec<Selector>,
    /// `--skip`
    pub skip: Vec<Selector>,
}

impl Rules {
    /// Reads lists of selectors, separated by commas; the error names the one that is wrong.
    pub fn parse(only: &str, skip: &str) -> Result<Rules, String> {
        let list = |text: &str| -> Result<Vec<Selector>, String> {
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            words
                .map(|word| Selector::parse(word).map_err(|why| alloc::format!("{word}: {why}")))
                .collect()
        };
        Ok(Rules { only: list(only)?, skip: list(skip)? })
    }

    /// Whether everything is recorded.
    pub fn is_everything(&self) -> bool {
        self.only.is_empty() && self.skip.is_empty()
    }

    /// Whether nothing is recorded, whatever the program loads.
    pub fn is_nothing(&self) -> bool {
        self.skip.iter().any(Selector::is_everything)
    }

    /// Whether the names of a module's functions matter.
    pub fn asks_for_functions(&self, names: &[&str]) -> bool {
        let all = self.only.iter().chain(&self.skip);
        all.into_iter().any(|s| matches!(s.part, Part::Function(_)) && s.is_of(names))
    }

    /// What is recorded of a module with these names and functions.
    pub fn ranges(&self, names: &[&str], functions: &[Function]) -> Ranges {
        let union = |list: &[Selector]| {
            let all = list.iter().flat_map(|s| s.ranges(names, functions).0);
            Ranges::new(all)
        };
        let only = match self.only.is_empty() {
            true => Ranges::everything(),
            false => union(&self.only),
        };
        only.without(&union(&self.skip))
    }

    /// The rules as text, a line each: `only SELECTOR`, `skip SELECTOR`.
    pub fn to_text(&self) -> String {
        let line = |word: &'static str| move |s: &Selector| alloc::format!("{word} {s}\n");
        self.only.iter().map(line("only")).chain(self.skip.iter().map(line("skip"))).collect()
    }

    /// Reads [`Rules::to_text`].
    pub fn from_text(text: &str) -> Option<Rules> {
        let mut rules = Rules::default();
        for line in text.lines() {
            let (word, selector) = line.split_once(' ')?;
            let selector = Selector::parse(selector).ok()?;
            match word {
                "only" => rules.only.push(selector),
                "skip" => rules.skip.push(selector),
                _ => return None,
            }
        }
        Some(rules)
    }

    /// A number that differs for different rules; 0: everything is recorded.
    pub fn key(&self) -> u64 {
        match self.is_everything() {
            true => 0,
            false => crate::library::key(self.to_text().as_bytes())[0].max(1),
        }
    }
}

/// Addresses of a module, as its file counts: sorted pieces that neither overlap nor meet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges(Vec<[u64; 2]>);

impl Ranges {
    /// All addresses.
    #[must_use]
    pub fn everything() -> Ranges {
        Ranges(alloc::vec![[0, u64::MAX]])
    }

    /// The addresses in any of these pieces (from the first to before the second).
    pub fn new(pieces: impl IntoIterator<Item = [u64; 2]>) -> Ranges {
        let mut pieces: Vec<[u64; 2]> = pieces.into_iter().filter(|p| p[0] < p[1]).collect();
        pieces.sort_unstable();
        let mut all: Vec<[u64; 2]> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match all.last_mut() {
                Some(last) if piece[0] <= last[1] => last[1] = last[1].max(piece[1]),
                _ => all.push(piece),
            }
        }
        Ranges(all)
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[[u64; 2]] {
        &self.0
    }

    /// Whether all addresses are in it.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0 == [[0, u64::MAX]]
    }

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Ranges) -> Ranges {
        let mut left = Vec::new();
        for &[start, end] in &self.0 {
            let mut at = start;
            for &[from, to] in other.0.iter().filter(|p| p[0] < end && start < p[1]) {
                if at < from {
                    left.push([at, from]);
                }
                at = at.max(to);
            }
            if at < end {
                left.push([at, end]);
            }
        }
        Ranges(left)
    }

    /// Those that are in `other`, too.
    #[must_use]
    pub fn common(&self, other: &Ranges) -> Ranges {
        self.without(&Ranges::everything().without(other))
    }
}

/// What is selected in one piece of memory, as a translator asks.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// Where the module lies; its ranges count from here.
    pub base: u64,
    /// Bytes of the module. What lies elsewhere is not described by `pieces`.
    pub len: u64,
    /// [`Ranges::pieces`].
    pub pieces: &'a [[u64; 2]],
    /// Code outside of the module may be selected.
    pub elsewhere: bool,
}

impl Selected<'_> {
    /// All code.
    pub const EVERYTHING: Selected<'static> =
        Selected { base: 0, len: u64::MAX, pieces: &[[0, u64::MAX]], elsewhere: true };

    /// Whether all code of the module is.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.pieces == [[0, u64::MAX]]
    }

    /// Whether any code of the process may be.
    #[must_use]
    pub fn is_anything(&self) -> bool {
        self.elsewhere || !self.pieces.is_empty()
    }

    /// Whether the instruction that starts at `address`, which is the module's, is.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        let next = self.pieces.partition_point(|piece| piece[0] <= offset);
        next.checked_sub(1).is_some_and(|i| offset < self.pieces[i][1])
    }

    /// Whether code at `address`, wherever that is, may be.
    #[must_use]
    pub fn may_contain(&self, address: u64) -> bool {
        match address.wrapping_sub(self.base) < self.len {
            true => self.contains(address),
            false => self.elsewhere,
        }
    }
}

#[cfg(test)]
mod tests;
