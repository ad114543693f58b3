//! Code that looks at the word which a return leaves below the stack pointer: the address that it has read.
//!
//! Compilers do so that are asked to harden speculative loads (clang's `-mspeculative-load-hardening`): behind each
//! call the word tells whether the processor has come back where it should. That word is one of two things that
//! translated code does not leave as it is natively, unless it is told to.

use abi::ids::OrigAddr;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};
use lifter::flow::End;
use lifter::image::Image;
use lifter::program::{Block, Program};

/// So many instructions behind a call may come before the one that looks.
const NEAR: usize = 4;

/// An instruction behind a call that reads the word below the stack pointer, if there is one.
pub fn looks_below(program: &Program, image: &Image) -> Option<OrigAddr> {
    let mut factory = InstructionInfoFactory::new();
    let pairs = program.functions.iter().flat_map(|function| function.blocks.windows(2));
    let mut behind_calls = pairs.filter_map(|pair| {
        let [before, block] = pair else { return None };
        let is_call = matches!(before.end, End::Call(_) | End::IndirectCall);
        (is_call && before.behind() == block.start).then_some(block)
    });
    behind_calls.find_map(|block| looks_below_at(block, image, &mut factory))
}

fn looks_below_at(
    block: &Block,
    image: &Image,
    factory: &mut InstructionInfoFactory,
) -> Option<OrigAddr> {
    let bytes = image.bytes_at(block.start.0)?;
    let bytes = bytes.get(..block.len as usize)?;
    let mut decoder = Decoder::with_ip(64, bytes, block.start.0, DecoderOptions::NONE);
    for insn in decoder.iter().take(NEAR) {
        // (`lea` touches no memory, and says so.)
        let info = factory.info(&insn);
        let below = |memory: &iced_x86::UsedMemory| {
            let (from, size) = (memory.displacement().cast_signed(), memory.memory_size().size());
            memory.base() == Register::RSP
                && memory.index() == Register::None
                && (-8..0).contains(&from)
                && size <= 8
        };
        let mut words = info.used_memory().iter().filter(|memory| below(memory));
        if let Some(word) = words.next() {
            let is_read = matches!(
                word.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            return is_read.then(|| OrigAddr(insn.ip()));
        }
        let moves = info.used_registers().iter().any(|used| {
            used.register().full_register() == Register::RSP && used.access() != OpAccess::Read
        });
        if moves {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifter::image::Segment;
    use lifter::program::Function;

    /// What is found behind a call that these bytes follow.
    fn found(behind: &[u8]) -> Option<u64> {
        let mut bytes = vec![0xe8, 0, 0, 0, 0];
        bytes.extend_from_slice(behind);
        let segments = vec![Segment { address: 0x1000, bytes: &bytes, executable: true }];
        let image = Image { segments, ..Image::default() };
        let block = |start, len, end| Block { start: OrigAddr(start), len, end, indirect: false };
        let blocks = vec![
            block(0x1000, 5, End::Call(OrigAddr(0x1005))),
            block(0x1005, behind.len() as u32, End::Stop),
        ];
        let functions = vec![Function { start: OrigAddr(0x1000), blocks }];
        let program = Program { functions, ..Program::default() };
        looks_below(&program, &image).map(|at| at.0)
    }

    #[test]
    fn only_what_is_read_behind_a_call_counts() {
        // mov rcx, [rsp-8]
        assert_eq!(found(&[0x48, 0x8b, 0x4c, 0x24, 0xf8]), Some(0x1005));
        // xor eax, eax; cmp rax, [rsp-8]
        assert_eq!(found(&[0x31, 0xc0, 0x48, 0x3b, 0x44, 0x24, 0xf8]), Some(0x1007));
        // mov [rsp-8], rcx; mov rcx, [rsp-8]
        let written = [0x48, 0x89, 0x4c, 0x24, 0xf8, 0x48, 0x8b, 0x4c, 0x24, 0xf8];
        assert_eq!(found(&written), None);
        // add rsp, 8; mov rcx, [rsp-8]
        let moved = [0x48, 0x83, 0xc4, 8, 0x48, 0x8b, 0x4c, 0x24, 0xf8];
        assert_eq!(found(&moved), None);
        // lea rcx, [rsp-8]
        assert_eq!(found(&[0x48, 0x8d, 0x4c, 0x24, 0xf8]), None);
        // mov rcx, [rsp]
        assert_eq!(found(&[0x48, 0x8b, 0x0c, 0x24]), None);
    }
}
