//! A stream through three compressors. Each result is expanded again: what does not come back is an error.

use std::collections::HashMap;
use std::io::{Read, Write};

use bench::{Compressed, Grammars, StreamKind};
use bzip2::read::BzDecoder;
use bzip2::write::BzEncoder;

use super::sequitur::Sequitur;

/// As zstd's command has it without an option.
pub const ZSTD_LEVEL: i32 = 3;
/// As bzip2's command has it: the largest block.
pub const BZIP2_BLOCK: u32 = 9;
/// Words of one sequence: its grammar takes some 200 MiB meanwhile, if nothing repeats.
pub const SEQUITUR_WORDS: usize = 1 << 22;

/// The sample of one stream, of each thread.
pub struct Sample {
    pub stream: StreamKind,
    pub format: String,
    /// Bytes of a word of the stream.
    pub word: usize,
    pub instructions: u64,
    pub threads: Vec<Vec<u8>>,
}

/// Compresses the stream of each thread on its own.
pub fn all(sample: &Sample) -> Result<Compressed, String> {
    let Sample { stream, format, word, instructions, threads } = sample;
    let mut sum = Compressed {
        stream: *stream,
        format: format.clone(),
        instructions: *instructions,
        bytes: threads.iter().map(|bytes| bytes.len() as u64).sum(),
        ..Compressed::default()
    };
    for bytes in threads {
        let by_zstd = zstd(bytes)?;
        let by_bzip2 = bzip2(bytes).map_err(|e| format!("bzip2: {e}"))?;
        let (grammars, back) = sequitur(bytes, *word, SEQUITUR_WORDS);
        let all = [("zstd", &by_zstd.1), ("bzip2", &by_bzip2.1), ("Sequitur", &back)];
        if let Some((name, _)) = all.iter().find(|(_, back)| *back != bytes) {
            return Err(format!("{name} does not give back {format}: {stream:?}"));
        }
        sum.zstd_bytes += by_zstd.0;
        sum.bzip2_bytes += by_bzip2.0;
        sum.sequitur.add(&grammars);
        sum.expanded_bytes += back.len() as u64;
        if bench::was_interrupted() {
            return Err("interrupted".into());
        }
    }
    Ok(sum)
}

fn zstd(bytes: &[u8]) -> Result<(u64, Vec<u8>), String> {
    let failed = |e: std::io::Error| format!("zstd: {e}");
    let packed = zstd::bulk::compress(bytes, ZSTD_LEVEL).map_err(failed)?;
    let back = zstd::bulk::decompress(&packed, bytes.len()).map_err(failed)?;
    Ok((packed.len() as u64, back))
}

fn bzip2(bytes: &[u8]) -> std::io::Result<(u64, Vec<u8>)> {
    let mut encoder = BzEncoder::new(Vec::new(), bzip2::Compression::new(BZIP2_BLOCK));
    encoder.write_all(bytes)?;
    let packed = encoder.finish()?;
    let mut back = Vec::with_capacity(bytes.len());
    BzDecoder::new(packed.as_slice()).read_to_end(&mut back)?;
    Ok((packed.len() as u64, back))
}

/// Grammars of at most `most` words each, with a list of the words that occur in front; and the words again.
fn sequitur(bytes: &[u8], width: usize, most: usize) -> (Grammars, Vec<u8>) {
    let (mut sum, mut back) = (Grammars::default(), Vec::with_capacity(bytes.len()));
    for piece in bytes.chunks(width * most) {
        let mut listed: Vec<&[u8]> = Vec::new();
        let mut numbers: HashMap<&[u8], u32> = HashMap::new();
        let number = |word| {
            *numbers.entry(word).or_insert_with(|| {
                listed.push(word);
                (listed.len() - 1) as u32
            })
        };
        let grammar = Sequitur::of(piece.chunks(width).map(number));
        let list: usize = listed.iter().map(|word| word.len()).sum();
        sum.add(&Grammars {
            bytes: grammar.bytes(listed.len() as u64) + list as u64,
            sequences: 1,
            symbols: grammar.symbols(),
            rules: grammar.0.len() as u64,
            words: listed.len() as u64,
        });
        grammar.expand().for_each(|word| back.extend_from_slice(listed[word as usize]));
    }
    (sum, back)
}

trait Add {
    fn add(&mut self, more: &Grammars);
}

impl Add for Grammars {
    fn add(&mut self, more: &Grammars) {
        self.bytes += more.bytes;
        self.sequences += more.sequences;
        self.symbols += more.symbols;
        self.rules += more.rules;
        self.words += more.words;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(word: usize, threads: Vec<Vec<u8>>) -> Sample {
        let format = "a format".to_string();
        Sample { stream: StreamKind::Memory, format, word, instructions: 9, threads }
    }

    #[test]
    fn each_thread_is_compressed_alone_and_comes_back() {
        let words: Vec<u8> = (0..5000_u64).flat_map(|n| (n % 7).to_le_bytes()).collect();
        let one = all(&sample(8, vec![words.clone()])).expect("one thread");
        let two = all(&sample(8, vec![words.clone(), words.clone()])).expect("two threads");
        assert_eq!((one.bytes, one.expanded_bytes, two.expanded_bytes), (40_000, 40_000, 80_000));
        assert_eq!((one.sequitur.words, one.sequitur.sequences), (7, 1));
        assert!(
            one.sequitur.bytes < 200 && one.zstd_bytes < 200 && one.bzip2_bytes < 1000,
            "{one:?}"
        );
        assert_eq!(two.sequitur.bytes, 2 * one.sequitur.bytes);
        assert_eq!(two.zstd_bytes, 2 * one.zstd_bytes);
        assert_eq!(two.bzip2_bytes, 2 * one.bzip2_bytes);
    }

    #[test]
    fn a_long_stream_is_several_sequences() {
        let bytes: Vec<u8> = (0..100).map(|n| n % 10).collect();
        let (grammars, back) = sequitur(&bytes, 1, 40);
        assert_eq!(back, bytes);
        assert_eq!((grammars.sequences, grammars.words), (3, 30));
    }

    #[test]
    fn a_word_may_be_incomplete_and_a_stream_empty() {
        let (grammars, back) = sequitur(&[1, 2, 1, 2, 1], 2, 100);
        assert_eq!((grammars.words, back), (2, vec![1, 2, 1, 2, 1]));
        assert_eq!(sequitur(&[], 8, 100), (Grammars::default(), vec![]));
        let nothing = all(&sample(2, vec![vec![]])).expect("nothing");
        assert_eq!((nothing.bytes, nothing.expanded_bytes), (0, 0));
    }
}
