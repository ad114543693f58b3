//! The blob: entry point, what a freestanding program must supply, and nothing else.
#![no_std]
#![no_main]

use core::arch::naked_asm;
use runtime::base::heap::Heap;
use runtime::base::lock::Forked;

#[global_allocator]
static HEAP: Heap = Heap::new();

/// Filled in by the rewriter: address of the blob and of the image header, both relative to the
/// window; whether the program is position-independent.
#[no_mangle]
#[used]
pub static mut DEPREWRITE_PARAMS: [u64; 4] = [0; 4];

const BOOT_STACK: usize = 256 << 10;

#[repr(C, align(64))]
struct BootStack([u8; BOOT_STACK]);
static mut STACK: BootStack = BootStack([0; BOOT_STACK]);

/// The kernel starts here, with zero in rdx. Nothing of the program's stack is touched.
///
/// # Safety
/// Only the kernel comes here: rsp points to the arguments, as it leaves them for a program.
#[no_mangle]
#[unsafe(naked)]
pub unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "mov rdi, rsp",
        "mov rcx, rdx",
        "lea rsi, [rip + __ehdr_start]",
        "lea rdx, [rip + _DYNAMIC]",
        "lea rsp, [rip + {stack} + {size}]",
        "call {relocate}",
        "ud2",
        stack = sym STACK,
        size = const BOOT_STACK,
        relocate = sym relocate,
    )
}

/// Applies the blob's own relocations, all of which add its load address.
unsafe extern "C" fn relocate(
    stack: *mut u64,
    base: u64,
    mut dynamic: *const [u64; 2],
    at_exit: u64,
) -> ! {
    const DT_RELA: u64 = 7;
    const DT_RELASZ: u64 = 8;
    let (mut table, mut len) = (0, 0);
    // SAFETY: the linker ends the dynamic section with a zero tag, and its relocations are all
    // R_X86_64_RELATIVE, in the blob's writable segment.
    unsafe {
        while (*dynamic)[0] != 0 {
            match (*dynamic)[0] {
                DT_RELA => table = base + (*dynamic)[1],
                DT_RELASZ => len = (*dynamic)[1],
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
        for i in 0..len / 24 {
            let [offset, _, addend] = *((table + 24 * i) as *const [u64; 3]);
            *((base + offset) as *mut u64) = base + addend;
        }
        if at_exit != 0 {
            // ld.so hands over a function, and has relocated the program already.
            runtime::die!("started by ld.so: start this file itself, it loads what it needs");
        }
        let hook: fn(&Forked) = |forked| HEAP.reset_lock(forked);
        runtime::base::heap::set_after_fork(hook);
        runtime::start::boot::boot(stack, base, DEPREWRITE_PARAMS, _start as *const () as u64)
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    runtime::die!("internal error: {info}")
}

#[no_mangle]
extern "C" fn rust_eh_personality() {}

#[no_mangle]
extern "C" fn _Unwind_Resume() -> ! {
    runtime::die!("internal error: unwinding")
}

/// # Safety
/// As in C.
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // `rep movsb` takes long to start; most copies here are a few words.
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 16",
        "jb 3f",
        "cmp rdx, 1024",
        "ja 6f",
        "movups xmm1, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 16]",
        "2:",
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "cmp rdi, r8",
        "jb 2b",
        "movups [r8], xmm1",
        "ret",
        "3:",
        "cmp edx, 8",
        "jb 4f",
        "mov rcx, [rsi]",
        "mov r8, [rsi + rdx - 8]",
        "mov [rdi], rcx",
        "mov [rdi + rdx - 8], r8",
        "ret",
        "4:",
        "cmp edx, 4",
        "jb 5f",
        "mov ecx, [rsi]",
        "mov r8d, [rsi + rdx - 4]",
        "mov [rdi], ecx",
        "mov [rdi + rdx - 4], r8d",
        "ret",
        "5:",
        "test edx, edx",
        "jz 7f",
        "movzx ecx, byte ptr [rsi]",
        "mov [rdi], cl",
        "inc rsi",
        "inc rdi",
        "dec edx",
        "jmp 5b",
        "6:",
        "mov rcx, rdx",
        "rep movsb",
        "7:",
        "ret",
    )
}

/// # Safety
/// As in C.
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    naked_asm!(
        // Upwards `memcpy` does what is right: it has loaded the end before it stores, and goes from the start on.
        "mov r8, rdi",
        "sub r8, rsi",
        "cmp r8, rdx",
        "jae {memcpy}",
        "mov rax, rdi",
        "mov rcx, rdx",
        "lea rdi, [rdi + rdx - 1]",
        "lea rsi, [rsi + rdx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
        memcpy = sym memcpy,
    )
}

/// # Safety
/// As in C.
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    naked_asm!(
        "mov r8, rdi",
        "movzx eax, sil",
        "cmp rdx, 16",
        "jb 3f",
        "cmp rdx, 1024",
        "ja 3f",
        "mov rcx, 0x0101010101010101",
        "imul rax, rcx",
        "lea r9, [rdi + rdx - 16]",
        "2:",
        "mov [rdi], rax",
        "mov [rdi + 8], rax",
        "add rdi, 16",
        "cmp rdi, r9",
        "jb 2b",
        "mov [r9], rax",
        "mov [r9 + 8], rax",
        "mov rax, r8",
        "ret",
        "3:",
        "mov rcx, rdx",
        "rep stosb",
        "mov rax, r8",
        "ret",
    )
}

/// # Safety
/// As in C.
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    naked_asm!(
        "xor eax, eax",
        "mov rcx, rdx",
        "test rcx, rcx",
        "jz 3f",
        "2:",
        "movzx eax, byte ptr [rdi]",
        "movzx edx, byte ptr [rsi]",
        "sub eax, edx",
        "jne 3f",
        "inc rdi",
        "inc rsi",
        "dec rcx",
        "jnz 2b",
        "3:",
        "ret",
    )
}

/// # Safety
/// As in C.
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    naked_asm!("jmp {}", sym memcmp)
}

/// # Safety
/// As in C.
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn strlen(s: *const u8) -> usize {
    naked_asm!(
        "xor eax, eax",
        "2:",
        "cmp byte ptr [rdi + rax], 0",
        "je 3f",
        "inc rax",
        "jmp 2b",
        "3:",
        "ret",
    )
}
