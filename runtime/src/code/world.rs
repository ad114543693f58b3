//! What the code cache needs of the world around it.
//!
//! The process is one such world ([`crate::code::process`]); the unit tests make up another.

use crate::code::span::Span;
use abi::ids::{CodeAddr, CodeOff, LiveAddr};
use alloc::vec::Vec;
use instrument::block::FarWindow;

/// Memory that translated code is written to and runs in.
pub trait CodeMemory {
    /// Appends code; what follows starts at a multiple of 16.
    fn append(&mut self, code: &[u8]);
    /// Points the rel32 at `at` to `target`, in one store: threads may be running it.
    fn patch(&mut self, at: CodeOff, target: CodeAddr);
    /// Overwrites the five bytes at `at`, which lie inside of eight aligned ones, in one store.
    fn replace(&mut self, at: CodeOff, code: [u8; 5]);
    /// Where the code at this offset runs.
    fn live(&self, at: CodeOff) -> CodeAddr;
    /// The offset of what runs at `pc`, if that lies here.
    fn offset(&self, pc: CodeAddr) -> Option<CodeOff>;
    /// Where the next code will be appended.
    fn used(&self) -> CodeOff;
    /// Bytes that are left.
    fn room(&self) -> u64;
    /// Forgets all code.
    fn restart(&mut self);
    /// From here on there may be a child that has the same memory: neither process's changes are the
    /// other's.
    fn forks(&mut self);
}

/// What a look-up was for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum For {
    Return,
    Jump,
}

/// The tables that indirect branches find translations by.
pub trait LookUpTables {
    /// Makes entries for `span` (whole pages), all of which miss.
    fn cover(&self, span: Span);
    /// Drops the entries for `span`.
    fn uncover(&self, span: Span);
    /// Points the entry of `address`, which `cover` has made, at `code`.
    fn set(&self, what: For, address: LiveAddr, code: CodeAddr);
    /// The process forks: now is the time to forget entries that nobody may need, and to have few pages.
    /// `spans`: those that have entries.
    fn forks(&mut self, spans: impl Iterator<Item = Span>);
    /// Sets the entries of all ahead-of-time code that begins in `span`, as a look-up has missed there: `entries`.
    fn fill(&self, what: For, _span: Span, entries: impl Iterator<Item = (LiveAddr, CodeAddr)>) {
        entries.for_each(|(address, code)| self.set(what, address, code));
    }
    /// That was because of `address`; `span`, around it, has entries.
    fn filled(&self, _what: For, _address: LiveAddr, _span: Span) {}
    /// Lets `address`, whose entry `cover` has made, miss again.
    fn clear(&self, address: LiveAddr);
    /// The program cannot change what is in `span` any more, without a call that says so: `is_private` says it
    /// of an address. What is `executable` has entries.
    fn becomes_constant(
        &self,
        _span: Span,
        _is_private: impl Fn(LiveAddr) -> bool,
        _executable: impl Fn(LiveAddr) -> bool,
    ) {
    }
    /// From now on the other variant of the code is used: no entry leads there yet. `jumps_alone`: that one does not look into the
    /// table of returns.
    fn switches(&self, _is_plain: bool, _jumps_alone: bool) {}
    /// Code that records nothing, which nobody has used before, has slots of what does not change; `is_private` as
    /// for [`LookUpTables::becomes_constant`].
    fn plain_has_slots(&self, _is_private: impl Fn(LiveAddr) -> bool) {}
    /// Pieces of files are mapped at `span`, which the program cannot change without a call that says so.
    fn is_read_only(&self, _span: Span, _is_private: impl Fn(LiveAddr) -> bool) {}
    /// A jump with these registers has come by way of a slot that asks; its look-up starts at `slow`.
    fn fill_slot(&self, _slow: CodeAddr, _gpr: &[u64; 16], _executable: impl Fn(LiveAddr) -> bool) {
    }
    /// What is in `span` is going to change.
    fn changes(&self, _span: Span) {}
    /// The far window of `address`, from now on if there was none; `None` if it lies in the program's
    /// window, or there can be no more.
    fn far_window(&mut self, _address: LiveAddr) -> Option<FarWindow> {
        None
    }
    /// Bytes of code whose entries in the table for `what` are set together.
    fn code_at_once(&self, what: For) -> u64;
}

/// The rights of the program's pages.
pub trait Protection {
    /// Makes whole pages readable, and writable if asked for. The error is the kernel's.
    fn set_writable(&mut self, span: Span, writable: bool) -> Result<(), i32>;
}

/// The program's memory.
pub trait ProgramBytes {
    /// Whether there is anything to read at `address`: a mapping may be longer than its file.
    fn is_readable(&self, address: LiveAddr) -> bool;

    /// The bytes in `span`.
    ///
    /// # Safety
    /// All of it is readable, and stays as it is while the slice lives.
    unsafe fn bytes(&self, span: Span) -> &[u8];
}

/// The translations that were made ahead of time, in *modules*.
pub trait AheadOfTime {
    /// The translation that begins at `target`; `plain`: that records nothing, beside one that does.
    fn entry(&self, target: LiveAddr, plain: bool) -> Option<CodeAddr>;
    /// Those that begin in `span`, of the module that `target` belongs to.
    fn entries_in(
        &self,
        target: LiveAddr,
        span: Span,
        plain: bool,
    ) -> impl Iterator<Item = (LiveAddr, CodeAddr)>;
    /// Whether `address` belongs to a module in use.
    fn has(&self, address: LiveAddr) -> bool {
        self.text(address).is_some()
    }
    /// Where the code of the module in use lies that `address` belongs to.
    fn text(&self, address: LiveAddr) -> Option<Span>;
    /// Whether the program's own code has a translation, in use or not.
    fn has_program(&self) -> bool;
    /// Takes the modules with code in `span` out of use; returns where their code lies.
    fn retire(&mut self, span: Span) -> Vec<Span>;
}

/// All of it.
pub trait World: Protection + ProgramBytes + AheadOfTime {
    type Code: CodeMemory;
    type Tables: LookUpTables;

    /// Whether the program has one thread only: nobody can be in the midst of translated code.
    fn is_alone(&self) -> bool;
    /// Whether nobody has the other end of `pipe` any more, which is closed then.
    fn is_over(&self, pipe: i32) -> bool;
    /// Writes encoded units to the trace, before they run.
    fn announce(&self, units: &[u8]);

    /// Code at one address was translated more often than the trace can tell apart.
    fn cannot_name(&self);
}
