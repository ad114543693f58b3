//! What the caller had set for signals when the command was started.
//!
//! A Rust program ignores SIGPIPE before its `main` runs, so this is noted earlier. Whoever starts a
//! program on behalf of the caller passes on what the caller had.

use std::sync::atomic::{AtomicU64, Ordering};

/// Signals that the caller ignores: bit n-1 is signal n.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Notes it; to be called before `main`. Where there is no /proc, nothing was ignored.
pub fn note() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    IGNORED.store(mask.unwrap_or(0), Ordering::Relaxed);
}

/// Whether the caller ignores a signal.
pub fn ignores(signal: i32) -> bool {
    let bit = u32::try_from(signal - 1).ok().and_then(|n| 1u64.checked_shl(n));
    bit.is_some_and(|bit| IGNORED.load(Ordering::Relaxed) & bit != 0)
}
