//! What the look-up tables are mapped from: entries that were never set, as the output file has them.
//!
//! An entry leads to the miss stub until it is set, so a table is pages of nothing but that. They lie in the
//! output: made at each start, they would cost it half a millisecond, and each process a copy.
//!
//! ```text
//! a page of code      jmp gs:[TABLE_MISS], for a window that is not at 0
//! table of jumps      entries of 8 bytes: the stub in a window at 0, else that code, mapped at [`MISS_CODE`]; of 4 bytes:
//!                     the low half of the stub; none if jumps share the other one
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
    /// Of a table of 4 bytes each, a power of two. Of one of 8 half as many: all have the same size.
    pub entries: u64,
    /// Bytes of an entry for jumps; `None`: they have those of returns.
    pub jump_entry: Option<u64>,
    /// There is a table for returns.
    pub has_returns: bool,
}

/// Where misses lead.
#[derive(Clone, Copy, Debug)]
pub struct Stubs {
    /// From the table of jumps: the stub itself.
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
        reaches.then_some(Misses::with(entries, options))
    }

    /// Those of an output.
    pub fn of(header: &ImageHeader) -> Option<Misses> {
        let options = Options::from_word(header.options)?;
        let entries = header.miss_entries;
        let is_valid = header.misses != 0 && entries.is_power_of_two() && entries <= ENTRIES[1];
        is_valid.then_some(Misses::with(entries, options))
    }

    fn with(entries: u64, options: Options) -> Misses {
        let has_returns = options.of_tables().return_table().is_some();
        let jump_entry = (!options.shares_table()).then_some(options.jump_table().entry);
        Misses { entries, jump_entry, has_returns }
    }

    /// Whether a process with these options has such tables.
    pub fn fits(self, options: Options) -> bool {
        let own = Misses::with(self.entries, options);
        self.jump_entry == own.jump_entry && (self.has_returns || !own.has_returns)
    }

    /// Where the entries for jumps start.
    pub const fn jumps(self) -> u64 {
        PAGE
    }

    /// How many entries for jumps alone there are.
    pub const fn jump_entries(self) -> u64 {
        match self.jump_entry {
            None => 0,
            Some(entry) => 4 * self.entries / entry,
        }
    }

    /// Where those for returns start, if there are any.
    pub const fn returns(self) -> u64 {
        self.jumps() + if self.jump_entry.is_some() { 4 * self.entries } else { 0 }
    }

    /// Bytes of all.
    pub const fn len(self) -> u64 {
        self.returns() + if self.has_returns { 4 * self.entries } else { 0 }
    }

    /// There is always the code.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// All bytes; `fixed`: the stubs are at these addresses, else only their low halves are known.
    #[allow(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
    pub fn bytes(self, stubs: Stubs, fixed: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() as usize);
        // jmp gs:[TABLE_MISS]
        bytes.extend_from_slice(&[0x65, 0xff, 0x24, 0x25]);
        bytes.extend_from_slice(&TABLE_MISS.to_le_bytes());
        // Breakpoints.
        bytes.resize(self.jumps() as usize, 0xcc);
        let whole = if fixed { stubs.jumps } else { MISS_CODE };
        for _ in 0..self.jump_entries() {
            match self.jump_entry {
                Some(4) => bytes.extend_from_slice(&(stubs.jumps as u32).to_le_bytes()),
                _ => bytes.extend_from_slice(&whole.to_le_bytes()),
            }
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
    use crate::options::{DeadRegisters, Pointers, ProcessOptions};

    const STUBS: Stubs = Stubs { jumps: 0x7f12_6063_5560, returns: 0x7f12_6063_5598 };

    fn high(dead_registers: DeadRegisters, pointers: Pointers) -> Options {
        let process =
            ProcessOptions { high_tables: true, dead_registers, pointers, ..Default::default() };
        Options { process, ..Options::default() }
    }

    #[test]
    fn parts_are_where_they_are_said_to_be() {
        let kinds = [
            (DeadRegisters::Reuse, Pointers::Vector, None),
            (DeadRegisters::Preserve, Pointers::Vector, Some(4)),
            (DeadRegisters::Reuse, Pointers::ThreadBlock, Some(8)),
        ];
        for (text, entries) in [(0, 1 << 17), (20 << 20, 1 << 19), (1 << 40, 1 << 19)] {
            for (dead_registers, pointers, jump_entry) in kinds {
                let high = high(dead_registers, pointers);
                let misses = Misses::new(text, false, high).unwrap();
                assert_eq!(misses, Misses { entries, jump_entry, has_returns: true });
                let bytes = misses.bytes(STUBS, false);
                assert_eq!(bytes.len() as u64, misses.len());
                let at = |at: u64, len: usize| &bytes[at as usize..][..len];
                assert_eq!(at(0, 8), [0x65, 0xff, 0x24, 0x25, 0x50, 0x18, 0, 0]);
                let entry = jump_entry.unwrap_or(0);
                assert_eq!(misses.jumps() + entry * misses.jump_entries(), misses.returns());
                match jump_entry {
                    None => {}
                    Some(4) => {
                        for entry in [misses.jumps(), misses.returns() - 4] {
                            assert_eq!(at(entry, 4), 0x6063_5560u32.to_le_bytes());
                        }
                    }
                    _ => {
                        for entry in [misses.jumps(), misses.returns() - 8] {
                            assert_eq!(at(entry, 8), MISS_CODE.to_le_bytes());
                        }
                        let fixed = misses.bytes(STUBS, true);
                        assert_eq!(fixed[PAGE as usize..][..8], STUBS.jumps.to_le_bytes());
                    }
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
                let fits = kinds.map(|(registers, at, _)| misses.fits(self::high(registers, at)));
                assert_eq!(fits, kinds.map(|(.., entry)| entry == jump_entry));
            }
        }
        let mut low = high(DeadRegisters::Reuse, Pointers::Vector);
        low.process.high_tables = false;
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
