//! A trace's bytes, compressed: a sequence of pieces, each of some whole frames (`docs/format.md`,
//! "Compressed traces").
//!
//! The pieces of a trace that is being recorded stand in a file of their own beside it, and the trace has
//! holes where they were. When all of the trace has been compressed, that file takes the trace's place.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use abi::trace::HEADER_SIZE;

/// A file of pieces starts with this.
pub const MAGIC: [u8; 8] = *b"DEPZ\x01\0\0\0";
const PIECE: u32 = u32::from_le_bytes(*b"DPZP");
const END: u32 = u32::from_le_bytes(*b"DPZE");
const HEADER: usize = 32;
const HEAD: usize = 4 + HEADER_SIZE;
/// Frames longer than this are not believed.
pub const MAX_FRAME: u64 = 64 << 20;
/// A piece has at most so many bytes: those of a frame, or a few small ones.
pub const LARGEST: u64 = MAX_FRAME + (4 << 20);
/// Pieces that are kept decompressed: threads read on, each in its own.
const KEPT: usize = 8;

/// Where the pieces of the trace at `path` are while the trace is being recorded.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.extend_from_slice(b".pieces");
    PathBuf::from(std::ffi::OsStr::from_bytes(&name))
}

/// The header of a frame in a piece: finding frames decompresses nothing.
pub type Head = (u64, [u8; HEADER_SIZE]);

/// What stands in front of a piece, or of the end.
struct Header {
    kind: u32,
    /// Where the piece is in the trace; how long the trace is.
    start: u64,
    /// Bytes of the trace.
    len: u32,
    /// Bytes of this file behind the heads.
    stored: u32,
    heads: u32,
    /// Of what is stored.
    checksum: u32,
    /// Of the fields in front of it, and of the heads.
    head_checksum: u32,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..4].copy_from_slice(&self.kind.to_le_bytes());
        out[4..12].copy_from_slice(&self.start.to_le_bytes());
        out[12..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&self.stored.to_le_bytes());
        out[20..24].copy_from_slice(&self.heads.to_le_bytes());
        out[24..28].copy_from_slice(&self.checksum.to_le_bytes());
        out[28..32].copy_from_slice(&self.head_checksum.to_le_bytes());
        out
    }

    /// `None`: no piece starts here.
    fn from_bytes(b: &[u8; HEADER]) -> Option<Header> {
        let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let start = u64::from(word(4)) | u64::from(word(8)) << 32;
        let header = Header {
            kind: word(0),
            start,
            len: word(12),
            stored: word(16),
            heads: word(20),
            checksum: word(24),
            head_checksum: word(28),
        };
        let sound = match header.kind {
            PIECE => u64::from(header.len) <= LARGEST && header.heads <= header.len / 4096,
            END => header.len == 0 && header.stored == 0 && header.heads == 0,
            _ => false,
        };
        (sound && start.checked_add(LARGEST).is_some()).then_some(header)
    }

    fn sum(&self, heads: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.to_bytes()[..HEADER - 4]), heads)
    }
}

/// A piece that can be written.
pub struct Compressed(Vec<u8>);

/// Compresses `bytes`, which stand in the trace from `start` on; `level` is one of zstd. `heads`: the frames that
/// start in them, with their offsets in the trace.
pub fn compress(start: u64, bytes: &[u8], heads: &[Head], level: i32) -> io::Result<Compressed> {
    let data = zstd::bulk::compress(bytes, level)?;
    let small = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::FileTooLarge);
    let mut out = vec![0; HEADER];
    for (offset, head) in heads {
        let offset = u32::try_from(offset - start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(head);
    }
    let mut header = Header {
        kind: PIECE,
        start,
        len: small(bytes.len())?,
        stored: small(data.len())?,
        heads: small(heads.len())?,
        checksum: crc32c::crc32c(&data),
        head_checksum: 0,
    };
    header.head_checksum = header.sum(&out[HEADER..]);
    out[..HEADER].copy_from_slice(&header.to_bytes());
    out.extend_from_slice(&data);
    Ok(Compressed(out))
}

/// Writes a file of pieces.
#[derive(Debug)]
pub struct Writer {
    file: File,
    len: u64,
}

impl Writer {
    /// A new file at `path`, where there is none.
    pub fn create(path: &Path) -> io::Result<Writer> {
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.try_lock()?;
        file.write_all(&MAGIC)?;
        Ok(Writer { file, len: MAGIC.len() as u64 })
    }

    /// Goes on with the file at `path`, behind its last whole piece.
    pub fn resume(path: &Path) -> io::Result<Writer> {
        let file = File::options().read(true).write(true).open(path)?;
        // Whoever writes to it holds this.
        file.try_lock()?;
        let len = Pieces::of(file.try_clone()?)?.known().scanned;
        file.set_len(len)?;
        Ok(Writer { file, len })
    }

    /// Adds a piece. After an error it is not there, and the others are.
    pub fn append(&mut self, piece: &Compressed) -> io::Result<()> {
        let written = self.file.write_all_at(&piece.0, self.len);
        match written {
            Ok(()) => self.len += piece.0.len() as u64,
            Err(_) => self.file.set_len(self.len)?,
        }
        written
    }

