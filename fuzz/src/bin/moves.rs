//! Instructions that were moved: a run of random ones, and what the translator makes of it, executed
//! by the processor from the same state, must end alike: in the same place or with the same fault,
//! with the same registers, flags, vectors and memory.
//!
//! An input is a byte that says how it is translated, eight that choose the state, and code.

use std::path::Path;
use std::process::ExitCode;

use abi::ids::{Gpr, OrigAddr, UnitId};
use abi::layout::{
    TableShape, HALF_JUMP_TABLE, HIGH_HALF_JUMP_TABLE, HIGH_JUMP_TABLE, HIGH_RETURN_TABLE,
    JUMP_TABLE, ONLY_TABLE, RETURN_TABLE,
};
use abi::options::{
    torture, ControlFlow, DeadRegisters, Instrument, Memory, Options, Pointers, ProcessOptions,
    RecordingOptions, Turns, LAST_TURN,
};
use abi::selection::Selected;
use abi::thread::{self, ThreadBlock};
use fuzz::machine::{component, Area, Machine, Registers, State, Stop, ENDLESS};
use fuzz::{mutate, word, Choices, Outcome, Target};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use instrument::block::{Block, Placement, Source};
use instrument::emit::{Found, ToVector};
use instrument::fragment::{recipe_of, Fragment};
use instrument::moved::Exchange;
use instrument::recipe::{Entry, Kind};
use instrument::translate::Translator;
use lifter::flow::Flow;

const PAGE: usize = 4096;
/// What the machine itself executes when it starts.
const GADGET: Area = Area { start: 0x7000_0000, len: PAGE, executable: true };
/// Original code and the memory in its reach, near the translation and far from it.
const NEAR: Place = Place::at(0x0040_0000);
/// The low half of its addresses is nobody's.
const FAR: Place = Place::at(0x7f12_3040_0000);
const TRANSLATED: Area = Area { start: 0x5000_0000, len: 16 * PAGE, executable: true };
/// Where branches out of the translation go, 16 bytes each.
const EXITS: Area = Area { start: 0x5800_0000, len: PAGE, executable: true };
/// Where the look-up tables lead, a byte for each address of the near original code.
const FOUND: Area = Area { start: 0x5900_0000, len: NEAR.code.len, executable: true };
/// The entries of the look-up tables for the near original code. There are no others: a look-up of
/// another address faults.
const TABLES: [(TableShape, Area); 7] = [
    entries(ONLY_TABLE),
    entries(RETURN_TABLE),
    entries(JUMP_TABLE),
    entries(HALF_JUMP_TABLE),
    entries(HIGH_RETURN_TABLE),
    entries(HIGH_JUMP_TABLE),
    entries(HIGH_HALF_JUMP_TABLE),
];
/// The entry for targets outside of the window.
const STUB_MISS: u64 = EXITS.start + 0xf00;
/// The entry for a turn that was waited for.
const STUB_TURN: u64 = EXITS.start + 0xf40;
/// What gs points to.
const BLOCK: Area = Area { start: 0x6000_0000, len: 3 * PAGE, executable: false };
/// The streams; the pointers start in the middle.
const STREAMS: Area = Area { start: 0x6100_0000, len: 32 * PAGE, executable: false };

const fn entries(table: TableShape) -> (TableShape, Area) {
    let start = table.base + table.entry * NEAR.code.start;
    (table, Area { start, len: table.entry as usize * NEAR.code.len, executable: false })
}

#[derive(Clone, Copy)]
struct Place {
    code: Area,
    memory: Area,
}

impl Place {
    const fn at(start: u64) -> Place {
        Place {
            code: Area { start, len: 4 * PAGE, executable: true },
            memory: Area { start: start + 0x1_0000, len: 16 * PAGE, executable: false },
        }
    }

    /// Where the code starts.
    fn start(&self) -> u64 {
        self.code.start + PAGE as u64
    }

    fn middle(&self) -> u64 {
        self.memory.start + self.memory.len as u64 / 2
    }
}

const HEAD: usize = 9;
const MOST_CODE: usize = 96;
/// Flags that instructions set: CF, PF, AF, ZF, SF, DF, OF.
const FLAGS: u64 = 0xcd5;

struct Moves {
    machine: Option<Machine>,
}

/// How an input is translated.
struct Way {
    options: Options,
    placement: Placement,
    place: Place,
    wide: bool,
}

/// Where xmm0 to xmm15 lie in the extended state.
const FIRST_VECTORS: std::ops::Range<usize> = 160..416;
/// Where FXSAVE has xmm7.
const XMM7: std::ops::Range<usize> = 272..288;

/// Whether this processor has the registers of [`Pointers::Vector`]: code is executed here, not only made.
fn has_claimed_vectors() -> bool {
    std::is_x86_feature_detected!("avx512vl")
}

/// Whether it has those of [`Pointers::Xmm15`], and none that are longer.
fn has_avx_alone() -> bool {
    std::is_x86_feature_detected!("avx") && !std::is_x86_feature_detected!("avx512f")
}

fn way(byte: u8, state: u64) -> Way {
    let bit = |n: u32| byte >> n & 1 == 1;
    let control_flow = match byte & 3 {
        0 | 1 => ControlFlow::Tags,
        2 => ControlFlow::FullPc,
        _ => ControlFlow::Bits,
    };
    let replays = matches!(state % 8, 0 | 5 | 6) && state % 16 > 7;
    let counts = replays || matches!(state % 8, 1 | 2);
    Way {
        options: Options {
            recording: RecordingOptions {
                instrument: match state % 8 {
                    0 => Instrument::None,
                    1 | 2 => Instrument::Inputs,
                    _ => Instrument::Dep,
                },
                control_flow,
                memory: if bit(2) { Memory::Addresses } else { Memory::Registers },
                ..RecordingOptions::default()
            },
            process: ProcessOptions {
                pointers: match () {
                    () if bit(3) => Pointers::ThreadBlock,
                    () if has_claimed_vectors() => Pointers::Vector,
                    // Code that records nothing leaves it alone, too, beside code that does.
                    () if has_avx_alone() => Pointers::Xmm15,
                    () => Pointers::ThreadBlock,
                },
                torture: if bit(4) { torture::SPILL } else { 0 },
                dead_registers: match counts {
                    true => DeadRegisters::Preserve,
                    false => DeadRegisters::Reuse,
                },
                replays,
                straight: state.is_multiple_of(3),
                switchable: false,
                increments_in_memory: counts || state.is_multiple_of(11),
                high_tables: state.is_multiple_of(7),
            },
        },
        placement: Placement {
            constant: instrument::block::Slots::default(),
            window_high: (!state.is_multiple_of(5)).then_some(0),
            patchable: state.is_multiple_of(3),
            movable: false,
            exact_registers: bit(5),
        },
        place: if bit(6) { FAR } else { NEAR },
        wide: bit(7),
    }
}

