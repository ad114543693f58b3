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
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    pub fn new() -> Line {
        Line { bytes: [0; 512], len: 0 }
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
        $crate::say!($($arg)*);
        $crate::base::sys::exit_group($crate::base::last_words::STATUS_INTERNAL)
    }};
}
