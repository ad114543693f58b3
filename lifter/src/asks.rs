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

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn what_asks_is_told_from_what_computes() {
        let asks_itself = |bytes: &[u8]| {
            let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            assert!(!insn.is_invalid(), "{bytes:x?}");
            asks(&insn)
        };
        let asking: &[&[u8]] = &[
            &[0x0f, 0x31],             // rdtsc
            &[0x0f, 0x01, 0xf9],       // rdtscp
            &[0x0f, 0xa2],             // cpuid
            &[0xf3, 0x0f, 0xc7, 0xf8], // rdpid rax
            &[0x0f, 0xc7, 0xf0],       // rdrand eax
            &[0x0f, 0xc7, 0xf8],       // rdseed eax
            &[0x0f, 0x01, 0xd0],       // xgetbv
            &[0x0f, 0x01, 0x00],       // sgdt [rax]
            &[0x0f, 0x03, 0xc1],       // lsl eax,ecx
        ];
        let others: &[&[u8]] = &[
            &[0x0f, 0x05],                   // syscall
            &[0x0f, 0x0b],                   // ud2
            &[0xf3, 0x48, 0x0f, 0xae, 0xc0], // rdfsbase rax
            &[0x0f, 0xae, 0xe8],             // lfence
            &[0x9c],                         // pushf
        ];
        assert!(asking.iter().all(|bytes| asks_itself(bytes)));
        assert!(!others.iter().any(|bytes| asks_itself(bytes)));
    }
}
