//! The rewritten program that a trace names: descriptions and code of its ahead-of-time units.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use abi::ids::OrigAddr;
use abi::image::{ImageHeader, HEADER_SIZE};
use abi::library::{self, PackHeader};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ReadCache};

use crate::Error;

/// Section that covers the header in the output file.
pub const HEADER_SECTION: &str = ".deprewrite.header";
/// Descriptions longer than this are not believed.
const MAX_DESCRIPTIONS: u64 = 1 << 31;

/// Part of the file that is loaded: address (as [`ImageHeader`] counts), file offset, length.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    len: u64,
}

/// The ahead-of-time units of one image: their descriptions and original code.
#[derive(Debug)]
pub struct Translation {
    file: File,
    segments: Vec<Segment>,
    /// Descriptions of the units, in the order of their numbers.
    pub descriptions: Vec<u8>,
    /// Addresses that the image takes, relative to where it is loaded.
    pub image: Range<OrigAddr>,
}

impl Translation {
    /// Original code at an address of the image.
    pub fn code(&self, OrigAddr(address): OrigAddr, len: usize) -> Option<Vec<u8>> {
        let segment = self.segments.iter().find(|s| {
            address >= s.address
                && address - s.address <= s.len
                && s.len - (address - s.address) >= len as u64
        })?;
        let mut bytes = vec![0; len];
        let at = segment.offset.checked_add(address - segment.address)?;
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    /// Where the translation of a library with this identity is: one of the packs from `at` on in `file`.
    fn find_pack(
        file: &File,
        mut at: u64,
        identity: [u64; 2],
    ) -> Result<(u64, PackHeader), String> {
        let len = file.metadata().map_err(|e| e.to_string())?.len();
        loop {
            let header = header_at(file, at)?;
            let end = at.checked_add(header.len).filter(|end| *end <= len);
            let end = end.ok_or("a library's translation is truncated")?;
            if header.identity == identity {
                return Ok((at, header));
            }
            if header.following == 0 {
                return Err("a library's translation is not the one that ran".into());
            }
            at = end;
        }
    }

    /// That translation.
    fn of_pack(file: File, at: u64, identity: [u64; 2]) -> Result<Translation, String> {
        let (at, header) = Translation::find_pack(&file, at, identity)?;
        let descriptions = read_descriptions(
            &file,
            at + header.tables.descriptions,
            header.tables.descriptions_len,
        )?;
        let segments = vec![Segment {
            address: header.segment,
            offset: at + header.text,
            len: header.segment_len,
        }];
        Ok(Translation {
            file,
            segments,
            descriptions,
            image: OrigAddr(0)..OrigAddr(header.code_distance),
        })
    }

    /// Whether there is a translation of this identity at `path`.
    pub fn is_pack(path: &Path, identity: [u64; 2]) -> bool {
        File::open(path).is_ok_and(|file| Translation::find_pack(&file, 0, identity).is_ok())
    }

    /// The translation of a library in a file of its own.
    pub fn open_pack(path: &Path, identity: [u64; 2]) -> Result<Translation, Error> {
        let fail = |what: String| Error(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        Translation::of_pack(file, 0, identity).map_err(fail)
    }
}

/// Where the files are that a trace needs, if not where they ran. Each is known by its identity, so a
/// file of the same name that is another one does no harm.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The output file that ran: nothing else is looked for.
    pub output: Option<PathBuf>,
    /// A folder with a folder for each identity ([`identity_name`]), which holds the output file.
    pub programs: Option<PathBuf>,
    /// A folder with translations of libraries: `FILE`, or `IDENTITY/FILE`.
    pub libraries: Option<PathBuf>,
}

/// An identity as the name of a folder: 32 hexadecimal digits.
pub fn identity_name([a, b]: [u64; 2]) -> String {
    format!("{a:016x}{b:016x}")
}

impl Places {
    /// The output file that ran at `path`.
    pub fn program(&self, path: &Path, identity: [u64; 2]) -> PathBuf {
        if let Some(output) = &self.output {
            return output.clone();
        }
        let folder = self.programs.as_ref().map(|folder| folder.join(identity_name(identity)));
        let kept = folder.and_then(|folder| {
            let entries = std::fs::read_dir(folder).ok()?.flatten();
            // A name with a dot is of a file that is being made. Of several the same is taken each time.
            let is_whole = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default();
                !name.as_bytes().starts_with(b".") && path.is_file()
            };
            entries.map(|entry| entry.path()).filter(is_whole).min()
        });
        kept.unwrap_or_else(|| path.to_owned())
    }

    /// The translation of a library in a file of its own, which was at `path`.
    pub(crate) fn library(&self, path: &[u8], identity: [u64; 2]) -> Result<Translation, Error> {
        let path = Path::new(OsStr::from_bytes(path));
        if let (Some(folder), Some(name)) = (&self.libraries, path.file_name()) {
            for kept in [folder.join(name), folder.join(identity_name(identity)).join(name)] {
                if let Ok(translation) = Translation::open_pack(&kept, identity) {
                    return Ok(translation);
                }
            }
        }
        Translation::open_pack(path, identity)
    }
}

