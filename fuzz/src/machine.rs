//! A process that executes what it is given: its only memory is a few shared areas at fixed
//! addresses, and every register is set before and read after.

use std::io::{Error, Result};
use std::ptr::null_mut;
use std::time::Duration;

pub use libc::user_regs_struct as Registers;

/// A shared area.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub start: u64,
    pub len: usize,
    pub executable: bool,
}

impl Area {
    /// The area's bytes, in this process.
    pub fn bytes(&self) -> &'static mut [u8] {
        // SAFETY: a machine maps its areas at these addresses before anyone asks, for as long as
        // this process lives. Its process is stopped whenever this one runs.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }

    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.len as u64
    }
}

/// Everything that an instruction can change besides memory.
#[derive(Clone)]
pub struct State {
    pub registers: Registers,
    /// In the standard XSAVE format.
    pub vectors: Vec<u8>,
}

/// Why the process stopped: a signal, its code, and the address that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    pub signal: i32,
    pub code: i32,
    pub address: u64,
}

pub struct Machine {
    pid: libc::pid_t,
    /// What all runs have in common: segments, control words.
    pub template: State,
}

fn ptrace(request: u32, pid: libc::pid_t, address: u64, data: u64) -> Result<()> {
    // SAFETY: callers in this file pass in `data` a number, or the address of a live local of the
    // type that the request wants.
    match unsafe { libc::ptrace(request, pid, address, data) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

const NT_X86_XSTATE: u64 = 0x202;

impl Machine {
    /// Maps the areas and starts the process. The first two bytes of `areas[0]` are its own.
    pub fn start(areas: &[Area]) -> Result<Machine> {
        for area in areas {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a place where nothing is, or an error.
            let got = unsafe {
                libc::mmap(area.start as *mut libc::c_void, area.len, prot, flags, -1, 0)
            };
            if got as u64 != area.start {
                return Err(Error::last_os_error());
            }
        }
        interrupt_waits();
        // SAFETY: the child makes system calls only, and stops for good.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => return Err(Error::last_os_error()),
            0 => become_machine(areas),
            _ => {}
        }
        wait(pid)?;
        ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_EXITKILL as u64)?;
        let mut machine = Machine { pid, template: state(pid)? };
        // syscall; int3
        areas[0].bytes()[..3].copy_from_slice(&[0x0f, 0x05, 0xcc]);
        machine.forget_the_rest(areas)?;
        Ok(machine)
    }

    /// Unmaps everything but the areas, so that wild addresses fault.
    fn forget_the_rest(&mut self, areas: &[Area]) -> Result<()> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid))?;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let Some((start, end)) = range else { continue };
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            let (start, end) = (number(start), number(end));
            // The kernel's own page is in its half.
            if start >> 63 == 1 || areas.iter().any(|area| area.contains(start)) {
                continue;
            }
            let mut state = self.template.clone();
            state.registers.rip = areas[0].start;
            state.registers.orig_rax = u64::MAX;
            state.registers.rax = libc::SYS_munmap as u64;
            (state.registers.rdi, state.registers.rsi) = (start, end - start);
            self.run(&mut state)?;
            if state.registers.rax != 0 {
                return Err(Error::other(format!("cannot unmap {start:#x}")));
            }
        }
        Ok(())
    }

    /// Runs from `state` to the next signal, and puts the state there in its place.
    pub fn run(&mut self, state_: &mut State) -> Result<Stop> {
        let pid = self.pid;
        ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const state_.registers as u64)?;
        let mut vectors = libc::iovec {
            iov_base: state_.vectors.as_mut_ptr().cast(),
            iov_len: state_.vectors.len(),
        };
        ptrace(libc::PTRACE_SETREGSET, pid, NT_X86_XSTATE, &raw mut vectors as u64)?;
        ptrace(libc::PTRACE_CONT, pid, 0, 0)?;
        wait(pid)?;
        // SAFETY: plain integers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETSIGINFO, pid, 0, &raw mut info as u64)?;
        *state_ = state(pid)?;
        // SAFETY: the signals of faults have an address; that of others is not looked at.
        let address = unsafe { info.si_addr() } as u64;
        Ok(Stop { signal: info.si_signo, code: info.si_code, address })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: no memory is involved.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

