//! The look-up tables: from the low half of an original code address to its translation.
//!
//! The pieces that belong to executable memory of the program in the window are mapped, privately,
//! from a file that is filled with the addresses of the miss stubs: an entry that was never
//! set leads there without a compare. That is part of the output, or else made. Others are mapped when a look-up
//! first meets them.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod far;
mod fill;
mod forks;
mod slots;
mod trim;

pub use far::FarTables;

use crate::base::ceiling;
use crate::base::facts::Entries;
use crate::base::own::{reserve, reserve_gaps};
use crate::base::program::read_program_bytes;
use crate::base::sys::{self, nr};
use crate::code::span::Span;
use crate::code::world::{For, LookUpTables};
use abi::ids::{CodeAddr, LiveAddr};
use abi::layout::{page_down, page_up, TableShape, PAGE, WINDOW_SIZE};
use abi::misses::{Misses, MISS_CODE};
use abi::options::Options;
use abi::thread::{STUB_MISS, TARGET};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use instrument::block::FarWindow;
use instrument::emit::{Found, PUTS_BACK};

/// Entries of a table that a file holds which is made, all alike.
const FILE_ENTRIES: u64 = 1 << 17;
/// It is written in pieces of this many bytes.
const PIECE: u64 = 64 << 10;

/// Pieces that are mapped for look-ups of what is not in the window; more only miss by a fault.
const MOST_PIECES: u32 = 4096;
/// Wild returns have any high half.
const MOST_LANDINGS: usize = 64;
/// The stubs lie near each other.
const LONGEST_LANDING: u64 = 64 << 10;
/// Landing pages keep this far away from the stack, which grows, or as far as it may grow: in front of
/// that the kernel itself places what is mapped.
const STACK_ROOM: core::ops::RangeInclusive<u64> = 512 << 20..=16 << 30;

/// What is not mapped of the tables is kept free: the program uses so much of the address space that the
/// kernel has come to it.
static ARE_KEPT: AtomicBool = AtomicBool::new(false);

/// Keeps the places of the tables free. False if they are already.
pub fn keep_tables(tables: core::ops::Range<u64>) -> bool {
    if ARE_KEPT.swap(true, Relaxed) {
        return false;
    }
    reserve_gaps(tables);
    true
}

/// The part of the output that the tables are mapped from ([`abi::misses`]).
#[derive(Clone, Copy)]
pub struct Prepared {
    pub fd: i32,
    /// Where it starts in the file.
    pub offset: u64,
    pub misses: Misses,
}

/// Where returns and jumps to code outside the window land that have its high half.
struct Landing {
    high: u32,
    /// What is mapped there for it: nothing, where that was not possible.
    pages: Range<u64>,
}

/// All tables of the process.
pub struct LookUps {
    jumps: Table,
    /// Those that have one of their own.
    returns: Option<Table>,
    /// See [`Options::puts_back`].
    puts_back: bool,
    /// Returns merge halves of addresses.
    merges: bool,
    /// The code in use does not look into the table of returns.
    jumps_alone: Cell<bool>,
    /// Descriptor of the file that they are mapped from, or -1.
    fd: i32,
    window: u64,
    landings: Vec<Landing>,
    /// Pieces that were mapped for look-ups of what is not in the window.
    pieces: u32,
    /// The program's stack starts here.
    stack: u64,
    /// Where a return whose look-up misses goes.
    return_miss: u64,
    /// Where a jump does, that does not share the returns' table.
    jump_miss: u64,
    /// Times that the process has forked, or has tried to.
    forks: u32,
    /// Pages of the tables that have been written to, and are not what is mapped there; some of them
    /// more than once.
    written: RefCell<Vec<u64>>,
    /// Where look-ups have mapped pages besides: [`trim`].
    around: RefCell<Vec<Range<u64>>>,
    /// Pages that have entries in the tables' [own file](forks).
    filed: Vec<u64>,
    /// Slots that follow the entries of what their words name.
    bound: RefCell<slots::Bound>,
    /// Those of code outside of the window.
    pub far: FarTables,
    /// Low halves of addresses to which code returns in the window and out of it: they have no entry.
    contested: Vec<u32>,
}

