//! System calls that a signal may keep from starting.

use core::arch::naked_asm;

/// What [`interruptible`] returns of a call that has not started, or is to start again after a signal
/// (the kernel's ERESTARTSYS, which nobody else sees).
pub const NOT_STARTED: usize = -512isize as usize;

/// A system call that a signal may keep from starting: returns [`NOT_STARTED`] if `*pending` is not
/// zero.
///
/// # Safety
/// As for [`crate::base::sys::raw`].
#[unsafe(naked)]
pub unsafe extern "C" fn interruptible(
    pending: *const u32,
    n: usize,
    args: *const [usize; 6],
) -> usize {
    // The handler moves a pc in `start..=insn` to `abort`. The kernel goes back to `insn` if the call is
    // to be restarted.
    naked_asm!(
        ".globl deprewrite_interruptible_start",
        ".globl deprewrite_interruptible_insn",
        ".globl deprewrite_interruptible_abort",
        "mov rax, rsi",
        "mov r11, rdx",
        "mov rcx, rdi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "deprewrite_interruptible_start:",
        "cmp dword ptr [rcx], 0",
        "jne deprewrite_interruptible_abort",
        "deprewrite_interruptible_insn:",
        "syscall",
        "ret",
        "deprewrite_interruptible_abort:",
        "mov rax, {not_started}",
        "ret",
        not_started = const NOT_STARTED as isize,
    )
}

/// As [`interruptible`], a 32-bit call (`int 0x80`): the low halves of its arguments count.
///
/// # Safety
/// As for [`crate::base::sys::raw`].
#[unsafe(naked)]
pub unsafe extern "C" fn interruptible_old(
    pending: *const u32,
    n: usize,
    args: *const [usize; 6],
) -> usize {
    // Older kernels change r8 to r11 here.
    naked_asm!(
        ".globl deprewrite_old_start",
        ".globl deprewrite_old_insn",
        ".globl deprewrite_old_abort",
        "push rbx",
        "push rbp",
        "mov r8, rdi",
        "mov eax, esi",
        "mov r9, rdx",
        "mov ebx, [r9]",
        "mov ecx, [r9 + 8]",
        "mov edx, [r9 + 16]",
        "mov esi, [r9 + 24]",
        "mov edi, [r9 + 32]",
        "mov ebp, [r9 + 40]",
        "deprewrite_old_start:",
        "cmp dword ptr [r8], 0",
        "jne deprewrite_old_abort",
        "deprewrite_old_insn:",
        "int 0x80",
        "jmp 2f",
        "deprewrite_old_abort:",
        "mov rax, {not_started}",
        "2:",
        "pop rbp",
        "pop rbx",
        "ret",
        not_started = const NOT_STARTED as isize,
    )
}

/// What [`forced`] returns of a call that waited, and that the kernel would start again after a signal.
pub const BROKEN_OFF: usize = -513isize as usize;

/// A system call that starts in any case. A kick breaks it off if it waits: the kernel returns to `insn`
/// then, with rcx as the instruction has left it.
///
/// # Safety
/// As for [`crate::base::sys::raw`].
#[unsafe(naked)]
pub unsafe extern "C" fn forced(n: usize, args: *const [usize; 6]) -> usize {
    naked_asm!(
        ".globl deprewrite_forced_insn",
        ".globl deprewrite_forced_broken_off",
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "xor ecx, ecx",
        "deprewrite_forced_insn:",
        "syscall",
        "ret",
        "deprewrite_forced_broken_off:",
        "mov rax, {broken_off}",
        "ret",
        broken_off = const BROKEN_OFF as isize,
    )
}

/// If a thread at `pc`, with `rcx`, is about to start a forced call once more: where it gives up.
pub fn broken_off(pc: u64, rcx: u64) -> Option<u64> {
    const SYSCALL_LEN: u64 = 2;
    let insn = deprewrite_forced_insn as *const () as u64;
    (pc == insn && rcx == insn + SYSCALL_LEN)
        .then_some(deprewrite_forced_broken_off as *const () as u64)
}

/// If `pc` lies where an interruptible call has not started: where it gives up.
pub fn abort_of(pc: u64) -> Option<u64> {
    let start = deprewrite_interruptible_start as *const () as u64;
    let insn = deprewrite_interruptible_insn as *const () as u64;
    if (start..=insn).contains(&pc) {
        return Some(deprewrite_interruptible_abort as *const () as u64);
    }
    let start = deprewrite_old_start as *const () as u64;
    let insn = deprewrite_old_insn as *const () as u64;
    (start..=insn).contains(&pc).then_some(deprewrite_old_abort as *const () as u64)
}

extern "C" {
    fn deprewrite_interruptible_start();
    fn deprewrite_interruptible_insn();
    fn deprewrite_interruptible_abort();
    fn deprewrite_old_start();
    fn deprewrite_old_insn();
    fn deprewrite_old_abort();
    fn deprewrite_forced_insn();
    fn deprewrite_forced_broken_off();
}
