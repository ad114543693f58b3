//! Every way from translated code into the runtime and back.
//!
//! | entry         | from                                   | extra state                       |
//! |---------------|----------------------------------------|-----------------------------------|
//! | `stub_miss`   | a look-up that found nothing           | `target`: original target         |
//! | `stub_return_miss` | the same, of a return             | `target`: original target         |
//! | `stub_syscall`| `syscall`                              | rcx: original next pc             |
//! | `stub_exit`   | a direct branch that is not linked yet | `exit_id`                         |
//! | `stub_refuse` | an instruction that is not supported   | `exit_id`: why, `target`: where   |
//! | `stub_store`  | the front of a store (undo log)        | `target`: where, `resume`: set    |
//! | `stub_arrive` | a replay's handler                     | `target`: where it goes on        |
//! | `stub_turn`   | a turn that a replay waits for         | `target`: where, `resume`: set    |
//! | `stub_ask`    | an instruction that asks the machine   | `target`: where, `resume`: set    |
//! | `stub_fill`   | a slot of a table, the first time      | `target`: where, `resume`: set    |
//! | `stub_watch`  | an instruction of a watched thread     | `target`, `resume`, `exit_id`     |
//!
//! All registers are the program's on entry. A stub saves them into the thread block, moves to the
//! runtime's stack and calls [`crate::gate::dispatch::enter`]; the way back restores them and jumps to
//! `resume`. In the tail ([`in_tail`]) the thread block (with `resume_original` as pc) is the
//! program's whole integer state, so a signal may be delivered there.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::kernel::signals::actions::REGISTRATIONS;
use crate::thread::{claims, Thread, PENDING, TAIL_MASK, UNBLOCK};
use abi::control::{at, place, slot};
use abi::thread::{
    HELD_OFFSETS, POINTERS, PROGRAM_YMM15, REGISTERS, RESUME, RFLAGS, RUNTIME_STACK, THIS,
};
use core::arch::naked_asm;
use core::mem::offset_of;

pub const MISS: u32 = 0;
pub const SYSCALL: u32 = 1;
pub const EXIT: u32 = 2;
pub const REFUSE: u32 = 3;
pub const STORE: u32 = 4;
pub const RETURN_MISS: u32 = 5;
pub const ARRIVE: u32 = 8;
pub const TURN: u32 = 6;
pub const ASK: u32 = 7;
pub const WATCH: u32 = 9;
pub const FILL: u32 = 10;

