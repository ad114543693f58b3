//! The units in the code cache, and who may enter them.

use crate::base::costs;
use crate::code::address_map::AddressMap;
use crate::code::links::{put_stub, Exit, Links, Site, UnitIndex};
use crate::code::span::Span;
use crate::code::world::CodeMemory;
use abi::event::Cost;
use abi::ids::{CodeAddr, CodeOff, LiveAddr, UnitId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use instrument::emit::{closed_gate, gate_of, Code, GATE};

/// Units that are kept for one address of memory that may change unnoticed.
pub const MOST_VARIANTS: usize = 64;

/// A unit in the code cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedUnit {
    pub start: LiveAddr,
    pub len: u32,
    pub id: UnitId,
    pub wide: bool,
    pub state: Life,
    pub entry: CodeOff,
    pub end: CodeOff,
    /// The stub that its gate leads to while it is closed, once it has one.
    stub: Option<CodeOff>,
    /// Offset in `originals` of the bytes that it was translated from.
    original: u32,
    /// Range in `recipes`.
    recipe: u32,
    recipe_end: u32,
}

impl CachedUnit {
    /// Its original code.
    pub fn span(&self) -> Span {
        Span { start: self.start, end: self.start.plus(u64::from(self.len)) }
    }
}

/// Whether a unit may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    Open,
    /// Its code may have changed: it is compared before it runs again.
    Closed,
    /// Its code has changed, or may have.
    Dead,
}

/// A unit that was translated just now.
pub struct NewUnit<'a> {
    pub start: LiveAddr,
    pub id: UnitId,
    pub wide: bool,
    /// Not to be entered from elsewhere.
    pub internal: bool,
    pub entry: CodeOff,
    pub end: CodeOff,
    /// The bytes that it was translated from.
    pub original: &'a [u8],
    pub recipe: &'a [u8],
}

/// All units since the last flush.
///
/// Threads may be inside of a unit, or on their way to its gate, for as long as they please: a unit
/// is never taken back, its gate is led elsewhere. The gate of an open unit lets through; that of a
/// closed one leads to the unit's own stub; that of a dead one to its stub, or to the open or closed
/// unit that has taken its place (`forwarded`). A closed unit opens only if its bytes are what they
/// were; a dead one never.
#[derive(Default)]
pub struct Units {
    list: Vec<CachedUnit>,
    /// Those that may be entered from anywhere, by address; none of them is dead.
    map: AddressMap,
    /// Those that are not dead, and some that are, by the pages of their original code.
    by_page: BTreeMap<u64, Vec<UnitIndex>>,
    /// The original code of all.
    originals: Vec<u8>,
    recipes: Vec<u8>,
    /// Those of code that may change unnoticed, by address: what is there now may be what one of
    /// them was made of. No branch and no table leads to them.
    variants: BTreeMap<LiveAddr, Vec<UnitIndex>>,
    /// What lies right behind a call, by its return address: a translation of that, maybe a dead one, or a
    /// jump there. Of several such calls, the last one.
    returns: AddressMap,
    /// The dead units whose gates lead to a unit that is not.
    forwarded: BTreeMap<UnitIndex, Vec<UnitIndex>>,
}

impl Units {
    pub fn reserve(&mut self, more: usize) {
        self.list.reserve(more);
    }

    pub fn get(&self, i: UnitIndex) -> &CachedUnit {
        &self.list[i.0 as usize]
    }

    /// The index of the unit that is added next.
    pub fn next(&self) -> UnitIndex {
        UnitIndex(self.list.len() as u32)
    }

    /// Those from `first` on.
    pub fn since(&self, first: UnitIndex) -> impl Iterator<Item = UnitIndex> {
        (first.0..self.list.len() as u32).map(UnitIndex)
    }

