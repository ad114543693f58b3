//! Events of a trace: what happened besides executing code, and where.
//!
//! This file is the one definition of every event. [`Event::encode`] and [`Event::decode`] stand
//! beside each other and list the same fields in the same order; `docs/format.md` says the same in
//! words, and a test compares it with this file. To add an event, add its variant, its line in
//! `kinds!`, its arm in `encode` and `decode`, its sample in the tests and its row in the document:
//! what is forgotten does not compile or fails a test.
//!
//! An event in a file is an [`EventHeader`] and then its payload, padded with zeros to 8 bytes.

use core::borrow::Borrow;

use crate::ids::{LiveAddr, OrigAddr, StreamOff};
use crate::trace::{words_check, RegisterState, REGISTER_STATE_SIZE};

/// Where in the recording of a thread something happened: after the first `control_flow` bytes of
/// the control-flow stream of Record frame `chunk` had been written and, in the last unit that these
/// bytes name, after `insn` instructions ([`WHOLE_UNIT`]: after all of it).
///
/// Positions are ordered by their place in the streams. Where units add nothing to the stream (in
/// the `bits` format) several share a place, and the order of their events in the file counts.
///
/// The memory stream has room for all records of the unit in either case (a unit claims it when it
/// starts); what the instructions that were not executed would have written there means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Sequence number of the thread's Record frame.
    pub chunk: u32,
    /// Bytes of the chunk's control-flow stream.
    pub control_flow: StreamOff,
    /// Instructions of the last unit, or [`WHOLE_UNIT`] or [`LAST_NOT_DONE`], or what
    /// [`in_silent_unit`] makes.
    pub insn: u32,
}

impl Position {
    /// Of events that happen to the process and not in a thread.
    pub const NONE: Position = Position { chunk: 0, control_flow: StreamOff(0), insn: 0 };

    /// The place in the streams alone.
    #[must_use]
    pub const fn place(self) -> (u32, StreamOff) {
        (self.chunk, self.control_flow)
    }

    /// Whether the event happened inside of a unit, and not at the boundary behind it.
    #[must_use]
    pub const fn is_inside(self) -> bool {
        self.insn != WHOLE_UNIT
    }

    /// The tag of the silent unit that the event happened in, if it was one.
    #[must_use]
    pub const fn silent_unit(self) -> Option<u16> {
        if self.insn & IN_SILENT_UNIT == 0 || self.insn >= LAST_NOT_DONE {
            return None;
        }
        Some((self.insn >> 16 & 0x7fff) as u16)
    }
}

/// [`Position::insn`]: the event happened at the boundary behind the unit.
pub const WHOLE_UNIT: u32 = u32::MAX;
/// Size in an [`Event::Mapped`] of a device: a replay finds zeros there, and what else there is has been noted.
pub const DEVICE: u64 = u64::MAX;
/// [`Position::insn`]: the event happened in front of the unit's last instruction.
pub const LAST_NOT_DONE: u32 = u32::MAX - 1;

/// Bit of [`Position::insn`], see [`in_silent_unit`].
const IN_SILENT_UNIT: u32 = 1 << 31;

/// [`Position::insn`]: `insn` instructions into the silent unit ([`crate::unit::flags::SILENT`]) with
/// this tag, which was executed behind the last unit that the stream names.
#[must_use]
pub const fn in_silent_unit(tag: u16, insn: u32) -> u32 {
    IN_SILENT_UNIT | (tag as u32) << 16 | insn & 0xff
}

/// The number of instructions that a [`Position::insn`] says, if that is not [`WHOLE_UNIT`] or
/// [`LAST_NOT_DONE`].
#[must_use]
pub const fn instructions_in(insn: u32) -> u32 {
    if insn & IN_SILENT_UNIT == 0 {
        insn
    } else {
        insn & 0xff
    }
}

/// Header of an event; `len` payload bytes (a multiple of 8) follow. Kind 0 ends the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventHeader {
    /// A [`Kind`], or a number that only later versions know.
    pub kind: u16,
    /// Bytes of payload behind the header.
    pub len: u32,
    /// Where it happened.
    pub position: Position,
}

/// Bytes of an [`EventHeader`].
pub const EVENT_HEADER_SIZE: usize = 24;

impl EventHeader {
    /// The header as it is in the file.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; EVENT_HEADER_SIZE] {
        let mut out = [0; EVENT_HEADER_SIZE];
        out[0..2].copy_from_slice(&self.kind.to_le_bytes());
        out[4..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..12].copy_from_slice(&self.position.chunk.to_le_bytes());
        out[12..16].copy_from_slice(&self.position.insn.to_le_bytes());
        out[16..24].copy_from_slice(&self.position.control_flow.0.to_le_bytes());
        out
    }

    /// The header at the start of `bytes`; `None` if there are too few.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<EventHeader> {
        let mut fields = Fields(bytes.get(..EVENT_HEADER_SIZE)?);
        let kind = u16::from_le_bytes(fields.array().ok()?);
        let _reserved: [u8; 2] = fields.array().ok()?;
        let len = fields.u32().ok()?;
        let (chunk, insn) = (fields.u32().ok()?, fields.u32().ok()?);
        let control_flow = StreamOff(fields.u64().ok()?);
        Some(EventHeader { kind, len, position: Position { chunk, control_flow, insn } })
    }
}

