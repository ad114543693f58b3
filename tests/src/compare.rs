//! Compares two listings of the same program at different addresses.
//!
//! The sequences of each thread must be equal, where equal addresses are those that one bijection
//! of pages translates into each other. The bijection is learnt from the first occurrence of each
//! page and is never revised, except that a page is forgotten when the log of mappings (from the
//! oracle, optional) says that it was unmapped. With that log, all pages of a region must also
//! have moved by the same distance: an address is then compared as region + offset.
//!
//! Listings may interleave threads in any way; threads are paired in order of appearance.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, Error, Result};

use crate::listing::Record;

mod places;

use places::Places;

const CONTEXT: usize = 10;

/// How the comparison ended.
pub enum Verdict {
    Equal {
        records: u64,
        threads: usize,
        pages: usize,
    },
    /// A report of the first difference, with its surroundings.
    Different(String),
}

#[derive(Default)]
pub struct Options<'a> {
    /// The oracle's log of mappings for the first listing.
    pub maps: Option<Box<dyn BufRead + 'a>>,
    /// Which of them was cut short.
    pub cut: Cut,
}

/// Which of two listings was cut short: another one may go on behind its end.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Cut {
    #[default]
    Neither,
    First,
    /// Both, behind the same number of steps of all threads: of one thread the first may have a few records more, of another one
    /// the second.
    Both,
}

/// So many records of the first listing the second may lack, if both were cut short.
const FEW: u64 = 16;

/// A listing, read as far as some thread needed it.
struct Side<R> {
    input: R,
    line: String,
    number: u64,
    threads: HashMap<i32, usize>,
    /// Records that were read while looking for another thread's.
    waiting: Vec<VecDeque<Record>>,
}

impl<R: BufRead> Side<R> {
    fn new(input: R) -> Self {
        let (threads, waiting) = Default::default();
        Self { input, line: String::new(), number: 0, threads, waiting }
    }

    /// The next record of any thread, in the listing's order.
    fn next(&mut self) -> Result<Option<(usize, Record)>> {
        self.line.clear();
        if self.input.read_line(&mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let line = self.line.trim_end();
        let Some(record) = Record::parse(line) else {
            let number = self.number;
            return Err(Error::other(format!("line {number} is not of a listing: {line:?}")));
        };
        let fresh = self.threads.len();
        let thread = *self.threads.entry(record.tid).or_insert(fresh);
        if thread == fresh {
            self.waiting.push(VecDeque::new());
        }
        Ok(Some((thread, record)))
    }

    /// The next record of one thread.
    fn next_of(&mut self, thread: usize) -> Result<Option<Record>> {
        if let Some(record) = self.waiting.get_mut(thread).and_then(VecDeque::pop_front) {
            return Ok(Some(record));
        }
        while let Some((other, record)) = self.next()? {
            if other == thread {
                return Ok(Some(record));
            }
            self.waiting[other].push_back(record);
        }
        Ok(None)
    }

    /// Any record that nobody has asked for.
    fn left_over(&mut self) -> Result<Option<Record>> {
        match self.waiting.iter_mut().find_map(VecDeque::pop_front) {
            None => Ok(self.next()?.map(|(_, record)| record)),
            some => Ok(some),
        }
    }
}

/// Compares two listings of memory references, or two of blocks.
pub fn compare(a: impl BufRead, b: impl BufRead, options: Options) -> Result<Verdict> {
    let (mut a, mut b) = (Side::new(a), Side::new(b));
    let mut places = Places::new(options.maps)?;
    let mut recent: HashMap<usize, VecDeque<(Record, Record)>> = HashMap::new();
    let (mut records, mut lacking) = (0, 0);
    while let Some((thread, left)) = a.next()? {
        places.advance(records);
        let recent = recent.entry(thread).or_default();
        let right = b.next_of(thread)?;
        if options.cut == Cut::Both && right.is_none() && lacking < FEW {
            lacking += 1;
            continue;
        }
        let problem = match &right {
            None => Some("the second listing ends here".to_owned()),
            Some(right) => difference(&mut places, &left, right).err(),
        };
        if let Some(problem) = problem {
            let mut text = format!("record {records} (thread {thread}) differs: {problem}\n");
            for (l, r) in &*recent {
                row(&mut text, ' ', Some(l), Some(r));
            }
            row(&mut text, '>', Some(&left), right.as_ref());
            for _ in 0..CONTEXT {
                row(&mut text, ' ', a.next_of(thread)?.as_ref(), b.next_of(thread)?.as_ref());
            }
            return Ok(Verdict::Different(text));
        }
        if recent.len() == CONTEXT {
            recent.pop_front();
        }
        recent.extend(right.map(|right| (left, right)));
        records += 1;
    }
    if options.cut == Cut::Neither {
        if let Some(extra) = b.left_over()? {
            let text =
                format!("the first listing ends after {records} records, but not: {extra}\n");
            return Ok(Verdict::Different(text));
        }
    }
    Ok(Verdict::Equal { records, threads: a.threads.len(), pages: places.pages() })
}

fn difference(places: &mut Places, a: &Record, b: &Record) -> std::result::Result<(), String> {
    places.same(a.pc, b.pc).map_err(|e| format!("pc: {e}"))?;
    match (a.memref, b.memref) {
        (None, None) => Ok(()),
        (Some(x), Some(y)) => {
            if x.kind != y.kind {
                return Err("one reads, the other writes".into());
            }
            if x.size != y.size {
                return Err(format!("{} bytes and {} bytes", x.size, y.size));
            }
            places.same(x.addr, y.addr).map_err(|e| format!("address: {e}"))
        }
        _ => Err("a memory reference against a block".into()),
    }
}

fn row(text: &mut String, mark: char, a: Option<&Record>, b: Option<&Record>) {
    let show = |r: Option<&Record>| r.map_or("-".to_owned(), Record::to_string);
    let _ = writeln!(text, "{mark} {:<52} | {}", show(a), show(b));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: &str, b: &str, maps: Option<&str>) -> Option<String> {
        check_cut(a, b, maps, Cut::Neither)
    }

