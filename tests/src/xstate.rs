//! The extended state: how large an XSAVE image is, and vector and mask registers out of one.

use crate::sys;

/// Sizes and places of the state components on this CPU.
pub struct Layout {
    xcr0: u64,
    /// Size and standard offset by component number; zero where the CPU has none.
    parts: [(u64, u64); 32],
}

const LEGACY_AND_HEADER: u64 = 576;
const YMM_HIGH: usize = 2;
const MASKS: usize = 5;
const ZMM_HIGH: usize = 6;
const ZMM_16_TO_31: usize = 7;

impl Layout {
    pub fn of_this_cpu() -> Self {
        let mut parts = [(0, 0); 32];
        for (i, part) in parts.iter_mut().enumerate().skip(2) {
            let (size, offset, _) = sys::xsave_leaf(i as u32);
            *part = (u64::from(size), u64::from(offset));
        }
        Self { xcr0: sys::xcr0(), parts }
    }

    fn requested(&self, mask: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mask = mask & self.xcr0;
        self.parts.iter().enumerate().filter(move |(i, _)| mask >> i & 1 == 1).map(|(_, p)| *p)
    }

    /// Bytes of an image in the standard format: up to the end of the last requested component.
    pub fn standard_size(&self, mask: u64) -> u64 {
        self.requested(mask).map(|(size, at)| size + at).fold(LEGACY_AND_HEADER, u64::max)
    }

    /// Bytes of an image in the compacted format.
    pub fn compacted_size(&self, mask: u64) -> u64 {
        LEGACY_AND_HEADER + self.requested(mask).map(|(size, _)| size).sum::<u64>()
    }

    /// Mask register k0..k7 from an image in the standard format.
    pub fn mask(&self, image: &[u8], k: usize) -> u64 {
        let at = self.parts[MASKS].1 as usize + 8 * k;
        image.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()))
    }

    /// All 64 bytes of a vector register from an image in the standard format.
    pub fn vector(&self, image: &[u8], number: usize) -> [u8; 64] {
        let mut out = [0; 64];
        let mut part = |to: usize, from: usize, len: usize| {
            if let Some(bytes) = image.get(from..from + len) {
                out[to..to + len].copy_from_slice(bytes);
            }
        };
        if number < 16 {
            part(0, 160 + 16 * number, 16);
            part(16, self.parts[YMM_HIGH].1 as usize + 16 * number, 16);
            part(32, self.parts[ZMM_HIGH].1 as usize + 32 * number, 32);
        } else {
            part(0, self.parts[ZMM_16_TO_31].1 as usize + 64 * (number - 16), 64);
        }
        out
    }
}
