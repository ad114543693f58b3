//! A thread as the runtime knows it, and the memory that belongs to it.

pub mod ending;
use crate::base::facts::facts;
use crate::base::own::anonymous;
use crate::base::signal::{Actions, AltStack, PendingSignal, SS_AUTODISARM};
use crate::base::sys;
use crate::recording::recorder::Recorder;
use abi::event::EventRef;
use abi::thread::ThreadBlock;
use abi::trace::RegisterState;
use alloc::boxed::Box;

/// The block first: gs points to it.
#[repr(C, align(64))]
pub struct Thread {
    pub block: ThreadBlock,
    pub xmm: [[u64; 2]; 16],
    /// Not zero: while translated code runs, xmm31 holds the buffer pointers and xmm30 is scratch.
    pub vector: u32,
    /// Not zero: signals are blocked beyond the program's mask, and let in at the tail.
    pub unblock: u32,
    /// The program's mask without the synchronous signals: what the kernel knows.
    pub real_mask: u64,
    /// What the tail sets if `unblock` is set.
    pub tail_mask: u64,
    /// Not zero: `waiting` holds a signal.
    pub pending: u32,
    pub waiting: Option<PendingSignal>,
    /// Signals of the kinds that faults raise, which the kernel never blocks for us, but which were
    /// sent while a step was under way, or while the program blocks them: one of each, as the
    /// kernel keeps them.
    pub held: [Option<PendingSignal>; 6],
    /// The signal in `waiting` that the program blocks, but not during the call that it came in, or 0.
    pub let_in: i32,
    /// What the next handler's mask is made of, if that is not `mask`: the mask of the call that its
    /// signal has ended.
    pub handler_mask: Option<u64>,
    /// The program's mask as it believes it to be.
    pub mask: u64,
    /// Original pc of `block.resume`.
    pub resume_original: u64,
    /// `resume_original` is the last instruction of the last recorded unit, which faulted.
    pub transfer_undone: bool,
    /// Original pc of the `syscall` instruction that is being carried out.
    pub syscall_pc: u64,
    pub alt_stack: AltStack,
    /// Stepping to an instruction boundary with a signal in `waiting`.
    pub stepping: bool,
    /// A record is being stored with the program's alignment check off.
    pub unaligned: bool,
    pub mask_of_unaligned: u64,
    pub index: u32,
    pub parent: u32,
    pub tid: u32,
    pub recorder: Recorder,
    /// A child of vfork: shares everything with its parent until it execs or exits.
    pub vfork_child: bool,
    /// The word that the kernel clears when the thread ends, or 0.
    pub clear_tid: u64,
    /// Number of the last filter of system calls (see [`crate::kernel::syscalls::seccomp`]), or 0.
    pub filter: u32,
    /// The last one that the kernel has, too.
    pub kernel_filter: u32,
    /// A vfork child's signal actions; it must not change its parent's.
    pub own_actions: Option<Box<Actions>>,
    /// In the list of ended threads: the next one.
    pub next_spare: u64,
    pub handler_stack: u64,
}

const STACK: u64 = 512 << 10;
const HANDLER_STACK: u64 = 512 << 10;
const GUARD: u64 = 4096;

fn struct_size() -> u64 {
    abi::layout::page_up(core::mem::size_of::<Thread>() as u64)
}

impl Thread {
    /// Memory for a thread: `[guard | stack | guard | handler stack | Thread]`.
    pub fn create() -> Result<&'static mut Thread, i32> {
        let total = GUARD + STACK + GUARD + HANDLER_STACK + struct_size();
        let base = anonymous(total)?;
        for guard in [base, base + GUARD + STACK] {
            // SAFETY: inside the mapping that was just made.
            unsafe { sys::call(sys::nr::MPROTECT, &[guard as usize, GUARD as usize, 0]) }?;
        }
        let at = base + GUARD + STACK + GUARD + HANDLER_STACK;
        // SAFETY: fresh zeroed memory, aligned to a page, of this size; all-zero bytes are a valid
        // Thread but for the fields set here.
        let thread = unsafe { &mut *(at as *mut Thread) };
        thread.block.runtime_stack = base + GUARD + STACK;
        thread.handler_stack = base + GUARD + STACK + GUARD;
        thread.reset();
        Ok(thread)
    }

    /// As new, in the same memory.
    pub fn reset(&mut self) {
        let stack = self.block.runtime_stack;
        let this = self as *mut Thread as u64;
        let entries = &facts().entries;
        self.block = ThreadBlock::new();
        let block = &mut self.block;
        block.runtime_stack = stack;
        block.stub_miss = entries.miss;
        block.stub_syscall = entries.syscall;
        block.stub_exit = entries.exit;
        block.stub_refuse = entries.refuse;
        block.stub_store = entries.store;
        block.this = this;
        self.waiting = None;
        self.held = [None; 6];
        self.let_in = 0;
        self.handler_mask = None;
        self.filter = 0;
        self.kernel_filter = 0;
        self.pending = 0;
        self.unblock = 0;
        self.stepping = false;
        self.transfer_undone = false;
        self.vector = 0;
        self.vfork_child = false;
        self.clear_tid = 0;
        self.alt_stack = AltStack::DISABLED;
        self.recorder = Recorder::default();
        self.own_actions = None;
    }

    /// Notes an event at the thread's position, `insn` instructions into its last unit.
    pub fn event(&mut self, insn: u32, event: &EventRef<'_>) {
        let pointers = self.block.pointers;
        self.recorder.event(&pointers, insn, event);
    }

    /// The state of the thread, whose registers are in its block, at `rip`.
    pub fn register_state(&self, rip: u64, valid: u64) -> RegisterState {
        RegisterState {
            gpr: self.block.registers.gpr,
            rip,
            rflags: self.block.registers.rflags,
            fs_base: self.fs_base(),
            gs_base: 0,
            valid,
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

    /// The calling thread.
    ///
    /// # Safety
    /// gs points to a thread block, and no other reference to it is in use.
    pub unsafe fn current() -> &'static mut Thread {
        let at: *mut Thread;
        // SAFETY: the first word of the block is its own address.
        unsafe {
            core::arch::asm!("mov {}, gs:[0]", out(reg) at, options(nostack, readonly, preserves_flags));
            &mut *at
        }
    }

    /// Whether `sp` is on the program's alternate stack.
    pub fn on_alt_stack(&self, sp: u64) -> bool {
        self.alt_stack.flags & SS_AUTODISARM == 0 && self.alt_stack.contains(sp)
    }

    /// The fs base, which belongs to the program.
    pub fn fs_base(&self) -> u64 {
        const ARCH_GET_FS: usize = 0x1003;
        let mut base = 0u64;
        // SAFETY: the kernel writes one word.
        let _ = unsafe {
            sys::call(sys::nr::ARCH_PRCTL, &[ARCH_GET_FS, &mut base as *mut u64 as usize])
        };
        base
    }
}
