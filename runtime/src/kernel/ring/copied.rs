//! What a copy of the process knows that cannot be told from its mappings: collected while all threads
//! stand still.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::facts::facts;
use crate::base::own::own_range;
use crate::base::sys;
use crate::base::vectors::{put_claimed, put_low_halves, vectors_len};
use crate::code::executable::ExecRange;
use crate::code::jit::jit;
use crate::code::{statics, window};
use crate::kernel::brk::brk;
use crate::kernel::ring::Settings;
use crate::kernel::signals::actions;
use crate::logs::log;
use crate::recording::appender::put_event;
use crate::thread::{claims, Thread};
use abi::event::Event;
use abi::layout::{page_down, page_up};
use alloc::vec::Vec;
use core::ops::Range;

/// What a copy knows.
pub(super) struct Copied {
    /// The events of signals, threads, and the limit of the stack.
    pub events: Vec<u8>,
    /// Number of the first stretch of the interval.
    pub stretch: u64,
    /// End of the heap.
    pub brk: u64,
    /// Memory that is not the program's, in the order of addresses.
    pub hidden: Vec<Range<u64>>,
    /// The part of the window where what cannot be accessed is reserved by the runtime.
    pub area: Range<u64>,
    /// What the program may execute.
    pub executable: Vec<ExecRange>,
    /// The program's own segments.
    pub image: Range<u64>,
    /// Where its interpreter is, or 0.
    pub interpreter: u64,
    /// When the process started: files that were changed later may be others by now.
    pub since_ns: u64,
}

impl Copied {
    /// Of this process, whose threads stand still; `thread` has the baton, and goes on first.
    pub fn of(thread: &Thread, threads: &[u64], settings: &Settings, stretch: u64) -> Copied {
        let facts = facts();
        let mut events = Vec::new();
        put_actions(&mut events, thread);
        put_state(&mut events, thread);
        for &at in threads.iter().filter(|&&at| at != thread.block.this) {
            // SAFETY: the block of a thread that has not ended, which stands still.
            put_state(&mut events, unsafe { &*(at as *const Thread) });
        }
        put_event(&mut events, &Event::StackLimit(sys::limit(sys::RLIMIT_STACK)));
        let window = facts.window;
        let image =
            page_down(window + facts.header.image_start)..page_up(window + facts.header.image_end);
        let mut hidden = Vec::from([
            own_range(),
            facts.added.clone(),
            facts.runtime.clone(),
            facts.options.tables(),
            log().memory(),
            brk().room(),
        ]);
        hidden.extend(statics::codes());
        hidden.extend(window::free_pieces());
        let jit = jit();
        hidden.push(jit.arena.range());
        hidden.extend(jit.tables.far.pieces());
        hidden.retain(|range| range.start < range.end);
        // Whatever shares a page with it is the runtime's, too.
        for range in &mut hidden {
            *range = page_down(range.start)..page_up(range.end);
        }
        hidden.sort_by_key(|range| range.start);
        Copied {
            events,
            stretch,
            brk: brk().current,
            hidden,
            area: settings.area.clone(),
            executable: jit.executable_ranges().to_vec(),
            image,
            interpreter: settings.interpreter,
            since_ns: settings.since_ns,
        }
    }
}

fn put_actions(events: &mut Vec<u8>, thread: &Thread) {
    let bytes = actions::of(thread).to_bytes();
    put_event(events, &Event::Actions(&bytes));
}

fn put_state(events: &mut Vec<u8>, thread: &Thread) {
    let standing = &thread.standing;
    let registers = &thread.block.registers;
    let state = abi::trace::RegisterState {
        gpr: registers.gpr,
        rip: standing.pc,
        rflags: registers.rflags,
        fs_base: standing.fs_base,
        gs_base: thread.block.program_gs,
        valid: 0xffff,
    };
    let mut vectors = Vec::new();
    if standing.vectors != 0 {
        let len = vectors_len() as usize;
        // SAFETY: the area was filled when the thread let others run, and stays.
        let saved = unsafe { core::slice::from_raw_parts(standing.vectors as *const u8, len) };
        vectors.extend_from_slice(saved);
        put_low_halves(&mut vectors, &thread.xmm);
        put_claimed(&mut vectors, claims::first(thread.vector), &thread.block.program_vectors);
    }
    put_event(events, &thread.state_event(&state, &vectors));
}
