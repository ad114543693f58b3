//! What emitted code depends on besides its plan, decided once for all that a translator emits.

use crate::block::{FarWindow, Placement};
use crate::plan::all_open;
use abi::layout::TableShape;
use abi::options::{torture, DeadRegisters, Options, Pointers, Turns};
use abi::thread::{held_in, FIRST_VECTOR};

/// How code is emitted.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Where it goes.
    pub placement: Placement,
    /// Of code outside of the program's window: its own.
    pub far: Option<FarWindow>,
    /// Where the buffer pointers live.
    pub pointers: Pointers,
    /// No vector register holds what is added to them.
    pub increments_in_memory: bool,
    /// How it returns.
    pub returns: Returns,
    /// A merged return's address is put back where it returns to.
    pub puts_back: bool,
    /// A call can return to right behind itself wherever that is translated. Not where what is entered by a
    /// direct branch tells nothing, whoever branches: nothing would name the unit that is returned to.
    pub comes_back: bool,
    /// Registers that the unit is about to overwrite may be used up for the look-up of its return.
    pub looks_ahead: bool,
    /// Those registers' values are kept until they are overwritten: whatever comes in between sees them.
    pub keeps_used_up: bool,
    /// What happens at turns.
    pub turns: Turns,
    /// Undo log: xmm30 takes what would need registers that are live, and one routine in front of the code cache
    /// records what there is to record at a call.
    pub spares_registers: bool,
    /// Loads are compared with the thread's view of memory, and stores go there, too.
    pub watches: bool,
    /// The table that indirect calls and jumps look up, and returns that have none of their own.
    pub table: TableShape,
}

/// How a translated return finds where it goes.
#[derive(Clone, Copy, Debug)]
pub enum Returns {
    /// A hardware return to the low half from this table and the high half on the stack.
    Merged(TableShape),
    /// A hardware return to a whole address from the common table, written to the stack.
    Whole,
    /// A jump to a whole address from the common table: memory stays as it is.
    Jump,
}

impl Manner {
    /// The manner of code for `options` that goes to `placement`, and was made of code in `far`.
    pub fn new(options: Options, placement: Placement, far: Option<FarWindow>) -> Manner {
        let returns = match options.return_table() {
            // The high half on the stack is not that of the translation.
            Some(_) if far.is_some() && options.leaves_memory_alone() => Returns::Jump,
            Some(_) if far.is_some() => Returns::Whole,
            Some(table) => Returns::Merged(table),
            None if options.leaves_memory_alone() => Returns::Jump,
            None => Returns::Whole,
        };
        let table = options.jump_table();
        let puts_back = options.puts_back();
        let turns = options.turns();
        let keeps_used_up = turns == Turns::Up;
        let is_expected = !matches!(returns, Returns::Jump) && !puts_back;
        Manner {
            placement,
            far,
            pointers: options.process.pointers,
            increments_in_memory: options.process.increments_in_memory,
            returns,
            puts_back,
            comes_back: placement.patchable && is_expected && !all_open(options.recording),
            looks_ahead: (keeps_used_up || options.process.dead_registers == DeadRegisters::Reuse)
                && options.process.torture & torture::SPILL == 0
                && !placement.exact_registers
                // A turn that may be the last one may lead to the runtime, which uses xmm30.
                && !matches!(turns, Turns::UpToLast | Turns::Down)
                && !options.recording.undo()
                // A watched thread compares what it returns to first.
                && !options.recording.watches()
                // It is kept until the return.
                && options.process.pointers == Pointers::Vector,
            keeps_used_up,
            turns,
            spares_registers: options.recording.undo()
                && options.process.pointers == Pointers::Vector
                && options.process.torture & torture::SPILL == 0,
            watches: options.recording.watches(),
            table,
        }
    }

    /// The vector register that holds the buffer pointers while translated code runs.
    pub fn pointer_vector(&self) -> Option<u8> {
        match self.pointers {
            Pointers::Vector => Some(31),
            Pointers::Xmm15 => Some(15),
            Pointers::ThreadBlock => None,
        }
    }

    /// Whether there are vector registers that are not the program's while translated code runs.
    pub fn claims_vectors(&self) -> bool {
        self.pointer_vector().is_some()
    }

    /// Whether vector register `number` is not the program's.
    pub fn claims(&self, number: usize) -> bool {
        claims(self.pointers, self.increments_in_memory, number)
    }

    /// The vector register that holds what adds these control-flow bytes and memory words, if one does.
    pub fn increment_vector(&self, control_flow: u8, words: usize) -> Option<u8> {
        let holds = self.pointers == Pointers::Vector && !self.increments_in_memory;
        held_in(control_flow, words).filter(|_| holds)
    }

    /// Where indirect calls and jumps find the low half of where they go, if they keep the high half of the target.
    pub fn merged_jumps(&self) -> Option<TableShape> {
        (self.table.entry == 4 && self.far.is_none()).then_some(self.table)
    }

    /// Whether xmm30 is scratch.
    pub fn has_scratch_vector(&self) -> bool {
        self.pointers == Pointers::Vector
    }
}

/// Whether vector register `number` is not the program's in code of this kind.
pub fn claims(pointers: Pointers, increments_in_memory: bool, number: usize) -> bool {
    match pointers {
        Pointers::Vector if increments_in_memory => number >= 30,
        Pointers::Vector => number >= FIRST_VECTOR,
        Pointers::Xmm15 => number == 15,
        Pointers::ThreadBlock => false,
    }
}
