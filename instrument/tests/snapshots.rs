//! What the translator makes of small pieces of code, for people to read: the listings in
//! `snapshots/` show each original instruction beside what was emitted for it.
//!
//! Each listing is also checked for what can be checked mechanically: inserted code leaves flags
//! and live registers alone, and each record is written once, in its place, from its register.

#![allow(clippy::cast_possible_truncation, reason = "small numbers and low halves of a test")]

use std::collections::BTreeMap;
use std::fmt::Write;

use abi::ids::{CodeOff, Gpr, OrigAddr, UnitId};
use abi::options::{
    torture, ControlFlow, DeadRegisters, Instrument, Memory, Options, Pointers, ProcessOptions,
    RecordingOptions,
};
use abi::selection::Selected;
use abi::thread;
use abi::unit::{UnitBody, What};
use iced_x86::code_asm::*;
use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, InstructionInfoFactory, IntelFormatter,
    Mnemonic, OpKind, Register, RflagsBits, SymbolResolver, SymbolResult,
};
use instrument::block::{Block, Placement, Slots, Source};
use instrument::fragment::{recipe_of, Fragment};
use instrument::recipe::{Entry, Kind};
use instrument::translate::Translator;
use lifter::flow::Flow;
use lifter::regs::{gpr_number, GprSet, RSP};
use lifter::use_def::{use_def, UseDef};

/// Where the original code lies.
const ORIGINAL: u64 = 0x40_1000;
/// Where the translated code goes.
const TRANSLATED: u64 = 0x5000_0000;

/// Rewritten ahead of time, at fixed addresses.
const FIXED: Placement = Placement {
    window_high: Some(0),
    patchable: false,
    movable: false,
    constant: Slots { start: 0, end: 0, room: 0 },
    exact_registers: false,
};

struct Case {
    options: Options,
    placement: Placement,
    original: u64,
    translated: u64,
    /// Blocks that cannot be reached indirectly, by number.
    narrow: &'static [usize],
    /// Numbers of instructions at which blocks start, besides those behind transfers.
    cuts: &'static [usize],
    /// Units from this block on are in another window.
    other_window: usize,
    /// What is recorded.
    selected: Selected<'static>,
    /// Where there may be tables whose jumps take slots.
    tables: &'static [[u64; 2]],
    /// All instructions are marked.
    marked: bool,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            options: Options::default(),
            placement: FIXED,
            original: ORIGINAL,
            translated: TRANSLATED,
            narrow: &[],
            cuts: &[],
            other_window: usize::MAX,
            selected: Selected::EVERYTHING,
            tables: &[],
            marked: false,
        }
    }
}

fn what(what: What) -> String {
    match what {
        What::Before(r) => format!("{} before", r.name()),
        What::After(r) => format!("{} after", r.name()),
        What::Address(n) => format!("address of operand {n}"),
        What::Vector(v) => format!("zmm{v}"),
        What::Mask(k) => format!("k{k}"),
        What::Order => "order".into(),
        What::Old(words) => format!("{} old bytes", 8 * words),
    }
}

/// Names of the thread block's fields.
fn field(offset: i32) -> Option<String> {
    let name = match offset {
        thread::STUB_MISS => "stub_miss",
        thread::STUB_SYSCALL => "stub_syscall",
        thread::STUB_EXIT => "stub_exit",
        thread::STUB_REFUSE => "stub_refuse",
        thread::SAVED_RCX => "saved_rcx",
        thread::TARGET => "target",
        thread::JUMP => "jump",
        thread::WINDOW_HIGH => "window_high",
        thread::EXIT_ID => "exit_id",
        offset if (thread::PROGRAM_VECTORS..thread::REGISTERS).contains(&offset) => {
            let number = thread::FIRST_VECTOR as i32 + (offset - thread::PROGRAM_VECTORS) / 64;
            return Some(format!("program_zmm{number}"));
        }
        thread::RESUME => "resume",
        thread::STUB_STORE => "stub_store",
        thread::ORDER => "order",
        thread::SYNC_HELD => "sync_held",
        thread::TURNS_LEFT => "turns_left",
        thread::STUB_TURN => "stub_turn",
        thread::STUB_ASK => "stub_ask",
        thread::STUB_FILL => "stub_fill",
        thread::JUMP_ENTRIES => "jump_entries",
        thread::STUB_WATCH => "stub_watch",
        thread::LOG_CALL => "log_call",
        thread::SHARED_PAGES => "shared_pages",
        thread::SHARED_OPEN => "shared_open",
        thread::SHARED_LEFT => "shared_left",
        thread::SHARED_BACK => "shared_back",
        thread::PROGRAM_FS => "program_fs",
        thread::PROGRAM_GS => "program_gs",
        thread::VIEW => "view",
        thread::VIEW_BACK => "view_back",
        thread::BEHIND => "behind",
        _ => "",
    };
    if !name.is_empty() {
        return Some(name.into());
    }
    let part = |name: &str, start: i32, len: i32| {
        (start..start + len).contains(&offset).then(|| match offset - start {
            0 => name.to_string(),
            more => format!("{name}+{more}"),
        })
    };
    part("target", thread::TARGET, 8)
        .or_else(|| part("spill", thread::SPILL, 16))
        .or_else(|| part("view_spill", thread::VIEW_SPILL, 16))
        .or_else(|| part("pointers", thread::POINTERS, 16))
        .or_else(|| {
            let n = usize::try_from(offset - thread::INCREMENTS).ok()? / 16;
            let (cf, words) = (n / thread::MEM_STEPS, n % thread::MEM_STEPS);
            let cf = thread::CF_LENGTHS.get(cf)?;
            Some(format!("advance control flow {cf}, memory {}", 8 * words))
        })
}

/// Labels: fields of the thread block and places in the code.
struct Names {
    places: BTreeMap<u64, String>,
    translated: bool,
}

/// What a biased index is added to.
const JUMPS: u64 = abi::layout::JUMP_TABLE.base - 8 * abi::layout::JUMP_BIAS as u64;

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        insn: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _size: u32,
    ) -> Option<SymbolResult<'_>> {
        let thread_block = insn.segment_prefix() == Register::GS;
        let no_registers =
            insn.memory_base() == Register::None && insn.memory_index() == Register::None;
        if self.translated && thread_block && no_registers && insn.op_kinds().any(is_memory) {
            return field(address as i32).map(|name| SymbolResult::with_string(address, name));
        }
        match address {
            abi::layout::TABLE_BASE if insn.memory_index_scale() == 4 => {
                return Some(SymbolResult::with_str(address, "returns"));
            }
            abi::layout::TABLE_BASE => return Some(SymbolResult::with_str(address, "T")),
            JUMPS if insn.memory_index_scale() == 8 => {
                return Some(SymbolResult::with_str(address, "jumps-8*bias"));
            }
            abi::layout::SYNC_LOCK => return Some(SymbolResult::with_str(address, "sync_lock")),
            abi::layout::SYNC_COUNT => return Some(SymbolResult::with_str(address, "sync_count")),
            _ => {}
        }
        self.places.get(&address).map(|name| SymbolResult::with_string(address, name.clone()))
    }
}

fn is_memory(kind: OpKind) -> bool {
    kind == OpKind::Memory
}

fn formatter(places: &BTreeMap<u64, String>, translated: bool) -> IntelFormatter {
    let names = Names { places: places.clone(), translated };
    IntelFormatter::with_options(Some(Box::new(names)), None)
}

fn text(formatter: &mut IntelFormatter, insn: &Instruction) -> String {
    let mut out = String::new();
    formatter.format(insn, &mut out);
    for noise in ["qword ptr ", "zmmword ptr ", "ymmword ptr ", "xmmword ptr "] {
        out = out.replace(noise, "");
    }
    out
}

fn decode(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
}

/// Cuts the code into blocks, as discovery would.
fn blocks(case: &Case, insns: &[Instruction]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fresh = true;
    for (n, insn) in insns.iter().enumerate() {
        if fresh || case.cuts.contains(&n) {
            let number = blocks.len();
            let window = if number >= case.other_window { 2 } else { 1 };
            blocks.push(Block {
                start: OrigAddr(insn.ip()),
                len: 0,
                id: UnitId::new(window, 16 + number as u16),
                version: 0,
                wide: !case.narrow.contains(&number),
                open: true,
                is_linked: false,
            });
        }
        blocks.last_mut().expect("a block").len += insn.len() as u32;
        fresh = Flow::of(insn).ends_unit();
    }
    blocks
}

