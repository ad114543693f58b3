//! The runtime, as it is embedded in this program and placed in an output.
//!
//! The blob is linked at 0 and relocates itself when it starts, so its segments are copied as they
//! are. What it must know is patched into its parameters.

use crate::convert::index;
use crate::elf::{FileHeader, ProgramHeader, LE};
use crate::error::{Error, Result};
use object::read::elf::{FileHeader as _, Sym};

static BLOB: &[u8] = include_bytes!(env!("DEPREWRITE_RUNTIME"));

/// The symbol of the four words of parameters.
const PARAMETERS: &str = "DEPREWRITE_PARAMS";

pub struct Runtime {
    /// Ascending; addresses relative to the runtime's start.
    pub segments: Vec<RuntimeSegment>,
    pub entry: u64,
    parameters: u64,
}

pub struct RuntimeSegment {
    pub address: u64,
    pub flags: u32,
    pub bytes: Vec<u8>,
    pub memory_size: u64,
}

impl Runtime {
    pub fn embedded() -> Result<Runtime> {
        Runtime::parse(BLOB)
    }

    fn parse(blob: &[u8]) -> Result<Runtime> {
        let broken = |e: object::Error| Error::Internal(format!("embedded runtime: {e}"));
        let header = FileHeader::parse(blob).map_err(broken)?;
        let mut segments = Vec::new();
        for raw in header.program_headers(LE, blob).map_err(broken)? {
            let p = ProgramHeader::read(raw);
            if p.is_load() && p.memory_size != 0 {
                segments.push(RuntimeSegment {
                    address: p.address,
                    flags: p.flags,
                    bytes: blob[index(p.offset.0)..][..index(p.file_size)].to_vec(),
                    memory_size: p.memory_size,
                });
            }
        }
        let sections = header.sections(LE, blob).map_err(broken)?;
        let symbols = sections.symbols(LE, blob, object::elf::SHT_SYMTAB).map_err(broken)?;
        let parameters = symbols
            .iter()
            .find(|s| s.name(LE, symbols.strings()) == Ok(PARAMETERS.as_bytes()))
            .map(|s| s.st_value(LE))
            .ok_or_else(|| Error::Internal(format!("embedded runtime: no {PARAMETERS}")))?;
        Ok(Runtime { segments, entry: header.e_entry.get(LE), parameters })
    }

    /// First address behind the runtime, relative to its start.
    pub fn end(&self) -> u64 {
        self.segments.iter().map(|s| s.address + s.memory_size).max().unwrap_or(0)
    }

    /// Writes the parameters.
    pub fn set_parameters(&mut self, words: [u64; 4]) -> Result<()> {
        let at = self.parameters;
        let segment = self
            .segments
            .iter_mut()
            .find(|s| s.address <= at && at + 32 <= s.address + s.memory_size)
            .ok_or_else(|| Error::Internal("embedded runtime: parameters not mapped".into()))?;
        let offset = index(at - segment.address);
        if segment.bytes.len() < offset + 32 {
            segment.bytes.resize(offset + 32, 0);
        }
        for (slot, word) in segment.bytes[offset..offset + 32].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
}
