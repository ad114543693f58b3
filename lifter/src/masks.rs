//! Which bytes of a contiguous operand a mask lets through.
//!
//! Bit i of the mask speaks of element i of the result. Most instructions make that of element i of memory alone, and touch no
//! other one (Intel SDM Vol. 1, 15.6.1). Those that arrange elements anew make it of others.

use iced_x86::{Instruction, Mnemonic, OpKind};

/// What a mask means for the operand in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lets {
    /// Bit i lets element i through.
    Each,
    /// So many bits as are set, so many elements, from the first one on.
    Packed,
    /// It is repeated: bit i lets through the element that element i of the result is.
    Repeated,
    /// All of it is read, whatever the mask says (exceptions of type E4NF).
    All,
}

/// What the mask of `insn` means for what it loads or stores.
#[must_use]
pub fn lets(insn: &Instruction) -> Lets {
    let mnemonic = insn.mnemonic();
    // Else the count is in memory, and one for all.
    let by_constant = || insn.op_kinds().any(|kind| kind == OpKind::Immediate8);
    if compresses(insn) || expands(mnemonic) {
        Lets::Packed
    } else if rearranges(mnemonic) || combines(mnemonic) {
        Lets::All
    } else if insn.is_broadcast() || repeats(mnemonic) {
        Lets::Repeated
    } else if shifts(mnemonic) && !by_constant() {
        Lets::All
    } else {
        Lets::Each
    }
}

/// Whether it stores as many elements as the mask has bits, side by side.
#[must_use]
pub fn compresses(insn: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        insn.mnemonic(),
        Vpcompressb | Vpcompressw | Vpcompressd | Vpcompressq | Vcompressps | Vcompresspd
    )
}

/// Whether it loads as many, to where the bits are.
fn expands(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(mnemonic, Vpexpandb | Vpexpandw | Vpexpandd | Vpexpandq | Vexpandps | Vexpandpd)
}

/// Bytes of memory that a bit of the mask speaks of, where it [speaks of one element](Lets::Each).
#[must_use]
pub fn element(insn: &Instruction) -> u64 {
    use Mnemonic::*;
    match insn.mnemonic() {
        // Products of pairs, and of what is in the lower half of an element.
        Vdpbf16ps | Vpdpbusd | Vpdpbusds | Vpdpwssd | Vpdpwssds => 4,
        Vfcmaddcph | Vfcmulcph | Vfmaddcph | Vfmulcph => 4,
        Vpmuldq | Vpmuludq => 8,
        _ => insn.memory_size().element_size().max(1) as u64,
    }
}

fn shifts(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Vpslld | Vpsllq | Vpsllw | Vpsrad | Vpsraq | Vpsraw | Vpsrld | Vpsrlq | Vpsrlw
    )
}

/// Memory is smaller than the result.
fn repeats(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Vbroadcastf32x2
            | Vbroadcastf32x4
            | Vbroadcastf32x8
            | Vbroadcastf64x2
            | Vbroadcastf64x4
            | Vbroadcasti32x2
            | Vbroadcasti32x4
            | Vbroadcasti32x8
            | Vbroadcasti64x2
            | Vbroadcasti64x4
            | Vbroadcastsd
            | Vbroadcastss
            | Vpbroadcastb
            | Vpbroadcastd
            | Vpbroadcastq
            | Vpbroadcastw
            | V4fmaddps
            | V4fmaddss
            | V4fnmaddps
            | V4fnmaddss
            | Vp4dpwssd
            | Vp4dpwssds
    )
}

