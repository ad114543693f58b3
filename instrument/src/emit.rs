//! The few instructions that snippets and transfer sequences are made of, as bytes.
//!
//! Decides nothing: each function appends one instruction. None of them touches a flag. Memory of
//! the thread block is addressed as `gs:[disp32]`, the look-up tables as `[rcx*8 + disp32]` and
//! `[rcx*4 + disp32]`.
//! Registers are hardware numbers (rax = 0 .. r15 = 15).

use abi::layout::{TableShape, JUMP_BIAS, ONLY_TABLE};
use alloc::vec::Vec;

pub const RCX: u8 = 1;
pub const RSP: u8 = 4;

/// A growing piece of code at a known address.
pub struct Code {
    pub bytes: Vec<u8>,
    /// Address of `bytes[0]`.
    pub base: u64,
}

/// Scale-free memory operand `[base + disp]`.
#[derive(Clone, Copy)]
pub struct At(pub u8, pub i32);

impl Code {
    pub fn here(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub fn address(&self, offset: u32) -> u64 {
        self.base.wrapping_add(u64::from(offset))
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn u8(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn i32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }

    /// Overwrites the 4 bytes at `at` with the distance from their end to `target`.
    /// Returns false if `target` is out of reach.
    pub fn patch_rel32(&mut self, at: u32, target: u64) -> bool {
        let next = self.address(at + 4);
        match i32::try_from(target.wrapping_sub(next) as i64) {
            Ok(distance) => {
                self.bytes[at as usize..at as usize + 4].copy_from_slice(&distance.to_le_bytes());
                true
            }
            Err(_) => false,
        }
    }

    /// Patches a rel32 so that it goes to `offset` of this code.
    pub fn bind(&mut self, at: u32, offset: u32) {
        let distance = offset as i32 - (at as i32 + 4);
        self.bytes[at as usize..at as usize + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// Patches a rel8 so that it goes to the current end.
    pub fn bind_short(&mut self, at: u32) {
        let distance = self.here() - (at + 1);
        debug_assert!(distance < 128);
        self.bytes[at as usize] = distance as u8;
    }

    fn gs(&mut self, wide: bool, opcode: u8, reg: u8, offset: i32) {
        self.u8(0x65);
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2;
        if rex != 0x40 {
            self.u8(rex);
        }
        self.raw(&[opcode, (reg & 7) << 3 | 4, 0x25]);
        self.i32(offset);
    }

    /// `mov reg, gs:[offset]`
    pub fn load(&mut self, reg: u8, offset: i32) {
        self.gs(true, 0x8b, reg, offset);
    }

    /// `mov reg32, gs:[offset]`
    pub fn load32(&mut self, reg: u8, offset: i32) {
        self.gs(false, 0x8b, reg, offset);
    }

    /// `mov gs:[offset], reg`
    pub fn store(&mut self, offset: i32, reg: u8) {
        self.gs(true, 0x89, reg, offset);
    }

    /// `mov gs:[offset], reg32`
    pub fn store32(&mut self, offset: i32, reg: u8) {
        self.gs(false, 0x89, reg, offset);
    }

    /// `mov dword gs:[offset], imm`
    pub fn store_imm(&mut self, offset: i32, imm: u32) {
        self.gs(false, 0xc7, 0, offset);
        self.raw(&imm.to_le_bytes());
    }

    /// `jmp gs:[offset]`
    pub fn jump_gs(&mut self, offset: i32) {
        self.gs(false, 0xff, 4, offset);
    }

    fn modrm_at(&mut self, reg: u8, m: At) {
        let At(base, disp) = m;
        let (low, needs_sib) = (base & 7, base & 7 == 4);
        let mode = if disp == 0 && low != 5 {
            0
        } else if i8::try_from(disp).is_ok() {
            1
        } else {
            2
        };
        self.u8(mode << 6 | (reg & 7) << 3 | low);
        if needs_sib {
            self.u8(0x24);
        }
        match mode {
            1 => self.u8(disp as i8 as u8),
            2 => self.i32(disp),
            _ => {}
        }
    }

    fn rex_at(&mut self, wide: bool, reg: u8, base: u8, force: bool) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | base >> 3;
        if rex != 0x40 || force {
            self.u8(rex);
        }
    }

    /// `mov reg, [m]`
    pub fn read(&mut self, reg: u8, m: At) {
        self.rex_at(true, reg, m.0, false);
        self.u8(0x8b);
        self.modrm_at(reg, m);
    }

    /// `mov reg32, [m]`
    pub fn read32(&mut self, reg: u8, m: At) {
        self.rex_at(false, reg, m.0, false);
        self.u8(0x8b);
        self.modrm_at(reg, m);
    }

    /// `mov reg32, from32`: the high half becomes zero.
    pub fn move32(&mut self, reg: u8, from: u8) {
        if reg >= 8 || from >= 8 {
            self.u8(0x40 | (from >> 3) << 2 | reg >> 3);
        }
        self.raw(&[0x89, 0xc0 | (from & 7) << 3 | reg & 7]);
    }

    /// `movzx reg32, byte [m]`
    pub fn read_byte(&mut self, reg: u8, m: At) {
        self.rex_at(false, reg, m.0, false);
        self.raw(&[0x0f, 0xb6]);
        self.modrm_at(reg, m);
    }

    /// `mov [m], reg`
    pub fn write(&mut self, m: At, reg: u8) {
        self.rex_at(true, reg, m.0, false);
        self.u8(0x89);
        self.modrm_at(reg, m);
    }

    /// `mov byte [m], reg8`
    pub fn write_byte(&mut self, m: At, reg: u8) {
        self.rex_at(false, reg, m.0, reg >= 4);
        self.u8(0x88);
        self.modrm_at(reg, m);
    }

    /// `mov dword [m], imm`
    pub fn write_imm(&mut self, m: At, imm: u32) {
        self.rex_at(false, 0, m.0, false);
        self.u8(0xc7);
        self.modrm_at(0, m);
        self.raw(&imm.to_le_bytes());
    }

    /// `mov byte [m], imm`
    pub fn write_imm_byte(&mut self, m: At, imm: u8) {
        self.rex_at(false, 0, m.0, false);
        self.u8(0xc6);
        self.modrm_at(0, m);
        self.u8(imm);
    }

    /// `lea reg, [m]`
    pub fn lea(&mut self, reg: u8, m: At) {
        self.rex_at(true, reg, m.0, false);
        self.u8(0x8d);
        self.modrm_at(reg, m);
    }

    /// `lea reg32, [m]`
    pub fn lea32(&mut self, reg: u8, m: At) {
        self.rex_at(false, reg, m.0, false);
        self.u8(0x8d);
        self.modrm_at(reg, m);
    }

    /// `set<condition> reg8`; `condition` is the low nibble of the branch opcode.
    pub fn setcc(&mut self, condition: u8, reg: u8) {
        self.rex_at(false, 0, reg, reg >= 4);
        self.raw(&[0x0f, 0x90 | condition, 0xc0 | (reg & 7)]);
    }

    /// `mov reg, imm64`, in its shortest form.
    pub fn constant(&mut self, reg: u8, value: u64) {
        if let Ok(imm) = u32::try_from(value) {
            if reg >= 8 {
                self.u8(0x41);
            }
            self.u8(0xb8 | (reg & 7));
            self.raw(&imm.to_le_bytes());
        } else {
            self.raw(&[0x48 | reg >> 3, 0xb8 | (reg & 7)]);
            self.raw(&value.to_le_bytes());
        }
    }

    /// The address `value` in `reg`: `lea reg, [rip + x]` where it is in reach, else a constant.
    pub fn address_of(&mut self, reg: u8, value: u64) {
        let next = self.address(self.here() + 7);
        match i32::try_from(value.wrapping_sub(next) as i64) {
            Ok(distance) => {
                self.raw(&[0x48 | (reg >> 3) << 2, 0x8d, (reg & 7) << 3 | 5]);
                self.i32(distance);
            }
            Err(_) => self.constant(reg, value),
        }
    }

    /// `crc32 ecx, dword gs:[offset]`: zero exactly if ecx equalled the operand, as the CRC step
    /// is a bijection of their difference. An equality test that leaves all flags alone.
    pub fn crc_rcx(&mut self, offset: i32) {
        self.raw(&[0x65, 0xf2, 0x0f, 0x38, 0xf1, 0x0c, 0x25]);
        self.i32(offset);
    }

    /// `jrcxz` over what follows; returns the place for [`Code::bind_short`].
    pub fn jrcxz(&mut self) -> u32 {
        self.raw(&[0xe3, 0]);
        self.here() - 1
    }

    /// One instruction of `length` bytes, 1 to 4, that does nothing.
    pub fn nop(&mut self, length: usize) {
        const NOPS: [&[u8]; 4] =
            [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x0f, 0x1f, 0x40, 0x00]];
        self.raw(NOPS[length - 1]);
    }

    /// `jmp rel32`; returns the place of the distance.
    pub fn jump(&mut self) -> u32 {
        self.u8(0xe9);
        self.i32(0);
        self.here() - 4
    }

    /// `call rel32`; returns the place of the distance.
    pub fn call(&mut self) -> u32 {
        self.u8(0xe8);
        self.i32(0);
        self.here() - 4
    }

    /// `j<condition> rel32`; returns the place of the distance.
    pub fn jcc(&mut self, condition: u8) -> u32 {
        self.raw(&[0x0f, 0x80 | condition]);
        self.i32(0);
        self.here() - 4
    }

    /// Takes the entry of the low half in rcx out of `table`.
    pub fn look_up(&mut self, look_up: LookUp, table: TableShape) {
        if look_up.bias(table) != 0 {
            self.raw(&[0x48, 0x8d, 0x89]); // lea rcx, [rcx + bias]
            self.i32(look_up.bias(table));
        }
        self.raw(look_up.opcode());
        self.i32(look_up.displacement(table));
    }

    /// `vpunpckldq xmm30, xmm30, dword [rsp + 4] {1to4}`: the low half stays, the high half is that
    /// on the stack.
    pub fn merge_high_half(&mut self) {
        self.raw(&[0x62, 0x61, 0x0d, 0x10, 0x62, 0x74, 0x24, 0x01]);
    }

    /// `vmovq [rsp], xmm30`
    pub fn write_merged(&mut self) {
        self.raw(&[0x62, 0x61, 0xfd, 0x08, 0xd6, 0x34, 0x24]);
    }

    /// An instruction whose operand is `[disp32]`.
    fn absolute(&mut self, opcode: u8, reg: u8, address: u64) {
        self.raw(&[0x48, opcode, (reg & 7) << 3 | 4, 0x25]);
        self.i32(address as i32);
    }

    /// Takes the lock at `lock` (below 2 GiB), waiting for it, and counts at `count`: rcx is the
    /// new number. No flag is touched: `xchg` and `jrcxz` do not need one.
    pub fn lock_and_count(&mut self, lock: u64, count: u64, this: i32) {
        let again = self.here();
        self.load(RCX, this);
        self.absolute(0x87, RCX, lock); // xchg [lock], rcx
        let free = self.jrcxz();
        self.raw(&[0xf3, 0x90, 0xeb, 0]); // pause; jmp again
        let end = self.here();
        self.bytes[end as usize - 1] = (again as i32 - end as i32) as u8;
        self.bind_short(free);
        self.absolute(0x8b, RCX, count);
        self.lea(RCX, At(RCX, 1));
        self.absolute(0x89, RCX, count);
    }

    /// `mov qword [address], 0` (below 2 GiB)
    pub fn clear(&mut self, address: u64) {
        self.absolute(0xc7, 0, address);
        self.i32(0);
    }

    /// `vmovq reg, xmm31`: the control-flow pointer.
    pub fn control_flow_pointer(&mut self, reg: u8) {
        self.raw(&[0x62, 0x41 | (1 ^ (reg >> 3)) << 5, 0xfd, 0x08, 0x7e, 0xf8 | (reg & 7)]);
    }

    /// `vpextrq reg, xmm31, 1`: the memory-stream pointer.
    pub fn memory_pointer(&mut self, reg: u8) {
        self.raw(&[0x62, 0x43 | (1 ^ (reg >> 3)) << 5, 0xfd, 0x08, 0x16, 0xf8 | (reg & 7), 1]);
    }

    /// `vpaddq xmm31, xmm31, gs:[offset]`
    pub fn bump(&mut self, offset: i32) {
        self.raw(&[0x65, 0x62, 0x61, 0x85, 0x00, 0xd4, 0x3c, 0x25]);
        self.i32(offset);
    }

    /// `vmovdqu64 gs:[offset], xmm31`
    pub fn save_pointers(&mut self, offset: i32) {
        self.whole_vector(0x08, 0x7f, 31, offset);
    }

    /// `vmovdqu64 xmm31, gs:[offset]`
    pub fn load_pointers(&mut self, offset: i32) {
        self.whole_vector(0x08, 0x6f, 31, offset);
    }

    /// `vmovdqu64 gs:[offset], zmm`, registers 24 to 31
    pub fn save_vector(&mut self, offset: i32, vector: u8) {
        self.whole_vector(0x48, 0x7f, vector, offset);
    }

    /// `vmovdqu64 zmm, gs:[offset]`, registers 24 to 31
    pub fn load_vector(&mut self, offset: i32, vector: u8) {
        self.whole_vector(0x48, 0x6f, vector, offset);
    }

    fn whole_vector(&mut self, length: u8, opcode: u8, vector: u8, offset: i32) {
        self.raw(&[0x65, 0x62, 0x61, 0xfe, length, opcode, (vector & 7) << 3 | 4, 0x25]);
        self.i32(offset);
    }

    /// Stores a whole vector register, zero-extended to 64 bytes (`vmovdqu64 [m], zmm`), or, with
    /// `narrow`, its 32 low bytes (`vmovdqu [m], ymm`, registers 0 to 15).
    pub fn write_vector(&mut self, m: At, vector: u8, narrow: bool) {
        if narrow {
            let not = |bit: u8| (bit & 1) ^ 1;
            self.raw(&[0xc4, not(vector >> 3) << 7 | 0x40 | not(m.0 >> 3) << 5 | 1, 0x7e, 0x7f]);
            self.modrm_at(vector, m);
        } else {
            let not = |bit: u8| (bit & 1) ^ 1;
            let p0 = not(vector >> 3) << 7 | 0x40 | not(m.0 >> 3) << 5 | not(vector >> 4) << 4 | 1;
            self.raw(&[0x62, p0, 0xfe, 0x48, 0x7f]);
            // EVEX scales an 8-bit displacement: always use 32 bits.
            self.u8(0x80 | (vector & 7) << 3 | (m.0 & 7));
            if m.0 & 7 == 4 {
                self.u8(0x24);
            }
            self.i32(m.1);
        }
    }

    /// `kmovq [m], k` or, `narrow`, `kmovw`
    pub fn write_mask(&mut self, m: At, mask: u8, narrow: bool) {
        let b = ((m.0 >> 3) & 1) ^ 1;
        self.raw(&[0xc4, 0xc0 | b << 5 | 1, if narrow { 0x78 } else { 0xf8 }, 0x91]);
        self.modrm_at(mask, m);
    }
}

/// An instruction that takes an entry out of a table of translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookUp {
    /// `mov rcx, [rcx*8 + table]`
    Whole,
    /// `mov ecx, [rcx*4 + table]`: the low half, which is all where the window lies at 0.
    LowHalf,
    /// `vmovd xmm30, [rcx*4 + table]`
    LowHalfToVector,
}

impl LookUp {
    const ALL: [LookUp; 3] = [LookUp::Whole, LookUp::LowHalf, LookUp::LowHalfToVector];