fn listing(case: &Case, code: &[u8]) -> String {
    let insns = decode(code, case.original);
    let blocks = blocks(case, &insns);
    let mut fragment = Fragment::new(case.translated);
    let mut translator = Translator::new(case.options, case.placement);
    translator.tables = case.tables.to_vec();
    if case.marked {
        translator.marked = insns.iter().map(Instruction::ip).collect();
    }
    let source = Source { start: OrigAddr(case.original), bytes: code, selected: case.selected };
    translator.translate(&blocks, source, &mut fragment);

    let mut original_places = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (block, unit) in blocks.iter().zip(&fragment.units) {
        original_places.insert(block.start.0, format!("{:x}", block.start));
        places.insert(fragment.code.address(unit.entry), format!("unit_{:x}", unit.start));
    }
    // What is patched while others run it is written in one piece.
    for branch in fragment.branches.iter().filter(|_| case.placement.patchable) {
        let at = fragment.code.address(branch.at);
        assert_eq!(at / 64, (at + 3) / 64, "a distance crosses a line at {at:#x}");
    }
    // Branches out of the region show the original address that they are waiting for.
    let mut bytes = fragment.code.bytes.clone();
    for (n, branch) in fragment.branches.iter().enumerate() {
        let place = fragment.code.address(CodeOff(bytes.len() as u32)) + 0x1000 + n as u64;
        let distance = place.wrapping_sub(fragment.code.address(branch.at.plus(4))) as i32;
        bytes[branch.at.0 as usize..][..4].copy_from_slice(&distance.to_le_bytes());
        places.insert(place, format!("original {:x}", branch.target));
    }
    let emitted = decode(&bytes, case.translated);
    // Other places that are branched to.
    let mut number = 0;
    for insn in &emitted {
        let target = insn.near_branch_target();
        let inside = target.wrapping_sub(case.translated) <= bytes.len() as u64;
        let branches = insn.op0_kind() == OpKind::NearBranch64;
        if branches && inside && !places.contains_key(&target) {
            number += 1;
            places.insert(target, format!("L{number}"));
        }
    }
    let mut original_text = formatter(&original_places, false);
    let mut emitted_text = formatter(&places, true);

    let mut out = String::new();
    let mut at = emitted.iter().peekable();
    for (block, unit) in blocks.iter().zip(&fragment.units) {
        let list: Vec<_> = insns
            .iter()
            .filter(|i| (block.start..block.behind()).contains(&OrigAddr(i.ip())))
            .collect();
        let recipe = recipe_of(unit, &fragment.recipes).expect("a recipe");
        let entries: Vec<_> = recipe.entries().collect();
        let whole = entries.iter().filter(|e| e.length > 0).count();
        assert_eq!(whole, list.len(), "an entry for each instruction");
        let wide = if unit.wide { "wide" } else { "narrow" };
        let _ = writeln!(out, "unit {:x} ({wide}, id {:x})", unit.start, unit.id);
        let header = recipe.header();
        let dead = |set: GprSet| {
            let names = GprSet::ALL.minus(set);
            let names: Vec<_> = names.iter().map(Gpr::name).collect();
            if names.is_empty() {
                "none".to_string()
            } else {
                names.join(" ")
            }
        };
        let _ = writeln!(out, "  dead: {} -> {}", dead(header.live_in), dead(header.live_out));
        let mut place = -(unit.body.memory_bytes() as i32);
        for record in &unit.body.records {
            let _ = writeln!(out, "  record {} of {}: {}", place, record.insn, what(record.what));
            place += record.what.size() as i32;
        }
        let end = fragment.code.address(unit.end);
        let code: Vec<_> = emitted
            .iter()
            .filter(|i| (fragment.code.address(unit.entry)..end).contains(&i.ip()))
            .collect();
        let start = fragment.code.address(unit.entry);
        let live_out = recipe.header().live_out;
        // What is watched runs on another place of memory, and changes flags where they are dead.
        let watches = case.options.recording.watches();
        let keeps_flags = !watches || case.options.process.torture & torture::SPILL != 0;
        // (What is marked is there twice.)
        if !watches && !case.marked {
            Check::new(&unit.body, &list).run(&code, start, &entries, live_out);
        }
        while let Some(insn) = at.next_if(|i| i.ip() < end) {
            let offset = (insn.ip() - fragment.code.address(unit.entry)) as u32;
            let here: Vec<_> = entries.iter().filter(|e| e.code == offset).collect();
            let (last, silent) = match here.split_last() {
                Some((last, silent)) => (Some(*last), silent),
                None => (None, &[][..]),
            };
            for entry in silent {
                let original = text(&mut original_text, list[entry.insn as usize]);
                line(&mut out, &original, "", "nothing to do");
            }
            let label = places.get(&insn.ip()).filter(|name| name.starts_with('L'));
            if let Some(label) = label {
                let _ = writeln!(out, "{label}:");
            }
            let entry = last.filter(|e| e.length > 0).map(|e| list[e.insn as usize]);
            let original = entry.map(|e| text(&mut original_text, e)).unwrap_or_default();
            let reason = match last.map(|e| (e.kind, e.register)) {
                None => String::new(),
                Some((Kind::Plain, _)) => "plain".into(),
                Some((Kind::SavedRcx, _)) => "rcx saved".into(),
                Some((Kind::SavedVector, _)) => "rcx and xmm7 saved".into(),
                Some((Kind::Scratch, r)) => format!("{} saved", r.name()),
                Some((Kind::Pointers | Kind::PointersScratch, _)) => "pointers saved".into(),
                Some((Kind::ReadAhead, _)) => format!("read ahead{}", borrowed(last)),
                Some((Kind::Sync, _)) => format!("in order{}", borrowed(last)),
                Some((Kind::Ahead, _)) => "looked up ahead".into(),
                Some((Kind::UsedUp, _)) => format!("used up{}", borrowed(last)),
                Some((Kind::Watched, _)) => format!("watched{}", borrowed(last)),
                Some((Kind::Marked, _)) => format!("marked{}", borrowed(last)),
            };
            line(&mut out, &original, &text(&mut emitted_text, insn), &reason);
            if keeps_flags {
                leaves_flags_alone(insn, &list);
            }
        }
        for entry in entries.iter().filter(|e| e.code == unit.end.0 - unit.entry.0) {
            let original = text(&mut original_text, list[entry.insn as usize]);
            line(&mut out, &original, "", "nothing to do");
        }
    }
    if at.peek().is_some() {
        out.push_str("cold\n");
    }
    for insn in at {
        if let Some(label) = places.get(&insn.ip()).filter(|name| name.starts_with('L')) {
            let _ = writeln!(out, "{label}:");
        }
        line(&mut out, "", &text(&mut emitted_text, insn), "");
        leaves_flags_alone(insn, &[]);
    }
    out
}

/// The registers that a snippet has in the thread block when it reads.
fn borrowed(entry: Option<&Entry>) -> String {
    let spilled = entry.map_or([None; 2], |e| e.spilled(1));
    let names = spilled.into_iter().flatten().map(Gpr::name);
    names.fold(String::new(), |text, name| format!("{text}, {name} saved"))
}

fn line(out: &mut String, original: &str, emitted: &str, reason: &str) {
    let line = format!("  {original:36} | {emitted:56} | {reason}");
    out.push_str(line.trim_end().trim_end_matches('|').trim_end());
    out.push('\n');
}

/// Follows the emitted code of a unit.
struct Check<'a> {
    originals: &'a [&'a Instruction],
    /// Records that are not written yet, by place; of which instruction.
    missing: BTreeMap<i32, (u8, What)>,
    /// Registers that are recorded as they are before an instruction.
    written: Vec<(u8, Gpr)>,
    /// Places of the record of old bytes that was begun last.
    old: std::ops::Range<i32>,
    /// xmm30 has been read from memory, and not been written yet.
    kept: bool,
    /// Registers that hold the memory-stream pointer.
    pointers: GprSet,
    /// Registers whose values wait in the thread block.
    spilled: GprSet,
    /// Registers whose values are lost: nobody may read them before they are written again.
    lost: GprSet,
    factory: InstructionInfoFactory,
}

