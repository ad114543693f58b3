//! Run-time translation: the code cache, and what is executable.
//!
//! One lock covers all of it. Published are only table entries and branch distances, each in one
//! store, after the code they lead to is in place.

use crate::base::costs;
use crate::base::keys::{self, AllOpen};
use crate::base::lock::{Guard, Lock};
use crate::base::once::Once;
use crate::code::arena::Arena;
use crate::code::breaks::Breaks;
use crate::code::executable::{ExecRange, Executable};
use crate::code::far::Far;
use crate::code::found::Found;
use crate::code::guarded::Guarded;
use crate::code::links::{ExitId, Links, Site, UnitIndex};
use crate::code::made::Made;
use crate::code::objects::Objects;
use crate::code::packs::Packs;
use crate::code::process::Process;
use crate::code::selection::Selection;
use crate::code::span::Span;
use crate::code::table::LookUps;
use crate::code::translation::{end_of_guarded, link_new, new_unit, Image, Translation, REACH};
use crate::code::units::{CachedUnit, Life, Units, MOST_VARIANTS};
use crate::code::world::{CodeMemory, For, LookUpTables, World};
use abi::event::Cost;
use abi::ids::{CodeAddr, CodeOff, LiveAddr, OrigAddr, UnitId};
use abi::options::Options;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::swap;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use instrument::block::Source;
use instrument::fragment::Return;
use instrument::plan::NOWHERE;
use instrument::planner::may_enter;
use instrument::recipe::Recipe;

/// All that is known about code; the only one that knows all pieces.
///
/// What may be entered without the runtime's looking is an open unit, and an open unit is made of
/// the bytes that are there: they cannot be written, or their page is guarded while it is open, or
/// (code that may change unnoticed) nothing leads to it but a comparison.
pub struct Jit<W: World = Process> {
    options: Options,
    world: W,
    pub arena: W::Code,
    pub tables: W::Tables,
    /// What the tables do not have.
    far: Option<Far>,
    executable: Executable,
    guarded: Guarded,
    made: Made,
    /// Code of files: what was executable once, and what of it the program may have changed.
    of_files: Vec<Span>,
    changed: Vec<Span>,
    objects: Objects,
    /// Where instructions start that lay in two ranges when they ran. Their units were compared each time,
    /// and not guarded: they are of no use where they do not lie in two any more.
    split: Vec<LiveAddr>,
    units: Units,
    links: Links,
    translation: Translation,
    /// Instructions that were marked, and could not be carried out so.
    unmarked: Vec<LiveAddr>,
    /// The code of `options`, `units`, `links` and `translation` records nothing, although that of
    /// the process does: the recording is switched off.
    plain: bool,
    /// The other variant of the code, from the first switch on.
    other: Option<Box<Variant>>,
    /// That one watches, and this one does not.
    other_watches: bool,
    /// Of code that records nothing: whoever comes here comes by way of the runtime.
    watched: Option<LiveAddr>,
    /// How often all units were forgotten.
    flushes: u32,
    /// Translations of libraries.
    pub packs: Packs,
    /// Which code is recorded.
    selection: Selection,
    /// Those of a debugger.
    pub(in crate::code) breaks: Breaks,
    /// Libraries are placed below this.
    pub library_top: u64,
}

/// Code of one kind: that records, or that does not. Direct branches and gates lead to code of the
/// same variant only, and the tables lead to that of the one in use.
struct Variant {
    options: Options,
    units: Units,
    links: Links,
    translation: Translation,
}

/// Where an exit leads.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    pub target: LiveAddr,
    /// Its translation; `None`: the program may not execute there.
    pub code: Option<CodeAddr>,
}

/// How code can be opened: what a thread runs that is watched, and has not stored itself, it has to note first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opens {
    /// It is as in its file, or all threads have noted it.
    AtOnce,
    /// By a thread that has noted its bytes, which may change unnoticed.
    Compared,
    /// While no thread is in generated code: each notes its bytes before it goes on.
    Alone,
}

/// So many bytes of the code cache are kept for what is translated on the way.
const ENOUGH: u64 = 1 << 20;

/// How many pages of the program's are write-protected.
static PROTECTED: AtomicUsize = AtomicUsize::new(0);

/// Whether any page of the program's is write-protected; asks without the lock.
pub fn has_protected_pages() -> bool {
    PROTECTED.load(Relaxed) != 0
}

#[link_section = ".data.at_fork"]
static JIT: Once<Lock<Jit>> = Once::new();

