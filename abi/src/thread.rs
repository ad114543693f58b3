//! The per-thread block that `gs` points to while translated code runs.
//!
//! Generated code and the runtime's entry stubs address it by the offsets below; the runtime owns
//! the memory. Nothing here belongs to the program.

use core::mem::offset_of;

/// Control-flow bytes that one unit can add, as an index into the table of increments.
pub const CF_LENGTHS: [u64; 7] = [0, 1, 2, 4, 8, 9, 10];
/// Memory-stream words (of 8 bytes) that one increment of the table can add: `0..MEM_STEPS`.
pub const MEM_STEPS: usize = 48;

/// The first vector register that may not be the program's while translated code runs; all behind it are like it.
pub const FIRST_VECTOR: usize = 25;
/// So many registers: to the last one.
pub const VECTORS: usize = 32 - FIRST_VECTOR;
/// What xmm25 to xmm29 hold, where they are not the program's: control-flow bytes and memory words, which the rest of
/// [`ThreadBlock::increments`] has in memory. These five are nine of ten in all programs that were looked at.
pub const HELD: [(u8, usize); 5] = [(2, 0), (4, 0), (2, 1), (4, 1), (0, 1)];

/// Registers of the program while the runtime works for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 .. r15 (hardware numbering).
    pub gpr: [u64; 16],
    /// The instruction pointer.
    pub rip: u64,
    /// The flags.
    pub rflags: u64,
}

/// One 16-byte addend for the pair of buffer pointers.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Increment {
    /// To the pointer to the control-flow stream.
    pub control_flow: u64,
    /// To the pointer to the memory stream.
    pub memory: u64,
}

/// What belongs to a thread and is reached by generated code: `gs` points here.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct ThreadBlock {
    /// Linear address of this block.
    pub this: u64,
    /// Entry for a look-up that missed; the original target is in `target`.
    pub stub_miss: u64,
    /// Entry for `syscall`; rcx holds the original next pc.
    pub stub_syscall: u64,
    /// Entry for a direct branch that is not linked yet; `exit_id` says which.
    pub stub_exit: u64,
    /// Entry for an instruction that cannot be run translated; `exit_id` says why, `target` where.
    pub stub_refuse: u64,
    /// The program's rcx inside call, return and jump sequences.
    pub saved_rcx: u64,
    /// Original target of an indirect transfer, whole. Its high half is `window_high` whenever
    /// translated code runs outside an indirect sequence, so that a return needs to write the low
    /// half only.
    pub target: u64,
    /// Translated target of an indirect transfer.
    pub jump: u64,
    /// High half of every address in the code window.
    pub window_high: u64,
    /// Spilled scratch registers of snippets.
    pub spill: [u64; 2],
    /// Which exit (`stub_exit`), why (`stub_refuse`), both in the low half; behind a transfer out of
    /// the window its original pc (`stub_miss`).
    pub exit_id: u64,
    /// `[control flow, memory]` buffer pointers: [`crate::options::Pointers::ThreadBlock`] only,
    /// and while an instruction that needs the program's xmm15, xmm30 or xmm31 runs.
    pub pointers: [u64; 2],
    /// Top of the runtime's stack for this thread.
    pub runtime_stack: u64,
    /// Live translated address that an entry stub resumes at.
    pub resume: u64,
    /// The program's zmm25 to zmm31 while translated code runs: xmm31 holds the buffer pointers then, xmm30 is scratch,
    /// and the others hold what is added most often ([`HELD`]), or are the program's. If xmm15 has the pointers, the
    /// program's ymm15 is where zmm31 would be. Without xmm30 a return borrows xmm7, and keeps it where zmm30 would be.
    pub program_vectors: [[u64; 8]; VECTORS],
    /// The program's registers, while the runtime works.
    pub registers: Registers,
    /// Addends: `increments[cf_index][memory words]`, see [`CF_LENGTHS`].
    pub increments: [[Increment; MEM_STEPS]; CF_LENGTHS.len()],
    /// Entry in front of a store whose extent is only known when it runs; `resume` says where to go
    /// on, `target` the instruction's original address.
    pub stub_store: u64,
    /// Number of the synchronising instruction that is being executed.
    pub order: u64,
    /// Not zero: the thread has the lock of the synchronising instructions.
    pub sync_held: u64,
    /// Replay: turns until the thread leaves by way of `stub_turn`, in front of the instruction that is
    /// the last of them; counted down.
    pub turns_left: u64,
    /// Replay: entry when `turns_left` has come to zero; `resume` says where to go on, `target` the
    /// instruction's original address.
    pub stub_turn: u64,
    /// Inputs and replay: entry in place of an instruction that asks the machine; `target` is its
    /// original address.
    pub stub_ask: u64,
    /// What is added to eight times an address in the window: the place of its entry in the table of
    /// jumps, if that lies high ([`crate::options::Options::jump_entries`]).
    pub jump_entries: u64,
    /// Watched: what is added to an address to get to the place of it in the thread's view.
    pub view: u64,
    /// What is added to get back.
    pub view_back: u64,
    /// Registers of the program behind an instruction whose result is copied.
    pub view_spill: [u64; 2],
    /// Entry where the view is to be mended, or the runtime acts in place of an instruction: `exit_id` says
    /// which ([`watch`]), `target` is the instruction's original address; `resume` says where to go on, and
    /// `behind` where behind an instruction that the runtime has carried out.
    pub stub_watch: u64,
    /// See there.
    pub behind: u64,
    /// Entry where a slot of a jump table is taken for the first time: `target` is the jump's original
    /// address, `resume` where its look-up begins, which it goes on with.
    pub stub_fill: u64,
    /// Watched: the program's fs base. The processor's is `view` while the thread is watched.
    pub program_fs: u64,
    /// The program's gs base: the processor's leads here.
    pub program_gs: u64,
    /// Entry where a look-up of a jump has found nothing ([`crate::misses::MISS_CODE`]): as `stub_miss`, which
    /// looks further where the target may lie outside of the window.
    pub table_miss: u64,
    /// Undo log: the routine that records all registers at a call, and what it overwrites. It is called, with the old
    /// bytes in xmm30.
    pub log_call: u64,
    /// A byte for each page below 2^47: 1 where others may store, and the memory is closed to the program ([`PAGE_OF`]).
    pub shared_pages: u64,
    /// What is added to an address of such memory to get to where it is open.
    pub shared_open: u64,
    /// What is added to that to get to what the program has left there, and what is added to get back.
    pub shared_left: u64,
    /// See there.
    pub shared_back: u64,
}

