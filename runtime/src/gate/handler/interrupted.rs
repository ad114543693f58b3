//! The code that a signal has interrupted, as the kernel saved it: what is loaded again when our
//! handler returns.

use crate::base::facts::facts;
use crate::base::keys;
use crate::base::processor::Half;
use crate::base::signal::SYNCHRONOUS;
use crate::kernel::signals::deliver::Kernel;
use crate::kernel::signals::frame::{software, UContext, DEFAULT_FCW, DEFAULT_MXCSR};
use crate::thread::claims;
use abi::thread::{FIRST_VECTOR, HELD};
use core::ops::{Deref, DerefMut};
use iced_x86::Register;

pub const TRAP_FLAG: u64 = 0x100;
pub const ALIGNMENT_FLAG: u64 = 0x4_0000;

/// The kernel's frame for our handler.
pub struct Interrupted<'a> {
    uc: &'a mut UContext,
    /// Its XSAVE area; kept apart because the context may be changed by anybody.
    fpstate: *mut u8,
}

/// The register that holds the buffer pointers.
enum Held {
    Xmm15,
    /// xmm31, which is here in the frame.
    At(*mut [u64; 2]),
}

impl Deref for Interrupted<'_> {
    type Target = UContext;
    fn deref(&self) -> &UContext {
        self.uc
    }
}

impl DerefMut for Interrupted<'_> {
    fn deref_mut(&mut self) -> &mut UContext {
        self.uc
    }
}

impl<'a> Interrupted<'a> {
    /// # Safety
    /// `uc` is the frame as the kernel wrote it, and nobody else uses it.
    pub unsafe fn new(uc: &'a mut UContext) -> Interrupted<'a> {
        let fpstate = uc.context.fpstate as *mut u8;
        Interrupted { uc, fpstate }
    }

    /// Where our handler returns to.
    pub fn restorer(&self) -> u64 {
        let at = (&raw const *self.uc).cast::<u64>().wrapping_sub(1);
        // SAFETY: the kernel's frame begins with that, in front of the context.
        unsafe { at.read() }
    }

    /// Where the thread was, or where it goes on.
    pub fn pc(&self) -> u64 {
        self.uc.context.rip
    }

    /// One instruction, and then our handler again: nothing else that was sent comes in between.
    pub fn step(&mut self) {
        self.uc.context.rflags |= TRAP_FLAG;
        self.uc.mask = !SYNCHRONOUS;
    }

    /// What delivery needs of it.
    pub fn kernel(&self) -> Kernel<'_> {
        // SAFETY: the kernel's frame has the 512 bytes of FXSAVE at least.
        let legacy = unsafe { &*self.fpstate.cast::<[u8; 512]>() };
        let size = software(legacy).map_or(512, |s| s.extended_size as usize);
        // SAFETY: so many bytes are the kernel's, as it says itself.
        let floating = unsafe { core::slice::from_raw_parts(self.fpstate, size) };
        Kernel { floating, context: &self.uc.context }
    }

    /// The vector and floating-point state, as the kernel loads it again.
    pub fn floating(&mut self) -> &mut [u8] {
        let len = self.kernel().floating.len();
        // SAFETY: so many bytes are the kernel's, as above, and `self` is the only one that knows them.
        unsafe { core::slice::from_raw_parts_mut(self.fpstate, len) }
    }

    /// What a vector register has that the program uses for itself alone, as far as its legacy state goes: the first 16 bytes of
    /// what is no wider, else all of it. Not of those that translated code may claim.
    pub fn program_vector(&self, register: Register) -> Option<[u8; 64]> {
        /// Where the upper halves of ymm0 to ymm15 are in the standard format of XSAVE, and where the first xmm is.
        const UPPER: usize = 576;
        const LOWER: usize = 160;
        let number = register.is_xmm().then(|| register.number());
        let number = number.or_else(|| register.is_ymm().then(|| register.number()))?;
        if number >= 15 {
            return None;
        }
        let floating = self.kernel().floating;
        let mut value = [0; 64];
        let lower = floating.get(LOWER + 16 * number..LOWER + 16 * number + 16)?;
        value.get_mut(..16)?.copy_from_slice(lower);
        if register.is_ymm() {
            let upper = floating.get(UPPER + 16 * number..UPPER + 16 * number + 16)?;
            value.get_mut(16..32)?.copy_from_slice(upper);
        }
        Some(value)
    }

    /// Where a register from zmm16 on is.
    fn zmm(&self, number: usize) -> Option<*mut [u64; 8]> {
        let offset = facts().xsave.zmm(number)?;
        Some(self.fpstate.wrapping_add(offset as usize).cast())
    }

    /// Such a register, where the processor has it. Only asked for while zmm31 is in use: then
    /// the kernel has saved them.
    pub fn vector(&self, number: usize) -> Option<[u64; 8]> {
        let at = self.zmm(number)?;
        // SAFETY: inside the kernel's frame, whose XSAVE area has this component where XCR0 has it.
        Some(unsafe { at.read_unaligned() })
    }

    /// Sets zmm30, if the processor has it.
    pub fn set_zmm30(&mut self, value: [u64; 8]) {
        if let Some(at) = self.zmm(30) {
            // SAFETY: as for `vector`.
            unsafe { at.write_unaligned(value) };
            self.mark_vectors();
        }
    }