impl<'a> Check<'a> {
    fn new(body: &UnitBody, originals: &'a [&'a Instruction]) -> Check<'a> {
        let mut missing = BTreeMap::new();
        let mut place = -(body.memory_bytes() as i32);
        for record in &body.records {
            missing.insert(place, (record.insn, record.what));
            place += record.what.size() as i32;
        }
        Check {
            originals,
            missing,
            written: Vec::new(),
            old: 0..0,
            kept: false,
            pointers: GprSet::EMPTY,
            spilled: GprSet::EMPTY,
            lost: GprSet::EMPTY,
            factory: InstructionInfoFactory::new(),
        }
    }

    fn run(mut self, code: &[&Instruction], start: u64, entries: &[Entry], live_out: GprSet) {
        for insn in code {
            let entry = entries.iter().rev().find(|e| u64::from(e.code) <= insn.ip() - start);
            let original = entry.map(|e| self.originals[e.insn as usize]);
            let at_boundary = entry.is_some_and(|e| u64::from(e.code) == insn.ip() - start);
            if let Some(entry) = entry.filter(|e| at_boundary && e.kind != Kind::Pointers) {
                let waiting: GprSet = entry.spilled(0).into_iter().flatten().collect();
                assert_eq!(self.spilled, waiting, "what waits in the thread block at {insn:?}");
            }
            if let Some(entry) = entry.filter(|entry| at_boundary && entry.length > 0) {
                let changed = use_def(self.originals[entry.insn as usize], &mut self.factory);
                let too_early =
                    |&(n, r): &(u8, Gpr)| u32::from(n) > entry.insn && changed.written.contains(r);
                assert!(!self.written.iter().any(too_early), "recorded too early: {insn:?}");
            }
            if let Some(entry) = entry.filter(|e| at_boundary && e.may_return() && e.saves_rcx()) {
                // A sequence of its own, the last of the unit.
                let used = use_def(self.originals[entry.insn as usize], &mut self.factory).used;
                self.read(used);
                break;
            }
            let same = original.is_some_and(|o| {
                let own = insn.segment_prefix() == Register::GS;
                let inside = (insn.ip() - start) as u32 - entry.map_or(0, |e| e.code);
                let ahead = entry.is_some_and(|e| e.reads_ahead(inside) || e.looks_ahead());
                !own && !ahead
                    && o.mnemonic() == insn.mnemonic()
                    && o.op0_kind() == insn.op0_kind()
                    && o.op0_register() == insn.op0_register()
                    && (at_boundary
                        || entry.is_some_and(|e| e.kind != Kind::Plain)
                        // Behind the count of its turn.
                        || Flow::of(o).ends_unit())
            });
            let effect = use_def(insn, &mut self.factory);
            if same {
                // In its changed form it may use what is spilled.
                self.read(effect.used.minus(self.spilled));
                if entry.is_some_and(|e| e.kind == Kind::UsedUp) {
                    let lost = effect.used.minus(GprSet::ALL.minus(self.spilled));
                    assert!(lost.is_empty(), "{insn:?} reads what was used up");
                    self.spilled = self.spilled.minus(effect.defined);
                }
                self.lost = self.lost.minus(effect.defined);
                self.pointers = self.pointers.minus(effect.written);
            } else {
                self.inserted(insn, effect);
                // Other instructions give their results.
                let other = |o: &&Instruction| {
                    matches!(o.mnemonic(), Mnemonic::Syscall | Mnemonic::Rdgsbase)
                };
                if let Some(other) = original.filter(other) {
                    let overwritten = use_def(other, &mut self.factory).defined;
                    self.lost = self.lost.minus(overwritten);
                }
            }
        }
        self.read(live_out);
        assert!(self.missing.is_empty(), "records that are not written: {:?}", self.missing);
    }

    fn read(&self, used: GprSet) {
        for register in used.iter() {
            assert!(!self.lost.contains(register), "{} is lost", register.name());
        }
    }

    fn inserted(&mut self, insn: &Instruction, effect: UseDef) {
        let own = insn.segment_prefix() == Register::GS;
        let field = insn.memory_displacement64() as i32;
        let spill = own
            && (field == thread::SAVED_RCX || (thread::SPILL..thread::SPILL + 16).contains(&field));
        let base = gpr_number(insn.memory_base());
        if own && field == thread::LOG_CALL {
            return self.logged_call();
        }
        let writes_memory = insn.op0_kind() == OpKind::Memory;
        if insn.op0_register().number() == 30 && insn.op1_kind() == OpKind::Memory && !own {
            self.kept = true;
        }
        if spill && writes_memory {
            let register = gpr_number(insn.op1_register()).expect("a register");
            self.read(GprSet::of(register));
            assert!(!self.spilled.contains(register), "spilled twice");
            self.spilled.insert(register);
            return;
        }
        if spill {
            let register = gpr_number(insn.op0_register()).expect("a register");
            assert!(self.spilled.contains(register), "was not spilled");
            self.spilled.remove(register);
            self.pointers.remove(register);
            return;
        }
        if writes_memory && base.is_some_and(|b| self.pointers.contains(b)) {
            self.record(insn);
        }
        for register in effect.written.iter() {
            self.pointers.remove(register);
            if !self.spilled.contains(register) {
                self.lost.insert(register);
            }
        }
        let number_of_pointer = (thread::POINTERS..thread::POINTERS + 16).contains(&field)
            && insn.op1_register().is_gpr();
        let from_vector = insn.mnemonic() == Mnemonic::Vpextrq;
        if from_vector || own && field == thread::POINTERS + 8 && !writes_memory {
            self.pointers.insert(gpr_number(insn.op0_register()).expect("a register"));
        }
        if insn.mnemonic() == Mnemonic::Vpaddq || own && writes_memory && number_of_pointer {
            self.pointers = GprSet::EMPTY;
        }
    }

    /// The routine writes all registers, as they are, and what is kept in xmm30.
    fn logged_call(&mut self) {
        assert!(self.kept, "nothing is kept of what the routine overwrites");
        let registers = GprSet::ALL.minus(GprSet::of(RSP));
        self.read(registers);
        assert!(self.spilled.is_empty());
        let written = registers.iter().map(What::Before).chain([What::Old(1)]);
        for (place, what) in (-128..).step_by(8).zip(written) {
            assert_eq!(self.missing.remove(&place).map(|(_, what)| what), Some(what));
        }
    }

    fn record(&mut self, insn: &Instruction) {
        let place = insn.memory_displacement64() as i32;
        if self.old.contains(&place) {
            return;
        }
        let (n, what) =
            self.missing.remove(&place).unwrap_or_else(|| panic!("no record at {place}"));
        let register = insn.op1_register();
        let number = gpr_number(register);
        match what {
            What::Before(r) | What::After(r) => {
                assert_eq!(number, Some(r));
                self.read(GprSet::of(r));
                assert!(!self.spilled.contains(r), "{register:?} is not the program's");
                if what == What::Before(r) {
                    self.written.push((n, r));
                }
            }
            What::Address(_) | What::Order => assert!(number.is_some()),
            What::Old(words) => {
                let is_kept = register.number() == 30 && std::mem::take(&mut self.kept);
                assert!(number.is_some() || is_kept);
                self.old = place + 1..place + 8 * i32::from(words);
            }
            What::Vector(v) => {
                assert!(register.is_vector_register());
                assert_eq!(register.number(), usize::from(v));
            }
            What::Mask(k) => {
                assert_eq!((register.is_k(), register.number()), (true, usize::from(k)))
            }
        }
    }
}

/// What is not an instruction of the program does not touch flags.
fn leaves_flags_alone(insn: &Instruction, originals: &[&Instruction]) {
    let copied = originals.iter().any(|o| o.mnemonic() == insn.mnemonic());
    assert!(copied || insn.rflags_modified() == RflagsBits::NONE, "{insn:?} touches flags");
}

fn assemble(write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).expect("an assembler");
    write(&mut a).expect("instructions");
    a.assemble(ORIGINAL).expect("code")
}

fn registers_format() -> RecordingOptions {
    RecordingOptions::default()
}

fn control_flow_only() -> RecordingOptions {
    RecordingOptions { memory: Memory::None, ..RecordingOptions::default() }
}

fn nothing() -> Options {
    RecordingOptions { instrument: Instrument::None, ..RecordingOptions::default() }.into()
}

/// The recording, with every register live.
fn spilling(recording: RecordingOptions) -> Options {
    let process = ProcessOptions { torture: torture::SPILL, ..ProcessOptions::default() };
    Options { process, recording }
}

macro_rules! snapshot {
    ($name:ident, $case:expr, |$a:ident| $body:block) => {
        #[test]
        fn $name() {
            // A body that needs no labels changes nothing of its own.
            #[allow(unused_mut)]
            let code = assemble(|$a: &mut CodeAssembler| {
                $body
                Ok(())
            });
            insta::assert_snapshot!(stringify!($name), listing(&$case, &code));
        }
    };
    ($name:ident, $case:expr, $code:expr) => {
        #[test]
        fn $name() {
            let code: Vec<u8> = $code.concat();
            insta::assert_snapshot!(stringify!($name), listing(&$case, &code));
        }
    };
}

// --- watched threads ---

fn watched(torture: u8) -> Case {
    let recording = RecordingOptions {
        instrument: Instrument::Inputs,
        watched: true,
        ..RecordingOptions::default()
    };
    let pointers = Pointers::ThreadBlock;
    let process = ProcessOptions { pointers, torture, ..ProcessOptions::default() };
    Case { options: Options { process, recording }, ..Case::default() }
}

/// Loads, stores and changes of each kind. Behind the last addition no flag is live that was before.
fn watched_code() -> Vec<u8> {
    assemble(|a| {
        a.mov(rax, qword_ptr(rbx + 8))?;
        a.mov(rax, qword_ptr(rax))?;
        a.mov(rcx, qword_ptr(rcx + rsi * 4))?;
        a.movzx(edx, byte_ptr(rdi))?;
        a.movsxd(rdx, dword_ptr(rdi))?;
        a.mov(rax, qword_ptr(0x28).fs())?;
        a.sub(rdx, qword_ptr(0x28).fs())?;
        a.cmp(dword_ptr(rdi + rcx), 7)?;
        a.cmovne(rax, qword_ptr(rsi))?;
        a.add(byte_ptr(rsi), ah)?;
        a.add(qword_ptr(rcx), 1)?;
        a.adc(qword_ptr(rcx), 1)?;
        a.mov(qword_ptr(rsp + 8), rax)?;
        a.mov(dword_ptr(rsp + 8), 5)?;
        a.mov(qword_ptr(0x300).fs(), rax)?;
        a.movups(xmm1, xmmword_ptr(rdi + 0x78))?;
        a.movsd_2(xmm2, qword_ptr(rsi))?;
        a.movups(xmmword_ptr(rdi), xmm1)?;
        a.vmovdqu8(ymm18.k2(), ymmword_ptr(rsi))?;
        a.vpcmpeqb(k1.k2(), ymm18, ymmword_ptr(rdi))?;
        a.lock().add(dword_ptr(rdi), eax)?;
        a.rdfsbase(rax)?;
        a.wrfsbase(ecx)?;
        a.push(rbx)?;
        a.push(5)?;
        a.pop(rdx)?;
        a.pop(rbx)?;
        a.add(rsp, 8)?;
        a.leave()?;
        a.pop(rbp)?;
        a.ret()
    })
}

