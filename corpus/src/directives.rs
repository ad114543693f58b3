//! The comments on top of a source file that say how to build and run it.

use crate::End;

/// What a case can be excepted from.
pub const WAYS: [&str; 4] = ["undo", "inputs", "replay", "bits"];

#[derive(Debug, Default, PartialEq)]
pub struct Directives {
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    pub status: Option<i32>,
    pub signal: Option<i32>,
    pub requires: Vec<String>,
    pub flags: Vec<String>,
    pub variants: Vec<String>,
    /// Library sources to build next to the program.
    pub shared: Vec<String>,
    /// Those of them to link with.
    pub link: Vec<String>,
    pub no_oracle: Option<String>,
    pub refused: Option<String>,
    /// Of a way of running it that it cannot be checked in: why.
    pub except: Vec<(String, String)>,
    pub library: bool,
}

impl Directives {
    /// Reads the directives of one source; an unknown one is an error.
    pub fn parse(source: &str) -> Result<Self, String> {
        let mut d = Self::default();
        for line in source.lines().filter_map(|l| l.strip_prefix("//#")) {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.trim();
            let words = || value.split_whitespace().map(str::to_owned);
            let number = || value.parse().map_err(|_| format!("not a number: //#{line}"));
            match name.trim() {
                "args" => d.args.extend(words()),
                "stdin" => d.stdin = value.replace("\\n", "\n").into_bytes(),
                "expect-status" => d.status = Some(number()?),
                "expect-signal" => d.signal = Some(number()?),
                "requires" => d.requires.extend(words()),
                "flags" => d.flags.extend(words()),
                "variants" => d.variants.extend(words()),
                "shared" => d.shared.extend(words()),
                "link" => {
                    d.shared.extend(words());
                    d.link.extend(words());
                }
                "oracle" => match value.strip_prefix("no:") {
                    Some(why) => d.no_oracle = Some(why.trim().to_owned()),
                    None => return Err(format!("expected `no: why`: //#{line}")),
                },
                "refused" if value.is_empty() => return Err(format!("why? //#{line}")),
                "refused" => d.refused = Some(value.to_owned()),
                "except" => match value.split_once(':') {
                    Some((way, why)) if WAYS.contains(&way.trim()) && !why.trim().is_empty() => {
                        d.except.push((way.trim().to_owned(), why.trim().to_owned()));
                    }
                    _ => return Err(format!("expected one of {WAYS:?}, and why: //#{line}")),
                },
                "library" => d.library = true,
                _ => return Err(format!("unknown directive: //#{line}")),
            }
        }
        Ok(d)
    }

    pub fn end(&self) -> End {
        self.signal.map_or(End::Status(self.status.unwrap_or(0)), End::Signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_read() {
        let d = Directives::parse(
            "// Text.\n//#args: a b\n//#expect-signal: 11\n//#link: x.c\n//#oracle: no: races\n//#refused: odd\n//#except: undo: a: b\nint x;",
        )
        .unwrap();
        assert_eq!(d.args, ["a", "b"]);
        assert_eq!(d.end(), End::Signal(11));
        assert_eq!(d.shared, d.link);
        assert_eq!(d.no_oracle.as_deref(), Some("races"));
        assert_eq!(d.refused.as_deref(), Some("odd"));
        assert_eq!(d.except, [("undo".to_owned(), "a: b".to_owned())]);
    }

    #[test]
    fn a_misspelt_directive_is_an_error() {
        assert!(Directives::parse("//#expect-sginal: 11").is_err());
        assert!(Directives::parse("//#refused:").is_err());
        assert!(Directives::parse("//#except: undo").is_err());
        assert!(Directives::parse("//#except: undo:").is_err());
        assert!(Directives::parse("//#except: und: it is odd").is_err());
    }
}
