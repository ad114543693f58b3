//! Calls whose effects depend on a command in an argument.

use super::{Extent, Range};

/// What is read and written; `None`: not certain.
pub type Effects = Option<(&'static [Range], &'static [Range])>;

/// Bytes at an ioctl's argument that the kernel reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoctlEffect {
    /// Bytes that the kernel reads.
    pub reads: u32,
    /// Bytes that the kernel writes.
    pub writes: u32,
    /// False: the sizes are those that the request's own number claims. Some drivers pass a value
    /// instead of an address, or an address inside of the structure.
    pub certain: bool,
}

/// What an ioctl does to memory; `None` if its number says nothing about it.
pub fn ioctl_effect(request: u32) -> Option<IoctlEffect> {
    let (reads, writes) = match request {
        0x5401 => (0, 36),                                                       // TCGETS
        0x5402..=0x5404 => (36, 0), // TCSETS, TCSETSW, TCSETSF
        0x5405 => (0, 18),          // TCGETA
        0x5406..=0x5408 => (18, 0), // TCSETA, TCSETAW, TCSETAF
        0x5409..=0x540e => (0, 0),  // TCSBRK .. TIOCSCTTY
        0x540f | 0x5411 | 0x5415 | 0x5419 => (0, 4), // TIOCGPGRP, OUTQ, MGET, GSOFTCAR
        0x5410 | 0x5416 | 0x5417 | 0x5418 => (4, 0), // TIOCSPGRP, MBIS, MBIC, MSET
        0x541a | 0x5420 | 0x5421 | 0x5423 => (4, 0), // TIOCSSOFTCAR, PKT, FIONBIO, TIOCSETD
        0x5412 => (1, 0),           // TIOCSTI
        0x5413 => (0, 8),           // TIOCGWINSZ
        0x5414 => (8, 0),           // TIOCSWINSZ
        0x541b | 0x5424 | 0x5429 => (0, 4), // FIONREAD, TIOCGETD, TIOCGSID
        0x541d | 0x5422 | 0x5425 => (0, 0), // TIOCCONS, TIOCNOTTY, TCSBRKP
        0x5427 | 0x5428 | 0x5437 | 0x5441 => (0, 0), // TIOCSBRK, CBRK, VHANGUP, GPTPEER
        0x802c_542a => (0, 44),     // TCGETS2
        0x402c_542b..=0x402c_542d => (44, 0), // TCSETS2, TCSETSW2, TCSETSF2
        0x8004_5430 | 0x8004_5432 => (0, 4), // TIOCGPTN, TIOCGDEV
        0x8004_5438..=0x8004_5440 => (0, 4), // TIOCGPKT, GPTLCK, GEXCL
        0x4004_5431 => (4, 0),      // TIOCSPTLCK
        0x5450 | 0x5451 => (0, 0),  // FIONCLEX, FIOCLEX
        0x5452 => (4, 0),           // FIOASYNC
        0x5460 => (0, 8),           // FIOQSIZE
        0x0001 => (4, 4),           // FIBMAP
        0x0002 | 0x07b9 => (0, 4),  // FIGETBSZ, VM_SOCKETS_GET_LOCAL_CID
        0x0301 => (0, 16),          // HDIO_GETGEO
        0x1263 => (0, 8),           // BLKRAGET
        0x1267 | 0x127e => (0, 2),  // BLKSECTGET, BLKROTATIONAL
        0x1278..=0x127c => (0, 4),  // BLKIOMIN, IOOPT, ALIGNOFF, PBSZGET, ..
        0x2400..=0x2403 => (0, 0),  // PERF_EVENT_IOC_ENABLE .. RESET
        0x8008_2407 => (0, 8),      // PERF_EVENT_IOC_ID
        0x4b33 => (0, 1),           // KDGKBTYPE
        0x4b3b | 0x5600 => (0, 4),  // KDGETMODE, VT_OPENQRY
        0x5603 => (0, 6),           // VT_GETSTATE
        0x541e => (0, 72),          // TIOCGSERIAL
        0x545d => (0, 80),          // TIOCGICOUNT
        0xb701..=0xb703 => (0, 0),  // NS_GET_USERNS, PARENT, NSTYPE
        0xb704 => (0, 4),           // NS_GET_OWNER_UID
        0x8004_5200 => (0, 4),      // RNDGETENTCNT
        0x8024_7009 => (0, 36),     // RTC_RD_TIME
        0x4020_940d => (32, 0),     // FICLONERANGE
        0x801c_581f => (0, 28),     // FS_IOC_FSGETXATTR
        0x401c_5820 => (28, 0),     // FS_IOC_FSSETXATTR
        0x8100_9431 => (0, 256),    // FS_IOC_GETFSLABEL
        0x4008_7602 => (4, 0),      // FS_IOC_SETVERSION: an int
        0xc050_2100 => (80, 80),    // SECCOMP_IOCTL_NOTIF_RECV
        0xc018_2101 => (24, 24),    // SECCOMP_IOCTL_NOTIF_SEND
        0x4008_2102 => (8, 0),      // SECCOMP_IOCTL_NOTIF_ID_VALID
        0x4018_2103 => (24, 0),     // SECCOMP_IOCTL_NOTIF_ADDFD
        0x4004_54ca => (40, 40),    // TUNSETIFF
        0x4004_54cb | 0x4004_54cc => (0, 0), // TUNSETPERSIST, TUNSETOWNER: values
        0x8004_54cf => (0, 4),      // TUNGETFEATURES
        0x8004_54d2 => (0, 40),     // TUNGETIFF
        0x8906 | 0x8907 => (0, 16), // SIOCGSTAMP, SIOCGSTAMPNS
        0x8917 | 0x891d | 0x8935 | 0x8938 | 0x8970 => (40, 40), // SIOCGIFDSTADDR, METRIC, PFLAGS, ..
        0x8914 | 0x8916 | 0x8918 | 0x891a | 0x891c | 0x8922 | 0x8924 => (40, 0), // SIOCSIFFLAGS, ..
        0x8901 | 0x8902 => (4, 0),                              // FIOSETOWN, SIOCSPGRP
        0x8903..=0x8905 => (0, 4),                              // FIOGETOWN, SIOCGPGRP, SIOCATMARK
        0x8910 | 0x8913 | 0x8915 | 0x8919 => (40, 40),          // SIOCGIFNAME, FLAGS, ADDR, BRDADDR
        0x891b | 0x8921 | 0x8927 | 0x8933 => (40, 40), // SIOCGIFNETMASK, MTU, HWADDR, INDEX
        0x8942 => (40, 40),                            // SIOCGIFTXQLEN
        0x1260 | 0x8008_1272 => (0, 8),                // BLKGETSIZE, BLKGETSIZE64
        0x1261 => (0, 0),                              // BLKFLSBUF
        0x125e | 0x1268 => (0, 4),                     // BLKROGET, BLKSSZGET
        0x4004_9409 => (0, 0),                         // FICLONE: a descriptor
        0x8008_6601 | 0x8008_7601 => (0, 4),           // FS_IOC_GETFLAGS, GETVERSION: an int
        0x4008_6602 => (4, 0),                         // FS_IOC_SETFLAGS: an int
        _ => {
            let (size, direction) = (request >> 16 & 0x3fff, request >> 30);
            return (direction != 0 && size != 0).then_some(IoctlEffect {
                reads: if direction & 1 != 0 { size } else { 0 },
                writes: if direction & 2 != 0 { size } else { 0 },
                certain: false,
            });
        }
    };
    Some(IoctlEffect { reads, writes, certain: true })
}

