//! One table of system calls: for each its number, its name, and what memory the kernel reads and
//! writes for it. What a call changes besides memory (mappings, threads, handlers) is decided where the
//! runtime carries it out: that depends on the arguments of each call.
//!
//! The effects are those that are over when the call returns. What the kernel does later because of a
//! call is not among them: the word that is cleared when a thread ends (`set_tid_address`, `clone`),
//! the robust list, rings that are shared with the kernel. A call whose effects are not certain has
//! [`Extent::Unknown`] among its ranges, and [`effects`] says so.

mod commands;
mod resolve;
mod table;

pub use commands::{ioctl_effect, IoctlEffect};
pub use resolve::{described, effects, may_write};

/// A system call of x86-64 Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Syscall {
    pub number: u16,
    pub name: &'static str,
    /// What the kernel reads.
    pub reads: &'static [Range],
    /// What the kernel writes, if the call succeeds (few write when they fail; [`effects`] knows).
    pub writes: &'static [Range],
}

/// Memory that an argument points to. A null pointer points to none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Position of the argument that holds the address, from 0.
    pub argument: u8,
    pub extent: Extent,
}

/// How much memory. Arguments are named by their position, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Bytes(u32),
    /// The length is in another argument (its low 32 bits).
    Argument(u8),
    /// The length is in another argument, behind a header of `header` bytes.
    ArgumentAndHeader {
        argument: u8,
        header: u32,
    },
    /// As many bytes as the result says.
    Result,
    /// As many bytes as the result says, but at most as many as the argument says.
    ResultUpTo(u8),
    /// As many bytes as the result says, behind a header of this many bytes.
    ResultAndHeader(u32),
    Array {
        count_argument: u8,
        size: u32,
    },
    /// As many elements as the result says, but at most as many as the argument says.
    ResultArray {
        count_argument: u8,
        size: u32,
    },
    /// `length` bytes at `offset` in each element of an array.
    Fields {
        count: Count,
        size: u32,
        offset: u32,
        length: u32,
    },
    /// A set of as many bits as the argument says, in 8-byte words.
    Bits(u8),
    /// One byte for each page of the length in the argument.
    Pages(u8),
    /// Zero-terminated.
    String,
    /// Null-terminated vector of strings, and the strings.
    Strings,
    /// What a vector of `struct iovec` points to; not the vector.
    IoVec {
        count: u8,
        limited_by_result: bool,
    },
    /// An address and a length (16 bytes), and what they say.
    Buffer,
    /// `struct msghdr` with all that it points to. Read: what is sent. Written: what is received.
    Message,
    /// What is read of a `struct msghdr` to receive: the header and its vector.
    MessageHeader,
    /// `struct mmsghdr`, as many as the result says, each as [`Extent::Message`].
    Messages {
        count: u8,
    },
    /// `struct mmsghdr`, as many as the argument says, each as [`Extent::MessageHeader`].
    MessageHeaders {
        count: u8,
    },
    /// The argument points to a u32 length (`socklen_t`), which is looked at after the call.
    LengthAt(u8),
    /// Depends on a command in another argument.
    ByCommand,
    /// Not certain.
    Unknown,
}

/// Where the number of elements is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    Argument(u8),
    Result,
}

/// What the kernel does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
}

/// All calls, by number.
pub fn all() -> &'static [Syscall] {
    table::TABLE
}

/// The call of a number; `None` if this table has none.
pub fn find(number: u64) -> Option<&'static Syscall> {
    let number = u16::try_from(number).ok()?;
    let at = table::TABLE.binary_search_by_key(&number, |call| call.number).ok()?;
    Some(&table::TABLE[at])
}

#[cfg(test)]
mod tests;
