//! Where the bytes of a trace are: in its file, in compressed pieces, or in both.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use abi::trace::HEADER_SIZE;

use crate::pieces::{beside, Pieces, MAGIC};

/// An open trace, of which parts may be compressed, and more and more of them while it is recorded.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    /// Not there if all of the trace is in pieces.
    raw: Option<File>,
    /// They may come while the trace is read.
    pieces: OnceLock<Pieces>,
}

fn is_pieces(file: &File) -> io::Result<bool> {
    let mut start = [0; MAGIC.len()];
    Ok(file.metadata()?.len() >= MAGIC.len() as u64
        && file.read_exact_at(&mut start, 0).is_ok()
        && start == MAGIC)
}

fn found(result: io::Result<File>) -> io::Result<Option<File>> {
    match result {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether a page of these bytes may have become a hole. (A header alone is not looked at: whoever looks for
/// frames asks at the end.)
fn has_hole(bytes: &[u8]) -> bool {
    bytes.len() > HEADER_SIZE && bytes.chunks(4096).any(|page| page.iter().all(|&byte| byte == 0))
}

impl Source {
    /// Opens the trace at `path`.
    pub fn open(path: &Path) -> io::Result<Source> {
        let file = File::open(path)?;
        let path = path.to_owned();
        if is_pieces(&file)? {
            return Ok(Source { path, raw: None, pieces: Pieces::of(file)?.into() });
        }
        let source = Source { path, raw: Some(file), pieces: OnceLock::new() };
        source.find_pieces()?;
        Ok(source)
    }

    /// Looks for what was compressed meanwhile. Whether there is any.
    pub fn look(&self) -> io::Result<bool> {
        match self.pieces.get() {
            Some(pieces) => pieces.refresh(),
            None => self.find_pieces(),
        }
    }

    /// Looks for pieces, beside the trace or, as they may have been put there, in its place. Whether there are any.
    fn find_pieces(&self) -> io::Result<bool> {
        let mut found = found(File::open(beside(&self.path)))?;
        // (One that was just made does not begin with anything.)
        if found.as_ref().is_none_or(|file| !is_pieces(file).unwrap_or(false)) {
            found = match self.is_in_place()? {
                true => None,
                false => {
                    Some(File::open(&self.path)?).filter(|file| is_pieces(file).unwrap_or(false))
                }
            };
        }
        let Some(found) = found else { return Ok(false) };
        let found = Pieces::of(found)?;
        self.pieces.get_or_init(|| found);
        Ok(true)
    }

    /// Whether the path still leads to the file that was opened.
    fn is_in_place(&self) -> io::Result<bool> {
        let Some(raw) = &self.raw else { return Ok(true) };
        let there = match std::fs::metadata(&self.path) {
            // It was removed, and not replaced: what is open is all of it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            there => there?,
        };
        let here = raw.metadata()?;
        Ok((here.dev(), here.ino()) == (there.dev(), there.ino()))
    }

    /// Bytes of the trace.
    pub fn length(&self) -> io::Result<u64> {
        match (&self.raw, self.pieces.get()) {
            (Some(raw), _) => Ok(raw.metadata()?.len()),
            (None, Some(pieces)) => Ok(pieces.end()?.0.unwrap_or_else(|| pieces.reach())),
            (None, None) => Ok(0),
        }
    }

    /// Whether all of it is in pieces.
    pub fn is_compressed(&self) -> bool {
        self.raw.is_none()
    }

    /// Whether some of it is in pieces.
    pub fn has_pieces(&self) -> bool {
        self.pieces.get().is_some()
    }

    /// Whether a piece has what is at `at`.
    pub fn has_piece(&self, at: u64) -> bool {
        self.pieces.get().is_some_and(|pieces| pieces.touches(at, 1))
    }

    /// Bytes that it takes on the disk.
    pub fn stored(&self) -> io::Result<u64> {
        const SECTOR: u64 = 512;
        let pieces = self.pieces.get().map_or(Ok(0), Pieces::stored)?;
        let raw = match &self.raw {
            None => 0,
            // Without pieces there are no holes but those that nothing was written to yet.
            Some(raw) if self.pieces.get().is_none() => raw.metadata()?.len(),
            Some(raw) => raw.metadata()?.blocks() * SECTOR,
        };
        Ok(pieces + raw)
    }

    /// Why not all of it is there, if it is all in pieces and they were cut off.
    pub fn missing(&self) -> io::Result<Option<String>> {
        let (None, Some(pieces)) = (&self.raw, self.pieces.get()) else { return Ok(None) };
        Ok(match pieces.end()? {
            (Some(_), 0) => None,
            (Some(_), more) => Some(format!("{more} bytes behind the end of the compressed trace")),
            (None, 0) => Some("the compressed trace has no end: the file was cut off".into()),
            (None, more) => Some(format!(
                "{more} bytes of the compressed trace are no whole piece, nor is there an end"
            )),
        })
    }

    /// Where something may be again, if there is nothing at `at`.
    pub fn skip_hole(&self, at: u64) -> io::Result<u64> {
        let (None, Some(pieces)) = (&self.raw, self.pieces.get()) else { return Ok(at) };
        match pieces.touches(at, 1) {
            true => Ok(at),
            false => pieces.next(at).map_or_else(|| self.length(), Ok),
        }
    }

    /// The header of the frame at `at`, if that need not be read.
    pub fn head(&self, at: u64) -> Option<[u8; HEADER_SIZE]> {
        self.pieces.get()?.head(at)
    }

    /// Reads some bytes at `at`; 0 at the end.
    pub fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let Some(pieces) = self.pieces.get() else {
            let Some(raw) = &self.raw else { return Ok(0) };
            let n = raw.read_at(buffer, at)?;
            // Whoever compresses it makes holes, but not before the pieces are there.
            return match has_hole(&buffer[..n]) && self.find_pieces()? {
                true => self.read_at(buffer, at),
                false => Ok(n),
            };
        };
        loop {
            if let Some(n) = pieces.read_at(buffer, at)? {
                return Ok(n);
            }
            let room = pieces.next(at).map_or(u64::MAX, |next| next - at);
            let len = buffer.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let n = match &self.raw {
                Some(raw) => raw.read_at(&mut buffer[..len], at)?,
                None => {
                    let left = self.length()?.saturating_sub(at);
                    let n = len.min(usize::try_from(left).unwrap_or(usize::MAX));
                    buffer[..n].fill(0);
                    n
                }
            };
            if self.raw.is_some() {
                // (Another thread may have found them a moment ago.)
                pieces.refresh()?;
            }
            if !pieces.touches(at, n as u64) {
                return Ok(n);
            }
        }
    }
}
