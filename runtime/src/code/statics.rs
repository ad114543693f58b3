//! Ahead-of-time code: of the program, and of libraries that are mapped and have a translation.
//!
//! Each is a *module*. The list only grows; a module's code is looked up by signal handlers, which
//! take no lock. Whoever adds modules or takes them out of use holds the lock of [`crate::code::jit`].

use crate::base::facts::facts;
use crate::base::sys::{self, nr};
use crate::code::found::Found;
use abi::ids::{CodeAddr, LiveAddr};
use abi::image::ImageHeader;
use abi::layout::page_up;
use abi::library::PackHeader;
use abi::tables::{JumpTable, Tables};
use alloc::boxed::Box;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use instrument::recipe::packed::{Entries, Units, GROUP};
use instrument::recipe::Recipe;

/// A translated image that is mapped.
pub struct Module {
    /// What addresses in the tables count from.
    base: u64,
    /// Original code: from the first to behind the last byte.
    pub text: Range<u64>,
    recorded: Translation,
    /// Code that records nothing.
    plain: Option<Translation>,
    /// Look-ups may lead to `plain`: it knows where it lies, and has its slots.
    plain_is_ready: AtomicBool,
    /// New look-ups may lead there.
    in_use: AtomicBool,
    /// A look-up has led there.
    pub entered: AtomicBool,
    /// What lies outside of this has no slot.
    constant: Range<u64>,
    /// The one that was added next.
    next: AtomicPtr<Module>,
}

/// One translation of a module.
struct Translation {
    /// It records nothing, beside one that does.
    is_plain: bool,
    /// Translated code.
    code: Range<u64>,
    entries: Entries<'static>,
    recent: Recent,
    units: Units<'static>,
    slots: &'static [[u32; 2]],
    jump_tables: &'static [JumpTable],
    /// Where their slots are.
    jump_slots: u64,
    first_window: u32,
}

/// Entries that were found last: a thread comes back from each system call by one, and a look-up in what is packed takes
/// longer than a short call. They do not change, so nothing of this is ever wrong.
struct Recent([AtomicU64; Recent::COUNT]);

impl Recent {
    const COUNT: usize = 64;

    const fn new() -> Recent {
        Recent([const { AtomicU64::new(0) }; Recent::COUNT])
    }

    /// The code of `original`, both relative to the module, which `find` finds otherwise.
    fn get(&self, original: u32, find: impl FnOnce() -> Option<u32>) -> Option<u32> {
        // Code behind calls lies anywhere: its addresses' low bits are as good as others.
        let place = self.0.get(original as usize % Recent::COUNT)?;
        let known = place.load(Relaxed);
        // (No code lies at 0.)
        if known as u32 != 0 && (known >> 32) as u32 == original {
            return Some(known as u32);
        }
        let code = find()?;
        place.store(u64::from(original) << 32 | u64::from(code), Relaxed);
        Some(code)
    }
}

/// Translations of the same modules.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Variants {
    /// All that are ready.
    Both,
    /// Those that record nothing, beside others.
    Plain,
}

/// The first one.
static FIRST: AtomicPtr<Module> = AtomicPtr::new(null_mut());

fn modules() -> impl Iterator<Item = &'static Module> {
    // SAFETY: a module is never given back, and complete before a pointer leads to it; only its
    // atomics change afterwards.
    let at = |place: &AtomicPtr<Module>| unsafe { place.load(Acquire).as_ref() };
    core::iter::successors(at(&FIRST), move |module| at(&module.next))
}

/// `count` items of `T` at `at`.
///
/// # Safety
/// They are mapped, of that type, and stay there.
unsafe fn table<T>(at: u64, count: u64) -> &'static [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as promised.
    unsafe { core::slice::from_raw_parts(at as *const T, count as usize) }
}

/// The program's executable ranges, relative to the window: start, end, 1 if writable, too.
///
/// # Safety
/// The rewriter made the header, and its tables are mapped at the window.
pub unsafe fn executable_ranges(header: &ImageHeader, window: u64) -> &'static [[u64; 3]] {
    // SAFETY: as promised.
    unsafe { table(window + header.exec_ranges, header.exec_range_count) }
}

