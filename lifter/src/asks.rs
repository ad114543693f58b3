//! Instructions that ask the machine: what they say is neither computed nor in memory.

use iced_x86::{Instruction, Mnemonic};

/// Whether the answer of `insn` cannot be computed: clocks, random numbers, which processor this is and
/// what it can, its tables of segments.
pub fn asks(insn: &Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Rdtsc
            | Mnemonic::Rdtscp
            | Mnemonic::Rdpmc
            | Mnemonic::Rdpru
            | Mnemonic::Rdpid
            | Mnemonic::Cpuid
            | Mnemonic::Xgetbv
            | Mnemonic::Rdrand
            | Mnemonic::Rdseed
            | Mnemonic::Sgdt
            | Mnemonic::Sidt
            | Mnemonic::Sldt
            | Mnemonic::Str
            | Mnemonic::Smsw
            | Mnemonic::Lsl
            | Mnemonic::Lar
            | Mnemonic::Verr
            | Mnemonic::Verw
            | Mnemonic::Umwait
            | Mnemonic::Tpause
    )
}
