//! Random sequences of what a program can do to its code, against a simple model of its memory.
//!
//! The model knows the rights of each page and executes original code. After each step, whatever
//! translated code can come to without the runtime is what the model would execute.

use super::*;
use abi::layout::PAGE;

/// Small numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A page as the program believes it to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    writable: bool,
    executable: bool,
    file: bool,
    shared: bool,
}

struct Model {
    lab: Lab,
    random: Random,
    pages: Vec<Option<Page>>,
    /// How often translated code ran.
    ran: usize,
}

/// Few places, so that much happens at each.
const PAGES: u64 = 6;
/// Code starts at a multiple of this.
const SLOT: u64 = 1024;

impl Model {
    fn new(seed: u64, options: Options) -> Model {
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let pages = alloc::vec![None; PAGES as usize];
        Model { lab: lab_with(options), random, pages, ran: 0 }
    }

    fn page(&self, address: LiveAddr) -> Option<Page> {
        let n = address.0.checked_sub(MEMORY)? / PAGE;
        self.pages.get(n as usize).copied().flatten()
    }

    /// Whether what is translated of `address` is compared each time that it runs, and not guarded.
    fn is_shared(&self, address: LiveAddr) -> bool {
        self.page(address).is_some_and(|page| page.shared) || self.lab.split.contains(&address)
    }

    /// A few pages, and their numbers.
    fn some_pages(&mut self) -> (Span, core::ops::Range<usize>) {
        let first = self.random.below(PAGES);
        let end = (first + 1 + self.random.below(3)).min(PAGES);
        (pages(first, end), first as usize..end as usize)
    }

    /// A place where code starts: the last one of a page reaches into the next.
    fn some_place(&mut self) -> LiveAddr {
        let n = self.random.below(PAGES - 1);
        let slot = self.random.below(PAGE / SLOT + 1) * SLOT;
        at(n, slot.min(PAGE - 3))
    }

    /// A few instructions for this place.
    fn some_code(&mut self, place: LiveAddr) -> Vec<u8> {
        let mut code = Vec::new();
        for _ in 0..self.random.below(3) {
            code.extend([0xb8, self.random.below(4) as u8, 0, 0, 0]);
        }
        let target = match self.random.one_in(8) {
            true => place,
            false => self.some_place(),
        };
        let opcode: &[u8] = match self.random.below(5) {
            0 => &[0xe9],
            1 => &[0x0f, 0x85],
            2 => &[0xe8],
            _ => &[],
        };
        if !opcode.is_empty() {
            code.extend(opcode);
            let next = place.plus(code.len() as u64 + 4);
            code.extend((target.from_start(next) as u32).to_le_bytes());
        }
        code.push(0xc3);
        code
    }

    // --- what the program does ---

    fn step(&mut self) {
        match self.random.below(100) {
            0..8 => self.map(),
            8..12 => self.unmap(),
            12..20 => self.protect(),
            20..26 => self.replace(),
            26..46 => self.write(),
            46..50 => self.write_unnoticed(),
            50..52 => self.fork(),
            52..53 => self.lab.flush(),
            53..54 => self.lab.world.no_more_mappings ^= true,
            54..55 => self.fill_up(),
            55..59 => self.map_again(),
            60..62 => self.switch(),
            59..60 => self.lab.translation.skip(TAGS_PER_WINDOW / 2),
            _ => self.execute(),
        }
        self.check();
    }

    fn map(&mut self) {
        let (span, numbers) = self.some_pages();
        let (file, shared) = (self.random.one_in(3), self.random.one_in(4));
        let [writable, executable] = [0; 2].map(|_| !self.random.one_in(3));
        let page = Page { writable, executable, file, shared };
        self.lab.world.set_readable(span, true);
        self.lab.world.set_rights(span, writable);
        numbers.clone().for_each(|n| self.fill(n as u64));
        self.becomes(numbers, page);
    }

