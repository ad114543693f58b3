//! The `deprewrite` command.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rewriter::options::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A file that becomes too large (`ulimit -f`) is an error like any other.
    // SAFETY: nothing runs in its place.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let arguments = Arguments::parse();
    if let Err(why) = arguments.check() {
        Arguments::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
    match rewriter::rewrite::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            rewriter::say!("deprewrite: {}: {error}", arguments.input.display());
            ExitCode::FAILURE
        }
    }
}
