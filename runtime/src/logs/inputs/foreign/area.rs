//! A piece of memory that other processes may store to: its pages, of which each is open to the program or closed, and what the
//! program has left there.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::attempt;
use crate::base::own::anonymous;
use crate::base::program::try_read_program_bytes;
use crate::base::sys::{self, nr};
use crate::logs::inputs::at_hand;
use crate::logs::inputs::foreign::credit::{self, reading_pays, Credit, ACCESS, WAITING};
use crate::logs::inputs::foreign::elsewhere;
use crate::logs::inputs::foreign::given::holds_locks;
use crate::logs::inputs::view::is_equal;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{page_down, page_up, PAGE};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Most turns of such a loop.
const LOOP: u64 = 8;

/// What is only read, and used too often for that, stays open for so long.
const REST_NS: u64 = 10_000_000;

/// Threads in calls that were given addresses of `for_kernel`.
pub static WAITING_THREADS: AtomicU32 = AtomicU32::new(0);
/// An area is used too often to be followed so.
pub static CROWDED: AtomicBool = AtomicBool::new(false);

/// What the program has left somewhere.
pub enum Left {
    Copied(Vec<u8>),
    /// At a distance that generated code knows ([`elsewhere`]): the memory is closed for good.
    Apart(&'static mut [u8]),
}

impl Deref for Left {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Left::Copied(bytes) => bytes,
            Left::Apart(bytes) => bytes,
        }
    }
}

impl DerefMut for Left {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Left::Copied(bytes) => bytes,
            Left::Apart(bytes) => bytes,
        }
    }
}

/// A mapping: whole pages, which the program may load from, and store to if it may.
pub struct Area {
    pub start: u64,
    /// What the program has left there, as far as it is known; nothing until others have it, too.
    pub left: Left,
    /// Its pages that are open.
    pub open: Vec<bool>,
    /// Others have it, too: they have stored there, or it is made for that.
    pub is_shared: bool,
    /// What is there is left in a file.
    pub is_file: bool,
    /// The program may store there.
    pub is_writable: bool,
    /// Behind the call that is under way it is not followed any more.
    pub is_ending: bool,
    /// Others can see how often it is mapped: it cannot lie elsewhere, too.
    pub is_counted: bool,
    /// Threads in a call that was given some of it.
    pub using: u32,
    /// Where the same memory lies once more, for the kernel (`for_kernel`), or 0.
    again_at: u64,
    /// Of its own, unless it is only read and nobody was seen to change it.
    credit: Credit,
    /// Others have stored there.
    changed: bool,
    /// Where it was used last: address, pc, turns.
    last: (u64, u64, u64),
    /// Closed for good: pages may be open that nobody closes by himself.
    any_open: bool,
    /// The same, and the program may have used them.
    any_used: bool,
    /// It is open until then, or 0.
    rests_until: u64,
    /// How often it got all its credit back, as the process could not be watched instead.
    grants: u32,
}

impl Area {
    /// `left` is what the program has left there, or nothing if nobody else has it until a process is forked.
    pub fn new(range: &Range<u64>, left: Vec<u8>, is_shared: bool, is_writable: bool) -> Area {
        let is_file = !left.is_empty();
        Area {
            start: range.start,
            left: Left::Copied(left),
            open: vec![true; ((range.end - range.start) / PAGE) as usize],
            is_shared,
            is_file,
            is_writable,
            is_ending: false,
            is_counted: false,
            using: 0,
            again_at: 0,
            credit: Credit::new(if is_shared { credit::MOST } else { credit::LITTLE }),
            changed: false,
            last: (0, 0, 0),
            any_open: false,
            any_used: false,
            rests_until: 0,
            grants: 0,
        }
    }

    /// Whether it is closed for good, and open elsewhere.
    pub fn is_kept_closed(&self) -> bool {
        matches!(self.left, Left::Apart(_))
    }

    /// It is closed for good from here on: instructions find it open elsewhere. False if it cannot be.
    pub fn keep_closed(&mut self) -> bool {
        if self.is_kept_closed() || self.is_counted {
            return self.is_kept_closed();
        }
        if !self.sleeps() && self.is_writable {
            for page in self.open_pages() {
                self.keep(page);
            }
        }
        let known = core::mem::replace(&mut self.left, Left::Copied(Vec::new()));
        let at = elsewhere::open_at(self.start);
        let is_kept = self.is_kept_as(|left| match known.is_empty() {
            true => copy_memory(left, at),
            false => {
                copy_but_zeros(left, &known);
                true
            }
        });
        if !is_kept {
            self.left = known;
            self.close_all();
        }
        is_kept
    }