/// The header of the pack at `at`.
fn header_at(file: &File, at: u64) -> Result<PackHeader, String> {
    let mut bytes = [0; library::HEADER_SIZE];
    file.read_exact_at(&mut bytes, at).map_err(|e| e.to_string())?;
    let header = PackHeader::from_bytes(&bytes);
    header.ok_or_else(|| "a library's translation is damaged, or of another version".into())
}

/// Descriptions of units, which are packed in `size` bytes.
fn read_descriptions(file: &File, at: u64, size: u64) -> Result<Vec<u8>, String> {
    const TOO_LONG: &str = "its unit descriptions are too long";
    if size == 0 {
        return Ok(Vec::new());
    }
    if size > MAX_DESCRIPTIONS {
        return Err(TOO_LONG.into());
    }
    let mut packed = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut packed, at).map_err(|e| e.to_string())?;
    let damaged = |e: std::io::Error| format!("its unit descriptions are damaged: {e}");
    let frame = zstd::Decoder::with_buffer(&*packed).map_err(damaged)?.single_frame();
    let mut bytes = Vec::new();
    frame.take(MAX_DESCRIPTIONS + 1).read_to_end(&mut bytes).map_err(damaged)?;
    match bytes.len() as u64 > MAX_DESCRIPTIONS {
        true => Err(TOO_LONG.into()),
        false => Ok(bytes),
    }
}

/// The rewritten program.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    segments: Vec<Segment>,
    header: ImageHeader,
    /// Where the header is in the file: tools move it.
    header_offset: u64,
}

impl OutputFile {
    /// Opens the output file at `path`, which must have the identity that the trace recorded.
    pub fn open(path: &Path, identity: [u64; 2]) -> Result<OutputFile, Error> {
        let fail = |what: String| failed(path, &what);
        if !std::fs::metadata(path).map_err(|e| fail(e.to_string()))?.is_file() {
            return Err(fail("not a regular file".into()));
        }
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        let cache = ReadCache::new(&file);
        let elf = ElfFile64::<object::Endianness, _>::parse(&cache)
            .map_err(|e| fail(format!("not an ELF file: {e}")))?;
        let section = elf
            .section_by_name(HEADER_SECTION)
            .ok_or_else(|| fail(format!("no section {HEADER_SECTION}")))?;
        let bytes = section.data().map_err(|e| fail(format!("{HEADER_SECTION}: {e}")))?;
        let header = bytes
            .get(..HEADER_SIZE)
            .and_then(ImageHeader::from_bytes)
            .ok_or_else(|| fail("its header is of another version".into()))?;
        if header.identity != identity {
            return Err(fail("it is not the file that was traced: identities differ".into()));
        }
        let endian = elf.endian();
        let segments = elf
            .elf_header()
            .program_headers(endian, &cache)
            .map_err(|e| fail(e.to_string()))?
            .iter()
            .filter(|p| p.p_type(endian) == object::elf::PT_LOAD)
            .map(|p| Segment {
                address: p.p_vaddr(endian),
                offset: p.p_offset(endian),
                len: p.p_filesz(endian),
            })
            .collect();
        let header_offset = section.file_range().map_or(0, |(at, _)| at);
        drop(elf);
        drop(cache);
        Ok(OutputFile { path: path.to_owned(), file, segments, header, header_offset })
    }

    /// What the header says.
    pub fn header(&self) -> &ImageHeader {
        &self.header
    }

    /// The translation of the program itself.
    pub fn program(&self) -> Result<Translation, Error> {
        let fail = |what: String| failed(&self.path, &what);
        let len = self.file.metadata().map_err(|e| fail(e.to_string()))?.len();
        let size = self.header.tables.descriptions_len;
        let start = self.header_offset.checked_add(self.header.tables.descriptions);
        let inside = |at: &u64| at.checked_add(size).is_some_and(|end| end <= len);
        let Some(at) = start.filter(inside) else {
            return Err(fail("its unit descriptions lie outside the file".into()));
        };
        Ok(Translation {
            file: self.file.try_clone().map_err(|e| fail(e.to_string()))?,
            segments: self.segments.clone(),
            descriptions: read_descriptions(&self.file, at, size).map_err(fail)?,
            image: OrigAddr(self.header.image_start)..OrigAddr(self.header.image_end),
        })
    }

    /// The translation of a library at an address of the output.
    pub fn library(
        &self,
        OrigAddr(address): OrigAddr,
        identity: [u64; 2],
    ) -> Result<Translation, Error> {
        let fail = |what: String| failed(&self.path, &what);
        let segment = self
            .segments
            .iter()
            .find(|s| address.wrapping_sub(s.address) < s.len)
            .ok_or_else(|| fail(format!("no library's translation at {address:#x}")))?;
        let at = segment.offset.saturating_add(address - segment.address);
        let file = self.file.try_clone().map_err(|e| fail(e.to_string()))?;
        Translation::of_pack(file, at, identity).map_err(fail)
    }
}

fn failed(path: &Path, what: &str) -> Error {
    Error(format!("{}: {what} (the trace needs the output file that ran)", path.display()))
}
