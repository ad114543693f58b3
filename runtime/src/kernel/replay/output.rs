//! What the program writes to its standard output and error: shown, if that is wanted.

use crate::base::sys::{self, nr};

/// Which of the program's descriptors lead to its standard output and error.
pub struct Output {
    shown: bool,
    /// Forks that come first: what was written before was its parent's.
    forks: u32,
    /// By number: 0 (elsewhere), 1 or 2.
    leads_to: [u8; DESCRIPTORS],
}

/// Descriptors above are not followed.
const DESCRIPTORS: usize = 256;

const WRITEV: usize = 20;
const PWRITE64: usize = 18;
const DUP: usize = 32;
const SENDTO: usize = 44;
const PWRITEV: usize = 296;
const PWRITEV2: usize = 328;

impl Output {
    /// As the program finds it. `shown`: it is wanted, behind so many forks.
    pub fn new(shown: Option<u32>) -> Output {
        let mut leads_to = [0; DESCRIPTORS];
        leads_to[1] = 1;
        leads_to[2] = 2;
        Output { shown: shown.is_some(), forks: shown.unwrap_or(0), leads_to }
    }

    /// From here on the process is a child of the one that it was.
    pub fn forked(&mut self) {
        self.forks = self.forks.saturating_sub(1);
    }

    /// Where what is written to `fd` is shown.
    fn of(&self, fd: usize) -> u8 {
        match self.forks {
            0 => self.leads_to(fd),
            _ => 0,
        }
    }

    fn leads_to(&self, fd: usize) -> u8 {
        self.leads_to.get(fd as u32 as usize).copied().unwrap_or(0)
    }

    fn set(&mut self, fd: usize, to: u8) {
        if let Some(slot) = self.leads_to.get_mut(fd) {
            *slot = to;
        }
    }

    /// The program has made this call, and it returned `result`, which is no error.
    pub fn after(&mut self, number: usize, args: &[usize; 6], result: usize) {
        const F_DUPFD: usize = 0;
        const F_DUPFD_CLOEXEC: usize = 1030;
        if !self.shown {
            return;
        }
        match number {
            nr::WRITE | PWRITE64 | SENDTO => show(self.of(args[0]), args[1] as u64, result),
            WRITEV | PWRITEV | PWRITEV2 => self.show_pieces(args, result),
            DUP | nr::DUP2 | nr::DUP3 => self.set(result, self.leads_to(args[0])),
            nr::FCNTL if matches!(args[1], F_DUPFD | F_DUPFD_CLOEXEC) => {
                self.set(result, self.leads_to(args[0]));
            }
            nr::CLOSE => self.set(args[0] as u32 as usize, 0),
            nr::CLOSE_RANGE => {
                let last = (args[1] as u32 as usize).min(DESCRIPTORS - 1);
                for fd in args[0] as u32 as usize..=last {
                    self.set(fd, 0);
                }
            }
            _ => {}
        }
    }

    fn show_pieces(&self, args: &[usize; 6], result: usize) {
        let mut left = result;
        for i in 0..args[2] as u64 {
            let mut piece = [0u64; 2];
            let at = args[1] as u64 + 16 * i;
            if left == 0 || !crate::base::program::read_program_value(at, &mut piece) {
                return;
            }
            let len = left.min(piece[1] as usize);
            show(self.of(args[0]), piece[0], len);
            left -= len;
        }
    }
}

/// Writes `len` bytes of the program's memory to our descriptor `fd`, or nowhere.
fn show(fd: u8, at: u64, len: usize) {
    let (mut at, mut left) = (at as usize, len);
    while fd != 0 && left > 0 {
        // SAFETY: the kernel only reads the program's memory, and checks it.
        let written = unsafe { sys::call(nr::WRITE, &[usize::from(fd), at, left]) };
        match written {
            Ok(n @ 1..) => (at, left) = (at + n, left - n.min(left)),
            Err(sys::EINTR) => {}
            // Nobody reads it (the signal of that is ignored), or there is no room.
            _ => return,
        }
    }
}
