//! A world for unit tests: all that the code cache asks of a process, made of plain memory.

use crate::code::links::{put_stub, ExitId};
use crate::code::span::Span;
use crate::code::world::{
    AheadOfTime, CodeMemory, For, LookUpTables, ProgramBytes, Protection, World,
};
use abi::ids::{CodeAddr, CodeOff, LiveAddr};
use abi::layout::PAGE;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use instrument::emit::{gate_of, Code, GATE};

pub const WINDOW: u64 = 0x5500_0000_0000;
/// The program's memory: `PAGES` pages from here.
pub const MEMORY: u64 = WINDOW + 0x40_0000;
pub const PAGES: u64 = 16;
/// Where translated code runs.
pub const CODE: u64 = WINDOW + 0x1000_0000;

/// The `n`-th page of the program's memory.
pub fn page(n: u64) -> Span {
    pages(n, n + 1)
}

pub fn pages(first: u64, end: u64) -> Span {
    Span::new(MEMORY + first * PAGE, MEMORY + end * PAGE)
}

/// What was done to code memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Append(CodeOff, usize),
    Patch(CodeOff, CodeAddr),
    Replace(CodeOff, [u8; 5]),
    Restart,
}

/// Code memory that records what is done to it.
pub struct FakeCode {
    pub bytes: Vec<u8>,
    pub len: u64,
    pub changes: Vec<Change>,
}

/// What the gate of a unit does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    LetsThrough,
    LeadsTo(CodeAddr),
}

impl FakeCode {
    const FIRST: usize = 64;

    pub fn new() -> FakeCode {
        let len = 8 << 20;
        let bytes = alloc::vec![0xcc; FakeCode::FIRST];
        FakeCode { bytes, len, changes: Vec::new() }
    }

    pub fn gate(&self, entry: CodeOff) -> Gate {
        let gate = CodeOff(gate_of(u64::from(entry.0)) as u32);
        match &self.bytes[gate.0 as usize..][..5] {
            bytes if *bytes == GATE => Gate::LetsThrough,
            [0xe9, ..] => Gate::LeadsTo(self.branch(CodeOff(gate.0 + 1))),
            bytes => panic!("neither a gate nor a jump: {bytes:x?}"),
        }
    }

    /// Where the rel32 at `at` leads.
    pub fn branch(&self, at: CodeOff) -> CodeAddr {
        let bytes = self.bytes[at.0 as usize..][..4].try_into().unwrap();
        self.live(at).plus(4).plus(i64::from(i32::from_le_bytes(bytes)) as u64)
    }

    /// Where the jump behind a call at `at` leads.
    pub fn behind_call(&self, at: CodeOff) -> CodeAddr {
        // It may be moved so that its distance does not cross a cache line.
        let jump = (at.0..at.0 + 4).find(|&jump| self.bytes[jump as usize] == 0xe9);
        let jump =
            jump.unwrap_or_else(|| panic!("neither a unit nor a stub nor a jump is at {at}"));
        self.branch(CodeOff(jump + 1))
    }

    /// The exit whose stub is at `at`.
    pub fn stub(&self, at: CodeOff) -> Option<ExitId> {
        let code = &self.bytes[at.0 as usize..];
        let id = ExitId(u32::from_le_bytes(code.get(8..12)?.try_into().unwrap()));
        let mut stub = Code { bytes: Vec::new(), base: 0 };
        put_stub(&mut stub, id);
        code.starts_with(&stub.bytes).then_some(id)
    }

    /// The pieces that were appended since it was empty.
    pub fn pieces(&self) -> impl Iterator<Item = (CodeOff, &[u8])> {
        let restart = self.changes.iter().rposition(|c| *c == Change::Restart);
        self.changes[restart.map_or(0, |at| at + 1)..].iter().filter_map(|change| match *change {
            Change::Append(at, len) => Some((at, &self.bytes[at.0 as usize..][..len])),
            _ => None,
        })
    }
}

