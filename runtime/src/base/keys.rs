//! Memory protection keys (Intel SDM volume 3, 4.6.2): what a thread may do to pages that have a key is in a register of
//! the thread, PKRU. Fetching instructions is always allowed, so the program may run code that it cannot read.
//!
//! The runtime reads such code. While it does, all keys are open; calls that it makes for the program are made with the
//! program's rights. Before the program has a key nothing of this happens.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Bit of PKRU among the state components.
pub const COMPONENT: u64 = 1 << 9;

/// The program has had a key: so the processor has the register.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// The register as the kernel sets it for handlers.
static OF_HANDLERS: AtomicU32 = AtomicU32::new(0);

/// The program has got a key.
pub fn use_them() {
    ARE_USED.store(true, Relaxed);
}

/// A handler of ours begins, and what it leaves is loaded from its frame: all keys are open.
pub fn open_in_handler() {
    if ARE_USED.load(Relaxed) {
        OF_HANDLERS.store(read(), Relaxed);
        write(0);
    }
}

/// The register as the program's handlers begin with it, behind [`open_in_handler`]; `None`: there are no keys.
pub fn of_handlers() -> Option<u32> {
    ARE_USED.load(Relaxed).then(|| OF_HANDLERS.load(Relaxed))
}

/// All keys are open while this is.
pub struct AllOpen(Option<u32>);

/// Opens all keys.
pub fn open_all() -> AllOpen {
    if !ARE_USED.load(Relaxed) {
        return AllOpen(None);
    }
    let before = read();
    write(0);
    AllOpen(Some(before))
}

impl Drop for AllOpen {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            write(before);
        }
    }
}

fn read() -> u32 {
    let value;
    // SAFETY: there are keys, so there is the instruction.
    unsafe {
        core::arch::asm!("rdpkru", out("eax") value, in("ecx") 0, out("edx") _, options(nostack))
    };
    value
}

fn write(value: u32) {
    // SAFETY: as above. The runtime's own pages have no key but 0, which is as open as it was or more so.
    unsafe {
        core::arch::asm!("wrpkru", in("eax") value, in("ecx") 0, in("edx") 0, options(nostack))
    }
}
