//! What recording costs: a program runs natively, rewritten in several ways, and under other tools,
//! in turn, for several rounds.
//!
//! Everything is measured from outside: `deprewrite` and `dep` are commands that are called, as the
//! programs are. What a rewritten program writes to stdout, and how it ends, is compared with the
//! native run; where it differs there are no figures.
//!
//! `dep compare` is the command line, the table and the figure of this.

mod formats;
mod machine;
mod measure;
mod peers;
mod program;
mod report;
mod session;
mod variant;

pub use formats::{
    Compressed, FormatSettings, FormatSizes, Formats, Grammars, Left, Look, Part, Recovery,
    StreamKind, ThreadSizes,
};
pub use machine::Machine;
pub use measure::{was_interrupted, Measured, Output};
pub use program::Program;
pub use report::{
    geometric_mean, Figures, Known, ProgramReport, Report, Role, Spread, Start, TraceFigures,
    VariantReport,
};
pub use session::{Progress, Session, Settings, Stop};
pub use variant::{Choice, Kind, Variant};
