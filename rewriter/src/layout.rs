//! Where the added parts lie in memory, and the tables that describe them to the runtime.

use crate::convert::index;
use crate::elf::{FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE};
use crate::error::{unsupported, Result};
use crate::input::Input;
use crate::library::{Packs, Room};
use crate::roots::executable_ranges;
use crate::selection::Choice;
use crate::translate::FIRST_WINDOW;
use crate::variants::Variants;
use abi::ids::FileOff;
use abi::image::{flags, words_of_hash, ImageHeader, HEADER_SIZE, MAGIC, VERSION};
use abi::layout::{
    page_up, ADDED_FIXED, ADDED_PIE, AREA_END_FIXED, AREA_END_PIE, AREA_STEP, ARENA_END, ARENA_LEN,
};
use abi::options::{Options, Pointers};
use abi::start::Start;
use abi::tables::Tables;
use std::path::Path;

/// Room between the program and what is added, for its heap.
const GAP: u64 = 1 << 20;
const COARSE: u64 = 1 << 16;
/// Everything that is added must be reachable from the image with a 32-bit displacement.
const REACH: u64 = 0x7ff0_0000;

/// Addresses that are known before the code is translated.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The image header and the tables.
    pub tables: u64,
    pub code: u64,
}

impl Places {
    /// Leaves `room` bytes for the tables.
    pub fn new(input: &Input, room: u64) -> Places {
        let earliest = if input.pie { ADDED_PIE } else { ADDED_FIXED };
        let tables = (input.image_end() + GAP).next_multiple_of(COARSE).max(earliest);
        Places { tables, code: (tables + room).next_multiple_of(COARSE) }
    }

    /// Where the translations of libraries lie, behind the program's.
    pub fn libraries(&self, code_len: usize) -> u64 {
        page_up(self.code + code_len as u64).next_multiple_of(COARSE)
    }

    pub fn runtime(&self, code_len: usize, libraries_len: usize) -> u64 {
        (self.libraries(code_len) + libraries_len as u64).next_multiple_of(COARSE)
    }

    /// What libraries may take beside a runtime of `runtime_len`.
    pub fn room_for_libraries(&self, input: &Input, code_len: usize, runtime_len: u64) -> Room {
        let start = self.libraries(code_len) + runtime_len + 2 * COARSE;
        let last = added_end(input).min(input.image_start() + REACH);
        Room {
            translations: last.saturating_sub(start),
            in_all: (area_end(input) - ARENA_LEN - AREA_STEP).saturating_sub(start),
        }
    }

    /// Whether what is added may end there.
    pub fn fits(input: &Input, end: u64) -> bool {
        end <= added_end(input) && end - input.image_start() <= REACH
    }

    /// Refuses what does not fit.
    pub fn check(&self, input: &Input, end: u64) -> Result<()> {
        if !Places::fits(input, end) {
            return Err(unsupported!(
                "the program is too large: its translation would end at {end:#x}"
            ));
        }
        Ok(())
    }
}

fn area_end(input: &Input) -> u64 {
    if input.pie {
        AREA_END_PIE
    } else {
        AREA_END_FIXED
    }
}

/// What is added ends here at the latest: behind it there is room for the code cache.
fn added_end(input: &Input) -> u64 {
    let last = area_end(input) - ARENA_LEN - AREA_STEP;
    (ARENA_END - ARENA_LEN).min(last / AREA_STEP * AREA_STEP)
}

/// A named part of the tables segment.
#[derive(Clone, Debug)]
pub struct Part {
    pub section: &'static str,
    pub start: usize,
    pub end: usize,
}

/// The tables segment.
pub struct TableSegment {
    pub bytes: Vec<u8>,
    pub header: ImageHeader,
    /// Room for the output's program headers in front of the header, or 0.
    pub front: usize,
    /// Room for what the kernel maps ([`ImageHeader::pieces`]).
    pub pieces: std::ops::Range<usize>,
    /// In order, without gaps.
    pub parts: Vec<Part>,
    pub descriptions: usize,
}

/// Bytes of one of [`ImageHeader::pieces`].
const PIECE_SIZE: usize = 16;

/// What the tables leave room for: it is known when the file is complete.
#[derive(Clone, Copy, Debug)]
pub struct FileRoom {
    /// Bytes in front of the header, for the output's program headers, or 0.
    pub front: usize,
    /// Entries of [`ImageHeader::pieces`].
    pub pieces: usize,
}

/// Addresses of tables that lie in the tables segment.
fn mapped(offsets: Tables, places: Places) -> Tables {
    Tables {
        entries: places.tables + offsets.entries,
        entry_index: places.tables + offsets.entry_index,
        units: places.tables + offsets.units,
        unit_index: places.tables + offsets.unit_index,
        headers: places.tables + offsets.headers,
        shapes: places.tables + offsets.shapes,
        shape_index: places.tables + offsets.shape_index,
        slots: places.tables + offsets.slots,
        jump_tables: places.tables + offsets.jump_tables,
        ..offsets
    }
}

