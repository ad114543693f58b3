//! Addresses and numbers that look alike and are not: one type for each.
//!
//! None of these converts into another by itself. Whoever knows the bias between two of them (a
//! loaded image, a code cache, a window) does the conversion, and is the only place that does.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! address {
    ($name:ident) => {
        impl $name {
            /// The address this many bytes behind this one; wraps around, as the processor does.
            #[must_use]
            pub const fn plus(self, bytes: u64) -> $name {
                $name(self.0.wrapping_add(bytes))
            }

            /// Bytes from `start` to this address; wraps around if it lies in front of it.
            #[must_use]
            pub const fn from_start(self, start: $name) -> u64 {
                self.0.wrapping_sub(start.0)
            }

            /// The low half, which an entry of a look-up table is found by.
            #[must_use]
            #[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
            pub const fn low(self) -> u32 {
                self.0 as u32
            }
        }
    };
}

number! {
    /// An address of original code or data as the analysis names it: relative to the window or to
    /// the library for what is translated ahead of time, and equal to the [`LiveAddr`] for what is
    /// translated when it runs.
    OrigAddr(u64), "{:#x}"
}
address!(OrigAddr);

number! {
    /// An address of original code or data in the running process: what the program itself sees.
    LiveAddr(u64), "{:#x}"
}
address!(LiveAddr);

number! {
    /// An address of translated code in the running process. The program never sees one.
    CodeAddr(u64), "{:#x}"
}
address!(CodeAddr);

number! {
    /// An offset in translated code: from the start of its fragment, or of the whole output's code.
    CodeOff(u32), "{:#x}"
}

impl CodeOff {
    /// The offset this many bytes behind this one.
    #[must_use]
    pub const fn plus(self, bytes: u32) -> CodeOff {
        CodeOff(self.0 + bytes)
    }
}

number! {
    /// An offset in an ELF file; an address of what is loaded from there is another number.
    FileOff(u64), "{:#x}"
}

impl FileOff {
    /// The offset this many bytes behind this one, if there is one.
    #[must_use]
    pub const fn checked_plus(self, bytes: u64) -> Option<FileOff> {
        match self.0.checked_add(bytes) {
            Some(offset) => Some(FileOff(offset)),
            None => None,
        }
    }
}

number! {
    /// An offset in one stream of a chunk, in bytes.
    StreamOff(u64), "{}"
}

number! {
    /// A general-purpose register by its hardware number: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi,
    /// r8 .. r15.
    Gpr(u8), "{}"
}

impl Gpr {
    /// Where the register is in an array of all sixteen.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & 15) as usize
    }

    /// What it is called at its full width.
    #[must_use]
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        NAMES[self.index()]
    }
}

number! {
    /// The number of a unit: `window << 16 | tag`, see [`crate::unit`].
    UnitId(u32), "{:#x}"
}

impl UnitId {
    /// The id that these two make up.
    #[must_use]
    pub const fn new(window: u32, tag: u16) -> UnitId {
        UnitId(window << 16 | tag as u32)
    }

    /// The window of tags that the unit belongs to.
    #[must_use]
    pub const fn window(self) -> u32 {
        self.0 >> 16
    }

    /// The unit's number in its window; below [`crate::unit::FIRST_TAG`] it is no unit.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
    pub const fn tag(self) -> u16 {
        self.0 as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_id_is_a_window_and_a_tag() {
        let id = UnitId::new(0x8001, 0xfff0);
        assert_eq!((id.window(), id.tag(), id.0), (0x8001, 0xfff0, 0x8001_fff0));
        assert_eq!(std::format!("{id:?} {id}"), "UnitId(0x8001fff0) 0x8001fff0");
    }

    #[test]
    fn addresses_wrap_as_the_processor_does() {
        let address = OrigAddr(u64::MAX);
        assert_eq!(address.plus(2), OrigAddr(1));
        assert_eq!(OrigAddr(1).from_start(address), 2);
        assert_eq!(LiveAddr(0x1_2345_6789).low(), 0x2345_6789);
    }
}
