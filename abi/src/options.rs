//! What the user asked to be recorded, as the rewriter writes it and the runtime and reader read it.

use crate::layout::{
    tables, TableShape, HALF_JUMP_TABLE, HIGH_HALF_JUMP_TABLE, HIGH_JUMP_TABLE, HIGH_RETURN_TABLE,
    JUMP_TABLE, ONLY_TABLE, RETURN_TABLE,
};
use crate::thread::FIRST_VECTOR;
use core::ops::Range;

/// Control-flow format (`--control-flow`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ControlFlow {
    /// 2-byte tag for each unit, a 6-byte tag with the whole unit id where a unit can be reached
    /// indirectly (the paper's DEP_C).
    #[default]
    Tags = 0,
    /// The whole address of each unit, 8 bytes (the paper's BB_pc).
    FullPc = 1,
    /// One outcome for each conditional branch, the whole target for each indirect transfer
    /// (the paper's CF_bit).
    Bits = 2,
}

/// Memory-reference format (`--memory`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Memory {
    /// Values of address registers, where they cannot be known otherwise (the paper's DEP_M).
    #[default]
    Registers = 0,
    /// The effective address of each reference (the paper's Mem_addr).
    Addresses = 1,
    /// No memory references.
    None = 2,
}

/// What is inserted (`--instrument`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Instrument {
    /// The Detailed Execution Profile.
    #[default]
    Dep = 0,
    /// Nothing: the program runs translated, and nothing is recorded.
    None = 1,
    /// The undo log: what each store overwrites, and the registers at each call.
    Undo = 2,
    /// What the program could not compute itself, from which a replay computes the rest.
    Inputs = 3,
    /// Both: the inputs, and the profile of the same run.
    InputsAndDep = 4,
}

/// Where the two buffer pointers live while generated code runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Pointers {
    /// Both in xmm31 (control flow low, memory high), and xmm30 is scratch; needs AVX-512VL.
    #[default]
    Vector = 0,
    /// In the thread block.
    ThreadBlock = 1,
    /// Both in xmm15; needs AVX, and a processor whose registers have no more than 32 bytes: what AVX writes to
    /// the lower half of a longer one is lost above.
    Xmm15 = 2,
}

/// Torture switches, each a bit of [`ProcessOptions::torture`].
pub mod torture {
    /// Treat every register as live, so that each scratch is spilled.
    pub const SPILL: u8 = 1;
    /// Leave a tenth of the ahead-of-time units out of the entry table, so that the JIT takes over.
    pub const DROP: u8 = 2;
    /// Two-page chunks.
    pub const TINY_BUFFERS: u8 = 4;
    /// The recording pauses for every other chunk.
    pub const PAUSES: u8 = 8;
    /// A position-independent program does not ask the kernel for the alignment that it needs, so that
    /// the runtime has to move it.
    pub const MISPLACED: u8 = 16;
    /// One thread of the program runs at a time, whatever is recorded.
    pub const SERIAL: u8 = 32;
    /// Code is translated block by block when it runs, generated code outside of the window has one table, and the code
    /// cache is full soon.
    pub const SCATTERED: u8 = 64;
    /// Each system call that a signal may keep from starting is kept from it once, by nothing.
    pub const KEPT_CALLS: u8 = 128;
}

/// Whether the values of dead registers survive (`--dead-registers`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum DeadRegisters {
    /// A scratch register is one that liveness proves dead, if there is one.
    #[default]
    Reuse = 0,
    /// Every register is live: each scratch register is spilled and restored.
    Preserve = 1,
}

/// Bytes that one step of [`RecordingOptions::log_size`] stands for.
pub const LOG_STEP: u64 = 16 << 10;
/// Largest [`RecordingOptions::log_size`], in steps.
pub const LOG_MOST: u32 = (1 << 22) - 1;

/// Everything that is decided when rewriting. One word holds it ([`Options::to_word`]), but it is two
/// things: most functions need one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// What holds for the whole process.
    pub process: ProcessOptions,
    /// What is recorded.
    pub recording: RecordingOptions,
}

