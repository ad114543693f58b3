//! The header that the rewriter leaves for the runtime in an output file, and its tables.
//!
//! The header is the first thing in the first added segment. Addresses are relative to the window
//! (for a position-independent program: to its load address, which the kernel makes a multiple of
//! 4 GiB because a segment asks for that alignment; for a program at fixed addresses: absolute).

/// First bytes of the header.
pub const MAGIC: [u8; 8] = *b"DEPREWR1";
/// Version of header and tables.
pub const VERSION: u32 = 1;

/// Bits of [`ImageHeader::flags`].
pub mod flags {
    /// The program is position-independent (`ET_DYN`).
    pub const PIE: u32 = 1;
    /// `--translate dynamic`: no ahead-of-time code.
    pub const DYNAMIC: u32 = 2;
    /// The ahead-of-time code needs AVX-512VL.
    pub const NEEDS_AVX512VL: u32 = 4;
}

/// All fields are little-endian 8-byte words or pairs of 4-byte words; no padding.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageHeader {
    pub magic: [u8; 8],
    pub version: u32,
    pub flags: u32,
    /// [`crate::options::Options::to_word`].
    pub options: u64,
    /// The program's own entry point.
    pub entry: u64,
    /// The program's own program headers, where they lie in its first segment.
    pub program_headers: u64,
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
    /// Executable ranges of the program: pairs of u64 (start, end).
    pub exec_ranges: u64,
    pub exec_range_count: u64,
    /// Translated code.
    pub code: u64,
    pub code_len: u64,
    /// Entry table: pairs of u32 (original address, translated address), ascending; both are low
    /// halves relative to the window.
    pub entries: u64,
    pub entry_count: u64,
    /// For each ahead-of-time unit in the order of its number (and of its code): u32 start of its
    /// code relative to `code`, u32 start of its recipe relative to `recipes`; one entry more
    /// closes the last unit.
    pub units: u64,
    pub unit_count: u64,
    /// Original address of each unit: u32.
    pub unit_addresses: u64,
    /// Recipes, see the instrumenter's `recipe` module.
    pub recipes: u64,
    pub recipes_len: u64,
    /// Unit descriptions for the reader ([`crate::unit::encode_static`]): they are read from the
    /// file, not from memory. Bytes behind the header, in the file as in memory: `strip` and
    /// `objcopy` move a segment in the file, and keep it in one piece.
    pub descriptions_offset: u64,
    pub descriptions_len: u64,
    /// Translations of libraries ([`crate::library`]), one behind the other.
    pub libraries: u64,
    pub library_count: u64,
    /// Window number of the first ahead-of-time unit, and of the first unit of the JIT.
    pub first_window: u32,
    pub jit_window: u32,
    /// Hash of everything above that the reader depends on; the trace repeats it.
    pub identity: [u64; 2],
    /// The runtime: start, end, entry.
    pub runtime: u64,
    pub runtime_end: u64,
}

/// Size of [`ImageHeader`] in the file.
pub const HEADER_SIZE: usize = core::mem::size_of::<ImageHeader>();
const _: () = assert!(HEADER_SIZE == 8 + 8 + 8 * 24 + 8 + 16 + 16);

impl ImageHeader {
    /// The bytes in the file.
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&self.magic);
        put(&self.version.to_le_bytes());
        put(&self.flags.to_le_bytes());
        for word in self.words() {
            put(&word.to_le_bytes());
        }
        put(&self.first_window.to_le_bytes());
        put(&self.jit_window.to_le_bytes());
        for word in [self.identity[0], self.identity[1], self.runtime, self.runtime_end] {
            put(&word.to_le_bytes());
        }
        out
    }

    /// Reads [`ImageHeader::to_bytes`]; `None` if it is not a header of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<ImageHeader> {
        let bytes = bytes.get(..HEADER_SIZE)?;
        let u32_at =
            |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let mut header = ImageHeader {
            magic: bytes[..8].try_into().ok()?,
            version: u32_at(8),
            flags: u32_at(12),
            ..ImageHeader::default()
        };
        if header.magic != MAGIC || header.version != VERSION {
            return None;
        }
        let mut at = 16;
        for word in header.words_mut() {
            *word = u64_at(at);
            at += 8;
        }
        header.first_window = u32_at(at);
        header.jit_window = u32_at(at + 4);
        header.identity = [u64_at(at + 8), u64_at(at + 16)];
        header.runtime = u64_at(at + 24);
        header.runtime_end = u64_at(at + 32);
        Some(header)
    }

    fn words(&self) -> [u64; 24] {
        let mut copy = *self;
        copy.words_mut().map(|word| *word)
    }

    fn words_mut(&mut self) -> [&mut u64; 24] {
        [
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
            &mut self.code,
            &mut self.code_len,
            &mut self.entries,
            &mut self.entry_count,
            &mut self.units,
            &mut self.unit_count,
            &mut self.unit_addresses,
            &mut self.recipes,
            &mut self.recipes_len,
            &mut self.descriptions_offset,
            &mut self.descriptions_len,
            &mut self.libraries,
            &mut self.library_count,
        ]
    }
}
