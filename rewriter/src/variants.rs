//! The translations of one image: the one that records, and behind it the one that does not, for a
//! recording that is switched off.

use crate::convert::index;
use crate::translate::{cut, translate, Target, Translated};
use abi::layout::page_up;
use abi::options::Options;
use abi::selection::Selected;
use abi::tables::Tables;
use lifter::image::Image;
use lifter::program::Program;
use std::borrow::Cow;

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
            // A trace names none of its units.
            Translated { descriptions: Vec::new(), ..translate(plain, image, target) }
        });
        Variants { recorded, plain }
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
