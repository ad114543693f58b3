//! Run-time translation: the code cache, and what is executable.
//!
//! One lock covers all of it. Published are only table entries and branch distances, each in one
//! store, after the code they lead to is in place.

use crate::base::census;
use crate::base::facts::facts;
use crate::base::lock::{Guard, Lock};
use crate::base::once::Once;
use crate::base::sys;
use crate::code::address_map::AddressMap;
use crate::code::arena::Arena;
use crate::code::found::Found;
use crate::code::packs::Packs;
use crate::code::statics;
use crate::code::table::{For, Tables};
use crate::recording::trace_file::trace;
use abi::layout::{page_down, page_up, PAGE};
use abi::options::{ControlFlow, Options};
use abi::unit::{unit_id, JitReason, JitUnit, TAGS_PER_WINDOW};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use instrument::recipe::Recipe;
use instrument::translate::{
    gate_of, may_enter, Block, Fragment, Placement, Source, Translator, GATE,
};

/// Executable memory of the program, as the program believes it to be.
#[derive(Clone, Copy, Debug)]
pub struct ExecRange {
    pub start: u64,
    pub end: u64,
    /// The program may write it, too.
    pub writable: bool,
    /// It is part of a file (a library, the program).
    pub file: bool,
    /// It may change unnoticed, by way of another mapping or because it is a stack: its bytes are
    /// compared each time.
    pub shared: bool,
}

impl ExecRange {
    /// What a stack that may be executed, whose upper end is `end`, can grow to.
    pub fn stack(end: u64) -> ExecRange {
        const MOST: u64 = 1 << 30;
        let room = page_up(sys::limit(sys::RLIMIT_STACK).min(MOST));
        let start = end.saturating_sub(room);
        ExecRange { start, end, writable: true, file: false, shared: true }
    }
}

/// A unit in the code cache.
#[derive(Clone, Copy)]
struct Unit {
    start: u64,
    len: u32,
    id: u32,
    wide: bool,
    state: Life,
    /// Offsets in the arena.
    entry: u32,
    end: u32,
    /// Offset in the arena of the stub that its gate leads to while it is closed, or 0.
    stub: u32,
    /// Offset in `originals` of the bytes that it was translated from.
    original: u32,
    /// Range in `recipes`.
    recipe: u32,
    recipe_end: u32,
}

/// Whether a unit may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Open,
    /// Its code may have changed: it is compared before it runs again.
    Closed,
    /// Its code has changed, or may have.
    Dead,
}

/// A direct branch that still leads to the runtime.
#[derive(Clone, Copy)]
struct Exit {
    at: Site,
    target: u64,
    from: u32,
}

/// Where an exit is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Site {
    /// The branch whose distance has this offset in the arena.
    Branch(u32),
    /// The gate of this unit.
    Gate(u32),
}

pub struct Jit {
    options: Options,
    placement: Placement,
    /// Made when it is first needed: decoder and encoder fill a megabyte of tables.
    translator: Option<Translator>,
    pub arena: Arena,
    pub tables: Tables,
    exec: Vec<ExecRange>,
    /// Shared mappings and stacks that are not executable: they may become so.
    shared_maps: Vec<(u64, u64)>,
    /// Units that may be entered from anywhere, by address.
    map: AddressMap,
    /// Last version of each address.
    versions: AddressMap,
    units: Vec<Unit>,
    /// The units that are not dead, by the pages of their original code.
    by_page: BTreeMap<u64, Vec<u32>>,
    /// Pages that the program may write, write-protected while units of theirs are open.
    protected: ProtectedPages,
    /// The original code of all units.
    originals: Vec<u8>,
    recipes: Vec<u8>,
    exits: Vec<Exit>,
    /// The units of code that may change unnoticed, by address: what is there now may be what one of
    /// them was made of.
    variants: BTreeMap<u64, Vec<u32>>,
    /// The dead units whose gates lead to a unit, by its number.
    forwarded: BTreeMap<u32, Vec<u32>>,
    /// How often all of that was forgotten.
    flushes: u32,
    /// Units of the JIT so far.
    count: u32,
    /// Translations of libraries.
    pub packs: Packs,
    /// Libraries are placed below this.
    pub library_top: u64,
    encoded: Vec<u8>,
}

