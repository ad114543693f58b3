//! Compressed traces: the same bytes, whatever they are in, and nothing that is damaged passes for them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use abi::trace::HEADER_SIZE;
use trace::pieces::{beside, compress, Writer, MAGIC};
use trace::source::Source;

const LEN: usize = 40_960;

/// A trace's bytes with a hole in the middle, and a file of pieces of them.
fn example(dir: &Path) -> (Vec<u8>, PathBuf) {
    let mut bytes: Vec<u8> = (0..LEN).map(|i| ((i * i) >> 7).to_le_bytes()[0]).collect();
    bytes[12_288..20_480].fill(0);
    let path = dir.join("1.dep");
    let mut writer = Writer::create(&path).unwrap();
    for (start, end) in [(20_480, LEN), (0, 12_288)] {
        let head = (start as u64, bytes[start..start + HEADER_SIZE].try_into().unwrap());
        let piece = compress(start as u64, &bytes[start..end], &[head], 1).unwrap();
        writer.append(&piece).unwrap();
    }
    writer.end(LEN as u64).unwrap();
    (bytes, path)
}

/// All of it, or why not.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let source = Source::open(path)?;
    if let Some(what) = source.missing()? {
        return Err(io::Error::other(what));
    }
    let mut bytes = vec![0xa5; usize::try_from(source.length()?).unwrap()];
    let mut done = 0;
    while done < bytes.len() {
        match source.read_at(&mut bytes[done..], done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(bytes)
}

#[test]
fn pieces_in_any_order_are_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, path) = example(dir.path());
    assert!(read(&path).unwrap() == bytes);
    let source = Source::open(&path).unwrap();
    assert_eq!(source.head(20_480).unwrap()[..], bytes[20_480..20_480 + HEADER_SIZE]);
    assert_eq!((source.head(4096), source.skip_hole(12_288).unwrap()), (None, 20_480));
}

#[test]
fn no_flipped_byte_and_no_cut_goes_unnoticed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = example(dir.path());
    let whole = std::fs::read(&path).unwrap();
    for at in (MAGIC.len()..whole.len()).filter(|at| *at < 200 || at % 31 == 0) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x41;
        std::fs::write(&path, damaged).unwrap();
        assert!(read(&path).is_err(), "byte {at} of {}", whole.len());
    }
    for len in (MAGIC.len()..whole.len()).filter(|at| *at < 200 || at % 31 == 0) {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(read(&path).is_err(), "{len} of {}", whole.len());
    }
}

#[test]
fn a_trace_and_pieces_beside_it_are_read_as_one_while_they_grow() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, whole) = example(dir.path());
    std::fs::remove_file(&whole).unwrap();
    std::fs::write(&whole, &bytes).unwrap();
    let source = Source::open(&whole).unwrap();
    let mut writer = Writer::create(&beside(&whole)).unwrap();
    let raw = File::options().write(true).open(&whole).unwrap();
    for start in (0..LEN).step_by(4096) {
        let part = &bytes[start..start + 4096];
        writer.append(&compress(start as u64, part, &[], 1).unwrap()).unwrap();
        raw.write_all_at(&[0; 4096], start as u64).unwrap();
        let mut got = vec![0xa5; bytes.len()];
        let mut done = 0;
        while done < got.len() {
            done += source.read_at(&mut got[done..], done as u64).unwrap();
        }
        assert!(got == bytes, "{start:#x}");
    }
    assert_eq!(Writer::resume(&beside(&whole)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(writer);
    Writer::resume(&beside(&whole)).unwrap();
}
