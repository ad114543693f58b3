//! The header that the rewriter leaves for the runtime in an output file, and its tables.
//!
//! The header is the first thing in the first added segment, or stands there directly behind the
//! output's program headers. Addresses are relative to the window
//! (for a position-independent program: to its load address, a multiple of 4 GiB, which the kernel
//! chooses because a segment asks for that alignment, or else the runtime; for a program at fixed
//! addresses: absolute).

use crate::tables::{self, Tables};

/// First bytes of the header.
pub const MAGIC: [u8; 8] = *b"DEPREWR1";
/// Version of header and tables.
pub const VERSION: u32 = 10;

/// Bits of [`ImageHeader::flags`].
pub mod flags {
    /// The program is position-independent (`ET_DYN`).
    pub const PIE: u32 = 1;
    /// `--translate dynamic`: no ahead-of-time code.
    pub const DYNAMIC: u32 = 2;
    /// The ahead-of-time code needs AVX-512VL.
    pub const NEEDS_AVX512VL: u32 = 4;
    /// The program asks for a stack that may be executed (functions inside of functions need one,
    /// in GNU C).
    pub const EXECUTABLE_STACK: u32 = 8;
    /// The program looks where the kernel has placed what, and ends if it is elsewhere (ThreadSanitizer, MemorySanitizer).
    pub const KEEPS_PLACES: u32 = 16;
}

/// All fields are little-endian 8-byte words but for the first ones; no padding.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// Bits of [`flags`].
    pub flags: u32,
    /// [`crate::options::Options::to_word`].
    pub options: u64,
    /// The program's own entry point.
    pub entry: u64,
    /// The program's own program headers, where they lie in its first segment.
    pub program_headers: u64,
    /// Number of the program headers.
    pub program_header_count: u64,
    /// Path in the program's PT_INTERP (zero-terminated), 0 if it has none.
    pub interpreter: u64,
    /// First byte behind the program's last segment.
    pub image_end: u64,
    /// First byte of the program's first segment.
    pub image_start: u64,
    /// The program's own ELF header (64 bytes) and directly behind it its program headers, to be
    /// restored over the rewritten ones (at `elf_header` and at `program_headers`) before anything
    /// reads them; 0: none.
    pub elf_header_copy: u64,
    /// Address of the ELF header in memory, if `elf_header_copy` is not 0.
    pub elf_header: u64,
    /// Executable ranges of the program: three u64 each (start, end, 1 if writable, too).
    pub exec_ranges: u64,
    /// Number of the ranges.
    pub exec_range_count: u64,
    /// Which code of the program is recorded ([`crate::selection::Ranges::pieces`]): pairs of u64.
    pub selection: u64,
    /// Number of the pairs.
    pub selection_count: u64,
    /// [`crate::selection::Rules::to_text`], for what the program loads.
    pub rules: u64,
    /// Bytes of the text.
    pub rules_len: u64,
    /// The program's translation, as mapped. The unit descriptions are read from the file, not from
    /// memory: they count from the header, in the file as in memory, as `strip` and `objcopy` move
    /// a segment in the file, and keep it in one piece.
    pub tables: Tables,
    /// The translation that records nothing, for a recording that is switched off; `code_len` 0: none.
    /// Its code lies behind the other, in the same segment, and nobody reads descriptions of its units.
    pub plain: Tables,
    /// Translations of libraries ([`crate::library`]), one behind the other.
    pub libraries: u64,
    /// Number of the translations.
    pub library_count: u64,
    /// Path (zero-terminated) of the folder with the translations of libraries that did not travel
    /// along; 0: none.
    pub library_folder: u64,
    /// Window number of the first unit of the JIT.
    pub jit_window: u64,
    /// What the kernel maps of the output: two u64 for each piece (start, end), whole pages, ascending,
    /// no two of which overlap; what a segment has behind its end in the file is a piece of its own.
    /// Entries that are 0 are none.
    pub pieces: u64,
    /// Number of the entries.
    pub piece_count: u64,
    /// What the look-up tables are mapped from ([`crate::misses`]), at the start of a segment; 0: nothing.
    pub misses: u64,
    /// Entries of each table there.
    pub miss_entries: u64,
    /// Hash of everything above that the reader depends on; the trace repeats it.
    pub identity: [u64; 2],
    /// The runtime: start, end, entry.
    pub runtime: u64,
    /// First byte behind the runtime.
    pub runtime_end: u64,
    /// [`crate::start::Start::to_word`]: when the recording begins unless `DEP_START` says otherwise.
    pub start: u64,
    /// The program's function `main`; 0: not known.
    pub main: u64,
    /// Of the input file, byte for byte: the first half of its SHA-256, as [`words_of_hash`] has it.
    pub original: [u64; 2],
}