/// Where an exit leads.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    pub target: u64,
    /// Its translation; `None`: the program may not execute there.
    pub code: Option<u64>,
}

/// Numbers of pages; how many they are can be asked without the lock.
#[derive(Default)]
struct ProtectedPages(BTreeSet<u64>);

static PROTECTED: AtomicUsize = AtomicUsize::new(0);

impl ProtectedPages {
    /// False if it is among them already.
    fn add(&mut self, page: u64) -> bool {
        let new = self.0.insert(page);
        self.publish();
        new
    }

    fn add_all(&mut self, pages: Range<u64>) {
        self.0.extend(pages);
        self.publish();
    }

    fn remove(&mut self, pages: Range<u64>) {
        for page in self.within(pages) {
            self.0.remove(&page);
        }
        self.publish();
    }

    fn within(&self, pages: Range<u64>) -> Vec<u64> {
        match pages.is_empty() {
            true => Vec::new(),
            false => self.0.range(pages).copied().collect(),
        }
    }

    fn publish(&self) {
        PROTECTED.store(self.0.len(), Relaxed);
    }
}

/// The numbers of the pages that `start..end` touches.
fn pages(start: u64, end: u64) -> Range<u64> {
    start / PAGE..end.div_ceil(PAGE)
}

/// The part of the range that code at `target` may lie in: behind the end of a mapped file nothing
/// can be read, let alone executed. `None`: not even that.
fn readable_part(target: u64, range: ExecRange) -> Option<ExecRange> {
    const FAR: u64 = LONGEST_INSN * MAX_INSNS as u64;
    let readable = |at: u64| crate::base::program::read_program_bytes(at, &mut [0]);
    readable(target).then_some(())?;
    let next = page_down(target) + PAGE;
    let near = target + FAR >= next && next < range.end;
    let end = if near && !readable(next) { next } else { range.end };
    // Nor may there be anything in front of it, if it is a stack.
    let start = if range.shared { page_down(target) } else { range.start };
    Some(ExecRange { start, end, ..range })
}

fn set_protection(start: u64, len: u64, prot: usize) -> sys::Result {
    // SAFETY: the program's own pages, which stay readable, with no more rights than it asked for.
    unsafe { sys::call(sys::nr::MPROTECT, &[start as usize, len as usize, prot]) }
}

const LONGEST_INSN: u64 = 15;
const MAX_BLOCKS: usize = 8;
const MAX_INSNS: usize = 64;
const MAX_BLOCK_INSNS: usize = 60;

/// Whether any page of the program's is write-protected.
pub fn has_protected_pages() -> bool {
    PROTECTED.load(Relaxed) != 0
}

static JIT: Once<Lock<Jit>> = Once::new();

/// Puts the translator in place.
pub fn install(jit: Jit) {
    JIT.install(Lock::new(jit));
}

/// All that is known about code.
pub fn jit() -> Guard<'static, Jit> {
    JIT.get().lock()
}

impl Jit {
    pub fn new(
        options: Options,
        window: u64,
        packs: Packs,
        arena: Arena,
        tables: Tables,
        library_top: u64,
    ) -> Jit {
        let placement = Placement {
            window_high: Some((window >> 32) as u32),
            patchable: true,
            movable: false,
            exact_registers: false,
        };
        Jit {
            options,
            placement,
            translator: None,
            arena,
            tables,
            exec: Vec::new(),
            shared_maps: Vec::new(),
            map: AddressMap::default(),
            versions: AddressMap::default(),
            units: Vec::new(),
            by_page: BTreeMap::new(),
            protected: ProtectedPages::default(),
            originals: Vec::new(),
            recipes: Vec::new(),
            exits: Vec::new(),
            variants: BTreeMap::new(),
            forwarded: BTreeMap::new(),
            flushes: 0,
            count: 0,
            packs,
            library_top,
            encoded: Vec::new(),
        }
    }

    // --- what is executable ---

    pub fn executable(&self, address: u64) -> Option<ExecRange> {
        self.exec.iter().copied().find(|r| (r.start..r.end).contains(&address))
    }