snapshot!(watched_with_dead_flags, watched(0), [watched_code()]);
snapshot!(watched_with_live_flags, watched(torture::SPILL), [watched_code()]);

/// Words that are pushed from memory, and fences.
fn watched_words() -> Vec<u8> {
    assemble(|a| {
        a.push(qword_ptr(rbp - 0x30))?;
        a.push(qword_ptr(rcx + rdx * 8))?;
        a.push(qword_ptr(rsp))?;
        a.push(qword_ptr(0x28).fs())?;
        a.push(word_ptr(rbx))?;
        a.lock().add(dword_ptr(rsp - 0x40), 0)?;
        a.lock().or(qword_ptr(rsp), 0)?;
        a.lock().add(dword_ptr(rsp), 1)?;
        a.lock().add(dword_ptr(rdi), 0)?;
        a.add(rsp, 34)?;
        a.ret()
    })
}

snapshot!(watched_words_with_dead_flags, watched(0), [watched_words()]);
snapshot!(watched_words_with_live_flags, watched(torture::SPILL), [watched_words()]);

// --- marked instructions ---

fn marked() -> Case {
    let recording =
        RecordingOptions { instrument: Instrument::Inputs, ..RecordingOptions::default() };
    Case { options: Options { recording, ..Options::default() }, marked: true, ..Case::default() }
}

snapshot!(marked_code, marked(), [watched_code()]);

snapshot!(marked_changes, marked(), |a| {
    a.fld(tword_ptr(rcx + 0x410))?;
    a.fstp(tword_ptr(rcx + 0x410))?;
    a.neg(word_ptr(rsi * 2 + 0x10))?;
    a.lock().cmpxchg16b(xmmword_ptr(rsi))?;
    a.xchg(byte_ptr(ORIGINAL + 0x100), al)?;
    a.rep().movsb()?;
    a.vmovdqu64(zmmword_ptr(rdi).k3(), zmm20)?;
    a.vmovups(zmm27, zmmword_ptr(rax))?;
    a.push(qword_ptr(rcx))?;
    a.pop(qword_ptr(rcx))?;
    a.call(qword_ptr(rax))?;
});

snapshot!(watched_transfers, watched(0), |a| {
    a.call(0x40_9000u64)?;
    a.call(qword_ptr(rcx + rdx * 8 + 16))?;
    a.jmp(qword_ptr(rdi).fs())?;
});

// --- transfers ---

fn plain_transfers() -> Case {
    Case { options: nothing(), ..Case::default() }
}

/// The same with tables that no displacement reaches.
fn high(case: Case) -> Case {
    let mut options = case.options;
    options.process.high_tables = true;
    Case { options, ..case }
}

snapshot!(jumps, plain_transfers(), |a| {
    let (mut back, mut next) = (a.create_label(), a.create_label());
    a.set_label(&mut back)?;
    a.jne(back)?;
    a.ja(0x40_9000u64)?;
    a.jmp(next)?;
    a.set_label(&mut next)?;
    a.jmp(0x40_9000u64)?;
});

snapshot!(calls_and_returns, plain_transfers(), |a| {
    a.call(0x40_9000u64)?;
    a.ret()?;
    a.ret_1(16)?;
});

/// Units whose returns are looked up ahead, and some that have no register for it.
fn epilogues() -> [Vec<u8>; 1] {
    [assemble(|a| {
        a.add(rsp, 24)?;
        a.pop(rbx)?;
        a.pop(rbp)?;
        a.pop(r12)?;
        a.ret()?;
        a.mov(eax, dword_ptr(rdi + 8))?;
        a.ret()?;
        a.pop(r13)?;
        a.mov(eax, 1)?;
        a.ret_1(16)?;
        // Stored behind it.
        a.mov(rax, rdi)?;
        a.mov(qword_ptr(rdi), rsi)?;
        a.ret()?;
        // Read, or kept in part.
        a.mov(eax, ebx)?;
        a.add(rax, 2)?;
        a.mov(bl, 2)?;
        a.ret()?;
        a.inc(eax)?;
        a.cmove(edx, eax)?;
        a.ret()?;
        // Where the stack is nobody knows.
        a.mov(eax, 1)?;
        a.mov(rsp, rbp)?;
        a.pop(rbp)?;
        a.ret()?;
        Ok(())
    })]
}

snapshot!(returns_looked_up_ahead, plain_transfers(), epilogues());
snapshot!(returns_looked_up_ahead_in_high_tables, high(plain_transfers()), epilogues());
snapshot!(
    returns_looked_up_ahead_beside_records,
    high(memory(Memory::Registers, Pointers::Vector, 0)),
    epilogues()
);

snapshot!(indirect_transfers, plain_transfers(), |a| {
    a.call(rax)?;
    a.jmp(rcx)?;
    a.jmp(r12)?;
    a.call(qword_ptr(rcx + rdx * 8 + 16))?;
    a.call(qword_ptr(rsp + 8))?;
    a.jmp(qword_ptr(rdi).fs())?;
    a.jmp(qword_ptr(0x40_8000u64 as i32).fs())?;
});

snapshot!(indirect_transfers_into_high_tables, high(plain_transfers()), |a| {
    a.call(rax)?;
    a.jmp(rcx)?;
    a.jmp(r12)?;
    a.call(qword_ptr(rcx + rdx * 8 + 16))?;
});

snapshot!(
    indirect_transfers_into_high_tables_of_any_window,
    Case { placement: Placement { window_high: None, ..FIXED }, ..high(plain_transfers()) },
    |a| {
        a.call(rax)?;
        a.jmp(rcx)?;
        a.jmp(r12)?;
        a.call(qword_ptr(rcx + rdx * 8 + 16))?;
    }
);

snapshot!(
    indirect_transfers_through_pc_relative_memory,
    plain_transfers(),
    [&[0xff, 0x15, 0, 1, 0, 0][..], &[0xff, 0x25, 0, 1, 0, 0]]
);

snapshot!(
    indirect_transfers_through_memory_out_of_reach,
    Case { original: 0x7f12_0040_1000, ..plain_transfers() },
    [&[0xff, 0x15, 0, 1, 0, 0][..], &[0xff, 0x25, 0, 1, 0, 0]]
);

snapshot!(system_calls, plain_transfers(), |a| {
    a.mov(eax, 60)?;
    a.syscall()?;
});

snapshot!(
    loops,
    plain_transfers(),
    // loop -2; loopne +0; jrcxz +2; jecxz -3
    [&[0xe2, 0xfe][..], &[0xe0, 0x00], &[0xe3, 0x02], &[0x67, 0xe3, 0xfa]]
);

snapshot!(
    position_independent_code_compares_with_the_window,
    Case { placement: Placement { window_high: None, ..FIXED }, ..plain_transfers() },
    |a| {
        a.call(rax)?;
        a.call(0x40_9000u64)?;
        a.ret()?;
    }
);

snapshot!(
    code_of_the_run_time_translator,
    Case {
        placement: Placement {
            window_high: Some(0x7f12),
            patchable: true,
            movable: false,
            exact_registers: true,
            constant: Slots::default(),
        },
        original: 0x7f12_0040_1000,
        translated: 0x7f12_7000_0000,
        ..Case::default()
    },
    [&[0x48, 0x8b, 0x07][..], &[0x75, 0xfb], &[0xe8, 0, 1, 0, 0], &[0xff, 0xd0], &[0xc3]]
);

snapshot!(
    calls_from_outside_the_window_put_whole_return_addresses,
    Case {
        placement: Placement {
            window_high: Some(0x7f12),
            patchable: true,
            movable: false,
            exact_registers: true,
            constant: Slots::default(),
        },
        original: 0x7ffd_0040_1000,
        translated: 0x7f12_7000_0000,
        ..plain_transfers()
    },
    [&[0xe8, 0, 1, 0, 0][..], &[0xff, 0xd0], &[0xc3]]
);

// --- pc-relative operands ---

snapshot!(
    pc_relative_operands_in_reach,
    plain_transfers(),
    [
        // mov rax,[rip+100h]; mov [rip+100h],ecx; cmp dword [rip+100h],7; lea rax,[rip+100h]
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0][..],
        &[0x89, 0x0d, 0, 1, 0, 0],
        &[0x83, 0x3d, 0, 1, 0, 0, 7],
        &[0x48, 0x8d, 0x05, 0, 1, 0, 0],
        // mov eax,[eip+100h]; vmovdqu64 zmm17,[rip+100h]; vpaddd zmm1,zmm2,dword [rip+100h]{1to16}
        &[0x67, 0x8b, 0x05, 0, 1, 0, 0],
        &[0x62, 0xe1, 0xfe, 0x48, 0x6f, 0x0d, 0, 1, 0, 0],
        &[0x62, 0xf1, 0x6d, 0x58, 0xfe, 0x0d, 0, 1, 0, 0],
    ]
);

