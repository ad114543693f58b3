//! Descriptors of whose files nothing is mapped: whoever writes to one has changed no memory. To ask the kernel each time
//! what is behind a descriptor costs as much as the write.
//!
//! That is known until a call may have closed the descriptor, put another file in its place, or mapped a file: any call that
//! is not known to do none of that.

use crate::base::census;
use crate::base::sys::nr;
use crate::logs::inputs::at_hand;
use crate::logs::moment::Call;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Descriptors that are known at a time, each at the place that its number says.
const PLACES: usize = 256;
/// Bits of a descriptor in an entry; above them [`AGE`].
const BITS: u32 = 24;

/// How often all was forgotten. Never 0: there a place is empty.
static AGE: AtomicU64 = AtomicU64::new(1);
/// How often something was forgotten of a place alone.
static AGES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
static KNOWN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// Descriptors change in ways that no call of this process's threads shows.
static UNSEEN: AtomicBool = AtomicBool::new(false);

/// A descriptor at some moment, in front of a look at what is behind it.
#[derive(Clone, Copy)]
pub struct Entry(u64);

/// The descriptor as it is now; `None`: what is found out now may soon be wrong.
pub fn entry(fd: usize) -> Option<Entry> {
    let is_certain = fd < 1 << BITS && !UNSEEN.load(Relaxed) && !census::is_lent();
    is_certain.then(|| {
        let age = AGE.load(Acquire) + AGES[fd % PLACES].load(Acquire);
        Entry(age << BITS | fd as u64)
    })
}

impl Entry {
    fn place(self) -> &'static AtomicU64 {
        &KNOWN[self.0 as usize % PLACES]
    }

    /// Whether nothing is mapped of the file behind it.
    pub fn is_known(self) -> bool {
        self.place().load(Relaxed) == self.0
    }

    /// Nothing is.
    pub fn keep(self) {
        self.place().store(self.0, Relaxed);
    }
}

/// A call is about to be made, or has been.
pub fn at_call(call: &Call) {
    const IO_URING_SETUP: usize = 425;
    if keeps_descriptors(call.number) {
        return;
    }
    let [first, second, ..] = call.args;
    let shares = match call.number {
        nr::CLOSE => return forget(first),
        nr::DUP2 | nr::DUP3 => return forget(second),
        nr::CLONE => shares_descriptors(first),
        nr::CLONE3 => {
            let mut flags = 0u64;
            let is_known = at_hand::read_value(first as u64, &mut flags);
            !is_known || shares_descriptors(flags as usize)
        }
        IO_URING_SETUP => true,
        _ => false,
    };
    if shares {
        UNSEEN.store(true, Relaxed);
    }
    AGE.fetch_add(1, AcqRel);
}

/// Whether a process that is made with these flags has the same descriptors. (A thread is only one more that calls.)
fn shares_descriptors(flags: usize) -> bool {
    const CLONE_FILES: usize = 0x400;
    const CLONE_THREAD: usize = 0x1_0000;
    flags & CLONE_FILES != 0 && flags & CLONE_THREAD == 0
}

/// Another file may be behind the descriptor.
fn forget(fd: usize) {
    // (The kernel looks at the low half.)
    AGES[fd as u32 as usize % PLACES].fetch_add(1, AcqRel);
}

/// Whether the call closes no descriptor, puts no other file in the place of one, and maps none. (A descriptor that is new has
/// the number of none that is open.)
fn keeps_descriptors(number: usize) -> bool {
    #[rustfmt::skip]
    const KEEP: &[usize] = &[
        // read and write; by position; by vectors
        0, 1, 17, 18, 19, 20, 295, 296, 327, 328,
        // open, stat, fstat, lstat, lseek, access, openat, newfstatat, statx
        2, 4, 5, 6, 8, 21, 257, 262, 332,
        // dup, socket, accept, setsockopt, fcntl, accept4
        32, 41, 43, 54, 72, 288,
        // poll, select, epoll_wait and epoll_ctl, pselect6, ppoll, epoll_pwait
        7, 23, 232, 233, 270, 271, 281,
        // sendfile, sendto, recvfrom, sendmsg, recvmsg, fsync, fdatasync
        40, 44, 45, 46, 47, 74, 75,
        // mprotect, munmap, brk, madvise
        10, 11, 12, 28,
        // rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack
        13, 14, 15, 131,
        // sched_yield, pause, nanosleep, clock_nanosleep, futex
        24, 34, 35, 230, 202,
        // getpid, gettid, getppid, getuid, getgid, geteuid, getegid, getcpu, getrandom
        39, 186, 110, 102, 104, 107, 108, 309, 318,
        // gettimeofday, time, clock_gettime
        96, 201, 228,
    ];
    const SETS: usize = 8;
    const WORDS: [u64; SETS] = {
        let mut words = [0; SETS];
        let mut n = 0;
        while n < KEEP.len() {
            words[KEEP[n] / 64] |= 1 << (KEEP[n] % 64);
            n += 1;
        }
        words
    };
    WORDS.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::syscalls::find;
    use alloc::vec::Vec;

    #[test]
    fn calls_that_keep_descriptors_are_named_one_by_one() {
        let names: Vec<&str> = (0..500)
            .filter(|&number| keeps_descriptors(number))
            .filter_map(|number| find(number as u64))
            .map(|call| call.name)
            .collect();
        let ends =
            ["close", "dup2", "dup3", "close_range", "execve", "mmap", "clone", "io_uring_setup"];
        assert!(ends.iter().all(|name| !names.contains(name)));
        for name in ["write", "writev", "pwrite64", "epoll_wait", "clock_gettime", "futex"] {
            assert!(names.contains(&name), "{name}");
        }
        assert_eq!(names.len(), 64, "{names:?}");
        assert!(!keeps_descriptors(usize::MAX) && !keeps_descriptors(1 << 31 | 1));
    }

    #[test]
    fn an_entry_is_known_until_a_call_may_have_closed_it() {
        let entry_of = |fd| entry(fd).unwrap();
        assert!(!entry_of(7).is_known());
        let before = entry_of(7);
        before.keep();
        assert!(entry_of(7).is_known() && !entry_of(7 + PLACES).is_known());
        forget(8);
        assert!(entry_of(7).is_known());
        let all: fn() = || {
            AGE.fetch_add(1, AcqRel);
        };
        for forgets in [|| forget(7), all, || forget(1 << 32 | 7)] {
            let before = entry_of(7);
            before.keep();
            assert!(entry_of(7).is_known());
            forgets();
            assert!(!entry_of(7).is_known());
            // What was found out in front of the call is not known behind it.
            before.keep();
            assert!(!entry_of(7).is_known());
        }
        assert!(entry(1 << BITS).is_none());
    }
}
