//! The executable bytes, with a byte of marks for each.

use crate::image::Image;
use alloc::{vec, vec::Vec};

/// A block starts here.
pub const LEADER: u8 = 1;
/// The block may be reached other than by a direct branch.
pub const INDIRECT: u8 = 2;
/// A function starts here.
pub const FUNCTION: u8 = 4;
/// A decoded instruction starts here.
pub const INSN: u8 = 8;
/// The byte belongs to a decoded instruction.
pub const COVERED: u8 = 16;

pub struct Region<'a> {
    pub start: u64,
    pub bytes: &'a [u8],
    pub marks: Vec<u8>,
}

/// Executable regions, ascending, without overlap.
pub struct Text<'a> {
    pub regions: Vec<Region<'a>>,
}

impl<'a> Text<'a> {
    pub fn new(image: &Image<'a>) -> Text<'a> {
        let mut executable: Vec<_> =
            image.segments.iter().filter(|s| s.executable && !s.bytes.is_empty()).collect();
        executable.sort_by_key(|s| s.address);
        let mut regions: Vec<Region> = Vec::with_capacity(executable.len());
        for s in executable {
            if regions.last().is_none_or(|r| r.start + r.bytes.len() as u64 <= s.address) {
                let marks = vec![0; s.bytes.len()];
                regions.push(Region { start: s.address, bytes: s.bytes, marks });
            }
        }
        Text { regions }
    }

    /// Region and offset of an address.
    pub fn find(&self, address: u64) -> Option<(usize, usize)> {
        let index = self.regions.partition_point(|r| r.start <= address).checked_sub(1)?;
        let region = &self.regions[index];
        let offset = usize::try_from(address - region.start).ok()?;
        (offset < region.bytes.len()).then_some((index, offset))
    }

    pub fn contains(&self, address: u64) -> bool {
        self.find(address).is_some()
    }

    /// The marks of an address; `None` outside of the text.
    pub fn marks(&self, address: u64) -> Option<u8> {
        self.find(address).map(|(region, offset)| self.regions[region].marks[offset])
    }

    /// Whether the address lies inside a decoded instruction, not at the start of one.
    pub fn splits_instruction(&self, address: u64) -> bool {
        self.marks(address).is_some_and(|m| m & (COVERED | INSN) == COVERED)
    }

    pub fn len(&self) -> u64 {
        self.regions.iter().map(|r| r.bytes.len() as u64).sum()
    }
}