impl Module {
    /// The program's own translation.
    ///
    /// # Safety
    /// The rewriter made the header, and its tables are mapped at the window.
    pub unsafe fn program(header: &ImageHeader, window: u64) -> Module {
        // SAFETY: as promised.
        let ranges = unsafe { executable_ranges(header, window) };
        let start = ranges.iter().map(|r| r[0]).min().unwrap_or(0);
        let text = (start, ranges.iter().map(|r| r[1]).max().unwrap_or(start));
        let text = window + text.0..window + text.1;
        let code = window + header.tables.code;
        let plain = window + header.plain.code;
        // SAFETY: as promised.
        let [recorded, plain] = unsafe {
            [(&header.tables, code), (&header.plain, plain)]
                .map(|(tables, code)| Translation::new(tables, window, code))
        };
        Module::new(window, text, recorded, plain)
    }

    /// The translation of the library that is mapped at `base`.
    ///
    /// # Safety
    /// The pack with this header is mapped at `pack`, and its code where it belongs.
    pub unsafe fn library(header: &PackHeader, pack: u64, base: u64) -> Module {
        let text = base + header.segment;
        let code = base + header.code_distance;
        let plain = code + header.plain.code.wrapping_sub(header.tables.code);
        // SAFETY: as promised; the header is consistent.
        let [recorded, plain] = unsafe {
            [(&header.tables, code), (&header.plain, plain)]
                .map(|(tables, code)| Translation::new(tables, pack, code))
        };
        Module::new(base, text..text + header.segment_len, recorded, plain)
    }

    fn new(base: u64, text: Range<u64>, recorded: Translation, plain: Translation) -> Module {
        let words = [&recorded, &plain].map(|translation| translation.words(base));
        let [start, end] = words.into_iter().fold([u64::MAX, 0], |[start, end], words| {
            [start.min(words.start), end.max(words.end)]
        });
        let plain = Translation { is_plain: true, ..plain };
        Module {
            base,
            text,
            constant: start..end,
            recorded,
            plain: Some(plain).filter(|plain| !plain.code.is_empty()),
            plain_is_ready: AtomicBool::default(),
            in_use: AtomicBool::new(true),
            entered: AtomicBool::new(false),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// The translation that look-ups may lead to, of code that records nothing, or of the other.
    fn translation(&self, plain: bool) -> Option<&Translation> {
        match plain {
            false => Some(&self.recorded),
            true => self.plain.as_ref().filter(|_| self.plain_is_ready.load(Acquire)),
        }
    }

    /// Those whose slots have been made.
    fn translations(&self, of: Variants) -> impl Iterator<Item = &Translation> {
        let recorded = (of == Variants::Both).then_some(&self.recorded);
        recorded.into_iter().chain(self.translation(true))
    }

    /// All code, that runs or not.
    fn code(&self) -> Range<u64> {
        let end = self.plain.as_ref().map_or(self.recorded.code.end, |plain| plain.code.end);
        self.recorded.code.start..end
    }

    /// The program may have changed the original code, or it is gone.
    pub fn retire(&self) {
        self.in_use.store(false, Release);
    }

    fn entry(&self, target: u64, plain: bool) -> Option<u64> {
        let relative = target.wrapping_sub(self.base) as u32;
        let translation = self.translation(plain)?;
        let code = translation.recent.get(relative, || translation.entries.get(relative))?;
        self.is_entered();
        Some(self.base + u64::from(code))
    }

    /// A look-up leads there.
    fn is_entered(&self) {
        // (Its page may be shared with a parent.)
        if !self.entered.load(Relaxed) {
            self.entered.store(true, Relaxed);
        }
    }

    fn find<'a>(&self, pc: u64, room: &'a mut [u8]) -> Option<Found<'a>> {
        let all = [Some(&self.recorded), self.plain.as_ref()];
        all.into_iter().flatten().find(|t| t.code.contains(&pc))?.find(pc, self.base, room)
    }
}

impl Translation {
    /// # Safety
    /// The tables are mapped at `at`, and the code at `code`; or there is none.
    unsafe fn new(tables: &Tables, at: u64, code: u64) -> Translation {
        let groups = |count: u64| count.div_ceil(GROUP as u64);
        // SAFETY: as promised.
        unsafe {
            Translation {
                is_plain: false,
                code: code..code + tables.code_len,
                entries: Entries {
                    index: table(at + tables.entry_index, groups(tables.entry_count)),
                    bytes: table(at + tables.entries, tables.entries_len),
                    count: tables.entry_count as usize,
                },
                recent: Recent::new(),
                units: Units {
                    index: table(at + tables.unit_index, groups(tables.unit_count)),
                    bytes: table(at + tables.units, tables.units_len),
                    count: tables.unit_count as usize,
                    headers: table(at + tables.headers, tables.header_count),
                    shapes: table(at + tables.shapes, tables.shapes_len),
                    shape_index: table(at + tables.shape_index, tables.shape_count),
                },
                slots: table(at + tables.slots, tables.slot_count),
                jump_tables: table(at + tables.jump_tables, tables.jump_table_count),
                jump_slots: code + tables.jump_slots,
                first_window: tables.first_window as u32,
            }
        }
    }