/// Something that happened. `B` holds bytes and `R` the registers of the program: the runtime
/// lends them ([`EventRef`]), a reader owns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<B, R> {
    // --- describe the process (File frame) ---
    /// The first event of a trace.
    Process {
        /// Of the format: [`crate::trace::VERSION`].
        version: u32,
        /// [`crate::options::Options::to_word`].
        options: u64,
        /// Process id.
        pid: u64,
        /// Nanoseconds since the epoch.
        start_ns: u64,
    },
    /// Path of the running output file.
    Program(B),
    /// Arguments, each with its zero byte.
    Arguments(B),
    /// The output file that holds the ahead-of-time units.
    StaticUnits {
        /// Load address of the window.
        load: LiveAddr,
        /// Of the output file.
        identity: [u64; 2],
        /// First window of tags of the program's units.
        first_window: u32,
        /// First window of tags of the JIT.
        jit_window: u32,
        /// Number of units (0: none).
        count: u64,
    },
    /// CPUID leaf 0xd.
    Xsave {
        /// State components that the system has enabled.
        xcr0: u64,
        /// [`xsave_to_bytes`] of the state components.
        components: B,
    },
    /// The process has ended, when the file had this many bytes.
    Length(u64),
    /// The process that this one was forked from or started by.
    Parent {
        /// Its process id.
        pid: u64,
    },
    /// The process has ended at this time, in nanoseconds since the epoch.
    EndTime(u64),
    /// Only a part of the code is recorded: the rules as text.
    Selection(B),
    /// Inputs: where the parts of the process lie that the program did not place itself.
    Layout {
        /// The code window.
        window: LiveAddr,
        /// Start of the program's heap (`brk`).
        brk: LiveAddr,
        /// Load address of the program's interpreter, or 0.
        interpreter: LiveAddr,
        /// rsp at the program's first instruction.
        stack: LiveAddr,
        /// First byte behind the stack.
        stack_end: LiveAddr,
    },
    /// Inputs: how large the stack of the first thread may become (the soft limit), in bytes.
    StackLimit(u64),

    // --- happen to the process (Events frames of [`crate::trace::PROCESS`]) ---
    /// A file is mapped.
    Map {
        /// Start of the mapping.
        start: LiveAddr,
        /// Its bytes.
        len: u64,
        /// Offset in the file.
        offset: u64,
        /// Protection as the program asked for it.
        protection: u32,
        /// At most [`BUILD_ID_SIZE`] bytes.
        build_id: B,
        /// Of the file.
        path: B,
    },
    /// Executable memory is unmapped.
    Unmap {
        /// Start of the range.
        start: LiveAddr,
        /// Its bytes.
        len: u64,
    },
    /// A library with an ahead-of-time translation is mapped.
    Library {
        /// Load address of the library.
        load: LiveAddr,
        /// Of its pack.
        identity: [u64; 2],
        /// First window of tags of its units.
        first_window: u64,
        /// Number of units.
        count: u64,
        /// Where the pack lies in the output, or 0: in the file at `path`.
        address: OrigAddr,
        /// Of the pack's own file.
        path: B,
    },
    /// A library is mapped whose translation is not used.
    LibraryLeft {
        /// Load address of the library.
        load: LiveAddr,
        /// Why.
        reason: Left,
    },

    /// The recording was switched on or off: from here on the threads' chunks begin, or they have
    /// ended.
    Switch {
        /// Whether the program is recorded from now on.
        on: bool,
        /// Who wanted it.
        why: Why,
        /// Nanoseconds since the epoch, when it was done.
        time_ns: u64,
        /// Nanoseconds from the request until the last thread was ready.
        took_ns: u64,
        /// Threads of the program.
        threads: u32,
        /// Those that were interrupted for it.
        interrupted: u32,
    },
    /// The user has marked this moment.
    Mark {
        /// Nanoseconds since the epoch.
        time_ns: u64,
        /// Whether the program was recorded then.
        on: bool,
        /// What the user calls it.
        text: B,
    },
    /// Executable memory is mapped of which only a part is recorded.
    Selected {
        /// Start of the mapping.
        start: LiveAddr,
        /// Its bytes.
        len: u64,
        /// What the pieces count from.
        base: LiveAddr,
        /// What is recorded: pairs of u64, ascending, from where to before where.
        pieces: B,
    },
    /// The process ends, and has paid for something so often.
    Cost {
        /// For what.
        what: Cost,
        /// How often.
        count: u64,
        /// The first places of the program where it happened, each of them once; 0 behind the last.
        pcs: [u64; COST_PCS],
    },

    // --- happen to a thread ---
    /// The thread starts.
    ThreadStart {
        /// Kernel thread id.
        tid: u32,
        /// Index of the thread that started it.
        parent: u32,
        /// Registers at its first instruction.
        registers: R,
    },
    /// The thread ended.
    ThreadEnd {
        /// How.
        reason: End,
        /// Exit status or signal.
        status: i32,
    },
    /// A system call returned.
    Syscall {
        /// Its number.
        number: u64,
        /// In the order of the ABI.
        arguments: [u64; 6],
        /// What it returned.
        result: i64,
    },
    /// A handler starts.
    Signal {
        /// Number of the signal.
        signal: u32,
        /// `si_code`.
        code: i32,
        /// `si_addr`.
        address: u64,
        /// Where the program was interrupted.
        pc: LiveAddr,
        /// Registers at the handler's entry.
        registers: R,
    },
    /// Control goes to another place with other registers (`rt_sigreturn`).
    Resume(R),
    /// The fs base changed to this.
    FsBase(u64),
    /// The gs base changed to this.
    GsBase(u64),
    /// A child process was made. It may have a trace of its own, or, if it shares this process's
    /// memory ([`Event::OwnProcess`]), a thread of this one.
    Fork {
        /// Process id of the child.
        pid: u64,
    },
    /// Recording stopped and goes on later or never.
    Loss {
        /// Why.
        reason: Loss,
        /// Error number of the system, or 0.
        errno: u32,
    },
    /// The process ended.
    ProcessEnd {
        /// How.
        reason: End,
        /// Exit status or signal.
        status: i32,
        /// Faulting address or 0.
        address: u64,
    },
    /// Another program is started in this process (`execve`): its path. It is not the end: the
    /// call can still fail, then a [`Event::Syscall`] follows.
    Exec(B),
    /// The program of the [`Event::Exec`] before is executed as it is, and not recorded: why.
    NotFollowed(B),
    /// The thread goes on with these registers (after anything that the streams alone cannot
    /// explain).
    Registers(R),
    /// The thread was interrupted inside of a unit with these registers of the program. Right before
    /// [`Event::Signal`], [`Event::ProcessEnd`] or [`Event::Loss`], at the same position, or the thread goes on
    /// with a unit at that place. If the interrupted
    /// instruction is a repeated string instruction, its pointer says how many iterations it has
    /// completed; its "before" records are valid then.
    Interrupted(R),
    /// Undo log: what is about to be overwritten by something other than a store that its unit
    /// records. Written before it happens.
    Undo {
        /// Who overwrites it.
        pc: LiveAddr,
        /// Where.
        address: LiveAddr,
        /// The bytes that are there.
        old: B,
    },
    /// Undo log: contents that could not be saved.
    Lost {
        /// Who drops them.
        pc: LiveAddr,
        /// Where.
        start: LiveAddr,
        /// How many bytes; 0: nobody knows where.
        len: u64,
        /// What did it.
        why: B,
    },
    /// Undo log: number of this moment in the order of all threads' synchronising instructions
    /// and system calls.
    Order(u64),
    /// The thread is a process of its own (`vfork`, `posix_spawn`): what it stores is this process's
    /// memory, until it ends or runs another program. Right behind [`Event::ThreadStart`].
    OwnProcess {
        /// Its process id.
        pid: u64,
    },
    /// The program was told how a child of it had ended, by the system call in front of this.
    Reaped {
        /// Process id of the child.
        pid: u64,
        /// As `wait4` gives it.
        status: u64,
    },
    /// Inputs: something other than the thread's own instructions wrote these bytes: the kernel, for the
    /// [`Event::Syscall`], [`Event::Signal`] or [`Event::Answer`] that comes next in the thread (behind
    /// [`Event::ThreadStart`]: the contents of the stack).
    Written {
        /// Where.
        address: LiveAddr,
        /// What is there now.
        bytes: B,
    },
    /// Inputs: what an instruction was told that asks the machine (`rdtsc`, `cpuid`, `rdrand`, ...).
    Answer {
        /// The instruction.
        pc: LiveAddr,
        /// rax, rbx, rcx and rdx behind it (`rdtsc`, `rdtscp`, `rdpmc`, `rdpru`, `cpuid`, `xgetbv`). Of
        /// the others: the destination as a whole register, or 0, the flags, what does not fit into a
        /// register (`sgdt`, `sidt`), 0.
        values: [u64; 4],
    },
    /// Inputs: the thread was interrupted from outside, with these registers, between two instructions
    /// or two iterations of a repeated one. What it was interrupted for comes next: [`Event::Signal`]
    /// (with the [`Event::Written`] of its frame in between), [`Event::Yields`], [`Event::Checked`], or
    /// [`Event::ProcessEnd`] if a signal ends the process.
    Arrived(R),
    /// Inputs: the thread lets the others run, from here on or, right before a [`Event::Syscall`],
    /// during that call.
    Yields,
    /// Inputs: the thread runs, alone, until it yields or ends: its number in the order of all such
    /// stretches of the process.
    Runs(u64),
    /// Inputs: the thread's registers at this place, for a replay to compare: right behind a
    /// [`Event::Syscall`] (rip lies behind the instruction) or [`Event::Arrived`], or right before the end:
    /// in front of the system call that ends the thread, or at the instruction whose fault ends the
    /// process.
    Checked(R),
    /// Inputs: the file that the [`Event::Syscall`] that comes next maps.
    Mapped {
        /// Number of the device, inode.
        file: [u64; 2],
        /// Bytes of the file, or [`DEVICE`].
        size: u64,
        /// Last change, in nanoseconds since the epoch.
        changed_ns: u64,
        /// What is mapped, if it was copied, else nothing.
        contents: B,
        /// Of the file.
        path: B,
    },
    /// Inputs: what follows cannot be replayed: why.
    Unfollowed {
        /// Who did it.
        pc: LiveAddr,
        /// What it is.
        why: B,
    },
    /// Inputs: what the kernel was given to read for the [`Event::Syscall`] or [`Event::Exec`] that comes
    /// next in the thread, when the call began, for a replay to compare.
    Passed {
        /// How much it was, as far as it was there.
        bytes: u64,
        /// Digest of it.
        digest: u64,
    },
    /// A ring of inputs, the last event of a snapshot: what is kept begins here, and all that comes before
    /// it in Snapshot frames is what the process was then.
    Snapshot {
        /// Number of the first stretch ([`Event::Runs`]) that is kept.
        stretch: u64,
        /// End of the heap.
        brk: LiveAddr,
    },
    /// Snapshot: memory that was mapped, of the file in the [`Event::Mapped`] right before if it is of one.
    /// What it held that its file does not have follows in [`Event::Written`]; the rest of memory without
    /// a file is zero.
    Region {
        /// First byte.
        start: LiveAddr,
        /// Bytes.
        len: u64,
        /// In the file.
        offset: u64,
        /// As the program asked for it.
        protection: u32,
        /// What it is.
        kind: RegionKind,
    },
    /// Snapshot: a thread. The first one has the baton.
    State {
        /// Its index.
        index: u32,
        /// Kernel thread id.
        tid: u32,
        /// Index of the thread that started it.
        parent: u32,
        /// Turns that it had made.
        turns: u64,
        /// Signals that it blocks.
        mask: u64,
        /// Its alternate signal stack: address, flags, bytes.
        alternate: [u64; 3],
        /// The word that is cleared when it ends, or 0.
        clear_tid: u64,
        /// Its registers; rip is where it goes on.
        registers: R,
        /// Vector and floating-point state, as XSAVE stores it.
        vectors: B,
    },
    /// Watched inputs: the instruction at this place, which has not begun, sees memory that its thread has
    /// not stored itself.
    Seen {
        /// The instruction.
        pc: LiveAddr,
        /// rcx in front of it.
        rcx: u64,
        /// Where.
        address: LiveAddr,
        /// What is there.
        bytes: B,
    },
    /// Inputs beside a profile: the turns that the thread had made at what stands behind this in the thread,
    /// until the next of these events. (Positions are those of the profile there.) Right behind
    /// [`Event::ThreadStart`] it holds for that, too.
    Turns(u64),
    /// Watched inputs: until here the process had one thread, whose memory nobody else wrote to. From here on it is
    /// watched as a thread that begins.
    Watched,
    /// A ring of watched inputs: from here on nothing is known of memory, as where a thread begins. A replay may
    /// begin here.
    Anew,
    /// Watched inputs: the place of this moment in an order of all threads that respects what synchronises them.
    Stamp {
        /// The instruction that synchronises, sees what another thread has stored, or calls the kernel; where a
        /// thread begins, its first one.
        pc: LiveAddr,
        /// Its place.
        number: u64,
        /// On which side of that.
        moment: Moment,
    },
    /// Snapshot, behind the region that it lies in: the part that is kept touches none of these pages, and what
    /// they held is not kept.
    Untouched {
        /// First byte, at a multiple of a page.
        start: LiveAddr,
        /// Bytes, whole pages.
        len: u64,
    },
    /// Snapshot: what the program wants done when a signal comes, for the signals 1 to 64: handler, flags,
    /// restorer, mask.
    Actions(B),
}

