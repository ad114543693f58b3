//! Ends programs at chosen moments, and chooses them.

use std::io::Result;
use std::time::Duration;

use crate::launch::Launch;
use crate::sys::{self, Status};

/// Reproducible noise (xorshift).
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end.max(1)
    }
}

/// When a program is killed.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    After(Duration),
    /// At this stop, counted from 1: each system call of each thread, the program's and the
    /// runtime's own, stops when it is entered and when it returns.
    Stop(u64),
}

/// Starts the program and kills it; it may have ended before.
pub fn kill_at(launch: &Launch, moment: Moment) -> Result<Status> {
    match moment {
        Moment::After(time) => launch.run_for(time).map(|(status, _)| status),
        Moment::Stop(number) => to_stop(launch, number).map(|(status, _)| status),
    }
}

/// How many stops there are in all.
pub fn stops(launch: &Launch) -> Result<u64> {
    to_stop(launch, u64::MAX).map(|(_, stops)| stops)
}

/// Runs the program up to stop `number` and kills it there; says how it ended after how many.
fn to_stop(launch: &Launch, number: u64) -> Result<(Status, u64)> {
    const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;
    let pid = launch.start()?;
    let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
    sys::set_options(pid, options)?;
    sys::to_syscall_stop(pid, 0)?;
    let mut seen = 0;
    loop {
        let Some((tid, status)) = sys::wait(-1) else {
            return Err(std::io::Error::other("the program vanished"));
        };
        let signal = match status {
            Status::Stopped(SYSTEM_CALL, _) => {
                seen += 1;
                if seen == number {
                    sys::kill(pid, libc::SIGKILL);
                    continue;
                }
                0
            }
            // A new thread, or the stop that tells of it.
            Status::Stopped(_, event) if event != 0 => 0,
            Status::Stopped(libc::SIGSTOP, _) => 0,
            Status::Stopped(signal, _) => signal,
            ended if tid == pid => return Ok((ended, seen)),
            _ => continue,
        };
        // A thread that was killed meanwhile cannot go on; its end is reported next.
        let _ = sys::to_syscall_stop(tid, signal);
    }
}