    /// The same, where `fill` puts what the program has left into memory that is all zero, and says whether that is known.
    pub fn is_kept_as(&mut self, fill: impl FnOnce(&mut [u8]) -> bool) -> bool {
        // (As one mapping.)
        self.open_all();
        let range = self.start..self.end();
        let Some(left) = elsewhere::begins(&range, self.rights()) else { return false };
        if !fill(left) {
            elsewhere::ends(&range);
            return false;
        }
        self.take_again_away();
        self.left = Left::Apart(left);
        self.again_at = elsewhere::open_at(self.start);
        self.credit = Credit::new(credit::LITTLE);
        self.is_shared = true;
        self.close_all();
        true
    }

    /// The protection with which the program has mapped it.
    fn rights(&self) -> usize {
        match self.is_writable {
            true => sys::PROT_READ | sys::PROT_WRITE,
            false => sys::PROT_READ,
        }
    }

    /// Whether `page` is one of its.
    pub fn has(&self, page: u64) -> bool {
        (self.start..self.end()).contains(&page)
    }

    /// Whether it shares bytes with `start..end`.
    pub fn meets(&self, start: u64, end: u64) -> bool {
        start < self.end() && self.start < end
    }

    /// The program cannot store there, and nobody was seen to.
    pub fn is_only_read(&self) -> bool {
        !self.is_writable && !self.is_shared
    }

    /// Whether it can be closed again behind one access, which was paid for.
    pub fn has_credit(&self) -> bool {
        self.is_only_read()
            || self.is_kept_closed()
            || self.credit.left > 0 && (!self.is_scarce() || self.is_shared)
    }

    pub fn end(&self) -> u64 {
        self.start + self.open.len() as u64 * PAGE
    }

