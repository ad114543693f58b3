//! From the table's ranges to the addresses of one executed call.

use super::commands::{command, ioctl_effect};
use super::{Access, Count, Extent, Range, Syscall};

const EINTR: i64 = -4;
const EFAULT: i64 = -14;
const ENOSYS: i64 = -38;
/// The kernel refuses longer vectors (UIO_MAXIOV).
const MAX_VECTOR: u64 = 1024;
/// The kernel refuses longer strings (MAX_ARG_STRLEN); a path is shorter.
const MAX_STRING: u64 = 128 << 10;
const MAX_PATH: u64 = 4096;
/// More than the kernel has elements for; a number beyond comes from something damaged.
const MAX_COUNT: u64 = 1 << 20;

mod nr {
    pub const SELECT: u16 = 23;
    pub const IOCTL: u16 = 16;
    pub const NANOSLEEP: u16 = 35;
    pub const WAIT4: u16 = 61;
    pub const POLL: u16 = 7;
    pub const CLOCK_NANOSLEEP: u16 = 230;
    pub const PSELECT6: u16 = 270;
    pub const PPOLL: u16 = 271;
    pub const CLONE3: u16 = 435;
}

/// What the kernel read and wrote for a call that returned `result`: tells `each` every range.
/// Ranges may overlap. True: that is all of it, and no more. False: something of it is not certain.
///
/// `read_memory` copies memory of the program as it is after the call (a call that does not return,
/// such as a successful `execve`, is resolved before it is made, with result 0).
pub fn effects(
    call: &Syscall,
    args: &[u64; 6],
    result: i64,
    read_memory: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    each: &mut dyn FnMut(Access, u64, u64),
) -> bool {
    if result == ENOSYS {
        return true;
    }
    let each = &mut |access, address, length, _| each(access, address, length);
    let mut resolver =
        Resolver { call, args, result, read_memory, each, certain: true, ahead: false, unit: 0 };
    resolver.all(Access::Read, call.reads);
    match written(call, args, result) {
        Written::All => resolver.all(Access::Write, call.writes),
        Written::Only(argument) => {
            let ranges = call.writes.iter().filter(|range| range.argument == argument);
            ranges.for_each(|range| resolver.range(Access::Write, *range));
        }
        Written::Nothing => {}
    }
    // How far it came before the fault is not known.
    resolver.certain && (result != EFAULT || (call.reads.is_empty() && call.writes.is_empty()))
}

/// Memory that the kernel may write for a call that is about to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MayWrite {
    /// Where.
    pub address: u64,
    /// At most so many bytes.
    pub length: u64,
    /// Bytes for each one that the call returns, if it writes no further than its result says: together
    /// with the ranges in front of it that have a unit, too. 0: the result says nothing about it.
    pub unit: u32,
}

/// What the kernel may write for a call that is about to be made: tells `each` every range, none
/// smaller than what will be written. False: it may write elsewhere, too.
pub fn may_write(
    call: &Syscall,
    args: &[u64; 6],
    read_memory: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    each: &mut dyn FnMut(MayWrite),
) -> bool {
    let each = &mut |_, address, length, unit| each(MayWrite { address, length, unit });
    let result = i64::from(u32::MAX);
    let mut resolver =
        Resolver { call, args, result, read_memory, each, certain: true, ahead: true, unit: 0 };
    resolver.all(Access::Write, call.writes);
    resolver.certain
}

/// What the kernel may read for a call that is about to be made: tells `each` every range, none smaller than
/// what will be read. False: it may read elsewhere, too.
pub fn may_read(
    call: &Syscall,
    args: &[u64; 6],
    read_memory: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    each: &mut dyn FnMut(u64, u64),
) -> bool {
    let each = &mut |_, address, length, _| each(address, length);
    let result = i64::from(u32::MAX);
    let mut resolver =
        Resolver { call, args, result, read_memory, each, certain: true, ahead: true, unit: 0 };
    resolver.all(Access::Read, call.reads);
    resolver.certain
}

/// Whether the table is certain about a call, as [`effects`] says it, without the program's memory.
pub fn described(call: &Syscall, args: &[u64; 6], result: i64) -> bool {
    let mut zeros = |_: u64, out: &mut [u8]| {
        out.fill(0);
        true
    };
    effects(call, args, result, &mut zeros, &mut |_, _, _| {})
}

