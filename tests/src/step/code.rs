//! The program's code: read from its memory and kept decoded while it cannot have changed.

use std::collections::HashMap;
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::maps;
use crate::sys::Pid;

const LONGEST: usize = 15;

struct Decoded {
    insn: Instruction,
    bytes: [u8; LONGEST],
    /// The state of the mappings in which the bytes were last compared.
    checked_at: u64,
    /// Nothing but a change of the mappings can change the bytes.
    fixed: bool,
}

pub struct Code {
    pid: Pid,
    memory: File,
    decoded: HashMap<u64, Decoded>,
    /// Counts changes of the mappings.
    now: u64,
    /// Ranges that are private and not writable, as of `fixed_at`.
    fixed: Vec<(u64, u64)>,
    fixed_at: u64,
}

impl Code {
    pub fn of(pid: Pid) -> Result<Self> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self { pid, memory, decoded: HashMap::new(), now: 1, fixed: Vec::new(), fixed_at: 0 })
    }

    pub fn mappings_changed(&mut self) {
        self.now += 1;
    }

    /// The instruction at `pc`; None where there is no valid one.
    pub fn at(&mut self, pc: u64) -> Result<Option<Instruction>> {
        if let Some(d) = self.decoded.get(&pc) {
            if d.fixed && d.checked_at == self.now {
                return Ok(Some(d.insn));
            }
        }
        let mut bytes = [0; LONGEST];
        let len = self.read(pc, &mut bytes);
        let fixed = self.is_fixed(pc, pc + len as u64)?;
        if let Some(d) = self.decoded.get_mut(&pc) {
            if d.bytes == bytes {
                d.checked_at = self.now;
                d.fixed = fixed;
                return Ok(Some(d.insn));
            }
        }
        let insn = Decoder::with_ip(64, &bytes[..len], pc, DecoderOptions::NONE).decode();
        if insn.is_invalid() {
            self.decoded.remove(&pc);
            return Ok(None);
        }
        self.decoded.insert(pc, Decoded { insn, bytes, checked_at: self.now, fixed });
        Ok(Some(insn))
    }

    /// Reads as much as is mapped; the rest stays zero.
    fn read(&self, pc: u64, bytes: &mut [u8; LONGEST]) -> usize {
        if let Ok(n) = self.memory.read_at(bytes, pc) {
            return n;
        }
        let to_page_end = (0x1000 - (pc & 0xfff)).min(LONGEST as u64) as usize;
        self.memory.read_at(&mut bytes[..to_page_end], pc).unwrap_or(0)
    }

    fn is_fixed(&mut self, start: u64, end: u64) -> Result<bool> {
        if self.fixed_at != self.now {
            self.fixed_at = self.now;
            let all = maps::read(self.pid)?;
            self.fixed = all.iter().filter(|m| m.is_fixed).map(|m| (m.start, m.end)).collect();
        }
        Ok(self.fixed.iter().any(|(s, e)| *s <= start && end <= *e))
    }

    /// `pushf` has stored the flag that makes the CPU step; the program would not see it natively.
    pub fn hide_trap_flag(&self, at: u64) -> Result<()> {
        let mut high = [0];
        self.memory.read_exact_at(&mut high, at + 1)?;
        self.memory.write_all_at(&[high[0] & !1], at + 1)
    }
}