/// An event that is about to be written: nothing in it is owned.
pub type EventRef<'a> = Event<&'a [u8], &'a RegisterState>;

macro_rules! kinds {
    ($($variant:ident = $number:literal $name:literal,)*) => {
        /// Number of an event in a file. Readers skip numbers that they do not know.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        #[repr(u16)]
        pub enum Kind {
            $(#[doc = concat!("[`Event::", stringify!($variant), "`]")] $variant = $number,)*
        }

        impl Kind {
            /// All kinds, by their numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant),*];

            /// The kind with this number.
            #[must_use]
            pub const fn from_u16(number: u16) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$variant),)*
                    _ => None,
                }
            }

            /// As `docs/format.md` calls it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$variant => $name,)*
                }
            }
        }

        impl<B, R> Event<B, R> {
            /// What kind of event it is.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Event::$variant { .. } => Kind::$variant,)*
                }
            }
        }
    };
}

kinds! {
    Process = 1 "PROCESS",
    Program = 2 "PROGRAM",
    Arguments = 3 "ARGUMENTS",
    StaticUnits = 4 "STATIC_UNITS",
    Xsave = 5 "XSAVE",
    Length = 7 "LENGTH",
    Parent = 8 "PARENT",
    EndTime = 9 "END_TIME",
    Layout = 10 "LAYOUT",
    Selection = 12 "SELECTION",
    StackLimit = 13 "STACK_LIMIT",
    Map = 16 "MAP",
    Unmap = 17 "UNMAP",
    Library = 18 "LIBRARY",
    LibraryLeft = 19 "LIBRARY_LEFT",
    Switch = 20 "SWITCH",
    Mark = 21 "MARK",
    Selected = 22 "SELECTED",
    Cost = 23 "COST",
    ThreadStart = 32 "THREAD_START",
    ThreadEnd = 33 "THREAD_END",
    Syscall = 34 "SYSCALL",
    Signal = 35 "SIGNAL",
    Resume = 36 "RESUME",
    FsBase = 37 "FS_BASE",
    Fork = 38 "FORK",
    Loss = 39 "LOSS",
    ProcessEnd = 40 "PROCESS_END",
    Exec = 41 "EXEC",
    Registers = 42 "REGISTERS",
    Interrupted = 43 "INTERRUPTED",
    Undo = 44 "UNDO",
    Lost = 45 "LOST",
    Order = 46 "ORDER",
    OwnProcess = 47 "OWN_PROCESS",
    NotFollowed = 48 "NOT_FOLLOWED",
    Reaped = 49 "REAPED",
    Written = 50 "WRITTEN",
    Answer = 51 "ANSWER",
    Arrived = 52 "ARRIVED",
    Yields = 53 "YIELDS",
    Runs = 54 "RUNS",
    Checked = 55 "CHECKED",
    Mapped = 56 "MAPPED",
    Unfollowed = 57 "UNFOLLOWED",
    Snapshot = 58 "SNAPSHOT",
    Region = 59 "REGION",
    State = 60 "STATE",
    Actions = 61 "ACTIONS",
    Passed = 62 "PASSED",
    Seen = 63 "SEEN",
    Untouched = 64 "UNTOUCHED",
    GsBase = 65 "GS_BASE",
    Turns = 66 "TURNS",
    Watched = 67 "WATCHED",
    Stamp = 68 "STAMP",
    Anew = 69 "ANEW",
}

