//! The undo log where units cannot keep it themselves: stores whose extent only registers tell,
//! what the kernel writes for a system call, signal frames, contents that are dropped; and the order
//! of all threads' synchronising instructions and system calls.
//!
//! Old bytes are read in a way that cannot fault. What cannot be read is not there to be overwritten
//! either: the store faults natively, too, and if the program's handler makes it possible, the
//! store starts again from the front, and so does its log.

use crate::base::facts::facts;
use crate::base::program::{read_program_bytes, try_read_program_bytes};
use crate::base::sys::{self, nr};
use crate::logs::writes::Writes;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{page_up, PAGE, SYNC_COUNT, SYNC_LOCK, SYNC_PAGE};
use abi::syscalls::find;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use lifter::operands::{
    bit_word_offset, references, xsave_size, GatherMask, Index, Reference, Segment, Shape,
};
use lifter::stores::is_masked;

/// Bytes of old contents in one event.
const PIECE: u64 = 64 << 10;
const DIRECTION_FLAG: u64 = 0x400;

// --- order ---

/// Maps the page with the lock of synchronising instructions.
pub fn map_sync_page() -> bool {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED_NOREPLACE;
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: NOREPLACE: nothing is there.
    let mapped = unsafe { sys::mmap(SYNC_PAGE, PAGE, prot, flags, -1, 0) };
    mapped == Ok(SYNC_PAGE)
}

fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: in the page that was mapped at boot; only called in the undo log.
    unsafe { &*(at as *const AtomicU64) }
}

/// Notes the thread's position in the order of all synchronising instructions.
pub fn stamp(thread: &mut Thread) {
    if !facts().options.undo() {
        return;
    }
    let this = thread.block.this;
    while word(SYNC_LOCK).swap(this, Acquire) != 0 {
        core::hint::spin_loop();
    }
    let number = word(SYNC_COUNT).load(Relaxed) + 1;
    word(SYNC_COUNT).store(number, Relaxed);
    word(SYNC_LOCK).store(0, Release);
    thread.event(WHOLE_UNIT, &Event::Order(number));
}

/// A synchronising instruction has faulted: others may go on.
pub fn release(thread: &mut Thread) {
    if thread.block.sync_held != 0 {
        thread.block.sync_held = 0;
        word(SYNC_LOCK).store(0, Release);
    }
}

/// In a forked child: whoever had the lock is not there any more.
pub fn forked() {
    if facts().options.undo() {
        word(SYNC_LOCK).store(0, Release);
    }
}

// --- events ---

