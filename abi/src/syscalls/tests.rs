extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;
use Access::{Read, Write};

type Told = Vec<(Access, u64, u64)>;

/// Resolves a call in a memory that consists of these pieces.
fn resolve(name: &str, args: &[u64], result: i64, memory: &[(u64, &[u8])]) -> (Told, bool) {
    let call = all().iter().find(|call| call.name == name).expect(name);
    let mut six = [0; 6];
    six[..args.len()].copy_from_slice(args);
    let mut told = Vec::new();
    let mut read = |at: u64, out: &mut [u8]| {
        let piece = memory.iter().find(|(start, bytes)| {
            (*start..start + bytes.len() as u64).contains(&at)
                && at + out.len() as u64 <= start + bytes.len() as u64
        });
        piece.is_some_and(|(start, bytes)| {
            let from = (at - start) as usize;
            out.copy_from_slice(&bytes[from..from + out.len()]);
            true
        })
    };
    let certain = effects(call, &six, result, &mut read, &mut |a, at, len| told.push((a, at, len)));
    (told, certain)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_table_is_sorted_and_complete() {
    assert!(all().windows(2).all(|pair| pair[0].number < pair[1].number));
    let numbers: Vec<u16> = all().iter().map(|call| call.number).collect();
    let expected: Vec<u16> = (0..=334).chain(424..=462).collect();
    assert_eq!(numbers, expected);
    for call in all() {
        assert_eq!(find(u64::from(call.number)), Some(call));
        assert!(call.reads.iter().chain(call.writes).all(|range| range.argument < 6));
        assert_eq!(
            all().iter().filter(|other| other.name == call.name).count(),
            1,
            "{}",
            call.name
        );
    }
    assert!([335, 423, 463, 1 << 16, u64::MAX].iter().all(|&number| find(number).is_none()));
}

#[test]
fn numbers_are_those_of_the_kernels_header() {
    let path = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
    let Ok(header) = std::fs::read_to_string(path) else {
        std::println!("skipped: {path} cannot be read");
        return;
    };
    let lines = header.lines().filter_map(|line| line.strip_prefix("#define __NR_"));
    let known: BTreeMap<u64, &str> = lines
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, number)| Some((number.trim().parse().ok()?, name)))
        .collect();
    assert!(known.len() > 300);
    for (number, name) in known {
        match find(number) {
            Some(call) => assert_eq!(call.name, name),
            None => assert!((335..424).contains(&number) || number > 462, "{number} {name}"),
        }
    }
}

#[test]
fn reads_and_vectors() {
    assert_eq!(resolve("read", &[3, 0x100, 64], 10, &[]), (Vec::from([(Write, 0x100, 10)]), true));
    assert_eq!(resolve("read", &[3, 0x100, 64], -11, &[]), (Vec::new(), true));
    assert!(!resolve("read", &[3, 0x100, 64], -14, &[]).1);
    let vector = words(&[0x1000, 4, 0x2000, 100, 0x3000, 8]);
    let told = resolve("readv", &[3, 0x100, 3], 20, &[(0x100, &vector)]);
    let expected = [(Read, 0x100, 48), (Write, 0x1000, 4), (Write, 0x2000, 16)];
    assert_eq!(told, (Vec::from(expected), true));
    // The size is asked for; nothing is written.
    let path: &[u8] = &[0; 64];
    let told = resolve("getxattr", &[0x40, 0x40, 0x900, 0], 12, &[(0x40, path)]);
    assert_eq!(told, (Vec::from([(Read, 0x40, 1), (Read, 0x40, 1)]), true));
}

#[test]
fn messages() {
    let mut header = words(&[0x500, 16, 0x600, 2, 0x700, 24, 0]);
    header.extend([0; 8]);
    let vector = words(&[0x1000, 4, 0x2000, 100]);
    let memory: [(u64, &[u8]); 2] = [(0x100, &header), (0x600, &vector)];
    let expected = [
        (Read, 0x100, 56),
        (Read, 0x600, 32),
        (Write, 0x108, 4),
        (Write, 0x128, 8),
        (Write, 0x130, 4),
        (Write, 0x500, 16),
        (Write, 0x1000, 4),
        (Write, 0x2000, 6),
        (Write, 0x700, 24),
    ];
    assert_eq!(resolve("recvmsg", &[3, 0x100], 10, &memory), (Vec::from(expected), true));
    let told = resolve("sendmsg", &[3, 0x100], 3, &memory).0;
    let expected = [
        (Read, 0x100, 56),
        (Read, 0x600, 32),
        (Read, 0x500, 16),
        (Read, 0x1000, 3),
        (Read, 0x700, 24),
    ];
    assert_eq!(told, expected);
    // Names have an end, and no length below zero.
    for (length, name) in [(u32::MAX, None), (1 << 20, Some(&(Write, 0x500, 128)))] {
        let mut header = header.clone();
        header[8..12].copy_from_slice(&length.to_le_bytes());
        let memory: [(u64, &[u8]); 2] = [(0x100, &header), (0x600, &vector)];
        let told = resolve("recvmsg", &[3, 0x100], 10, &memory).0;
        assert_eq!(told.iter().find(|told| told.1 == 0x500), name);
    }
    // One message came, one more header was looked at.
    header[56..].copy_from_slice(&10u64.to_le_bytes());
    let two = [&header[..], &header[..]].concat();
    let told = resolve("recvmmsg", &[3, 0x100, 2], 1, &[(0x100, &two), (0x600, &vector)]);
    assert!(told.1);
    assert_eq!(told.0.iter().filter(|t| t.0 == Read).count(), 4);
    assert_eq!(told.0.last(), Some(&(Write, 0x138, 4)));
}