/// Puts the translator in place.
pub fn install(jit: Jit) {
    JIT.install(Lock::new(jit));
}

/// All that is known about code. While somebody has it, code can be read whatever protection keys say.
pub fn jit() -> Opened {
    // In this order: the keys are as they were when the lock is free again.
    let lock = JIT.get().lock();
    Opened { lock, _keys: keys::open_all() }
}

/// The lock of all that is known about code.
pub struct Opened {
    // (Fields are dropped in their order.)
    _keys: AllOpen,
    lock: Guard<'static, Jit>,
}

impl Deref for Opened {
    type Target = Jit;
    fn deref(&self) -> &Jit {
        &self.lock
    }
}

impl DerefMut for Opened {
    fn deref_mut(&mut self) -> &mut Jit {
        &mut self.lock
    }
}

impl Jit {
    #[allow(clippy::too_many_arguments, reason = "each of them is a piece that start-up has made")]
    pub fn new(
        options: Options,
        image: Image,
        packs: Packs,
        selection: Selection,
        arena: Arena,
        tables: LookUps,
        far: Option<Far>,
        library_top: u64,
    ) -> Jit {
        let guarded = Guarded::new(&PROTECTED);
        Jit {
            packs,
            selection,
            far,
            library_top,
            ..Jit::in_world(Process, options, image, guarded, arena, tables)
        }
    }
}

impl<W: World> Jit<W> {
    fn in_world(
        world: W,
        options: Options,
        image: Image,
        guarded: Guarded,
        arena: W::Code,
        tables: W::Tables,
    ) -> Jit<W> {
        Jit {
            options,
            world,
            arena,
            tables,
            far: None,
            executable: Executable::default(),
            guarded,
            made: Made::default(),
            of_files: Vec::new(),
            changed: Vec::new(),
            objects: Objects::default(),
            split: Vec::new(),
            unmarked: Vec::new(),
            units: Units::default(),
            links: Links::default(),
            translation: Translation::new(options, image),
            plain: false,
            watched: None,
            other: None,
            other_watches: false,
            flushes: 0,
            packs: Packs::default(),
            selection: Selection::default(),
            breaks: Breaks::default(),
            library_top: 0,
        }
    }

    // --- variants ---

    /// Whether the code in use records nothing although that of the process does.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// From now on look-ups lead to the other variant of the code. No thread is in generated code, or
    /// will go back to what was looked up before.
    pub fn switch(&mut self) {
        if self.other.is_none() {
            let options = match self.other_watches {
                true => self.options.watching(),
                false => self.options.plain(),
            };
            self.other = Some(Box::new(Variant {
                options,
                units: Units::default(),
                links: Links::default(),
                translation: self.translation.with(options),
            }));
        }
        self.exchange();
        self.all_miss();
        self.tables.switches(self.plain, self.options.recording.watches());
        if !self.plain {
            // Whoever waits for that is recorded now.
            self.watched = None;
        } else if self.packs.use_plain() {
            self.tables.plain_has_slots(|word| self.is_private(word));
        }
    }

    /// The other variant of the code is one that watches.
    pub fn other_watches(&mut self) {
        self.other_watches = true;
    }

    /// Whoever comes to `address` in code that records nothing comes to the runtime first, until the
    /// recording is switched on. To be said before there is any.
    pub fn watch(&mut self, address: LiveAddr) {
        self.watched = Some(address);
    }

    fn is_watched(&self, address: LiveAddr) -> bool {
        self.plain && self.watched == Some(address)
    }

    fn exchange(&mut self) {
        if let Some(other) = &mut self.other {
            swap(&mut self.options, &mut other.options);
            swap(&mut self.units, &mut other.units);
            swap(&mut self.links, &mut other.links);
            swap(&mut self.translation, &mut other.translation);
            self.plain = !self.plain;
        }
    }

    /// Does the same to both variants.
    fn in_both(&mut self, mut change: impl FnMut(&mut Self)) {
        change(self);
        if self.other.is_some() {
            self.exchange();
            change(self);
            self.exchange();
        }
    }

    // --- what is executable ---

    pub fn executable(&self, address: u64) -> Option<ExecRange> {
        self.executable.at(LiveAddr(address))
    }

    /// All that the program may execute.
    pub fn executable_ranges(&self) -> &[ExecRange] {
        self.executable.ranges()
    }

    /// `start..end` is a shared mapping now, or is not (any more).
    pub fn set_shared(&mut self, start: u64, end: u64, shared: bool) {
        self.executable.set_shared(Span::new(start, end), shared);
    }