impl LookUps {
    pub fn new(
        window: u64,
        options: Options,
        entries: Entries,
        stack: u64,
        prepared: Option<Prepared>,
    ) -> LookUps {
        let jumps_alone = Cell::new(options.watches_later());
        let options = options.of_tables();
        // This processor may have another table than the output was made for.
        let prepared = prepared.filter(|prepared| prepared.misses.fits(options));
        let miss = match prepared {
            Some(_) if window != 0 && options.jump_table().entry == 8 => MISS_CODE,
            _ => entries.miss,
        };
        let count = |of: fn(Misses) -> u64| prepared.map_or(FILE_ENTRIES, |p| of(p.misses));
        let table = |shape, count, place, miss| {
            let is_filled = Cell::default();
            Table { shape, count, place, miss, is_filled }
        };
        let place = |of: fn(Misses) -> u64| prepared.map(|p| p.offset + of(p.misses));
        let in_front = place(Misses::jumps).unwrap_or(0);
        let (jumps, returns) = match options.shares_table() {
            true => {
                let (shape, count) = (options.jump_table(), count(|misses| misses.entries));
                (table(shape, count, in_front, entries.return_miss), None)
            }
            false => {
                let jumps =
                    table(options.jump_table(), count(Misses::jump_entries), in_front, miss);
                let returns = options.return_table().map(|shape| {
                    let place = place(Misses::returns).unwrap_or(jumps.file_len());
                    table(shape, count(|misses| misses.entries), place, entries.return_miss)
                });
                (jumps, returns)
            }
        };
        let mut tables = LookUps {
            jumps,
            returns,
            puts_back: options.puts_back(),
            merges: options.return_table().is_some(),
            jumps_alone,
            fd: -1,
            window,
            landings: Vec::new(),
            pieces: 0,
            stack,
            return_miss: entries.return_miss,
            jump_miss: entries.miss,
            forks: 0,
            written: RefCell::default(),
            around: RefCell::default(),
            filed: Vec::new(),
            bound: RefCell::default(),
            far: FarTables::new(window, options, entries.miss),
            contested: Vec::new(),
        };
        tables.fd = match prepared {
            Some(prepared) => prepared.fd,
            None => tables.file().unwrap_or(-1),
        };
        tables
    }

    /// All entries of the file, as they are before they are set.
    fn file(&self) -> Result<i32, i32> {
        let parts: Vec<_> = self.each().map(|table| (table, table.file_len())).collect();
        let fill = |from: &[u64]| {
            let parts = parts.iter().zip(from);
            parts.flat_map(|((_, len), &from)| part_of(from, *len)).collect()
        };
        Ok(crate::base::descriptors::hide(self.make_file(fill)?))
    }

    /// A file, of the parts of memory that `parts` gives, which is told where [`PIECE`] bytes of each
    /// table lie as they are before entries are set.
    fn make_file(&self, parts: impl FnOnce(&[u64]) -> Vec<[u64; 2]>) -> Result<i32, i32> {
        // Written rather than mapped and filled: that would cost a page fault each.
        let at = crate::base::own::anonymous(2 * PIECE)?;
        let places = [at, at + PIECE];
        places.into_iter().zip(self.each()).for_each(|(at, table)| table.fill(at, PIECE));
        let file = write_file(&parts(&places));
        // SAFETY: mapped above.
        unsafe { sys::call(nr::MUNMAP, &[at as usize, 2 * PIECE as usize]) }?;
        file
    }

    fn each(&self) -> impl Iterator<Item = &Table> {
        [&self.jumps].into_iter().chain(&self.returns)
    }

    fn in_window(&self, address: LiveAddr) -> bool {
        address.0.wrapping_sub(self.window) < WINDOW_SIZE
    }

