//! The `dep` command.

use std::process::ExitCode;

// SAFETY: it reads a file and stores a number. Both work before `main`: the allocator and the system
// calls of std need no preparation.
#[ctor::ctor(unsafe)]
fn before_main() {
    dep::caller::note();
}

fn main() -> ExitCode {
    dep::main()
}
