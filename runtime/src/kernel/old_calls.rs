//! 32-bit system calls of 64-bit code (`int 0x80`): numbers and layouts of their own, arguments in other registers,
//! of which the low halves count.
//!
//! Most do what a 64-bit call does whose arguments happen to be small: that one is made, and recorded. Others
//! have structures of their own, which nobody here describes: the kernel is asked as the program asks it, and logs
//! take the call for one that may write anywhere. What would change signals, memory or processes in ways that the
//! runtime has to know is refused.

use crate::base::program::read_program_value;
use crate::base::sys::nr;
use crate::kernel::replay::is_replay;
use crate::kernel::syscalls::{self, filters, OLD};
use crate::thread::Thread;

const MAP_FIXED: usize = 0x10;
const MAP_32BIT: usize = 0x40;
const OLD_CALL_LEN: u64 = 2;

/// Whether the bytes of the instruction that was refused are those of `int 0x80`.
fn is_int(pc: u64) -> bool {
    let mut bytes = [0u8; 2];
    read_program_value(pc, &mut bytes) && bytes == [0xcd, 0x80]
}

/// Carries out the call at `pc`; returns where the program goes on. `None`: it cannot be followed.
pub fn enter(thread: &mut Thread, pc: u64) -> Option<u64> {
    let gpr = thread.block.registers.gpr;
    if !is_int(pc) || !is_replay() && is_filtered(thread) {
        return None;
    }
    let args = [3, 1, 2, 6, 7, 5].map(|r: usize| gpr[r] as u32 as usize);
    let (number, args) = call_of(gpr[0] as u32 as usize, args)?;
    let next = syscalls::make(thread, number, &args, pc.wrapping_add(OLD_CALL_LEN), gpr[11]);
    if next == pc {
        // A signal comes first, and finds the program here.
        thread.block.registers.gpr = gpr;
    }
    Some(next)
}

/// The program's filters would see another architecture.
fn is_filtered(thread: &Thread) -> bool {
    thread.filter.max(filters::of_all()) != 0
}

/// The call that is to be made for the 32-bit one of this number.
fn call_of(number: usize, args: [usize; 6]) -> Option<(usize, [usize; 6])> {
    let [a, b, c, d, e, f] = args;
    // Halves of a 64-bit number.
    let whole = |low: usize, high: usize| high << 32 | low;
    // A number with a sign.
    let signed = |value: usize| value as u32 as i32 as isize as usize;
    let as_it_is = |number| Some((number, args));
    match number {
        7 => Some((nr::WAIT4, [a, b, c, 0, 0, 0])),
        19 => Some((8, [a, signed(b), c, 0, 0, 0])),
        90 => {
            let mut all = [0u32; 6];
            let readable =
                (0u64..).zip(&mut all).all(|(i, word)| read_program_value(a as u64 + 4 * i, word));
            let [a, b, c, d, e, f] = all.map(|word| word as usize);
            readable.then(|| mmap([a, b, c, d, e, f]))
        }
        92 => Some((nr::TRUNCATE, [a, signed(b), 0, 0, 0, 0])),
        93 => Some((nr::FTRUNCATE, [a, signed(b), 0, 0, 0, 0])),
        114 if d == 0 => as_it_is(nr::WAIT4),
        // CLONE_SETTLS has a descriptor of a segment.
        120 if a & 0x8_0000 == 0 => Some((nr::CLONE, [a, b, c, e, 0, 0])),
        163 if d & 1 == 0 || d & 2 != 0 => as_it_is(nr::MREMAP),
        180 => Some((nr::PREAD64, [a, b, c, whole(d, e), 0, 0])),
        181 => Some((nr::PWRITE64, [a, b, c, whole(d, e), 0, 0])),
        192 => Some(mmap([a, b, c, d, e, f << 12])),
        193 => Some((nr::TRUNCATE, [a, whole(b, c), 0, 0, 0, 0])),
        194 => Some((nr::FTRUNCATE, [a, whole(b, c), 0, 0, 0, 0])),
        // Attaching and detaching memory is among these.
        117 if matches!(a & 0xffff, 21 | 22) => None,
        // Without a time.
        240 if d == 0 || !matches!(b & 0x7f, 0 | 6 | 9 | 11 | 13) => as_it_is(nr::FUTEX),
        424..=434 | 436..=440 | 442..=450 => as_it_is(number),
        _ => match SAME.iter().find(|(old, _)| usize::from(*old) == number) {
            Some(&(_, new)) => as_it_is(new.into()),
            None => OWN_LAYOUT
                .iter()
                .any(|range| range.contains(&(number as u16)) && number < 1 << 16)
                .then_some((OLD | number, args)),
        },
    }
}

/// Memory where a 32-bit pointer reaches it.
fn mmap(args: [usize; 6]) -> (usize, [usize; 6]) {
    let [at, len, prot, flags, fd, offset] = args;
    let near = if flags & MAP_FIXED == 0 { MAP_32BIT } else { 0 };
    (nr::MMAP, [at, len, prot, flags | near, fd, offset])
}

