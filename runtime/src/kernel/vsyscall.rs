//! The page of old calls at an address that never changes: `gettimeofday`, `time` and `getcpu`.
//!
//! Nothing can be executed there: the kernel carries the call out where a processor tries to, and goes on at the
//! return address on the stack. That is one of the program's, whose code is not executable here; so the runtime
//! does the same. Where the kernel does not have the page, a call to it faults, as natively.

use crate::base::maps;
use crate::base::program::read_program_value;
use crate::base::signal::{SigInfo, SIGSEGV, SI_KERNEL};
use crate::base::sys::{self, failed};
use crate::kernel::replay::is_replay;
use crate::kernel::signals::pending::raise_fault;
use crate::kernel::syscalls;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::layout::page_down;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const PAGE: u64 = 0xffff_ffff_ff60_0000;
/// One call every so many bytes, in this order.
const STRIDE: u64 = 1024;
const CALLS: [usize; 3] = [96, 201, 309];

/// The call that the program has jumped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldCall {
    number: usize,
    at: u64,
}

/// Whether one is at `target`.
pub fn at(target: u64) -> Option<OldCall> {
    let offset = target.checked_sub(PAGE).filter(|offset| offset % STRIDE == 0)?;
    let number = *CALLS.get(usize::try_from(offset / STRIDE).ok()?)?;
    (is_replay() || is_there()).then_some(OldCall { number, at: target })
}

/// Whether `target` is in the page, and no call: the kernel tells a program that jumps there nothing about it.
pub fn refuses(target: u64) -> bool {
    page_down(target) == PAGE && at(target).is_none() && (is_replay() || is_there())
}

/// How one goes on.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// At this original pc.
    Back(u64),
    /// A signal finds the program at the call, which is made again behind its handler.
    Again,
    /// A fault was raised there.
    Fault,
}

/// Carries it out.
pub fn call(thread: &mut Thread, call: OldCall) -> Outcome {
    const SYSCALL_LEN: u64 = 2;
    let registers = thread.block.registers.gpr;
    let mut back = 0u64;
    if !read_program_value(registers[4], &mut back) {
        return refused(thread);
    }
    thread.block.registers.gpr[0] = call.number as u64;
    let next = syscalls::handle(thread, call.at + SYSCALL_LEN);
    // A `syscall` changes these two.
    thread.block.registers.gpr[1] = registers[1];
    thread.block.registers.gpr[11] = registers[11];
    if next == call.at {
        // A signal comes first, and finds the program here.
        thread.transfer_undone = false;
        thread.block.registers.gpr[0] = registers[0];
        return Outcome::Again;
    }
    if thread.block.registers.gpr[0] == failed(sys::EFAULT) as u64 {
        thread.block.registers.gpr[0] = registers[0];
        return refused(thread);
    }
    thread.block.registers.gpr[4] = registers[4].wrapping_add(8);
    // A signal may have found the program there: what comes next follows from nothing else then.
    let goes_on = thread.register_state(back, 0xffff);
    thread.event(WHOLE_UNIT, &Event::Resume(&goes_on));
    Outcome::Back(back)
}

/// An address where the kernel cannot read or write is no error here, but a fault.
fn refused(thread: &mut Thread) -> Outcome {
    raise_fault(thread, SIGSEGV, SigInfo::fault(SIGSEGV, SI_KERNEL, 0));
    Outcome::Fault
}

/// Whether the kernel has the page.
fn is_there() -> bool {
    const UNKNOWN: u8 = 0;
    const ABSENT: u8 = 1;
    const THERE: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if KNOWN.load(Relaxed) == UNKNOWN {
        let found = has_page(&maps::read().unwrap_or_default());
        KNOWN.store(if found { THERE } else { ABSENT }, Relaxed);
    }
    KNOWN.load(Relaxed) == THERE
}

fn has_page(maps: &[u8]) -> bool {
    maps.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"ffffffffff600000-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_found_in_the_list_of_mappings() {
        let other = b"7ffd0000-7ffd1000 r-xp 00000000 00:00 0 [vdso]\n";
        assert!(!has_page(other));
        let page = b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        assert!(has_page(&[&other[..], page].concat()));
    }

    #[test]
    fn only_the_starts_of_the_calls_are_calls() {
        for target in [PAGE + 1, PAGE + 3 * STRIDE, PAGE + 512, PAGE - STRIDE, 0] {
            assert_eq!(at(target), None);
        }
    }
}
