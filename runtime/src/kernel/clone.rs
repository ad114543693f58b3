//! `clone` for a thread, whose first instruction is ours.

use crate::thread::Thread;
use core::arch::naked_asm;

/// `clone` for a thread (or a vfork child): the child starts at `child`, with its block in r12 and
/// the program's new stack in rsp.
///
/// # Safety
/// `args` are those of clone or clone3 as the program gave them, `thread` is the child's block,
/// and `child` never returns.
#[unsafe(naked)]
pub unsafe extern "C" fn clone_thread(
    n: usize,
    args: *const [usize; 6],
    thread: *mut Thread,
    child: u64,
) -> usize {
    naked_asm!(
        "push r12",
        "push r13",
        "mov r12, rdx",
        "mov r13, rcx",
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "pop r13",
        "pop r12",
        "ret",
        "2:",
        "jmp r13",
    )
}
