//! The program's memory, reached by the processor: where it cannot be, the handler of signals says so.
//!
//! That costs no system call. But the handler's own faults end the process, so nothing that it calls may come here. And
//! the processor reads what may only be written, where the kernel says that it cannot be read.

use core::arch::naked_asm;

/// Copies bytes; false if some cannot be reached.
///
/// # Safety
/// What is not the program's memory is borrowed, or the thread's view.
pub unsafe fn copy(to: u64, from: u64, len: u64) -> bool {
    // SAFETY: as promised.
    unsafe { attempt_copy(to, from, len) == 1 }
}

/// As [`copy`]; false, too, if a signal waits, `pending` not being zero: from when one has come in until it is let in all
/// are blocked, those of faults, too, and a fault would end the process.
///
/// # Safety
/// As for [`copy`]; `pending` is of the thread's mailbox.
pub unsafe fn copy_unless(pending: *const u32, to: u64, from: u64, len: u64) -> bool {
    // SAFETY: as promised.
    unsafe { quiet_copy(pending, to, from, len) == 1 }
}

/// Whether the byte at `at` can be loaded; false, too, as [`copy_unless`] has it.
///
/// # Safety
/// As for [`copy_unless`].
pub unsafe fn can_load_unless(pending: *const u32, at: u64) -> bool {
    // SAFETY: what is loaded is of no use to anybody.
    unsafe { quiet_load(pending, at) == 1 }
}