snapshot!(
    pc_relative_operands_out_of_reach,
    Case { original: 0x7f12_0040_1000, ..plain_transfers() },
    [
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0][..],
        &[0x89, 0x0d, 0, 1, 0, 0],
        &[0x83, 0x3d, 0, 1, 0, 0, 7],
        &[0x48, 0x8d, 0x05, 0, 1, 0, 0],
        &[0x67, 0x8b, 0x05, 0, 1, 0, 0],
        &[0x62, 0xe1, 0xfe, 0x48, 0x6f, 0x0d, 0, 1, 0, 0],
        &[0x62, 0xf1, 0x6d, 0x58, 0xfe, 0x0d, 0, 1, 0, 0],
        // push [rip+100h]; pop [rip+100h]; mov ah,[rip+100h]; cmpxchg16b [rip+100h]
        &[0xff, 0x35, 0, 1, 0, 0],
        &[0x8f, 0x05, 0, 1, 0, 0],
        &[0x8a, 0x25, 0, 1, 0, 0],
        &[0x48, 0x0f, 0xc7, 0x0d, 0, 1, 0, 0],
    ]
);

macro_rules! positions {
    () => {
        [
            // imul eax,[rip+100h],7; shld [rip+100h],eax,3; vblendvps xmm1,xmm2,[rip+100h],xmm3
            &[0x6b, 0x05, 0, 1, 0, 0, 7][..],
            &[0x0f, 0xa4, 0x05, 0, 1, 0, 0, 3],
            &[0xc4, 0xe3, 0x69, 0x4a, 0x0d, 0, 1, 0, 0, 0x30],
            // vpcmpeqd k1,zmm2,[rip+100h]; vinserti32x4 zmm1,zmm2,[rip+100h],1; bt dword [rip+100h],3
            &[0x62, 0xf1, 0x6d, 0x48, 0x76, 0x0d, 0, 1, 0, 0],
            &[0x62, 0xf3, 0x6d, 0x48, 0x38, 0x0d, 0, 1, 0, 0, 1],
            &[0x0f, 0xba, 0x25, 0, 1, 0, 0, 3],
            // bextr eax,[rip+100h],ecx; mulx rax,rdx,[rip+100h]; vextractf128 [rip+100h],ymm1,1
            &[0xc4, 0xe2, 0x70, 0xf7, 0x05, 0, 1, 0, 0],
            &[0xc4, 0xe2, 0xeb, 0xf6, 0x05, 0, 1, 0, 0],
            &[0xc4, 0xe3, 0x7d, 0x19, 0x0d, 0, 1, 0, 0, 1],
            // lock xadd [rip+100h],eax; fld qword [rip+100h]; prefetcht0 [rip+100h]; nop [rip+100h]
            &[0xf0, 0x0f, 0xc1, 0x05, 0, 1, 0, 0],
            &[0xdd, 0x05, 0, 1, 0, 0],
            &[0x0f, 0x18, 0x0d, 0, 1, 0, 0],
            &[0x0f, 0x1f, 0x05, 0, 1, 0, 0],
            // lea eax,[rip+100h]; lea rax,[eip+100h]; mov rax,fs:[rip+100h]
            &[0x8d, 0x05, 0, 1, 0, 0],
            &[0x67, 0x48, 0x8d, 0x05, 0, 1, 0, 0],
            &[0x64, 0x48, 0x8b, 0x05, 0, 1, 0, 0],
        ]
    };
}

snapshot!(pc_relative_operands_of_each_position, plain_transfers(), positions!());
snapshot!(
    pc_relative_operands_of_each_position_out_of_reach,
    Case { original: 0x7f12_0040_1000, ..plain_transfers() },
    positions!()
);
snapshot!(
    pc_relative_operands_with_everything_live,
    Case {
        original: 0x7f12_0040_1000,
        ..memory(Memory::Addresses, Pointers::Vector, torture::SPILL)
    },
    [
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0][..],
        &[0xf0, 0x0f, 0xc1, 0x05, 0, 1, 0, 0],
        &[0xff, 0x35, 0, 1, 0, 0]
    ]
);

// --- branches with a distance ---

macro_rules! branches {
    () => {
        [
            // jne +2 (short); jae +200h (near); bnd jne +1; loope -10h; jrcxz +0; bnd jmp +20h
            &[0x75, 0x02][..],
            &[0x0f, 0x83, 0, 2, 0, 0],
            &[0xf2, 0x75, 0x01],
            &[0xe1, 0xf0],
            &[0xe3, 0x00],
            &[0xf2, 0xe9, 0x20, 0, 0, 0],
            // call +0; call -100h; bnd call +0; jmp +0 (short); rep ret; bnd ret
            &[0xe8, 0, 0, 0, 0],
            &[0xe8, 0, 0xff, 0xff, 0xff],
            &[0xf2, 0xe8, 0, 0, 0, 0],
            &[0xeb, 0x00],
            &[0xf3, 0xc3],
            &[0xf2, 0xc3],
            // notrack jmp rax; notrack call rax
            &[0x3e, 0xff, 0xe0],
            &[0x3e, 0xff, 0xd0],
        ]
    };
}

snapshot!(branches_of_each_form, plain_transfers(), branches!());
snapshot!(
    branches_that_are_patched_do_not_cross_a_line,
    Case {
        placement: Placement {
            window_high: Some(0x7f12),
            patchable: true,
            movable: false,
            exact_registers: true,
            constant: Slots::default(),
        },
        original: 0x7f12_0040_1000,
        translated: 0x7f12_7000_0038,
        ..plain_transfers()
    },
    branches!()
);

/// Where the slots lie is not known yet: their displacements are 0.
macro_rules! tables {
    () => {
        [
            // movzx eax,al; jmp [rax*8 + 402000h]
            &[0x0f, 0xb6, 0xc0][..],
            &[0xff, 0x24, 0xc5, 0, 0x20, 0x40, 0],
            // movzx eax,al; mov rax,[rax*8 + 402000h]; jmp rax
            &[0x0f, 0xb6, 0xc0],
            &[0x48, 0x8b, 0x04, 0xc5, 0, 0x20, 0x40, 0],
            &[0xff, 0xe0],
            // lea rdx,[402000h]; movzx eax,al; movsxd rax,[rdx + rax*4]; add rax,rdx; jmp rax
            &[0x48, 0x8d, 0x15, 0xe2, 0x0f, 0, 0],
            &[0x0f, 0xb6, 0xc0],
            &[0x48, 0x63, 0x04, 0x82],
            &[0x48, 0x01, 0xd0],
            &[0xff, 0xe0],
            // The same with the index in ecx, which stays.
            &[0x48, 0x8d, 0x15, 0xcf, 0x0f, 0, 0],
            &[0x0f, 0xb6, 0xc8],
            &[0x48, 0x63, 0x04, 0x8a],
            &[0x48, 0x01, 0xd0],
            &[0xff, 0xe0],
        ]
    };
}

const TABLES: &[[u64; 2]] = &[[0x40_2000, 0x40_2800]];

snapshot!(jumps_through_tables, Case { tables: TABLES, ..plain_transfers() }, tables!());
snapshot!(
    jumps_through_tables_beside_records,
    Case { tables: TABLES, ..Case::default() },
    tables!()
);

// --- control-flow formats ---

fn two_blocks(control_flow: ControlFlow) -> Case {
    Case {
        options: RecordingOptions { control_flow, ..control_flow_only() }.into(),
        narrow: &[1, 2],
        ..Case::default()
    }
}

macro_rules! formats {
    ($a:ident) => {{
        let mut back = $a.create_label();
        $a.mov(eax, 1)?;
        $a.mov(esi, 1)?;
        $a.jne(0x40_9000u64)?;
        $a.set_label(&mut back)?;
        $a.mov(ecx, 5)?;
        $a.jb(back)?;
        $a.nop()?;
        $a.jmp(0x40_9000u64)?;
    }};
}

snapshot!(tags, two_blocks(ControlFlow::Tags), |a| { formats!(a) });
snapshot!(full_pc, two_blocks(ControlFlow::FullPc), |a| { formats!(a) });
snapshot!(bits, two_blocks(ControlFlow::Bits), |a| { formats!(a) });

// --- code that is not selected ---

/// Only what lies in the first bytes is recorded, and perhaps other modules.
fn only_the_first(bytes: u64, elsewhere: bool, control_flow: ControlFlow) -> Case {
    let pieces: &[[u64; 2]] = Box::leak(Box::new([[ORIGINAL, ORIGINAL + bytes]]));
    let pieces = if bytes == 0 { &[] } else { pieces };
    let recording = RecordingOptions { selective: true, control_flow, ..registers_format() };
    let selected = Selected { base: 0, len: u64::MAX, pieces, elsewhere };
    Case { options: recording.into(), selected, ..Case::default() }
}

