//! The tables of ahead-of-time code, packed: what each unit is and where, and what can be looked up.
//!
//! They are many and are asked seldom: a lookup that misses asks for a page of code at once, and a unit is
//! looked for when something is interrupted. So they are small rather than quick: neighbours differ
//! little, and lie in groups of [`GROUP`], of which an index says where each starts. Whoever looks for something
//! decodes one group.
//!
//! ```text
//! entries, ascending by original address; index: original address, code, place in the bytes
//!     not the first of a group:  varint original address - that of the previous one
//!                                varint (zig-zag) code - that of the previous one
//! units, in the order of their code; index: code, original address, place in the bytes
//!     varint  bytes of code
//!     varint  (zig-zag) original address - end of the previous unit (of a group's first one: - that of the index)
//!     varint  number of the recipe's header in the table of headers
//!     varint  number of the recipe's entries, each:
//!         u8      as the second byte of a recipe's entry, then u8 its delta (0xff: a u16 follows) and its operands;
//!                 or of kind 15: the delta is the length of the previous entry, and the kind is 0
//! ```

use crate::recipe::{Kind, HEADER};
use abi::unit::{get_varint, put_varint};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Entries or units that are decoded together.
pub const GROUP: usize = abi::tables::GROUP as usize;
const _: () = assert!(HEADER as u64 == abi::tables::RECIPE_HEADER);
/// Instead of [`Kind::Plain`]: the instruction in front was copied as it is, with nothing behind it.
const FOLLOWS: u8 = 15;

/// One unit with its recipe, as [`pack_units`] takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit<'a> {
    /// Start of its code.
    pub code: u32,
    /// Where it starts in the original.
    pub original: u32,
    /// Its recipe.
    pub recipe: &'a [u8],
}

/// A list with its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Of each group: see [`self`].
    pub index: Vec<[u32; 3]>,
    pub bytes: Vec<u8>,
    /// Length of the list.
    pub count: usize,
}

/// Headers of recipes, each once.
pub type Headers = Vec<[u8; HEADER]>;

/// What is not as this module writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

fn zig_zag(delta: i64) -> u64 {
    ((delta << 1) ^ (delta >> 63)).cast_unsigned()
}

/// `from` and what [`zig_zag`] has made of the distance.
fn step(from: u32, distance: u64) -> Option<u32> {
    let delta = (distance >> 1).cast_signed() ^ -(distance & 1).cast_signed();
    u32::try_from(i64::from(from).checked_add(delta)?).ok()
}

fn place(bytes: &[u8]) -> Option<u32> {
    u32::try_from(bytes.len()).ok()
}

/// Packs pairs of original address and code, ascending by the former. `None`: there are too many.
pub fn pack_entries(entries: &[(u32, u32)]) -> Option<Packed> {
    let mut packed = Packed { count: entries.len(), ..Packed::default() };
    for group in entries.chunks(GROUP) {
        let mut previous = *group.first()?;
        packed.index.push([previous.0, previous.1, place(&packed.bytes)?]);
        for &(original, code) in group.iter().skip(1) {
            put_varint(&mut packed.bytes, original.checked_sub(previous.0)?.into());
            let distance = i64::from(code) - i64::from(previous.1);
            put_varint(&mut packed.bytes, zig_zag(distance));
            previous = (original, code);
        }
    }
    Some(packed)
}

