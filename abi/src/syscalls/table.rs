//! The rows: number, name; what the kernel reads; what it writes.
//!
//! A number in front of an extent is the position of the argument that holds the address.

use super::{Count, Extent::*, Range, Syscall};

macro_rules! table {
    ($($number:literal $name:ident
       [$($read:literal: $reads:expr),*] [$($write:literal: $writes:expr),*];)*) => {
        &[$(Syscall {
            number: $number,
            name: stringify!($name),
            reads: &[$(Range { argument: $read, extent: $reads }),*],
            writes: &[$(Range { argument: $write, extent: $writes }),*],
        }),*]
    };
}

/// Every system call, by number.
#[rustfmt::skip]
pub static TABLE: &[Syscall] = table! {
    0 read [] [1: ResultUpTo(2)];
    1 write [1: ResultUpTo(2)] [];
    2 open [0: String] [];
    3 close [] [];
    4 stat [0: String] [1: Bytes(144)];
    5 fstat [] [1: Bytes(144)];
    6 lstat [0: String] [1: Bytes(144)];
    7 poll
        [0: Array { count_argument: 1, size: 8 }]
        [0: Fields { count: Count::Argument(1), size: 8, offset: 6, length: 2 }];
    8 lseek [] [];
    9 mmap [] [];
    10 mprotect [] [];
    11 munmap [] [];
    12 brk [] [];
    13 rt_sigaction [1: Bytes(32)] [2: Bytes(32)];
    14 rt_sigprocmask [1: Argument(3)] [2: Argument(3)];
    15 rt_sigreturn [0: ByCommand] [];
    16 ioctl [2: ByCommand] [2: ByCommand];
    17 pread64 [] [1: ResultUpTo(2)];
    18 pwrite64 [1: ResultUpTo(2)] [];
    19 readv
        [1: Array { count_argument: 2, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    20 writev
        [1: Array { count_argument: 2, size: 16 }, 1: IoVec { count: 2, limited_by_result: true }]
        [];
    21 access [0: String] [];
    22 pipe [] [0: Bytes(8)];
    23 select
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16)]
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16)];
    24 sched_yield [] [];
    25 mremap [] [];
    26 msync [] [];
    27 mincore [] [2: Pages(1)];
    28 madvise [] [];
    29 shmget [] [];
    30 shmat [] [];
    31 shmctl [2: ByCommand] [2: ByCommand];
    32 dup [] [];
    33 dup2 [] [];
    34 pause [] [];
    35 nanosleep [0: Bytes(16)] [1: Bytes(16)];
    36 getitimer [] [1: Bytes(32)];
    37 alarm [] [];
    38 setitimer [1: Bytes(32)] [2: Bytes(32)];
    39 getpid [] [];
    40 sendfile [2: Bytes(8)] [2: Bytes(8)];
    41 socket [] [];
    42 connect [1: Argument(2)] [];
    43 accept [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    44 sendto [1: ResultUpTo(2), 4: Argument(5)] [];
    45 recvfrom [5: Bytes(4)] [1: ResultUpTo(2), 5: Bytes(4), 4: LengthAt(5)];
    46 sendmsg [1: Message] [];
    47 recvmsg [1: MessageHeader] [1: Message];
    48 shutdown [] [];
    49 bind [1: Argument(2)] [];
    50 listen [] [];
    51 getsockname [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    52 getpeername [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    53 socketpair [] [3: Bytes(8)];
    54 setsockopt [3: ByCommand] [3: ByCommand];
    55 getsockopt [4: Bytes(4), 3: ByCommand] [4: Bytes(4), 3: ByCommand];
    56 clone [] [0: ByCommand];
    57 fork [] [];
    58 vfork [] [];
    59 execve [0: String, 1: Strings, 2: Strings] [];
    60 exit [] [];
    61 wait4 [] [1: Bytes(4), 3: Bytes(144)];
    62 kill [] [];
    63 uname [] [0: Bytes(390)];
    64 semget [] [];
    65 semop [1: Array { count_argument: 2, size: 6 }] [];
    66 semctl [3: ByCommand] [3: ByCommand];
    67 shmdt [] [];
    68 msgget [] [];
    69 msgsnd [1: ArgumentAndHeader { argument: 2, header: 8 }] [];
    70 msgrcv [] [1: ResultAndHeader(8)];
    71 msgctl [2: ByCommand] [2: ByCommand];
    72 fcntl [2: ByCommand] [2: ByCommand];
    73 flock [] [];
    74 fsync [] [];
    75 fdatasync [] [];
    76 truncate [0: String] [];
    77 ftruncate [] [];
    78 getdents [] [1: ResultUpTo(2)];
    79 getcwd [] [0: ResultUpTo(1)];
    80 chdir [0: String] [];
    81 fchdir [] [];
    82 rename [0: String, 1: String] [];
    83 mkdir [0: String] [];
    84 rmdir [0: String] [];
    85 creat [0: String] [];
    86 link [0: String, 1: String] [];
    87 unlink [0: String] [];
    88 symlink [0: String, 1: String] [];
    89 readlink [0: String] [1: ResultUpTo(2)];
    90 chmod [0: String] [];
    91 fchmod [] [];
    92 chown [0: String] [];
    93 fchown [] [];
    94 lchown [0: String] [];
    95 umask [] [];
    96 gettimeofday [] [0: Bytes(16), 1: Bytes(8)];
    97 getrlimit [] [1: Bytes(16)];
    98 getrusage [] [1: Bytes(144)];
    99 sysinfo [] [0: Bytes(112)];
    100 times [] [0: Bytes(32)];
    101 ptrace [3: ByCommand] [3: ByCommand];
    102 getuid [] [];
    103 syslog [] [1: ByCommand];
    104 getgid [] [];
    105 setuid [] [];
    106 setgid [] [];
    107 geteuid [] [];
    108 getegid [] [];
    109 setpgid [] [];
    110 getppid [] [];
    111 getpgrp [] [];
    112 setsid [] [];
    113 setreuid [] [];
    114 setregid [] [];
    115 getgroups [] [1: ResultArray { count_argument: 0, size: 4 }];
    116 setgroups [1: Array { count_argument: 0, size: 4 }] [];
    117 setresuid [] [];
    118 getresuid [] [0: Bytes(4), 1: Bytes(4), 2: Bytes(4)];
    119 setresgid [] [];
    120 getresgid [] [0: Bytes(4), 1: Bytes(4), 2: Bytes(4)];
    121 getpgid [] [];
    122 setfsuid [] [];
    123 setfsgid [] [];
    124 getsid [] [];
    125 capget [0: Bytes(8)] [0: Bytes(8), 1: Capabilities(0)];
    126 capset [0: Bytes(8), 1: Capabilities(0)] [];
    127 rt_sigpending [] [0: Argument(1)];
    128 rt_sigtimedwait [0: Argument(3), 2: Bytes(16)] [1: Bytes(128)];
    129 rt_sigqueueinfo [2: Bytes(48)] [];
    130 rt_sigsuspend [0: Argument(1)] [];
    131 sigaltstack [0: Bytes(24)] [1: Bytes(24)];
    132 utime [0: String, 1: Bytes(16)] [];
    133 mknod [0: String] [];
    134 uselib [0: String] [];
    135 personality [] [];
    136 ustat [] [1: Bytes(32)];
    137 statfs [0: String] [1: Bytes(120)];
    138 fstatfs [] [1: Bytes(120)];
    139 sysfs [1: Unknown] [2: Unknown];
    140 getpriority [] [];
    141 setpriority [] [];
    142 sched_setparam [1: Bytes(4)] [];
    143 sched_getparam [] [1: Bytes(4)];
    144 sched_setscheduler [2: Bytes(4)] [];
    145 sched_getscheduler [] [];
    146 sched_get_priority_max [] [];
    147 sched_get_priority_min [] [];
    148 sched_rr_get_interval [] [1: Bytes(16)];
    149 mlock [] [];
    150 munlock [] [];
    151 mlockall [] [];
    152 munlockall [] [];
    153 vhangup [] [];
    154 modify_ldt [1: ByCommand] [1: ByCommand];
    155 pivot_root [0: String, 1: String] [];
    156 _sysctl [] [];
    157 prctl [1: ByCommand] [1: ByCommand];
    158 arch_prctl [] [1: ByCommand];
    159 adjtimex [0: Bytes(208)] [0: Bytes(208)];
    160 setrlimit [1: Bytes(16)] [];
    161 chroot [0: String] [];
    162 sync [] [];
    163 acct [0: String] [];
    164 settimeofday [0: Bytes(16), 1: Bytes(8)] [];
    165 mount [0: String, 1: String, 2: String, 4: Unknown] [];
    166 umount2 [0: String] [];
    167 swapon [0: String] [];
    168 swapoff [0: String] [];
    169 reboot [3: Unknown] [];
    170 sethostname [0: Argument(1)] [];
    171 setdomainname [0: Argument(1)] [];
    172 iopl [] [];
    173 ioperm [] [];
    174 create_module [] [];
    175 init_module [0: Argument(1), 2: String] [];
    176 delete_module [0: String] [];
    177 get_kernel_syms [] [];
    178 query_module [] [];
    179 quotactl [1: String, 3: ByCommand] [3: ByCommand];
    180 nfsservctl [] [];
    181 getpmsg [] [];
    182 putpmsg [] [];
    183 afs_syscall [] [];
    184 tuxcall [] [];
    185 security [] [];
    186 gettid [] [];
    187 readahead [] [];
    188 setxattr [0: String, 1: String, 2: Argument(3)] [];
    189 lsetxattr [0: String, 1: String, 2: Argument(3)] [];
    190 fsetxattr [1: String, 2: Argument(3)] [];
    191 getxattr [0: String, 1: String] [2: ResultUpTo(3)];
    192 lgetxattr [0: String, 1: String] [2: ResultUpTo(3)];
    193 fgetxattr [1: String] [2: ResultUpTo(3)];
    194 listxattr [0: String] [1: ResultUpTo(2)];
    195 llistxattr [0: String] [1: ResultUpTo(2)];
    196 flistxattr [] [1: ResultUpTo(2)];
    197 removexattr [0: String, 1: String] [];
    198 lremovexattr [0: String, 1: String] [];
    199 fremovexattr [1: String] [];
    200 tkill [] [];
    201 time [] [0: Bytes(8)];
    202 futex [0: ByCommand] [0: ByCommand];
    203 sched_setaffinity [2: Argument(1)] [];
    204 sched_getaffinity [] [2: ResultUpTo(1)];
    205 set_thread_area [0: Unknown] [0: Unknown];
    206 io_setup [1: Bytes(8)] [1: Bytes(8)];
    207 io_destroy [] [];
    208 io_getevents [4: Bytes(16)] [3: Unknown];
    209 io_submit [2: Unknown] [2: Unknown];
    210 io_cancel [1: Unknown] [2: Unknown];
    211 get_thread_area [0: Unknown] [0: Unknown];
    212 lookup_dcookie [] [1: ResultUpTo(2)];
    213 epoll_create [] [];
    214 epoll_ctl_old [] [];
    215 epoll_wait_old [] [];
    216 remap_file_pages [] [];
    217 getdents64 [] [1: ResultUpTo(2)];
    218 set_tid_address [] [];
    219 restart_syscall [0: ByCommand] [0: ByCommand];
    220 semtimedop [1: Array { count_argument: 2, size: 6 }, 3: Bytes(16)] [];
    221 fadvise64 [] [];
    222 timer_create [1: Bytes(64)] [2: Bytes(4)];
    223 timer_settime [2: Bytes(32)] [3: Bytes(32)];
    224 timer_gettime [] [1: Bytes(32)];
    225 timer_getoverrun [] [];
    226 timer_delete [] [];
    227 clock_settime [1: Bytes(16)] [];
    228 clock_gettime [] [1: Bytes(16)];
    229 clock_getres [] [1: Bytes(16)];
    230 clock_nanosleep [2: Bytes(16)] [3: Bytes(16)];
    231 exit_group [] [];
    232 epoll_wait [] [1: ResultArray { count_argument: 2, size: 12 }];
    233 epoll_ctl [3: ByCommand] [];
    234 tgkill [] [];
    235 utimes [0: String, 1: Bytes(32)] [];
    236 vserver [] [];
    237 mbind [3: Unknown] [];
    238 set_mempolicy [1: Unknown] [];
    239 get_mempolicy [] [0: Bytes(4), 1: Nodes(2)];
    240 mq_open [0: String, 3: Bytes(64)] [];
    241 mq_unlink [0: String] [];
    242 mq_timedsend [1: Argument(2), 4: Bytes(16)] [];
    243 mq_timedreceive [4: Bytes(16)] [1: ResultUpTo(2), 3: Bytes(4)];
    244 mq_notify [1: Unknown] [];
    245 mq_getsetattr [1: Bytes(64)] [2: Bytes(64)];
    246 kexec_load [2: Unknown] [];
    247 waitid [] [2: Bytes(28), 4: Bytes(144)];
    248 add_key [0: String, 1: String, 2: Argument(3)] [];
    249 request_key [0: String, 1: String, 2: String] [];
    250 keyctl [0: ByCommand] [0: ByCommand];
    251 ioprio_set [] [];
    252 ioprio_get [] [];
    253 inotify_init [] [];
    254 inotify_add_watch [1: String] [];
    255 inotify_rm_watch [] [];
    256 migrate_pages [2: Unknown, 3: Unknown] [];
    257 openat [1: String] [];
    258 mkdirat [1: String] [];
    259 mknodat [1: String] [];
    260 fchownat [1: String] [];
    261 futimesat [1: String, 2: Bytes(32)] [];
    262 newfstatat [1: String] [2: Bytes(144)];
    263 unlinkat [1: String] [];
    264 renameat [1: String, 3: String] [];
    265 linkat [1: String, 3: String] [];
    266 symlinkat [0: String, 2: String] [];
    267 readlinkat [1: String] [2: ResultUpTo(3)];
    268 fchmodat [1: String] [];
    269 faccessat [1: String] [];
    270 pselect6
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16), 5: Buffer]
        [1: Bits(0), 2: Bits(0), 3: Bits(0), 4: Bytes(16)];
    271 ppoll
        [0: Array { count_argument: 1, size: 8 }, 2: Bytes(16), 3: Argument(4)]
        [0: Fields { count: Count::Argument(1), size: 8, offset: 6, length: 2 }, 2: Bytes(16)];
    272 unshare [] [];
    273 set_robust_list [] [];
    274 get_robust_list [] [1: Bytes(8), 2: Bytes(8)];
    275 splice [1: Bytes(8), 3: Bytes(8)] [1: Bytes(8), 3: Bytes(8)];
    276 tee [] [];
    277 sync_file_range [] [];
    278 vmsplice [1: Array { count_argument: 2, size: 16 }, 1: Unknown] [1: Unknown];
    279 move_pages
        [2: Array { count_argument: 1, size: 8 }, 3: Array { count_argument: 1, size: 4 }]
        [4: Array { count_argument: 1, size: 4 }];
    280 utimensat [1: String, 2: Bytes(32)] [];
    281 epoll_pwait [4: Argument(5)] [1: ResultArray { count_argument: 2, size: 12 }];
    282 signalfd [1: Argument(2)] [];
    283 timerfd_create [] [];
    284 eventfd [] [];
    285 fallocate [] [];
    286 timerfd_settime [2: Bytes(32)] [3: Bytes(32)];
    287 timerfd_gettime [] [1: Bytes(32)];
    288 accept4 [2: Bytes(4)] [2: Bytes(4), 1: LengthAt(2)];
    289 signalfd4 [1: Argument(2)] [];
    290 eventfd2 [] [];
    291 epoll_create1 [] [];
    292 dup3 [] [];
    293 pipe2 [] [0: Bytes(8)];
    294 inotify_init1 [] [];
    295 preadv
        [1: Array { count_argument: 2, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    296 pwritev
        [1: Array { count_argument: 2, size: 16 }, 1: IoVec { count: 2, limited_by_result: true }]
        [];
    297 rt_tgsigqueueinfo [3: Bytes(48)] [];
    298 perf_event_open [0: Unknown] [0: Bytes(8)];
    299 recvmmsg
        [1: MessageHeaders { count: 2 }, 4: Bytes(16)]
        [1: Messages { count: 2 }, 4: Bytes(16)];
    300 fanotify_init [] [];
    301 fanotify_mark [4: String] [];
    302 prlimit64 [2: Bytes(16)] [3: Bytes(16)];
    303 name_to_handle_at [1: String, 2: Bytes(4)] [2: FileHandle, 3: Bytes(4)];
    304 open_by_handle_at [1: Unknown] [];
    305 clock_adjtime [1: Bytes(208)] [1: Bytes(208)];
    306 syncfs [] [];
    307 sendmmsg
        [1: Messages { count: 2 }]
        [1: Fields { count: Count::Result, size: 64, offset: 56, length: 4 }];
    308 setns [] [];
    309 getcpu [] [0: Bytes(4), 1: Bytes(4)];
    310 process_vm_readv
        [1: Array { count_argument: 2, size: 16 }, 3: Array { count_argument: 4, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    311 process_vm_writev
        [1: Array { count_argument: 2, size: 16 }, 3: Array { count_argument: 4, size: 16 },
         1: IoVec { count: 2, limited_by_result: true }]
        [];
    312 kcmp [4: ByCommand] [];
    313 finit_module [1: String] [];
    314 sched_setattr [1: Unknown] [1: Bytes(4)];
    315 sched_getattr [] [1: Argument(2)];
    316 renameat2 [1: String, 3: String] [];
    317 seccomp [2: ByCommand] [2: ByCommand];
    318 getrandom [] [0: ResultUpTo(1)];
    319 memfd_create [0: String] [];
    320 kexec_file_load [3: Argument(2)] [];
    321 bpf [1: Unknown] [1: Unknown];
    322 execveat [1: String, 2: Strings, 3: Strings] [];
    323 userfaultfd [] [];
    324 membarrier [] [];
    325 mlock2 [] [];
    326 copy_file_range [1: Bytes(8), 3: Bytes(8)] [1: Bytes(8), 3: Bytes(8)];
    327 preadv2
        [1: Array { count_argument: 2, size: 16 }]
        [1: IoVec { count: 2, limited_by_result: true }];
    328 pwritev2
        [1: Array { count_argument: 2, size: 16 }, 1: IoVec { count: 2, limited_by_result: true }]
        [];
    329 pkey_mprotect [] [];
    330 pkey_alloc [] [];
    331 pkey_free [] [];
    332 statx [1: String] [4: Bytes(256)];
    333 io_pgetevents [4: Bytes(16), 5: Buffer] [3: Unknown];
    334 rseq [0: Unknown] [0: Unknown];
    424 pidfd_send_signal [2: Bytes(48)] [];
    425 io_uring_setup [1: Unknown] [1: Unknown];
    426 io_uring_enter [3: Unknown] [0: ByCommand];
    427 io_uring_register [2: Unknown] [2: Unknown];
    428 open_tree [1: String] [];
    429 move_mount [1: String, 3: String] [];
    430 fsopen [0: String] [];
    431 fsconfig [2: String, 3: Unknown] [];
    432 fsmount [] [];
    433 fspick [1: String] [];
    434 pidfd_open [] [];
    435 clone3 [0: Argument(1), 0: ByCommand] [0: ByCommand];
    436 close_range [] [];
    437 openat2 [1: String, 2: Argument(3)] [];
    438 pidfd_getfd [] [];
    439 faccessat2 [1: String] [];
    440 process_madvise [1: Array { count_argument: 2, size: 16 }] [];
    441 epoll_pwait2
        [3: Bytes(16), 4: Argument(5)]
        [1: ResultArray { count_argument: 2, size: 12 }];
    442 mount_setattr [1: String, 3: Argument(4)] [];
    443 quotactl_fd [3: ByCommand] [3: ByCommand];
    444 landlock_create_ruleset [0: Argument(1)] [];
    445 landlock_add_rule [2: Unknown] [];
    446 landlock_restrict_self [] [];
    447 memfd_secret [] [];
    448 process_mrelease [] [];
    449 futex_waitv [0: Array { count_argument: 1, size: 24 }, 0: Unknown, 3: Bytes(16)] [];
    450 set_mempolicy_home_node [] [];
    451 cachestat [1: Bytes(16)] [2: Bytes(40)];
    452 fchmodat2 [1: String] [];
    453 map_shadow_stack [] [];
    454 futex_wake [] [];
    455 futex_wait [0: Bytes(4), 4: Bytes(16)] [];
    456 futex_requeue [0: Bytes(48), 0: Unknown] [];
    457 statmount [0: LengthAt(0)] [1: Unknown];
    458 listmount [0: LengthAt(0)] [1: ResultArray { count_argument: 2, size: 8 }];
    459 lsm_get_self_attr [2: Bytes(4)] [2: Bytes(4), 1: Unknown];
    460 lsm_set_self_attr [1: Argument(2)] [];
    461 lsm_list_modules [1: Bytes(4)] [1: Bytes(4), 0: LengthAt(1)];
    462 mseal [] [];
};
