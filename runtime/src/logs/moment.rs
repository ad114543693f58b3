//! The moments at which a log may want to note something, and what is known then.

use crate::base::lock::Forked;
use crate::logs::inputs::written::Image;
use crate::logs::writes::Writes;
use crate::thread::Thread;
use abi::trace::RegisterState;
use core::ops::Range;

/// A system call that is about to be made, or has returned.
pub struct Call {
    pub number: usize,
    pub args: [usize; 6],
    /// What it may write, if the log has asked for it ([`Log::wants_writes`]).
    pub writes: Writes,
    /// The end of the program's heap before it; only for `brk`, and if the log has asked for writes.
    pub brk: u64,
    /// What was there before it, if the log has asked for that ([`Log::image`]).
    pub before: Image,
}

/// A signal frame that is about to be written to the program's stack.
pub struct Frame {
    /// The original address that was interrupted.
    pub pc: u64,
    /// Where the frame lies, and its bytes.
    pub start: u64,
    pub len: u64,
    /// Instructions that were done in the thread's last unit.
    pub insn: u32,
}

/// A fault of the program's, before the program is told of it.
pub struct Fault<'a> {
    /// The processor's number of it.
    pub trap: u64,
    /// The processor's error code, which the program will see.
    pub error: &'a mut u64,
    /// It was raised by a snippet that reads what an instruction is about to overwrite.
    pub reads_ahead: bool,
}

/// What a recording keeps besides the streams of its units. Each method is one moment; by default
/// nothing is noted then.
pub trait Log: Sync {
    /// The process starts, and translated code has not run yet. An error ends it: one line.
    fn start(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// Memory that the log has taken for itself, which the program may not change.
    fn memory(&self) -> Range<u64> {
        0..0
    }

    /// Whether [`Call::writes`] is wanted.
    fn wants_writes(&self) -> bool {
        false
    }

    /// Whether memory must stay as the program left it when the process dies.
    fn leaves_memory_alone(&self) -> bool {
        false
    }

    /// Puts what [`Call::before`] is to hold of what a call may write into it.
    fn image(&self, _writes: &Writes, _before: &mut Image) {}

    /// The first thread is about to go on at the program's first instruction; `stack` is what the kernel
    /// has left on its stack.
    fn program_starts(&self, _thread: &mut Thread, _stack: Range<u64>) {}

    /// A chunk of the thread begins, its first one included.
    fn chunk_starts(&self, _thread: &mut Thread) {}

    /// A system call is about to be made.
    fn before_call(&self, _thread: &mut Thread, _call: &Call) {}

    /// The call has returned `result`, and is noted next.
    fn call_returns(&self, _thread: &mut Thread, _call: &Call, _result: usize) {}

    /// As [`Log::call_returns`], in the child that the call has made: its recording has begun.
    fn child_starts(&self, _thread: &mut Thread, _call: &Call) {}

    /// The call has returned `result`, as the kernel gave it, and has been noted.
    fn after_call(&self, _thread: &mut Thread, _call: &Call, _result: usize) {}

    /// The instruction at `pc` is about to store; only registers tell how much.
    fn before_store(&self, _thread: &mut Thread, _pc: u64) {}

    /// The instruction at `pc` has asked the machine and was given `values`, as [`abi::event::Event::Answer`]
    /// has them; they are not in the thread's registers and memory yet.
    fn answered(&self, _thread: &mut Thread, _pc: u64, _values: &[u64; 4]) {}

    /// A signal frame is about to be written.
    fn before_frame(&self, _thread: &mut Thread, _frame: &Frame) {}

    /// A signal frame has been written, or as much of it as the program's stack can take.
    fn after_frame(&self, _thread: &mut Thread, _frame: &Frame) {}

    /// A signal that somebody has sent is about to be delivered to the program, which has these
    /// registers, or to end it.
    fn arrived(&self, _thread: &mut Thread, _registers: &RegisterState) {}

    /// A signal that the program's instruction has raised is about to end it, with these registers.
    fn dies(&self, _thread: &mut Thread, _registers: &RegisterState) {}

    /// An instruction of the program has faulted.
    fn faulted(&self, _thread: &mut Thread, _fault: &mut Fault<'_>) {}

    /// In the only thread of a forked child.
    fn forked(&self, _forked: &Forked) {}

    /// The thread is about to end.
    fn before_exit(&self, _thread: &mut Thread) {}
}
