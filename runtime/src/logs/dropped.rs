//! What a system call drops without writing it.

use crate::base::sys::{self, nr};
use crate::logs::moment::Call;
use abi::layout::page_up;

/// Whether advice (`madvise`) drops contents: DONTNEED, FREE, REMOVE, DONTNEED_LOCKED, GUARD_INSTALL.
pub fn drops(advice: u64) -> bool {
    matches!(advice, 4 | 8 | 9 | 24 | 102)
}

/// Ranges (start, length; 0 and 0: nobody knows where) whose contents a call dropped that returned `result`.
pub fn dropped(call: &Call, result: usize) -> [Option<(u64, u64)>; 2] {
    const SHM_REMAP: u64 = 0x4000;
    const TRUNCATE: usize = 76;
    const REMAP_FILE_PAGES: usize = 216;
    const PROCESS_MADVISE: usize = 440;
    let [a0, a1, a2, a3, ..] = call.args.map(|a| a as u64);
    let result = result as u64;
    let range = |start: u64, len: u64| [(len > 0).then_some((start, len)), None];
    let somewhere = [Some((0, 0)), None];
    match call.number {
        nr::MUNMAP => range(a0, page_up(a1)),
        nr::MMAP if a3 as usize & sys::MAP_FIXED != 0 => range(result, page_up(a1)),
        nr::MREMAP => {
            let (old, new) = (page_up(a1), page_up(a2));
            if result == a0 {
                range(a0.wrapping_add(new), old.saturating_sub(new))
            } else {
                let over = (a3 as usize & sys::MREMAP_FIXED != 0).then_some((result, new));
                [(old > 0).then_some((a0, old)), over]
            }
        }
        nr::BRK => {
            let from = page_up(result);
            range(from, page_up(call.brk).saturating_sub(from))
        }
        nr::MADVISE if drops(a2) => range(a0, page_up(a1)),
        PROCESS_MADVISE if drops(a3) => somewhere,
        nr::SHMAT if a2 & SHM_REMAP != 0 => somewhere,
        nr::SHMDT
        | nr::IO_DESTROY
        | TRUNCATE
        | nr::FTRUNCATE
        | REMAP_FILE_PAGES
        | nr::FALLOCATE => somewhere,
        _ => [None; 2],
    }
}
