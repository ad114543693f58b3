//! What one program hands on to the next when it executes another, and what it is to be taken for.
//!
//! A recorder names itself in the environment. The program is not to see that, so it is kept here:
//! whoever executes another program puts it into that one's environment.

use crate::base::once::Once;
use alloc::ffi::CString;
use alloc::vec::Vec;

/// The variables that belong to a recording, and not to the program that is recorded.
pub const OF_RECORDING: [&str; 13] = [
    "DEP_RECORDER",
    "DEP_RECORDING",
    "DEP_FILE",
    "DEP_FOLLOW",
    "DEP_LIBRARIES",
    "DEP_START",
    "DEP_SCHEDULE",
    "DEP_RING",
    "DEP_ONLY",
    "DEP_SKIP",
    "DEP_CONTROL",
    "DEP_CACHE",
    "DEP_CACHE_SIZE",
];
/// What AT_EXECFN and the name of the process are to say.
pub const EXECFN: &str = "DEP_EXECFN";
/// The name of the process, where it is not the base name of that.
pub const NAME: &str = "DEP_NAME";
/// The file that /proc/self/exe is to show.
pub const EXE: &str = "DEP_EXE";

/// Where this program comes from.
#[derive(Default)]
pub struct Lineage {
    /// The command that says what to execute instead of a program; `None`: exec is not followed.
    pub recorder: Option<CString>,
    /// The folder of the recording.
    pub recording: Option<CString>,
    /// The file that this program was made from.
    pub exe: Option<CString>,
    /// `NAME=VALUE`, for the next program and for the recorder.
    pub variables: Vec<CString>,
}

static LINEAGE: Once<Lineage> = Once::new();

/// Puts it in place.
pub fn install(lineage: Lineage) {
    LINEAGE.install(lineage);
}

/// Where this process's program comes from.
pub fn lineage() -> &'static Lineage {
    LINEAGE.get()
}
