//! The ahead-of-time translation of a shared library, as it travels in an output file or in a file
//! of its own.
//!
//! A *pack* is one piece of bytes that starts at a page and holds everything: header, tables, unit
//! descriptions, a copy of the library's executable segment for the reader of traces, and the
//! translated code, page-aligned, last. A library with several executable segments has a pack for each, one
//! behind the other. Offsets in the header count from the pack's start; addresses
//! in the tables count from the library's load address, where its first segment's page 0 lies.
//!
//! The code is mapped at a fixed distance behind the library, so what is relative to the
//! instruction pointer is right wherever the library is loaded. What depends on the place is the low
//! half of each return address, in the thunks of calls. Those lie side by side, at the end of the
//! code:
//!
//! ```text
//! direct:    c7 04 24 <low half of the return address>   mov dword [rsp], imm32
//!            e9 <distance>                               jmp callee
//! indirect:  c7 04 24 <low half of the return address>
//!            65 ff 24 25 <offset>                        jmp gs:[JUMP]
//! ```
//!
//! Whoever maps the code adds the low half of the load address to each.
//!
//! There may be a second translation, which records nothing. Its code begins with the page behind that of
//! the first, and is mapped together with it.

use crate::file::State;
use crate::tables::{self, Tables};

/// First bytes of a pack; they change with the tables, the thread block and the sequences that use
/// them, which packs of another version do not fit.
pub const MAGIC: [u8; 8] = *b"DEPRLIBF";
/// Bytes of a thunk of a direct call.
pub const DIRECT_THUNK: u32 = 12;
/// Bytes of a thunk of an indirect call.
pub const INDIRECT_THUNK: u32 = 15;
/// Offset of the low half of the return address in a thunk.
pub const THUNK_ADDRESS: u32 = 3;
/// Bytes at the start of a library's file that [`PackHeader::head`] is the key of.
pub const HEAD: usize = 1024;
/// Name of the section with the packs in an output file.
pub const SECTION: &str = ".deprewrite.libraries";

/// Packs in files of their own use the unit windows from here on: in a cache those that nobody else
/// has there, elsewhere a multiple of [`WINDOW_STEP`] that the content chooses. Packs in an output lie
/// below, behind the program's.
pub const FIRST_SHARED_WINDOW: u32 = 0x8000;
/// First window behind those of packs in files of their own.
pub const END_OF_SHARED_WINDOWS: u32 = 0x1_0000;
/// Distance of two windows that contents choose.
pub const WINDOW_STEP: u32 = 64;

/// Bits of [`PackHeader::flags`].
pub mod flags {
    /// The code needs AVX-512VL.
    pub const NEEDS_AVX512VL: u64 = 1;
    /// The code relies on a window at address 0 (it is part of a program at fixed addresses).
    pub const FIXED_WINDOW: u64 = 2;
}

/// Thunks of the calls in one translation. All fields are 8-byte words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thunks {
    /// Offset of the first one in the code; direct ones, then indirect ones.
    pub start: u64,
    /// Number of thunks of direct calls.
    pub direct: u64,
    /// Number of thunks of indirect calls.
    pub indirect: u64,
}

impl Thunks {
    /// Offset of the first thunk of an indirect call in the code, and of what is behind the last; `None`
    /// if there cannot be so many.
    pub fn ends(&self) -> Option<[u64; 2]> {
        let direct = self.direct.checked_mul(u64::from(DIRECT_THUNK))?;
        let indirect = self.indirect.checked_mul(u64::from(INDIRECT_THUNK))?;
        let middle = self.start.checked_add(direct)?;
        Some([middle, middle.checked_add(indirect)?])
    }

    fn words_mut(&mut self) -> [&mut u64; 3] {
        [&mut self.start, &mut self.direct, &mut self.indirect]
    }
}

