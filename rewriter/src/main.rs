//! The `deprewrite` command.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rewriter::options::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
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
