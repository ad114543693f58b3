//! The output file: the input's bytes, then what is added, then a new table of sections.
//!
//! The program headers go where the input has them, directly behind the ELF header. There is room for
//! ours, since those that only ld.so and the program itself look at may go: in memory the runtime
//! restores the originals from the copy behind the image header. An input that leaves no room gets the
//! table at the start of the added part. Each tool that makes a copy has its own idea of what that
//! means: GNU strip puts the table directly in front of the first section of its segment, and load
//! addresses in line with it, which only works if none are given; eu-strip overwrites what no section
//! holds, so one does; and llvm-strip moves what PT_PHDR holds, so there is none.

use crate::convert::{index, short};
use crate::elf::{
    FileHeader, ProgramHeader, SectionHeader, FILE_HEADER_SIZE, LE, PROGRAM_HEADER_SIZE,
    SECTION_HEADER_SIZE,
};
use crate::error::{unsupported, Error, Result};
use crate::input::Input;
use crate::layout::{FileRoom, Places, TableSegment};
use crate::library::Packs;
use crate::runtime_blob::Runtime;
use abi::ids::FileOff;
use abi::options::{torture, Options, ProcessOptions};
use object::elf;
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

const PAGE: usize = index(abi::layout::PAGE);
/// The alignment that makes the kernel load a position-independent program at a window's start.
const WINDOW_ALIGN: u64 = abi::layout::WINDOW_SIZE;

/// What nobody needs in an output (the kernel, the runtime, ldd), the most dispensable first; before
/// that, all that is not listed.
const DISPENSABLE: [elf::ProgramType; 5] =
    [elf::PT_GNU_PROPERTY, elf::PT_NOTE, elf::PT_GNU_RELRO, elf::PT_GNU_EH_FRAME, elf::PT_TLS];

/// How early a program header gives way to others; `None`: not at all.
fn dispensability(p: &ProgramHeader) -> Option<usize> {
    match elf::ProgramType(p.kind) {
        elf::PT_LOAD | elf::PT_GNU_STACK | elf::PT_DYNAMIC => None,
        kind => Some(DISPENSABLE.iter().position(|&k| k == kind).map_or(0, |i| i + 1)),
    }
}

/// The room that the tables have to leave. The output's program headers need none if they fit where
/// the input has its own.
pub fn room_in_tables(
    input: &Input,
    runtime: &Runtime,
    code_len: usize,
    libraries: &Packs,
) -> FileRoom {
    let (code, libraries) = (usize::from(code_len != 0), usize::from(libraries.count != 0));
    let added = 1 + code + libraries + runtime.segments.len();
    let own = original_headers(input);
    let needed = added + own.iter().filter(|p| dispensability(p).is_none()).count();
    let there = input.program_headers_offset == FileOff(FILE_HEADER_SIZE as u64);
    let front = match there && needed <= input.program_headers.len() {
        true => 0,
        false => (added + own.len()) * PROGRAM_HEADER_SIZE,
    };
    FileRoom { front, pieces: 2 * (added + input.loads().count()) }
}

