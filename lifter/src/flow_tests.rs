use super::*;
use iced_x86::{Decoder, DecoderOptions};

const START: u64 = 0x1000;

fn flow(bytes: &[u8]) -> (Flow, OrigAddr) {
    let insn = Decoder::with_ip(64, bytes, START, DecoderOptions::NONE).decode();
    assert!(!insn.is_invalid(), "{bytes:x?}");
    (Flow::of(&insn), OrigAddr(insn.next_ip()))
}

/// Each case once, with what it ends: a unit, a block of discovery, a block of the listing.
#[test]
fn every_case_is_told_apart() {
    let at = |offset| OrigAddr(START + offset);
    let (yes, no) = (true, false);
    let cases: &[(&[u8], Flow, [bool; 3])] = &[
        (&[0x90], Flow::Next, [no, no, no]),
        (&[0xfa], Flow::Privileged, [no, yes, no]),
        (&[0xf4], Flow::Halt, [no, yes, no]),
        (&[0xeb, 2], Flow::Jump(at(4)), [yes; 3]),
        (&[0x74, 2], Flow::Branch(at(4)), [yes; 3]),
        (&[0xe3, 2], Flow::Branch(at(4)), [yes; 3]),
        (&[0xff, 0xe0], Flow::IndirectJump, [yes; 3]),
        (&[0xe8, 2, 0, 0, 0], Flow::Call(at(7)), [yes; 3]),
        (&[0xff, 0xd0], Flow::IndirectCall, [yes; 3]),
        (&[0xc3], Flow::Return, [yes; 3]),
        (&[0xc2, 8, 0], Flow::Return, [yes; 3]),
        (&[0x0f, 0x05], Flow::Syscall, [yes; 3]),
        (&[0x0f, 0x34], Flow::Sysenter, [yes; 3]),
        (&[0xc7, 0xf8, 2, 0, 0, 0], Flow::Transaction(at(8)), [yes; 3]),
        (&[0xc6, 0xf8, 0], Flow::Next, [no, no, no]),
        (&[0x0f, 0x01, 0xd5], Flow::Next, [no, no, no]),
        (&[0xff, 0x18], Flow::FarCall, [yes; 3]),
        (&[0xff, 0x28], Flow::FarJump, [yes; 3]),
        (&[0x48, 0xcf], Flow::FarJump, [yes; 3]),
        (&[0xcb], Flow::FarJump, [yes; 3]),
        (&[0x0f, 0x01, 0xc1], Flow::Hypercall, [no, yes, yes]),
        (&[0xcd, 0x21], Flow::Interrupt(0x21), [no, yes, yes]),
        (&[0xcd, 0x80], Flow::Interrupt(0x80), [yes; 3]),
        (&[0xcc], Flow::Trap, [no, yes, yes]),
        (&[0xf1], Flow::Trap, [no, yes, yes]),
        (&[0x0f, 0x0b], Flow::Undefined, [no, yes, yes]),
    ];
    for (bytes, expected, ends) in cases {
        let (flow, _) = flow(bytes);
        assert_eq!(flow, *expected, "{bytes:x?}");
        let of = [flow.ends_unit(), flow.end() != End::FallThrough, flow.ends_block()];
        assert_eq!(of, *ends, "{flow:?} ends a unit, a block, a block of the listing");
    }
}

/// What follows inside of a region is reached without leaving it, so it may go on.
#[test]
fn what_may_follow_agrees_with_where_control_goes() {
    let all: &[&[u8]] = &[
        &[0x90],
        &[0xfa],
        &[0xeb, 2],
        &[0x74, 2],
        &[0xff, 0xe0],
        &[0xe8, 2, 0, 0, 0],
        &[0xff, 0xd0],
        &[0xc3],
        &[0x0f, 0x05],
        &[0xcc],
        &[0xcd, 3],
        &[0x0f, 0x0b],
    ];
    for bytes in all {
        let (flow, next) = flow(bytes);
        let follows = flow.successors(next).contains(&Some(next));
        assert!(!follows || flow.may_go_on(), "{flow:?}");
        assert!(!flow.comes_back() || flow.may_go_on(), "{flow:?}");
        let target = flow.successors(next).into_iter().flatten().find(|&a| a != next);
        assert!(target.is_none() || target == flow.target(), "{flow:?}");
        assert!(flow.is_call() <= flow.comes_back(), "{flow:?}");
    }
}

/// Whatever may lead to code that has run before is a turn, and nothing else is.
#[test]
fn turns_are_what_may_lead_back() {
    let cases: &[(&[u8], bool)] = &[
        (&[0x90], false),
        (&[0xeb, 2], false),
        (&[0xeb, 0], false),
        (&[0xeb, 0xfe], true),  // to itself
        (&[0xeb, 0xff], false), // into itself, which is forward
        (&[0xeb, 0x80], true),
        (&[0x74, 2], false),
        (&[0x0f, 0x84, 0xfa, 0xff, 0xff, 0xff], true),
        (&[0x0f, 0x84, 0, 0, 1, 0], false),
        (&[0xe2, 0xf0], true), // loop
        (&[0xe3, 2], false),   // jrcxz
        (&[0xe3, 0xf0], true),
        (&[0xff, 0xe0], true), // jmp rax
        (&[0xe8, 2, 0, 0, 0], false),
        (&[0xe8, 0, 0, 0, 0], false), // to its own return address, which is forward
        (&[0xe8, 0xfb, 0xff, 0xff, 0xff], true),
        (&[0xff, 0xd0], true),
        (&[0xc3], true),
        (&[0xc2, 8, 0], true),
        (&[0xf3, 0xa4], false), // rep movsb
        (&[0x0f, 0x05], false), // syscall
        (&[0xcc], false),
        (&[0x0f, 0x0b], false),
    ];
    for (bytes, expected) in cases {
        let (flow, _) = flow(bytes);
        assert_eq!(flow.is_turn(OrigAddr(START)), *expected, "{bytes:x?}");
    }
}
