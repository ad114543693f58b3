//! The rewritten program that a trace names: descriptions and code of its ahead-of-time units.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use abi::image::{ImageHeader, HEADER_SIZE};
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

#[derive(Debug)]
pub struct OutputFile {
    file: File,
    pub header: ImageHeader,
    segments: Vec<Segment>,
    pub descriptions: Vec<u8>,
}

impl OutputFile {
    /// Opens the output file at `path`, which must have the identity that the trace recorded.
    pub fn open(path: &Path, identity: [u64; 2]) -> Result<OutputFile, Error> {
        let name = path.display();
        let advice = "the trace needs the output file that ran";
        let fail = |what: String| Error(format!("{name}: {what} ({advice})"));
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
        let len = file.metadata().map_err(|e| fail(e.to_string()))?.len();
        let size = header.descriptions_len;
        let start =
            section.file_range().and_then(|(at, _)| at.checked_add(header.descriptions_offset));
        let inside = |at: &u64| at.checked_add(size).is_some_and(|end| end <= len);
        let Some(at) = start.filter(inside).filter(|_| size <= MAX_DESCRIPTIONS) else {
            return Err(fail("its unit descriptions lie outside the file".into()));
        };
        let mut descriptions = vec![0; size as usize];
        file.read_exact_at(&mut descriptions, at).map_err(|e| fail(e.to_string()))?;
        drop(elf);
        drop(cache);
        Ok(OutputFile { file, header, segments, descriptions })
    }

    /// Original code at an address of the image.
    pub fn code(&self, address: u64, len: usize) -> Option<Vec<u8>> {
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
}
