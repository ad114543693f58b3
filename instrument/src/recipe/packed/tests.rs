use super::*;
use crate::recipe::{Header, Recipe, Scratch, Writer};
use abi::ids::Gpr;
use lifter::regs::GprSet;

/// Small numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 11) % u64::from(end)).unwrap()
    }

    /// True once in so many times.
    fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }
}

const RUNS: u64 = 300;

/// A recipe of entries: distance in code, length, kind.
fn recipe(header: u16, entries: &[(u32, u8, u8)]) -> Vec<u8> {
    let scratch = Scratch { register: Gpr((header & 7) as u8), spilled: header & 8 != 0 };
    let header = Header {
        scratch: [Some(scratch), None],
        live_in: GprSet::from_bits(header),
        live_out: GprSet::ALL,
        outside: header & 16 != 0,
        silent: header & 32 != 0,
    };
    let (mut out, mut code) = (Vec::new(), 0);
    let mut writer = Writer::begin(&mut out, header);
    for &(distance, length, kind) in entries {
        code += distance;
        let kind = Kind::from_nibble(kind).unwrap();
        let operands = [7, 8, 9];
        writer.entry(&mut out, code, usize::from(length), kind, &operands[..kind.operands()]);
    }
    out
}

/// As they are in programs: most entries have the length of the one in front, most headers are one of few.
fn any_recipe(random: &mut Random) -> Vec<u8> {
    let header = if random.once_in(3) { random.below(1 << 16) } else { random.below(3) };
    let mut last = 0;
    let entries: Vec<_> = (0..random.below(12))
        .map(|_| {
            let distance = match random.below(6) {
                0 => random.below(16),
                1 => 200 + random.below(100),
                2 => random.below(1 << 16),
                _ => last,
            };
            let length = random.below(16);
            last = length;
            let kind = if random.once_in(3) { random.below(9) } else { 0 };
            (distance, length as u8, kind as u8)
        })
        .collect();
    recipe(header as u16, &entries)
}

/// Start of code, original address and recipe of each unit, and where the last one ends.
fn any_units(random: &mut Random) -> (Vec<(u32, u32, Vec<u8>)>, u32) {
    let (mut code, mut original) = (4096, 1 << 30);
    let mut all = Vec::new();
    let mut shapes: Vec<(u32, Vec<u8>)> = Vec::new();
    for _ in 0..random.below(150) {
        if random.once_in(4) {
            original = original - 9000 + random.below(18_000);
        }
        let last = shapes.len().checked_sub(1 + random.below(12) as usize);
        let (size, recipe) = match last.and_then(|last| shapes.get(last)) {
            Some(shape) if !random.once_in(3) => shape.clone(),
            _ => {
                let most = if random.once_in(9) { 20_000 } else { 300 };
                let size = random.below(most);
                (size, any_recipe(random))
            }
        };
        shapes.push((size, recipe.clone()));
        let len = recipe_len(&recipe);
        all.push((code, original, recipe));
        code += size;
        original += len;
    }
    (all, code)
}

fn recipe_len(recipe: &[u8]) -> u32 {
    Recipe::new(recipe).unwrap().entries().map(|entry| entry.length).sum()
}

fn pack(units: &[(u32, u32, Vec<u8>)], end: u32) -> PackedUnits {
    let units = units.iter().map(|(code, original, recipe)| Unit {
        code: *code,
        original: *original,
        recipe,
    });
    pack_units(units, end).unwrap()
}

fn units_of(packed: &PackedUnits) -> Units<'_> {
    let PackedUnits { list, headers, shapes, shape_index } = packed;
    let Packed { index, bytes, count } = list;
    Units { index, bytes, count: *count, headers, shapes, shape_index }
}

fn entries_of(packed: &Packed) -> Entries<'_> {
    Entries { index: &packed.index, bytes: &packed.bytes, count: packed.count }
}

fn any_entries(random: &mut Random) -> Vec<(u32, u32)> {
    let mut original = 100;
    let count = random.below(200);
    let mut entry = |_| {
        original += 1 + random.below(600);
        (original, random.below(1 << 24) << 7)
    };
    (0..count).map(&mut entry).collect()
}

#[test]
fn units_are_found_as_they_were_packed() {
    let mut shared = 0;
    for seed in 1..RUNS {
        let (units, end) = any_units(&mut Random(seed * 977));
        let packed = pack(&units, end);
        assert_eq!(packed.list.count, units.len());
        shared += packed.shape_index.len();
        let known = units_of(&packed);
        let mut room = [0; 1024];
        let ends = units.iter().skip(1).map(|unit| unit.0).chain([end]);
        for (number, ((code, original, recipe), end)) in (0..).zip(units.iter().zip(ends)) {
            // Of one without code nothing is ever asked.
            for at in [*code, end.saturating_sub(1)].into_iter().filter(|_| *code < end) {
                let found = known.find(at, &mut room).unwrap().unwrap();
                let (code, original) = ([*code, end], *original);
                assert_eq!(found, Known { number, code, original, recipe: recipe.len() });
                assert_eq!(room[..found.recipe], **recipe);
            }
        }
        assert_eq!(known.find(4095, &mut room), Ok(None));
        assert_eq!(known.find(end, &mut room), Ok(None));
    }
    assert!(shared > 1000, "{shared}");
}