macro_rules! stub {
    ($name:ident, $kind:expr $(, $symbol:literal)?) => {
        /// # Safety
        /// Entered from translated code only, with gs pointing to the thread block.
        $(#[unsafe(export_name = $symbol)])?
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> ! {
            naked_asm!(
                "mov gs:[{rax}], rax",
                "mov eax, {kind}",
                "jmp {enter}",
                rax = const REGISTERS,
                kind = const $kind,
                enter = sym enter,
            )
        }
    };
}

// The rewriter asks for those of the look-up tables by name.
stub!(stub_miss, MISS, "DEPREWRITE_MISS");
stub!(stub_syscall, SYSCALL);
stub!(stub_exit, EXIT);
stub!(stub_refuse, REFUSE);
stub!(stub_store, STORE);
stub!(stub_return_miss, RETURN_MISS, "DEPREWRITE_RETURN_MISS");
stub!(stub_arrive, ARRIVE);
stub!(stub_turn, TURN);
stub!(stub_ask, ASK);
stub!(stub_watch, WATCH);
stub!(stub_fill, FILL);

/// rax is saved already, eax says why.
#[unsafe(naked)]
unsafe extern "C" fn enter() -> ! {
    naked_asm!(
        "mov gs:[{r} + 8], rcx",
        "mov gs:[{r} + 16], rdx",
        "mov gs:[{r} + 24], rbx",
        "mov gs:[{r} + 32], rsp",
        "mov gs:[{r} + 40], rbp",
        "mov gs:[{r} + 48], rsi",
        "mov gs:[{r} + 56], rdi",
        "mov gs:[{r} + 64], r8",
        "mov gs:[{r} + 72], r9",
        "mov gs:[{r} + 80], r10",
        "mov gs:[{r} + 88], r11",
        "mov gs:[{r} + 96], r12",
        "mov gs:[{r} + 104], r13",
        "mov gs:[{r} + 112], r14",
        "mov gs:[{r} + 120], r15",
        "mov rsp, gs:[{stack}]",
        "pushfq",
        "pop qword ptr gs:[{rflags}]",
        // Not the program's direction, and not its alignment check.
        "pushfq",
        "and dword ptr [rsp], ~0x40400",
        "popfq",
        "cmp dword ptr gs:[{vector}], {xmm15}",
        "jne 4f",
        "vmovdqu gs:[{pointers}], xmm15",
        // The program's own. What is all zero above is not loaded there: some processors wait for each change
        // between the two encodings while there is anything.
        "vmovdqu xmm15, gs:[{own}]",
        "mov rcx, gs:[{own} + 16]",
        "or rcx, gs:[{own} + 24]",
        "je 4f",
        "vmovdqu ymm15, gs:[{own}]",
        "4:",
        "movups gs:[{xmm} + 0], xmm0",
        "movups gs:[{xmm} + 16], xmm1",
        "movups gs:[{xmm} + 32], xmm2",
        "movups gs:[{xmm} + 48], xmm3",
        "movups gs:[{xmm} + 64], xmm4",
        "movups gs:[{xmm} + 80], xmm5",
        "movups gs:[{xmm} + 96], xmm6",
        "movups gs:[{xmm} + 112], xmm7",
        "movups gs:[{xmm} + 128], xmm8",
        "movups gs:[{xmm} + 144], xmm9",
        "movups gs:[{xmm} + 160], xmm10",
        "movups gs:[{xmm} + 176], xmm11",
        "movups gs:[{xmm} + 192], xmm12",
        "movups gs:[{xmm} + 208], xmm13",
        "movups gs:[{xmm} + 224], xmm14",
        "movups gs:[{xmm} + 240], xmm15",
        "cmp dword ptr gs:[{vector}], {xmm31}",
        "jb 2f",
        "vmovdqu64 gs:[{pointers}], xmm31",
        "2:",
        "mov rdi, gs:[{this}]",
        // Whoever comes by an exit of code is in that code until the exit has been looked at: nobody may forget it
        // before.
        "cmp eax, {exit}",
        "je 5f",
        "mov rdx, gs:[{slot}]",
        "mov dword ptr [rdx + {place}], {runtime}",
        "5:",
        "mov esi, eax",
        "call {dispatch}",
        "jmp {leave}",
        r = const REGISTERS,
        stack = const RUNTIME_STACK,
        rflags = const RFLAGS,
        xmm = const offset_of!(Thread, xmm),
        vector = const offset_of!(Thread, vector),
        xmm15 = const claims::XMM15,
        xmm31 = const claims::XMM31,
        own = const PROGRAM_YMM15,
        pointers = const POINTERS,
        this = const THIS,
        slot = const offset_of!(Thread, slot),
        place = const slot::PLACE,
        runtime = const place::RUNTIME,
        exit = const EXIT,
        dispatch = sym crate::gate::dispatch::enter,
        leave = sym leave,
    )
}

/// Back to translated code: registers from the thread block.
///
/// A signal that came in after the last look at `pending` is let in first: what arrives before the
/// compare is seen by it, and what arrives behind it is sent to `late` by the handler.
///
/// # Safety
/// gs points to the thread block, whose registers, `resume` and `resume_original` are set.
#[unsafe(naked)]
pub unsafe extern "C" fn leave() -> ! {
    naked_asm!(
        "deprewrite_leave_first:",
        // What is said from here on is that the thread is in generated code; behind that (the
        // exchange is a fence) a look whether the code is still what it was.
        "mov rdx, gs:[{slot}]",
        "mov eax, {code}",
        "xchg dword ptr [rdx + {place}], eax",
        "mov eax, gs:[{seen}]",
        "cmp eax, dword ptr [rip + {generation}]",
        "jne {late}",
        "mov rdx, qword ptr [rip + {page}]",
        "mov eax, dword ptr [rdx + {posted}]",
        "cmp eax, dword ptr [rdx + {done}]",
        "jne {late}",
        "cmp dword ptr gs:[{pending}], 0",
        "jne {late}",
        "movups xmm0, gs:[{xmm} + 0]",
        "movups xmm1, gs:[{xmm} + 16]",
        "movups xmm2, gs:[{xmm} + 32]",
        "movups xmm3, gs:[{xmm} + 48]",
        "movups xmm4, gs:[{xmm} + 64]",
        "movups xmm5, gs:[{xmm} + 80]",
        "movups xmm6, gs:[{xmm} + 96]",
        "movups xmm7, gs:[{xmm} + 112]",
        "movups xmm8, gs:[{xmm} + 128]",
        "movups xmm9, gs:[{xmm} + 144]",
        "movups xmm10, gs:[{xmm} + 160]",
        "movups xmm11, gs:[{xmm} + 176]",
        "movups xmm12, gs:[{xmm} + 192]",
        "movups xmm13, gs:[{xmm} + 208]",
        "movups xmm14, gs:[{xmm} + 224]",
        "movups xmm15, gs:[{xmm} + 240]",
        "cmp dword ptr gs:[{vector}], {xmm31}",
        "jb 3f",
        "vmovdqu64 xmm31, gs:[{pointers}]",
        "je 2f",
        "vmovdqu64 xmm25, gs:[{held_25}]",
        "vmovdqu64 xmm26, gs:[{held_26}]",
        "vmovdqu64 xmm27, gs:[{held_27}]",
        "vmovdqu64 xmm28, gs:[{held_28}]",
        "vmovdqu64 xmm29, gs:[{held_29}]",
        "jmp 2f",
        "3:",
        "cmp dword ptr gs:[{vector}], {xmm15}",
        "jne 2f",
        "vmovdqu gs:[{own}], ymm15",
        // Leaves the upper half alone: the way may start again.
        "movups xmm15, gs:[{pointers}]",
        "2:",
        "deprewrite_leave_last:",
        "jmp {tail}",
        ".globl deprewrite_leave_first",
        ".globl deprewrite_leave_last",
        slot = const offset_of!(Thread, slot),
        place = const slot::PLACE,
        code = const place::CODE,
        seen = const offset_of!(Thread, seen),
        generation = sym crate::kernel::switch::GENERATION,
        page = sym crate::base::control::PAGE,
        posted = const at::POSTED,
        done = const at::DONE,
        pending = const PENDING,
        late = sym late,
        xmm = const offset_of!(Thread, xmm),
        vector = const offset_of!(Thread, vector),
        xmm15 = const claims::XMM15,
        xmm31 = const claims::XMM31,
        held_25 = const HELD_OFFSETS[0],
        held_26 = const HELD_OFFSETS[1],
        held_27 = const HELD_OFFSETS[2],
        held_28 = const HELD_OFFSETS[3],
        held_29 = const HELD_OFFSETS[4],
        own = const PROGRAM_YMM15,
        pointers = const POINTERS,
        tail = sym tail_start,
    )
}

/// A signal waits on the way back: it is queued again, to be let in at the tail. Or the recording is
/// switched.
#[unsafe(naked)]
unsafe extern "C" fn late() -> ! {
    naked_asm!(
        "mov rsp, gs:[{stack}]",
        "mov rdi, gs:[{this}]",
        "call {before}",
        "jmp {leave}",
        stack = const RUNTIME_STACK,
        this = const THIS,
        before = sym crate::gate::dispatch::once_more,
        leave = sym leave,
    )
}

/// If `pc` lies on the way back where a signal can no longer be noticed: where to go instead.
pub fn late_of(pc: u64) -> Option<u64> {
    let first = deprewrite_leave_first as *const () as u64;
    let last = deprewrite_leave_last as *const () as u64;
    (first..=last).contains(&pc).then_some(late as *const () as u64)
}

/// Lets a blocked signal in, if one waits, then goes on. Signals may be delivered from here on.
///
/// # Safety
/// Only [`leave`] jumps here; gs points to the thread block.
#[unsafe(naked)]
pub unsafe extern "C" fn tail_start() -> ! {
    naked_asm!(
        "cmp dword ptr gs:[{unblock}], 0",
        "je 3f",
        "mov dword ptr gs:[{unblock}], 0",
        "mov eax, 14",
        "mov edi, 2",
        "mov rsi, gs:[{this}]",
        "add rsi, {mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "3:",
        "push qword ptr gs:[{rflags}]",
        "popfq",
        "mov rax, gs:[{r}]",
        "mov rcx, gs:[{r} + 8]",
        "mov rdx, gs:[{r} + 16]",
        "mov rbx, gs:[{r} + 24]",
        "mov rbp, gs:[{r} + 40]",
        "mov rsi, gs:[{r} + 48]",
        "mov rdi, gs:[{r} + 56]",
        "mov r8, gs:[{r} + 64]",
        "mov r9, gs:[{r} + 72]",
        "mov r10, gs:[{r} + 80]",
        "mov r11, gs:[{r} + 88]",
        "mov r12, gs:[{r} + 96]",
        "mov r13, gs:[{r} + 104]",
        "mov r14, gs:[{r} + 112]",
        "mov r15, gs:[{r} + 120]",
        "mov rsp, gs:[{r} + 32]",
        "deprewrite_tail_last:",
        "jmp qword ptr gs:[{resume}]",
        ".globl deprewrite_tail_last",
        r = const REGISTERS,
        unblock = const UNBLOCK,
        mask = const TAIL_MASK,
        this = const THIS,
        rflags = const RFLAGS,
        resume = const RESUME,
    )
}

extern "C" {
    fn deprewrite_tail_last();
    fn deprewrite_leave_first();
    fn deprewrite_leave_last();
}

/// Whether `pc` lies in the tail of the way back.
pub fn in_tail(pc: u64) -> bool {
    let start = tail_start as *const () as u64;
    (start..=deprewrite_tail_last as *const () as u64).contains(&pc)
}

/// Entry of a new thread: rsp is the program's new stack, r12 its thread block.
///
/// # Safety
/// Only [`clone_thread`](crate::kernel::clone::clone_thread) jumps here, with signals blocked.
#[unsafe(naked)]
pub unsafe extern "C" fn new_thread() -> ! {
    naked_asm!(
        "mov rdi, r12",
        "mov rsp, [r12 + {stack}]",
        "call {start}",
        "jmp {leave}",
        stack = const RUNTIME_STACK,
        start = sym crate::gate::dispatch::started,
        leave = sym leave,
    )
}

/// Where a signal handler of the runtime returns to: one place for each registration, 8 bytes apart, so
/// that the frame says under which one the kernel has delivered the signal.
///
/// # Safety
/// Only the kernel's signal return gets here, with its frame at rsp.
#[unsafe(naked)]
pub unsafe extern "C" fn restorer() -> ! {
    naked_asm!(
        ".p2align 3",
        ".rept {count}",
        ".p2align 3",
        "mov eax, 15",
        "syscall",
        ".endr",
        count = const REGISTRATIONS as usize,
    )
}

/// The first of the places.
pub fn restorers() -> u64 {
    (restorer as *const () as u64).next_multiple_of(8)
}