/// All fields are 8-byte words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Bytes of the whole pack, a multiple of the page size.
    pub len: u64,
    /// Bits of [`flags`].
    pub flags: u64,
    /// [`crate::options::Options::to_word`].
    pub options: u64,
    /// [`crate::selection::Rules::key`].
    pub rules: u64,
    /// Which code is recorded ([`crate::selection::Ranges::pieces`]): pairs of u64.
    pub selection: u64,
    /// Number of the pairs.
    pub selection_count: u64,
    /// [`key`] of the first [`HEAD`] bytes of the library's file.
    pub head: [u64; 2],
    /// [`key`] of the executable segment's bytes.
    pub content: [u64; 2],
    /// The executable segment: address, offset in the library's file, bytes in the file.
    pub segment: u64,
    /// Offset of the segment in the library's file.
    pub segment_offset: u64,
    /// Bytes of the segment in the file.
    pub segment_len: u64,
    /// From the load address to the code.
    pub code_distance: u64,
    /// The thunks of the code.
    pub thunks: Thunks,
    /// The translation.
    pub tables: Tables,
    /// The thunks of `plain`.
    pub plain_thunks: Thunks,
    /// The translation that records nothing; `code_len` 0: none.
    pub plain: Tables,
    /// Copy of the executable segment.
    pub text: u64,
    /// Packs of further executable segments of the same library, which lie behind this one.
    pub following: u64,
    /// Hash of everything that the reader depends on; the trace repeats it.
    pub identity: [u64; 2],
    /// The library's file when it was read, if it is known (of a pack in a cache: what travels is the same wherever it
    /// was made). As long as it is that, nobody need compare [`PackHeader::content`].
    pub file: State,
}

/// Size of [`PackHeader`].
pub const HEADER_SIZE: usize = core::mem::size_of::<PackHeader>();
const _: () = assert!(HEADER_SIZE == 8 * 80);

impl PackHeader {
    /// The bytes in the file.
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        out[..8].copy_from_slice(&self.magic);
        tables::put(&mut out[8..], { *self }.words_mut());
        out
    }

    /// Reads [`PackHeader::to_bytes`]; `None` if it is not a pack of this version, or one of its
    /// parts lies outside of it.
    pub fn from_bytes(bytes: &[u8]) -> Option<PackHeader> {
        let bytes = bytes.get(..HEADER_SIZE)?;
        if bytes[..8] != MAGIC {
            return None;
        }
        let mut header = PackHeader { magic: MAGIC, ..PackHeader::default() };
        tables::get(&bytes[8..], header.words_mut());
        header.is_consistent().then_some(header)
    }

    /// The unit windows that it takes.
    pub fn windows(&self) -> core::ops::Range<u64> {
        let first = self.tables.first_window;
        let count = self.tables.unit_count.div_ceil(u64::from(crate::unit::TAGS_PER_WINDOW));
        first..first.saturating_add(count.max(1))
    }

    /// Bytes of code, from the start of the first translation to the end of the last.
    pub fn code_len(&self) -> u64 {
        match self.plain.code_len {
            0 => self.tables.code_len,
            len => self.plain.code - self.tables.code + len,
        }
    }

    fn is_consistent(&self) -> bool {
        let fit = |thunks: &Thunks, tables: &Tables| {
            thunks.ends().is_some_and(|[_, end]| end <= tables.code_len)
        };
        let behind = crate::layout::page_up(self.tables.code.saturating_add(self.tables.code_len));
        self.len >= HEADER_SIZE as u64
            && self.tables.are_within(self.len)
            && fit(&self.thunks, &self.tables)
            && self.plain.are_within(self.len)
            && fit(&self.plain_thunks, &self.plain)
            && (self.plain.code_len == 0 || self.plain.code == behind)
            && tables::is_within(self.len, self.text, self.segment_len, 1)
            && tables::is_within(self.len, self.selection, self.selection_count, 16)
            && [self.tables.code, self.code_distance, self.len]
                .iter()
                .all(|x| x % crate::layout::PAGE == 0)
    }

    fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let front = [
            &mut self.len,
            &mut self.flags,
            &mut self.options,
            &mut self.rules,
            &mut self.selection,
            &mut self.selection_count,
        ];
        let behind = [
            &mut self.segment,
            &mut self.segment_offset,
            &mut self.segment_len,
            &mut self.code_distance,
        ];
        front
            .into_iter()
            .chain(&mut self.head)
            .chain(&mut self.content)
            .chain(behind)
            .chain(self.thunks.words_mut())
            .chain(self.tables.words_mut())
            .chain(self.plain_thunks.words_mut())
            .chain(self.plain.words_mut())
            .chain([&mut self.text, &mut self.following])
            .chain(&mut self.identity)
            .chain(self.file.words_mut())
    }
}