/// Places that an [`Event::Cost`] names.
pub const COST_PCS: usize = 10;

/// Bytes that a [`Event::Map`] has for the build-id.
pub const BUILD_ID_SIZE: usize = 32;

/// Takes the payload of an event, piece by piece and in order.
pub trait Sink {
    /// Takes the next bytes.
    fn put(&mut self, bytes: &[u8]);
}

/// Counts what it is given.
impl Sink for usize {
    fn put(&mut self, bytes: &[u8]) {
        *self += bytes.len();
    }
}

impl Sink for alloc::vec::Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Why a payload is no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadEvent {
    /// It ends too early.
    Short,
    /// Its check does not hold: what it says about the places of units is not to be used.
    Check,
}

impl<B: AsRef<[u8]>, R: Borrow<RegisterState>> Event<B, R> {
    /// Bytes of the payload, without what pads it.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        let mut len = 0;
        self.encode(&mut len);
        len
    }

    /// Bytes of header and payload in a file.
    #[must_use]
    pub fn size(&self) -> usize {
        EVENT_HEADER_SIZE + self.payload_len().next_multiple_of(8)
    }

    /// Gives `out` the payload, without what pads it. [`Event::decode`] reads it.
    pub fn encode(&self, out: &mut impl Sink) {
        match self {
            Event::Process { version, options, pid, start_ns } => {
                out.put(&version.to_le_bytes());
                out.put(&[0; 4]);
                put_words(out, &[*options, *pid, *start_ns]);
            }
            Event::Program(text) | Event::Exec(text) | Event::NotFollowed(text) => {
                out.put(text.as_ref());
            }
            Event::Selection(rules) => out.put(rules.as_ref()),
            Event::Layout { window, brk, interpreter, stack, stack_end } => {
                put_words(out, &[window.0, brk.0, interpreter.0, stack.0, stack_end.0]);
            }
            Event::StackLimit(limit) => put_words(out, &[*limit]),
            Event::Arguments(all) => out.put(all.as_ref()),
            Event::StaticUnits { load, identity: [a, b], first_window, jit_window, count } => {
                let windows = u64::from(*jit_window) << 32 | u64::from(*first_window);
                put_guarded(out, &[load.0, *a, *b, windows, *count]);
            }
            Event::Xsave { xcr0, components } => {
                put_words(out, &[*xcr0]);
                out.put(components.as_ref());
            }
            Event::Length(number) | Event::EndTime(number) => put_words(out, &[*number]),
            Event::Map { start, len, offset, protection, build_id, path } => {
                put_words(out, &[start.0, *len, *offset]);
                out.put(&protection.to_le_bytes());
                put_build_id(out, build_id.as_ref());
                out.put(path.as_ref());
            }
            Event::Unmap { start, len } => put_words(out, &[start.0, *len]),
            Event::Library { load, identity: [a, b], first_window, count, address, path } => {
                put_guarded(out, &[load.0, *a, *b, *first_window, *count, address.0]);
                out.put(path.as_ref());
            }
            Event::LibraryLeft { load, reason } => {
                put_words(out, &[load.0, u64::from(reason.to_u32())]);
            }
            Event::Switch { on, why, time_ns, took_ns, threads, interrupted } => {
                out.put(&u32::from(*on).to_le_bytes());
                out.put(&why.to_u32().to_le_bytes());
                put_words(out, &[*time_ns, *took_ns]);
                out.put(&threads.to_le_bytes());
                out.put(&interrupted.to_le_bytes());
            }
            Event::Mark { time_ns, on, text } => {
                put_words(out, &[*time_ns, u64::from(*on)]);
                out.put(text.as_ref());
            }
            Event::Selected { start, len, base, pieces } => {
                put_words(out, &[start.0, *len, base.0, pieces.as_ref().len() as u64]);
                out.put(pieces.as_ref());
            }
            Event::Cost { what, count, pcs } => {
                put_words(out, &[u64::from(what.to_u32()), *count]);
                put_words(out, pcs);
            }
            Event::ThreadStart { tid, parent, registers } => {
                out.put(&tid.to_le_bytes());
                out.put(&parent.to_le_bytes());
                out.put(&registers.borrow().to_bytes());
            }
            Event::ThreadEnd { reason, status } => {
                out.put(&reason.to_u32().to_le_bytes());
                out.put(&status.to_le_bytes());
            }
            Event::Syscall { number, arguments, result } => {
                let [a, b, c, d, e, f] = *arguments;
                // (There are more of these than of all others: in one piece.)
                let words = [*number, a, b, c, d, e, f, result.cast_unsigned()];
                out.put(words.map(u64::to_le_bytes).as_flattened());
            }
            Event::Signal { signal, code, address, pc, registers } => {
                out.put(&signal.to_le_bytes());
                out.put(&code.to_le_bytes());
                put_words(out, &[*address, pc.0]);
                out.put(&registers.borrow().to_bytes());
            }
            Event::Resume(registers)
            | Event::Registers(registers)
            | Event::Arrived(registers)
            | Event::Checked(registers)
            | Event::Interrupted(registers) => out.put(&registers.borrow().to_bytes()),
            Event::FsBase(base) | Event::GsBase(base) => put_words(out, &[*base]),
            Event::Fork { pid } | Event::Parent { pid } | Event::OwnProcess { pid } => {
                put_words(out, &[*pid]);
            }
            Event::Reaped { pid, status } => put_words(out, &[*pid, *status]),
            Event::Loss { reason, errno } => {
                out.put(&reason.to_u32().to_le_bytes());
                out.put(&errno.to_le_bytes());
            }
            Event::ProcessEnd { reason, status, address } => {
                out.put(&reason.to_u32().to_le_bytes());
                out.put(&status.to_le_bytes());
                put_words(out, &[*address]);
            }
            Event::Undo { pc, address, old } => {
                put_words(out, &[pc.0, address.0, old.as_ref().len() as u64]);
                out.put(old.as_ref());
            }
            Event::Lost { pc, start, len, why } => {
                put_words(out, &[pc.0, start.0, *len]);
                out.put(why.as_ref());
            }
            Event::Order(number) | Event::Runs(number) | Event::Turns(number) => {
                put_words(out, &[*number]);
            }
            Event::Written { address, bytes } => {
                put_words(out, &[address.0, bytes.as_ref().len() as u64]);
                out.put(bytes.as_ref());
            }
            Event::Answer { pc, values } => {
                put_words(out, &[pc.0]);
                put_words(out, values);
            }
            Event::Yields | Event::Watched | Event::Anew => {}
            Event::Mapped { file, size, changed_ns, contents, path } => {
                put_words(out, file);
                put_words(out, &[*size, *changed_ns, contents.as_ref().len() as u64]);
                out.put(contents.as_ref());
                out.put(path.as_ref());
            }
            Event::Unfollowed { pc, why } => {
                put_words(out, &[pc.0]);
                out.put(why.as_ref());
            }
            Event::Passed { bytes, digest } => put_words(out, &[*bytes, *digest]),
            Event::Snapshot { stretch, brk } => put_words(out, &[*stretch, brk.0]),
            Event::Untouched { start, len } => put_words(out, &[start.0, *len]),
            Event::Region { start, len, offset, protection, kind } => {
                put_words(out, &[start.0, *len, *offset]);
                out.put(&protection.to_le_bytes());
                out.put(&kind.to_u32().to_le_bytes());
            }
            Event::State {
                index,
                tid,
                parent,
                turns,
                mask,
                alternate,
                clear_tid,
                registers,
                vectors,
            } => {
                [*index, *tid, *parent, 0].iter().for_each(|half| out.put(&half.to_le_bytes()));
                put_words(out, &[*turns, *mask]);
                put_words(out, alternate);
                put_words(out, &[*clear_tid]);
                out.put(&registers.borrow().to_bytes());
                put_words(out, &[vectors.as_ref().len() as u64]);
                out.put(vectors.as_ref());
            }
            Event::Stamp { pc, number, moment } => {
                put_words(out, &[pc.0, *number, moment.to_u32().into()]);
            }
            Event::Seen { pc, rcx, address, bytes } => {
                put_words(out, &[pc.0, *rcx, address.0, bytes.as_ref().len() as u64]);
                out.put(bytes.as_ref());
            }
            Event::Actions(all) => {
                put_words(out, &[all.as_ref().len() as u64]);
                out.put(all.as_ref());
            }
        }
    }

    /// Reads the payload of an event of this kind; zeros may follow it. Texts come without the
    /// zeros that pad them.
    pub fn decode<'a>(kind: Kind, payload: &'a [u8]) -> Result<Self, BadEvent>
    where
        B: From<&'a [u8]>,
        R: From<RegisterState>,
    {
        let mut f = Fields(payload);
        Ok(match kind {
            Kind::Process => {
                let version = f.u32()?;
                let _zero = f.u32()?;
                Event::Process { version, options: f.u64()?, pid: f.u64()?, start_ns: f.u64()? }
            }
            Kind::Program => Event::Program(f.text()),
            Kind::Arguments => Event::Arguments(f.text_with_zero()),
            Kind::StaticUnits => {
                let [load, a, b, windows, count] = f.guarded()?;
                Event::StaticUnits {
                    load: LiveAddr(load),
                    identity: [a, b],
                    first_window: low(windows),
                    jit_window: low(windows >> 32),
                    count,
                }
            }
            Kind::Xsave => {
                Event::Xsave { xcr0: f.u64()?, components: f.bytes(XSAVE_BYTES)?.into() }
            }
            Kind::Length => Event::Length(f.u64()?),
            Kind::EndTime => Event::EndTime(f.u64()?),
            Kind::Selection => Event::Selection(f.text()),
            Kind::Layout => Event::Layout {
                window: f.live()?,
                brk: f.live()?,
                interpreter: f.live()?,
                stack: f.live()?,
                stack_end: f.live()?,
            },
            Kind::StackLimit => Event::StackLimit(f.u64()?),
            Kind::Map => {
                let (start, len, offset) = (f.live()?, f.u64()?, f.u64()?);
                let (protection, build_id) = (f.u32()?, f.build_id()?.into());
                Event::Map { start, len, offset, protection, build_id, path: f.text() }
            }
            Kind::Unmap => Event::Unmap { start: f.live()?, len: f.u64()? },
            Kind::Library => {
                let [load, a, b, first_window, count, address] = f.guarded()?;
                let (load, address) = (LiveAddr(load), OrigAddr(address));
                let identity = [a, b];
                Event::Library { load, identity, first_window, count, address, path: f.text() }
            }
            Kind::LibraryLeft => {
                // More than a reason has: none of those that are known.
                let (load, reason) = (f.live()?, u32::try_from(f.u64()?).unwrap_or(u32::MAX));
                Event::LibraryLeft { load, reason: Left::from_u32(reason) }
            }
            Kind::Switch => {
                let (on, why) = (f.u32()? != 0, Why::from_u32(f.u32()?));
                let (time_ns, took_ns) = (f.u64()?, f.u64()?);
                let (threads, interrupted) = (f.u32()?, f.u32()?);
                Event::Switch { on, why, time_ns, took_ns, threads, interrupted }
            }
            Kind::Mark => Event::Mark { time_ns: f.u64()?, on: f.u64()? != 0, text: f.text() },
            Kind::Selected => {
                let (start, len, base, bytes) = (f.live()?, f.u64()?, f.live()?, f.u64()?);
                let bytes = usize::try_from(bytes).map_err(|_| BadEvent::Short)?;
                Event::Selected { start, len, base, pieces: f.bytes(bytes)?.into() }
            }
            Kind::Cost => {
                let what = Cost::from_u32(u32::try_from(f.u64()?).unwrap_or(u32::MAX));
                Event::Cost { what, count: f.u64()?, pcs: f.words()? }
            }
            Kind::ThreadStart => {
                Event::ThreadStart { tid: f.u32()?, parent: f.u32()?, registers: f.registers()? }
            }
            Kind::ThreadEnd => {
                Event::ThreadEnd { reason: End::from_u32(f.u32()?), status: f.i32()? }
            }
            Kind::Syscall => {
                let number = f.u64()?;
                Event::Syscall { number, arguments: f.words()?, result: f.i64()? }
            }
            Kind::Signal => Event::Signal {
                signal: f.u32()?,
                code: f.i32()?,
                address: f.u64()?,
                pc: f.live()?,
                registers: f.registers()?,
            },
            Kind::Resume => Event::Resume(f.registers()?),
            Kind::FsBase => Event::FsBase(f.u64()?),
            Kind::GsBase => Event::GsBase(f.u64()?),
            Kind::Fork => Event::Fork { pid: f.u64()? },
            Kind::Parent => Event::Parent { pid: f.u64()? },
            Kind::OwnProcess => Event::OwnProcess { pid: f.u64()? },
            Kind::Reaped => Event::Reaped { pid: f.u64()?, status: f.u64()? },
            Kind::Loss => Event::Loss { reason: Loss::from_u32(f.u32()?), errno: f.u32()? },
            Kind::ProcessEnd => {
                let reason = End::from_u32(f.u32()?);
                Event::ProcessEnd { reason, status: f.i32()?, address: f.u64()? }
            }
            Kind::Exec => Event::Exec(f.text()),
            Kind::NotFollowed => Event::NotFollowed(f.text()),
            Kind::Registers => Event::Registers(f.registers()?),
            Kind::Interrupted => Event::Interrupted(f.registers()?),
            Kind::Undo => {
                let (pc, address, len) = (f.live()?, f.live()?, f.u64()?);
                let len = usize::try_from(len).map_err(|_| BadEvent::Short)?;
                Event::Undo { pc, address, old: f.bytes(len)?.into() }
            }
            Kind::Lost => {
                Event::Lost { pc: f.live()?, start: f.live()?, len: f.u64()?, why: f.text() }
            }
            Kind::Order => Event::Order(f.u64()?),
            Kind::Written => {
                let (address, len) = (f.live()?, f.u64()?);
                let len = usize::try_from(len).map_err(|_| BadEvent::Short)?;
                Event::Written { address, bytes: f.bytes(len)?.into() }
            }
            Kind::Answer => Event::Answer { pc: f.live()?, values: f.words()? },
            Kind::Arrived => Event::Arrived(f.registers()?),
            Kind::Yields => Event::Yields,
            Kind::Watched => Event::Watched,
            Kind::Anew => Event::Anew,
            Kind::Stamp => {
                let (pc, number, moment, _) = (f.live()?, f.u64()?, f.u32()?, f.u32()?);
                Event::Stamp { pc, number, moment: Moment::from_u32(moment) }
            }
            Kind::Runs => Event::Runs(f.u64()?),
            Kind::Turns => Event::Turns(f.u64()?),
            Kind::Checked => Event::Checked(f.registers()?),
            Kind::Mapped => {
                let (file, size, changed_ns) = (f.words()?, f.u64()?, f.u64()?);
                let len = usize::try_from(f.u64()?).map_err(|_| BadEvent::Short)?;
                let contents = f.bytes(len)?.into();
                Event::Mapped { file, size, changed_ns, contents, path: f.text() }
            }
            Kind::Unfollowed => Event::Unfollowed { pc: f.live()?, why: f.text() },
            Kind::Passed => Event::Passed { bytes: f.u64()?, digest: f.u64()? },
            Kind::Snapshot => Event::Snapshot { stretch: f.u64()?, brk: f.live()? },
            Kind::Untouched => Event::Untouched { start: f.live()?, len: f.u64()? },
            Kind::Region => Event::Region {
                start: f.live()?,
                len: f.u64()?,
                offset: f.u64()?,
                protection: f.u32()?,
                kind: RegionKind::from_u32(f.u32()?),
            },
            Kind::State => {
                let (index, tid, parent, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let (turns, mask, alternate) = (f.u64()?, f.u64()?, f.words()?);
                let (clear_tid, registers) = (f.u64()?, f.registers()?);
                let len = usize::try_from(f.u64()?).map_err(|_| BadEvent::Short)?;
                let vectors = f.bytes(len)?.into();
                Event::State {
                    index,
                    tid,
                    parent,
                    turns,
                    mask,
                    alternate,
                    clear_tid,
                    registers,
                    vectors,
                }
            }
            Kind::Seen => {
                let (pc, rcx, address, len) = (f.live()?, f.u64()?, f.live()?, f.u64()?);
                let len = usize::try_from(len).map_err(|_| BadEvent::Short)?;
                Event::Seen { pc, rcx, address, bytes: f.bytes(len)?.into() }
            }
            Kind::Actions => {
                let len = usize::try_from(f.u64()?).map_err(|_| BadEvent::Short)?;
                Event::Actions(f.bytes(len)?.into())
            }
        })
    }
}

