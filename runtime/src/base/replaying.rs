//! Whether this process replays a recording: then nothing is asked of the kernel on the program's behalf.

use core::sync::atomic::{AtomicBool, Ordering::*};

static REPLAYING: AtomicBool = AtomicBool::new(false);

/// From here on the process replays.
pub fn begin() {
    REPLAYING.store(true, Relaxed);
}

/// Whether the process replays.
#[inline]
pub fn is_replay() -> bool {
    REPLAYING.load(Relaxed)
}
