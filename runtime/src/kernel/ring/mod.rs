//! The last part of a recording of inputs is kept (`DEP_RING`), and can be replayed.
//!
//! What is recorded is cut into intervals. Each begins at an instruction of the thread that has the baton,
//! while all other threads stand still: there a copy of the process is made (`keeper`), which sleeps and
//! so keeps memory as it was. Events of intervals that are given up go out of the file, their copy goes, too.
//! At the end, and when somebody asks for it, the oldest copy writes down what it is (`dump`): with that
//! a replay can begin there.
//!
//! Watched threads need no copies: [`parts`].
//!
//! The youngest copy keeps the time: it counts ticks, and kicks the thread that runs, which looks here
//! before it goes on.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod copied;
mod dump;
mod keeper;
mod lines;
pub mod parts;

use crate::base::census;
use crate::base::facts::facts;
use crate::base::lock::{Forked, Lock};
use crate::base::namespaces;
use crate::base::once::Once;
use crate::base::sys;
use crate::base::vectors::{save_vectors, vectors_len};
use crate::kernel::baton;
use crate::logs::inputs::{mappings, unfollowed, view};
use crate::recording::lifecycle::Phase;
use crate::recording::trace_file::trace;
use crate::thread::ending::set_before_last_words;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::ring::Ring;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use keeper::Keeper;

pub use dump::Told;

/// Into so many intervals the part that is kept is cut.
const PARTS: u64 = 4;

/// There is a ring.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// The last tick that was looked at.
static SEEN: AtomicU32 = AtomicU32::new(0);
/// An interval begins as soon as one can.
static FORCED: AtomicBool = AtomicBool::new(false);
/// What does not change.
static SETTINGS: Once<Settings> = Once::new();
static KEPT: Lock<Kept> = Lock::new(Kept::new());

/// What is known when the program starts.
pub struct Settings {
    /// How much is kept.
    pub ring: Ring,
    /// Where its interpreter is, or 0.
    pub interpreter: u64,
    /// The part of the window that code cache and libraries share.
    pub area: core::ops::Range<u64>,
    /// When that was (ns since the epoch).
    pub since_ns: u64,
}

/// An interval.
struct Interval {
    number: u32,
    /// The copy of its beginning; none: that is where the recording begins.
    keeper: Option<Keeper>,
    /// What happened in it, in the ring's unit, once it is over.
    amount: u64,
}

struct Kept {
    intervals: VecDeque<Interval>,
    /// Blocks of the threads that are recorded, with the baton or without.
    threads: Vec<u64>,
    /// Turns of all threads when the interval began, bytes of events, time.
    turns: u64,
    bytes: u64,
    time: u64,
    /// What it is that keeps intervals from beginning, once it was said.
    said: bool,
    /// What is recorded does not begin where the program does.
    is_child: bool,
}

impl Kept {
    const fn new() -> Kept {
        Kept {
            intervals: VecDeque::new(),
            threads: Vec::new(),
            turns: 0,
            bytes: 0,
            time: 0,
            said: false,
            is_child: false,
        }
    }

    /// Turns of all threads. (Those that have ended are gone: what matters is how much is added.)
    fn all_turns(&self) -> u64 {
        // SAFETY: blocks of threads that have not ended, which stand still while this one has the baton.
        let turns = |&at: &u64| unsafe { &*(at as *const Thread) }.turns();
        self.threads.iter().map(turns).fold(0, u64::wrapping_add)
    }

    /// How much has happened since the interval began, in the ring's unit.
    fn amount(&self, ring: Ring) -> u64 {
        match ring {
            Ring::Turns(_) => self.all_turns().saturating_sub(self.turns),
            Ring::Bytes(_) => trace().log().saturating_sub(self.bytes),
            Ring::Time(_) => sys::now_ns().saturating_sub(self.time),
        }
    }

    /// Whether what is left in the file does not begin where the program does.
    fn is_cut(&self) -> bool {
        self.is_child || self.intervals.front().is_some_and(|oldest| oldest.number > 0)
    }

    /// The first interval with a copy.
    fn oldest(&self) -> Option<&Keeper> {
        self.intervals.iter().find_map(|interval| interval.keeper.as_ref())
    }
}

