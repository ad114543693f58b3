//! The description of a translation unit: what the recorder decided, so that the reader never guesses.
//!
//! A unit is a straight run of original instructions with one entry. Its *body* (see
//! [`UnitBody`]) says how long the original code is and which values go to the memory stream, at
//! which instruction. Ahead-of-time units travel in the output file (delta-coded, in the order of
//! their numbers), units of the JIT in the trace itself with a copy of their code.
//!
//! Unit id: `window << 16 | tag`, tag in `FIRST_TAG..=LAST_TAG`.

use alloc::vec::Vec;

use crate::ids::{Gpr, LiveAddr, OrigAddr, UnitId};

/// Tags below this one are control words of the stream.
pub const FIRST_TAG: u32 = 16;
/// Words of the stream above this one start a wide tag ([`crate::trace::tags::wide`]).
pub const LAST_TAG: u32 = 0x7fff;
/// Units in one window.
pub const TAGS_PER_WINDOW: u32 = LAST_TAG + 1 - FIRST_TAG;

/// Most silent units ([`flags::SILENT`]) that are executed one after another.
pub const MAX_SILENT: u32 = 24;
/// Most bytes that these add to the memory stream, together.
pub const MAX_SILENT_BYTES: u32 = 512;

/// Unit id of the `n`-th unit of a numbering that starts with window `first_window`.
#[must_use]
pub fn unit_id(first_window: u32, n: u32) -> UnitId {
    UnitId((first_window + n / TAGS_PER_WINDOW) << 16 | (FIRST_TAG + n % TAGS_PER_WINDOW))
}

/// Inverse of [`unit_id`]; `None` for a control word or an earlier window.
#[must_use]
pub fn unit_number(first_window: u32, id: UnitId) -> Option<u32> {
    let (window, tag) = (id.window(), u32::from(id.tag()));
    if !(FIRST_TAG..=LAST_TAG).contains(&tag) || window < first_window {
        return None;
    }
    (window - first_window).checked_mul(TAGS_PER_WINDOW)?.checked_add(tag - FIRST_TAG)
}

/// One value in the memory stream: which one, and at which instruction of the unit it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Index of the instruction in its unit.
    pub insn: u8,
    /// The value.
    pub what: What,
}

/// What a record holds. All are 8 bytes but [`What::Vector`], which is 64, and [`What::Old`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// General-purpose register before the instruction.
    Before(Gpr),
    /// General-purpose register after the instruction.
    After(Gpr),
    /// Effective address, segment base included, of the n-th explicit memory operand.
    Address(u8),
    /// Whole vector register (0..32) before the instruction, zero-extended to 64 bytes.
    Vector(u8),
    /// Mask register before the instruction.
    Mask(u8),
    /// Number of the instruction in the order that all threads' synchronising instructions have.
    Order,
    /// What the instruction's store overwrites, in this many words (1 to 8).
    Old(u8),
}

impl What {
    /// The byte of a description.
    pub fn to_byte(self) -> u8 {
        match self {
            What::Before(r) => r.0 & 15,
            What::After(r) => 16 + (r.0 & 15),
            What::Address(n) => 32 + (n & 3),
            What::Mask(k) => 40 + (k & 7),
            What::Order => 48,
            What::Vector(v) => 64 + (v & 31),
            What::Old(words) => 96 + (words.wrapping_sub(1) & 7),
        }
    }

    /// The value that this byte of a description says.
    pub fn from_byte(byte: u8) -> Option<What> {
        Some(match byte {
            0..=15 => What::Before(Gpr(byte)),
            16..=31 => What::After(Gpr(byte - 16)),
            32..=35 => What::Address(byte - 32),
            40..=47 => What::Mask(byte - 40),
            48 => What::Order,
            64..=95 => What::Vector(byte - 64),
            96..=103 => What::Old(byte - 95),
            _ => return None,
        })
    }

    /// Bytes in the memory stream.
    pub fn size(self) -> u32 {
        match self {
            What::Vector(_) => 64,
            What::Old(words) => 8 * u32::from(words),
            _ => 8,
        }
    }
}

