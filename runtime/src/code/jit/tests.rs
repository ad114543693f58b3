//! The code cache in a world of plain memory: gates, links, flush and fork.

mod model_tests;

use super::*;
use crate::code::test_support::{page, pages, Change, FakeCode, FakeModule, FakeTables, FakeWorld};
use crate::code::test_support::{Gate, CODE, MEMORY, WINDOW};
use abi::ids::CodeOff;
use abi::options::{ControlFlow, Instrument, RecordingOptions};
use abi::unit::{JitReason, JitUnit, TAGS_PER_WINDOW};
use alloc::boxed::Box;
use alloc::vec::Vec;

type Lab = Jit<FakeWorld>;

fn lab() -> Lab {
    lab_with(Options::default())
}

/// Nothing is recorded.
fn without_records() -> Options {
    let recording = RecordingOptions { instrument: Instrument::None, ..Default::default() };
    Options { recording, ..Options::default() }
}

fn lab_with(options: Options) -> Lab {
    let image = Image {
        window: LiveAddr(WINDOW),
        span: pages(0, 2),
        first_window: 5,
        dynamic: false,
        reselected: false,
    };
    let guarded = Guarded::new(Box::leak(Box::new(AtomicUsize::new(0))));
    Jit::in_world(FakeWorld::new(), options, image, guarded, FakeCode::new(), FakeTables::default())
}

/// Where translated code leads that the processor runs without asking the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reached {
    /// Through its gate.
    Unit(UnitIndex),
    Exit(ExitId),
}

impl Lab {
    fn follow(&self, code: CodeAddr) -> Reached {
        let at = self.arena.offset(code).expect("this is no code of ours");
        if let Some(exit) = self.arena.stub(at) {
            return Reached::Exit(exit);
        }
        let unit = self.units.find(at).filter(|unit| unit.entry == at);
        let Some(unit) = unit else { return self.follow(self.arena.behind_call(at)) };
        match self.arena.gate(at) {
            Gate::LeadsTo(code) => self.follow(code),
            Gate::LetsThrough => {
                let i =
                    self.units.since(UnitIndex(0)).find(|&i| self.units.get(i).entry == unit.entry);
                Reached::Unit(i.unwrap())
            }
        }
    }

    /// The unit that a thread comes to from `code`, if need be by way of the runtime.
    fn arrive(&mut self, code: CodeAddr) -> Option<UnitIndex> {
        match self.follow(code) {
            Reached::Unit(i) => Some(i),
            Reached::Exit(exit) => {
                let linked = self.link(exit);
                self.arrive(linked.code?)
            }
        }
    }

    /// The unit that an indirect jump to `address` comes to.
    fn jump(&mut self, address: LiveAddr) -> Option<UnitIndex> {
        let code = match self.tables.entry(For::Jump, address) {
            Some(code) => code,
            None => self.resolve(address, Some(For::Jump))?,
        };
        self.arrive(code)
    }

    fn entry(&self, i: UnitIndex) -> CodeAddr {
        self.arena.live(self.units.get(i).entry)
    }

    fn state(&self, i: UnitIndex) -> Life {
        self.units.get(i).state
    }

    fn gate(&self, i: UnitIndex) -> Gate {
        self.arena.gate(self.units.get(i).entry)
    }

    /// The branches of unit `i` that were not linked when it was translated: where they are, and
    /// their exits.
    fn branches(&self, i: UnitIndex) -> Vec<(CodeOff, ExitId)> {
        let from = self.units.get(i).id;
        let mine = |id: &ExitId| self.links.get(*id).from == from;
        let branch = |id: ExitId| match self.links.get(id).at {
            Site::Branch(at) => Some((at, id)),
            Site::Gate(_) => None,
        };
        self.exits().filter(mine).filter_map(branch).collect()
    }

    /// Where the only branch of unit `i` leads.
    fn entry_behind(&self, i: UnitIndex) -> CodeAddr {
        let [(branch, _)] = self.branches(i)[..] else { panic!("it has one branch") };
        self.arena.branch(branch)
    }

    fn exits(&self) -> impl Iterator<Item = ExitId> {
        (0..self.links.count() as u32).map(ExitId)
    }

    fn protected(&self) -> usize {
        self.guarded.count()
    }

    /// The program writes; true if it can.
    fn write(&mut self, at: LiveAddr, bytes: &[u8]) -> bool {
        if !self.world.is_writable(at) && !self.unprotect(at.0) {
            return false;
        }
        assert!(self.world.is_writable(at));
        self.world.put(at, bytes);
        true
    }
}

