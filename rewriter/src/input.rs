//! Reads a program and refuses what is not one, with one line that says why.

use crate::convert::index;
use crate::elf::{
    FileHeader, ProgramHeader, SectionHeader, FILE_HEADER_SIZE, LE, PROGRAM_HEADER_SIZE,
};
use crate::error::{unsupported, Error, Result};
use abi::ids::FileOff;
use object::elf;
use object::read::elf::FileHeader as _;
use object::{Endianness, Object as _, ObjectSymbol as _};
use std::io::Read as _;
use std::path::Path;

/// Programs may reach this far from their lowest address, so that what is added stays near.
const LARGEST_IMAGE: u64 = 0x5a00_0000;
/// The same for libraries.
const LARGEST_LIBRARY: u64 = 512 << 20;
/// Name of the section that marks a file of ours.
pub const HEADER_SECTION: &str = ".deprewrite.header";

/// Larger files are not read: they do not fit into memory together with what is made of them.
const LARGEST_FILE: u64 = 4 << 30;

/// The bytes of an ELF file: a regular one, of a size that fits into memory. Says what is wrong with
/// its start before it reads the rest.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::file("read", path, e);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(Error::file("read", path, "not a regular file"));
    }
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&mut file).take(FILE_HEADER_SIZE as u64).read_to_end(&mut bytes).map_err(failed)?;
    Input::check_start(&bytes)?;
    let size = metadata.len();
    if size > LARGEST_FILE {
        return Err(unsupported!("a file of {size} bytes; the limit is 4 GiB (try strip -g)"));
    }
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A program, checked.
pub struct Input {
    pub bytes: Vec<u8>,
    pub pie: bool,
    pub entry: u64,
    pub program_headers_offset: FileOff,
    pub program_headers: Vec<ProgramHeader>,
    /// Empty if the file has none that make sense.
    pub sections: Vec<SectionHeader>,
    pub section_names: Vec<u8>,
    pub section_names_index: usize,
}

