//! The `dep` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    dep::main()
}
