//! Calls behind which a process may not reach the traces of its recording as before: it has another root, other mounts or
//! another user. The traces of its children go where its own is.

use crate::base::lineage::lineage;
use crate::base::stat::Stat;
use crate::base::sys;
use crate::recording::trace_file::trace;

pub const CLONE_NEWNS: u64 = 0x2_0000;

/// The program is about to make the call.
pub fn before(number: usize, args: &[usize; 6]) {
    const SETUID: usize = 105;
    const SETREUID: usize = 113;
    const SETRESUID: usize = 117;
    const SETFSUID: usize = 122;
    const PIVOT_ROOT: usize = 155;
    const CHROOT: usize = 161;
    const MOUNT: usize = 165;
    const UNSHARE: usize = 272;
    const SETNS: usize = 308;
    const MOVE_MOUNT: usize = 429;
    const MOUNT_SETATTR: usize = 442;
    match number {
        PIVOT_ROOT | CHROOT | MOUNT | SETNS | MOVE_MOUNT | MOUNT_SETATTR => keep_folder(),
        UNSHARE if args[0] as u64 & CLONE_NEWNS != 0 => keep_folder(),
        SETUID | SETREUID | SETRESUID | SETFSUID if sys::geteuid() == 0 => open_folder(),
        _ => {}
    }
}

/// The path of the traces may lead elsewhere soon, or nowhere.
pub fn keep_folder() {
    let _ = trace().keep_folder();
}

/// Root is about to be somebody else: whoever that is may make files in the folder that root's recording has for its traces,
/// and remove none, as in /tmp.
fn open_folder() {
    const FCHMOD: usize = 91;
    const STICKY: u32 = 0o1000;
    const OTHERS: u32 = 0o003;
    if lineage().recording.is_none() {
        return;
    }
    let Some(fd) = trace().keep_folder() else { return };
    let Some(rights) = Stat::of(fd as usize).map(|stat| stat.rights()) else { return };
    // SAFETY: no memory involved.
    let _ = unsafe { sys::call(FCHMOD, &[fd as usize, (rights | STICKY | OTHERS) as usize]) };
}