macro_rules! at {
    ($($argument:literal: $extent:expr),*) => {
        &[$(Range { argument: $argument, extent: $extent }),*]
    };
}

/// What a call that depends on a command does; ioctl, clone3 and unknown commands: `None`.
pub fn command(number: u16, args: &[u64; 6], result: i64) -> Effects {
    use Extent::{Argument, Buffer, Bytes, Filter, LengthAt, ResultUpTo, String, Unknown};
    const NOTHING: Effects = Some((&[], &[]));
    let command = |argument: usize| args[argument] as u32;
    match number {
        // shmctl, semctl, msgctl: IPC_RMID, IPC_SET; IPC_STAT and ..STAT, ..STAT_ANY; IPC_INFO, ..INFO
        31 => match command(1) {
            // also SHM_LOCK, SHM_UNLOCK
            0 | 11 | 12 => NOTHING,
            1 => Some((at![2: Bytes(112)], &[])),
            2 | 13 | 15 => Some((&[], at![2: Bytes(112)])),
            3 => Some((&[], at![2: Bytes(72)])),
            14 => Some((&[], at![2: Bytes(48)])),
            _ => None,
        },
        66 => match command(2) {
            // also GETPID, GETVAL, GETNCNT, GETZCNT, SETVAL
            0 | 11 | 12 | 14 | 15 | 16 => NOTHING,
            1 => Some((at![3: Bytes(104)], &[])),
            2 | 18 | 20 => Some((&[], at![3: Bytes(104)])),
            3 | 19 => Some((&[], at![3: Bytes(40)])),
            // SETALL: one number for each semaphore of the set, which says how many it has.
            17 => Some((at![3: Unknown], &[])),
            _ => None,
        },
        71 => match command(1) {
            0 => NOTHING,
            1 => Some((at![2: Bytes(120)], &[])),
            2 | 11 | 13 => Some((&[], at![2: Bytes(120)])),
            3 | 12 => Some((&[], at![2: Bytes(32)])),
            _ => None,
        },
        // setsockopt. Filters (SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF) and tables hold addresses.
        54 => match (command(1), command(2)) {
            (1, 26 | 51) => Some((at![3: Filter], &[])),
            (1 | 6 | 17 | 270, _) | (0 | 41, 0..64) => Some((at![3: Argument(4)], &[])),
            // IPT_SO_SET_REPLACE: the old counters go where the new table says.
            (0 | 41, 64) => Some((at![3: Argument(4)], at![3: Unknown])),
            _ => Some((at![3: Unknown], &[])),
        },
        // getsockopt: IP, sockets, TCP, UDP, IPv6, ICMPv6, raw, packets, netlink, MPTCP. The length of a filter
        // (SO_GET_FILTER) counts instructions, and TCP_ZEROCOPY_RECEIVE holds addresses.
        55 => match (command(1), command(2)) {
            (1, 26) | (6, 35) => None,
            (0 | 1 | 6 | 17 | 41 | 58 | 255 | 263 | 270 | 284, _) => {
                Some((&[], at![3: LengthAt(4)]))
            }
            _ => None,
        },
        // clone: CLONE_PIDFD or CLONE_PARENT_SETTID, CLONE_CHILD_SETTID
        56 => match (args[0] & 0x10_1000 != 0, args[0] & 0x100_0000 != 0) {
            (false, false) => NOTHING,
            (true, false) => Some((&[], at![2: Bytes(4)])),
            (false, true) => Some((&[], at![3: Bytes(4)])),
            (true, true) => Some((&[], at![2: Bytes(4), 3: Bytes(4)])),
        },
        // fcntl
        72 => match command(1) {
            0..=4 | 8..=11 | 1024..=1034 => NOTHING,
            5 | 36 => Some((at![2: Bytes(32)], at![2: Bytes(32)])), // F_GETLK, F_OFD_GETLK
            6 | 7 | 37 | 38 => Some((at![2: Bytes(32)], &[])),      // F_SETLK ..
            15 | 1036 | 1038 => Some((at![2: Bytes(8)], &[])),      // F_SETOWN_EX, F_SET_RW_HINT
            16 | 17 | 1035 | 1037 => Some((&[], at![2: Bytes(8)])), // F_GETOWN_EX ..
            _ => None,
        },
        // ptrace
        101 => match command(0) {
            0 | 4..=9 | 16 | 17 | 24 | 31 | 32 | 0x4200 | 0x4206..=0x4208 => NOTHING,
            1..=3 => Some((&[], at![3: Bytes(8)])), // PEEKTEXT, PEEKDATA, PEEKUSER
            12 => Some((&[], at![3: Bytes(216)])),  // GETREGS
            13 => Some((at![3: Bytes(216)], &[])),  // SETREGS
            14 | 18 => Some((&[], at![3: Bytes(512)])), // GETFPREGS, GETFPXREGS
            15 | 19 => Some((at![3: Bytes(512)], &[])), // SETFPREGS, SETFPXREGS
            0x4201 | 0x420a => Some((&[], at![3: Bytes(8)])), // GETEVENTMSG, GETSIGMASK
            0x4202 => Some((&[], at![3: Bytes(128)])), // GETSIGINFO
            0x4203 => Some((at![3: Bytes(128)], &[])), // SETSIGINFO
            0x420b => Some((at![3: Bytes(8)], &[])), // SETSIGMASK
            0x4204 => Some((at![3: Bytes(16)], at![3: Buffer])), // GETREGSET
            0x4205 => Some((at![3: Buffer], &[])),  // SETREGSET
            0x420e | 0x420f => Some((&[], at![3: ResultUpTo(2)])), // GET_SYSCALL_INFO, RSEQ
            _ => None,
        },
        // syslog: 2, 3 and 4 read messages
        103 => match command(0) {
            2..=4 => Some((&[], at![1: ResultUpTo(2)])),
            0..=10 => NOTHING,
            _ => None,
        },
        // modify_ldt
        154 => match command(0) {
            0 | 2 => Some((&[], at![1: ResultUpTo(2)])),
            1 | 0x11 => Some((at![1: Bytes(16)], &[])),
            _ => None,
        },
        // prctl
        157 => match command(0) {
            1
            | 3
            | 4
            | 7
            | 8
            | 21
            | 23
            | 24
            | 26..=34
            | 36
            | 38
            | 39
            | 41
            | 42
            | 47
            | 52
            | 53
            | 57..=59
            | 65..=68
            | 0x5961_6d61 => NOTHING,
            2 | 25 | 37 => Some((&[], at![1: Bytes(4)])), // GET_PDEATHSIG, TSC, CHILD_SUBREAPER
            15 => Some((at![1: String], &[])),            // PR_SET_NAME
            16 => Some((&[], at![1: Bytes(16)])),         // PR_GET_NAME
            22 if args[1] == 1 => NOTHING,                // PR_SET_SECCOMP, strict
            22 if args[1] == 2 => Some((at![2: Filter], &[])), // with a filter
            // PR_SET_MM: MAP reads a structure, MAP_SIZE writes its size, AUXV reads words.
            35 if args[1] == 14 || args[1] == 12 => Some((at![2: Argument(3)], &[])),
            35 if args[1] == 15 => Some((&[], at![2: Bytes(4)])),
            35 => NOTHING,
            40 => Some((&[], at![1: Bytes(8)])), // PR_GET_TID_ADDRESS
            // PR_SCHED_CORE: only PR_SCHED_CORE_GET writes.
            62 if args[1] == 0 => Some((&[], at![4: Bytes(8)])),
            62 => NOTHING,
            0x4155_5856 => Some((&[], at![1: ResultUpTo(2)])), // PR_GET_AUXV
            0x5356_4d41 => Some((at![4: String], &[])),        // PR_SET_VMA
            _ => None,
        },
        // arch_prctl: ARCH_GET_FS, GET_GS, GET_XCOMP_.., SHSTK_STATUS write a word
        158 => match command(0) {
            0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 | 0x5005 => Some((&[], at![1: Bytes(8)])),
            0x1001
            | 0x1002
            | 0x1011
            | 0x1012
            | 0x1023
            | 0x1025
            | 0x2001..=0x2003
            | 0x5001..=0x5003 => NOTHING,
            _ => None,
        },
        // quotactl, quotactl_fd: behind the kind of quota, a generic command or one of XFS
        179 | 443 => match command(usize::from(number == 443)) >> 8 {
            0x80_0001 | 0x80_0003 | 0x5806 | 0x5807 => NOTHING, // SYNC, QUOTAOFF, XQUOTARM, XQUOTASYNC
            0x80_0002 => Some((at![3: String], &[])),           // QUOTAON
            0x80_0004 => Some((&[], at![3: Bytes(4)])),         // GETFMT
            0x80_0005 => Some((&[], at![3: Bytes(24)])),        // GETINFO
            0x80_0006 => Some((at![3: Bytes(24)], &[])),        // SETINFO
            0x80_0007 | 0x80_0009 => Some((&[], at![3: Bytes(72)])), // GETQUOTA, GETNEXTQUOTA
            0x80_0008 => Some((at![3: Bytes(72)], &[])),        // SETQUOTA
            0x5801 | 0x5802 => Some((at![3: Bytes(4)], &[])),   // XQUOTAON, XQUOTAOFF
            0x5803 | 0x5809 => Some((&[], at![3: Bytes(112)])), // XGETQUOTA, XGETNEXTQUOTA
            0x5804 => Some((at![3: Bytes(112)], &[])),          // XSETQLIM
            0x5805 => Some((&[], at![3: Bytes(80)])),           // XGETQSTAT
            0x5808 => Some((at![3: Bytes(1)], at![3: Bytes(160)])), // XGETQSTATV
            _ => None,
        },
        // futex, without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME
        202 => match command(1) & !0x180 {
            0 | 9 => Some((at![0: Bytes(4), 3: Bytes(16)], &[])), // WAIT, WAIT_BITSET
            1 | 3 | 10 => NOTHING,                                // WAKE, REQUEUE, WAKE_BITSET
            4 => Some((at![0: Bytes(4)], &[])),                   // CMP_REQUEUE
            5 => Some((at![4: Bytes(4)], at![4: Bytes(4)])),      // WAKE_OP
            // LOCK_PI, LOCK_PI2; a failed one may have left its mark.
            6 | 13 if result >= 0 => Some((at![0: Bytes(4), 3: Bytes(16)], at![0: Bytes(4)])),
            7 | 8 if result >= 0 => Some((at![0: Bytes(4)], at![0: Bytes(4)])), // UNLOCK_PI, TRYLOCK_PI
            _ => None,
        },
        // epoll_ctl: EPOLL_CTL_DEL has no event
        233 => match command(1) {
            2 => NOTHING,
            _ => Some((at![3: Bytes(12)], &[])),
        },
        // keyctl
        250 => match command(0) {
            0 | 3..=5 | 7..=9 | 14..=16 | 18 | 19 | 21 | 22 | 30 => NOTHING,
            1 => Some((at![1: String], &[])), // JOIN_SESSION_KEYRING
            2 => Some((at![2: Argument(3)], &[])), // UPDATE
            6 | 11 | 17 => Some((&[], at![2: ResultUpTo(3)])), // DESCRIBE, READ, GET_SECURITY
            10 => Some((at![2: String, 3: String], &[])), // SEARCH
            _ => None,
        },
        // kcmp: KCMP_EPOLL_TFD
        312 => match command(2) {
            7 => Some((at![4: Bytes(12)], &[])),
            _ => NOTHING,
        },
        // seccomp: strict, with a filter; SECCOMP_GET_ACTION_AVAIL, SECCOMP_GET_NOTIF_SIZES
        317 => match command(0) {
            0 => NOTHING,
            1 => Some((at![2: Filter], &[])),
            2 => Some((at![2: Bytes(4)], &[])),
            3 => Some((&[], at![2: Bytes(6)])),
            _ => None,
        },
        _ => None,
    }
}
