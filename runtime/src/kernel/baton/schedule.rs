//! In which order threads get the baton, and for how long.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

/// How long a thread may keep others waiting, in nanoseconds.
const SLICE: u64 = 5_000_000;
/// The shortest slice by chance.
const SHORTEST: u64 = 50_000;

/// The order of arrival, or chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The state of the generator; 0: no chance.
    state: u64,
}

impl Schedule {
    /// In the order of arrival.
    pub const IN_ORDER: Schedule = Schedule { state: 0 };

    /// `random:SEED`.
    pub fn parse(text: &str) -> Option<Schedule> {
        let seed: u64 = text.strip_prefix("random:")?.parse().ok()?;
        // Neighbouring seeds have little in common.
        Some(Schedule { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 })
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % end.max(1)
    }

    fn is_random(self) -> bool {
        self.state != 0
    }

    /// Which one of so many is next.
    pub fn choose(&mut self, waiting: usize) -> usize {
        match self.is_random() {
            true => self.below(waiting as u64) as usize,
            false => 0,
        }
    }

    /// How long the next one may keep others waiting, in nanoseconds.
    pub fn slice(&mut self) -> u64 {
        match self.is_random() {
            // As often short as long.
            true => SHORTEST << self.below(8),
            false => SLICE,
        }
    }

    /// Whether a thread gives the baton up for a call that need not wait.
    pub fn gives(&mut self) -> bool {
        self.is_random() && self.below(4) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read() {
        assert!(Schedule::parse("random:").is_none());
        assert!(Schedule::parse("fifo").is_none());
        assert!(Schedule::parse("random:0").is_some_and(Schedule::is_random));
        assert_ne!(Schedule::parse("random:1"), Schedule::parse("random:2"));
    }

    #[test]
    fn chance_reaches_everybody() {
        let mut schedule = Schedule::parse("random:7").unwrap_or(Schedule::IN_ORDER);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[schedule.choose(5)] = true;
            assert!((SHORTEST..=SHORTEST << 7).contains(&schedule.slice()));
        }
        assert_eq!(seen, [true; 5]);
        let mut in_order = Schedule::IN_ORDER;
        assert_eq!((in_order.choose(5), in_order.slice(), in_order.gives()), (0, SLICE, false));
    }
}