    fn check_cut(a: &str, b: &str, maps: Option<&str>, cut: Cut) -> Option<String> {
        let maps = maps.map(|m| Box::new(m.as_bytes()) as Box<dyn BufRead>);
        match compare(a.as_bytes(), b.as_bytes(), Options { maps, cut }).unwrap() {
            Verdict::Equal { .. } => None,
            Verdict::Different(text) => Some(text.lines().next().unwrap().to_owned()),
        }
    }

    #[test]
    fn moved_pages_are_equal() {
        let a = "1 0x1000 R 0x5008 8\n1 0x1004 W 0x6010 4\n";
        assert_eq!(check(a, "9 0x81000 R 0x95008 8\n9 0x81004 W 0x46010 4\n", None), None);
    }

    #[test]
    fn differences_are_found() {
        let a = "1 0x1000 R 0x5008 8\n1 0x1004 W 0x5010 4\n";
        for b in [
            "1 0x1000 R 0x5008 8\n1 0x1004 W 0x6010 4\n", // another page than before
            "1 0x1000 R 0x5008 8\n1 0x1004 W 0x5018 4\n", // another offset
            "1 0x1000 R 0x5008 8\n1 0x1004 R 0x5010 4\n", // another kind
            "1 0x1000 R 0x5008 8\n1 0x1004 W 0x5010 8\n", // another size
            "1 0x1000 R 0x5008 8\n",                      // too short
            "1 0x1000 R 0x5008 8\n1 0x1004 W 0x5010 4\n1 0x1008 W 0x5010 4\n",
            "1 0x1000 R 0x1008 8\n1 0x1004 W 0x1010 4\n", // two pages became one
        ] {
            assert!(check(a, b, None).is_some(), "{b}");
        }
    }

    #[test]
    fn threads_are_compared_each_for_itself() {
        let a = "1 0x1000 R 0x5008 8\n2 0x1000 R 0x7008 8\n1 0x1004 R 0x5008 8\n";
        let b = "5 0x1000 R 0x5008 8\n5 0x1004 R 0x5008 8\n6 0x1000 R 0x7008 8\n";
        assert_eq!(check(a, b, None), None);
    }

    #[test]
    fn what_was_cut_short_may_end_before() {
        let line = |tid: u32, n: u64| format!("{tid} {:#x} R {:#x} 8\n", 0x1000 + n, 0x5008 + n);
        let threads = |counts: [u64; 2]| -> String {
            let lines = |tid: u32, count: u64| (0..count).map(move |n| line(tid, n));
            lines(1, counts[0]).chain(lines(2, counts[1])).collect()
        };
        let (a, b) = (threads([5, 40]), threads([7, 39]));
        assert_eq!(check_cut(&a, &b, None, Cut::Both), None);
        assert!(check_cut(&a, &b, None, Cut::First).is_some());
        assert_eq!(check_cut(&threads([5, 39]), &b, None, Cut::First), None);
        assert!(check_cut(&a, &threads([7, 40 - FEW - 1]), None, Cut::Both).is_some());
        assert!(check_cut(&b, &a.replace("0x5009", "0x5109"), None, Cut::Both).is_some());
    }

    #[test]
    fn regions_move_as_a_whole_and_are_forgotten() {
        let maps = "0 map 0x1000 0x2000\n0 map 0x5000 0x9000\n";
        let a = "1 0x1000 R 0x5008 8\n1 0x1000 R 0x6008 8\n";
        let torn = "1 0x1000 R 0x15008 8\n1 0x1000 R 0x26008 8\n";
        assert_eq!(check(a, torn, None), None);
        assert!(check(a, torn, Some(maps)).is_some());
        let reused = "1 0x1000 R 0x5008 8\n1 0x1000 R 0x5008 8\n";
        let fresh = "1 0x1000 R 0x15008 8\n1 0x1000 R 0x25008 8\n";
        let forgotten = format!("{maps}1 unmap 0x5000 0x9000\n1 map 0x5000 0x9000\n");
        assert!(check(reused, fresh, Some(maps)).is_some());
        assert_eq!(check(reused, fresh, Some(&forgotten)), None);
    }
}
