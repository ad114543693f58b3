//! The two ELF tables as plain data: read with `object`, changed freely, written back.

use object::elf::{FileHeader64, ProgramHeader64, SectionHeader64};
use object::LittleEndian;

pub const LE: LittleEndian = LittleEndian;
pub type FileHeader = FileHeader64<LittleEndian>;

pub const FILE_HEADER_SIZE: usize = 64;
pub const PROGRAM_HEADER_SIZE: usize = 56;
pub const SECTION_HEADER_SIZE: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramHeader {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub physical: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub align: u64,
}

impl ProgramHeader {
    pub fn read(raw: &ProgramHeader64<LittleEndian>) -> ProgramHeader {
        ProgramHeader {
            kind: raw.p_type.get(LE).0,
            flags: raw.p_flags.get(LE).0,
            offset: raw.p_offset.get(LE),
            address: raw.p_vaddr.get(LE),
            physical: raw.p_paddr.get(LE),
            file_size: raw.p_filesz.get(LE),
            memory_size: raw.p_memsz.get(LE),
            align: raw.p_align.get(LE),
        }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.kind.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        for word in
            [self.offset, self.address, self.physical, self.file_size, self.memory_size, self.align]
        {
            out.extend(word.to_le_bytes());
        }
    }

    pub fn is_load(&self) -> bool {
        self.kind == object::elf::PT_LOAD.0
    }

    pub fn is_executable(&self) -> bool {
        self.flags & object::elf::PF_X.0 != 0
    }

    pub fn is_writable(&self) -> bool {
        self.flags & object::elf::PF_W.0 != 0
    }

    /// First address behind the segment. Checked when the input is read.
    pub fn end(&self) -> u64 {
        self.address + self.memory_size
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionHeader {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry_size: u64,
}

impl SectionHeader {
    pub fn read(raw: &SectionHeader64<LittleEndian>) -> SectionHeader {
        SectionHeader {
            name: raw.sh_name.get(LE),
            kind: raw.sh_type.get(LE).0,
            flags: raw.sh_flags.get(LE).0,
            address: raw.sh_addr.get(LE),
            offset: raw.sh_offset.get(LE),
            size: raw.sh_size.get(LE),
            link: raw.sh_link.get(LE),
            info: raw.sh_info.get(LE),
            align: raw.sh_addralign.get(LE),
            entry_size: raw.sh_entsize.get(LE),
        }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.name.to_le_bytes());
        out.extend(self.kind.to_le_bytes());
        for word in [self.flags, self.address, self.offset, self.size] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.link.to_le_bytes());
        out.extend(self.info.to_le_bytes());
        out.extend(self.align.to_le_bytes());
        out.extend(self.entry_size.to_le_bytes());
    }

    pub fn is_executable(&self) -> bool {
        self.flags & object::elf::SHF_EXECINSTR.0 != 0
    }

    pub fn is_allocated(&self) -> bool {
        self.flags & object::elf::SHF_ALLOC.0 != 0
    }

    pub fn has_bytes(&self) -> bool {
        self.kind != object::elf::SHT_NOBITS.0 && self.kind != object::elf::SHT_NULL.0
    }
}