/// Signals that an instruction raises while it is executed: SIGILL, SIGBUS, SIGFPE and SIGSEGV.
const FAULTS: [u32; 4] = [4, 7, 8, 11];

impl<B, R: Borrow<RegisterState>> Event<B, R> {
    /// Whether this is what follows where the interrupted instruction itself faults. (What ends a process does not
    /// say whether somebody has sent that signal.)
    #[must_use]
    pub fn is_fault(&self) -> bool {
        match self {
            Event::Signal { signal, code, .. } => FAULTS.contains(signal) && *code > 0,
            Event::ThreadEnd { reason: End::Signal, status }
            | Event::ProcessEnd { reason: End::Signal, status, .. } => {
                FAULTS.contains(&status.cast_unsigned())
            }
            _ => false,
        }
    }

    /// The registers with which the thread goes on, if the event says so.
    #[must_use]
    pub fn goes_on_with(&self) -> Option<&RegisterState> {
        match self {
            Event::ThreadStart { registers, .. }
            | Event::Signal { registers, .. }
            | Event::Resume(registers)
            | Event::Registers(registers) => Some(registers.borrow()),
            _ => None,
        }
    }
}

fn put_words(out: &mut impl Sink, words: &[u64]) {
    for word in words {
        out.put(&word.to_le_bytes());
    }
}

