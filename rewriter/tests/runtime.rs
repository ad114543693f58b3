//! The runtime that each output carries.

use object::read::elf::{ElfFile64, ProgramHeader};

/// Bytes of the runtime that are loaded with each output: little more than it has.
const MOST: u64 = 1_770_000;

#[test]
fn the_runtime_stays_small() {
    let path = env!("DEPREWRITE_RUNTIME");
    let blob = std::fs::read(path).expect("the runtime");
    let elf = ElfFile64::<object::LittleEndian>::parse(&*blob).expect("an ELF file");
    let loaded = elf.elf_program_headers().iter();
    let loaded = loaded.filter(|p| p.p_type(elf.endian()) == object::elf::PT_LOAD);
    let size: u64 = loaded.map(|p| p.p_filesz(elf.endian())).sum();
    println!("the runtime has {size} bytes, of {MOST}");
    assert!(
        size <= MOST,
        "the runtime has {size} bytes, and {MOST} are the limit: each output carries them. \
         `nm -CS --size-sort {path}` shows what is large. Raise the limit if it is worth it."
    );
    // A file that was not built as it should be would be small, too.
    assert!(size > MOST / 2, "{size}");
}