#[unsafe(naked)]
unsafe extern "C" fn quiet_copy(pending: *const u32, to: u64, from: u64, len: u64) -> u64 {
    naked_asm!(
        ".globl deprewrite_quiet_first",
        "deprewrite_quiet_first:",
        "cmp dword ptr [rdi], 0",
        "jne deprewrite_quiet_refused",
        "mov rdi, rsi",
        "mov rsi, rdx",
        ".globl deprewrite_quiet_copy",
        "deprewrite_quiet_copy:",
        "rep movsb",
        "mov eax, 1",
        "ret",
        ".globl deprewrite_quiet_refused",
        "deprewrite_quiet_refused:",
        "xor eax, eax",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn quiet_load(pending: *const u32, at: u64) -> u64 {
    naked_asm!(
        ".globl deprewrite_quiet_load_first",
        "deprewrite_quiet_load_first:",
        "cmp dword ptr [rdi], 0",
        "jne deprewrite_quiet_refused",
        ".globl deprewrite_quiet_load",
        "deprewrite_quiet_load:",
        "mov cl, [rsi]",
        "mov eax, 1",
        "ret",
    )
}

/// If a signal that is none of a fault came in at `pc` where one of [`copy_unless`] or [`can_load_unless`] is to be given up:
/// where that is.
pub fn interrupted_at(pc: u64) -> Option<u64> {
    let refused = deprewrite_quiet_refused as *const () as u64;
    let copy =
        deprewrite_quiet_first as *const () as u64..=deprewrite_quiet_copy as *const () as u64;
    let load =
        deprewrite_quiet_load_first as *const () as u64..=deprewrite_quiet_load as *const () as u64;
    (copy.contains(&pc) || load.contains(&pc)).then_some(refused)
}

/// Stores bytes; false if they cannot be stored there. A word of 2, 4 or 8 bytes is stored at once, as by the program's own
/// instruction.
///
/// # Safety
/// Memory of the program's.
pub unsafe fn store(at: u64, bytes: &[u8]) -> bool {
    let word = |size: usize| {
        let mut word = [0u8; 8];
        word[..size].copy_from_slice(&bytes[..size]);
        u64::from_le_bytes(word)
    };
    match bytes.len() {
        // SAFETY: as promised.
        size @ (1 | 2 | 4 | 8) => unsafe { put(at, size as u64, word(size)) == 1 },
        // SAFETY: as promised; the bytes are borrowed.
        len => unsafe { copy(at, bytes.as_ptr() as u64, len as u64) },
    }
}

/// Stores `size` bytes of `word`: 1, or 2 if that cannot be.
#[unsafe(naked)]
unsafe extern "C" fn put(at: u64, size: u64, word: u64) -> u64 {
    naked_asm!(
        "mov eax, 1",
        "cmp esi, 8",
        "je 4f",
        "cmp esi, 4",
        "je 3f",
        "cmp esi, 2",
        "je 2f",
        "mov [rdi], dl",
        "ret",
        "2:",
        "mov [rdi], dx",
        "ret",
        "3:",
        "mov [rdi], edx",
        "ret",
        "4:",
        ".globl deprewrite_guarded_put",
        "deprewrite_guarded_put:",
        "mov [rdi], rdx",
        "ret",
        ".globl deprewrite_guarded_put_refused",
        "deprewrite_guarded_put_refused:",
        "mov eax, 2",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn attempt_copy(to: u64, from: u64, len: u64) -> u64 {
    naked_asm!(
        "mov rcx, rdx",
        ".globl deprewrite_guarded_first",
        "deprewrite_guarded_first:",
        "rep movsb",
        "mov eax, 1",
        "ret",
    )
}

/// Puts `new` at `at` if `old` is there, at once: 1; 0 if something else is there, 2 if it cannot be reached.
///
/// # Safety
/// Memory of the program's. `size` is 1, 2, 4, 8 or 16.
#[unsafe(naked)]
pub unsafe extern "C" fn exchange(at: u64, size: u64, old: &[u64; 2], new: &[u64; 2]) -> u64 {
    naked_asm!(
        "push rbx",
        "mov r8, rdx",
        "mov r9, rcx",
        "mov rax, [r8]",
        "mov rbx, [r9]",
        "cmp esi, 16",
        "je 5f",
        "cmp esi, 8",
        "je 4f",
        "cmp esi, 4",
        "je 3f",
        "cmp esi, 2",
        "je 2f",
        "lock cmpxchg [rdi], bl",
        "jmp 6f",
        "2:",
        "lock cmpxchg [rdi], bx",
        "jmp 6f",
        "3:",
        "lock cmpxchg [rdi], ebx",
        "jmp 6f",
        "4:",
        "lock cmpxchg [rdi], rbx",
        "jmp 6f",
        "5:",
        "mov rdx, [r8 + 8]",
        "mov rcx, [r9 + 8]",
        "lock cmpxchg16b [rdi]",
        ".globl deprewrite_guarded_last",
        "deprewrite_guarded_last:",
        "6:",
        "sete al",
        "movzx eax, al",
        "pop rbx",
        "ret",
        ".globl deprewrite_guarded_refused",
        "deprewrite_guarded_refused:",
        "pop rbx",
        "mov eax, 2",
        "ret",
        ".globl deprewrite_guarded_copy_refused",
        "deprewrite_guarded_copy_refused:",
        "xor eax, eax",
        "ret",
    )
}

/// If the instruction at `pc` is one of these: where it is given up.
pub fn given_up_at(pc: u64) -> Option<u64> {
    let quiet =
        [deprewrite_quiet_copy as *const () as u64, deprewrite_quiet_load as *const () as u64];
    if quiet.contains(&pc) {
        return interrupted_at(pc);
    }
    let copies = deprewrite_guarded_first as *const () as u64;
    if pc == copies {
        return Some(deprewrite_guarded_copy_refused as *const () as u64);
    }
    let last = deprewrite_guarded_put as *const () as u64;
    if (put as *const () as u64..=last).contains(&pc) {
        return Some(deprewrite_guarded_put_refused as *const () as u64);
    }
    let first = exchange as *const () as u64;
    let last = deprewrite_guarded_last as *const () as u64;
    (first..last).contains(&pc).then_some(deprewrite_guarded_refused as *const () as u64)
}

extern "C" {
    fn deprewrite_quiet_first();
    fn deprewrite_quiet_copy();
    fn deprewrite_quiet_load_first();
    fn deprewrite_quiet_load();
    fn deprewrite_quiet_refused();
    fn deprewrite_guarded_first();
    fn deprewrite_guarded_put();
    fn deprewrite_guarded_put_refused();
    fn deprewrite_guarded_last();
    fn deprewrite_guarded_refused();
    fn deprewrite_guarded_copy_refused();
}