fn code(span: Span) -> ExecRange {
    ExecRange { span, writable: false, file: true, shared: false }
}

fn generated(span: Span) -> ExecRange {
    ExecRange { span, writable: true, file: false, shared: false }
}

fn shared(span: Span) -> ExecRange {
    ExecRange { shared: true, ..generated(span) }
}

/// `mov eax, n; ret`
fn returns(n: u8) -> [u8; 6] {
    [0xb8, n, 0, 0, 0, 0xc3]
}

/// `mov eax, 1; jmp to`, at `at`.
fn jumps(at: LiveAddr, to: LiveAddr) -> [u8; 10] {
    let mut bytes = [0xb8, 1, 0, 0, 0, 0xe9, 0, 0, 0, 0];
    bytes[6..].copy_from_slice(&(to.from_start(at.plus(10)) as u32).to_le_bytes());
    bytes
}

/// `call to; ret`, at `at`.
fn calls(at: LiveAddr, to: LiveAddr) -> [u8; 6] {
    let mut bytes = [0xe8, 0, 0, 0, 0, 0xc3];
    bytes[1..5].copy_from_slice(&(to.from_start(at.plus(5)) as u32).to_le_bytes());
    bytes
}

fn at(n: u64, offset: u64) -> LiveAddr {
    page(n).start.plus(offset)
}

#[test]
fn what_is_not_executable_or_not_there_has_no_translation() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 3)));
    lab.world.set_readable(page(2), false);
    assert_eq!(lab.resolve(at(4, 0), Some(For::Jump)), None);
    assert_eq!(lab.resolve(at(2, 0), Some(For::Jump)), None);
    assert!(lab.resolve(at(1, 0), Some(For::Jump)).is_some());
}

#[test]
fn a_miss_sets_the_entry_and_the_next_look_up_finds_it() {
    let mut lab = lab();
    lab.add_executable(code(page(0)));
    lab.world.put(at(0, 0), &calls(at(0, 0), at(0, 64)));
    lab.world.put(at(0, 64), &returns(1));
    let to = lab.resolve(at(0, 0), Some(For::Jump));
    assert_eq!(lab.tables.entry(For::Jump, at(0, 0)), to);
    // The place behind the call is where a return will look for.
    let behind = lab.units.at(at(0, 5)).unwrap();
    assert_eq!(lab.tables.entry(For::Return, at(0, 5)), Some(lab.entry(behind)));
    let used = lab.arena.used();
    assert_eq!(lab.resolve(at(0, 0), None), to);
    assert_eq!(lab.arena.used(), used);
}

#[test]
fn a_write_closes_exactly_the_units_of_its_page() {
    let mut lab = lab();
    lab.add_executable(generated(pages(0, 4)));
    let places = [at(0, 0), at(1, 0).plus(3u64.wrapping_neg()), at(1, 100), at(2, 0)];
    let units = places.map(|place| {
        lab.world.put(place, &returns(1));
        lab.jump(place).unwrap()
    });
    assert_eq!(lab.protected(), 3);
    let used = lab.arena.used();
    assert!(lab.write(at(1, 2000), &[1]));
    assert_eq!(lab.arena.used(), used, "a unit closes where there is no room, too");
    let states = units.map(|i| lab.state(i));
    assert_eq!(states, [Life::Open, Life::Closed, Life::Closed, Life::Open]);
    let through = units.map(|i| lab.gate(i) == Gate::LetsThrough);
    assert_eq!(through, [true, false, false, true]);
    assert_eq!(lab.protected(), 2);
}

#[test]
fn unchanged_bytes_open_the_gate_again() {
    let mut lab = lab();
    lab.add_executable(generated(page(0)));
    lab.world.put(at(0, 0), &returns(1));
    let unit = lab.jump(at(0, 0)).unwrap();
    assert!(lab.write(at(0, 100), &[1]));
    assert_eq!((lab.state(unit), lab.protected()), (Life::Closed, 0));
    // By way of the table, the gate, the stub and the runtime.
    let used = lab.arena.used();
    assert_eq!(lab.jump(at(0, 0)), Some(unit));
    assert_eq!((lab.state(unit), lab.gate(unit)), (Life::Open, Gate::LetsThrough));
    assert_eq!(lab.arena.used(), used);
    assert!(!lab.world.is_writable(at(0, 0)));
    assert_eq!(lab.protected(), 1);
}