/// Packs units, ascending by their code; the last one's ends at `end`. `None`: there are too many, or a recipe is
/// none.
pub fn pack_units<'a>(
    units: impl Iterator<Item = Unit<'a>> + Clone,
    end: u32,
) -> Option<(Packed, Headers)> {
    let mut uses: BTreeMap<&[u8], usize> = BTreeMap::new();
    for unit in units.clone() {
        *uses.entry(unit.recipe.get(..HEADER)?).or_default() += 1;
    }
    // Frequent ones have small numbers.
    let mut headers: Vec<(usize, &[u8])> = uses.into_iter().map(|(h, n)| (n, h)).collect();
    headers.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let numbers: BTreeMap<&[u8], u64> = headers.iter().map(|h| h.1).zip(0..).collect();
    let mut packed = Packed::default();
    let mut expected = 0;
    let ends = units.clone().skip(1).map(|next| next.code).chain([end]);
    for (unit, end) in units.zip(ends) {
        if packed.count % GROUP == 0 {
            packed.index.push([unit.code, unit.original, place(&packed.bytes)?]);
            expected = unit.original;
        }
        let (header, entries) = unit.recipe.split_at_checked(HEADER)?;
        put_varint(&mut packed.bytes, end.checked_sub(unit.code)?.into());
        let distance = i64::from(unit.original) - i64::from(expected);
        put_varint(&mut packed.bytes, zig_zag(distance));
        put_varint(&mut packed.bytes, *numbers.get(header)?);
        let len = pack_recipe(entries, &mut packed.bytes)?;
        expected = unit.original.wrapping_add(len);
        packed.count += 1;
    }
    let headers = headers.into_iter().filter_map(|(_, header)| header.try_into().ok()).collect();
    Some((packed, headers))
}

/// Packs the entries of a recipe; returns how many original bytes they have.
fn pack_recipe(mut entries: &[u8], out: &mut Vec<u8>) -> Option<u32> {
    let (mut body, mut count, mut last, mut len) = (Vec::new(), 0, 0, 0u32);
    while let Some((&[delta, second], mut rest)) = entries.split_first_chunk() {
        let kind = Kind::from_nibble(second & 15)?;
        let length = second >> 4;
        if delta == last && delta != 0xff && kind == Kind::Plain {
            body.push(second | FOLLOWS);
        } else {
            body.extend_from_slice(&[second, delta]);
            let more = kind.operands() + if delta == 0xff { 2 } else { 0 };
            let (own, behind) = rest.split_at_checked(more)?;
            body.extend_from_slice(own);
            rest = behind;
        }
        (entries, last) = (rest, length);
        count += 1;
        len = len.wrapping_add(length.into());
    }
    put_varint(out, count);
    out.extend_from_slice(&body);
    entries.is_empty().then_some(len)
}

/// Entries as they lie in memory.
#[derive(Clone, Copy)]
pub struct Entries<'a> {
    pub index: &'a [[u32; 3]],
    pub bytes: &'a [u8],
    /// How many there are.
    pub count: usize,
}

impl<'a> Entries<'a> {
    /// Those at `original` and behind it: original address, code. It ends early at what is damaged.
    pub fn from(self, original: u32) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let group = self.index.partition_point(|first| first[0] <= original).saturating_sub(1);
        let number = group * GROUP;
        let all = Walk { entries: self, number, at: 0, last: (0, 0) };
        all.skip_while(move |entry| entry.0 < original)
    }

    /// The code of exactly this address.
    pub fn get(self, original: u32) -> Option<u32> {
        self.from(original).next().filter(|entry| entry.0 == original).map(|entry| entry.1)
    }
}

/// Entries one after the other, from the start of a group on.
struct Walk<'a> {
    entries: Entries<'a>,
    number: usize,
    at: usize,
    last: (u32, u32),
}

impl Iterator for Walk<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        if self.number >= self.entries.count {
            return None;
        }
        if self.number.is_multiple_of(GROUP) {
            let &[original, code, at] = self.entries.index.get(self.number / GROUP)?;
            if original < self.last.0 {
                return None;
            }
            (self.last, self.at) = ((original, code), at as usize);
        } else {
            let bytes = self.entries.bytes;
            let delta = u32::try_from(get_varint(bytes, &mut self.at)?).ok()?;
            let original = self.last.0.checked_add(delta)?;
            self.last = (original, step(self.last.1, get_varint(bytes, &mut self.at)?)?);
        }
        self.number += 1;
        Some(self.last)
    }
}

