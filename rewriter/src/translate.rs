//! The whole program through the translator, and what the runtime and the reader need to know
//! about the result.

use crate::convert::{index, low, short};
use abi::ids::{CodeOff, OrigAddr, UnitId};
use abi::layout::page_up;
use abi::options::{torture, Options, Turns};
use abi::selection::Selected;
use abi::tables::{JumpTable, Tables};
use abi::unit::{encode_static, unit_id, TAGS_PER_WINDOW};
use iced_x86::InstructionInfoFactory;
use instrument::block::{Block, Placement, Slots, Source};
use instrument::fragment::{Fragment, Thunks};
use instrument::plan::ControlRecord;
use instrument::planner::{ends_unit, starts_unit};
use instrument::recipe::packed::{pack_entries, pack_units, Packed, PackedUnits, Unit};
use instrument::translate::{Inspected, Translator};
use lifter::cut::cut_before;
use lifter::flow::End;
use lifter::image::Image;
use lifter::program::{Function, Program};
use std::collections::HashMap;

/// Translated code with everything that is said about it; see [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct Translated {
    pub code: Vec<u8>,
    /// Original and translated address (low halves) of what can be looked up.
    pub entries: Packed,
    /// The units.
    pub units: PackedUnits,
    /// [`Tables::descriptions`].
    pub descriptions: Vec<u8>,
    /// Of movable code.
    pub thunks: Thunks,
    /// [`Tables::slots`].
    pub slots: Vec<(u32, u32)>,
    /// [`Tables::jump_tables`].
    pub jump_tables: Vec<JumpTable>,
    /// [`Tables::jump_slots`].
    pub jump_slots: u64,
}

impl Translated {
    /// Bytes of the tables, and somewhat more.
    pub fn table_bytes(&self) -> u64 {
        const BESIDES: usize = 1 << 16;
        let packed = |list: &Packed| list.bytes.len() + 12 * list.index.len();
        let words = 2 * self.slots.len();
        let jump_tables = self.jump_tables.len() * JumpTable::SIZE;
        let PackedUnits { list, headers, shapes, shape_index } = &self.units;
        let units = packed(list) + size_of_val(&**headers) + shapes.len() + 4 * shape_index.len();
        let lists = packed(&self.entries) + units;
        (4 * words + jump_tables + lists + self.descriptions.len() + BESIDES) as u64
    }

    /// Hands each table to `place`, which returns the offset that it gives it, the descriptions
    /// last. Where the code lies, and in which window the units start, is not said yet.
    pub fn place(&self, mut place: impl FnMut(&[u8]) -> u64) -> Tables {
        let pairs = |pairs: &[(u32, u32)]| -> Vec<u8> {
            pairs.iter().flat_map(|&(a, b)| [a.to_le_bytes(), b.to_le_bytes()]).flatten().collect()
        };
        let jump_tables: Vec<u8> = self.jump_tables.iter().flat_map(|t| t.to_bytes()).collect();
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let PackedUnits { list: units, headers, shapes, shape_index } = &self.units;
        Tables {
            code: 0,
            code_len: self.code.len() as u64,
            entries: place(&self.entries.bytes),
            entries_len: self.entries.bytes.len() as u64,
            entry_count: self.entries.count as u64,
            entry_index: place(&words(self.entries.index.as_flattened())),
            units: place(&units.bytes),
            units_len: units.bytes.len() as u64,
            unit_count: units.count as u64,
            unit_index: place(&words(units.index.as_flattened())),
            headers: place(headers.as_flattened()),
            header_count: headers.len() as u64,
            shapes: place(shapes),
            shapes_len: shapes.len() as u64,
            shape_index: place(&words(shape_index)),
            shape_count: shape_index.len() as u64,
            slots: place(&pairs(&self.slots)),
            slot_count: self.slots.len() as u64,
            jump_tables: place(&jump_tables),
            jump_table_count: self.jump_tables.len() as u64,
            jump_slots: self.jump_slots,
            descriptions: place(&self.descriptions),
            descriptions_len: self.descriptions.len() as u64,
            first_window: 0,
        }
    }

    /// Windows that the units take.
    pub fn windows(&self) -> u32 {
        short(self.units.list.count).div_ceil(TAGS_PER_WINDOW)
    }
}

/// Window of the program's first ahead-of-time unit.
pub const FIRST_WINDOW: u32 = 1;

