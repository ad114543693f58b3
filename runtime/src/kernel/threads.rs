//! Threads and child processes.

use crate::base::facts::facts;
use crate::base::lock::Forked;
use crate::base::signal::{block_all, set_real_mask};
use crate::base::sys::{self, nr};
use crate::base::{census, costs, heap, namespaces, program};
use crate::code::jit::jit;
use crate::kernel::clone::clone_thread;
use crate::kernel::replay;
use crate::kernel::signals::actions;
use crate::kernel::switch;
use crate::kernel::syscalls::filters;
use crate::kernel::syscalls::leaving;
use crate::kernel::syscalls::objects;
use crate::kernel::watched;
use crate::kernel::{baton, brk, ring};
use crate::logs::inputs::unfollowed::{unfollowed, unfollowed_unwatched};
use crate::logs::inputs::{mappings, regions, view};
use crate::logs::log;
use crate::recording::description::process_now;
use crate::recording::recorder::Identity;
use crate::recording::trace_file::trace;
use crate::thread::ending::end_recording;
use crate::thread::{claims, Thread};
use abi::control::place;
use abi::event::{End, Event, WHOLE_UNIT};
use abi::layout::PAGE;
use abi::options::Pointers;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Index of the next thread.
#[link_section = ".data.at_fork"]
static NEXT_INDEX: AtomicU32 = AtomicU32::new(0);
/// Blocks of threads that have ended, to be used again: address of the first one.
static SPARE: AtomicU64 = AtomicU64::new(0);

const CLONE_VM: u64 = 0x100;
const CLONE_FILES: u64 = 0x400;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x10000;
const CLONE_SETTLS: u64 = 0x8_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
/// Of clone3 alone.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// The number of a new thread; the first one is 0.
pub fn next_index() -> u32 {
    NEXT_INDEX.fetch_add(1, Relaxed)
}

/// Gives the thread its buffers and writes its first event.
pub fn begin_recording(thread: &mut Thread, parent: u32) {
    thread.parent = parent;
    thread.vector = match facts().options.process.pointers {
        Pointers::Vector if facts().options.process.increments_in_memory => claims::XMM31,
        Pointers::Vector => claims::XMM25,
        Pointers::Xmm15 => claims::XMM15,
        Pointers::ThreadBlock => 0,
    };
    if !facts().options.recording.records() {
        let made = thread.turns();
        thread.block.pointers = [0, 0];
        thread.begin_turns(made);
        return;
    }
    let registers = &thread.block.registers;
    let state = thread.register_state(registers.rip, 0xffff);
    let who = Identity { index: thread.index, tid: thread.tid, parent };
    let tiny = facts().tiny_buffers;
    if !facts().options.recording.streams() {
        thread.recorder.open_counting(trace(), who, &state, tiny);
    } else if thread.recorder.open(trace(), who, &state, tiny).is_err() {
        crate::die!("no address space for the buffers of a thread");
    }
    if thread.vfork_child {
        thread.recorder.own_process();
    }
    let none = [0, 0];
    thread.block.pointers = thread.recorder.next_chunk(&none, &state, 0);
    thread.note_turns();
    log().chunk_starts(thread);
    watched::start::begins(thread, thread.block.registers.rip);
}

/// What a clone call asks for.
struct Request {
    flags: u64,
    /// New stack pointer, 0: the caller's.
    stack: u64,
    /// The word that is cleared when the new thread ends, or 0.
    clear_tid: u64,
    /// Its fs base, if that is given.
    tls: Option<u64>,
    /// Whether the child has the default action for all that its parent handles (CLONE_CLEAR_SIGHAND).
    clears_actions: bool,
}

impl Request {
    fn of(flags: u64) -> Request {
        Request { flags, stack: 0, clear_tid: 0, tls: None, clears_actions: false }
    }
}

