//! `oracle [OPTIONS] PROGRAM ARGS`: single-steps PROGRAM, lists its memory references and blocks,
//! and ends as it did (with status 0 if it was cut short).

use std::ffi::OsString;
use std::fs::File;
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

use clap::Parser;
use tests::launch::{end_as, find, parse_env, standard_env, Launch};
use tests::step::{self, Options, Summary};
use tests::sys;

#[derive(Parser)]
struct Args {
    /// Where the memory references go: `TID PC R|W ADDR SIZE`
    #[arg(short)]
    output: Option<PathBuf>,
    /// Where the blocks go: `TID PC`
    #[arg(long)]
    blocks: Option<PathBuf>,
    /// Where the log of mappings goes, for compare-memrefs
    #[arg(long)]
    maps: Option<PathBuf>,
    /// End the program after so many instructions
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// List only LEN instructions from instruction START on, then end
    #[arg(long, num_args = 2, value_names = ["START", "LEN"])]
    window: Option<Vec<u64>>,
    #[arg(long)]
    argv0: Option<OsString>,
    #[arg(long, default_value = "/dev/null")]
    dep_file: OsString,
    #[arg(long)]
    env: Vec<OsString>,
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The CPU for both sides of the stepping; the current one by default
    #[arg(long)]
    cpu: Option<usize>,
    /// Say on standard error what was listed
    #[arg(short, long)]
    verbose: bool,
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() {
    let args = Args::parse();
    match run(&args) {
        Ok(summary) => {
            if args.verbose {
                eprintln!("oracle: {summary:?}");
            }
            if summary.cut_short {
                std::process::exit(0);
            }
            end_as(summary.status)
        }
        Err(e) => {
            eprintln!("oracle: {e}");
            std::process::exit(125)
        }
    }
}

fn run(args: &Args) -> Result<Summary> {
    let mut launch = Launch::new(find(&args.program));
    launch.argv0 = args.argv0.clone();
    launch.args = args.args.clone();
    launch.dir = args.dir.clone();
    launch.env = standard_env(&args.dep_file);
    for pair in &args.env {
        launch.env.push(parse_env(pair).map_err(std::io::Error::other)?);
    }
    launch.cpu = Some(args.cpu.unwrap_or_else(sys::current_cpu));
    let create = |path: &Option<PathBuf>| -> Result<Option<Box<dyn Write>>> {
        let open = |p: &Path| Ok(Box::new(File::create(p)?) as Box<dyn Write>);
        path.as_deref().map(open).transpose()
    };
    let window = args.window.as_ref().map_or((0, u64::MAX), |w| (w[0], w[1]));
    let options = Options {
        memrefs: create(&args.output)?,
        blocks: create(&args.blocks)?,
        maps: create(&args.maps)?,
        limit: args.limit,
        window,
        ..Options::default()
    };
    step::run(&launch, options)
}
