//! What the program's address space looks like, and a log of how it changes.
//!
//! The log has lines `RECORD WHAT START END`: when RECORD memory references had been listed, the
//! range became a region of its own (`map`, and `fixed` unless it lies inside one), was added to
//! the heap (`grow`), or ceased to belong to any (`unmap`).

use std::io::{Result, Write};

use crate::listing::Lines;
use crate::sys::{Pid, Regs};

pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Private and not writable.
    pub is_fixed: bool,
    pub is_executable: bool,
    pub name: String,
}

pub fn read(pid: Pid) -> Result<Vec<Mapping>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let perms = words.next()?.as_bytes();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        is_fixed: perms[1] != b'w' && perms[3] == b'p',
        is_executable: perms[2] == b'x',
        name: words.nth(3).unwrap_or("").to_owned(),
    })
}

/// Whether code can run at `address`.
pub fn is_executable(pid: Pid, address: u64) -> Result<bool> {
    Ok(read(pid)?.iter().any(|m| m.is_executable && (m.start..m.end).contains(&address)))
}

/// Whether system call `number` can change what is mapped, or how.
pub fn changes_mappings(number: u64) -> bool {
    let calls = [
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_brk,
        libc::SYS_shmat,
        libc::SYS_shmdt,
        libc::SYS_pkey_mprotect,
        libc::SYS_remap_file_pages,
    ];
    calls.contains(&(number as i64))
}

pub struct Log<W: Write> {
    lines: Lines<W>,
    /// Where the heap ends, and whether it has ever grown.
    heap_end: u64,
    has_heap: bool,
}

fn page_up(addr: u64) -> u64 {
    addr.wrapping_add(0xfff) & !0xfff
}

impl<W: Write> Log<W> {
    /// Begins with the regions that the kernel made: one per file, and the stack.
    pub fn start(out: W, pid: Pid) -> Result<Self> {
        let mut log = Self { lines: Lines::new(out), heap_end: 0, has_heap: false };
        let mut all = read(pid)?.into_iter().peekable();
        while let Some(first) = all.next() {
            let mut end = first.end;
            // A bss follows its file without a name.
            while let Some(next) =
                all.next_if(|n| n.start == end && (n.name == first.name || n.name.is_empty()))
            {
                end = next.end;
            }
            // The stack grows downwards, by no more than its limit.
            let start = if first.name == "[stack]" { end - (8 << 20) } else { first.start };
            log.line(0, "map", start, end)?;
        }
        Ok(log)
    }

    pub fn after_syscall(&mut self, at: u64, before: &Regs, after: &Regs) -> Result<()> {
        let result = after.rax;
        if (-4095..0).contains(&(result as i64)) {
            return Ok(());
        }
        match after.orig_rax as i64 {
            libc::SYS_mmap => {
                let fixed = before.r10 & 0x10 != 0;
                let what = if fixed { "fixed" } else { "map" };
                self.line(at, what, result, result + page_up(before.rsi))
            }
            libc::SYS_munmap => {
                self.line(at, "unmap", before.rdi, before.rdi + page_up(before.rsi))
            }
            libc::SYS_mremap => {
                self.line(at, "unmap", before.rdi, before.rdi + page_up(before.rsi))?;
                self.line(at, "map", result, result + page_up(before.rdx))
            }
            libc::SYS_brk => {
                if self.heap_end == 0 {
                    self.heap_end = page_up(result);
                }
                let (old, new) = (self.heap_end, page_up(result));
                self.heap_end = new;
                match old.cmp(&new) {
                    std::cmp::Ordering::Less => {
                        // Apart from the image, even where it begins right behind it.
                        let first = !std::mem::replace(&mut self.has_heap, true);
                        self.line(at, if first { "map" } else { "grow" }, old, new)
                    }
                    std::cmp::Ordering::Greater => self.line(at, "unmap", new, old),
                    std::cmp::Ordering::Equal => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn line(&mut self, at: u64, what: &str, start: u64, end: u64) -> Result<()> {
        self.lines.text(format_args!("{at} {what} {start:#x} {end:#x}\n"))
    }

    pub fn finish(self) -> Result<()> {
        self.lines.finish()
    }
}