    /// A page is mapped again with what was there, shared or not.
    fn map_again(&mut self) {
        let n = self.random.below(PAGES);
        if let Some(old) = self.pages[n as usize] {
            let shared = self.random.one_in(2);
            self.lab.world.set_rights(page(n), old.writable);
            self.becomes(n as usize..n as usize + 1, Page { shared, ..old });
        }
    }

    fn becomes(&mut self, numbers: core::ops::Range<usize>, page: Page) {
        let span = pages(numbers.start as u64, numbers.end as u64);
        let Page { writable, executable, file, shared } = page;
        self.lab.set_shared(span.start.0, span.end.0, shared);
        self.lab.remove_executable(span.start.0, span.end.0);
        if executable {
            self.lab.add_executable(ExecRange { span, writable, file, shared });
        }
        self.pages[numbers].fill(Some(page));
    }

    fn unmap(&mut self) {
        let (span, numbers) = self.some_pages();
        self.lab.world.set_readable(span, false);
        self.lab.set_shared(span.start.0, span.end.0, false);
        self.lab.remove_executable(span.start.0, span.end.0);
        self.pages[numbers].fill(None);
    }

    /// Other rights for one page: a file is a file, and what is shared stays so.
    fn protect(&mut self) {
        let n = self.random.below(PAGES);
        let Some(old) = self.pages[n as usize] else { return };
        let [writable, executable] = [0; 2].map(|_| !self.random.one_in(3));
        let span = page(n);
        let (start, end) = (span.start.0, span.end.0);
        self.lab.world.set_rights(span, writable);
        let shared = self.lab.is_shared(start);
        let file = self.lab.executable(start).is_some_and(|r| r.file);
        match executable {
            true => self.lab.add_executable(ExecRange { span, writable, file, shared }),
            false => self.lab.remove_executable(start, end),
        }
        assert!(shared || !old.shared);
        self.pages[n as usize] = Some(Page { writable, executable, file, shared });
    }

    /// The kernel replaces what is in a page.
    fn replace(&mut self) {
        let n = self.random.below(PAGES);
        if self.pages[n as usize].is_some() {
            self.fill(n);
            self.lab.code_may_change(page(n).start.0, page(n).end.0);
        }
    }

    fn fill(&mut self, n: u64) {
        for slot in 0..PAGE / SLOT {
            let place = at(n, slot * SLOT);
            let code = self.some_code(place);
            self.lab.world.put(place, &code);
        }
    }

    fn write(&mut self) {
        let place = self.some_place();
        let (place, bytes) = match self.random.one_in(3) {
            // An operand, or what it was already.
            true => (place.plus(1), alloc::vec![self.random.below(4) as u8]),
            false => (place, self.some_code(place)),
        };
        for (i, byte) in bytes.into_iter().enumerate() {
            let place = place.plus(i as u64);
            let Some(page) = self.page(place) else { return };
            if page.writable {
                assert!(self.lab.write(place, &[byte]), "the program may write {place}");
            } else {
                assert!(!self.lab.world.is_writable(place), "the program may not write {place}");
                return;
            }
        }
    }

    /// By way of another mapping.
    fn write_unnoticed(&mut self) {
        let place = self.some_place();
        let code = self.some_code(place);
        for (i, byte) in code.into_iter().enumerate() {
            let place = place.plus(i as u64);
            if self.page(place).is_some_and(|page| page.shared) {
                self.lab.world.put(place, &[byte]);
            }
        }
    }

    fn fork(&mut self) {
        let described = self.random.one_in(2);
        let flushes = self.lab.flushes;
        self.lab.forked(described);
        assert_eq!(self.lab.flushes - flushes, u32::from(!described));
    }

