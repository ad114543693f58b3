//! Where things lie in the address space of a running output.
//!
//! All original code that is looked up by table lies in one *window*: 4 GiB, aligned to 4 GiB. The
//! high half of every original code address in it is the same, and so is the high half of every
//! translated address, which is why a translated call only overwrites the low half of the return
//! address that the hardware pushed, with a constant known when the file was rewritten, although
//! the window itself is placed at random at run time (non-PIE programs: at 0).

use core::ops::Range;

/// Size and alignment of the code window.
pub const WINDOW_SIZE: u64 = 1 << 32;

/// Where the look-up tables start if they lie low: below 2 GiB, so that `[rcx*8 + disp32]` works.
pub const TABLE_BASE: u64 = 0x7fff_f000;

/// Where the look-up tables start if they lie high: below all that the kernel chooses, where programs
/// have their libraries. Nobody else wants to be there: programs that choose addresses themselves have low
/// ones (emulators, Wine), and sanitizers, whose shadows take nearly all else, leave it to libraries.
pub const HIGH_BASE: u64 = 0x7ec0_0000_0000;

/// A look-up table: the entry at `base + entry * (low half of an original code address)` leads to
/// its translation, or to the miss stub. Mapped are the pieces that belong to executable original
/// memory, and others when a look-up first meets them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableShape {
    /// Where the entry of address 0 lies.
    pub base: u64,
    /// Bytes of an entry: 8, which is the live address, or 4, its low half.
    pub entry: u64,
}

impl TableShape {
    /// Where the entry of an original address lies.
    pub fn entry_of(self, address: u64) -> u64 {
        self.base + self.entry * u64::from(address as u32)
    }

    /// First address behind the table.
    pub fn end(self) -> u64 {
        self.base + self.entry * WINDOW_SIZE
    }
}

/// **T** for everything, where returns have no table of their own.
pub const ONLY_TABLE: TableShape = TableShape { base: TABLE_BASE, entry: 8 };
/// For returns: half the size, as the stack has the high half already. It serves calls and jumps, too, where they merge halves
/// and may go wherever returns may go, and in a window at 0, where there is no high half.
pub const RETURN_TABLE: TableShape = TableShape { base: TABLE_BASE, entry: 4 };
/// For indirect calls and jumps, behind that of the returns.
pub const JUMP_TABLE: TableShape = TableShape { base: TABLE_BASE + 4 * WINDOW_SIZE, entry: 8 };
/// What is added to the low half, so that a displacement below 2 GiB reaches [`JUMP_TABLE`].
pub const JUMP_BIAS: i32 = 0x7fff_ffff;
/// As [`RETURN_TABLE`], high.
pub const HIGH_RETURN_TABLE: TableShape = TableShape { base: HIGH_BASE, entry: 4 };
/// As [`JUMP_TABLE`], where jumps merge halves as returns do.
pub const HALF_JUMP_TABLE: TableShape = TableShape { base: JUMP_TABLE.base, entry: 4 };
/// The same, high.
pub const HIGH_HALF_JUMP_TABLE: TableShape = TableShape { base: HIGH_JUMP_TABLE.base, entry: 4 };
/// As [`JUMP_TABLE`] and [`ONLY_TABLE`], high: a multiple of [`WINDOW_SIZE`] entries from 0.
pub const HIGH_JUMP_TABLE: TableShape = TableShape { base: HIGH_BASE + 8 * WINDOW_SIZE, entry: 8 };

/// Tables for windows of code that the program generates: with [`HIGH_JUMP_TABLE`]'s entries, each as far from 0
/// as that is. They lie among the runtime's own memory, where that begins last.
pub const FAR_TABLES: [TableShape; 4] = [
    TableShape { base: HIGH_BASE - 8 * WINDOW_SIZE, entry: 8 },
    TableShape { base: HIGH_BASE - 16 * WINDOW_SIZE, entry: 8 },
    TableShape { base: HIGH_BASE - 40 * WINDOW_SIZE, entry: 8 },
    TableShape { base: HIGH_BASE - 48 * WINDOW_SIZE, entry: 8 },
];

/// Where all tables lie, low or high.
pub const fn tables(high: bool) -> Range<u64> {
    match high {
        true => HIGH_BASE..HIGH_BASE + 16 * WINDOW_SIZE,
        false => TABLE_BASE..TABLE_END,
    }
}

/// Undo log: one page below 2 GiB, reached without a base register. Threads take the
/// lock (zero: free) around each synchronising instruction, and count them.
pub const SYNC_PAGE: u64 = AREA_END_FIXED + (512 << 10);
/// The lock.
pub const SYNC_LOCK: u64 = SYNC_PAGE;
/// The count, in a cache line of its own.
pub const SYNC_COUNT: u64 = SYNC_PAGE + 64;

/// First address behind the tables that lie low.
pub const TABLE_END: u64 = TABLE_BASE + (4 + 8) * WINDOW_SIZE;

/// The segments that the rewriter adds to a position-independent program start here at the
/// earliest (relative to the window); the heap of the program has the room below it.
pub const ADDED_PIE: u64 = 0x6000_0000;
/// The same for a program at fixed addresses, whose window also holds the table from 2 GiB on.
pub const ADDED_FIXED: u64 = 0x3800_0000;

/// An output is not started where a process may have fewer bytes of addresses (RLIMIT_AS): the kernel, which looks for room
/// for all of its segments at once, would end it before its first instruction.
pub const LEAST_ADDRESSES: u64 = ADDED_PIE + (256 << 20);
/// Says so.
pub const TOO_FEW_ADDRESSES: &str =
    "its addresses are limited (RLIMIT_AS, `ulimit -v`) to fewer than the 1835008 KiB that an output needs";

/// Size of the JIT's code cache. It lies first in the area that the runtime reserves in the window,
/// and ends within 2 GiB of the window's start, so that pc-relative operands reach everywhere.
pub const ARENA_LEN: u64 = 128 << 20;
/// The code cache ends here at the latest, relative to the window.
pub const ARENA_END: u64 = 0x8000_0000;

/// The area for code cache and libraries ends here at the latest, relative to the window.
pub const AREA_END_PIE: u64 = 0xf000_0000;
/// The same for programs at fixed addresses, whose window also holds the table from 2 GiB on.
pub const AREA_END_FIXED: u64 = 0x7ff0_0000;
/// It starts at a multiple of this.
pub const AREA_STEP: u64 = 16 << 20;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Rounds up to a multiple of the page size.
pub const fn page_up(x: u64) -> u64 {
    (x + PAGE - 1) & !(PAGE - 1)
}

/// Rounds down to a multiple of the page size.
pub const fn page_down(x: u64) -> u64 {
    x & !(PAGE - 1)
}