/// Whether it is an instruction of AVX-512.
fn needs_long_vectors(insn: &Instruction) -> bool {
    insn.cpuid_features().iter().any(|feature| format!("{feature:?}").starts_with("AVX512"))
}

/// Whether both runs can be compared: nothing that leaves the process, reads what time or place
/// decide, or takes what belongs to the comparison itself.
fn is_tame(insn: &Instruction) -> bool {
    use Mnemonic::*;
    if insn.is_invalid() || insn.is_privileged() || instrument::refusal::refusal(insn).is_some() {
        return false;
    }
    // What this processor does not have is not recorded in front of the fault, either.
    if !has_claimed_vectors() && needs_long_vectors(insn) {
        return false;
    }
    // The runtime answers them.
    if lifter::asks::asks(insn) {
        return false;
    }
    let flow_is_tame = match insn.flow_control() {
        FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            true
        }
        FlowControl::Call => insn.op0_kind() == OpKind::NearBranch64,
        FlowControl::IndirectCall | FlowControl::IndirectBranch | FlowControl::Return => true,
        FlowControl::Exception => true,
        _ => false,
    };
    let segment = (0..insn.op_count())
        .any(|n| insn.op_kind(n) == OpKind::Register && insn.op_register(n).is_segment_register());
    let other = matches!(
        insn.mnemonic(),
        Rdtsc
            | Rdtscp
            | Rdrand
            | Rdseed
            | Cpuid
            | Rdpid
            | Rdpru
            | Rdpmc
            | Popf
            | Popfd
            | Popfq
            | Xsave
            | Xsave64
            | Xsavec
            | Xsavec64
            | Xsaveopt
            | Xsaveopt64
            | Xrstor
            | Xrstor64
            | Xsaves
            | Xsaves64
            | Xrstors
            | Xrstors64
            | Fxrstor
            | Fxrstor64
            | Fxsave
            | Fxsave64
            | Wrpkru
            | Rdpkru
            | Tpause
            | Umwait
            | Umonitor
            | Monitorx
            | Mwaitx
            | Lfs
            | Lss
            | Wrfsbase
            | Xabort
            | Xend
            | Xtest
            | Vmmcall
            | Vmcall
            | Vmfunc
            | Xgetbv
            | Swapgs
            | Senduipi
            | Testui
            | Clui
            | Stui
            | Uiret
            | Serialize
            | Enqcmd
            | Enqcmds
            | Fnsave
            | Fnstenv
            | Fldenv
            | Frstor
            | Int1
            | Int3
            | Ldtilecfg
            | Sttilecfg
            | Tilerelease
            | Pconfig
            | Ptwrite
            | Sgdt
            | Sidt
            | Sldt
            | Str
            | Smsw
            | Lsl
            | Lar
            | Xsha1
            | Loadiwkey
    );
    // What the decoder knows and this processor may do differently: a prefix of another meaning.
    flow_is_tame && !segment && !other && insn.segment_prefix() != Register::GS
}

/// The instructions of an input up to its first transfer, or to the first that is not tame.
fn tame(code: &[u8], at: u64) -> Vec<Instruction> {
    let code = &code[..code.len().min(MOST_CODE)];
    let mut list = Vec::new();
    for insn in Decoder::with_ip(64, code, at, DecoderOptions::NONE).iter() {
        // A branch with an operand size is cut to 16 bits by some processors, and not by others.
        let bytes = &code[(insn.ip() - at) as usize..][..insn.len()];
        let sized =
            insn.flow_control() != FlowControl::Next && bytes[..insn.len() - 1].contains(&0x66);
        if sized || !is_tame(&insn) {
            break;
        }
        list.push(insn);
        if Flow::of(&insn).ends_unit() {
            break;
        }
    }
    list
}

/// How a run ended, in terms of the original code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Control left for this address.
    To(u64),
    /// The instruction at this address raised this.
    Fault { at: u64, stop: Stop },
}

/// All tables are there at once, for code at one place: whether the entry for `target`, which lies
/// elsewhere, would be one of those.
fn in_another_table(target: u64) -> bool {
    let low = target & 0xffff_ffff;
    let holds = |at: u64| TABLES.iter().any(|(_, area)| area.contains(at));
    !NEAR.code.contains(low)
        && TABLES.iter().any(|(table, _)| holds(table.base + table.entry * low))
}

/// What a look-up needs, as it is before a run: the run before, or the original, may have written
/// there.
fn look_up() {
    EXITS.bytes().fill(0xcc);
    FOUND.bytes().fill(0xcc);
    for (table, area) in TABLES {
        let entry_len = table.entry as usize;
        for (n, entry) in (0..).zip(area.bytes().chunks_exact_mut(entry_len)) {
            entry.copy_from_slice(&(FOUND.start + n).to_le_bytes()[..entry_len]);
        }
    }
}

impl Target for Moves {
    const NAME: &'static str = "moves";
    const MEGABYTES: u64 = 2048;

    fn seeds(&mut self) -> Vec<Vec<u8>> {
        let areas = [
            GADGET,
            TRANSLATED,
            EXITS,
            FOUND,
            TABLES[0].1,
            TABLES[1].1,
            TABLES[2].1,
            TABLES[3].1,
            TABLES[4].1,
            TABLES[5].1,
            TABLES[6].1,
            BLOCK,
            STREAMS,
            NEAR.code,
            NEAR.memory,
            FAR.code,
            FAR.memory,
        ];
        self.machine = Some(Machine::start(&areas).expect("a process that executes"));
        let mut seeds = Vec::new();
        for (n, code) in SEEDS.iter().enumerate() {
            // Each in several ways.
            for way in [0u8, 0x4b, 0x34, 0xe6, 0x7f] {
                let mut seed = vec![way.wrapping_add(n as u8 & 3)];
                seed.extend((n as u64 * 77 + 1).to_le_bytes());
                seed.extend_from_slice(code);
                seeds.push(seed);
            }
        }
        seeds.extend(fuzz::kept("moves"));
        seeds
    }

