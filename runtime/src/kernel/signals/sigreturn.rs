//! `rt_sigreturn`: back to what the program's frame says.

use crate::base::facts::facts;
use crate::base::program::{read_program_bytes, read_program_value};
use crate::base::signal::AltStack;
use crate::kernel::signals::frame::{software, Frame, UContext};
use crate::kernel::signals::pressure;
use crate::thread::traps::Traps;
use crate::thread::{claims, Thread};
use abi::event::{Event, WHOLE_UNIT};

const TRAP_FLAG: u64 = 0x100;

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
    if uc.context.fpstate != 0 {
        restore_floating(thread, uc.context.fpstate)?;
    }
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
    Some(uc.context.rip)
}

/// Loads the floating-point state at `fpstate` into the processor, zmm30 and zmm31 into the thread
/// block.
fn restore_floating(thread: &mut Thread, fpstate: u64) -> Option<()> {
    #[repr(C, align(64))]
    struct Area([u8; 16384]);
    let mut area = Area([0; 16384]);
    let mut legacy = [0u8; 512];
    read_program_value(fpstate, &mut legacy).then_some(())?;
    let (size, components) = match software(&legacy) {
        Some(s) if (s.extended_size as usize) <= area.0.len() => (s.extended_size, s.components),
        Some(_) => return None,
        None => (512, 3),
    };
    let words = &mut area.0[..(size as usize) & !7];
    read_program_bytes(fpstate, words).then_some(())?;
    // The processor faults on bits that must be zero.
    if size > 512 {
        let valid = components & facts().xsave.xcr0;
        for (i, byte) in area.0[512..520].iter_mut().enumerate() {
            *byte &= (valid >> (8 * i)) as u8;
        }
        area.0[520..576].fill(0);
    }
    area.0[26] = 0;
    area.0[27] = 0;
    let at = &area as *const Area as u64;
    // SAFETY: a 64-byte aligned area in the standard format; the registers that it changes are the
    // program's, or saved in the thread and written back from there.
    unsafe {
        if size > 512 {
            core::arch::asm!("xrstor64 [{}]", in(reg) at, in("eax") components as u32,
                in("edx") (components >> 32) as u32, options(nostack));
        } else {
            core::arch::asm!("fxrstor64 [{}]", in(reg) at, options(nostack));
        }
    }
    // The way back loads xmm0 to xmm15 from the thread.
    for i in 0..16 {
        for (half, word) in thread.xmm[i].iter_mut().enumerate() {
            let from = 160 + 16 * i + 8 * half;
            *word = u64::from_le_bytes(area.0[from..from + 8].try_into().ok()?);
        }
    }
    if thread.vector == claims::XMM31 {
        let from = facts().xsave.zmm30()? as usize;
        let present = area.0[512] & 0x80 != 0;
        let words = thread.block.program_vectors.as_flattened_mut();
        for (i, word) in words.iter_mut().enumerate() {
            let bytes = area.0[from + 8 * i..from + 8 * i + 8].try_into().ok()?;
            *word = if present { u64::from_le_bytes(bytes) } else { 0 };
        }
    }
    Some(())
}
