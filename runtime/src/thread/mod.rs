//! A thread as the runtime knows it, and the memory that belongs to it.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

pub mod ending;
pub mod for_exec;
pub mod foreign;
pub mod mailbox;
pub mod pressure;
pub mod seek;
pub mod traps;
pub mod turns;
pub mod vectors;

use crate::base::control::Slot;
use crate::base::digest::Digest;
use crate::base::elsewhere;
use crate::base::facts::facts;
use crate::base::mapping::Mapping;
use crate::base::signal::{Actions, AltStack, SS_AUTODISARM};
use crate::base::sys;
use crate::recording::recorder::Recorder;
use abi::event::{Event, EventRef};
use abi::thread::ThreadBlock;
use abi::trace::RegisterState;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::offset_of;
use for_exec::ForExec;
use foreign::Foreign;
use iced_x86::InstructionInfoFactory;
use lifter::operands::Reference;
use mailbox::Mailbox;
use pressure::Pressure;
use seek::Seek;
use smallvec::SmallVec;
use traps::{Fetch, LastFault, Traps};
use vectors::InterruptedVectors;

/// A thread and its mailbox, one behind the other: gs points here.
///
/// Two things, because there is one `&mut Thread` while the runtime runs on the thread, and the
/// handler of a signal that comes in meanwhile uses the mailbox.
#[repr(C)]
pub struct Home {
    thread: Thread,
    mailbox: Mailbox,
}

/// Where naked code finds the parts of the mailbox, from gs on.
pub const PENDING: usize = offset_of!(Home, mailbox) + offset_of!(Mailbox, pending);
pub const UNBLOCK: usize = offset_of!(Home, mailbox) + offset_of!(Mailbox, unblock);
pub const TAIL_MASK: usize = offset_of!(Home, mailbox) + offset_of!(Mailbox, tail_mask);

/// What an instruction loads or stores: where, and so many bytes. Seldom more than one, and threads would wait for each
/// other at the heap.
pub type Ranges = SmallVec<[(u64, u64); 2]>;

/// Values of [`Thread::vector`].
pub mod claims {
    use abi::thread::FIRST_VECTOR;

    /// While translated code runs, xmm15 holds the buffer pointers, and the program's ymm15 is in the thread block.
    /// While the runtime works, it is where the other fifteen are.
    pub const XMM15: u32 = 1;
    /// While translated code runs, xmm31 holds the buffer pointers and xmm30 is scratch. The program's are in the
    /// thread block, always.
    pub const XMM31: u32 = 2;
    /// The same, and xmm25 to xmm29 hold increments ([`abi::thread::HELD`]).
    pub const XMM25: u32 = 3;

    /// The first of the registers that are claimed, if those are the last ones.
    pub fn first(claims: u32) -> Option<usize> {
        match claims {
            XMM31 => Some(30),
            XMM25 => Some(FIRST_VECTOR),
            _ => None,
        }
    }
}