impl Input {
    /// Whether the program ends where the kernel's places are not those that it expects.
    #[must_use]
    pub fn keeps_places(&self) -> bool {
        const WHO: [&str; 2] = ["__tsan_init", "__msan_init"];
        let file = object::read::elf::ElfFile64::<Endianness>::parse(&*self.bytes);
        let of_one = |symbol: object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
            symbol.name().is_ok_and(|name| WHO.contains(&name))
        };
        file.is_ok_and(|file| file.dynamic_symbols().any(of_one))
    }

    /// A program.
    pub fn parse(bytes: Vec<u8>) -> Result<Input> {
        let input = Input::parse_any(bytes)?;
        input.check_program()?;
        Ok(input)
    }

    /// A shared library, or ld.so.
    pub fn parse_library(bytes: Vec<u8>) -> Result<Input> {
        let input = Input::parse_any(bytes)?;
        input.check_library()?;
        Ok(input)
    }

    fn parse_any(bytes: Vec<u8>) -> Result<Input> {
        let header = check_header(&bytes)?;
        let program_headers = program_headers(header, &bytes)?;
        check_segments(&program_headers, bytes.len() as u64)?;
        check_section_table(header, bytes.len() as u64)?;
        let (sections, section_names, section_names_index) = sections(header, &bytes);
        Ok(Input {
            pie: header.e_type.get(LE) == elf::ET_DYN,
            entry: header.e_entry.get(LE),
            program_headers_offset: FileOff(header.e_phoff.get(LE)),
            program_headers,
            sections,
            section_names,
            section_names_index,
            bytes,
        })
    }

    /// Whether a file that starts like this may be a program: what is not need not be read.
    pub fn check_start(bytes: &[u8]) -> Result<()> {
        check_header(bytes).map(drop)
    }

    pub fn loads(&self) -> impl Iterator<Item = &ProgramHeader> {
        self.program_headers.iter().filter(|p| p.is_load() && p.memory_size != 0)
    }

    /// The first program header of a kind.
    pub fn header_of(&self, kind: elf::ProgramType) -> Option<&ProgramHeader> {
        self.program_headers.iter().find(|p| p.kind == kind.0)
    }

    /// Addresses of what ld.so makes read-only when it has filled it in: from, to. Nothing of it is taken for
    /// granted, as the program may choose otherwise.
    pub fn constant(&self) -> [u64; 2] {
        self.header_of(elf::PT_GNU_RELRO).map_or([0; 2], |p| [p.address, p.end()])
    }

    /// Addresses of what is mapped read-only: from, to.
    pub fn read_only(&self) -> Vec<[u64; 2]> {
        let segments = self.loads().filter(|p| !p.is_writable());
        segments.map(|p| [p.address, p.address.saturating_add(p.file_size)]).collect()
    }

    pub fn image_start(&self) -> u64 {
        self.loads().map(|p| abi::layout::page_down(p.address)).min().unwrap_or(0)
    }

    pub fn image_end(&self) -> u64 {
        self.loads().map(|p| p.end()).max().unwrap_or(0)
    }

    /// The bytes of a segment in the file. One without bytes may claim to lie anywhere.
    pub fn segment_bytes(&self, p: &ProgramHeader) -> &[u8] {
        let end = p.offset.checked_plus(p.file_size);
        end.and_then(|end| self.bytes.get(index(p.offset.0)..index(end.0))).unwrap_or_default()
    }

    /// The file's bytes from an address on, to the end of the segment.
    pub fn bytes_at(&self, address: u64) -> Option<&[u8]> {
        self.loads().find_map(|p| {
            let skip = usize::try_from(address.checked_sub(p.address)?).ok()?;
            self.segment_bytes(p).get(skip..).filter(|rest| !rest.is_empty())
        })
    }

    /// The address at which a file offset is mapped.
    pub fn address_of(&self, offset: FileOff) -> Option<u64> {
        let distance = |p: &ProgramHeader| offset.0.checked_sub(p.offset.0);
        let here = |p: &&ProgramHeader| distance(p).is_some_and(|skip| skip < p.file_size);
        let p = self.loads().find(here)?;
        Some(p.address + distance(p)?)
    }

    pub fn section_name(&self, section: &SectionHeader) -> &str {
        let rest = self.section_names.get(section.name as usize..).unwrap_or_default();
        let end = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }

    pub fn section(&self, name: &str) -> Option<&SectionHeader> {
        self.sections.iter().find(|s| self.section_name(s) == name)
    }

    pub fn section_bytes(&self, section: &SectionHeader) -> &[u8] {
        let end = section.offset.checked_plus(section.size).filter(|_| section.has_bytes());
        end.and_then(|end| self.bytes.get(index(section.offset.0)..index(end.0)))
            .unwrap_or_default()
    }

    /// Entries of the dynamic section: tag, value.
    pub fn dynamic(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.header_of(elf::PT_DYNAMIC)
            .map_or(&[][..], |p| self.segment_bytes(p))
            .chunks_exact(16)
            .map(|entry| (word(entry, 0), word(entry, 8)))
            .take_while(|(tag, _)| *tag != 0)
    }

    pub fn dynamic_value(&self, wanted: elf::DynamicTag) -> Option<u64> {
        self.dynamic().find(|(tag, _)| *tag as i64 == wanted.0).map(|(_, value)| value)
    }

    fn check_program(&self) -> Result<()> {
        if self.section(HEADER_SECTION).is_some() || self.has_our_header() {
            return Err(unsupported!("the file was written by deprewrite; give it the original"));
        }
        if self.is_library() {
            return Err(unsupported!(
                "a shared library; rewrite the program that uses it, or give a folder (-o DIR/)"
            ));
        }
        let start = self.image_start();
        if self.pie && start != 0 {
            return Err(unsupported!(
                "a position-independent program whose first segment is at {start:#x}, not 0"
            ));
        }
        let end = self.image_end();
        if end > LARGEST_IMAGE {
            return Err(unsupported!("the program reaches up to {end:#x}; the limit is 1.4 GiB"));
        }
        let entry = self.loads().find(|p| (p.address..p.end()).contains(&self.entry));
        if !entry.is_some_and(|p| p.is_executable()) {
            let entry = self.entry;
            return Err(unsupported!("the entry point {entry:#x} is not in executable code"));
        }
        if self.looks_packed() {
            return Err(unsupported!("the program is packed; unpack it first (upx -d)"));
        }
        Ok(())
    }

    /// Whether the file is a shared library rather than a program.
    pub fn is_library(&self) -> bool {
        if !self.pie || self.header_of(elf::PT_INTERP).is_some() && self.entry != 0 {
            return false;
        }
        let says_program =
            self.dynamic_value(elf::DT_FLAGS_1).is_some_and(|f| f & elf::DF_1_PIE.0 != 0);
        let library = self.dynamic_value(elf::DT_SONAME).is_some()
            || self.dynamic_value(elf::DT_NEEDED).is_some();
        self.entry == 0 || (library && !says_program)
    }

    /// Whether the file may be translated on its own: libraries, also those that can be started
    /// (libc, ld.so), but not programs.
    pub fn is_shared_object(bytes: Vec<u8>) -> bool {
        let Ok(input) = Input::parse_any(bytes) else { return false };
        let has = |kind| input.header_of(kind).is_some();
        let named = input.dynamic_value(elf::DT_SONAME).is_some();
        let says_program =
            input.dynamic_value(elf::DT_FLAGS_1).is_some_and(|f| f & elf::DF_1_PIE.0 != 0);
        input.pie && !says_program && has(elf::PT_DYNAMIC) && (named || !has(elf::PT_INTERP))
    }

    /// The executable segments that have bytes.
    pub fn executable_segments(&self) -> impl Iterator<Item = &ProgramHeader> {
        self.loads().filter(|p| p.is_executable() && p.file_size != 0)
    }

    fn check_library(&self) -> Result<()> {
        if self.section(HEADER_SECTION).is_some() || self.has_our_header() {
            return Err(unsupported!("the file was written by deprewrite; give it the original"));
        }
        if !self.pie {
            return Err(unsupported!("not a shared library but a program"));
        }
        let start = self.image_start();
        if start != 0 {
            return Err(unsupported!("a library whose first segment is at {start:#x}, not 0"));
        }
        let end = self.image_end();
        if end > LARGEST_LIBRARY {
            return Err(unsupported!("the library reaches up to {end:#x}; the limit is 512 MiB"));
        }
        let mut code = self.loads().filter(|p| p.is_executable());
        match code.find(|p| p.is_writable() || p.file_size != p.memory_size) {
            None => Ok(()),
            Some(p) => Err(unsupported!(
                "the library's code at {:#x} is writable, or not whole in the file",
                p.address
            )),
        }
    }

    fn has_our_header(&self) -> bool {
        let table = self.program_headers.len() * PROGRAM_HEADER_SIZE;
        let behind = self.bytes.get(index(self.program_headers_offset.0) + table..);
        let mut places = behind.into_iter().chain(self.loads().map(|p| self.segment_bytes(p)));
        places.any(|bytes| bytes.starts_with(&abi::image::MAGIC))
    }

    fn looks_packed(&self) -> bool {
        let head = &self.bytes[..self.bytes.len().min(1024)];
        self.sections.is_empty() && head.windows(4).any(|w| w == b"UPX!")
    }
}