/// An element of the result is another one of memory.
fn rearranges(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Valignd
            | Valignq
            | Vinsertf32x4
            | Vinsertf32x8
            | Vinsertf64x2
            | Vinsertf64x4
            | Vinserti32x4
            | Vinserti32x8
            | Vinserti64x2
            | Vinserti64x4
            | Vmovddup
            | Vmovshdup
            | Vmovsldup
            | Vpackssdw
            | Vpacksswb
            | Vpackusdw
            | Vpackuswb
            | Vpalignr
            | Vpermb
            | Vpermd
            | Vpermi2b
            | Vpermi2d
            | Vpermi2pd
            | Vpermi2ps
            | Vpermi2q
            | Vpermi2w
            | Vpermilpd
            | Vpermilps
            | Vpermpd
            | Vpermps
            | Vpermq
            | Vpermt2b
            | Vpermt2d
            | Vpermt2pd
            | Vpermt2ps
            | Vpermt2q
            | Vpermt2w
            | Vpermw
            | Vpshufb
            | Vpshufd
            | Vpshufhw
            | Vpshuflw
            | Vpunpckhbw
            | Vpunpckhdq
            | Vpunpckhqdq
            | Vpunpckhwd
            | Vpunpcklbw
            | Vpunpckldq
            | Vpunpcklqdq
            | Vpunpcklwd
            | Vshuff32x4
            | Vshuff64x2
            | Vshufi32x4
            | Vshufi64x2
            | Vshufpd
            | Vshufps
            | Vunpckhpd
            | Vunpckhps
            | Vunpcklpd
            | Vunpcklps
    )
}

/// An element of the result is made of several of memory, or of a part of one.
fn combines(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Vcvtne2ps2bf16
            | Vdbpsadbw
            | Vgf2p8affineinvqb
            | Vgf2p8affineqb
            | Vpconflictd
            | Vpconflictq
            | Vpmaddubsw
            | Vpmaddwd
            | Vpmultishiftqb
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn a_mask_lets_through_what_the_instruction_needs() {
        let cases: &[(&str, &[u8], Lets, u64)] = &[
            ("vpaddd zmm1{k1},zmm2,[rax]", &[0x62, 0xf1, 0x6d, 0x49, 0xfe, 0x08], Lets::Each, 4),
            ("vpaddd ...[rax]{1to16}", &[0x62, 0xf1, 0x6d, 0x59, 0xfe, 0x08], Lets::Repeated, 4),
            (
                "vpbroadcastd zmm1{k1},[rax]",
                &[0x62, 0xf2, 0x7d, 0x49, 0x58, 0x08],
                Lets::Repeated,
                4,
            ),
            ("vmovddup zmm1{k1},[rax]", &[0x62, 0xf1, 0xff, 0x49, 0x12, 0x08], Lets::All, 8),
            ("vpexpandd zmm1{k1},[rax]", &[0x62, 0xf2, 0x7d, 0x49, 0x89, 0x08], Lets::Packed, 4),
            ("vpcompressd [rax]{k1},zmm1", &[0x62, 0xf2, 0x7d, 0x49, 0x8b, 0x08], Lets::Packed, 4),
            ("vmovdqu8 zmm1{k1}{z},[rax]", &[0x62, 0xf1, 0x7f, 0xc9, 0x6f, 0x08], Lets::Each, 1),
            ("vpmuludq zmm1{k1},zmm2,[rax]", &[0x62, 0xf1, 0xed, 0x49, 0xf4, 0x08], Lets::Each, 8),
            ("vpsrld zmm1{k1},zmm2,[rax]", &[0x62, 0xf1, 0x6d, 0x49, 0xd2, 0x08], Lets::All, 4),
            ("vpsrld zmm1{k1},[rax],3", &[0x62, 0xf1, 0x75, 0x49, 0x72, 0x10, 3], Lets::Each, 4),
            ("vpsrlvd zmm1{k1},zmm2,[rax]", &[0x62, 0xf2, 0x6d, 0x49, 0x45, 0x08], Lets::Each, 4),
            ("vmaskmovps ymm2,ymm1,[rax]", &[0xc4, 0xe2, 0x75, 0x2c, 0x10], Lets::Each, 4),
        ];
        for &(name, bytes, expected, size) in cases {
            let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            assert!(!insn.is_invalid() && insn.len() == bytes.len(), "{name}");
            assert_eq!((lets(&insn), element(&insn)), (expected, size), "{name}");
        }
    }
}