enum Written {
    All,
    Nothing,
    /// What this argument points to.
    Only(u8),
}

fn written(call: &Syscall, args: &[u64; 6], result: i64) -> Written {
    let interrupted = result == EINTR;
    match call.number {
        // The time that is left.
        nr::NANOSLEEP if interrupted => Written::All,
        nr::CLOCK_NANOSLEEP if interrupted && args[1] & 1 == 0 => Written::All,
        nr::NANOSLEEP | nr::CLOCK_NANOSLEEP => Written::Nothing,
        nr::SELECT | nr::PSELECT6 if interrupted => Written::Only(4),
        nr::POLL | nr::PPOLL if interrupted => Written::All,
        nr::WAIT4 if result == 0 => Written::Nothing,
        _ if (-4095..0).contains(&result) => Written::Nothing,
        _ => Written::All,
    }
}

struct Resolver<'a> {
    call: &'a Syscall,
    args: &'a [u64; 6],
    result: i64,
    read_memory: &'a mut dyn FnMut(u64, &mut [u8]) -> bool,
    each: &'a mut dyn FnMut(Access, u64, u64, u32),
    certain: bool,
    /// The call has not been made: `result` is larger than it can be.
    ahead: bool,
    /// [`MayWrite::unit`] of what is told.
    unit: u32,
}

