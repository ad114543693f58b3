//! Events: what happened besides executing code, with its position.

use abi::trace::{
    event, words_check, EventHeader, RegisterState, EVENT_HEADER_SIZE, REGISTER_STATE_SIZE,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub chunk: u32,
    pub control_flow: u64,
    /// Instructions of the last unit that were executed; [`abi::trace::WHOLE_UNIT`]: all.
    pub insn: u32,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Process {
        version: u32,
        options: u64,
        pid: u64,
        start_ns: u64,
    },
    Program(Vec<u8>),
    Arguments(Vec<Vec<u8>>),
    StaticUnits {
        load: u64,
        identity: [u64; 2],
        first_window: u32,
        jit_window: u32,
        count: u64,
    },
    Xsave {
        xcr0: u64,
        components: Vec<(u32, u32)>,
    },
    /// The process ended when the file was this long.
    Length(u64),
    Map {
        start: u64,
        len: u64,
        offset: u64,
        protection: u32,
        build_id: Vec<u8>,
        path: Vec<u8>,
    },
    Unmap {
        start: u64,
        len: u64,
    },
    /// A library with ahead-of-time units.
    Library {
        load: u64,
        identity: [u64; 2],
        first_window: u64,
        count: u64,
        /// Where its pack lies in the output, or 0: in the file at `path`.
        address: u64,
        path: Vec<u8>,
    },
    /// The translation of a library is not used.
    LibraryLeft {
        load: u64,
        reason: u64,
    },
    ThreadStart {
        tid: u32,
        parent: u32,
        registers: Box<RegisterState>,
    },
    ThreadEnd {
        reason: u32,
        status: i32,
    },
    Syscall {
        number: u64,
        arguments: [u64; 6],
        result: i64,
    },
    Signal {
        signal: u32,
        code: i32,
        address: u64,
        pc: u64,
        registers: Box<RegisterState>,
    },
    Resume(Box<RegisterState>),
    FsBase(u64),
    Fork {
        pid: u64,
    },
    Loss {
        reason: u32,
        errno: u32,
    },
    ProcessEnd {
        reason: u32,
        status: i32,
        address: u64,
    },
    Exec(Vec<u8>),
    Registers(Box<RegisterState>),
    /// The program's registers where a signal or fault met it, inside of a unit.
    Interrupted(Box<RegisterState>),
    /// Its check does not hold: not to be used.
    Damaged,
    /// Undo log: what something at `pc` overwrites.
    Undo {
        pc: u64,
        address: u64,
        old: Vec<u8>,
    },
    /// Undo log: contents that are gone (length 0: nobody knows where), and what did it.
    Lost {
        pc: u64,
        start: u64,
        len: u64,
        why: Vec<u8>,
    },
    /// Undo log: a moment in the order of all threads.
    Order(u64),
    /// A kind that this version does not know.
    Unknown(u16),
}

impl Body {
    /// Where the thread goes on, if the event says so.
    pub fn registers(&self) -> Option<&RegisterState> {
        match self {
            Body::ThreadStart { registers, .. }
            | Body::Signal { registers, .. }
            | Body::Resume(registers)
            | Body::Registers(registers) => Some(registers),
            _ => None,
        }
    }
}

/// Reads fields one after another.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        self.u32().map(|x| x as i32)
    }

    /// Words with their check behind them.
    fn guarded<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        (self.u64()? == words_check(&words)).then_some(words)
    }

    fn registers(&mut self) -> Option<Box<RegisterState>> {
        RegisterState::from_bytes(self.bytes(REGISTER_STATE_SIZE)?).map(Box::new)
    }

    /// What is left, without the zeros that pad it.
    fn text(&mut self) -> Vec<u8> {
        let end = self.0.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
        self.0[..end].to_vec()
    }
}

/// Reads the events of a payload up to its end mark. The flag says whether it ended properly.
pub fn parse(payload: &[u8]) -> (Vec<Event>, bool) {
    let mut events = Vec::new();
    let mut rest = Fields(payload);
    while !rest.0.is_empty() {
        let Some(header) = header(&mut rest) else {
            // Less than a header is left: fine if that is padding.
            return (events, rest.0.iter().all(|&b| b == 0));
        };
        if header.kind == 0 {
            break;
        }
        let Some(event) = rest
            .bytes(header.len as usize)
            .filter(|_| header.len % 8 == 0)
            .and_then(|payload| body(header.kind, payload))
        else {
            return (events, false);
        };
        events.push(Event {
            chunk: header.chunk,
            control_flow: header.control_flow,
            insn: header.insn,
            body: event,
        });
    }
    (events, true)
}

