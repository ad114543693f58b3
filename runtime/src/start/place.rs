//! Moves a position-independent program to the start of a window, where the kernel has not put it:
//! Linux before 6.10 (of the 6.1 series: before 6.1.140) does not honour the alignment that a file
//! without interpreter asks for.
//!
//! The mappings themselves move, so that they stay what they are: private, of the file, shared with
//! other processes until they are written. The runtime moves with them, while it runs. Two routines do
//! that, each in a page of its own: the first moves all but its page, the second, at its new place
//! already, that page. Then the runtime starts again, and finds the program where it has to be.

use crate::base::own::{anonymous, reserve};
use crate::base::sys::{self, nr};
use crate::start::kernel_view;
use crate::start::stack::Start;
use abi::image::ImageHeader;
use abi::layout::tables;
use abi::layout::{page_down, page_up, AREA_STEP, PAGE, TABLE_END, WINDOW_SIZE};
use core::ops::Range;

/// Windows below are not for programs: the look-up tables are there.
const LOWEST: u64 = TABLE_END.next_multiple_of(WINDOW_SIZE);
/// Windows end here at the latest, as what the kernel chooses does.
const HIGHEST: u64 = 0x7fff_0000_0000;

/// How the kernel's own calls move a mapping, whatever is at the new place.
const MOVE: usize = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;

/// From where, how much, and to where a routine moves.
type Step = [u64; 3];

core::arch::global_asm!(
    ".pushsection .text.deprewrite_move, \"ax\", @progbits",
    // One step, that to which rbx points.
    ".macro deprewrite_step",
    "mov rdi, [rbx]",
    "mov rsi, [rbx + 8]",
    "mov rdx, rsi",
    "mov r10d, {move_flags}",
    "mov r8, [rbx + 16]",
    "mov eax, {mremap}",
    "syscall",
    "cmp rax, [rbx + 16]",
    "jne 9f",
    ".endm",
    // No line of Rust is in reach any more.
    ".macro deprewrite_stranded",
    "9:",
    "mov edi, 2",
    "lea rsi, [rip + 8f]",
    "lea rdx, [rip + 7f]",
    "sub rdx, rsi",
    "mov eax, {write}",
    "syscall",
    "mov edi, {status}",
    "mov eax, {exit_group}",
    "syscall",
    "ud2",
    "8: .ascii \"deprewrite: the kernel did not move the runtime to the start of a window\\n\"",
    "7:",
    ".endm",
    ".balign 4096",
    ".hidden deprewrite_move_rest",
    ".globl deprewrite_move_rest",
    "deprewrite_move_rest:",
    "mov rbx, rdi",
    "mov rbp, rdi",
    "mov r12, rsi",
    "mov r13, rdx",
    "mov r14, rcx",
    "2:",
    "cmp qword ptr [rbx], 0",
    "je 3f",
    "deprewrite_step",
    "add rbx, 24",
    "jmp 2b",
    "3:",
    "add rbx, 24",
    "jmp r12",
    "deprewrite_stranded",
    ".balign 4096",
    ".hidden deprewrite_move_last",
    ".globl deprewrite_move_last",
    "deprewrite_move_last:",
    "deprewrite_step",
    "mov rdi, rbp",
    "mov esi, {list}",
    "mov eax, {munmap}",
    "syscall",
    // As the kernel starts a program.
    "mov rsp, r13",
    "xor edx, edx",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "jmp r14",
    "deprewrite_stranded",
    ".purgem deprewrite_step",
    ".purgem deprewrite_stranded",
    ".popsection",
    move_flags = const MOVE,
    mremap = const nr::MREMAP,
    munmap = const nr::MUNMAP,
    write = const nr::WRITE,
    exit_group = const nr::EXIT_GROUP,
    status = const crate::base::last_words::STATUS_INTERNAL,
    list = const PAGE,
);

extern "C" {
    /// Takes the steps up to one of zeros, and goes to `last`, which takes the one behind it, gives the
    /// page of the steps back, and goes to `entry` with `stack`.
    fn deprewrite_move_rest(steps: *const Step, last: u64, stack: *mut u64, entry: u64) -> !;
    fn deprewrite_move_last();
}

/// Moves the program that lies at `at`, which is no window's start, and starts the runtime again with
/// the program's initial stack. `entry` is the address of its entry point.
///
/// # Safety
/// As for [`move_to`].
pub unsafe fn move_to_window(header: &ImageHeader, at: u64, start: &Start, entry: u64) -> ! {
    let Some(window) = free_window(at) else {
        crate::die!("no aligned 4 GiB of address space are free for the program");
    };
    // SAFETY: as promised.
    unsafe { move_to(window, header, at, start, entry) }
}

