//! Look-ups in the tables of translations, and what a merged return does with their result.

use super::code::{At, Code};
use abi::ids::{CodeOff, Gpr};
use abi::layout::{TableShape, JUMP_BIAS};
use abi::thread::{JUMP, SAVED_RCX, SAVED_XMM7, TARGET};
use lifter::regs::{RBP, RCX, RSP};

/// `mov gs:[SAVED_RCX], rcx`: what stands in front of the program's own load of a target.
#[allow(clippy::cast_possible_truncation, reason = "the test compares it with what is emitted")]
pub const SAVES_RCX: [u8; 9] = [0x65, 0x48, 0x89, 0x0c, 0x25, SAVED_RCX as u8, 0, 0, 0];

/// `movups gs:[SAVED_XMM7], xmm7`: what a return does second that borrows it. (What SSE writes leaves the rest of ymm7 as it is.)
#[allow(clippy::cast_possible_truncation, reason = "the test compares it with what is emitted")]
pub const SAVES_XMM7: [u8; 9] =
    [0x65, 0x0f, 0x11, 0x3c, 0x25, SAVED_XMM7 as u8, (SAVED_XMM7 >> 8) as u8, 0, 0];

/// `jmp gs:[JUMP]`: the end of an indirect jump, and of the thunk of an indirect call.
#[allow(clippy::cast_possible_truncation, reason = "the test compares it with what is emitted")]
pub const JUMPS_ON: [u8; 8] = [0x65, 0xff, 0x24, 0x25, JUMP as u8, 0, 0, 0];

/// How far in front of that such a thunk starts, which stores one half of the return address or both, and how it does:
/// `mov dword [rsp], low`.
pub const PUTS_RETURN_ADDRESS: [(u64, [u8; 3]); 2] =
    [(7, [0xc7, 0x04, 0x24]), (15, [0xc7, 0x04, 0x24])];

/// `mov ecx, [rsp + 4]`: the first look at the stack of a return that compares the high half.
pub const READS_HIGH_HALF: [u8; 4] = [0x8b, 0x4c, 0x24, 0x04];

/// `vpunpckldq xmm30, xmm30, dword [rsp + 4] {1to4}`: the first look at the stack of a return that was looked up
/// ahead.
pub const MERGES_HIGH_HALF: [u8; 8] = [0x62, 0x61, 0x0d, 0x10, 0x62, 0x74, 0x24, 0x01];

/// `vmovhps [rsp - 8], xmm30`: what stands in front of the entry of a unit, for returns, if they are put
/// right ([`abi::options::Options::puts_back`]).
pub const PUTS_BACK: [u8; 8] = [0x62, 0x61, 0x7c, 0x08, 0x17, 0x74, 0x24, 0xff];

impl Code {
    /// Takes the entry of the low half in rcx out of `table`.
    pub fn look_up(&mut self, look_up: LookUp, table: TableShape) {
        match bias(table) {
            Bias::None => {}
            Bias::Low(bias) => self.add_to_rcx(bias),
            Bias::High(bias) => {
                self.exchange_halves();
                self.add_to_rcx(bias);
                self.exchange_halves();
            }
        }
        self.raw(look_up.opcode());
        self.i32(displacement(table));
    }

    /// Leaves what the entry of the low half in rcx stands for in rcx: of a table of low halves with the high half of the
    /// target in the thread block.
    pub fn look_up_whole(&mut self, table: TableShape) {
        if table.entry == 8 {
            return self.look_up(LookUp::Whole, table);
        }
        self.look_up(LookUp::LowHalfToVector, table);
        self.merge_target();
        self.load(RCX, JUMP);
    }

    /// Takes the entry of the low half in `index` out of `table`, to xmm30: by way of `base`, if a register may be used
    /// up for that. Both are used up.
    pub fn look_up_ahead(&mut self, index: Gpr, base: Option<Gpr>, table: TableShape) {
        match (bias(table), base) {
            (Bias::None, _) => {}
            (_, Some(base)) => {
                self.constant(base, table.base);
                return self.entry_to_vector(Some(base), index, 0);
            }
            (Bias::Low(bias), None) => self.lea(index, At(index, bias)),
            (Bias::High(bias), None) => {
                self.exchange_halves_of(index);
                self.lea(index, At(index, bias));
                self.exchange_halves_of(index);
            }
        }
        self.entry_to_vector(None, index, displacement(table));
    }