    fn mutate(&mut self, choices: &mut Choices, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        for _ in 0..1 + choices.below(5) {
            input.resize(input.len().max(HEAD + 1), 0x90);
            let len = input.len();
            match choices.below(12) {
                0 => input[0] = choices.word() as u8,
                1 => word::set(input, 1, 8, choices.word()),
                2 => mutate::in_place(choices, input, HEAD..len),
                3..=5 => change_instruction(choices, input),
                6 | 7 => {
                    // An instruction of another input, at a boundary of this one.
                    let other = choices.pick(corpus);
                    let code = other.get(HEAD..).unwrap_or_default();
                    let list = tame(code, 0);
                    if let Some(insn) = list.get(choices.below(list.len())) {
                        let bytes = code[insn.ip() as usize..][..insn.len()].to_vec();
                        let at = boundary(choices, input);
                        input.splice(at..at, bytes);
                    }
                }
                8 => {
                    let at = boundary(choices, input);
                    let count = 1 + choices.below(11);
                    input.splice(at..at, (0..count).map(|_| choices.word() as u8));
                }
                9 => {
                    // A prefix.
                    let at = boundary(choices, input);
                    let prefix = *choices
                        .pick(&[0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x3e, 0x64, 0x40, 0x48, 0x4f, 0xf0]);
                    input.insert(at, prefix);
                }
                10 => {
                    // An opcode of a page and form, with pc-relative memory.
                    let at = boundary(choices, input);
                    let mut insn: Vec<u8> = match choices.below(4) {
                        0 => vec![],
                        1 => vec![0x0f],
                        2 => vec![0xc5, choices.word() as u8],
                        _ => vec![
                            0x62,
                            choices.word() as u8 & 0xf7 | 1,
                            choices.word() as u8 | 4,
                            choices.word() as u8,
                        ],
                    };
                    insn.push(choices.word() as u8);
                    insn.push(choices.word() as u8 & 0x38 | 5);
                    insn.extend((0x1_0000 + choices.below(0xf000) as u32).to_le_bytes());
                    insn.extend([choices.word() as u8; 1]);
                    input.splice(at..at, insn);
                }
                _ => {
                    let at = boundary(choices, input);
                    let count = choices.below(16).min(len - at);
                    input.drain(at..at + count);
                }
            }
        }
        input.truncate(HEAD + MOST_CODE);
    }