/// The block first: gs points to it.
#[repr(C, align(64))]
pub struct Thread {
    pub block: ThreadBlock,
    pub xmm: [[u64; 2]; 16],
    /// While the handler works, the vector state that it has interrupted. Otherwise it is the processor's.
    pub interrupted: Option<InterruptedVectors>,
    /// Which vector registers translated code claims: 0, or one of [`claims`].
    pub vector: u32,
    /// How signals stand with the thread.
    pub mailbox: &'static Mailbox,
    /// What the next handler's mask is made of, if that is not `mask`: the mask of the call that its
    /// signal has ended.
    pub handler_mask: Option<u64>,
    /// Original pc of `block.resume`.
    pub resume_original: u64,
    /// `resume_original` is the last instruction of the last recorded unit, which faulted.
    pub transfer_undone: bool,
    /// The signal that the runtime has raised for the instruction at `resume_original`, and that has not
    /// been delivered, or 0: it would raise it there again.
    pub raised: i32,
    /// How it stands with memory that other processes may store to.
    pub foreign: Foreign,
    /// What the program has passed to the kernel for the call that is being made, if that is recorded.
    pub passed: Digest,
    /// Turns that it had made at its last event.
    pub noted: u64,
    /// Replay: where the thread stood when what is kept began, and its turns, until its next call.
    pub stood: Option<(u64, u64)>,
    /// It carries out a call of the program's, and may fault: the signals of faults are not blocked, unless another waits.
    pub at_hand: bool,
    /// System calls that the log has counted.
    pub calls: u32,
    /// Original pc of the `syscall` instruction that is being carried out.
    pub syscall_pc: u64,
    pub alt_stack: AltStack,
    /// The program has set the trap flag: how far the instruction that raises the next trap is.
    pub traps: Traps,
    /// What the kernel tells a handler of the last fault.
    pub fault: LastFault,
    /// What the processor is to raise for a fetch, with the program's state in the block.
    pub fetching: Option<Fetch>,
    /// How dense its signals are.
    pub pressure: Pressure,
    /// Where it is, for whoever wants to stop it.
    pub slot: Slot,
    /// The generation of the code ([`crate::kernel::switch`]) that `block.resume` belongs to.
    pub seen: u32,
    /// It runs the variant of the code that records nothing although that of the process does.
    pub plain: bool,
    pub index: u32,
    pub parent: u32,
    pub tid: u32,
    pub recorder: Recorder,
    /// What turns are counted from, in a replay: how many are made when `block.turns_left` comes to zero, or were
    /// when the control-flow pointer was zero.
    pub turns_from: u64,
    /// A child of vfork: shares everything with its parent until it execs or exits.
    pub vfork_child: bool,
    /// As such a child, but nobody waits for it: it is counted among the threads, as its memory is in use.
    pub beside: bool,
    /// As a child of vfork, it wants to be traced by its parent from the program on that it executes.
    pub to_be_traced: bool,
    /// Watched: the page of which the view was mended last.
    pub mended: u64,
    /// How often it was.
    pub mends: u32,
    /// It has carried out an instruction that is not known to be watched.
    pub unwatched: bool,
    /// It has its place in the order of serial threads.
    pub in_order: bool,
    /// Up to this moment it has noted the code that the program has made (`code::made`).
    pub made_known: u64,
    /// Where it was last about to open such code, and behind how many turns; and how often it tried to.
    pub opening: (u64, u64),
    pub tries: u32,
    /// What the instruction stores that runs on the view.
    pub stored_on_view: Ranges,
    /// What tells what an instruction references, and room for that: to make them anew would allocate.
    pub factory: InstructionInfoFactory,
    pub references: Vec<Reference>,
    /// In a ring: how its part stands.
    pub part: Part,
    /// The word that the kernel clears when the thread ends, or 0.
    pub clear_tid: u64,
    /// Number of the last filter of system calls (see [`crate::kernel::syscalls::seccomp`]), or 0.
    pub filter: u32,
    /// The last one that the kernel has, too.
    pub kernel_filter: u32,
    /// A vfork child's signal actions; it must not change its parent's.
    pub own_actions: Option<Box<Actions>>,
    /// It begins without any handler (CLONE_CLEAR_SIGHAND).
    pub clears_actions: bool,
    pub for_exec: ForExec,
    /// In a replay: how far it is.
    pub seek: Seek,
    /// While it lets others run: what they have to know of it to copy it.
    pub standing: Standing,
    /// In the list of ended threads: the next one.
    pub next_spare: u64,
    pub handler_stack: u64,
}

/// The part of a watched thread in a ring, where a replay may begin.
#[derive(Default)]
pub struct Part {
    /// The interval in which it began.
    pub interval: u32,
    /// Turns that have been counted.
    pub counted: u64,
    /// How often the thread has come by.
    pub looks: u32,
}

/// What belongs to the processor while a thread runs, once the thread lets others run.
#[derive(Default)]
pub struct Standing {
    /// Original address where it goes on.
    pub pc: u64,
    pub fs_base: u64,
    /// Memory with its vector state, or 0.
    pub vectors: u64,
}

const STACK: u64 = 512 << 10;
const HANDLER_STACK: u64 = 512 << 10;
const GUARD: u64 = 4096;

/// What is written of a thread's home all the time lies ahead of the table of increments and behind it.
/// A fork costs a page fault for each page that is written, twice: so the table takes the page in the middle,
/// and what lies ahead of it shares a page with the first frames of the runtime's stack.
const FRONT: u64 = (abi::thread::INCREMENTS as u64).next_multiple_of(64);