impl CodeMemory for FakeCode {
    fn append(&mut self, code: &[u8]) {
        self.changes.push(Change::Append(self.used(), code.len()));
        self.bytes.extend_from_slice(code);
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0xcc);
    }

    fn patch(&mut self, at: CodeOff, target: CodeAddr) {
        self.changes.push(Change::Patch(at, target));
        assert!(at.0 % 64 <= 60, "the distance at {at} crosses a cache line");
        let distance = target.from_start(self.live(at).plus(4)) as i64;
        let distance = i32::try_from(distance).unwrap().to_le_bytes();
        self.bytes[at.0 as usize..][..4].copy_from_slice(&distance);
    }

    fn replace(&mut self, at: CodeOff, code: [u8; 5]) {
        self.changes.push(Change::Replace(at, code));
        assert!(at.0 % 8 <= 3, "the gate at {at} is not inside of eight aligned bytes");
        self.bytes[at.0 as usize..][..5].copy_from_slice(&code);
    }

    fn live(&self, at: CodeOff) -> CodeAddr {
        CodeAddr(CODE + u64::from(at.0))
    }

    fn offset(&self, pc: CodeAddr) -> Option<CodeOff> {
        let offset = pc.from_start(CodeAddr(CODE));
        (offset < self.bytes.len() as u64).then_some(CodeOff(offset as u32))
    }

    fn used(&self) -> CodeOff {
        CodeOff(self.bytes.len() as u32)
    }

    fn room(&self) -> u64 {
        self.len - self.bytes.len() as u64
    }

    fn restart(&mut self) {
        self.changes.push(Change::Restart);
        self.bytes.truncate(FakeCode::FIRST);
    }

    fn forks(&mut self) {}
}

/// Tables that know what they cover.
#[derive(Default)]
pub struct FakeTables {
    /// Numbers of pages of original code.
    covered: RefCell<BTreeSet<u64>>,
    entries: RefCell<BTreeMap<(For, LiveAddr), CodeAddr>>,
}

impl FakeTables {
    pub fn entry(&self, what: For, address: LiveAddr) -> Option<CodeAddr> {
        self.entries.borrow().get(&(what, address)).copied()
    }

    pub fn entries(&self) -> Vec<(LiveAddr, CodeAddr)> {
        self.entries.borrow().iter().map(|(&(_, address), &code)| (address, code)).collect()
    }

    pub fn covers(&self, address: LiveAddr) -> bool {
        self.covered.borrow().contains(&(address.0 / PAGE))
    }

    fn forget(&self, span: Span) {
        self.entries.borrow_mut().retain(|(_, address), _| !span.contains(*address));
    }
}

impl LookUpTables for FakeTables {
    fn cover(&self, span: Span) {
        assert_eq!(span, span.whole_pages());
        self.covered.borrow_mut().extend(span.pages());
        self.forget(span);
    }

    fn uncover(&self, span: Span) {
        assert_eq!(span, span.whole_pages());
        self.covered.borrow_mut().retain(|page| !span.pages().contains(page));
        self.forget(span);
    }

    fn set(&self, what: For, address: LiveAddr, code: CodeAddr) {
        assert!(self.covers(address), "{address} has no entry to be set");
        self.entries.borrow_mut().insert((what, address), code);
    }

    fn clear(&self, address: LiveAddr) {
        assert!(self.covers(address), "{address} has no entry to be cleared");
        self.entries.borrow_mut().retain(|(_, at), _| *at != address);
    }

    fn forks(&mut self, _spans: impl Iterator<Item = Span>) {
        self.entries.borrow_mut().clear();
    }

    fn code_at_once(&self, _what: For) -> u64 {
        512
    }
}

/// A translation made ahead of time.
pub struct FakeModule {
    pub text: Span,
    pub entries: BTreeMap<LiveAddr, CodeAddr>,
    /// Of code that records nothing.
    pub plain: BTreeMap<LiveAddr, CodeAddr>,
    pub in_use: bool,
}

impl FakeModule {
    fn of(&self, plain: bool) -> &BTreeMap<LiveAddr, CodeAddr> {
        if plain {
            &self.plain
        } else {
            &self.entries
        }
    }
}

/// The program's memory, which starts out readable, and whoever else is asked.
pub struct FakeWorld {
    pub memory: Vec<u8>,
    /// Numbers of pages.
    unreadable: BTreeSet<u64>,
    read_only: BTreeSet<u64>,
    /// A single page cannot have other rights than those around it: that is refused, unless it is
    /// asked for again as the whole of a range.
    pub no_more_mappings: bool,
    refused: Option<Span>,
    /// How often rights were asked for.
    pub requests: usize,
    /// Nor can anything else.
    pub sealed: bool,
    pub alone: bool,
    /// A child has what was lent to it.
    pub lent: bool,
    pub modules: Vec<FakeModule>,
    pub announced: RefCell<Vec<u8>>,
    pub not_named: Cell<bool>,
}

