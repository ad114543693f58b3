//! Writes a large synthetic trace, to measure the reader: `generate FILE CHUNKS`.
//!
//! The loop that it "ran" has eight units of six instructions, four references and one recorded
//! value each.

use abi::event::{Kind, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, UnitId};
use abi::options::Options;
use abi::trace::{tags, FrameKind, RegisterState, PROCESS};
use abi::unit::{flags, JitReason, JitUnit, Record as UnitRecord, UnitBody, What};
use trace::test_support::{event, Record, TraceWriter};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(chunks)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: generate FILE CHUNKS");
        std::process::exit(2);
    };
    let chunks: u32 = chunks.parse().expect("a number of chunks");
    let mut writer = TraceWriter::default();
    let mut process = u64::from(abi::trace::VERSION).to_le_bytes().to_vec();
    for word in [Options::default().to_word(), 1, 0] {
        process.extend_from_slice(&word.to_le_bytes());
    }
    let described = event(Kind::Process, 0, 0, WHOLE_UNIT, &process);
    writer.payload(FrameKind::File, PROCESS, 0, &described);
    let mut list = Vec::new();
    for n in 0..8u32 {
        let address = 0x1000 + 0x100 * u64::from(n);
        let next: i32 = if n == 7 { -0x700 - 23 } else { 0x100 - 23 };
        // mov rax,[rsp+8]; mov rdx,[rax+rcx*8]; add rcx,1; mov [rsp+8],rdx; mov rbx,[rsp+10h]; jmp
        let mut code = vec![
            0x48, 0x8b, 0x44, 0x24, 0x08, 0x48, 0x8b, 0x14, 0xc8, 0x83, 0xc1, 0x01, 0x90, 0x48,
            0x89, 0x54, 0x24, 0x08, 0xe9,
        ];
        let jump = next + 23 - (code.len() as i32 + 4);
        code.extend_from_slice(&jump.to_le_bytes());
        let body = UnitBody {
            code_len: code.len() as u16,
            flags: if n == 0 { flags::WIDE } else { 0 },
            records: vec![UnitRecord { insn: 0, what: What::After(Gpr(0)) }],
        };
        let unit = JitUnit {
            id: UnitId(0x1_0010 + n),
            address: LiveAddr(address),
            version: 0,
            reason: JitReason::Library,
            body,
            code,
        };
        unit.encode(&mut list);
    }
    writer.payload(FrameKind::Units, PROCESS, 0, &list);
    let mut registers = RegisterState { rip: 0x1000, valid: 0x12, ..Default::default() };
    registers.gpr[4] = 0x8000;
    let mut start = [7u32.to_le_bytes(), [0; 4]].concat();
    start.extend_from_slice(&registers.to_bytes());
    writer.payload(FrameKind::Events, 0, 0, &event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &start));
    let rounds = 12_000u64;
    for seq in 0..chunks {
        let mut record = Record { seq, registers, ..Default::default() };
        registers.gpr[1] += rounds * 8;
        for round in 0..rounds {
            for n in 0..8u32 {
                let id = 0x1_0010 + n;
                if n == 0 {
                    let wide = tags::wide(UnitId(id));
                    record.control_flow.extend_from_slice(&wide.to_le_bytes());
                } else {
                    record.control_flow.extend_from_slice(&(id as u16).to_le_bytes());
                }
                record.memory.extend_from_slice(&(0x10_0000 + round * 64).to_le_bytes());
            }
        }
        writer.record(&record);
    }
    std::fs::write(file, writer.bytes).expect("write");
}