    fn table(&self, what: For) -> &Table {
        match (what, &self.returns) {
            (For::Return, Some(table)) if !self.jumps_alone.get() => table,
            _ => &self.jumps,
        }
    }

    /// Where the window lies at 0, jumps need no more than the low half that returns have, if they may go where returns do.
    fn looked_up_by_jumps(&self) -> &Table {
        let shares = self.window == 0 && !self.puts_back;
        self.table(if shares { For::Return } else { For::Jump })
    }

    /// The part of `span` that lies in the window.
    fn part_in_window(&self, span: Span) -> Option<(u64, u64)> {
        let part = span.common(Span::new(self.window, self.window + WINDOW_SIZE));
        (!part.is_empty()).then_some((part.start.0, part.end.0))
    }

    /// Maps the piece of a table around `address` that a look-up did not find: the low half of code
    /// outside the window, most likely. True if it is there now.
    pub fn cover_missing(&mut self, address: u64) -> bool {
        if FarTables::range().contains(&address) {
            return self.far.map(address);
        }
        let Some(table) = self.each().find(|t| (t.shape.base..t.shape.end()).contains(&address))
        else {
            return false;
        };
        let (len, place, shape) = (table.file_len(), table.place, table.shape);
        if self.fd == -1 || self.pieces == MOST_PIECES {
            return false;
        }
        self.pieces += 1;
        if ARE_KEPT.load(Relaxed) {
            let (at, flags) = (page_down(address), sys::MAP_PRIVATE | sys::MAP_NORESERVE);
            let prot = sys::PROT_READ | sys::PROT_WRITE;
            // SAFETY: this part of the address space is the table's. The page was kept free; if it has
            // entries by now, they miss once more.
            let map =
                || unsafe { sys::mmap(at, PAGE, prot, flags | sys::MAP_FIXED, self.fd, place) };
            return sys::beyond_limits(map).is_ok();
        }
        // All of the file, or one page between others.
        let flags = sys::MAP_PRIVATE | sys::MAP_NORESERVE;
        [len, PAGE].into_iter().any(|len| {
            let start = address & !(len - 1);
            let (start, end) = (start.max(shape.base), (start + len).min(shape.end()));
            map_free(start, end - start, flags, self.fd, place).is_ok()
        })
    }

    /// The look-up that `code` starts with, if it looks at `address` with these registers, and what it
    /// finds where there is nothing.
    pub fn look_up(&self, code: &[u8; 11], gpr: &[u64; 16], address: u64) -> Option<(Found, u64)> {
        if let Some(shape) = self.far.shape_at(address) {
            let found = Found::decode(code, shape)?;
            return (found.place(shape, gpr) == address).then_some((found, far::NOTHING));
        }
        self.each().find_map(|table| {
            let look_up = Found::decode(code, table.shape)?;
            let miss = if table.shape.entry == 4 { table.miss & 0xffff_ffff } else { table.miss };
            (look_up.place(table.shape, gpr) == address).then_some((look_up, miss))
        })
    }

    /// A return or a jump to code outside the window has kept its high half and faulted at `address`. If the
    /// low half is that of a miss stub, the next one lands there on a page of ours that goes on to
    /// the runtime. Where there can be none (the place is taken), each of them faults, and the
    /// handler does what the page would do.
    ///
    /// If it is another one, code in the window has the same low half, `low`: it gives it up.
    pub fn land(&mut self, address: u64, low: u32) {
        if !self.landing_places().any(|(miss, _)| miss == address as u32) {
            return self.contest(low, address as u32);
        }
        if !self.may_land(address) {
            return;
        }
        let high = (address >> 32) as u32;
        let pages = landing(high, self.landing_places()).unwrap_or_default();
        self.landings.push(Landing { high, pages });
    }

    /// Low halves of the addresses where transfers land whose look-up has missed, and whether a return address is to be put
    /// back there.
    fn landing_places(&self) -> impl Iterator<Item = (u32, bool)> + use<> {
        let jumps = (self.merges && self.puts_back).then_some((self.jump_miss as u32, false));
        [(self.return_miss as u32, self.puts_back)].into_iter().chain(jumps)
    }