/// The bytes of the output, and its identity.
pub fn assemble(
    input: &Input,
    code: &[u8],
    libraries: &[u8],
    mut tables: TableSegment,
    mut runtime: Runtime,
    places: Places,
    options: Options,
) -> Result<(Vec<u8>, [u64; 2])> {
    let in_front = places.runtime(code.len(), libraries.len());
    let base = in_front + runtime.front_len();
    let end = base + runtime.end();
    places.check(input, end)?;
    let header_at = places.tables + tables.front as u64;
    runtime.set_parameters([base, header_at, u64::from(input.pie), 0])?;
    let front = runtime.front(base, !input.pie);

    let mut out = Output { bytes: input.bytes.clone(), headers: Vec::new(), sections: Vec::new() };
    out.headers = original_headers(input);
    if input.pie {
        out.align(options.process);
    }
    let r = elf::PF_R.0;
    let tables_at = out.segment(places.tables, r, &tables.bytes, tables.bytes.len() as u64);
    for part in &tables.parts {
        let start = part.start as u64;
        out.section(
            part.section,
            places.tables + start,
            FileOff(tables_at as u64 + start),
            (part.end - part.start) as u64,
            r,
        );
    }
    if !code.is_empty() {
        let flags = r | elf::PF_X.0;
        let at = out.segment(places.code, flags, code, code.len() as u64);
        out.section(".deprewrite.text", places.code, file_off(at), code.len() as u64, flags);
    }
    if !libraries.is_empty() {
        let (address, len) = (places.libraries(code.len()), libraries.len() as u64);
        let at = out.segment(address, r, libraries, len);
        out.section(abi::library::SECTION, address, file_off(at), len, r);
    }
    for (i, s) in runtime.segments.iter().enumerate() {
        // Not a segment of its own: there is room for few.
        let before = if i == 0 { front.as_slice() } else { &[] };
        let (skipped, all) = (before.len() as u64, [before, &s.bytes].concat());
        let address = base + s.address - skipped;
        let at = out.segment(address, s.flags, &all, skipped + s.memory_size);
        if skipped > 0 {
            out.section(abi::misses::SECTION, address, file_off(at), skipped, s.flags);
        }
        let at = at + before.len();
        let len = s.bytes.len() as u64;
        let name = match s.flags & (elf::PF_X.0 | elf::PF_W.0) {
            0 => ".deprewrite.runtime.rodata",
            f if f & elf::PF_X.0 != 0 => ".deprewrite.runtime",
            _ => ".deprewrite.runtime.data",
        };
        if len != 0 {
            out.section(name, base + s.address, file_off(at), len, s.flags);
        }
        if s.memory_size > len {
            out.bss(base + s.address + len, FileOff(at as u64 + len), s.memory_size - len);
        }
    }
    out.write_pieces(tables_at, &tables.pieces)?;
    let (table_offset, room) = if tables.front == 0 {
        let room = input.program_headers.len();
        out.leave_out_headers(room);
        (FILE_HEADER_SIZE, room)
    } else {
        out.headers.iter_mut().for_each(|p| p.physical = 0);
        (tables_at, tables.front / PROGRAM_HEADER_SIZE)
    };
    out.write_program_headers(table_offset, room)?;

    tables.header.runtime = base;
    tables.header.runtime_end = end;
    if let Some(misses) = runtime.misses {
        tables.header.misses = in_front;
        tables.header.miss_entries = misses.entries;
    }
    tables.header.identity = identity(input, &tables);
    let header = tables.header.to_bytes();
    let at = tables_at + tables.front;
    out.bytes[at..at + header.len()].copy_from_slice(&header);

    let (offset, count, names) = out.write_sections(input);
    out.patch_file_header(base + runtime.entry, file_off(table_offset), offset, count, names)?;
    Ok((out.bytes, tables.header.identity))
}

/// The input's program headers as the output has them: nothing of it is executable.
fn original_headers(input: &Input) -> Vec<ProgramHeader> {
    let mut headers = input.program_headers.clone();
    // The kernel would start the interpreter; nobody needs a header for the headers, which move.
    headers.retain(|p| p.kind != elf::PT_INTERP.0 && p.kind != elf::PT_PHDR.0);
    let mut has_stack = false;
    for p in &mut headers {
        match elf::ProgramType(p.kind) {
            elf::PT_LOAD if p.is_executable() => {
                p.flags = (p.flags & !elf::PF_X.0) | elf::PF_R.0;
            }
            elf::PT_GNU_STACK => {
                p.flags = elf::PF_R.0 | elf::PF_W.0;
                has_stack = true;
            }
            _ => {}
        }
    }
    if !has_stack {
        headers.push(ProgramHeader {
            kind: elf::PT_GNU_STACK.0,
            flags: elf::PF_R.0 | elf::PF_W.0,
            align: 16,
            ..ProgramHeader::default()
        });
    }
    headers
}