/// Properties of a unit, as bits of [`UnitBody::flags`].
pub mod flags {
    /// The unit writes a wide tag (it can be reached indirectly).
    pub const WIDE: u8 = 1;
    /// The unit is not selected ([`crate::selection`]): no record names it.
    pub const OUTSIDE: u8 = 2;
    /// The unit writes no tag: what leads to it, and the next tag, say that it is executed.
    pub const SILENT: u8 = 4;
}

/// Why a unit came from the JIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum JitReason {
    /// Code of a library or of ld.so, which has no ahead-of-time translation that could be used.
    Library = 1,
    /// Code of a translated image that the lifter did not find, or an entry it did not expect.
    Missed = 2,
    /// Code outside any file (vdso, generated code).
    Anonymous = 3,
    /// `--translate dynamic`.
    Dynamic = 4,
    /// The ahead-of-time code cannot run on this processor.
    Processor = 5,
    /// Code of the main program that the program made writable.
    Modified = 6,
    /// Less is recorded than what the ahead-of-time code records.
    Selection = 7,
}

impl JitReason {
    /// The reason with this number.
    pub fn from_byte(byte: u8) -> Option<JitReason> {
        Some(match byte {
            1 => JitReason::Library,
            2 => JitReason::Missed,
            3 => JitReason::Anonymous,
            4 => JitReason::Dynamic,
            5 => JitReason::Processor,
            6 => JitReason::Modified,
            7 => JitReason::Selection,
            _ => return None,
        })
    }
}

/// Extent and plan of a unit, without its address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnitBody {
    /// Bytes of original code.
    pub code_len: u16,
    /// Bits of [`flags`].
    pub flags: u8,
    /// In stream order; instruction indices never decrease.
    pub records: Vec<Record>,
}

impl UnitBody {
    /// Bytes that an execution of the whole unit adds to the memory stream.
    pub fn memory_bytes(&self) -> u32 {
        self.records.iter().map(|r| r.what.size()).sum()
    }

    /// Appends: varint code length, flags byte, varint record count, then two bytes a record
    /// (instruction index, [`What::to_byte`]).
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.code_len));
        out.push(self.flags);
        put_varint(out, self.records.len() as u64);
        for r in &self.records {
            out.push(r.insn);
            out.push(r.what.to_byte());
        }
    }

    /// Reads [`UnitBody::encode`] at `*at` and advances it; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<UnitBody> {
        let code_len = u16::try_from(get_varint(bytes, at)?).ok()?;
        let flags = *bytes.get(*at)?;
        *at += 1;
        let n = usize::try_from(get_varint(bytes, at)?).ok()?;
        let raw = bytes.get(*at..at.checked_add(n.checked_mul(2)?)?)?;
        *at += raw.len();
        let mut records = Vec::with_capacity(n);
        for pair in raw.chunks_exact(2) {
            records.push(Record { insn: pair[0], what: What::from_byte(pair[1])? });
        }
        Some(UnitBody { code_len, flags, records })
    }
}

/// An ahead-of-time unit as the output file lists it: varint (zig-zag) address delta to the
/// previous unit of the list, then the body. Units are listed in the order of their numbers.
pub fn encode_static(out: &mut Vec<u8>, previous: OrigAddr, address: OrigAddr, body: &UnitBody) {
    let delta = address.from_start(previous).cast_signed();
    put_varint(out, ((delta << 1) ^ (delta >> 63)).cast_unsigned());
    body.encode(out);
}

/// Reads [`encode_static`] at `*at`: the unit's address (relative to the image) and body.
pub fn decode_static(
    bytes: &[u8],
    at: &mut usize,
    previous: OrigAddr,
) -> Option<(OrigAddr, UnitBody)> {
    let z = get_varint(bytes, at)?;
    let delta = (z >> 1) ^ (z & 1).wrapping_neg();
    Some((previous.plus(delta), UnitBody::decode(bytes, at)?))
}

/// A unit of the JIT as the trace lists it (in `UNITS` frames): total length u32 (a multiple of
/// 4; 0 ends the list), id u32, live address u64, version u16, reason u8, one zero byte, the body,
/// the original code bytes, padding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JitUnit {
    /// Its number.
    pub id: UnitId,
    /// Where it starts.
    pub address: LiveAddr,
    /// Counts the translations of this address; `full-pc` records carry it in their top 16 bits.
    pub version: u16,
    /// Why it came from the JIT.
    pub reason: JitReason,
    /// What it records.
    pub body: UnitBody,
    /// Its original code.
    pub code: Vec<u8>,
}

