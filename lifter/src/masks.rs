//! Which bytes of a contiguous operand a mask lets through.
//!
//! Bit i of the mask speaks of element i of the result. Most instructions make that of element i of memory alone, and touch no
//! other one (Intel SDM Vol. 1, 15.6.1). Those that arrange elements anew make it of others.

use iced_x86::{Instruction, Mnemonic};

/// What a mask means for the operand in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lets {
    /// Bit i lets element i through.
    Each,
    /// So many bits as are set, so many elements, from the first one on.
    Packed,
    /// Any bit that is set may want any element.
    All,
}

/// What the mask of `insn` means for what it loads or stores.
#[must_use]
pub fn lets(insn: &Instruction) -> Lets {
    use Mnemonic::*;
    if insn.is_broadcast() {
        return Lets::All;
    }
    match insn.mnemonic() {
        Vpcompressb | Vpcompressw | Vpcompressd | Vpcompressq | Vcompressps | Vcompresspd
        | Vpexpandb | Vpexpandw | Vpexpandd | Vpexpandq | Vexpandps | Vexpandpd => Lets::Packed,
        mnemonic if repeats(mnemonic) || rearranges(mnemonic) || combines(mnemonic) => Lets::All,
        _ => Lets::Each,
    }
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
            | Vinsertf32x4
            | Vinsertf32x8
            | Vinsertf64x2
            | Vinsertf64x4
            | Vinserti32x4
            | Vinserti32x8
            | Vinserti64x2
            | Vinserti64x4
            // The count of a shift.
            | Vpslld
            | Vpsllq
            | Vpsllw
            | Vpsrad
            | Vpsraq
            | Vpsraw
            | Vpsrld
            | Vpsrlq
            | Vpsrlw
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
            | Vpshufbitqmb
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
            | Vdpbf16ps
            | Vfcmaddcph
            | Vfcmulcph
            | Vfmaddcph
            | Vfmulcph
            | Vgf2p8affineinvqb
            | Vgf2p8affineqb
            | Vpconflictd
            | Vpconflictq
            | Vpdpbusd
            | Vpdpbusds
            | Vpdpwssd
            | Vpdpwssds
            | Vpmaddubsw
            | Vpmaddwd
            | Vpmuldq
            | Vpmultishiftqb
            | Vpmuludq
    )
}
