//! What a thread needs to execute another program. It stays with the thread: a child of vfork never
//! comes back from there to give it up, and the memory is its parent's.

use abi::file::State;
use alloc::ffi::CString;
use alloc::vec::Vec;

/// Memory that the kernel reads when another program is executed, and the recorder's last answer.
#[derive(Default)]
pub struct ForExec {
    pub arguments: Vec<u64>,
    pub environment: Vec<u64>,
    /// Zero-terminated strings, to which these two point.
    pub text: Vec<u8>,
    /// What the recorder said, in fields that end with a zero.
    pub answer: Vec<u8>,
    /// The file that it said that of, if the program was not executed because a signal came first.
    pub asked: Option<(CString, State)>,
}
