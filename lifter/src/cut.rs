//! Cuts marked text into blocks and collects them into functions.

use crate::discover::{Block, End, Function, Program, BLOCK_BYTES, BLOCK_INSNS};
use crate::flow::{flow, Flow};
use crate::image::Image;
use crate::text::LEADER;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// Decodes the block at offset `at`; marks where the rest goes on if it is cut. `None` if nothing
/// decodes there.
pub fn cut_block(
    decoder: &mut Decoder,
    base: u64,
    at: usize,
    marks: &mut [u8],
    indirect: bool,
) -> Option<Block> {
    decoder.set_position(at).ok()?;
    let start = base + at as u64;
    decoder.set_ip(start);
    let mut insn = Instruction::default();
    let (mut len, mut count) = (0u32, 0);
    let mut end = End::FallThrough;
    while end == End::FallThrough && decoder.can_decode() {
        let here = at + len as usize;
        if len != 0 && marks[here] & LEADER != 0 {
            break;
        }
        decoder.decode_out(&mut insn);
        if insn.is_invalid() {
            break;
        }
        if count == BLOCK_INSNS || len + insn.len() as u32 > BLOCK_BYTES {
            marks[here] |= LEADER;
            break;
        }
        count += 1;
        len += insn.len() as u32;
        end = match flow(&insn) {
            Flow::Next => End::FallThrough,
            Flow::Jump(target) => End::Jump(target),
            Flow::Branch(target) => End::Branch(target),
            Flow::IndirectJump => End::IndirectJump,
            Flow::Call(target) => End::Call(target),
            Flow::IndirectCall => End::IndirectCall,
            Flow::Return => End::Return,
            Flow::Syscall => End::Syscall,
            Flow::Stop { .. } => End::Stop,
        };
    }
    (len != 0).then_some(Block { start, len, end, indirect })
}

/// `program` with blocks that end in front of each instruction that `starts` a block of its own.
pub fn cut_before(
    program: Program,
    image: &Image,
    mut starts: impl FnMut(&Instruction) -> bool,
) -> Program {
    let blocks = || program.functions.iter().flat_map(|f| &f.blocks);
    let mut known: BTreeSet<u64> = blocks().map(|b| b.start).collect();
    let mut functions = Vec::with_capacity(program.functions.len());
    for function in &program.functions {
        let mut blocks = Vec::with_capacity(function.blocks.len());
        for &block in &function.blocks {
            let bytes = image.bytes_at(block.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(block.len as usize)];
            let mut decoder = Decoder::with_ip(64, bytes, block.start, DecoderOptions::NONE);
            let mut rest = Some(block);
            while decoder.can_decode() {
                let insn = decoder.decode();
                let Some(open) = rest.filter(|open| insn.ip() > open.start) else { continue };
                if !starts(&insn) {
                    continue;
                }
                let len = (insn.ip() - open.start) as u32;
                blocks.push(Block { len, end: End::FallThrough, ..open });
                // Another reading of the bytes may have come here before; it goes on there.
                rest = known.insert(insn.ip()).then_some(Block {
                    start: insn.ip(),
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
pub struct Builder {
    pub functions: Vec<Function>,
    /// Blocks of the function that is being collected.
    blocks: Vec<Block>,
}

impl Builder {
    pub fn add(&mut self, block: Option<Block>) {
        let Some(block) = block else { return };
        let end = self.blocks.last().map_or(0, |b| b.start + u64::from(b.len));
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
