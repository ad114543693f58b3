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
//!     varint  bit 0: the unit begins elsewhere; the rest: number of its shape, from 1 on, or 0
//!     begins elsewhere: varint (zig-zag) original address - end of the previous unit (of a group's first one:
//!                       - that of the index); else it begins there
//!     number 0: its shape, which no other unit has
//! shape; those that several units have lie in a table, the frequent ones first
//!     varint  bytes of code
//!     varint  number of the recipe's header in the table of headers, the frequent ones first
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

/// What [`pack_units`] makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedUnits {
    pub list: Packed,
    pub headers: Headers,
    /// Shapes that several units have.
    pub shapes: Vec<u8>,
    /// Where each of them starts.
    pub shape_index: Vec<u32>,
}

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
) -> Option<PackedUnits> {
    let (headers, numbers) = number_headers(units.clone())?;
    // The shape of each unit: its bytes, and of each where they start and how many original bytes it has.
    let (mut bytes, mut shapes) = (Vec::new(), Vec::new());
    let ends = units.clone().skip(1).map(|next| next.code).chain([end]);
    for (unit, end) in units.clone().zip(ends) {
        let (header, entries) = unit.recipe.split_at_checked(HEADER)?;
        let start = place(&bytes)?;
        put_varint(&mut bytes, end.checked_sub(unit.code)?.into());
        put_varint(&mut bytes, *numbers.get(header)?);
        shapes.push((start, pack_recipe(entries, &mut bytes)?));
    }
    let ends = shapes.iter().skip(1).map(|next| next.0).chain([place(&bytes)?]);
    let of_each: Vec<&[u8]> = (shapes.iter().zip(ends))
        .map(|(&(start, _), end)| bytes.get(start as usize..end as usize))
        .collect::<Option<_>>()?;

    let mut packed = PackedUnits { headers, ..PackedUnits::default() };
    let numbers = packed.number_shapes(&of_each)?;
    let mut expected = 0;
    for (((unit, (_, len)), shape), number) in units.zip(&shapes).zip(of_each).zip(numbers) {
        let list = &mut packed.list;
        if list.count.is_multiple_of(GROUP) {
            list.index.push([unit.code, unit.original, place(&list.bytes)?]);
            expected = unit.original;
        }
        let distance = zig_zag(i64::from(unit.original) - i64::from(expected));
        put_varint(&mut list.bytes, u64::from(number) << 1 | u64::from(distance != 0));
        if distance != 0 {
            put_varint(&mut list.bytes, distance);
        }
        if number == 0 {
            list.bytes.extend_from_slice(shape);
        }
        expected = unit.original.wrapping_add(*len);
        list.count += 1;
    }
    Some(packed)
}

/// The headers of these units' recipes, the frequent ones first, and the number of each.
fn number_headers<'a>(
    units: impl Iterator<Item = Unit<'a>>,
) -> Option<(Headers, BTreeMap<&'a [u8], u64>)> {
    let mut uses: BTreeMap<&[u8], usize> = BTreeMap::new();
    for unit in units {
        *uses.entry(unit.recipe.get(..HEADER)?).or_default() += 1;
    }
    let mut headers: Vec<(usize, &[u8])> = uses.into_iter().map(|(h, n)| (n, h)).collect();
    headers.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let numbers = headers.iter().map(|h| h.1).zip(0..).collect();
    Some((headers.into_iter().filter_map(|(_, header)| header.try_into().ok()).collect(), numbers))
}

impl PackedUnits {
    /// Makes the table of shapes; the number of each unit's shape, or 0. `of_each`: the shape of each unit.
    fn number_shapes(&mut self, of_each: &[&[u8]]) -> Option<Vec<u32>> {
        let mut order: Vec<(u64, u32)> = of_each.iter().map(|shape| hash(shape)).zip(0..).collect();
        order.sort_unstable();
        let shape_of = |unit: u32| of_each.get(unit as usize).copied();
        // Of each shape that comes again: how often, and its units. One that only has the hash of another is its
        // unit's own.
        let mut again: Vec<(usize, &[(u64, u32)])> = Vec::new();
        for same in order.chunk_by(|a, b| a.0 == b.0) {
            let first = same.first()?.1;
            let count = same.iter().filter(|one| shape_of(one.1) == shape_of(first)).count();
            again.extend((count > 1).then_some((count, same)));
        }
        again.sort_unstable_by_key(|&(count, same)| {
            (core::cmp::Reverse(count), same.first().map(|one| one.1))
        });
        let mut numbers = alloc::vec![0; of_each.len()];
        for ((_, same), number) in again.into_iter().zip(1..) {
            let shape = shape_of(same.first()?.1)?;
            self.shape_index.push(place(&self.shapes)?);
            self.shapes.extend_from_slice(shape);
            for &(_, unit) in same.iter().filter(|one| shape_of(one.1) == Some(shape)) {
                *numbers.get_mut(unit as usize)? = number;
            }
        }
        Some(numbers)
    }
}

/// FNV-1a of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
    /// Shapes that several units have, and where each starts.
    pub shapes: &'a [u8],
    pub shape_index: &'a [u32],
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
            let first = varint(self.bytes, &mut at)?;
            let distance = if first & 1 == 0 { 0 } else { varint(self.bytes, &mut at)? };
            let original = step(expected, distance).ok_or(Damaged)?;
            let mut shared_at;
            let (shape, at) = match first >> 1 {
                0 => (self.bytes, &mut at),
                shared => {
                    let index = usize::try_from(shared - 1).ok();
                    let place = index.and_then(|index| self.shape_index.get(index));
                    shared_at = *place.ok_or(Damaged)? as usize;
                    (self.shapes, &mut shared_at)
                }
            };
            let len = u32::try_from(varint(shape, at)?).map_err(|_| Damaged)?;
            let (header, count) = (varint(shape, at)?, varint(shape, at)?);
            let end = start.checked_add(len).ok_or(Damaged)?;
            let is_it = code < end;
            let mut out = Out { room: &mut *room, len: 0, is_full: !is_it };
            if is_it {
                let header = usize::try_from(header).ok().and_then(|i| self.headers.get(i));
                out.put(header.ok_or(Damaged)?);
            }
            let bytes = unpack_recipe(shape, at, count, &mut out).ok_or(Damaged)?;
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

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, Damaged> {
    get_varint(bytes, at).ok_or(Damaged)
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