impl Resolver<'_> {
    fn all(&mut self, access: Access, ranges: &[Range]) {
        ranges.iter().for_each(|range| self.range(access, *range));
    }

    fn tell(&mut self, access: Access, address: u64, length: u64) {
        if address != 0 && length != 0 {
            (self.each)(access, address, length, self.unit);
        }
    }

    /// As [`Resolver::tell`], of what the result limits.
    fn tell_limited(&mut self, access: Access, address: u64, length: u64, unit: u32) {
        self.unit = unit;
        self.tell(access, address, length);
        self.unit = 0;
    }

    /// A little-endian number of `size` bytes, 0 where memory cannot be read.
    fn number(&mut self, address: u64, size: usize) -> u64 {
        let mut bytes = [0; 8];
        if !(self.read_memory)(address, &mut bytes[..size]) {
            self.certain = false;
            return 0;
        }
        u64::from_le_bytes(bytes)
    }

    /// The low half of an argument: numbers of elements, and lengths that the kernel limits.
    fn low(&self, argument: u8) -> u64 {
        self.args[usize::from(argument)] & 0xffff_ffff
    }

    fn returned(&self) -> u64 {
        self.result.max(0) as u64
    }

    fn range(&mut self, access: Access, range: Range) {
        let address = self.args[usize::from(range.argument)];
        if range.extent == Extent::ByCommand {
            return self.by_command(access);
        }
        if address == 0 {
            return;
        }
        let length = match range.extent {
            Extent::Bytes(length) => u64::from(length),
            Extent::Argument(argument) => self.low(argument),
            Extent::ArgumentAndHeader { argument, header } => {
                self.low(argument) + u64::from(header)
            }
            Extent::Result if self.ahead => {
                self.certain = false;
                return;
            }
            Extent::Result => self.returned(),
            Extent::ResultUpTo(most) => {
                let length = self.returned().min(self.args[usize::from(most)]);
                return self.tell_limited(access, address, length, 1);
            }
            // The only one is msgrcv, whose third argument is the size of the buffer.
            Extent::ResultAndHeader(header) if self.ahead => {
                self.tell(access, address, u64::from(header));
                let behind = address.wrapping_add(u64::from(header));
                return self.tell_limited(access, behind, self.args[2], 1);
            }
            Extent::ResultAndHeader(header) => self.returned() + u64::from(header),
            Extent::Array { count_argument, size } => self.low(count_argument) * u64::from(size),
            Extent::ResultArray { count_argument, size } => {
                let length = self.returned().min(self.low(count_argument)) * u64::from(size);
                return self.tell_limited(access, address, length, size);
            }
            Extent::Bits(argument) => self.low(argument).div_ceil(64) * 8,
            Extent::Nodes(argument) => self.low(argument).saturating_sub(1).div_ceil(64) * 8,
            Extent::Capabilities(argument) => {
                const VERSION_1: u64 = 0x1998_0330;
                match self.number(self.args[usize::from(argument)], 4) {
                    VERSION_1 => 12,
                    _ => 24,
                }
            }
            Extent::FileHandle => 8 + self.number(address, 4),
            Extent::Pages(argument) => self.args[usize::from(argument)].div_ceil(4096),
            Extent::LengthAt(argument) => {
                // The kernel takes it for a signed number, and refuses what is negative.
                match self.number(self.args[usize::from(argument)], 4) {
                    length @ ..=0x7fff_ffff => length,
                    _ => 0,
                }
            }
            Extent::String => return self.string(address, MAX_PATH),
            Extent::Strings => return self.strings(address),
            Extent::Fields { count, size, offset, length } => {
                let count = match count {
                    Count::Argument(argument) => self.low(argument),
                    // sendmmsg: the third argument is how many it is given.
                    Count::Result if self.ahead => self.low(2).min(MAX_VECTOR),
                    Count::Result => self.returned(),
                };
                self.certain &= count <= MAX_COUNT;
                for i in 0..count.min(MAX_COUNT) {
                    let at = address.wrapping_add(i * u64::from(size) + u64::from(offset));
                    self.tell(access, at, u64::from(length));
                }
                return;
            }
            Extent::IoVec { count, limited_by_result } => {
                let most = if limited_by_result { self.returned() } else { u64::MAX };
                let unit = u32::from(limited_by_result);
                return self.vector(access, address, self.args[usize::from(count)], most, unit);
            }
            Extent::Buffer => {
                self.tell(access, address, 16);
                let (at, length) =
                    (self.number(address, 8), self.number(address.wrapping_add(8), 8));
                return self.tell(access, at, length);
            }
            Extent::Filter => {
                self.tell(access, address, 16);
                let count = self.number(address, 2);
                let at = self.number(address.wrapping_add(8), 8);
                return self.tell(access, at, 8 * count);
            }
            Extent::Message => return self.message(access, address, self.returned(), 1),
            Extent::MessageHeader => return self.message_header(address),
            Extent::Messages { count } => {
                for i in 0..self.returned().min(self.low(count)).min(MAX_VECTOR) {
                    let at = address.wrapping_add(64 * i);
                    let length = self.number(at.wrapping_add(56), 4);
                    let length = if self.ahead { u64::MAX } else { length };
                    self.message(access, at, length, 0);
                    if access == Access::Write {
                        self.tell(access, at.wrapping_add(56), 4);
                    }
                }
                return;
            }
            Extent::MessageHeaders { count } => {
                // It looks at the next one only when it has received something.
                let looked_at = (self.returned() + 1).min(self.low(count)).min(MAX_VECTOR);
                for i in 0..looked_at {
                    self.message_header(address.wrapping_add(64 * i));
                }
                return;
            }
            Extent::ByCommand | Extent::Unknown => {
                self.certain = false;
                return;
            }
        };
        self.tell(access, address, length);
    }

    fn by_command(&mut self, access: Access) {
        match self.call.number {
            nr::IOCTL => match ioctl_effect(self.args[1] as u32) {
                _ if self.nested(access) => {}
                Some(effect) => {
                    self.certain &= effect.certain;
                    let length = if access == Access::Read { effect.reads } else { effect.writes };
                    self.tell(access, self.args[2], u64::from(length));
                }
                None => self.certain = false,
            },
            nr::CLONE3 => self.clone3(access),
            number => match command(number, self.args, self.result) {
                Some((reads, writes)) => {
                    self.all(access, if access == Access::Read { reads } else { writes });
                }
                None => self.certain = false,
            },
        }
    }

    /// An ioctl whose argument says how much there is, or where; false if this is none.
    fn nested(&mut self, access: Access) -> bool {
        const SIOCGIFCONF: u32 = 0x8912;
        const FIEMAP: u32 = 0xc020_660b;
        const FIDEDUPERANGE: u32 = 0xc018_9436;
        let at = self.args[2];
        match self.args[1] as u32 {
            SIOCGIFCONF => {
                let length = self.number(at, 4);
                let buffer = self.number(at.wrapping_add(8), 8);
                let header = if access == Access::Read { 16 } else { 4 };
                self.tell(access, at, header);
                if access == Access::Write && buffer != 0 {
                    self.tell(access, buffer, length);
                }
            }
            FIEMAP => {
                self.tell(access, at, 32);
                // How many there were, or how many there may be: none if they are only counted.
                let room = self.number(at.wrapping_add(24), 4);
                let mapped = self.number(at.wrapping_add(20), 4);
                let count = if self.ahead { room } else { room.min(mapped) };
                if access == Access::Write {
                    self.tell(access, at.wrapping_add(32), count * 56);
                }
            }
            FIDEDUPERANGE => {
                let count = self.number(at.wrapping_add(16), 2);
                self.tell(access, at, 24 + count * 32);
            }
            _ => return false,
        }
        true
    }

    /// `struct clone_args`: flags, then addresses for the pid descriptor and both thread ids; last
    /// the thread ids that are asked for.
    fn clone3(&mut self, access: Access) {
        let (at, size) = (self.args[0], self.args[1]);
        if access == Access::Read {
            if size >= 80 {
                let ids = self.number(at.wrapping_add(64), 8);
                let count = self.number(at.wrapping_add(72), 8);
                self.tell(access, ids, 4 * count.min(32));
            }
            return;
        }
        let flags = self.number(at, 8);
        for (flag, field) in [(0x1000, 8), (0x100_0000, 16), (0x10_0000, 24)] {
            if flags & flag != 0 {
                let address = self.number(at.wrapping_add(field), 8);
                self.tell(access, address, 4);
            }
        }
    }

    fn string(&mut self, address: u64, most: u64) {
        let mut length = 0;
        let mut bytes = [0; 64];
        while length < most {
            // A piece never reaches into a page that the string may not reach.
            let at = address.wrapping_add(length);
            let piece = &mut bytes[..64 - (at % 64) as usize];
            if !(self.read_memory)(at, piece) {
                self.certain = false;
                return;
            }
            if let Some(end) = piece.iter().position(|&b| b == 0) {
                return self.tell(Access::Read, address, length + end as u64 + 1);
            }
            length += piece.len() as u64;
        }
        self.tell(Access::Read, address, most);
    }

    fn strings(&mut self, address: u64) {
        for i in 0..MAX_COUNT {
            let mut pointer = [0; 8];
            if !(self.read_memory)(address.wrapping_add(8 * i), &mut pointer) {
                break;
            }
            match u64::from_le_bytes(pointer) {
                0 => return self.tell(Access::Read, address, 8 * (i + 1)),
                string => self.string(string, MAX_STRING),
            }
        }
        self.certain = false;
    }

    /// What a vector points to, at most `left` bytes of it.
    fn vector(&mut self, access: Access, address: u64, count: u64, mut left: u64, unit: u32) {
        if count > MAX_VECTOR {
            return;
        }
        if self.ahead {
            left = u64::MAX;
        }
        for i in 0..count {
            if left == 0 {
                break;
            }
            let at = address.wrapping_add(16 * i);
            let (base, length) = (self.number(at, 8), self.number(at.wrapping_add(8), 8));
            let length = length.min(left);
            left -= length;
            self.tell_limited(access, base, length, unit);
        }
    }

    /// `struct msghdr`: name 0, its u32 length 8, vector 16, its count 24, control 32, its length 40,
    /// flags 48.
    fn message(&mut self, access: Access, header: u64, bytes: u64, unit: u32) {
        let mut field = |offset, size| self.number(header.wrapping_add(offset), size);
        let (name, name_length) = (field(0, 8), field(8, 4));
        // One that is negative is refused, and of a longer one the kernel takes this much (`sockaddr_storage`).
        let name_length = u64::try_from(name_length as i32).unwrap_or(0).min(128);
        let (vector, count) = (field(16, 8), field(24, 8));
        let (control, control_length) = (field(32, 8), field(40, 8));
        match access {
            Access::Read => self.message_header(header),
            Access::Write => {
                if name != 0 {
                    self.tell(access, header.wrapping_add(8), 4);
                }
                self.tell(access, header.wrapping_add(40), 8);
                self.tell(access, header.wrapping_add(48), 4);
            }
        }
        self.tell(access, name, name_length);
        self.vector(access, vector, count, bytes, unit);
        self.tell(access, control, control_length);
    }

    fn message_header(&mut self, header: u64) {
        self.tell(Access::Read, header, 56);
        let vector = self.number(header.wrapping_add(16), 8);
        let count = self.number(header.wrapping_add(24), 8);
        if count <= MAX_VECTOR {
            self.tell(Access::Read, vector, 16 * count);
        }
    }
}
