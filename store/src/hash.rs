//! Content hashes: the first half of SHA-256.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{Read, Result};

/// 128 bits that stand for contents, as 32 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Hash(String);

impl Hash {
    /// Of bytes.
    pub fn of(bytes: &[u8]) -> Hash {
        let mut hasher = Hasher::default();
        hasher.raw(bytes);
        hasher.finish()
    }

    /// Of everything that `from` still has.
    pub fn of_reader(mut from: impl Read) -> Result<Hash> {
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(len) => hasher.raw(&buffer[..len]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes one [`struct@Hash`] of several parts.
#[derive(Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds a part. Parts are told apart: `ab`, `c` is not `a`, `bc`.
    pub fn part(&mut self, bytes: impl AsRef<[u8]>) -> &mut Hasher {
        let bytes = bytes.as_ref();
        self.raw(&(bytes.len() as u64).to_le_bytes());
        self.raw(bytes);
        self
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all parts.
    pub fn finish(self) -> Hash {
        let digest = self.0.finalize();
        Hash(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart() {
        let of = |parts: &[&str]| {
            let mut hasher = Hasher::default();
            parts.iter().for_each(|part| {
                hasher.part(part);
            });
            hasher.finish()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
        // What sha256sum says.
        assert_eq!(Hash::of(b"abc").as_str(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(Hash::of_reader(&b"abc"[..]).expect("reads"), Hash::of(b"abc"));
    }
}
