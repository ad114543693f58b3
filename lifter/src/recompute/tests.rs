use super::*;
use crate::regs::{RBX, RDI, RSI};
use iced_x86::{Decoder, DecoderOptions};

type Regs = [Option<u64>; 16];

/// Registers with recognisable values, all known.
fn all() -> Regs {
    let mut regs = [None; 16];
    for (i, slot) in regs.iter_mut().enumerate() {
        *slot = Some(0x8000_0001_f000_0080 + 0x0101_0101 * i as u64);
    }
    regs
}

fn run(bytes: &[u8], regs: &mut Regs) {
    let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    assert_eq!(insn.len(), bytes.len(), "{insn:?}");
    step(&insn, &mut InstructionInfoFactory::new(), regs);
}

/// The only change that the bytes make to [`all`].
fn changes(bytes: &[u8], expected: &[(Gpr, Option<u64>)]) {
    let mut regs = all();
    run(bytes, &mut regs);
    let mut want = all();
    for &(number, value) in expected {
        want[number.index()] = value;
    }
    assert_eq!(regs, want, "{bytes:02x?}");
    // Knownness must not depend on values.
    let mut zeros = [Some(0); 16];
    run(bytes, &mut zeros);
    assert_eq!(zeros.map(|r| r.is_some()), want.map(|r| r.is_some()), "{bytes:02x?}");
}

fn before(number: Gpr) -> u64 {
    all()[number.index()].unwrap_or(0)
}

const LOW: u64 = 0xffff_ffff;

#[test]
fn moves() {
    changes(&[0x48, 0x89, 0xd8], &[(RAX, Some(before(RBX)))]);
    changes(&[0x89, 0xd8], &[(RAX, Some(before(RBX) & LOW))]);
    changes(&[0x66, 0x89, 0xd8], &[(RAX, None)]);
    changes(&[0x88, 0xd8], &[(RAX, None)]);
    changes(&[0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff], &[(RAX, Some(!0))]);
    changes(&[0xb8, 0xff, 0xff, 0xff, 0xff], &[(RAX, Some(LOW))]);
    changes(&[0x48, 0x8b, 0x03], &[(RAX, None)]); // mov rax,[rbx]
    changes(&[0x48, 0x89, 0x03], &[]); // mov [rbx],rax
    changes(&[0x48, 0x93], &[(RAX, Some(before(RBX))), (RBX, Some(before(RAX)))]);
    changes(&[0x93], &[(RAX, Some(before(RBX) & LOW)), (RBX, Some(before(RAX) & LOW))]);
    changes(&[0x86, 0xc3], &[(RAX, None), (RBX, None)]); // xchg bl,al
    changes(&[0x48, 0x87, 0x03], &[(RAX, None)]); // xchg [rbx],rax
    changes(&[0x48, 0x0f, 0x44, 0xc3], &[(RAX, None)]); // cmove rax,rbx
}

