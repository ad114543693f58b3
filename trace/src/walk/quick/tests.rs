//! Units as sums refer to what they refer to step by step, and leave the same registers.

use abi::ids::{Gpr, LiveAddr, UnitId};
use abi::trace::RegisterState;
use abi::unit::JitReason;
use lifter::operands::Segment;
use lifter::recompute::{Binary, Effect, Unary};
use lifter::regs::GprSet;

use crate::compile::{CompiledUnit, Exit, Simple, Start, Step, NO_REGISTER};
use crate::plain::{plain, FS, GS};
use crate::units::Origin;
use crate::walk::cursor::Cursor;
use crate::walk::{MemoryReference, Sink};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u8) -> u8 {
        u8::try_from(self.next() % u64::from(end)).expect("it is below")
    }

    /// Few registers, so that they have to do with each other.
    fn register(&mut self) -> Gpr {
        Gpr([0, 1, 3, 4, 5, 15][usize::from(self.below(6))])
    }

    fn some(&mut self) -> bool {
        self.below(2) == 0
    }

    fn number(&mut self) -> u64 {
        let bits = self.below(64);
        self.next() >> bits
    }

    fn effect(&mut self) -> Effect {
        use Binary::{And, Multiply, ShiftLeft, ShiftRight, ShiftRightSigned, Subtract};
        let (to, left, right) = (self.register(), self.register(), self.register());
        let narrow = self.below(4) == 0;
        let binary = [Subtract, And, Multiply, ShiftLeft, ShiftRight, ShiftRightSigned];
        let operation = binary[usize::from(self.below(6))];
        match self.below(9) {
            0 => Effect::Forget([left].into_iter().collect()),
            1 => Effect::Set { to, value: self.number() },
            2 => Effect::Binary { to, left, right, operation, narrow },
            3 => Effect::Immediate { to, left, right: self.number(), operation, narrow },
            4 => {
                let all = [Unary::Negate, Unary::Sign32, Unary::Zero8, Unary::SwapBytes];
                let operation = all[usize::from(self.below(4))];
                Effect::Unary { to, from: left, operation, narrow }
            }
            5 => Effect::Swap { a: to, b: left, narrow },
            _ => {
                let index = self.some().then(|| (right, [1, 2, 3, 8][usize::from(self.below(4))]));
                Effect::Lea { to, base: left, index, displacement: self.number(), narrow }
            }
        }
    }

    fn simple(&mut self, offset: u16) -> Simple {
        let mut register = || if self.some() { self.register() } else { NO_REGISTER };
        let (base, index) = (register(), register());
        Simple {
            displacement: self.number(),
            offset,
            size: u16::from(self.below(65)),
            base,
            index,
            scale: [1, 2, 4, 8][usize::from(self.below(4))],
            write: self.some(),
            segment: [Segment::None, Segment::None, Segment::Fs, Segment::Gs]
                [usize::from(self.below(4))],
            address32: self.below(8) == 0,
        }
    }

    /// Steps of a unit, in the order that compiled ones have.
    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for insn in 0..1 + u16::from(self.below(12)) {
            let offset = 3 * insn;
            let held = (self.below(6) == 0).then(|| self.register());
            if self.below(8) == 0 {
                steps.push(Step::Block(offset));
            }
            if self.below(3) == 0 {
                steps.push(Step::Take(self.register()));
            }
            steps.extend(held.map(Step::Hold));
            if self.below(5) == 0 {
                let operand = self.below(4);
                steps.push(Step::TakeAddress(operand));
                let write = self.some();
                steps.push(Step::Recorded { operand, offset, size: 8, write });
            }
            if self.some() {
                steps.push(Step::Plain(self.simple(offset)));
            }
            for _ in 0..self.below(3) {
                steps.push(Step::Effect(self.effect()));
            }
            steps.extend(held.map(Step::Release));
        }
        steps
    }
}

#[derive(Default, Debug, PartialEq)]
struct Seen(Vec<Result<MemoryReference, LiveAddr>>);

impl Sink for Seen {
    const REFERENCES: bool = true;
    fn reference(&mut self, reference: MemoryReference) {
        self.0.push(Ok(reference));
    }
    fn block(&mut self, pc: LiveAddr, _uncertain: bool) {
        self.0.push(Err(pc));
    }
}

fn unit(steps: Vec<Step>) -> CompiledUnit {
    let is_word =
        |step: &&Step| matches!(step, Step::Take(_) | Step::TakeAddress(_) | Step::Hold(_));
    let inner = steps.iter().filter_map(|step| match step {
        Step::Block(at) => Some(*at),
        _ => None,
    });
    CompiledUnit {
        id: UnitId(0x1_0010),
        address: LiveAddr(0x40_1000),
        origin: Origin::Jit(JitReason::Missed),
        memory_bytes: 8 * u32::try_from(steps.iter().filter(is_word).count()).expect("few"),
        inner_blocks: inner.collect(),
        starts: vec![Start { offset: 0, step: 0 }],
        exit: Exit::Anywhere,
        transfers: false,
        turns: false,
        atomic: Vec::new(),
        masked: Vec::new(),
        silent: None,
        steps,
    }
}

#[test]
fn sums_say_what_steps_say() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let (mut equal, mut unknown, mut changed) = (0, 0, 0);
    for _ in 0..20_000 {
        let unit = unit(random.steps());
        let memory: Vec<u8> =
            (0..unit.memory_bytes / 8).flat_map(|_| random.number().to_le_bytes()).collect();
        let state = RegisterState {
            valid: if random.below(3) == 0 { random.next() & 0xffff } else { 0xffff },
            gpr: std::array::from_fn(|_| random.number()),
            fs_base: random.number(),
            gs_base: random.number(),
            ..RegisterState::default()
        };
        let mut cursor = Cursor::new(&state, &memory, None);
        let mut expected = Seen::default();
        let ran = cursor.run(&unit, &unit.steps, &mut expected);
        let Some(plain) = plain(&unit.steps) else {
            // Only an address that can never be known has no sum here.
            assert!(ran.is_err(), "{:?}", unit.steps);
            unknown += 1;
            continue;
        };
        let valid = GprSet::from_bits(u16::try_from(state.valid).expect("16 bits"));
        if !plain.needs.minus(valid).is_empty() {
            assert!(ran.is_err(), "{:?}", unit.steps);
            unknown += 1;
            continue;
        }
        assert!(ran.is_ok(), "{:?}", unit.steps);
        let mut slots = [0; 256];
        slots[..16].copy_from_slice(&state.gpr);
        slots[usize::from(FS)] = state.fs_base;
        slots[usize::from(GS)] = state.gs_base;
        let (mut known, mut addresses, mut seen) = (valid, Vec::new(), Seen::default());
        plain.execute(&memory, &mut slots, &mut known, &mut addresses, true);
        seen.plain(0, &unit, &plain.references, &addresses[..plain.references.len()]);
        assert_eq!(seen, expected, "{:?}", unit.steps);
        assert_eq!(known, cursor.known.known, "{:?}", unit.steps);
        for register in known.iter() {
            let value = slots[register.index()];
            assert_eq!(Some(value), cursor.known.get(register), "{register} {:?}", unit.steps);
            changed += u32::from(value != state.gpr[register.index()]);
        }
        equal += 1;
    }
    // The test is of what it is meant to be of.
    assert!(equal > 5_000 && unknown > 2_000 && changed > 20_000, "{equal} {unknown} {changed}");
}
