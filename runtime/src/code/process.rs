//! The process around the code cache: its pages, its memory, its ahead-of-time code, its trace.

use crate::base::census;
use crate::base::descriptors;
use crate::base::facts::facts;
use crate::base::program::read_program_bytes;
use crate::base::sys;
use crate::code::arena::Arena;
use crate::code::span::Span;
use crate::code::statics;
use crate::code::table::LookUps;
use crate::code::world::{AheadOfTime, ProgramBytes, Protection, World};
use crate::recording::trace_file::trace;
use abi::ids::{CodeAddr, LiveAddr};
use alloc::vec::Vec;

/// The process that the runtime is part of.
pub struct Process;

impl Protection for Process {
    fn set_writable(&mut self, span: Span, writable: bool) -> Result<(), i32> {
        let prot = if writable { sys::PROT_READ | sys::PROT_WRITE } else { sys::PROT_READ };
        let args = [span.start.0 as usize, span.len() as usize, prot];
        // SAFETY: the program's own pages, which stay readable, with no more rights than it asked
        // for.
        sys::beyond_limits(|| unsafe { sys::call(sys::nr::MPROTECT, &args) }).map(|_| ())
    }
}

impl ProgramBytes for Process {
    fn is_readable(&self, address: LiveAddr) -> bool {
        read_program_bytes(address.0, &mut [0])
    }

    unsafe fn bytes(&self, span: Span) -> &[u8] {
        // SAFETY: as promised by the caller.
        unsafe { core::slice::from_raw_parts(span.start.0 as *const u8, span.len() as usize) }
    }
}

impl AheadOfTime for Process {
    fn entry(&self, target: LiveAddr, plain: bool) -> Option<CodeAddr> {
        statics::entry(target.0, plain).map(CodeAddr)
    }

    fn entries_in(
        &self,
        target: LiveAddr,
        span: Span,
        plain: bool,
    ) -> impl Iterator<Item = (LiveAddr, CodeAddr)> {
        let entries = statics::entries_in(target.0, span.start.0..span.end.0, plain);
        entries.map(|(original, code)| (LiveAddr(original), CodeAddr(code)))
    }

    fn text(&self, address: LiveAddr) -> Option<Span> {
        statics::module_of(address.0).map(|m| Span::new(m.text.start, m.text.end))
    }

    fn has_program(&self) -> bool {
        statics::has_program()
    }

    fn retire(&mut self, span: Span) -> Vec<Span> {
        let modules = statics::modules_in(span.start.0, span.end.0);
        let retire = |module: &statics::Module| {
            module.retire();
            Span::new(module.text.start, module.text.end)
        };
        modules.map(retire).collect()
    }
}

impl World for Process {
    type Code = Arena;
    type Tables = LookUps;

    fn is_alone(&self) -> bool {
        census::live() == 1
    }

    fn is_over(&self, pipe: i32) -> bool {
        const POLL: usize = 7;
        const POLLHUP: u64 = 0x10;
        let mut look = u64::from(pipe as u32);
        // SAFETY: the kernel writes into the word, and does not wait.
        let found = unsafe { sys::call(POLL, &[&raw mut look as usize, 1, 0]) };
        let over = found == Ok(1) && look >> 48 & POLLHUP != 0;
        if over {
            descriptors::close(pipe);
        }
        over
    }

    fn announce(&self, units: &[u8]) {
        if !facts().options.recording.streams() {
            // No stream names them.
            return;
        }
        trace().add_units(units);
    }

    fn cannot_name(&self) {
        trace().ran_out_of_versions();
    }
}
