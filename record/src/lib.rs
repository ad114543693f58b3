//! What to run instead of a program, so that it is recorded.
//!
//! * [`prepare::for_recording`] answers for a recording: what `dep record` starts first, and what
//!   `dep prepare` tells the runtime at each exec. The output comes out of the cache, or is made and put
//!   there. The recording gets its own links to it and to the translations of its libraries, and the
//!   link is what runs: nobody can throw it away.
//! * [`prepare::prepare`] is the same without a recording.
//! * [`prepare::known`] answers at once, or not at all.
//! * [`libraries::translate`] puts libraries into the cache that a run has opened.
//! * [`script::resolve`] finds the program behind a path, through `#!` lines, as Linux does.
//!
//! The cache is `store::Store` of [`rewriter::BUILD`]. If it cannot be used, the folder `.cache` of the
//! recording serves, and a line in the recording's `notes` says why.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod keep;
pub mod libraries;
pub mod prepare;
pub mod program;
pub mod script;