    /// From the first to behind the last word of the program that has a slot.
    fn words(&self, base: u64) -> Range<u64> {
        let slots = self.slots.iter().map(|&[word, _]| [u64::from(word), u64::from(word) + 8]);
        let tables = self.jump_tables.iter().map(|table| {
            let start = u64::from(table.table);
            [start, start + u64::from(table.entries) * table.entry_size()]
        });
        let all = slots.chain(tables);
        let all = all.fold([u64::MAX, 0], |[a, b], [start, end]| [a.min(start), b.max(end)]);
        base.saturating_add(all[0])..base.saturating_add(all[1])
    }

    /// `base`: what addresses count from.
    fn slots_of(&self, base: u64) -> impl Iterator<Item = Slot> + '_ {
        let code = self.code.start;
        self.slots.iter().zip((code..).step_by(8)).map(move |(&[word, slow], at)| Slot {
            word: base + u64::from(word),
            at,
            slow: code + u64::from(slow),
            is_plain: self.is_plain,
        })
    }

    /// The same.
    fn switches_of(&self, base: u64) -> impl Iterator<Item = Switch> + '_ {
        self.jump_tables.iter().map(move |jump| self.switch(jump, base))
    }

    fn switch(&self, jump: &JumpTable, base: u64) -> Switch {
        Switch {
            table: base + u64::from(jump.table),
            slots: self.jump_slots + 8 * u64::from(jump.slot),
            slow: self.code.start + u64::from(jump.slow),
            first: self.code.start + u64::from(jump.first),
            is_plain: self.is_plain,
            jump: *jump,
        }
    }

    /// Makes its slots writable; all of them lead to what looks up. The error is the kernel's. `is_mapped`: the
    /// program's memory is as the kernel has mapped it, so what asks the runtime may stay where the file says that a
    /// table cannot change.
    ///
    /// # Safety
    /// Its code is in place, and nobody runs it yet.
    unsafe fn make_slots(&self, is_mapped: bool) -> Result<(), i32> {
        let of_tables = self.jump_tables.last().map_or(0, |last| last.slot + last.entries);
        // SAFETY: the first pages of the code have slots only, and so have whole pages behind all of it.
        unsafe {
            make_writable(self.code.start, self.slots.len() as u64)?;
            make_writable(self.jump_slots, of_tables.into())?;
        }
        // What is right is not written: there are many, and most pages stay the file's.
        let lead = |slot: Slot, or: u64| {
            // SAFETY: made writable above.
            let word = unsafe { &mut *(slot.at as *mut u64) };
            if *word != slot.slow && *word != or {
                *word = slot.slow;
            }
        };
        self.slots_of(0).for_each(|slot| lead(slot, slot.slow));
        for switch in self.switches_of(0) {
            let asks = is_mapped && switch.jump.is(JumpTable::READ_ONLY);
            let or = if asks { switch.first } else { switch.slow };
            switch.slots().for_each(|slot| lead(slot, or));
        }
        Ok(())
    }

    /// `base`: what addresses count from.
    fn find<'a>(&self, pc: u64, base: u64, room: &'a mut [u8]) -> Option<Found<'a>> {
        let offset = (pc - self.code.start) as u32;
        let Ok(found) = self.units.find(offset, room) else {
            crate::die!("damaged output file: what is said of the code at {pc:#x} is not valid");
        };
        let unit = found?;
        let recipe = Recipe::new(room.get(..unit.recipe)?)?;
        let id = abi::unit::unit_id(self.first_window, unit.number);
        let [start, end] = unit.code.map(|offset| CodeAddr(self.code.start + u64::from(offset)));
        Some(Found {
            start: LiveAddr(base + u64::from(unit.original)),
            window: id.window(),
            silent: recipe.header().silent.then_some(id.tag()),
            entry: start,
            end,
            recipe,
        })
    }
}

/// A table whose entries have slots in translated code, for one jump ([`Tables::jump_tables`]).
#[derive(Clone, Copy)]
pub struct Switch {
    /// Where the table is.
    pub table: u64,
    /// Where the first slot is.
    slots: u64,
    /// What a slot leads to as long as nothing is known.
    pub slow: u64,
    /// What it leads to when something can be known.
    pub first: u64,
    /// The jump's code records nothing, beside code that does.
    pub is_plain: bool,
    /// All else.
    pub jump: JumpTable,
}

