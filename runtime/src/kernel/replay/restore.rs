//! A replay that begins at a snapshot: what the process was then.
// What is read was made by another program: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::guards::{self, Guard};
use crate::base::own::anonymous;
use crate::base::signal::{Action, AltStack};
use crate::base::sys::{self, nr};
use crate::base::vectors::{claimed, load_vectors, put_vectors, vectors_len};
use crate::code::writing::write_program;
use crate::kernel::brk::brk;
use crate::kernel::replay::outcome::{impossible, impossible_at_start};
use crate::kernel::replay::script::{Next, Script};
use crate::kernel::replay::{alone, contexts, memory, Mapped};
use crate::kernel::signals::actions;
use crate::kernel::syscalls::mapping;
use crate::kernel::threads;
use crate::thread::Thread;
use abi::event::{Event, Kind, RegionKind};
use abi::layout::{page_down, page_up};
use abi::trace::RegisterState;
use alloc::vec::Vec;
use core::ops::Range;

const ARCH_SET_FS: usize = 0x1002;

/// Whether the script begins with a snapshot.
pub fn begins(entries: &'static [u8]) -> bool {
    let mut script = Script::new(entries);
    while let Next::Entry(entry) = script.peek() {
        match entry.kind() {
            Kind::Mapped => script.take(&entry),
            kind => return kind == Kind::Actions,
        }
    }
    false
}

/// Puts everything where it was, and takes that from the script. The thread is the one that had the baton;
/// returns where it goes on.
pub fn restore(thread: &mut Thread, script: &mut Script, entries: &'static [u8]) -> u64 {
    put_heap(thread, entries);
    alone::clear();
    let mut mapped = None;
    let mut is_first = true;
    // Final rights of what is writable for now.
    let mut rights: Vec<(Range<u64>, usize, bool)> = Vec::new();
    let mut untouched = Vec::new();
    let mut watch = Watch::default();
    loop {
        let Next::Entry(entry) = script.peek() else { damaged() };
        let Some(event) = entry.event() else { damaged() };
        script.take(&entry);
        match event {
            Event::Mapped { size, contents, path, .. } => {
                mapped = Some(Mapped { size, contents, path });
            }
            Event::Actions(all) => put_actions(thread, all),
            Event::State {
                index,
                tid,
                parent,
                turns,
                mask,
                alternate,
                clear_tid,
                registers,
                vectors,
            } => {
                let state = State { index, tid, parent, turns, mask, alternate, clear_tid };
                match is_first {
                    true => state.begin(thread, &registers, vectors),
                    false => state.stand(thread, &registers, vectors),
                }
                is_first = false;
            }
            Event::StackLimit(limit) => sys::set_limit(sys::RLIMIT_STACK, limit),
            Event::Region { start, len, offset, protection, kind } => {
                let prot = protection as usize;
                let range = start.0..start.0.saturating_add(len);
                match kind {
                    RegionKind::Program => open(thread, &range, prot),
                    RegionKind::File => match &mapped {
                        Some(file) => {
                            let file = Some((file, offset));
                            memory::region(thread, range.clone(), prot, false, file);
                        }
                        None => damaged(),
                    },
                    _ => {
                        let grows = kind == RegionKind::Stack;
                        memory::region(thread, range.clone(), prot, grows, None);
                    }
                }
                mapped = None;
                watch.region(&range, prot, kind);
                rights.push((range, prot, kind == RegionKind::Program));
            }
            Event::Written { address, bytes } => {
                // SAFETY: what the program had there.
                if !unsafe { write_program(address.0, bytes) } {
                    let (at, len) = (address.0, bytes.len());
                    impossible_at_start(format_args!(
                        "{len} bytes at {at:#x} of the snapshot cannot be written"
                    ));
                }
                watch.written(address.0, bytes.len() as u64);
            }
            Event::Untouched { start, len } => {
                untouched.push(start.0..start.0.saturating_add(len));
            }
            Event::Snapshot { .. } => break,
            _ => damaged(),
        }
    }
    for (range, prot, is_program) in rights {
        close(thread, &range, prot, is_program);
    }
    // Nobody is to take what is there now for what was there.
    for range in untouched {
        protect(thread, &range, 0);
    }
    watch.begin();
    thread.resume_original
}

/// The pages whose use is to be noticed. Small regions are needed anyway, and by whoever debugs; code is read by
/// the translator, which may look at another time at more of it.
#[derive(Default)]
struct Watch {
    /// Of the region that is restored, and its protection.
    region: Option<(Range<u64>, usize)>,
    pages: Vec<(Range<u64>, usize)>,
}

impl Watch {
    /// Regions with fewer bytes are kept whole.
    const LEAST: u64 = 1 << 20;
    /// So much is kept of the start of each, and of its end: what the dynamic linker and gdb look at is at the start of
    /// a heap, or at the end of what the kernel has made one mapping of, as each new one lies below those before.
    const MARGIN: u64 = 128 << 10;

    fn region(&mut self, range: &Range<u64>, prot: usize, kind: RegionKind) {
        let plain = matches!(kind, RegionKind::Anonymous | RegionKind::Program);
        let large = range.end - range.start >= Self::LEAST;
        let is_one = guards::are_wanted() && plain && large && prot & sys::PROT_EXEC == 0;
        self.region = is_one.then(|| (range.start + Self::MARGIN..range.end - Self::MARGIN, prot));
    }

    fn written(&mut self, start: u64, len: u64) {
        let Some((region, prot)) = &self.region else { return };
        let end = page_down(start.saturating_add(len)).min(region.end);
        let start = page_up(start).max(region.start);
        match self.pages.last_mut() {
            _ if start >= end => {}
            Some((last, same)) if last.end == start && same == prot => last.end = end,
            _ => self.pages.push((start..end, *prot)),
        }
    }