    /// Whether `address` lies in a shared mapping.
    pub fn is_shared(&self, address: u64) -> bool {
        self.executable.is_shared(LiveAddr(address))
    }

    /// Whether any part of `start..end` is executable.
    pub fn touches_code(&self, start: u64, end: u64) -> bool {
        self.executable.touches(Span::new(start, end))
    }

    /// Executable memory of a file is mapped at `start..end`, from `offset` in `fd`: what is selected of
    /// it, and its translation, if there is one.
    pub fn add_file(&mut self, start: u64, end: u64, fd: i32, offset: u64, may_have_pack: bool) {
        let span = Span::new(start, end);
        if !self.selection.is_everything() {
            // What was translated here before was of something else.
            self.drop_units(span);
            self.selection.add_file(span, fd, offset);
        }
        if may_have_pack {
            self.packs.attach(start..end, fd, offset, &mut self.selection);
        }
    }

    /// Tells the trace what is selected of `code`, which is mapped already.
    pub fn announce_selection(&self, code: Span) {
        self.selection.announce(code);
    }

    /// The kernel's code is at `span`.
    pub fn add_vdso(&mut self, span: Span) {
        self.selection.add_vdso(span);
    }

    /// `start..end` does not belong to a file any more.
    pub fn forget_file(&mut self, start: u64, end: u64) {
        let span = Span::new(start, end);
        self.of_files.retain(|code| !code.lies_in(span));
        self.changed.retain(|code| !code.lies_in(span));
        if self.selection.touches(span) {
            self.drop_units(span);
            self.selection.remove(span);
        }
    }

    /// What was at `from` is at `to` now.
    pub fn moved_file(&mut self, from: Span, to: Span) {
        if !self.selection.is_everything() {
            self.drop_units(to);
            self.selection.moved(from, to);
        }
    }

    /// The program may write to `start..end` from here on: to code of a file, maybe.
    pub fn may_change_file(&mut self, start: u64, end: u64) {
        let span = Span::new(start, end);
        let is_of_file = self.of_files.iter().any(|code| code.touches(span));
        if is_of_file && !self.changed.contains(&span) {
            self.changed.push(span);
        }
    }

    /// `range` becomes executable.
    pub fn add_executable(&mut self, range: ExecRange) {
        if self.executable.has(range) {
            return;
        }
        if range.file && !self.of_files.contains(&range.span) {
            self.of_files.push(range.span);
        }
        self.drop_executable(range.span);
        if !range.shared {
            self.in_both(|jit| jit.units.forget_variants(range.span));
        }
        self.tables.cover(range.span);
        self.executable.add(range);
    }

    /// The instruction at `pc` accesses memory that others store to: it is translated anew, as one that is *marked*. False if
    /// it is so already, or was once, and cannot be.
    pub fn mark(&mut self, pc: LiveAddr) -> bool {
        if self.unmarked.contains(&pc) || !self.translation.mark(pc, true) {
            return false;
        }
        self.is_translated_anew(pc);
        true
    }

    /// The instruction at `pc`, which is marked, is none from here on. False if it is not marked.
    pub fn unmark(&mut self, pc: LiveAddr) -> bool {
        if !self.translation.mark(pc, false) {
            return false;
        }
        self.unmarked.push(pc);
        self.is_translated_anew(pc);
        true
    }

    fn is_translated_anew(&mut self, pc: LiveAddr) {
        let span = Span { start: pc, end: pc.plus(1) };
        for text in self.world.retire(span) {
            self.retired(text);
        }
        self.drop_units(span);
    }

    /// `start..end` is not executable any more; translations of it are dropped.
    pub fn remove_executable(&mut self, start: u64, end: u64) {
        self.drop_executable(Span::new(start, end));
    }

    fn drop_executable(&mut self, span: Span) {
        if !self.executable.touches(span) {
            return;
        }
        self.bytes_may_change(span);
        self.guarded.release(span);
        for gone in self.executable.remove(span) {
            self.tables.uncover(gone);
        }
    }

    /// The bytes of code in `start..end` may change, or are gone.
    pub fn code_may_change(&mut self, start: u64, end: u64) {
        self.bytes_may_change(Span::new(start, end));
    }

    /// Closes all translations that were made of `span`, and drops those that knew it. (Which
    /// registers are dead in one piece of a file's code may follow from the code of another.)
    fn bytes_may_change(&mut self, span: Span) {
        self.drop_units(self.executable.files_around(span));
        self.close_units(span);
        for text in self.world.retire(span) {
            self.retired(text);
        }
    }