impl Switch {
    /// Behind the last entry.
    pub fn end(&self) -> u64 {
        self.table + u64::from(self.jump.entries) * self.jump.entry_size()
    }

    /// Its slots.
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        let word = move |i: u64| self.table + i * self.jump.entry_size();
        let Switch { slots, slow, is_plain, .. } = self;
        let slot = move |i| Slot { word: word(i), at: slots + 8 * i, slow, is_plain };
        (0..u64::from(self.jump.entries)).map(slot)
    }
}

/// The tables that lie in part in `start..end`, of jumps in this code.
pub fn switches_in(start: u64, end: u64, of: Variants) -> impl Iterator<Item = Switch> {
    let switches = with_words(start, end).flat_map(move |module| {
        module.translations(of).flat_map(|translation| translation.switches_of(module.base))
    });
    switches.filter(move |switch| switch.table < end && start < switch.end())
}

/// The table of the jump whose look-up starts at `slow`.
pub fn switch_at(slow: u64) -> Option<Switch> {
    let of = |module: &'static Module| {
        let translation = module.translations(Variants::Both).find(|t| t.code.contains(&slow))?;
        let offset = (slow - translation.code.start) as u32;
        let jumps = translation.jump_tables;
        let i = jumps.binary_search_by_key(&offset, |jump| jump.slow).ok()?;
        Some(translation.switch(jumps.get(i)?, module.base))
    };
    modules().find_map(of)
}

/// Whether words in `start..end` may have slots.
pub fn has_words(start: u64, end: u64) -> bool {
    with_words(start, end).next().is_some()
}

/// The parts of `start..end` that may have words with slots, of each module.
pub fn words_in(start: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    let part = move |m: &Module| m.constant.start.max(start)..m.constant.end.min(end);
    with_words(start, end).map(part)
}

/// In use or not: what is mapped may change while a module is not used, which may be used again.
fn with_words(start: u64, end: u64) -> impl Iterator<Item = &'static Module> {
    modules().filter(move |m| m.constant.start < end && start < m.constant.end)
}

/// A word of the program that has a slot in translated code ([`Tables::slots`]).
#[derive(Clone, Copy)]
pub struct Slot {
    /// Where the word is.
    pub word: u64,
    /// Where the slot is.
    pub at: u64,
    /// What it leads to as long as nothing else is known.
    pub slow: u64,
    /// Its code records nothing, beside code that does.
    pub is_plain: bool,
}

/// The slots of words that lie in `start..end`, in this code.
pub fn slots_in(start: u64, end: u64, of: Variants) -> impl Iterator<Item = Slot> {
    let slots = with_words(start, end).flat_map(move |module| {
        module.translations(of).flat_map(|translation| translation.slots_of(module.base))
    });
    slots.filter(move |slot| start <= slot.word && slot.word + 8 <= end)
}

/// Makes the slots of the code at `code` writable; all of them lead to what looks up, or, where it is of what has just
/// been mapped and cannot change, to what asks. The error is the kernel's.
///
/// # Safety
/// The code has these tables, which are mapped at `at`, and nobody runs it yet.
pub unsafe fn prepare_slots(tables: &Tables, at: u64, code: u64) -> Result<(), i32> {
    // SAFETY: as promised.
    unsafe { Translation::new(tables, at, code).make_slots(true) }
}

/// Makes the pages of `count` slots at `at` writable.
///
/// # Safety
/// They have slots only.
unsafe fn make_writable(at: u64, count: u64) -> Result<(), i32> {
    if count == 0 {
        return Ok(());
    }
    let args = [at as usize, page_up(8 * count) as usize, sys::PROT_READ | sys::PROT_WRITE];
    // SAFETY: as promised.
    sys::beyond_limits(|| unsafe { sys::call(nr::MPROTECT, &args) }).map(drop)
}

/// Adds a module.
pub fn add(module: Module) {
    // (The caller holds the lock.)
    let last = modules().last().map_or(&FIRST, |last| &last.next);
    last.store(Box::into_raw(Box::new(module)), Release);
}

/// What was translated to `code` is mapped again as it was: its module is used again, if it has one.
pub fn revive(code: u64) -> bool {
    let module = modules().find(|m| m.recorded.code.start == code);
    if let Some(module) = module {
        module.entered.store(false, Relaxed);
        module.in_use.store(true, Release);
    }
    module.is_some()
}