    /// `start..end` is a shared mapping now, or is not (any more).
    pub fn set_shared(&mut self, start: u64, end: u64, shared: bool) {
        self.shared_maps.retain(|m| m.0 < start || end < m.1);
        if shared {
            self.shared_maps.push((start, end));
        }
    }

    /// Whether `address` lies in a shared mapping.
    pub fn is_shared(&self, address: u64) -> bool {
        self.executable(address).is_some_and(|r| r.shared)
            || self.shared_maps.iter().any(|m| (m.0..m.1).contains(&address))
    }

    /// Whether any part of `start..end` is executable.
    pub fn touches_code(&self, start: u64, end: u64) -> bool {
        self.exec.iter().any(|r| r.start < end && start < r.end)
    }

    /// `start..end` becomes executable.
    pub fn add_executable(&mut self, range: ExecRange) {
        let same = |r: &ExecRange| (r.writable, r.shared) == (range.writable, range.shared);
        if self.executable(range.start).is_some_and(|r| range.end <= r.end && same(&r))
            && !range.writable
        {
            return;
        }
        self.remove_executable(range.start, range.end);
        self.tables.cover(range.start, range.end);
        let mut whole = range;
        if !range.file {
            // An instruction may lie on both sides of where two pieces meet.
            self.exec.retain(|r| {
                let joins = !r.file && same(r) && (r.end == whole.start || r.start == whole.end);
                if joins {
                    (whole.start, whole.end) = (whole.start.min(r.start), whole.end.max(r.end));
                }
                !joins
            });
        }
        self.exec.push(whole);
    }

    /// `start..end` is not executable any more; translations of it are dropped.
    pub fn remove_executable(&mut self, start: u64, end: u64) {
        if !self.touches_code(start, end) {
            return;
        }
        self.code_may_change(start, end);
        self.not_protected(start, end);
        let mut left = Vec::new();
        for r in core::mem::take(&mut self.exec) {
            if r.end <= start || end <= r.start {
                left.push(r);
                continue;
            }
            self.tables.uncover(r.start.max(start), r.end.min(end));
            if r.start < start {
                left.push(ExecRange { end: start, ..r });
            }
            if end < r.end {
                left.push(ExecRange { start: end, ..r });
            }
        }
        self.exec = left;
    }

    /// The bytes of code in `start..end` may change, or are gone: closes all translations that were
    /// made of them, and drops those that knew them. (Which registers are dead in one piece of a
    /// file's code may follow from the code of another.)
    pub fn code_may_change(&mut self, start: u64, end: u64) {
        let files = self.exec.iter().filter(|r| r.file && r.start < end && start < r.end);
        let (from, to) = files.fold((start, start), |(a, b), r| (a.min(r.start), b.max(r.end)));
        self.drop_units(from, to);
        self.close_units(start, end);
        for module in statics::modules_in(start, end) {
            self.retire(module);
        }
    }

    /// Code in `start..end` may have become writable without our doing: it is protected again
    /// before it is translated.
    pub fn distrust(&mut self, start: u64, end: u64) {
        self.code_may_change(start, end);
        self.not_protected(start, end);
        for r in self.exec.iter_mut().filter(|r| r.start < end && start < r.end) {
            r.writable = true;
        }
    }

    /// The program may change the code of `module`: from now on it is translated when it runs.
    fn retire(&mut self, module: &statics::Module) {
        module.retire();
        // Whatever the run-time translator has linked to the module's code, wherever it lies.
        self.drop_units(0, u64::MAX);
        for r in &self.exec {
            let (start, end) = (r.start.max(module.text.start), r.end.min(module.text.end));
            if start < end {
                // Whole pages: what else lies in them misses once more.
                self.tables.cover(page_down(start), page_up(end));
            }
        }
    }

