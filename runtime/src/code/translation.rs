//! Which blocks are translated together, and what becomes of their code.

use crate::base::census;
use crate::base::lasting::lasting;
use crate::code::address_map::AddressMap;
use crate::code::executable::ExecRange;
use crate::code::links::{put_stub, Exit, Links, Site};
use crate::code::span::Span;
use crate::code::units::NewUnit;
use crate::code::world::AheadOfTime;
use abi::ids::{CodeAddr, CodeOff, LiveAddr, OrigAddr, UnitId};
use abi::image::ImageHeader;
use abi::options::{torture, Options};
use abi::unit::{flags, unit_id, JitReason, JitUnit, TAGS_PER_WINDOW};
use alloc::vec::Vec;
use core::mem::take;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use iced_x86::{Decoder, DecoderOptions, Encoder};
use instrument::block::{Block, FarWindow, Placement, Source};
use instrument::fragment::{self, Fragment};
use instrument::plan::all_open;
use instrument::planner::names_versions;
use instrument::translate::Translator;
use lifter::region::{self, Cut, Link};

/// The tables of decoder and encoder have been made, where a fork does not copy them.
static TABLES: AtomicBool = AtomicBool::new(false);

const LONGEST_INSN: u64 = 15;
/// From this one on, all units are wide: the first window's may be narrow.
const FIRST_WIDE: u32 = TAGS_PER_WINDOW - 256;

/// Code that is translated together reaches no further.
pub const REACH: u64 = LONGEST_INSN * region::CHAIN_INSNS as u64;

/// What the rewriter said about the program.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Start of the code window.
    pub window: LiveAddr,
    /// The program itself.
    pub span: Span,
    /// Number window of the first unit that is translated here.
    pub first_window: u32,
    /// It was asked for no ahead-of-time code.
    pub dynamic: bool,
    /// The ahead-of-time code records more than is selected.
    pub reselected: bool,
}

impl Image {
    pub fn new(header: &ImageHeader, window: u64, reselected: bool) -> Image {
        Image {
            window: LiveAddr(window),
            span: Span::new(window + header.image_start, window + header.image_end),
            first_window: header.jit_window as u32,
            dynamic: header.flags & abi::image::flags::DYNAMIC != 0,
            reselected,
        }
    }
}

/// Makes fragments of original code, and numbers them.
///
/// No two units get the same number, nor two translations of one address the same version, however
/// often all code is forgotten: the trace has them all.
pub struct Translation {
    options: Options,
    image: Image,
    placement: Placement,
    /// Made when it is first needed: decoder and encoder fill a megabyte of tables.
    translator: Option<Translator>,
    /// Last version of each address.
    versions: AddressMap,
    /// The versions of an address are used up, in a format that names units by them.
    exhausted: bool,
    /// Units so far.
    count: u32,
    encoded: Vec<u8>,
}

/// The end of what is guarded for code at `target`: of what may be written, the page with the
/// first instruction and what it may reach into.
pub fn end_of_guarded(target: LiveAddr) -> LiveAddr {
    Span::page_of(target.plus(LONGEST_INSN - 1)).end
}

impl Translation {
    pub fn new(options: Options, image: Image) -> Translation {
        let placement = Placement {
            constant: instrument::block::Slots::default(),
            window_high: Some((image.window.0 >> 32) as u32),
            patchable: true,
            movable: false,
            exact_registers: false,
        };
        Translation {
            options,
            image,
            placement,
            translator: None,
            versions: AddressMap::default(),
            exhausted: false,
            count: 0,
            encoded: Vec::new(),
        }
    }

    /// One of the same image with other options.
    pub fn with(&self, options: Options) -> Translation {
        Translation::new(options, self.image)
    }

    /// Whether all units are wide from now on.
    pub fn makes_wide(&self) -> bool {
        self.count >= FIRST_WIDE
    }

