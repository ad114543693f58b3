//! `build-corpus DIR`: builds every program into DIR and lists them.

use std::path::Path;

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "target/corpus".into());
    match corpus::build_all(Path::new(&dir)) {
        Ok(cases) => {
            for case in cases {
                let skip = case.skip_reason().map(|r| format!(" (skipped: {r})"));
                println!("{} {}{}", case.name, case.path.display(), skip.unwrap_or_default());
            }
        }
        Err(e) => {
            eprintln!("build-corpus: {e}");
            std::process::exit(1)
        }
    }
}
