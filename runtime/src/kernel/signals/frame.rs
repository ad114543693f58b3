//! The kernel's signal frame, as it writes it for us and as we write it for the program.

use crate::base::program::Plain;
use crate::base::signal::{AltStack, SigInfo};

/// x87's control word at the start of a program.
pub const DEFAULT_FCW: u16 = 0x37f;
/// MXCSR there.
pub const DEFAULT_MXCSR: u32 = 0x1f80;

/// `struct sigcontext`, in the kernel's order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Context {
    pub r8_to_r15: [u64; 8],
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub rflags: u64,
    /// cs, gs, fs, ss
    pub segments: [u16; 4],
    pub error: u64,
    pub trap: u64,
    pub old_mask: u64,
    pub cr2: u64,
    pub fpstate: u64,
    pub reserved: [u64; 8],
}

impl Context {
    /// In hardware numbering.
    pub fn gpr(&self) -> [u64; 16] {
        let mut gpr = [
            self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi, 0, 0,
            0, 0, 0, 0, 0, 0,
        ];
        gpr[8..].copy_from_slice(&self.r8_to_r15);
        gpr
    }

    pub fn set_gpr(&mut self, gpr: &[u64; 16]) {
        [self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi] =
            [gpr[0], gpr[1], gpr[2], gpr[3], gpr[4], gpr[5], gpr[6], gpr[7]];
        self.r8_to_r15.copy_from_slice(&gpr[8..]);
    }
}

/// `struct ucontext` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct UContext {
    pub flags: u64,
    pub link: u64,
    pub stack: AltStack,
    pub context: Context,
    pub mask: u64,
}

/// `struct rt_sigframe`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    pub restorer: u64,
    pub ucontext: UContext,
    pub info: SigInfo,
}

const _: () = assert!(core::mem::size_of::<UContext>() == 304);
const _: () = assert!(core::mem::size_of::<Frame>() == 440);

// SAFETY: numbers, and their sizes add up to those above.
unsafe impl Plain for UContext {}
// SAFETY: as above.
unsafe impl Plain for Frame {}

/// Software bytes of the XSAVE area in a frame: magic, whole size, components.
#[derive(Clone, Copy)]
pub struct Software {
    pub extended_size: u32,
    pub components: u64,
}

/// Reads them from the frame's floating-point state; `None`: only the 512 bytes of FXSAVE.
pub fn software(fpstate: &[u8; 512]) -> Option<Software> {
    const MAGIC: u32 = 0x4650_5853;
    let u32_at =
        |i: usize| u32::from_le_bytes([fpstate[i], fpstate[i + 1], fpstate[i + 2], fpstate[i + 3]]);
    (u32_at(464) == MAGIC).then(|| Software {
        extended_size: u32_at(468),
        components: u64::from(u32_at(472)) | u64::from(u32_at(476)) << 32,
    })
}
