//! Every system call that needs `unsafe`, wrapped so that the rest of the crate needs none.

use std::ffi::CString;
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};

pub use libc::user_regs_struct as Regs;

pub type Pid = libc::pid_t;

/// What the child does between fork and exec. Everything is prepared before the fork, because
/// after it only async-signal-safe calls are allowed.
pub struct ExecPlan {
    pub path: CString,
    pub argv: Vec<CString>,
    pub envp: Vec<CString>,
    /// Becomes descriptors 0, 1 and 2; all others are closed.
    pub stdio: [RawFd; 3],
    /// (file, place): bind `file` over `place` in a mount namespace of the child's own.
    pub bind: Option<(CString, CString)>,
    pub dir: Option<CString>,
    pub cpu: Option<usize>,
}

/// Name and value of a resource limit that both sides get.
const LIMITS: [(u32, u64); 2] = [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_STACK, 8 << 20)];

/// The status with which the child ends if it cannot even exec; the step is named on stderr.
pub const CANNOT_START: i32 = 127;

/// Forks a child that stops, traced by the calling thread, right after its `execve`.
pub fn spawn_traced(plan: &ExecPlan) -> Result<Pid> {
    let pointers = |v: &[CString]| -> Vec<*const libc::c_char> {
        v.iter().map(|s| s.as_ptr()).chain([null()]).collect()
    };
    let (argv, envp) = (pointers(&plan.argv), pointers(&plan.envp));
    // SAFETY: the child only makes async-signal-safe calls on data prepared above, then execs or
    // exits; it never returns from `become_program`.
    unsafe {
        match libc::fork() {
            -1 => Err(Error::last_os_error()),
            0 => become_program(plan, &argv, &envp),
            pid => Ok(pid),
        }
    }
}

/// # Safety
/// Runs in a freshly forked child; `argv` and `envp` are null-terminated and outlive the call.
unsafe fn become_program(
    plan: &ExecPlan,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> ! {
    // SAFETY: plain system calls on valid pointers, in a process that has one thread.
    unsafe {
        let must = |ok: bool, what: &[u8]| {
            if !ok {
                libc::write(2, what.as_ptr().cast(), what.len());
                libc::_exit(CANNOT_START);
            }
        };
        libc::setsid();
        if let Some((file, place)) = &plan.bind {
            must(libc::unshare(libc::CLONE_NEWNS) == 0, b"launch: no mount namespace (root?)\n");
            let none = null();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            let root = libc::mount(none, c"/".as_ptr(), none, private, null());
            must(root == 0, b"launch: cannot make mounts private\n");
            let bind = libc::mount(file.as_ptr(), place.as_ptr(), none, libc::MS_BIND, null());
            must(bind == 0, b"launch: cannot bind the file over its original\n");
        }
        if let Some(dir) = &plan.dir {
            must(libc::chdir(dir.as_ptr()) == 0, b"launch: cannot change directory\n");
        }
        libc::umask(0o022);
        for (which, value) in LIMITS {
            let mut limit: libc::rlimit = zeroed();
            libc::getrlimit(which, &mut limit);
            limit.rlim_cur = value.min(limit.rlim_max);
            libc::setrlimit(which, &limit);
        }
        if let Some(cpu) = plan.cpu {
            pin(0, cpu);
        }
        // Away from 0..2 first, so that no target is overwritten while it is still a source.
        let mut moved = [0; 3];
        for (to, from) in plan.stdio.iter().enumerate() {
            moved[to] = libc::fcntl(*from, libc::F_DUPFD, 10);
        }
        for (to, from) in moved.iter().enumerate() {
            must(libc::dup2(*from, to as i32) >= 0, b"launch: cannot place descriptors\n");
        }
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut empty: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut empty);
        libc::sigprocmask(libc::SIG_SETMASK, &empty, null_mut());
        let randomize = libc::personality(libc::ADDR_NO_RANDOMIZE as u64) != -1;
        must(randomize, b"launch: cannot switch ASLR off\n");
        must(refuse_rseq(), b"launch: cannot install the rseq filter\n");
        let traced = libc::ptrace(libc::PTRACE_TRACEME, 0, null::<u8>(), null::<u8>()) == 0;
        must(traced, b"launch: cannot be traced\n");
        libc::execve(plan.path.as_ptr(), argv.as_ptr(), envp.as_ptr());
        must(false, b"launch: cannot execute the program\n");
        unreachable!()
    }
}

