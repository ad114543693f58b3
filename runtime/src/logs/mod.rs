//! What is recorded besides the streams of units: one seam, with a method for each moment.

pub mod dropped;
pub mod extent;
pub mod moment;
pub mod order;
pub mod undo;
pub mod writes;

use abi::options::Options;
use moment::Log;

/// Nothing is kept.
struct NoLog;

impl Log for NoLog {}

/// The log that a recording with these options keeps.
pub fn log_of(options: Options) -> &'static dyn Log {
    match options.recording.undo() {
        true => &undo::UndoLog,
        false => &NoLog,
    }
}

/// The log of this process.
pub fn log() -> &'static dyn Log {
    log_of(crate::base::facts::facts().options)
}