    /// Adds a unit, open. It lies behind all others.
    pub fn add(&mut self, new: NewUnit) -> UnitIndex {
        let i = self.next();
        if !new.internal {
            self.map.set(new.start, i.0);
        }
        let len = new.original.len() as u32;
        let at_least_one = Span { start: new.start, end: new.start.plus(u64::from(len.max(1))) };
        for page in at_least_one.pages() {
            self.by_page.entry(page).or_default().push(i);
        }
        let original = self.originals.len() as u32;
        self.originals.extend_from_slice(new.original);
        let recipe = self.recipes.len() as u32;
        self.recipes.extend_from_slice(new.recipe);
        self.list.push(CachedUnit {
            start: new.start,
            len,
            id: new.id,
            wide: new.wide,
            state: Life::Open,
            entry: new.entry,
            end: new.end,
            stub: None,
            original,
            recipe,
            recipe_end: self.recipes.len() as u32,
        });
        i
    }

    /// Right behind a call that returns to `address`, at `at`, the way leads there.
    pub fn add_return(&mut self, address: LiveAddr, at: CodeOff) {
        self.returns.set(address, at.0);
    }

    /// Where the processor expects a call to return to that returns to `address`.
    pub fn return_to(&self, address: LiveAddr) -> Option<CodeOff> {
        self.returns.get(address).map(CodeOff)
    }

    /// The unit that may be entered at `address` from anywhere.
    pub fn at(&self, address: LiveAddr) -> Option<UnitIndex> {
        self.map.get(address).map(UnitIndex)
    }

    /// The unit whose code this offset lies in.
    pub fn find(&self, at: CodeOff) -> Option<&CachedUnit> {
        let i = self.list.partition_point(|u| u.entry <= at).checked_sub(1)?;
        let unit = &self.list[i];
        (at < unit.end).then_some(unit)
    }

    pub fn recipe(&self, unit: &CachedUnit) -> Option<&[u8]> {
        self.recipes.get(unit.recipe as usize..unit.recipe_end as usize)
    }

    /// Whether `now` is what the unit was translated from.
    pub fn is_made_of(&self, i: UnitIndex, now: &[u8]) -> bool {
        let unit = self.get(i);
        let then: Range<usize> = unit.original as usize..(unit.original + unit.len) as usize;
        self.originals[then] == *now
    }