fn request(number: usize, args: &[usize; 6]) -> Option<Request> {
    match number {
        nr::FORK => Some(Request::of(0)),
        nr::VFORK => Some(Request::of(CLONE_VM | CLONE_VFORK)),
        nr::CLONE => {
            let (flags, stack) = (args[0] as u64, args[1] as u64);
            let tls = (flags & CLONE_SETTLS != 0).then_some(args[4] as u64);
            let clear_tid = cleared(flags, args[3] as u64);
            Some(Request { stack, clear_tid, tls, ..Request::of(flags) })
        }
        _ => {
            // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
            let mut words = [0u64; 8];
            program::read_program_value(args[0] as u64, &mut words).then_some(())?;
            // One without the other: the kernel refuses it.
            let given = words[5] != 0 && words[6] != 0;
            let stack = if given { words[5].wrapping_add(words[6]) } else { 0 };
            let tls = (words[0] & CLONE_SETTLS != 0).then_some(words[7]);
            let clear_tid = cleared(words[0], words[2]);
            // With the other one the kernel refuses it.
            let clears_actions =
                words[0] & (CLONE_CLEAR_SIGHAND | CLONE_SIGHAND) == CLONE_CLEAR_SIGHAND;
            Some(Request { stack, clear_tid, tls, clears_actions, ..Request::of(words[0]) })
        }
    }
}

fn cleared(flags: u64, child_tid: u64) -> u64 {
    const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
    if flags & CLONE_CHILD_CLEARTID != 0 {
        child_tid
    } else {
        0
    }
}

/// Whether the call makes a thread, or a child that uses this process's memory.
pub fn shares_memory(number: usize, args: &[usize; 6]) -> bool {
    request(number, args).is_some_and(|request| request.flags & CLONE_VM != 0)
}

/// Whether the call makes a child that uses this process's memory while its parent waits.
pub fn is_vfork(number: usize, args: &[usize; 6]) -> bool {
    const BOTH: u64 = CLONE_VM | CLONE_VFORK;
    request(number, args).is_some_and(|request| request.flags & BOTH == BOTH)
}

/// The thread that the call makes, or the child that uses this process's memory, which begins at `next`.
pub fn made_by(
    thread: &Thread,
    number: usize,
    args: &[usize; 6],
    next: u64,
) -> Option<&'static mut Thread> {
    new_thread(thread, &request(number, args)?, next)
}

/// Whether the call makes a child that handles no signal.
pub fn clears_actions(number: usize, args: &[usize; 6]) -> bool {
    request(number, args).is_some_and(|request| request.clears_actions)
}

/// The stack pointer that the call gives the child, if it does.
pub fn stack_of_child(number: usize, args: &[usize; 6]) -> Option<u64> {
    request(number, args).map(|request| request.stack).filter(|&stack| stack != 0)
}

/// clone, clone3, fork, vfork. Returns what the program's parent side gets.
pub fn clone(thread: &mut Thread, number: usize, args: &[usize; 6], next: u64) -> usize {
    if number == nr::CLONE3 {
        // What the kernel looks at before it reads the arguments.
        match args[1] as u64 {
            ..64 => return sys::failed(sys::EINVAL),
            size if size > PAGE => return sys::failed(sys::E2BIG),
            _ => {}
        }
    }
    let Some(request) = request(number, args) else { return sys::failed(sys::EFAULT) };
    let before = block_all();
    let result = if request.flags & CLONE_VM == 0 {
        fork(thread, number, args, &request, next)
    } else {
        if request.flags & (CLONE_THREAD | CLONE_VFORK) == 0 {
            goes_beside(thread);
        }
        share(thread, number, args, &request, next)
    };
    set_real_mask(before);
    result
}

/// `ptrace` by a process that shares this memory: who is stopped by it stands still outside of the
/// locks that it will need.
pub fn ptrace(args: &[usize; 6]) -> usize {
    const PTRACE: usize = 101;
    const ATTACH: usize = 16;
    const WAITID: usize = 247;
    const BY_PID: usize = 1;
    const HAS_STOPPED: usize = 2;
    const LEAVE: usize = 0x100_0000;
    const ANY_THREAD: usize = 0x4000_0000;
    if args[0] != ATTACH {
        // SAFETY: the program's own call.
        return unsafe { sys::raw(PTRACE, *args) };
    }
    let held = (regions::hold(), mappings::hold(), jit(), trace().hold());
    // SAFETY: the program's own call.
    let result = unsafe { sys::raw(PTRACE, *args) };
    if result == 0 {
        let stopped = [BY_PID, args[1], 0, HAS_STOPPED | LEAVE | ANY_THREAD, 0];
        // SAFETY: waits, and takes nothing.
        while unsafe { sys::call(WAITID, &stopped) } == Err(sys::EINTR) {}
    }
    drop(held);
    result
}

