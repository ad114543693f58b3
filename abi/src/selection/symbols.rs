//! The functions of an ELF file, by its symbol tables.

use alloc::string::String;
use alloc::vec::Vec;

/// A function, with the addresses of its code as the file counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Its symbol.
    pub symbol: String,
}

impl Function {
    /// Whether a pattern names it.
    #[must_use]
    pub fn is_called(&self, pattern: &str) -> bool {
        super::names_of(&self.symbol).iter().any(|name| super::matches(pattern, name))
    }
}

const SECTION: u64 = 64;
const SYMBOL: usize = 24;
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
const FUNCTION: u8 = 2;
const INDIRECT_FUNCTION: u8 = 10;
/// A table that claims to be larger is not believed.
const LARGEST: u64 = 1 << 30;

/// The functions that the symbol tables of a file name. `read`: bytes of the file at an offset.
/// What does not parse is left out. A function of unknown size reaches to the next one.
pub fn functions(read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Vec<Function> {
    let mut all = Vec::new();
    let _ = collect(&read, &mut all);
    all.sort_by(|a: &Function, b| (a.start, &a.symbol, a.end).cmp(&(b.start, &b.symbol, b.end)));
    all.dedup();
    let mut next = u64::MAX;
    for i in (0..all.len()).rev() {
        let start = all[i].start;
        if all[i].end <= start {
            // The last one of all has no end that anybody knows: it is one byte, so that its first
            // block is selected.
            all[i].end = if next == u64::MAX { start + 1 } else { next };
        }
        if i > 0 && all[i - 1].start < start {
            next = start;
        }
    }
    all
}

/// A program header: kind, offset, address, bytes in the file.
type Segment = (u32, u64, u64, u64);

fn segments(read: &impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<Vec<Segment>> {
    const HEADER: usize = 56;
    let header = read(0, 64).filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
    let table = read(word(&header, 32)?, u64::from(half(&header, 56)?) * HEADER as u64)?;
    let segment = |p: &[u8]| Some((word32(p, 0)?, word(p, 8)?, word(p, 16)?, word(p, 32)?));
    table.chunks_exact(HEADER).map(segment).collect()
}

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;

/// The address that a file gives to what is mapped from `offset` on.
pub fn base_of(read: impl Fn(u64, u64) -> Option<Vec<u8>>, offset: u64) -> Option<u64> {
    let page = |address| crate::layout::page_down(address);
    let all = segments(&read)?;
    let mut loads = all.iter().filter(|s| s.0 == LOAD);
    let exact = loads.clone().find(|s| page(s.1) == offset);
    let inside = || loads.find(|s| (page(s.1)..s.1.saturating_add(s.3)).contains(&offset));
    exact.or_else(inside).map(|s| page(s.2).wrapping_add(offset - page(s.1)))
}

/// The name that a library has for programs which need it (DT_SONAME).
pub fn soname(read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<String> {
    const STRTAB: u64 = 5;
    const SONAME: u64 = 14;
    let all = segments(&read)?;
    let &(_, at, _, len) = all.iter().find(|s| s.0 == DYNAMIC)?;
    let dynamic = read(at, len.min(1 << 20))?;
    let value = |wanted: u64| {
        let mut entries = dynamic.chunks_exact(16);
        entries.find(|e| word(e, 0) == Some(wanted)).and_then(|e| word(e, 8))
    };
    let address = value(STRTAB)?.checked_add(value(SONAME)?)?;
    let load = |s: &&Segment| s.0 == LOAD && address.wrapping_sub(s.2) < s.3;
    let &(_, offset, start, len) = all.iter().find(load)?;
    let skip = address - start;
    let bytes = read(offset.checked_add(skip)?, (len - skip).min(256))?;
    let name = bytes.split(|&byte| byte == 0).next()?;
    core::str::from_utf8(name).ok().map(String::from)
}

fn collect(read: &impl Fn(u64, u64) -> Option<Vec<u8>>, all: &mut Vec<Function>) -> Option<()> {
    let header = read(0, 64)?;
    let offset = word(&header, 40)?;
    let count = u64::from(half(&header, 60)?);
    let sections = read(offset, count * SECTION)?;
    for section in sections.chunks_exact(SECTION as usize) {
        if !matches!(word32(section, 4)?, SYMTAB | DYNSYM) {
            continue;
        }
        let strings = sections.chunks_exact(SECTION as usize).nth(word32(section, 40)? as usize)?;
        let bytes = |section: &[u8]| {
            let (at, len) = (word(section, 24)?, word(section, 32)?);
            (len <= LARGEST).then(|| read(at, len))?
        };
        let (Some(symbols), Some(names)) = (bytes(section), bytes(strings)) else { continue };
        for symbol in symbols.chunks_exact(SYMBOL) {
            let kind = symbol[4] & 15;
            let defined = symbol[6..8] != [0, 0];
            if !matches!(kind, FUNCTION | INDIRECT_FUNCTION) || !defined {
                continue;
            }
            let (start, size) = (word(symbol, 8)?, word(symbol, 16)?);
            let name = names.get(word32(symbol, 0)? as usize..).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let Ok(name) = core::str::from_utf8(name) else { continue };
            if !name.is_empty() {
                let end = start.saturating_add(size);
                all.push(Function { start, end, symbol: name.into() });
            }
        }
    }
    Some(())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
