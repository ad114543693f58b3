//! When a recording begins (`--start`, `DEP_START`).

/// When a recording begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// With the program's first instruction.
    #[default]
    Entry,
    /// When the program first comes to its function `main`.
    Main,
    /// When the program first starts another thread.
    SecondThread,
    /// When this signal is first delivered to a handler of the program.
    Signal(u8),
    /// With the first `dep on`.
    Off,
}

/// What [`Start::parse`] takes, in words.
pub const EXPECTED: &str = "entry, main, second-thread, signal:N or off";

/// As [`Start::parse`] reads it.
impl core::fmt::Display for Start {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Start::Entry => out.write_str("entry"),
            Start::Main => out.write_str("main"),
            Start::SecondThread => out.write_str("second-thread"),
            Start::Signal(number) => write!(out, "signal:{number}"),
            Start::Off => out.write_str("off"),
        }
    }
}

impl Start {
    /// As users write it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Start> {
        let signal = |number: &str| number.parse().ok().filter(|n| (1..=64).contains(n));
        Some(match text {
            "entry" => Start::Entry,
            "main" => Start::Main,
            "second-thread" => Start::SecondThread,
            "off" => Start::Off,
            other => Start::Signal(signal(other.strip_prefix("signal:")?)?),
        })
    }

    /// As the image header holds it.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Start::Entry => 0,
            Start::Main => 1,
            Start::SecondThread => 2,
            Start::Signal(number) => 3 | (number as u64) << 8,
            Start::Off => 4,
        }
    }

    /// The inverse of [`Start::to_word`]; `None` if it has no meaning in this version.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Start> {
        let [kind, number, ..] = word.to_le_bytes();
        Some(match kind {
            0 => Start::Entry,
            1 => Start::Main,
            2 => Start::SecondThread,
            3 => Start::Signal(number),
            4 => Start::Off,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_write_survives_the_header() {
        let all = ["entry", "main", "second-thread", "signal:1", "signal:64", "off"];
        for text in all {
            let start = Start::parse(text).expect(text);
            assert_eq!(Start::from_word(start.to_word()), Some(start), "{text}");
        }
        let bad = ["", "Entry", "signal", "signal:", "signal:0", "signal:65", "signal:x", "on"];
        assert!(bad.iter().all(|text| Start::parse(text).is_none()));
        assert_eq!(Start::from_word(9), None);
    }
}