/// Builds the tables for `places`. What depends on the file (runtime, identity, and what there is
/// `room` for) is still missing. `library_folder`: where the translations of libraries are that do
/// not travel along.
#[allow(clippy::too_many_arguments, reason = "each is a part of the output")]
pub fn tables(
    input: &Input,
    translated: &Variants,
    libraries: &Packs,
    options: Options,
    start: Start,
    dynamic: bool,
    places: Places,
    room: FileRoom,
    library_folder: Option<&Path>,
    selection: &Choice,
) -> TableSegment {
    let FileRoom { front, pieces } = room;
    let mut bytes = vec![0; front + HEADER_SIZE];
    let mut place = |content: &[u8]| {
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        let start = bytes.len();
        bytes.extend_from_slice(content);
        start
    };
    let at = |offset: usize| places.tables + offset as u64;

    let table_len = input.program_headers.len() * PROGRAM_HEADER_SIZE;
    let table_start = index(input.program_headers_offset.0);
    let mut original = input.bytes[..FILE_HEADER_SIZE].to_vec();
    original.extend_from_slice(&input.bytes[table_start..table_start + table_len]);
    let original = place(&original);
    let ranges = executable_ranges(input);
    let words: Vec<u8> = ranges.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    let exec_ranges = place(&words);
    let pieces = vec![0; pieces * PIECE_SIZE];
    let pieces_at = place(&pieces);
    let library_folder = library_folder.map(|folder| {
        use std::os::unix::ffi::OsStrExt;
        place(&[folder.as_os_str().as_bytes(), &[0]].concat())
    });
    let chosen = selection.ranges.pieces();
    let words: Vec<u8> = chosen.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    let selection_at = place(&words);
    let text = selection.rules.to_text();
    let rules = place(text.as_bytes());
    let header_end = place(&[]);
    let [offsets, plain] = translated.place(places.code, FIRST_WINDOW, |table| place(table) as u64);
    let end = place(&[]);
    let descriptions = index(offsets.descriptions);

    let elf_header = input.address_of(FileOff(0));
    let interpreter = input.header_of(object::elf::PT_INTERP).map_or(0, |p| p.address);
    let stack = input.header_of(object::elf::PT_GNU_STACK);
    let mut bits = 0;
    for (bit, on) in [
        (flags::PIE, input.pie),
        (flags::DYNAMIC, dynamic),
        (flags::NEEDS_AVX512VL, options.process.pointers == Pointers::Vector),
        (flags::EXECUTABLE_STACK, stack.is_some_and(|p| p.is_executable())),
        (flags::KEEPS_PLACES, input.keeps_places()),
    ] {
        bits |= if on { bit } else { 0 };
    }
    let header = ImageHeader {
        magic: MAGIC,
        version: VERSION,
        flags: bits,
        options: options.to_word(),
        entry: input.entry,
        program_headers: input.address_of(input.program_headers_offset).unwrap_or(0),
        program_header_count: input.program_headers.len() as u64,
        interpreter,
        image_end: input.image_end(),
        image_start: input.image_start(),
        elf_header_copy: if elf_header.is_some() { at(original) } else { 0 },
        elf_header: elf_header.unwrap_or(0),
        exec_ranges: at(exec_ranges),
        exec_range_count: ranges.len() as u64,
        selection: at(selection_at),
        selection_count: chosen.len() as u64,
        rules: at(rules),
        rules_len: text.len() as u64,
        tables: Tables {
            descriptions: offsets.descriptions - front as u64,
            ..mapped(offsets, places)
        },
        plain: match translated.plain {
            Some(_) => mapped(plain, places),
            None => plain,
        },
        libraries: match libraries.count {
            0 => 0,
            _ => places.libraries(translated.code_len()),
        },
        library_count: libraries.count as u64,
        library_folder: library_folder.map_or(0, at),
        jit_window: libraries.next_window.into(),
        pieces: at(pieces_at),
        piece_count: (pieces.len() / PIECE_SIZE) as u64,
        misses: 0,
        miss_entries: 0,
        identity: [0; 2],
        runtime: 0,
        runtime_end: 0,
        start: start.to_word(),
        main: crate::main_function::address(input).unwrap_or(0),
        original: hash_of(input),
    };
    let part = |section, start, end| Part { section, start, end };
    let mut parts = vec![
        part(".deprewrite.headers", 0, front),
        part(crate::input::HEADER_SECTION, front, header_end),
        part(".deprewrite.tables", header_end, descriptions),
        part(".deprewrite.units", descriptions, end),
    ];
    parts.retain(|part| part.end != 0);
    let pieces = pieces_at..pieces_at + pieces.len();
    TableSegment { bytes, header, front, pieces, parts, descriptions }
}

/// What says which file the output was made of.
fn hash_of(input: &Input) -> [u64; 2] {
    words_of_hash(store::Hash::of(&input.bytes).as_str()).unwrap_or_default()
}
