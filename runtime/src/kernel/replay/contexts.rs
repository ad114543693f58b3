//! Recorded threads, as contexts on the one thread that a replay has.
//!
//! All but one stand still, each on its own stack, in the midst of the runtime: in front of a system call
//! for which the recorded thread let others run, or where it was interrupted so that they could. The
//! script says who goes on. What belongs to the processor is exchanged: the stack, the bases of fs and gs,
//! the vector and floating-point state.
// What is read was made by another program: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::census;
use crate::base::facts::facts;
use crate::base::lock::Lock;
use crate::base::own::anonymous;
use crate::base::signal::set_real_mask;
use crate::base::sys::{self, nr};
use crate::base::vectors::{load_vectors, put_low_halves, put_vectors, save_vectors, vectors_len};
use crate::kernel::replay::arrive::compare;
use crate::kernel::replay::outcome::{differs, impossible};
use crate::kernel::replay::script::Entry;
use crate::kernel::replay::{event_of, next_entry, steer};
use crate::kernel::threads::{give_back, is_vfork, made_by};
use crate::thread::{claims, Thread};
use abi::control::place;
use abi::event::{End, Event, Kind, WHOLE_UNIT};
use abi::thread::{Registers, VECTORS};
use abi::trace::RegisterState;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const ARCH_SET_FS: usize = 0x1002;

/// A recorded thread.
struct Context {
    /// Its block.
    thread: u64,
    /// Its number, once the script has named it.
    index: Option<u32>,
    /// Its thread id in the recording; 0: not known yet.
    tid: u32,
    parent: u32,
    /// Registers at its first instruction, while it has not begun.
    first: Option<Box<RegisterState>>,
    /// Original address where it stands.
    pc: u64,
    /// rsp while it stands.
    stack: Box<AtomicU64>,
    fs_base: u64,
    /// Its vector state while it stands.
    vectors: u64,
    has_ended: bool,
}

static CONTEXTS: Lock<Vec<Context>> = Lock::new(Vec::new());

/// The lock of the contexts belongs to a forked child, too.
pub fn forked(forked: &crate::base::lock::Forked) {
    CONTEXTS.force_unlock(forked);
}

fn is_of(context: &Context, thread: &Thread) -> bool {
    context.thread == thread.block.this
}

impl Context {
    fn of(thread: &Thread) -> Context {
        let Ok(vectors) = anonymous(vectors_len()) else {
            crate::die!("no memory for the state of another thread")
        };
        Context {
            thread: thread.block.this,
            index: Some(thread.index),
            tid: thread.tid,
            parent: thread.parent,
            first: None,
            pc: thread.resume_original,
            stack: Box::new(AtomicU64::new(0)),
            fs_base: 0,
            vectors,
            has_ended: false,
        }
    }

    /// Whether the thread is the one that starts here.
    fn is_named(&self, tid: u32, parent: u32) -> bool {
        self.index.is_none() && self.parent == parent && (self.tid == tid || self.tid == 0)
    }

    /// It does not go on, whatever the script says of its number.
    fn is_over(&mut self) {
        (self.has_ended, self.index, self.parent) = (true, None, u32::MAX);
    }

    /// Gives back what it used.
    fn free(self) {
        let args = [self.vectors as usize, vectors_len() as usize];
        // SAFETY: its own memory, which nobody uses any more.
        let _ = unsafe { sys::call(nr::MUNMAP, &args) };
        // SAFETY: the thread has ended, and stands on its stack for good.
        give_back(unsafe { &mut *(self.thread as *mut Thread) });
    }
}

// --- contexts begin and end ---

/// The call, which returned `tid`, has made a thread, which goes on at `next` when the script says so.
pub fn add(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64, tid: u32) {
    let Some(child) = made_by(thread, number, args, next) else {
        let pc = thread.syscall_pc;
        impossible(thread, pc, format_args!("there is no memory for another thread"))
    };
    let mut context = Context::of(child);
    (context.index, context.tid) = (None, tid);
    context.stack.store(first_stack(child), Relaxed);
    // SAFETY: the area is large enough.
    unsafe { save_vectors(context.vectors) };
    let mut contexts = CONTEXTS.lock();
    let (ended, mut rest): (Vec<_>, Vec<_>) = contexts.drain(..).partition(|c| c.has_ended);
    ended.into_iter().for_each(Context::free);
    if !rest.iter().any(|context| is_of(context, thread)) {
        rest.push(Context::of(thread));
    }
    rest.push(context);
    *contexts = rest;
}