    /// Code in `start..end` may have become writable without our doing: it is protected again
    /// before it is translated.
    pub fn distrust(&mut self, start: u64, end: u64) {
        let span = Span::new(start, end);
        self.bytes_may_change(span);
        self.guarded.release(span);
        self.executable.distrust(span);
    }

    /// The program has made `start..end` read-only.
    pub fn becomes_constant(&self, start: u64, end: u64) {
        let executable = |address| self.executable.at(address).is_some();
        let is_private = |word: LiveAddr| self.is_private(word);
        self.tables.becomes_constant(Span::new(start, end), is_private, executable);
    }

    /// A private piece of a file is mapped at `start..end`, read-only.
    pub fn is_read_only(&self, start: u64, end: u64) {
        let is_private = |word: LiveAddr| self.is_private(word);
        self.tables.is_read_only(Span::new(start, end), is_private);
    }

    /// Others write to what is shared, or the program does, through another mapping.
    fn is_private(&self, word: LiveAddr) -> bool {
        !self.is_shared(word.0) && !self.is_own(word.0)
    }

    /// A jump with these registers has come by way of a slot that asks; its look-up starts at `slow`.
    pub fn fill_slot(&self, slow: u64, gpr: &[u64; 16]) {
        let executable = |address| self.executable.at(address).is_some();
        self.tables.fill_slot(CodeAddr(slow), gpr, executable);
    }

    /// What is in `start..end` is going to change, or may.
    pub fn changes(&self, start: u64, end: u64) {
        self.tables.changes(Span::new(start, end));
    }

    /// The program may change code in `text` that was translated ahead of time: from now on it is
    /// translated when it runs.
    fn retired(&mut self, text: Span) {
        // Whatever the run-time translator has linked to that code, wherever it lies.
        self.drop_units(Span::ALL);
        for r in self.executable.ranges() {
            let part = r.span.common(text);
            if !part.is_empty() {
                // Whole pages: what else lies in them misses once more.
                self.tables.cover(part.whole_pages());
            }
        }
    }

    // --- units ---

    fn drop_units(&mut self, span: Span) {
        self.in_both(|jit| {
            jit.translation.forget_conclusions();
            for i in jit.units.within(span) {
                jit.drop_unit(i);
            }
        });
    }

    fn drop_unit(&mut self, i: UnitIndex) {
        let left = self.units.kill(i, &mut self.links, &mut self.arena);
        if let Some(start) = left.filter(|&start| self.executable.at(start).is_some()) {
            self.tables.clear(start);
        }
    }

    /// Closes the gates of the translations of code in `span`.
    fn close_units(&mut self, span: Span) {
        self.made.remove(span);
        self.in_both(|jit| {
            for i in jit.units.within(span) {
                jit.units.close(i, &mut jit.links, &mut jit.arena);
            }
        });
    }

    /// Opens the unit, if its code is what it was; else drops it. False if it is dead now.
    fn open_unit(&mut self, i: UnitIndex) -> bool {
        let unit = *self.units.get(i);
        if unit.state != Life::Closed {
            return unit.state == Life::Open;
        }
        let range = self.executable.at(unit.start);
        if let Some(range) = range.and_then(|r| self.readable_part(unit.start, r)) {
            let end = unit.span().end.min(range.span.end);
            self.guard(Span { start: unit.start, end }, range);
            if self.is_as_translated(i, range) {
                self.units.reopen(i, &mut self.arena);
                return true;
            }
        }
        self.drop_unit(i);
        false
    }

    /// Whether the bytes of unit `i`, in `range`, are those that it was translated from.
    fn is_as_translated(&self, i: UnitIndex, range: ExecRange) -> bool {
        let span = self.units.get(i).span();
        if span.end > range.span.end {
            return false;
        }
        // SAFETY: mapped, executable and so readable memory of the program, of which nobody keeps a
        // slice.
        self.units.is_made_of(i, unsafe { self.world.bytes(span) })
    }

    /// The unit that starts at `target`, open.
    fn open_at(&mut self, target: LiveAddr) -> Option<CachedUnit> {
        let i = self.units.at(target)?;
        self.open_unit(i).then(|| *self.units.get(i))
    }

    fn readable_part(&self, target: LiveAddr, range: ExecRange) -> Option<ExecRange> {
        range.readable_part(target, REACH, &self.world)
    }

