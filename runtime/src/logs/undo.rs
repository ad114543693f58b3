//! The undo log where units cannot keep it themselves: stores whose extent only registers tell,
//! what the kernel writes for a system call, signal frames, contents that are dropped; and the order
//! of all threads' synchronising instructions and system calls.
//!
//! Old bytes are read in a way that cannot fault. What cannot be read is not there to be overwritten
//! either: the store faults natively, too, and if the program's handler makes it possible, the
//! store starts again from the front, and so does its log.

use crate::base::lock::Forked;
use crate::base::program::{read_program_bytes, try_read_program_bytes};
use crate::base::sys::{self, nr};
use crate::logs::dropped::dropped;
use crate::logs::extent::extent;
use crate::logs::moment::{Call, Fault, Frame, Log};
use crate::logs::order;
use crate::thread::{Ranges, Thread};
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{PAGE, SYNC_PAGE};
use abi::syscalls::{find, OLD};
use alloc::vec::Vec;
use core::ops::Range;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic};
use lifter::operands::references;

/// Bytes of old contents in one event.
const PIECE: u64 = 64 << 10;

/// What each store overwrites, and in which order.
pub struct UndoLog;

impl Log for UndoLog {
    fn start(&self) -> Result<(), &'static str> {
        order::map_sync_page().then_some(()).ok_or("the address space below 2 GiB is taken")
    }

    fn memory(&self) -> Range<u64> {
        SYNC_PAGE..SYNC_PAGE + PAGE
    }

    fn wants_writes(&self) -> bool {
        true
    }

    fn leaves_memory_alone(&self) -> bool {
        true
    }

    fn chunk_starts(&self, thread: &mut Thread) {
        order::stamp(thread);
    }

    fn before_call(&self, thread: &mut Thread, call: &Call) {
        order::stamp(thread);
        for range in &call.writes.ranges {
            save(thread, thread.syscall_pc, range.address, range.length, WHOLE_UNIT);
        }
        if matches!(call.number, nr::CLONE | nr::CLONE3) {
            // What these write is there before the new thread runs, which may end before they return.
            order::stamp(thread);
        }
    }

    fn after_call(&self, thread: &mut Thread, call: &Call, result: usize) {
        /// EPERM, EBADF, ENOTTY, ENOSYS: nobody has looked at the memory.
        const REFUSED: [usize; 4] = [1, 9, 25, 38];
        let name = match find(call.number as u64) {
            Some(call) => call.name,
            None if call.number as u64 & OLD != 0 => "32-bit system call",
            None => "unknown system call",
        };
        let error = sys::check(result).err().map_or(0, |errno| errno as usize);
        if call.writes.elsewhere && !REFUSED.contains(&error) {
            lost(thread, thread.syscall_pc, 0, 0, name);
        }
        // These may fail behind a part that they have dropped.
        let result = match call.number {
            nr::MADVISE if error != 0 => Some(0),
            nr::MMAP if error != 0 => Some(call.args[0]),
            _ => (error == 0).then_some(result),
        };
        if let Some(result) = result {
            for (start, len) in dropped(call, result).into_iter().flatten() {
                lost(thread, thread.syscall_pc, start, len, name);
            }
        }
        order::stamp(thread);
    }

    fn before_store(&self, thread: &mut Thread, pc: u64) {
        if !thread.recorder.to_file() {
            return;
        }
        let mut bytes = [0u8; 15];
        let mut len = 15;
        while len > 0 && !read_program_bytes(pc, &mut bytes[..len]) {
            len -= 1;
        }
        let insn = Decoder::with_ip(64, &bytes[..len], pc, DecoderOptions::NONE).decode();
        let mut ranges = Ranges::new();
        let mut refs = Vec::new();
        references(&insn, &mut InstructionInfoFactory::new(), &mut refs);
        let gpr = thread.block.registers.gpr;
        match insn.mnemonic() {
            Mnemonic::Clzero => ranges.push((gpr[0] & !63, 64)),
            Mnemonic::Tilestored => lost(thread, pc, 0, 0, "tilestored"),
            _ => {
                for r in refs.iter().filter(|r| r.write) {
                    extent(thread, &insn, r, &mut ranges);
                }
            }
        }
        for (at, len) in ranges {
            save(thread, pc, at, len, WHOLE_UNIT);
        }
    }

    fn before_frame(&self, thread: &mut Thread, frame: &Frame) {
        save(thread, frame.pc, frame.start, frame.len, frame.insn);
    }

    fn faulted(&self, thread: &mut Thread, fault: &mut Fault<'_>) {
        const PAGE_FAULT: u64 = 14;
        const WRITE: u64 = 2;
        order::release(thread);
        if fault.reads_ahead && fault.trap == PAGE_FAULT {
            // The snippet only read what the program's store would have written.
            *fault.error |= WRITE;
        }
    }

    fn forked(&self, _forked: &Forked) {
        order::forked();
    }

    fn before_exit(&self, thread: &mut Thread) {
        if thread.clear_tid != 0 {
            save(thread, thread.syscall_pc, thread.clear_tid, 4, WHOLE_UNIT);
            // Whoever writes there next has seen the word cleared, so this comes before it.
            order::stamp(thread);
        }
    }
}

/// Saves `len` bytes at `address`, which something at `pc` is about to overwrite, `insn` instructions
/// into the thread's last unit.
fn save(thread: &mut Thread, pc: u64, address: u64, len: u64, insn: u32) {
    if !thread.recorder.to_file() {
        return;
    }
    let mut buffer = Vec::new();
    let (mut at, mut left) = (address, len.min(u64::MAX - address));
    while left > 0 {
        let piece = left.min(PIECE);
        buffer.resize(piece as usize, 0);
        match try_read_program_bytes(at, &mut buffer) {
            // Up to the end of a page: what is not there is left out.
            Ok(read) if read > 0 => {
                save_piece(thread, pc, at, &buffer[..read], insn);
                (at, left) = (at + read as u64, left - read as u64);
            }
            Ok(_) | Err(sys::EFAULT) => {
                if left > 1 << 30 {
                    // Nobody has memory for that, and looking at each page would take too long.
                    lost(thread, pc, at, left, "too large to be saved");
                    break;
                }
                let hole = left.min(PAGE - at % PAGE);
                (at, left) = (at + hole, left - hole);
            }
            Err(_) => {
                // A filter of system calls is in the way.
                lost(thread, pc, at, left, "cannot be read");
                break;
            }
        }
    }
}

fn save_piece(thread: &mut Thread, pc: u64, at: u64, bytes: &[u8], insn: u32) {
    let (pc, address) = (LiveAddr(pc), LiveAddr(at));
    thread.event(insn, &Event::Undo { pc, address, old: bytes });
}

/// Contents are gone: `why`, at `pc`. Length 0: nobody knows where.
fn lost(thread: &mut Thread, pc: u64, start: u64, len: u64, why: &str) {
    let (pc, start, why) = (LiveAddr(pc), LiveAddr(start), why.as_bytes());
    thread.event(WHOLE_UNIT, &Event::Lost { pc, start, len, why });
}
