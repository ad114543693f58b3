//! One unit: prologue, records, moved instructions.
//!
//! Prologue (only if something is recorded): write the control-flow record, then advance both
//! pointers in one instruction. Behind a full control-flow stream the record faults before the
//! pointers move, so the runtime can switch chunks and start the unit again: every chunk is cut at
//! a unit boundary, and nothing has to be undone. The memory stream needs no check: it may overrun
//! its end by what one unit adds, into an overflow area whose first use makes the runtime end the
//! chunk at the next unit.

use crate::plan::UnitPlan;
use crate::weaver::Weaver;
use abi::unit::{Record, What};
use iced_x86::Instruction;
use lifter::flow::Flow;

/// Emits the unit.
pub(crate) fn unit(mut weaver: Weaver) {
    let draft = weaver.unit;
    let UnitPlan { records, announces_store, .. } = draft.plan;
    if weaver.manner.placement.patchable {
        weaver.code().gate();
    }
    if *announces_store {
        let start = draft.block.start.0;
        weaver.code().announce_store(start);
    }
    weaver.prologue();
    weaver.ahead = weaver.find_ahead();
    let mut records = records.as_slice();
    for (i, insn) in draft.insns.iter().enumerate() {
        let here = records.iter().take_while(|r| usize::from(r.insn) == i).count();
        let (mine, rest) = records.split_at(here);
        records = rest;
        let after = mine.iter().position(|r| matches!(r.what, What::After(_)));
        let (before, after) = mine.split_at(after.unwrap_or(mine.len()));
        if before.iter().any(|r| r.what == What::Order) {
            weaver.synchronising(insn, i, before);
        } else if instruction(&mut weaver, insn, i, before) {
            return;
        }
        weaver.executed(i);
        for record in after {
            let live = weaver.unit.live.after(i);
            weaver.record(insn, i, live, record);
        }
    }
    weaver.go_on(draft.block.behind());
}

/// Emits instruction `i` with the records in front of it; true if it ends the unit.
fn instruction(weaver: &mut Weaver, insn: &Instruction, i: usize, before: &[Record]) -> bool {
    let needs_own = weaver.needs_own_vectors(insn);
    let mut own_vectors = [None; 2];
    let before = match weaver.is_logged_call(before) {
        true => {
            weaver.log_call(before);
            &[]
        }
        false => before,
    };
    let registers = before.iter().take_while(|r| matches!(r.what, What::Before(_))).count();
    let (registers, before) = before.split_at(registers);
    if !registers.is_empty() {
        weaver.registers(insn, i, registers);
    }
    for record in before {
        match record.what {
            What::Vector(v) if needs_own && weaver.manner.claims(v.into()) => {
                let place = (v, weaver.place(record.what.size()));
                let free = own_vectors.iter_mut().find(|place| place.is_none());
                // An instruction names one vector of indices, and one that says which of them.
                *free.expect("two vectors are recorded at most") = Some(place);
            }
            What::Old(_) => weaver.read_ahead(insn, i),
            _ => weaver.record(insn, i, weaver.unit.live.before(i), record),
        }
    }
    if i + 1 == weaver.unit.insns.len() && Flow::of(insn).ends_unit() {
        weaver.transfer(insn, i);
        return true;
    }
    if weaver.unit.dispatch.is_some_and(|d| d.load == i && !d.is_direct) {
        weaver.take_slot();
    }
    if weaver.ahead.is_some_and(|ahead| ahead.at == i) {
        weaver.look_ahead();
    }
    if needs_own && weaver.manner.watches {
        weaver.watched_with_own_vectors(insn, i);
    } else if needs_own {
        weaver.with_own_vectors(insn, i, own_vectors);
    } else {
        weaver.moved(insn, i);
    }
    false
}