/// The program starts.
pub fn start(settings: Settings) {
    if view::may_be_watched() {
        return parts::start(settings.ring);
    }
    SETTINGS.install(settings);
    if !keeper::prepare() {
        return crate::say!("no memory for a ring: everything is kept (DEP_RING)");
    }
    KEPT.lock().intervals.push_back(Interval { number: 0, keeper: None, amount: 0 });
    set_before_last_words(before_last_words);
    ACTIVE.store(true, Relaxed);
    FORCED.store(true, Relaxed);
}

/// Whether there is a ring.
pub fn is_active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Whether the thread that runs is to look whether an interval begins.
pub fn is_due() -> bool {
    is_active() && (FORCED.load(Relaxed) || keeper::tick() != SEEN.load(Relaxed))
}

// --- threads ---

/// The thread is recorded from here on.
pub fn enters(thread: &Thread) {
    if is_active() {
        KEPT.lock().threads.push(thread.block.this);
    }
}

/// The thread is not recorded any more.
pub fn leaves(thread: &Thread) {
    parts::leaves(thread);
    if is_active() {
        let at = thread.block.this;
        let mut kept = KEPT.lock();
        kept.threads.retain(|&known| known != at);
        // The rest have made more turns than all had.
        kept.turns = kept.turns.saturating_sub(thread.turns());
    }
}

/// The thread is about to let others run, and goes on at `pc`: what the processor has of it is put where
/// others find it.
pub fn stands_at(thread: &mut Thread, pc: u64) {
    if !is_active() {
        return;
    }
    keep_vectors(thread);
    thread.standing.pc = pc;
    thread.standing.fs_base = thread.fs_base();
}

/// The processor's state goes to memory of the thread's; false if there is none.
fn keep_vectors(thread: &mut Thread) -> bool {
    if thread.standing.vectors == 0 {
        thread.standing.vectors = crate::base::own::anonymous(vectors_len()).unwrap_or(0);
    }
    if thread.standing.vectors == 0 {
        return false;
    }
    // SAFETY: the area is large enough, and the thread's.
    unsafe { save_vectors(thread.standing.vectors) };
    true
}

// --- intervals ---

/// The thread, with its state in its block, is about to go on at `resume_original`, with these registers
/// `valid`, and has the baton: does an interval begin here?
pub fn look(thread: &mut Thread, valid: u64) {
    if !is_due() || valid & 0xffff != 0xffff || !can_begin(thread) {
        return;
    }
    SEEN.store(keeper::tick(), Relaxed);
    let Some(settings) = SETTINGS.try_get() else { return };
    let part = (settings.ring.amount() / PARTS).max(1);
    let amount = KEPT.lock().amount(settings.ring);
    if !FORCED.load(Relaxed) && amount < part {
        return;
    }
    let is_elsewhere = || {
        let why = "children are in another PID namespace (unshare with CLONE_NEWPID)";
        namespaces::children_are_elsewhere().then_some(why)
    };
    if let Some(why) = mappings::cannot_be_copied().or_else(is_elsewhere) {
        let said = core::mem::replace(&mut KEPT.lock().said, true);
        if !said {
            crate::say!("{why}: the ring keeps all that follows");
        }
        return;
    }
    begin(thread, settings, amount);
}

/// Whether nothing is under way that a copy would not have, or would have half.
fn can_begin(thread: &Thread) -> bool {
    // A filter of system calls might end the program for what a copy does.
    let is_free = thread.filter == 0 && thread.kernel_filter == 0;
    let is_quiet = is_free
        && !thread.mailbox.is_pending()
        && thread.raised == 0
        && thread.handler_mask.is_none()
        && !thread.vfork_child
        && !census::is_lent();
    is_quiet
        && thread.recorder.to_file()
        && trace().phase() == Phase::Open
        && KEPT.lock().threads.len() as u32 == census::live()
}

/// An interval begins; `amount`: what happened in the one before.
fn begin(thread: &mut Thread, settings: &Settings, amount: u64) {
    let pc = thread.resume_original;
    let state = thread.register_state(pc, 0xffff);
    thread.event(WHOLE_UNIT, &Event::Arrived(&state));
    thread.event(WHOLE_UNIT, &Event::Yields);
    stands_at(thread, pc);
    let stretch = baton::next_stretch(thread);
    let mut kept = KEPT.lock();
    let copied = copied::Copied::of(thread, &kept.threads, settings, stretch);
    let number = kept.intervals.back().map_or(0, |last| last.number + 1);
    match keeper::make(copied, number) {
        Ok(keeper) => {
            FORCED.store(false, Relaxed);
            if let Some(last) = kept.intervals.back_mut() {
                last.amount = amount;
            }
            kept.intervals.push_back(Interval { number, keeper: Some(keeper), amount: 0 });
            (kept.turns, kept.time) = (kept.all_turns(), sys::now_ns());
            kept.bytes = trace().next_interval(number);
            give_up(&mut kept, settings.ring);
            keeper::set_places(kept.oldest(), kept.is_cut());
        }
        Err(errno) => {
            if !core::mem::replace(&mut kept.said, true) {
                crate::say!(
                    "the process cannot be copied (error {errno}): the ring keeps more than was asked for"
                );
            }
        }
    }
    drop(kept);
    baton::note_runs(thread);
    if unfollowed::has_happened() {
        let why = "something before the part that is kept could not be followed";
        thread.event(WHOLE_UNIT, &Event::Unfollowed { pc: LiveAddr(pc), why: why.as_bytes() });
    }
}

