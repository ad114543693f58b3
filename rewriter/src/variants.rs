//! The translations of one image: the one that records, and behind it the one that does not, for a
//! recording that is switched off.

use crate::convert::index;
use crate::translate::{cut, translate, Target, Translated};
use abi::ids::OrigAddr;
use abi::layout::page_up;
use abi::options::Options;
use abi::selection::Selected;
use abi::tables::Tables;
use lifter::image::Image;
use lifter::program::{Function, Program};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// Blocks as each translation needs them.
pub struct Blocks {
    pub recorded: Program,
    /// Of code that records nothing, if that is translated, too.
    plain: Option<Program>,
}

impl Blocks {
    pub fn new(program: Program, image: &Image, options: Options, selected: Selected) -> Blocks {
        // Where they are cut depends on what is recorded.
        let plain = options.process.switchable.then(|| program.clone());
        let plain = plain.map(|p| cut(p, image, options.plain(), Selected::EVERYTHING));
        Blocks { recorded: cut(program, image, options, selected), plain }
    }

    /// Forgets the other functions.
    pub fn keep(&mut self, wanted: impl Fn(&Function) -> bool) {
        for program in [Some(&mut self.recorded), self.plain.as_mut()].into_iter().flatten() {
            program.functions.retain(&wanted);
        }
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        let blocks = self.recorded.functions.iter().flat_map(|function| &function.blocks);
        blocks.map(|block| u64::from(block.len)).sum()
    }

    /// Those in each of these ranges of addresses. Code of another range is reached by its address.
    pub fn divide(mut self, ranges: &[Range<u64>]) -> Vec<Blocks> {
        if ranges.len() < 2 {
            return vec![self];
        }
        let mut parts = Vec::new();
        let programs = [Some(&mut self.recorded), self.plain.as_mut()];
        for program in programs.into_iter().flatten() {
            expose(program, ranges);
        }
        for range in ranges {
            let part = |program: &mut Program| {
                let all = std::mem::take(&mut program.functions);
                let inside = |function: &Function| range.contains(&function.start.0);
                let (functions, others) = all.into_iter().partition(inside);
                program.functions = others;
                Program { functions, ..Program::default() }
            };
            let recorded = part(&mut self.recorded);
            parts.push(Blocks { recorded, plain: self.plain.as_mut().map(part) });
        }
        parts
    }

    /// Translates all of them.
    pub fn translate(&self, image: &Image, target: Target) -> Variants {
        let recorded = translate(&self.recorded, image, target);
        let plain = self.plain.as_ref().map(|plain| {
            let target = Target {
                options: target.options.plain(),
                selected: Selected::EVERYTHING,
                code: target.code + distance(&recorded),
                ..target
            };
            translate(plain, image, target)
        });
        Variants { recorded, plain }
    }
}

/// Blocks to which others branch from another range are looked up by their addresses.
fn expose(program: &mut Program, ranges: &[Range<u64>]) {
    let part = |address: OrigAddr| ranges.iter().position(|range| range.contains(&address.0));
    let mut entered = HashSet::new();
    for block in program.functions.iter().flat_map(|function| &function.blocks) {
        let from = part(block.start);
        let targets = block.end.successors(block.behind()).into_iter().flatten();
        entered.extend(targets.filter(|target| part(*target) != from));
    }
    for block in program.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        block.indirect |= entered.contains(&block.start);
    }
}

/// From the code of one translation to that of the other: they share no page, as one may be changed
/// while the other runs.
fn distance(recorded: &Translated) -> u64 {
    page_up(recorded.code.len() as u64)
}

/// The translations of an image.
#[derive(Clone, Debug, Default)]
pub struct Variants {
    pub recorded: Translated,
    pub plain: Option<Translated>,
}

impl Variants {
    /// The code of all.
    pub fn code(&self) -> Cow<'_, [u8]> {
        let Some(plain) = &self.plain else { return Cow::Borrowed(&self.recorded.code) };
        let mut code = self.recorded.code.clone();
        code.resize(index(distance(&self.recorded)), 0xcc);
        code.extend_from_slice(&plain.code);
        Cow::Owned(code)
    }

    /// Bytes of [`Variants::code`].
    pub fn code_len(&self) -> usize {
        match &self.plain {
            Some(plain) => index(distance(&self.recorded)) + plain.code.len(),
            None => self.recorded.code.len(),
        }
    }

    /// See [`Translated::table_bytes`].
    pub fn table_bytes(&self) -> u64 {
        self.recorded.table_bytes() + self.plain.as_ref().map_or(0, Translated::table_bytes)
    }

    /// As [`Translated::place`], for both: what the reader of traces reads comes last. The code will be
    /// at `code`, and the window of the first unit is `first_window`.
    pub fn place(
        &self,
        code: u64,
        first_window: u32,
        mut place: impl FnMut(&[u8]) -> u64,
    ) -> [Tables; 2] {
        let plain = self.plain.as_ref().map(|plain| Tables {
            code: code + distance(&self.recorded),
            first_window: first_window.into(),
            ..plain.place(|table| place(table))
        });
        let recorded = self.recorded.place(place);
        let recorded = Tables { code, first_window: first_window.into(), ..recorded };
        [recorded, plain.unwrap_or_default()]
    }
}