    fn opcode(self) -> &'static [u8] {
        match self {
            LookUp::Whole => &[0x48, 0x8b, 0x0c, 0xcd],
            LookUp::LowHalf => &[0x8b, 0x0c, 0x8d],
            LookUp::LowHalfToVector => &[0x62, 0x61, 0x7d, 0x08, 0x6e, 0x34, 0x8d],
        }
    }

    /// Bytes of an entry.
    fn entry(self) -> u64 {
        match self {
            LookUp::Whole => 8,
            LookUp::LowHalf | LookUp::LowHalfToVector => 4,
        }
    }

    /// What is added to rcx in front of it, as the table lies out of reach of a displacement.
    fn bias(self, table: TableShape) -> i32 {
        if self == LookUp::Whole && table != ONLY_TABLE {
            JUMP_BIAS
        } else {
            0
        }
    }

    fn displacement(self, table: TableShape) -> i32 {
        (table.base as i64 - table.entry as i64 * i64::from(self.bias(table))) as i32
    }

    /// The look-up in `table` that `code` starts with.
    pub fn decode(code: &[u8], table: TableShape) -> Option<LookUp> {
        let mut fitting = LookUp::ALL.into_iter().filter(|l| l.entry() == table.entry);
        fitting.find(|look_up| {
            let rest = code.strip_prefix(look_up.opcode());
            rest.is_some_and(|rest| rest.starts_with(&look_up.displacement(table).to_le_bytes()))
        })
    }