/// The little-endian word at an offset that is known to exist.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b))
}

fn check_header(bytes: &[u8]) -> Result<&FileHeader> {
    if bytes.is_empty() {
        return Err(unsupported!("the file is empty"));
    }
    if bytes.len() < 4 || !bytes.starts_with(&elf::ELFMAG) {
        return Err(unsupported!("not an ELF file"));
    }
    if bytes.len() < FILE_HEADER_SIZE {
        return Err(unsupported!("truncated in the ELF header"));
    }
    if bytes[4] != elf::ELFCLASS64.0 {
        return Err(unsupported!("not a 64-bit ELF file"));
    }
    if bytes[5] != elf::ELFDATA2LSB.0 {
        return Err(unsupported!("not a little-endian ELF file"));
    }
    let header = FileHeader::parse(bytes).map_err(|e| unsupported!("{e}"))?;
    if header.e_machine.get(LE) != elf::EM_X86_64 {
        return Err(unsupported!("not for x86-64 (machine {})", header.e_machine.get(LE).0));
    }
    match header.e_type.get(LE) {
        elf::ET_EXEC | elf::ET_DYN => Ok(header),
        elf::ET_REL => Err(unsupported!("a relocatable object; link it first")),
        elf::ET_CORE => Err(unsupported!("a core dump")),
        other => Err(unsupported!("ELF type {} is not a program", other.0)),
    }
}