    /// `vmovd xmm30, [base + index*4 + displacement]`; with a base the displacement is 0.
    fn entry_to_vector(&mut self, base: Option<Gpr>, Gpr(index): Gpr, displacement: i32) {
        // Without a base mode 0 has 32 bits of displacement all the same.
        let Gpr(base_field) = base.unwrap_or(RBP);
        let high = (index >> 3) << 6 | base.map_or(0, |Gpr(base)| (base >> 3) << 5);
        let sib = 2 << 6 | (index & 7) << 3 | base_field & 7;
        let needs_displacement = base.is_some() && base_field & 7 == RBP.0;
        let mode = u8::from(needs_displacement) << 6;
        self.raw(&[0x62, 0x61 & !high, 0x7d, 0x08, 0x6e, mode | 0x34, sib]);
        match base {
            None => self.i32(displacement),
            Some(_) if needs_displacement => self.u8(0),
            Some(_) => {}
        }
    }

    /// If a look-up has found zero: back to the jump whose distance is at `foreign`, right in front.
    pub fn leave_if_nothing(&mut self, foreign: CodeOff) {
        let at = self.jrcxz();
        self.bind_byte(at, CodeOff(foreign.0 - 1));
    }

    /// Takes the entry of the address in `index` out of a table: rcx has what [`LookUp::by`] says.
    pub fn look_up_by(&mut self, By { wide, index: Gpr(index) }: By) {
        let rex = 0x40 | u8::from(wide) << 3 | (index >> 3) << 1;
        if rex != 0x40 {
            self.raw(&[rex]);
        }
        let scale = if wide { 3 } else { 2 };
        self.raw(&[0x8b, 0x0c, scale << 6 | (index & 7) << 3 | RCX.0]);
    }

    /// `lea rcx, [rcx + bias]`
    fn add_to_rcx(&mut self, bias: i32) {
        self.raw(&[0x48, 0x8d, 0x89]);
        self.i32(bias);
    }

    /// `rorx rcx, rcx, 32`
    fn exchange_halves(&mut self) {
        self.raw(&[0xc4, 0xe3, 0xfb, 0xf0, 0xc9, 0x20]);
    }

    /// `rorx register, register, 32`
    fn exchange_halves_of(&mut self, Gpr(register): Gpr) {
        let high = 0xe3 & !((register >> 3) << 7 | (register >> 3) << 5);
        self.raw(&[0xc4, high, 0xfb, 0xf0, 0xc0 | (register & 7) << 3 | register & 7, 0x20]);
    }

    /// `rorx rcx, register, 32`: its high half in ecx, and the other above it. (A load of the second half of what was stored just now
    /// takes longer.)
    pub fn high_half_of(&mut self, Gpr(register): Gpr) {
        let high = 0xe3 & !((register >> 3) << 5);
        self.raw(&[0xc4, high, 0xfb, 0xf0, 0xc8 | register & 7, 0x20]);
    }

    /// `vpunpckldq xmm30, xmm30, dword [rsp + 4] {1to4}`: the low half stays, the high half is that
    /// on the stack.
    pub fn merge_high_half(&mut self) {
        self.raw(&MERGES_HIGH_HALF);
    }

    /// `vpunpckldq xmm30, xmm30, dword [rsp] {1to4}`: in front of the merge, which then leaves the whole original
    /// address in the upper half. (A load of 8 bytes would wait: the call has stored them in two pieces.)
    pub fn keep_return_address(&mut self) {
        self.raw(&[0x62, 0x61, 0x0d, 0x10, 0x62, 0x34, 0x24]);
    }

    /// `vpunpckldq xmm30, xmm30, dword gs:[TARGET + 4] {1to4}; vmovq gs:[JUMP], xmm30`: the low half stays, the high half is
    /// that of the target.
    pub fn merge_target(&mut self) {
        self.raw(&[0x65, 0x62, 0x61, 0x0d, 0x10, 0x62, 0x34, 0x25]);
        self.i32(TARGET + 4);
        self.raw(&[0x65, 0x62, 0x61, 0xfd, 0x08, 0xd6, 0x34, 0x25]);
        self.i32(JUMP);
    }

    /// `vmovhps [rsp - 8], xmm30`: puts the original address back where a merged return was.
    pub fn put_back(&mut self) {
        self.raw(&PUTS_BACK);
    }

    /// `vmovq xmm30, [rip + distance]`; returns the place of the distance.
    pub fn load_scratch_vector(&mut self) -> CodeOff {
        self.raw(&[0x62, 0x61, 0xfe, 0x08, 0x7e, 0x35]);
        self.i32(0);
        CodeOff(self.here().0 - 4)
    }

