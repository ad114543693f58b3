//! The kernel, without a libc.

use core::arch::asm;

pub type Result = core::result::Result<usize, i32>;

pub const ENOENT: i32 = 2;
pub const ESRCH: i32 = 3;
pub const EINTR: i32 = 4;
pub const ENOMEM: i32 = 12;
pub const EACCES: i32 = 13;
pub const EFAULT: i32 = 14;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const E2BIG: i32 = 7;
pub const EINVAL: i32 = 22;
pub const ENFILE: i32 = 23;
pub const EMFILE: i32 = 24;
pub const EFBIG: i32 = 27;
pub const EPIPE: i32 = 32;
pub const EBADF: i32 = 9;
pub const ENAMETOOLONG: i32 = 36;
pub const ENOSYS: i32 = 38;
pub const ELOOP: i32 = 40;
pub const EOPNOTSUPP: i32 = 95;
pub const EPERM: i32 = 1;

/// System call numbers (x86-64).
pub mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const OPEN: usize = 2;
    pub const CLOSE: usize = 3;
    pub const STAT: usize = 4;
    pub const FSTAT: usize = 5;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGRETURN: usize = 15;
    pub const PREAD64: usize = 17;
    pub const PWRITE64: usize = 18;
    pub const WRITEV: usize = 20;
    pub const ACCESS: usize = 21;
    pub const MREMAP: usize = 25;
    pub const MSYNC: usize = 26;
    pub const MADVISE: usize = 28;
    pub const SHMAT: usize = 30;
    pub const SHMDT: usize = 67;
    pub const IO_SETUP: usize = 206;
    pub const IO_DESTROY: usize = 207;
    pub const DUP2: usize = 33;
    pub const GETPID: usize = 39;
    pub const CLONE: usize = 56;
    pub const FORK: usize = 57;
    pub const VFORK: usize = 58;
    pub const EXECVE: usize = 59;
    pub const EXIT: usize = 60;
    pub const WAIT4: usize = 61;
    pub const UNAME: usize = 63;
    pub const FCNTL: usize = 72;
    pub const TRUNCATE: usize = 76;
    pub const FTRUNCATE: usize = 77;
    pub const GETDENTS: usize = 78;
    pub const GETCWD: usize = 79;
    pub const CREAT: usize = 85;
    pub const UNLINK: usize = 87;
    pub const READLINK: usize = 89;
    pub const GETPPID: usize = 110;
    pub const GETUID: usize = 102;
    pub const GETGID: usize = 104;
    pub const GETEUID: usize = 107;
    pub const GETEGID: usize = 108;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const RT_SIGSUSPEND: usize = 130;
    pub const SIGALTSTACK: usize = 131;
    pub const PRCTL: usize = 157;
    pub const ARCH_PRCTL: usize = 158;
    pub const GETTID: usize = 186;
    pub const GETXATTR: usize = 191;
    pub const FUTEX: usize = 202;
    pub const SET_TID_ADDRESS: usize = 218;
    pub const TIMER_CREATE: usize = 222;
    pub const TIMER_SETTIME: usize = 223;
    pub const TIMER_DELETE: usize = 226;
    pub const CLOCK_GETTIME: usize = 228;
    pub const GETTIMEOFDAY: usize = 96;
    pub const TIME: usize = 201;
    pub const GETCPU: usize = 309;
    pub const EXIT_GROUP: usize = 231;
    pub const TKILL: usize = 200;
    pub const TGKILL: usize = 234;
    pub const OPENAT: usize = 257;
    pub const NEWFSTATAT: usize = 262;
    pub const READLINKAT: usize = 267;
    pub const FACCESSAT: usize = 269;
    pub const PSELECT6: usize = 270;
    pub const PPOLL: usize = 271;
    pub const EPOLL_PWAIT: usize = 281;
    pub const FALLOCATE: usize = 285;
    pub const PROCESS_MADVISE: usize = 440;
    pub const DUP3: usize = 292;
    pub const GETDENTS64: usize = 217;
    pub const RT_TGSIGQUEUEINFO: usize = 297;
    pub const SETRLIMIT: usize = 160;
    pub const PRLIMIT64: usize = 302;
    pub const PROCESS_VM_READV: usize = 310;
    pub const PROCESS_VM_WRITEV: usize = 311;
    pub const SECCOMP: usize = 317;
    pub const GETRANDOM: usize = 318;
    pub const MEMFD_CREATE: usize = 319;
    pub const EXECVEAT: usize = 322;
    pub const PKEY_MPROTECT: usize = 329;
    pub const PKEY_ALLOC: usize = 330;
    pub const STATX: usize = 332;
    pub const IO_PGETEVENTS: usize = 333;
    pub const RSEQ: usize = 334;
    pub const CLONE3: usize = 435;
    pub const CLOSE_RANGE: usize = 436;
    pub const OPENAT2: usize = 437;
    pub const FACCESSAT2: usize = 439;
    pub const EPOLL_PWAIT2: usize = 441;
}

