//! How much of a program is translated ahead of time. Its translation has to lie near it; of one that is too
//! large for that, what an earlier run needed is translated, or nothing: the rest is translated when it runs.

use crate::input::Input;
use crate::layout::Places;
use crate::learn::Learned;
use crate::translate::Target;
use crate::variants::{Blocks, Variants};
use lifter::image::Image;

/// Room for the tables besides what blocks need.
const ROOM: u64 = 1 << 20;
/// Room for the tables of each block, at the first attempt.
const ROOM_PER_BLOCK: u64 = 64;
/// Between what is added.
const BETWEEN: u64 = 1 << 18;

/// How much of a program is translated ahead of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coverage {
    Everything,
    /// So many functions that earlier runs needed.
    Learned(usize),
    Nothing,
}

impl Coverage {
    /// What a user should know of it.
    pub fn says(self) -> Option<String> {
        match self {
            Coverage::Everything => None,
            Coverage::Learned(count) => Some(format!(
                "too large to be translated ahead of time: only the {count} functions of --learn are"
            )),
            Coverage::Nothing => Some(
                "too large to be translated ahead of time: left to run time \
                 (--learn TRACE, of a run, translates what that run needed)"
                    .to_owned(),
            ),
        }
    }
}

/// Translates as much of the program as there is room for, beside a runtime of `runtime` bytes; `blocks` keeps
/// what that is. Where the code lies is not yet said in `target`.
pub fn translate(
    input: &Input,
    image: &Image,
    blocks: &mut Blocks,
    target: Target,
    learned: &Learned,
    runtime: u64,
) -> (Places, Variants, Coverage) {
    if let Some((places, translated)) = attempt(input, image, blocks, target, runtime) {
        return (places, translated, Coverage::Everything);
    }
    blocks.keep(|function| {
        let end = function.blocks.last().map_or(function.start, |block| block.behind());
        let first = learned.ran.partition_point(|address| *address < function.start.0);
        learned.ran.get(first).is_some_and(|address| *address < end.0)
    });
    let count = blocks.recorded.functions.len();
    if count != 0 {
        if let Some((places, translated)) = attempt(input, image, blocks, target, runtime) {
            return (places, translated, Coverage::Learned(count));
        }
        blocks.keep(|_| false);
    }
    (Places::new(input, ROOM), Variants::default(), Coverage::Nothing)
}

/// The translation of these blocks, if there is room for it.
fn attempt(
    input: &Input,
    image: &Image,
    blocks: &Blocks,
    target: Target,
    runtime: u64,
) -> Option<(Places, Variants)> {
    let variants = if target.options.process.switchable { 2 } else { 1 };
    let mut room = ROOM + variants * ROOM_PER_BLOCK * blocks.recorded.block_count() as u64;
    // No instruction gets shorter.
    let least = variants * blocks.bytes();
    loop {
        let places = Places::new(input, room);
        if !Places::fits(input, places.code + least) {
            return None;
        }
        let translated = blocks.translate(image, Target { code: places.code, ..target });
        let needed = translated.table_bytes();
        if needed <= room {
            let end = places.runtime(translated.code_len(), 0) + runtime + BETWEEN;
            return Places::fits(input, end).then_some((places, translated));
        }
        room = needed;
    }
}
