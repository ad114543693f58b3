//! The processor's vector and floating-point state, all of it.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::facts::facts;
use abi::thread::{FIRST_VECTOR, VECTORS};

/// Where XSAVE says which components are in use.
const STATE: usize = 512;
/// zmm16 to zmm31.
const HIGH_SIXTEEN: u8 = 0x80;

/// Bytes of a vector state.
pub fn vectors_len() -> u64 {
    const LEGACY: u64 = 576;
    let ends = facts().xsave.components.iter().map(|&(size, offset)| u64::from(size + offset));
    ends.fold(LEGACY, u64::max)
}

/// The components of [`save_vectors`]: those that the system has enabled.
fn components() -> u64 {
    facts().xsave.xcr0
}

/// Puts words into a stored state from byte `at` on, which belongs to a component with this bit.
#[inline(never)]
fn put_words(saved: &mut [u8], at: u64, words: &[u64], component: u8) {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    saved.iter_mut().skip(at as usize).zip(bytes).for_each(|(to, from)| *to = from);
    if let Some(byte) = saved.get_mut(STATE) {
        *byte |= component;
    }
}

/// Puts the low halves of the first registers into a stored state: the runtime uses them, so the thread's are elsewhere.
pub fn put_low_halves(saved: &mut [u8], registers: &[[u64; 2]; 16]) {
    /// Where XSAVE puts the first vector registers.
    const FIRST: u64 = 160;
    put_words(saved, FIRST, registers.as_flattened(), 2);
}

/// Puts the program's registers from zmm`first` on into a stored state, if translated code claims any. `registers`: all
/// that it may claim.
pub fn put_claimed(saved: &mut [u8], first: Option<usize>, registers: &[[u64; 8]; VECTORS]) {
    let Some(first) = first else { return };
    let Some(at) = facts().xsave.zmm(first) else { return };
    let own = registers.get(first.saturating_sub(FIRST_VECTOR)..).unwrap_or_default();
    put_words(saved, at, own.as_flattened(), HIGH_SIXTEEN);
}

/// Puts the program's ymm15, the last one of `registers`, into a stored state in which it holds something else.
pub fn put_ymm15(saved: &mut [u8], registers: &[[u64; 8]; VECTORS]) {
    let [.., own] = registers;
    for (half, words) in facts().xsave.ymm15().into_iter().zip(own.chunks_exact(2)) {
        let is_there = saved.get(STATE).is_some_and(|byte| u64::from(*byte) & half.component != 0);
        if !is_there {
            // The others of the component hold zeros.
            put_words(saved, half.first, &[0; 30], 0);
        }
        put_words(saved, half.last, words, half.component as u8);
    }
}

/// Of a stored state, the registers that translated code may claim.
pub fn claimed(saved: &[u8]) -> Option<[[u64; 8]; VECTORS]> {
    let mut registers = [[0; 8]; VECTORS];
    if saved.get(STATE)? & HIGH_SIXTEEN != 0 {
        let at = facts().xsave.zmm(FIRST_VECTOR)?;
        let bytes = saved.get(at as usize..)?.chunks_exact(8);
        let words = bytes.map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        registers.iter_mut().flatten().zip(words).for_each(|(to, from)| *to = from);
    }
    Some(registers)
}

/// Stores the processor's vector and floating-point state.
///
/// # Safety
/// `at` is a zeroed or used area, aligned to 64 bytes, for all components.
pub unsafe fn save_vectors(at: u64) {
    let all = components();
    // SAFETY: as promised; a processor without XSAVE has no components.
    unsafe {
        match all {
            0 => core::arch::asm!("fxsave64 [{}]", in(reg) at, options(nostack)),
            _ => core::arch::asm!("xsave64 [{}]", in(reg) at, in("eax") all as u32,
                in("edx") (all >> 32) as u32, options(nostack)),
        }
    }
}

/// Loads it again.
///
/// # Safety
/// [`save_vectors`] has filled the area.
pub unsafe fn load_vectors(at: u64) {
    let all = components();
    // SAFETY: as promised. The registers are the program's; what is the compiler's is named.
    unsafe {
        match all {
            0 => core::arch::asm!("fxrstor64 [{}]", in(reg) at, out("xmm0") _, out("xmm1") _,
                out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
                out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _, options(nostack)),
            _ => core::arch::asm!("xrstor64 [{}]", in(reg) at, in("eax") all as u32,
                in("edx") (all >> 32) as u32, out("xmm0") _, out("xmm1") _,
                out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
                out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _, options(nostack)),
        }
    }
}

/// Puts a stored state into an area that is as large as one.
///
/// # Safety
/// `at` is an area for all components, which nobody else uses.
pub unsafe fn put_vectors(at: u64, saved: &[u8]) {
    let len = vectors_len() as usize;
    // SAFETY: as promised.
    let area = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) };
    area.fill(0);
    area.iter_mut().zip(saved).for_each(|(to, &from)| *to = from);
    // What this processor does not have it cannot load.
    let mask = components().to_le_bytes();
    area.iter_mut().skip(STATE).zip(mask).for_each(|(byte, mask)| *byte &= mask);
    area.iter_mut().skip(STATE + 8).take(56).for_each(|byte| *byte = 0);
}
