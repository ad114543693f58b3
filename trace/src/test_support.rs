//! Writes small traces, for tests: frames with right checksums from parts.

use abi::trace::{
    Checksum, EventHeader, FrameHeader, FrameKind, RegisterState, EVENT_HEADER_SIZE, FRAME_MAGIC,
    HEADER_SIZE, PAYLOAD, RECORD_DATA, RECORD_REGISTERS, SEALED,
};

/// A trace under construction.
#[derive(Default)]
pub struct TraceWriter {
    pub bytes: Vec<u8>,
}

/// One Record frame.
#[derive(Clone, Default)]
pub struct Record {
    pub thread: u32,
    pub seq: u32,
    pub registers: RegisterState,
    pub control_flow: Vec<u8>,
    pub memory: Vec<u8>,
    pub open: bool,
}

/// An event in its encoding.
pub fn event(kind: u16, chunk: u32, control_flow: u64, insn: u32, payload: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    payload.resize(payload.len().next_multiple_of(8), 0);
    let header =
        EventHeader { kind, reserved: 0, len: payload.len() as u32, chunk, insn, control_flow };
    let mut out = Vec::with_capacity(EVENT_HEADER_SIZE + payload.len());
    out.extend_from_slice(&header.kind.to_le_bytes());
    out.extend_from_slice(&header.reserved.to_le_bytes());
    out.extend_from_slice(&header.len.to_le_bytes());
    out.extend_from_slice(&header.chunk.to_le_bytes());
    out.extend_from_slice(&header.insn.to_le_bytes());
    out.extend_from_slice(&header.control_flow.to_le_bytes());
    out.extend_from_slice(&payload);
    out
}

fn checksum(parts: &[&[u8]]) -> u32 {
    let mut sum = Checksum::default();
    for part in parts {
        let mut padded = part.to_vec();
        padded.resize(part.len().next_multiple_of(8), 0);
        sum.add(&padded);
    }
    sum.finish()
}

impl TraceWriter {
    fn frame(&mut self, mut header: FrameHeader, start: usize, body: &[u8]) {
        header.magic = FRAME_MAGIC;
        header.frame_len = (start + body.len() + 8).next_multiple_of(4096) as u64;
        header.header_checksum = header.fixed_checksum();
        let at = self.bytes.len();
        self.bytes.resize(at + header.frame_len as usize, 0);
        self.bytes[at..at + HEADER_SIZE].copy_from_slice(&header.to_bytes());
        self.bytes[at + start..at + start + body.len()].copy_from_slice(body);
    }

    /// Adds a sealed File, Events or Units frame.
    pub fn payload(&mut self, kind: FrameKind, thread: u32, seq: u32, payload: &[u8]) {
        let header = FrameHeader {
            kind: kind as u16,
            state: SEALED,
            thread,
            seq,
            used: payload.len() as u64,
            checksum: checksum(&[payload]),
            ..FrameHeader::default()
        };
        self.frame(header, PAYLOAD, payload);
    }

    /// Adds a Record frame.
    pub fn record(&mut self, record: &Record) {
        let registers = record.registers.to_bytes();
        let split = RECORD_DATA + (record.memory.len() + 8).next_multiple_of(4096);
        let mut header = FrameHeader {
            kind: FrameKind::Record as u16,
            thread: record.thread,
            seq: record.seq,
            split: split as u64,
            ..FrameHeader::default()
        };
        if !record.open {
            header.state = SEALED;
            header.used = record.control_flow.len() as u64;
            header.used_memory = record.memory.len() as u64;
            header.checksum = checksum(&[&registers, &record.memory, &record.control_flow]);
        }
        let mut body = vec![0; split - RECORD_REGISTERS];
        body[..registers.len()].copy_from_slice(&registers);
        let memory_at = RECORD_DATA - RECORD_REGISTERS;
        body[memory_at..memory_at + record.memory.len()].copy_from_slice(&record.memory);
        body.extend_from_slice(&record.control_flow);
        self.frame(header, RECORD_REGISTERS, &body);
    }
}