    fn run(&mut self, input: &[u8], _file: &Path) -> Result<Outcome, String> {
        let refused = |name: &str| Ok(Outcome { accepted: false, name: name.into() });
        if input.len() <= HEAD {
            return refused("no code");
        }
        let seed = word::get(input, 1, 8);
        let way = way(input[0], seed);
        let start = way.place.start();
        let list = tame(&input[HEAD..], start);
        let Some(last) = list.last() else { return refused("nothing that can be compared") };
        let end = last.next_ip();
        let target = (last.op0_kind() == OpKind::NearBranch64).then(|| last.near_branch_target());
        if target.is_some_and(|target| (start..end).contains(&target)) {
            return refused("a branch into itself");
        }
        let code = &input[HEAD..HEAD + (end - start) as usize];
        let machine = self.machine.as_mut().ok_or("no machine")?;
        let state = first_state(&machine.template, seed, &way);

        let original = Original { way: &way, code, seed, state: &state };
        let mut expected = original.run(machine)?;
        if matches!(expected.end, End::Fault { stop, .. } if stop.signal == ENDLESS) {
            return refused("it does not end");
        }
        if matches!(expected.end, End::To(to) if target.is_none() && in_another_table(to)) {
            return refused("a target that is looked up among the entries of others");
        }

        if let End::Fault { at, stop } = expected.end {
            // The processor checks a target's form before it goes there, the look-up does not.
            let kernel = stop.signal == libc::SIGSEGV && stop.code == libc::SI_KERNEL;
            if kernel && at == last.ip() && Flow::of(last).ends_unit() {
                return refused("a target that is no address");
            }
        }

        // The translation.
        let block = Block {
            start: OrigAddr(start),
            len: code.len() as u32,
            id: UnitId::new(1, 16),
            version: 0,
            wide: way.wide,
            open: true,
            is_linked: false,
        };
        let mut fragment = Fragment::new(TRANSLATED.start);
        let mut translator = Translator::new(way.options, way.placement);
        translator.translate(
            &[block],
            Source { start: OrigAddr(start), bytes: code, selected: Selected::EVERYTHING },
            &mut fragment,
        );
        for (n, branch) in fragment.branches.iter().enumerate() {
            let distance =
                EXITS.start + 16 * n as u64 - (TRANSLATED.start + u64::from(branch.at.0) + 4);
            let at = branch.at.0 as usize;
            fragment.code.bytes[at..at + 4].copy_from_slice(&(distance as u32).to_le_bytes());
        }
        TRANSLATED.bytes().fill(0xcc);
        let bytes = &fragment.code.bytes;
        TRANSLATED.bytes()[..bytes.len()].copy_from_slice(bytes);
        fill(&way.place, seed);
        look_up();
        let mut got = state.clone();
        thread_block(&mut got, &way);
        got.registers.rip = TRANSLATED.start + u64::from(fragment.units[0].entry.0);
        let mut stop = machine.run(&mut got).map_err(trouble)?;
        if stop.signal == libc::SIGTRAP && got.registers.rip == STUB_TURN + 1 {
            // The turn that the thread was to leave at: it stands in front of the instruction.
            let block = |offset: i32| word::get(BLOCK.bytes(), offset as usize, 8);
            let left = match way.options.turns() {
                Turns::Down => block(thread::TURNS_LEFT),
                _ => turns(&got, None, last, &way).unwrap_or(0).wrapping_sub(1),
            };
            if block(thread::TARGET) != last.ip() || left != 0 {
                return Err(format!("a turn at {:#x}: {}", block(thread::TARGET), show(&list)));
            }
            got.registers.rip = block(thread::RESUME);
            word::set(BLOCK.bytes(), thread::TARGET as usize, 8, 0);
            stop = machine.run(&mut got).map_err(trouble)?;
        }
        // A fault that the original has, too, is none of a look-up's, whatever the instruction looks like.
        let own = match expected.end {
            End::Fault { stop, .. } => Some(stop),
            End::To(_) => None,
        };
        let table = way.options.return_table();
        // Jumps merge halves where returns do so in xmm30.
        let merges = table.is_some() && way.options.process.pointers == Pointers::Vector;
        let jumps = merges.then(|| way.options.jump_table());
        let mut looks_up = table.into_iter().chain(jumps).filter(|_| own != Some(stop));
        if let Some(look_up) = looks_up.find_map(|table| missed(&stop, &got.registers, table)) {
            find_nothing(&mut got, &way, look_up)?;
            stop = machine.run(&mut got).map_err(trouble)?;
        }
        if let Some(behind) = passed_over(&stop, &got.registers, &fragment) {
            pass_over(&mut got, &way, behind)?;
            stop = machine.run(&mut got).map_err(trouble)?;
        }
        let mut memory = way.place.memory.bytes().to_vec();
        let returns = last.flow_control() == FlowControl::Return;
        if returns && (table.is_some() || !way.options.leaves_memory_alone()) {
            // The dead word in front of the stack holds where the translated return went.
            let taken = if last.op_count() > 0 { last.immediate16() } else { 0 };
            let word = expected.state.registers.rsp.wrapping_sub(8 + u64::from(taken));
            let at = word.wrapping_sub(way.place.memory.start) as usize;
            for memory in [&mut memory, &mut expected.memory] {
                word::set(memory, at, 8, 0);
            }
        }
        let may_miss = own != Some(stop);
        let ended = translated_end(stop, &got.registers, &fragment, start, returns, may_miss);
        // The original goes on from there.
        let runs_on = |to| (start..end).contains(&to) || GADGET.contains(to);
        if matches!(ended, Ok((End::To(to), _)) if target.is_none() && runs_on(to)) {
            return refused("a branch into itself");
        }
        let agree = ended.and_then(|(end, entry)| {
            // One that faults was counted, too: the runtime takes it back.
            let reached = entry.is_none_or(|entry| entry.insn as usize + 1 == list.len());
            let is_turn = Flow::of(last).is_turn(OrigAddr(last.ip()));
            let stopped_at = entry.and_then(|entry| list.get(entry.insn as usize)).unwrap_or(last);
            let made = turns(&got, entry, stopped_at, &way);
            if made.is_some_and(|made| made != u64::from(is_turn && reached)) {
                return Err(format!("{made:?} turns"));
            }
            // In front of a fault a register that is dead may hold anything.
            let exact = way.placement.exact_registers
                || way.options.process.torture != 0
                || way.options.recording.instrument == Instrument::None && !looks_ahead(&fragment)
                || way.options.process.dead_registers == DeadRegisters::Preserve
                || entry.is_none();
            let first = u64::from(fragment.units[0].entry.0) + TRANSLATED.start;
            let inside = got.registers.rip.wrapping_sub(first) as u32;
            put_back(
                &mut got,
                entry,
                stopped_at,
                inside.wrapping_sub(entry.map_or(0, |entry| entry.code)),
                &way,
            );
            // In the middle of a look-up nothing but the target is there to be compared.
            let unfinished = entry.is_some() && matches!(end, End::To(_));
            if unfinished && (end == expected.end || expected.push_failed(last)) {
                return Ok(entry);
            }
            expected.is_like(&Ended { end, state: got, memory }, exact).map(|()| entry)
        });
        let entry = match agree {
            Ok(entry) => entry,
            Err(_) if original.touches_machinery(machine)? => {
                return refused("it touches what belongs to the comparison");
            }
            Err(what) => return Err(format!("{what}: {}", show(&list))),
        };
        let insn = entry.map_or(last, |entry| &list[entry.insn as usize]);
        let form = match insn.is_ip_rel_memory_operand() {
            true => "pc-relative",
            false => "plain",
        };
        let kind = match expected.end {
            End::To(_) => "left".to_owned(),
            End::Fault { stop, .. } => format!("signal {}", stop.signal),
        };
        Ok(Outcome { accepted: true, name: format!("{kind} {:?} {form}", insn.mnemonic()) })
    }
}

fn trouble(e: std::io::Error) -> String {
    format!("the machine: {e}")
}

/// How a run ended, and with what.
struct Ended {
    end: End,
    state: State,
    memory: Vec<u8>,
}

impl Ended {
    /// An indirect call that found no stack: its translation looks the target up before it pushes.
    fn push_failed(&self, last: &Instruction) -> bool {
        last.flow_control() == FlowControl::IndirectCall
            && matches!(self.end, End::Fault { at, stop } if at == last.ip()
                && (stop.code == libc::SI_KERNEL
                    || stop.address == self.state.registers.rsp.wrapping_sub(8)))
    }

    fn is_like(&self, other: &Ended, exact: bool) -> Result<(), String> {
        if self.end != other.end {
            return Err(format!("ended with {:x?}, expected {:x?}", other.end, self.end));
        }
        compare(&self.state, &other.state, exact)?;
        match self.memory == other.memory {
            true => Ok(()),
            false => Err("memory differs".into()),
        }
    }
}

/// The original code and where it starts from.
struct Original<'a> {
    way: &'a Way,
    code: &'a [u8],
    seed: u64,
    state: &'a State,
}

impl Original<'_> {
    /// Runs it, between traps.
    fn run(&self, machine: &mut Machine) -> Result<Ended, String> {
        let place = &self.way.place;
        let start = place.start();
        let at = (start - place.code.start) as usize;
        place.code.bytes().fill(0xcc);
        place.code.bytes()[at..at + self.code.len()].copy_from_slice(self.code);
        fill(place, self.seed);
        let mut state = self.state.clone();
        state.registers.rip = start;
        let stop = machine.run(&mut state).map_err(trouble)?;
        let code = start..start + self.code.len() as u64;
        let end = original_end(stop, &state.registers, code);
        Ok(Ended { end, state, memory: place.memory.bytes().to_vec() })
    }

    /// Whether what it does depends on memory that is not its own, or changes it: what the other
    /// way of running it has there is different by necessity.
    fn touches_machinery(&self, machine: &mut Machine) -> Result<bool, String> {
        let other = if self.way.place.code.start == NEAR.code.start { FAR } else { NEAR };
        let mut areas = vec![TRANSLATED, BLOCK, STREAMS, EXITS, FOUND];
        areas.extend([other.code, other.memory].into_iter().chain(TABLES.map(|(_, area)| area)));
        let mut first: Option<Ended> = None;
        let mut touches = false;
        for pattern in [0x55, 0xaa, 0x00, 0xff, 0x13] {
            areas.iter().for_each(|area| area.bytes().fill(pattern));
            let ended = self.run(machine)?;
            touches |= areas.iter().any(|area| area.bytes().iter().any(|&byte| byte != pattern));
            touches |= first.as_ref().is_some_and(|first| first.is_like(&ended, true).is_err());
            first.get_or_insert(ended);
        }
        Ok(touches)
    }
}

