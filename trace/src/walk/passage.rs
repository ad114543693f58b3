//! A *passage*: units that were executed one after another, as one. What it is, and what whoever is told of it sees.
//! [`passages`](super::passages) makes and finds them.

use std::cell::Cell;

use abi::ids::LiveAddr;

use super::compiled::{CompiledUnits, Leads, UnitNumber};
use crate::compile::CompiledUnit;
use crate::plain::{Plain, Referred};

/// Words of the longest key.
pub(super) const LONG: usize = 4;
/// Of columns so many rows are side by side: a copy of constant size costs less than one of a few bytes.
pub const LANES: usize = 8;

/// A unit of a passage.
pub(super) struct Member {
    pub unit: UnitNumber,
    /// A block begins with it. Of the first unit that is not known.
    pub begins: bool,
}

/// Units one after another.
pub(super) struct Passage {
    /// The next words of the stream, as far as they count.
    pub key: [u64; LONG],
    pub mask: [u64; LONG],
    /// What the decoder has to say in front of it, and says behind it.
    pub context: u32,
    pub behind: u32,
    /// What came behind it last time.
    pub next: Cell<u32>,
    /// How often it was met.
    pub uses: Cell<u32>,
    /// Bytes of the control-flow stream.
    pub bytes: usize,
    pub memory_bytes: usize,
    /// Instructions.
    pub count: u64,
    /// Where the first unit is.
    pub address: LiveAddr,
    pub leads: Leads,
    /// No unit without a tag follows.
    pub settled: bool,
    pub members: Box<[Member]>,
    /// Blocks that begin behind the first unit's start.
    pub block_count: u64,
    /// Where they do, if no references are wanted.
    pub blocks: Box<[[u64; LANES]]>,
    /// `None` if no references are wanted.
    pub plain: Option<Plain>,
    /// Of each reference.
    pub pcs: Box<[[u64; LANES]]>,
    pub sizes: Box<[[u32; LANES]]>,
    /// A bit for each.
    pub writes: Box<[u64]>,
}

impl Passage {
    /// Units.
    pub fn len(&self) -> u64 {
        self.members.len() as u64
    }

    pub fn last(&self) -> UnitNumber {
        self.members[self.members.len() - 1].unit
    }

    /// References.
    fn references(&self) -> usize {
        self.plain.as_ref().map_or(0, |plain| plain.references.len())
    }

    /// It was met once more; how often that is.
    #[inline(always)]
    pub fn used(&self) -> u32 {
        let uses = self.uses.get().saturating_add(1);
        self.uses.set(uses);
        uses
    }

    #[inline(always)]
    pub fn is_next(&self, rest: &[u8], context: u32) -> bool {
        let Some(words) = words::<LONG>(rest) else { return false };
        let differs = |n: usize| (words[n] ^ self.key[n]) & self.mask[n];
        differs(0) | differs(1) | differs(2) | differs(3) == 0 && self.context == context
    }
}

/// Units that were executed one after another, and what they referred to.
pub struct Passed<'a> {
    /// The number of the passage, dense. It has the same units each time, until all passages are forgotten.
    pub number: u32,
    /// How often that was so.
    pub forgotten: u32,
    /// A block begins with the first unit.
    pub begins: bool,
    /// Addresses, and behind them anything, so that it is whole lanes.
    pub(super) room: &'a [u64],
    pub(super) passage: &'a Passage,
    pub(super) units: &'a CompiledUnits<'a>,
}

