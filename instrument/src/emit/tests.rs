use super::*;
use abi::ids::Gpr;
use abi::layout::{
    HALF_JUMP_TABLE, HIGH_HALF_JUMP_TABLE, HIGH_JUMP_TABLE, HIGH_RETURN_TABLE, JUMP_BIAS,
    JUMP_TABLE, ONLY_TABLE, RETURN_TABLE,
};
use abi::options::Pointers;
use alloc::string::String;
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

fn text(emit: impl Fn(&mut Code)) -> String {
    let mut code = Code { bytes: Vec::new(), base: 0x1000 };
    emit(&mut code);
    let mut decoder = Decoder::with_ip(64, &code.bytes, code.base, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    let mut out = String::new();
    while decoder.can_decode() {
        if !out.is_empty() {
            out.push_str("; ");
        }
        formatter.format(&decoder.decode(), &mut out);
    }
    out
}

/// A look-up by a register that has one.
fn by(look_up: LookUp, index: u8) -> By {
    look_up.by(Gpr(index), HIGH_JUMP_TABLE).unwrap()
}

/// A disassembler says what was meant.
#[test]
fn every_form_disassembles_to_what_its_name_says() {
    type Emit<'a> = &'a dyn Fn(&mut Code);
    let cases: &[(&str, Emit)] = &[
        ("mov rax,gs:[28h]", &|c| c.load(Gpr(0), 0x28)),
        ("mov r15,gs:[28h]", &|c| c.load(Gpr(15), 0x28)),
        ("mov ecx,gs:[30h]", &|c| c.load32(Gpr(1), 0x30)),
        ("mov gs:[48h],r9", &|c| c.store(0x48, Gpr(9))),
        ("mov gs:[48h],r9d", &|c| c.store32(0x48, Gpr(9))),
        ("mov dword ptr gs:[58h],12345678h", &|c| c.store_imm(0x58, 0x1234_5678)),
        ("jmp qword ptr gs:[8]", &|c| c.jump_gs(8)),
        ("call qword ptr gs:[8]", &|c| c.call_gs(8)),
        ("vmovq xmm30,[rsp-8]", &|c| c.keep_below_stack()),
        ("vmovq [rsp-8],xmm30", &|c| c.restore_below_stack()),
        ("vmovq [rax-8],xmm30", &|c| c.write_kept()),
        ("mov rdx,[rsp]", &|c| c.read(Gpr(2), At(Gpr(4), 0))),
        ("mov ecx,[rsp+4]", &|c| c.read32(Gpr(1), At(Gpr(4), 4))),
        ("mov ecx,eax", &|c| c.move32(Gpr(1), Gpr(0))),
        ("mov ecx,r13d", &|c| c.move32(Gpr(1), Gpr(13))),
        ("movzx r8d,byte ptr [r12-1]", &|c| c.read_byte(Gpr(8), At(Gpr(12), -1))),
        ("mov [rbp],rsi", &|c| c.write(At(Gpr(5), 0), Gpr(6))),
        ("mov [r13-80h],r8", &|c| c.write(At(Gpr(13), -128), Gpr(8))),
        ("mov [rax-88h],r8", &|c| c.write(At(Gpr(0), -136), Gpr(8))),
        ("mov [rax-1],sil", &|c| c.write_byte(At(Gpr(0), -1), Gpr(6))),
        ("mov dword ptr [rsp],5", &|c| c.write_imm(At(Gpr(4), 0), 5)),
        ("mov dword ptr [r11+4],7", &|c| c.write_imm(At(Gpr(11), 4), 7)),
        ("mov byte ptr [rdi],1", &|c| c.write_imm_byte(At(Gpr(7), 0), 1)),
        ("lea r10,[r10+2]", &|c| c.lea(Gpr(10), At(Gpr(10), 2))),
        ("lea edi,[rdi+2]", &|c| c.lea32(Gpr(7), At(Gpr(7), 2))),
        ("setne dil", &|c| c.setcc(5, Gpr(7))),
        ("seta r9b", &|c| c.setcc(7, Gpr(9))),
        ("mov r9d,7", &|c| c.constant(Gpr(9), 7)),
        ("mov rcx,123456789ABCh", &|c| c.constant(Gpr(1), 0x1234_5678_9abc)),
        ("lea r9,[2000h]", &|c| c.address_of(Gpr(9), 0x2000)),
        ("crc32 ecx,dword ptr gs:[40h]", &|c| c.crc_rcx(0x40)),
        ("mov rcx,[rcx*8+7FFFF000h]", &|c| c.look_up(LookUp::Whole, ONLY_TABLE)),
        ("lea rcx,[rcx+7FFFFFFFh]; mov rcx,[rcx*8+7FFFF008h]", &|c| {
            c.look_up(LookUp::Whole, JUMP_TABLE)
        }),
        ("rorx rcx,rcx,20h; lea rcx,[rcx+0FD9h]; rorx rcx,rcx,20h; mov rcx,[rcx*8]", &|c| {
            c.look_up(LookUp::Whole, HIGH_JUMP_TABLE)
        }),
        ("rorx rcx,rcx,20h; lea rcx,[rcx+1FB0h]; rorx rcx,rcx,20h; mov ecx,[rcx*4]", &|c| {
            c.look_up(LookUp::LowHalf, HIGH_RETURN_TABLE)
        }),
        ("mov ecx,[rcx*4+7FFFF000h]", &|c| c.look_up(LookUp::LowHalf, RETURN_TABLE)),
        ("vmovd xmm30,[rcx*4+7FFFF000h]", &|c| c.look_up(LookUp::LowHalfToVector, RETURN_TABLE)),
        ("vmovd xmm30,[rbp*4+7FFFF000h]", &|c| c.look_up_ahead(Gpr(5), None, RETURN_TABLE)),
        ("vmovd xmm30,[r12*4+7FFFF000h]", &|c| {
            c.look_up_ahead(Gpr(12), Some(Gpr(0)), RETURN_TABLE)
        }),
        ("rorx r9,r9,20h; lea r9,[r9+1FB0h]; rorx r9,r9,20h; vmovd xmm30,[r9*4]", &|c| {
            c.look_up_ahead(Gpr(9), None, HIGH_RETURN_TABLE)
        }),
        ("mov rbx,7EC000000000h; vmovd xmm30,[rbx+rdi*4]", &|c| {
            c.look_up_ahead(Gpr(7), Some(Gpr(3)), HIGH_RETURN_TABLE)
        }),
        ("mov r13,7EC000000000h; vmovd xmm30,[r13+r15*4]", &|c| {
            c.look_up_ahead(Gpr(15), Some(Gpr(13)), HIGH_RETURN_TABLE)
        }),
        ("mov rcx,[rcx+rax*8]", &|c| c.look_up_by(by(LookUp::Whole, 0))),
        ("mov rcx,[rcx+r12*8]", &|c| c.look_up_by(by(LookUp::Whole, 12))),
        ("mov ecx,[rcx+rbp*4]", &|c| c.look_up_by(by(LookUp::LowHalf, 5))),
        ("mov ecx,[rcx+r15*4]", &|c| c.look_up_by(by(LookUp::LowHalf, 15))),
        ("vpunpckldq xmm30,xmm30,[rsp+4]{1to4}", &|c| c.merge_high_half()),
        ("vpunpckldq xmm30,xmm30,gs:[34h]{1to4}; vmovq gs:[38h],xmm30", &|c| c.merge_target()),
        ("vpunpckldq xmm30,xmm30,[rsp]{1to4}", &|c| c.keep_return_address()),
        ("vmovq [rsp],xmm30", &|c| c.write_merged()),
        ("movups gs:[1C0h],xmm7", &|c| c.save_xmm7()),
        ("movd xmm7,[rcx*4+7FFFF000h]", &|c| c.look_up(LookUp::LowHalfToBorrowed, RETURN_TABLE)),
        ("pinsrd xmm7,[rsp+4],1; movq [rsp],xmm7; movups xmm7,gs:[1C0h]", &|c| {
            c.merge_borrowed();
        }),
        ("mov qword ptr [1000h],0", &|c| c.clear(0x1000)),
        (
            "mov rcx,gs:[0]; xchg [1000h],rcx; jrcxz 0000000000001017h; pause; \
             jmp short 0000000000001000h; \
             mov rcx,[1040h]; lea rcx,[rcx+1]; mov [1040h],rcx",
            &|c| c.lock_and_count(0x1000, 0x1040, 0),
        ),
        ("vmovq rax,xmm31", &|c| c.control_flow_pointer(Gpr(0), 31)),
        ("vmovq r14,xmm31", &|c| c.control_flow_pointer(Gpr(14), 31)),
        ("vpextrq rdi,xmm31,1", &|c| c.memory_pointer(Gpr(7), 31)),
        ("vpextrq r8,xmm31,1", &|c| c.memory_pointer(Gpr(8), 31)),
        ("vpaddq xmm31,xmm31,gs:[150h]", &|c| c.bump(31, 0x150)),
        ("vpaddq xmm31,xmm31,xmm25", &|c| c.bump_by(25)),
        ("vpaddq xmm31,xmm31,xmm29", &|c| c.bump_by(29)),
        ("vpsubq xmm31,xmm31,gs:[150h]", &|c| c.take_back(31, 0x150)),
        ("vmovdqu64 gs:[60h],xmm31", &|c| c.save_pointers(0x60, 31)),
        ("vmovq rdx,xmm15", &|c| c.control_flow_pointer(Gpr(2), 15)),
        ("vmovq r9,xmm15", &|c| c.control_flow_pointer(Gpr(9), 15)),
        ("vpextrq rdi,xmm15,1", &|c| c.memory_pointer(Gpr(7), 15)),
        ("vpextrd ecx,xmm31,1", &|c| c.control_flow_pointer_high(Gpr(1), 31)),
        ("vpextrd ecx,xmm15,1", &|c| c.control_flow_pointer_high(Gpr(1), 15)),
        ("vpextrd r9d,xmm15,1", &|c| c.control_flow_pointer_high(Gpr(9), 15)),
        ("vpextrq r8,xmm15,1", &|c| c.memory_pointer(Gpr(8), 15)),
        ("vpaddq xmm15,xmm15,gs:[150h]", &|c| c.bump(15, 0x150)),
        ("vpsubq xmm15,xmm15,gs:[150h]", &|c| c.take_back(15, 0x150)),
        ("vmovdqu gs:[60h],xmm15", &|c| c.save_pointers(0x60, 15)),
        ("vmovdqu xmm15,gs:[60h]", &|c| c.load_pointers(0x60, 15)),
        ("vmovdqu gs:[80h],ymm15", &|c| c.save_vector(0x80, 15)),
        ("vmovdqu ymm15,gs:[80h]", &|c| c.load_vector(0x80, 15)),
        ("vmovdqu64 gs:[80h],zmm31", &|c| c.save_vector(0x80, 31)),
        ("vmovdqu64 xmm31,gs:[60h]", &|c| c.load_pointers(0x60, 31)),
        ("vmovdqu64 zmm31,gs:[80h]", &|c| c.load_vector(0x80, 31)),
        ("vmovdqu64 zmm30,gs:[80h]", &|c| c.load_vector(0x80, 30)),
        ("vmovdqu64 [r12-40h],zmm29", &|c| c.write_vector(At(Gpr(12), -64), 29, false)),
        ("vmovdqu64 [rax-40h],zmm9", &|c| c.write_vector(At(Gpr(0), -64), 9, false)),
        ("vmovdqu ymmword ptr [r9-40h],ymm12", &|c| c.write_vector(At(Gpr(9), -64), 12, true)),
        ("kmovq [r9-8],k3", &|c| c.write_mask(At(Gpr(9), -8), 3)),
    ];
    for (expected, emit) in cases {
        let got = text(emit);
        let strip = |s: &str| {
            s.replace("zmmword ptr ", "")
                .replace("xmmword ptr ", "")
                .replace("ymmword ptr ", "")
                .replace("qword ptr ", "")
        };
        assert_eq!(strip(&got), strip(expected));
    }
}

/// The runtime knows these sequences by their bytes.
#[test]
fn sequences_that_are_recognised_are_those_that_are_emitted() {
    let bytes = |emit: &dyn Fn(&mut Code)| {
        let mut code = Code { bytes: Vec::new(), base: 0x1000 };
        emit(&mut code);
        code.bytes
    };
    let (rcx, rsp) = (Gpr(1), Gpr(4));
    assert_eq!(bytes(&|c| c.store(abi::thread::SAVED_RCX, rcx)), SAVES_RCX);
    assert_eq!(bytes(&|c| c.read32(rcx, At(rsp, 4))), READS_HIGH_HALF);
    assert_eq!(bytes(&|c| c.jump_gs(abi::thread::JUMP)), JUMPS_ON);
    for (original, (distance, store)) in
        [0x2000, 0x7f12_0000_2000].into_iter().zip(PUTS_RETURN_ADDRESS)
    {
        let thunk = bytes(&|c| c.put_return_address(original));
        assert!(thunk.len() as u64 == distance && thunk.starts_with(&store), "{thunk:x?}");
    }
}

/// What is emitted for any address in the window reads its entry, and is found again.
#[test]
fn look_ups_are_found_in_code_and_read_the_entry_of_their_address() {
    const LOW: u64 = 0x89ab_cdef;
    let all = [
        ONLY_TABLE,
        RETURN_TABLE,
        JUMP_TABLE,
        HALF_JUMP_TABLE,
        HIGH_RETURN_TABLE,
        HIGH_JUMP_TABLE,
        HIGH_HALF_JUMP_TABLE,
    ];
    for table in all {
        let kinds = match table.entry {
            8 => [LookUp::Whole].as_slice(),
            _ => [LookUp::LowHalf, LookUp::LowHalfToVector, LookUp::LowHalfToBorrowed].as_slice(),
        };
        for &look_up in kinds {
            let mut code = Code { bytes: Vec::new(), base: 0x1000 };
            code.look_up(look_up, table);
            let (start, rcx) = match table.base >> 46 != 0 {
                // Behind what adds to the high half: rorx, lea, rorx.
                true => (6 + 7 + 6, ((table.base / table.entry) >> 32) << 32 | LOW),
                false if table == HALF_JUMP_TABLE => (6 + 7 + 6, 1 << 32 | LOW),
                false if table.base >= 1 << 31 => (7, LOW + JUMP_BIAS as u64),
                false => (0, LOW),
            };
            let found = Found::decode(&code.bytes[start..], table).unwrap();
            let mut gpr = [0; 16];
            gpr[1] = rcx;
            assert_eq!(found.place(table, &gpr), table.entry_of(LOW), "{look_up:?} in {table:x?}");
            assert_eq!(found.length(), (code.bytes.len() - start) as u64);
            let to = match look_up {
                LookUp::LowHalfToVector => Some(ToVector::Xmm30),
                LookUp::LowHalfToBorrowed => Some(ToVector::Xmm7),
                LookUp::Whole | LookUp::LowHalf => None,
            };
            assert_eq!(found.to_vector(), to);
        }
    }
    for (look_up, table) in [(LookUp::Whole, HIGH_JUMP_TABLE), (LookUp::LowHalf, HIGH_RETURN_TABLE)]
    {
        let window: u64 = if table.entry == 8 { 0x7f12_0000_0000 } else { 0 };
        for index in 0..16 {
            let Some(by) = look_up.by(Gpr(index), table) else {
                assert!([1, 4].contains(&index), "rcx and rsp alone are no index");
                continue;
            };
            let mut code = Code { bytes: Vec::new(), base: 0x1000 };
            code.look_up_by(by);
            let found = Found::decode(&code.bytes, table).unwrap();
            let mut gpr = [0xdead; 16];
            gpr[1] = table.base.wrapping_sub(window.wrapping_mul(table.entry));
            gpr[usize::from(index)] = window | LOW;
            assert_eq!(found.place(table, &gpr), table.entry_of(LOW), "{look_up:?} by {index}");
            assert_eq!(found.length(), code.bytes.len() as u64);
            assert_eq!(found.to_vector(), None);
            let other = if table.entry == 8 { HIGH_RETURN_TABLE } else { HIGH_JUMP_TABLE };
            assert_eq!(Found::decode(&code.bytes, other), None);
        }
        assert_eq!(look_up.by(Gpr(0), JUMP_TABLE), None, "a displacement reaches it");
    }
    assert_eq!(LookUp::LowHalfToVector.by(Gpr(0), HIGH_RETURN_TABLE), None);
    // mov rcx, [rcx]; mov rcx, [rcx + rax*4]; mov rdx, [rcx + rax*8]; mov rcx, [rdx + rax*8]
    let others = [&[0x48, 0x8b, 0x0c, 0x21][..], &[0x48, 0x8b, 0x0c, 0x81]];
    for code in others.into_iter().chain([&[0x48, 0x8b, 0x14, 0xc1][..], &[0x48, 0x8b, 0x0c, 0xc2]])
    {
        assert_eq!(Found::decode(code, HIGH_JUMP_TABLE), None);
    }
}

/// The same for those ahead of a return, with any registers.
#[test]
fn look_ups_ahead_are_found_in_code_and_read_the_entry_of_their_address() {
    const LOW: u64 = 0x89ab_cdef;
    let registers = || (0..16).map(Gpr).filter(|&register| register != lifter::regs::RSP);
    for table in [RETURN_TABLE, HIGH_RETURN_TABLE] {
        for index in registers() {
            for base in core::iter::once(None).chain(registers().map(Some)) {
                if base == Some(index) {
                    continue;
                }
                let mut code = Code { bytes: Vec::new(), base: 0x1000 };
                code.look_up_ahead(index, base, table);
                let mut gpr = [0xdead; 16];
                gpr[index.index()] = LOW;
                // Behind what adds to the high half, or puts the table's address into the base.
                let start = match base {
                    _ if table == RETURN_TABLE => 0,
                    None => {
                        gpr[index.index()] |= ((table.base / table.entry) >> 32) << 32;
                        // r12 takes one byte more.
                        6 + 7 + usize::from(index == Gpr(12)) + 6
                    }
                    Some(base) => {
                        gpr[base.index()] = table.base;
                        10
                    }
                };
                let found = Found::decode(&code.bytes[start..], table).unwrap();
                assert_eq!(found.place(table, &gpr), table.entry_of(LOW), "{index} {base:?}");
                assert_eq!(found.length(), (code.bytes.len() - start) as u64);
                assert_eq!(found.to_vector(), Some(ToVector::Xmm30));
                assert_eq!(Found::decode(&code.bytes[start..], ONLY_TABLE), None);
            }
        }
    }
    // vmovd xmm30, [rsp]; vmovd xmm29, [rcx + rax*4]; vmovd xmm30, [rcx + rax*8]; vmovq xmm30, [rcx + rax*4]
    let others = [
        [0x62, 0x61, 0x7d, 0x08, 0x6e, 0x34, 0x24],
        [0x62, 0x61, 0x7d, 0x08, 0x6e, 0x2c, 0x81],
        [0x62, 0x61, 0x7d, 0x08, 0x6e, 0x34, 0xc1],
        [0x62, 0x61, 0xfe, 0x08, 0x7e, 0x34, 0x81],
    ];
    for code in others {
        assert_eq!(Found::decode(&code, HIGH_RETURN_TABLE), None);
    }
}

#[test]
fn a_closed_gate_is_a_jump() {
    for (gate, to) in [(0x1000, 0x2000), (0x2000, 0x1000), (0x7fff_0000_1000, 0x7ffe_f000_0000)] {
        let jump = closed_gate(gate, to);
        let insn = Decoder::with_ip(64, &jump, gate, DecoderOptions::NONE).decode();
        assert_eq!((insn.len(), insn.near_branch_target()), (5, to));
        assert_eq!(insn.flow_control(), iced_x86::FlowControl::UnconditionalBranch);
    }
}

/// Each register goes to its place, in the order of their numbers; the old bytes go last.
#[test]
fn the_routine_of_calls_writes_sixteen_words() {
    let routine = text(Code::log_call);
    let others = ["rcx", "rdx", "rbx", "rbp", "rsi", "rdi"].map(String::from);
    let others = others.into_iter().chain((8..16).map(|n| alloc::format!("r{n}")));
    let writes = (1..).zip(others).map(|(word, register)| {
        alloc::format!("mov [rax-{}],{register}; ", hexadecimal(128 - 8 * word))
    });
    let expected = alloc::format!(
        "mov gs:[48h],rax; vpextrq rax,xmm31,1; {}vmovq [rax-8],xmm30; \
         mov rcx,gs:[48h]; mov [rax-80h],rcx; mov rcx,[rax-78h]; mov rax,gs:[48h]; ret",
        writes.collect::<String>()
    );
    assert_eq!(routine, expected);
}

/// As the formatter writes it.
fn hexadecimal(number: u32) -> String {
    match number {
        0..=9 => alloc::format!("{number}"),
        _ => alloc::format!("{number:X}h"),
    }
}

#[test]
fn what_takes_back_is_as_long_as_it_says() {
    for (pointers, holder) in [(Pointers::Vector, 31), (Pointers::Xmm15, 15)] {
        let mut code = Code { bytes: Vec::new(), base: 0x1000 };
        code.take_back(holder, 0x150);
        assert_eq!(code.bytes.len() as u64, takes_back(pointers));
    }
}
