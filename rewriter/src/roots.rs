//! What the file says about its code: the image that discovery starts from.

use crate::convert::{index, low};
use crate::input::{word, Input};
use gimli::{BaseAddresses, CieOrFde, EhFrame, Pointer, Reader, UnwindSection};
use lifter::image::{Image, Segment};
use object::elf;

/// The program as the lifter sees it.
pub fn image(input: &Input) -> Image<'_> {
    let mut image = Image {
        segments: segments(input),
        entry: input.entry,
        functions: Vec::new(),
        code_pointers: Vec::new(),
        fixed: !input.pie,
    };
    add_symbols(input, &mut image);
    add_frames(input, &mut image);
    add_relocations(input, &mut image);
    add_initialisers(input, &mut image);
    image.code_pointers.sort_unstable();
    image.code_pointers.dedup();
    image
}

/// Executable segments are divided along their sections, where there are any, so that read-only
/// data and tables in them are not taken for code.
fn segments(input: &Input) -> Vec<Segment<'_>> {
    let mut code: Vec<(u64, u64)> = input
        .sections
        .iter()
        .filter(|s| s.is_allocated() && s.is_executable() && s.has_bytes() && s.size != 0)
        .map(|s| (s.address, s.address.saturating_add(s.size)))
        .collect();
    code.sort_unstable();
    let entry = input.entry;
    let holds_entry = entry == 0 || code.iter().any(|(start, end)| (*start..*end).contains(&entry));
    let trusted = holds_entry && code.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    let mut out = Vec::new();
    for p in input.loads() {
        let bytes = input.segment_bytes(p);
        let mut push = |from: u64, to: u64, executable: bool| {
            if from < to {
                let bytes = &bytes[index(from - p.address)..index(to - p.address)];
                out.push(Segment { address: from, bytes, executable });
            }
        };
        let end = p.address + p.file_size;
        if !p.is_executable() || !trusted {
            push(p.address, end, p.is_executable());
            continue;
        }
        let mut at = p.address;
        for (from, to) in code.iter().filter(|(from, to)| p.address <= *from && *to <= end) {
            push(at, *from, false);
            push(*from, *to, true);
            at = *to;
        }
        push(at, end, false);
    }
    out
}

/// The executable ranges of the program as it is loaded: start, end, 1 if it is writable, too.
pub fn executable_ranges(input: &Input) -> Vec<[u64; 3]> {
    let ranges = input.loads().filter(|p| p.is_executable());
    ranges.map(|p| [p.address, p.end(), p.is_writable().into()]).collect()
}

fn add_symbols(input: &Input, image: &mut Image) {
    for section in &input.sections {
        if section.kind != elf::SHT_SYMTAB.0 && section.kind != elf::SHT_DYNSYM.0 {
            continue;
        }
        for symbol in input.section_bytes(section).chunks_exact(24) {
            let kind = elf::SymbolType(symbol[4] & 15);
            let defined = symbol[6..8] != [0, 0];
            let (value, size) = (word(symbol, 8), word(symbol, 16));
            match kind {
                elf::STT_FUNC | elf::STT_GNU_IFUNC if defined => {
                    image.functions.push((value, size));
                }
                elf::STT_NOTYPE if defined && value != 0 => image.code_pointers.push(value),
                _ => {}
            }
        }
    }
}

/// Functions and landing pads from the frame descriptions. What does not parse is left out.
fn add_frames(input: &Input, image: &mut Image) {
    let Some((address, bytes)) = frames(input) else { return };
    let mut frames = EhFrame::new(bytes, gimli::LittleEndian);
    frames.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = frames.entries(&bases);
    let mut last_cie = None;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| match &last_cie {
            Some((at, cie)) if *at == offset.0 => Ok(Clone::clone(cie)),
            _ => {
                let cie = section.cie_from_offset(bases, offset)?;
                last_cie = Some((offset.0, cie.clone()));
                Ok(cie)
            }
        });
        let Ok(fde) = fde else { continue };
        if fde.initial_address() == 0 {
            continue;
        }
        image.functions.push((fde.initial_address(), fde.len()));
        if let Some(Pointer::Direct(lsda)) = fde.lsda() {
            let _ = add_landing_pads(input, lsda, fde.initial_address(), &mut image.code_pointers);
        }
    }
}

fn frames(input: &Input) -> Option<(u64, &[u8])> {
    if let Some(section) = input.section(".eh_frame").filter(|s| s.has_bytes()) {
        return Some((section.address, input.section_bytes(section)));
    }
    let header = input.header_of(elf::PT_GNU_EH_FRAME)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.address);
    let parsed = gimli::EhFrameHdr::new(input.segment_bytes(header), gimli::LittleEndian)
        .parse(&bases, 8)
        .ok()?;
    let Pointer::Direct(address) = parsed.eh_frame_ptr() else { return None };
    Some((address, input.bytes_at(address)?))
}

