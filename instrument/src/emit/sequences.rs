//! Sequences that always have the same shape.

use super::code::{At, Code};
use abi::ids::CodeOff;
use abi::layout::{SYNC_COUNT, SYNC_LOCK};
use abi::thread;
use alloc::vec::Vec;
use lifter::regs::{GprSet, RAX, RCX, RSP};

/// What [`Code::far_link`] is to do.
#[derive(Clone, Copy, Debug)]
pub struct FarLink {
    /// The original address whose translation is at `to`.
    pub address: u64,
    /// Its translation.
    pub to: u64,
    /// The link behind it.
    pub next: Option<u64>,
    /// The miss stub.
    pub miss: u64,
    /// What the high half of `target` is while translated code runs.
    pub window_high: u32,
}

impl Code {
    /// Takes the lock at `lock` (below 2 GiB), waiting for it, and counts at `count`: rcx is the
    /// new number. No flag is touched: `xchg` and `jrcxz` do not need one.
    pub fn lock_and_count(&mut self, lock: u64, count: u64, this: i32) {
        let again = self.here();
        self.load(RCX, this);
        self.absolute(0x87, RCX.0, lock); // xchg [lock], rcx
        let free = self.jrcxz();
        self.raw(&[0xf3, 0x90]); // pause
        let back = self.branch_short(None);
        self.bind_byte(back, again);
        self.bind_short(free);
        self.absolute(0x8b, RCX.0, count);
        self.lea(RCX, At(RCX, 1));
        self.absolute(0x89, RCX.0, count);
    }

    /// Takes the lock of the synchronising instructions and leaves the instruction's number in the
    /// thread block.
    pub fn enter_order(&mut self) {
        self.store(thread::SAVED_RCX, RCX);
        self.lock_and_count(SYNC_LOCK, SYNC_COUNT, thread::THIS);
        self.store(thread::ORDER, RCX);
        self.store_imm(thread::SYNC_HELD, 1);
        self.load(RCX, thread::SAVED_RCX);
    }

    /// Gives the lock of [`Code::enter_order`] back.
    pub fn leave_order(&mut self) {
        self.store_imm(thread::SYNC_HELD, 0);
        self.clear(SYNC_LOCK);
    }

    /// Calls the routine of [`Code::log_call`]. What its return address overwrites, below the program's stack, is as it
    /// was behind that.
    pub fn call_log(&mut self) {
        self.keep_below_stack();
        self.call_gs(thread::LOG_CALL);
        self.restore_below_stack();
    }

    /// The routine that records all registers but rsp and what is in xmm30, the last words of the unit that calls it. No
    /// register is changed, and no flag.
    pub fn log_call(&mut self) {
        const WORDS: i32 = 16;
        self.store(thread::SPILL, RAX);
        self.memory_pointer(RAX, 31);
        let places = (-WORDS..).map(|word| At(RAX, 8 * word));
        let registers = GprSet::ALL.minus(GprSet::of(RSP));
        for (place, register) in places.zip(registers.iter()).skip(1) {
            self.write(place, register);
        }
        self.write_kept();
        self.load(RCX, thread::SPILL);
        self.write(At(RAX, -8 * WORDS), RCX);
        self.read(RCX, At(RAX, -8 * (WORDS - 1)));
        self.load(RAX, thread::SPILL);
        self.u8(0xc3);
    }

    /// A direct branch to original code that has no translation yet: by way of a miss.
    pub fn exit_to(&mut self, target: u64) {
        self.name_target(target);
        self.jump_gs(thread::STUB_MISS);
    }

    /// Hands the instruction at `pc`, which cannot be translated, to the runtime, which says so and
    /// stops.
    pub fn refuse(&mut self, pc: u64, why: u32) {
        self.name_target(pc);
        self.store_imm(thread::EXIT_ID, why);
        self.jump_gs(thread::STUB_REFUSE);
    }

    /// Leaves an original address in the thread block; all registers stay as they are.
    fn name_target(&mut self, target: u64) {
        self.store(thread::SAVED_RCX, RCX);
        self.address_of(RCX, target);
        self.store(thread::TARGET, RCX);
        self.load(RCX, thread::SAVED_RCX);
    }

    /// Where transfers to addresses outside of the window go: to the chain of compares for the low 16
    /// bits of `target`, which `slots` (8 bytes each) has the start of, or to the miss stub at `miss`. False if that is
    /// out of reach. All registers and flags stay as they are; rcx is in the thread block.
    #[must_use]
    pub fn far_front(&mut self, slots: u64, miss: u64) -> bool {
        self.store(thread::SAVED_RCX, RCX);
        self.store(thread::JUMP, RAX);
        self.raw(&[0x65, 0x0f, 0xb7, 0x0c, 0x25]); // movzx ecx, word gs:[target]
        self.i32(thread::TARGET);
        self.constant(RAX, slots);
        self.raw(&[0x48, 0x8b, 0x0c, 0xc8]); // mov rcx, [rax + rcx*8]
        self.load(RAX, thread::JUMP);
        let nothing = self.jrcxz();
        self.raw(&[0xff, 0xe1]); // jmp rcx
        self.bind_short(nothing);
        self.load(RCX, thread::SAVED_RCX);
        let at = self.jump();
        self.patch_rel32(at, miss)
    }

