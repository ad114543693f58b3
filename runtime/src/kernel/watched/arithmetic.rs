//! Values of 1, 2, 4 or 8 bytes, and the flags that follow from them.

use iced_x86::Mnemonic;

pub const CF: u64 = 1;
pub const PF: u64 = 4;
pub const AF: u64 = 0x10;
pub const ZF: u64 = 0x40;
pub const SF: u64 = 0x80;
pub const OF: u64 = 0x800;
/// All of them.
pub const ALL: u64 = CF | PF | AF | ZF | SF | OF;

/// The bits of a value of so many bytes.
pub fn mask(size: u64) -> u64 {
    u64::MAX >> (64 - 8 * size.clamp(1, 8))
}

fn sign(size: u64) -> u64 {
    1 << (8 * size.clamp(1, 8) - 1)
}

fn of_result(result: u64, size: u64) -> u64 {
    let result = result & mask(size);
    let mut flags = 0;
    if (result as u8).count_ones().is_multiple_of(2) {
        flags |= PF;
    }
    if result == 0 {
        flags |= ZF;
    }
    if result & sign(size) != 0 {
        flags |= SF;
    }
    flags
}

/// `a + b + carry`, and the flags.
pub fn add(a: u64, b: u64, carry: u64, size: u64) -> (u64, u64) {
    let (a, b) = (a & mask(size), b & mask(size));
    let wide = u128::from(a) + u128::from(b) + u128::from(carry);
    let result = wide as u64 & mask(size);
    let mut flags = of_result(result, size);
    if wide > u128::from(mask(size)) {
        flags |= CF;
    }
    if (a ^ b ^ result) & 0x10 != 0 {
        flags |= AF;
    }
    if !(a ^ b) & (a ^ result) & sign(size) != 0 {
        flags |= OF;
    }
    (result, flags)
}

/// `a - b - borrow`, and the flags.
pub fn sub(a: u64, b: u64, borrow: u64, size: u64) -> (u64, u64) {
    let (a, b) = (a & mask(size), b & mask(size));
    let result = a.wrapping_sub(b).wrapping_sub(borrow) & mask(size);
    let mut flags = of_result(result, size);
    if u128::from(a) < u128::from(b) + u128::from(borrow) {
        flags |= CF;
    }
    if (a ^ b ^ result) & 0x10 != 0 {
        flags |= AF;
    }
    if (a ^ b) & (a ^ result) & sign(size) != 0 {
        flags |= OF;
    }
    (result, flags)
}

/// The flags of `and`, `or` and `xor`.
pub fn logic(result: u64, size: u64) -> (u64, u64) {
    (result & mask(size), of_result(result, size))
}

/// What an instruction of two operands that computes with both makes of them, and the flags.
pub fn of_two(what: Mnemonic, one: u64, two: u64, carry: u64, size: u64) -> Option<(u64, u64)> {
    Some(match what {
        Mnemonic::Add => add(one, two, 0, size),
        Mnemonic::Adc => add(one, two, carry, size),
        Mnemonic::Sub => sub(one, two, 0, size),
        Mnemonic::Sbb => sub(one, two, carry, size),
        Mnemonic::And => logic(one & two, size),
        Mnemonic::Or => logic(one | two, size),
        Mnemonic::Xor => logic(one ^ two, size),
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use core::arch::asm;

    /// What the processor makes of it.
    fn native(what: u32, a: u64, b: u64, carry: u64, size: u64) -> (u64, u64) {
        let mut a = a;
        let flags: u64;
        macro_rules! run {
            ($insn:literal) => {
                // SAFETY: registers and flags alone.
                unsafe {
                    asm!("push {c}", "popfq", $insn, "pushfq", "pop {c}", c = inout(reg) carry | 2 => flags,
                        inout("rax") a => a, in("rcx") b)
                }
            };
        }
        match (what, size) {
            (0, 1) => run!("adc al, cl"),
            (0, 2) => run!("adc ax, cx"),
            (0, 4) => run!("adc eax, ecx"),
            (0, _) => run!("adc rax, rcx"),
            (1, 1) => run!("sbb al, cl"),
            (1, 2) => run!("sbb ax, cx"),
            (1, 4) => run!("sbb eax, ecx"),
            (1, _) => run!("sbb rax, rcx"),
            (_, 1) => run!("xor al, cl"),
            (_, 2) => run!("xor ax, cx"),
            (_, 4) => run!("xor eax, ecx"),
            (_, _) => run!("xor rax, rcx"),
        }
        (a & mask(size), flags & ALL)
    }

    #[test]
    fn flags_are_those_of_the_processor() {
        let values =
            [0u64, 1, 0xf, 0x10, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, u64::MAX, 1 << 63];
        for size in [1, 2, 4, 8] {
            for (a, b) in values.iter().flat_map(|&a| values.map(|b| (a, b))) {
                for carry in [0, 1] {
                    assert_eq!(add(a, b, carry, size), native(0, a, b, carry, size), "{a:x} {b:x}");
                    assert_eq!(sub(a, b, carry, size), native(1, a, b, carry, size), "{a:x} {b:x}");
                }
                let (result, flags) = native(2, a, b, 0, size);
                assert_eq!(logic(a ^ b, size), (result, flags & !AF), "{a:x} {b:x}");
            }
        }
    }
}