/// A process is about to share this one's memory and to run beside it. Where one thread runs at a time it would have to
/// be one of them, and it may stop the others whenever it wants to (leak checkers do). So from here on all run
/// as they are, and a recording of inputs cannot be replayed.
fn goes_beside(thread: &mut Thread) {
    if facts().options.recording.inputs() {
        unfollowed(
            thread,
            "a process shares the memory and nobody waits for it (clone with CLONE_VM)",
        );
        view::never_begins();
        if view::is_watched() {
            watched::start::gives_up(thread);
        }
    }
    baton::lets_all_run();
}

/// The arguments with which the kernel is asked for what the program has asked for.
struct Asked {
    args: [usize; 6],
    /// Those that clone3 finds in memory, if they are not the program's.
    own: Vec<u8>,
}

impl Asked {
    /// For a thread, or a child in lent memory. None: the program's arguments are not there.
    fn new(number: usize, args: &[usize; 6], request: &Request) -> Option<Asked> {
        Asked::with(number, args, request, request.clears_actions)
    }

    /// For a child that goes on with the stack of the caller, where we are.
    fn for_fork(number: usize, args: &[usize; 6], request: &Request) -> Option<Asked> {
        let changes = request.stack != 0 || request.clears_actions;
        let mut asked = Asked::with(number, args, request, changes)?;
        if number == nr::CLONE {
            asked.args[1] = 0;
        } else if !asked.own.is_empty() {
            // stack and stack_size
            asked.own[40..56].fill(0);
        }
        Some(asked)
    }

    /// `changes`: not all of them are the program's.
    fn with(number: usize, args: &[usize; 6], request: &Request, changes: bool) -> Option<Asked> {
        let mut asked = Asked { args: *args, own: Vec::new() };
        if number == nr::CLONE3 && changes {
            asked.own = alloc::vec![0u8; args[1]];
            program::read_program_bytes(args[0] as u64, &mut asked.own).then_some(())?;
            asked.args[0] = asked.own.as_ptr() as usize;
        }
        if request.clears_actions {
            // Our handlers stay: the child's actions are cleared when it begins.
            let flags = request.flags & !CLONE_CLEAR_SIGHAND;
            asked.own[..8].copy_from_slice(&flags.to_le_bytes());
        }
        Some(asked)
    }
}

/// A child with a copy of all memory, which goes on at `next`, on the program's stack of the request,
/// if it has one.
#[inline(never)]
fn fork(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    request: &Request,
    next: u64,
) -> usize {
    let stack = request.stack;
    let Some(asked) = Asked::for_fork(number, args, request) else {
        return sys::failed(sys::EFAULT);
    };
    let parent = sys::getpid();
    if request.flags & leaving::CLONE_NEWNS != 0 {
        leaving::keep_folder();
    }
    let mut jit = jit();
    // First, as it closes units: from then on the code cache belongs to both.
    let loan = objects::lend(&mut jit, request.flags & CLONE_FILES != 0);
    jit.forks();
    let held = trace().hold();
    let line = baton::hold();
    // SAFETY: the child gets a copy of this memory and goes on below.
    let result = unsafe { sys::raw(number, asked.args) };
    if result != 0 {
        drop((line, held, jit));
        objects::lent(loan);
        if let Ok(child) = sys::check(result) {
            made_process(thread, child, request.flags);
        }
        return result;
    }
    // SAFETY: a forked child has one thread; the guards that it holds are those of the code and of
    // the trace, which it gives back itself.
    let forked = &unsafe { Forked::child() };
    heap::after_fork(forked);
    baton::forked(thread, line, forked);
    let inherited = trace().forked(held);
    log().forked(forked);
    view::forked(thread, forked);
    actions::forked(forked);
    if let Some(own) = thread.own_actions.take() {
        actions::replace(own);
    }
    if request.clears_actions {
        actions::clear(thread);
    }
    filters::forked(forked);
    brk::forked(forked);
    replay::forked(forked);
    census::forked();
    costs::forked();
    // The child runs units that its parent has described: it says the same, or makes them anew.
    let units = if trace().follows() { inherited.units() } else { Some(Vec::new()) };
    jit.forked(units.is_some());
    objects::borrowed(&mut jit, loan);
    drop(jit);
    // Its files may be those of its parent: what is closed here would be closed there.
    let shares = request.flags & CLONE_FILES != 0;
    switch::forked(thread, forked, shares);
    watched::start::changes_code(thread);
    let units = units.unwrap_or_default();
    trace().open_again(&inherited, shares, parent, &units, &process_now(view::described()));
    switch::note_start();
    NEXT_INDEX.store(1, Relaxed);
    (thread.index, thread.parent, thread.tid) = (0, 0, sys::gettid());
    (thread.vfork_child, thread.clear_tid) = (false, request.clear_tid);
    thread.beside = false;
    let registers = &mut thread.block.registers;
    registers.gpr[0] = 0;
    if stack != 0 {
        registers.gpr[4] = stack;
    }
    thread.mailbox.drop_held(|_| true);
    let who = Identity { index: thread.index, tid: thread.tid, parent: thread.parent };
    let state = thread.register_state(next, 0xffff);
    let pointers = thread.block.pointers;
    thread.block.pointers = thread.recorder.forked(&pointers, who, &state);
    thread.note_turns();
    log().chunk_starts(thread);
    baton::begins_again(thread);
    ring::forked(thread, forked);
    0
}

