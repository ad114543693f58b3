//! What is recorded besides the streams of units: one seam, with a method for each moment.

pub mod dropped;
pub mod extent;
pub mod inputs;
pub mod moment;
pub mod order;
pub mod undo;
pub mod writes;

use abi::options::{Instrument, Options};
use moment::Log;

/// Nothing is kept.
struct NoLog;

impl Log for NoLog {}

/// The log that a recording with these options keeps.
pub fn log_of(options: Options) -> &'static dyn Log {
    match options.recording.instrument {
        Instrument::Undo => &undo::UndoLog,
        Instrument::Inputs | Instrument::InputsAndDep => &inputs::Inputs,
        Instrument::Dep | Instrument::None => &NoLog,
    }
}

/// The log of this process.
pub fn log() -> &'static dyn Log {
    log_of(crate::base::facts::facts().options)
}