    /// The units that are not dead and have code in `start..end`.
    fn units_in(&mut self, start: u64, end: u64) -> Vec<u32> {
        if start >= end {
            return Vec::new();
        }
        let mut found = Vec::new();
        for list in self.by_page.range_mut(start / PAGE..=(end - 1) / PAGE).map(|(_, list)| list) {
            let units = &self.units;
            list.retain(|&i| units[i as usize].state != Life::Dead);
            let inside = |u: &Unit| u.start < end && start < u.start + u64::from(u.len);
            found.extend(list.iter().copied().filter(|&i| inside(&units[i as usize])));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Drops the translations of code in `start..end`.
    pub fn drop_units(&mut self, start: u64, end: u64) {
        if let Some(translator) = &mut self.translator {
            translator.live_map.forget();
        }
        for i in self.units_in(start, end) {
            self.drop_unit(i as usize);
        }
    }

    fn drop_unit(&mut self, i: usize) {
        let unit = self.units[i];
        self.close_unit(i);
        self.units[i].state = Life::Dead;
        for earlier in self.forwarded.remove(&(i as u32)).unwrap_or_default() {
            // Not by way of this one, and the next one, and the one behind that.
            self.lead(earlier as usize, self.arena.live(self.units[earlier as usize].stub));
        }
        if self.map.get(unit.start) == Some(i as u32) {
            self.map.remove(unit.start);
            if self.executable(unit.start).is_some() {
                self.tables.clear(unit.start);
            }
        }
    }

    /// Closes the gates of the translations of code in `start..end`.
    fn close_units(&mut self, start: u64, end: u64) {
        for i in self.units_in(start, end).into_iter().map(|i| i as usize) {
            self.close_unit(i);
        }
    }

    /// Whoever enters the unit comes to the runtime instead. Threads may be inside of it.
    fn close_unit(&mut self, i: usize) {
        let unit = self.units[i];
        if unit.state != Life::Open {
            return;
        }
        self.make_stub(i);
        self.lead(i, self.arena.live(self.units[i].stub));
        self.units[i].state = Life::Closed;
    }

    /// The stub that the unit's gate leads to while it is closed.
    fn make_stub(&mut self, i: usize) {
        let unit = self.units[i];
        if unit.stub == 0 {
            let exit = self.exits.len() as u32;
            let (target, from) = (unit.start, unit.id);
            self.exits.push(Exit { at: Site::Gate(i as u32), target, from });
            self.units[i].stub = self.exit_stub(exit);
        }
    }

    /// The unit's gate becomes a jump to `code`.
    fn lead(&mut self, i: usize, code: u64) {
        let gate = gate_of(self.units[i].entry.into()) as u32;
        let distance = code.wrapping_sub(self.arena.live(gate) + GATE.len() as u64) as u32;
        let mut jump = [0xe9, 0, 0, 0, 0];
        jump[1..].copy_from_slice(&distance.to_le_bytes());
        self.arena.replace(gate, jump);
    }

    /// Whoever comes to dead unit `i` goes on to the one that has taken its place at `target`, if
    /// `code` is of one. (Ahead-of-time code may be taken out of use without our looking here.)
    fn forward(&mut self, i: u32, target: u64, code: u64) {
        let now = self.map.get(target).filter(|&now| now != i);
        if let Some(now) = now.filter(|&n| self.arena.live(self.units[n as usize].entry) == code) {
            self.lead(i as usize, code);
            self.forwarded.entry(now).or_default().push(i);
        }
    }

    /// Opens the unit, if its code is what it was; else drops it. False if it is dead now.
    fn open_unit(&mut self, i: usize) -> bool {
        let unit = self.units[i];
        if unit.state != Life::Closed {
            return unit.state == Life::Open;
        }
        let range = self.executable(unit.start).and_then(|r| readable_part(unit.start, r));
        if let Some(range) = range {
            let end = unit.start + u64::from(unit.len);
            self.protect(unit.start, end.min(range.end), range);
            if self.is_as_translated(i, range) {
                self.open_gate(i);
                return true;
            }
        }
        self.drop_unit(i);
        false
    }

    fn open_gate(&mut self, i: usize) {
        let unit = self.units[i];
        if unit.state == Life::Closed {
            self.arena.replace(gate_of(unit.entry.into()) as u32, GATE);
            self.units[i].state = Life::Open;
        }
    }

    fn exit_stub(&mut self, exit: u32) -> u32 {
        use abi::thread::{EXIT_ID, STUB_EXIT};
        let at = self.arena.used();
        let mut code = instrument::emit::Code { bytes: Vec::new(), base: self.arena.live(at) };
        code.store_imm(EXIT_ID, exit);
        code.jump_gs(STUB_EXIT);
        self.arena.append(&code.bytes);
        at
    }

    // --- look-up ---

    /// The translation to resume at for original address `target`, reached indirectly.
    /// The entry of the table for `what`, if a look-up missed, is set.
    /// `None`: the program may not execute there.
    pub fn resolve(&mut self, target: u64, what: Option<For>) -> Option<u64> {
        let range = self.executable(target)?;
        if range.shared {
            return self.resolve_shared(target, readable_part(target, range)?);
        }
        if let Some(code) = statics::entry(target) {
            if let Some(what) = what {
                self.fill_page(target, range, what);
            }
            return Some(code);
        }
        let code = match self.open_at(target) {
            Some(unit) if unit.wide => self.arena.live(unit.entry),
            _ => self.translate(target, true, readable_part(target, range)?),
        };
        if let Some(what) = what {
            self.tables.set(what, target, code);
        }
        Some(code)
    }

    /// Sets all entries for ahead-of-time code that share a page of the table with `target`'s: the
    /// page is written anyway, and what follows is likely to be looked up next.
    fn fill_page(&self, target: u64, range: ExecRange, what: For) {
        let code = self.tables.code_of_page(what);
        let start = target / code * code;
        let page = start.max(range.start)..(start + code).min(range.end);
        for (original, code) in statics::entries_in(target, page) {
            self.tables.set(what, original, code);
        }
    }

    /// As [`Jit::resolve`], for code that may change unnoticed: nothing leads to a translation but
    /// this, which compares.
    fn resolve_shared(&mut self, target: u64, range: ExecRange) -> Option<u64> {
        const MOST: usize = 64;
        let known = self.variants.remove(&target).unwrap_or_default();
        let mut known: Vec<u32> =
            known.into_iter().filter(|&i| self.units[i as usize].state != Life::Dead).collect();
        let same = known.iter().position(|&i| self.is_as_translated(i as usize, range));
        let flushes = self.flushes;
        let code = match same.map(|at| known[at] as usize) {
            Some(unit) => {
                self.open_gate(unit);
                self.arena.live(self.units[unit].entry)
            }
            None => self.translate(target, true, range),
        };
        if same.is_none() {
            if flushes != self.flushes || known.len() == MOST {
                known.clear();
            }
            known.extend(self.map.get(target));
        }
        self.variants.insert(target, known);
        Some(code)
    }

    /// Whether the bytes of unit `i`, in `range`, are those that it was translated from.
    fn is_as_translated(&self, i: usize, range: ExecRange) -> bool {
        let unit = self.units[i];
        if unit.start + u64::from(unit.len) > range.end {
            return false;
        }
        // SAFETY: mapped, executable and so readable memory of the program.
        let now =
            unsafe { core::slice::from_raw_parts(unit.start as *const u8, unit.len as usize) };
        let then = unit.original as usize..(unit.original + unit.len) as usize;
        self.originals[then] == *now
    }

    /// The unit that starts at `target`, open.
    fn open_at(&mut self, target: u64) -> Option<Unit> {
        let i = self.map.get(target)? as usize;
        self.open_unit(i).then(|| self.units[i])
    }

    /// Links exit `id`.
    pub fn link(&mut self, id: u32) -> Linked {
        let exit = self.exits[id as usize];
        let linked = |code| Linked { target: exit.target, code };
        let Some(range) = self.executable(exit.target) else { return linked(None) };
        if range.shared {
            return linked(self.resolve(exit.target, None));
        }
        // A unit that is entered from anywhere is replaced by one of that kind.
        let mut from_anywhere = false;
        if let Site::Gate(i) = exit.at {
            let unit = self.units[i as usize];
            if self.open_unit(i as usize) {
                return linked(Some(self.arena.live(unit.entry)));
            }
            from_anywhere = unit.wide;
        }
        let flushes = self.flushes;
        let wide = self.open_at(exit.target).is_some_and(|unit| unit.wide);
        let known = match from_anywhere && !wide {
            true => None,
            false => self.enterable(exit.target, exit.from),
        };
        let code = match known {
            Some(code) => code,
            None => {
                // The first window's units may be narrow; later ones are all wide.
                let wide = from_anywhere || self.count >= TAGS_PER_WINDOW - 256;
                let Some(range) = readable_part(exit.target, range) else { return linked(None) };
                self.translate(exit.target, wide, range)
            }
        };
        match exit.at {
            _ if flushes != self.flushes => {}
            Site::Branch(at) => self.arena.patch(at, code),
            Site::Gate(i) => self.forward(i, exit.target, code),
        }
        linked(Some(code))
    }

    /// A translation of `target` that unit `from` may branch to directly.
    fn enterable(&self, target: u64, from: u32) -> Option<u64> {
        if self.executable(target).is_none_or(|range| range.shared) {
            return None;
        }
        if let Some(code) = statics::entry(target) {
            return Some(code);
        }
        let unit = self.units[self.map.get(target)? as usize];
        may_enter(self.options, from, unit.id, unit.wide).then(|| self.arena.live(unit.entry))
    }

    /// The unit whose code `pc` lies in.
    pub fn find(&self, pc: u64) -> Option<Found<'_>> {
        let offset = self.arena.offset(pc)?;
        let i = self.units.partition_point(|u| u.entry <= offset).checked_sub(1)?;
        let unit = self.units[i];
        (offset < unit.end).then_some(())?;
        Some(Found {
            start: unit.start,
            window: unit.id >> 16,
            entry: self.arena.live(unit.entry),
            end: self.arena.live(unit.end),
            recipe: Recipe::new(self.recipes.get(unit.recipe as usize..unit.recipe_end as usize)?)?,
        })
    }

    // --- translation ---

    fn translate(&mut self, target: u64, wide: bool, range: ExecRange) -> u64 {
        self.make_room();
        // Of what is protected, the page with the first instruction and what it may reach into.
        let end = match range.writable && !range.shared {
            true => (page_down(target + LONGEST_INSN - 1) + PAGE).min(range.end),
            false => range.end,
        };
        self.protect(target, end, range);
        // SAFETY: the program has this memory mapped, executable and so readable; its bytes stay
        // as they are (it is not writable, or write-protected by `protect`).
        let bytes = unsafe {
            let len = (end - range.start) as usize;
            core::slice::from_raw_parts(range.start as *const u8, len)
        };
        let source = Source { start: range.start, bytes };
        let mut blocks = self.chain(target, source, wide);
        if range.shared {
            blocks.truncate(1);
        }
        let base = self.arena.live(self.arena.used());
        let mut out = Fragment::new(base);
        let translator = self.translator();
        // Code that is generated or written may be closed or dropped at any instruction.
        translator.placement.exact_registers = !range.file || range.writable || range.shared;
        translator.translate(&blocks, source, &mut out);
        self.describe(&out, source, range);
        let first = self.units.len();
        let offset = self.arena.used();
        self.units.reserve(out.units.len());
        for unit in &out.units {
            let number = self.units.len() as u32;
            if !unit.closed {
                self.map.set(unit.start, number);
            }
            let len = u32::from(unit.body.code_len);
            for page in unit.start / PAGE..=(unit.start + u64::from(len.max(1)) - 1) / PAGE {
                self.by_page.entry(page).or_default().push(number);
            }
            let original = self.originals.len() as u32;
            self.originals.extend_from_slice(source.slice(unit.start, len as usize));
            self.units.push(Unit {
                start: unit.start,
                len,
                id: unit.id,
                wide: unit.wide,
                state: Life::Open,
                stub: 0,
                original,
                entry: offset + unit.entry,
                end: offset + unit.end,
                recipe: self.recipes.len() as u32 + unit.recipe,
                recipe_end: self.recipes.len() as u32 + unit.recipe_end,
            });
        }
        self.recipes.extend_from_slice(&out.recipes);
        self.link_new(&mut out);
        self.arena.append(&out.code.bytes);
        if !range.file {
            // Where there may be no room for them any more, units must still close.
            (first..self.units.len()).for_each(|i| self.make_stub(i));
        }
        // What is entered indirectly behind the first unit is where calls return to.
        for i in first + 1..self.units.len() {
            let unit = self.units[i];
            if unit.wide && !range.shared {
                self.tables.set(For::Return, unit.start, self.arena.live(unit.entry));
            }
        }
        self.arena.live(self.units[first].entry)
    }

    fn translator(&mut self) -> &mut Translator {
        let (options, placement) = (self.options, self.placement);
        self.translator.get_or_insert_with(|| Translator::new(options, placement))
    }

    /// Points the branches of a new fragment at what exists, or at exits behind it.
    fn link_new(&mut self, out: &mut Fragment) {
        use abi::thread::{EXIT_ID, STUB_EXIT};
        let offset = self.arena.used();
        for branch in core::mem::take(&mut out.branches) {
            let known = self.enterable(branch.target, branch.from);
            if known.is_some_and(|code| out.code.patch_rel32(branch.at, code)) {
                continue;
            }
            let id = self.exits.len() as u32;
            self.exits.push(Exit {
                at: Site::Branch(offset + branch.at),
                target: branch.target,
                from: branch.from,
            });
            let stub = out.code.here();
            out.code.bind(branch.at, stub);
            out.code.store_imm(EXIT_ID, id);
            out.code.jump_gs(STUB_EXIT);
        }
    }

    /// Publishes the units in the trace, before they run.
    fn describe(&mut self, out: &Fragment, source: Source, range: ExecRange) {
        if !self.options.records() {
            return;
        }
        let Some(first) = out.units.first() else { return };
        let reason = self.reason(first.start, range);
        self.encoded.clear();
        for unit in &out.units {
            let code = source.slice(unit.start, usize::from(unit.body.code_len)).to_vec();
            JitUnit {
                id: unit.id,
                address: unit.start,
                version: unit.version,
                reason,
                body: unit.body.clone(),
                code,
            }
            .encode(&mut self.encoded);
        }
        trace().add_units(&self.encoded);
    }

    fn reason(&self, target: u64, range: ExecRange) -> JitReason {
        let (header, window) = (&facts().header, facts().window);
        let image = window + header.image_start..window + header.image_end;
        if !range.file {
            JitReason::Anonymous
        } else if statics::module_of(target).is_some() {
            JitReason::Missed
        } else if !image.contains(&target) {
            JitReason::Library
        } else if header.flags & abi::image::flags::DYNAMIC != 0 {
            JitReason::Dynamic
        } else if statics::has_program() {
            JitReason::Modified
        } else {
            JitReason::Processor
        }
    }

    /// The blocks that are translated together with the one at `start`: what lies behind it,
    /// as long as control can get there without leaving.
    fn chain(&mut self, start: u64, source: Source, wide: bool) -> Vec<Block> {
        let mut ends: Vec<(u64, bool)> = Vec::new(); // (end of instruction, ends a block)
        let mut leaders: Vec<u64> = Vec::new();
        let mut indirect: Vec<u64> = Vec::new();
        let bytes = source.slice(start, usize::MAX);
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        let mut reachable = true;
        while ends.len() < MAX_INSNS && leaders.len() < MAX_BLOCKS && decoder.can_decode() {
            let at = decoder.ip();
            if !reachable && !leaders.contains(&at) {
                break;
            }
            if at != start && self.map.get(at).is_some() {
                break;
            }
            reachable = true;
            let insn = decoder.decode();
            if self.translator().starts_unit(&insn) && at != start {
                leaders.push(at);
            }
            if insn.is_invalid() {
                if ends.is_empty() {
                    ends.push((at + insn.len().max(1) as u64, true));
                }
                break;
            }
            let next = insn.next_ip();
            let transfer = instrument::transfer::is_transfer(&insn);
            ends.push((next, transfer));
            match insn.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    leaders.push(insn.near_branch_target());
                    reachable = insn.flow_control() == FlowControl::ConditionalBranch;
                }
                FlowControl::Call | FlowControl::IndirectCall if transfer => {
                    leaders.push(next);
                    indirect.push(next);
                }
                FlowControl::Next => {}
                FlowControl::Interrupt => {}
                _ => reachable = false,
            }
        }
        self.cut(start, wide, &ends, &leaders, &indirect)
    }

    fn cut(
        &mut self,
        start: u64,
        wide: bool,
        ends: &[(u64, bool)],
        leaders: &[u64],
        indirect: &[u64],
    ) -> Vec<Block> {
        let mut blocks = Vec::new();
        let (mut from, mut insns) = (start, 0);
        for (i, &(end, transfer)) in ends.iter().enumerate() {
            insns += 1;
            let last = i + 1 == ends.len();
            if transfer || last || insns == MAX_BLOCK_INSNS || leaders.contains(&end) {
                let n = self.count;
                self.count += 1;
                let all_wide = n >= TAGS_PER_WINDOW - 256;
                blocks.push(Block {
                    start: from,
                    len: (end - from) as u32,
                    id: unit_id(facts().header.jit_window as u32, n),
                    version: self.next_version(from),
                    wide: all_wide || (from == start && wide) || indirect.contains(&from),
                    // What `bits` does not announce must be the only one at its address: it may
                    // be entered from everywhere, so that nobody translates it again.
                    open: from == start || self.options.control_flow == ControlFlow::Bits,
                });
                (from, insns) = (end, 0);
            }
        }
        blocks
    }

    /// Each translation of an address has a version of its own, from 1.
    fn next_version(&mut self, address: u64) -> u16 {
        let version = self.versions.get(address).map_or(1, |v| v as u16 + 1).max(1);
        self.versions.set(address, u32::from(version));
        version
    }

    /// Write-protects the pages with `start..end`, if the program may write them: they stay so while
    /// units of theirs are open.
    fn protect(&mut self, start: u64, end: u64, range: ExecRange) {
        if !range.writable || range.shared {
            return;
        }
        for page in start / PAGE..=(end - 1) / PAGE {
            if !self.protected.add(page) {
                continue;
            }
            if set_protection(page * PAGE, PAGE, sys::PROT_READ).is_err() {
                // There can be no more mappings: all of it at once.
                let (start, end) = (range.start, range.end);
                if set_protection(start, end - start, sys::PROT_READ).is_err() {
                    crate::die!("code at {start:#x} cannot be protected against changes");
                }
                self.protected.add_all(pages(start, end));
            }
        }
    }

    /// The kernel has given the pages in `start..end` other rights, at the program's request.
    fn not_protected(&mut self, start: u64, end: u64) {
        self.protected.remove(pages(start, end));
    }

    /// The program writes to executable memory at `address`: true if it may, and can now.
    pub fn unprotect(&mut self, address: u64) -> bool {
        let Some(range) = self.executable(address).filter(|r| r.writable) else { return false };
        let start = page_down(address);
        self.not_protected(start, start + PAGE);
        self.close_units(start, start + PAGE);
        let both = sys::PROT_READ | sys::PROT_WRITE;
        if set_protection(start, PAGE, both).is_ok() {
            return true;
        }
        // There can be no more mappings: all of it at once.
        self.close_units(range.start, range.end);
        self.not_protected(range.start, range.end);
        set_protection(range.start, range.end - range.start, both).is_ok()
    }

    /// As [`Jit::unprotect`], for all of `start..end` that is protected.
    pub fn unprotect_range(&mut self, start: u64, end: u64) {
        for page in self.protected.within(pages(start, end)) {
            self.unprotect(page * PAGE);
        }
    }

    /// The code cache after a fork: a copy of its own.
    pub fn forked(&mut self) {
        if !self.arena.copy_after_fork() {
            // The parent changed it meanwhile.
            self.flush();
        }
    }

    /// Starts over if there is hardly any room left, and no other thread that may be in the midst
    /// of something.
    fn make_room(&mut self) {
        const ENOUGH: u64 = 1 << 20;
        if self.arena.room() < ENOUGH && census::live() == 1 {
            self.flush();
        }
    }

    /// Forgets all code: everything misses.
    fn flush(&mut self) {
        self.flushes += 1;
        self.map = Default::default();
        self.units.clear();
        self.by_page.clear();
        self.forwarded.clear();
        self.variants.clear();
        self.originals.clear();
        self.recipes.clear();
        self.exits.clear();
        self.arena.restart();
        for range in &self.exec {
            self.tables.cover(range.start, range.end);
        }
    }
}