/// Name of the file with the pack for a library whose file has this `head`.
pub fn file_name(head: [u64; 2], options: u64) -> alloc::string::String {
    file_name_for(head, options, 0)
}

/// The same, for rules of what is recorded that have this key.
pub fn file_name_for(head: [u64; 2], options: u64, rules: u64) -> alloc::string::String {
    let rules = match rules {
        0 => alloc::string::String::new(),
        rules => alloc::format!("-{rules:016x}"),
    };
    alloc::format!("{:016x}{:016x}-{options:x}{rules}.dep-library", head[0], head[1])
}

/// Window of the first unit of a pack in a file of its own, for content with this key. Two
/// libraries can fall on the same one; the second then runs without its pack.
pub fn shared_window(content: [u64; 2]) -> u32 {
    let steps = (END_OF_SHARED_WINDOWS - FIRST_SHARED_WINDOW) / WINDOW_STEP;
    FIRST_SHARED_WINDOW + (content[1] % u64::from(steps)) as u32 * WINDOW_STEP
}

/// 128-bit hash of bytes: four lanes of multiply and rotate, so that a library's code is hashed at
/// the speed at which it is read. Not meant to resist anybody who builds collisions.
pub fn key(bytes: &[u8]) -> [u64; 2] {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xc2b2_ae3d_27d4_eb4f;
    let mut lanes = [A, B, !A, !B];
    let mut blocks = bytes.chunks_exact(32);
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let mut add = |block: &[u8]| {
        for (lane, bytes) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            *lane = (*lane ^ word).wrapping_mul(A).rotate_left(29);
        }
    };
    blocks.by_ref().for_each(&mut add);
    let mut last = [0u8; 32];
    let rest = blocks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    let mut out = [bytes.len() as u64, word(rest.get(..8).unwrap_or_default())];
    for lane in lanes {
        out[0] = (out[0] ^ lane).wrapping_mul(B).rotate_left(31);
        out[1] = (out[1].rotate_left(17) ^ lane).wrapping_mul(A) ^ out[0] >> 32;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn headers_survive_encoding_and_contradictions_are_refused() {
        let tables = Tables {
            code: 0x2000,
            code_len: 0x2000,
            entries: 0x200,
            entry_count: 2,
            first_window: 7,
            ..Tables::default()
        };
        let header = PackHeader {
            magic: MAGIC,
            len: 0x4000,
            head: [1, 2],
            code_distance: 0x5000,
            thunks: Thunks { start: 0x1000, direct: 3, indirect: 0 },
            tables,
            identity: [8, 9],
            ..PackHeader::default()
        };
        assert_eq!(PackHeader::from_bytes(&header.to_bytes()), Some(header));
        let wrong = PackHeader { tables: Tables { entry_count: 1 << 40, ..tables }, ..header };
        assert_eq!(PackHeader::from_bytes(&wrong.to_bytes()), None);
        let thunks = Thunks { indirect: u64::MAX, ..header.thunks };
        for wrong in
            [PackHeader { thunks, ..header }, PackHeader { plain_thunks: thunks, ..header }]
        {
            assert_eq!(PackHeader::from_bytes(&wrong.to_bytes()), None);
        }
        let plain = Tables { code: 0x3000, code_len: 0x1000, entries: 0x200, ..Tables::default() };
        let first = Tables { code_len: 0xfff, ..tables };
        let both = PackHeader { tables: first, plain, thunks: Thunks::default(), ..header };
        assert_eq!(PackHeader::from_bytes(&both.to_bytes()), Some(both));
        assert_eq!(both.code_len(), 0x2000);
        for code in [0x2000, 0x3008, u64::MAX] {
            let wrong = PackHeader { plain: Tables { code, ..plain }, ..both };
            assert_eq!(PackHeader::from_bytes(&wrong.to_bytes()), None);
        }
    }

    #[test]
    fn keys_differ_for_every_changed_byte_and_length() {
        let bytes: Vec<u8> = (0..100u8).collect();
        let mut seen = alloc::vec![key(&bytes), key(&bytes[..99]), key(&[]), key(&[0])];
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 0x10;
            seen.push(key(&changed));
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