#[test]
fn changed_bytes_drop_the_unit_and_forward_to_the_new_one() {
    let mut lab = lab();
    lab.add_executable(generated(page(0)));
    lab.world.put(at(0, 0), &returns(1));
    let old = lab.jump(at(0, 0)).unwrap();
    assert!(lab.write(at(0, 1), &[2]));
    let new = lab.arrive(lab.entry(old)).unwrap();
    assert_ne!(old, new);
    assert_eq!((lab.state(old), lab.state(new)), (Life::Dead, Life::Open));
    assert_eq!(lab.gate(old), Gate::LeadsTo(lab.entry(new)));
    // The table missed the old one's death.
    assert_eq!(lab.tables.entry(For::Jump, at(0, 0)), None);
    assert_eq!(lab.jump(at(0, 0)), Some(new));
    assert_eq!(lab.tables.entry(For::Jump, at(0, 0)), Some(lab.entry(new)));
}

#[test]
fn a_forward_of_a_forwarded_unit_never_leads_through_the_dead_one() {
    let mut lab = lab();
    lab.add_executable(generated(page(0)));
    lab.world.put(at(0, 0), &returns(1));
    let first = lab.jump(at(0, 0)).unwrap();
    assert!(lab.write(at(0, 1), &[2]));
    let second = lab.arrive(lab.entry(first)).unwrap();
    assert!(lab.write(at(0, 1), &[3]));
    // Whoever still comes to the first one waits at the second one's gate.
    assert_eq!(lab.follow(lab.entry(first)), lab.follow(lab.entry(second)));
    let third = lab.arrive(lab.entry(second)).unwrap();
    assert_eq!(lab.state(second), Life::Dead);
    let Reached::Exit(stub) = lab.follow(lab.entry(first)) else { panic!("it is forwarded") };
    assert_eq!(lab.links.get(stub).at, Site::Gate(first));
    assert_eq!(lab.arrive(lab.entry(first)), Some(third));
    assert_eq!(lab.gate(first), Gate::LeadsTo(lab.entry(third)));
}

#[test]
fn a_change_in_one_piece_of_a_file_drops_what_knew_it_and_only_closes_what_is_generated() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.add_executable(code(page(2)));
    lab.add_executable(generated(page(4)));
    for n in [0, 1, 2, 4] {
        lab.world.put(at(n, 0), &returns(n as u8));
    }
    let [here, beside, other, made] = [0, 1, 2, 4].map(|n| lab.jump(at(n, 0)).unwrap());
    lab.code_may_change(page(0).start.0, page(0).end.0);
    lab.code_may_change(page(4).start.0, page(4).end.0);
    let states = [here, beside, other, made].map(|i| lab.state(i));
    assert_eq!(states, [Life::Dead, Life::Dead, Life::Open, Life::Closed]);
    let missed = [0, 1, 2].map(|n| lab.tables.entry(For::Jump, at(n, 0)).is_none());
    assert_eq!(missed, [true, true, false]);
}

#[test]
fn what_was_concluded_from_code_is_forgotten_with_it() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    let needs_rcx = |lab: &mut Lab| {
        let unit = lab.jump(at(0, 0)).unwrap();
        let recipe = Recipe::new(lab.units.recipe(lab.units.get(unit)).unwrap()).unwrap();
        recipe.header().live_in.bits() & 2 != 0
    };
    // `mov ecx, 1; ret`, and then only `ret`.
    lab.world.put(at(1, 0), &[0xb9, 1, 0, 0, 0, 0xc3]);
    assert!(!needs_rcx(&mut lab));
    lab.world.put(at(1, 0), &[0xc3]);
    lab.code_may_change(page(1).start.0, page(1).end.0);
    assert!(needs_rcx(&mut lab));
}

#[test]
fn what_is_mapped_again_as_it_was_is_not_translated_again() {
    let mut lab = lab();
    lab.add_executable(generated(page(0)));
    lab.world.put(at(0, 0), &returns(1));
    let unit = lab.jump(at(0, 0)).unwrap();
    lab.remove_executable(page(0).start.0, page(0).end.0);
    lab.world.set_rights(page(0), true);
    assert_eq!((lab.state(unit), lab.protected()), (Life::Closed, 0));
    assert!(!lab.tables.covers(at(0, 0)));
    assert_eq!(lab.jump(at(0, 0)), None);
    lab.add_executable(generated(page(0)));
    assert_eq!(lab.tables.entry(For::Jump, at(0, 0)), None);
    assert_eq!(lab.jump(at(0, 0)), Some(unit));
    assert_eq!(lab.protected(), 1);
}