    /// Where the frame has the buffer pointers, if a register of `claims` holds them while translated code runs.
    fn held(&self, claims: u32) -> Option<Held> {
        match claims {
            claims::XMM15 => Some(Held::Xmm15),
            claims::XMM31 | claims::XMM25 => Some(Held::At(self.zmm(31)?.cast())),
            _ => None,
        }
    }

    /// The buffer pointers, while translated code runs that holds them in a register of `claims`.
    pub fn pointers(&self, claims: u32) -> Option<[u64; 2]> {
        Some(match self.held(claims)? {
            Held::Xmm15 => {
                let [flow, memory, ..] = self.ymm15();
                [flow, memory]
            }
            // SAFETY: as for `vector`.
            Held::At(at) => unsafe { at.read_unaligned() },
        })
    }

    /// Sets them, if a register of `claims` holds them.
    pub fn set_pointers(&mut self, claims: u32, value: [u64; 2]) {
        match self.held(claims) {
            Some(Held::Xmm15) => self.set_xmm(15, value),
            Some(Held::At(at)) => {
                // SAFETY: as for `vector`.
                unsafe { at.write_unaligned(value) };
                self.mark_vectors();
            }
            None => {}
        }
    }

    /// The registers that hold increments, if any do, hold them again: the code that goes on may be other than what was
    /// interrupted in the midst of an exchange.
    pub fn set_increments(&mut self, claims: u32) {
        if claims != claims::XMM25 {
            return;
        }
        for (number, (control_flow, words)) in (FIRST_VECTOR..).zip(HELD) {
            if let Some(at) = self.zmm(number) {
                let value = [u64::from(control_flow), 8 * words as u64, 0, 0, 0, 0, 0, 0];
                // SAFETY: as for `vector`.
                unsafe { at.write_unaligned(value) };
            }
        }
    }

    /// ymm15. Only asked for where the processor has it.
    pub fn ymm15(&self) -> [u64; 4] {
        let half = |place: Half| match self.present() & place.component {
            0 => [0; 2],
            // SAFETY: inside the kernel's frame, whose XSAVE area has this component where XCR0 has it.
            _ => unsafe {
                self.fpstate.add(place.last as usize).cast::<[u64; 2]>().read_unaligned()
            },
        };
        let [low, high] = facts().xsave.ymm15().map(half);
        [low[0], low[1], high[0], high[1]]
    }

    /// Sets an xmm register, 0 to 15; what lies above it stays.
    pub fn set_xmm(&mut self, number: usize, value: [u64; 2]) {
        const SSE: u64 = 2;
        // Of FXSAVE, with which every XSAVE area begins.
        const FIRST: usize = 160;
        let has_header = facts().xsave.xcr0 != 0;
        // SAFETY: as above; the header of the XSAVE area lies behind the 512 bytes of FXSAVE.
        unsafe {
            if has_header && self.present() & SSE == 0 {
                // The others are zero, whatever the frame says.
                self.fpstate.add(FIRST).write_bytes(0, 16 * 16);
            }
            self.fpstate.add(FIRST + 16 * number).cast::<[u64; 2]>().write_unaligned(value);
            if has_header {
                let present = self.fpstate.add(512).cast::<u64>();
                present.write_unaligned(present.read_unaligned() | SSE);
            }
        }
    }

    /// Floating-point and vector registers as the kernel gives them to a handler: what is in them at the start of
    /// a program.
    pub fn begin_anew(&mut self) {
        // Of FXSAVE, in front of what the kernel says of the frame itself.
        const REGISTERS: usize = 416;
        // SAFETY: the 512 bytes of FXSAVE, and the header behind them where the processor has XSAVE.
        unsafe {
            self.fpstate.write_bytes(0, REGISTERS);
            self.fpstate.cast::<u16>().write_unaligned(DEFAULT_FCW);
            self.fpstate.add(24).cast::<u32>().write_unaligned(DEFAULT_MXCSR);
            if facts().xsave.xcr0 != 0 {
                self.fpstate
                    .add(512)
                    .cast::<u64>()
                    .write_unaligned(self.present() & keys::COMPONENT);
            }
        }
        if let Some(zmm16) = self.zmm(16) {
            // The pointers will make the whole component present.
            // SAFETY: as for `vector`; the component has zmm16 to zmm31.
            unsafe { zmm16.write_bytes(0, 16) };
        }
    }

    /// Protection keys as the kernel gives them to a handler.
    pub fn begin_with_keys(&mut self) {
        let Some(value) = keys::of_handlers() else { return };
        let at = facts().xsave.keys();
        // SAFETY: inside the kernel's frame, which has room for each component that the system has enabled; the header.
        unsafe {
            self.fpstate.add(at as usize).cast::<u64>().write_unaligned(u64::from(value));
            let present = self.present() | keys::COMPONENT;
            self.fpstate.add(512).cast::<u64>().write_unaligned(present);
        }
    }

    /// The components that the frame has.
    fn present(&self) -> u64 {
        // SAFETY: the header of the XSAVE area; a processor that is asked for them has one.
        unsafe { self.fpstate.add(512).cast::<u64>().read_unaligned() }
    }

    /// The upper vector registers are in use: they are loaded from the frame.
    fn mark_vectors(&mut self) {
        // SAFETY: the header of the XSAVE area; a processor with these registers has one.
        unsafe {
            let present = self.fpstate.add(512).cast::<u64>();
            present.write_unaligned(present.read_unaligned() | 0x80);
        }
    }
}