fn program_headers(header: &FileHeader, bytes: &[u8]) -> Result<Vec<ProgramHeader>> {
    if header.e_phnum.get(LE) == 0 {
        return Err(unsupported!("no program headers"));
    }
    if header.e_phentsize.get(LE) as usize != PROGRAM_HEADER_SIZE {
        return Err(unsupported!("program headers of {} bytes", header.e_phentsize.get(LE)));
    }
    let raw = header
        .program_headers(LE, bytes)
        .map_err(|_| unsupported!("truncated: the program headers lie behind the end"))?;
    Ok(raw.iter().map(ProgramHeader::read).collect())
}

/// The table of sections is the last part of most files, so what was cut off lacks it.
fn check_section_table(header: &FileHeader, file_len: u64) -> Result<()> {
    let size = u64::from(header.e_shnum.get(LE)) * u64::from(header.e_shentsize.get(LE));
    let end = header.e_shoff.get(LE).checked_add(size);
    match end.is_some_and(|end| end <= file_len) {
        true => Ok(()),
        false => Err(unsupported!("truncated: the section headers lie behind the end")),
    }
}

/// Section headers with their names; nothing at all if they contradict the file.
fn sections(header: &FileHeader, bytes: &[u8]) -> (Vec<SectionHeader>, Vec<u8>, usize) {
    let nothing = (Vec::new(), Vec::new(), 0);
    let Ok(raw) = header.section_headers(LE, bytes) else { return nothing };
    let Ok(index) = header.section_strings_index(LE, bytes) else { return nothing };
    let sections: Vec<_> = raw.iter().map(SectionHeader::read).collect();
    let Some(names) = sections.get(index.0).and_then(|s| {
        let start = usize::try_from(s.offset.0).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(s.size).ok()?)?)
    }) else {
        return nothing;
    };
    (sections, names.to_vec(), index.0)
}

fn check_segments(headers: &[ProgramHeader], file_len: u64) -> Result<()> {
    let mut ranges = Vec::new();
    for p in headers {
        let (start, size) = (p.address, p.memory_size);
        let in_file = p.offset.checked_plus(p.file_size);
        if in_file.is_none() || start.checked_add(size).is_none() {
            return Err(unsupported!("the segment at {start:#x} wraps around"));
        }
        if in_file.is_some_and(|end| end.0 > file_len) && p.file_size != 0 {
            return Err(unsupported!("truncated: the segment at {start:#x} lies behind the end"));
        }
        if !p.is_load() || size == 0 {
            continue;
        }
        if p.file_size > size {
            return Err(unsupported!("the segment at {start:#x} is larger in the file"));
        }
        if (p.offset.0 ^ start) % abi::layout::PAGE != 0 {
            return Err(unsupported!("the segment at {start:#x} is not aligned with the file"));
        }
        ranges.push((start, start + size));
    }
    if ranges.is_empty() {
        return Err(unsupported!("nothing to load"));
    }
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => {
            Err(unsupported!("the segments at {:#x} and {:#x} overlap", pair[0].0, pair[1].0))
        }
        None => Ok(()),
    }
}