    /// The trace has `len` bytes; what is in no piece is zero.
    pub fn end(&mut self, len: u64) -> io::Result<()> {
        let mut header = Header {
            kind: END,
            start: len,
            len: 0,
            stored: 0,
            heads: 0,
            checksum: 0,
            head_checksum: 0,
        };
        header.head_checksum = header.sum(&[]);
        self.append(&Compressed(header.to_bytes().to_vec()))
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    len: u64,
    /// Where its header is in the file.
    at: u64,
    heads: u32,
    stored: u32,
}

/// What has been found so far.
#[derive(Debug, Default)]
struct Known {
    /// By their place in the trace.
    pieces: BTreeMap<u64, Piece>,
    heads: HashMap<u64, [u8; HEADER_SIZE]>,
    /// Bytes of the file that were whole pieces.
    scanned: u64,
    /// Length of the trace, if all of it is there.
    end: Option<u64>,
}

/// Pieces that were decompressed last, by their place.
type Held = Vec<(u64, Arc<Vec<u8>>)>;

/// An open file of pieces, which may grow.
#[derive(Debug)]
pub struct Pieces {
    file: File,
    known: Mutex<Known>,
    held: Mutex<Held>,
}

impl Pieces {
    /// The pieces of an open file.
    pub fn of(file: File) -> io::Result<Pieces> {
        let known = Known { scanned: MAGIC.len() as u64, ..Known::default() };
        let pieces = Pieces { file, known: Mutex::new(known), held: Mutex::default() };
        pieces.refresh()?;
        Ok(pieces)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the file.
    pub fn stored(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Length of the trace, if all of it is there; how many bytes stand behind the last piece that are none.
    pub fn end(&self) -> io::Result<(Option<u64>, u64)> {
        let known = self.known();
        Ok((known.end, self.stored()?.saturating_sub(known.scanned)))
    }

    /// Where the last piece ends in the trace.
    pub fn reach(&self) -> u64 {
        self.known().pieces.last_key_value().map_or(0, |(start, piece)| start + piece.len)
    }

    /// Finds the pieces that were written meanwhile; whether there are any.
    pub fn refresh(&self) -> io::Result<bool> {
        let len = self.stored()?;
        let known = &mut *self.known();
        let before = known.scanned;
        while known.end.is_none() && known.scanned + HEADER as u64 <= len {
            let mut bytes = [0; HEADER];
            self.file.read_exact_at(&mut bytes, known.scanned)?;
            let Some(header) = Header::from_bytes(&bytes) else { break };
            let heads_len = header.heads as usize * HEAD;
            let behind = known.scanned + (HEADER + heads_len) as u64 + u64::from(header.stored);
            if behind > len {
                break;
            }
            let mut heads = vec![0; heads_len];
            self.file.read_exact_at(&mut heads, known.scanned + HEADER as u64)?;
            if header.head_checksum != header.sum(&heads) {
                break;
            }
            if header.kind == END {
                known.end = Some(header.start);
            } else {
                for head in heads.chunks_exact(HEAD) {
                    let (offset, head) = head.split_at(4);
                    let offset = u32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]);
                    let mut bytes = [0; HEADER_SIZE];
                    bytes.copy_from_slice(head);
                    known.heads.insert(header.start + u64::from(offset), bytes);
                }
                let piece = Piece {
                    len: u64::from(header.len),
                    at: known.scanned,
                    heads: header.heads,
                    stored: header.stored,
                };
                known.pieces.insert(header.start, piece);
            }
            known.scanned = behind;
        }
        Ok(known.scanned > before)
    }

    /// The header of the frame at `offset` of the trace, if a piece has it.
    pub fn head(&self, offset: u64) -> Option<[u8; HEADER_SIZE]> {
        self.known().heads.get(&offset).copied()
    }

    /// Whether a piece has some of `len` bytes at `at`.
    pub fn touches(&self, at: u64, len: u64) -> bool {
        let known = self.known();
        let last = known.pieces.range(..at.saturating_add(len.max(1))).next_back();
        last.is_some_and(|(start, piece)| start + piece.len > at)
    }

    /// Where the first piece behind `at` starts.
    pub fn next(&self, at: u64) -> Option<u64> {
        self.known().pieces.range(at..).next().map(|(&start, _)| start)
    }

    /// Reads what the piece at `at` has from there on; `None` if there is none.
    pub fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        let found = {
            let known = self.known();
            let last = known.pieces.range(..=at).next_back();
            last.filter(|(start, piece)| *start + piece.len > at)
                .map(|(&start, &piece)| (start, piece))
        };
        let Some((start, piece)) = found else { return Ok(None) };
        let bytes = self.decompressed(start, piece)?;
        let from = usize::try_from(at - start).unwrap_or(usize::MAX).min(bytes.len());
        let n = buffer.len().min(bytes.len() - from);
        buffer[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(Some(n))
    }

    fn decompressed(&self, start: u64, piece: Piece) -> io::Result<Arc<Vec<u8>>> {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = held().iter().find(|(other, _)| *other == start) {
            return Ok(bytes.clone());
        }
        let damaged = || {
            let what = format!("the compressed piece at {:#x} of its file is damaged", piece.at);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let mut all = vec![0; HEADER + piece.heads as usize * HEAD + piece.stored as usize];
        self.file.read_exact_at(&mut all, piece.at)?;
        let (header, rest) = all.split_first_chunk::<HEADER>().ok_or_else(damaged)?;
        let header = Header::from_bytes(header).ok_or_else(damaged)?;
        let data = rest.get(piece.heads as usize * HEAD..).ok_or_else(damaged)?;
        if header.checksum != crc32c::crc32c(data) {
            return Err(damaged());
        }
        let len = usize::try_from(piece.len).map_err(|_| damaged())?;
        let bytes = zstd::bulk::decompress(data, len).map_err(|_| damaged())?;
        if bytes.len() != len {
            return Err(damaged());
        }
        let bytes = Arc::new(bytes);
        let mut held = held();
        if held.len() == KEPT {
            held.remove(0);
        }
        held.push((start, bytes.clone()));
        Ok(bytes)
    }
}
