//! Whether an instruction touches all bytes of what it references, and loads what it stores to.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic};
use lifter::operands::{references, Reference, Shape};
use lifter::stores::is_masked;

/// Whether the instruction with this code loads and stores all bytes of its references: not what a mask chooses of, nor
/// what lies in an area of which the processor leaves parts alone.
pub fn touches_whole(code: &[u8]) -> bool {
    let insn = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode();
    if insn.is_invalid() {
        return false;
    }
    let mut all = Vec::new();
    references(&insn, &mut InstructionInfoFactory::new(), &mut all);
    // Of these only the elements are listed that are enabled.
    let gathers = all.iter().any(|r| matches!(r.shape, Shape::Gather { .. }));
    let areas = all.iter().any(|r| matches!(r.shape, Shape::Xsave { .. }));
    let has_gaps = matches!(
        insn.mnemonic(),
        Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Fxrstor | Mnemonic::Fxrstor64
    );
    (gathers || !is_masked(&insn)) && !areas && !has_gaps
}

/// Whether the instruction with this code loads all bytes that it stores to, in front of that.
pub fn loads_what_it_stores(code: &[u8]) -> bool {
    let insn = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode();
    if insn.is_invalid() {
        return false;
    }
    let mut all = Vec::new();
    references(&insn, &mut InstructionInfoFactory::new(), &mut all);
    let is_loaded =
        |r: &Reference| r.shape == Shape::Plain && all.contains(&Reference { write: false, ..*r });
    touches_whole(code) && all.iter().filter(|r| r.write).all(is_loaded)
}

#[cfg(test)]
mod tests {
    use super::{loads_what_it_stores, touches_whole};

    #[test]
    fn what_is_changed_is_loaded() {
        for (code, loads) in [
            // add [rbx],rax; lock xadd [rbx],rax; xchg [rbx],rax; bts [rax],ecx; cmpxchg16b [rbx]
            (&[0x48, 0x01, 0x03][..], true),
            (&[0xf0, 0x48, 0x0f, 0xc1, 0x03], true),
            (&[0x48, 0x87, 0x03], true),
            (&[0x0f, 0xab, 0x08], true),
            (&[0x48, 0x0f, 0xc7, 0x0b], true),
            // mov [rbx],rax; push [rsp-8]; pop [rbx]; movsb; rep stosb; xsave [rax]; no instruction
            (&[0x48, 0x89, 0x03], false),
            (&[0xff, 0x74, 0x24, 0xf8], false),
            (&[0x8f, 0x03], false),
            (&[0xa4], false),
            (&[0xf3, 0xaa], false),
            (&[0x0f, 0xae, 0x20], false),
            (&[0x06], false),
            // vmovdqu64 [rax]{k1},zmm1
            (&[0x62, 0xf1, 0xfe, 0x49, 0x7f, 0x08], false),
        ] {
            assert_eq!(loads_what_it_stores(code), loads, "{code:x?}");
        }
    }

    #[test]
    fn masks_and_areas_leave_bytes_alone() {
        for (code, whole) in [
            // mov rax,[rbx]; lock xadd [rbx],rax; rep movsb; movups xmm0,[rbx]
            (&[0x48, 0x8b, 0x03][..], true),
            (&[0xf0, 0x48, 0x0f, 0xc1, 0x03], true),
            (&[0xf3, 0xa4], true),
            (&[0x0f, 0x10, 0x03], true),
            // vmovdqu64 zmm1{k1},[rax]; vpmaskmovd xmm0,xmm1,[rax]; vpgatherqq zmm0{k1},[rax+zmm1*8]
            (&[0x62, 0xf1, 0xfe, 0x49, 0x6f, 0x08], false),
            (&[0xc4, 0xe2, 0x71, 0x8c, 0x00], false),
            (&[0x62, 0xf2, 0xfd, 0x49, 0x91, 0x04, 0xc8], true),
            // xsave [rax]; fxsave [rax]; no instruction
            (&[0x0f, 0xae, 0x20], false),
            (&[0x0f, 0xae, 0x00], false),
            (&[0x06], false),
        ] {
            assert_eq!(touches_whole(code), whole, "{code:x?}");
        }
    }
}
