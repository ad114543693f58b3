use super::*;
use abi::ids::UnitId;
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, IcedError, MemoryOperand};

const START: u64 = 0x40_1000;
const TABLE: u64 = 0x40_8000;

type Listing = fn(&mut CodeAssembler, CodeLabel) -> Result<(), IcedError>;

/// What is known of the jump at the end of the code, which may branch back to its start; `narrow`: only branches lead
/// to its unit.
fn found(narrow: bool, listing: Listing) -> Option<Dispatch> {
    let mut assembler = CodeAssembler::new(64).unwrap();
    let mut start = assembler.create_label();
    assembler.set_label(&mut start).unwrap();
    assembler.nop().unwrap();
    listing(&mut assembler, start).unwrap();
    let bytes = assembler.assemble(START).unwrap();
    let insns: Vec<_> = Decoder::with_ip(64, &bytes, START, DecoderOptions::NONE).iter().collect();
    let (mut blocks, mut spans, mut first) = (Vec::new(), Vec::new(), 0);
    for (i, insn) in insns.iter().enumerate() {
        if !Flow::of(insn).ends_unit() {
            continue;
        }
        let start = OrigAddr(insns[first].ip());
        let len = u32::try_from(insn.next_ip() - start.0).unwrap();
        let (id, wide) = (UnitId(0), first == 0);
        blocks.push(Block { start, len, id, version: 0, wide, open: false, is_linked: false });
        spans.push(Span { start, first, count: i + 1 - first });
        first = i + 1;
    }
    assert_eq!(first, insns.len(), "the code ends with a transfer");
    let last = blocks.len() - 1;
    blocks[last].wide = !narrow;
    Search::new(&blocks, &spans, &insns, &mut InstructionInfoFactory::new()).dispatch(last, true)
}

/// `lea register, [rip + distance of the table]`
fn base(a: &mut CodeAssembler, register: Register) -> Result<(), IcedError> {
    let table = MemoryOperand::with_base_displ(Register::RIP, TABLE.cast_signed());
    a.add_instruction(Instruction::with2(Op::Lea_r64_m, register, table)?)
}

fn entry() -> AsmMemoryOperand {
    qword_ptr(rax * 8 + TABLE)
}