    /// Whether what has kept the high half of `address`, outside of the window, was a return.
    pub fn was_return(&self, address: u64) -> bool {
        let miss = |at: u64| address as u32 == at as u32;
        if !self.puts_back || miss(self.return_miss) {
            return true;
        }
        let mut code = [0; PUTS_BACK.len()];
        let at = self.window + address % WINDOW_SIZE;
        !miss(self.jump_miss) && read_program_bytes(at, &mut code) && code == PUTS_BACK
    }

    /// The program is about to have memory at `start..end`, and says where: as nothing of its own is there, nothing is. What
    /// lands there faults instead, until there is a page once more.
    pub fn give_up_landings(&mut self, start: u64, end: u64) {
        self.landings.retain(|landing| {
            let Range { start: first, end: behind } = landing.pages;
            let stays = end <= first || behind <= start;
            if !stays {
                // SAFETY: pages of ours that nothing needs.
                let _ =
                    unsafe { sys::call(nr::MUNMAP, &[first as usize, (behind - first) as usize]) };
            }
            stays
        });
    }

    /// Whether a landing page at `address` would be the first of its 4 GiB, and far enough from the stack.
    fn may_land(&self, address: u64) -> bool {
        let room = sys::limit(sys::RLIMIT_STACK).clamp(*STACK_ROOM.start(), *STACK_ROOM.end());
        let room = self.stack.saturating_sub(room)..self.stack + PAGE;
        let high = (address >> 32) as u32;
        let is_there = self.landings.iter().any(|landing| landing.high == high);
        !room.contains(&address) && !is_there && self.landings.len() < MOST_LANDINGS
    }

    /// Where returns to the memory at `start..end`, outside of the window, would land, if it takes that place
    /// and another one is possible: it has to be smaller than the distance of two such places.
    pub fn landing_in(&self, start: u64, end: u64) -> Option<u64> {
        if !self.merges || end - start >= WINDOW_SIZE {
            return None;
        }
        let highs = [start >> 32 << 32, (end - 1) >> 32 << 32];
        let places =
            self.landing_places().flat_map(|(low, _)| highs.map(|high| high | u64::from(low)));
        // The code of a landing page may lie on two.
        let is_met = |at: u64| start < page_down(at) + 2 * PAGE && page_down(at) < end;
        let mut places = places;
        places.find(|&at| !self.in_window(LiveAddr(at)) && is_met(at) && self.may_land(at))
    }

    /// Transfers to an address with this low half have found `found`, which is not theirs: from now on
    /// they miss, wherever they go.
    fn contest(&mut self, low: u32, found: u32) {
        const MOST: usize = 256;
        if !self.merges || self.contested.len() == MOST {
            return;
        }
        let has_found = |table: &&Table| {
            let mut now = [0; 4];
            let is_there = read_program_bytes(table.shape.entry_of(u64::from(low)), &mut now);
            // Where code of the program's window has set it, and only there, it is one.
            is_there && u32::from_le_bytes(now) == found
        };
        if self.each().any(|table| has_found(&table)) {
            self.contested.push(low);
            self.bound.borrow().forget_targets(Span::new(
                self.window | u64::from(low),
                (self.window | u64::from(low)) + 1,
            ));
            self.each().filter(has_found).for_each(|table| table.set(u64::from(low), table.miss));
        }
    }

    /// Where a look-up of `target` leads, if it finds anything.
    fn slot_entry(&self, target: LiveAddr, executable: &impl Fn(LiveAddr) -> bool) -> Option<u64> {
        let has_entry = self.in_window(target) && executable(target);
        let table = self.looked_up_by_jumps();
        has_entry.then(|| table.get(target.0)).filter(|&code| code != table.miss)
    }