    pub fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        (self.start..self.end()).step_by(PAGE as usize)
    }

    fn index(&self, page: u64) -> usize {
        ((page - self.start) / PAGE) as usize
    }

    pub fn is_open(&self, page: u64) -> bool {
        self.open.get(self.index(page)).is_none_or(|open| *open)
    }

    /// False if the kernel has no room for so many mappings.
    pub fn open(&mut self, page: u64) {
        self.any_open = true;
        let index = self.index(page);
        if protect(page..page + PAGE, self.rights()) {
            self.open.get_mut(index).into_iter().for_each(|open| *open = true);
            return;
        }
        // No room for another mapping: as one it needs none.
        if !protect(self.start..self.end(), self.rights()) {
            crate::die!("no memory for the mappings of the program");
        }
        self.open.fill(true);
    }

    pub fn open_all(&mut self) {
        if self.open.iter().all(|open| *open) {
            return;
        }
        if !protect(self.start..self.end(), self.rights()) {
            crate::die!("no memory for the mappings of the program");
        }
        self.open.fill(true);
        self.any_open = true;
    }

    /// Opens the pages of `range`, as far as they are its, for the kernel, which is given them. What others have stored there
    /// is known (`with`). Returns which these are.
    pub fn lend(&mut self, range: &Range<u64>, with: impl FnMut(u64, &[u8])) -> Range<u64> {
        let pages = self.pages_of(range);
        self.look_at(&pages, with);
        match protect(pages.clone(), self.rights()) {
            true => pages,
            false => {
                self.open_all();
                self.start..self.end()
            }
        }
    }

    /// The kernel has had these pages, or all.
    pub fn give_back(&mut self, pages: &Range<u64>) {
        if !protect(pages.clone(), 0) {
            crate::die!("no memory for the mappings of the program");
        }
        let (first, end) = (self.index(pages.start), self.index(pages.end));
        self.open.get_mut(first..end).into_iter().for_each(|open| open.fill(false));
    }

    /// Whole pages of `range`, as far as they are its.
    fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        page_down(range.start.max(self.start))..page_up(range.end.min(self.end()))
    }

    /// [`Area::look`] for each page that has a part of `range`.
    pub fn look_at(&mut self, range: &Range<u64>, mut with: impl FnMut(u64, &[u8])) {
        for page in self.pages_of(range).step_by(PAGE as usize) {
            self.look(page, &mut with);
        }
    }

    /// The program goes on with pages that are open although it is closed for good.
    pub fn is_used(&mut self) {
        self.any_used = true;
    }

    /// Closes what is open although it is closed for good: the program has left there what is there, if it may have used it.
    pub fn close_again(&mut self, mut with: impl FnMut(u64, &[u8])) {
        if !core::mem::take(&mut self.any_open) {
            return;
        }
        let may_have_stored = core::mem::take(&mut self.any_used) && self.is_writable;
        let open = self.open_pages();
        for &page in &open {
            match may_have_stored {
                true => self.keep(page),
                false => self.look(page, &mut with),
            };
        }
        if !open.is_empty() {
            self.close_all();
        }
    }

    fn open_pages(&self) -> Vec<u64> {
        self.pages().filter(|&page| self.is_open(page)).collect()
    }

    /// The program has left there what is known already.
    pub fn close_page(&mut self, page: u64) {
        let index = self.index(page);
        if protect(page..page + PAGE, 0) {
            self.open.get_mut(index).into_iter().for_each(|open| *open = false);
        }
    }

    /// Nobody else has it until a process is forked.
    pub fn sleeps(&self) -> bool {
        self.left.is_empty()
    }

    /// The program has left there what is there now. False if that cannot be known.
    pub fn close(&mut self) -> bool {
        if self.sleeps() || self.using > 0 || !self.open.contains(&true) {
            return true;
        }
        for page in self.pages() {
            if self.is_open(page) && !self.keep(page) {
                return false;
            }
        }
        let closed = protect(self.start..self.end(), 0);
        if closed {
            self.open.fill(false);
        }
        closed
    }

    /// It is used too often, and only read: it stays open for a while.
    pub fn rests(&mut self) {
        self.open_all();
        self.rests_until = sys::monotonic_ns() + REST_NS;
    }

    /// Closes what the program only reads, in front of a call. What is there now is seen; what rests stays open.
    pub fn look_and_close(&mut self, mut with: impl FnMut(u64, &[u8])) {
        if self.rests_until > sys::monotonic_ns() || !self.open.contains(&true) {
            return;
        }
        self.rests_until = 0;
        for page in self.open_pages() {
            self.look(page, &mut with);
        }
        self.close_all();
    }

    /// Others have it from now on, too. False if what the program has left there cannot be known.
    pub fn wakes(&mut self) -> bool {
        if self.sleeps() {
            self.left = Left::Copied(vec![0; self.open.len() * PAGE as usize]);
        }
        self.pages().all(|page| self.keep(page))
    }

    /// What others have stored is noted as written for a call. All is closed behind it, unless it is in use.
    pub fn show(&mut self, thread: &mut Thread) {
        if self.sleeps() {
            return;
        }
        if !self.is_kept_closed() {
            self.open_all();
        }
        for page in self.pages() {
            self.look(page, |at, bytes| writes(thread, at, bytes));
        }
        self.close_all();
    }

    /// Whether the process has the memory.
    pub fn is_there(&mut self) -> bool {
        if self.is_kept_closed() {
            return protect(self.start..self.end(), 0);
        }
        let is_there = protect(self.start..self.end(), self.rights());
        self.open.fill(true);
        is_there
    }

    /// The program has left there what is known already.
    pub fn close_all(&mut self) {
        let is_free = || self.using == 0 && !holds_locks();
        let can = !self.sleeps() && (self.is_kept_closed() || is_free());
        if can && protect(self.start..self.end(), 0) {
            self.open.fill(false);
            self.any_open = false;
        }
    }

    /// Where the same memory lies for the kernel.
    pub fn again_at(&mut self) -> Option<u64> {
        let len = self.open.len() as u64 * PAGE;
        if self.again_at == 0 {
            let at = anonymous(len).ok()?;
            // An old length of 0 makes a second mapping.
            let flags = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;
            let args = [self.start as usize, 0, len as usize, flags, at as usize];
            // SAFETY: memory of the runtime, mapped just now, which becomes this.
            unsafe { sys::call(nr::MREMAP, &args) }.ok()?;
            protect(at..at + len, self.rights()).then_some(())?;
            self.again_at = at;
        }
        Some(self.again_at)
    }

    /// It is not followed any more.
    pub fn ends(&mut self) {
        if self.is_kept_closed() {
            elsewhere::ends(&(self.start..self.end()));
            return self.left = Left::Copied(Vec::new());
        }
        self.take_again_away();
    }

    fn take_again_away(&mut self) {
        let at = core::mem::take(&mut self.again_at);
        // (A thread may be about to wait there.)
        if at != 0 && WAITING_THREADS.load(Relaxed) == 0 {
            // SAFETY: memory of the runtime, which nobody uses any more.
            let _ =
                unsafe { sys::call(nr::MUNMAP, &[at as usize, self.open.len() * PAGE as usize]) };
        }
    }

    fn known(&mut self, page: u64) -> Option<&mut [u8]> {
        let from = (page - self.start) as usize;
        self.left.get_mut(from..from + PAGE as usize)
    }

    /// Where what lies at `at` can be read.
    fn readable_at(&self, at: u64) -> u64 {
        match self.is_kept_closed() {
            true => elsewhere::open_at(at),
            false => at,
        }
    }

    pub fn keep(&mut self, page: u64) -> bool {
        let from = self.readable_at(page);
        let Some(known) = self.known(page) else { return false };
        try_read_program_bytes(from, known) == Ok(PAGE as usize)
    }

    /// What is at `page`, which is open now, other than the program has left it: where, and the bytes. That is known from
    /// now on. False if it cannot be read: a file has become shorter.
    pub fn look(&mut self, page: u64, with: impl FnMut(u64, &[u8])) -> bool {
        let mut now = vec![0; PAGE as usize];
        let from = self.readable_at(page);
        let read = match self.is_kept_closed() {
            true => at_hand::read(from, &mut now),
            false => try_read_program_bytes(from, &mut now),
        };
        if read != Ok(PAGE as usize) {
            return false;
        }
        self.sees(page, &now, with)
    }

    /// The same, where the processor reads it. (Not where signals are blocked.)
    pub fn look_at_once(&mut self, page: u64, with: impl FnMut(u64, &[u8])) -> bool {
        let mut now = [0u8; PAGE as usize];
        let (to, from) = (now.as_mut_ptr() as u64, self.readable_at(page));
        // SAFETY: what is copied to is borrowed; the rest is the program's memory.
        let is_there = unsafe { attempt::copy(to, from, PAGE) };
        is_there && self.sees(page, &now, with)
    }

    fn sees(&mut self, page: u64, now: &[u8], mut with: impl FnMut(u64, &[u8])) -> bool {
        let Some(known) = self.known(page) else { return false };
        let mut any = false;
        for (from, bytes) in differences(known, now) {
            any = true;
            with(page + from as u64, bytes);
        }
        if any {
            known.copy_from_slice(now);
        }
        if any {
            self.is_shared_now();
            self.changed = true;
        }
        true
    }

    /// The same of all pages that were closed, or that the program cannot have used since they were opened (`is_shown`); of
    /// the others what is there now is known. All are open.
    pub fn open_and_look(
        &mut self,
        thread: &mut Thread,
        with: impl Fn(&mut Thread, u64, &[u8]),
        is_shown: bool,
    ) {
        if self.sleeps() {
            return;
        }
        let were_open = self.open.clone();
        self.open_all();
        for (page, was_open) in self.pages().zip(were_open) {
            let may_have_stored = was_open && !is_shown && self.is_writable;
            match may_have_stored && !self.is_kept_closed() {
                true => self.keep(page),
                false => self.look(page, |at, bytes| with(thread, at, bytes)),
            };
        }
    }

    /// Whether others have stored there.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// The most that it has to its credit. With half of that its pages stay open until the next call; if others use them, too,
    /// they are closed as before until then, and the process is watched from there on.
    fn most_credit(&self) -> u32 {
        // What is closed for good is worth marks soon.
        match self.is_shared && !self.is_kept_closed() {
            true => credit::MOST,
            false => credit::LITTLE,
        }
    }

    pub fn is_scarce(&self) -> bool {
        self.credit.left < self.most_credit() / 2
    }

    /// The process cannot be watched instead: it is closed on, at its price, as far as a fraction of a second goes. False if
    /// that is over.
    pub fn is_granted(&mut self) -> bool {
        const MOST: u32 = 16;
        if self.is_kept_closed() {
            return true;
        }
        if self.is_scarce() && self.is_shared {
            self.credit = Credit::new(credit::MOST);
            self.grants += 1;
        }
        self.grants <= MOST
    }

    /// Others have it, too.
    pub fn is_shared_now(&mut self) {
        if !self.is_shared {
            self.credit = Credit::new(credit::MOST);
        }
        self.is_shared = true;
    }

    /// What an access costs: address, pc, turns. One that only loads may wait for others, in a loop around it.
    pub fn price(&mut self, access: (u64, u64, u64), loads_only: bool) -> u32 {
        let (last_address, last_pc, last_turns) = core::mem::replace(&mut self.last, access);
        let (address, pc, turns) = access;
        let is_same = (last_address, last_pc) == (address, pc);
        match loads_only && is_same && turns.wrapping_sub(last_turns) <= LOOP {
            true => WAITING,
            false => ACCESS,
        }
    }

    /// Whether it can still be closed now and then, at this price; if others use it, too, it is, until the process is watched
    /// instead.
    pub fn can_go_on(&mut self, price: u32) -> bool {
        if self.is_only_read() {
            return reading_pays(price);
        }
        let most = self.most_credit();
        let can_pay = self.credit.pays(price, most);
        if self.is_scarce() && self.is_shared {
            CROWDED.store(true, Relaxed);
        }
        can_pay || self.is_shared
    }
}

