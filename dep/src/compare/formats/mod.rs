//! `dep compare --formats`: the formats of a trace beside each other, as the paper of the profile compares its own.

mod compress;
mod figure;
mod look;
pub mod sequitur;
mod table;

use std::path::PathBuf;

use bench::{FormatSettings, Kind, Variant};

pub use figure::svg;
pub use look::Reader;
pub use table::{markdown, text};

const CONTROL_FLOW: [&str; 3] = ["tags", "full-pc", "bits"];
const ADDRESSES: &str = "addresses";
const MEMORY: [&str; 3] = ["registers", ADDRESSES, "none"];

/// The format of the profile, and the one that needs nothing but itself to be read.
const OURS: [&str; 2] = ["tags", "registers"];
const WHOLE: [&str; 2] = ["full-pc", ADDRESSES];

/// MiB at which a trace ends, if nothing else is said: nine are there at once.
pub const TRACE_LIMIT: u64 = 256;
/// References of the list that is read.
const LIST: u64 = 8 << 20;

/// Native, and each control-flow format with each memory format; discarded, and recorded to each place.
/// `flags` go to deprewrite each time.
pub fn variants(flags: &[String], places: &[PathBuf]) -> Vec<Variant> {
    let mut all = vec![Variant { name: "native".into(), kind: Kind::Native, records_to: None }];
    let places = places.iter().map(Some);
    for place in std::iter::once(None).chain(places) {
        for control_flow in CONTROL_FLOW {
            for memory in MEMORY {
                let format = ["--control-flow", control_flow, "--memory", memory];
                let format = format.into_iter().map(str::to_owned);
                let to = place.map_or(String::new(), |dir| format!(" to {}", dir.display()));
                all.push(Variant {
                    name: format!("{control_flow} {memory}{to}"),
                    kind: Kind::Rewritten(flags.iter().cloned().chain(format).collect()),
                    records_to: place.cloned(),
                });
            }
        }
    }
    all
}

/// What is said with the figures.
pub fn settings(sample: u64, trace_bytes: u64) -> FormatSettings {
    FormatSettings {
        sample_instructions: sample,
        zstd_level: compress::ZSTD_LEVEL,
        bzip2_block: compress::BZIP2_BLOCK,
        sequitur_words: compress::SEQUITUR_WORDS as u64,
        list_references: LIST,
        trace_bytes,
    }
}

pub fn reader(sample: u64, rounds: u32) -> Reader {
    Reader { sample, rounds, list: LIST }
}

#[cfg(test)]
mod tests;