#[test]
fn an_exit_is_linked_once_to_what_it_leads_to() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    lab.world.put(at(1, 0), &returns(1));
    let from = lab.jump(at(0, 0)).unwrap();
    let [(branch, exit)] = lab.branches(from)[..] else { panic!("it has one branch") };
    assert_eq!(lab.follow(lab.arena.branch(branch)), Reached::Exit(exit));
    let linked = lab.link(exit);
    assert_eq!(linked.target, at(1, 0));
    assert_eq!(Some(lab.arena.branch(branch)), linked.code);
    // A thread that was on its way already comes to the same code.
    let used = lab.arena.used();
    assert_eq!(lab.link(exit).code, linked.code);
    assert_eq!(lab.arena.used(), used);
    // What is translated later is linked at once.
    lab.world.put(at(0, 64), &jumps(at(0, 64), at(1, 0)));
    let later = lab.jump(at(0, 64)).unwrap();
    assert_eq!(lab.branches(later), []);
}

#[test]
fn what_has_a_unit_is_linked_and_not_translated_again() {
    let mut lab = lab();
    lab.add_executable(code(page(0)));
    lab.world.put(at(0, 0), &calls(at(0, 0), at(0, 64)));
    lab.world.put(at(0, 64), &returns(1));
    let behind = lab.jump(at(0, 5)).unwrap();
    let from = lab.jump(at(0, 0)).unwrap();
    assert_eq!(lab.units.at(at(0, 5)), Some(behind));
    assert_eq!(lab.units.since(from).count(), 1);
}

