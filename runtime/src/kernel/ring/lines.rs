//! The lines of `/proc/self/maps`, cut into pieces of the program's memory.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use core::ops::Range;

/// A mapping, or a piece of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line<'a> {
    pub range: Range<u64>,
    pub readable: bool,
    pub writable: bool,
    pub offset: u64,
    pub inode: u64,
    pub path: &'a [u8],
}

/// Reads a line; `None`: it is none.
pub(super) fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut range = fields.next()?.split(|&byte| byte == b'-');
    let range = number(range.next()?, 16)?..number(range.next()?, 16)?;
    let rights = fields.next()?;
    let offset = number(fields.next()?, 16)?;
    let _device = fields.next()?;
    let inode = number(fields.next()?, 10)?;
    let path = fields.next().unwrap_or_default();
    let blanks = path.iter().take_while(|&&byte| byte == b' ').count();
    let path = path.get(blanks..).unwrap_or_default();
    let has = |at: usize, right: u8| rights.get(at) == Some(&right);
    Some(Line { range, readable: has(0, b'r'), writable: has(1, b'w'), offset, inode, path })
}

fn number(text: &[u8], base: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(text).ok()?, base).ok()
}

impl<'a> Line<'a> {
    /// The part that lies in `range`.
    pub fn part(&self, range: Range<u64>) -> Line<'a> {
        let offset = match self.inode {
            0 => 0,
            _ => self.offset + (range.start - self.range.start),
        };
        Line { range, offset, ..self.clone() }
    }

    /// Calls `each` with the parts that lie in none of `hidden`, which are in the order of their starts and
    /// may overlap.
    pub fn outside(&self, hidden: &[Range<u64>], mut each: impl FnMut(Line<'a>)) {
        let mut at = self.range.start;
        for range in hidden {
            if range.end <= at {
                continue;
            }
            if range.start >= self.range.end {
                break;
            }
            if range.start > at {
                each(self.part(at..range.start));
            }
            at = range.end;
            if at >= self.range.end {
                return;
            }
        }
        each(self.part(at..self.range.end));
    }

    /// Calls `each` with the parts between `cuts`, which are in no order.
    pub fn between(&self, cuts: impl Iterator<Item = u64> + Clone, mut each: impl FnMut(Line<'a>)) {
        let mut at = self.range.start;
        while at < self.range.end {
            let next = cuts.clone().filter(|&cut| cut > at).fold(self.range.end, u64::min);
            each(self.part(at..next));
            at = next;
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const LINE: &[u8] = b"7f0000001000-7f0000005000 r-xp 00002000 08:01 1234       /usr/lib/a b.so";

    #[test]
    fn lines_are_read() {
        let line = parse(LINE).expect("a line");
        assert_eq!(line.range, 0x7f00_0000_1000..0x7f00_0000_5000);
        assert!(line.readable && !line.writable);
        assert_eq!((line.offset, line.inode, line.path), (0x2000, 1234, &b"/usr/lib/a b.so"[..]));
        let line = parse(b"1000-2000 ---p 00000000 00:00 0 ").expect("a line");
        assert_eq!((line.inode, line.path), (0, &b""[..]));
        assert_eq!(parse(b"nothing"), None);
    }

    #[test]
    fn what_is_hidden_is_left_out() {
        let line = parse(LINE).expect("a line");
        let base = line.range.start;
        let at = |from: u64, to: u64| base + from..base + to;
        let outside = |hidden: &[Range<u64>]| {
            let mut all = Vec::new();
            line.outside(hidden, |part| all.push((part.range, part.offset)));
            all
        };
        assert_eq!(outside(&[]), [(at(0, 0x4000), 0x2000)]);
        assert_eq!(outside(std::slice::from_ref(&(0..u64::MAX))), []);
        let hidden = [0..base + 0x1000, at(0x800, 0x900), at(0x2000, 0x3000)];
        assert_eq!(outside(&hidden), [(at(0x1000, 0x2000), 0x3000), (at(0x3000, 0x4000), 0x5000)]);
    }

    #[test]
    fn parts_lie_between_cuts() {
        let line = parse(LINE).expect("a line");
        let base = line.range.start;
        let mut all = Vec::new();
        let cuts = [base + 0x3000, base, base + 0x1000, base + 0x9000];
        line.between(cuts.iter().copied(), |part| all.push(part.range));
        assert_eq!(
            all,
            [base..base + 0x1000, base + 0x1000..base + 0x3000, base + 0x3000..base + 0x4000]
        );
    }
}