/// Saves `len` bytes at `address`, which something at `pc` is about to overwrite, `insn` instructions
/// into the thread's last unit.
pub fn save(thread: &mut Thread, pc: u64, address: u64, len: u64, insn: u32) {
    if !facts().options.undo() || !thread.recorder.to_file() {
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
pub fn lost(thread: &mut Thread, pc: u64, start: u64, len: u64, why: &str) {
    if facts().options.undo() {
        let (pc, start, why) = (LiveAddr(pc), LiveAddr(start), why.as_bytes());
        thread.event(WHOLE_UNIT, &Event::Lost { pc, start, len, why });
    }
}

// --- system calls ---

/// What the runtime remembers of a call from before it.
#[derive(Default)]
pub struct Call {
    /// The table does not say all that is written.
    uncertain: bool,
    brk: u64,
}

/// A system call is about to be made: saves what it may write.
pub fn before_call(thread: &mut Thread, number: usize, writes: &Writes) -> Call {
    if !facts().options.undo() {
        return Call::default();
    }
    stamp(thread);
    for &(at, len) in &writes.ranges {
        save(thread, thread.syscall_pc, at, len, WHOLE_UNIT);
    }
    if matches!(number, nr::CLONE | nr::CLONE3) {
        // What these write is there before the new thread runs, which may end before they return.
        stamp(thread);
    }
    let brk = if number == nr::BRK { crate::kernel::brk::brk().current } else { 0 };
    Call { uncertain: writes.elsewhere, brk }
}

/// The call has returned: says what it dropped.
pub fn after_call(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    result: usize,
    before: &Call,
) {
    if !facts().options.undo() {
        return;
    }
    const SET_TID_ADDRESS: usize = 218;
    /// EPERM, EBADF, ENOTTY, ENOSYS: nobody has looked at the memory.
    const REFUSED: [usize; 4] = [1, 9, 25, 38];
    let name = find(number as u64).map_or("unknown system call", |call| call.name);
    let error = sys::check(result).err().map_or(0, |errno| errno as usize);
    if before.uncertain && !REFUSED.contains(&error) {
        lost(thread, thread.syscall_pc, 0, 0, name);
    }
    // These may fail behind a part that they have dropped.
    let result = match number {
        nr::MADVISE if error != 0 => Some(0),
        nr::MMAP if error != 0 => Some(args[0]),
        _ => (error == 0).then_some(result),
    };
    if let Some(result) = result {
        for (start, len) in dropped(number, args, result, before).into_iter().flatten() {
            lost(thread, thread.syscall_pc, start, len, name);
        }
    }
    if error == 0 && number == SET_TID_ADDRESS {
        thread.clear_tid = args[0] as u64;
    }
    stamp(thread);
}

/// Whether advice (`madvise`) drops contents: DONTNEED, FREE, REMOVE, DONTNEED_LOCKED, GUARD_INSTALL.
pub fn drops(advice: u64) -> bool {
    matches!(advice, 4 | 8 | 9 | 24 | 102)
}

/// Ranges whose contents a call dropped that returned `result`.
fn dropped(
    number: usize,
    args: &[usize; 6],
    result: usize,
    before: &Call,
) -> [Option<(u64, u64)>; 2] {
    const SHM_REMAP: u64 = 0x4000;
    const SHMDT: usize = 67;
    const TRUNCATE: usize = 76;
    const REMAP_FILE_PAGES: usize = 216;
    const PROCESS_MADVISE: usize = 440;
    let [a0, a1, a2, a3, ..] = args.map(|a| a as u64);
    let result = result as u64;
    let range = |start: u64, len: u64| [(len > 0).then_some((start, len)), None];
    let somewhere = [Some((0, 0)), None];
    match number {
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
            range(from, page_up(before.brk).saturating_sub(from))
        }
        nr::MADVISE if drops(a2) => range(a0, page_up(a1)),
        PROCESS_MADVISE if drops(a3) => somewhere,
        nr::SHMAT if a2 & SHM_REMAP != 0 => somewhere,
        SHMDT | TRUNCATE | nr::FTRUNCATE | REMAP_FILE_PAGES | nr::FALLOCATE => somewhere,
        _ => [None; 2],
    }
}

// --- stores ---

/// The instruction at `pc` is about to store: saves what it overwrites.
pub fn before_store(thread: &mut Thread, pc: u64) {
    if !thread.recorder.to_file() {
        return;
    }
    let mut bytes = [0u8; 15];
    let mut len = 15;
    while len > 0 && !read_program_bytes(pc, &mut bytes[..len]) {
        len -= 1;
    }
    let insn = Decoder::with_ip(64, &bytes[..len], pc, DecoderOptions::NONE).decode();
    let mut ranges = Vec::new();
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

/// Adds what one reference stores.
fn extent(thread: &Thread, insn: &Instruction, r: &Reference, ranges: &mut Vec<(u64, u64)>) {
    let registers = &thread.block.registers;
    let get = |number: u8| registers.gpr[usize::from(number & 15)];
    let size = u64::from(r.size);
    let scaled = |number, scale: u8| get(number).wrapping_mul(u64::from(scale));
    let mut sum = (r.displacement as u64).wrapping_add(r.base.map_or(0, get));
    match r.index {
        Index::Gpr { number, scale } => sum = sum.wrapping_add(scaled(number, scale)),
        Index::BitOffset { number, operand_bytes, index } => {
            if let Some((number, scale)) = index {
                sum = sum.wrapping_add(scaled(number, scale));
            }
            sum = sum.wrapping_add(bit_word_offset(get(number), operand_bytes));
        }
        Index::LowByte { .. } | Index::Vector { .. } | Index::None => {}
    }
    let segment = match r.segment {
        Segment::Fs => thread.fs_base(),
        Segment::None | Segment::Gs => 0,
    };
    let linear = |sum: u64| {
        let sum = if r.address32 { sum & 0xffff_ffff } else { sum };
        sum.wrapping_add(segment)
    };
    match (r.shape, r.index) {
        (Shape::Repeated, _) => {
            let count = if r.address32 { get(1) & 0xffff_ffff } else { get(1) };
            let len = count.saturating_mul(size).min(1 << 47);
            let at = linear(sum);
            match registers.rflags & DIRECTION_FLAG {
                _ if count == 0 => {}
                0 => ranges.push((at, len)),
                _ => ranges.push((at.wrapping_add(size).wrapping_sub(len), len)),
            }
        }
        (Shape::Gather { elements, mask }, Index::Vector { number, scale, element_bytes }) => {
            let state = State::take(thread);
            let indices = state.vector(thread, number);
            for element in 0..usize::from(elements) {
                let enabled = match mask {
                    GatherMask::Bits(k) => state.mask(k) >> element & 1 == 1,
                    GatherMask::Signs(v) => {
                        let last = (element + 1) * r.size as usize - 1;
                        state.vector(thread, v)[last] & 0x80 != 0
                    }
                };
                if enabled {
                    let from = element * usize::from(element_bytes);
                    let index = match element_bytes {
                        4 => i32::from_le_bytes(array(&indices[from..])) as u64,
                        _ => u64::from_le_bytes(array(&indices[from..])),
                    };
                    let offset = index.wrapping_mul(u64::from(scale));
                    ranges.push((linear(sum.wrapping_add(offset)), size));
                }
            }
        }
        (Shape::Xsave { compacted }, _) => {
            let requested = get(2) << 32 | get(0) & 0xffff_ffff;
            let xsave = &facts().xsave;
            let size = xsave_size(compacted, requested, xsave.xcr0, &xsave.components);
            ranges.push((linear(sum), u64::from(size)));
        }
        _ if is_masked(insn) => masked(thread, insn, linear(sum), size, ranges),
        _ => ranges.push((linear(sum), size)),
    }
}

/// Adds the elements of a contiguous operand that a mask enables.
fn masked(thread: &Thread, insn: &Instruction, at: u64, size: u64, ranges: &mut Vec<(u64, u64)>) {
    use Mnemonic::*;
    let state = State::take(thread);
    let mut element = insn.memory_size().element_size().max(1) as u64;
    let bytes = matches!(insn.mnemonic(), Maskmovq | Maskmovdqu | Vmaskmovdqu);
    if bytes {
        element = 1;
    }
    let enabled = |i: u64| match insn.has_op_mask() {
        true => state.mask(insn.op_mask().number() as u8) >> i & 1 == 1,
        false => {
            // maskmov: the last operand; vmaskmov, vpmaskmov: the one behind the destination.
            let operand = if bytes { insn.op_count() - 1 } else { 1 };
            debug_assert!(insn.op_kind(operand) == OpKind::Register);
            let register = insn.op_register(operand);
            let last = ((i + 1) * element - 1) as usize;
            match register.is_mm() {
                true => state.mmx(register.number())[last & 7] & 0x80 != 0,
                false => state.vector(thread, register.number() as u8)[last & 63] & 0x80 != 0,
            }
        }
    };
    let count = size / element;
    let compress = matches!(
        insn.mnemonic(),
        Vpcompressb | Vpcompressw | Vpcompressd | Vpcompressq | Vcompressps | Vcompresspd
    );
    if compress {
        let stored = (0..count).filter(|&i| enabled(i)).count() as u64;
        return ranges.push((at, stored * element));
    }
    let mut run: Option<u64> = None;
    for i in 0..=count {
        match run {
            _ if i < count && enabled(i) => {
                run.get_or_insert(i);
            }
            Some(first) => {
                ranges.push((at.wrapping_add(first * element), (i - first) * element));
                run = None;
            }
            None => {}
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// The program's vector and mask registers: the runtime uses nothing but xmm0 to xmm15, which are in
/// the thread.
#[repr(C, align(64))]
struct State([u8; 4096]);

impl State {
    /// x87, SSE, AVX, masks, both parts of AVX-512.
    const COMPONENTS: u64 = 0xe7;

    fn take(_thread: &Thread) -> State {
        let mut state = State([0; 4096]);
        let wanted = Self::COMPONENTS & facts().xsave.xcr0;
        if wanted != 0 {
            let at = &raw mut state as u64;
            // SAFETY: aligned, and larger than these components in the standard format.
            unsafe {
                core::arch::asm!("xsave64 [{}]", in(reg) at, in("eax") wanted as u32,
                    in("edx") (wanted >> 32) as u32, options(nostack));
            }
        }
        state
    }

    fn component(&self, number: usize, from: usize, len: usize) -> &[u8] {
        let offset = facts().xsave.components[number].1 as usize + from;
        if facts().xsave.xcr0 >> number & 1 == 0 {
            return &[];
        }
        self.0.get(offset..offset + len).unwrap_or(&[])
    }

    fn mask(&self, k: u8) -> u64 {
        let bytes = self.component(5, 8 * usize::from(k & 7), 8);
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    fn mmx(&self, number: usize) -> [u8; 8] {
        // The registers lie there as the stack has them: the top first.
        let top = usize::from(self.0[3] >> 3 & 7);
        array(&self.0[32 + 16 * (number.wrapping_sub(top) & 7)..])
    }

    fn vector(&self, thread: &Thread, number: u8) -> [u8; 64] {
        let mut out = [0; 64];
        let n = usize::from(number & 31);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match n {
            30 | 31 if thread.vector != 0 => {
                for (i, word) in thread.block.program_vectors[n - 30].iter().enumerate() {
                    put(8 * i, &word.to_le_bytes());
                }
            }
            16.. => put(0, self.component(7, 64 * (n - 16), 64)),
            _ => {
                put(0, &thread.xmm[n][0].to_le_bytes());
                put(8, &thread.xmm[n][1].to_le_bytes());
                put(16, self.component(2, 16 * n, 16));
                put(32, self.component(6, 32 * n, 32));
            }
        }
        out
    }
}

/// The thread ends, and the kernel clears the word that it was asked to clear.
pub fn before_exit(thread: &mut Thread) {
    if thread.clear_tid != 0 {
        save(thread, thread.syscall_pc, thread.clear_tid, 4, WHOLE_UNIT);
        // Whoever writes there next has seen the word cleared, so this comes before it.
        stamp(thread);
    }
}

/// Corrects what the kernel says about a page fault of a snippet that only read ahead.
pub fn as_a_store(trap: u64, error: &mut u64) {
    const PAGE_FAULT: u64 = 14;
    const WRITE: u64 = 2;
    if trap == PAGE_FAULT {
        *error |= WRITE;
    }
}