/// A thread that stands still where a snapshot was made, and goes on when the script says so.
pub fn stands(thread: &mut Thread, child: &'static mut Thread, fs_base: u64, vectors: &[u8]) {
    steer::leaves(child);
    let mut context = Context::of(child);
    context.fs_base = fs_base;
    context.stack.store(first_stack(child), Relaxed);
    // SAFETY: the area is large enough, and new.
    unsafe { put_vectors(context.vectors, vectors) };
    let mut contexts = CONTEXTS.lock();
    if !contexts.iter().any(|context| is_of(context, thread)) {
        contexts.push(Context::of(thread));
    }
    contexts.push(context);
}

/// The stack of a context that has not begun: as if it stood in front of its first instruction of ours.
fn first_stack(child: &Thread) -> u64 {
    // r15 to r12, rbp, rbx, and the way back.
    let words = [0, 0, 0, child.block.this, 0, 0, facts().entries.new_thread];
    let at = child.block.runtime_stack - 64;
    // SAFETY: the upper end of the stack of a thread that has not begun.
    unsafe { (at as *mut [u64; 7]).write(words) };
    at
}

/// The thread, which may be about to make a child that uses its memory, is going to wait for that.
pub fn before_vfork(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64) {
    if matches!(number, nr::VFORK | nr::CLONE | nr::CLONE3) && is_vfork(number, args) {
        add(thread, number, args, next, 0);
    }
}

/// The thread is not going to have that child, if it has not begun.
pub fn after_vfork(thread: &Thread) {
    for context in CONTEXTS.lock().iter_mut() {
        if context.is_named(0, thread.index) && context.tid == 0 {
            context.is_over();
        }
    }
}

/// The thread begins, on its own stack.
pub fn begins(thread: &mut Thread) {
    steer::enters(thread);
    let first = {
        let mut contexts = CONTEXTS.lock();
        let context = contexts.iter_mut().find(|context| is_of(context, thread));
        context.and_then(|context| {
            context.restore();
            thread.index = context.index?;
            thread.tid = context.tid;
            context.first.take()
        })
    };
    if let Some(first) = first {
        let mine = Registers { rip: thread.resume_original, ..thread.block.registers };
        compare(thread, &mine, &first);
    }
}

/// The thread has ended: another goes on.
pub fn ends(thread: &mut Thread, reason: End, status: i32) -> ! {
    thread.event(WHOLE_UNIT, &Event::ThreadEnd { reason, status });
    is_gone(thread)
}

/// The thread does not go on here.
pub fn is_gone(thread: &mut Thread) -> ! {
    let pointers = thread.block.pointers;
    thread.recorder.close(&pointers);
    thread.own_actions = None;
    if !thread.vfork_child {
        census::ends();
    }
    thread.slot.set_place(place::GONE);
    if let Some(context) = CONTEXTS.lock().iter_mut().find(|context| is_of(context, thread)) {
        context.is_over();
    }
    // It may be the handler that has found it out.
    set_real_mask(0);
    let pc = thread.resume_original;
    loop {
        others_run(thread, pc, WHOLE_UNIT);
    }
}

/// The first vector register that translated code claims, and what the program has in all that it may claim.
pub type Claimed = (Option<usize>, [[u64; 8]; VECTORS]);

/// A thread that stands still while another one runs.
pub struct Standing {
    pub index: u32,
    /// Its thread id in the recording.
    pub tid: u32,
    pub registers: Registers,
    pub fs_base: u64,
    pub gs_base: u64,
    /// Where its vector state is, but for those registers that translated code claims.
    pub vectors: u64,
    pub claimed: Claimed,
}

/// All threads that have begun and have not ended, but for `thread`, which runs.
pub fn others(thread: &Thread) -> Vec<Standing> {
    let contexts = CONTEXTS.lock();
    let live = contexts.iter().filter(|c| !is_of(c, thread) && !c.has_ended && c.first.is_none());
    let standing = live.filter_map(|context| {
        let index = context.index?;
        // SAFETY: its block, which nobody changes while it stands, and which is not freed meanwhile.
        let thread = unsafe { &*(context.thread as *const Thread) };
        let block = &thread.block;
        let registers = Registers { rip: context.pc, ..block.registers };
        let (fs_base, gs_base) = (context.fs_base, block.program_gs);
        let (tid, vectors) = (context.tid, context.vectors);
        let claimed = (claims::first(thread.vector), block.program_vectors);
        Some(Standing { index, tid, registers, fs_base, gs_base, vectors, claimed })
    });
    standing.collect()
}

