//! What the processor has raised, or is to raise, for the program.

/// How far a thread whose program has set the trap flag is with the instruction that raises the next trap.
#[derive(Clone, Copy, Default)]
pub struct Traps {
    /// It has not been started: the flag was loaded in front of it.
    pub fresh: bool,
    /// Its original pc and where its code was entered, which more than one boundary may belong to.
    pub within: (u64, u64),
    /// Where the last trap in translated code was: a repeated instruction raises one each time round.
    pub last: u64,
}

/// What a signal frame says of the last fault. The kernel keeps it for each thread, and tells it with every
/// signal; what it keeps are faults of translated code and of the runtime.
#[derive(Clone, Copy, Default)]
pub struct LastFault {
    pub trap: u64,
    pub error: u64,
    pub address: u64,
}

/// The processor is to raise what it raises for fetching code at `address`, where the program has none.
#[derive(Clone, Copy)]
pub struct Fetch {
    pub address: u64,
    /// Instructions done in the last unit, and registers that are valid, if it is an instruction of a unit that
    /// goes on at the address.
    pub inside: Option<(u32, u64)>,
}

/// The processor's number of a page fault.
pub const PAGE_FAULT: u64 = 14;
/// That of a general protection fault.
pub const GENERAL_PROTECTION: u64 = 13;

/// In the flags that a fault leaves: it is not raised again for the same instruction by a breakpoint.
pub const RESUME_FLAG: u64 = 0x10000;

/// Error codes of page faults: at user level, by a fetch.
pub const BY_FETCH: u64 = 0x14;

impl LastFault {
    /// The processor has raised `trap`, with this error code; `address`: where the page fault was.
    pub fn note(&mut self, trap: u64, error: u64, address: u64) {
        (self.trap, self.error) = (trap, error);
        if trap == PAGE_FAULT {
            self.address = address;
        }
    }
}