#[test]
fn an_exit_to_where_nothing_may_run_stays_one() {
    let mut lab = lab();
    lab.add_executable(code(page(0)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    let from = lab.jump(at(0, 0)).unwrap();
    let [(branch, exit)] = lab.branches(from)[..] else { panic!("it has one branch") };
    assert_eq!(lab.link(exit).code, None);
    assert_eq!(lab.follow(lab.arena.branch(branch)), Reached::Exit(exit));
    // Now it may, but there is nothing.
    lab.add_executable(code(page(1)));
    lab.world.set_readable(page(1), false);
    assert_eq!(lab.link(exit).code, None);
}

#[test]
fn a_narrow_unit_is_only_entered_from_its_own_window() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    lab.world.put(at(0, 64), &jumps(at(0, 64), at(1, 0)));
    lab.world.put(at(1, 0), &returns(1));
    let near = lab.jump(at(0, 0)).unwrap();
    let narrow = lab.arrive(lab.entry_behind(near)).unwrap();
    assert!(!lab.units.get(narrow).wide);
    lab.translation.skip(TAGS_PER_WINDOW);
    let far = lab.jump(at(0, 64)).unwrap();
    assert_ne!(lab.units.get(near).id.window(), lab.units.get(far).id.window());
    // Not linked when it was translated, nor when its exit is taken.
    assert_eq!(lab.branches(far).len(), 1);
    let wide = lab.arrive(lab.entry_behind(far)).unwrap();
    assert_ne!(wide, narrow);
    assert!(lab.units.get(wide).wide);
    assert_eq!(lab.follow(lab.entry_behind(near)), Reached::Unit(narrow));
    assert_eq!(lab.follow(lab.entry_behind(far)), Reached::Unit(wide));
}

#[test]
fn where_nothing_is_recorded_all_units_may_be_entered() {
    let mut lab = lab_with(without_records());
    lab.add_executable(code(pages(0, 2)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    lab.world.put(at(0, 64), &jumps(at(0, 64), at(1, 0)));
    lab.world.put(at(1, 0), &returns(1));
    let near = lab.jump(at(0, 0)).unwrap();
    let narrow = lab.arrive(lab.entry_behind(near)).unwrap();
    lab.translation.skip(TAGS_PER_WINDOW);
    let far = lab.jump(at(0, 64)).unwrap();
    assert_eq!(lab.branches(far), []);
    assert!(!lab.units.get(narrow).wide);
    assert!(lab.world.announced.borrow().is_empty());
}

#[test]
fn a_narrow_unit_gives_way_to_a_wide_one_for_jumps_from_anywhere() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    lab.world.put(at(1, 0), &returns(1));
    let from = lab.jump(at(0, 0)).unwrap();
    let narrow = lab.arrive(lab.entry_behind(from)).unwrap();
    let wide = lab.jump(at(1, 0)).unwrap();
    assert_ne!(narrow, wide);
    assert!(lab.units.get(wide).wide);
    // A branch of its own window goes on entering it.
    assert_eq!(lab.follow(lab.entry_behind(from)), Reached::Unit(narrow));
    // Both go when the code does.
    lab.code_may_change(page(1).start.0, page(1).end.0);
    assert_eq!((lab.state(narrow), lab.state(wide)), (Life::Dead, Life::Dead));
    assert_eq!(lab.tables.entry(For::Jump, at(1, 0)), None);
}

#[test]
fn a_wide_unit_is_replaced_by_a_wide_one() {
    let mut lab = lab();
    lab.add_executable(generated(pages(0, 2)));
    lab.world.put(at(0, 0), &returns(1));
    lab.world.put(at(1, 0), &jumps(at(1, 0), at(0, 0)));
    let from = lab.jump(at(1, 0)).unwrap();
    let old = lab.jump(at(0, 0)).unwrap();
    assert!(lab.write(at(0, 1), &[2]));
    // The branch comes first, and gets a narrow one made.
    let narrow = lab.arrive(lab.entry_behind(from)).unwrap();
    assert!(!lab.units.get(narrow).wide);
    assert_eq!(lab.state(old), Life::Dead);
    let new = lab.arrive(lab.entry(old)).unwrap();
    assert!(lab.units.get(new).wide);
    assert_eq!(lab.gate(old), Gate::LeadsTo(lab.entry(new)));
}

#[test]
fn code_that_may_change_unnoticed_is_compared_each_time() {
    let mut lab = lab();
    lab.add_executable(shared(page(0)));
    lab.add_executable(code(page(1)));
    lab.world.put(at(0, 0), &returns(1));
    lab.world.put(at(1, 0), &jumps(at(1, 0), at(0, 0)));
    let one = lab.jump(at(0, 0)).unwrap();
    assert_eq!((lab.protected(), lab.world.is_writable(at(0, 0))), (0, true));
    assert_eq!(lab.tables.entry(For::Jump, at(0, 0)), None);
    lab.world.put(at(0, 1), &[2]);
    let two = lab.jump(at(0, 0)).unwrap();
    assert_ne!(one, two);
    lab.world.put(at(0, 1), &[1]);
    let used = lab.arena.used();
    assert_eq!(lab.jump(at(0, 0)), Some(one));
    assert_eq!(lab.arena.used(), used);
    // A branch to it asks each time.
    let from = lab.jump(at(1, 0)).unwrap();
    let [(branch, exit)] = lab.branches(from)[..] else { panic!("it has one branch") };
    for (byte, unit) in [(1, one), (2, two)] {
        lab.world.put(at(0, 1), &[byte]);
        assert_eq!(lab.arrive(lab.arena.branch(branch)), Some(unit));
        assert_eq!(lab.follow(lab.arena.branch(branch)), Reached::Exit(exit));
    }
}

#[test]
fn code_that_may_change_unnoticed_is_compared_after_each_unit() {
    let mut lab = lab();
    lab.add_executable(shared(page(0)));
    // Control goes on behind the call when that returns.
    lab.world.put(at(0, 0), &calls(at(0, 0), at(0, 64)));
    lab.jump(at(0, 0)).unwrap();
    assert_eq!(lab.units.since(UnitIndex(0)).count(), 1);
    assert_eq!(lab.tables.entries(), []);
}

#[test]
fn what_was_linked_is_no_variant_any_more() {
    let mut lab = lab();
    lab.add_executable(code(page(1)));
    lab.world.put(at(0, 0), &returns(1));
    lab.world.put(at(1, 0), &jumps(at(1, 0), at(0, 0)));
    lab.add_executable(shared(page(0)));
    let variant = lab.jump(at(0, 0)).unwrap();
    lab.add_executable(generated(page(0)));
    assert_eq!(lab.jump(at(0, 0)), Some(variant));
    let from = lab.jump(at(1, 0)).unwrap();
    assert_eq!(lab.branches(from), []);
    lab.add_executable(shared(page(0)));
    // The branch leads to it: it must stay closed.
    let now = lab.jump(at(0, 0)).unwrap();
    assert_ne!(now, variant);
    assert_eq!(lab.state(variant), Life::Closed);
}

#[test]
fn variants_are_limited() {
    let mut lab = lab();
    lab.add_executable(shared(page(0)));
    let first = returns(0);
    for n in 0..=MOST_VARIANTS as u8 {
        lab.world.put(at(0, 0), &returns(n));
        lab.jump(at(0, 0)).unwrap();
        let known = lab.units.take_variants(at(0, 0));
        let expected = if n == MOST_VARIANTS as u8 { 1 } else { usize::from(n) + 1 };
        assert_eq!(known.len(), expected);
        lab.units.keep_variants(at(0, 0), known);
    }
    // The first is forgotten, and made again.
    lab.world.put(at(0, 0), &first);
    assert_eq!(lab.jump(at(0, 0)), Some(UnitIndex(MOST_VARIANTS as u32 + 1)));
    assert_eq!(lab.jump(at(0, 0)), Some(UnitIndex(MOST_VARIANTS as u32 + 1)));
}

#[test]
fn only_what_the_program_may_write_is_unprotected() {
    let mut lab = lab();
    lab.add_executable(code(page(0)));
    lab.add_executable(generated(pages(1, 5)));
    lab.world.set_rights(page(0), false);
    assert!(!lab.unprotect(page(0).start.0));
    assert!(!lab.world.is_writable(page(0).start));
    for n in 1..5 {
        lab.jump(at(n, 0)).unwrap();
    }
    assert_eq!(lab.protected(), 4);
    lab.unprotect_range(at(2, 100).0, at(3, 1).0);
    assert_eq!(lab.protected(), 2);
    let writable = [1, 2, 3, 4].map(|n| lab.world.is_writable(at(n, 0)));
    assert_eq!(writable, [false, true, true, false]);
    lab.distrust(page(1).start.0, page(1).end.0);
    assert_eq!(lab.protected(), 1);
}

#[test]
fn without_mappings_a_write_closes_the_whole_range() {
    let mut lab = lab();
    lab.add_executable(generated(pages(0, 3)));
    let units = [0, 1, 2].map(|n| {
        lab.world.put(at(n, 0), &returns(1));
        lab.jump(at(n, 0)).unwrap()
    });
    lab.world.no_more_mappings = true;
    assert!(lab.write(at(1, 100), &[1]));
    assert_eq!(units.map(|i| lab.state(i)), [Life::Closed; 3]);
    assert_eq!(lab.protected(), 0);
    assert_eq!(lab.jump(at(2, 0)), Some(units[2]));
    assert_eq!(lab.protected(), 3);
    lab.world.sealed = true;
    assert!(!lab.unprotect(at(1, 0).0));
}

#[test]
fn ahead_of_time_code_is_used_until_its_original_may_change() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.add_executable(generated(page(4)));
    let [here, near, far] = [at(0, 0), at(0, 500), at(0, 600)];
    let entries = [here, near, far].map(|a| (a, CodeAddr(CODE - a.from_start(LiveAddr(MEMORY)))));
    let text = Span { start: here, end: at(1, 100) };
    lab.world.modules.push(FakeModule {
        text,
        entries: entries.into(),
        plain: Default::default(),
        in_use: true,
    });
    lab.world.put(at(4, 0), &jumps(at(4, 0), here));
    lab.world.put(at(1, 0), &returns(1));
    lab.world.put(here, &returns(1));
    assert_eq!(lab.resolve(here, Some(For::Jump)), Some(entries[0].1));
    // All of the table's page, and no more.
    let set = |lab: &Lab, a| lab.tables.entry(For::Jump, a).is_some();
    assert_eq!([here, near, far].map(|a| set(&lab, a)), [true, true, false]);
    let linked = lab.jump(at(4, 0)).unwrap();
    assert_eq!(lab.branches(linked), []);
    let missed = lab.jump(at(1, 0)).unwrap();
    // It is written to, far from there.
    lab.code_may_change(page(1).start.0, page(1).end.0);
    assert_eq!((lab.state(linked), lab.state(missed)), (Life::Dead, Life::Dead));
    assert_eq!([here, near].map(|a| set(&lab, a)), [false, false]);
    let unit = lab.jump(here).unwrap();
    assert_eq!(lab.state(unit), Life::Open);
}

/// Two modules, in pages 0 and 1, with both translations of the start of each: those that record, and
/// those that do not.
fn two_modules(lab: &mut Lab) -> [[(LiveAddr, CodeAddr); 2]; 2] {
    lab.add_executable(code(pages(0, 2)));
    let both =
        |variant: u64| [0u64, 1].map(|n| (at(n, 0), CodeAddr(CODE - 0x1000 * variant - 0x100 * n)));
    let [recorded, plain] = [both(1), both(2)];
    for (n, (recorded, plain)) in recorded.into_iter().zip(plain).enumerate() {
        lab.world.put(at(n as u64, 0), &returns(1));
        lab.world.modules.push(FakeModule {
            text: page(n as u64),
            entries: [recorded].into(),
            plain: [plain].into(),
            in_use: true,
        });
    }
    [recorded, plain]
}

#[test]
fn each_variant_has_its_own_ahead_of_time_code_and_translates_nothing() {
    let mut lab = lab();
    let [recorded, plain] = two_modules(&mut lab);
    for (entries, is_plain) in [(recorded, false), (plain, true), (recorded, false), (plain, true)]
    {
        assert_eq!(lab.is_plain(), is_plain);
        for (original, code) in entries {
            // What the other variant has set misses.
            assert_eq!(lab.tables.entry(For::Return, original), None);
            assert_eq!(lab.resolve(original, Some(For::Return)), Some(code));
            assert_eq!(lab.tables.entry(For::Return, original), Some(code));
        }
        assert_eq!(lab.units.next(), UnitIndex(0), "a unit was translated");
        lab.switch();
    }
}

#[test]
fn beside_what_is_watched_no_ahead_of_time_code_runs_until_the_recording_is_on() {
    let mut lab = lab();
    let [_, plain] = two_modules(&mut lab);
    lab.watch(at(0, 100));
    lab.switch();
    let code = lab.resolve(at(0, 0), Some(For::Jump)).unwrap();
    assert_eq!(lab.find(code).map(|found| found.start), Some(at(0, 0)));
    assert_eq!(lab.resolve(at(1, 0), Some(For::Jump)), Some(plain[1].1));
    lab.switch();
    lab.switch();
    assert_eq!(lab.resolve(at(0, 0), Some(For::Jump)), Some(plain[0].1));
}

#[test]
fn the_trace_is_told_what_a_unit_is_made_of_and_why() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 4)));
    lab.add_executable(generated(page(5)));
    for n in [0, 3, 5] {
        lab.world.put(at(n, 0), &returns(n as u8));
        lab.jump(at(n, 0)).unwrap();
    }
    lab.write(at(5, 0), &returns(7));
    lab.jump(at(5, 0)).unwrap();
    let bytes = lab.world.announced.borrow();
    let (mut from, mut units) = (0, Vec::new());
    while from < bytes.len() {
        units.push(JitUnit::decode(&bytes, &mut from).ok().flatten().unwrap());
    }
    let told: Vec<_> =
        units.iter().map(|u| (u.address, u.version, u.reason, &u.code[..])).collect();
    let expected = [
        (at(0, 0), 1, JitReason::Processor, &returns(0)[..]),
        (at(3, 0), 1, JitReason::Library, &returns(3)[..]),
        (at(5, 0), 1, JitReason::Anonymous, &returns(5)[..]),
        (at(5, 0), 2, JitReason::Anonymous, &returns(7)[..]),
    ];
    assert_eq!(told, expected);
    assert_eq!(units.iter().map(|u| u.id.window()).collect::<Vec<_>>(), [5; 4]);
}

