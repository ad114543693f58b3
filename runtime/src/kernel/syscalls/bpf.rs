//! Classic BPF, as filters of system calls are written in: what the kernel would take, and what it
//! would answer (bpf(4) in its classic form, as in Linux's networking/filter).

/// One instruction of classic BPF (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Insn {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

/// `struct seccomp_data`, in words.
pub type Data = [u32; 16];

/// Whether the kernel would take it.
pub fn is_valid(program: &[Insn]) -> bool {
    let last_returns = program.last().is_some_and(|insn| insn.code & 7 == 6);
    let each = |(i, insn): (usize, &Insn)| {
        let left = program.len() - i - 1;
        match insn.code {
            // ld [k]
            0x20 => insn.k < 64 && insn.k.is_multiple_of(4),
            // ld and ldx: constant, length; tax, txa; return
            0x00 | 0x01 | 0x80 | 0x81 | 0x07 | 0x87 | 0x06 | 0x16 => true,
            // ld, ldx, st and stx: scratch memory
            0x60 | 0x61 | 0x02 | 0x03 => insn.k < 16,
            // div and shifts by a constant
            0x34 => insn.k != 0,
            0x64 | 0x74 => insn.k < 32,
            // add, sub, mul, or, and, xor, neg; by X, too
            0x04 | 0x14 | 0x24 | 0x44 | 0x54 | 0xa4 | 0x84 => true,
            0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0xac => true,
            // ja
            0x05 => (insn.k as usize) < left,
            // jeq, jgt, jge, jset; with X, too
            0x15 | 0x25 | 0x35 | 0x45 | 0x1d | 0x2d | 0x3d | 0x4d => {
                usize::from(insn.jump_true.max(insn.jump_false)) < left
            }
            _ => false,
        }
    };
    last_returns && program.iter().enumerate().all(each)
}

/// Runs a valid program: bpf(4) in its classic form, as in Linux's networking/filter.
pub fn run(program: &[Insn], data: &Data) -> u32 {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    while let Some(insn) = program.get(at) {
        at += 1;
        let k = insn.k;
        let slot = (k & 15) as usize;
        let operand = if insn.code & 8 != 0 { x } else { k };
        match (insn.code & 7, insn.code) {
            (_, 0x20) => a = data[(k as usize / 4) & 15],
            (_, 0x00) => a = k,
            (_, 0x60) => a = memory[slot],
            (_, 0x01) => x = k,
            (_, 0x61) => x = memory[slot],
            (_, 0x80) => a = 64,
            (_, 0x81) => x = 64,
            (_, 0x02) => memory[slot] = a,
            (_, 0x03) => memory[slot] = x,
            (_, 0x07) => x = a,
            (_, 0x87) => a = x,
            (_, 0x16) => return a,
            (6, _) => return k,
            (4, code) => {
                a = match code & 0xf0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    // The kernel ends the program with 0: kill.
                    0x30 => match a.checked_div(operand) {
                        Some(quotient) => quotient,
                        None => return 0,
                    },
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 => a.wrapping_shl(operand),
                    0x70 => a.wrapping_shr(operand),
                    0x80 => a.wrapping_neg(),
                    _ => a ^ operand,
                }
            }
            (5, 0x05) => at += k as usize,
            (5, code) => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { insn.jump_true } else { insn.jump_false });
            }
            _ => return action::KILL_PROCESS,
        }
    }
    action::KILL_PROCESS
}

/// What a filter can answer.
pub mod action {
    pub const KILL_PROCESS: u32 = 0x8000_0000;
    pub const KILL_THREAD: u32 = 0;
    pub const TRAP: u32 = 0x0003_0000;
    pub const ERRNO: u32 = 0x0005_0000;
    pub const USER_NOTIF: u32 = 0x7fc0_0000;
    pub const TRACE: u32 = 0x7ff0_0000;
    pub const ALLOW: u32 = 0x7fff_0000;
    pub const ACTION: u32 = 0xffff_0000;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Insn {
        Insn { code, jump_true, jump_false, k }
    }

    #[test]
    fn filters_answer_as_the_kernel() {
        // ld [0]; jeq #39, 0, 1; ret errno 5; ld [16]; and #0xff; tax; ld #3; add x; ret a
        let program = [
            insn(0x20, 0, 0, 0),
            insn(0x15, 0, 1, 39),
            insn(0x06, 0, 0, action::ERRNO | 5),
            insn(0x20, 0, 0, 16),
            insn(0x54, 0, 0, 0xff),
            insn(0x07, 0, 0, 0),
            insn(0x00, 0, 0, 3),
            insn(0x0c, 0, 0, 0),
            insn(0x16, 0, 0, 0),
        ];
        assert!(is_valid(&program));
        let mut data: Data = [0; 16];
        data[0] = 39;
        assert_eq!(run(&program, &data), action::ERRNO | 5);
        (data[0], data[4]) = (40, 0x1207);
        assert_eq!(run(&program, &data), 10);
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        assert!(!is_valid(&[]));
        // No return at the end; a load that is not aligned; a jump behind the end; a division by 0.
        assert!(!is_valid(&[insn(0x20, 0, 0, 0)]));
        assert!(!is_valid(&[insn(0x20, 0, 0, 2), insn(0x06, 0, 0, 0)]));
        assert!(!is_valid(&[insn(0x15, 1, 0, 0), insn(0x06, 0, 0, 0)]));
        assert!(!is_valid(&[insn(0x34, 0, 0, 0), insn(0x06, 0, 0, 0)]));
        assert!(is_valid(&[insn(0x15, 0, 0, 0), insn(0x06, 0, 0, 0)]));
    }

    #[test]
    fn a_division_by_zero_kills() {
        let program = [insn(0x00, 0, 0, 6), insn(0x3c, 0, 0, 0), insn(0x06, 0, 0, 1)];
        assert!(is_valid(&program));
        assert_eq!(run(&program, &[0; 16]), action::KILL_THREAD);
    }
}