    /// As if so many units had been made.
    #[cfg(test)]
    pub fn skip(&mut self, units: u32) {
        self.count += units;
    }

    /// Some code has changed: what was concluded from it may be wrong.
    pub fn forget_conclusions(&mut self) {
        if let Some(translator) = &mut self.translator {
            translator.live_map.forget();
        }
    }

    /// The instruction at `pc` accesses memory that others store to (`yes`), or is to be as the program has it. Whether that is
    /// new.
    pub fn mark(&mut self, pc: LiveAddr, yes: bool) -> bool {
        let marked = &mut self.translator().marked;
        match (marked.binary_search(&pc.0), yes) {
            (Err(place), true) => marked.insert(place, pc.0),
            (Ok(place), false) => drop(marked.remove(place)),
            _ => return false,
        }
        true
    }

    /// Translates the code at `target` and what belongs together with it; the result will be at
    /// `base`. `source` lies in `range`, and in `far` if not in the program's window. `is_known`: there is a
    /// unit already.
    #[allow(clippy::too_many_arguments, reason = "each says something else of one piece of code")]
    pub fn translate(
        &mut self,
        target: LiveAddr,
        wide: bool,
        range: ExecRange,
        source: Source,
        base: CodeAddr,
        far: Option<FarWindow>,
        is_known: impl Fn(LiveAddr) -> bool,
    ) -> Fragment {
        let mut blocks = self.chain(OrigAddr(target.0), source, wide, is_known);
        if range.shared || self.options.process.torture & torture::SCATTERED != 0 {
            blocks.truncate(1);
        }
        let mut out = Fragment::new(base.0);
        let translator = self.translator();
        // Code that is generated or written may be closed or dropped at any instruction.
        translator.far = far;
        translator.placement.exact_registers = !range.file || range.writable || range.shared;
        translator.translate(&blocks, source, &mut out);
        out
    }

    fn translator(&mut self) -> &mut Translator {
        let (options, placement) = (self.options, self.placement);
        self.translator.get_or_insert_with(|| {
            if census::live() <= 1 && !TABLES.swap(true, Relaxed) {
                lasting(|| {
                    let _ = (Decoder::new(64, &[], DecoderOptions::NONE), Encoder::new(64));
                });
            }
            Translator::new(options, placement)
        })
    }

    /// The units as the trace describes them; `None` if nothing is recorded.
    pub fn describe(
        &mut self,
        out: &Fragment,
        source: Source,
        range: ExecRange,
        ahead: &impl AheadOfTime,
    ) -> Option<&[u8]> {
        // What is not selected is named by nothing.
        let named = || out.units.iter().filter(|unit| unit.body.flags & flags::OUTSIDE == 0);
        let first = named().next().filter(|_| self.options.recording.records())?;
        let reason = self.reason(LiveAddr(first.start.0), range, ahead);
        self.encoded.clear();
        for unit in named() {
            let code = source.slice(unit.start, usize::from(unit.body.code_len)).to_vec();
            JitUnit {
                id: unit.id,
                address: LiveAddr(unit.start.0),
                version: unit.version,
                reason,
                body: unit.body.clone(),
                code,
            }
            .encode(&mut self.encoded);
        }
        Some(&self.encoded)
    }

    fn reason(&self, target: LiveAddr, range: ExecRange, ahead: &impl AheadOfTime) -> JitReason {
        if !range.file {
            JitReason::Anonymous
        } else if ahead.has(target) {
            JitReason::Missed
        } else if !self.image.span.contains(target) {
            JitReason::Library
        } else if self.image.dynamic {
            JitReason::Dynamic
        } else if self.image.reselected {
            JitReason::Selection
        } else if ahead.has_program() {
            JitReason::Modified
        } else {
            JitReason::Processor
        }
    }

