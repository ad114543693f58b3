//! Files that other processes have, too: their descriptors were handed over in messages, to them or by them. What is
//! mapped of them with MAP_SHARED others may change.

use crate::base::lock::{Forked, Lock};
use crate::base::messages::{descriptors, MESSAGE};
use crate::base::stat::Stat;
use crate::base::sys::{self, nr};
use crate::logs::inputs::unfollowed::unfollowed_unwatched;
use crate::logs::inputs::{at_hand, mappings};
use crate::logs::moment::Call;
use crate::thread::Thread;
use alloc::vec::Vec;

/// Device and inode of each.
static HANDED: Lock<Vec<[u64; 2]>> = Lock::new(Vec::new());

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    HANDED.force_unlock(forked);
}

/// Why a recording ends where memory is shared so.
pub const WHY: &str =
    "memory is shared with another process (mmap with MAP_SHARED, and SCM_RIGHTS)";

/// The call has returned `result`: which files has it handed over?
pub fn look(thread: &mut Thread, call: &Call, result: usize) {
    const SENDMSG: usize = 46;
    const RECVMSG: usize = 47;
    const RECVMMSG: usize = 299;
    const SENDMMSG: usize = 307;
    let count = match call.number {
        SENDMSG | RECVMSG => 1,
        SENDMMSG | RECVMMSG => result,
        _ => return,
    };
    let messages = (0..count as u64).map(|i| call.args[1] as u64 + i * MESSAGE);
    // (What cannot be told any more another thread has changed.)
    let all = messages.filter_map(|at| descriptors(at, at_hand::read_all)).flatten();
    let files = all.filter_map(|fd| may_change(fd as usize));
    let files: Vec<[u64; 2]> = files.collect();
    for file in files {
        let mut handed = HANDED.lock();
        if !handed.contains(&file) {
            handed.push(file);
        }
        drop(handed);
        if mappings::shows_changes(file) {
            unfollowed_unwatched(thread, WHY);
        }
    }
}

/// Whether the file was handed over.
pub fn is(file: [u64; 2]) -> bool {
    HANDED.lock().contains(&file)
}

/// The file that is open as `fd`, if it is one that others may change. Memory that is made for others is often sealed.
fn may_change(fd: usize) -> Option<[u64; 2]> {
    const F_GET_SEALS: usize = 1034;
    const SEALED: usize = 0x8 | 0x10;
    let stat = Stat::of(fd).filter(Stat::is_regular)?;
    // SAFETY: asks only.
    let seals = unsafe { sys::call(nr::FCNTL, &[fd, F_GET_SEALS]) };
    (seals.unwrap_or(0) & SEALED == 0).then(|| stat.identity())
}
