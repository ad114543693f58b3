//! Answers of the recorder that a recording remembers, for a program that is started again and again: the runtime
//! looks there before it starts the recorder, which takes a hundred times as long.
//!
//! Each has a file of its own, [`name`]d by what was asked. It holds, all words little-endian: [`MAGIC`]; the number of
//! files that the answer depends on; for each its [`State`] (seven words, all zeros: there was no such file), the
//! length of its path in bytes, and the path; the answer up to the last 16 bytes; a [`key`] of all before. The first
//! file is the one that was asked for.

use crate::file::State;
use crate::library::key;
use alloc::string::String;
use alloc::vec::Vec;

/// First bytes of a file.
pub const MAGIC: [u8; 8] = *b"DEPANSW2";
/// The folder in the recording.
pub const FOLDER: &str = "answers";
/// Bytes of the longest file that is read.
pub const LONGEST: usize = 64 << 10;

/// A file that an answer depends on: its path, which is followed, and what there was.
pub type Dependency<'a> = (&'a [u8], Option<State>);

/// Name of the file, relative to the recording, with the answer for the program at `path`.
pub fn name(path: &[u8], state: State) -> String {
    let mut asked: Vec<u8> = path.into();
    put(&mut asked, state);
    let [high, low] = key(&asked);
    alloc::format!("{FOLDER}/{high:016x}{low:016x}")
}

/// Bytes of the file.
pub fn encode<'a>(files: impl IntoIterator<Item = Dependency<'a>>, answer: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = MAGIC.into();
    bytes.extend([0; 8]);
    let mut count = 0u64;
    for (path, state) in files {
        put(&mut bytes, state.unwrap_or_default());
        bytes.extend((path.len() as u64).to_le_bytes());
        bytes.extend(path);
        count += 1;
    }
    bytes[MAGIC.len()..][..8].copy_from_slice(&count.to_le_bytes());
    bytes.extend(answer);
    let sum = key(&bytes);
    bytes.extend(sum.into_iter().flat_map(u64::to_le_bytes));
    bytes
}

/// What a file says: on which files the answer depends, and the answer. `None`: it is damaged.
pub fn decode(bytes: &[u8]) -> Option<(Vec<Dependency<'_>>, &[u8])> {
    let (bytes, sum) = bytes.split_at_checked(bytes.len().checked_sub(16)?)?;
    if !key(bytes).into_iter().flat_map(u64::to_le_bytes).eq(sum.iter().copied()) {
        return None;
    }
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    let word = |rest: &mut &[u8]| {
        let (word, behind) = rest.split_first_chunk()?;
        *rest = behind;
        Some(u64::from_le_bytes(*word))
    };
    let mut files = Vec::new();
    for _ in 0..word(&mut rest)? {
        let mut state = State::default();
        for to in state.words_mut() {
            *to = word(&mut rest)?;
        }
        let len = usize::try_from(word(&mut rest)?).ok()?;
        let (path, behind) = rest.split_at_checked(len)?;
        files.push((path, Some(state).filter(|state| *state != State::default())));
        rest = behind;
    }
    Some((files, rest))
}

fn put(bytes: &mut Vec<u8>, mut state: State) {
    state.words_mut().for_each(|word| bytes.extend(word.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let state = State { file: [8, 9], changed: [10, 11], ..State::default() };
        let files = [(&b"/bin/true"[..], Some(state)), (b"/none", None), (b"", Some(state))];
        let bytes = encode(files, b"run\0/output\0");
        let (read, answer) = decode(&bytes).unwrap();
        assert_eq!((&read[..], answer), (&files[..], &b"run\0/output\0"[..]));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None);
        }
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            assert_eq!(decode(&changed), None);
        }
    }

    #[test]
    fn another_file_at_the_same_path_has_another_name() {
        let state = State { file: [8, 9], changed: [10, 11], ..State::default() };
        let later = State { changed: [10, 12], ..state };
        let longer = State { size: 1, ..state };
        let all = [(&b"/a"[..], state), (b"/a", later), (b"/a", longer), (b"/b", state)];
        let mut all = all.map(|(path, state)| name(path, state));
        all.sort();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
        assert!(all.iter().all(|name| name.len() == FOLDER.len() + 1 + 32));
    }
}
