//! Steps of a thread from its last turn to the moment that is sought: the processor's trap flag is set
//! meanwhile, and the program does not see that. Its own trap flag waits in the mailbox.

use crate::base::program::{read_program_bytes, read_program_value};
use crate::code::writing::write_program_value;
use crate::thread::seek::{Moment, Shown, Sought};
use crate::thread::Thread;

const TRAP_FLAG: u64 = 0x100;
/// The same in the second byte of the flags.
const TRAP_BIT: u8 = 1;

/// The thread, which is about to leave the runtime, is stepped from there.
pub fn begin(thread: &mut Thread, sought: Sought) {
    thread.seek.sought = Some(sought);
    thread.mailbox.keep_trap_flag(thread.block.registers.rflags & TRAP_FLAG != 0);
    thread.mailbox.set_stepping(true);
    thread.block.registers.rflags |= TRAP_FLAG;
}

/// Nothing is sought any more.
pub fn end(thread: &mut Thread) {
    passed(thread);
    thread.seek.sought = None;
    if thread.mailbox.is_stepping() {
        thread.mailbox.set_stepping(false);
        thread.block.registers.rflags &= !TRAP_FLAG;
        if thread.mailbox.take_trap_flag() {
            thread.block.registers.rflags |= TRAP_FLAG;
        }
    }
}

/// A step has led the thread to the instruction at `rip`, an original address, with these registers.
/// Whether that is what is sought; if not, the thread is ready for the next step.
pub fn is_there(thread: &mut Thread, rip: u64, gpr: &[u64; 16]) -> bool {
    let Some(sought) = &mut thread.seek.sought else { return true };
    let first = core::mem::take(&mut sought.first);
    let there = match sought.moment {
        Some(moment) => moment == Moment { rip, rcx: gpr[1] },
        None => !first,
    };
    if !there {
        show_flag(thread, rip, gpr[4]);
    }
    there
}

/// Whether the instruction at `rip` may be passed several times between two turns, with another rcx each
/// time: a repeated one, or a system call that has been kept from starting.
pub fn may_come_again(rip: u64) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let mut bytes = [0u8; 4];
    if !read_program_bytes(rip, &mut bytes[..2]) {
        return false;
    }
    let _ = read_program_bytes(rip, &mut bytes);
    bytes[..2] == SYSCALL || opcode(&bytes).is_some_and(|(_, repeated)| repeated)
}

/// Whether the moment is inside of a system call: the processor has put the way back into rcx.
pub fn is_in_call(moment: &Moment) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let mut bytes = [0u8; 2];
    moment.rcx == moment.rip.wrapping_add(2)
        && read_program_bytes(moment.rip, &mut bytes)
        && bytes == SYSCALL
}

/// The first byte behind the prefixes, and whether one of them repeats.
fn opcode(bytes: &[u8]) -> Option<(u8, bool)> {
    let mut repeated = false;
    for &byte in bytes {
        match byte {
            0xf2 | 0xf3 => repeated = true,
            0x66 | 0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x40..=0x4f => {}
            byte => return Some((byte, repeated)),
        }
    }
    None
}

/// The instruction at `rip` is about to be stepped: if it stores the flags, the program is not to see the
/// trap flag among them but its own, and if it loads them, that flag stays set.
fn show_flag(thread: &mut Thread, rip: u64, rsp: u64) {
    const PUSHF: u8 = 0x9c;
    const POPF: u8 = 0x9d;
    let mut bytes = [0u8; 4];
    if !read_program_bytes(rip, &mut bytes) && !read_program_bytes(rip, &mut bytes[..1]) {
        return;
    }
    let Some((opcode, _)) = opcode(&bytes) else { return };
    match opcode {
        PUSHF => {
            let size = if bytes.contains(&0x66) && bytes[0] == 0x66 { 2 } else { 8 };
            let (at, set) = (rsp.wrapping_sub(size) + 1, thread.mailbox.has_trap_flag());
            thread.seek.shown = Some(Shown { at, set, loads: false });
        }
        POPF => {
            let (at, mut byte) = (rsp + 1, 0u8);
            if read_program_value(at, &mut byte) {
                thread.seek.shown = Some(Shown { at, set: byte & TRAP_BIT != 0, loads: true });
                change(at, |byte| byte | TRAP_BIT);
            }
        }
        _ => {}
    }
}

/// Behind the instruction that was stepped.
pub fn passed(thread: &mut Thread) {
    let Some(Shown { at, set, loads }) = thread.seek.shown.take() else { return };
    change(at, |byte| byte & !TRAP_BIT | if set { TRAP_BIT } else { 0 });
    if loads {
        thread.mailbox.keep_trap_flag(set);
        thread.traps.fresh = set;
    }
}

fn change(at: u64, change: impl Fn(u8) -> u8) {
    let mut byte = 0u8;
    if read_program_value(at, &mut byte) {
        // SAFETY: a byte of flags on the program's stack, as the program is to see them, or for as long
        // as one instruction of its takes.
        let _ = unsafe { write_program_value(at, &change(byte)) };
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::opcode;

    #[test]
    fn opcodes_behind_prefixes() {
        assert_eq!(opcode(&[0xf3, 0x48, 0xa5, 0x90]), Some((0xa5, true)));
        assert_eq!(opcode(&[0x66, 0x9c]), Some((0x9c, false)));
        assert_eq!(opcode(&[0x9d]), Some((0x9d, false)));
        assert_eq!(opcode(&[0x66, 0x48]), None);
    }
}
