//! The freestanding program that an output starts with.
#![no_std]
#![no_main]

use core::arch::global_asm;

/// Written by the rewriter: address of the runtime, of the image header, whether the program is
/// position-independent, 0.
#[no_mangle]
#[used]
#[link_section = ".data"]
pub static mut DEPREWRITE_PARAMS: [u64; 4] = [0; 4];

static TEXT: &[u8] = b"runtime: taken over\n";
/// Needs a relocation, like real data.
#[no_mangle]
#[used]
static POINTER: &&[u8] = &TEXT;

// Exit status 42; 43 if the header is not where the parameters say, 44 if the load address of a
// position-independent program is not a multiple of 4 GiB.
global_asm!(
    ".globl _start",
    "_start:",
    "mov eax, 1",
    "mov edi, 2",
    "lea rsi, [rip + 5f]",
    "mov edx, 20",
    "syscall",
    "lea rbx, [rip + __ehdr_start]",
    "sub rbx, [rip + {params}]",
    "mov rcx, [rip + {params} + 8]",
    "mov edi, 43",
    "mov rax, 0x3152574552504544",
    "cmp rax, [rbx + rcx]",
    "jne 4f",
    "mov edi, 44",
    "test ebx, ebx",
    "jne 4f",
    "mov edi, 42",
    "4: mov eax, 231",
    "syscall",
    "5: .ascii \"runtime: taken over\\n\"",
    params = sym DEPREWRITE_PARAMS,
);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