macro_rules! outside {
    ($a:ident) => {{
        let mut back = $a.create_label();
        $a.set_label(&mut back)?;
        $a.mov(eax, dword_ptr(rsi))?;
        $a.jne(back)?;
        $a.call(0x40_9000u64)?;
        $a.push(rax)?;
        $a.call(rax)?;
        $a.syscall()?;
        $a.wrfsbase(ecx)?;
        $a.pop(rdx)?;
        $a.jmp(0x40_9000u64)?;
        $a.ret()?;
    }};
}

snapshot!(outside_records_where_it_may_lead, only_the_first(0, true, ControlFlow::Tags), |a| {
    outside!(a)
});
snapshot!(outside_of_everything, only_the_first(0, false, ControlFlow::Tags), |a| { outside!(a) });
snapshot!(outside_full_pc, only_the_first(0, true, ControlFlow::FullPc), |a| { outside!(a) });

snapshot!(
    outside_relies_on_nothing_and_nothing_relies_on_it,
    Case {
        narrow: &[1, 2],
        // The first block and the last two instructions.
        selected: Selected {
            base: 0,
            len: u64::MAX,
            pieces: &[[ORIGINAL, ORIGINAL + 4], [ORIGINAL + 8, ORIGINAL + 11]],
            elsewhere: true,
        },
        cuts: &[2, 4],
        ..only_the_first(1, true, ControlFlow::Tags)
    },
    |a| {
        a.mov(eax, dword_ptr(rsi))?;
        a.mov(ecx, edx)?;
        a.mov(eax, dword_ptr(rsi))?;
        a.mov(ecx, eax)?;
        a.mov(eax, dword_ptr(rsi))?;
        a.ret()?;
    }
);

snapshot!(
    narrow_units_of_another_window_are_not_entered_directly,
    Case { other_window: 2, ..two_blocks(ControlFlow::Tags) },
    |a| { formats!(a) }
);

snapshot!(
    bits_of_loops,
    two_blocks(ControlFlow::Bits),
    [&[0xe2, 0xfe][..], &[0xe3, 0x00], &[0xc3]]
);

snapshot!(
    formats_with_everything_live,
    Case { options: spilling(control_flow_only()), ..Case::default() },
    |a| { formats!(a) }
);

snapshot!(
    full_pc_with_everything_live,
    Case {
        options: spilling(RecordingOptions {
            control_flow: ControlFlow::FullPc,
            ..control_flow_only()
        }),
        ..Case::default()
    },
    |a| { formats!(a) }
);

snapshot!(
    bits_with_everything_live,
    Case {
        options: spilling(RecordingOptions {
            control_flow: ControlFlow::Bits,
            ..control_flow_only()
        }),
        ..Case::default()
    },
    |a| { formats!(a) }
);

// Flags that the first unit computes and the second one uses; and flags that nobody uses.
snapshot!(flags_are_left_alone_live_or_dead, two_blocks(ControlFlow::Tags), |a| {
    let mut next = a.create_label();
    a.cmp(eax, 1)?;
    a.jmp(next)?;
    a.set_label(&mut next)?;
    a.adc(eax, 0)?;
    a.jo(0x40_9000u64)?;
    a.xor(eax, eax)?;
    a.ret()?;
});

macro_rules! in_thread_block {
    ($name:ident, $control_flow:expr, $torture:expr) => {
        snapshot!(
            $name,
            Case {
                options: Options {
                    process: ProcessOptions {
                        pointers: Pointers::ThreadBlock,
                        torture: $torture,
                        ..ProcessOptions::default()
                    },
                    recording: RecordingOptions {
                        control_flow: $control_flow,
                        ..registers_format()
                    },
                },
                narrow: &[1, 2],
                ..Case::default()
            },
            |a| { formats!(a) }
        );
    };
}

in_thread_block!(tags_with_pointers_in_the_thread_block, ControlFlow::Tags, 0);
in_thread_block!(full_pc_with_pointers_in_the_thread_block, ControlFlow::FullPc, 0);
in_thread_block!(bits_with_pointers_in_the_thread_block, ControlFlow::Bits, 0);
in_thread_block!(
    tags_with_pointers_in_the_thread_block_and_everything_live,
    ControlFlow::Tags,
    torture::SPILL
);
in_thread_block!(
    bits_with_pointers_in_the_thread_block_and_everything_live,
    ControlFlow::Bits,
    torture::SPILL
);

// A unit that adds nothing to the stream looks at it all the same: the chunk may be full.
snapshot!(
    bits_of_units_that_only_add_memory,
    Case {
        options: RecordingOptions { control_flow: ControlFlow::Bits, ..registers_format() }.into(),
        narrow: &[1, 2],
        ..Case::default()
    },
    |a| {
        let mut next = a.create_label();
        a.mov(rax, qword_ptr(rdi))?;
        a.jmp(next)?;
        a.set_label(&mut next)?;
        a.mov(rdi, qword_ptr(rax))?;
        a.mov(rax, qword_ptr(rdi))?;
        a.jmp(0x40_9000u64)?;
    }
);

// --- memory records ---

macro_rules! loads {
    ($a:ident) => {{
        $a.mov(rax, qword_ptr(rdi + 8))?;
        $a.mov(rbx, qword_ptr(rax + rcx * 4 - 16))?;
        $a.add(dword_ptr(rbx), edx)?;
        $a.lea(rsi, qword_ptr(rdi + 64))?;
        $a.mov(r8, qword_ptr(rsi))?;
        $a.mov(r9, qword_ptr(r8 + 1))?;
        $a.push(qword_ptr(rsp + 24))?;
        $a.pop(qword_ptr(rsp + 24))?;
        $a.mov(r10, qword_ptr(0x28).fs())?;
        $a.bt(qword_ptr(rbx), rdx)?;
        $a.ret()?;
    }};
}

fn memory(memory: Memory, pointers: Pointers, torture: u8) -> Case {
    let process = ProcessOptions { pointers, torture, ..ProcessOptions::default() };
    let recording = RecordingOptions { memory, ..RecordingOptions::default() };
    let options = Options { process, recording };
    Case { options, ..Case::default() }
}

snapshot!(registers_recorded, memory(Memory::Registers, Pointers::Vector, 0), |a| { loads!(a) });
snapshot!(
    registers_recorded_with_everything_live,
    memory(Memory::Registers, Pointers::Vector, torture::SPILL),
    |a| { loads!(a) }
);
snapshot!(
    registers_recorded_with_pointers_in_the_thread_block,
    memory(Memory::Registers, Pointers::ThreadBlock, 0),
    |a| { loads!(a) }
);
snapshot!(addresses_recorded, memory(Memory::Addresses, Pointers::Vector, 0), |a| { loads!(a) });
snapshot!(
    addresses_recorded_with_everything_live,
    memory(Memory::Addresses, Pointers::Vector, torture::SPILL),
    |a| { loads!(a) }
);

snapshot!(
    addresses_of_unusual_operands,
    memory(Memory::Addresses, Pointers::Vector, 0),
    [
        // pop [rsp+8]; pop word [rsp+8]; pop [rsp+rax*2]; pop [rax]
        &[0x8f, 0x44, 0x24, 0x08][..],
        &[0x66, 0x8f, 0x44, 0x24, 0x08],
        &[0x8f, 0x04, 0x44],
        &[0x8f, 0x00],
        // vpaddd zmm1,zmm2,dword [rax+4]{1to16}; vmovdqu64 zmm1,[rax+100h] with a scaled displacement
        &[0x62, 0xf1, 0x6d, 0x58, 0xfe, 0x48, 0x01],
        &[0x62, 0xf1, 0xfe, 0x48, 0x6f, 0x48, 0x04],
        // mov eax,[edi+esi*2+4]; mov rax,[rip+100h]; mov rax,[1000h]; mov [rbp],al; mov [r13],al
        &[0x67, 0x8b, 0x44, 0x77, 0x04],
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0],
        &[0x48, 0x8b, 0x04, 0x25, 0, 0x10, 0, 0],
        &[0x88, 0x45, 0x00],
        &[0x41, 0x88, 0x45, 0x00],
        // mov al,[moffs64]; xlat; xchg [rdi],rax; movdir64b rax,[rdi]
        &[0xa0, 0, 0x10, 0, 0, 0, 0, 0, 0],
        &[0xd7],
        &[0x48, 0x87, 0x07],
        &[0x66, 0x0f, 0x38, 0xf8, 0x07],
    ]
);

macro_rules! strings {
    ($a:ident) => {{
        $a.rep().movsb()?;
        $a.rep().stosq()?;
        $a.rep().lodsd()?;
        $a.repe().cmpsb()?;
        $a.movsq()?;
        $a.mov(rdi, rax)?;
        $a.rep().stosb()?;
        $a.mov(edi, 0)?;
        $a.ret()?;
    }};
}

snapshot!(string_instructions, memory(Memory::Registers, Pointers::Vector, 0), |a| { strings!(a) });
snapshot!(
    string_instructions_with_everything_live,
    memory(Memory::Registers, Pointers::Vector, torture::SPILL),
    |a| { strings!(a) }
);
snapshot!(string_instructions_by_address, memory(Memory::Addresses, Pointers::Vector, 0), |a| {
    strings!(a)
});