/// The child: protects the areas and stops.
fn become_machine(areas: &[Area]) -> ! {
    // SAFETY: system calls on our own memory, in a process that has one thread.
    unsafe {
        for area in areas.iter().filter(|area| area.executable) {
            let prot = libc::PROT_READ | libc::PROT_EXEC;
            libc::mprotect(area.start as *mut libc::c_void, area.len, prot);
        }
        forget_rseq();
        libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>());
        libc::raise(libc::SIGSTOP);
        libc::_exit(1)
    }
}

/// Tells the kernel to leave alone the C library's area of restartable sequences, which will be gone.
///
/// # Safety
/// For a process that has one thread and will not call the C library any more.
unsafe fn forget_rseq() {
    const UNREGISTER: i32 = 1;
    const SIGNATURE: u32 = 0x5305_3053;
    const SIZE: usize = 32;
    // SAFETY: the symbol is an isize; the thread pointer's first word is its own address.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        if offset.is_null() {
            return;
        }
        let thread: usize;
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly));
        let area = thread.wrapping_add_signed(*offset);
        libc::syscall(libc::SYS_rseq, area, SIZE, UNREGISTER, SIGNATURE);
    }
}

/// The signal that stops what does not end.
pub const ENDLESS: i32 = libc::SIGSTOP;

/// An alarm does nothing but interrupt the call that waits.
fn interrupt_waits() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: plain integers, for which zero is a value; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGALRM, &action, null_mut());
    }
}

/// Waits for the next stop; an error if there will be none. After a second it is [`ENDLESS`].
fn wait(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    let before = used(pid);
    // SAFETY: no memory is involved.
    unsafe { libc::alarm(1) };
    loop {
        // SAFETY: `status` is a local.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        match (got, Error::last_os_error().kind()) {
            (-1, std::io::ErrorKind::Interrupted) => {
                // On a busy machine a second may pass in which it has run for none.
                let now = used(pid);
                let is_endless = now == Duration::MAX || now - before >= ENOUGH;
                // SAFETY: no memory is involved.
                unsafe {
                    if is_endless {
                        libc::kill(pid, ENDLESS);
                    }
                    libc::alarm(1);
                }
                continue;
            }
            (-1, _) => return Err(Error::last_os_error()),
            _ => {}
        }
        // SAFETY: as above.
        unsafe { libc::alarm(0) };
        return match libc::WIFSTOPPED(status) {
            true => Ok(()),
            false => Err(Error::other(format!("the machine ended: {status:#x}"))),
        };
    }
}

/// Processor time after which nothing comes to an end any more.
const ENOUGH: Duration = Duration::from_millis(300);

/// Processor time that a process has used.
fn used(pid: libc::pid_t) -> Duration {
    // SAFETY: the C library writes a number and two numbers.
    unsafe {
        let mut clock = 0;
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::clock_getcpuclockid(pid, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
        {
            return Duration::MAX;
        }
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

fn state(pid: libc::pid_t) -> Result<State> {
    // SAFETY: plain integers, for which zero is a value.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers as u64)?;
    let mut vectors = vec![0u8; 16 << 10];
    let mut iov = libc::iovec { iov_base: vectors.as_mut_ptr().cast(), iov_len: vectors.len() };
    ptrace(libc::PTRACE_GETREGSET, pid, NT_X86_XSTATE, &raw mut iov as u64)?;
    vectors.truncate(iov.iov_len);
    Ok(State { registers, vectors })
}

/// Size and place of a component in the standard XSAVE format, and whether the system has it on.
pub fn component(number: u32) -> Option<std::ops::Range<usize>> {
    let leaf = std::arch::x86_64::__cpuid_count(0xd, number);
    let on = std::arch::x86_64::__cpuid_count(0xd, 0).eax >> number & 1 == 1;
    (on && leaf.eax != 0).then(|| leaf.ebx as usize..(leaf.ebx + leaf.eax) as usize)
}