    /// Those that are not dead and have code in `span`.
    pub fn within(&mut self, span: Span) -> Vec<UnitIndex> {
        if span.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let units = &self.list;
        let get = |i: &UnitIndex| &units[i.0 as usize];
        for list in self.by_page.range_mut(span.pages()).map(|(_, list)| list) {
            list.retain(|i| get(i).state != Life::Dead);
            found.extend(list.iter().copied().filter(|i| get(i).span().touches(span)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    // --- gates ---

    /// Whoever enters the unit, which is open, comes to the runtime instead. Threads may be inside
    /// of it.
    pub fn close(&mut self, i: UnitIndex, links: &mut Links, code: &mut impl CodeMemory) {
        if self.get(i).state == Life::Open {
            let stub = self.make_stub(i, links, code);
            self.lead(i, code.live(stub), code);
            self.list[i.0 as usize].state = Life::Closed;
            costs::count(Cost::Closed, self.get(i).start.0);
        }
    }

    /// The gate lets through again, if it is only closed.
    pub fn reopen(&mut self, i: UnitIndex, code: &mut impl CodeMemory) {
        if self.get(i).state == Life::Closed {
            code.replace(self.gate(i), GATE);
            self.list[i.0 as usize].state = Life::Open;
        }
    }

    /// Nobody enters the unit any more. Returns its address, if no other unit may be entered there.
    #[must_use]
    pub fn kill(
        &mut self,
        i: UnitIndex,
        links: &mut Links,
        code: &mut impl CodeMemory,
    ) -> Option<LiveAddr> {
        self.close(i, links, code);
        self.list[i.0 as usize].state = Life::Dead;
        for earlier in self.forwarded.remove(&i).unwrap_or_default() {
            // Not by way of this one, and the next one, and the one behind that.
            let stub = self.make_stub(earlier, links, code);
            self.lead(earlier, code.live(stub), code);
        }
        let start = self.get(i).start;
        (self.at(start) == Some(i)).then(|| {
            self.map.remove(start);
            start
        })
    }

    /// Whoever comes to dead unit `i` goes on to the one that has taken its place at `target`, if
    /// `to` is of one. (Ahead-of-time code may be taken out of use without our looking here.)
    pub fn forward(
        &mut self,
        i: UnitIndex,
        target: LiveAddr,
        to: CodeAddr,
        code: &mut impl CodeMemory,
    ) {
        let now = self.at(target).filter(|&now| now != i);
        if let Some(now) = now.filter(|&now| code.live(self.get(now).entry) == to) {
            self.lead(i, to, code);
            self.forwarded.entry(now).or_default().push(i);
        }
    }

    /// The stub that the unit's gate leads to while it is closed.
    pub fn make_stub(
        &mut self,
        i: UnitIndex,
        links: &mut Links,
        code: &mut impl CodeMemory,
    ) -> CodeOff {
        let unit = self.get(i);
        if let Some(stub) = unit.stub {
            return stub;
        }
        let exit = links.add(Exit { at: Site::Gate(i), target: unit.start, from: unit.id });
        let at = code.used();
        let mut stub = Code { bytes: Vec::new(), base: code.live(at).0 };
        put_stub(&mut stub, exit);
        code.append(&stub.bytes);
        self.list[i.0 as usize].stub = Some(at);
        at
    }

    fn gate(&self, i: UnitIndex) -> CodeOff {
        CodeOff(gate_of(self.get(i).entry.0.into()) as u32)
    }

    /// The unit's gate becomes a jump to `to`.
    fn lead(&self, i: UnitIndex, to: CodeAddr, code: &mut impl CodeMemory) {
        let gate = self.gate(i);
        let jump = closed_gate(code.live(gate).0, to.0);
        code.replace(gate, jump);
    }

    // --- code that may change unnoticed ---

    /// The units that were made of what was at `target` at one time or another, for now forgotten:
    /// to be given back by [`Units::keep_variants`].
    pub fn take_variants(&mut self, target: LiveAddr) -> Vec<UnitIndex> {
        let mut known = self.variants.remove(&target).unwrap_or_default();
        known.retain(|&i| self.get(i).state != Life::Dead);
        known
    }

    pub fn keep_variants(&mut self, target: LiveAddr, known: Vec<UnitIndex>) {
        self.variants.insert(target, known);
    }

    /// Code in `span` does not change unnoticed any more: its units may be linked from now on.
    pub fn forget_variants(&mut self, span: Span) {
        let inside: Vec<LiveAddr> =
            self.variants.range(span.start..span.end).map(|(&at, _)| at).collect();
        for at in inside {
            self.variants.remove(&at);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.map = AddressMap::default();
        self.by_page.clear();
        self.originals.clear();
        self.recipes.clear();
        self.variants.clear();
        self.returns = AddressMap::default();
        self.forwarded.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::test_support::{FakeCode, Gate, MEMORY};
    use abi::layout::PAGE;

    #[derive(Default)]
    struct Lab {
        units: Units,
        links: Links,
    }

    /// A unit at `start` made of these bytes, whose code is only a gate.
    fn add(lab: &mut Lab, code: &mut FakeCode, start: u64, original: &[u8]) -> UnitIndex {
        let entry = code.used();
        code.append(&GATE);
        let (start, id) = (LiveAddr(start), UnitId::new(1, entry.0 as u16));
        let end = CodeOff(entry.0 + 5);
        let (wide, internal) = (true, false);
        let recipe = &[];
        lab.units.add(NewUnit { start, id, wide, internal, entry, end, original, recipe })
    }

    fn gate(lab: &Lab, code: &FakeCode, i: UnitIndex) -> Gate {
        code.gate(lab.units.get(i).entry)
    }

    fn entry(lab: &Lab, code: &FakeCode, i: UnitIndex) -> CodeAddr {
        code.live(lab.units.get(i).entry)
    }

    /// The gate that the exit belongs to which the unit's gate leads to.
    fn waits_at(lab: &Lab, code: &FakeCode, i: UnitIndex) -> Option<UnitIndex> {
        let Gate::LeadsTo(stub) = gate(lab, code, i) else { return None };
        let exit = lab.links.get(code.stub(code.offset(stub)?)?);
        match exit.at {
            Site::Gate(at) if exit.target == lab.units.get(at).start => Some(at),
            _ => None,
        }
    }

    #[test]
    fn a_gate_closes_and_opens() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let i = add(&mut lab, &mut code, MEMORY, &[1, 2]);
        assert_eq!(gate(&lab, &code, i), Gate::LetsThrough);
        lab.units.close(i, &mut lab.links, &mut code);
        assert_eq!((lab.units.get(i).state, waits_at(&lab, &code, i)), (Life::Closed, Some(i)));
        lab.units.reopen(i, &mut code);
        assert_eq!((lab.units.get(i).state, gate(&lab, &code, i)), (Life::Open, Gate::LetsThrough));
        // It has its stub already.
        let used = code.used();
        lab.units.close(i, &mut lab.links, &mut code);
        assert_eq!((code.used(), waits_at(&lab, &code, i)), (used, Some(i)));
    }

    #[test]
    fn a_dead_unit_never_opens() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let i = add(&mut lab, &mut code, MEMORY, &[1]);
        assert_eq!(lab.units.kill(i, &mut lab.links, &mut code), Some(LiveAddr(MEMORY)));
        lab.units.reopen(i, &mut code);
        assert_eq!((lab.units.get(i).state, waits_at(&lab, &code, i)), (Life::Dead, Some(i)));
        assert_eq!(lab.units.at(LiveAddr(MEMORY)), None);
    }

    #[test]
    fn a_unit_that_was_replaced_leaves_the_map_alone() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let old = add(&mut lab, &mut code, MEMORY, &[1]);
        let new = add(&mut lab, &mut code, MEMORY, &[1]);
        assert_eq!(lab.units.kill(old, &mut lab.links, &mut code), None);
        assert_eq!(lab.units.at(LiveAddr(MEMORY)), Some(new));
    }

    #[test]
    fn who_is_forwarded_and_forwarded_again_comes_back_when_that_one_dies() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let at = LiveAddr(MEMORY);
        let first = add(&mut lab, &mut code, MEMORY, &[1]);
        assert!(lab.units.kill(first, &mut lab.links, &mut code).is_some());
        let second = add(&mut lab, &mut code, MEMORY, &[2]);
        let to = entry(&lab, &code, second);
        lab.units.forward(first, at, to, &mut code);
        assert_eq!(gate(&lab, &code, first), Gate::LeadsTo(to));
        // The second one dies: nobody goes through its gate to wherever that leads.
        assert!(lab.units.kill(second, &mut lab.links, &mut code).is_some());
        assert_eq!(waits_at(&lab, &code, first), Some(first));
        let third = add(&mut lab, &mut code, MEMORY, &[3]);
        let to = entry(&lab, &code, third);
        lab.units.forward(second, at, to, &mut code);
        lab.units.forward(first, at, to, &mut code);
        for i in [first, second] {
            assert_eq!(gate(&lab, &code, i), Gate::LeadsTo(to));
        }
        assert!(lab.units.kill(third, &mut lab.links, &mut code).is_some());
        for i in [first, second, third] {
            assert_eq!(waits_at(&lab, &code, i), Some(i));
        }
    }

    #[test]
    fn only_what_is_the_unit_at_the_address_is_forwarded_to() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let at = LiveAddr(MEMORY);
        let old = add(&mut lab, &mut code, MEMORY, &[1]);
        assert!(lab.units.kill(old, &mut lab.links, &mut code).is_some());
        let new = add(&mut lab, &mut code, MEMORY, &[1]);
        // Ahead-of-time code, or whatever else.
        lab.units.forward(old, at, entry(&lab, &code, new).plus(4), &mut code);
        assert_eq!(waits_at(&lab, &code, old), Some(old));
    }

    #[test]
    fn units_are_found_by_each_page_of_their_code_and_by_no_other() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let before = add(&mut lab, &mut code, MEMORY + PAGE - 8, &[0; 6]);
        let across = add(&mut lab, &mut code, MEMORY + PAGE - 2, &[0; 4]);
        let behind = add(&mut lab, &mut code, MEMORY + PAGE + 2, &[0; 4]);
        let span = |from, to| Span::new(MEMORY + from, MEMORY + to);
        assert_eq!(lab.units.within(span(0, PAGE)), [before, across]);
        assert_eq!(lab.units.within(span(PAGE, 2 * PAGE)), [across, behind]);
        assert_eq!(lab.units.within(span(0, 2 * PAGE)), [before, across, behind]);
        assert_eq!(lab.units.within(span(PAGE + 1, PAGE + 2)), [across]);
        assert_eq!(lab.units.within(span(PAGE, PAGE)), []);
        assert_eq!(lab.units.within(Span::ALL), [before, across, behind]);
        let _ = lab.units.kill(across, &mut lab.links, &mut code);
        assert_eq!(lab.units.within(span(0, 2 * PAGE)), [before, behind]);
    }

