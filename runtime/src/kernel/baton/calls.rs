//! Which system calls wait.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::futex;
use crate::base::sys::{self, nr};

/// Whether the call most likely waits, for another thread maybe: the baton is given up for it. One that
/// waits although it is not listed only costs a moment: the baton is loose.
pub fn waits(number: usize, args: &[usize; 6]) -> bool {
    const LOCK_NB: usize = 4;
    // F_SETLKW, F_OFD_SETLKW.
    const WAITS_FOR_LOCK: [usize; 2] = [7, 38];
    match number {
        nr::FUTEX => {
            let waits = matches!(futex::command(args[1]), futex::WAIT | futex::WAIT_BITSET);
            waits || futex::waits_for_lock(args[1])
        }
        // poll; epoll_wait, epoll_pwait; not if they only look.
        7 => args[2] as i32 != 0,
        232 | nr::EPOLL_PWAIT => args[3] as i32 != 0,
        // flock
        73 => args[1] & LOCK_NB == 0,
        nr::FCNTL => WAITS_FOR_LOCK.contains(&args[1]),
        // select, sched_yield, pause, nanosleep
        23 | 24 | 34 | 35
        // semop, msgsnd, msgrcv, semtimedop, mq_timedsend, mq_timedreceive
        | 65 | 69 | 70 | 220 | 242 | 243
        // io_getevents, clock_nanosleep, waitid, io_uring_enter, futex_waitv, futex_wait
        | 208 | 230 | 247 | 426 | 449 | 455
        | nr::WAIT4
        | nr::RT_SIGTIMEDWAIT
        | nr::RT_SIGSUSPEND
        | nr::PSELECT6
        | nr::PPOLL
        | nr::EPOLL_PWAIT2
        | nr::IO_PGETEVENTS => true,
        _ => false,
    }
}

/// Whether the kernel writes to the program's memory while the call waits, and not when it returns.
pub fn writes_while_it_waits(number: usize, args: &[usize; 6]) -> bool {
    number == nr::FUTEX && futex::waits_for_lock(args[1])
}

/// Whether the call would wait for its descriptor.
pub fn is_not_ready(number: usize, args: &[usize; 6]) -> bool {
    const POLL: usize = 7;
    const POLLIN: u16 = 1;
    const POLLOUT: u16 = 4;
    let events = match number {
        // read, pread64, readv, accept, recvfrom, recvmsg, preadv, accept4, recvmmsg
        0 | 17 | 19 | 43 | 45 | 47 | 288 | 295 | 299 => POLLIN,
        // write, pwrite64, writev, sendto, sendmsg, pwritev, sendmmsg
        1 | 18 | 20 | 44 | 46 | 296 | 307 => POLLOUT,
        _ => return false,
    };
    // struct pollfd: descriptor, wanted events, found events.
    let mut request = u64::from(args[0] as u32) | u64::from(events) << 32;
    let at = core::ptr::from_mut(&mut request) as usize;
    // SAFETY: the kernel reads and writes one request.
    unsafe { sys::call(POLL, &[at, 1, 0]) == Ok(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futexes_wait_or_wake() {
        let futex = |operation| waits(nr::FUTEX, &[0, operation, 0, 0, 0, 0]);
        assert!(futex(0) && futex(128) && futex(137) && futex(265));
        assert!(!futex(1) && !futex(129) && !futex(131));
    }

    #[test]
    fn looking_is_not_waiting() {
        assert!(waits(7, &[0, 0, usize::MAX, 0, 0, 0]) && !waits(7, &[0; 6]));
        assert!(!waits(nr::GETPID, &[0; 6]) && waits(nr::WAIT4, &[0; 6]));
    }
}
