//! What lies behind the hot code: thunks of calls, and the ways of addresses outside the window.

use crate::block::FarWindow;
use crate::emit::{At, Code, LookUp};
use crate::fragment::{Branch, Fragment, Thunks};
use crate::loose::{Cold, LooseEnds, Mend, Pending, Size};
use crate::manner::Manner;
use abi::ids::{CodeOff, OrigAddr};
use abi::library;
use abi::options::Options;
use abi::thread;
use alloc::vec::Vec;
use lifter::regs::{RCX, RSP};

/// Emits what the hot code of the region left for later. Thunks of movable code are left in `thunks`
/// instead, for [`thunks`].
pub(crate) fn emit(
    ends: &mut LooseEnds,
    thunks: &mut Vec<Cold>,
    manner: &Manner,
    options: Options,
    code: &mut Code,
) {
    let placement = manner.placement;
    let LooseEnds { cold, pending, .. } = ends;
    for cold in cold.drain(..) {
        match cold {
            Cold::Call { .. } | Cold::IndirectCall { .. } if placement.movable => thunks.push(cold),
            Cold::Call { at, return_address, target, from } => {
                code.bind_here(at);
                let far = put_return_address(code, return_address, manner);
                if placement.patchable {
                    while code.address(code.here().plus(1)) % 64 > 60 {
                        code.nop(1);
                    }
                }
                let at = code.jump();
                pending.push(Pending { at, target, from, size: Size::Long });
                put_constant(code, far, return_address);
            }
            Cold::IndirectCall { at, return_address } => {
                code.bind_here(at);
                let far = put_return_address(code, return_address, manner);
                code.jump_gs(thread::JUMP);
                put_constant(code, far, return_address);
            }
            Cold::Turn { at, back, pc, saves } => {
                code.bind_here(at);
                code.last_turn(pc.0, back, saves);
            }
            Cold::Mend(Mend { at, back, pc, spilled, rcx_is_saved, why }) => {
                code.bind_here(at);
                for (register, n) in spilled.into_iter().zip(0..) {
                    if let Some(register) = register {
                        code.load(register, thread::SPILL + 8 * n);
                    }
                }
                if !rcx_is_saved {
                    code.store(thread::SAVED_RCX, RCX);
                }
                code.mend(pc.0, back, why);
            }
            Cold::ForeignTarget { at, back, pc } => {
                name_exit(code, at, pc);
                let found = manner.far.map(|far| look_around(code, far, options));
                code.load(RCX, thread::STUB_MISS);
                found.into_iter().flatten().for_each(|at| code.bind_here(at));
                code.store(thread::JUMP, RCX);
                go_back(code, back);
            }
            Cold::ForeignReturn { at, back, pc } => {
                name_exit(code, at, pc);
                match manner.watches {
                    true => {
                        code.load(RCX, thread::VIEW);
                        code.read_sum(8, RCX, RSP, RCX, 0);
                    }
                    false => code.read(RCX, At(RSP, 0)),
                }
                code.store(thread::TARGET, RCX);
                let found = manner.far.map(|far| look_around(code, far, options));
                code.load(RCX, thread::STUB_MISS);
                found.into_iter().flatten().for_each(|at| code.bind_here(at));
                go_back(code, back);
            }
        }
    }
}

/// Puts the original return address on the stack. Both its halves are written in one store, where the
/// program may take all of it off again: a load behind two would wait. Returns where the distance of that
/// constant is, which is to follow.
fn put_return_address(code: &mut Code, original: OrigAddr, manner: &Manner) -> Option<CodeOff> {
    if manner.far.is_none() || !manner.has_scratch_vector() {
        code.put_return_address(original.0);
        return None;
    }
    let at = code.load_scratch_vector();
    code.write_merged();
    Some(at)
}

fn put_constant(code: &mut Code, at: Option<CodeOff>, value: OrigAddr) {
    if let Some(at) = at {
        code.bind_here(at);
        code.word(value.0);
    }
}

/// The transfer comes from `far` and goes to `target` of the thread block: rcx is the translation or the miss
/// stub where a returned jump leads, if the target lies in the program's window, or in `far`, where it has none
/// yet. Elsewhere it is nothing of use behind this.
fn look_around(code: &mut Code, far: FarWindow, options: Options) -> [CodeOff; 2] {
    code.load32(RCX, thread::TARGET + 4);
    code.lea(RCX, At(RCX, -(far.high as i32)));
    let not_here = skip_unless_zero(code);
    code.address_of(RCX, far.miss);
    let missed = code.jump();
    code.bind_here(not_here);
    code.load32(RCX, thread::TARGET + 4);
    code.lea(RCX, At(RCX, -(far.program_high as i32)));
    let not_there = skip_unless_zero(code);
    code.load32(RCX, thread::TARGET);
    match options.return_table() {
        // As the program's own jumps: the low half is all.
        Some(table) if far.program_high == 0 && options.jump_table().entry == 8 => {
            code.look_up(LookUp::LowHalf, table);
        }
        _ => code.look_up_whole(options.jump_table()),
    }
    let found = code.jump();
    code.bind_here(not_there);
    [missed, found]
}

/// Goes on if rcx is zero; the jump whose distance is returned is taken otherwise.
fn skip_unless_zero(code: &mut Code) -> CodeOff {
    let zero = code.jrcxz();
    let other = code.jump();
    code.bind_short(zero);
    other
}

/// The jump at `at` comes here, from the instruction at `pc`.
fn name_exit(code: &mut Code, at: CodeOff, pc: OrigAddr) {
    code.bind_here(at);
    code.address_of(RCX, pc.0);
    code.store(thread::EXIT_ID, RCX);
}

fn go_back(code: &mut Code, back: CodeOff) {
    let at = code.jump();
    code.bind(at, back);
}

/// Emits the thunks of all calls of movable code, in the shape of [`abi::library`]: direct calls
/// first. What they branch to is left in `out.branches`. Returns where they start.
pub(crate) fn thunks(all: &[Cold], out: &mut Fragment) -> Thunks {
    out.code.trap_until(16);
    let start = out.code.here();
    let mut direct = 0;
    for thunk in all {
        let Cold::Call { at, return_address, target, from } = *thunk else { continue };
        out.code.bind_here(at);
        out.code.put_return_address(return_address.0);
        let at = out.code.jump();
        out.branches.push(Branch { at, target, from });
        direct += 1;
        debug_assert_eq!(out.code.here(), start.plus(direct * library::DIRECT_THUNK));
    }
    let first_indirect = out.code.here();
    let mut indirect = 0;
    for thunk in all {
        let Cold::IndirectCall { at, return_address } = *thunk else { continue };
        out.code.bind_here(at);
        out.code.put_return_address(return_address.0);
        out.code.jump_gs(thread::JUMP);
        indirect += 1;
        debug_assert_eq!(out.code.here(), first_indirect.plus(indirect * library::INDIRECT_THUNK));
    }
    Thunks { start, direct, indirect }
}