/// What the kernel maps for the program headers, as [`abi::image::ImageHeader::pieces`] wants it.
fn pieces(headers: &[ProgramHeader]) -> Vec<[u64; 2]> {
    use abi::layout::{page_down, page_up};
    let mut pieces = Vec::new();
    for p in headers.iter().filter(|p| p.is_load() && p.memory_size != 0) {
        let start = page_down(p.address);
        let in_file = if p.file_size == 0 { start } else { page_up(p.address + p.file_size) };
        pieces.push([start, in_file]);
        pieces.push([in_file, page_up(p.address + p.memory_size)]);
    }
    pieces.sort_unstable();
    // A page that two segments share is mapped for the second.
    for i in 1..pieces.len() {
        pieces[i - 1][1] = pieces[i - 1][1].min(pieces[i][0]);
    }
    pieces.retain(|[start, end]| start < end);
    pieces
}

struct Output {
    bytes: Vec<u8>,
    headers: Vec<ProgramHeader>,
    sections: Vec<(&'static str, SectionHeader)>,
}

impl Output {
    /// Asks the kernel for a window's start.
    fn align(&mut self, options: ProcessOptions) {
        let align = match options.torture & torture::MISPLACED {
            0 => WINDOW_ALIGN,
            _ => PAGE as u64,
        };
        // The first segment, where address and offset are both 0 and so agree modulo any alignment.
        if let Some(p) = self.headers.iter_mut().find(|p| p.is_load() && p.memory_size != 0) {
            p.align = align;
        }
    }

