//! Accesses to some bytes, with what they were and are: a line `PC R|W ADDRESS SIZE OLD NEW` for each, and
//! `PC kernel OLD NEW` where a system call has changed them.

use std::fs::File;
use std::io::{Result, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use iced_x86::{Instruction, Mnemonic};

use crate::listing::{Kind, MemRef};
use crate::sys::Pid;

pub struct Values<'a> {
    range: Range<u64>,
    out: Box<dyn Write + 'a>,
}

impl<'a> Values<'a> {
    pub fn new(range: Range<u64>, out: Box<dyn Write + 'a>) -> Values<'a> {
        Values { range, out }
    }

    fn touches(&self, r: &MemRef) -> bool {
        r.addr < self.range.end && self.range.start < r.addr + u64::from(r.size)
    }

    fn read(&self, tid: Pid) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (self.range.end - self.range.start) as usize];
        File::open(format!("/proc/{tid}/mem"))?.read_exact_at(&mut bytes, self.range.start)?;
        Ok(bytes)
    }

    /// The bytes in front of an instruction that accesses them, or that calls the kernel.
    pub fn before(&self, tid: Pid, insn: &Instruction, refs: &[MemRef]) -> Result<Option<Vec<u8>>> {
        let calls = insn.mnemonic() == Mnemonic::Syscall;
        match calls || refs.iter().any(|r| self.touches(r)) {
            true => self.read(tid).map(Some),
            false => Ok(None),
        }
    }

    /// The instruction has been executed.
    pub fn after(
        &mut self,
        tid: Pid,
        pc: u64,
        insn: &Instruction,
        refs: &[MemRef],
        old: &[u8],
    ) -> Result<()> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let now = self.read(tid)?;
        if insn.mnemonic() == Mnemonic::Syscall && now != old {
            writeln!(self.out, "{pc:#x} kernel {} {}", hex(old), hex(&now))?;
        }
        for r in refs {
            if self.touches(r) {
                let (kind, new) = match r.kind {
                    Kind::Read => ('R', old),
                    Kind::Write => ('W', &now[..]),
                };
                let (addr, size) = (r.addr, r.size);
                writeln!(self.out, "{pc:#x} {kind} {addr:#x} {size} {} {}", hex(old), hex(new))?;
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<()> {
        self.out.flush()
    }
}