/// What all translated code of a process agrees on, whatever is recorded by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessOptions {
    /// Where the buffer pointers live.
    pub pointers: Pointers,
    /// Bits of [`torture`].
    pub torture: u8,
    /// Whether dead registers keep their values.
    pub dead_registers: DeadRegisters,
    /// What is translated ahead of time is so twice: there is code that records nothing, too.
    pub switchable: bool,
    /// The code is made for a replay: it counts turns, and leaves at a turn that it was told.
    pub replays: bool,
    /// Of a replay that records no streams: it has to leave nowhere but at calls and at instructions that ask the machine, so turns are
    /// counted as in the recording. (Where it has to after all, it goes step by step.)
    pub straight: bool,
    /// No vector register holds what is added to the buffer pointers. (Where nothing is recorded, or turns are counted,
    /// that leaves the program five more registers, each of which costs nothing then.)
    pub increments_in_memory: bool,
    /// The look-up tables lie high ([`crate::layout::HIGH_BASE`]): low addresses are the program's.
    pub high_tables: bool,
}

/// Where control leaves that counts turns in place of the control-flow pointer: the first number of which the
/// high half is not zero. So one `vpextrd` and `jrcxz` tell, and no flag is touched.
pub const LAST_TURN: u64 = 1 << 32;

/// What code does at a turn (see `lifter::flow::Flow::is_turn`), in front of its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turns {
    /// Nothing.
    NotCounted,
    /// Counts it, in place of the control-flow pointer.
    Up,
    /// The same, and leaves by way of `stub_turn` from the [`LAST_TURN`]th on.
    UpToLast,
    /// Counts it down in the thread block, and leaves by way of `stub_turn` if it was the last one.
    Down,
}

/// What belongs to one recording: a process may run code of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordingOptions {
    /// What is inserted.
    pub instrument: Instrument,
    /// How control flow is recorded.
    pub control_flow: ControlFlow,
    /// How memory references are recorded.
    pub memory: Memory,
    /// Only a part of the code is recorded ([`crate::selection`]).
    pub selective: bool,
    /// The oldest chunks give way to new ones, instead of recording coming to an end.
    pub ring: bool,
    /// Inputs: all threads run at once, and what each of them sees is compared with a view of its own.
    pub watched: bool,
    /// Size of the log in units of [`LOG_STEP`]; 0: unlimited.
    pub log_size: u32,
}

impl From<RecordingOptions> for Options {
    fn from(recording: RecordingOptions) -> Options {
        Options { recording, ..Options::default() }
    }
}

impl RecordingOptions {
    /// Whether anything is recorded at all.
    pub fn records(self) -> bool {
        self.instrument != Instrument::None
    }

    /// Whether control flow is recorded, and memory references if they are wanted.
    pub fn is_profile(self) -> bool {
        matches!(self.instrument, Instrument::Dep | Instrument::InputsAndDep)
    }

    /// Whether memory references are recorded.
    pub fn records_memory(self) -> bool {
        self.is_profile() && self.memory != Memory::None
    }

    /// Whether what stores overwrite is recorded.
    pub fn undo(self) -> bool {
        self.instrument == Instrument::Undo
    }

    /// Whether inputs are recorded: events that are placed by a count of turns.
    pub fn inputs(self) -> bool {
        matches!(self.instrument, Instrument::Inputs | Instrument::InputsAndDep)
    }

    /// Whether one run leaves the inputs and the profile: events are placed in the streams, and events of
    /// their own say the turns.
    pub fn both(self) -> bool {
        self.instrument == Instrument::InputsAndDep
    }

    /// Whether each thread has a view of memory, which its loads are compared with.
    pub fn watches(self) -> bool {
        self.inputs() && self.watched
    }

    /// Whether units write to the streams of chunks.
    pub fn streams(self) -> bool {
        self.records() && self.instrument != Instrument::Inputs
    }