#[test]
fn arithmetic_on_registers_and_immediates() {
    let (a, b) = (before(RAX), before(RBX));
    changes(&[0x48, 0x83, 0xc0, 0xff], &[(RAX, Some(a - 1))]); // add rax,-1
    changes(&[0x83, 0xe8, 0x81], &[(RAX, Some((a + 127) & LOW))]); // sub eax,-127
    changes(&[0x48, 0x01, 0xd8], &[(RAX, Some(a.wrapping_add(b)))]);
    changes(&[0x29, 0xd8], &[(RAX, Some(a.wrapping_sub(b) & LOW))]);
    changes(&[0x48, 0x21, 0xd8], &[(RAX, Some(a & b))]);
    changes(&[0x48, 0x83, 0xe0, 0xf0], &[(RAX, Some(a & !15))]);
    changes(&[0x48, 0x09, 0xd8], &[(RAX, Some(a | b))]);
    changes(&[0x35, 1, 0, 0, 0], &[(RAX, Some((a ^ 1) & LOW))]);
    changes(&[0x48, 0xff, 0xc0], &[(RAX, Some(a + 1))]);
    changes(&[0xff, 0xc8], &[(RAX, Some((a - 1) & LOW))]);
    changes(&[0x48, 0xf7, 0xd8], &[(RAX, Some(a.wrapping_neg()))]);
    changes(&[0xf7, 0xd0], &[(RAX, Some(!a & LOW))]);
    changes(&[0x48, 0x0f, 0xaf, 0xc3], &[(RAX, Some(a.wrapping_mul(b)))]);
    changes(&[0x6b, 0xc3, 0xfd], &[(RAX, Some(b.wrapping_mul(3).wrapping_neg() & LOW))]);
    changes(&[0x48, 0xc1, 0xe0, 4], &[(RAX, Some(a << 4))]);
    changes(&[0xd1, 0xe8], &[(RAX, Some((a & LOW) >> 1))]);
    changes(&[0xc1, 0xf8, 4], &[(RAX, Some((a as i32 >> 4) as u32 as u64))]);
    changes(&[0x48, 0xc1, 0xf8, 4], &[(RAX, Some((a as i64 >> 4) as u64))]);
    changes(&[0x48, 0xd3, 0xe0], &[(RAX, None)]); // shl rax,cl
    changes(&[0x48, 0x19, 0xc0], &[(RAX, None)]); // sbb rax,rax
    changes(&[0x48, 0xf7, 0xe3], &[(RAX, None), (RDX, None)]); // mul rbx
    changes(&[0x48, 0x0f, 0xc8], &[(RAX, Some(a.swap_bytes()))]);
    changes(&[0x0f, 0xc8], &[(RAX, Some(u64::from((a as u32).swap_bytes())))]);
    changes(&[0x04, 1], &[(RAX, None)]); // add al,1
    changes(&[0x48, 0x39, 0xd8], &[]); // cmp
}

#[test]
fn extensions() {
    let b = before(RBX);
    changes(&[0x0f, 0xb6, 0xc3], &[(RAX, Some(b & 0xff))]);
    changes(&[0x0f, 0xb6, 0xc7], &[(RAX, Some(b >> 8 & 0xff))]); // movzx eax,bh
    changes(&[0x48, 0x0f, 0xbf, 0xc3], &[(RAX, Some(b as i16 as u64))]);
    changes(&[0x0f, 0xbe, 0xc3], &[(RAX, Some(b as i8 as u32 as u64))]);
    changes(&[0x48, 0x63, 0xc3], &[(RAX, Some(b as i32 as u64))]);
    changes(&[0x48, 0x98], &[(RAX, Some(before(RAX) as i32 as u64))]);
    changes(&[0x98], &[(RAX, Some(before(RAX) as i16 as u32 as u64))]);
    changes(&[0x48, 0x99], &[(RDX, Some(!0))]);
    changes(&[0x0f, 0xb6, 0x03], &[(RAX, None)]); // movzx eax,byte [rbx]
}

#[test]
fn addresses() {
    let (a, b) = (before(RAX), before(RBX));
    changes(&[0x48, 0x8d, 0x44, 0x98, 0x08], &[(RAX, Some(a.wrapping_add(b.wrapping_mul(4)) + 8))]);
    changes(
        &[0x8d, 0x44, 0x98, 0x08],
        &[(RAX, Some((a.wrapping_add(b.wrapping_mul(4)) + 8) & LOW))],
    );
    changes(&[0x48, 0x8d, 0x04, 0xdd, 8, 0, 0, 0], &[(RAX, Some(b.wrapping_mul(8) + 8))]);
    changes(&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0], &[(RAX, Some(0x1017))]);
    changes(&[0x67, 0x48, 0x8d, 0x03], &[(RAX, Some(b & LOW))]);
    changes(&[0x66, 0x8d, 0x03], &[(RAX, None)]);
}

#[test]
fn the_stack_pointer() {
    let (sp, bp) = (before(RSP), before(RBP));
    changes(&[0x50], &[(RSP, Some(sp - 8))]);
    changes(&[0x58], &[(RSP, Some(sp + 8)), (RAX, None)]);
    changes(&[0x5c], &[(RSP, None)]); // pop rsp
    changes(&[0x66, 0x50], &[(RSP, Some(sp - 2))]);
    changes(&[0xe8, 0, 0, 0, 0], &[(RSP, Some(sp - 8))]);
    changes(&[0xc3], &[(RSP, Some(sp + 8))]);
    changes(&[0xc2, 0x10, 0], &[(RSP, Some(sp + 24))]);
    changes(&[0xc9], &[(RSP, Some(bp + 8)), (RBP, None)]);
    changes(&[0xc8, 0x10, 0, 0], &[(RBP, Some(sp - 8)), (RSP, Some(sp - 24))]);
    changes(&[0xc8, 0x10, 0, 2], &[(RBP, Some(sp - 8)), (RSP, Some(sp - 40))]);
}