/// Blocks as the instrument needs them: no block is selected in part.
pub fn cut(program: Program, image: &Image, options: Options, selected: Selected) -> Program {
    let counts = options.turns() != Turns::NotCounted;
    if !options.recording.undo() && !counts && selected.is_everything() {
        return program;
    }
    let mut factory = InstructionInfoFactory::new();
    cut_before(program, image, |insn, previous| {
        selected.contains(insn.ip()) != selected.contains(previous.ip())
            || ends_unit(options, previous)
            || starts_unit(options.recording, insn, &mut factory)
    })
}

/// What the code is translated for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub options: Options,
    /// Which code is recorded.
    pub selected: Selected<'a>,
    /// Address of the code's first byte, as the image counts.
    pub code: u64,
    /// The window of the process is known to start at 0.
    pub fixed: bool,
    /// The image is a library: see [`Placement::movable`].
    pub movable: bool,
    /// Window of the first unit.
    pub first_window: u32,
    /// Addresses of words that do not change any more when the program runs: from, to.
    pub constant: [u64; 2],
    /// Where the image is mapped read-only.
    pub read_only: &'a [[u64; 2]],
}

/// Translates a whole program or library.
pub fn translate(program: &Program, image: &Image, target: Target) -> Translated {
    let Target { options, selected, code: code_base, .. } = target;
    let constant = slots(program, target);
    let placement = Placement {
        window_high: target.fixed.then_some(0),
        patchable: false,
        movable: target.movable,
        constant,
        exact_registers: false,
    };
    let mut translator = Translator::new(options, placement);
    if options.has_slots() {
        translator.tables = target.read_only.to_vec();
        translator.tables.push(target.constant);
    }
    let mut out = Fragment::new(code_base);
    // Whole pages: they are written, and the code behind them is not.
    let room = page_up(8 * constant.room as u64);
    out.code.bytes.resize(index(room), 0xcc);
    let mut result = Translated::default();
    let mut entries = Vec::new();
    // Code, original address and start of the recipe of each unit.
    let mut units: Vec<[u32; 3]> = Vec::new();
    let describes = names_units(options);
    let numbering = Numbering::new(program, image, selected, target.first_window);
    // Where each original block went; narrow ones too, for direct branches between functions.
    let mut placed: HashMap<u32, Placed> = HashMap::new();
    let mut previous = OrigAddr(0);
    let mut blocks = Vec::new();
    for function in &program.functions {
        let Some(source) = source_of(image, selected, function.start) else { continue };
        blocks.clear();
        blocks.extend(numbering.blocks(function));
        translator.translate(&blocks, source, &mut out);
        for unit in out.units.drain(..) {
            units.push([unit.entry.0, unit.start.low(), unit.recipe]);
            if describes {
                encode_static(&mut result.descriptions, previous, unit.start, &unit.body);
                previous = unit.start;
            }
            let dropped = options.process.torture & torture::DROP != 0 && unit.start.0 % 11 == 3;
            let entry = Placed { code: unit.entry, id: unit.id, control: unit.control };
            if unit.closed {
                continue;
            }
            if unit.wide && !dropped {
                let code = low(code_base) + unit.entry.0;
                entries.push((unit.start.low(), code));
            }
            placed.insert(unit.start.low(), entry);
        }
    }
    result.thunks = translator.thunks(&mut out);
    link(&mut out, &placed);
    let end = out.code.here().0;
    place_tables(&mut out, target, &mut result);
    entries.sort_unstable();
    const FITS: &str = "all that is added is below 2 GiB, and recipes are as written";
    result.entries = pack_entries(&entries).unwrap_or_else(|| unreachable!("{FITS}"));
    let ends = units.iter().skip(1).map(|next| index(next[2].into())).chain([out.recipes.len()]);
    let units = units.iter().zip(ends).map(|(&[code, original, recipe], end)| {
        let recipe = &out.recipes[index(recipe.into())..end];
        Unit { code, original, recipe }
    });
    result.units = pack_units(units, end).unwrap_or_else(|| unreachable!("{FITS}"));
    result.descriptions = pack_descriptions(&result.descriptions);
    result.code = out.code.bytes;
    result.slots = out.slots.iter().map(|slot| (slot.word.low(), slot.slow.0)).collect();
    result
}

/// As the file has them: nobody maps them, and a reader of traces wants all.
fn pack_descriptions(descriptions: &[u8]) -> Vec<u8> {
    if descriptions.is_empty() {
        return Vec::new();
    }
    const IN_MEMORY: &str = "there is memory for it, and the level is one of zstd's";
    zstd::bulk::compress(descriptions, 6).unwrap_or_else(|_| unreachable!("{IN_MEMORY}"))
}

