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
pub use resolve::{described, effects, may_read, may_write, MayWrite};

/// Added to the number of a 32-bit call (`int 0x80`) that has structures of its own: its number is the rest.
pub const OLD: u64 = 1 << 31;

/// A system call of x86-64 Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Syscall {
    /// In rax.
    pub number: u16,
    /// As the manual calls it.
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
    /// How much memory.
    pub extent: Extent,
}

/// How much memory. Arguments are named by their position, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// So many bytes.
    Bytes(u32),
    /// The length is in another argument (its low 32 bits).
    Argument(u8),
    /// The length is in another argument, behind a header of `header` bytes.
    ArgumentAndHeader {
        /// Which argument has the length.
        argument: u8,
        /// Bytes of the header.
        header: u32,
    },
    /// As many bytes as the result says.
    Result,
    /// As many bytes as the result says, but at most as many as the argument says.
    ResultUpTo(u8),
    /// As many bytes as the result says, behind a header of this many bytes.
    ResultAndHeader(u32),
    /// As many elements as the argument says.
    Array {
        /// Which argument has the number of elements.
        count_argument: u8,
        /// Bytes of an element.
        size: u32,
    },
    /// As many elements as the result says, but at most as many as the argument says.
    ResultArray {
        /// Which argument has the largest number of elements.
        count_argument: u8,
        /// Bytes of an element.
        size: u32,
    },
    /// `length` bytes at `offset` in each element of an array.
    Fields {
        /// Where the number of elements is.
        count: Count,
        /// Bytes of an element.
        size: u32,
        /// Where the field is in its element.
        offset: u32,
        /// Bytes of the field.
        length: u32,
    },
    /// A set of as many bits as the argument says, in 8-byte words.
    Bits(u8),
    /// A set of one bit fewer than the argument says (memory nodes), in 8-byte words.
    Nodes(u8),
    /// Capabilities: how many there are is decided by the version at the start of the argument's memory.
    Capabilities(u8),
    /// `struct file_handle`, which says its size itself.
    FileHandle,
    /// One byte for each page of the length in the argument.
    Pages(u8),
    /// Zero-terminated.
    String,
    /// Null-terminated vector of strings, and the strings.
    Strings,
    /// What a vector of `struct iovec` points to; not the vector.
    IoVec {
        /// Which argument has the number of vectors.
        count: u8,
        /// The result says how many bytes there were.
        limited_by_result: bool,
    },
    /// An address and a length (16 bytes), and what they say.
    Buffer,
    /// `struct sock_fprog`: a number of instructions of 8 bytes, and their address; and what they are.
    Filter,
    /// `struct msghdr` with all that it points to. Read: what is sent. Written: what is received.
    Message,
    /// What is read of a `struct msghdr` to receive: the header and its vector.
    MessageHeader,
    /// `struct mmsghdr`, as many as the result says, each as [`Extent::Message`].
    Messages {
        /// Which argument has the largest number.
        count: u8,
    },
    /// `struct mmsghdr`, as many as the argument says, each as [`Extent::MessageHeader`].
    MessageHeaders {
        /// Which argument has the number.
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
    /// In this argument.
    Argument(u8),
    /// In the result.
    Result,
}

/// What the kernel does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// All calls, by number.
pub fn all() -> &'static [Syscall] {
    table::TABLE
}

/// The call of a number; `None` if this table has none.
pub fn find(number: u64) -> Option<&'static Syscall> {
    let number = u16::try_from(number).ok()?;
    // (Most numbers are places: the table has all of them up to 334.)
    let there = table::TABLE.get(usize::from(number)).filter(|call| call.number == number);
    there.or_else(|| {
        let at = table::TABLE.binary_search_by_key(&number, |call| call.number).ok()?;
        Some(&table::TABLE[at])
    })
}

#[cfg(test)]
mod tests;