    /// What the kernel maps, for a runtime that has to place it elsewhere.
    fn write_pieces(&mut self, tables_at: usize, room: &Range<usize>) -> Result<()> {
        let pieces = pieces(&self.headers);
        let bytes: Vec<u8> = pieces.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        if bytes.len() > room.len() {
            return Err(Error::Internal("more segments than planned".into()));
        }
        let at = tables_at + room.start;
        self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    /// Appends a segment; returns its offset in the file.
    fn segment(&mut self, address: u64, flags: u32, content: &[u8], memory_size: u64) -> usize {
        // Offset and address agree modulo the page size, as the kernel demands.
        let skew = index(address) % PAGE;
        let start = self.bytes.len().next_multiple_of(PAGE) + skew;
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(content);
        self.headers.push(ProgramHeader {
            kind: elf::PT_LOAD.0,
            flags,
            offset: FileOff(start as u64),
            address,
            physical: address,
            file_size: content.len() as u64,
            memory_size,
            align: PAGE as u64,
        });
        start
    }

    fn section(
        &mut self,
        name: &'static str,
        address: u64,
        offset: FileOff,
        size: u64,
        flags: u32,
    ) {
        let mut bits = elf::SHF_ALLOC.0;
        if flags & elf::PF_X.0 != 0 {
            bits |= elf::SHF_EXECINSTR.0;
        }
        if flags & elf::PF_W.0 != 0 {
            bits |= elf::SHF_WRITE.0;
        }
        let align = 1 << address.trailing_zeros().min(12);
        let kind = elf::SHT_PROGBITS.0;
        let header =
            SectionHeader { kind, flags: bits, address, offset, size, align, ..Default::default() };
        self.sections.push((name, header));
    }

    fn bss(&mut self, address: u64, offset: FileOff, size: u64) {
        self.section(".deprewrite.runtime.bss", address, offset, size, elf::PF_R.0 | elf::PF_W.0);
        if let Some((_, header)) = self.sections.last_mut() {
            header.kind = elf::SHT_NOBITS.0;
        }
    }

    /// Leaves out program headers until there is room for the rest.
    fn leave_out_headers(&mut self, room: usize) {
        while self.headers.len() > room {
            let ranked = self.headers.iter().enumerate().rev();
            let ranked = ranked.filter_map(|(i, p)| dispensability(p).map(|rank| (rank, i)));
            let Some((_, first)) = ranked.min_by_key(|&(rank, _)| rank) else { break };
            self.headers.remove(first);
        }
    }

    /// Writes the table into the room that was left for it, `room` headers at `offset`.
    fn write_program_headers(&mut self, offset: usize, room: usize) -> Result<()> {
        if self.headers.len() > room {
            return Err(Error::Internal("more program headers than planned".into()));
        }
        let mut table = Vec::new();
        for p in &self.headers {
            p.write(&mut table);
        }
        self.bytes[offset..offset + table.len()].copy_from_slice(&table);
        Ok(())
    }

    /// Appends names and headers of all sections; returns offset, count, and index of the names.
    fn write_sections(&mut self, input: &Input) -> (FileOff, usize, usize) {
        let mut names = input.section_names.clone();
        let mut all = input.sections.clone();
        let mut names_index = input.section_names_index;
        if all.is_empty() {
            all.push(SectionHeader::default());
            names = vec![0];
        }
        let add_name = |names: &mut Vec<u8>, name: &str| {
            let start = short(names.len());
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            start
        };
        for (name, header) in &self.sections {
            all.push(SectionHeader { name: add_name(&mut names, name), ..*header });
        }
        if input.sections.is_empty() {
            names_index = all.len();
            let name = add_name(&mut names, ".shstrtab");
            let kind = elf::SHT_STRTAB.0;
            all.push(SectionHeader { name, kind, align: 1, ..Default::default() });
        }
        all[names_index].offset = file_off(self.bytes.len());
        all[names_index].size = names.len() as u64;
        self.bytes.extend_from_slice(&names);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let offset = file_off(self.bytes.len());
        for header in &all {
            header.write(&mut self.bytes);
        }
        (offset, all.len(), names_index)
    }

    fn patch_file_header(
        &mut self,
        entry: u64,
        program_headers: FileOff,
        sections: FileOff,
        section_count: usize,
        names: usize,
    ) -> Result<()> {
        let (header, _) = object::from_bytes_mut::<FileHeader>(&mut self.bytes)
            .map_err(|()| Error::Internal("the output has no ELF header".into()))?;
        header.e_entry.set(LE, entry);
        header.e_phoff.set(LE, program_headers.0);
        header.e_shoff.set(LE, sections.0);
        header.e_ehsize.set(LE, half(FILE_HEADER_SIZE)?);
        header.e_phentsize.set(LE, half(PROGRAM_HEADER_SIZE)?);
        header.e_phnum.set(LE, half(self.headers.len())?);
        header.e_shentsize.set(LE, half(SECTION_HEADER_SIZE)?);
        header.e_shnum.set(LE, half(section_count)?);
        header.e_shstrndx.set(LE, elf::SymbolSection(half(names)?));
        Ok(())
    }
}

/// A count in the ELF header. From here on ELF counts in another way, which we do not write.
fn half(n: usize) -> Result<u16> {
    u16::try_from(n).ok().filter(|&n| n < elf::SHN_LORESERVE).ok_or_else(|| {
        unsupported!("the output would have {n} headers; the limit is 65279 (try strip)")
    })
}

fn file_off(at: usize) -> FileOff {
    FileOff(at as u64)
}

/// 128-bit FNV-1a over everything that the reader depends on.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of the hash")]
fn identity(input: &Input, tables: &TableSegment) -> [u64; 2] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    };
    add(&tables.header.to_bytes());
    add(&tables.bytes[tables.descriptions..]);
    for p in input.loads().filter(|p| p.is_executable()) {
        add(input.segment_bytes(p));
    }
    [hash as u64, (hash >> 64) as u64]
}