    /// The blocks that are translated together with the one at `start`. Where there is a unit already
    /// (`is_known`), they end.
    fn chain(
        &mut self,
        start: OrigAddr,
        source: Source,
        wide: bool,
        is_known: impl Fn(LiveAddr) -> bool,
    ) -> Vec<Block> {
        let selective = self.options.recording.selective;
        let translator = self.translator();
        let mut before = source.selected.contains(start.0);
        let links = region::chain(
            start,
            source.slice(start, usize::MAX),
            |address| is_known(LiveAddr(address.0)),
            |insn| {
                let now = source.selected.contains(insn.ip());
                let changes = core::mem::replace(&mut before, now) != now;
                match selective && changes {
                    true => Cut::Before,
                    false => translator.cuts(insn),
                }
            },
        );
        let is_outside = |link: &Link| selective && !source.selected.contains(link.start.0);
        links
            .into_iter()
            .map(|link| self.block(link, start, wide || is_outside(&link), is_outside(&link)))
            .collect()
    }

    /// The next unit: `link`, of a chain that starts at `start`. One that is not selected may be entered from everywhere.
    fn block(&mut self, link: Link, start: OrigAddr, wide: bool, outside: bool) -> Block {
        let (n, first) = (self.count, link.start == start);
        self.count += 1;
        let version = self.next_version(LiveAddr(link.start.0));
        let is_again = version != 1 && all_open(self.options.recording);
        Block {
            start: link.start,
            len: link.len,
            id: unit_id(self.image.first_window, n),
            version,
            // What is not announced is the only one at its address that ever was.
            wide: n >= FIRST_WIDE || (first && wide) || link.indirect || outside || is_again,
            open: first || all_open(self.options.recording),
            is_linked: false,
        }
    }

    /// Each translation of an address has a version of its own, from 1.
    fn next_version(&mut self, address: LiveAddr) -> u16 {
        let last = self.versions.get(address).unwrap_or(0) as u16;
        let version = last.checked_add(1).unwrap_or_else(|| {
            self.exhausted |= names_versions(self.options.recording);
            last
        });
        self.versions.set(address, u32::from(version));
        version
    }

    /// Whether there are more translations of one address, since this was asked last, than the trace can
    /// tell apart.
    pub fn take_exhausted(&mut self) -> bool {
        take(&mut self.exhausted)
    }

    /// As if so many translations of `address` had been made.
    #[cfg(test)]
    pub fn skip_versions(&mut self, address: LiveAddr, versions: u16) {
        self.versions.set(address, u32::from(versions));
    }
}

/// Points the branches of a new fragment, which will be at `offset`, at what exists (`enterable`, by
/// target and the unit it comes from), or at exits behind it.
pub fn link_new(
    out: &mut Fragment,
    offset: CodeOff,
    links: &mut Links,
    enterable: impl Fn(LiveAddr, UnitId) -> Option<CodeAddr>,
) {
    for branch in take(&mut out.branches) {
        let (target, from) = (LiveAddr(branch.target.0), branch.from);
        let known = enterable(target, from);
        if known.is_some_and(|code| out.code.patch_rel32(branch.at, code.0)) {
            continue;
        }
        let at = Site::Branch(CodeOff(offset.0 + branch.at.0));
        let exit = links.add(Exit { at, target, from });
        let stub = out.code.here();
        out.code.bind(branch.at, stub);
        put_stub(&mut out.code, exit);
    }
}

/// A unit of `out`, which will be at `offset`.
pub fn new_unit<'a>(
    unit: &fragment::Unit,
    out: &'a Fragment,
    offset: CodeOff,
    source: Source<'a>,
) -> NewUnit<'a> {
    NewUnit {
        start: LiveAddr(unit.start.0),
        id: unit.id,
        wide: unit.wide,
        internal: unit.closed,
        entry: CodeOff(offset.0 + unit.entry.0),
        end: CodeOff(offset.0 + unit.end.0),
        original: source.slice(unit.start, usize::from(unit.body.code_len)),
        recipe: &out.recipes[unit.recipe as usize..unit.recipe_end as usize],
    }
}