    /// Bytes of the instruction, at most 11.
    pub fn length(self) -> u64 {
        self.opcode().len() as u64 + 4
    }

    /// Address of the entry that it takes out of `table`, with this rcx.
    pub fn place(self, table: TableShape, rcx: u64) -> u64 {
        let displacement = i64::from(self.displacement(table)) as u64;
        displacement.wrapping_add(rcx.wrapping_mul(table.entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::layout::{JUMP_TABLE, RETURN_TABLE};
    use alloc::string::String;
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

    /// A disassembler says what was meant.
    #[test]
    fn every_form_disassembles_to_what_its_name_says() {
        let cases: &[(&str, &dyn Fn(&mut Code))] = &[
            ("mov rax,gs:[28h]", &|c| c.load(0, 0x28)),
            ("mov r15,gs:[28h]", &|c| c.load(15, 0x28)),
            ("mov ecx,gs:[30h]", &|c| c.load32(1, 0x30)),
            ("mov gs:[48h],r9", &|c| c.store(0x48, 9)),
            ("mov gs:[48h],r9d", &|c| c.store32(0x48, 9)),
            ("mov dword ptr gs:[58h],12345678h", &|c| c.store_imm(0x58, 0x1234_5678)),
            ("jmp qword ptr gs:[8]", &|c| c.jump_gs(8)),
            ("mov rdx,[rsp]", &|c| c.read(2, At(4, 0))),
            ("mov ecx,[rsp+4]", &|c| c.read32(1, At(4, 4))),
            ("mov ecx,eax", &|c| c.move32(1, 0)),
            ("mov ecx,r13d", &|c| c.move32(1, 13)),
            ("movzx r8d,byte ptr [r12-1]", &|c| c.read_byte(8, At(12, -1))),
            ("mov [rbp],rsi", &|c| c.write(At(5, 0), 6)),
            ("mov [r13-80h],r8", &|c| c.write(At(13, -128), 8)),
            ("mov [rax-88h],r8", &|c| c.write(At(0, -136), 8)),
            ("mov [rax-1],sil", &|c| c.write_byte(At(0, -1), 6)),
            ("mov dword ptr [rsp],5", &|c| c.write_imm(At(4, 0), 5)),
            ("mov dword ptr [r11+4],7", &|c| c.write_imm(At(11, 4), 7)),
            ("mov byte ptr [rdi],1", &|c| c.write_imm_byte(At(7, 0), 1)),
            ("lea r10,[r10+2]", &|c| c.lea(10, At(10, 2))),
            ("lea edi,[rdi+2]", &|c| c.lea32(7, At(7, 2))),
            ("setne dil", &|c| c.setcc(5, 7)),
            ("seta r9b", &|c| c.setcc(7, 9)),
            ("mov r9d,7", &|c| c.constant(9, 7)),
            ("mov rcx,123456789ABCh", &|c| c.constant(1, 0x1234_5678_9abc)),
            ("lea r9,[2000h]", &|c| c.address_of(9, 0x2000)),
            ("crc32 ecx,dword ptr gs:[40h]", &|c| c.crc_rcx(0x40)),
            ("mov rcx,[rcx*8+7FFFF000h]", &|c| c.look_up(LookUp::Whole, ONLY_TABLE)),
            ("lea rcx,[rcx+7FFFFFFFh]; mov rcx,[rcx*8+7FFFF008h]", &|c| {
                c.look_up(LookUp::Whole, JUMP_TABLE)
            }),
            ("mov ecx,[rcx*4+7FFFF000h]", &|c| c.look_up(LookUp::LowHalf, RETURN_TABLE)),
            ("vmovd xmm30,[rcx*4+7FFFF000h]", &|c| {
                c.look_up(LookUp::LowHalfToVector, RETURN_TABLE)
            }),
            ("vpunpckldq xmm30,xmm30,[rsp+4]{1to4}", &|c| c.merge_high_half()),
            ("vmovq [rsp],xmm30", &|c| c.write_merged()),
            ("mov qword ptr [1000h],0", &|c| c.clear(0x1000)),
            (
                "mov rcx,gs:[0]; xchg [1000h],rcx; jrcxz 0000000000001017h; pause; \
                 jmp short 0000000000001000h; \
                 mov rcx,[1040h]; lea rcx,[rcx+1]; mov [1040h],rcx",
                &|c| c.lock_and_count(0x1000, 0x1040, 0),
            ),
            ("vmovq rax,xmm31", &|c| c.control_flow_pointer(0)),
            ("vmovq r14,xmm31", &|c| c.control_flow_pointer(14)),
            ("vpextrq rdi,xmm31,1", &|c| c.memory_pointer(7)),
            ("vpextrq r8,xmm31,1", &|c| c.memory_pointer(8)),
            ("vpaddq xmm31,xmm31,gs:[150h]", &|c| c.bump(0x150)),
            ("vmovdqu64 gs:[60h],xmm31", &|c| c.save_pointers(0x60)),
            ("vmovdqu64 gs:[80h],zmm31", &|c| c.save_vector(0x80, 31)),
            ("vmovdqu64 xmm31,gs:[60h]", &|c| c.load_pointers(0x60)),
            ("vmovdqu64 zmm31,gs:[80h]", &|c| c.load_vector(0x80, 31)),
            ("vmovdqu64 zmm30,gs:[80h]", &|c| c.load_vector(0x80, 30)),
            ("vmovdqu64 [r12-40h],zmm29", &|c| c.write_vector(At(12, -64), 29, false)),
            ("vmovdqu64 [rax-40h],zmm9", &|c| c.write_vector(At(0, -64), 9, false)),
            ("vmovdqu ymmword ptr [r9-40h],ymm12", &|c| c.write_vector(At(9, -64), 12, true)),
            ("kmovq [r9-8],k3", &|c| c.write_mask(At(9, -8), 3, false)),
            ("kmovw [rsi-8],k1", &|c| c.write_mask(At(6, -8), 1, true)),
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
}