#[test]
fn no_units_have_no_shapes() {
    assert_eq!(pack(&[], 0), PackedUnits::default());
}

#[test]
fn entries_are_found_as_they_were_packed() {
    for seed in 1..RUNS {
        let mut random = Random(seed * 991);
        let entries = any_entries(&mut random);
        let packed = pack_entries(&entries).unwrap();
        let list = entries_of(&packed);
        assert!(list.from(0).eq(entries.iter().copied()));
        let others: Vec<u32> = (0..20).map(|_| random.below(120_000)).collect();
        for original in others.into_iter().chain(entries.iter().map(|entry| entry.0)) {
            assert!(list.from(original).eq(entries.iter().copied().filter(|e| e.0 >= original)));
            let exact = entries.iter().find(|entry| entry.0 == original).map(|entry| entry.1);
            assert_eq!(list.get(original), exact);
        }
    }
}

/// No index fails, and what is found lies where it says.
#[test]
fn what_is_damaged_is_refused_or_lies_within_its_bounds() {
    let mut refused = 0;
    for seed in 1..4 * RUNS {
        let mut random = Random(seed * 1009);
        let (units, end) = any_units(&mut random);
        let mut packed = pack(&units, end);
        let mut entries = pack_entries(&any_entries(&mut random)).unwrap();
        for list in [&mut packed.list, &mut entries] {
            for _ in 0..1 + random.below(20) {
                let at = random.below(4000) as usize;
                if let Some(byte) = list.bytes.get_mut(at) {
                    *byte = random.below(256) as u8;
                }
                if let Some(word) = list.index.as_flattened_mut().get_mut(at / 100) {
                    *word ^= random.below(1 << 31);
                }
            }
            let cut = list.bytes.len().saturating_sub(random.below(40) as usize);
            list.bytes.truncate(cut);
        }
        packed.headers.truncate(packed.headers.len() / 2);
        packed.shapes.truncate(packed.shapes.len().saturating_sub(random.below(9) as usize));
        packed.shape_index.truncate(packed.shape_index.len() / 4 * 3);
        if let Some(at) = packed.shape_index.last_mut() {
            *at ^= random.below(1 << 31);
        }
        if let Some(byte) = packed.shapes.first_mut() {
            *byte = random.below(256) as u8;
        }
        for _ in 0..50 {
            let (asked, mut room) = (random.below(200_000), [0; 64]);
            match units_of(&packed).find(asked, &mut room) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    assert!(found.code[0] <= asked && asked < found.code[1]);
                    assert!((HEADER..=room.len()).contains(&found.recipe));
                }
                Err(Damaged) => refused += 1,
            }
            assert!(entries_of(&entries).from(asked).all(|entry| entry.0 >= asked));
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_recipe_is_cut_where_an_entry_ends() {
    let recipe = recipe(1, &[(4, 4, 0), (4, 3, 0), (9, 5, 6), (300, 2, 0)]);
    let packed = pack(&[(0, 16, recipe.clone())], 400);
    let ends = [0, 2, 4, 9, 13].map(|len| HEADER + len);
    for len in HEADER..=recipe.len() {
        let mut room = vec![0; len];
        let found = units_of(&packed).find(10, &mut room).unwrap().unwrap();
        let whole = ends.iter().filter(|end| **end <= len).count() - 1;
        assert_eq!((found.recipe, &room[..ends[whole]]), (ends[whole], &recipe[..ends[whole]]));
        let entries = Recipe::new(&room[..found.recipe]).unwrap().entries();
        assert_eq!(entries.count(), whole);
    }
}

/// What is copied as it is takes a byte for each instruction, and little for the unit; a unit that looks like another
/// one takes a byte.
#[test]
fn plain_code_takes_a_byte_for_each_instruction() {
    let entries: Vec<_> = [0, 4, 3, 5, 2].windows(2).map(|l| (l[0], l[1] as u8, 0)).collect();
    let recipe = recipe(5, &entries);
    let units: Vec<_> = (0..64u32).map(|i| (14 * i, 14 * i, recipe.clone())).collect();
    let packed = pack(&units, 14 * 64);
    assert_eq!((packed.list.bytes.len(), packed.list.index.len()), (64, 2));
    assert_eq!(
        (packed.shapes.len(), packed.shape_index.len(), packed.headers.len()),
        (3 + 4, 1, 1)
    );
    // Of other lengths of code each.
    let units: Vec<_> = (0..64u32).map(|i| (100 * i * i, 14 * i, recipe.clone())).collect();
    let packed = pack(&units, 100 * 64 * 64);
    assert_eq!((packed.list.bytes.len(), packed.shapes.len()), (64 * (1 + 4 + 4) - 1, 0));
}
