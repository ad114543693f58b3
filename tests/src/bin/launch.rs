//! `launch [--file FILE] PROGRAM ARGS`: runs PROGRAM (or FILE in its place) from the common start,
//! and ends as it did.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use tests::launch::{end_as, find, parse_env, standard_env, Launch};

#[derive(Parser)]
struct Args {
    /// The file to run in PROGRAM's place; the program still sees PROGRAM's path
    #[arg(long)]
    file: Option<PathBuf>,
    #[arg(long)]
    argv0: Option<OsString>,
    /// DEP_FILE of the program: must be the same on both sides
    #[arg(long, default_value = "/dev/null")]
    dep_file: OsString,
    /// Further NAME=VALUE for the program's environment
    #[arg(long, value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,
    /// Working directory of the program
    #[arg(long)]
    dir: Option<PathBuf>,
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() {
    let args = Args::parse();
    let mut launch = Launch::new(find(&args.program));
    launch.file = args.file;
    launch.argv0 = args.argv0;
    launch.args = args.args;
    launch.dir = args.dir;
    launch.env = standard_env(&args.dep_file);
    for pair in &args.env {
        match parse_env(pair) {
            Ok(pair) => launch.env.push(pair),
            Err(e) => fail(&e),
        }
    }
    match launch.run() {
        Ok(status) => end_as(status),
        Err(e) => fail(&e),
    }
}

fn fail(e: &dyn std::fmt::Display) -> ! {
    eprintln!("launch: {e}");
    std::process::exit(125)
}