/// A call with `flags` has made the process that the thread calls `pid`: the trace has the number that it will name itself.
fn made_process(thread: &mut Thread, pid: usize, flags: u64) {
    let pid = namespaces::number_of(pid as u32, flags);
    thread.event(WHOLE_UNIT, &Event::Fork { pid: u64::from(pid) });
}

/// A new thread, or a child of vfork, which is one with a process id of its own.
#[inline(never)]
fn share(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    request: &Request,
    next: u64,
) -> usize {
    if request.flags & CLONE_VFORK == 0 {
        switch::before_thread();
    }
    let is_seen = view::is_watched();
    let inputs = facts().options.recording.inputs();
    if request.flags & CLONE_CHILD_SETTID != 0 && inputs && !is_seen {
        let why = "the kernel writes to memory when a thread begins (CLONE_CHILD_SETTID)";
        match view::only_if_shared() {
            // Behind the call there are two.
            true => unfollowed(thread, why),
            false => unfollowed_unwatched(thread, why),
        }
    }
    let Some(asked) = Asked::new(number, args, request) else { return sys::failed(sys::EFAULT) };
    let Some(child) = new_thread(thread, request, next) else { return sys::failed(sys::ENOMEM) };
    if view::is_watched() && !view::has(child) {
        unfollowed(thread, watched::start::TOO_MANY);
        watched::start::gives_up(thread);
    }
    let waits = request.flags & CLONE_VFORK != 0;
    if waits {
        census::lends();
        baton::before_vfork(thread);
    }
    // SAFETY: the child starts in `new_thread` with its own block; the arguments are the program's.
    let result = unsafe { clone_thread(number, &asked.args, child, facts().entries.new_thread) };
    if waits {
        baton::after_vfork(thread, child);
        census::has_back();
    }
    let is_process = request.flags & CLONE_THREAD == 0;
    if let (true, Ok(pid)) = (is_process, sys::check(result)) {
        made_process(thread, pid, request.flags);
    }
    if sys::check(result).is_err() || waits {
        // A vfork child is gone, or runs another program: what it recorded is complete.
        let pointers = child.block.pointers;
        child.recorder.close(&pointers);
        child.own_actions = None;
        view::release(child);
        child.slot.set_place(place::GONE);
        if !waits {
            census::ends();
        }
        give_back(child);
    }
    result
}

/// A thread that is as `thread` at its request, and begins at `next`.
fn new_thread(thread: &Thread, request: &Request, next: u64) -> Option<&'static mut Thread> {
    let child = take_thread()?;
    child.index = next_index();
    child.block.window_high = thread.block.window_high;
    child.block.jump_entries = thread.block.jump_entries;
    child.block.target = facts().window;
    child.block.program_vectors = thread.block.program_vectors;
    child.block.registers = thread.block.registers;
    child.block.registers.gpr[0] = 0;
    if request.stack != 0 {
        child.block.registers.gpr[4] = request.stack;
    }
    child.block.registers.rip = next;
    child.xmm = thread.xmm;
    child.fault = thread.fault;
    child.mailbox.set_mask(thread.mailbox.mask());
    child.filter = thread.filter;
    child.kernel_filter = thread.kernel_filter;
    child.parent = thread.index;
    child.resume_original = next;
    // Without one all threads give up theirs.
    let _ = view::take(child);
    child.block.program_fs = request.tls.unwrap_or_else(|| thread.fs_base());
    child.block.program_gs = thread.block.program_gs;
    child.clear_tid = request.clear_tid;
    child.clears_actions = request.clears_actions;
    // A process, or a thread of one that is.
    let is_process = request.flags & CLONE_THREAD == 0;
    let waits = request.flags & CLONE_VFORK != 0;
    child.vfork_child = is_process || waits || thread.vfork_child;
    child.beside = child.vfork_child && !waits;
    let shares_actions = request.flags & CLONE_SIGHAND != 0 && thread.own_actions.is_none();
    child.own_actions = match child.vfork_child && !(child.beside && shares_actions) {
        true => Some(Box::new(actions::of(thread))),
        false => None,
    };
    if !waits {
        census::begins();
    }
    Some(child)
}