macro_rules! offsets {
    ($($name:ident = $($field:tt).+ => $value:expr;)*) => {
        $(#[doc = concat!("Offset of `", stringify!($($field).+), "` in the [`ThreadBlock`].")]
        pub const $name: i32 = offset_of!(ThreadBlock, $($field).+) as i32;
        const _: () = assert!($name == $value);)*
    };
}

offsets! {
    THIS = this => 0x00;
    STUB_MISS = stub_miss => 0x08;
    STUB_SYSCALL = stub_syscall => 0x10;
    STUB_EXIT = stub_exit => 0x18;
    STUB_REFUSE = stub_refuse => 0x20;
    SAVED_RCX = saved_rcx => 0x28;
    TARGET = target => 0x30;
    JUMP = jump => 0x38;
    WINDOW_HIGH = window_high => 0x40;
    SPILL = spill => 0x48;
    EXIT_ID = exit_id => 0x58;
    POINTERS = pointers => 0x60;
    RUNTIME_STACK = runtime_stack => 0x70;
    RESUME = resume => 0x78;
    PROGRAM_VECTORS = program_vectors => 0x80;
    REGISTERS = registers => 0x240;
    RIP = registers.rip => 0x2c0;
    RFLAGS = registers.rflags => 0x2c8;
    INCREMENTS = increments => 0x2d0;
    STUB_STORE = stub_store => 0x17d0;
    ORDER = order => 0x17d8;
    SYNC_HELD = sync_held => 0x17e0;
    TURNS_LEFT = turns_left => 0x17e8;
    STUB_TURN = stub_turn => 0x17f0;
    STUB_ASK = stub_ask => 0x17f8;
    JUMP_ENTRIES = jump_entries => 0x1800;
    VIEW = view => 0x1808;
    VIEW_BACK = view_back => 0x1810;
    VIEW_SPILL = view_spill => 0x1818;
    STUB_WATCH = stub_watch => 0x1828;
    BEHIND = behind => 0x1830;
    STUB_FILL = stub_fill => 0x1838;
    PROGRAM_FS = program_fs => 0x1840;
    PROGRAM_GS = program_gs => 0x1848;
    TABLE_MISS = table_miss => 0x1850;
    LOG_CALL = log_call => 0x1858;
    SHARED_PAGES = shared_pages => 0x1860;
    SHARED_OPEN = shared_open => 0x1868;
    SHARED_LEFT = shared_left => 0x1870;
    SHARED_BACK = shared_back => 0x1878;
}

/// How far an address is shifted to the left, and then to the right, to get to the number of its page as
/// [`ThreadBlock::shared_pages`] has it.
pub const PAGE_OF: [u32; 2] = [17, 29];

