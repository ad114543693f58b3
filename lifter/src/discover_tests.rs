use super::*;
use crate::flow::End;
use crate::image::Segment;
use crate::region::Rules;
use abi::ids::OrigAddr;
use alloc::vec;

const BASE: u64 = 0x1000;

fn run(code: &[u8], data: &[u8], functions: Vec<(u64, u64)>, fixed: bool) -> Program {
    let image = Image {
        segments: vec![
            Segment { address: BASE, bytes: code, executable: true },
            Segment { address: 0x2000, bytes: data, executable: false },
        ],
        entry: BASE,
        functions,
        code_pointers: vec![],
        fixed,
    };
    let program = discover(&image, &mut |done, total| assert!(done <= total));
    check(&program);
    program
}

/// What holds for every program.
fn check(program: &Program) {
    let mut starts: Vec<OrigAddr> = Vec::new();
    for function in &program.functions {
        assert_eq!(function.start, function.blocks[0].start);
        for pair in function.blocks.windows(2) {
            assert!(pair[0].behind() <= pair[1].start, "{function:x?}");
        }
        starts.extend(function.blocks.iter().map(|b| b.start));
        for block in &function.blocks {
            assert!(block.len != 0 && block.len <= Rules::AHEAD_OF_TIME.bytes);
        }
    }
    assert!(program.functions.windows(2).all(|f| f[0].start < f[1].start));
    let count = starts.len();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), count);
}

/// (offset, length, end, indirect) of all blocks, ascending.
fn blocks(program: &Program) -> Vec<(u64, u32, End, bool)> {
    let mut all: Vec<_> = program
        .functions
        .iter()
        .flat_map(|f| &f.blocks)
        .map(|b| (b.start.0 - BASE, b.len, b.end, b.indirect))
        .collect();
    all.sort_by_key(|b| b.0);
    all
}

#[test]
fn branches_calls_and_returns_divide_a_function() {
    // test edi,edi; je +6; call +2 ; ret; nop; (2 bytes of padding) f: ret
    let code = b"\x85\xff\x74\x05\xe8\x03\0\0\0\xc3\xcc\xcc\xc3";
    let program = run(code, &[], vec![], false);
    assert_eq!(
        blocks(&program),
        [
            (0, 4, End::Branch(OrigAddr(BASE + 9)), true),
            (4, 5, End::Call(OrigAddr(BASE + 12)), false),
            (9, 1, End::Return, true),
            (12, 1, End::Return, true),
        ]
    );
    assert_eq!(program.functions.len(), 2);
    assert_eq!((program.text_bytes, program.lifted_bytes), (11, 11));
}

#[test]
fn a_jump_over_a_prefix_makes_an_overlapping_block() {
    // je +1; lock cmpxchg [rdi],esi; ret
    let program = run(b"\x74\x01\xf0\x0f\xb1\x37\xc3", &[], vec![], false);
    assert_eq!(
        blocks(&program),
        [
            (0, 2, End::Branch(OrigAddr(BASE + 3)), true),
            (2, 5, End::Return, false),
            (3, 4, End::Return, false),
        ]
    );
    assert_eq!(program.functions.len(), 2);
}

#[test]
fn long_runs_are_cut() {
    let mut code = vec![0x90; 65];
    code.push(0xc3);
    let program = run(&code, &[], vec![], false);
    assert_eq!(blocks(&program), [(0, 64, End::FallThrough, true), (64, 2, End::Return, false)]);
}

#[test]
fn a_relative_table_with_a_bound_is_read() {
    // cmp edi,2; ja default; lea rax,[rip+table]; movsxd rdx,[rax+rdi*4]; add rax,rdx; jmp rax
    let mut code =
        b"\x83\xff\x02\x77\x10\x48\x8d\x05\xf4\x0f\0\0\x48\x63\x14\xb8\x48\x01\xd0\xff\xe0"
            .to_vec();
    assert_eq!(code.len(), 21);
    code.extend(b"\xc3\x31\xc0\xc3\x31\xdb\xc3\x31\xc9\xc3"); // 21: ret; 22, 25, 28: xor; ret
    let table: Vec<u8> = [22i64, 25, 28, 30]
        .iter()
        .flat_map(|offset| ((BASE as i64 + offset - 0x2000) as i32).to_le_bytes())
        .collect();
    let program = run(&code, &table, vec![(BASE, code.len() as u64)], false);
    assert_eq!((program.jump_tables, program.unresolved_indirect), (1, 0));
    let found = blocks(&program);
    for offset in [22, 25, 28] {
        assert!(found.contains(&(offset, 3, End::Return, true)), "{found:?}");
    }
    assert_eq!(program.functions.len(), 1);
    assert_eq!(program.lifted_bytes, code.len() as u64);
}