/// Whether a trace names units: what is run again, and what nothing is recorded of, has no need of them.
fn names_units(options: Options) -> bool {
    let inputs_alone = options.recording.inputs() && !options.recording.both();
    options.recording.records() && !inputs_alone
}

/// Room for the slots of jump tables behind all code, and the displacements that lead there.
fn place_tables(out: &mut Fragment, target: Target, result: &mut Translated) {
    if out.tables.is_empty() {
        return;
    }
    // Whole pages: they are written, and the code in front of them is not.
    let start = page_up(u64::from(out.code.here().0));
    let mut count = 0u32;
    let mut words = Vec::new();
    for mut table in std::mem::take(&mut out.tables) {
        let slots = start + 8 * u64::from(count);
        let address = target.code.wrapping_add(slots);
        out.code.put_displacement(table.at, address.wrapping_sub(table.base));
        let [from, to] = target.constant;
        let read_only = if (from..to).contains(&table.table) { 0 } else { JumpTable::READ_ONLY };
        (table.jump.slot, table.jump.how) = (count, table.jump.how | read_only);
        result.jump_tables.push(table.jump);
        count += table.jump.entries;
        if target.fixed && !target.movable {
            let leads_to = if read_only == 0 { table.jump.slow } else { table.jump.first };
            let word = (target.code + u64::from(leads_to)).to_le_bytes();
            words.extend(std::iter::repeat_n(word, index(table.jump.entries.into())));
        }
    }
    result.jump_slots = start;
    out.code.bytes.resize(index(start), 0xcc);
    out.code.bytes.extend_from_slice(words.as_flattened());
    out.code.bytes.resize(index(page_up(start + 8 * u64::from(count))), 0xcc);
}

/// Room for the slots of a translation.
fn slots(program: &Program, target: Target) -> Slots {
    let [start, end] = target.constant;
    if target.fixed || !target.options.has_slots() {
        return Slots::default();
    }
    let blocks = program.functions.iter().flat_map(|function| &function.blocks);
    let jumps = blocks.filter(|block| block.end == End::IndirectJump).count();
    Slots { start, end, room: jumps.min(index(end.saturating_sub(start) / 8)) }
}

/// One function through the translator, for [`crate::dump`].
pub struct Inspection {
    pub blocks: Vec<Inspected>,
    /// Its code at address 0, and its units.
    pub fragment: Fragment,
}

/// Translates single functions of a program and keeps what is known about them.
pub fn inspect(
    program: &Program,
    functions: &[Function],
    image: &Image,
    selected: Selected,
    options: Options,
    mut each: impl FnMut(&Function, Inspection),
) {
    let mut translator = inspector(image, options);
    for (function, source, blocks) in regions(program, functions, image, selected) {
        let mut fragment = Fragment::new(function.start.0);
        let inspected = translator.inspect(&blocks, source);
        translator.translate(&blocks, source, &mut fragment);
        each(function, Inspection { blocks: inspected, fragment });
    }
}

/// A translator that works on single functions.
pub fn inspector(image: &Image, options: Options) -> Translator {
    let placement = Placement {
        window_high: image.fixed.then_some(0),
        patchable: false,
        movable: false,
        constant: Slots::default(),
        exact_registers: false,
    };
    Translator::new(options, placement)
}

/// What a translator takes for each of these functions of a program.
pub fn regions<'a>(
    program: &'a Program,
    functions: &'a [Function],
    image: &'a Image<'a>,
    selected: Selected<'a>,
) -> impl Iterator<Item = (&'a Function, Source<'a>, Vec<Block>)> {
    let numbering = Numbering::new(program, image, selected, FIRST_WINDOW);
    functions.iter().filter_map(move |function| {
        let source = source_of(image, selected, function.start)?;
        Some((function, source, numbering.blocks(function).collect()))
    })
}

/// Which number each block gets, and who branches to it.
struct Numbering {
    first_window: u32,
    /// (address, number), ascending.
    numbers: Vec<(u32, u32)>,
    /// Blocks that are reached indirectly, that a unit of another window branches to, or one that is not selected,
    /// behind which no window is current.
    wide: Addresses,
    /// Blocks that another function branches to.
    open: Addresses,
}

/// A set of image-relative addresses.
#[derive(Default)]
struct Addresses(Vec<u32>);

impl Addresses {
    fn new(mut all: Vec<u32>) -> Addresses {
        all.sort_unstable();
        all.dedup();
        Addresses(all)
    }