    // --- look-up ---

    /// The translation to resume at for original address `target`, reached indirectly.
    /// The entry of the table for `what`, if a look-up missed, is set.
    /// `None`: the program may not execute there.
    pub fn resolve(&mut self, target: LiveAddr, what: Option<For>) -> Option<CodeAddr> {
        let mut range = self.executable.code_at(target, &self.world)?;
        if range.shared && self.take_back() {
            range = self.executable.code_at(target, &self.world)?;
        }
        if range.shared {
            let is_split = self.executable.at(target).is_some_and(|whole| !whole.shared);
            if is_split && !self.split.contains(&target) {
                // What was guarded may have links that lead to it.
                self.drop_units(Span { start: target, end: target.plus(1) });
                self.split.push(target);
            }
            return self.resolve_shared(target, self.readable_part(target, range)?);
        }
        self.leave_split(target);
        let what = what.filter(|_| !self.is_watched(target));
        let ahead = match what {
            Some(what) if !self.ways().is_beside_watched(target) => {
                self.fill_around(target, range, what)
            }
            _ => self.ways().ahead_of_time(target),
        };
        if ahead.is_some() {
            return ahead;
        }
        let code = match self.open_at(target) {
            Some(unit) if unit.wide => self.arena.live(unit.entry),
            _ => self.translate(target, true, self.readable_part(target, range)?),
        };
        if let Some(what) = what {
            self.set_entry(what, target, code);
            if let Some(far) = &mut self.far {
                far.set(target, code, &mut self.arena);
            }
        }
        Some(code)
    }

    /// Sets all entries for ahead-of-time code that share a page of the table with `target`'s, if that is any. Returns
    /// it.
    fn fill_around(&self, target: LiveAddr, range: ExecRange, what: For) -> Option<CodeAddr> {
        let code = self.tables.code_at_once(what);
        let start = target.0 / code * code;
        let span = Span::new(start, start + code).common(range.span);
        let mut found = None;
        let entries = self.world.entries_in(target, span, self.plain);
        let look = |&(address, code): &(LiveAddr, CodeAddr)| {
            if address == target {
                found = Some(code);
            }
        };
        self.tables.fill(what, span, entries.inspect(look));
        self.tables.filled(what, target, range.span);
        found
    }

    /// As [`Jit::resolve`], for code that may change unnoticed: nothing leads to a translation but
    /// this, which compares.
    fn resolve_shared(&mut self, target: LiveAddr, range: ExecRange) -> Option<CodeAddr> {
        costs::count(Cost::Compared, target.0);
        let mut known = self.units.take_variants(target);
        let same = known.iter().copied().find(|&i| self.is_as_translated(i, range));
        let flushes = self.flushes;
        let code = match same {
            Some(i) => {
                self.units.reopen(i, &mut self.arena);
                self.arena.live(self.units.get(i).entry)
            }
            None => self.translate(target, true, range),
        };
        if same.is_none() {
            if flushes != self.flushes || known.len() == MOST_VARIANTS {
                known.clear();
            }
            known.extend(self.units.at(target));
        }
        self.units.keep_variants(target, known);
        Some(code)
    }

    /// The instruction at `target` lies in one range: what was translated of it when it lay in two goes.
    fn leave_split(&mut self, target: LiveAddr) {
        let Some(i) = self.split.iter().position(|&split| split == target) else { return };
        self.split.swap_remove(i);
        let span = Span { start: target, end: target.plus(1) };
        self.in_both(|jit| jit.units.forget_variants(span));
        self.drop_units(span);
    }

    /// As [`Jit::link`], for a thread that comes from code of the variant that is `plain`, or is not.
    pub fn link_from(&mut self, plain: bool, id: ExitId) -> Linked {
        match &self.other {
            // The code that it comes from is not in use any more.
            Some(other) if plain != self.plain => {
                let target = other.links.get(id).target;
                Linked { target, code: self.resolve(target, None) }
            }
            _ => self.link(id),
        }
    }

