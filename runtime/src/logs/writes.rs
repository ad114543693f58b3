//! What a system call may write to the program's memory.

use crate::base::sys::{self, nr};
use crate::logs::inputs::at_hand;
use abi::syscalls::MayWrite;
use smallvec::SmallVec;

/// The memory that a call may write: no less than what it will.
#[derive(Default)]
pub struct Writes {
    /// In the order of the call's arguments.
    pub ranges: SmallVec<[MayWrite; 2]>,
    /// It may write elsewhere, too.
    pub elsewhere: bool,
}

impl Writes {
    /// What a call with these arguments may write.
    pub fn of(number: usize, args: &[usize; 6]) -> Writes {
        let mut args = args.map(|arg| arg as u64);
        let mut number = number;
        if number == nr::PROCESS_VM_WRITEV && is_own_thread(args[0]) {
            // As reading it from what is called local into what is called remote.
            number = nr::PROCESS_VM_READV;
            args.swap(1, 3);
            args.swap(2, 4);
        }
        let read = &mut at_hand::read_all;
        let mut ranges = SmallVec::new();
        let each = &mut |range| ranges.push(range);
        let call = abi::syscalls::find(number as u64);
        let certain = call.is_some_and(|call| abi::syscalls::may_write(call, &args, read, each));
        Writes { ranges, elsewhere: !certain }
    }
}

/// Whether `id` is that of this process, or of a thread of it.
fn is_own_thread(id: u64) -> bool {
    let own = sys::getpid();
    // SAFETY: signal 0 only asks.
    id as u32 == own || unsafe { sys::call(nr::TGKILL, &[own as usize, id as usize, 0]) }.is_ok()
}