#[test]
fn everything_else_that_is_written_becomes_unknown() {
    changes(&[0x0f, 0x05], &[(RAX, None), (RCX, Some(0x1002)), (R11, None)]);
    changes(&[0xcd, 0x80], &[(RAX, None)]);
    changes(&[0xf3, 0xa4], &[(RCX, None), (RSI, None), (RDI, None)]);
    changes(&[0xa4], &[(RSI, None), (RDI, None)]);
    changes(&[0x0f, 0xa2], &[(RAX, None), (RBX, None), (RCX, None), (RDX, None)]);
    changes(&[0x0f, 0x94, 0xc4], &[(RAX, None)]); // sete ah
    changes(&[0x48, 0x0f, 0xb1, 0x0b], &[(RAX, None)]); // cmpxchg [rbx],rcx
    changes(&[0xe2, 0], &[(RCX, None)]); // loop
    changes(&[0xc5, 0xf9, 0xd7, 0xc0], &[(RAX, None)]); // vpmovmskb eax,xmm0
}

#[test]
fn results_are_known_only_if_the_inputs_are() {
    let mut regs = [None; 16];
    run(&[0x48, 0x01, 0xd8], &mut regs); // add rax,rbx
    assert_eq!(regs, [None; 16]);
    run(&[0x31, 0xc0], &mut regs); // xor eax,eax
    assert_eq!(regs[0], Some(0));
    run(&[0x48, 0x93], &mut regs); // xchg rax,rbx
    assert_eq!((regs[0], regs[3]), (None, Some(0)));
    run(&[0x48, 0x8d, 0x04, 0x0b], &mut regs); // lea rax,[rbx+rcx]
    assert_eq!(regs[0], None);
    run(&[0x48, 0x29, 0xc9], &mut regs); // sub rcx,rcx
    assert_eq!(regs[1], Some(0));
}

/// Registers that the instruction's effect touches.
fn targets(insn: &Instruction, factory: &mut InstructionInfoFactory) -> GprSet {
    let mut set = GprSet::EMPTY;
    effects(insn, factory, &mut |effect| match effect {
        Effect::Forget(forgotten) => set = set.union(forgotten),
        Effect::Set { to, .. }
        | Effect::Lea { to, .. }
        | Effect::Binary { to, .. }
        | Effect::Immediate { to, .. }
        | Effect::Unary { to, .. } => set.insert(to),
        Effect::Swap { a, b, .. } => {
            set.insert(a);
            set.insert(b);
        }
    });
    set
}

#[test]
fn no_written_register_is_overlooked() {
    let mut factory = InstructionInfoFactory::new();
    let mut noise = 0x9e37_79b9_7f4a_7c15u64;
    let mut valid = 0;
    for _ in 0..300_000 {
        let mut bytes = [0; 16];
        for half in bytes.chunks_exact_mut(8) {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            half.copy_from_slice(&noise.to_le_bytes());
        }
        let insn = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE).decode();
        if insn.is_invalid() {
            continue;
        }
        valid += 1;
        let missing = written(&insn, &mut factory).minus(targets(&insn, &mut factory));
        assert!(missing.is_empty(), "{insn:?} {bytes:02x?}: {missing:?}");
        // And describing its operands must not panic.
        let mut refs = alloc::vec::Vec::new();
        crate::operands::references(&insn, &mut factory, &mut refs);
        let needs = crate::needs::needs(&insn, &refs);
        assert!(refs.iter().all(|r| r.base.is_none_or(|base| needs.registers.contains(base))));
    }
    assert!(valid > 100_000);
}

/// The effect of an executed instruction on known registers.
fn step(insn: &Instruction, factory: &mut InstructionInfoFactory, regs: &mut [Option<u64>; 16]) {
    let mut state = Known::default();
    for (number, value) in (0..).map(Gpr).zip(regs.iter()) {
        if let Some(value) = *value {
            state.set(number, value);
        }
    }
    effects(insn, factory, &mut |effect| state.apply(&effect));
    for (number, slot) in (0..).map(Gpr).zip(regs) {
        *slot = state.get(number);
    }
}
