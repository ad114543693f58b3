//! Whether this process replays a recording: then nothing is asked of the kernel on the program's behalf.

use core::sync::atomic::{AtomicBool, Ordering::*};

static REPLAYING: AtomicBool = AtomicBool::new(false);
static ALONE: AtomicBool = AtomicBool::new(false);

/// From here on the process replays.
pub fn begin() {
    REPLAYING.store(true, Relaxed);
}

/// Whether the process replays.
#[inline]
pub fn is_replay() -> bool {
    REPLAYING.load(Relaxed)
}

/// What is replayed is one watched thread.
pub fn begin_alone() {
    ALONE.store(true, Relaxed);
}

/// Whether one thread is replayed alone, in memory that holds what it stored and saw: others have mapped that,
/// and what it maps is there.
#[inline]
pub fn is_alone() -> bool {
    ALONE.load(Relaxed)
}
