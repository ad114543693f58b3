//! Code that grows, and instructions on general-purpose registers.

use abi::ids::{CodeOff, Gpr};
use alloc::vec::Vec;

/// `nop dword [rax + rax]`: what a unit that may be closed starts with. Nobody is ever in the midst of
/// it.
pub const GATE: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// What a closed gate at `gate` is, whose jump leads to `to`: `jmp to`.
pub fn closed_gate(gate: u64, to: u64) -> [u8; 5] {
    let distance = to.wrapping_sub(gate + GATE.len() as u64);
    let [a, b, c, d, ..] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}

/// Where the gate of the unit with this entry (an address, or an offset from an aligned one) is. What
/// fills the room in front of it belongs to the unit: a call's return must lead right behind the call,
/// where the processor expects it.
pub fn gate_of(entry: u64) -> u64 {
    if entry % 8 + GATE.len() as u64 > 8 {
        entry.next_multiple_of(8)
    } else {
        entry
    }
}

/// A growing piece of code at a known address.
pub struct Code {
    pub bytes: Vec<u8>,
    /// Address of `bytes[0]`.
    pub base: u64,
}

/// Scale-free memory operand `[base + disp]`.
#[derive(Clone, Copy)]
pub struct At(pub Gpr, pub i32);

impl Code {
    /// Where the next byte goes.
    #[allow(clippy::cast_possible_truncation, reason = "code lies in a window of 4 GiB")]
    pub fn here(&self) -> CodeOff {
        CodeOff(self.bytes.len() as u32)
    }

    /// The address of an offset.
    pub fn address(&self, offset: CodeOff) -> u64 {
        self.base.wrapping_add(u64::from(offset.0))
    }

