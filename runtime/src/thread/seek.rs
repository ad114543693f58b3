//! Where a replay leads a thread to.

/// What a replay keeps of a thread.
#[derive(Clone, Copy)]
pub struct Seek {
    /// What the thread is stepped to, if it is.
    pub sought: Option<Sought>,
    /// Instructions of the last unit that were done where the handler has stopped the thread.
    pub insn: Option<u32>,
    /// Where the instruction that is being stepped shows that it is, if it does.
    pub shown: Option<Shown>,
}

/// An instruction that stores or loads the flags is stepped.
#[derive(Clone, Copy)]
pub struct Shown {
    /// The byte of the program's memory that has the trap flag.
    pub at: u64,
    /// The program's own trap flag in it.
    pub set: bool,
    /// The flags are loaded from there.
    pub loads: bool,
}

/// What a thread is stepped to.
#[derive(Clone, Copy)]
pub struct Sought {
    /// The moment; `None`: the next instruction.
    pub moment: Option<Moment>,
    /// The first instruction that it meets is the one that it is at already.
    pub first: bool,
}

/// A moment of a thread, between two of its turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Original address.
    pub rip: u64,
    /// rcx, which tells the iterations of a repeated instruction apart.
    pub rcx: u64,
}

impl Seek {
    /// Nothing is sought.
    pub const fn new() -> Seek {
        Seek { sought: None, insn: None, shown: None }
    }
}

impl Default for Seek {
    fn default() -> Self {
        Seek::new()
    }
}
