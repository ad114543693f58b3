//! `manual DIR`: writes man pages and shell completions below DIR, as they lie below `share`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: manual DIR");
        return ExitCode::from(2);
    };
    match manual::write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manual: cannot write to {}: {error}", Path::new(&folder).display());
            ExitCode::FAILURE
        }
    }
}