    /// Bytes that were made elsewhere: the program's own, or an encoder's.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.raw(bytes);
    }

    /// Eight bytes of data.
    pub fn word(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }

    /// The 4 bytes that end here.
    fn last_four(&self) -> CodeOff {
        CodeOff(self.here().0 - 4)
    }

    /// The byte that ends here.
    fn last_one(&self) -> CodeOff {
        CodeOff(self.here().0 - 1)
    }

    fn put32(&mut self, at: CodeOff, value: i32) {
        self.bytes[at.0 as usize..][..4].copy_from_slice(&value.to_le_bytes());
    }

    /// Overwrites the 4 bytes at `at` with the distance from their end to `target`.
    /// Returns false if `target` is out of reach.
    pub fn patch_rel32(&mut self, at: CodeOff, target: u64) -> bool {
        let next = self.address(at.plus(4));
        match i32::try_from(target.wrapping_sub(next) as i64) {
            Ok(distance) => {
                self.put32(at, distance);
                true
            }
            Err(_) => false,
        }
    }

    /// Writes a displacement that [`Code::jump_through`] or [`Code::read_through`] has left open. It has 32 bits, as
    /// all distances in an image and its code have.
    #[allow(clippy::cast_possible_truncation, reason = "see above")]
    pub fn put_displacement(&mut self, at: CodeOff, value: u64) {
        debug_assert!(i32::try_from(value as i64).is_ok());
        self.put32(at, value as i32);
    }

    /// Patches a rel32 so that it goes to `offset` of this code.
    pub fn bind(&mut self, at: CodeOff, offset: CodeOff) {
        self.put32(at, offset.0 as i32 - (at.0 as i32 + 4));
    }

    /// Patches a rel32 so that it goes to the current end.
    pub fn bind_here(&mut self, at: CodeOff) {
        self.bind(at, self.here());
    }

    /// Patches a rel8 so that it goes to `offset` of this code, which is in reach.
    pub fn bind_byte(&mut self, at: CodeOff, offset: CodeOff) {
        let distance = offset.0 as i32 - (at.0 as i32 + 1);
        debug_assert!(i8::try_from(distance).is_ok());
        self.bytes[at.0 as usize] = distance.to_le_bytes()[0];
    }

    /// Patches a rel8 so that it goes to the current end.
    pub fn bind_short(&mut self, at: CodeOff) {
        self.bind_byte(at, self.here());
    }

    fn gs(&mut self, wide: bool, opcode: u8, field: u8, offset: i32) {
        self.u8(0x65);
        let rex = 0x40 | u8::from(wide) << 3 | (field >> 3) << 2;
        if rex != 0x40 {
            self.u8(rex);
        }
        self.raw(&[opcode, (field & 7) << 3 | 4, 0x25]);
        self.i32(offset);
    }

    /// `mov reg, gs:[offset]`
    pub fn load(&mut self, Gpr(reg): Gpr, offset: i32) {
        self.gs(true, 0x8b, reg, offset);
    }

    /// `mov reg32, gs:[offset]`
    pub fn load32(&mut self, Gpr(reg): Gpr, offset: i32) {
        self.gs(false, 0x8b, reg, offset);
    }

    /// `mov gs:[offset], reg`
    pub fn store(&mut self, offset: i32, Gpr(reg): Gpr) {
        self.gs(true, 0x89, reg, offset);
    }

    /// `mov gs:[offset], reg32`
    pub fn store32(&mut self, offset: i32, Gpr(reg): Gpr) {
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

    /// `call gs:[offset]`
    pub fn call_gs(&mut self, offset: i32) {
        self.gs(false, 0xff, 2, offset);
    }

    /// `jmp [rip + x]`, by way of the word at `offset` of this code.
    #[allow(clippy::cast_possible_truncation, reason = "code lies in a window of 4 GiB")]
    pub fn jump_by(&mut self, offset: usize) {
        self.raw(&[0xff, 0x25, 0, 0, 0, 0]);
        self.bind(self.last_four(), CodeOff(offset as u32));
    }

    /// `jmp [base + index*8 + x]`, without a base `jmp [index*8 + x]`; returns the place of x.
    pub fn jump_through(&mut self, base: Option<Gpr>, index: Gpr) -> CodeOff {
        self.through(false, 0xff, 4, base, index)
    }

    /// `mov reg, [base + index*8 + x]`, as above.
    pub fn read_through(&mut self, Gpr(reg): Gpr, base: Option<Gpr>, index: Gpr) -> CodeOff {
        self.through(true, 0x8b, reg, base, index)
    }

    fn through(
        &mut self,
        wide: bool,
        opcode: u8,
        field: u8,
        base: Option<Gpr>,
        Gpr(index): Gpr,
    ) -> CodeOff {
        // Without a base mode 0 has 32 bits of displacement all the same.
        let (mode, base) = base.map_or((0, 5), |Gpr(base)| (2, base));
        let high = |register: u8, bit: u8| (register >> 3) << bit;
        let rex = 0x40 | u8::from(wide) << 3 | high(field, 2) | high(index, 1) | high(base, 0);
        if rex != 0x40 {
            self.u8(rex);
        }
        self.raw(&[opcode, mode << 6 | (field & 7) << 3 | 4, 3 << 6 | (index & 7) << 3 | base & 7]);
        self.i32(0);
        self.last_four()
    }

    pub(super) fn modrm_at(&mut self, field: u8, m: At) {
        let At(Gpr(base), disp) = m;
        let (low, needs_sib) = (base & 7, base & 7 == 4);
        let mode = if disp == 0 && low != 5 {
            0
        } else if i8::try_from(disp).is_ok() {
            1
        } else {
            2
        };
        self.u8(mode << 6 | (field & 7) << 3 | low);
        if needs_sib {
            self.u8(0x24);
        }
        match mode {
            1 => self.u8(disp.to_le_bytes()[0]),
            2 => self.i32(disp),
            _ => {}
        }
    }

    fn rex_at(&mut self, wide: bool, field: u8, Gpr(base): Gpr, force: bool) {
        let rex = 0x40 | u8::from(wide) << 3 | (field >> 3) << 2 | base >> 3;
        if rex != 0x40 || force {
            self.u8(rex);
        }
    }

    /// `mov reg, [m]`
    pub fn read(&mut self, Gpr(reg): Gpr, m: At) {
        self.rex_at(true, reg, m.0, false);
        self.u8(0x8b);
        self.modrm_at(reg, m);
    }

    /// `mov reg32, [m]`
    pub fn read32(&mut self, Gpr(reg): Gpr, m: At) {
        self.rex_at(false, reg, m.0, false);
        self.u8(0x8b);
        self.modrm_at(reg, m);
    }

    /// `mov reg32, from32`: the high half becomes zero.
    pub fn move32(&mut self, Gpr(reg): Gpr, Gpr(from): Gpr) {
        if reg >= 8 || from >= 8 {
            self.u8(0x40 | (from >> 3) << 2 | reg >> 3);
        }
        self.raw(&[0x89, 0xc0 | (from & 7) << 3 | reg & 7]);
    }

    /// `movzx reg32, byte [m]`
    pub fn read_byte(&mut self, Gpr(reg): Gpr, m: At) {
        self.rex_at(false, reg, m.0, false);
        self.raw(&[0x0f, 0xb6]);
        self.modrm_at(reg, m);
    }

    fn modrm_sum(&mut self, field: u8, Gpr(base): Gpr, Gpr(index): Gpr, disp: i8) {
        self.raw(&[0x44 | (field & 7) << 3, (index & 7) << 3 | base & 7, disp.to_le_bytes()[0]]);
    }

    fn rex_sum(&mut self, wide: bool, field: u8, Gpr(base): Gpr, Gpr(index): Gpr) {
        let rex = 0x40 | u8::from(wide) << 3 | (field >> 3) << 2 | (index >> 3) << 1 | base >> 3;
        if rex != 0x40 {
            self.u8(rex);
        }
    }

    /// `mov reg, [base + index + disp]` of 1, 2, 4 or 8 bytes, with zeros above. The index is not rsp.
    pub fn read_sum(&mut self, size: u32, Gpr(reg): Gpr, base: Gpr, index: Gpr, disp: i8) {
        self.rex_sum(size == 8, reg, base, index);
        match size {
            1 => self.raw(&[0x0f, 0xb6]),
            2 => self.raw(&[0x0f, 0xb7]),
            _ => self.u8(0x8b),
        }
        self.modrm_sum(reg, base, index, disp);
    }

    /// `mov reg, [m]` of 1, 2, 4 or 8 bytes, with zeros above.
    pub fn read_sized(&mut self, size: u32, Gpr(reg): Gpr, m: At) {
        self.rex_at(size == 8, reg, m.0, false);
        match size {
            1 => self.raw(&[0x0f, 0xb6]),
            2 => self.raw(&[0x0f, 0xb7]),
            _ => self.u8(0x8b),
        }
        self.modrm_at(reg, m);
    }

    /// `mov [base + index + disp], reg` of 1, 2, 4 or 8 bytes. The index is not rsp.
    pub fn write_sum(&mut self, size: u32, Gpr(reg): Gpr, base: Gpr, index: Gpr, disp: i8) {
        if size == 2 {
            self.u8(0x66);
        }
        let (Gpr(b), Gpr(i)) = (base, index);
        let rex = 0x40 | u8::from(size == 8) << 3 | (reg >> 3) << 2 | (i >> 3) << 1 | b >> 3;
        if rex != 0x40 || size == 1 {
            self.u8(rex);
        }
        self.u8(if size == 1 { 0x88 } else { 0x89 });
        self.modrm_sum(reg, base, index, disp);
    }

    /// `lea reg, [base + index + disp]`, or the low half of it. The index is not rsp.
    pub fn lea_sum(&mut self, wide: bool, Gpr(reg): Gpr, base: Gpr, index: Gpr, disp: i8) {
        self.rex_sum(wide, reg, base, index);
        self.u8(0x8d);
        self.modrm_sum(reg, base, index, disp);
    }

    /// `not reg`
    pub fn not(&mut self, Gpr(reg): Gpr) {
        self.raw(&[0x48 | reg >> 3, 0xf7, 0xd0 | (reg & 7)]);
    }

    /// `mov [m], reg`
    pub fn write(&mut self, m: At, Gpr(reg): Gpr) {
        self.rex_at(true, reg, m.0, false);
        self.u8(0x89);
        self.modrm_at(reg, m);
    }

    /// `mov byte [m], reg8`
    pub fn write_byte(&mut self, m: At, Gpr(reg): Gpr) {
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
    pub fn lea(&mut self, Gpr(reg): Gpr, m: At) {
        self.rex_at(true, reg, m.0, false);
        self.u8(0x8d);
        self.modrm_at(reg, m);
    }

    /// `lea reg32, [m]`
    pub fn lea32(&mut self, Gpr(reg): Gpr, m: At) {
        self.rex_at(false, reg, m.0, false);
        self.u8(0x8d);
        self.modrm_at(reg, m);
    }

    /// `set<condition> reg8`; `condition` is the low nibble of the branch opcode.
    pub fn setcc(&mut self, condition: u8, Gpr(reg): Gpr) {
        self.rex_at(false, 0, Gpr(reg), reg >= 4);
        self.raw(&[0x0f, 0x90 | condition, 0xc0 | (reg & 7)]);
    }

    /// `mov reg, imm64`, in its shortest form.
    pub fn constant(&mut self, Gpr(reg): Gpr, value: u64) {
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
    pub fn address_of(&mut self, Gpr(reg): Gpr, value: u64) {
        let next = self.address(self.here().plus(7));
        match i32::try_from(value.wrapping_sub(next) as i64) {
            Ok(distance) => {
                self.raw(&[0x48 | (reg >> 3) << 2, 0x8d, (reg & 7) << 3 | 5]);
                self.i32(distance);
            }
            Err(_) => self.constant(Gpr(reg), value),
        }
    }

    /// `crc32 ecx, dword gs:[offset]`: zero exactly if ecx equalled the operand, as the CRC step
    /// is a bijection of their difference. An equality test that leaves all flags alone.
    pub fn crc_rcx(&mut self, offset: i32) {
        self.raw(&[0x65, 0xf2, 0x0f, 0x38, 0xf1, 0x0c, 0x25]);
        self.i32(offset);
    }

    /// `jrcxz` over what follows; returns the place for [`Code::bind_short`].
    pub fn jrcxz(&mut self) -> CodeOff {
        self.raw(&[0xe3, 0]);
        self.last_one()
    }

    /// One instruction of `length` bytes, 1 to 4, that does nothing.
    pub fn nop(&mut self, length: usize) {
        const NOPS: [&[u8]; 4] =
            [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x0f, 0x1f, 0x40, 0x00]];
        self.raw(NOPS[length - 1]);
    }

    /// `jmp rel32`; returns the place of the distance.
    pub fn jump(&mut self) -> CodeOff {
        self.u8(0xe9);
        self.i32(0);
        self.last_four()
    }

    /// `call rel32`; returns the place of the distance.
    pub fn call(&mut self) -> CodeOff {
        self.u8(0xe8);
        self.i32(0);
        self.last_four()
    }

    /// `j<condition> rel32`; returns the place of the distance.
    pub fn jcc(&mut self, condition: u8) -> CodeOff {
        self.raw(&[0x0f, 0x80 | condition]);
        self.i32(0);
        self.last_four()
    }

    /// `j<condition> rel8`, or without a condition `jmp rel8`; returns the place of the distance.
    pub fn branch_short(&mut self, condition: Option<u8>) -> CodeOff {
        self.raw(&[condition.map_or(0xeb, |c| 0x70 | c), 0]);
        self.last_one()
    }

    /// A short branch of which `start` are the prefixes and the opcode; returns the place of the
    /// distance.
    pub fn branch_as(&mut self, start: &[u8]) -> CodeOff {
        self.raw(start);
        self.u8(0);
        self.last_one()
    }

    /// `lea rcx, [rip + x]`, with the address of a place further on; returns the place of the
    /// distance.
    pub fn lea_rcx_ahead(&mut self) -> CodeOff {
        self.raw(&[0x48, 0x8d, 0x0d]);
        self.i32(0);
        self.last_four()
    }

    /// `ret`, or `ret popped`.
    pub fn ret(&mut self, popped: Option<u16>) {
        match popped.map(u16::to_le_bytes) {
            Some([low, high]) => self.raw(&[0xc2, low, high]),
            None => self.u8(0xc3),
        }
    }

    /// `ud2`
    pub fn ud2(&mut self) {
        self.raw(&[0x0f, 0x0b]);
    }

    /// `int3` up to a multiple of `to`: nobody comes here.
    pub fn trap_until(&mut self, to: u32) {
        while !self.here().0.is_multiple_of(to) {
            self.u8(0xcc);
        }
    }

    /// The gate of a unit that can be closed.
    pub fn gate(&mut self) {
        let entry = self.address(self.here());
        match gate_of(entry) - entry {
            0 => {}
            room => self.nop(usize::try_from(room).unwrap_or(1)),
        }
        self.raw(&GATE);
    }

    /// An instruction whose operand is `[disp32]`.
    #[allow(clippy::cast_possible_truncation, reason = "such an address is below 2 GiB")]
    pub(super) fn absolute(&mut self, opcode: u8, field: u8, address: u64) {
        self.raw(&[0x48, opcode, (field & 7) << 3 | 4, 0x25]);
        self.i32(address as i32);
    }

    /// `mov qword [address], 0` (below 2 GiB)
    pub fn clear(&mut self, address: u64) {
        self.absolute(0xc7, 0, address);
        self.i32(0);
    }
}