/// Words with their [`words_check`] behind them.
fn put_guarded(out: &mut impl Sink, words: &[u64]) {
    put_words(out, words);
    put_words(out, &[words_check(words)]);
}

/// Length, bytes and zeros up to [`BUILD_ID_SIZE`].
fn put_build_id(out: &mut impl Sink, id: &[u8]) {
    let mut padded = [0; BUILD_ID_SIZE];
    let mut len = 0u32;
    for (slot, byte) in padded.iter_mut().zip(id) {
        *slot = *byte;
        len += 1;
    }
    out.put(&len.to_le_bytes());
    out.put(&padded);
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
const fn low(word: u64) -> u32 {
    word as u32
}

/// Reads fields one after another.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], BadEvent> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(BadEvent::Short)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadEvent> {
        self.bytes(N)?.try_into().map_err(|_| BadEvent::Short)
    }

    fn u32(&mut self) -> Result<u32, BadEvent> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, BadEvent> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadEvent> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, BadEvent> {
        self.array().map(i64::from_le_bytes)
    }

    fn live(&mut self) -> Result<LiveAddr, BadEvent> {
        self.u64().map(LiveAddr)
    }

    fn words<const N: usize>(&mut self) -> Result<[u64; N], BadEvent> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        Ok(words)
    }

    /// Words with their check behind them. What is too short to have one is damaged, too.
    fn guarded<const N: usize>(&mut self) -> Result<[u64; N], BadEvent> {
        let words = self.words().map_err(|_| BadEvent::Check)?;
        let check = self.u64().map_err(|_| BadEvent::Check)?;
        if check == words_check(&words) {
            Ok(words)
        } else {
            Err(BadEvent::Check)
        }
    }

    fn registers<R: From<RegisterState>>(&mut self) -> Result<R, BadEvent> {
        let bytes = self.bytes(REGISTER_STATE_SIZE)?;
        RegisterState::from_bytes(bytes).map(R::from).ok_or(BadEvent::Short)
    }

    fn build_id(&mut self) -> Result<&'a [u8], BadEvent> {
        let len = usize::try_from(self.u32()?).map_err(|_| BadEvent::Short)?;
        self.bytes(BUILD_ID_SIZE)?.get(..len).ok_or(BadEvent::Short)
    }

    fn text_len(&self) -> usize {
        self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
    }

    /// What is left, without the zeros that pad it.
    fn text<B: From<&'a [u8]>>(&self) -> B {
        self.0.get(..self.text_len()).unwrap_or_default().into()
    }

    /// What is left, with one zero. The padding cannot be told from empty last arguments: those
    /// are lost.
    fn text_with_zero<B: From<&'a [u8]>>(&self) -> B {
        let len = (self.text_len() + 1).min(self.0.len());
        self.0.get(..len).unwrap_or_default().into()
    }
}