    /// Most bytes of chunks and events that the trace keeps, if that is limited.
    pub fn log_bytes(self) -> Option<u64> {
        (self.log_size != 0).then(|| u64::from(self.log_size) * LOG_STEP)
    }
}

impl Options {
    /// Those of the other code of a process: that records nothing, beside code that does; or whose only thread
    /// has no view yet, beside code that watches.
    pub fn plain(self) -> Options {
        let recording = match self.recording.watches() {
            true => RecordingOptions { watched: false, ..self.recording },
            false => RecordingOptions { instrument: Instrument::None, ..self.recording },
        };
        Options { recording, ..self }
    }

    /// Of a recording of inputs with serial threads: those of the code that a process goes over to if others write to the memory
    /// of its only thread. It has the tables of the other code.
    pub fn watching(self) -> Options {
        let recording = RecordingOptions { watched: true, ..self.recording };
        Options { process: ProcessOptions { switchable: true, ..self.process }, recording }
    }

    /// Whether a process runs code that does not watch as long as it has one thread.
    pub fn watches_later(self) -> bool {
        self.recording.watches() && self.process.switchable
    }

    /// Those that the look-up tables are made for: of two kinds of code, the one that has more of them.
    pub fn of_tables(self) -> Options {
        if self.watches_later() {
            self.plain()
        } else {
            self
        }
    }

    /// Whether code leaves nothing of its own behind in memory, not even below the stack pointer.
    /// Otherwise a return leaves a translated address where the return address was.
    pub fn leaves_memory_alone(self) -> bool {
        self.recording.undo()
            || self.turns() != Turns::NotCounted
            || self.process.dead_registers == DeadRegisters::Preserve
    }

    /// Whether what a return that merges has put on the stack is put right where it returns to: each unit
    /// that can be reached indirectly has code for that in front of its entry.
    pub fn puts_back(self) -> bool {
        self.leaves_memory_alone() && self.return_table().is_some()
    }

    /// What is done at turns.
    pub fn turns(self) -> Turns {
        match (self.process.replays, self.recording.inputs(), self.recording.streams()) {
            (true, _, false) if self.process.straight => Turns::Up,
            (true, _, false) if self.process.pointers != Pointers::ThreadBlock => Turns::UpToLast,
            (true, ..) => Turns::Down,
            // The control-flow pointer is in use; code that counts down never comes to the last turn.
            (false, true, true) => Turns::Down,
            (false, true, false) => Turns::Up,
            (false, false, _) => Turns::NotCounted,
        }
    }

    /// Whether ahead-of-time code may jump by way of slots, which lead to translated code at once. What a thread that
    /// is watched reads is looked at, and a count of turns has to leave all registers alone.
    pub fn has_slots(self) -> bool {
        !self.recording.watches()
            && match self.turns() {
                Turns::NotCounted => true,
                Turns::Up => self.process.pointers != Pointers::ThreadBlock,
                Turns::UpToLast | Turns::Down => false,
            }
    }

    /// Whether the program is to see nothing that a replay cannot repeat.
    pub fn is_repeatable(self) -> bool {
        self.recording.inputs() || self.process.replays
    }

    /// The table for the returns, if they have one of their own: they merge the low half from the
    /// table with the high half on the stack, in xmm30 or in xmm7. (In the undo log a return is a jump, and so
    /// it is where turns are counted and there is no xmm30.)
    pub fn return_table(self) -> Option<TableShape> {
        let jumps = self.recording.undo() || self.recording.watches();
        let in_claimed = self.process.pointers == Pointers::Vector;
        let merges = !jumps && (in_claimed || !self.leaves_memory_alone());
        let table = if self.process.high_tables { HIGH_RETURN_TABLE } else { RETURN_TABLE };
        merges.then_some(table)
    }

    /// Whether indirect calls and jumps merge halves, too, in xmm30.
    fn jumps_merge(self) -> bool {
        self.of_tables().return_table().is_some() && self.process.pointers == Pointers::Vector
    }