// --- contexts run in turn ---

/// Others run, until the script says that the thread, which is at `pc`, goes on. `insn`: how far its last
/// unit came, for the trace.
pub fn others_run(thread: &mut Thread, pc: u64, insn: u32) {
    let mut stood = false;
    loop {
        let entry = next_entry(thread, pc);
        let is_live = thread.slot.place() != place::GONE;
        if entry.thread == thread.index && is_live {
            if stood {
                note_runs(thread, insn);
            }
            return;
        }
        if !matches!(entry.kind(), Kind::Runs | Kind::ThreadStart) {
            let (name, other) = (entry.kind().name(), entry.thread);
            differs(
                thread,
                pc,
                format_args!("other threads run; the recording has {name} of thread {other}"),
            )
        }
        let Some(next) = find(thread, pc, &entry) else {
            let other = entry.thread;
            impossible(thread, pc, format_args!("thread {other} runs, which nobody has started"))
        };
        go_on_with(thread, pc, next);
        stood = true;
    }
}

/// Whoever goes on has a number in the order of all stretches.
fn note_runs(thread: &mut Thread, insn: u32) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Relaxed).wrapping_add(1);
    thread.event(insn, &Event::Runs(number));
}

/// The thread, which has just begun, is recorded from here on.
pub fn begun(thread: &mut Thread) {
    note_runs(thread, WHOLE_UNIT);
}

/// The thread that the entry is about, by its place among the contexts. If it starts there it gets its
/// number.
fn find(thread: &mut Thread, pc: u64, entry: &Entry) -> Option<usize> {
    let known = CONTEXTS.lock().iter().position(|context| context.index == Some(entry.thread));
    if known.is_some() || entry.kind() != Kind::ThreadStart {
        return known;
    }
    let Event::ThreadStart { tid, parent, registers } = event_of(thread, pc, entry) else {
        return None;
    };
    let mut contexts = CONTEXTS.lock();
    let found = contexts.iter().position(|context| context.is_named(tid, parent))?;
    let context = contexts.get_mut(found)?;
    (context.index, context.tid) = (Some(entry.thread), tid);
    context.fs_base = registers.fs_base;
    context.first = Some(Box::new(registers));
    Some(found)
}

/// The thread, which is at `pc`, stands still, and context `next` goes on; returns when it is the other way round.
fn go_on_with(thread: &mut Thread, pc: u64, next: usize) {
    // The lock is free while others run. Where the stack is kept stays, wherever the context is moved.
    let (own, other) = {
        let mut contexts = CONTEXTS.lock();
        let other = contexts.get(next).map(|context| context.stack.load(Relaxed));
        let own = contexts.iter_mut().find(|context| is_of(context, thread));
        let (Some(own), Some(other)) = (own, other) else { return };
        (own.fs_base, own.pc) = (thread.fs_base(), pc);
        own.save(thread);
        (own.stack.as_ptr(), other)
    };
    steer::leaves(thread);
    // SAFETY: the other context stands there, or is about to begin; this one is not freed while it stands
    // and has not ended.
    unsafe { exchange_stacks(own, other) };
    thread.adopt();
    steer::enters(thread);
    if let Some(own) = CONTEXTS.lock().iter().find(|context| is_of(context, thread)) {
        own.restore();
    }
}

impl Context {
    /// Keeps the vector state of the thread, which stands from now on.
    fn save(&self, thread: &Thread) {
        // SAFETY: the area is large enough, and the context's own.
        let saved = unsafe {
            save_vectors(self.vectors);
            core::slice::from_raw_parts_mut(self.vectors as *mut u8, vectors_len() as usize)
        };
        put_low_halves(saved, &thread.xmm);
    }

    /// What belongs to the processor is the context's again, but for the stack and gs.
    fn restore(&self) {
        let args = [ARCH_SET_FS, self.fs_base as usize];
        // SAFETY: the base is the program's.
        let _ = unsafe { sys::call(nr::ARCH_PRCTL, &args) };
        // SAFETY: the area was filled by `save_vectors`.
        unsafe { load_vectors(self.vectors) };
    }
}

/// Puts on this stack what is to be kept, and into `own` where; goes on where the other one was left.
///
/// # Safety
/// `other` was left here, or was made by [`first_stack`].
#[unsafe(naked)]
unsafe extern "C" fn exchange_stacks(own: *mut u64, other: u64) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}
