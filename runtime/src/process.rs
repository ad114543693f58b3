//! What all threads share.

use crate::jit::Jit;
use crate::lock::Lock;
use crate::memory::Brk;
use crate::signals::Actions;
use crate::syscalls::seccomp::Filter;
use crate::trace_file::TraceFile;
use abi::image::ImageHeader;
use abi::options::Options;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64};

pub struct Process {
    pub header: ImageHeader,
    /// Start of the code window.
    pub window: u64,
    pub options: Options,
    /// The runtime's own code and data.
    pub runtime: core::ops::Range<u64>,
    /// All that was added to the program: tables, translations, runtime.
    pub added: core::ops::Range<u64>,
    pub jit: Lock<Jit>,
    pub actions: Lock<Actions>,
    pub brk: Lock<Brk>,
    pub trace: TraceFile,
    pub threads: Threads,
    /// Filters of system calls: number 1 is the first.
    pub filters: Lock<Vec<Filter>>,
    /// The last one that holds for all threads, or 0.
    pub filter_of_all: AtomicU32,
    /// XCR0 and the layout of the XSAVE area.
    pub xsave: XsaveLayout,
    /// Sizes of the initial chunk, for `--torture tiny-buffers`.
    pub tiny_buffers: bool,
}

#[derive(Default)]
pub struct Threads {
    pub next_index: AtomicU32,
    pub live: AtomicU32,
    /// Blocks of threads that have ended, to be used again: address of the first one.
    pub spare: AtomicU64,
}

#[derive(Clone, Copy)]
pub struct XsaveLayout {
    pub xcr0: u64,
    /// (size, offset) of each state component in the standard format.
    pub components: [(u32, u32); 64],
}

impl Default for XsaveLayout {
    fn default() -> Self {
        XsaveLayout { xcr0: 0, components: [(0, 0); 64] }
    }
}

impl XsaveLayout {
    /// Offset of zmm30 in an XSAVE area of the standard format; zmm31 lies behind it.
    pub fn zmm30(&self) -> Option<u64> {
        (self.xcr0 & 0xe0 == 0xe0).then(|| u64::from(self.components[7].1) + 14 * 64)
    }
}

struct Global(UnsafeCell<MaybeUninit<Process>>);

// SAFETY: written once by `install`, before a second thread exists, and only read afterwards;
// everything that changes is behind locks or atomics.
unsafe impl Sync for Global {}

static PROCESS: Global = Global(UnsafeCell::new(MaybeUninit::uninit()));

/// Sets the process up; called once, at boot.
///
/// # Safety
/// No other thread exists and [`process`] has not been called.
pub unsafe fn install(process: Process) {
    // SAFETY: as promised.
    unsafe { (*PROCESS.0.get()).write(process) };
}

pub fn process() -> &'static Process {
    // SAFETY: boot installs it before anything else runs.
    unsafe { (*PROCESS.0.get()).assume_init_ref() }
}