    /// `vmovq [rsp], xmm30`
    pub fn write_merged(&mut self) {
        self.raw(&[0x62, 0x61, 0xfd, 0x08, 0xd6, 0x34, 0x24]);
    }

    /// `movups gs:[SAVED_XMM7], xmm7`
    pub fn save_xmm7(&mut self) {
        self.raw(&SAVES_XMM7);
    }

    /// `pinsrd xmm7, dword [rsp + 4], 1; movq [rsp], xmm7; movups xmm7, gs:[SAVED_XMM7]`: what a merged return does
    /// with what it has found in a borrowed register.
    pub fn merge_borrowed(&mut self) {
        self.raw(&[0x66, 0x0f, 0x3a, 0x22, 0x7c, 0x24, 0x04, 0x01]);
        self.raw(&[0x66, 0x0f, 0xd6, 0x3c, 0x24]);
        self.raw(&[0x65, 0x0f, 0x10, 0x3c, 0x25]);
        self.i32(SAVED_XMM7);
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
    /// `movd xmm7, [rcx*4 + table]`
    LowHalfToBorrowed,
}

/// The vector register that a look-up leaves the low half in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToVector {
    Xmm30,
    Xmm7,
}

/// A look-up of an address that a register has, and keeps: `mov rcx, [rcx + index*8]` or
/// `mov ecx, [rcx + index*4]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct By {
    /// The entry has 8 bytes.
    wide: bool,
    index: Gpr,
}

impl By {
    fn decode(code: &[u8]) -> Option<By> {
        let (rex, rest) = match code {
            [rex @ (0x42 | 0x48 | 0x4a), rest @ ..] => (*rex, rest),
            _ => (0x40, code),
        };
        let [0x8b, 0x0c, sib, ..] = *rest else { return None };
        let by = By { wide: rex & 8 != 0, index: Gpr(sib >> 3 & 7 | (rex & 2) << 2) };
        let scale = if by.wide { 3 } else { 2 };
        (sib & 7 == RCX.0 && sib >> 6 == scale && by.index != RSP).then_some(by)
    }

    fn entry(self) -> u64 {
        if self.wide {
            8
        } else {
            4
        }
    }

    fn length(self) -> u64 {
        3 + u64::from(self.wide || self.index.0 >= 8)
    }
}

impl LookUp {
    /// The same for an address that is in `index`, where the table lies out of reach of a displacement. rcx has
    /// what the whole address lacks ([`abi::options::Options::jump_entries`]), so nothing is added to it here.
    /// But for an address outside of the window it reads anywhere: the comparison has to come first.
    pub fn by(self, index: Gpr, table: TableShape) -> Option<By> {
        let is_far = matches!(bias(table), Bias::High(_));
        let is_free = index != RCX && index != RSP;
        let is_scalar = matches!(self, LookUp::Whole | LookUp::LowHalf);
        (is_far && is_free && is_scalar).then_some(By { wide: self == LookUp::Whole, index })
    }

    /// Those that have the low half in rcx.
    const ALL: [LookUp; 4] =
        [LookUp::Whole, LookUp::LowHalf, LookUp::LowHalfToVector, LookUp::LowHalfToBorrowed];

    fn opcode(self) -> &'static [u8] {
        match self {
            LookUp::Whole => &[0x48, 0x8b, 0x0c, 0xcd],
            LookUp::LowHalf => &[0x8b, 0x0c, 0x8d],
            LookUp::LowHalfToVector => &[0x62, 0x61, 0x7d, 0x08, 0x6e, 0x34, 0x8d],
            LookUp::LowHalfToBorrowed => &[0x66, 0x0f, 0x6e, 0x3c, 0x8d],
        }
    }

    /// Bytes of an entry.
    fn entry(self) -> u64 {
        match self {
            LookUp::Whole => 8,
            LookUp::LowHalf | LookUp::LowHalfToVector | LookUp::LowHalfToBorrowed => 4,
        }
    }

    fn decode(code: &[u8], table: TableShape) -> Option<LookUp> {
        let mut fitting = LookUp::ALL.into_iter().filter(|l| l.entry() == table.entry);
        fitting.find(|look_up| {
            let rest = code.strip_prefix(look_up.opcode());
            rest.is_some_and(|rest| rest.starts_with(&displacement(table).to_le_bytes()))
        })
    }
}