    /// Sets the entry of `address` in the window. Returns what it has then, if it may be set.
    fn set_entry(&self, what: For, address: LiveAddr, code: CodeAddr) -> Option<u64> {
        if self.contested.contains(&(address.0 as u32)) {
            return None;
        }
        // What puts the return address back lies in front of the entry.
        let in_front = match what == For::Return && self.puts_back && !self.jumps_alone.get() {
            true => PUTS_BACK.len() as u64,
            false => 0,
        };
        let code = code.0 - in_front;
        self.table(what).set(address.0, code);
        Some(code)
    }

    /// Whether a look-up of either kind looks at `address`.
    pub fn has(&self, address: u64) -> bool {
        let range = |table: &Table| table.shape.base..table.shape.end();
        self.each().any(|table| range(table).contains(&address))
            || self.far.shape_at(address).is_some()
    }
}

impl LookUpTables for LookUps {
    fn forks(&mut self, spans: impl Iterator<Item = Span>) {
        self.before_fork(spans);
    }

    fn fill(&self, what: For, span: Span, entries: impl Iterator<Item = (LiveAddr, CodeAddr)>) {
        self.set_all(what, span, entries);
    }

    fn filled(&self, what: For, address: LiveAddr, span: Span) {
        self.note_around(what, address, span);
    }

    fn cover(&self, span: Span) {
        self.bound.borrow().forget_targets(span);
        if let Some((start, end)) = self.part_in_window(span) {
            self.each().for_each(|table| table.cover(self.fd, start, end));
        }
        self.far.clear(span);
    }

    fn uncover(&self, span: Span) {
        // What is mapped there from now on may be the program's.
        self.around.borrow_mut().clear();
        self.bound.borrow().forget_targets(span);
        if let Some((start, end)) = self.part_in_window(span) {
            self.each().for_each(|table| table.uncover(start, end));
        }
        self.far.clear(span);
    }

    fn set(&self, what: For, address: LiveAddr, code: CodeAddr) {
        if !self.in_window(address) {
            return self.far.set(address, code.0);
        }
        if let Some(code) = self.set_entry(what, address, code) {
            let table = self.table(what);
            if core::ptr::eq(table, self.looked_up_by_jumps()) {
                self.bound.borrow().set(address, code);
            }
            self.note_written(page_down(table.shape.entry_of(address.0)));
        }
    }

    fn clear(&self, address: LiveAddr) {
        if !self.in_window(address) {
            return self.far.set(address, far::NOTHING);
        }
        self.bound.borrow().forget_targets(Span { start: address, end: address.plus(1) });
        for table in self.each() {
            table.set(address.0, table.miss);
            self.note_written(page_down(table.shape.entry_of(address.0)));
        }
    }

    fn far_window(&mut self, address: LiveAddr) -> Option<FarWindow> {
        match self.in_window(address) {
            true => None,
            false => self.far.window(address),
        }
    }

    fn becomes_constant(
        &self,
        span: Span,
        is_private: impl Fn(LiveAddr) -> bool,
        executable: impl Fn(LiveAddr) -> bool,
    ) {
        self.sort_written();
        // (To read an entry that was never set would map pages of the file, and most words' targets have not been called.)
        let entry = |target: LiveAddr| match self.may_be_set(self.looked_up_by_jumps(), target) {
            true => self.slot_entry(target, &executable),
            false => None,
        };
        self.bound.borrow_mut().add(span, is_private, entry);
    }

    fn is_read_only(&self, span: Span, is_private: impl Fn(LiveAddr) -> bool) {
        self.bound.borrow_mut().arm(span, is_private);
    }

    fn fill_slot(&self, slow: CodeAddr, gpr: &[u64; 16], executable: impl Fn(LiveAddr) -> bool) {
        let entry = |target: LiveAddr| self.slot_entry(target, &executable);
        self.bound.borrow_mut().fill(slow.0, gpr, entry);
    }

    fn switches(&self, is_plain: bool, jumps_alone: bool) {
        self.jumps_alone.set(jumps_alone);
        self.bound.borrow_mut().switch(is_plain);
    }

    fn plain_has_slots(&self, is_private: impl Fn(LiveAddr) -> bool) {
        self.bound.borrow_mut().add_plain(is_private);
    }