/// Makes `rseq` answer ENOSYS from here on, in this process and all that it starts.
///
/// # Safety
/// Async-signal-safe; for a process that is about to exec.
unsafe fn refuse_rseq() -> bool {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let enosys = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let filter = [
        op(0x20, 0, 0, 0),                     // A = syscall number
        op(0x15, 0, 1, libc::SYS_rseq as u32), // if A == rseq
        op(0x06, 0, 0, enosys),                //     return ENOSYS
        op(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: `program` points at `filter`, which lives to the end of the call.
    unsafe {
        let install =
            || libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
        // Without CAP_SYS_ADMIN a filter needs no_new_privs; with it setuid programs stay setuid.
        install() || (libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && install())
    }
}

/// Pins a process (0: the caller) to one CPU.
pub fn pin(pid: Pid, cpu: usize) -> bool {
    // SAFETY: the set is a local, initialised value.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(cpu % libc::CPU_SETSIZE as usize, &mut set);
        libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

/// The CPUs that the caller may run on.
fn affinity() -> libc::cpu_set_t {
    // SAFETY: the kernel writes the set, a local value.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    }
}

/// Their numbers; at least one.
pub fn allowed_cpus() -> Vec<usize> {
    let set = affinity();
    // SAFETY: the number is that of a bit of the set.
    let is_in = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    let all: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_in).collect();
    if all.is_empty() {
        vec![current_cpu()]
    } else {
        all
    }
}

/// The calling thread runs on one CPU, as long as this lives.
pub struct Pinned(libc::cpu_set_t);

impl Pinned {
    pub fn to(cpu: usize) -> Self {
        let before = affinity();
        pin(0, cpu);
        Self(before)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the kernel reads the set.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) };
    }
}

/// The CPU on which the caller is running.
pub fn current_cpu() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu().max(0) as usize }
}

pub fn kill(pid: Pid, signal: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, signal) };
}

/// Ends the calling process by `signal`, or with 128 + signal if that does not kill.
pub fn die_by(signal: i32) -> ! {
    // SAFETY: no memory is involved.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Exited(i32),
    Killed(i32),
    /// Stopped by a signal; the ptrace event, if it is one.
    Stopped(i32, i32),
}