/// Size of [`ImageHeader`] in the file.
pub const HEADER_SIZE: usize = core::mem::size_of::<ImageHeader>();
const _: () = assert!(HEADER_SIZE == WORDS_AT + 8 * 79);
/// Where the words start.
const WORDS_AT: usize = 16;

impl ImageHeader {
    /// The bytes in the file.
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        out[..8].copy_from_slice(&self.magic);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.flags.to_le_bytes());
        tables::put(&mut out[WORDS_AT..], { *self }.words_mut());
        out
    }

    /// Reads [`ImageHeader::to_bytes`]; `None` if it is not a header of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<ImageHeader> {
        let bytes = bytes.get(..HEADER_SIZE)?;
        let mut header = ImageHeader {
            magic: bytes[..8].try_into().ok()?,
            version: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
            flags: u32::from_le_bytes(bytes[12..16].try_into().ok()?),
            ..ImageHeader::default()
        };
        if header.magic != MAGIC || header.version != VERSION {
            return None;
        }
        tables::get(&bytes[WORDS_AT..], header.words_mut());
        Some(header)
    }

    fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let front = [
            &mut self.options,
            &mut self.entry,
            &mut self.program_headers,
            &mut self.program_header_count,
            &mut self.interpreter,
            &mut self.image_end,
            &mut self.image_start,
            &mut self.elf_header_copy,
            &mut self.elf_header,
            &mut self.exec_ranges,
            &mut self.exec_range_count,
            &mut self.selection,
            &mut self.selection_count,
            &mut self.rules,
            &mut self.rules_len,
        ];
        let behind = [
            &mut self.libraries,
            &mut self.library_count,
            &mut self.library_folder,
            &mut self.jit_window,
            &mut self.pieces,
            &mut self.piece_count,
            &mut self.misses,
            &mut self.miss_entries,
        ];
        let runtime = [&mut self.runtime, &mut self.runtime_end, &mut self.start, &mut self.main];
        front
            .into_iter()
            .chain(self.tables.words_mut())
            .chain(self.plain.words_mut())
            .chain(behind)
            .chain(&mut self.identity)
            .chain(runtime)
            .chain(&mut self.original)
    }
}

/// A hash of 32 hexadecimal digits as two words; `None` if it is none.
#[must_use]
pub fn words_of_hash(digits: &str) -> Option<[u64; 2]> {
    let whole = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let (high, low) = digits.split_at_checked(16).filter(|_| whole)?;
    Some([u64::from_str_radix(high, 16).ok()?, u64::from_str_radix(low, 16).ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_bytes() {
        let original = words_of_hash("ba7816bf8f01cfea414140de5dae2223").unwrap();
        assert_eq!(original, [0xba78_16bf_8f01_cfea, 0x4141_40de_5dae_2223]);
        assert_eq!(words_of_hash("ba78"), None);
        assert_eq!(words_of_hash("+a7816bf8f01cfea414140de5dae2223"), None);
        let header =
            ImageHeader { magic: MAGIC, version: VERSION, original, main: 7, ..Default::default() };
        assert_eq!(ImageHeader::from_bytes(&header.to_bytes()), Some(header));
    }
}
