//! Instructions on vector and mask registers: the buffer pointers in xmm31 or xmm15, and what is recorded of
//! the program's.

use super::code::{At, Code};
use abi::ids::Gpr;
use abi::options::Pointers;

/// Bytes of [`Code::take_back`].
pub fn takes_back(pointers: Pointers) -> u64 {
    match pointers {
        Pointers::Vector => 12,
        Pointers::Xmm15 => 10,
        Pointers::ThreadBlock => 0,
    }
}

impl Code {
    /// `vmovq reg, xmm31` or `xmm15`: the control-flow pointer.
    pub fn control_flow_pointer(&mut self, Gpr(reg): Gpr, holder: u8) {
        let b = (1 ^ (reg >> 3)) << 5;
        match holder {
            15 => self.raw(&[0xc4, 0x41 | b, 0xf9, 0x7e, 0xf8 | (reg & 7)]),
            _ => self.raw(&[0x62, 0x41 | b, 0xfd, 0x08, 0x7e, 0xf8 | (reg & 7)]),
        }
    }

    /// `vpextrd reg, xmm31, 1`, or of xmm15: the high half of the control-flow pointer.
    pub fn control_flow_pointer_high(&mut self, Gpr(reg): Gpr, holder: u8) {
        let b = (1 ^ (reg >> 3)) << 5;
        match holder {
            15 => self.raw(&[0xc4, 0x43 | b, 0x79, 0x16, 0xf8 | (reg & 7), 1]),
            _ => self.raw(&[0x62, 0x43 | b, 0x7d, 0x08, 0x16, 0xf8 | (reg & 7), 1]),
        }
    }

    /// `vpextrq reg, xmm31, 1`, or of xmm15: the memory-stream pointer.
    pub fn memory_pointer(&mut self, Gpr(reg): Gpr, holder: u8) {
        let b = (1 ^ (reg >> 3)) << 5;
        match holder {
            15 => self.raw(&[0xc4, 0x43 | b, 0xf9, 0x16, 0xf8 | (reg & 7), 1]),
            _ => self.raw(&[0x62, 0x43 | b, 0xfd, 0x08, 0x16, 0xf8 | (reg & 7), 1]),
        }
    }

    /// `vpaddq xmm31, xmm31, gs:[offset]`, or with xmm15
    pub fn bump(&mut self, holder: u8, offset: i32) {
        match holder {
            15 => self.raw(&[0x65, 0xc5, 0x01, 0xd4, 0x3c, 0x25]),
            _ => self.raw(&[0x65, 0x62, 0x61, 0x85, 0x00, 0xd4, 0x3c, 0x25]),
        }
        self.i32(offset);
    }

    /// `vpaddq xmm31, xmm31, addend`, one of xmm24 to xmm31
    pub fn bump_by(&mut self, addend: u8) {
        self.raw(&[0x62, 0x01, 0x85, 0x00, 0xd4, 0xf8 | (addend & 7)]);
    }

    /// `vpsubq xmm31, xmm31, gs:[offset]`, or with xmm15: takes back what [`Code::bump`] has added.
    pub fn take_back(&mut self, holder: u8, offset: i32) {
        match holder {
            15 => self.raw(&[0x65, 0xc5, 0x01, 0xfb, 0x3c, 0x25]),
            _ => self.raw(&[0x65, 0x62, 0x61, 0x85, 0x00, 0xfb, 0x3c, 0x25]),
        }
        self.i32(offset);
    }

    /// `vmovdqu64 gs:[offset], xmm31`, or `vmovdqu` of xmm15
    pub fn save_pointers(&mut self, offset: i32, holder: u8) {
        self.whole_vector([0x7a, 0x08], 0x7f, holder, offset);
    }

    /// `vmovdqu64 xmm31, gs:[offset]`, or another one of xmm24 to xmm31, or `vmovdqu` to xmm15
    pub fn load_pointers(&mut self, offset: i32, holder: u8) {
        self.whole_vector([0x7a, 0x08], 0x6f, holder, offset);
    }

    /// `vmovdqu64 gs:[offset], zmm`, registers 24 to 31, or `vmovdqu` of ymm15
    pub fn save_vector(&mut self, offset: i32, vector: u8) {
        self.whole_vector([0x7e, 0x48], 0x7f, vector, offset);
    }

    /// `vmovdqu64 zmm, gs:[offset]`, registers 24 to 31, or `vmovdqu` to ymm15
    pub fn load_vector(&mut self, offset: i32, vector: u8) {
        self.whole_vector([0x7e, 0x48], 0x6f, vector, offset);
    }

    /// `length`: the byte that says how much of it, in VEX and in EVEX.
    fn whole_vector(&mut self, [vex, evex]: [u8; 2], opcode: u8, vector: u8, offset: i32) {
        match vector {
            15 => self.raw(&[0x65, 0xc5, vex, opcode]),
            _ => self.raw(&[0x65, 0x62, 0x61, 0xfe, evex, opcode]),
        }
        self.raw(&[(vector & 7) << 3 | 4, 0x25]);
        self.i32(offset);
    }

    /// `vmovq xmm30, [rsp - 8]`
    pub fn keep_below_stack(&mut self) {
        self.raw(&[0x62, 0x61, 0xfe, 0x08, 0x7e, 0x74, 0x24, 0xff]);
    }

    /// `vmovq [rsp - 8], xmm30`
    pub fn restore_below_stack(&mut self) {
        self.raw(&[0x62, 0x61, 0xfd, 0x08, 0xd6, 0x74, 0x24, 0xff]);
    }

    /// `vmovq [rax - 8], xmm30`
    pub fn write_kept(&mut self) {
        self.raw(&[0x62, 0x61, 0xfd, 0x08, 0xd6, 0x70, 0xff]);
    }

    /// Stores a whole vector register, zero-extended to 64 bytes (`vmovdqu64 [m], zmm`), or, with
    /// `narrow`, its 32 low bytes (`vmovdqu [m], ymm`, registers 0 to 15).
    pub fn write_vector(&mut self, m: At, vector: u8, narrow: bool) {
        let At(Gpr(base), displacement) = m;
        if narrow {
            let not = |bit: u8| (bit & 1) ^ 1;
            self.raw(&[0xc4, not(vector >> 3) << 7 | 0x40 | not(base >> 3) << 5 | 1, 0x7e, 0x7f]);
            self.modrm_at(vector, m);
        } else {
            let not = |bit: u8| (bit & 1) ^ 1;
            let p0 = not(vector >> 3) << 7 | 0x40 | not(base >> 3) << 5 | not(vector >> 4) << 4 | 1;
            self.raw(&[0x62, p0, 0xfe, 0x48, 0x7f]);
            // EVEX scales an 8-bit displacement: always use 32 bits.
            self.u8(0x80 | (vector & 7) << 3 | (base & 7));
            if base & 7 == 4 {
                self.u8(0x24);
            }
            self.i32(displacement);
        }
    }

    /// `kmovq [m], k`
    pub fn write_mask(&mut self, m: At, mask: u8) {
        let At(Gpr(base), _) = m;
        let b = ((base >> 3) & 1) ^ 1;
        self.raw(&[0xc4, 0xc0 | b << 5 | 1, 0xf8, 0x91]);
        self.modrm_at(mask, m);
    }
}