impl FakeWorld {
    pub fn new() -> FakeWorld {
        FakeWorld {
            memory: alloc::vec![0; (PAGES * PAGE) as usize],
            unreadable: BTreeSet::new(),
            read_only: BTreeSet::new(),
            no_more_mappings: false,
            refused: None,
            requests: 0,
            sealed: false,
            alone: true,
            lent: true,
            modules: Vec::new(),
            announced: RefCell::new(Vec::new()),
            not_named: Cell::new(false),
        }
    }

    /// Writes memory, whatever its rights.
    pub fn put(&mut self, at: LiveAddr, bytes: &[u8]) {
        let from = at.from_start(LiveAddr(MEMORY)) as usize;
        self.memory[from..from + bytes.len()].copy_from_slice(bytes);
    }

    pub fn set_readable(&mut self, span: Span, readable: bool) {
        for page in span.pages() {
            match readable {
                true => self.unreadable.remove(&page),
                false => self.unreadable.insert(page),
            };
        }
    }

    /// What the kernel does at the program's request.
    pub fn set_rights(&mut self, span: Span, writable: bool) {
        for page in span.pages() {
            match writable {
                true => self.read_only.remove(&page),
                false => self.read_only.insert(page),
            };
        }
    }

    pub fn is_writable(&self, address: LiveAddr) -> bool {
        !self.read_only.contains(&(address.0 / PAGE))
    }
}

impl Protection for FakeWorld {
    fn set_writable(&mut self, span: Span, writable: bool) -> Result<(), i32> {
        const ENOMEM: i32 = 12;
        assert_eq!(span, span.whole_pages());
        self.requests += 1;
        let again = self.refused.take() == Some(span);
        if self.sealed || self.no_more_mappings && span.len() == PAGE && !again {
            self.refused = Some(span);
            return Err(ENOMEM);
        }
        self.set_rights(span, writable);
        Ok(())
    }
}

impl ProgramBytes for FakeWorld {
    fn is_readable(&self, address: LiveAddr) -> bool {
        pages(0, PAGES).contains(address) && !self.unreadable.contains(&(address.0 / PAGE))
    }

    unsafe fn bytes(&self, span: Span) -> &[u8] {
        assert!(span.lies_in(pages(0, PAGES)), "{span:?} is not the program's");
        &self.memory[span.start.from_start(LiveAddr(MEMORY)) as usize..][..span.len() as usize]
    }
}

impl AheadOfTime for FakeWorld {
    fn entry(&self, target: LiveAddr, plain: bool) -> Option<CodeAddr> {
        let module = self.modules.iter().find(|m| m.in_use && m.text.contains(target))?;
        module.of(plain).get(&target).copied()
    }

    fn entries_in(
        &self,
        _target: LiveAddr,
        span: Span,
        plain: bool,
    ) -> impl Iterator<Item = (LiveAddr, CodeAddr)> {
        let modules = self.modules.iter().filter(|m| m.in_use);
        modules.flat_map(move |m| m.of(plain).range(span.start..span.end).map(|(&a, &c)| (a, c)))
    }

    fn text(&self, address: LiveAddr) -> Option<Span> {
        self.modules.iter().find(|m| m.in_use && m.text.contains(address)).map(|m| m.text)
    }

    fn has_program(&self) -> bool {
        !self.modules.is_empty()
    }

    fn retire(&mut self, span: Span) -> Vec<Span> {
        let touched = self.modules.iter_mut().filter(|m| m.in_use && m.text.touches(span));
        touched
            .map(|m| {
                m.in_use = false;
                m.text
            })
            .collect()
    }
}

impl World for FakeWorld {
    type Code = FakeCode;
    type Tables = FakeTables;

    fn is_alone(&self) -> bool {
        self.alone
    }

    fn is_over(&self, _pipe: i32) -> bool {
        !self.lent
    }

    fn announce(&self, units: &[u8]) {
        self.announced.borrow_mut().extend_from_slice(units);
    }

    fn cannot_name(&self) {
        self.not_named.set(true);
    }
}