    /// The other variant of the code from here on. Somebody was on the way out of the one before.
    fn switch(&mut self) {
        let place = self.some_place();
        let arrived = self.lab.jump(place);
        let left = arrived.and_then(|i| self.lab.branches(i).first().copied());
        let plain = self.lab.is_plain();
        let target = left.map(|(_, exit)| self.lab.links.get(exit).target);
        let before = left.map(|(branch, _)| self.lab.arena.branch(branch));
        let flushes = self.lab.flushes;
        self.lab.switch();
        assert_ne!(self.lab.is_plain(), plain);
        assert!(self.lab.tables.entries().is_empty());
        let (Some((branch, exit)), Some(target)) = (left, target) else { return };
        let linked = self.lab.link_from(plain, exit);
        assert_eq!(linked.target, target);
        if flushes == self.lab.flushes {
            assert_eq!(Some(self.lab.arena.branch(branch)), before, "code out of use is linked");
        }
        if let Some(i) = linked.code.and_then(|code| self.lab.arrive(code)) {
            self.lab.runs(i, target);
        }
    }

    /// What is translated next does not fit any more.
    fn fill_up(&mut self) {
        self.lab.arena.len = u64::from(self.lab.arena.used().0) + (1 << 20) - 1;
        self.execute();
        self.lab.arena.len = 64 << 20;
    }

    /// Runs what is at some place, and some of what follows.
    fn execute(&mut self) {
        let mut place = self.some_place();
        let mut arrived = self.lab.jump(place);
        for _ in 0..12 {
            let may = self.page(place).is_some_and(|page| page.executable);
            assert_eq!(arrived.is_some(), may, "whether {place} is executed");
            let Some(i) = arrived else { return };
            self.ran += 1;
            self.lab.runs(i, place);
            let branches = self.lab.branches(i);
            if branches.is_empty() {
                return;
            }
            let (branch, exit) = branches[self.random.below(branches.len() as u64) as usize];
            place = self.lab.links.get(exit).target;
            arrived = self.lab.arrive(self.lab.arena.branch(branch));
        }
    }

    // --- what must hold ---

    fn check(&mut self) {
        self.check_variant();
        for (address, code) in self.lab.tables.entries() {
            let Reached::Unit(i) = self.leads_to(code) else { continue };
            let unit = self.lab.units.get(i);
            assert_eq!((unit.start, unit.wide), (address, true));
        }
        if self.lab.other.is_some() {
            self.lab.exchange();
            self.check_variant();
            self.lab.exchange();
        }
    }

    fn check_variant(&self) {
        let lab = &self.lab;
        for n in 0..PAGES {
            let page = self.pages[n as usize];
            let range = lab.executable(at(n, 0).0);
            let expected = page.filter(|p| p.executable);
            assert_eq!(range.is_some(), expected.is_some(), "page {n}");
            assert_eq!(lab.tables.covers(at(n, 0)), range.is_some(), "page {n}");
            if let (Some(range), Some(page)) = (range, expected) {
                let (is, should) = (
                    (range.writable, range.file, range.shared),
                    (page.writable, page.file, page.shared),
                );
                assert_eq!(is, should, "page {n}");
            }
            // What the program may write and cannot is guarded, and nothing else.
            let guarded = page.is_some_and(|p| p.writable) && !lab.world.is_writable(at(n, 0));
            let known = !lab.guarded.within(super::page(n)).is_empty();
            assert_eq!(known, guarded, "page {n}");
        }
        assert_eq!(lab.protected(), lab.guarded.within(Span::ALL).len());
        for i in lab.units.since(UnitIndex(0)) {
            self.check_unit(i);
        }
        self.check_branches();
    }