/// Gives the calling thread mounts of its own, which the programs that it starts share.
pub fn own_mounts() -> Result<()> {
    // SAFETY: only constant strings are passed.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        if libc::unshare(libc::CLONE_NEWNS) != 0
            || libc::mount(null(), c"/".as_ptr(), null(), private, null()) != 0
        {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

/// Puts an empty file system of `size` bytes at `place`.
pub fn mount_small(place: &CString, size: u64) -> Result<()> {
    let options = CString::new(format!("size={size}")).map_err(Error::other)?;
    let kind = c"tmpfs".as_ptr();
    // SAFETY: the strings live to the end of the call.
    match unsafe { libc::mount(kind, place.as_ptr(), kind, 0, options.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Nothing can be written at `place` any more.
pub fn make_read_only(place: &CString) -> Result<()> {
    let (none, flags) = (null(), libc::MS_REMOUNT | libc::MS_RDONLY);
    // SAFETY: the string lives to the end of the call.
    match unsafe { libc::mount(none, place.as_ptr(), none, flags, null()) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

pub fn unmount(place: &CString) -> Result<()> {
    // SAFETY: the string lives to the end of the call.
    match unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Waits for `pid` (-1: any child of this very thread). None: nothing to wait for.
pub fn wait(pid: Pid) -> Option<(Pid, Status)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a local.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if got < 0 {
            if Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
                continue;
            }
            return None;
        }
        let what = if libc::WIFEXITED(status) {
            Status::Exited(libc::WEXITSTATUS(status))
        } else if libc::WIFSIGNALED(status) {
            Status::Killed(libc::WTERMSIG(status))
        } else {
            Status::Stopped(libc::WSTOPSIG(status), status >> 16)
        };
        return Some((got, what));
    }
}

fn ptrace(request: u32, pid: Pid, addr: u64, data: u64) -> Result<i64> {
    // SAFETY: callers in this file pass in `data` either a number or the address of a live local
    // of the type that the request wants.
    let got = unsafe { libc::ptrace(request, pid, addr, data) };
    if got == -1 {
        Err(Error::last_os_error())
    } else {
        Ok(got)
    }
}

pub fn set_options(pid: Pid, options: i32) -> Result<()> {
    ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as u64).map(drop)
}

pub fn single_step(pid: Pid, signal: i32) -> Result<()> {
    ptrace(libc::PTRACE_SINGLESTEP, pid, 0, signal as u64).map(drop)
}

/// Resumes up to the next entry or exit of a system call.
pub fn to_syscall_stop(pid: Pid, signal: i32) -> Result<()> {
    ptrace(libc::PTRACE_SYSCALL, pid, 0, signal as u64).map(drop)
}

pub fn resume(pid: Pid, signal: i32) -> Result<()> {
    ptrace(libc::PTRACE_CONT, pid, 0, signal as u64).map(drop)
}

pub fn detach(pid: Pid, signal: i32) -> Result<()> {
    ptrace(libc::PTRACE_DETACH, pid, 0, signal as u64).map(drop)
}

/// The message of the last ptrace event: for a clone the new thread.
pub fn event_message(pid: Pid) -> Result<u64> {
    let mut message = 0u64;
    ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, &raw mut message as u64)?;
    Ok(message)
}

/// Registers that all hold zero.
pub fn no_registers() -> Regs {
    // SAFETY: plain integers, for which zero is a value.
    unsafe { zeroed() }
}

pub fn registers(pid: Pid) -> Result<Regs> {
    let mut regs = no_registers();
    ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut regs as u64)?;
    Ok(regs)
}

/// Takes `signal` out of the tracee's mask.
pub fn unblock(pid: Pid, signal: i32) -> Result<()> {
    const GETSIGMASK: u32 = 0x420a;
    const SETSIGMASK: u32 = 0x420b;
    let mut mask = 0u64;
    let size = size_of_val(&mask) as u64;
    ptrace(GETSIGMASK, pid, size, &raw mut mask as u64)?;
    if mask >> (signal - 1) & 1 == 1 {
        mask &= !(1 << (signal - 1));
        ptrace(SETSIGMASK, pid, size, &raw const mask as u64)?;
    }
    Ok(())
}

/// The `si_code` of the signal at which the tracee is stopped.
pub fn signal_code(pid: Pid) -> Result<i32> {
    // SAFETY: plain integers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    ptrace(libc::PTRACE_GETSIGINFO, pid, 0, &raw mut info as u64)?;
    Ok(info.si_code)
}

/// The extended register state in the standard XSAVE format.
pub fn xstate(pid: Pid) -> Result<Vec<u8>> {
    const NT_X86_XSTATE: u64 = 0x202;
    let mut bytes = vec![0u8; 16 << 10];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    ptrace(libc::PTRACE_GETREGSET, pid, NT_X86_XSTATE, &raw mut iov as u64)?;
    bytes.truncate(iov.iov_len);
    Ok(bytes)
}

/// CPUID leaf 0xD, `sub`: (eax, ebx, ecx).
pub fn xsave_leaf(sub: u32) -> (u32, u32, u32) {
    let r = std::arch::x86_64::__cpuid_count(0xd, sub);
    (r.eax, r.ebx, r.ecx)
}

/// The state components that the system has switched on.
pub fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: every CPU on which this crate is of use has XSAVE, and Linux enables it.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(high) << 32 | u64::from(low)
}
