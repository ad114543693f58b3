//! How a debugger steers a replay: messages of one size each way, over a socket that keeps their
//! bounds (`DEP_STEER`, `SOCK_SEQPACKET`).
//!
//! The replay stands in front of an instruction and says so with a [`Stop`]. It then waits for a
//! [`Command`], and each command is answered by one [`Stop`], when the replay stands again. Both sides
//! come from one version, so there is no compatibility to keep.
//!
//! Only [`Action::Fork`] has two answers: the process itself answers on its own socket, and the new
//! one, which stands at the same place, on the socket that came with the command (`SCM_RIGHTS`).

use core::cmp::Ordering;

/// A place in a replay, in front of an instruction.
///
/// Within one turn control only moves forward, so an instruction runs once between two turns, and its
/// address says where. Only a repeated instruction stands at one address several times: what is left in
/// rcx gets less. (Of all other instructions rcx is one value at a place, and harmless.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Turns of all threads together.
    pub turns: u64,
    /// Bytes of the script's entries that have happened.
    pub entry: u64,
    /// Address of the instruction.
    pub pc: u64,
    /// rcx.
    pub rcx: u64,
}

impl Position {
    fn words(self) -> [u64; 4] {
        [self.turns, self.entry, self.pc, self.rcx]
    }

    fn from_words(words: &[u64]) -> Position {
        Position { turns: words[0], entry: words[1], pc: words[2], rcx: words[3] }
    }
}

impl Ord for Position {
    fn cmp(&self, other: &Position) -> Ordering {
        let key = |p: &Position| (p.turns, p.entry, p.pc, core::cmp::Reverse(p.rcx));
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Position {
    fn partial_cmp(&self, other: &Position) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(u64)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $value,)*
        }

        impl $name {
            fn from_word(word: u64) -> Option<$name> {
                match word {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// What to do.
    Action {
        /// Go on at most to the end of the recording.
        #[default]
        Run = 1,
        /// Go on up to the first place behind `position.turns` turns.
        RunToTurn = 2,
        /// Go on up to `position`, the last part step by step: [`Stop::before`] is set then.
        RunTo = 3,
        /// One instruction, or one round of a repeated one.
        Step = 4,
        /// Make a process that stands here, too. Its socket comes with this message.
        Fork = 5,
        /// Breakpoint at `address`.
        Break = 6,
        /// No breakpoint at `address` any more.
        Unbreak = 7,
        /// Watchpoint on `len` bytes at `address`, of kind `watched`.
        Watch = 8,
        /// None there any more.
        Unwatch = 9,
        /// The registers of the thread with the number `address` among those that stand still while another
        /// one runs, from 0.
        Thread = 10,
        /// End the process. There is no answer.
        Quit = 11,
        /// `address` is not 0: nobody tells of watchpoints; each instruction is looked behind.
        WatchByStepping = 12,
        /// System calls are stops from here on, those with the number `address` ([`EVERY_CALL`]: all), in front
        /// of them if `len` is 1, and behind them, too, if it is 2. `len` is 0: none any more.
        Catch = 13,
        /// Breakpoints are met only where the instruction references one of `len` bytes at `address`
        /// ([`Stop::detail`] has how many references do, also where a step or a run to a turn has come to a
        /// breakpoint). `len` is 0: everywhere again.
        Only = 14,
    }
}

words! {
    /// What is done at a breakpoint and at a watchpoint.
    Hits {
        /// Nothing.
        #[default]
        Ignore = 0,
        /// Stop there. A signal that the program gets is a stop, too.
        Stop = 1,
        /// Go on; the last of them is in [`Stop::hit`].
        Last = 2,
    }
}

words! {
    /// Which accesses a watchpoint means.
    Watched {
        /// Those that change what is there.
        #[default]
        Write = 1,
        /// Those that read.
        Read = 2,
        /// Both.
        Access = 3,
    }
}

words! {
    /// Why a replay stands.
    Why {
        /// It came where it was to go, or it stood and was asked something. A goal is looked at before
        /// breakpoints are: one at the very goal is not met.
        #[default]
        Goal = 1,
        /// At a breakpoint. One at which a command begins is not met by it. `detail`: see [`Action::Only`].
        Breakpoint = 2,
        /// Behind an instruction (or a system call) that met a watchpoint; `detail`: its address. It is
        /// looked at before a goal is.
        Watchpoint = 3,
        /// The program is about to get the signal `detail`.
        Signal = 4,
        /// The recording goes no further than here; `detail`: the word of the exit status as waitid has
        /// it in its lower half, the code of `ProcessEnd` in the upper, 0 if the recording has none.
        End = 5,
        /// The replay has failed: the outcome of the replay says why.
        Failed = 6,
        /// What was asked for is not possible here.
        Refused = 7,
        /// In front of a system call; `detail`: its number.
        Call = 8,
        /// Behind a system call; `detail`: its number.
        CallReturn = 9,
    }
}

/// From the debugger to the replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// What.
    pub action: Action,
    /// For the runs and the step.
    pub hits: Hits,
    /// For watchpoints.
    pub watched: Watched,
    /// Where to.
    pub position: Position,
    /// Of a breakpoint or a watchpoint; of [`Action::Thread`] the number.
    pub address: u64,
    /// Of a watchpoint.
    pub len: u64,
}

/// In place of the number of a system call: all of them.
pub const EVERY_CALL: u64 = u64::MAX;

/// Bytes of a [`Command`].
pub const COMMAND_SIZE: usize = 9 * 8;

/// From the replay to the debugger: where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// Why.
    pub why: Why,
    /// What `why` says.
    pub detail: u64,
    /// Process id of the replay's process.
    pub pid: u64,
    /// Index of the thread that the registers are of.
    pub thread: u64,
    /// Its thread id in the recording.
    pub tid: u64,
    /// How many threads there are.
    pub threads: u64,
    /// Where.
    pub position: Position,
    /// The place in front of that, if the last that happened was one step; else all zero.
    pub before: Position,
    /// Breakpoints and watchpoints that were passed ([`Hits::Last`]).
    pub hits: u64,
    /// What the last of them was.
    pub hit: Why,
    /// Where it would have stopped: at the breakpoint, or behind the store.
    pub hit_position: Position,
    /// Its `detail`.
    pub hit_detail: u64,
    /// Registers: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 .. r15 (hardware numbering).
    pub gpr: [u64; 16],
    /// Flags.
    pub rflags: u64,
    /// Base of fs.
    pub fs_base: u64,
    /// Base of gs.
    pub gs_base: u64,
    /// Where in the replay's memory the vector registers are: an XSAVE area in the standard format, as
    /// in a signal frame; 0: nowhere.
    pub vectors: u64,
    /// Its bytes.
    pub vectors_len: u64,
}

/// Bytes of a [`Stop`].
pub const STOP_SIZE: usize = 42 * 8;

fn put(out: &mut [u8], words: impl IntoIterator<Item = u64>) {
    for (slot, word) in out.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}

fn get<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let bytes = bytes.get(..N * 8)?;
    let mut words = [0; N];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some(words)
}