    fn begin(mut self) {
        if self.pages.is_empty() {
            return;
        }
        self.pages.sort_by_key(|(range, _)| range.start);
        let guard = |(range, prot)| Guard::new(range, mapping::real_protection(prot));
        guards::install(self.pages.into_iter().map(guard).collect());
    }
}

fn damaged() -> ! {
    impossible_at_start(format_args!("the script is damaged: a snapshot is not complete"))
}

/// The heap ends where it did. That stands at the end of the snapshot.
fn put_heap(thread: &mut Thread, entries: &'static [u8]) {
    let mut script = Script::new(entries);
    while let Next::Entry(entry) = script.peek() {
        if let (Kind::Snapshot, Some(Event::Snapshot { brk: wanted, .. })) =
            (entry.kind(), entry.event())
        {
            let got = brk().set(wanted.0);
            if got != wanted.0 {
                let pc = thread.resume_original;
                impossible(thread, pc, format_args!("there is no room for the heap"))
            }
            return;
        }
        script.take(&entry);
    }
    damaged()
}

fn put_actions(thread: &mut Thread, all: &[u8]) {
    for (signal, bytes) in (1..65).zip(all.chunks_exact(32)) {
        let mut words = bytes.chunks_exact(8).map(|w| w.try_into().map_or(0, u64::from_le_bytes));
        let mut next = || words.next().unwrap_or(0);
        let (handler, flags, restorer, mask) = (next(), next(), next(), next());
        let action = Action { handler, flags, restorer, mask };
        actions::with(thread, signal, |place| *place = action);
    }
}

/// What a snapshot says of a thread, but for its registers.
struct State {
    index: u32,
    tid: u32,
    parent: u32,
    turns: u64,
    mask: u64,
    alternate: [u64; 3],
    clear_tid: u64,
}

impl State {
    fn put(&self, thread: &mut Thread, registers: &RegisterState, vectors: &[u8]) {
        (thread.index, thread.tid, thread.parent) = (self.index, self.tid, self.parent);
        thread.block.registers.gpr = registers.gpr;
        thread.block.registers.rip = registers.rip;
        thread.block.program_gs = registers.gs_base;
        thread.block.registers.rflags = registers.rflags;
        thread.resume_original = registers.rip;
        thread.mailbox.set_mask(self.mask);
        let [sp, flags, size] = self.alternate;
        thread.alt_stack = AltStack { sp, flags: flags as i32, pad: 0, size };
        thread.clear_tid = self.clear_tid;
        thread.begin_turns(self.turns);
        thread.stood = Some((registers.rip, self.turns));
        const FIRST: usize = 160;
        let low = vectors.get(FIRST..).unwrap_or_default().chunks_exact(8);
        let low = low.map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        thread.xmm.iter_mut().flatten().zip(low).for_each(|(to, from)| *to = from);
        if let Some(registers) = claimed(vectors) {
            thread.block.program_vectors = registers;
        }
    }

    /// The thread is the one that runs.
    fn begin(&self, thread: &mut Thread, registers: &RegisterState, vectors: &[u8]) {
        self.put(thread, registers, vectors);
        let args = [ARCH_SET_FS, registers.fs_base as usize];
        // SAFETY: the base is the program's.
        let _ = unsafe { sys::call(nr::ARCH_PRCTL, &args) };
        let Ok(area) = anonymous(vectors_len()) else {
            impossible_at_start(format_args!("no memory for the state of a thread"));
        };
        // SAFETY: the area is new, and as large as the state.
        unsafe {
            put_vectors(area, vectors);
            load_vectors(area);
        }
    }

    /// The thread is another one, which stands still.
    fn stand(&self, thread: &mut Thread, registers: &RegisterState, vectors: &[u8]) {
        let Some(child) = threads::restored(thread, self.index) else {
            impossible_at_start(format_args!("no memory for another thread"));
        };
        self.put(child, registers, vectors);
        contexts::stands(thread, child, registers.fs_base, vectors);
    }
}

/// Memory that is there already can be written for now.
fn open(thread: &mut Thread, range: &Range<u64>, prot: usize) {
    protect(thread, range, prot | sys::PROT_READ | sys::PROT_WRITE);
}

/// The program may change code.
const CHANGES: usize = sys::PROT_WRITE | sys::PROT_EXEC;

/// Memory gets its own rights.
fn close(thread: &mut Thread, range: &Range<u64>, prot: usize, is_program: bool) {
    let is_readable = sys::PROT_READ | sys::PROT_WRITE;
    if is_program && prot & CHANGES == CHANGES {
        // Its translation goes.
        let args = [range.start as usize, (range.end - range.start) as usize, prot, 0, 0, 0];
        if mapping::mprotect(thread, nr::MPROTECT, &args) == 0 {
            return;
        }
    }
    if is_program || prot & is_readable != is_readable {
        protect(thread, range, prot);
    }
}

fn protect(thread: &mut Thread, range: &Range<u64>, prot: usize) {
    let (at, len) = (range.start as usize, (range.end - range.start) as usize);
    let args = [at, len, mapping::real_protection(prot)];
    // SAFETY: memory of the program's, which has not begun.
    if let Err(errno) = unsafe { sys::call(nr::MPROTECT, &args) } {
        let pc = thread.resume_original;
        impossible(
            thread,
            pc,
            format_args!("{len} bytes of the program at {at:#x} are not there (error {errno})"),
        )
    }
}
