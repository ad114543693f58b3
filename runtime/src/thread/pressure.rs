//! How much a thread's signals leave of it.

/// How dense the thread's signals are, and what is done about it ([`crate::kernel::signals::pressure`]).
#[derive(Clone, Copy)]
pub struct Pressure {
    /// When the last signal was delivered, and when the program last came back from a handler.
    pub delivered: u64,
    pub returned: u64,
    /// Where it came back to.
    pub returned_to: u64,
    /// Signals in a row that have left the program nearly nothing of its time.
    pub in_row: u32,
    /// The thread has sent signals itself since the last one was delivered.
    pub sends: bool,
    /// The timer that ends a spell without signals.
    pub spell: Option<i32>,
    /// The system call (its pc, and the stack pointer) that a signal has kept from starting.
    pub kept: Option<(u64, u64)>,
}

impl Pressure {
    pub const NONE: Pressure = Pressure {
        delivered: 0,
        returned: 0,
        returned_to: 0,
        in_row: 0,
        sends: false,
        spell: None,
        kept: None,
    };
}