    /// One link of such a chain: goes to `to` if `target` is `address`, else on to `next`, and at the end
    /// of the chain to the miss stub at `miss`, with the program's rcx. False if one of them is out of reach.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the halves of an address")]
    pub fn far_link(&mut self, far: FarLink) -> bool {
        let halves = [
            (thread::TARGET, far.address as u32),
            (thread::TARGET + 4, (far.address >> 32) as u32),
        ];
        let mut others = Vec::new();
        for (at, half) in halves {
            self.constant(RCX, u64::from(half));
            self.crc_rcx(at);
            let same = self.jrcxz();
            others.push(self.jump());
            self.bind_short(same);
        }
        self.store_imm(thread::TARGET + 4, far.window_high);
        self.load(RCX, thread::SAVED_RCX);
        let at = self.jump();
        let mut reaches = self.patch_rel32(at, far.to);
        match far.next {
            Some(next) => {
                for at in others {
                    reaches &= self.patch_rel32(at, next);
                }
            }
            None => {
                others.into_iter().for_each(|at| self.bind_here(at));
                self.load(RCX, thread::SAVED_RCX);
                let at = self.jump();
                reaches &= self.patch_rel32(at, far.miss);
            }
        }
        reaches
    }

    /// Lets the runtime save what the instruction at `pc`, which follows, is going to overwrite.
    pub fn announce_store(&mut self, pc: u64) {
        self.tell(pc, thread::STUB_STORE);
    }

    /// Lets the runtime look at the slot that has led here for the jump at `pc`, and goes on behind this: the first
    /// time.
    pub fn fill_slot(&mut self, pc: u64) {
        self.tell(pc, thread::STUB_FILL);
    }

    /// Enters the runtime by way of `stub` for the instruction at `pc`, with all registers the program's, and goes on
    /// behind this.
    fn tell(&mut self, pc: u64, stub: i32) {
        self.store(thread::SAVED_RCX, RCX);
        self.address_of(RCX, pc);
        self.store(thread::TARGET, RCX);
        let behind = self.lea_rcx_ahead();
        self.store(thread::RESUME, RCX);
        self.load(RCX, thread::SAVED_RCX);
        self.jump_gs(stub);
        self.bind_here(behind);
    }

    /// Leaves at the last turn of a replay's stretch, in front of the instruction at `pc`, which goes on
    /// at `back`; if `saves`, with rcx in the thread block. There it is now.
    pub fn last_turn(&mut self, pc: u64, back: CodeOff, saves: bool) {
        self.address_of(RCX, pc);
        self.store(thread::TARGET, RCX);
        let behind = self.lea_rcx_ahead();
        self.store(thread::RESUME, RCX);
        self.load(RCX, thread::SAVED_RCX);
        self.jump_gs(thread::STUB_TURN);
        if saves {
            self.bind_here(behind);
            self.store(thread::SAVED_RCX, RCX);
            let at = self.jump();
            self.bind(at, back);
        } else {
            self.bind(behind, back);
        }
    }

    /// Lets the runtime answer in place of the instruction at `pc`, which asks the machine. It resumes
    /// at the instruction itself, which is to follow, if the processor is to refuse it; else behind.
    pub fn ask(&mut self, pc: u64) {
        self.store(thread::SAVED_RCX, RCX);
        self.address_of(RCX, pc);
        self.store(thread::TARGET, RCX);
        let here = self.lea_rcx_ahead();
        self.store(thread::RESUME, RCX);
        self.load(RCX, thread::SAVED_RCX);
        self.jump_gs(thread::STUB_ASK);
        self.bind_here(here);
    }

    /// Lets the runtime mend the view; the program goes on at `back`, with the instruction at `pc` or behind it.
    /// rcx is in the thread block. `why`: of [`thread::watch`].
    pub fn mend(&mut self, pc: u64, back: CodeOff, why: u32) {
        self.address_of(RCX, pc);
        self.store(thread::TARGET, RCX);
        let again = self.lea_rcx_ahead();
        self.bind(again, back);
        self.store(thread::RESUME, RCX);
        self.store_imm(thread::EXIT_ID, why);
        self.load(RCX, thread::SAVED_RCX);
        self.jump_gs(thread::STUB_WATCH);
    }

    /// Lets the runtime act for the instruction at `pc`, and goes on here. `why`: of [`thread::watch`].
    pub fn watch(&mut self, pc: u64, why: u32) {
        self.store(thread::SAVED_RCX, RCX);
        self.address_of(RCX, pc);
        self.store(thread::TARGET, RCX);
        let here = self.lea_rcx_ahead();
        self.store(thread::RESUME, RCX);
        self.store_imm(thread::EXIT_ID, why);
        self.load(RCX, thread::SAVED_RCX);
        self.jump_gs(thread::STUB_WATCH);
        self.bind_here(here);
    }

    /// Lets the runtime carry out the instruction at `pc`. It is to follow here, for a processor that
    /// is to carry it out after all; returns the place of the distance to what is behind it.
    pub fn carry_out(&mut self, pc: u64) -> CodeOff {
        self.store(thread::SAVED_RCX, RCX);
        let behind = self.lea_rcx_ahead();
        self.store(thread::BEHIND, RCX);
        self.load(RCX, thread::SAVED_RCX);
        self.watch(pc, thread::watch::CARRY_OUT);
        behind
    }

    /// Overwrites the return address that a hardware call just pushed.
    #[allow(clippy::cast_possible_truncation, reason = "the address is put in its two halves")]
    pub fn put_return_address(&mut self, original: u64) {
        self.write_imm(At(RSP, 0), original as u32);
        // Code outside the window (generated by the program, vdso) differs in both halves.
        let high = (original >> 32) as u32;
        if self.base >> 32 != u64::from(high) {
            self.write_imm(At(RSP, 4), high);
        }
    }
}
