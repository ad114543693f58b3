//! The two ELF tables as plain data: read with `object`, changed freely, written back.

use abi::ids::FileOff;
use object::elf::{
    FileHeader64, ProgramFlags, ProgramHeader64, ProgramType, SectionFlags, SectionHeader64,
    SectionType,
};
use object::{LittleEndian, U32, U64};

pub const LE: LittleEndian = LittleEndian;
pub type FileHeader = FileHeader64<LittleEndian>;

pub const FILE_HEADER_SIZE: usize = size_of::<FileHeader>();
pub const PROGRAM_HEADER_SIZE: usize = size_of::<ProgramHeader64<LittleEndian>>();
pub const SECTION_HEADER_SIZE: usize = size_of::<SectionHeader64<LittleEndian>>();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramHeader {
    pub kind: u32,
    pub flags: u32,
    pub offset: FileOff,
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
            offset: FileOff(raw.p_offset.get(LE)),
            address: raw.p_vaddr.get(LE),
            physical: raw.p_paddr.get(LE),
            file_size: raw.p_filesz.get(LE),
            memory_size: raw.p_memsz.get(LE),
            align: raw.p_align.get(LE),
        }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        let raw = ProgramHeader64 {
            p_type: U32::new(LE, ProgramType(self.kind)),
            p_flags: U32::new(LE, ProgramFlags(self.flags)),
            p_offset: U64::new(LE, self.offset.0),
            p_vaddr: U64::new(LE, self.address),
            p_paddr: U64::new(LE, self.physical),
            p_filesz: U64::new(LE, self.file_size),
            p_memsz: U64::new(LE, self.memory_size),
            p_align: U64::new(LE, self.align),
        };
        out.extend_from_slice(object::bytes_of(&raw));
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
    pub offset: FileOff,
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
            offset: FileOff(raw.sh_offset.get(LE)),
            size: raw.sh_size.get(LE),
            link: raw.sh_link.get(LE),
            info: raw.sh_info.get(LE),
            align: raw.sh_addralign.get(LE),
            entry_size: raw.sh_entsize.get(LE),
        }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        let raw = SectionHeader64 {
            sh_name: U32::new(LE, self.name),
            sh_type: U32::new(LE, SectionType(self.kind)),
            sh_flags: U64::new(LE, SectionFlags(self.flags)),
            sh_addr: U64::new(LE, self.address),
            sh_offset: U64::new(LE, self.offset.0),
            sh_size: U64::new(LE, self.size),
            sh_link: U32::new(LE, self.link),
            sh_info: U32::new(LE, self.info),
            sh_addralign: U64::new(LE, self.align),
            sh_entsize: U64::new(LE, self.entry_size),
        };
        out.extend_from_slice(object::bytes_of(&raw));
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