macro_rules! gathers {
    () => {
        [
            // vpgatherdd zmm1{k2},[rax+zmm3*4]; vpgatherdd xmm1,[rax+xmm3*4],xmm2
            &[0x62, 0xf2, 0x7d, 0x4a, 0x90, 0x0c, 0x98][..],
            &[0xc4, 0xe2, 0x69, 0x90, 0x0c, 0x98],
            // vpgatherdd zmm1{k2},[rax+zmm31*4]
            &[0x62, 0xb2, 0x7d, 0x42, 0x90, 0x0c, 0xb8],
            // xsavec [rsp+40h]; wrfsbase rdx
            &[0x0f, 0xc7, 0x64, 0x24, 0x40],
            &[0xf3, 0x48, 0x0f, 0xae, 0xd2],
        ]
    };
}

snapshot!(gathers_and_saves, memory(Memory::Registers, Pointers::Vector, 0), gathers!());
snapshot!(
    gathers_and_saves_with_everything_live,
    memory(Memory::Registers, Pointers::Vector, torture::SPILL),
    gathers!()
);
snapshot!(
    gathers_and_saves_with_pointers_in_xmm15,
    memory(Memory::Registers, Pointers::Xmm15, 0),
    gathers!()
);
snapshot!(
    gathers_and_saves_with_pointers_in_the_thread_block,
    memory(Memory::Registers, Pointers::ThreadBlock, 0),
    gathers!()
);

snapshot!(
    registers_recorded_with_pointers_in_xmm15,
    memory(Memory::Registers, Pointers::Xmm15, 0),
    |a| { loads!(a) }
);
snapshot!(
    instructions_that_use_vector_register_15,
    memory(Memory::Registers, Pointers::Xmm15, 0),
    [
        // movaps xmm15,xmm1; vpaddq ymm1,ymm15,ymm2; vzeroupper
        &[0x44, 0x0f, 0x28, 0xf9][..],
        &[0xc5, 0x85, 0xd4, 0xca],
        &[0xc5, 0xf8, 0x77],
        // vpgatherdd ymm1,[rax+ymm15*4],ymm2; fxsave64 [rsp+40h]; movaps xmm14,xmm1
        &[0xc4, 0xa2, 0x6d, 0x90, 0x0c, 0xb8],
        &[0x48, 0x0f, 0xae, 0x44, 0x24, 0x40],
        &[0x44, 0x0f, 0x28, 0xf1],
    ]
);

snapshot!(
    instructions_that_use_vector_register_31,
    memory(Memory::Registers, Pointers::Vector, 0),
    [
        // vmovdqu64 zmm31,[rdi]; vaddps ymm31,ymm1,ymm2; vmovdqu64 zmm31,[rip+100h]
        &[0x62, 0x61, 0xfe, 0x48, 0x6f, 0x3f][..],
        &[0x62, 0x61, 0x74, 0x28, 0x58, 0xfa],
        &[0x62, 0x61, 0xfe, 0x48, 0x6f, 0x3d, 0, 1, 0, 0],
    ]
);

snapshot!(
    instructions_that_use_vector_registers_of_increments,
    memory(Memory::Registers, Pointers::Vector, 0),
    [
        // vmovdqu64 zmm26,[rdi]; vmovdqu64 [rdi],zmm27; vfmadd231ps zmm28,zmm29,zmm30
        &[0x62, 0x61, 0xfe, 0x48, 0x6f, 0x17][..],
        &[0x62, 0x61, 0xfe, 0x48, 0x7f, 0x1f],
        &[0x62, 0x02, 0x15, 0x40, 0xb8, 0xe6],
        // vmovdqa32 zmm25{k1},zmm31; vmovdqa32 zmm25{k1}{z},zmm1; vmovaps zmm24,zmm1
        &[0x62, 0x01, 0x7d, 0x49, 0x6f, 0xcf],
        &[0x62, 0x61, 0x7d, 0xc9, 0x6f, 0xc9],
        &[0x62, 0x61, 0x7c, 0x48, 0x28, 0xc1],
    ]
);

// Both borrowings at once: the pointers' register and one to reach the operand.
snapshot!(
    vector_register_31_with_operands_out_of_reach,
    Case {
        original: 0x7f12_0040_1000,
        ..memory(Memory::Registers, Pointers::Vector, torture::SPILL)
    },
    [
        // vmovdqu64 zmm31,[rip+100h]; vmovups [rip+100h],xmm31; vpscatterdd [rax+zmm31*4]{k1},zmm2
        &[0x62, 0x61, 0xfe, 0x48, 0x6f, 0x3d, 0, 1, 0, 0][..],
        &[0x62, 0x61, 0x7c, 0x08, 0x11, 0x3d, 0, 1, 0, 0],
        &[0x62, 0xb2, 0x7d, 0x41, 0xa0, 0x14, 0xb8],
    ]
);

snapshot!(
    scatters_and_narrow_vectors,
    memory(Memory::Registers, Pointers::ThreadBlock, 0),
    [
        // vpscatterdd [rax+zmm3*4]{k1},zmm2; vgatherdpd ymm1,[rax+xmm3*8],ymm2
        &[0x62, 0xf2, 0x7d, 0x49, 0xa0, 0x14, 0x98][..],
        &[0xc4, 0xe2, 0xed, 0x92, 0x0c, 0xd8],
        // xrstor [rsp+40h]; maskmovdqu xmm1,xmm2; vpcompressd [rdi]{k1},zmm1
        &[0x0f, 0xae, 0x6c, 0x24, 0x40],
        &[0x66, 0x0f, 0xf7, 0xca],
        &[0x62, 0xf2, 0x7d, 0x49, 0x8b, 0x0f],
    ]
);

// --- long units ---

snapshot!(long_units_advance_in_steps, memory(Memory::Registers, Pointers::Vector, 0), |a| {
    for _ in 0..50 {
        a.rep().movsb()?;
    }
});

// --- refused ---

snapshot!(
    what_is_refused,
    plain_transfers(),
    [
        // mov rax,gs:[eax]; lods gs:[rsi]; mov gs,ax; wrgsbase eax; lgs eax,[rax]; lea rax,gs:[rdi]
        &[0x65, 0x67, 0x48, 0x8b, 0x00][..],
        &[0x65, 0x48, 0xad],
        &[0x8e, 0xe8],
        &[0xf3, 0x0f, 0xae, 0xd8],
        &[0x0f, 0xb5, 0x00],
        &[0x65, 0x48, 0x8d, 0x07],
        // int 80h; retf; jmp far [rax]; iretq; sysret; xbegin; int3; ud2; vmcall
        &[0xcd, 0x80],
        &[0xcb],
        &[0xff, 0x28],
        &[0x48, 0xcf],
        &[0x48, 0x0f, 0x07],
        &[0xc7, 0xf8, 0, 0, 0, 0],
        &[0xcc],
        &[0x0f, 0x0b],
        &[0x0f, 0x01, 0xc1],
        &[0xc3],
    ]
);

// --- gs ---

snapshot!(
    operands_of_gs_have_a_register,
    memory(Memory::Registers, Pointers::Vector, 0),
    [
        // mov rax,gs:[0]; or gs:[rbp],al; add gs:[rsp+rcx*8-8],edx; movabs al,gs:[10h]; wrgsbase r9; rdgsbase r10d;
        // push gs:[8]; call gs:[rdx+rax*8]
        &[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0][..],
        &[0x65, 0x08, 0x45, 0x00],
        &[0x65, 0x01, 0x54, 0xcc, 0xf8],
        &[0x65, 0xa0, 0x10, 0, 0, 0, 0, 0, 0, 0],
        &[0xf3, 0x49, 0x0f, 0xae, 0xd9],
        &[0xf3, 0x41, 0x0f, 0xae, 0xca],
        &[0x65, 0xff, 0x34, 0x25, 8, 0, 0, 0],
        &[0x65, 0xff, 0x14, 0xc2],
    ]
);

// --- liveness ---

snapshot!(
    registers_that_may_keep_their_values_are_live,
    Case { options: registers_format().into(), ..Case::default() },
    [
        // mov rax,[rdi]; bsf ecx,esi; bsr edx,esi; lsl ebx,esi; cmovne r8d,esi; mov r9b,1;
        &[0x48, 0x8b, 0x07][..],
        &[0x0f, 0xbc, 0xce],
        &[0x0f, 0xbd, 0xd6],
        &[0x0f, 0x03, 0xde],
        &[0x44, 0x0f, 0x45, 0xc6],
        &[0x41, 0xb1, 0x01],
        // rdrand r10; xor r11d,r11d; shl r12d,cl; tzcnt r13d,esi; popcnt r14d,esi; sete r15b; ret
        &[0x49, 0x0f, 0xc7, 0xf2],
        &[0x45, 0x31, 0xdb],
        &[0x41, 0xd3, 0xe4],
        &[0xf3, 0x44, 0x0f, 0xbc, 0xee],
        &[0xf3, 0x44, 0x0f, 0xb8, 0xf6],
        &[0x41, 0x0f, 0x94, 0xc7],
        &[0xc3],
    ]
);

// --- the undo log ---