    fn check_unit(&self, i: UnitIndex) {
        let lab = &self.lab;
        let unit = lab.units.get(i);
        match (unit.state, lab.gate(i)) {
            (Life::Open, gate) => assert_eq!(gate, Gate::LetsThrough),
            // To its own stub.
            (_, Gate::LeadsTo(to)) if to != lab.entry(i) && self.is_stub_of(to, i) => {}
            (Life::Dead, Gate::LeadsTo(to)) => {
                let at = lab.arena.offset(to).unwrap();
                let next = lab.units.find(at).filter(|unit| unit.entry == at).unwrap();
                assert_ne!(next.state, Life::Dead, "a dead unit leads to another");
                assert_eq!(next.start, unit.start);
            }
            (state, gate) => panic!("{state:?} unit with {gate:?}"),
        }
        if lab.units.at(unit.start) == Some(i) {
            assert_ne!(unit.state, Life::Dead, "a dead unit may be entered from anywhere");
        }
        if unit.state == Life::Open && !self.is_shared(unit.start) {
            lab.runs(i, unit.start);
            for n in unit.span().pages() {
                let page = self.page(Span::page(n).start).unwrap();
                assert!(page.shared || !lab.world.is_writable(Span::page(n).start), "page {n:#x}");
            }
        }
    }

    fn is_stub_of(&self, code: CodeAddr, i: UnitIndex) -> bool {
        let at = self.lab.arena.offset(code).unwrap();
        self.lab.arena.stub(at).is_some_and(|id| self.lab.links.get(id).at == Site::Gate(i))
    }

    /// As [`Lab::follow`]: what the processor comes to by itself never has to be compared.
    fn leads_to(&self, code: CodeAddr) -> Reached {
        let reached = self.lab.follow(code);
        if let Reached::Unit(i) = reached {
            let start = self.lab.units.get(i).start;
            assert!(!self.is_shared(start), "{start} may change unnoticed");
            assert_eq!(self.lab.state(i), Life::Open);
            self.lab.runs(i, start);
        }
        reached
    }

    /// Follows all branches of the variant, out of their piece of translated code or to a unit of it.
    fn check_branches(&self) {
        let lab = &self.lab;
        let of_other = |at| lab.other.as_ref().is_some_and(|other| other.units.find(at).is_some());
        for (at, piece) in lab.arena.pieces().filter(|&(at, _)| !of_other(at)) {
            let inside = lab.arena.live(at).0..lab.arena.live(at).0 + piece.len() as u64;
            let mut decoder = iced_x86::Decoder::with_ip(64, piece, inside.start, 0);
            for insn in &mut decoder {
                let to = CodeAddr(insn.near_branch_target());
                if to.0 == 0 {
                    continue;
                }
                let offset = lab.arena.offset(to).expect("a branch leads out of all code");
                match lab.units.find(offset).filter(|unit| unit.entry == offset) {
                    // Code that may change unnoticed, with a loop: a unit that leads to itself.
                    Some(unit) if inside.contains(&to.0) && self.is_shared(unit.start) => {}
                    Some(_) => drop(self.leads_to(to)),
                    None if inside.contains(&to.0) => {}
                    None => assert!(lab.arena.stub(offset).is_some(), "a branch to {to}"),
                }
            }
        }
    }
}

impl Lab {
    /// Unit `i` runs when the program is at `place`: it was made of what is there.
    fn runs(&self, i: UnitIndex, place: LiveAddr) {
        let unit = self.units.get(i);
        assert_eq!((unit.start, unit.state), (place, Life::Open));
        let from = place.from_start(LiveAddr(MEMORY)) as usize;
        let now = &self.world.memory[from..from + unit.len as usize];
        assert!(self.units.is_made_of(i, now), "the unit at {place} is not what is there");
    }
}

fn play(seeds: core::ops::Range<u64>, options: Options) {
    let mut ran = 0;
    for seed in seeds {
        let mut model = Model::new(seed, options);
        for _ in 0..6 {
            model.map();
        }
        for step in 0..300 {
            let play = std::panic::AssertUnwindSafe(|| model.step());
            if let Err(why) = std::panic::catch_unwind(play) {
                std::eprintln!("seed {seed}, step {step}");
                std::panic::resume_unwind(why);
            }
        }
        ran += model.ran;
    }
    assert!(ran > 1000, "the program hardly ran: {ran} units");
}

#[test]
fn only_what_is_there_can_run() {
    play(0..200, Options::default());
}

#[test]
fn only_what_is_there_can_run_where_nothing_is_recorded() {
    play(1000..1100, without_records());
}