/// 32-bit numbers, and the calls that do the same with arguments of 32 bits.
const SAME: [(u16, u16); 119] = [
    (1, 60),
    (2, 57),
    (3, 0),
    (4, 1),
    (5, 2),
    (6, 3),
    (8, 85),
    (9, 86),
    (10, 87),
    (12, 80),
    (14, 133),
    (15, 90),
    (20, 39),
    (27, 37),
    (29, 34),
    (33, 21),
    (36, 162),
    (37, 62),
    (38, 82),
    (39, 83),
    (40, 84),
    (41, 32),
    (42, 22),
    (45, 12),
    (57, 109),
    (60, 95),
    (61, 161),
    (63, 33),
    (64, 110),
    (65, 111),
    (66, 112),
    (83, 88),
    (85, 89),
    (91, 11),
    (94, 91),
    (96, 140),
    (97, 141),
    (103, 103),
    (118, 74),
    (122, 63),
    (125, 10),
    (132, 121),
    (133, 81),
    (136, 135),
    (143, 73),
    (144, 26),
    (147, 124),
    (148, 75),
    (150, 149),
    (151, 150),
    (152, 151),
    (153, 152),
    (154, 142),
    (155, 143),
    (156, 144),
    (157, 145),
    (158, 24),
    (159, 146),
    (160, 147),
    (168, 7),
    (172, 157),
    (175, 14),
    (176, 127),
    (179, 130),
    (183, 79),
    (184, 125),
    (185, 126),
    (190, 58),
    (198, 94),
    (199, 102),
    (200, 104),
    (201, 107),
    (202, 108),
    (203, 113),
    (204, 114),
    (205, 115),
    (206, 116),
    (207, 93),
    (208, 117),
    (209, 118),
    (210, 119),
    (211, 120),
    (212, 92),
    (213, 105),
    (214, 106),
    (215, 122),
    (216, 123),
    (218, 27),
    (219, 28),
    (220, 217),
    (224, 186),
    (238, 200),
    (239, 40),
    (252, 231),
    (254, 213),
    (255, 233),
    (256, 232),
    (258, 218),
    (270, 234),
    (295, 257),
    (296, 258),
    (301, 263),
    (302, 264),
    (305, 267),
    (306, 268),
    (307, 269),
    (318, 309),
    (328, 290),
    (329, 291),
    (330, 292),
    (331, 293),
    (340, 302),
    (355, 318),
    (356, 319),
    (359, 41),
    (360, 53),
    (383, 332),
    (403, 228),
    (407, 230),
];

/// 32-bit numbers of calls with structures of their own, which change nothing that the runtime has to know.
const OWN_LAYOUT: [core::ops::RangeInclusive<u16>; 36] = [
    13..=13,
    16..=16,
    23..=25,
    30..=30,
    43..=43,
    46..=47,
    49..=50,
    54..=55,
    70..=71,
    75..=81,
    95..=95,
    99..=100,
    102..=102,
    104..=109,
    114..=114,
    116..=117,
    124..=124,
    138..=142,
    145..=146,
    161..=162,
    164..=165,
    170..=171,
    182..=182,
    187..=187,
    191..=191,
    195..=197,
    221..=221,
    240..=242,
    250..=250,
    264..=269,
    271..=272,
    300..=300,
    320..=320,
    324..=326,
    365..=366,
    370..=370,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_stands_once() {
        for (i, (old, _)) in SAME.iter().enumerate() {
            assert!(SAME.iter().skip(i + 1).all(|(other, _)| old < other), "{old}");
            assert!(!OWN_LAYOUT.iter().any(|range| range.contains(old)), "{old}");
        }
    }

    #[test]
    fn what_the_runtime_would_have_to_know_is_not_followed() {
        // execve, ptrace, signal, sigaction, sigreturn, rt_sigreturn, rt_sigaction, set_thread_area, shmat, clone3.
        for number in [11, 26, 48, 67, 119, 173, 174, 243, 435, 1 << 20, u32::MAX as usize] {
            assert_eq!(call_of(number, [0; 6]), None, "{number}");
        }
        assert_eq!(call_of(117, [21, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn arguments_are_widened() {
        assert_eq!(
            call_of(19, [3, 0xffff_ffff, 1, 0, 0, 0]),
            Some((8, [3, usize::MAX, 1, 0, 0, 0]))
        );
        assert_eq!(call_of(180, [3, 4, 5, 6, 7, 0]), Some((17, [3, 4, 5, 0x7_0000_0006, 0, 0])));
        assert_eq!(call_of(192, [0, 1, 2, 3, 4, 5]), Some((9, [0, 1, 2, 0x43, 4, 0x5000])));
        assert_eq!(call_of(78, [1; 6]), Some((OLD | 78, [1; 6])));
    }
}
