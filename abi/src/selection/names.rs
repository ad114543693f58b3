//! Names of modules and functions, and what a pattern says of them.

use alloc::string::String;
use alloc::vec::Vec;

/// Whether `pattern` fits `name`: `*` stands for any text, `?` for one character.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it took.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// What a function with this symbol is called: the symbol, without its version; without what a
/// compiler appends to a piece that it has split off (`.cold`, `.part.0`); and the path of a C++ or
/// Rust function, without its parameters.
#[must_use]
pub fn names_of(symbol: &str) -> Vec<String> {
    let symbol = symbol.split('@').next().unwrap_or(symbol);
    let mut names: Vec<String> = [symbol.into()].into();
    let stem = match symbol.find('.') {
        Some(at) if at > 0 => {
            names.push(symbol[..at].into());
            &symbol[..at]
        }
        _ => symbol,
    };
    names.extend(path(stem));
    names
}

/// The path in a mangled name of the simple kind: `_Z` and then lengths and names. Templates and
/// operators are not taken apart.
fn path(symbol: &str) -> Option<String> {
    let rest = symbol.strip_prefix("_Z")?;
    let (mut rest, nested) = match rest.strip_prefix('N') {
        // Qualifiers of member functions.
        Some(rest) => (rest.trim_start_matches(['K', 'V', 'r']), true),
        None => (rest.strip_prefix('L').unwrap_or(rest), false),
    };
    let mut parts: Vec<&str> = Vec::new();
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let len: usize = rest[..digits].parse().ok()?;
        parts.push(rest.get(digits..digits.checked_add(len)?)?);
        rest = &rest[digits + len..];
        if !nested {
            break;
        }
    }
    // Constructors and destructors are called as their class.
    if nested {
        if let (true, Some(class)) = (rest.starts_with(['C', 'D']), parts.last().copied()) {
            parts.push(class);
            rest = rest.get(2..)?;
        }
        rest.strip_prefix('E')?;
    }
    // Rust appends a hash.
    let is_hash = |part: &&str| part.len() == 17 && part.starts_with('h');
    if nested && parts.len() > 1 && parts.last().is_some_and(is_hash) {
        parts.pop();
    }
    (!parts.is_empty()).then(|| parts.join("::"))
}
