//! The tables of ahead-of-time code, of the program's as of a library's.

/// Entries or units of which the index has one.
pub const GROUP: u8 = 32;
/// Bytes of the header of a recipe.
pub const RECIPE_HEADER: u64 = 8;
/// Bytes of what an index has.
const INDEX: u64 = 12;

/// Where they lie, and how long they are. What the words of an [`crate::image::ImageHeader`] and
/// of a [`crate::library::PackHeader`] count from is said there. All fields are 8-byte words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Translated code.
    pub code: u64,
    /// Its bytes.
    pub code_len: u64,
    /// What can be looked up, packed: see the instrumenter's `recipe::packed`.
    pub entries: u64,
    /// Bytes of the packed entries.
    pub entries_len: u64,
    /// Number of entries.
    pub entry_count: u64,
    /// Index of the entries: three u32 for each [`GROUP`] of them.
    pub entry_index: u64,
    /// Ahead-of-time units in the order of their numbers (and of their code), packed as the entries are.
    pub units: u64,
    /// Bytes of the packed units.
    pub units_len: u64,
    /// Number of units.
    pub unit_count: u64,
    /// Index of the units: three u32 for each [`GROUP`] of them.
    pub unit_index: u64,
    /// Headers of recipes, each [`RECIPE_HEADER`] bytes.
    pub headers: u64,
    /// Number of the headers.
    pub header_count: u64,
    /// Shapes that several units have, packed.
    pub shapes: u64,
    /// Their bytes.
    pub shapes_len: u64,
    /// Where each shape starts: a u32 each.
    pub shape_index: u64,
    /// Number of the shapes.
    pub shape_count: u64,
    /// Unit descriptions for the reader of traces ([`crate::unit::encode_static`]), as one frame of zstd; none:
    /// nothing.
    pub descriptions: u64,
    /// Their bytes.
    pub descriptions_len: u64,
    /// Window number of the first unit.
    pub first_window: u64,
    /// Slots: pairs of u32 (original address of a word that does not change any more when the program
    /// runs, relative to the load address; start of what looks up the address in it, relative to `code`).
    /// The code starts with a page or more of addresses, one for each slot, which a jump through that
    /// word takes: of what looks up, or of the translation that it would find.
    pub slots: u64,
    /// Number of slots.
    pub slot_count: u64,
    /// Jumps through tables that have slots: [`JumpTable`]s, ascending by `slow`.
    pub jump_tables: u64,
    /// Number of such jumps.
    pub jump_table_count: u64,
    /// Where their slots start, relative to `code`: whole pages behind all code. A slot has the address to
    /// which the jump leads for one entry of its table: of what looks up, or of the translation that it would find.
    /// The file has them where it is known where the code will lie, in a program at fixed addresses: what looks up, and
    /// what asks the runtime for tables that are mapped read-only from the start.
    pub jump_slots: u64,
}

/// A jump through a table that has slots, one for each entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JumpTable {
    /// Address of the table, relative to the load address.
    pub table: u32,
    /// Number of entries.
    pub entries: u32,
    /// Number of its first slot.
    pub slot: u32,
    /// Start of what looks up where the jump leads, relative to `code`.
    pub slow: u32,
    /// Start of what asks the runtime to look at a slot, and goes on with `slow`.
    pub first: u32,
    /// Bits 0 to 3: a register; see [`JumpTable::READS`] and the others.
    pub how: u32,
}

impl JumpTable {
    /// Bytes of one.
    pub const SIZE: usize = core::mem::size_of::<JumpTable>();
    /// The jump reads the entry: the register is its number. Else it is the target.
    pub const READS: u32 = 16;
    /// Entries are 4-byte distances from the table's start; else 8-byte addresses.
    pub const RELATIVE: u32 = 32;
    /// The table lies in what is mapped read-only from the start.
    pub const READ_ONLY: u32 = 64;

    /// The register.
    pub fn register(&self) -> usize {
        (self.how & 15) as usize
    }

    /// Whether the bit is set.
    pub fn is(&self, bit: u32) -> bool {
        self.how & bit != 0
    }

    /// Bytes of an entry.
    pub fn entry_size(&self) -> u64 {
        if self.is(JumpTable::RELATIVE) {
            4
        } else {
            8
        }
    }

    /// As it lies in the file.
    pub fn to_bytes(self) -> [u8; JumpTable::SIZE] {
        let JumpTable { table, entries, slot, slow, first, how } = self;
        let mut out = [0; JumpTable::SIZE];
        for (bytes, word) in out.chunks_exact_mut(4).zip([table, entries, slot, slow, first, how]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

impl Tables {
    pub(crate) fn words_mut(&mut self) -> [&mut u64; 24] {
        [
            &mut self.code,
            &mut self.code_len,
            &mut self.entries,
            &mut self.entries_len,
            &mut self.entry_count,
            &mut self.entry_index,
            &mut self.units,
            &mut self.units_len,
            &mut self.unit_count,
            &mut self.unit_index,
            &mut self.headers,
            &mut self.header_count,
            &mut self.shapes,
            &mut self.shapes_len,
            &mut self.shape_index,
            &mut self.shape_count,
            &mut self.descriptions,
            &mut self.descriptions_len,
            &mut self.first_window,
            &mut self.slots,
            &mut self.slot_count,
            &mut self.jump_tables,
            &mut self.jump_table_count,
            &mut self.jump_slots,
        ]
    }

    /// Whether all of them lie in front of offset `end`.
    pub(crate) fn are_within(&self, end: u64) -> bool {
        self.unit_count < 1 << 32
            && is_within(end, self.code, self.code_len, 1)
            && is_within(end, self.entries, self.entries_len, 1)
            && is_within(end, self.entry_index, self.entry_count.div_ceil(GROUP.into()), INDEX)
            && is_within(end, self.units, self.units_len, 1)
            && is_within(end, self.unit_index, self.unit_count.div_ceil(GROUP.into()), INDEX)
            && is_within(end, self.headers, self.header_count, RECIPE_HEADER)
            && is_within(end, self.shapes, self.shapes_len, 1)
            && is_within(end, self.shape_index, self.shape_count, 4)
            && is_within(end, self.descriptions, self.descriptions_len, 1)
            && is_within(end, self.slots, self.slot_count, 8)
            && is_within(self.code_len, 0, self.slot_count, 8)
            && is_within(end, self.jump_tables, self.jump_table_count, JumpTable::SIZE as u64)
            && is_within(self.code_len, self.jump_slots, 0, 8)
    }
}

/// Whether `count` items of `size` bytes at `start` lie in front of `end`.
pub(crate) fn is_within(end: u64, start: u64, count: u64, size: u64) -> bool {
    let len = count.checked_mul(size);
    len.and_then(|len| start.checked_add(len)).is_some_and(|last| last <= end)
}

/// Writes words, little-endian, over the start of `out`.
pub(crate) fn put<'a>(out: &mut [u8], words: impl Iterator<Item = &'a mut u64>) {
    for (slot, word) in out.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads what [`put`] has written.
pub(crate) fn get<'a>(bytes: &[u8], words: impl Iterator<Item = &'a mut u64>) {
    for (slot, word) in bytes.chunks_exact(8).zip(words) {
        *word = u64::from_le_bytes(slot.try_into().unwrap_or_default());
    }
}
