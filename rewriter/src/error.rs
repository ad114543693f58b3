//! What can go wrong, in one line each: the input's fault, ours, or the system's.

use std::fmt;
use std::path::Path;

#[derive(Debug)]
pub enum Error {
    /// The input is not a program that can be rewritten.
    Unsupported(String),
    /// A file cannot be read or written.
    File(String),
    /// An assumption of ours does not hold.
    Internal(String),
}

impl Error {
    pub fn file(doing: &str, path: &Path, error: impl fmt::Display) -> Error {
        Error::File(format!("cannot {doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Unsupported(what) => write!(f, "unsupported input: {what}"),
            Error::File(what) => f.write_str(what),
            Error::Internal(what) => {
                write!(f, "internal error: {what}; please report it with the input file")
            }
        }
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

/// A line on stderr. Whether anybody can read it changes nothing.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

/// An [`Error::Unsupported`] from a format string.
macro_rules! unsupported {
    ($($arg:tt)*) => { $crate::error::Error::Unsupported(format!($($arg)*)) };
}
pub(crate) use unsupported;