    #[test]
    fn each_unit_remembers_its_own_bytes_and_code() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let a = add(&mut lab, &mut code, MEMORY, &[1, 2, 3]);
        let b = add(&mut lab, &mut code, MEMORY + 3, &[4, 5]);
        assert!(lab.units.is_made_of(a, &[1, 2, 3]) && lab.units.is_made_of(b, &[4, 5]));
        assert!(!lab.units.is_made_of(a, &[1, 2, 4]) && !lab.units.is_made_of(b, &[4]));
        let at = |lab: &Lab, i| lab.units.get(i).entry;
        let found = |lab: &Lab, at: CodeOff| lab.units.find(at).map(|u| u.start.0 - MEMORY);
        assert_eq!(found(&lab, at(&lab, b)), Some(3));
        assert_eq!(found(&lab, CodeOff(at(&lab, b).0 - 1)), None);
        assert_eq!(found(&lab, CodeOff(at(&lab, a).0 + 4)), Some(0));
        assert_eq!(found(&lab, CodeOff(at(&lab, a).0 - 1)), None);
    }

    #[test]
    fn dead_variants_are_forgotten() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let at = LiveAddr(MEMORY);
        let a = add(&mut lab, &mut code, MEMORY, &[1]);
        let b = add(&mut lab, &mut code, MEMORY, &[2]);
        lab.units.keep_variants(at, alloc::vec![a, b]);
        let _ = lab.units.kill(a, &mut lab.links, &mut code);
        assert_eq!(lab.units.take_variants(at), [b]);
        assert_eq!(lab.units.take_variants(at), []);
    }

    #[test]
    fn nothing_is_left_of_what_is_cleared() {
        let (mut lab, mut code) = (Lab::default(), FakeCode::new());
        let at = LiveAddr(MEMORY);
        let a = add(&mut lab, &mut code, MEMORY, &[1]);
        let _ = lab.units.kill(a, &mut lab.links, &mut code);
        let b = add(&mut lab, &mut code, MEMORY, &[2]);
        lab.units.forward(a, at, entry(&lab, &code, b), &mut code);
        lab.units.keep_variants(at, alloc::vec![b]);
        lab.units.clear();
        lab.links.clear();
        code.restart();
        assert_eq!(lab.units.at(at), None);
        assert_eq!(lab.units.within(Span::ALL), []);
        assert_eq!(lab.units.take_variants(at), []);
        assert!(lab.units.find(CodeOff(64)).is_none());
        // Numbers begin again: what was said of those of before is not true of these.
        add(&mut lab, &mut code, MEMORY, &[3]);
        let second = add(&mut lab, &mut code, MEMORY + 1, &[4]);
        assert_eq!(second, b);
        let changes = code.changes.len();
        let _ = lab.units.kill(second, &mut lab.links, &mut code);
        assert_eq!(code.changes.len(), changes + 2, "its stub and its gate, nobody else's");
        assert!(lab.units.is_made_of(second, &[4]));
    }
}