fn bits() -> Lab {
    let recording = RecordingOptions { control_flow: ControlFlow::Bits, ..Default::default() };
    lab_with(Options { recording, ..Options::default() })
}

#[test]
fn one_unit_of_an_address_at_most_is_not_announced() {
    let mut lab = bits();
    lab.add_executable(generated(page(5)));
    lab.world.put(at(5, 0), &jumps(at(5, 0), at(5, 64)));
    for n in 0..3 {
        lab.write(at(5, 64), &returns(n));
        let first = lab.jump(at(5, 0)).unwrap();
        let behind = lab.arrive(lab.entry_behind(first)).unwrap();
        assert_eq!(lab.units.get(behind).wide, n != 0);
    }
}

#[test]
fn a_format_that_names_versions_runs_out_of_them() {
    for (mut lab, ends) in [(bits(), true), (lab(), false)] {
        lab.add_executable(generated(page(5)));
        lab.world.put(at(5, 0), &returns(0));
        lab.translation.skip_versions(at(5, 0), u16::MAX - 1);
        lab.jump(at(5, 0)).unwrap();
        assert!(!lab.world.not_named.get());
        lab.write(at(5, 0), &returns(1));
        lab.jump(at(5, 0)).unwrap();
        assert_eq!(lab.world.not_named.get(), ends);
    }
}

