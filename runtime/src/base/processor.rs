//! What the processor can do.

use core::arch::x86_64::{__cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU32, Ordering::*};

static FEATURES: AtomicU32 = AtomicU32::new(0);
const SSE42: u32 = 1;
const AVX512VL: u32 = 2;
const BMI2: u32 = 4;
const AVX_ALONE: u32 = 8;
const FAST_COUNTS: u32 = 16;
const LONG_MASKS: u32 = 32;

pub fn has_sse42() -> bool {
    FEATURES.load(Relaxed) & SSE42 != 0
}

pub fn has_avx512vl() -> bool {
    FEATURES.load(Relaxed) & AVX512VL != 0
}

/// Whether it has AVX, and no vector register is longer than that knows.
pub fn has_avx_alone() -> bool {
    FEATURES.load(Relaxed) & AVX_ALONE != 0
}

/// Whether it exchanges halves of a register without touching a flag: look-ups in high tables do.
pub fn has_bmi2() -> bool {
    FEATURES.load(Relaxed) & BMI2 != 0
}

/// Whether it counts leading zeros and shifts by any register (LZCNT, BMI1, BMI2).
pub fn has_fast_counts() -> bool {
    FEATURES.load(Relaxed) & FAST_COUNTS != 0
}

/// What one of the processor's mask registers has, if all 64 bits of it can be read (AVX512BW).
pub fn mask_register(k: u8) -> Option<u64> {
    macro_rules! read {
        ($name:literal) => {{
            let mask: u64;
            // SAFETY: the processor has the instruction, which changes one register.
            unsafe {
                core::arch::asm!(concat!("kmovq {}, ", $name), out(reg) mask,
                    options(nomem, nostack, preserves_flags));
            }
            mask
        }};
    }
    if FEATURES.load(Relaxed) & LONG_MASKS == 0 {
        return None;
    }
    Some(match k & 7 {
        0 => read!("k0"),
        1 => read!("k1"),
        2 => read!("k2"),
        3 => read!("k3"),
        4 => read!("k4"),
        5 => read!("k5"),
        6 => read!("k6"),
        _ => read!("k7"),
    })
}

/// Where half a register is in an XSAVE area.
#[derive(Clone, Copy)]
pub struct Half {
    /// The bit of its component.
    pub component: u64,
    /// Offset of that of register 0.
    pub first: u64,
    /// Offset of its own.
    pub last: u64,
}

/// XCR0, and where XSAVE puts what.
#[derive(Clone, Copy)]
pub struct XsaveLayout {
    pub xcr0: u64,
    /// (size, offset) of each state component in the standard format.
    pub components: [(u32, u32); 64],
}

impl Default for XsaveLayout {
    fn default() -> Self {
        XsaveLayout { xcr0: 0, components: [(0, 0); 64] }
    }
}

impl XsaveLayout {
    /// Where the halves of ymm15 are in an XSAVE area of the standard format.
    pub fn ymm15(&self) -> [Half; 2] {
        let upper = u64::from(self.components[2].1);
        [
            Half { component: 2, first: 160, last: 160 + 15 * 16 },
            Half { component: 4, first: upper, last: upper + 15 * 16 },
        ]
    }

    /// Offset of PKRU in an XSAVE area of the standard format, where the system has enabled it.
    pub fn keys(&self) -> u32 {
        self.components[9].1
    }

    /// Offset of a register from zmm16 on in an XSAVE area of the standard format; the next ones lie behind it.
    pub fn zmm(&self, number: usize) -> Option<u64> {
        let above = number.checked_sub(16)? as u64;
        (self.xcr0 & 0xe0 == 0xe0).then(|| u64::from(self.components[7].1) + above * 64)
    }
}

/// Asks the processor, once, for all of it.
pub fn detect() -> XsaveLayout {
    let mut layout = XsaveLayout::default();
    let mut features = 0;
    let leaf1 = __cpuid_count(1, 0);
    if leaf1.ecx & 1 << 20 != 0 {
        features |= SSE42;
    }
    let os_saves = leaf1.ecx & 1 << 27 != 0;
    if os_saves {
        // SAFETY: OSXSAVE is set.
        layout.xcr0 = unsafe { xgetbv() };
        for i in 2..63 {
            if layout.xcr0 & 1 << i != 0 {
                let leaf = __cpuid_count(0xd, i);
                layout.components[i as usize] = (leaf.eax, leaf.ebx);
            }
        }
        let leaf7 = __cpuid_count(7, 0);
        // Encoded as AVX is.
        if layout.xcr0 & 6 == 6 && leaf7.ebx & 1 << 8 != 0 {
            features |= BMI2;
            let abm = __cpuid_count(0x8000_0001, 0).ecx & 1 << 5 != 0;
            if abm && leaf7.ebx & 1 << 3 != 0 {
                features |= FAST_COUNTS;
            }
        }
        if layout.xcr0 & 0xe6 == 6 && leaf1.ecx & 1 << 28 != 0 {
            features |= AVX_ALONE;
        }
        // AVX512F, AVX512DQ, AVX512VL: none has the last one without the second.
        let wanted = 1 << 16 | 1 << 17 | 1 << 31;
        if layout.xcr0 & 0xe6 == 0xe6 && leaf7.ebx & wanted == wanted {
            features |= AVX512VL;
            if leaf7.ebx & 1 << 30 != 0 {
                features |= LONG_MASKS;
            }
        }
    }
    FEATURES.store(features, Relaxed);
    layout
}

#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: the caller has checked OSXSAVE.
    unsafe { _xgetbv(0) }
}
