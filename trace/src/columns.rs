//! References and blocks as columns: what costs least for whoever looks at all of them.

use crate::walk::{Fixed, MemoryReference, Passed, LANES};

/// Rows that are passed on at once, usually: 400 KB, which stay in the processor's caches, and enough for a switch to
/// whoever gets them.
pub const BATCH: usize = 1 << 14;
/// What a passage may have more.
const MORE: usize = 1 << 12;

/// Values, one behind another.
#[derive(Default, Debug)]
pub struct Column<T> {
    /// The values, and behind them room.
    values: Vec<T>,
    rows: usize,
}

impl<T: Copy + Default> Column<T> {
    /// Without values, in the memory of one that is of no use any more.
    #[must_use]
    pub fn reusing(mut values: Vec<T>) -> Column<T> {
        values.resize(BATCH + MORE, T::default());
        Column { values, rows: 0 }
    }

    /// How many there are.
    #[inline]
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// There are as many as are passed on at once.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows >= BATCH
    }

    /// The values.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values[..self.rows]
    }

    /// The memory: the values, and behind them anything.
    #[must_use]
    pub fn into_memory(self) -> Vec<T> {
        self.values
    }

    #[cold]
    fn grow(&mut self, rows: usize) {
        self.values.resize((self.rows + rows).next_multiple_of(MORE), T::default());
    }

    /// Appends one.
    #[inline]
    pub fn push(&mut self, value: T) {
        if self.rows == self.values.len() {
            self.grow(1);
        }
        self.values[self.rows] = value;
        self.rows += 1;
    }

    /// Appends the first `rows` values of lanes. Whole lanes are copied: that costs less than as many bytes as are
    /// needed.
    #[inline(always)]
    fn append(&mut self, lanes: &[[T; LANES]], rows: usize) {
        let room = lanes.len() * LANES;
        if self.values.len() - self.rows < room {
            self.grow(room);
        }
        let (to, _) = self.values[self.rows..].as_chunks_mut::<LANES>();
        for (to, from) in to.iter_mut().zip(lanes) {
            *to = *from;
        }
        self.rows += rows;
    }
}

impl Column<u64> {
    /// Appends where the blocks of a passage begin.
    #[inline]
    pub fn blocks(&mut self, passed: &Passed<'_>) {
        if passed.begins {
            self.push(passed.start().0);
        }
        let (lanes, rows) = passed.block_column();
        self.append(lanes, rows);
    }
}

/// Bits, from the lowest one of the first word on.
#[derive(Default, Debug)]
pub struct Bits {
    words: Vec<u64>,
    rows: usize,
}

impl Bits {
    /// Without bits, in the memory of others that are of no use any more.
    #[must_use]
    pub fn reusing(mut words: Vec<u64>) -> Bits {
        words.clear();
        words.reserve((BATCH + MORE) / 64 + 1);
        Bits { words, rows: 0 }
    }

    /// The words.
    #[must_use]
    pub fn into_words(self) -> Vec<u64> {
        self.words
    }

    /// Whether the bit of a row is set.
    #[must_use]
    pub fn has(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// Appends the low `count` bits of a word, of which there are at most 64; the others are 0.
    #[inline(always)]
    fn append(&mut self, bits: u64, count: usize) {
        let used = self.rows % 64;
        match self.words.last_mut().filter(|_| used > 0) {
            Some(last) => {
                *last |= bits << used;
                if used + count > 64 {
                    self.words.push(bits >> (64 - used));
                }
            }
            None => self.words.push(bits),
        }
        self.rows += count;
    }
}

/// References, one behind another.
#[derive(Default, Debug)]
pub struct References {
    /// The instructions.
    pub pcs: Column<u64>,
    /// First bytes.
    pub addresses: Column<u64>,
    /// Bytes.
    pub sizes: Column<u32>,
    /// It writes.
    pub writes: Bits,
}

impl References {
    /// How many there are.
    #[inline]
    #[must_use]
    pub fn rows(&self) -> usize {
        self.pcs.rows
    }

    /// None are there any more.
    pub fn clear(&mut self) {
        (self.pcs.rows, self.addresses.rows, self.sizes.rows) = (0, 0, 0);
        self.writes.words.clear();
        self.writes.rows = 0;
    }

    /// Appends one.
    #[inline]
    pub fn push(&mut self, reference: MemoryReference) {
        self.pcs.push(reference.pc.0);
        self.addresses.push(reference.address.0);
        self.sizes.push(reference.size);
        self.writes.append(reference.write.into(), 1);
    }

    /// Appends those of a passage.
    #[inline]
    pub fn passage(&mut self, passed: &Passed<'_>) {
        let Fixed { pcs, sizes, writes } = passed.fixed();
        let rows = passed.references();
        self.pcs.append(pcs, rows);
        self.sizes.append(sizes, rows);
        self.addresses.append(&passed.address_column()[..pcs.len()], rows);
        let mut left = rows;
        for &bits in writes {
            let count = left.min(64);
            self.writes.append(bits, count);
            left -= count;
        }
    }
}