/// Units as they lie in memory.
#[derive(Clone, Copy)]
pub struct Units<'a> {
    pub index: &'a [[u32; 3]],
    pub bytes: &'a [u8],
    /// How many there are.
    pub count: usize,
    pub headers: &'a [[u8; HEADER]],
}

/// A unit that was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its place in the list.
    pub number: u32,
    /// Its code: from, to.
    pub code: [u32; 2],
    /// Where it starts in the original.
    pub original: u32,
    /// Bytes of its recipe that were written.
    pub recipe: usize,
}

impl Units<'_> {
    /// The unit with code at `code`, and its recipe into `room`, as far as that has room for whole entries.
    ///
    /// # Errors
    /// The tables are damaged.
    pub fn find(self, code: u32, room: &mut [u8]) -> Result<Option<Known>, Damaged> {
        match self.index.partition_point(|first| first[0] <= code).checked_sub(1) {
            Some(group) => self.find_in(group, code, room),
            None => Ok(None),
        }
    }

    fn find_in(self, group: usize, code: u32, room: &mut [u8]) -> Result<Option<Known>, Damaged> {
        let &[mut start, mut expected, at] = self.index.get(group).ok_or(Damaged)?;
        if start > code {
            return Err(Damaged);
        }
        let mut at = at as usize;
        for number in group * GROUP..((group + 1) * GROUP).min(self.count) {
            let mut varint = || get_varint(self.bytes, &mut at).ok_or(Damaged);
            let len = u32::try_from(varint()?).map_err(|_| Damaged)?;
            let original = step(expected, varint()?).ok_or(Damaged)?;
            let (header, count) = (varint()?, varint()?);
            let end = start.checked_add(len).ok_or(Damaged)?;
            let is_it = code < end;
            let mut out = Out { room: &mut *room, len: 0, is_full: !is_it };
            if is_it {
                let header = usize::try_from(header).ok().and_then(|i| self.headers.get(i));
                out.put(header.ok_or(Damaged)?);
            }
            let bytes = unpack_recipe(self.bytes, &mut at, count, &mut out).ok_or(Damaged)?;
            if is_it {
                let recipe = out.len;
                let number = u32::try_from(number).map_err(|_| Damaged)?;
                return Ok(Some(Known { number, code: [start, end], original, recipe }));
            }
            (start, expected) = (end, original.wrapping_add(bytes));
        }
        Ok(None)
    }
}

/// Where a recipe goes.
struct Out<'a> {
    room: &'a mut [u8],
    len: usize,
    is_full: bool,
}

impl Out<'_> {
    /// Appends all of it or nothing, and then nothing any more.
    fn put(&mut self, bytes: &[u8]) {
        let room = self.room.get_mut(self.len..).and_then(|rest| rest.get_mut(..bytes.len()));
        match room.filter(|_| !self.is_full) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.is_full = true,
        }
    }
}

/// What [`pack_recipe`] has packed; returns how many original bytes the entries have.
fn unpack_recipe(bytes: &[u8], at: &mut usize, count: u64, out: &mut Out) -> Option<u32> {
    let (mut last, mut len) = (0, 0u32);
    for _ in 0..count {
        let second = *bytes.get(*at)?;
        *at += 1;
        let length = second >> 4;
        if second & 15 == FOLLOWS {
            out.put(&[last, length << 4 | Kind::Plain as u8]);
        } else {
            let kind = Kind::from_nibble(second & 15)?;
            let delta = *bytes.get(*at)?;
            *at += 1;
            let more = kind.operands() + if delta == 0xff { 2 } else { 0 };
            let own = bytes.get(*at..*at + more)?;
            *at += more;
            let mut entry = [delta, second, 0, 0, 0, 0, 0];
            entry.get_mut(2..2 + more)?.copy_from_slice(own);
            out.put(entry.get(..2 + more)?);
        }
        last = length;
        len = len.wrapping_add(length.into());
    }
    Some(len)
}

#[cfg(test)]
mod tests;