    fn contains(&self, address: OrigAddr) -> bool {
        self.0.binary_search(&address.low()).is_ok()
    }
}

impl Numbering {
    fn new(program: &Program, image: &Image, selected: Selected, first_window: u32) -> Numbering {
        let in_source = |f: &&Function| source_of(image, selected, f.start).is_some();
        let functions = || program.functions.iter().filter(in_source);
        let blocks = || functions().flat_map(|f| &f.blocks);
        let mut numbers: Vec<(u32, u32)> =
            blocks().zip(0..).map(|(b, n)| (b.start.low(), n)).collect();
        numbers.sort_unstable();
        let mut numbering = Numbering {
            first_window,
            numbers,
            wide: Addresses::default(),
            open: Addresses::default(),
        };
        let (mut wide, mut open) = (Vec::new(), Vec::new());
        let mut n = 0;
        for function in functions() {
            let own = n..n + short(function.blocks.len());
            for block in &function.blocks {
                let window = unit_id(first_window, n).window();
                let is_outside = !selected.contains(block.start.0);
                n += 1;
                if block.indirect {
                    wide.push(block.start.low());
                }
                for target in block.end.successors(block.behind()).into_iter().flatten() {
                    let Some(m) = numbering.find(target) else { continue };
                    let comes_back = is_outside && selected.contains(target.0);
                    if unit_id(first_window, m).window() != window || comes_back {
                        wide.push(target.low());
                    }
                    if !own.contains(&m) {
                        open.push(target.low());
                    }
                }
            }
        }
        numbering.wide = Addresses::new(wide);
        numbering.open = Addresses::new(open);
        numbering
    }

    /// The blocks of a function as the translator takes them.
    fn blocks<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = Block> + 'a {
        function.blocks.iter().map(|block| Block {
            start: block.start,
            len: block.len,
            id: self.id(block.start),
            version: 0,
            wide: self.wide.contains(block.start),
            open: self.open.contains(block.start),
            is_linked: self.is_linked(block, function),
        })
    }

    /// See [`Block::is_linked`]. Units that are entered from outside their region rely on nothing, and write tags.
    fn is_linked(&self, block: &lifter::program::Block, function: &Function) -> bool {
        let inside = |place: &OrigAddr| {
            function.blocks.binary_search_by_key(place, |block| block.start).is_ok()
        };
        let next = block.end.successors(block.behind()).into_iter().flatten();
        let mut places = next.filter(|place| !inside(place)).chain(match block.end {
            End::Call(target) => Some(target),
            _ => None,
        });
        let window = self.id(block.start).window();
        let is_there = |place: OrigAddr| {
            let same_window = || self.id(place).window() == window;
            self.find(place).is_some()
                && (self.wide.contains(place) || self.open.contains(place) && same_window())
        };
        !matches!(block.end, End::Stop) && places.all(is_there)
    }

    fn find(&self, address: OrigAddr) -> Option<u32> {
        let i = self.numbers.binary_search_by_key(&address.low(), |n| n.0).ok()?;
        Some(self.numbers[i].1)
    }

    fn id(&self, address: OrigAddr) -> UnitId {
        unit_id(self.first_window, self.find(address).unwrap_or(0))
    }
}

#[derive(Clone, Copy)]
struct Placed {
    code: CodeOff,
    id: UnitId,
    control: ControlRecord,
}

fn source_of<'a>(
    image: &Image<'a>,
    selected: Selected<'a>,
    address: OrigAddr,
) -> Option<Source<'a>> {
    let segment = image
        .segments
        .iter()
        .find(|s| s.executable && address.from_start(OrigAddr(s.address)) < s.bytes.len() as u64)?;
    Some(Source { start: OrigAddr(segment.address), bytes: segment.bytes, selected })
}

/// Points the branches between functions at their targets; what is not translated, or cannot be
/// entered directly, is reached through the look-up table.
fn link(out: &mut Fragment, placed: &HashMap<u32, Placed>) {
    let mut exits: HashMap<OrigAddr, CodeOff> = HashMap::new();
    for branch in std::mem::take(&mut out.branches) {
        let target = placed
            .get(&branch.target.low())
            .filter(|p| p.control.may_be_entered(branch.from, p.id));
        let to = match target {
            Some(p) => p.code,
            None => *exits.entry(branch.target).or_insert_with(|| {
                let at = out.code.here();
                out.code.exit_to(branch.target.0);
                at
            }),
        };
        out.code.bind(branch.at, to);
    }
}
