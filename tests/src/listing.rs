//! The two listings and how a line of each is written.

use std::io::{BufWriter, Result, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

/// One memory reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRef {
    pub kind: Kind,
    pub addr: u64,
    pub size: u32,
}

impl MemRef {
    pub fn read(addr: u64, size: u32) -> Self {
        Self { kind: Kind::Read, addr, size }
    }

    pub fn write(addr: u64, size: u32) -> Self {
        Self { kind: Kind::Write, addr, size }
    }
}

/// Writes lines without the formatting machinery: an oracle run has millions of them.
pub struct Lines<W: Write> {
    out: BufWriter<W>,
}

impl<W: Write> Lines<W> {
    pub fn new(out: W) -> Self {
        Self { out: BufWriter::with_capacity(1 << 20, out) }
    }

    /// `TID PC R|W ADDR SIZE`
    pub fn memref(&mut self, tid: i32, pc: u64, r: MemRef) -> Result<()> {
        let mut line = Line::new();
        line.decimal(tid as u64).byte(b' ').hex(pc);
        line.byte(b' ').byte(if r.kind == Kind::Read { b'R' } else { b'W' });
        line.byte(b' ').hex(r.addr).byte(b' ').decimal(u64::from(r.size)).byte(b'\n');
        self.out.write_all(line.bytes())
    }

    /// `TID PC`
    pub fn block(&mut self, tid: i32, pc: u64) -> Result<()> {
        let mut line = Line::new();
        line.decimal(tid as u64).byte(b' ').hex(pc).byte(b'\n');
        self.out.write_all(line.bytes())
    }

    pub fn text(&mut self, line: std::fmt::Arguments) -> Result<()> {
        self.out.write_fmt(line)
    }

    pub fn finish(mut self) -> Result<()> {
        self.out.flush()
    }
}

struct Line {
    bytes: [u8; 96],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; 96], len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn byte(&mut self, b: u8) -> &mut Self {
        self.bytes[self.len] = b;
        self.len += 1;
        self
    }

    fn digits(&mut self, mut value: u64, base: u64) -> &mut Self {
        let mut reversed = [0; 20];
        let mut n = 0;
        loop {
            reversed[n] = b"0123456789abcdef"[(value % base) as usize];
            n += 1;
            value /= base;
            if value == 0 {
                break;
            }
        }
        while n > 0 {
            n -= 1;
            self.byte(reversed[n]);
        }
        self
    }

    fn decimal(&mut self, value: u64) -> &mut Self {
        self.digits(value, 10)
    }

    fn hex(&mut self, value: u64) -> &mut Self {
        self.byte(b'0').byte(b'x').digits(value, 16)
    }
}

/// One line of a memory-reference listing, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub tid: i32,
    pub pc: u64,
    /// None in a listing of blocks.
    pub memref: Option<MemRef>,
}

impl Record {
    /// A line of either listing; None if it is neither.
    pub fn parse(line: &str) -> Option<Self> {
        // Of a hundred million lines: without the machinery of formats.
        let mut words = line.trim_ascii_end().as_bytes();
        let tid = i32::try_from(number(word(&mut words)?, 10)?).ok()?;
        let pc = hex(word(&mut words)?)?;
        let memref = match word(&mut words) {
            None => None,
            Some(kind) => {
                let kind = match kind {
                    b"R" => Kind::Read,
                    b"W" => Kind::Write,
                    _ => return None,
                };
                let addr = hex(word(&mut words)?)?;
                let size = u32::try_from(number(word(&mut words)?, 10)?).ok()?;
                Some(MemRef { kind, addr, size })
            }
        };
        words.is_empty().then_some(Self { tid, pc, memref })
    }
}

/// Takes the first word of the line, up to the space behind it.
fn word<'l>(line: &mut &'l [u8]) -> Option<&'l [u8]> {
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    *line = rest.get(1..).unwrap_or_default();
    (!word.is_empty()).then_some(word)
}

fn hex(word: &[u8]) -> Option<u64> {
    number(word.strip_prefix(b"0x")?, 16)
}

fn number(word: &[u8], base: u64) -> Option<u64> {
    let digit = |byte: &u8| char::from(*byte).to_digit(base as u32).map(u64::from);
    let add = |sum: u64, digit: u64| sum.checked_mul(base)?.checked_add(digit);
    let mut digits = word.iter().map(digit);
    let first = digits.next()??;
    digits.try_fold(first, |sum, digit| add(sum, digit?))
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} {:#x}", self.tid, self.pc)?;
        if let Some(r) = self.memref {
            let kind = if r.kind == Kind::Read { 'R' } else { 'W' };
            write!(f, " {kind} {:#x} {}", r.addr, r.size)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back() {
        let mut bytes = Vec::new();
        let mut lines = Lines::new(&mut bytes);
        lines.memref(7, 0x401000, MemRef::write(0x7fff_ffff_e000, 64)).unwrap();
        lines.block(7, 0).unwrap();
        lines.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, "7 0x401000 W 0x7fffffffe000 64\n7 0x0\n");
        for line in text.lines() {
            assert_eq!(Record::parse(line).unwrap().to_string(), line);
        }
        let wrong = [
            "",
            "7",
            "x 0x1",
            "7 401000",
            "7 0x",
            "7 0x401000 X 0x1 2",
            "7 0x1 R 0x1",
            "7 0x1 R 0x1 2 3",
            "7 0x10000000000000000",
            "7 0x1 R 0x1 4294967296",
            "7  0x1",
        ];
        wrong.iter().for_each(|line| assert_eq!(Record::parse(line), None, "{line}"));
        assert_eq!(Record::parse("7 0xffffffffffffffff\n").map(|record| record.pc), Some(u64::MAX));
    }
}