    /// Links exit `id`.
    pub fn link(&mut self, id: ExitId) -> Linked {
        let exit = self.links.get(id);
        let linked = |code| Linked { target: exit.target, code };
        let Some(range) = self.executable.code_at(exit.target, &self.world) else {
            return linked(None);
        };
        if range.shared || self.is_watched(exit.target) {
            return linked(self.resolve(exit.target, None));
        }
        self.leave_split(exit.target);
        // A unit that is entered from anywhere is replaced by one of that kind.
        let mut from_anywhere = false;
        if let Site::Gate(i) = exit.at {
            if self.open_unit(i) {
                return linked(Some(self.arena.live(self.units.get(i).entry)));
            }
            from_anywhere = self.units.get(i).wide;
        }
        let flushes = self.flushes;
        let wide = self.open_at(exit.target).is_some_and(|unit| unit.wide);
        let known = match from_anywhere && !wide {
            true => None,
            false => self.ways().enterable(exit.target, exit.from),
        };
        let code = match known {
            Some(code) => code,
            None => {
                // Behind code that is not selected no window is current.
                let wide = from_anywhere || exit.from == NOWHERE || self.translation.makes_wide();
                let Some(range) = self.readable_part(exit.target, range) else {
                    return linked(None);
                };
                self.translate(exit.target, wide, range)
            }
        };
        match exit.at {
            _ if flushes != self.flushes => {}
            Site::Branch(at) => self.arena.patch(at, code),
            Site::Gate(i) => self.units.forward(i, exit.target, code, &mut self.arena),
        }
        linked(Some(code))
    }

    // --- code that the program has made, where threads are watched ---

    /// Whether watching code is translated of what the program has made at `span`, in `range`, or may have changed, and is
    /// not compared each time.
    fn is_made(&self, span: Span, range: ExecRange) -> bool {
        self.options.recording.watches()
            && !range.shared
            && (!range.file || range.writable || self.changed.iter().any(|code| code.touches(span)))
    }

    /// How code at `target` can be opened.
    pub fn opens(&self, target: LiveAddr) -> Opens {
        if !self.options.recording.watches() {
            return Opens::AtOnce;
        }
        let range = self.executable.code_at(target, &self.world);
        // (Of most code that is known without a look at it, which is a system call.)
        let may_be_made = |range: &ExecRange| {
            range.shared || !range.file || range.writable || !self.changed.is_empty()
        };
        let range = range.filter(may_be_made);
        match range.and_then(|range| self.readable_part(target, range)) {
            Some(range) if range.shared => Opens::Compared,
            Some(range) => {
                // (What is opened again is read no further than it was, and a change of that would have been noticed.)
                let unit = self.units.at(target).map(|unit| self.units.get(unit).span());
                let read = || code_read(target, range);
                let span = unit.map_or_else(read, |span| Span {
                    start: span.start,
                    end: span.end.min(range.span.end),
                });
                let is_known =
                    || self.made.has(span) || self.ways().ahead_of_time(target).is_some();
                match self.is_made(span, range) && !is_known() {
                    true => Opens::Alone,
                    false => Opens::AtOnce,
                }
            }
            None => Opens::AtOnce,
        }
    }

    /// As [`Jit::resolve`], where nothing has to be noted first: else `None`, too.
    pub fn at_hand(&mut self, target: LiveAddr) -> Option<CodeAddr> {
        match self.opens(target) {
            Opens::AtOnce => self.resolve(target, None),
            Opens::Compared | Opens::Alone => None,
        }
    }

    /// Where the pages of that code begin that came to be translated behind `moment`.
    pub fn made_since(&self, moment: u64) -> Vec<LiveAddr> {
        self.made.since(moment)
    }

    /// The target of exit `id`, for a thread that comes from code of the variant that is `plain`, or is not.
    pub fn target_of(&self, plain: bool, id: ExitId) -> LiveAddr {
        match &self.other {
            Some(other) if plain != self.plain => other.links.get(id).target,
            _ => self.links.get(id).target,
        }
    }

    /// The bytes that the translation at `target`, compared each time, was made of.
    pub fn compared(&self, target: LiveAddr) -> Option<Span> {
        Some(self.units.get(self.units.at(target)?).span())
    }

