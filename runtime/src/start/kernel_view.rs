//! What the kernel tells others about a program that has moved: debuggers, and who reads a core dump,
//! find the program's symbols by the auxiliary vector that the kernel keeps.

use crate::base::sys::{self, nr};
use crate::start::stack::{at, Start};
use core::ops::Range;

/// `struct prctl_mm_map`.
#[repr(C)]
#[derive(Default)]
struct Map {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arg_start: u64,
    arg_end: u64,
    env_start: u64,
    env_end: u64,
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

/// Fields of /proc/self/stat, as proc(5) counts them.
const START_CODE: usize = 26;
const END_CODE: usize = 27;
const START_STACK: usize = 28;
const START_DATA: usize = 45;
const END_DATA: usize = 46;
const START_BRK: usize = 47;
const ARG_START: usize = 48;
const ARG_END: usize = 49;
const ENV_START: usize = 50;
const ENV_END: usize = 51;

/// Tells the kernel that what lies in `range`, of the program's image or its stack, is going to lie `distance` further. Nothing but
/// what it tells others depends on that: where there is no /proc, or the kernel does not take it, all goes on. False if so.
pub fn moves(start: &Start, range: &Range<u64>, distance: u64) -> bool {
    const PR_SET_MM: usize = 35;
    const PR_SET_MM_MAP: usize = 14;
    let mut text = [0u8; 1024];
    let Some(stat) = read_stat(&mut text) else { return false };
    let moved = |address: u64| match range.contains(&address) {
        true => address.wrapping_add(distance),
        false => address,
    };
    let mut vector = [[0u64; 2]; 40];
    let mut count = 0;
    for entry in start.entries() {
        let Some(slot) = vector.get_mut(count) else { return false };
        *slot = match entry[0] {
            at::PHDR | at::ENTRY => [entry[0], moved(entry[1])],
            _ => entry,
        };
        count += 1;
    }
    // Zeros end it.
    if count == vector.len() {
        return false;
    }
    let fields = || -> Option<Map> {
        let field = |number| field(stat, number);
        // SAFETY: asks only.
        let brk = unsafe { sys::raw(nr::BRK, [0; 6]) } as u64;
        Some(Map {
            start_code: moved(field(START_CODE)?),
            end_code: moved(field(END_CODE)?),
            start_data: moved(field(START_DATA)?),
            end_data: moved(field(END_DATA)?),
            start_brk: field(START_BRK)?,
            brk,
            start_stack: moved(field(START_STACK)?),
            arg_start: moved(field(ARG_START)?),
            arg_end: moved(field(ARG_END)?),
            env_start: moved(field(ENV_START)?),
            env_end: moved(field(ENV_END)?),
            auxv: vector.as_ptr() as u64,
            auxv_size: (16 * (count + 1)) as u32,
            // The file stays.
            exe_fd: u32::MAX,
        })
    };
    let Some(map) = fields() else { return false };
    let args = [PR_SET_MM, PR_SET_MM_MAP, &raw const map as usize, size_of::<Map>()];
    // SAFETY: the kernel reads the two, and changes no memory.
    unsafe { sys::call(nr::PRCTL, &args) }.is_ok()
}

fn read_stat(text: &mut [u8; 1024]) -> Option<&[u8]> {
    let path = c"/proc/self/stat".as_ptr() as usize;
    // SAFETY: the kernel reads the path.
    let fd = unsafe { sys::call(nr::OPEN, &[path, sys::O_CLOEXEC]) }.ok()?;
    // SAFETY: the kernel writes at most that many bytes.
    let read = unsafe { sys::call(nr::READ, &[fd, text.as_mut_ptr() as usize, text.len()]) };
    // SAFETY: opened above.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
    text.get(..read.ok()?)
}

/// A field of /proc/self/stat. The second one is in parentheses, and may have some itself.
fn field(stat: &[u8], number: usize) -> Option<u64> {
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let field = stat.get(behind..)?.split(|&byte| byte == b' ').nth(number.checked_sub(3)?)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_count_behind_the_name() {
        let stat = b"7 (a b) c) S 4 5 6 18446744073709551615 8";
        assert_eq!(field(stat, 4), Some(4));
        assert_eq!(field(stat, 7), Some(u64::MAX));
        assert_eq!(field(stat, 3), None);
        assert_eq!(field(stat, 9), None);
        assert_eq!(field(b"", 4), None);
    }
}
