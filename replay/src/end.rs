//! How far a recording can be replayed, and why no further.

use abi::event::Loss;
use abi::ids::LiveAddr;

/// How far a recording can be replayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// To the end of the process.
    Whole,
    /// Of a watched thread: to its last event, behind which another thread ended the process.
    Stopped,
    /// To its last event: it was killed, or runs.
    None,
    /// Up to something that the recording could not follow.
    Unfollowed {
        /// Where.
        pc: LiveAddr,
        /// What it was.
        why: String,
    },
    /// Up to where its threads are watched, and are replayed one by one.
    Watched,
    /// Up to where the recording stopped.
    Lost(Loss),
    /// Up to a stretch of a thread that is not in the trace.
    Missing(u64),
}

impl End {
    /// Whether nothing of the part that is replayed is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self, End::Whole | End::Watched | End::Stopped)
    }
}

/// In one line, behind `replayable`.
impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Whole => f.write_str("to its end"),
            End::Stopped => f.write_str("to its last event: another thread ended the process"),
            End::None => f.write_str("to its last event: it was killed, or still runs"),
            End::Unfollowed { pc, why } => write!(f, "up to{}: {why}", place(*pc)),
            End::Watched => f.write_str("up to where its threads are watched"),
            End::Lost(reason) => {
                write!(f, "up to where the recording stopped: {}", loss(*reason))
            }
            End::Missing(number) => {
                write!(
                    f,
                    "up to where the trace is damaged: stretch {number} of the threads is missing"
                )
            }
        }
    }
}

/// Why the recording ended, in words.
fn loss(reason: Loss) -> &'static str {
    match reason {
        Loss::DiskFull => "the disk was full",
        Loss::FileSizeLimit => "the limit for the size of files was reached",
        Loss::IoError => "the trace could not be written",
        Loss::NoMemory => "the trace could not be mapped",
        Loss::LogFull => "the size that was asked for was used up",
        Loss::Versions => "code had changed more often than the format can name",
        Loss::Paused => "the recording was switched off",
        Loss::Unknown(_) => "the recording stopped",
    }
}

/// Where something happened that is not recorded, for a person.
fn place(pc: LiveAddr) -> String {
    match pc.0 {
        0 => String::new(),
        pc => format!(" at pc {pc:#x}"),
    }
}