/// What is not needed any more goes.
fn give_up(kept: &mut Kept, ring: Ring) {
    loop {
        let rest = kept.intervals.iter().skip(1).map(|interval| interval.amount);
        if kept.intervals.len() < 3 || rest.fold(0, u64::saturating_add) < ring.amount() {
            return;
        }
        let Some(next) = kept.intervals.get(1).map(|interval| interval.number) else { return };
        // Whenever the process is killed, one copy has to know that it is the oldest.
        let mut others = kept.intervals.iter().skip(1);
        keeper::set_places(others.find_map(|interval| interval.keeper.as_ref()), true);
        let is_dropped = trace().drop_before(next);
        if !is_dropped && !core::mem::replace(&mut kept.said, true) {
            crate::say!("the file system cannot give room back: the trace is larger than the ring");
        }
        let oldest = kept.intervals.pop_front();
        oldest.and_then(|interval| interval.keeper).into_iter().for_each(Keeper::end);
    }
}

// --- the end ---

/// All events are in the trace: the oldest copy adds what it is, if it is needed, and all go.
fn before_last_words() {
    if !is_active() {
        return;
    }
    ACTIVE.store(false, Relaxed);
    let mut kept = KEPT.lock();
    if kept.is_cut() {
        append(&kept);
    }
    kept.intervals.drain(..).filter_map(|interval| interval.keeper).for_each(Keeper::end);
}

/// The oldest copy appends to the trace what it is.
fn append(kept: &Kept) {
    // A forked child of which no copy could be made has given up nothing: its replay begins with its parent's.
    let Some(keeper) = kept.oldest() else { return };
    match keeper.write(&Told::InPlace { from: trace().end_of_frames() }) {
        Ok(end) => trace().appended(end),
        Err(errno) => crate::say!(
            "the beginning of the ring cannot be written (error {errno}): the trace cannot be replayed"
        ),
    }
}

/// Another program takes the place of this one, if it can be executed: what is kept has to be complete.
pub fn before_exec(thread: &Thread) {
    if !is_active() || thread.vfork_child {
        return;
    }
    let mut kept = KEPT.lock();
    if kept.is_cut() {
        append(&kept);
    }
    kept.intervals.drain(..).filter_map(|interval| interval.keeper).for_each(Keeper::end);
    let number = trace().interval();
    kept.intervals.push_back(Interval { number, keeper: None, amount: 0 });
    // If it cannot, the process has no copy now.
    FORCED.store(true, Relaxed);
}

/// Somebody asks for what is kept, in a new file at `path`. Returns its size.
pub fn write_to(path: &[u8]) -> Result<u64, i32> {
    if !is_active() {
        return Err(sys::EINVAL);
    }
    let kept = KEPT.lock();
    let keeper = kept.oldest().ok_or(sys::ESRCH)?;
    let (end, is_cut) = (trace().end_of_frames(), kept.is_cut());
    keeper.write(&Told::Elsewhere { path, end, is_cut })
}

/// In the only thread of a forked child: the copies are its parent's.
pub fn forked(thread: &Thread, forked: &Forked) {
    KEPT.force_unlock(forked);
    parts::forked(forked);
    if !is_active() {
        return;
    }
    let mut kept = KEPT.lock();
    *kept = Kept { is_child: true, ..Kept::new() };
    kept.threads.push(thread.block.this);
    kept.intervals.push_back(Interval { number: 0, keeper: None, amount: 0 });
    drop(kept);
    let follows = facts().options.recording.inputs() && trace().follows();
    let ready = follows && keeper::prepare();
    ACTIVE.store(ready, Relaxed);
    FORCED.store(ready, Relaxed);
}
