//! How much a program with one thread executes between an instruction, when it comes there last, and its
//! end: counted step by step.

use std::io::{Error, Result};

use crate::launch::Launch;
use crate::sys::{self, Status};

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Instructions that were executed, from that one on.
    pub instructions: u64,
    /// How often it was executed.
    pub times: u64,
    pub status: Status,
}

/// Steps the program to its end. An iteration of a repeated instruction is a step that leads nowhere else.
pub fn count(launch: &Launch, from: u64) -> Result<Window> {
    let pid = launch.start()?;
    sys::set_options(pid, libc::PTRACE_O_EXITKILL)?;
    let (mut instructions, mut times, mut signal) = (0, 0, 0);
    let mut at = sys::registers(pid)?.rip;
    loop {
        if at == from {
            (instructions, times) = (0, times + 1);
        }
        sys::single_step(pid, signal)?;
        let Some((_, status)) = sys::wait(pid) else {
            return Err(Error::other("the program vanished"));
        };
        match status {
            Status::Stopped(libc::SIGTRAP, _) => {
                signal = 0;
                let now = sys::registers(pid)?.rip;
                instructions += u64::from(now != at);
                at = now;
            }
            // It is raised, and not executed.
            Status::Stopped(other, _) => signal = other,
            Status::Exited(_) | Status::Killed(_) => {
                return Ok(Window { instructions, times, status })
            }
        }
    }
}
