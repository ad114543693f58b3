//! What is written once, at start, and then only read.

use crate::base::once::Once;
use crate::base::processor::XsaveLayout;
use abi::image::ImageHeader;
use abi::options::Options;
use core::ops::Range;

/// Facts about the process.
pub struct Facts {
    /// What the rewriter left in the output.
    pub header: ImageHeader,
    /// Start of the code window.
    pub window: u64,
    /// What is recorded, and how, as far as this processor can.
    pub options: Options,
    /// The runtime's own code and data.
    pub runtime: Range<u64>,
    /// All that was added to the program: tables, translations, runtime.
    pub added: Range<u64>,
    /// XCR0 and the layout of the XSAVE area.
    pub xsave: XsaveLayout,
    /// Sizes of the initial chunk, for `--torture tiny-buffers`.
    pub tiny_buffers: bool,
    /// The recording pauses now and then, for `--torture pauses`.
    pub pauses: bool,
    /// A system call is kept from starting once, for `--torture kept-calls`.
    pub keeps_calls: bool,
    /// One thread of the program runs at a time.
    pub serial: bool,
    /// What the runtime has of the kernel's code in the process.
    pub vdso: Vdso,
    /// Where generated code and the kernel enter the runtime.
    pub entries: Entries,
}

/// The vdso, where the program has none. A function that is not there is 0.
#[derive(Clone, Default)]
pub struct Vdso {
    /// All of it.
    pub code: Range<u64>,
    pub clock_gettime: u64,
    pub gettimeofday: u64,
    pub time: u64,
    pub getcpu: u64,
}

impl Facts {
    /// Whether `pc` is in the runtime, or in what it calls.
    pub fn is_runtime(&self, pc: u64) -> bool {
        self.runtime.contains(&pc) || self.vdso.code.contains(&pc)
    }
}

/// Addresses of the runtime's entries: the floors below the gate know them as data.
#[derive(Clone, Copy)]
pub struct Entries {
    pub miss: u64,
    /// Where transfers out of the window go first.
    pub far: u64,
    pub return_miss: u64,
    pub syscall: u64,
    pub exit: u64,
    pub refuse: u64,
    pub store: u64,
    /// By way of this a replay's handler brings a thread into the runtime, to go on at `target`.
    pub arrive: u64,
    pub turn: u64,
    pub ask: u64,
    pub watch: u64,
    pub fill: u64,
    /// Undo log: the routine that records what there is to record at a call, if it is there.
    pub log_call: u64,
    /// Where a new thread of the program starts, with its block in r12.
    pub new_thread: u64,
    /// The handler of all signals, and where it returns to.
    pub handler: u64,
    pub restorer: u64,
}

static FACTS: Once<Facts> = Once::new();

/// Puts the facts in place.
pub fn install(facts: Facts) {
    FACTS.install(facts);
}

/// The facts about this process.
pub fn facts() -> &'static Facts {
    FACTS.get()
}
