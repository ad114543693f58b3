//! `compare-memrefs A B`: whether two listings are equal but for where things were mapped.
//! Ends with 0 if they are, 1 if not, 2 on trouble.

use std::fs::File;
use std::io::{BufRead, BufReader, Result};
use std::path::{Path, PathBuf};

use clap::Parser;
use tests::compare::{compare, Cut, Options, Verdict};

#[derive(Parser)]
struct Args {
    a: PathBuf,
    b: PathBuf,
    /// The oracle's log of mappings for A
    #[arg(long)]
    maps: Option<PathBuf>,
    /// A was cut short: B may go on after its end
    #[arg(long)]
    prefix: bool,
}

fn main() {
    let args = Args::parse();
    match run(&args) {
        Ok(Verdict::Equal { records, threads, pages }) => {
            println!("equal: {records} records of {threads} threads on {pages} pages");
        }
        Ok(Verdict::Different(report)) => {
            print!("{report}");
            std::process::exit(1)
        }
        Err(e) => {
            eprintln!("compare-memrefs: {e}");
            std::process::exit(2)
        }
    }
}

fn run(args: &Args) -> Result<Verdict> {
    let open =
        |p: &Path| Ok::<_, std::io::Error>(BufReader::with_capacity(1 << 20, File::open(p)?));
    let maps = match &args.maps {
        Some(p) => Some(Box::new(open(p)?) as Box<dyn BufRead>),
        None => None,
    };
    let cut = if args.prefix { Cut::First } else { Cut::Neither };
    compare(open(&args.a)?, open(&args.b)?, Options { maps, cut })
}
