//! The runtime, as it is embedded in this program and placed in an output.
//!
//! The blob is linked at 0 and relocates itself when it starts, so its segments are copied as they
//! are. What it must know is patched into its parameters.

use crate::convert::index;
use crate::elf::{FileHeader, ProgramHeader, LE};
use crate::error::{Error, Result};
use abi::misses::{Misses, Stubs};
use object::read::elf::{FileHeader as _, Sym};

static BLOB: &[u8] = include_bytes!(env!("DEPREWRITE_RUNTIME"));

/// The symbol of the four words of parameters.
const PARAMETERS: &str = "DEPREWRITE_PARAMS";
/// Those of the stubs where look-ups lead that find nothing: of jumps, and of returns.
const MISSES: [&str; 2] = ["DEPREWRITE_MISS", "DEPREWRITE_RETURN_MISS"];

pub struct Runtime {
    /// Ascending; addresses relative to the runtime's start.
    pub segments: Vec<RuntimeSegment>,
    pub entry: u64,
    parameters: u64,
    /// The miss stubs, of jumps and of returns.
    stubs: [u64; 2],
    /// What the look-up tables are mapped from: in front of the first segment, and part of it.
    pub misses: Option<Misses>,
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
        let value_of = |name: &str| {
            symbols
                .iter()
                .find(|s| s.name(LE, symbols.strings()) == Ok(name.as_bytes()))
                .map(|s| s.st_value(LE))
                .ok_or_else(|| Error::Internal(format!("embedded runtime: no {name}")))
        };
        let [jumps, returns] = MISSES;
        Ok(Runtime {
            segments,
            entry: header.e_entry.get(LE),
            parameters: value_of(PARAMETERS)?,
            stubs: [value_of(jumps)?, value_of(returns)?],
            misses: None,
        })
    }

    /// The bytes in front of the runtime at `base`: what the look-up tables are mapped from. `fixed`: that is an
    /// address, not a distance from the window.
    pub fn front(&self, base: u64, fixed: bool) -> Vec<u8> {
        let Some(misses) = self.misses else { return Vec::new() };
        let [jumps, returns] = self.stubs.map(|stub| base + stub);
        misses.bytes(Stubs { jumps, returns }, fixed)
    }

    /// How many they are.
    pub fn front_len(&self) -> u64 {
        self.misses.map_or(0, Misses::len)
    }

    /// Bytes from what lies in front of it to its end.
    pub fn size(&self) -> u64 {
        self.front_len() + self.end()
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
