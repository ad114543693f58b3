//! What lies behind the hot code: thunks of calls, and the ways of addresses outside the window.

use crate::block::Placement;
use crate::emit::{At, Code};
use crate::fragment::{Branch, Fragment, Thunks};
use crate::loose::{Cold, LooseEnds, Pending, Size};
use abi::ids::{CodeOff, OrigAddr};
use abi::library;
use abi::thread;
use alloc::vec::Vec;
use lifter::regs::{RCX, RSP};

/// Emits what the hot code of the region left for later. Thunks of movable code are left in `thunks`
/// instead, for [`thunks`].
pub(crate) fn emit(
    ends: &mut LooseEnds,
    thunks: &mut Vec<Cold>,
    placement: Placement,
    code: &mut Code,
) {
    let LooseEnds { cold, pending, .. } = ends;
    for cold in cold.drain(..) {
        match cold {
            Cold::Call { .. } | Cold::IndirectCall { .. } if placement.movable => thunks.push(cold),
            Cold::Call { at, return_address, target, from } => {
                code.bind_here(at);
                code.put_return_address(return_address.0);
                if placement.patchable {
                    while code.address(code.here().plus(1)) % 64 > 60 {
                        code.nop(1);
                    }
                }
                let at = code.jump();
                pending.push(Pending { at, target, from, size: Size::Long });
            }
            Cold::IndirectCall { at, return_address } => {
                code.bind_here(at);
                code.put_return_address(return_address.0);
                code.jump_gs(thread::JUMP);
            }
            Cold::Turn { at, back, pc } => {
                code.bind_here(at);
                code.last_turn(pc.0, back);
            }
            Cold::ForeignTarget { at, back, pc } => {
                name_exit(code, at, pc);
                code.load(RCX, thread::STUB_MISS);
                code.store(thread::JUMP, RCX);
                go_back(code, back);
            }
            Cold::ForeignReturn { at, back, pc } => {
                name_exit(code, at, pc);
                code.read(RCX, At(RSP, 0));
                code.store(thread::TARGET, RCX);
                code.load(RCX, thread::STUB_MISS);
                go_back(code, back);
            }
        }
    }
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