/// Reads the call-site table of a language-specific data area.
fn add_landing_pads(
    input: &Input,
    lsda: u64,
    function: u64,
    out: &mut Vec<u64>,
) -> gimli::Result<()> {
    let missing = gimli::Error::Io;
    let bytes = input.bytes_at(lsda).ok_or(missing)?;
    let mut r = gimli::EndianSlice::new(bytes, gimli::LittleEndian);
    const OMIT: u8 = 0xff;
    let mut base = function;
    let encoding = r.read_u8()?;
    if encoding != OMIT {
        let at = lsda + (bytes.len() - r.len()) as u64;
        let value = read_encoded(&mut r, encoding)?;
        base = if encoding & 0x70 == 0x10 { at.wrapping_add(value) } else { value };
    }
    if r.read_u8()? != OMIT {
        r.read_uleb128()?;
    }
    let encoding = r.read_u8()?;
    let len = index(r.read_uleb128()?);
    let mut sites = r.split(len)?;
    while !sites.is_empty() {
        read_encoded(&mut sites, encoding)?;
        read_encoded(&mut sites, encoding)?;
        let pad = read_encoded(&mut sites, encoding)?;
        sites.read_uleb128()?;
        if pad != 0 {
            out.push(base.wrapping_add(pad));
        }
    }
    Ok(())
}

fn read_encoded(
    r: &mut gimli::EndianSlice<gimli::LittleEndian>,
    encoding: u8,
) -> gimli::Result<u64> {
    match encoding & 15 {
        0 | 4 | 12 => r.read_u64(),
        1 => r.read_uleb128(),
        9 => r.read_sleb128().map(|v| v as u64),
        2 => r.read_u16().map(u64::from),
        10 => r.read_i16().map(|v| v as u64),
        3 => r.read_u32().map(u64::from),
        11 => r.read_i32().map(|v| v as u64),
        _ => Err(gimli::Error::Io),
    }
}

/// Words that the loader makes point somewhere.
fn add_relocations(input: &Input, image: &mut Image) {
    let table = |address, size| {
        let address = input.dynamic_value(address)?;
        let size = usize::try_from(input.dynamic_value(size)?).ok()?;
        input.bytes_at(address)?.get(..size)
    };
    let mut add = |value: u64| {
        if image.segments.iter().any(|s| s.executable && (s.address..s.end()).contains(&value)) {
            image.code_pointers.push(value);
        }
    };
    let by_section =
        input.sections.iter().filter(|s| s.kind == elf::SHT_RELA.0 && s.is_allocated());
    for rela in [table(elf::DT_RELA, elf::DT_RELASZ), table(elf::DT_JMPREL, elf::DT_PLTRELSZ)]
        .into_iter()
        .flatten()
        .chain(by_section.map(|s| input.section_bytes(s)))
    {
        for entry in rela.chunks_exact(24) {
            let kind = elf::RelocationType(low(word(entry, 8)));
            if matches!(kind, elf::R_X86_64_RELATIVE | elf::R_X86_64_IRELATIVE) {
                add(word(entry, 16));
            }
            // A slot that is bound lazily points back into the PLT.
            if kind == elf::R_X86_64_JUMP_SLOT {
                if let Some(slot) = input.bytes_at(word(entry, 0)).filter(|b| b.len() >= 8) {
                    add(word(slot, 0));
                }
            }
        }
    }
    let mut at = 0u64;
    for entry in table(elf::DT_RELR, elf::DT_RELRSZ).unwrap_or_default().chunks_exact(8) {
        let entry = word(entry, 0);
        let mut add_at = |address| {
            if let Some(slot) = input.bytes_at(address).filter(|b| b.len() >= 8) {
                add(word(slot, 0));
            }
        };
        if entry & 1 == 0 {
            add_at(entry);
            at = entry.wrapping_add(8);
        } else {
            for bit in (1..64).filter(|bit| entry >> bit & 1 != 0) {
                add_at(at.wrapping_add((bit - 1) * 8));
            }
            at = at.wrapping_add(63 * 8);
        }
    }
}

/// Functions that run before and after the program, and PLT entries.
fn add_initialisers(input: &Input, image: &mut Image) {
    image.code_pointers.extend(input.dynamic_value(elf::DT_INIT));
    image.code_pointers.extend(input.dynamic_value(elf::DT_FINI));
    for (array, size) in [
        (elf::DT_PREINIT_ARRAY, elf::DT_PREINIT_ARRAYSZ),
        (elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ),
        (elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ),
    ] {
        let entries = input.dynamic_value(array).and_then(|a| input.bytes_at(a));
        let size = index(input.dynamic_value(size).unwrap_or(0));
        for entry in entries.unwrap_or_default().chunks_exact(8).take(size / 8) {
            image.code_pointers.push(word(entry, 0));
        }
    }
    for section in &input.sections {
        let name = input.section_name(section);
        if section.is_executable() && (name.starts_with(".plt") || name == ".iplt") {
            let entries = (0..section.size.min(1 << 24)).step_by(16);
            image.code_pointers.extend(entries.map(|offset| section.address + offset));
        }
    }
}
