//! Cuts marked text into blocks and collects them into functions.

use crate::flow::{End, Flow};
use crate::image::Image;
use crate::program::{Block, Function, Program};
use crate::region::{self, length, Rules, Step};
use crate::text::LEADER;
use abi::ids::OrigAddr;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// Decodes the block at offset `at`; marks where the rest goes on if it is cut. `None` if nothing
/// decodes there.
pub(crate) fn cut_block(
    decoder: &mut Decoder,
    base: u64,
    at: usize,
    marks: &mut [u8],
    indirect: bool,
) -> Option<Block> {
    decoder.set_position(at).ok()?;
    let start = OrigAddr(base + at as u64);
    decoder.set_ip(start.0);
    let mut insn = Instruction::default();
    let step = |_| {
        if !decoder.can_decode() {
            return None;
        }
        decoder.decode_out(&mut insn);
        (!insn.is_invalid()).then(|| Step { len: length(&insn), flow: Flow::of(&insn) })
    };
    let leads = |address: OrigAddr| {
        let offset = usize::try_from(address.from_start(start)).ok();
        offset.and_then(|o| marks.get(at + o)).is_some_and(|mark| mark & LEADER != 0)
    };
    let extent = region::block(start, Rules::AHEAD_OF_TIME, step, leads)?;
    if extent.cut {
        marks[at + extent.len as usize] |= LEADER;
    }
    Some(Block { start, len: extent.len, end: extent.last.end(), indirect })
}

/// `program` with blocks that end in front of each instruction that `starts` a block of its own. It is
/// asked with the address of the instruction in front, which is in the same block.
pub fn cut_before(
    program: Program,
    image: &Image,
    mut starts: impl FnMut(&Instruction, &Instruction) -> bool,
) -> Program {
    let blocks = || program.functions.iter().flat_map(|f| &f.blocks);
    let mut known: BTreeSet<OrigAddr> = blocks().map(|b| b.start).collect();
    let mut functions = Vec::with_capacity(program.functions.len());
    for function in &program.functions {
        let mut blocks = Vec::with_capacity(function.blocks.len());
        for &block in &function.blocks {
            let bytes = image.bytes_at(block.start.0).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(block.len as usize)];
            let mut decoder = Decoder::with_ip(64, bytes, block.start.0, DecoderOptions::NONE);
            let mut rest = Some(block);
            let mut previous = Instruction::default();
            while decoder.can_decode() {
                let insn = decoder.decode();
                let at = OrigAddr(insn.ip());
                let in_front = core::mem::replace(&mut previous, insn);
                let Some(open) = rest.filter(|open| at > open.start) else { continue };
                if !starts(&insn, &in_front) {
                    continue;
                }
                // An instruction of the block lies inside of its bytes, which a u32 counts.
                let len = u32::try_from(at.from_start(open.start)).unwrap_or(open.len);
                blocks.push(Block { len, end: End::FallThrough, ..open });
                // Another reading of the bytes may have come here before; it goes on there.
                rest = known.insert(at).then_some(Block {
                    start: at,
                    len: open.len - len,
                    indirect: false,
                    ..open
                });
                if rest.is_none() {
                    break;
                }
            }
            blocks.extend(rest);
        }
        functions.push(Function { start: function.start, blocks });
    }
    Program { functions, ..program }
}

/// Collects blocks into functions.
#[derive(Default)]
pub(crate) struct Builder {
    pub functions: Vec<Function>,
    /// Blocks of the function that is being collected.
    blocks: Vec<Block>,
}

impl Builder {
    pub fn add(&mut self, block: Option<Block>) {
        let Some(block) = block else { return };
        let end = self.blocks.last().map_or(OrigAddr(0), Block::behind);
        if block.start < end {
            // A jump into the middle of an instruction: this reading of the bytes stands alone.
            self.functions.push(Function { start: block.start, blocks: [block].into() });
        } else {
            self.blocks.push(block);
        }
    }

    pub fn close(&mut self) {
        if let Some(first) = self.blocks.first() {
            self.functions.push(Function { start: first.start, blocks: self.blocks.to_vec() });
            self.blocks.clear();
        }
    }
}
