//! `getdents` of the folder with the process's descriptors: those of the runtime are not there.
//!
//! A program that closes what is listed until nothing is listed any more would never end.

use crate::base::descriptors;
use crate::base::last_words::Line;
use crate::base::program::read_program_bytes;
use crate::base::sys::{self, nr};
use crate::code::writing::write_program;
use crate::kernel::syscalls::{plain, Outcome};
use crate::thread::Thread;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

/// `getdents(fd, entries, size)`, `getdents64`
pub(super) fn list(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Outcome {
    if !lists_descriptors(args[0]) {
        return plain(thread, number, args);
    }
    // What the kernel writes and we take away was never written.
    const MOST: usize = 1 << 20;
    let mut before = vec![0u8; args[2].min(MOST)];
    let is_known = read_program_bytes(args[1] as u64, &mut before);
    loop {
        let outcome = plain(thread, number, args);
        let Outcome::Done(result) = outcome else { return outcome };
        let len = sys::check(result).unwrap_or(0);
        let mut entries = vec![0u8; len];
        if len == 0 || !is_known || !read_program_bytes(args[1] as u64, &mut entries) {
            return outcome;
        }
        let mut kept = without_hidden(&entries, name_at(number));
        let left = kept.len();
        if left == len {
            return outcome;
        }
        kept.extend_from_slice(before.get(left..len).unwrap_or_default());
        // SAFETY: where the kernel has just written the entries.
        if !unsafe { write_program(args[1] as u64, &kept) } {
            return outcome;
        }
        // None at all would be the end: on to the next ones.
        if left != 0 {
            return Outcome::Done(left);
        }
    }
}

/// Where the name stands in an entry.
fn name_at(number: usize) -> usize {
    match number {
        nr::GETDENTS64 => 19,
        _ => 18,
    }
}

/// The entries without those that name a descriptor of the runtime.
fn without_hidden(entries: &[u8], name_at: usize) -> Vec<u8> {
    const LENGTH: usize = 16;
    let (mut kept, mut rest) = (Vec::new(), entries);
    while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
        let len = usize::from(u16::from_le_bytes([low, high]));
        let Some((entry, behind)) = rest.split_at_checked(len).filter(|_| len > name_at) else {
            break;
        };
        let name = entry.get(name_at..).unwrap_or_default().split(|&byte| byte == 0).next();
        let number = name.and_then(|name| core::str::from_utf8(name).ok()?.parse().ok());
        if !number.is_some_and(descriptors::is_hidden) {
            kept.extend_from_slice(entry);
        }
        rest = behind;
    }
    kept.extend_from_slice(rest);
    kept
}

/// Whether `folder` has an entry for each descriptor of this process: /proc/PID/fd, /proc/PID/fdinfo, and those
/// of its threads.
fn lists_descriptors(folder: usize) -> bool {
    const FSTATFS: usize = 138;
    const PROC: u64 = 0x9fa0;
    let mut stat = [0u64; 15];
    // SAFETY: struct statfs has 120 bytes.
    let known = unsafe { sys::call(FSTATFS, &[folder, stat.as_mut_ptr() as usize]) };
    if known.is_err() || stat[0] != PROC {
        return false;
    }
    let mut path = [0u8; 64];
    let Some(path) = path_of(folder, &mut path) else { return false };
    let mut parts = path.trim_start_matches("/proc/").split('/');
    let is_ours = parts.next().and_then(|pid| pid.parse().ok()) == Some(sys::getpid());
    is_ours && matches!(parts.next_back(), Some("fd" | "fdinfo"))
}

/// Where the descriptor leads.
fn path_of(fd: usize, to: &mut [u8; 64]) -> Option<&str> {
    let mut link = Line::new();
    write!(link, "/proc/self/fd/{fd}\0").ok()?;
    let args = [link.text().as_ptr() as usize, to.as_mut_ptr() as usize, to.len()];
    // SAFETY: the kernel reads the name and writes the path.
    let len = unsafe { sys::call(nr::READLINK, &args) }.ok()?;
    core::str::from_utf8(to.get(..len)?).ok()
}