    fn ways(&self) -> Ways<'_, W> {
        Ways {
            options: self.options,
            plain: self.plain,
            watched: self.watched.filter(|_| self.plain),
            world: &self.world,
            executable: &self.executable,
            split: &self.split,
            units: &self.units,
            arena: &self.arena,
        }
    }

    /// The unit whose code `pc` lies in.
    pub fn find(&self, pc: CodeAddr) -> Option<Found<'_>> {
        let at = self.arena.offset(pc)?;
        let other = self.other.as_ref().map(|other| &other.units);
        let mut variants = [Some(&self.units), other].into_iter().flatten();
        let (units, unit) = variants.find_map(|units| Some((units, units.find(at)?)))?;
        Some(Found {
            start: unit.start,
            window: unit.id.window(),
            silent: None,
            entry: self.arena.live(unit.entry),
            end: self.arena.live(unit.end),
            recipe: Recipe::new(units.recipe(unit)?)?,
        })
    }

    /// How often all units were forgotten.
    pub(in crate::code) fn flushes(&self) -> u32 {
        self.flushes
    }

    /// The units of the code in use.
    pub(in crate::code) fn units(&self) -> &Units {
        &self.units
    }

    // --- translation ---

    fn translate(&mut self, target: LiveAddr, wide: bool, range: ExecRange) -> CodeAddr {
        self.make_room();
        let read = code_read(target, range);
        let end = match range.is_guarded() || self.is_made(read, range) {
            true => read.end,
            false => range.span.end,
        };
        self.guard(Span { start: target, end }, range);
        let offset = self.arena.used();
        let base = self.arena.live(offset);
        // SAFETY: the program has this memory mapped, executable and so readable; its bytes stay
        // as they are (it is not writable, or write-protected by `guard`).
        let bytes = unsafe { self.world.bytes(Span { start: range.span.start, end }) };
        let selected = self.selection.around(range.span);
        let source = Source { start: OrigAddr(range.span.start.0), bytes, selected };
        let watched = self.watched.filter(|_| self.plain);
        let is_known = |at| self.units.at(at).is_some() || Some(at) == watched;
        let far = self.tables.far_window(target);
        let mut out = self.translation.translate(target, wide, range, source, base, far, is_known);
        if self.translation.take_exhausted() {
            self.world.cannot_name();
        }
        // The trace has the units before they run.
        if let Some(units) = self.translation.describe(&out, source, range, &self.world) {
            self.world.announce(units);
        }
        let first = self.units.next();
        self.units.reserve(out.units.len());
        for unit in &out.units {
            self.units.add(new_unit(unit, &out, offset, source));
        }
        let ways = Ways {
            options: self.options,
            plain: self.plain,
            watched,
            world: &self.world,
            executable: &self.executable,
            split: &self.split,
            units: &self.units,
            arena: &self.arena,
        };
        link_new(&mut out, offset, &mut self.links, |to, from| ways.enterable(to, from));
        self.arena.append(&out.code.bytes);
        if !range.file {
            // Where there may be no room for them any more, units must still close.
            for i in self.units.since(first) {
                self.units.make_stub(i, &mut self.links, &mut self.arena);
            }
        }
        // What is entered indirectly behind the first unit is where calls return to.
        for i in self.units.since(first).skip(1) {
            let unit = self.units.get(i);
            if unit.wide && !range.shared {
                let (start, entry) = (unit.start, self.arena.live(unit.entry));
                self.tables.set(For::Return, start, entry);
            }
        }
        if !range.shared {
            self.set_returns(&out.returns, offset);
        }
        self.arena.live(self.units.get(first).entry)
    }

    /// Returns that the processor expects to lead to `returns`, of code at `offset`, lead there.
    fn set_returns(&mut self, returns: &[Return], offset: CodeOff) {
        for behind in returns {
            let (address, at) = (LiveAddr(behind.address.0), CodeOff(offset.0 + behind.at.0));
            let range = self.executable.at(address);
            let closed = range.is_none_or(|range| range.shared) || self.is_watched(address);
            if !closed && !self.split.contains(&address) {
                self.units.add_return(address, at);
                self.tables.set(For::Return, address, self.arena.live(at));
            }
        }
    }

    /// Look-ups of `target` for `what` find `code`, or what leads there and is expected.
    fn set_entry(&mut self, what: For, target: LiveAddr, code: CodeAddr) {
        // (Far away returns and jumps have one table.)
        let is_for_returns = what == For::Return || self.tables.far_window(target).is_some();
        let behind = self.units.return_to(target).filter(|_| is_for_returns);
        self.tables.set(what, target, behind.map_or(code, |at| self.arena.live(at)));
    }

    // --- protection ---

    /// Write-protects the pages with `span`, if the program may write them: they stay so while
    /// units of theirs are open.
    fn guard(&mut self, span: Span, range: ExecRange) {
        if self.is_made(span, range) {
            self.made.add(span);
        }
        if !range.is_guarded() {
            return;
        }
        let guarded = match self.guard_views(span, range) {
            Ok(false) => self.guarded.guard(span, range, &mut self.world),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        if guarded.is_err() {
            crate::die!("code at {} cannot be protected against changes", range.span.start);
        }
    }

    /// The program writes to executable memory at `address`: true if it may, and can now.
    pub fn unprotect(&mut self, address: u64) -> bool {
        let address = LiveAddr(address);
        if let Some(done) = self.unprotect_view(address) {
            return done;
        }
        let Some(range) = self.executable.at(address).filter(|r| r.writable) else { return false };
        let page = Span::page_of(address);
        self.guarded.release(page);
        self.close_units(page);
        if self.world.set_writable(page, true).is_ok() {
            return true;
        }
        // There can be no more mappings: all of it at once.
        self.close_units(range.span);
        self.guarded.release(range.span);
        self.world.set_writable(range.span, true).is_ok()
    }

    /// As [`Jit::unprotect`], for all of `start..end` that is protected.
    pub fn unprotect_range(&mut self, start: u64, end: u64) {
        for page in self.guarded.within(Span::new(start, end)) {
            self.unprotect(Span::page(page).start.0);
        }
    }

    /// Whether any page with a part of `start..end` is protected.
    pub fn protects(&self, start: u64, end: u64) -> bool {
        !self.guarded.within(Span::new(start, end)).is_empty()
    }

    // --- starting over ---

    /// The process is about to fork, or tries to: what is translated is the child's, too.
    pub fn forks(&mut self) {
        self.arena.forks();
        self.tables.forks(self.executable.ranges().iter().map(|range| range.span));
    }

    /// In a forked child: if the units in the code cache are not described, nothing is translated
    /// yet.
    pub fn forked(&mut self, described: bool) {
        if !described {
            self.flush();
        }
    }

    /// Starts over if there is hardly any room left, and no other thread that may be in the midst
    /// of something.
    fn make_room(&mut self) {
        if self.world.is_alone() {
            self.start_over_if_full();
        }
    }

    /// Whether there is hardly any room left, and other threads may be in the midst of something.
    pub fn needs_room(&self) -> bool {
        self.arena.room() < ENOUGH && !self.world.is_alone()
    }

    /// Starts over if there is hardly any room left. No other thread is in generated code, or goes back to what was looked
    /// up before.
    pub fn start_over_if_full(&mut self) {
        if self.arena.room() < ENOUGH {
            self.flush();
        }
    }

    /// Forgets all code: everything misses.
    fn flush(&mut self) {
        self.flushes += 1;
        self.in_both(|jit| {
            jit.units.clear();
            jit.links.clear();
        });
        self.arena.restart();
        self.all_miss();
    }

    /// No look-up finds anything.
    fn all_miss(&mut self) {
        for range in self.executable.ranges() {
            self.tables.cover(range.span);
        }
        if let Some(far) = &mut self.far {
            far.clear();
        }
    }
}