/// A thread that is recorded as index `index`, and goes on when a replay says so.
pub fn restored(first: &Thread, index: u32) -> Option<&'static mut Thread> {
    let child = take_thread()?;
    child.index = index;
    child.block.window_high = first.block.window_high;
    child.block.jump_entries = first.block.jump_entries;
    child.block.target = facts().window;
    child.block.program_vectors = first.block.program_vectors;
    NEXT_INDEX.fetch_max(index.saturating_add(1), Relaxed);
    census::begins();
    Some(child)
}

#[inline(never)]
fn take_thread() -> Option<&'static mut Thread> {
    // Taken by one thread at a time (pushes need no lock).
    let _jit = jit();
    let head = &SPARE;
    let mut at = head.load(Acquire);
    while at != 0 {
        // SAFETY: a thread that has ended and that only we can take.
        let thread = unsafe { &mut *(at as *mut Thread) };
        match head.compare_exchange(at, thread.next_spare, AcqRel, Acquire) {
            Ok(_) => {
                thread.reset();
                return Some(thread);
            }
            Err(now) => at = now,
        }
    }
    Thread::create().ok()
}

/// Its memory is used again; nothing of it is in use.
pub fn give_back(thread: &'static mut Thread) {
    let head = &SPARE;
    let at = thread as *mut Thread as u64;
    let mut now = head.load(Acquire);
    loop {
        thread.next_spare = now;
        match head.compare_exchange(now, at, AcqRel, Acquire) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

/// `exit`: ends the calling thread.
pub fn exit_thread(thread: &mut Thread, status: i32) -> ! {
    block_all();
    if thread.vfork_child {
        exit_vfork_child(thread, status, nr::EXIT);
    }
    log().before_exit(thread);
    if census::live() > 1 {
        baton::before_end(thread);
    }
    ring::leaves(thread);
    let last = census::ends();
    if last {
        end_recording(thread, End::Exit, status, 0);
    } else {
        let pointers = thread.block.pointers;
        thread.event(WHOLE_UNIT, &Event::ThreadEnd { reason: End::Exit, status });
        thread.recorder.close(&pointers);
    }
    view::release(thread);
    thread.slot.set_place(place::GONE);
    if !last {
        baton::end();
    }
    // SAFETY: signals are blocked, and nothing of the thread's memory is used behind the push.
    unsafe { push_and_exit(SPARE.as_ptr(), thread, NEXT_SPARE, status, nr::EXIT) }
}

/// `exit` and `exit_group` of a child of vfork: its parent goes on.
pub fn exit_vfork_child(thread: &mut Thread, status: i32, number: usize) -> ! {
    end_recording(thread, End::Exit, status, 0);
    if thread.beside {
        let pointers = thread.block.pointers;
        thread.recorder.close(&pointers);
        census::ends();
        view::release(thread);
        thread.slot.set_place(place::GONE);
        // SAFETY: signals are blocked, and nothing of the thread's memory is used behind the push. (With
        // `exit_group` the kernel ends the other threads of that process; they say nothing any more.)
        unsafe { push_and_exit(SPARE.as_ptr(), thread, NEXT_SPARE, status, number) }
    }
    loop {
        // SAFETY: ends this process only.
        let _ = unsafe { sys::call(number, &[status as usize]) };
    }
}

const NEXT_SPARE: usize = core::mem::offset_of!(Thread, next_spare);

/// Pushes the thread on the list of spare ones, without using its stack afterwards, and makes the call `number`, which ends
/// it.
#[unsafe(naked)]
unsafe extern "C" fn push_and_exit(
    head: *mut u64,
    thread: *mut Thread,
    next: usize,
    status: i32,
    number: usize,
) -> ! {
    naked_asm!(
        "2:",
        "mov rax, [rdi]",
        "mov [rsi + rdx], rax",
        "lock cmpxchg [rdi], rsi",
        "jne 2b",
        "mov edi, ecx",
        "mov eax, r8d",
        "syscall",
        "ud2",
    )
}