fn header(rest: &mut Fields<'_>) -> Option<EventHeader> {
    let mut f = Fields(rest.0.get(..EVENT_HEADER_SIZE)?);
    let kinds = f.u32()?;
    let header = EventHeader {
        kind: kinds as u16,
        reserved: (kinds >> 16) as u16,
        len: f.u32()?,
        chunk: f.u32()?,
        insn: f.u32()?,
        control_flow: f.u64()?,
    };
    rest.0 = &rest.0[EVENT_HEADER_SIZE..];
    Some(header)
}

fn body(kind: u16, payload: &[u8]) -> Option<Body> {
    let mut f = Fields(payload);
    Some(match kind {
        event::PROCESS => {
            let version = f.u32()?;
            f.u32()?;
            Body::Process { version, options: f.u64()?, pid: f.u64()?, start_ns: f.u64()? }
        }
        event::PROGRAM => Body::Program(f.text()),
        event::ARGUMENTS => {
            // The padding cannot be told from empty last arguments: those are lost.
            let text = f.text();
            Body::Arguments(text.split(|&b| b == 0).map(<[u8]>::to_vec).collect())
        }
        event::STATIC_UNITS => match f.guarded() {
            Some([load, a, b, windows, count]) => Body::StaticUnits {
                load,
                identity: [a, b],
                first_window: windows as u32,
                jit_window: (windows >> 32) as u32,
                count,
            },
            None => Body::Damaged,
        },
        event::LENGTH => Body::Length(f.u64()?),
        event::XSAVE => {
            let xcr0 = f.u64()?;
            let components =
                (0..64).map(|_| Some((f.u32()?, f.u32()?))).collect::<Option<Vec<_>>>()?;
            Body::Xsave { xcr0, components }
        }
        event::MAP => {
            let (start, len, offset) = (f.u64()?, f.u64()?, f.u64()?);
            let (protection, id_len) = (f.u32()?, f.u32()?);
            let id = f.bytes(32)?;
            let build_id = id.get(..id_len as usize)?.to_vec();
            Body::Map { start, len, offset, protection, build_id, path: f.text() }
        }
        event::UNMAP => Body::Unmap { start: f.u64()?, len: f.u64()? },
        event::LIBRARY => match f.guarded() {
            Some([load, a, b, first_window, count, address]) => Body::Library {
                load,
                identity: [a, b],
                first_window,
                count,
                address,
                path: f.text(),
            },
            None => Body::Damaged,
        },
        event::LIBRARY_LEFT => Body::LibraryLeft { load: f.u64()?, reason: f.u64()? },
        event::THREAD_START => {
            Body::ThreadStart { tid: f.u32()?, parent: f.u32()?, registers: f.registers()? }
        }
        event::THREAD_END => Body::ThreadEnd { reason: f.u32()?, status: f.i32()? },
        event::SYSCALL => {
            let number = f.u64()?;
            let mut arguments = [0; 6];
            for slot in &mut arguments {
                *slot = f.u64()?;
            }
            Body::Syscall { number, arguments, result: f.u64()? as i64 }
        }
        event::SIGNAL => Body::Signal {
            signal: f.u32()?,
            code: f.i32()?,
            address: f.u64()?,
            pc: f.u64()?,
            registers: f.registers()?,
        },
        event::RESUME => Body::Resume(f.registers()?),
        event::FS_BASE => Body::FsBase(f.u64()?),
        event::FORK => Body::Fork { pid: f.u64()? },
        event::LOSS => Body::Loss { reason: f.u32()?, errno: f.u32()? },
        event::PROCESS_END => {
            Body::ProcessEnd { reason: f.u32()?, status: f.i32()?, address: f.u64()? }
        }
        event::EXEC => Body::Exec(f.text()),
        event::REGISTERS => Body::Registers(f.registers()?),
        event::INTERRUPTED => Body::Interrupted(f.registers()?),
        event::UNDO => {
            let (pc, address, size) = (f.u64()?, f.u64()?, f.u64()?);
            let old = f.bytes(usize::try_from(size).ok()?)?.to_vec();
            Body::Undo { pc, address, old }
        }
        event::LOST => Body::Lost { pc: f.u64()?, start: f.u64()?, len: f.u64()?, why: f.text() },
        event::ORDER => Body::Order(f.u64()?),
        other => Body::Unknown(other),
    })
}