fn show(list: &[Instruction]) -> String {
    let list: Vec<String> = list.iter().map(|insn| format!("{insn}")).collect();
    list.join("; ")
}

/// A place between two instructions.
fn boundary(choices: &mut Choices, input: &[u8]) -> usize {
    let list = tame(&input[HEAD..], 0);
    HEAD + list.get(choices.below(list.len() + 1)).map_or(0, |insn| insn.ip() as usize)
}

/// Bits of one instruction changed, or its memory operand made pc-relative.
fn change_instruction(choices: &mut Choices, input: &mut [u8]) {
    let len = input.len();
    let at = boundary(choices, input);
    match choices.below(3) {
        0 => mutate::in_place(choices, input, at..at + 15),
        1 => {
            let list: Vec<usize> = (at..(at + 6).min(len)).collect();
            if let Some(&at) = list.get(choices.below(list.len())) {
                input[at] ^= 1 << choices.below(8);
            }
        }
        _ => {
            let at = at + 1 + choices.below(5);
            if at + 5 <= len {
                input[at] = input[at] & 0x38 | 5;
                word::set(input, at + 1, 4, 0x1_0000 + choices.below(0xf000) as u64);
            }
        }
    }
}

/// The memory in the code's reach: small numbers, addresses of it, and noise.
fn fill(place: &Place, seed: u64) {
    let mut choices = Choices::new(seed ^ 0x77);
    for (n, word) in place.memory.bytes().chunks_exact_mut(8).enumerate() {
        // Most of it need not differ from run to run, and is quickly made.
        let value = match n % 64 {
            0 => choices.word(),
            1 => place.memory.start + (choices.word() & 0xfff8),
            n if n % 8 == 2 => place.code.start + (n as u64 * 377) % place.code.len as u64,
            _ => (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 57),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Registers that point into the memory, small numbers, and noise; vectors likewise.
fn first_state(template: &State, seed: u64, way: &Way) -> State {
    let mut choices = Choices::new(seed);
    let mut state = template.clone();
    let memory = way.place.memory;
    let value = |choices: &mut Choices| match choices.below(8) {
        0 => choices.word(),
        1 => choices.below(300) as u64,
        2 => (choices.below(64) as u64).wrapping_sub(32),
        3 => memory.start + choices.below(memory.len) as u64,
        4 => way.place.code.start + choices.below(way.place.code.len) as u64,
        _ => way.place.middle() + 8 * choices.below(1000) as u64,
    };
    let r = &mut state.registers;
    for register in [
        &mut r.rax, &mut r.rbx, &mut r.rdx, &mut r.rsi, &mut r.rdi, &mut r.rbp, &mut r.r8,
        &mut r.r9, &mut r.r10, &mut r.r11, &mut r.r12, &mut r.r13, &mut r.r14, &mut r.r15,
    ] {
        *register = value(&mut choices);
    }
    // Counts of string instructions: mostly short.
    r.rcx = if choices.one_in(6) { value(&mut choices) } else { choices.below(40) as u64 };
    r.rsp = way.place.middle() + 16 * choices.below(100) as u64;
    r.eflags = 0x202 | choices.word() & FLAGS & !0x400 | u64::from(choices.one_in(8)) << 10;
    r.fs_base = way.place.middle();
    r.gs_base = BLOCK.start;
    r.orig_rax = u64::MAX;
    let mut used = word::get(&state.vectors, 512, 8);
    for part in [Some(FIRST_VECTORS), component(2), component(5), component(6), component(7)] {
        let Some(part) = part else { continue };
        if part.end > state.vectors.len() {
            continue;
        }
        for chunk in state.vectors[part].chunks_exact_mut(8) {
            // Indices of gathers want to be small.
            let value = match choices.below(3) {
                0 => choices.word(),
                1 => choices.below(64) as u64 | (choices.below(64) as u64) << 32,
                _ => 0x3ff0_0000_3f80_0000 ^ choices.word() >> 52,
            };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
    }
    used |= [0, 1, 2, 5, 6, 7]
        .iter()
        .filter(|&&n| n < 2 || component(n).is_some())
        .fold(0, |bits, n| bits | 1 << n);
    word::set(&mut state.vectors, 512, 8, used);
    state
}

/// A register that is not the program's in some way, or half of one: where it lies in the extended state, and where the
/// program's is kept in the thread block.
struct Claimed {
    number: usize,
    place: std::ops::Range<usize>,
    own: usize,
}

/// What is not the program's in this `way`. The pointers are in the last one.
fn claimed(state: &State, way: &Way) -> Vec<Claimed> {
    let at = |number: usize, start: usize, len: usize, own: i32| Claimed {
        number,
        place: start..start + len,
        own: own as usize,
    };
    let all = match way.options.process.pointers {
        Pointers::ThreadBlock => None,
        Pointers::Vector => component(7).map(|part| {
            let first = way.options.first_claimed().unwrap_or(32);
            let register =
                |n: usize| at(n, part.end - 64 * (32 - n), 64, thread::program_vector(n));
            (first..32).map(register).collect::<Vec<_>>()
        }),
        Pointers::Xmm15 => component(2).map(|part| {
            vec![
                at(15, part.end - 16, 16, thread::PROGRAM_YMM15 + 16),
                at(15, FIRST_VECTORS.end - 16, 16, thread::PROGRAM_YMM15),
            ]
        }),
    };
    let all = all.unwrap_or_default();
    assert!(all.iter().all(|claimed| claimed.place.end <= state.vectors.len()));
    all
}

/// Where zmm30 lies, which holds where a return goes.
fn zmm30(state: &State, way: &Way) -> Result<std::ops::Range<usize>, String> {
    let found = claimed(state, way).into_iter().find(|claimed| claimed.number == 30);
    found.map(|claimed| claimed.place).ok_or_else(|| "no zmm30".into())
}

/// What the runtime does with a look-up in the table of returns that faulted: it has found the miss
/// stub.
fn find_nothing(state: &mut State, way: &Way, look_up: Found) -> Result<(), String> {
    state.registers.rip += look_up.length();
    let (place, component) = match look_up.to_vector() {
        None => {
            state.registers.rcx = STUB_MISS;
            return Ok(());
        }
        Some(ToVector::Xmm30) => (zmm30(state, way)?, 0x80),
        Some(ToVector::Xmm7) => (XMM7, 2),
    };
    state.vectors[place.clone()].fill(0);
    word::set(&mut state.vectors, place.start, 4, STUB_MISS);
    state.vectors[512] |= component;
    Ok(())
}

/// Whether the unit's return is looked up ahead.
fn looks_ahead(fragment: &Fragment) -> bool {
    let recipe = recipe_of(&fragment.units[0], &fragment.recipes);
    recipe.is_some_and(|recipe| recipe.entries().any(|entry| entry.looks_ahead()))
}

/// If the return address could not be read ahead: where the code behind that starts.
fn passed_over(stop: &Stop, registers: &Registers, fragment: &Fragment) -> Option<u64> {
    let unit = &fragment.units[0];
    let offset = registers.rip.checked_sub(TRANSLATED.start + u64::from(unit.entry.0))?;
    let recipe = recipe_of(unit, &fragment.recipes)?;
    let is_ahead = recipe.at(u32::try_from(offset).ok()?)?.looks_ahead();
    let next = recipe.entries().find(|entry| u64::from(entry.code) > offset)?;
    let behind = TRANSLATED.start + u64::from(unit.entry.0) + u64::from(next.code);
    (is_ahead && stop.signal != libc::SIGTRAP).then_some(behind)
}

/// What the runtime does then: the look-up has found the miss stub.
fn pass_over(state: &mut State, way: &Way, behind: u64) -> Result<(), String> {
    state.registers.rip = behind;
    let zmm30 = zmm30(state, way)?;
    state.vectors[zmm30.clone()].fill(0);
    word::set(&mut state.vectors, zmm30.start, 4, STUB_MISS);
    state.vectors[512] |= 0x80;
    Ok(())
}

/// The look-up in `table` that has found no entry.
fn missed(stop: &Stop, registers: &Registers, table: TableShape) -> Option<Found> {
    let at = registers.rip.checked_sub(TRANSLATED.start)? as usize;
    let look_up = Found::decode(TRANSLATED.bytes().get(at..)?, table)?;
    let mut registers = *registers;
    let values = std::array::from_fn(|n| *gpr(&mut registers, Gpr(n as u8)));
    let place = look_up.place(table, &values);
    (stop.signal == libc::SIGSEGV && stop.address == place).then_some(look_up)
}

/// The control-flow pointer at the start; the next turn is the last one.
fn first_flow(way: &Way) -> u64 {
    match way.options.turns() {
        Turns::UpToLast => LAST_TURN - 1,
        _ => STREAMS.start + STREAMS.len as u64 / 4,
    }
}

/// What the runtime sets up for a thread.
fn thread_block(state: &mut State, way: &Way) {
    STREAMS.bytes().fill(0);
    let pointers = [first_flow(way), STREAMS.start + 3 * STREAMS.len as u64 / 4];
    let block = ThreadBlock {
        this: BLOCK.start,
        pointers,
        window_high: 0,
        jump_entries: way.options.jump_entries(0),
        stub_miss: STUB_MISS,
        stub_syscall: EXITS.start + 0xf10,
        stub_exit: EXITS.start + 0xf20,
        stub_refuse: EXITS.start + 0xf30,
        stub_turn: STUB_TURN,
        turns_left: 1,
        // As the original runs.
        program_gs: BLOCK.start,
        ..ThreadBlock::new()
    };
    // SAFETY: as many bytes as the structure has, all of them integers.
    let bytes = unsafe {
        std::slice::from_raw_parts((&raw const block).cast::<u8>(), size_of::<ThreadBlock>())
    };
    BLOCK.bytes()[..bytes.len()].copy_from_slice(bytes);
    for Claimed { number, place, own } in claimed(state, way) {
        BLOCK.bytes()[own..own + place.len()].copy_from_slice(&state.vectors[place.clone()]);
        let register = &mut state.vectors[place];
        register.fill(0);
        let held = number.checked_sub(thread::FIRST_VECTOR).and_then(|n| thread::HELD.get(n));
        let [low, high] = match held {
            Some(&(control_flow, words)) => [control_flow.into(), 8 * words as u64],
            None => pointers,
        };
        register[..8].copy_from_slice(&low.to_le_bytes());
        register[8..16].copy_from_slice(&high.to_le_bytes());
    }
}

/// The turns that were counted; `None` if none are.
fn turns(state: &State, entry: Option<Entry>, insn: &Instruction, way: &Way) -> Option<u64> {
    let block = |offset: i32| word::get(BLOCK.bytes(), offset as usize, 8);
    match way.options.turns() {
        Turns::NotCounted => None,
        Turns::Down => Some(1u64.wrapping_sub(block(thread::TURNS_LEFT))),
        Turns::Up | Turns::UpToLast => {
            let start = first_flow(way);
            // In the midst of an exchange of their register the pointers are in the block.
            let exchanges = entry.is_some_and(|entry| entry.kind.exchanges_pointers());
            let exchanged = if exchanges { exchange(insn, way).all } else { 0 };
            let now = match claimed(state, way).last() {
                Some(holder) if exchanged >> holder.number & 1 == 0 => {
                    word::get(&state.vectors, holder.place.start, 8)
                }
                _ => block(thread::POINTERS),
            };
            Some(now.wrapping_sub(start))
        }
    }
}

/// Which vector registers are exchanged around the instruction in this `way`.
fn exchange(insn: &Instruction, way: &Way) -> Exchange {
    let ProcessOptions { pointers, increments_in_memory, .. } = way.options.process;
    Exchange::around(insn, pointers, increments_in_memory, &mut InstructionInfoFactory::new())
}

/// Undoes what the interrupted instruction had borrowed.
fn put_back(state: &mut State, entry: Option<Entry>, insn: &Instruction, inside: u32, way: &Way) {
    let kind = entry.map_or(Kind::Plain, |entry| entry.kind);
    let block = |offset: i32| word::get(BLOCK.bytes(), offset as usize, 8);
    if let (Kind::Scratch | Kind::PointersScratch, Some(entry)) = (kind, entry) {
        *gpr(&mut state.registers, entry.register) = block(thread::SPILL + 8);
    }
    if let (Kind::UsedUp, Some(entry)) = (kind, entry) {
        for (number, register) in entry.spilled(inside).into_iter().enumerate() {
            if let Some(register) = register {
                let value = block(thread::SPILL + 8 * number as i32);
                *gpr(&mut state.registers, register) = value;
            }
        }
    }
    if entry.is_some_and(|entry| entry.saves_rcx()) {
        state.registers.rcx = block(thread::SAVED_RCX);
    }
    if entry.is_some_and(|entry| entry.saves_vector(inside)) {
        let at = thread::SAVED_XMM7 as usize;
        state.vectors[XMM7].copy_from_slice(&BLOCK.bytes()[at..at + XMM7.len()]);
        state.vectors[512] |= 2;
    }
    let loaded = match kind.exchanges_pointers() {
        true => exchange(insn, way).loaded,
        false => 0,
    };
    for Claimed { number, place, own } in claimed(state, way) {
        if loaded >> number & 1 == 0 {
            let own = &BLOCK.bytes()[own..own + place.len()];
            state.vectors[place].copy_from_slice(own);
        }
    }
}

fn gpr(r: &mut Registers, register: Gpr) -> &mut u64 {
    match register.0 {
        0 => &mut r.rax,
        1 => &mut r.rcx,
        2 => &mut r.rdx,
        3 => &mut r.rbx,
        4 => &mut r.rsp,
        5 => &mut r.rbp,
        6 => &mut r.rsi,
        7 => &mut r.rdi,
        8 => &mut r.r8,
        9 => &mut r.r9,
        10 => &mut r.r10,
        11 => &mut r.r11,
        12 => &mut r.r12,
        13 => &mut r.r13,
        14 => &mut r.r14,
        _ => &mut r.r15,
    }
}

/// A trap outside of the code, or a fault in fetching from there, is where control went.
fn original_end(stop: Stop, registers: &Registers, code: std::ops::Range<u64>) -> End {
    let rip = registers.rip;
    let trap = rip.wrapping_sub(1);
    if stop.signal == libc::SIGTRAP && !code.contains(&trap) {
        return End::To(trap);
    }
    match code.contains(&rip) {
        true => fault(rip, stop),
        false => End::To(rip),
    }
}

fn fault(at: u64, stop: Stop) -> End {
    // The address of an illegal instruction is its own.
    let own = matches!(stop.signal, libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    End::Fault { at, stop: Stop { address: if own { 0 } else { stop.address }, ..stop } }
}

/// The same for a translation; in front of a fault also how it stood with the instruction.
fn translated_end(
    stop: Stop,
    registers: &Registers,
    fragment: &Fragment,
    start: u64,
    returns: bool,
    may_miss: bool,
) -> Result<(End, Option<Entry>), String> {
    let rip = registers.rip;
    let trap = (stop.signal == libc::SIGTRAP).then(|| rip.wrapping_sub(1));
    // The whole original target.
    let target = || End::To(word::get(BLOCK.bytes(), thread::TARGET as usize, 8));
    if trap == Some(STUB_MISS) {
        return Ok((target(), None));
    }
    if let Some(trap) = trap.filter(|&trap| FOUND.contains(trap)) {
        return Ok((End::To(NEAR.code.start + (trap - FOUND.start)), None));
    }
    if stop.signal == libc::SIGTRAP && EXITS.contains(rip.wrapping_sub(1)) {
        let number = (rip - 1 - EXITS.start) as usize / 16;
        let branch = fragment.branches.get(number).ok_or("an exit that is none")?;
        return Ok((End::To(branch.target.0), None));
    }
    if stop.address == rip && rip >> 32 != 0 {
        // A return has kept its high half.
        let low = rip & 0xffff_ffff;
        let target = rip ^ low | word::get(BLOCK.bytes(), thread::TARGET as usize, 4);
        if FOUND.contains(low) || low == STUB_MISS {
            return Ok((End::To(target), None));
        }
    }
    if !TRANSLATED.contains(rip) {
        return Err(format!("{stop:x?} at {rip:#x}, outside of everything"));
    }
    let unit = &fragment.units[0];
    let recipe = recipe_of(unit, &fragment.recipes).ok_or("no recipe")?;
    let offset = (rip - TRANSLATED.start) as u32;
    let entry = recipe.at(offset - unit.entry.0).ok_or(format!("{stop:x?} in the prologue"))?;
    let mut stop = stop;
    let high_half = registers.rsp.wrapping_add(4);
    if returns && entry.may_return() && stop.address == high_half {
        // A return looks at the high half of its address first.
        stop.address = registers.rsp;
    }
    let jumps = [ONLY_TABLE, JUMP_TABLE, HIGH_JUMP_TABLE];
    let nothing = |&table: &TableShape| missed(&stop, registers, table).is_some();
    if may_miss && entry.saves_rcx() && jumps.iter().any(nothing) {
        return Ok((target(), Some(entry)));
    }
    Ok((fault(start + u64::from(entry.original), stop), Some(entry)))
}

/// What differs between two states.
fn compare(expected: &State, got: &State, exact: bool) -> Result<(), String> {
    let (mut a, mut b) = (expected.registers, got.registers);
    if exact {
        for register in (0..16).map(Gpr) {
            let (a, b) = (*gpr(&mut a, register), *gpr(&mut b, register));
            if a != b {
                return Err(format!("register {register} is {b:#x}, expected {a:#x}"));
            }
        }
    }
    if (a.eflags ^ b.eflags) & FLAGS != 0 {
        return Err(format!("flags are {:#x}, expected {:#x}", b.eflags & FLAGS, a.eflags & FLAGS));
    }
    if a.fs_base != b.fs_base {
        return Err("the fs base differs".into());
    }
    // x87 but for the addresses of its last instruction and operand, vectors, masks.
    let parts = [Some(0..6), Some(24..416), component(2), component(5), component(6), component(7)];
    for part in parts.into_iter().flatten() {
        let (a, b) = (expected.vectors.get(part.clone()), got.vectors.get(part.clone()));
        if let (Some(a), Some(b)) = (a, b) {
            if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                return Err(format!("extended state differs at {:#x}", part.start + at));
            }
        }
    }
    Ok(())
}

/// One of each kind.
const SEEDS: [&[u8]; 42] = [
    &[0x48, 0x8b, 0x05, 0, 0, 2, 0], // mov rax,[rip+20000h]
    &[0x89, 0x0d, 0, 0, 2, 0],       // mov [rip+20000h],ecx
    &[0x83, 0x3d, 0, 0, 2, 0, 7],    // cmp dword [rip+20000h],7
    &[0x48, 0x8d, 0x05, 0, 0, 2, 0], // lea rax,[rip+20000h]
    &[0x67, 0x8b, 0x05, 0, 0, 2, 0], // mov eax,[eip+20000h]
    &[0x62, 0xe1, 0xfe, 0x48, 0x6f, 0x0d, 0, 0, 2, 0], // vmovdqu64 zmm17,[rip+20000h]
    &[0x62, 0x61, 0xfe, 0x48, 0x6f, 0x3d, 0, 0, 2, 0], // vmovdqu64 zmm31,[rip+20000h]
    &[0x62, 0xf1, 0x6d, 0x58, 0xfe, 0x0d, 0, 0, 2, 0], // vpaddd zmm1,zmm2,[rip+..]{1to16}
    &[0xff, 0x35, 0, 0, 2, 0],       // push [rip+20000h]
    &[0x8f, 0x05, 0, 0, 2, 0],       // pop [rip+20000h]
    &[0x48, 0x0f, 0xc7, 0x0d, 0, 0, 2, 0], // cmpxchg16b [rip+20000h]
    &[0x48, 0x8b, 0x47, 0x08, 0x01, 0x30, 0x75, 0x10], // mov rax,[rdi+8]; add [rax],esi; jne
    &[0xf3, 0xa4, 0xf3, 0x48, 0xab, 0xe2, 0x20], // rep movsb; rep stosq; loop
    &[0xf3, 0xa6, 0xe3, 0x20],       // repe cmpsb; jrcxz
    &[0x55, 0x48, 0x89, 0xe5, 0xe8, 0x10, 1, 0, 0], // push rbp; mov rbp,rsp; call
    &[0x62, 0xf2, 0x7d, 0x4a, 0x90, 0x0c, 0x98], // vpgatherdd zmm1{k2},[rax+zmm3*4]
    &[0x62, 0xb2, 0x7d, 0x42, 0x90, 0x0c, 0xb8], // vpgatherdd zmm1{k2},[rax+zmm31*4]
    &[0x62, 0xb2, 0x7d, 0x42, 0x90, 0x0c, 0xb0], // vpgatherdd zmm1{k2},[rax+zmm30*4]
    &[0x62, 0x01, 0x0d, 0x40, 0xfe, 0xff], // vpaddd zmm31,zmm30,zmm31
    &[0x62, 0x61, 0x74, 0x28, 0x58, 0xfa], // vaddps ymm31,ymm1,ymm2
    &[0xf0, 0x48, 0x0f, 0xb1, 0x0f, 0x0f, 0x94, 0xc0], // lock cmpxchg [rdi],rcx; sete al
    &[0x48, 0x0f, 0xa3, 0x06, 0x48, 0x0f, 0xab, 0x07], // bt [rsi],rax; bts [rdi],rax
    &[0xd7, 0x64, 0x48, 0x8b, 0x14, 0x25, 8, 0, 0, 0], // xlat; mov rdx,fs:[8]
    &[0xdd, 0x05, 0, 0, 2, 0, 0xd8, 0xc1, 0xdd, 0x1f], // fld [rip+..]; fadd st1; fstp [rdi]
    &[0x48, 0xf7, 0x35, 0, 0, 2, 0], // div qword [rip+20000h]
    &[0xf3, 0x0f, 0x10, 0x05, 0, 0, 2, 0, 0x0f, 0xc2, 0xc1, 1], // movss; cmpltps
    &[0xc5, 0xfd, 0x6f, 0x05, 0, 0, 2, 0, 0xc5, 0xf8, 0x77], // vmovdqa ymm0,[rip+..]; vzeroupper
    &[0xc4, 0xe2, 0xf8, 0xf2, 0x15, 0, 0, 2, 0], // andn rdx,rax,[rip+20000h]
    &[0x8f, 0x44, 0x24, 0x08, 0xc8, 0x10, 0, 0, 0xc9], // pop [rsp+8]; enter; leave
    &[0x48, 0x0f, 0xba, 0x25, 0, 0, 2, 0, 3], // bt qword [rip+20000h],3
    &[0x66, 0x0f, 0x38, 0xf8, 0x07, 0x9c, 0x58], // movdir64b rax,[rdi]; pushf; pop rax
    &[0xc3],                         // ret
    &[0x58, 0x5b, 0xc2, 0x10, 0],    // pop rax; pop rbx; ret 10h
    &[0x48, 0x83, 0xc4, 0x18, 0x5b, 0x5d, 0x41, 0x5c, 0xc3], // add rsp,18h; pop rbx; pop rbp; pop r12; ret
    &[0x41, 0x5d, 0x8b, 0x47, 0x08, 0x5d, 0xc2, 8, 0], // pop r13; mov eax,[rdi+8]; pop rbp; ret 8
    &[0xff, 0xe0],                                     // jmp rax
    &[0x41, 0xff, 0xd3],                               // call r11
    &[0xff, 0x15, 0x10, 0, 1, 0],                      // call [rip+10010h]
    &[0xff, 0x25, 0x12, 0, 1, 0],                      // jmp [rip+10012h]
    &[0xff, 0x54, 0x24, 0x10],                         // call [rsp+10h]
    &[0x3e, 0xff, 0x61, 0x50],                         // notrack jmp [rcx+50h]
    &[0x8a, 0x25, 0, 0, 2, 0, 0x87, 0x1d, 0, 0, 2, 0], // mov ah,[rip+..]; xchg [rip+..],ebx
];

fn main() -> ExitCode {
    if !has_claimed_vectors() {
        println!("moves: no AVX-512VL here: code with the pointers in xmm31 is not tried");
    }
    fuzz::main(Moves { machine: None })
}