fn undo() -> RecordingOptions {
    RecordingOptions { instrument: Instrument::Undo, ..RecordingOptions::default() }
}

fn undo_case() -> Case {
    Case { options: undo().into(), ..Case::default() }
}

fn undo_spills() -> Case {
    Case { options: spilling(undo()), ..Case::default() }
}

snapshot!(undo_stores_of_all_sizes, undo_case(), |a| {
    a.mov(byte_ptr(rdi), cl)?;
    a.mov(word_ptr(rdi + rsi * 2 + 4), cx)?;
    a.mov(dword_ptr(rdi + 8), 7)?;
    a.add(qword_ptr(rdi + 16), rcx)?;
    a.movups(xmmword_ptr(rdi + 32), xmm0)?;
    a.vmovups(ymmword_ptr(rdi + 64), ymm1)?;
    a.vmovups(zmmword_ptr(rdi + 128), zmm2)?;
    a.fstp(tbyte_ptr(rdi + 200))?;
    a.mov(dword_ptr(edi), ecx)?;
    a.mov(eax, 1)?;
    a.mov(edx, 1)?;
    a.hlt()?;
});

snapshot!(undo_stores_with_dead_registers, undo_case(), |a| {
    a.mov(qword_ptr(rdi), rcx)?;
    a.mov(dword_ptr(rdi + 8), ecx)?;
    a.movups(xmmword_ptr(rdi + 16), xmm0)?;
    a.mov(rax, rsi)?;
    a.mov(rdx, rsi)?;
    a.jmp(0x40_9000u64)?;
});

snapshot!(undo_without_a_dead_register, undo_spills(), |a| {
    a.mov(qword_ptr(rdi), rcx)?;
    a.push(rax)?;
    a.stosd()?;
    a.lock().inc(dword_ptr(rbx))?;
});

snapshot!(
    undo_keeps_dead_registers_if_asked,
    Case {
        options: Options {
            process: ProcessOptions {
                dead_registers: abi::options::DeadRegisters::Preserve,
                ..ProcessOptions::default()
            },
            recording: undo(),
        },
        ..Case::default()
    },
    |a| {
        a.mov(qword_ptr(rdi), rcx)?;
        a.mov(rax, rsi)?;
        a.mov(rdx, rsi)?;
        a.jmp(0x40_9000u64)?;
    }
);

snapshot!(undo_stack_and_segments, undo_case(), |a| {
    a.push(rax)?;
    a.push(qword_ptr(rbp + 8))?;
    a.pop(qword_ptr(rsp + 8))?;
    a.pushfq()?;
    a.enter(16, 0)?;
    a.mov(qword_ptr(0x28u64 as i32).fs(), rcx)?;
    a.mov(qword_ptr(0x60_0000u64 as i32), rcx)?;
});

snapshot!(
    undo_pc_relative_and_absolute_stores,
    undo_case(),
    // mov [rip+0x100],rcx; mov [0x123456789abc],al
    [&[0x48, 0x89, 0x0d, 0, 1, 0, 0][..], &[0xa2, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0, 0]]
);

snapshot!(
    undo_pc_relative_store_out_of_reach,
    Case { original: 0x7f12_0040_1000, ..undo_case() },
    [&[0x48, 0x89, 0x0d, 0, 1, 0, 0][..], &[0xf0, 0xff, 0x05, 0, 1, 0, 0]]
);

snapshot!(undo_calls_and_returns, undo_case(), |a| {
    a.mov(rax, rsi)?;
    a.call(0x40_9000u64)?;
    a.call(qword_ptr(rbx + 8))?;
    a.ret()?;
    a.ret_1(16)?;
});

snapshot!(undo_stores_that_only_registers_tell, Case { cuts: &[1, 2], ..undo_case() }, |a| {
    a.mov(ecx, 9)?;
    a.rep().stosb()?;
    a.vmovdqu8(zmmword_ptr(rdi).k1(), zmm1)?;
});

snapshot!(undo_synchronising_instructions, undo_case(), |a| {
    a.lock().xadd(qword_ptr(rdi), rcx)?;
    a.xchg(dword_ptr(rdi + 8), edx)?;
    a.lock().cmpxchg16b(xmmword_ptr(rsi))?;
    a.mfence()?;
    a.mov(eax, 1)?;
    a.mov(r8d, 1)?;
    a.hlt()?;
});

snapshot!(undo_store_of_xmm31, undo_case(), |a| {
    a.vmovdqu64(xmmword_ptr(rdi), xmm31)?;
});

snapshot!(
    undo_recorded_addresses,
    Case {
        options: RecordingOptions { memory: Memory::Addresses, ..undo() }.into(),
        ..Case::default()
    },
    |a| {
        a.mov(qword_ptr(rdi + rsi * 8), rcx)?;
        a.mov(rcx, qword_ptr(rdi + rsi * 8))?;
        a.push(rcx)?;
    }
);

// --- turns ---

fn counting(instrument: Instrument, replays: bool, pointers: Pointers) -> Case {
    let dead_registers = DeadRegisters::Preserve;
    let process = ProcessOptions { pointers, dead_registers, replays, ..ProcessOptions::default() };
    let recording = RecordingOptions { instrument, ..RecordingOptions::default() };
    Case { options: Options { process, recording }, ..Case::default() }
}

fn counting_up(pointers: Pointers) -> Case {
    counting(Instrument::Inputs, false, pointers)
}

/// One of each kind, and those that are none.
fn turns(a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    let (mut back, mut next) = (a.create_label(), a.create_label());
    a.set_label(&mut back)?;
    a.jne(back)?;
    a.ja(0x40_9000u64)?;
    a.jmp(next)?;
    a.set_label(&mut next)?;
    a.loop_(back)?;
    a.jrcxz(back)?;
    a.call(0x40_9000u64)?;
    a.call(back)?;
    a.call(qword_ptr(rbx + 8))?;
    a.ret()?;
    a.ret_1(16)?;
    a.jmp(rcx)?;
    a.jmp(back)
}

snapshot!(turns_counted_up, counting_up(Pointers::Vector), |a| { turns(a)? });
snapshot!(turns_counted_up_behind_epilogues, high(counting_up(Pointers::Vector)), epilogues());
snapshot!(
    turns_counted_up_in_front_of_slots,
    Case { tables: TABLES, ..counting_up(Pointers::Vector) },
    tables!()
);
snapshot!(turns_counted_up_in_the_thread_block, counting_up(Pointers::ThreadBlock), |a| {
    turns(a)?;
});
snapshot!(turns_counted_up_to_the_last, counting(Instrument::None, true, Pointers::Vector), |a| {
    turns(a)?;
});
snapshot!(turns_counted_down, counting(Instrument::None, true, Pointers::ThreadBlock), |a| {
    turns(a)?;
});
snapshot!(
    turns_counted_down_beside_records,
    counting(Instrument::Dep, true, Pointers::ThreadBlock),
    |a| {
        a.mov(rax, qword_ptr(rdi))?;
        a.call(qword_ptr(rax + 8))?;
        a.ret()?;
    }
);

snapshot!(
    questions_that_the_runtime_answers,
    Case { cuts: &[2, 3], ..counting_up(Pointers::Vector) },
    // mov eax,1; rdtsc; sgdt [rip+0x100]; mov eax,1
    [&[0xb8, 1, 0, 0, 0][..], &[0x0f, 0x31], &[0x0f, 0x01, 0x05, 0, 1, 0, 0], &[0xb8, 1, 0, 0, 0]]
);

/// Whether a turn is counted is a property of its instruction: alone, and as a part of a region, the
/// same ones are.
#[test]
fn the_same_turns_are_counted_however_code_is_cut() {
    let code = assemble(turns);
    let insns = decode(&code, ORIGINAL);
    for case in [counting_up(Pointers::Vector), counting(Instrument::Dep, true, Pointers::Vector)] {
        let counted = |bytes: &[u8], start: u64| {
            let case = Case { original: start, options: case.options, ..Case::default() };
            let blocks = blocks(&case, &decode(bytes, start));
            let mut fragment = Fragment::new(TRANSLATED);
            let source = Source { start: OrigAddr(start), bytes, selected: Selected::EVERYTHING };
            Translator::new(case.options, FIXED).translate(&blocks, source, &mut fragment);
            let by_count = |insn: &&Instruction| {
                let field = insn.memory_displacement64() as i32;
                let up = thread::increment_offset(1, 0);
                insn.segment_prefix() == Register::GS
                    && (insn.mnemonic() == Mnemonic::Vpaddq && field == up
                        || insn.op0_kind() == OpKind::Memory && field == thread::TURNS_LEFT)
            };
            decode(&fragment.code.bytes, TRANSLATED).iter().filter(by_count).count()
        };
        let alone: usize = insns
            .iter()
            .map(|insn| {
                let at = (insn.ip() - ORIGINAL) as usize;
                let count = counted(&code[at..at + insn.len()], insn.ip());
                let expected = Flow::of(insn).is_turn(OrigAddr(insn.ip()));
                assert_eq!(count, usize::from(expected), "{insn:?}");
                count
            })
            .sum();
        assert_eq!(counted(&code, ORIGINAL), alone);
        assert!(alone > 6 && alone < insns.len());
    }
}