/// Writes a file whole or not at all, with the mode of the input.
pub fn write_file(path: &Path, bytes: &[u8], mode: std::fs::Permissions) -> Result<()> {
    let failed = |e: std::io::Error| Error::file("write", path, e);
    // A link stays; what it leads to is replaced.
    let real = match path.is_symlink() {
        true => path.canonicalize().map_err(failed)?,
        false => path.to_owned(),
    };
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return Err(Error::file("write", path, "not a regular file"));
    }
    let directory = match real.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if let Some(mut file) = unnamed(directory) {
        file.write_all(bytes).map_err(failed)?;
        file.set_permissions(mode.clone()).map_err(failed)?;
        if name(&file, directory, &real).is_ok() {
            return Ok(());
        }
    }
    let mut file = temporary().tempfile_in(directory).map_err(|e| {
        // The name of the temporary file would only confuse.
        failed(e.kind().into())
    })?;
    file.as_file_mut().write_all(bytes).map_err(failed)?;
    file.as_file().set_permissions(mode).map_err(failed)?;
    file.persist(real).map_err(|e| failed(e.error))?;
    Ok(())
}

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".deprewrite");
    builder
}

/// A file without a name, of which nothing is left when we are killed. Some file systems have none.
fn unnamed(directory: &Path) -> Option<std::fs::File> {
    let flags = rustix::fs::OFlags::TMPFILE;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(flags.bits() as i32)
        .open(directory)
        .ok()
}

/// Gives an unnamed file in `directory` the name `real`, in place of whatever has it. An error where there is no
/// `/proc`.
fn name(file: &std::fs::File, directory: &Path, real: &Path) -> std::io::Result<()> {
    let link = |to: &Path| -> std::io::Result<()> {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let here = rustix::fs::CWD;
        Ok(rustix::fs::linkat(here, from, here, to, rustix::fs::AtFlags::SYMLINK_FOLLOW)?)
    };
    if link(real).is_ok() {
        return Ok(());
    }
    // A name can only be taken over by one that exists.
    temporary().make_in(directory, link)?.persist(real).map_err(|e| e.error)
}

/// Whether two paths name one file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_that_is_being_written_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        let Some(mut file) = unnamed(dir.path()) else {
            println!("skipped: the file system has no unnamed files");
            return;
        };
        file.write_all(b"first").unwrap();
        assert_eq!(names(), 0);
        let to = dir.path().join("out");
        name(&file, dir.path(), &to).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"first");
        let mut file = unnamed(dir.path()).unwrap();
        file.write_all(b"second").unwrap();
        assert_eq!(names(), 1);
        name(&file, dir.path(), &to).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"second");
        assert_eq!(names(), 1);
    }

    #[test]
    fn a_file_is_written_with_its_mode_over_another_one_and_by_way_of_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let [to, link] = ["out", "link"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("out", &link).unwrap();
        std::fs::write(&to, b"old").unwrap();
        for (path, bytes, mode) in [(&to, b"one", 0o755), (&link, b"two", 0o640)] {
            write_file(path, bytes, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(std::fs::read(&to).unwrap(), bytes);
            assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o7777, mode);
        }
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn pieces_are_whole_pages_and_of_one_mapping() {
        let load = |address, file_size, memory_size| ProgramHeader {
            kind: elf::PT_LOAD.0,
            address,
            file_size,
            memory_size,
            ..ProgramHeader::default()
        };
        let headers = [
            load(0x1000, 0x1234, 0x1234),
            // In the page where the first one ends, and zeros behind it.
            load(0x2800, 0x10, 0x2000),
            // Nothing but zeros, from where the others end.
            load(0x4900, 0, 0x1000),
            load(0, 0, 0),
            ProgramHeader { kind: elf::PT_NOTE.0, ..load(0x9000, 16, 16) },
        ];
        let expected = [[0x1000, 0x2000], [0x2000, 0x3000], [0x3000, 0x4000], [0x4000, 0x6000]];
        assert_eq!(pieces(&headers), expected);
    }

    #[test]
    fn what_the_header_cannot_count_is_refused() {
        assert!(matches!(half(65279), Ok(65279)));
        assert!(half(65280).is_err() && half(65536).is_err());
    }
}
