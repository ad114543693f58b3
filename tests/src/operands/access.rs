//! How an instruction uses a memory operand that it names, and whether it ends a block.

use iced_x86::{Instruction, Mnemonic};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    None,
    Read,
    Write,
    ReadWrite,
}

/// The use of memory operand number `operand`.
pub fn of(insn: &Instruction, operand: u32) -> Access {
    let mnemonic = insn.mnemonic();
    if refers_to_nothing(mnemonic) {
        Access::None
    } else if operand != 0 {
        Access::Read
    } else if modifies(mnemonic) {
        Access::ReadWrite
    } else if only_reads(mnemonic) {
        Access::Read
    } else {
        Access::Write
    }
}

/// Names an address without making a reference to it.
fn refers_to_nothing(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Lea | Nop
            | Reservednop
            | Prefetch
            | Prefetchw
            | Prefetchwt1
            | Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Prefetchit0
            | Prefetchit1
            | Clflush
            | Clflushopt
            | Clwb
            | Cldemote
            | Invlpg
            | Bndmk
            | Bndcl
            | Bndcu
            | Bndcn
            | Bndmov
            | Bndldx
            | Bndstx
            | Vgatherpf0dps
            | Vgatherpf0dpd
            | Vgatherpf0qps
            | Vgatherpf0qpd
            | Vgatherpf1dps
            | Vgatherpf1dpd
            | Vgatherpf1qps
            | Vgatherpf1qpd
            | Vscatterpf0dps
            | Vscatterpf0dpd
            | Vscatterpf0qps
            | Vscatterpf0qpd
            | Vscatterpf1dps
            | Vscatterpf1dpd
            | Vscatterpf1qps
            | Vscatterpf1qpd
    )
}

/// Reads its first operand and writes it back. A failing cmpxchg writes too.
fn modifies(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Add | Or
            | Adc
            | Sbb
            | And
            | Sub
            | Xor
            | Not
            | Neg
            | Inc
            | Dec
            | Rol
            | Ror
            | Rcl
            | Rcr
            | Shl
            | Sal
            | Shr
            | Sar
            | Shld
            | Shrd
            | Bts
            | Btr
            | Btc
            | Xchg
            | Xadd
            | Cmpxchg
            | Cmpxchg8b
            | Cmpxchg16b
            | Aadd
            | Aand
            | Aor
            | Axor
            | Cmpoxadd
            | Cmpnoxadd
            | Cmpbxadd
            | Cmpnbxadd
            | Cmpzxadd
            | Cmpnzxadd
            | Cmpbexadd
            | Cmpnbexadd
            | Cmpsxadd
            | Cmpnsxadd
            | Cmppxadd
            | Cmpnpxadd
            | Cmplxadd
            | Cmpnlxadd
            | Cmplexadd
            | Cmpnlexadd
    )
}

/// Reads its first operand only.
fn only_reads(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    let integer = matches!(
        mnemonic,
        Cmp | Test
            | Bt
            | Push
            | Call
            | Jmp
            | Mul
            | Imul
            | Div
            | Idiv
            | Xlatb
            | Cmpsb
            | Cmpsw
            | Cmpsd
            | Cmpsq
            | Lgdt
            | Lidt
            | Lldt
            | Ltr
            | Lmsw
            | Verr
            | Verw
            | Ptwrite
    );
    let state = matches!(
        mnemonic,
        Ldmxcsr
            | Vldmxcsr
            | Fxrstor
            | Fxrstor64
            | Xrstor
            | Xrstor64
            | Xrstors
            | Xrstors64
            | Frstor
            | Fldenv
            | Fldcw
            | Ldtilecfg
            | Aesencwide128kl
            | Aesdecwide128kl
            | Aesencwide256kl
            | Aesdecwide256kl
    );
    let x87 = matches!(
        mnemonic,
        Fld | Fild
            | Fbld
            | Fadd
            | Fmul
            | Fcom
            | Fcomp
            | Fsub
            | Fsubr
            | Fdiv
            | Fdivr
            | Fiadd
            | Fimul
            | Ficom
            | Ficomp
            | Fisub
            | Fisubr
            | Fidiv
            | Fidivr
    );
    integer || state || x87
}

/// Whether a block starts after `mnemonic`, wherever it goes.
pub fn ends_block(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Ja | Jae
            | Jb
            | Jbe
            | Jcxz
            | Je
            | Jecxz
            | Jg
            | Jge
            | Jl
            | Jle
            | Jmp
            | Jmpe
            | Jne
            | Jno
            | Jnp
            | Jns
            | Jo
            | Jp
            | Jrcxz
            | Js
            | Loop
            | Loope
            | Loopne
            | Call
            | Ret
            | Retf
            | Iret
            | Iretd
            | Iretq
            | Syscall
            | Sysenter
            | Int
            | Int1
            | Int3
            | Xbegin
            | Xabort
            | Uiret
    )
}