    fn changes(&self, span: Span) {
        self.bound.borrow_mut().remove(span);
    }

    fn code_at_once(&self, what: For) -> u64 {
        PAGE / self.table(what).shape.entry
    }
}

/// Writes the code of a landing page, at each of `places`, behind what puts the return address back there:
/// `mov dword gs:[TARGET + 4], high; jmp gs:[STUB_MISS]`. Returns what was mapped for it.
fn landing(high: u32, places: impl Iterator<Item = (u32, bool)>) -> Result<Range<u64>, i32> {
    let mut codes: Vec<_> = places
        .map(|(low, puts_back)| {
            let base = u64::from(high) << 32 | u64::from(low);
            let mut code = instrument::emit::Code { bytes: Vec::new(), base };
            if puts_back {
                code.put_back();
            }
            code.store_imm(TARGET + 4, high);
            code.jump_gs(STUB_MISS);
            code
        })
        .collect();
    codes.sort_unstable_by_key(|code| code.base);
    let end = |code: &instrument::emit::Code| code.base + code.bytes.len() as u64;
    let (Some(first), Some(last)) = (codes.first(), codes.last()) else { return Err(sys::EEXIST) };
    let page = page_down(first.base);
    let len = page_up(end(last)) - page;
    let overlap = codes.windows(2).any(|two| matches!(two, [a, b] if end(a) > b.base));
    if overlap || len > LONGEST_LANDING {
        return Err(sys::EEXIST);
    }
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    map_free(page, len, flags, -1, 0)?;
    // SAFETY: a new mapping; only this function knows of it.
    unsafe {
        for code in &codes {
            core::ptr::copy_nonoverlapping(
                code.bytes.as_ptr(),
                code.base as *mut u8,
                code.bytes.len(),
            );
        }
        let prot = sys::PROT_READ | sys::PROT_EXEC;
        sys::call(nr::MPROTECT, &[page as usize, len as usize, prot])?;
    }
    Ok(page..page + len)
}

/// `len` bytes that repeat the [`PIECE`] at `from`.
fn part_of(from: u64, len: u64) -> impl Iterator<Item = [u64; 2]> {
    let rest = (!len.is_multiple_of(PIECE)).then_some([from, len % PIECE]);
    (0..len / PIECE).map(move |_| [from, PIECE]).chain(rest)
}

/// A file of nothing but `parts`, each an address and a length.
fn write_file(parts: &[[u64; 2]]) -> Result<i32, i32> {
    /// That the kernel takes at once.
    const MOST_PARTS: usize = 1024;
    let len: u64 = parts.iter().map(|part| part[1]).sum();
    if sys::limit(sys::RLIMIT_FSIZE) < len {
        return Err(sys::ENOMEM);
    }
    let name = c"deprewrite-table";
    const MFD_CLOEXEC: usize = 1;
    // SAFETY: the kernel reads the name.
    let fd = unsafe { sys::call(nr::MEMFD_CREATE, &[name.as_ptr() as usize, MFD_CLOEXEC]) }?;
    for some in parts.chunks(MOST_PARTS) {
        let len: u64 = some.iter().map(|part| part[1]).sum();
        // SAFETY: the kernel reads the parts.
        let written = unsafe { sys::call(nr::WRITEV, &[fd, some.as_ptr() as usize, some.len()]) };
        if written != Ok(len as usize) {
            // SAFETY: made above.
            let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
            return Err(sys::ENOMEM);
        }
    }
    Ok(fd as i32)
}

/// Maps `start..start + len`, readable and writable, where nothing is.
fn map_free(start: u64, len: u64, flags: usize, fd: i32, offset: u64) -> Result<(), i32> {
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    map_free_with(start, len, prot, flags, fd, offset)
}