fn home_size() -> u64 {
    abi::layout::page_up(core::mem::size_of::<Home>() as u64 - FRONT)
}

impl Thread {
    /// Memory for a thread: `[guard | handler stack | guard | stack | Home]`. It stays.
    pub fn create() -> Result<&'static mut Thread, i32> {
        let total = GUARD + HANDLER_STACK + GUARD + STACK + home_size();
        let mut memory = Mapping::anonymous(total)?;
        let base = memory.start();
        let handler_stack = base + GUARD;
        let second = handler_stack + HANDLER_STACK;
        for guard in [base, second] {
            memory.protect(guard, GUARD, 0)?;
        }
        let runtime_stack = second + GUARD + STACK - FRONT;
        let home = runtime_stack as *mut Home;
        // SAFETY: fresh memory of this size, aligned to 64, that nobody else knows and that is
        // never given back. The two references cover different parts of it.
        unsafe {
            (&raw mut (*home).mailbox).write(Mailbox::new());
            let mailbox = &(*home).mailbox;
            let thread = &raw mut (*home).thread;
            let slot = Slot::next();
            thread.write(Thread::new(thread as u64, mailbox, slot, runtime_stack, handler_stack));
            Ok(&mut *thread)
        }
    }

    /// A thread at `this`, with its stacks, that has done nothing yet.
    fn new(
        this: u64,
        mailbox: &'static Mailbox,
        slot: Slot,
        runtime_stack: u64,
        handler_stack: u64,
    ) -> Thread {
        slot.begin();
        let entries = &facts().entries;
        let mut block = ThreadBlock::new();
        block.runtime_stack = runtime_stack;
        block.stub_miss = entries.far;
        block.table_miss = entries.miss;
        block.stub_syscall = entries.syscall;
        block.stub_exit = entries.exit;
        block.stub_refuse = entries.refuse;
        block.stub_store = entries.store;
        block.stub_turn = entries.turn;
        block.stub_ask = entries.ask;
        block.stub_watch = entries.watch;
        block.stub_fill = entries.fill;
        block.log_call = entries.log_call;
        elsewhere::tell(&mut block);
        block.this = this;
        let mut thread = Thread {
            block,
            xmm: [[0; 2]; 16],
            interrupted: None,
            vector: 0,
            mailbox,
            handler_mask: None,
            resume_original: 0,
            transfer_undone: false,
            raised: 0,
            foreign: Foreign::default(),
            passed: Digest::default(),
            noted: 0,
            stood: None,
            at_hand: false,
            calls: 0,
            syscall_pc: 0,
            alt_stack: AltStack::DISABLED,
            traps: Traps::default(),
            fault: LastFault::default(),
            fetching: None,
            pressure: Pressure::NONE,
            slot,
            seen: 0,
            plain: false,
            index: 0,
            parent: 0,
            tid: 0,
            recorder: Recorder::default(),
            turns_from: 0,
            vfork_child: false,
            beside: false,
            to_be_traced: false,
            mended: 0,
            mends: 0,
            unwatched: false,
            in_order: false,
            made_known: 0,
            opening: (0, 0),
            tries: 0,
            stored_on_view: Ranges::new(),
            factory: InstructionInfoFactory::new(),
            references: Vec::new(),
            part: Part::default(),
            clear_tid: 0,
            filter: 0,
            kernel_filter: 0,
            own_actions: None,
            clears_actions: false,
            for_exec: ForExec::default(),
            seek: Seek::new(),
            standing: Standing::default(),
            next_spare: 0,
            handler_stack,
        };
        thread.begin_turns(0);
        thread
    }

    /// As new, in the same memory.
    pub fn reset(&mut self) {
        self.mailbox.reset();
        let (stack, handler_stack) = (self.block.runtime_stack, self.handler_stack);
        // The memory for its vectors stays with it.
        let standing = Standing { vectors: self.standing.vectors, ..Standing::default() };
        *self = Thread::new(self.block.this, self.mailbox, self.slot, stack, handler_stack);
        self.standing = standing;
    }

    /// Notes an event at the thread's position, `insn` instructions into its last unit.
    pub fn event(&mut self, insn: u32, event: &EventRef<'_>) {
        self.note_turns();
        self.noted = self.turns();
        let pointers = self.block.pointers;
        self.recorder.event(&pointers, insn, event);
    }

    /// Notes the turns that the thread has made, where inputs are recorded beside streams: they place
    /// what comes next.
    pub fn note_turns(&mut self) {
        if facts().options.recording.both() {
            let (pointers, turns) = (self.block.pointers, self.turns());
            self.recorder.turns(&pointers, turns);
        }
    }

    /// The state of the thread, whose registers are in its block, at `rip`.
    pub fn register_state(&self, rip: u64, valid: u64) -> RegisterState {
        RegisterState {
            gpr: self.block.registers.gpr,
            rip,
            rflags: self.block.registers.rflags,
            fs_base: self.fs_base(),
            gs_base: self.block.program_gs,
            valid,
        }
    }

    /// Whether the thread, which is watched and recorded, is between two instructions of the program's, and nothing is under
    /// way that a replay would have half.
    pub fn is_between(&self) -> bool {
        self.raised == 0
            && self.handler_mask.is_none()
            && self.stored_on_view.is_empty()
            && !self.vfork_child
            && self.recorder.to_file()
    }

    /// What a replay that begins with the thread's state has to know.
    pub fn state_event<'a>(&self, registers: &'a RegisterState, vectors: &'a [u8]) -> EventRef<'a> {
        let alternate = &self.alt_stack;
        Event::State {
            index: self.index,
            tid: self.tid,
            parent: self.parent,
            turns: self.turns(),
            mask: self.mailbox.mask(),
            alternate: [alternate.sp, u64::from(alternate.flags.cast_unsigned()), alternate.size],
            clear_tid: self.clear_tid,
            registers,
            vectors,
        }
    }

    /// Makes gs point here and gives the kernel our signal stack.
    pub fn adopt(&mut self) {
        const ARCH_SET_GS: usize = 0x1001;
        let stack = AltStack { sp: self.handler_stack, flags: 0, pad: 0, size: HANDLER_STACK };
        // SAFETY: the block outlives the thread, and so does the stack.
        unsafe {
            let _ = sys::call(sys::nr::ARCH_PRCTL, &[ARCH_SET_GS, self.block.this as usize]);
            let _ = sys::call(sys::nr::SIGALTSTACK, &[&stack as *const AltStack as usize, 0]);
        }
    }

    /// Where the calling thread lives. Nothing is said about who uses it.
    ///
    /// # Safety
    /// gs points to a thread that was made by [`Thread::create`].
    pub unsafe fn here() -> *mut Thread {
        let at: *mut Thread;
        // SAFETY: the first word of the block is its own address.
        unsafe {
            core::arch::asm!("mov {}, gs:[0]", out(reg) at, options(nostack, readonly, preserves_flags));
        }
        at
    }

    /// The mailbox of the calling thread.
    ///
    /// # Safety
    /// gs points to a thread that was made by [`Thread::create`].
    pub unsafe fn mailbox_here() -> &'static Mailbox {
        // SAFETY: as promised, a thread lives in its home, which stays. Nothing but the mailbox is
        // borrowed, and a mailbox is only ever shared.
        unsafe {
            let home = Thread::here().cast::<Home>();
            &(*home).mailbox
        }
    }

    /// Whether `sp` is on the program's alternate stack.
    pub fn on_alt_stack(&self, sp: u64) -> bool {
        self.alt_stack.flags & SS_AUTODISARM == 0 && self.alt_stack.contains(sp)
    }

    /// The program's fs base: the processor's, unless that leads a watched thread to its view.
    pub fn fs_base(&self) -> u64 {
        if self.block.view != 0 {
            return self.block.program_fs;
        }
        const ARCH_GET_FS: usize = 0x1003;
        let mut base = 0u64;
        // SAFETY: the kernel writes one word.
        let _ = unsafe {
            sys::call(sys::nr::ARCH_PRCTL, &[ARCH_GET_FS, &mut base as *mut u64 as usize])
        };
        base
    }
}
