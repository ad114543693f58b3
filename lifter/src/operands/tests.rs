use super::*;
use alloc::format;
use alloc::string::{String, ToString};
use iced_x86::{Decoder, DecoderOptions};

/// `R8 fs:[rsi+rdi*4+8]` and so on, with what is special behind it.
fn show(r: &Reference) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(r.base.map(|b| b.name().to_string()));
    match r.index {
        Index::None => {}
        Index::Gpr { number, scale } => parts.push(format!("{}*{scale}", number.name())),
        Index::LowByte { number } => parts.push(format!("low {}", number.name())),
        Index::BitOffset { number, operand_bytes, index } => {
            parts.extend(index.map(|(n, s)| format!("{}*{s}", n.name())));
            parts.push(format!("bit {}/{operand_bytes}", number.name()));
        }
        Index::Vector { number, scale, element_bytes } => {
            parts.push(format!("v{number}.{element_bytes}*{scale}"));
        }
    }
    if r.displacement != 0 || parts.is_empty() {
        parts.push(format!("{:#x}", r.displacement).replace("0xffffffffffffff", "-"));
    }
    let segment = match r.segment {
        Segment::None => "",
        Segment::Fs => "fs:",
        Segment::Gs => "gs:",
    };
    let shape = match r.shape {
        Shape::Plain => String::new(),
        other => format!(" {other:?}"),
    };
    let narrow = if r.address32 { " a32" } else { "" };
    let operand = r.operand.map_or(String::new(), |n| format!(" op{n}"));
    let direction = if r.write { 'W' } else { 'R' };
    format!("{direction}{} {segment}[{}]{narrow}{operand}{shape}", r.size, parts.join("+"))
}

fn refs(bytes: &[u8]) -> String {
    let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    assert_eq!(insn.len(), bytes.len(), "{insn:?}");
    let mut out = Vec::new();
    references(&insn, &mut InstructionInfoFactory::new(), &mut out);
    out.iter().map(show).collect::<Vec<_>>().join("; ")
}

macro_rules! check {
    ($($($byte:literal)+ => $expected:literal;)*) => {
        $(assert_eq!(refs(&[$($byte),+]), $expected);)*
    };
}

#[test]
fn stack_instructions() {
    check! {
        0x6a 0x05 => "W8 [rsp+-f8]";
        0x66 0x50 => "W2 [rsp+-fe]";
        0x9c => "W8 [rsp+-f8]";
        0x9d => "R8 [rsp]";
        0x58 => "R8 [rsp]";
        0xff 0x30 => "R8 [rax] op0; W8 [rsp+-f8]"; // push [rax]
        0xff 0x50 0x08 => "R8 [rax+0x8] op0; W8 [rsp+-f8]"; // call [rax+8]
        0xff 0x60 0x08 => "R8 [rax+0x8] op0"; // jmp [rax+8]
        0xe8 0 0 0 0 => "W8 [rsp+-f8]";
        0x8f 0x44 0x24 0x08 => "R8 [rsp]; W8 [rsp+0x10] op0"; // pop [rsp+8]
        0x8f 0x00 => "R8 [rsp]; W8 [rax] op0";
        0xc3 => "R8 [rsp]";
        0xc2 0x10 0x00 => "R8 [rsp]";
        0xc9 => "R8 [rbp]";
        0xc8 0x10 0x00 0x00 => "W8 [rsp+-f8]";
        0xc8 0x10 0x00 0x02 => "W8 [rsp+-f8]; R8 [rbp+-f8]; W8 [rsp+-f0]; W8 [rsp+-e8]";
        0x48 0xcf => "R8 [rsp]; R8 [rsp+0x8]; R8 [rsp+0x10]; R8 [rsp+0x18]; R8 [rsp+0x20]";
    }
}

#[test]
fn plain_operands() {
    check! {
        0x48 0x01 0x18 => "R8 [rax] op0; W8 [rax] op0"; // add [rax],rbx
        0x48 0x87 0x18 => "R8 [rax] op0; W8 [rax] op0"; // xchg
        0x48 0x0f 0x44 0x07 => "R8 [rdi] op1"; // cmove
        0xf0 0x48 0x0f 0xb1 0x0f => "R8 [rdi] op0; W8 [rdi] op0"; // lock cmpxchg
        0x48 0x0f 0xc7 0x0f => "R16 [rdi] op0; W16 [rdi] op0"; // cmpxchg16b
        0x48 0x8b 0x05 0x10 0 0 0 => "R8 [0x1017] op1"; // mov rax,[rip+10h]
        0x67 0x8b 0x05 0x10 0 0 0 => "R4 [0x1017] a32 op1"; // mov eax,[eip+10h]
        0x64 0x67 0x8b 0x40 0x04 => "R4 fs:[rax+0x4] a32 op1";
        0x65 0x0f 0x10 0x04 0x25 8 0 0 0 => "R16 gs:[0x8] op1";
        0x67 0x8b 0x04 0x25 8 0 0 0 => "R4 [0x8] a32 op1";
        0x8c 0x18 => "W2 [rax] op0"; // mov [rax],ds
        0xdb 0x28 => "R10 [rax] op0"; // fld tbyte
        0xd9 0x30 => "W28 [rax] op0"; // fnstenv
        0x0f 0xae 0x04 0x24 => "W512 [rsp] op0"; // fxsave
        0x66 0x0f 0x38 0xf8 0x03 => "R64 [rbx] op1; W64 [rax]"; // movdir64b
        0xd7 => "R1 [rbx+low rax] op0"; // xlat
        0xf2 0x0f 0x38 0xf0 0x07 => "R1 [rdi] op1"; // crc32
    }
}

