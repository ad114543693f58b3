//! General-purpose registers by hardware number: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8..r15.

use abi::ids::Gpr;
use iced_x86::Register;

/// rax
pub const RAX: Gpr = Gpr(0);
/// rcx
pub const RCX: Gpr = Gpr(1);
/// rdx
pub const RDX: Gpr = Gpr(2);
/// rbx
pub const RBX: Gpr = Gpr(3);
/// rsp
pub const RSP: Gpr = Gpr(4);
/// rbp
pub const RBP: Gpr = Gpr(5);
/// rsi
pub const RSI: Gpr = Gpr(6);
/// rdi
pub const RDI: Gpr = Gpr(7);
/// r11
pub const R11: Gpr = Gpr(11);

/// A set of general-purpose registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct GprSet(pub u16);

impl GprSet {
    /// No register.
    pub const EMPTY: GprSet = GprSet(0);
    /// All of them.
    pub const ALL: GprSet = GprSet(0xffff);

    /// The set with one member.
    #[inline]
    pub const fn of(register: Gpr) -> GprSet {
        GprSet(1 << register.index())
    }

    /// Bit i stands for register i.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Inverse of [`GprSet::bits`].
    pub const fn from_bits(bits: u16) -> GprSet {
        GprSet(bits)
    }

    /// Adds a member.
    pub fn insert(&mut self, register: Gpr) {
        self.0 |= GprSet::of(register).0;
    }

    /// Takes a member out.
    #[inline]
    pub fn remove(&mut self, register: Gpr) {
        self.0 &= !GprSet::of(register).0;
    }

    /// Whether the register is a member.
    #[inline]
    pub const fn contains(self, register: Gpr) -> bool {
        self.0 & GprSet::of(register).0 != 0
    }

    /// What is in either.
    #[inline]
    pub const fn union(self, other: GprSet) -> GprSet {
        GprSet(self.0 | other.0)
    }

    /// What is in both.
    #[inline]
    pub const fn intersection(self, other: GprSet) -> GprSet {
        GprSet(self.0 & other.0)
    }

    /// What is in this one only.
    #[inline]
    pub const fn minus(self, other: GprSet) -> GprSet {
        GprSet(self.0 & !other.0)
    }

    /// Whether it has no member.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Gpr> {
        (0..16).map(Gpr).filter(move |&register| self.contains(register))
    }
}

impl FromIterator<Gpr> for GprSet {
    fn from_iter<I: IntoIterator<Item = Gpr>>(registers: I) -> GprSet {
        registers.into_iter().fold(GprSet::EMPTY, |set, register| set.union(GprSet::of(register)))
    }
}

impl core::fmt::Debug for GprSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The general-purpose register that one of any width is part of (ah, ch, dh, bh are part of rax..rbx).
pub fn gpr_number(register: Register) -> Option<Gpr> {
    match register.is_gpr() {
        true => u8::try_from(register.full_register().number()).ok().map(Gpr),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn sets_behave_like_sets() {
        let mut set: GprSet = [RAX, RDI].into_iter().collect();
        set.insert(Gpr(15));
        set.remove(RAX);
        assert_eq!(set.iter().collect::<Vec<_>>(), [RDI, Gpr(15)]);
        assert!(set.contains(Gpr(15)) && !set.contains(RAX));
        assert_eq!(GprSet::ALL.minus(set).union(set), GprSet::ALL);
        assert!(GprSet::EMPTY.is_empty());
    }

    #[test]
    fn every_width_has_the_number_of_its_register() {
        use Register::*;
        for (register, number) in [
            (RAX, 0),
            (AH, 0),
            (CH, 1),
            (BH, 3),
            (SPL, 4),
            (DIL, 7),
            (R8D, 8),
            (R15W, 15),
            (R12L, 12),
        ] {
            assert_eq!(gpr_number(register), Some(Gpr(number)), "{register:?}");
        }
        for register in [None, RIP, XMM0, K1, FS] {
            assert_eq!(gpr_number(register), Option::None, "{register:?}");
        }
    }
}
