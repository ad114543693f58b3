//! What the caller had set for signals, and which standard files it had closed, when the command was
//! started.
//!
//! A Rust program ignores SIGPIPE and opens what is closed of its standard files before its `main` runs,
//! so this is noted earlier. Whoever starts a
//! program on behalf of the caller passes on what the caller had.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

/// Signals that the caller ignores: bit n-1 is signal n.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Standard files that the caller has closed: bit n is descriptor n.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Notes it; to be called before `main`. Where there is no /proc, nothing was ignored.
pub fn note() {
    let closed =
        (0..3).filter(|fd| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_err());
    let closed = closed.fold(0, |bits, fd| bits | 1 << fd);
    if closed != 0 && std::path::Path::new("/proc/self/fd").exists() {
        CLOSED.store(closed, Ordering::Relaxed);
    }
    // In one piece: this is a part of the time that each start takes.
    let mut status = [0; 4096];
    let read = std::fs::File::open("/proc/self/status").and_then(|mut file| file.read(&mut status));
    let status = std::str::from_utf8(&status[..read.unwrap_or(0)]).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    IGNORED.store(mask.unwrap_or(0), Ordering::Relaxed);
}

/// The standard files that the caller has closed.
pub fn closed() -> impl Iterator<Item = i32> {
    (0..3).filter(|fd| CLOSED.load(Ordering::Relaxed) & 1 << fd != 0)
}

/// From now on a signal counts as one that the caller ignores.
pub fn is_to_ignore(signal: i32) {
    if let Some(bit) = u32::try_from(signal - 1).ok().and_then(|n| 1u64.checked_shl(n)) {
        IGNORED.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether the caller ignores a signal.
pub fn ignores(signal: i32) -> bool {
    let bit = u32::try_from(signal - 1).ok().and_then(|n| 1u64.checked_shl(n));
    bit.is_some_and(|bit| IGNORED.load(Ordering::Relaxed) & bit != 0)
}