#[test]
fn what_is_only_computed_or_hinted_is_no_reference() {
    check! {
        0x48 0x8d 0x03 => ""; // lea
        0x0f 0x18 0x08 => ""; // prefetcht0
        0x0f 0x0d 0x08 => ""; // prefetchw
        0x0f 0x1f 0x00 => ""; // nop [rax]
        0x0f 0xae 0x38 => ""; // clflush
        0xf3 0x0f 0x1e 0xfa => ""; // endbr64
        0x0f 0x05 => ""; // syscall
        0xf3 0x0f 0x1e 0xc8 => ""; // rdsspd eax
    }
}

#[test]
fn bit_offsets_move_the_address() {
    check! {
        0x48 0x0f 0xa3 0x06 => "R8 [rsi+bit rax/8] op0"; // bt [rsi],rax
        0x66 0x0f 0xab 0x4c 0x7e 0x04 =>
            "R2 [rsi+rdi*2+bit rcx/2+0x4] op0; W2 [rsi+rdi*2+bit rcx/2+0x4] op0"; // bts
        0x0f 0xba 0x20 0x05 => "R4 [rax] op0"; // bt [rax],5
    }
}

#[test]
fn string_instructions() {
    check! {
        0xa4 => "R1 [rsi] op1 String; W1 [rdi] op0 String";
        0xf3 0x48 0xa5 => "R8 [rsi] op1 Repeated; W8 [rdi] op0 Repeated";
        0xf3 0xa6 => "R1 [rsi] op0 Repeated; R1 [rdi] op1 Repeated";
        0xf2 0xae => "R1 [rdi] op1 Repeated";
        0x64 0xad => "R4 fs:[rsi] op1 String";
        0x67 0xab => "W4 [rdi] a32 op0 String";
    }
}

#[test]
fn vectors() {
    check! {
        0xc4 0xe2 0x75 0x8e 0x10 => "W32 [rax] op0"; // vpmaskmovd
        0x66 0x0f 0xf7 0xca => "W16 [rdi]"; // maskmovdqu
        0x62 0xf1 0x7e 0x49 0x7f 0x18 => "W64 [rax] op0"; // vmovdqu32 [rax]{k1}
        0x62 0xf2 0x7d 0x49 0x8b 0x18 => "W64 [rax] op0"; // vpcompressd
        0x62 0xf2 0xfd 0xa9 0x89 0x18 => "R32 [rax] op1"; // vpexpandq
        0x62 0xf1 0x6c 0x58 0x58 0x08 => "R4 [rax] op2"; // vaddps {1to16}
        0xc4 0xe2 0x7d 0x18 0x08 => "R4 [rax] op1"; // vbroadcastss
        0x62 0xf2 0x7e 0x48 0x31 0x08 => "W16 [rax] op0"; // vpmovdb
        0x62 0xf2 0xfd 0x4a 0xa0 0x0c 0xd8 =>
            "W8 [rax+v3.4*8] op0 Gather { elements: 8, mask: Bits(2) }";
        0xc4 0xe2 0xed 0x92 0x0c 0xd8 =>
            "R8 [rax+v3.4*8] op1 Gather { elements: 4, mask: Signs(2) }";
        0xc4 0xe2 0x6d 0x93 0x0c 0x98 =>
            "R4 [rax+v3.8*4] op1 Gather { elements: 4, mask: Signs(2) }";
        0xc4 0xe2 0x69 0x93 0x0c 0x98 =>
            "R4 [rax+v3.8*4] op1 Gather { elements: 2, mask: Signs(2) }";
    }
}

#[test]
fn saved_state() {
    check! {
        0x0f 0xc7 0x64 0x24 0x40 => "W0 [rsp+0x40] op0 Xsave { compacted: true }";
        0x0f 0xae 0x6c 0x24 0x40 => "R0 [rsp+0x40] op0 Xsave { compacted: false }";
        0x0f 0xae 0x30 => "W0 [rax] op0 Xsave { compacted: false }";
    }
    let components = [(0, 0), (0, 0), (256, 576), (64, 960), (64, 1024), (512, 1088)];
    assert_eq!(xsave_size(false, !0, 0b111, &components), 832);
    assert_eq!(xsave_size(false, 0b11, 0b111, &components), 576);
    assert_eq!(xsave_size(true, 0b100110, 0b111111, &components), 576 + 256 + 512);
}