impl JitUnit {
    /// Appends the description to a list.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&self.address.0.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.push(self.reason as u8);
        out.push(0);
        self.body.encode(out);
        out.extend_from_slice(&self.code);
        while !(out.len() - start).is_multiple_of(4) {
            out.push(0);
        }
        let len = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads the unit at `*at` and advances past it. `Ok(None)` at the end of the list.
    pub fn decode(bytes: &[u8], at: &mut usize) -> Result<Option<JitUnit>, BadUnit> {
        let u32_at = |i: usize| {
            bytes.get(i..i + 4).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
        };
        let len = match u32_at(*at) {
            None | Some(0) => return Ok(None),
            Some(len) => len as usize,
        };
        let unit = (|| {
            let end = at.checked_add(len)?;
            let unit = bytes.get(*at..end)?;
            let id = UnitId(u32_at(*at + 4)?);
            let address = LiveAddr(u64::from_le_bytes(unit.get(8..16)?.try_into().ok()?));
            let version = u16::from_le_bytes(unit.get(16..18)?.try_into().ok()?);
            let reason = JitReason::from_byte(*unit.get(18)?)?;
            let mut inner = 20;
            let body = UnitBody::decode(unit, &mut inner)?;
            let code = unit.get(inner..inner + usize::from(body.code_len))?.to_vec();
            *at = end;
            Some(JitUnit { id, address, version, reason, body, code })
        })();
        unit.map(Some).ok_or(BadUnit)
    }
}

/// The bytes are not a unit description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadUnit;

/// LEB128, unsigned.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads [`put_varint`] at `*at` and advances it.
pub fn get_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn unit_ids_skip_control_words_and_invert() {
        for n in [0, 1, TAGS_PER_WINDOW - 1, TAGS_PER_WINDOW, 3 * TAGS_PER_WINDOW + 7] {
            let id = unit_id(5, n);
            assert!(u32::from(id.tag()) >= FIRST_TAG);
            assert_eq!(unit_number(5, id), Some(n));
        }
        assert_eq!(unit_number(5, UnitId::new(5, 3)), None);
        assert_eq!(unit_number(5, UnitId::new(4, 300)), None);
    }

    #[test]
    fn bodies_and_units_survive_encoding() {
        let body = UnitBody {
            code_len: 300,
            flags: flags::WIDE,
            records: vec![
                Record { insn: 0, what: What::Before(Gpr(4)) },
                Record { insn: 3, what: What::After(Gpr(7)) },
                Record { insn: 9, what: What::Vector(31) },
                Record { insn: 9, what: What::Mask(1) },
                Record { insn: 200, what: What::Address(1) },
                Record { insn: 200, what: What::Order },
                Record { insn: 200, what: What::Old(1) },
                Record { insn: 201, what: What::Old(8) },
            ],
        };
        assert_eq!(body.memory_bytes(), 6 * 8 + 64 + 64);
        let unit = JitUnit {
            id: UnitId(0x1_0010),
            address: LiveAddr(0x7fff_1234),
            version: 2,
            reason: JitReason::Library,
            body: body.clone(),
            code: vec![0x90; 300],
        };
        let mut bytes = Vec::new();
        unit.encode(&mut bytes);
        bytes.extend_from_slice(&[0; 4]);
        let mut at = 0;
        assert_eq!(JitUnit::decode(&bytes, &mut at), Ok(Some(unit)));
        assert_eq!(JitUnit::decode(&bytes, &mut at), Ok(None));
        assert_eq!(JitUnit::decode(&bytes[..40], &mut 0), Err(BadUnit));

        let mut list = Vec::new();
        encode_static(&mut list, OrigAddr(0x2000), OrigAddr(0x1000), &body);
        assert_eq!(decode_static(&list, &mut 0, OrigAddr(0x2000)), Some((OrigAddr(0x1000), body)));
    }
}