/// The code that records nothing, of the module whose other code is at `code`, knows where it lies. Said
/// again, it changes nothing.
pub fn plain_is_ready(code: u64) {
    for module in modules().filter(|m| m.recorded.code.start == code) {
        let Some(plain) = module.plain.as_ref().filter(|_| !module.plain_is_ready.load(Acquire))
        else {
            continue;
        };
        // SAFETY: nobody runs it before it is ready. Without slots it is translated when it runs.
        let has_slots = unsafe { plain.make_slots(false) }.is_ok();
        module.plain_is_ready.store(has_slots, Release);
    }
}

/// The same of the program's own.
pub fn plain_program_is_ready() {
    let program = modules().next().filter(|module| module.base == facts().window);
    program.into_iter().for_each(|program| plain_is_ready(program.recorded.code.start));
}

/// The module in use whose original code is at `address`.
pub fn module_of(address: u64) -> Option<&'static Module> {
    /// The one that was found last: most system calls of a program are in the same library.
    static LAST: AtomicPtr<Module> = AtomicPtr::new(null_mut());
    let has = |m: &&'static Module| m.text.contains(&address) && m.in_use.load(Acquire);
    // SAFETY: a module is never given back, and was complete when it was found.
    let last = unsafe { LAST.load(Acquire).as_ref() };
    last.filter(has).or_else(|| {
        let found = modules().find(has)?;
        LAST.store(core::ptr::from_ref(found).cast_mut(), Release);
        Some(found)
    })
}

/// The modules in use whose original code lies in part in `start..end`.
pub fn modules_in(start: u64, end: u64) -> impl Iterator<Item = &'static Module> {
    modules().filter(move |m| m.text.start < end && start < m.text.end && m.in_use.load(Acquire))
}

/// Whether there is no ahead-of-time code.
pub fn is_empty() -> bool {
    modules().next().is_none()
}

/// Whether the program's own code has a translation, in use or not.
pub fn has_program() -> bool {
    modules().next().is_some_and(|m| m.base == facts().window)
}

/// The ahead-of-time translation that begins at original address `target`; `plain`: that records nothing,
/// beside one that does.
pub fn entry(target: u64, plain: bool) -> Option<u64> {
    module_of(target)?.entry(target, plain)
}

/// All ahead-of-time translations that begin at original addresses in `range`, for look-ups to lead there, if `target`'s module
/// has any: original and translated address.
pub fn entries_in(target: u64, range: Range<u64>, plain: bool) -> impl Iterator<Item = (u64, u64)> {
    let module = module_of(target).and_then(|m| Some((m, m.translation(plain)?)));
    module.into_iter().flat_map(move |(m, translation)| {
        m.is_entered();
        let entries = translation.entries;
        let relative = |address: u64| address.clamp(m.text.start, m.text.end) - m.base;
        let (start, end) = (relative(range.start) as u32, relative(range.end) as u32);
        let inside = entries.from(start).take_while(move |e| e.0 < end);
        inside.map(|e| (m.base + u64::from(e.0), m.base + u64::from(e.1)))
    })
}

/// The ahead-of-time unit whose code `pc` lies in. Its recipe goes into `room`.
pub fn find(pc: u64, room: &mut [u8]) -> Option<Found<'_>> {
    modules().find(|m| m.code().contains(&pc))?.find(pc, room)
}

/// Where the translated code of libraries lies.
pub fn codes() -> impl Iterator<Item = Range<u64>> {
    let window = facts().window;
    modules().filter(move |m| m.base != window).map(Module::code)
}

/// The translated code that `pc` lies in.
pub fn code_around(pc: u64) -> Option<Range<u64>> {
    let codes = |module: &'static Module| {
        let plain = module.plain.as_ref().map(|plain| plain.code.clone());
        [Some(module.recorded.code.clone()), plain].into_iter().flatten()
    };
    modules().flat_map(codes).find(|code| code.contains(&pc))
}

/// Ahead-of-time code of libraries in `start..end`, where it lies: what belongs to one that has been mapped.
pub fn codes_in(start: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    codes().filter(move |code| code.start < end && start < code.end)
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_last_is_what_would_be_found() {
        let recent = Recent::new();
        let code = |original: u32| (!original.is_multiple_of(3)).then_some(original / 2 + 1);
        for round in 0..3 {
            for original in (0..500).rev().step_by(round + 1) {
                assert_eq!(recent.get(original, || code(original)), code(original));
            }
        }
        // Found again without a search; what has its place is searched for.
        let none = || None;
        assert_eq!(recent.get(400, || Some(7)), Some(7));
        assert_eq!(recent.get(400, none), Some(7));
        assert_eq!(recent.get(400 + Recent::COUNT as u32, none), None);
        assert_eq!(recent.get(400, none), Some(7));
    }
}