pub const PROT_READ: usize = 1;
pub const PROT_WRITE: usize = 2;
pub const PROT_EXEC: usize = 4;
pub const MAP_SHARED: usize = 1;
pub const MAP_PRIVATE: usize = 2;
pub const MAP_FIXED: usize = 0x10;
pub const MAP_ANONYMOUS: usize = 0x20;
pub const MAP_NORESERVE: usize = 0x4000;
pub const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
pub const MREMAP_MAYMOVE: usize = 1;
pub const MREMAP_FIXED: usize = 2;
pub const O_CLOEXEC: usize = 0o2000000;
pub const O_NOFOLLOW: usize = 0o400000;
pub const O_PATH: usize = 0o10000000;
pub const AT_FDCWD: usize = -100i32 as usize;
pub const AT_SYMLINK_NOFOLLOW: usize = 0x100;
pub const AT_EMPTY_PATH: usize = 0x1000;

/// Makes a system call and returns what the kernel returned.
///
/// # Safety
/// The call may do anything to this process's memory; the caller knows what.
#[inline(always)]
pub unsafe fn raw(n: usize, a: [usize; 6]) -> usize {
    let result;
    // SAFETY: the kernel clobbers rcx and r11 only; memory effects are the caller's business.
    unsafe {
        asm!("syscall", inlateout("rax") n => result, in("rdi") a[0], in("rsi") a[1],
             in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
             lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// As [`raw`], with the kernel's error convention taken apart.
///
/// # Safety
/// As for [`raw`].
pub unsafe fn call(n: usize, args: &[usize]) -> Result {
    let mut a = [0; 6];
    a[..args.len()].copy_from_slice(args);
    // SAFETY: as promised by the caller.
    check(unsafe { raw(n, a) })
}

pub fn check(result: usize) -> Result {
    let signed = result as isize;
    if (-4095..0).contains(&signed) {
        Err(-signed as i32)
    } else {
        Ok(result)
    }
}

/// What a failed call returns to the program.
pub fn failed(errno: i32) -> usize {
    (-(errno as isize)) as usize
}

/// `mmap` of new memory that nothing else refers to yet (or, with MAP_FIXED, of memory that the
/// runtime owns).
///
/// # Safety
/// With MAP_FIXED the range must belong to the runtime or to a mapping of the program that is
/// being replaced at its own request.
pub unsafe fn mmap(
    at: u64,
    len: u64,
    prot: usize,
    flags: usize,
    fd: i32,
    offset: u64,
) -> core::result::Result<u64, i32> {
    // SAFETY: see above.
    unsafe {
        call(nr::MMAP, &[at as usize, len as usize, prot, flags, fd as usize, offset as usize])
    }
    .map(|a| a as u64)
}

pub fn write(fd: i32, bytes: &[u8]) -> Result {
    // SAFETY: the kernel only reads `bytes`.
    unsafe { call(nr::WRITE, &[fd as usize, bytes.as_ptr() as usize, bytes.len()]) }
}

pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { call(nr::EXIT_GROUP, &[status as usize]) };
    }
}

pub const RLIMIT_FSIZE: usize = 1;
pub const RLIMIT_DATA: usize = 2;
pub const RLIMIT_STACK: usize = 3;
pub const RLIMIT_NOFILE: usize = 7;
pub const RLIMIT_AS: usize = 9;

/// The process's soft limit of `resource`; `u64::MAX`: none.
pub fn limit(resource: usize) -> u64 {
    limits(resource)[0]
}

/// Its hard limit.
pub fn hard_limit(resource: usize) -> u64 {
    limits(resource)[1]
}

/// Sets the soft limit, as far as the hard one allows.
pub fn set_limit(resource: usize, wanted: u64) {
    let hard = hard_limit(resource);
    let new = [wanted.min(hard), hard];
    // SAFETY: the kernel reads two words.
    let _ = unsafe { call(nr::PRLIMIT64, &[0, resource, new.as_ptr() as usize, 0]) };
}

fn limits(resource: usize) -> [u64; 2] {
    let mut limit = [u64::MAX; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { call(nr::PRLIMIT64, &[0, resource, 0, limit.as_mut_ptr() as usize]) };
    limit
}

/// Nanoseconds since the epoch.
pub fn now_ns() -> u64 {
    clock_ns(0)
}

/// Nanoseconds since some moment; nobody sets this clock.
pub fn monotonic_ns() -> u64 {
    clock_ns(CLOCK_MONOTONIC)
}

pub const CLOCK_MONOTONIC: usize = 1;

/// Nanoseconds that the clock shows.
pub fn clock_ns(clock: usize) -> u64 {
    let mut now = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { call(nr::CLOCK_GETTIME, &[clock, now.as_mut_ptr() as usize]) };
    now[0] * 1_000_000_000 + now[1]
}

/// Of a container, by its process id: only its own faults end it.
pub const FIRST_PROCESS: u32 = 1;

pub fn getpid() -> u32 {
    // SAFETY: no memory involved.
    unsafe { raw(nr::GETPID, [0; 6]) as u32 }
}

pub fn getppid() -> u32 {
    // SAFETY: no memory involved.
    unsafe { raw(nr::GETPPID, [0; 6]) as u32 }
}

pub fn geteuid() -> u32 {
    // SAFETY: no memory involved.
    unsafe { raw(nr::GETEUID, [0; 6]) as u32 }
}

pub fn gettid() -> u32 {
    // SAFETY: no memory involved.
    unsafe { raw(nr::GETTID, [0; 6]) as u32 }
}

/// Whether what is only reserved counts, too.
pub fn address_space_is_limited() -> bool {
    limit(RLIMIT_AS) != u64::MAX
}

/// Asks the kernel for memory of the runtime's own, again beyond the program's limits if they are the
/// reason that there is none: as far as the process may go beyond them.
pub fn beyond_limits<T>(
    ask: impl Fn() -> core::result::Result<T, i32>,
) -> core::result::Result<T, i32> {
    match ask() {
        Err(ENOMEM) => {}
        result => return result,
    }
    let raised = [RLIMIT_DATA, RLIMIT_AS].map(|resource| {
        let old = limits(resource);
        let [soft, hard] = old;
        let set = soft != u64::MAX
            && [[u64::MAX; 2], [hard, hard]].iter().any(|new| set_limits(resource, new).is_ok());
        set.then_some((resource, old))
    });
    let result = ask();
    for (resource, old) in raised.into_iter().flatten() {
        let _ = set_limits(resource, &old);
    }
    result
}

fn set_limits(resource: usize, limit: &[u64; 2]) -> Result {
    // SAFETY: the kernel reads two words.
    unsafe { call(nr::PRLIMIT64, &[0, resource, limit.as_ptr() as usize, 0]) }
}
