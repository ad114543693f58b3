//! The `deprewrite` command.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = rewriter::options::Arguments::parse();
    match rewriter::rewrite::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("deprewrite: {}: {error}", arguments.input.display());
            ExitCode::FAILURE
        }
    }
}
