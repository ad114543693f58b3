//! What tells a file that was read before from one that has changed, without reading it.

use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A change within the clock's granularity leaves the times as they are. File systems count in steps of
/// up to two seconds.
const GRANULARITY: Duration = Duration::from_secs(2);

/// Identity and times of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// When the contents changed, in ns.
    pub mtime: i128,
    /// When contents, mode, owner, attributes or links changed, in ns.
    pub ctime: i128,
}

impl Stamp {
    /// Of a file with this metadata.
    pub fn of(metadata: &Metadata) -> Stamp {
        let time =
            |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Stamp {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a change from `now` on gives the file another stamp: what is known of one that has
    /// changed just now must not be remembered.
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i128::try_from(now.as_nanos()).unwrap_or(0);
        let margin = i128::try_from(GRANULARITY.as_nanos()).unwrap_or(i128::MAX);
        self.ctime + margin < now && self.mtime + margin < now
    }

    /// When contents, and when anything was last changed: seconds and nanoseconds since the epoch, as the kernel has them.
    pub fn times(&self) -> [[u64; 2]; 2] {
        const NS: i128 = 1_000_000_000;
        // (Words: of before the epoch, too.)
        [self.mtime, self.ctime]
            .map(|ns| [ns.div_euclid(NS) as i64 as u64, ns.rem_euclid(NS) as u64])
    }

    /// Whether it is the same file with the same contents, whatever happened to its links and to the
    /// time of its last use.
    pub fn same_contents(&self, other: &Stamp) -> bool {
        (self.dev, self.ino, self.size, self.mtime)
            == (other.dev, other.ino, other.size, other.mtime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_file_is_not_settled_and_neither_is_one_from_the_future() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let ns = 1_000_000_000;
        let stamp = Stamp { dev: 1, ino: 2, size: 3, mtime: 90 * ns, ctime: 100 * ns };
        assert!(!stamp.is_settled(at(101)));
        assert!(stamp.is_settled(at(103)));
        assert!(!stamp.is_settled(at(50)));
        assert!(!Stamp { mtime: 200 * ns, ..stamp }.is_settled(at(103)));
    }
}