/// What is read of a range that the program may write to translate code at `target`.
fn code_read(target: LiveAddr, range: ExecRange) -> Span {
    Span { start: target, end: end_of_guarded(target).min(range.span.end) }
}

/// What a direct branch may lead to.
struct Ways<'a, W: World> {
    options: Options,
    plain: bool,
    watched: Option<LiveAddr>,
    world: &'a W,
    executable: &'a Executable,
    split: &'a [LiveAddr],
    units: &'a Units,
    arena: &'a W::Code,
}

impl<W: World> Ways<'_, W> {
    /// The ahead-of-time translation of `target`.
    fn ahead_of_time(&self, target: LiveAddr) -> Option<CodeAddr> {
        match self.is_beside_watched(target) {
            true => None,
            false => self.world.entry(target, self.plain),
        }
    }

    /// Ahead-of-time code of `target` may lead to the code that is watched without coming to the runtime.
    fn is_beside_watched(&self, target: LiveAddr) -> bool {
        let beside = |watched| self.world.text(watched).is_some_and(|text| text.contains(target));
        self.watched.is_some_and(beside)
    }

    /// A translation of `target` that unit `from` may branch to directly.
    fn enterable(&self, target: LiveAddr, from: UnitId) -> Option<CodeAddr> {
        let range = self.executable.code_at(target, self.world);
        let closed = range.is_none_or(|range| range.shared) || self.split.contains(&target);
        if closed || self.watched == Some(target) {
            return None;
        }
        if let Some(code) = self.ahead_of_time(target) {
            return Some(code);
        }
        let unit = self.units.get(self.units.at(target)?);
        let enters = may_enter(self.options.recording, from, unit.id, unit.wide);
        enters.then(|| self.arena.live(unit.entry))
    }
}

mod shared;
#[cfg(test)]
mod tests;