#[test]
fn a_place_in_the_code_is_found() {
    let mut lab = lab();
    lab.add_executable(code(page(0)));
    lab.world.put(at(0, 0), &returns(1));
    let unit = lab.jump(at(0, 0)).unwrap();
    let (entry, end) = (lab.entry(unit), lab.arena.live(lab.units.get(unit).end));
    let found = lab.find(entry.plus(7)).unwrap();
    assert_eq!((found.start, found.window), (at(0, 0), 5));
    assert_eq!((found.entry, found.end), (entry, end));
    assert!(lab.find(end).is_none());
    assert!(lab.find(CodeAddr(CODE - 1)).is_none());
}

#[test]
fn a_flush_forgets_all_code_and_makes_every_look_up_miss() {
    let mut lab = lab();
    lab.add_executable(generated(pages(0, 2)));
    lab.add_executable(shared(page(3)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    lab.world.put(at(1, 0), &calls(at(1, 0), at(0, 0)));
    let first = lab.jump(at(0, 0)).unwrap();
    let id = lab.units.get(first).id;
    lab.arrive(lab.entry_behind(first)).unwrap();
    lab.jump(at(3, 0)).unwrap();
    lab.flush();
    assert_eq!(lab.tables.entries(), []);
    assert!(lab.tables.covers(at(0, 0)) && lab.tables.covers(at(3, 0)));
    assert_eq!((lab.units.next(), lab.exits().count()), (UnitIndex(0), 0));
    assert!(lab.find(CodeAddr(CODE + 64)).is_none());
    assert_eq!(lab.arena.changes.last(), Some(&Change::Restart));
    // What is protected stays so, and the numbers in the trace go on.
    assert_eq!((lab.protected(), lab.world.is_writable(at(0, 0))), (2, false));
    let again = lab.jump(at(0, 0)).unwrap();
    assert_eq!(again, UnitIndex(0));
    assert!(lab.units.get(again).id > id);
    assert!(lab.write(at(0, 1), &[9]));
    assert_eq!(lab.state(again), Life::Closed);
}

#[test]
fn a_full_cache_is_flushed_while_nobody_can_be_in_it() {
    let mut lab = lab();
    lab.add_executable(code(pages(0, 2)));
    lab.world.put(at(0, 0), &jumps(at(0, 0), at(1, 0)));
    lab.world.put(at(1, 0), &returns(1));
    let from = lab.jump(at(0, 0)).unwrap();
    let [(_, exit)] = lab.branches(from)[..] else { panic!("it has one branch") };
    lab.arena.len = u64::from(lab.arena.used().0) + (1 << 20) - 1;
    lab.world.alone = false;
    lab.jump(at(0, 5)).unwrap();
    assert_eq!(lab.flushes, 0);
    lab.world.alone = true;
    // The branch of this exit is gone: nothing of the new code is patched.
    let linked = lab.link(exit).code.unwrap();
    assert_eq!(lab.flushes, 1);
    assert!(!lab.arena.changes.iter().any(|change| matches!(change, Change::Patch(..))));
    assert_eq!(lab.follow(linked), Reached::Unit(UnitIndex(0)));
}

#[test]
fn variants_are_forgotten_with_the_code() {
    let mut lab = lab();
    lab.add_executable(shared(page(0)));
    for n in 0..3 {
        lab.world.put(at(0, 0), &returns(n));
        lab.jump(at(0, 0)).unwrap();
    }
    lab.arena.len = u64::from(lab.arena.used().0) + (1 << 20) - 1;
    lab.world.put(at(0, 0), &returns(3));
    assert_eq!(lab.jump(at(0, 0)), Some(UnitIndex(0)));
    assert_eq!(lab.units.take_variants(at(0, 0)), [UnitIndex(0)]);
}

#[test]
fn a_child_flushes_what_its_trace_does_not_describe() {
    let mut lab = lab();
    lab.add_executable(code(page(0)));
    lab.world.put(at(0, 0), &returns(1));
    let unit = lab.jump(at(0, 0)).unwrap();
    lab.forked(true);
    assert_eq!((lab.flushes, lab.jump(at(0, 0))), (0, Some(unit)));
    assert_eq!(lab.follow(lab.entry(unit)), Reached::Unit(unit));
    lab.forked(false);
    assert_eq!((lab.flushes, lab.tables.entries()), (1, Vec::new()));
    let unit = lab.jump(at(0, 0)).unwrap();
    assert_eq!(lab.follow(lab.entry(unit)), Reached::Unit(unit));
}