#[test]
fn fixed_sizes_and_failures() {
    assert_eq!(resolve("pipe2", &[0x80, 0], 0, &[]), (Vec::from([(Write, 0x80, 8)]), true));
    assert_eq!(resolve("pipe2", &[0x80, 0], -24, &[]), (Vec::new(), true));
    let expected = [(Read, 0x80, 16), (Write, 0x86, 2), (Write, 0x8e, 2)];
    assert_eq!(resolve("poll", &[0x80, 2, 5], 1, &[]), (Vec::from(expected), true));
    assert_eq!(resolve("nanosleep", &[8, 16], 0, &[]).0, [(Read, 8, 16)]);
    assert_eq!(resolve("nanosleep", &[8, 16], -4, &[]).0, [(Read, 8, 16), (Write, 16, 16)]);
    assert_eq!(resolve("select", &[65, 8, 0, 0, 0], 1, &[]).0, [(Read, 8, 16), (Write, 8, 16)]);
    assert_eq!(resolve("wait4", &[1, 8, 1, 16], 0, &[]), (Vec::new(), true));
    assert_eq!(resolve("rseq", &[8, 32], -38, &[]), (Vec::new(), true));
    assert!(!resolve("rseq", &[8, 32], 0, &[]).1);
    // A length that is negative is none.
    let lengths: [(u64, &[u8]); 2] = [(0x40, &[16, 0, 0, 0]), (0x50, &[0xff; 4])];
    let named = |at| resolve("getsockname", &[3, 0x80, at], 0, &lengths).0;
    assert_eq!(named(0x40), [(Read, 0x40, 4), (Write, 0x40, 4), (Write, 0x80, 16)]);
    assert_eq!(named(0x50), [(Read, 0x50, 4), (Write, 0x50, 4)]);
}

#[test]
fn what_may_be_written_is_limited_by_the_result_or_not() {
    let vector = words(&[0x1000, 4, 0x2000, 100]);
    let mut header = words(&[0x500, 16, 0x600, 2, 0x700, 24, 0]);
    header.extend([0; 8]);
    let memory: [(u64, &[u8]); 2] = [(0x600, &vector), (0x100, &header)];
    let told = |name: &str, args: &[u64]| {
        let call = all().iter().find(|call| call.name == name).expect(name);
        let mut six = [0; 6];
        six[..args.len()].copy_from_slice(args);
        let mut read = |at: u64, out: &mut [u8]| {
            let Some((start, bytes)) = memory.iter().find(|(start, bytes)| {
                *start <= at && at + out.len() as u64 <= start + bytes.len() as u64
            }) else {
                return false;
            };
            out.copy_from_slice(&bytes[(at - start) as usize..][..out.len()]);
            true
        };
        let mut told = Vec::new();
        let each = &mut |w: MayWrite| told.push((w.address, w.length, w.unit));
        assert!(may_write(call, &six, &mut read, each), "{name}");
        told
    };
    assert_eq!(told("read", &[3, 0x100, 64]), [(0x100, 64, 1)]);
    assert_eq!(told("readv", &[3, 0x600, 2]), [(0x1000, 4, 1), (0x2000, 100, 1)]);
    assert_eq!(told("epoll_wait", &[3, 0x100, 8]), [(0x100, 96, 12)]);
    assert_eq!(told("msgrcv", &[3, 0x100, 20]), [(0x100, 8, 0), (0x108, 20, 1)]);
    assert_eq!(told("fstat", &[3, 0x100]), [(0x100, 144, 0)]);
    assert_eq!(told("poll", &[0x80, 2, 5]), [(0x86, 2, 0), (0x8e, 2, 0)]);
    let message = told("recvmsg", &[3, 0x100]);
    let limited: Vec<_> = message.iter().filter(|range| range.2 == 1).collect();
    assert_eq!(limited, [&(0x1000, 4, 1), &(0x2000, 100, 1)]);
    assert!(message.contains(&(0x700, 24, 0)) && message.contains(&(0x500, 16, 0)));
    assert_eq!(told("get_mempolicy", &[0x100, 0x600, 1025]), [(0x100, 4, 0), (0x600, 128, 0)]);
}

