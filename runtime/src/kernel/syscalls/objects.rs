//! Who gets shared memory that the process has made: children, other processes, the kernel by way of a
//! descriptor.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::descriptors;
use crate::base::messages::{self, MESSAGE};
use crate::base::replaying::is_replay;
use crate::base::stat::identity;
use crate::base::sys::{self, nr};
use crate::code::jit::{jit, Jit};
use crate::code::objects::are_any;
use crate::logs::inputs::at_hand;

/// A call has made a file in memory.
pub fn made(fd: usize) {
    // (A replay has none.)
    if let Some(file) = identity(fd).filter(|_| !is_replay()) {
        jit().made_object(file);
    }
}

/// Before the program makes a call: if others may change code in shared memory from then on, it is compared
/// each time that it is entered.
pub fn before_call(number: usize, args: &[usize; 6]) {
    const SENDFILE: usize = 40;
    const SENDMSG: usize = 46;
    const REMAP_FILE_PAGES: usize = 216;
    const SPLICE: usize = 275;
    const PWRITEV: usize = 296;
    const SENDMMSG: usize = 307;
    const COPY_FILE_RANGE: usize = 326;
    const PWRITEV2: usize = 328;
    const IO_URING_SETUP: usize = 425;
    const PROCESS_MADVISE: usize = 440;
    if !are_any() {
        return;
    }
    let written = match number {
        nr::WRITE
        | nr::PWRITE64
        | nr::WRITEV
        | PWRITEV
        | PWRITEV2
        | SENDFILE
        | nr::FTRUNCATE
        | nr::FALLOCATE => args[0],
        SPLICE | COPY_FILE_RANGE => args[2],
        SENDMSG if hands_over(args[1] as u64) => return give_up(&mut jit()),
        SENDMMSG => {
            // Each message is followed by a word for its length.
            let all = (0..args[2].min(1024) as u64).map(|i| args[1] as u64 + i * MESSAGE);
            if all.into_iter().any(hands_over) {
                give_up(&mut jit());
            }
            return;
        }
        nr::IO_SETUP | REMAP_FILE_PAGES | IO_URING_SETUP | PROCESS_MADVISE => {
            return give_up(&mut jit());
        }
        _ => return,
    };
    if let Some(file) = identity(written) {
        let mut jit = jit();
        if jit.is_executable_object(file) {
            give_up(&mut jit);
        }
    }
}

/// Whether the message at `at` may hand an object to another process.
fn hands_over(at: u64) -> bool {
    let is_object = |&fd: &u32| identity(fd as usize).is_some_and(|file| jit().is_object(file));
    messages::descriptors(at, at_hand::read_all).is_none_or(|all| all.iter().any(is_object))
}

/// Others may have the objects from now on, and nobody knows when they do not any more.
pub fn give_up(jit: &mut Jit) {
    for pipe in jit.give_up_objects() {
        descriptors::close(pipe);
    }
}

/// What a child of `fork` is going to have in common with its parent: a pipe, whose ends are here.
pub struct Loan {
    ours: i32,
    childs: i32,
}

/// Before a fork; `shares`: parent and child are going to share descriptors.
pub fn lend(jit: &mut Jit, shares: bool) -> Option<Loan> {
    const PIPE2: usize = 293;
    if !jit.would_lend() {
        return None;
    }
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes both numbers.
    let pipe = unsafe { sys::call(PIPE2, &[ends.as_mut_ptr() as usize, sys::O_CLOEXEC]) };
    if pipe.is_err() || shares || !descriptors::have_room() {
        if pipe.is_ok() {
            ends.into_iter().for_each(descriptors::close);
        }
        give_up(jit);
        return None;
    }
    let [ours, childs] = ends.map(descriptors::hide);
    jit.lend(ours);
    Some(Loan { ours, childs })
}

/// Behind the fork, in the parent.
pub fn lent(loan: Option<Loan>) {
    if let Some(loan) = loan {
        descriptors::close(loan.childs);
    }
}

/// Behind the fork, in the child: its end of the pipe stays open as long as it has the memory.
pub fn borrowed(jit: &mut Jit, loan: Option<Loan>) {
    give_up(jit);
    if let Some(loan) = loan {
        descriptors::reveal(loan.ours);
    }
}
