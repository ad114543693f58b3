//! A program as discovery sees it: bytes at addresses, and what the file says about its code.

/// Bytes of the program at their original addresses. Never relocated: what the file holds.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Where they lie.
    pub address: u64,
    /// Them.
    pub bytes: &'a [u8],
    /// The program may execute them.
    pub executable: bool,
}

impl Segment<'_> {
    /// First address behind the bytes.
    pub fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }
}

/// Everything that discovery starts from.
#[derive(Clone, Debug, Default)]
pub struct Image<'a> {
    /// What the file loads.
    pub segments: alloc::vec::Vec<Segment<'a>>,
    /// Where the program starts.
    pub entry: u64,
    /// Start and size (0: unknown) of functions, from frame descriptions and symbols.
    pub functions: alloc::vec::Vec<(u64, u64)>,
    /// Addresses of code that something outside the code names: relocation targets, initialisers,
    /// landing pads, symbols, PLT entries.
    pub code_pointers: alloc::vec::Vec<u64>,
    /// The program is linked to fixed addresses: a word of data or an immediate whose value is a
    /// code address may be a pointer although nothing relocates it.
    pub fixed: bool,
}

impl Image<'_> {
    /// The bytes from `address` to the end of its segment.
    pub fn bytes_at(&self, address: u64) -> Option<&[u8]> {
        self.segments.iter().find_map(|s| {
            let offset = usize::try_from(address.checked_sub(s.address)?).ok()?;
            s.bytes.get(offset..).filter(|rest| !rest.is_empty())
        })
    }
}
