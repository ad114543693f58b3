//! `rt_sigreturn`: back to what the program's frame says.

use crate::base::facts::facts;
use crate::base::program::{read_program_bytes, read_program_value};
use crate::base::signal::AltStack;
use crate::kernel::signals::frame::{software, Frame, UContext, DEFAULT_FCW, DEFAULT_MXCSR};
use crate::kernel::signals::pressure;
use crate::logs::inputs::view;
use crate::thread::traps::Traps;
use crate::thread::{claims, Thread};
use abi::event::{Event, WHOLE_UNIT};
use abi::layout::{page_down, PAGE};
use abi::thread::FIRST_VECTOR;

const TRAP_FLAG: u64 = 0x100;

/// What a watched thread is about to read of its frame: it may have been written before the thread's part began, or by
/// another thread.
#[inline(never)]
pub fn shows(thread: &mut Thread) {
    if !view::has(thread) {
        return;
    }
    let at = thread.block.registers.gpr[4].wrapping_sub(8)
        + core::mem::offset_of!(Frame, ucontext) as u64;
    let mut uc = UContext::default();
    if !read_program_value(at, &mut uc) {
        return;
    }
    shown(thread, at, size_of::<UContext>() as u64);
    let mut legacy = [0u8; 512];
    let fpstate = uc.context.fpstate;
    if fpstate != 0 && read_program_value(fpstate, &mut legacy) {
        let size = software(&legacy).map_or(512, |s| u64::from(s.extended_size).clamp(512, 16384));
        shown(thread, fpstate, size);
    }
}

/// Other threads may have stored these bytes, which the kernel reads for the thread.
fn shown(thread: &mut Thread, at: u64, len: u64) {
    let pc = thread.syscall_pc;
    let mut page = [0u8; PAGE as usize];
    let (mut from, end) = (at, at.saturating_add(len));
    while from < end {
        let to = end.min(page_down(from) + PAGE);
        let Some(part) = page.get_mut(..(to - from) as usize) else { return };
        if !read_program_bytes(from, part) {
            return;
        }
        view::sees(thread, pc, from, part);
        from = to;
    }
}

/// `rt_sigreturn`: back to what the frame says. `None` if the frame cannot be read.
///
/// (By itself: its buffers are no part of the stack of every call.)
#[inline(never)]
pub fn sigreturn(thread: &mut Thread) -> Option<u64> {
    let at = thread.block.registers.gpr[4].wrapping_sub(8)
        + core::mem::offset_of!(Frame, ucontext) as u64;
    let mut uc = UContext::default();
    read_program_value(at, &mut uc).then_some(())?;
    thread.mailbox.set_mask(uc.mask);
    pressure::returned(thread, uc.context.rip);
    restore_floating(thread, uc.context.fpstate)?;
    thread.block.registers.gpr = uc.context.gpr();
    const USER_FLAGS: u64 = 0x0024_0dd5; // what a program may set: CF..OF, TF, DF, AC, ID
    thread.block.registers.rflags = uc.context.rflags & (USER_FLAGS | 2) | 0x202;
    thread.traps = Traps { fresh: uc.context.rflags & TRAP_FLAG != 0, ..Traps::default() };
    if uc.stack.flags & 1 == 0 {
        let flags = uc.stack.flags;
        thread.alt_stack = AltStack { flags: flags & !1, ..uc.stack };
    }
    let registers = thread.register_state(uc.context.rip, 0xffff);
    thread.event(WHOLE_UNIT, &Event::Resume(&registers));
    // What is interrupted may be the way here.
    thread.count_turn();
    Some(uc.context.rip)
}

/// Loads the floating-point state at `fpstate` into the processor, the vector registers that translated code claims into
/// the thread block. What the frame does not have is as it is at the start of a program; without an `fpstate` that is all.
pub fn restore_floating(thread: &mut Thread, fpstate: u64) -> Option<()> {
    #[repr(C, align(64))]
    struct Area([u8; 16384]);
    const FXSAVE: u64 = 3;
    const SSE: u64 = 2;
    const AVX: u64 = 4;
    let mut area = Area([0; 16384]);
    let mut legacy = [0u8; 512];
    let mut told = 0;
    if fpstate != 0 {
        read_program_value(fpstate, &mut legacy).then_some(())?;
        let (size, components) = match software(&legacy) {
            Some(s) if (s.extended_size as usize) <= area.0.len() => {
                (s.extended_size, s.components)
            }
            Some(_) => return None,
            None => (512, FXSAVE),
        };
        let words = &mut area.0[..(size as usize) & !7];
        read_program_bytes(fpstate, words).then_some(())?;
        told = match size {
            ..=512 => FXSAVE,
            _ => components & u64::from_le_bytes(area.0[512..520].try_into().ok()?),
        };
        if components & (SSE | AVX) == 0 {
            area.0[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
        }
    } else {
        area.0[..2].copy_from_slice(&DEFAULT_FCW.to_le_bytes());
        area.0[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
    }
    // The processor faults on bits that must be zero.
    let all = facts().xsave.xcr0;
    let present = if all == 0 { told } else { told & all };
    area.0[512..520].copy_from_slice(&present.to_le_bytes());
    area.0[520..576].fill(0);
    area.0[26] = 0;
    area.0[27] = 0;
    let at = &area as *const Area as u64;
    // SAFETY: a 64-byte aligned area in the standard format; the registers that it changes are the
    // program's, or saved in the thread and written back from there.
    unsafe {
        if all == 0 {
            core::arch::asm!("fxrstor64 [{}]", in(reg) at, options(nostack));
        } else {
            core::arch::asm!("xrstor64 [{}]", in(reg) at, in("eax") all as u32,
                in("edx") (all >> 32) as u32, options(nostack));
        }
    }
    // The way back loads xmm0 to xmm15 from the thread.
    for i in 0..16 {
        for (half, word) in thread.xmm[i].iter_mut().enumerate() {
            let from = 160 + 16 * i + 8 * half;
            let bytes = area.0[from..from + 8].try_into().ok()?;
            *word = if present & SSE != 0 { u64::from_le_bytes(bytes) } else { 0 };
        }
    }
    if let Some(first) = claims::first(thread.vector) {
        let from = facts().xsave.zmm(first)? as usize;
        let own = thread.block.program_vectors.iter_mut().skip(first - FIRST_VECTOR);
        let words = own.flatten();
        for (i, word) in words.enumerate() {
            let bytes = area.0[from + 8 * i..from + 8 * i + 8].try_into().ok()?;
            *word = if present & 0x80 != 0 { u64::from_le_bytes(bytes) } else { 0 };
        }
    }
    Some(())
}