    /// Whether they may go to whatever a return may go to besides, so that one table serves both.
    pub fn shares_table(self) -> bool {
        self.jumps_merge() && !self.of_tables().puts_back()
    }

    /// The table for indirect calls and jumps, and for all that have none of their own.
    pub fn jump_table(self) -> TableShape {
        match self.of_tables().return_table() {
            Some(table) if self.shares_table() => table,
            _ if self.jumps_merge() && self.process.high_tables => HIGH_HALF_JUMP_TABLE,
            _ if self.jumps_merge() => HALF_JUMP_TABLE,
            _ if self.process.high_tables => HIGH_JUMP_TABLE,
            Some(_) => JUMP_TABLE,
            None => ONLY_TABLE,
        }
    }

    /// What is added to eight times an address in the window that starts at `window`: the place of its
    /// entry in [`Options::jump_table`].
    pub fn jump_entries(self, window: u64) -> u64 {
        self.jump_table().base.wrapping_sub(window.wrapping_mul(8))
    }

    /// Where the tables lie.
    pub fn tables(self) -> Range<u64> {
        tables(self.process.high_tables)
    }

    /// Whether xmm15 may hold the buffer pointers: where there are any, or turns are counted in their place.
    pub fn may_take_xmm15(self) -> bool {
        self.recording.streams() || self.turns() != Turns::NotCounted
    }

    /// The first of the vector registers that are not the program's while translated code runs, and that have no
    /// number below 16.
    pub fn first_claimed(self) -> Option<usize> {
        match (self.process.pointers, self.process.increments_in_memory) {
            (Pointers::Vector, false) => Some(FIRST_VECTOR),
            (Pointers::Vector, true) => Some(30),
            _ => None,
        }
    }

    /// Packs the options into one word; [`Options::from_word`] is the inverse.
    pub fn to_word(self) -> u64 {
        let Options { process, recording } = self;
        u64::from(recording.instrument as u8)
            | u64::from(recording.control_flow as u8) << 8
            | u64::from(process.straight) << 15
            | u64::from(recording.memory as u8) << 16
            | u64::from(recording.watched) << 23
            | u64::from(process.pointers as u8) << 24
            | u64::from(process.increments_in_memory) << 27
            | u64::from(process.high_tables) << 28
            | u64::from(process.switchable) << 29
            | u64::from(process.replays) << 30
            | u64::from(recording.selective) << 31
            | u64::from(process.torture) << 32
            | u64::from(process.dead_registers as u8) << 40
            | u64::from(recording.ring) << 41
            | u64::from(recording.log_size.min(LOG_MOST)) << 42
    }

