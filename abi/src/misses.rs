//! What the look-up tables are mapped from: entries that were never set, as the output file has them.
//!
//! An entry leads to the miss stub until it is set, so a table is pages of nothing but that. They lie in the
//! output: made at each start, they would cost it half a millisecond, and each process a copy.
//!
//! ```text
//! a page of code      jmp gs:[TABLE_MISS], for a window that is not at 0
//! table of jumps      entries of 8 bytes: the stub in a window at 0, else that code, mapped at [`MISS_CODE`]
//! table of returns    entries of 4 bytes: the low half of the stub, if returns have a table
//! ```

use crate::image::ImageHeader;
use crate::layout::{HIGH_RETURN_TABLE, PAGE, WINDOW_SIZE};
use crate::options::Options;
use crate::thread::TABLE_MISS;
use alloc::vec::Vec;

/// Where the page of code is mapped: behind the high table of returns, where nothing else is. A window that is
/// placed at random has its stubs at addresses that no file can have.
pub const MISS_CODE: u64 = HIGH_RETURN_TABLE.base + 4 * WINDOW_SIZE + PAGE;

/// Name of the section.
pub const SECTION: &str = ".deprewrite.misses";

/// Fewest entries, and most.
const ENTRIES: [u64; 2] = [1 << 17, 1 << 19];

/// Which entries an output has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misses {
    /// Of the table of returns, a power of two. Of the other one half as many: both have the same size.
    pub entries: u64,
    /// There is a table for returns.
    pub has_returns: bool,
}

/// Where misses lead.
#[derive(Clone, Copy, Debug)]
pub struct Stubs {
    /// From the table of jumps.
    pub jumps: u64,
    /// From that of returns.
    pub returns: u64,
}

impl Misses {
    /// Those for a program with `text` bytes of code; `None`: it makes them itself. Each piece of a table that is mapped
    /// costs time, so a large program has large ones.
    pub fn new(text: u64, fixed: bool, options: Options) -> Option<Misses> {
        let [least, most] = ENTRIES;
        let pieces = (text / 32).clamp(least, most);
        let entries = 1 << pieces.ilog2();
        let reaches = fixed || options.process.high_tables;
        reaches.then_some(Misses {
            entries,
            has_returns: options.of_tables().return_table().is_some(),
        })
    }

    /// Those of an output.
    pub fn of(header: &ImageHeader) -> Option<Misses> {
        let has_returns = Options::from_word(header.options)?.of_tables().return_table().is_some();
        let entries = header.miss_entries;
        let is_valid = header.misses != 0 && entries.is_power_of_two() && entries <= ENTRIES[1];
        is_valid.then_some(Misses { entries, has_returns })
    }

    /// Where the entries for jumps start.
    pub const fn jumps(self) -> u64 {
        PAGE
    }

    /// How many entries for jumps there are.
    pub const fn jump_entries(self) -> u64 {
        self.entries / 2
    }

    /// Where those for returns start, if there are any.
    pub const fn returns(self) -> u64 {
        self.jumps() + 8 * self.jump_entries()
    }

    /// Bytes of all.
    pub const fn len(self) -> u64 {
        self.returns() + if self.has_returns { 4 * self.entries } else { 0 }
    }

    /// There is always the code.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// All bytes.
    #[allow(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
    pub fn bytes(self, stubs: Stubs) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() as usize);
        // jmp gs:[TABLE_MISS]
        bytes.extend_from_slice(&[0x65, 0xff, 0x24, 0x25]);
        bytes.extend_from_slice(&TABLE_MISS.to_le_bytes());
        // Breakpoints.
        bytes.resize(self.jumps() as usize, 0xcc);
        for _ in 0..self.jump_entries() {
            bytes.extend_from_slice(&stubs.jumps.to_le_bytes());
        }
        for _ in 0..if self.has_returns { self.entries } else { 0 } {
            bytes.extend_from_slice(&(stubs.returns as u32).to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{HIGH_JUMP_TABLE, HIGH_RETURN_TABLE};

    #[test]
    fn parts_are_where_they_are_said_to_be() {
        let high = Options {
            process: crate::options::ProcessOptions { high_tables: true, ..Default::default() },
            ..Options::default()
        };
        for (text, entries) in [(0, 1 << 17), (20 << 20, 1 << 19), (1 << 40, 1 << 19)] {
            let misses = Misses::new(text, false, high).unwrap();
            assert_eq!(misses.entries, entries);
            let bytes = misses.bytes(Stubs { jumps: MISS_CODE, returns: 0x7f12_6063_5598 });
            assert_eq!(bytes.len() as u64, misses.len());
            let at = |at: u64, len: usize| &bytes[at as usize..][..len];
            assert_eq!(at(0, 8), [0x65, 0xff, 0x24, 0x25, 0x50, 0x18, 0, 0]);
            for entry in [misses.jumps(), misses.returns() - 8] {
                assert_eq!(at(entry, 8), MISS_CODE.to_le_bytes());
            }
            for entry in [misses.returns(), misses.len() - 4] {
                assert_eq!(at(entry, 4), 0x6063_5598u32.to_le_bytes());
            }
            let header = ImageHeader {
                options: high.to_word(),
                misses: 0x1000,
                miss_entries: entries,
                ..ImageHeader::default()
            };
            assert_eq!(Misses::of(&header), Some(misses));
        }
        let process = crate::options::ProcessOptions { high_tables: false, ..high.process };
        let low = Options { process, ..high };
        assert_eq!(Misses::new(0, false, low), None);
        assert!(Misses::new(0, true, low).is_some());
        assert_eq!(Misses::of(&ImageHeader::default()), None);
    }

    #[test]
    fn the_code_lies_between_the_tables() {
        let tables = HIGH_RETURN_TABLE.end()..HIGH_JUMP_TABLE.base;
        assert!(tables.contains(&MISS_CODE) && tables.contains(&(MISS_CODE + PAGE)));
    }
}