impl Command {
    /// The message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; COMMAND_SIZE] {
        let mut out = [0; COMMAND_SIZE];
        let head = [self.action as u64, self.hits as u64, self.watched as u64];
        let tail = [self.address, self.len];
        put(&mut out, head.into_iter().chain(self.position.words()).chain(tail));
        out
    }

    /// Reads [`Command::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Command> {
        let words: [u64; COMMAND_SIZE / 8] = get(bytes)?;
        Some(Command {
            action: Action::from_word(words[0])?,
            hits: Hits::from_word(words[1])?,
            watched: Watched::from_word(words[2])?,
            position: Position::from_words(&words[3..7]),
            address: words[7],
            len: words[8],
        })
    }
}

impl Stop {
    /// The message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; STOP_SIZE] {
        let mut out = [0; STOP_SIZE];
        let head = [
            self.why as u64,
            self.detail,
            self.pid,
            self.thread,
            self.tid,
            self.threads,
            self.hits,
        ];
        let hit = [self.hit as u64, self.hit_detail];
        let rest = [self.rflags, self.fs_base, self.gs_base, self.vectors, self.vectors_len];
        let words = head
            .into_iter()
            .chain(self.position.words())
            .chain(self.before.words())
            .chain(self.hit_position.words())
            .chain(hit)
            .chain(self.gpr)
            .chain(rest);
        put(&mut out, words);
        out
    }

    /// Reads [`Stop::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Stop> {
        let words: [u64; STOP_SIZE / 8] = get(bytes)?;
        Some(Stop {
            why: Why::from_word(words[0])?,
            detail: words[1],
            pid: words[2],
            thread: words[3],
            tid: words[4],
            threads: words[5],
            hits: words[6],
            position: Position::from_words(&words[7..11]),
            before: Position::from_words(&words[11..15]),
            hit_position: Position::from_words(&words[15..19]),
            hit: Why::from_word(words[19])?,
            hit_detail: words[20],
            gpr: words[21..37].try_into().ok()?,
            rflags: words[37],
            fs_base: words[38],
            gs_base: words[39],
            vectors: words[40],
            vectors_len: words[41],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(from: u64) -> Position {
        Position { turns: from, entry: from + 1, pc: from + 2, rcx: from + 3 }
    }

    #[test]
    fn messages_survive_their_bytes() {
        let command = Command {
            action: Action::Watch,
            hits: Hits::Last,
            watched: Watched::Access,
            position: position(10),
            address: 20,
            len: 30,
        };
        assert_eq!(Command::from_bytes(&command.to_bytes()), Some(command));
        assert_eq!(Command::from_bytes(&[0; COMMAND_SIZE]), None);
        assert_eq!(Command::from_bytes(&command.to_bytes()[1..]), None);
        let stop = Stop {
            why: Why::Signal,
            detail: 1,
            pid: 2,
            thread: 3,
            tid: 4,
            threads: 5,
            position: position(6),
            before: position(10),
            hits: 14,
            hit: Why::Watchpoint,
            hit_position: position(15),
            hit_detail: 19,
            gpr: core::array::from_fn(|i| 20 + i as u64),
            rflags: 36,
            fs_base: 37,
            gs_base: 38,
            vectors: 39,
            vectors_len: 40,
        };
        assert_eq!(Stop::from_bytes(&stop.to_bytes()), Some(stop));
        assert_eq!(Stop::from_bytes(&[0; STOP_SIZE]), None);
    }

    #[test]
    fn positions_are_in_the_order_in_which_they_happen() {
        let start = Position { turns: 3, entry: 40, pc: 100, rcx: 5 };
        let later_round = Position { rcx: 4, ..start };
        let behind = Position { pc: 102, rcx: 0, ..start };
        let behind_call = Position { entry: 80, pc: 90, ..start };
        let next_turn = Position { turns: 4, pc: 50, ..start };
        let order = [start, later_round, behind, behind_call, next_turn];
        assert!(order.is_sorted());
        assert!(order.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