    /// Unpacks [`Options::to_word`]; `None` if a field has no meaning in this version.
    pub fn from_word(word: u64) -> Option<Options> {
        let [instrument, control_flow, memory, pointers, torture, ..] = word.to_le_bytes();
        let process = ProcessOptions {
            pointers: match pointers & 7 {
                0 => Pointers::Vector,
                1 => Pointers::ThreadBlock,
                2 => Pointers::Xmm15,
                _ => return None,
            },
            torture,
            dead_registers: match word >> 40 & 1 {
                0 => DeadRegisters::Reuse,
                _ => DeadRegisters::Preserve,
            },
            switchable: pointers & 0x20 != 0,
            replays: pointers & 0x40 != 0,
            straight: control_flow & 0x80 != 0,
            increments_in_memory: pointers & 8 != 0,
            high_tables: pointers & 0x10 != 0,
        };
        let recording = RecordingOptions {
            instrument: match instrument {
                0 => Instrument::Dep,
                1 => Instrument::None,
                2 => Instrument::Undo,
                3 => Instrument::Inputs,
                4 => Instrument::InputsAndDep,
                _ => return None,
            },
            control_flow: match control_flow & 0x7f {
                0 => ControlFlow::Tags,
                1 => ControlFlow::FullPc,
                2 => ControlFlow::Bits,
                _ => return None,
            },
            memory: match memory & 0x7f {
                0 => Memory::Registers,
                1 => Memory::Addresses,
                2 => Memory::None,
                _ => return None,
            },
            selective: pointers & 0x80 != 0,
            ring: word >> 41 & 1 == 1,
            watched: memory & 0x80 != 0,
            // 22 bits are left.
            log_size: u32::try_from(word >> 42).ok()?,
        };
        Some(Options { process, recording })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_watches_later_has_the_tables_of_the_other() {
        for high_tables in [false, true] {
            let process = ProcessOptions { high_tables, ..ProcessOptions::default() };
            let recording =
                RecordingOptions { instrument: Instrument::Inputs, ..RecordingOptions::default() };
            let serial = Options { process, recording };
            let watching = serial.watching();
            assert!(watching.recording.watches() && watching.watches_later());
            assert_eq!(watching.jump_table(), serial.jump_table());
            assert_eq!(watching.of_tables().return_table(), serial.return_table());
            assert_eq!(watching.turns(), serial.turns());
            assert_eq!(Options::from_word(watching.to_word()), Some(watching));
        }
    }

    #[test]
    fn options_survive_their_word() {
        let recording = RecordingOptions {
            instrument: Instrument::Undo,
            control_flow: ControlFlow::FullPc,
            memory: Memory::Addresses,
            selective: false,
            ring: true,
            watched: false,
            log_size: LOG_MOST,
        };
        let process = ProcessOptions {
            pointers: Pointers::ThreadBlock,
            torture: torture::SPILL | torture::TINY_BUFFERS,
            dead_registers: DeadRegisters::Preserve,
            switchable: false,
            replays: false,
            straight: false,
            increments_in_memory: false,
            high_tables: false,
        };
        let options = Options { process, recording };
        assert_eq!(Options::from_word(options.to_word()), Some(options));
        // What outputs and traces of earlier versions hold.
        assert_eq!(options.to_word(), 0xffff_ff05_0101_0102);
        let selective = RecordingOptions { selective: true, ..recording };
        let selective = Options { recording: selective, ..options };
        assert_eq!(Options::from_word(selective.to_word()), Some(selective));
        let process = ProcessOptions { switchable: true, ..process };
        let switchable = Options { process, ..selective };
        assert_eq!(Options::from_word(switchable.to_word()), Some(switchable));
        assert!(!switchable.plain().recording.records());
        assert_eq!(Options::from_word(0), Some(Options::default()));
        let process =
            ProcessOptions { replays: true, straight: true, switchable: false, ..process };
        let replays = Options { process, ..options };
        assert_eq!(Options::from_word(replays.to_word()), Some(replays));
        let process = ProcessOptions { high_tables: true, ..process };
        let high = Options { process, ..options };
        assert_eq!(Options::from_word(high.to_word()), Some(high));
        let process = ProcessOptions { increments_in_memory: true, ..process };
        let in_memory = Options { process, ..high };
        assert_eq!(Options::from_word(in_memory.to_word()), Some(in_memory));
        let watched = RecordingOptions { watched: true, ..recording };
        let watched = Options { recording: watched, ..options };
        assert_eq!(Options::from_word(watched.to_word()), Some(watched));
        assert_eq!(Options::from_word(5), None);
        let both = RecordingOptions { instrument: Instrument::InputsAndDep, ..Default::default() };
        let (both, inputs) = (Options::from(both), Instrument::Inputs);
        assert_eq!(Options::from_word(both.to_word()), Some(both));
        assert!(both.recording.inputs() && both.recording.streams());
        let inputs = RecordingOptions { instrument: inputs, ..Default::default() };
        assert_eq!((both.turns(), Options::from(inputs).turns()), (Turns::Down, Turns::Up));
        assert_eq!(recording.log_bytes(), Some(u64::from(LOG_MOST) * LOG_STEP));
        assert_eq!(RecordingOptions::default().log_bytes(), None);
    }
}