/// Offset of the program's zmm30 in the [`ThreadBlock`].
pub const PROGRAM_ZMM30: i32 = program_vector(30);
/// Offset of the program's zmm31 in the [`ThreadBlock`].
pub const PROGRAM_ZMM31: i32 = program_vector(31);
/// Offset of the program's xmm7 in the [`ThreadBlock`], while a return borrows that.
pub const SAVED_XMM7: i32 = PROGRAM_ZMM30;
/// Offset of the program's ymm15 in the [`ThreadBlock`], if translated code holds the buffer pointers there.
pub const PROGRAM_YMM15: i32 = PROGRAM_ZMM31;

/// Offset of the program's vector register `number`, from [`FIRST_VECTOR`] on, in the [`ThreadBlock`].
pub const fn program_vector(number: usize) -> i32 {
    PROGRAM_VECTORS + (64 * (number - FIRST_VECTOR)) as i32
}

/// The register that holds what adds `control_flow` bytes and `words`, if there is one.
pub fn held_in(control_flow: u8, words: usize) -> Option<u8> {
    let n = HELD.iter().position(|&held| held == (control_flow, words))?;
    Some((FIRST_VECTOR + n) as u8)
}

/// The offsets of what xmm25 to xmm29 hold, in the table of increments.
pub const HELD_OFFSETS: [i32; HELD.len()] = {
    let mut offsets = [0; HELD.len()];
    let mut n = 0;
    while n < HELD.len() {
        let (control_flow, words) = HELD[n];
        let mut index = 0;
        while CF_LENGTHS[index] != control_flow as u64 {
            index += 1;
        }
        offsets[n] = increment_offset(index, words);
        n += 1;
    }
    offsets
};

/// Offset of the increment that adds `CF_LENGTHS[cf_index]` and `8 * words`.
pub const fn increment_offset(cf_index: usize, words: usize) -> i32 {
    INCREMENTS + ((cf_index * MEM_STEPS + words) * 16) as i32
}

impl ThreadBlock {
    /// All zero but for the table of increments.
    pub const fn new() -> ThreadBlock {
        let mut increments =
            [[Increment { control_flow: 0, memory: 0 }; MEM_STEPS]; CF_LENGTHS.len()];
        let mut i = 0;
        while i < CF_LENGTHS.len() {
            let mut words = 0;
            while words < MEM_STEPS {
                increments[i][words] =
                    Increment { control_flow: CF_LENGTHS[i], memory: 8 * words as u64 };
                words += 1;
            }
            i += 1;
        }
        ThreadBlock {
            this: 0,
            stub_miss: 0,
            stub_syscall: 0,
            stub_exit: 0,
            stub_refuse: 0,
            saved_rcx: 0,
            target: 0,
            jump: 0,
            window_high: 0,
            spill: [0; 2],
            exit_id: 0,
            pointers: [0; 2],
            runtime_stack: 0,
            resume: 0,
            program_vectors: [[0; 8]; VECTORS],
            registers: Registers { gpr: [0; 16], rip: 0, rflags: 0 },
            increments,
            stub_store: 0,
            order: 0,
            sync_held: 0,
            turns_left: 0,
            stub_turn: 0,
            stub_ask: 0,
            jump_entries: 0,
            view: 0,
            view_back: 0,
            view_spill: [0; 2],
            stub_watch: 0,
            behind: 0,
            stub_fill: 0,
            program_fs: 0,
            program_gs: 0,
            table_miss: 0,
            log_call: 0,
            shared_pages: 0,
            shared_open: 0,
            shared_left: 0,
            shared_back: 0,
        }
    }
}

impl Default for ThreadBlock {
    fn default() -> Self {
        ThreadBlock::new()
    }
}

/// Why generated code enters `stub_refuse` (in `exit_id`).
pub mod refuse {
    /// The program uses the gs segment in a way that cannot be translated.
    pub const GS: u32 = 1;
    /// `int 0x80` and the other old ways into the kernel.
    pub const OLD_SYSCALL: u32 = 2;
    /// Far calls, jumps and returns, `iret`.
    pub const FAR_TRANSFER: u32 = 3;
    /// Transactional memory.
    pub const TRANSACTION: u32 = 4;
}

/// Why generated code enters `stub_watch` (in `exit_id`).
pub mod watch {
    /// Memory is not as in the view; the instruction has not begun.
    pub const MEND: u32 = 0;
    /// The instruction is about to run on the view.
    pub const BEFORE: u32 = 1;
    /// It has run there: what it stored is to be copied to memory.
    pub const AFTER: u32 = 2;
    /// The runtime is to carry it out.
    pub const CARRY_OUT: u32 = 3;
    /// It has loaded a register, and memory is not as in the view: the runtime loads it again, and mends the
    /// view.
    pub const LOADED: u32 = 4;
}