impl Passed<'_> {
    /// References, if the sink wants them: rows of [`Passed::fixed`].
    #[inline]
    pub fn references(&self) -> usize {
        self.passage.references()
    }

    /// Columns of all references, in their order. Rows behind the last one mean nothing.
    #[inline]
    pub fn fixed(&self) -> Fixed<'_> {
        let Passage { pcs, sizes, writes, .. } = self.passage;
        Fixed { pcs, sizes, writes }
    }

    /// The addresses in the same form, if the sink wants them.
    #[inline]
    pub fn address_column(&self) -> &[[u64; LANES]] {
        self.room.as_chunks::<LANES>().0
    }

    /// The addresses.
    #[inline]
    pub fn addresses(&self) -> &[u64] {
        self.room.get(..self.references()).unwrap_or_default()
    }

    /// Where the first unit is.
    #[inline]
    pub fn start(&self) -> LiveAddr {
        self.passage.address
    }

    /// The units, with their numbers, and their references.
    pub fn units(&self) -> impl Iterator<Item = (u32, &CompiledUnit, &[Referred])> + '_ {
        self.passage.members.iter().map(|member| {
            let plain = self.units.quick(member.unit).plain.as_ref();
            let references = plain.map_or(&[][..], |plain| &plain.references);
            (member.unit.0, self.units.get(member.unit), references)
        })
    }

    /// The same one by one: with whether a block begins there, and with the addresses of its references.
    pub(super) fn each(&self) -> impl Iterator<Item = One<'_>> + '_ {
        let mut rest = self.addresses();
        self.units().zip(&self.passage.members).enumerate().map(
            move |(n, ((number, unit, references), member))| {
                let addresses;
                (addresses, rest) = rest.split_at(references.len().min(rest.len()));
                let begins = if n == 0 { self.begins } else { member.begins };
                One { number, unit, begins, references, addresses }
            },
        )
    }

    /// How many blocks begin behind the first unit's start.
    #[inline]
    pub fn block_count(&self) -> u64 {
        self.passage.block_count
    }

    /// Where those blocks begin, if the sink wants no references, and how many they are. Rows behind the last one mean
    /// nothing.
    #[inline]
    pub(crate) fn block_column(&self) -> (&[[u64; LANES]], usize) {
        let Passage { blocks, block_count, .. } = self.passage;
        (blocks, usize::try_from(*block_count).unwrap_or(usize::MAX))
    }

    /// Those blocks.
    pub fn blocks(&self) -> impl Iterator<Item = LiveAddr> + '_ {
        blocks(&self.passage.members, self.units)
    }
}

/// Where blocks begin in these units, behind the first one's start.
pub(super) fn blocks<'a>(
    members: &'a [Member],
    units: &'a CompiledUnits<'_>,
) -> impl Iterator<Item = LiveAddr> + 'a {
    members.iter().enumerate().flat_map(|(n, member)| {
        let unit = units.get(member.unit);
        let own = (n > 0 && member.begins).then_some(unit.address);
        let inner = unit.inner_blocks.iter().map(|&at| unit.address.plus(u64::from(at)));
        own.into_iter().chain(inner)
    })
}

/// One of the units of [`Passed`].
pub(super) struct One<'a> {
    pub number: u32,
    pub unit: &'a CompiledUnit,
    /// A block begins with it.
    pub begins: bool,
    pub references: &'a [Referred],
    pub addresses: &'a [u64],
}

/// What references are every time, but for their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<'a> {
    /// The instructions.
    pub pcs: &'a [[u64; LANES]],
    /// Bytes.
    pub sizes: &'a [[u32; LANES]],
    /// A bit for each, from the lowest one of the first word on: it writes.
    pub writes: &'a [u64],
}

/// A bit for each, from the lowest one of the first word on.
pub(super) fn bits(each: impl Iterator<Item = bool>) -> Box<[u64]> {
    let mut words = Vec::new();
    for (n, set) in each.enumerate() {
        if n.is_multiple_of(64) {
            words.push(0);
        }
        words[n / 64] |= u64::from(set) << (n % 64);
    }
    words.into()
}

/// In lanes, of which the last is filled up.
pub(super) fn column<T: Copy + Default>(rows: impl Iterator<Item = T>) -> Box<[[T; LANES]]> {
    let mut rows: Vec<T> = rows.collect();
    rows.resize(rows.len().next_multiple_of(LANES), T::default());
    rows.as_chunks::<LANES>().0.into()
}

/// The next words of the stream, if there are so many.
#[inline(always)]
pub(super) fn words<const WORDS: usize>(rest: &[u8]) -> Option<[u64; WORDS]> {
    let (words, _) = rest.as_chunks::<8>();
    words.first_chunk::<WORDS>().map(|words| words.map(u64::from_le_bytes))
}
