//! What the runtime says when it cannot go on: one line, and a status of its own.

use crate::base::signal;
use crate::base::sys::{self, EFBIG, EPIPE};
use core::fmt::Write;

/// The program did something that is not supported.
pub const STATUS_REFUSED: i32 = 121;
/// A fault of the runtime itself.
pub const STATUS_INTERNAL: i32 = 122;

/// A line under construction, on the stack.
pub struct Line {
    bytes: [u8; Line::ROOM],
    len: usize,
}

impl Line {
    /// Bytes of the longest.
    pub const ROOM: usize = 512;

    pub const fn new() -> Line {
        Line { bytes: [0; Line::ROOM], len: 0 }
    }

    pub fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the line to stderr. Whether anybody can read it changes nothing.
    pub fn say(mut self) {
        let end = self.len.min(self.bytes.len() - 1);
        self.bytes[end] = b'\n';
        let before = signal::block_all();
        match sys::write(2, &self.bytes[..end + 1]) {
            Err(EPIPE) => signal::take_pending(signal::SIGPIPE),
            Err(EFBIG) => signal::take_pending(signal::SIGXFSZ),
            _ => {}
        }
        signal::set_real_mask(before);
    }
}

impl Default for Line {
    fn default() -> Self {
        Line::new()
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let room = self.bytes.len() - self.len;
        let n = s.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// The oldest kernel that is supported.
const OLDEST: (u32, u32) = (5, 4);

/// What a last line says of a kernel that is too old, which may be the reason; else nothing.
pub struct OldKernel;

impl core::fmt::Display for OldKernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const NAMES: usize = 6;
        const RELEASE: usize = 2;
        let mut names = [[0u8; 65]; NAMES];
        // SAFETY: the kernel writes six names of 65 bytes.
        let known = unsafe { sys::call(sys::nr::UNAME, &[names.as_mut_ptr() as usize]) }.is_ok();
        match version(&names[RELEASE]).filter(|&version| known && version < OLDEST) {
            Some((major, minor)) => {
                let (first, second) = OLDEST;
                write!(f, " (Linux {first}.{second} or later is needed, this is {major}.{minor})")
            }
            None => Ok(()),
        }
    }
}

/// The first two numbers of a kernel's release.
fn version(release: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit());
    let mut number = || core::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

/// One line on stderr.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => {{
        use core::fmt::Write;
        let mut line = $crate::base::last_words::Line::new();
        let _ = write!(line, "deprewrite: ");
        let _ = write!(line, $($arg)*);
        line.say();
    }};
}

/// Says why and ends the process with [`STATUS_INTERNAL`].
#[macro_export]
macro_rules! die {
    ($($arg:tt)*) => {{
        $crate::say!("{}{}", format_args!($($arg)*), $crate::base::last_words::OldKernel);
        $crate::base::sys::exit_group($crate::base::last_words::STATUS_INTERNAL)
    }};
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version(b"4.19.0-27-amd64\0\0"), Some((4, 19)));
        assert_eq!(version(b"6.18"), Some((6, 18)));
        assert_eq!(version(b"5.4\0"), Some((5, 4)));
        assert_eq!(version(b"\0"), None);
        assert_eq!(version(b"next"), None);
        assert_eq!([(5, 3), (5, 4), (6, 1)].map(|version| version < OLDEST), [true, false, false]);
        // The tests run on one that is new enough.
        assert_eq!(std::format!("{OldKernel}"), "");
    }
}
