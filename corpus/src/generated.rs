//! Objects with known bytes, the same in every run: for snapshots that no compiler's version
//! changes.

use std::str::FromStr;

use faerie::{ArtifactBuilder, Decl, Link};
use target_lexicon::Triple;

/// A relocatable ELF object, and the functions that were put into it.
pub struct Object {
    pub name: &'static str,
    pub elf: Vec<u8>,
    pub functions: Vec<Function>,
}

pub struct Function {
    pub name: &'static str,
    pub code: &'static [u8],
    /// (offset of a 32-bit pc-relative field in `code`, the function that it refers to)
    pub calls: &'static [(u64, &'static str)],
}

const fn plain(name: &'static str, code: &'static [u8]) -> Function {
    Function { name, code, calls: &[] }
}

/// Every generated object, in a fixed order.
pub fn objects() -> Vec<Object> {
    vec![
        object("leaf", vec![plain("leaf", &[0x8d, 0x47, 0x01, 0xc3])]), // lea eax,[rdi+1]; ret
        object(
            "calls",
            vec![
                plain("callee", &[0x89, 0xf8, 0xc3]), // mov eax,edi; ret
                Function {
                    name: "caller",
                    // push rbx; mov ebx,edi; call callee; add eax,ebx; pop rbx; ret
                    code: &[0x53, 0x89, 0xfb, 0xe8, 0, 0, 0, 0, 0x01, 0xd8, 0x5b, 0xc3],
                    calls: &[(4, "callee")],
                },
            ],
        ),
        object(
            "loop",
            vec![plain(
                "sum",
                // xor eax,eax; test esi,esi; jle 1f; 0: add eax,[rdi]; add rdi,4; dec esi; jne 0b; 1: ret
                &[
                    0x31, 0xc0, 0x85, 0xf6, 0x7e, 0x0a, 0x03, 0x07, 0x48, 0x83, 0xc7, 0x04, 0xff,
                    0xce, 0x75, 0xf6, 0xc3,
                ],
            )],
        ),
        object(
            "diamond",
            vec![plain(
                "pick",
                // test edi,edi; je 0f; mov eax,[rsi]; jmp 1f; 0: mov eax,[rdx]; 1: add eax,1; ret
                &[
                    0x85, 0xff, 0x74, 0x04, 0x8b, 0x06, 0xeb, 0x02, 0x8b, 0x02, 0x83, 0xc0, 0x01,
                    0xc3,
                ],
            )],
        ),
        object(
            "frame",
            vec![plain(
                "frame",
                // push rbp; mov rbp,rsp; sub rsp,16; mov [rbp-8],rdi; mov rax,[rbp-8]; leave; ret
                &[
                    0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x48, 0x89, 0x7d, 0xf8, 0x48,
                    0x8b, 0x45, 0xf8, 0xc9, 0xc3,
                ],
            )],
        ),
        object(
            "strings",
            vec![plain(
                "copy",
                // mov rcx,rdx; rep movsb; rep stosq; repne scasb; ret
                &[0x48, 0x89, 0xd1, 0xf3, 0xa4, 0xf3, 0x48, 0xab, 0xf2, 0xae, 0xc3],
            )],
        ),
        object(
            "indirect",
            vec![plain(
                "dispatch",
                // cmp edi,3; ja 0f; jmp [rsi+rdi*8]; 0: call [rsi]; xor eax,eax; ret
                &[0x83, 0xff, 0x03, 0x77, 0x03, 0xff, 0x24, 0xfe, 0xff, 0x16, 0x31, 0xc0, 0xc3],
            )],
        ),
    ]
}

fn object(name: &'static str, functions: Vec<Function>) -> Object {
    let triple = target_triple();
    let mut artifact = ArtifactBuilder::new(triple).name(format!("{name}.o")).finish();
    let expect = "the objects are fixed and were tested";
    for f in &functions {
        artifact.declare(f.name, Decl::function().global()).expect(expect);
    }
    for f in &functions {
        artifact.define(f.name, f.code.to_vec()).expect(expect);
        for (at, to) in f.calls {
            artifact.link(Link { from: f.name, to, at: *at }).expect(expect);
        }
    }
    Object { name, elf: artifact.emit().expect(expect), functions }
}

fn target_triple() -> Triple {
    Triple::from_str("x86_64-unknown-linux-gnu").expect("a known triple")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_hold_their_code_and_never_change() {
        let (first, second) = (objects(), objects());
        for (a, b) in first.iter().zip(&second) {
            assert_eq!(a.elf, b.elf, "{}", a.name);
            assert_eq!(&a.elf[..4], b"\x7fELF");
            for f in &a.functions {
                let found = a.elf.windows(f.code.len()).any(|w| w == f.code);
                assert!(found, "{} in {}", f.name, a.name);
            }
        }
    }
}