/// Copies what is not zero, by the page, to where all is zero.
fn copy_but_zeros(to: &mut [u8], from: &[u8]) {
    let pages = to.chunks_mut(PAGE as usize).zip(from.chunks(PAGE as usize));
    for (to, from) in pages.filter(|(_, from)| from.iter().any(|&byte| byte != 0)) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// The same of memory that lies at `at`, as far as it is there: who reads the rest makes the kernel find memory for that. False
/// if not all of it can be read.
fn copy_memory(to: &mut [u8], at: u64) -> bool {
    const PIECE: usize = 1 << 20;
    let may_be_out = has_swapped();
    let mut bytes = vec![0; PAGE as usize];
    to.chunks_mut(PIECE).zip((at..).step_by(PIECE)).all(|(to, at)| {
        let mut is_there = [1u8; PIECE / PAGE as usize];
        let args = [at as usize, to.len(), is_there.as_mut_ptr() as usize];
        // SAFETY: the kernel writes a byte for each page.
        if may_be_out || unsafe { sys::call(MINCORE, &args) }.is_err() {
            is_there.fill(1);
        }
        let pages = to.chunks_mut(PAGE as usize).zip((at..).step_by(PAGE as usize)).zip(is_there);
        let mut there = pages.filter(|(_, is_there)| is_there & 1 != 0);
        there.all(|((to, at), _)| {
            let is_read = try_read_program_bytes(at, &mut bytes) == Ok(to.len());
            copy_but_zeros(to, &bytes);
            is_read
        })
    })
}

const MINCORE: usize = 27;

/// Whether some memory of the machine is on a disk: what is not there may have contents then.
fn has_swapped() -> bool {
    const SYSINFO: usize = 99;
    // struct sysinfo: seconds, three loads, bytes of memory (all, free, shared, of buffers), of swap (all, free), and more.
    let mut words = [0u64; 14];
    // SAFETY: the kernel writes 112 bytes.
    let asked = unsafe { sys::call(SYSINFO, &[words.as_mut_ptr() as usize]) };
    let [_, _, _, _, _, _, _, _, all, free, ..] = words;
    asked.is_err() || all != free
}

fn protect(range: Range<u64>, protection: usize) -> bool {
    let args = [range.start as usize, (range.end - range.start) as usize, protection];
    // SAFETY: memory of the program's, which it finds open wherever it comes to it.
    unsafe { sys::call(nr::MPROTECT, &args) }.is_ok()
}

/// Where `new` is not as `old`, and what is there: few bytes that are the same in between are among them.
fn differences<'a>(old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
    const GAP: usize = 32;
    const LINE: usize = 64;
    let mut at = 0;
    core::iter::from_fn(move || {
        let differs = |i: &usize| old.get(*i) != new.get(*i);
        // Most is the same.
        let is_same = |at: usize| {
            let line = |all: &'a [u8]| all.get(at..at + LINE);
            line(old).zip(line(new)).is_some_and(|(old, new)| is_equal(old, new))
        };
        while is_same(at) {
            at += LINE;
        }
        let first = (at..new.len()).find(differs)?;
        let mut end = first + 1;
        while let Some(next) = (end..new.len().min(end + GAP)).find(differs) {
            end = next + 1;
        }
        at = end;
        Some((first, new.get(first..end)?))
    })
}

/// What others have stored comes with the call.
pub fn writes(thread: &mut Thread, at: u64, bytes: &[u8]) {
    thread.event(WHOLE_UNIT, &Event::Written { address: LiveAddr(at), bytes });
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests may panic")]
mod tests {
    use super::differences;

    #[test]
    fn places_of_change_are_found() {
        let old = [0u8; 200];
        let mut new = old;
        assert_eq!(differences(&old, &new).count(), 0);
        (new[3], new[20], new[150], new[199]) = (1, 2, 3, 4);
        let found: Vec<_> = differences(&old, &new).map(|(at, bytes)| (at, bytes.len())).collect();
        assert_eq!(found, [(3, 18), (150, 1), (199, 1)]);
    }
}