#[test]
fn commands_decide() {
    let told = resolve("ioctl", &[0, 0x5401, 0x100], 0, &[]);
    assert_eq!(told, (Vec::from([(Write, 0x100, 36)]), true));
    // _IOWR('x', 1, 24 bytes): what its number claims, without certainty.
    let told = resolve("ioctl", &[0, 0xc018_7801, 0x100], 0, &[]);
    assert_eq!(told, (Vec::from([(Read, 0x100, 24), (Write, 0x100, 24)]), false));
    assert!(!resolve("ioctl", &[0, 0x7801, 0x100], 0, &[]).1);
    assert_eq!(ioctl_effect(0x541b), Some(IoctlEffect { reads: 0, writes: 4, certain: true }));
    assert_eq!(resolve("fcntl", &[0, 5, 0x100], 0, &[]).0, [(Read, 0x100, 32), (Write, 0x100, 32)]);
    assert_eq!(resolve("futex", &[0x100, 0x81, 1], 1, &[]), (Vec::new(), true));
    let expected = [(Read, 0x100, 4), (Read, 0x200, 16)];
    assert_eq!(resolve("futex", &[0x100, 0x189, 1, 0x200], 0, &[]), (Vec::from(expected), true));
    assert_eq!(resolve("clone", &[0x10_0000, 0, 0x40, 0x50], 9, &[]).0, [(Write, 0x40, 4)]);
    let arguments = words(&[0x110_0000, 1, 2, 3, 17, 0, 0, 0, 0, 0, 0]);
    let told = resolve("clone3", &[0x100, 88], 9, &[(0x100, &arguments)]);
    assert_eq!(told, (Vec::from([(Read, 0x100, 88), (Write, 2, 4), (Write, 3, 4)]), true));
}

#[test]
fn filters_are_read_with_their_instructions() {
    let program = words(&[3, 0x500]);
    let memory: [(u64, &[u8]); 1] = [(0x100, &program)];
    let expected = (Vec::from([(Read, 0x100, 16), (Read, 0x500, 24)]), true);
    // SECCOMP_SET_MODE_FILTER, PR_SET_SECCOMP with SECCOMP_MODE_FILTER, SO_ATTACH_FILTER.
    assert_eq!(resolve("seccomp", &[1, 0, 0x100], 0, &memory), expected);
    assert_eq!(resolve("prctl", &[22, 2, 0x100], 0, &memory), expected);
    assert_eq!(resolve("setsockopt", &[3, 1, 26, 0x100, 16], 0, &memory), expected);
}

#[test]
fn sets_of_semaphores_say_what_is_written() {
    // SETALL reads as many numbers as the set has, and writes nothing; IPC_INFO, SEM_STAT.
    let call = all().iter().find(|call| call.name == "semctl").expect("semctl");
    let set = [7, 0, 17, 0x100, 0, 0];
    assert!(may_write(call, &set, &mut |_, _| false, &mut |_| panic!("nothing is written")));
    assert!(!resolve("semctl", &set, 0, &[]).1);
    assert_eq!(resolve("semctl", &[7, 0, 3, 0x100], 0, &[]).0, [(Write, 0x100, 40)]);
    assert_eq!(resolve("semctl", &[7, 0, 18, 0x100], 0, &[]).0, [(Write, 0x100, 104)]);
}

#[test]
fn strings_end_where_they_end() {
    let mut page = [b'x'; 4096];
    page[..4].copy_from_slice(b"/a/b");
    page[4] = 0;
    page[100..104].copy_from_slice(b"one\0");
    page[4093..].copy_from_slice(b"tw\0");
    page[200..224].copy_from_slice(&words(&[0x1064, 0x1ffd, 0]));
    let memory: [(u64, &[u8]); 1] = [(0x1000, &page)];
    let expected = [(Read, 0x1000, 5), (Read, 0x1064, 4), (Read, 0x1ffd, 3), (Read, 0x10c8, 24)];
    assert_eq!(resolve("execve", &[0x1000, 0x10c8, 0], 0, &memory), (Vec::from(expected), true));
    // No end before the memory ends.
    page[4095] = b'o';
    assert!(!resolve("chdir", &[0x1f00], 0, &[(0x1000, &page)]).1);
}

#[test]
fn damaged_counts_end_soon() {
    for call in all() {
        for result in [0, 1, i64::MAX, i64::MIN, -4] {
            described(call, &[u64::MAX; 6], result);
        }
    }
}