/// Moves the program that lies at `at` to a window where nothing is, and starts the runtime again.
///
/// # Safety
/// Nothing but the kernel and the runtime, in its only thread, has been here. The header is the
/// rewriter's, of the file that is mapped at `at`. What the runtime has learnt so far, it learns again;
/// memory outside of the file's mappings stays.
pub unsafe fn move_to(window: u64, header: &ImageHeader, at: u64, start: &Start, entry: u64) -> ! {
    // SAFETY: as promised.
    let pieces = || unsafe { pieces(header, at) };
    kernel_view::moves(start, &(at..at + header.runtime_end), window.wrapping_sub(at));
    let runtime = page_down(header.runtime);
    // The list of pieces lies in one of them.
    let has_list = |p: &Range<u64>| p.contains(&header.pieces);
    for piece in pieces().filter(|p| p.start < runtime && !has_list(p)) {
        carry(at, window, piece);
    }
    let Ok(list) = anonymous(PAGE) else { crate::die!("no memory to move the program with") };
    let own = deprewrite_move_rest as *const () as u64 - at;
    let own = own..own + PAGE;
    let mut steps = [Step::default(); PAGE as usize / size_of::<Step>()];
    let mut count = 0;
    let mut step = |piece: Range<u64>| {
        if !piece.is_empty() {
            let Some(slot) = steps.get_mut(count) else {
                crate::die!("internal error: the runtime has too many segments");
            };
            *slot = [at + piece.start, piece.end - piece.start, window + piece.start];
        }
        count += usize::from(!piece.is_empty());
    };
    for piece in pieces().filter(|p| p.start >= runtime) {
        match piece.contains(&own.start) {
            true => {
                step(piece.start..own.start);
                step(own.end..piece.end);
            }
            false => step(piece),
        }
    }
    // One of zeros, and the page that is left.
    count += 1;
    let Some(last) = steps.get_mut(count) else {
        crate::die!("internal error: the runtime has too many segments");
    };
    *last = [at + own.start, PAGE, window + own.start];
    if let Some(piece) = pieces().find(has_list) {
        carry(at, window, piece);
    }
    let second = deprewrite_move_last as *const () as u64;
    let [second, entry] = [second, entry].map(|address| address - at + window);
    // SAFETY: the page is ours, and the steps fill it at most; the routines move what the kernel has
    // mapped of the file, all of which the runtime finds again at its new place.
    unsafe {
        core::ptr::copy_nonoverlapping(steps.as_ptr(), list as *mut Step, steps.len());
        deprewrite_move_rest(list as *const Step, second, start.stack, entry)
    }
}

/// What the kernel has mapped of the file, in ascending order, relative to `at`, where it lies.
///
/// # Safety
/// The header is the rewriter's, of the file that is mapped at `at`.
pub unsafe fn pieces(header: &ImageHeader, at: u64) -> impl Iterator<Item = Range<u64>> {
    // SAFETY: the rewriter's table.
    let pieces = unsafe {
        let first = (at + header.pieces) as *const [u64; 2];
        core::slice::from_raw_parts(first, header.piece_count as usize)
    };
    pieces.iter().map(|&[start, end]| start..end).filter(|piece| !piece.is_empty())
}

/// A window that is all free: the next one below the place that the kernel has chosen, so that it is as
/// random as that.
fn free_window(at: u64) -> Option<u64> {
    let near = at / WINDOW_SIZE;
    let below = (LOWEST / WINDOW_SIZE..near).rev();
    let above = near + 1..HIGHEST / WINDOW_SIZE;
    let windows = below.chain(above).map(|number| number * WINDOW_SIZE);
    windows.filter(|window| !tables(true).contains(window)).find(|&window| is_free(window))
}

/// Whether nothing is in a window, as far as it belongs to programs.
pub fn is_free(window: u64) -> bool {
    /// The last page is never mapped.
    const END: u64 = (1 << 47) - PAGE;
    let end = END.min(window + WINDOW_SIZE);
    // What is only tried counts, too, where there is a limit.
    let step = if sys::address_space_is_limited() { AREA_STEP } else { WINDOW_SIZE };
    (window..end).step_by(step as usize).all(|at| {
        let len = step.min(end - at);
        let free = reserve(at, len);
        if free {
            // SAFETY: reserved just now.
            let _ = unsafe { sys::call(nr::MUNMAP, &[at as usize, len as usize]) };
        }
        free
    })
}

/// Moves what is mapped of `piece` to the window.
fn carry(at: u64, window: u64, piece: Range<u64>) {
    let [from, to] = [at, window].map(|base| (base + piece.start) as usize);
    let len = (piece.end - piece.start) as usize;
    // SAFETY: a piece of the program's file; nothing is at the new place.
    match unsafe { sys::call(nr::MREMAP, &[from, len, len, MOVE, to]) } {
        Ok(_) => {}
        // It is not one mapping.
        Err(sys::EFAULT) if len as u64 > PAGE => {
            let middle = page_up(piece.start + len as u64 / 2);
            carry(at, window, piece.start..middle);
            carry(at, window, middle..piece.end);
        }
        // Nothing is there.
        Err(sys::EFAULT) => {}
        Err(errno) => crate::die!("cannot move the program to an aligned place (error {errno})"),
    }
}