/// The same with other rights.
pub fn map_free_with(
    start: u64,
    len: u64,
    prot: usize,
    flags: usize,
    fd: i32,
    offset: u64,
) -> Result<(), i32> {
    let map = |how| {
        // SAFETY: replaces nothing.
        unsafe { sys::mmap(start, len, prot, flags | how, fd, offset) }
    };
    let mapped = match map(sys::MAP_FIXED_NOREPLACE) {
        Err(sys::EEXIST) if ceiling::has_nothing(&(start..start + len)) => map(sys::MAP_FIXED),
        result => result,
    }?;
    if mapped != start {
        // Linux before 4.17 takes the address for a hint.
        // SAFETY: just mapped.
        unsafe { sys::call(nr::MUNMAP, &[mapped as usize, len as usize]) }?;
        return Err(sys::EEXIST);
    }
    Ok(())
}

struct Table {
    shape: TableShape,
    /// Entries that the file has for it.
    count: u64,
    /// Where its part of the file starts.
    place: u64,
    /// Where an entry leads that was never set.
    miss: u64,
    /// Some of it could not be mapped from the file.
    is_filled: Cell<bool>,
}

impl Table {
    fn file_len(&self) -> u64 {
        self.count * self.shape.entry
    }

    /// Makes entries for `start..end`: all of them miss.
    fn cover(&self, fd: i32, start: u64, end: u64) {
        let first = self.shape.entry_of(start);
        self.map(fd, first, first + self.shape.entry * (end - start));
    }

    /// Maps `first..last` of the table: all entries miss.
    fn map(&self, fd: i32, first: u64, last: u64) {
        let mut at = first;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        while at < last {
            let len = self.file_len().min(last - at);
            let flags = sys::MAP_PRIVATE | sys::MAP_FIXED | sys::MAP_NORESERVE;
            let mapped = match fd {
                -1 => Err(0),
                // SAFETY: this part of the address space is the table's.
                fd => sys::beyond_limits(|| unsafe {
                    sys::mmap(at, len, prot, flags, fd, self.place)
                }),
            };
            if mapped.is_err() {
                // SAFETY: as above.
                let anonymous = sys::beyond_limits(|| unsafe {
                    sys::mmap(at, len, prot, flags | sys::MAP_ANONYMOUS, -1, 0)
                });
                if anonymous.is_err() {
                    crate::die!("no address space for the table of translations");
                }
                self.fill(at, len);
                self.is_filled.set(true);
            }
            at += len;
        }
        crate::base::own::not_in_dumps(first, last - first);
    }

    fn uncover(&self, start: u64, end: u64) {
        let (at, len) = (self.shape.entry_of(start), self.shape.entry * (end - start));
        // SAFETY: this part of the address space is the table's.
        let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
        if ARE_KEPT.load(Relaxed) || ceiling::is_kept(&(at..at + len)) {
            reserve(page_down(at), page_up(at + len) - page_down(at));
        }
    }

    fn set(&self, address: u64, code: u64) {
        let entry = self.shape.entry_of(address);
        // SAFETY: the entry is mapped; other threads read it as one word.
        unsafe {
            match self.shape.entry {
                4 => (*(entry as *const AtomicU32)).store(code as u32, Release),
                _ => (*(entry as *const AtomicU64)).store(code, Release),
            }
        }
    }

    /// What the entry of `address` has, which is mapped.
    fn get(&self, address: u64) -> u64 {
        let entry = self.shape.entry_of(address);
        match self.shape.entry {
            4 => {
                // SAFETY: as `set`.
                let low = unsafe { (*(entry as *const AtomicU32)).load(Acquire) };
                self.miss >> 32 << 32 | u64::from(low)
            }
            // SAFETY: as `set`.
            _ => unsafe { (*(entry as *const AtomicU64)).load(Acquire) },
        }
    }

    fn fill(&self, at: u64, len: u64) {
        let word = match self.shape.entry {
            4 => self.miss << 32 | self.miss & 0xffff_ffff,
            _ => self.miss,
        };
        // SAFETY: freshly mapped memory of this length.
        unsafe { core::slice::from_raw_parts_mut(at as *mut u64, (len / 8) as usize) }.fill(word);
    }
}
