//! The life of a recording: when what threads record is kept.
//!
//! ```text
//!            open            pause
//!   Closed ───────> Open <──────────> Paused
//!     ^              │       resume      │
//!     │ fork         │ lose              │ lose
//!     │              v                   v
//!   (any)           Lost <───────────────┘
//!                    │ end (from Open and Paused, too)
//!                    v
//!                  Ended ──open──> Open, a new epoch
//! ```
//!
//! A process may go through it more than once: a forked child opens a recording of its own, and one
//! that has ended may be followed by another. Each is an *epoch*; what a thread has in hand belongs
//! to the epoch in which it began.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Where a recording stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// Generated code records nothing, and never will.
    Off = 0,
    /// There is no file: what is recorded is discarded.
    Closed = 1,
    /// What is recorded is kept.
    Open = 2,
    /// There is a file, and what threads record is discarded for now.
    Paused = 3,
    /// The file takes no more: what is recorded is discarded.
    Lost = 4,
    /// The file is complete: what is recorded is discarded.
    Ended = 5,
}

impl Phase {
    const ALL: [Phase; 6] =
        [Phase::Off, Phase::Closed, Phase::Open, Phase::Paused, Phase::Lost, Phase::Ended];

    fn of(word: u32) -> Phase {
        Phase::ALL.get((word & PHASE) as usize).copied().unwrap_or(Phase::Off)
    }

    /// Whether the file takes what belongs to the process: units, mappings.
    pub fn describes(self) -> bool {
        matches!(self, Phase::Open | Phase::Paused)
    }
}

const PHASE: u32 = 7;
const EPOCH: u32 = 8;

/// The phase of a recording, and which one of the process it is.
pub struct Lifecycle(AtomicU32);

impl Lifecycle {
    /// Of a process that records; `false`: of one whose code never does.
    pub const fn new(records: bool) -> Lifecycle {
        Lifecycle(AtomicU32::new(if records { Phase::Closed as u32 } else { Phase::Off as u32 }))
    }

    pub fn phase(&self) -> Phase {
        Phase::of(self.0.load(Acquire))
    }

    /// Counts the recordings that were opened, from 1.
    pub fn epoch(&self) -> u32 {
        self.0.load(Acquire) / EPOCH
    }

    /// Goes to `to` from one of `from`; false if it is in none of these.
    fn go(&self, from: &[Phase], to: Phase, epochs: u32) -> bool {
        let next = |word: u32| {
            let may = from.contains(&Phase::of(word));
            may.then(|| (word & !PHASE).wrapping_add(epochs * EPOCH) | to as u32)
        };
        self.0.fetch_update(AcqRel, Acquire, next).is_ok()
    }

    /// A file is there.
    pub fn open(&self) -> bool {
        self.go(&[Phase::Closed, Phase::Ended], Phase::Open, 1)
    }

    pub fn pause(&self) -> bool {
        self.go(&[Phase::Open], Phase::Paused, 0)
    }

    pub fn resume(&self) -> bool {
        self.go(&[Phase::Paused], Phase::Open, 0)
    }

    /// The file takes no more. True for whoever is first to find out.
    pub fn lose(&self) -> bool {
        self.go(&[Phase::Open, Phase::Paused], Phase::Lost, 0)
    }

    /// The file is complete, and the process goes on.
    pub fn end(&self) -> bool {
        self.go(&[Phase::Open, Phase::Paused, Phase::Lost], Phase::Ended, 0)
    }

    /// In a forked child: the file is its parent's.
    pub fn forked(&self) {
        self.go(&Phase::ALL[1..], Phase::Closed, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording in `phase`, by the shortest way.
    fn in_phase(phase: Phase) -> Lifecycle {
        let life = Lifecycle::new(phase != Phase::Off);
        let arrived = match phase {
            Phase::Off | Phase::Closed => true,
            Phase::Open => life.open(),
            Phase::Paused => life.open() && life.pause(),
            Phase::Lost => life.open() && life.lose(),
            Phase::Ended => life.open() && life.end(),
        };
        assert!(arrived);
        assert_eq!(life.phase(), phase);
        life
    }

    #[test]
    fn each_step_is_taken_from_where_it_may_and_from_nowhere_else() {
        use Phase::*;
        type Step = (&'static str, fn(&Lifecycle) -> bool, &'static [Phase], Phase);
        let steps: [Step; 5] = [
            ("open", Lifecycle::open, &[Closed, Ended], Open),
            ("pause", Lifecycle::pause, &[Open], Paused),
            ("resume", Lifecycle::resume, &[Paused], Open),
            ("lose", Lifecycle::lose, &[Open, Paused], Lost),
            ("end", Lifecycle::end, &[Open, Paused, Lost], Ended),
        ];
        for (name, step, from, to) in steps {
            for phase in Phase::ALL {
                let life = in_phase(phase);
                let may = from.contains(&phase);
                assert_eq!(step(&life), may, "{name} in {phase:?}");
                assert_eq!(life.phase(), if may { to } else { phase }, "{name} in {phase:?}");
            }
        }
    }

    #[test]
    fn a_child_has_no_file_and_can_open_one() {
        for phase in Phase::ALL {
            let life = in_phase(phase);
            life.forked();
            let records = phase != Phase::Off;
            assert_eq!(life.phase(), if records { Phase::Closed } else { Phase::Off });
            assert_eq!(life.open(), records);
        }
    }

    #[test]
    fn each_opening_is_an_epoch() {
        let life = Lifecycle::new(true);
        assert_eq!(life.epoch(), 0);
        for epoch in 1..1000 {
            assert!(life.open());
            assert!(life.pause() && life.resume());
            assert_eq!((life.epoch(), life.phase()), (epoch, Phase::Open));
            match epoch % 3 {
                0 => life.forked(),
                1 => assert!(life.end()),
                _ => assert!(life.lose() && life.end()),
            }
        }
    }
}