/// A look-up that was found in code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Plain(LookUp),
    By(By),
    Ahead(Ahead),
}

/// `vmovd xmm30, [base + index*4 + displacement]`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ahead {
    base: Option<Gpr>,
    index: Gpr,
    displacement: i32,
    length: u64,
}

impl Ahead {
    fn decode(code: &[u8]) -> Option<Ahead> {
        let [0x62, high, 0x7d, 0x08, 0x6e, modrm @ (0x34 | 0x74), sib, ref rest @ ..] = *code
        else {
            return None;
        };
        if high | 0x60 != 0x61 || sib >> 6 != 2 {
            return None;
        }
        let index = Gpr(sib >> 3 & 7 | u8::from(high & 0x40 == 0) << 3);
        let base = Gpr(sib & 7 | u8::from(high & 0x20 == 0) << 3);
        let ahead = match (modrm, sib & 7, rest) {
            (0x34, 5, &[a, b, c, d, ..]) => {
                let displacement = i32::from_le_bytes([a, b, c, d]);
                Ahead { base: None, index, displacement, length: 11 }
            }
            (0x34, 5, _) => return None,
            (0x34, _, _) => Ahead { base: Some(base), index, displacement: 0, length: 7 },
            (_, 5, &[0, ..]) => Ahead { base: Some(base), index, displacement: 0, length: 8 },
            _ => return None,
        };
        (index != RSP).then_some(ahead)
    }
}

impl Found {
    /// The look-up in `table` that `code` starts with.
    pub fn decode(code: &[u8], table: TableShape) -> Option<Found> {
        let plain = || LookUp::decode(code, table).map(How::Plain);
        let by = || By::decode(code).filter(|by| by.entry() == table.entry).map(How::By);
        let ahead = || Ahead::decode(code).filter(|_| table.entry == 4).map(How::Ahead);
        let how = plain().or_else(by).or_else(ahead)?;
        Some(Found { how })
    }

    /// Bytes of the instruction, at most 11.
    pub fn length(self) -> u64 {
        match self.how {
            How::Plain(look_up) => look_up.opcode().len() as u64 + 4,
            How::By(by) => by.length(),
            How::Ahead(ahead) => ahead.length,
        }
    }

    /// Address of the entry that it takes out of `table`, with these registers.
    pub fn place(self, table: TableShape, gpr: &[u64; 16]) -> u64 {
        let rcx = gpr[RCX.index()];
        match self.how {
            How::Plain(_) => {
                let displacement = i64::from(displacement(table)) as u64;
                displacement.wrapping_add(rcx.wrapping_mul(table.entry))
            }
            How::By(by) => rcx.wrapping_add(gpr[by.index.index()].wrapping_mul(table.entry)),
            How::Ahead(Ahead { base, index, displacement, .. }) => {
                let base = base.map_or(0, |base| gpr[base.index()]);
                let entry = gpr[index.index()].wrapping_mul(table.entry);
                base.wrapping_add(entry).wrapping_add(i64::from(displacement) as u64)
            }
        }
    }

    /// Where it leaves what it finds, if not in rcx.
    pub fn to_vector(self) -> Option<ToVector> {
        match self.how {
            How::Plain(LookUp::LowHalfToVector) | How::Ahead(_) => Some(ToVector::Xmm30),
            How::Plain(LookUp::LowHalfToBorrowed) => Some(ToVector::Xmm7),
            How::Plain(LookUp::Whole | LookUp::LowHalf) | How::By(_) => None,
        }
    }
}

/// What is added to rcx in front of a look-up, as the table lies out of reach of a displacement.
enum Bias {
    None,
    Low(i32),
    /// To the high half.
    High(i32),
}

impl Bias {
    fn value(&self) -> u64 {
        match *self {
            Bias::None => 0,
            Bias::Low(bias) => bias as u64,
            Bias::High(bias) => (bias as u64) << 32,
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "canonical addresses have 47 bits")]
fn bias(table: TableShape) -> Bias {
    let reached = |bias: u64| table.base.wrapping_sub(table.entry * bias) < 1 << 31;
    let bias = JUMP_BIAS as u64;
    match table.base {
        base if base < 1 << 31 => Bias::None,
        _ if reached(bias) => Bias::Low(JUMP_BIAS),
        base => Bias::High(((base / table.entry) >> 32) as i32),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "what a bias does not reach is below 2 GiB")]
fn displacement(table: TableShape) -> i32 {
    (table.base - table.entry * bias(table).value()) as i32
}