#[test]
fn data_words_count_at_fixed_addresses_only() {
    // ret; undecodable; at 8: xor eax,eax; ret
    let code = b"\xc3\x06\x06\x06\x06\x06\x06\x06\x31\xc0\xc3";
    let data = (BASE + 8).to_le_bytes();
    let program = run(code, &data, vec![], true);
    assert!(blocks(&program).contains(&(8, 3, End::Return, true)));
    // Otherwise the sweep finds it.
    assert!(blocks(&run(code, &data, vec![], false)).contains(&(8, 3, End::Return, true)));
}

#[test]
fn a_call_at_the_end_of_a_function_has_no_return_site() {
    // f: call g (f ends); nop; g: ud2
    let program = run(b"\xe8\x01\0\0\0\x90\x0f\x0b", &[], vec![(BASE, 5), (BASE + 6, 2)], false);
    assert_eq!(
        blocks(&program),
        [(0, 5, End::Call(OrigAddr(BASE + 6)), true), (6, 2, End::Stop, true)]
    );
}

#[test]
fn blocks_end_in_front_of_bytes_that_do_not_decode() {
    let program = run(b"\x31\xc0\x06", &[], vec![], false);
    assert_eq!(blocks(&program), [(0, 2, End::FallThrough, true)]);
    assert_eq!(blocks(&run(b"\x06\x06", &[], vec![], false)), []);
}

#[test]
fn special_ends() {
    for (code, end) in [
        (&b"\x0f\x05"[..], End::Syscall),
        (b"\xf4", End::Stop),
        (b"\xcc", End::Stop),
        (b"\xcd\x80", End::Stop),
        (b"\xff\xe0", End::IndirectJump),
        (b"\xff\x10", End::IndirectCall),
        (b"\xe3\x10", End::Branch(OrigAddr(BASE + 0x12))),
        (b"\xe2\x10", End::Branch(OrigAddr(BASE + 0x12))),
        (b"\xc7\xf8\x10\0\0\0", End::Branch(OrigAddr(BASE + 0x16))),
        (b"\xc2\x08\0", End::Return),
        (b"\xcb", End::Stop),
    ] {
        assert_eq!(blocks(&run(code, &[], vec![], false)), [(0, code.len() as u32, end, true)]);
    }
}

/// Sections that follow each other without a gap are regions of their own.
#[test]
fn a_run_goes_on_in_the_next_region() {
    // call +0; then, in the next region: ret
    let image = Image {
        segments: vec![
            Segment { address: BASE, bytes: &[0xe8, 0, 0, 0, 0], executable: true },
            Segment { address: BASE + 5, bytes: &[0xc3], executable: true },
        ],
        entry: BASE,
        ..Image::default()
    };
    let program = discover(&image, &mut |_, _| ());
    check(&program);
    let found = blocks(&program);
    assert_eq!(found, [(0, 5, End::Call(OrigAddr(BASE + 5)), true), (5, 1, End::Return, true)]);
    // The same where the second part is only reached by falling into it: a system call.
    let image = Image {
        segments: vec![
            Segment { address: BASE, bytes: &[0x0f, 0x05], executable: true },
            Segment { address: BASE + 2, bytes: &[0xc3], executable: true },
        ],
        entry: BASE,
        ..Image::default()
    };
    let program = discover(&image, &mut |_, _| ());
    assert_eq!(blocks(&program), [(0, 2, End::Syscall, true), (2, 1, End::Return, true)]);
}
