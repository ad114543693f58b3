//! How much of a recording of inputs is kept (`dep record --keep-last`, `DEP_RING`).

/// How much is kept at least, of what happened last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Turns of all threads together.
    Turns(u64),
    /// Bytes of events.
    Bytes(u64),
    /// Nanoseconds.
    Time(u64),
}

/// What a ring is written as.
pub const EXPECTED: &str = "a number of turns (100M), a size (64MiB) or a time (10s, 500ms)";

impl Ring {
    /// Reads `100M`, `64MiB`, `10s`; more than nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Ring> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at_checked(digits)?;
        let number: u64 = number.parse().ok().filter(|&number| number > 0)?;
        let (make, factor): (fn(u64) -> Ring, u64) = match unit {
            "" => (Ring::Turns, 1),
            "k" => (Ring::Turns, 1_000),
            "M" => (Ring::Turns, 1_000_000),
            "G" => (Ring::Turns, 1_000_000_000),
            "B" => (Ring::Bytes, 1),
            "KiB" => (Ring::Bytes, 1 << 10),
            "MiB" => (Ring::Bytes, 1 << 20),
            "GiB" => (Ring::Bytes, 1 << 30),
            "ms" => (Ring::Time, 1_000_000),
            "s" => (Ring::Time, 1_000_000_000),
            _ => return None,
        };
        number.checked_mul(factor).map(make)
    }

    /// The number, in its unit.
    #[must_use]
    pub fn amount(self) -> u64 {
        match self {
            Ring::Turns(n) | Ring::Bytes(n) | Ring::Time(n) => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(Ring::parse("100M"), Some(Ring::Turns(100_000_000)));
        assert_eq!(Ring::parse("7"), Some(Ring::Turns(7)));
        assert_eq!(Ring::parse("64MiB"), Some(Ring::Bytes(64 << 20)));
        assert_eq!(Ring::parse("500ms"), Some(Ring::Time(500_000_000)));
        for bad in ["", "M", "0", "0s", "-1", "1 s", "10h", "99999999999999999999", "20000000000G"]
        {
            assert_eq!(Ring::parse(bad), None, "{bad}");
        }
    }
}