/// Size and offset of an XSAVE state component, as CPUID leaf 0xd has them.
pub type XsaveComponent = (u32, u32);
/// State components that there can be.
pub const XSAVE_COMPONENTS: usize = 64;
const XSAVE_BYTES: usize = XSAVE_COMPONENTS * 8;

/// The state components as [`Event::Xsave`] holds them.
#[must_use]
pub fn xsave_to_bytes(components: &[XsaveComponent; XSAVE_COMPONENTS]) -> [u8; XSAVE_BYTES] {
    let mut out = [0; XSAVE_BYTES];
    for (slot, (size, offset)) in out.chunks_exact_mut(8).zip(components) {
        slot[..4].copy_from_slice(&size.to_le_bytes());
        slot[4..].copy_from_slice(&offset.to_le_bytes());
    }
    out
}

/// Reads [`xsave_to_bytes`].
pub fn xsave_from_bytes(bytes: &[u8]) -> impl Iterator<Item = XsaveComponent> + '_ {
    bytes.chunks_exact(8).filter_map(|pair| {
        let mut fields = Fields(pair);
        Some((fields.u32().ok()?, fields.u32().ok()?))
    })
}

macro_rules! reasons {
    ($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $name:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $type {
            $($(#[$each])* $name,)*
            /// A number that this version does not know.
            Unknown(u32),
        }

        impl $type {
            /// All that this version knows.
            pub const ALL: &'static [$type] = &[$($type::$name),*];

            /// The number in a file.
            #[must_use]
            pub const fn to_u32(self) -> u32 {
                match self {
                    $($type::$name => $number,)*
                    $type::Unknown(number) => number,
                }
            }

            /// The reason with this number.
            #[must_use]
            pub const fn from_u32(number: u32) -> $type {
                match number {
                    $($number => $type::$name,)*
                    number => $type::Unknown(number),
                }
            }
        }
    };
}

reasons! {
    /// How a thread or the process ended.
    End {
        /// It called `exit` or `exit_group`.
        Exit = 1,
        /// A signal killed it.
        Signal = 2,
        /// The runtime stopped the program because it met something that it does not support.
        Refused = 3,
    }
}

reasons! {
    /// What memory a snapshot has.
    RegionKind {
        /// Of no file.
        Anonymous = 1,
        /// Of a file.
        File = 2,
        /// Of the program or its interpreter: it is there before a replay begins.
        Program = 3,
        /// The first thread's stack, which grows.
        Stack = 4,
    }
}

reasons! {
    /// On which side of something a stamp stands.
    Moment {
        /// The atomic instruction has not begun.
        Before = 1,
        /// Behind the atomic instruction.
        Behind = 2,
        /// The system call has not been made.
        BeforeCall = 3,
        /// The system call has come back.
        BehindCall = 4,
        /// The thread begins.
        Begins = 5,
        /// The instruction, which loads, is about to see what the thread has found in memory.
        Sees = 6,
    }
}

reasons! {
    /// Why the translation of a library is not used.
    Left {
        /// The library's code is not the code that was translated.
        Content = 1,
        /// It was translated with other options, or for a processor with more.
        Options = 2,
        /// It was mapped elsewhere before (or still is): a unit has one address.
        Elsewhere = 3,
        /// There is no room for it.
        NoMemory = 4,
        /// The folder where it should be has none, or a damaged one.
        Missing = 5,
        /// It records other code than is selected.
        Selection = 6,
    }
}

reasons! {
    /// What costs microseconds each time.
    Cost {
        /// A fault that the runtime has mended: a store to a page with code, a return or a look-up that has met
        /// the limits of its table.
        Fault = 1,
        /// A translation was closed, as its code may change.
        Closed = 2,
        /// Code was compared with its translation, as it may change unnoticed.
        Compared = 3,
        /// A look-up has found nothing.
        Missed = 4,
    }
}

reasons! {
    /// Why the recording was switched on or off.
    Why {
        /// The program was started so.
        Start = 1,
        /// `dep on` or `dep off`.
        Request = 2,
        /// The program has come to its function `main`.
        Main = 3,
        /// The program has started a second thread.
        SecondThread = 4,
        /// The signal that was waited for has come.
        Signal = 5,
    }
}

reasons! {
    /// Why recording stopped.
    Loss {
        /// The disk is full.
        DiskFull = 1,
        /// The file has reached the limit that the process has for files.
        FileSizeLimit = 2,
        /// The file cannot be written.
        IoError = 3,
        /// The file cannot be mapped.
        NoMemory = 4,
        /// The size that was asked for when rewriting is used up.
        LogFull = 5,
        /// The recording pauses: where the thread has a later chunk, it goes on with that.
        Paused = 6,
        /// Code has changed more often at one address than the format can name.
        Versions = 7,
    }
}

#[cfg(test)]
mod tests;