#[test]
fn bounds_are_proven_or_not_there() {
    // Each with the number of entries, if the unit is narrow, and if it is wide.
    type Case = (&'static str, Listing, Option<u32>, Option<u32>);
    let cases: &[Case] = &[
        ("nothing is known", |a, _| a.jmp(entry()), None, None),
        (
            "a byte",
            |a, _| {
                a.movzx(eax, cl)?;
                a.jmp(entry())
            },
            Some(256),
            Some(256),
        ),
        (
            "a byte of memory",
            |a, _| {
                a.movzx(eax, byte_ptr(rsi))?;
                a.jmp(entry())
            },
            Some(256),
            Some(256),
        ),
        (
            "a byte, and then more",
            |a, _| {
                a.movzx(eax, cl)?;
                a.add(eax, 1)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "a mask",
            |a, _| {
                a.and(eax, 7)?;
                a.jmp(entry())
            },
            Some(8),
            Some(8),
        ),
        (
            "a mask with a sign",
            |a, _| {
                a.and(rax, -8)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "two bytes are too many",
            |a, _| {
                a.movzx(eax, cx)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "compared",
            |a, away| {
                a.cmp(rax, 5)?;
                a.ja(away)?;
                a.jmp(entry())
            },
            Some(6),
            None,
        ),
        (
            "compared, and not equal",
            |a, away| {
                a.cmp(rax, 5)?;
                a.jae(away)?;
                a.jmp(entry())
            },
            Some(5),
            None,
        ),
        (
            "only half of it",
            |a, away| {
                a.cmp(eax, 5)?;
                a.ja(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "half, and the rest is zero before",
            |a, away| {
                a.mov(eax, edi)?;
                a.cmp(eax, 5)?;
                a.ja(away)?;
                a.jmp(entry())
            },
            Some(6),
            None,
        ),
        (
            "half, and the rest is cleared behind",
            |a, away| {
                a.cmp(eax, 5)?;
                a.ja(away)?;
                a.mov(eax, eax)?;
                a.jmp(entry())
            },
            Some(6),
            None,
        ),
        (
            "another register",
            |a, away| {
                a.cmp(ecx, 5)?;
                a.ja(away)?;
                a.mov(eax, ecx)?;
                a.jmp(entry())
            },
            Some(6),
            None,
        ),
        (
            "another register, of which less was compared",
            |a, away| {
                a.cmp(cl, 5)?;
                a.ja(away)?;
                a.mov(eax, ecx)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "a byte that was compared",
            |a, away| {
                a.cmp(cl, 5)?;
                a.ja(away)?;
                a.movzx(eax, cl)?;
                a.jmp(entry())
            },
            Some(6),
            Some(256),
        ),
        (
            "another byte was compared",
            |a, away| {
                a.cmp(ch, 5)?;
                a.ja(away)?;
                a.movzx(eax, cl)?;
                a.jmp(entry())
            },
            Some(256),
            Some(256),
        ),
        (
            "a second byte",
            |a, away| {
                a.cmp(cl, 5)?;
                a.ja(away)?;
                a.movzx(eax, ch)?;
                a.jmp(entry())
            },
            Some(256),
            Some(256),
        ),
        (
            "changed since",
            |a, away| {
                a.cmp(rax, 5)?;
                a.ja(away)?;
                a.add(rax, 1)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "changed between",
            |a, away| {
                a.cmp(rax, 5)?;
                a.lea(rax, ptr(rax + 1))?;
                a.ja(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "other flags",
            |a, away| {
                a.cmp(rax, 5)?;
                a.test(rdx, rdx)?;
                a.ja(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "signed",
            |a, away| {
                a.cmp(rax, 5)?;
                a.jg(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "the other way",
            |a, away| {
                a.cmp(rax, 5)?;
                a.jbe(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "two branches behind one comparison",
            |a, away| {
                a.cmp(rax, 5)?;
                a.ja(away)?;
                a.je(away)?;
                a.jmp(entry())
            },
            Some(6),
            None,
        ),
        (
            "two comparisons",
            |a, away| {
                a.cmp(rax, 5)?;
                a.ja(away)?;
                a.cmp(rdx, 1)?;
                a.je(away)?;
                a.jmp(entry())
            },
            Some(6),
            None,
        ),
        (
            "behind a call",
            |a, away| {
                a.cmp(rax, 5)?;
                a.ja(away)?;
                a.call(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
        (
            "with a sign",
            |a, away| {
                a.cmp(rax, -5)?;
                a.ja(away)?;
                a.jmp(entry())
            },
            None,
            None,
        ),
    ];
    for &(name, listing, narrow, wide) in cases {
        let entries = |narrow| found(narrow, listing).map(|found| found.entries);
        assert_eq!(entries(true), narrow, "{name}, narrow");
        assert_eq!(entries(false), wide, "{name}, wide");
    }
}

/// Loads of `jmp rax` with an index in rcx: whether the table is known, and the slot is left to the jump.
#[test]
fn tables_are_proven_or_not_there() {
    let cases: &[(&str, Listing, Option<bool>)] = &[
        (
            "distances",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.movsxd(rax, dword_ptr(rdx + rcx * 4))?;
                a.add(rax, rdx)?;
                a.jmp(rax)
            },
            Some(true),
        ),
        (
            "the sum the other way round",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RAX)?;
                a.movsxd(rdx, dword_ptr(rax + rcx * 4))?;
                a.add(rax, rdx)?;
                a.jmp(rax)
            },
            Some(false),
        ),
        (
            "the index is gone",
            |a, _| {
                a.movzx(eax, cl)?;
                base(a, Register::RDX)?;
                a.movsxd(rax, dword_ptr(rdx + rax * 4))?;
                a.add(rax, rdx)?;
                a.jmp(rax)
            },
            Some(false),
        ),
        (
            "addresses",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.mov(rax, qword_ptr(rdx + rcx * 8))?;
                a.jmp(rax)
            },
            Some(true),
        ),
        (
            "no base",
            |a, _| {
                a.movzx(eax, cl)?;
                a.mov(rax, qword_ptr(rax * 8 + TABLE))?;
                a.jmp(rax)
            },
            Some(false),
        ),
        (
            "an unknown base",
            |a, _| {
                a.movzx(ecx, cl)?;
                a.mov(rax, qword_ptr(rdx + rcx * 8))?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "a base that has changed",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.add(rdx, 8)?;
                a.mov(rax, qword_ptr(rdx + rcx * 8))?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "a base that changes before it is added",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.movsxd(rax, dword_ptr(rdx + rcx * 4))?;
                a.add(rdx, 8)?;
                a.add(rax, rdx)?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "another base is added",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.movsxd(rax, dword_ptr(rdx + rcx * 4))?;
                a.add(rax, rsi)?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "the sum changes",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.movsxd(rax, dword_ptr(rdx + rcx * 4))?;
                a.add(rax, rdx)?;
                a.inc(rax)?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "another scale",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.mov(rax, qword_ptr(rdx + rcx * 4))?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "half an address",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.mov(eax, dword_ptr(rdx + rcx * 8))?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "a segment",
            |a, _| {
                a.movzx(ecx, cl)?;
                base(a, Register::RDX)?;
                a.mov(rax, qword_ptr(rdx + rcx * 8).fs())?;
                a.jmp(rax)
            },
            None,
        ),
        (
            "a call",
            |a, _| {
                a.movzx(eax, cl)?;
                a.call(entry())
            },
            None,
        ),
    ];
    for &(name, listing, expected) in cases {
        let found = found(true, listing);
        assert_eq!(found.map(|found| found.is_direct), expected, "{name}");
        assert!(found.is_none_or(|found| found.table == TABLE && found.entries == 256), "{name}");
    }
}
