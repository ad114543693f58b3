//! A row of a listing, and how it becomes a line: of text, or one JSON object.
//!
//! Of blocks and references there are millions. A [`Template`] writes their lines: it is a line that
//! was written in the usual way, with holes where numbers were.

use std::io::{Error, Write};

use abi::ids::LiveAddr;
use serde::{Serialize, Serializer};

use crate::text::{decimal, hex, hex_digits, pair};

/// What a listing has a line for. Its JSON form are its fields.
pub trait Row: Serialize {
    /// Appends the line as text, without its end.
    fn text(&self, out: &mut Vec<u8>);
}

/// The form of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Text,
    Json,
}

impl Form {
    pub fn new(json: bool) -> Form {
        match json {
            true => Form::Json,
            false => Form::Text,
        }
    }

    /// Appends the line of a row.
    #[inline]
    pub fn append<R: Row>(self, row: &R, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Form::Text => row.text(out),
            Form::Json => serde_json::to_writer(&mut *out, row)?,
        }
        out.push(b'\n');
        Ok(())
    }

    /// Writes the line of a row.
    pub fn write<R: Row>(self, row: &R, out: &mut impl Write) -> Result<(), Error> {
        let mut line = Vec::new();
        self.append(row, &mut line)?;
        out.write_all(&line)
    }
}

/// A number in a line of a [`Template`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    Hex(u64),
    Decimal(u32),
}

/// What stands between two numbers. It is copied with room to spare, because a copy of constant size
/// costs less than one of a few bytes.
#[derive(Clone, Copy)]
struct Part {
    bytes: [u8; Part::MOST],
    len: usize,
}

impl Part {
    const MOST: usize = 32;

    /// Rows have names of fields there: longer ones are a mistake.
    fn new(text: &[u8]) -> Part {
        let mut bytes = [0; Part::MOST];
        bytes[..text.len()].copy_from_slice(text);
        Part { bytes, len: text.len() }
    }

    #[inline(always)]
    fn append(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.len;
        out.extend_from_slice(&self.bytes);
        out.truncate(end);
    }
}

/// Lines that differ in `HOLES` numbers only.
#[derive(Clone)]
pub struct Template<const HOLES: usize> {
    /// What comes before each number.
    before: [Part; HOLES],
    end: Part,
    /// No line is longer.
    most: usize,
}

impl<const HOLES: usize> Template<HOLES> {
    /// Of the line of `row`, which has these numbers, in this order. What else is in the row must
    /// not look like them.
    pub fn new<R: Row>(form: Form, row: &R, numbers: [Number; HOLES]) -> Template<HOLES> {
        let mut line = Vec::new();
        // Nothing that a row holds can fail to be written into memory.
        let _ = form.append(row, &mut line);
        let mut rest = line.as_slice();
        let before = numbers.map(|number| {
            let mut digits = Vec::new();
            number.append(&mut digits);
            let at = rest.windows(digits.len()).position(|part| part == digits);
            let (head, tail) = rest.split_at(at.unwrap_or(rest.len()));
            rest = tail.get(digits.len()..).unwrap_or_default();
            Part::new(head)
        });
        let most = (HOLES + 1) * Part::MOST + HOLES * 20;
        Template { before, end: Part::new(rest), most }
    }

    /// The same as [`Template::append`]; where the last digit of the number at `hole` stands.
    pub fn append_noting(&self, numbers: [Number; HOLES], hole: usize, out: &mut Vec<u8>) -> usize {
        let mut digit = 0;
        for (at, (before, number)) in self.before.iter().zip(numbers).enumerate() {
            before.append(out);
            number.append(out);
            if at == hole {
                digit = out.len() - 1;
            }
        }
        self.end.append(out);
        digit
    }

    /// Appends the line with these numbers.
    #[inline(always)]
    pub fn append(&self, numbers: [Number; HOLES], out: &mut Vec<u8>) {
        out.reserve(self.most);
        for (before, number) in self.before.iter().zip(numbers) {
            before.append(out);
            number.append(out);
        }
        self.end.append(out);
    }
}

impl Number {
    #[inline(always)]
    fn append(self, out: &mut Vec<u8>) {
        match self {
            Number::Hex(number) => hex(out, number),
            Number::Decimal(number) => decimal(out, u64::from(number)),
        }
    }
}

/// A number that is shown as `"0x12"`: JSON has none of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hex(pub u64);

impl From<LiveAddr> for Hex {
    fn from(address: LiveAddr) -> Hex {
        Hex(address.0)
    }
}

impl Serialize for Hex {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut buffer = [0; 18];
        let digits = hex_digits(&mut buffer, self.0);
        serializer.serialize_str(str::from_utf8(digits).unwrap_or_default())
    }
}

/// Bytes that are shown as two digits each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HexBytes<'a>(pub &'a [u8]);

impl HexBytes<'_> {
    pub fn append(self, out: &mut Vec<u8>) {
        out.extend(self.0.iter().flat_map(|&byte| pair(byte)));
    }
}

impl Serialize for HexBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What one store of an instruction overwrites.
        let mut short = [0; 2 * 64];
        match short.get_mut(..2 * self.0.len()) {
            Some(digits) => {
                for (slot, &byte) in digits.chunks_exact_mut(2).zip(self.0) {
                    slot.copy_from_slice(&pair(byte));
                }
                serializer.serialize_str(str::from_utf8(digits).unwrap_or_default())
            }
            None => {
                let mut digits = Vec::with_capacity(2 * self.0.len());
                self.append(&mut digits);
                serializer.serialize_str(str::from_utf8(&digits).unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_are_digits() {
        for len in [0, 1, 64, 65, 1000] {
            let bytes = vec![0xa5; len];
            let json = serde_json::to_string(&HexBytes(&bytes)).expect("a string");
            assert_eq!(json, format!("\"{}\"", "a5".repeat(len)));
        }
    }

    #[test]
    fn numbers_are_strings() {
        assert_eq!(serde_json::to_string(&Hex(0)).expect("a string"), "\"0x0\"");
        let all = serde_json::to_string(&Hex(u64::MAX)).expect("a string");
        assert_eq!(all, "\"0xffffffffffffffff\"");
    }
}
