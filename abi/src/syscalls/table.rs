//! The rows: number, name, what it changes; what the kernel reads; what it writes.
//!
//! A number in front of an extent is the position of the argument that holds the address.

use super::{Control, Count, Extent::*, Range, Syscall};

macro_rules! table {
    ($($number:literal $name:ident $control:ident
       [$($read:literal: $reads:expr),*] [$($write:literal: $writes:expr),*];)*) => {
        &[$(Syscall {
            number: $number,
            name: stringify!($name),
            reads: &[$(Range { argument: $read, extent: $reads }),*],
            writes: &[$(Range { argument: $write, extent: $writes }),*],
            control: Control::$control,
        }),*]
    };
}

/// Every system call, by number.
#[rustfmt::skip]
pub static TABLE: &[Syscall] = table! {
    0 read None [] [1: ResultUpTo(2)];
    1 write None [1: ResultUpTo(2)] [];
    2 open Descriptor [0: String] [];
    3 close Descriptor [] [];
    4 stat None [0: String] [1: Bytes(144)];
    5 fstat None [] [1: Bytes(144)];
    6 lstat None [0: String] [1: Bytes(144)];
    7 poll None
        [0: Array { count_argument: 1, size: 8 }]
        [0: Fields { count: Count::Argument(1), size: 8, offset: 6, length: 2 }];
    8 lseek None [] [];
    9 mmap Mapping [] [];
    10 mprotect Mapping [] [];
    11 munmap Mapping [] [];
    12 brk Mapping [] [];
    13 rt_sigaction Signal [1: Bytes(32)] [2: Bytes(32)];
    14 rt_sigprocmask Signal [1: Argument(3)] [2: Argument(3)];
    15 rt_sigreturn Signal [0: ByCommand] [];
    16 ioctl None [2: ByCommand] [2: ByCommand];
    17 pread64 None [] [1: ResultUpTo(2)];
    18 pwrite64 None [1: ResultUpTo(2)] [];
    19 readv None
        [1: Array { count_argument: 2, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    20 writev None
        [1: Array { count_argument: 2, size: 16 }, 1: IoVec { count: 2, limited_by_result: true }]
        [];
    21 access None [0: String] [];
    22 pipe Descriptor [] [0: Bytes(8)];
    23 select None
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16)]
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16)];
    24 sched_yield None [] [];
    25 mremap Mapping [] [];
    26 msync None [] [];
    27 mincore None [] [2: Pages(1)];
    28 madvise Mapping [] [];
    29 shmget None [] [];
    30 shmat Mapping [] [];
    31 shmctl None [2: ByCommand] [2: ByCommand];
    32 dup Descriptor [] [];
    33 dup2 Descriptor [] [];
    34 pause None [] [];
    35 nanosleep None [0: Bytes(16)] [1: Bytes(16)];
    36 getitimer None [] [1: Bytes(32)];
    37 alarm None [] [];
    38 setitimer None [1: Bytes(32)] [2: Bytes(32)];
    39 getpid None [] [];
    40 sendfile None [2: Bytes(8)] [2: Bytes(8)];
    41 socket Descriptor [] [];
    42 connect None [1: Argument(2)] [];
    43 accept Descriptor [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    44 sendto None [1: ResultUpTo(2), 4: Argument(5)] [];
    45 recvfrom None [5: Bytes(4)] [1: ResultUpTo(2), 5: Bytes(4), 4: LengthAt(5)];
    46 sendmsg None [1: Message] [];
    47 recvmsg Descriptor [1: MessageHeader] [1: Message];
    48 shutdown None [] [];
    49 bind None [1: Argument(2)] [];
    50 listen None [] [];
    51 getsockname None [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    52 getpeername None [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    53 socketpair Descriptor [] [3: Bytes(8)];
    54 setsockopt None [3: ByCommand] [];
    55 getsockopt None [4: Bytes(4), 3: ByCommand] [4: Bytes(4), 3: ByCommand];
    56 clone Thread [] [0: ByCommand];
    57 fork Process [] [];
    58 vfork Process [] [];
    59 execve Exec [0: String, 1: Strings, 2: Strings] [];
    60 exit Exit [] [];
    61 wait4 None [] [1: Bytes(4), 3: Bytes(144)];
    62 kill None [] [];
    63 uname None [] [0: Bytes(390)];
    64 semget None [] [];
    65 semop None [1: Array { count_argument: 2, size: 6 }] [];
    66 semctl None [3: ByCommand] [3: ByCommand];
    67 shmdt Mapping [] [];
    68 msgget None [] [];
    69 msgsnd None [1: ArgumentAndHeader { argument: 2, header: 8 }] [];
    70 msgrcv None [] [1: ResultAndHeader(8)];
    71 msgctl None [2: ByCommand] [2: ByCommand];
    72 fcntl Descriptor [2: ByCommand] [2: ByCommand];
    73 flock None [] [];
    74 fsync None [] [];
    75 fdatasync None [] [];
    76 truncate None [0: String] [];
    77 ftruncate None [] [];
    78 getdents None [] [1: ResultUpTo(2)];
    79 getcwd None [] [0: ResultUpTo(1)];
    80 chdir None [0: String] [];
    81 fchdir None [] [];
    82 rename None [0: String, 1: String] [];
    83 mkdir None [0: String] [];
    84 rmdir None [0: String] [];
    85 creat Descriptor [0: String] [];
    86 link None [0: String, 1: String] [];
    87 unlink None [0: String] [];
    88 symlink None [0: String, 1: String] [];
    89 readlink None [0: String] [1: ResultUpTo(2)];
    90 chmod None [0: String] [];
    91 fchmod None [] [];
    92 chown None [0: String] [];
    93 fchown None [] [];
    94 lchown None [0: String] [];
    95 umask None [] [];
    96 gettimeofday None [] [0: Bytes(16), 1: Bytes(8)];
    97 getrlimit None [] [1: Bytes(16)];
    98 getrusage None [] [1: Bytes(144)];
    99 sysinfo None [] [0: Bytes(112)];
    100 times None [] [0: Bytes(32)];
    101 ptrace None [3: Unknown] [3: Unknown];
    102 getuid None [] [];
    103 syslog None [] [1: ByCommand];
    104 getgid None [] [];
    105 setuid None [] [];
    106 setgid None [] [];
    107 geteuid None [] [];
    108 getegid None [] [];
    109 setpgid None [] [];
    110 getppid None [] [];
    111 getpgrp None [] [];
    112 setsid None [] [];
    113 setreuid None [] [];
    114 setregid None [] [];
    115 getgroups None [] [1: ResultArray { count_argument: 0, size: 4 }];
    116 setgroups None [1: Array { count_argument: 0, size: 4 }] [];
    117 setresuid None [] [];
    118 getresuid None [] [0: Bytes(4), 1: Bytes(4), 2: Bytes(4)];
    119 setresgid None [] [];
    120 getresgid None [] [0: Bytes(4), 1: Bytes(4), 2: Bytes(4)];
    121 getpgid None [] [];
    122 setfsuid None [] [];
    123 setfsgid None [] [];
    124 getsid None [] [];
    125 capget None [0: Bytes(8)] [0: Bytes(8), 1: Unknown];
    126 capset None [0: Bytes(8), 1: Unknown] [];
    127 rt_sigpending None [] [0: Argument(1)];
    128 rt_sigtimedwait None [0: Argument(3), 2: Bytes(16)] [1: Bytes(128)];
    129 rt_sigqueueinfo None [2: Bytes(48)] [];
    130 rt_sigsuspend Signal [0: Argument(1)] [];
    131 sigaltstack Signal [0: Bytes(24)] [1: Bytes(24)];
    132 utime None [0: String, 1: Bytes(16)] [];
    133 mknod None [0: String] [];
    134 uselib Mapping [0: String] [];
    135 personality None [] [];
    136 ustat None [] [1: Bytes(32)];
    137 statfs None [0: String] [1: Bytes(120)];
    138 fstatfs None [] [1: Bytes(120)];
    139 sysfs None [1: Unknown] [2: Unknown];
    140 getpriority None [] [];
    141 setpriority None [] [];
    142 sched_setparam None [1: Bytes(4)] [];
    143 sched_getparam None [] [1: Bytes(4)];
    144 sched_setscheduler None [2: Bytes(4)] [];
    145 sched_getscheduler None [] [];
    146 sched_get_priority_max None [] [];
    147 sched_get_priority_min None [] [];
    148 sched_rr_get_interval None [] [1: Bytes(16)];
    149 mlock None [] [];
    150 munlock None [] [];
    151 mlockall None [] [];
    152 munlockall None [] [];
    153 vhangup None [] [];
    154 modify_ldt SegmentBase [1: ByCommand] [1: ByCommand];
    155 pivot_root None [0: String, 1: String] [];
    156 _sysctl None [] [];
    157 prctl Seccomp [1: ByCommand] [1: ByCommand];
    158 arch_prctl SegmentBase [] [1: ByCommand];
    159 adjtimex None [0: Bytes(208)] [0: Bytes(208)];
    160 setrlimit None [1: Bytes(16)] [];
    161 chroot None [0: String] [];
    162 sync None [] [];
    163 acct None [0: String] [];
    164 settimeofday None [0: Bytes(16), 1: Bytes(8)] [];
    165 mount None [0: String, 1: String, 2: String, 4: Unknown] [];
    166 umount2 None [0: String] [];
    167 swapon None [0: String] [];
    168 swapoff None [0: String] [];
    169 reboot None [3: Unknown] [];
    170 sethostname None [0: Argument(1)] [];
    171 setdomainname None [0: Argument(1)] [];
    172 iopl None [] [];
    173 ioperm None [] [];
    174 create_module None [] [];
    175 init_module None [0: Argument(1), 2: String] [];
    176 delete_module None [0: String] [];
    177 get_kernel_syms None [] [];
    178 query_module None [] [];
    179 quotactl None [1: String, 3: Unknown] [3: Unknown];
    180 nfsservctl None [] [];
    181 getpmsg None [] [];
    182 putpmsg None [] [];
    183 afs_syscall None [] [];
    184 tuxcall None [] [];
    185 security None [] [];
    186 gettid None [] [];
    187 readahead None [] [];
    188 setxattr None [0: String, 1: String, 2: Argument(3)] [];
    189 lsetxattr None [0: String, 1: String, 2: Argument(3)] [];
    190 fsetxattr None [1: String, 2: Argument(3)] [];
    191 getxattr None [0: String, 1: String] [2: ResultUpTo(3)];
    192 lgetxattr None [0: String, 1: String] [2: ResultUpTo(3)];
    193 fgetxattr None [1: String] [2: ResultUpTo(3)];
    194 listxattr None [0: String] [1: ResultUpTo(2)];
    195 llistxattr None [0: String] [1: ResultUpTo(2)];
    196 flistxattr None [] [1: ResultUpTo(2)];
    197 removexattr None [0: String, 1: String] [];
    198 lremovexattr None [0: String, 1: String] [];
    199 fremovexattr None [1: String] [];
    200 tkill None [] [];
    201 time None [] [0: Bytes(8)];
    202 futex None [0: ByCommand] [0: ByCommand];
    203 sched_setaffinity None [2: Argument(1)] [];
    204 sched_getaffinity None [] [2: ResultUpTo(1)];
    205 set_thread_area SegmentBase [0: Unknown] [0: Unknown];
    206 io_setup Mapping [1: Bytes(8)] [1: Bytes(8)];
    207 io_destroy Mapping [] [];
    208 io_getevents None [4: Bytes(16)] [3: Unknown];
    209 io_submit None [2: Unknown] [2: Unknown];
    210 io_cancel None [1: Unknown] [2: Unknown];
    211 get_thread_area None [0: Unknown] [0: Unknown];
    212 lookup_dcookie None [] [1: ResultUpTo(2)];
    213 epoll_create Descriptor [] [];
    214 epoll_ctl_old None [] [];
    215 epoll_wait_old None [] [];
    216 remap_file_pages Mapping [] [];
    217 getdents64 None [] [1: ResultUpTo(2)];
    218 set_tid_address None [] [];
    219 restart_syscall None [0: ByCommand] [0: ByCommand];
    220 semtimedop None [1: Array { count_argument: 2, size: 6 }, 3: Bytes(16)] [];
    221 fadvise64 None [] [];
    222 timer_create None [1: Bytes(64)] [2: Bytes(4)];
    223 timer_settime None [2: Bytes(32)] [3: Bytes(32)];
    224 timer_gettime None [] [1: Bytes(32)];
    225 timer_getoverrun None [] [];
    226 timer_delete None [] [];
    227 clock_settime None [1: Bytes(16)] [];
    228 clock_gettime None [] [1: Bytes(16)];
    229 clock_getres None [] [1: Bytes(16)];
    230 clock_nanosleep None [2: Bytes(16)] [3: Bytes(16)];
    231 exit_group Exit [] [];
    232 epoll_wait None [] [1: ResultArray { count_argument: 2, size: 12 }];
    233 epoll_ctl None [3: ByCommand] [];
    234 tgkill None [] [];
    235 utimes None [0: String, 1: Bytes(32)] [];
    236 vserver None [] [];
    237 mbind None [3: Unknown] [];
    238 set_mempolicy None [1: Unknown] [];
    239 get_mempolicy None [] [0: Bytes(4), 1: Unknown];
    240 mq_open Descriptor [0: String, 3: Bytes(64)] [];
    241 mq_unlink None [0: String] [];
    242 mq_timedsend None [1: Argument(2), 4: Bytes(16)] [];
    243 mq_timedreceive None [4: Bytes(16)] [1: ResultUpTo(2), 3: Bytes(4)];
    244 mq_notify None [1: Unknown] [];
    245 mq_getsetattr None [1: Bytes(64)] [2: Bytes(64)];
    246 kexec_load None [2: Unknown] [];
    247 waitid None [] [2: Bytes(28), 4: Bytes(144)];
    248 add_key None [0: String, 1: String, 2: Argument(3)] [];
    249 request_key None [0: String, 1: String, 2: String] [];
    250 keyctl None [0: ByCommand] [0: ByCommand];
    251 ioprio_set None [] [];
    252 ioprio_get None [] [];
    253 inotify_init Descriptor [] [];
    254 inotify_add_watch None [1: String] [];
    255 inotify_rm_watch None [] [];
    256 migrate_pages None [2: Unknown, 3: Unknown] [];
    257 openat Descriptor [1: String] [];
    258 mkdirat None [1: String] [];
    259 mknodat None [1: String] [];
    260 fchownat None [1: String] [];
    261 futimesat None [1: String, 2: Bytes(32)] [];
    262 newfstatat None [1: String] [2: Bytes(144)];
    263 unlinkat None [1: String] [];
    264 renameat None [1: String, 3: String] [];
    265 linkat None [1: String, 3: String] [];
    266 symlinkat None [0: String, 2: String] [];
    267 readlinkat None [1: String] [2: ResultUpTo(3)];
    268 fchmodat None [1: String] [];
    269 faccessat None [1: String] [];
    270 pselect6 Signal
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16), 5: Buffer]
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16)];
    271 ppoll Signal
        [0: Array { count_argument: 1, size: 8 }, 2: Bytes(16), 3: Argument(4)]
        [0: Fields { count: Count::Argument(1), size: 8, offset: 6, length: 2 }, 2: Bytes(16)];
    272 unshare None [] [];
    273 set_robust_list None [] [];
    274 get_robust_list None [] [1: Bytes(8), 2: Bytes(8)];
    275 splice None [1: Bytes(8), 3: Bytes(8)] [1: Bytes(8), 3: Bytes(8)];
    276 tee None [] [];
    277 sync_file_range None [] [];
    278 vmsplice None [1: Array { count_argument: 2, size: 16 }, 1: Unknown] [1: Unknown];
    279 move_pages None
        [2: Array { count_argument: 1, size: 8 }, 3: Array { count_argument: 1, size: 4 }]
        [4: Array { count_argument: 1, size: 4 }];
    280 utimensat None [1: String, 2: Bytes(32)] [];
    281 epoll_pwait Signal [4: Argument(5)] [1: ResultArray { count_argument: 2, size: 12 }];
    282 signalfd Descriptor [1: Argument(2)] [];
    283 timerfd_create Descriptor [] [];
    284 eventfd Descriptor [] [];
    285 fallocate None [] [];
    286 timerfd_settime None [2: Bytes(32)] [3: Bytes(32)];
    287 timerfd_gettime None [] [1: Bytes(32)];
    288 accept4 Descriptor [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    289 signalfd4 Descriptor [1: Argument(2)] [];
    290 eventfd2 Descriptor [] [];
    291 epoll_create1 Descriptor [] [];
    292 dup3 Descriptor [] [];
    293 pipe2 Descriptor [] [0: Bytes(8)];
    294 inotify_init1 Descriptor [] [];
    295 preadv None
        [1: Array { count_argument: 2, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    296 pwritev None
        [1: Array { count_argument: 2, size: 16 }, 1: IoVec { count: 2, limited_by_result: true }]
        [];
    297 rt_tgsigqueueinfo None [3: Bytes(48)] [];
    298 perf_event_open Descriptor [0: Unknown] [0: Bytes(8)];
    299 recvmmsg Descriptor
        [1: MessageHeaders { count: 2 }, 4: Bytes(16)]
        [1: Messages { count: 2 }, 4: Bytes(16)];
    300 fanotify_init Descriptor [] [];
    301 fanotify_mark None [4: String] [];
    302 prlimit64 None [2: Bytes(16)] [3: Bytes(16)];
    303 name_to_handle_at None [1: String, 2: Bytes(8)] [2: Unknown, 3: Unknown];
    304 open_by_handle_at Descriptor [1: Unknown] [];
    305 clock_adjtime None [1: Bytes(208)] [1: Bytes(208)];
    306 syncfs None [] [];
    307 sendmmsg None
        [1: Messages { count: 2 }]
        [1: Fields { count: Count::Result, size: 64, offset: 56, length: 4 }];
    308 setns None [] [];
    309 getcpu None [] [0: Bytes(4), 1: Bytes(4)];
    310 process_vm_readv None
        [1: Array { count_argument: 2, size: 16 }, 3: Array { count_argument: 4, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    311 process_vm_writev None
        [1: Array { count_argument: 2, size: 16 }, 3: Array { count_argument: 4, size: 16 },
         1: IoVec { count: 2, limited_by_result: true }]
        [];
    312 kcmp None [4: ByCommand] [];
    313 finit_module None [1: String] [];
    314 sched_setattr None [1: Unknown] [1: Bytes(4)];
    315 sched_getattr None [] [1: Argument(2)];
    316 renameat2 None [1: String, 3: String] [];
    317 seccomp Seccomp [2: ByCommand] [2: ByCommand];
    318 getrandom None [] [0: ResultUpTo(1)];
    319 memfd_create Descriptor [0: String] [];
    320 kexec_file_load None [3: Argument(2)] [];
    321 bpf Descriptor [1: Unknown] [1: Unknown];
    322 execveat Exec [1: String, 2: Strings, 3: Strings] [];
    323 userfaultfd Descriptor [] [];
    324 membarrier None [] [];
    325 mlock2 None [] [];
    326 copy_file_range None [1: Bytes(8), 3: Bytes(8)] [1: Bytes(8), 3: Bytes(8)];
    327 preadv2 None
        [1: Array { count_argument: 2, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    328 pwritev2 None
        [1: Array { count_argument: 2, size: 16 }, 1: IoVec { count: 2, limited_by_result: true }]
        [];
    329 pkey_mprotect Mapping [] [];
    330 pkey_alloc None [] [];
    331 pkey_free None [] [];
    332 statx None [1: String] [4: Bytes(256)];
    333 io_pgetevents Signal [4: Bytes(16), 5: Buffer] [3: Unknown];
    334 rseq None [0: Unknown] [0: Unknown];
    424 pidfd_send_signal None [2: Bytes(48)] [];
    425 io_uring_setup Descriptor [1: Unknown] [1: Unknown];
    426 io_uring_enter None [3: Unknown] [0: ByCommand];
    427 io_uring_register None [2: Unknown] [2: Unknown];
    428 open_tree Descriptor [1: String] [];
    429 move_mount None [1: String, 3: String] [];
    430 fsopen Descriptor [0: String] [];
    431 fsconfig None [2: String, 3: Unknown] [];
    432 fsmount Descriptor [] [];
    433 fspick Descriptor [1: String] [];
    434 pidfd_open Descriptor [] [];
    435 clone3 Thread [0: Argument(1), 0: ByCommand] [0: ByCommand];
    436 close_range Descriptor [] [];
    437 openat2 Descriptor [1: String, 2: Argument(3)] [];
    438 pidfd_getfd Descriptor [] [];
    439 faccessat2 None [1: String] [];
    440 process_madvise Mapping [1: Array { count_argument: 2, size: 16 }] [];
    441 epoll_pwait2 Signal
        [3: Bytes(16), 4: Argument(5)]
        [1: ResultArray { count_argument: 2, size: 12 }];
    442 mount_setattr None [1: String, 3: Argument(4)] [];
    443 quotactl_fd None [3: Unknown] [3: Unknown];
    444 landlock_create_ruleset Descriptor [0: Argument(1)] [];
    445 landlock_add_rule None [2: Unknown] [];
    446 landlock_restrict_self None [] [];
    447 memfd_secret Descriptor [] [];
    448 process_mrelease None [] [];
    449 futex_waitv None [0: Array { count_argument: 1, size: 24 }, 0: Unknown, 3: Bytes(16)] [];
    450 set_mempolicy_home_node None [] [];
    451 cachestat None [1: Bytes(16)] [2: Bytes(40)];
    452 fchmodat2 None [1: String] [];
    453 map_shadow_stack Mapping [] [];
    454 futex_wake None [] [];
    455 futex_wait None [0: Bytes(4), 4: Bytes(16)] [];
    456 futex_requeue None [0: Bytes(48), 0: Unknown] [];
    457 statmount None [0: LengthAt(0)] [1: Unknown];
    458 listmount None [0: LengthAt(0)] [1: ResultArray { count_argument: 2, size: 8 }];
    459 lsm_get_self_attr None [2: Bytes(4)] [2: Bytes(4), 1: Unknown];
    460 lsm_set_self_attr None [1: Argument(2)] [];
    461 lsm_list_modules None [1: Bytes(4)] [1: Bytes(4), 0: LengthAt(1)];
    462 mseal Mapping [] [];
};
