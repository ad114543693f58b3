//! The registers of the processor as gdb knows them.

use std::fmt::Write;
use std::sync::LazyLock;

use abi::steer::Stop;
use gdbstub::arch::{Arch, Registers};

/// x86-64 on Linux, with AVX and, where the processor has it, AVX-512.
pub enum Amd64 {}

impl Arch for Amd64 {
    type Usize = u64;
    type Registers = Amd64Registers;
    type BreakpointKind = usize;
    type RegId = ();

    fn target_description_xml() -> Option<&'static str> {
        static XML: LazyLock<String> = LazyLock::new(description);
        Some(&XML)
    }
}

/// Of one thread. What is `None` gdb shows as not available.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amd64Registers {
    /// In the order of the description.
    gpr: [u64; 16],
    rip: u64,
    rflags: u32,
    fs_base: u64,
    gs_base: u64,
    floating: Option<Floating>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Floating {
    stack: [[u8; 10]; 8],
    /// fctrl, fstat, ftag, fiseg, fioff, foseg, fooff, fop.
    control: [u32; 8],
    xmm: [[u8; 16]; 16],
    mxcsr: u32,
    /// Upper halves; `None`: the processor has none.
    ymm: Option<[[u8; 16]; 16]>,
    /// `None`: the processor has none.
    wide: Option<Wide>,
}

/// What AVX-512 adds.
#[derive(Clone, Debug, PartialEq)]
struct Wide {
    masks: [[u8; 8]; 8],
    /// Upper halves of zmm0 to zmm15.
    upper: [[u8; 32]; 16],
    /// zmm16 to zmm31.
    others: [[u8; 64]; 16],
}

/// Where an XSAVE area has the masks, the upper halves and the other registers of AVX-512; `None`: the processor has none of
/// them (Intel SDM, volume 1, 13.2). A virtual machine leaves its host for each question.
static WIDE_PLACES: LazyLock<Option<[usize; 3]>> = LazyLock::new(|| {
    use std::arch::x86_64::__cpuid_count;
    const STATES: u32 = 0xd;
    const COMPONENTS: [u32; 3] = [5, 6, 7];
    let enabled = __cpuid_count(STATES, 0).eax;
    let has = COMPONENTS.iter().all(|component| enabled >> component & 1 == 1);
    has.then(|| COMPONENTS.map(|component| __cpuid_count(STATES, component).ebx as usize))
});

/// gdb's order of the registers, in hardware numbers.
const ORDER: [usize; 16] = [0, 3, 1, 2, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
/// orig_rax outside of a system call.
const NO_CALL: u64 = u64::MAX;
const CS: u32 = 0x33;
const SS: u32 = 0x2b;

impl Amd64Registers {
    /// Of a thread that stands; `vectors`: its XSAVE area, or nothing.
    pub fn new(stop: &Stop, vectors: &[u8]) -> Amd64Registers {
        Amd64Registers {
            gpr: ORDER.map(|i| stop.gpr[i]),
            rip: stop.position.pc,
            rflags: stop.rflags as u32,
            fs_base: stop.fs_base,
            gs_base: stop.gs_base,
            floating: Floating::new(vectors),
        }
    }
}

impl Floating {
    fn new(area: &[u8]) -> Option<Floating> {
        let array = |at: usize| -> Option<[u8; 16]> { area.get(at..at + 16)?.try_into().ok() };
        let half = |at: usize| Some(u16::from_le_bytes(area.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(area.get(at..at + 4)?.try_into().ok()?));
        if area.len() < 512 {
            return None;
        }
        let mut floating = Floating { mxcsr: word(24)?, ..Floating::default() };
        for i in 0..8 {
            floating.stack[i].copy_from_slice(&array(32 + 16 * i)?[..10]);
        }
        let status = u32::from(half(2)?);
        let tags = tags(status >> 11 & 7, area[4], &floating.stack);
        let (fip, fdp) = (word(8)?, word(16)?);
        let op = u32::from(half(6)?);
        floating.control = [u32::from(half(0)?), status, tags, 0, fip, 0, fdp, op];
        for i in 0..16 {
            floating.xmm[i] = array(160 + 16 * i)?;
        }
        if let Some(present) = area.get(512) {
            let mut upper = [[0; 16]; 16];
            for (i, upper) in upper.iter_mut().enumerate() {
                // What is in its first state is not there.
                if present & 4 != 0 {
                    *upper = array(576 + 16 * i)?;
                }
            }
            floating.ymm = (area.len() >= 832).then_some(upper);
            floating.wide = WIDE_PLACES.and_then(|places| Wide::new(area, places));
        }
        Some(floating)
    }
}

impl Wide {
    fn new(area: &[u8], [masks, upper, others]: [usize; 3]) -> Option<Wide> {
        let present = area.get(512)?;
        // What is in its first state is zero.
        let part = |component: u8, at: usize, len: usize| match present >> component & 1 {
            0 => Some(vec![0; len]),
            _ => area.get(at..at + len).map(<[u8]>::to_vec),
        };
        let mut wide = Wide { masks: [[0; 8]; 8], upper: [[0; 32]; 16], others: [[0; 64]; 16] };
        wide.masks.as_flattened_mut().copy_from_slice(&part(5, masks, 8 * 8)?);
        wide.upper.as_flattened_mut().copy_from_slice(&part(6, upper, 16 * 32)?);
        wide.others.as_flattened_mut().copy_from_slice(&part(7, others, 16 * 64)?);
        Some(wide)
    }
}

/// The tag word of eight registers, two bits each, of which FXSAVE keeps whether they are empty.
fn tags(top: u32, used: u8, stack: &[[u8; 10]; 8]) -> u32 {
    (0..8).fold(0, |tags, physical| {
        let value = &stack[(physical as usize + 8 - top as usize) % 8];
        let exponent = u16::from_le_bytes([value[8], value[9]]) & 0x7fff;
        let zero = value[..8].iter().all(|&b| b == 0);
        let tag = match exponent {
            _ if used & 1 << physical == 0 => 3,
            0 if zero => 1,
            0 | 0x7fff => 2,
            _ if value[7] & 0x80 == 0 => 2,
            _ => 0,
        };
        tags | tag << (2 * physical)
    })
}

impl Registers for Amd64Registers {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.rip
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        let mut put = |bytes: &[u8]| bytes.iter().for_each(|&b| write_byte(Some(b)));
        self.gpr.iter().chain([&self.rip]).for_each(|r| put(&r.to_le_bytes()));
        for word in [self.rflags, CS, SS, 0, 0, 0, 0] {
            put(&word.to_le_bytes());
        }
        match &self.floating {
            Some(floating) => {
                floating.stack.iter().for_each(|r| put(r));
                floating.control.iter().for_each(|r| put(&r.to_le_bytes()));
                floating.xmm.iter().for_each(|r| put(r));
                put(&floating.mxcsr.to_le_bytes());
            }
            None => (0..80 + 32 + 256 + 4).for_each(|_| write_byte(None)),
        }
        let mut put = |bytes: &[u8]| bytes.iter().for_each(|&b| write_byte(Some(b)));
        for word in [NO_CALL, self.fs_base, self.gs_base] {
            put(&word.to_le_bytes());
        }
        match self.floating.as_ref().and_then(|f| f.ymm) {
            Some(upper) => upper.iter().for_each(|r| put(r)),
            None => (0..256).for_each(|_| write_byte(None)),
        }
        if WIDE_PLACES.is_none() {
            return;
        }
        let mut put = |bytes: &[u8]| bytes.iter().for_each(|&b| write_byte(Some(b)));
        match self.floating.as_ref().and_then(|f| f.wide.as_ref()) {
            Some(Wide { masks, upper, others }) => {
                others.iter().for_each(|r| put(&r[..16]));
                others.iter().for_each(|r| put(&r[16..32]));
                put(masks.as_flattened());
                put(upper.as_flattened());
                others.iter().for_each(|r| put(&r[32..]));
            }
            None => (0..16 * 32 + 64 + 32 * 32).for_each(|_| write_byte(None)),
        }
    }

    /// Registers are never written.
    fn gdb_deserialize(&mut self, _bytes: &[u8]) -> Result<(), ()> {
        Ok(())
    }
}

/// What gdb is told of the registers: its own standard features.
fn description() -> String {
    let mut xml = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target>\
         <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>\
         <feature name=\"org.gnu.gdb.i386.core\">\
         <flags id=\"i386_eflags\" size=\"4\">",
    );
    let flags = [
        ("CF", 0),
        ("", 1),
        ("PF", 2),
        ("AF", 4),
        ("ZF", 6),
        ("SF", 7),
        ("TF", 8),
        ("IF", 9),
        ("DF", 10),
        ("OF", 11),
        ("NT", 14),
        ("RF", 16),
        ("VM", 17),
        ("AC", 18),
        ("VIF", 19),
        ("VIP", 20),
        ("ID", 21),
    ];
    for (name, bit) in flags {
        let _ = write!(xml, "<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>");
    }
    xml.push_str("</flags>");
    let vectors = |xml: &mut String| {
        for (id, kind, count) in [
            ("v4f", "ieee_single", 4),
            ("v2d", "ieee_double", 2),
            ("v16i8", "int8", 16),
            ("v8i16", "int16", 8),
            ("v4i32", "int32", 4),
            ("v2i64", "int64", 2),
        ] {
            let _ = write!(xml, "<vector id=\"{id}\" type=\"{kind}\" count=\"{count}\"/>");
        }
        xml.push_str("<union id=\"vec128\">");
        for (name, kind) in [
            ("v4_float", "v4f"),
            ("v2_double", "v2d"),
            ("v16_int8", "v16i8"),
            ("v8_int16", "v8i16"),
            ("v4_int32", "v4i32"),
            ("v2_int64", "v2i64"),
            ("uint128", "uint128"),
        ] {
            let _ = write!(xml, "<field name=\"{name}\" type=\"{kind}\"/>");
        }
        xml.push_str("</union>");
    };
    let register = |xml: &mut String, name: &str, bits: u32, kind: &str, group: &str| {
        let group = match group {
            "" => String::new(),
            group => format!(" group=\"{group}\""),
        };
        let _ = write!(xml, "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"{group}/>");
    };
    let general = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15";
    for name in general.split(' ') {
        let kind = if matches!(name, "rbp" | "rsp") { "data_ptr" } else { "int64" };
        register(&mut xml, name, 64, kind, "");
    }
    register(&mut xml, "rip", 64, "code_ptr", "");
    register(&mut xml, "eflags", 32, "i386_eflags", "");
    for name in ["cs", "ss", "ds", "es", "fs", "gs"] {
        register(&mut xml, name, 32, "int32", "");
    }
    for i in 0..8 {
        register(&mut xml, &format!("st{i}"), 80, "i387_ext", "");
    }
    for name in "fctrl fstat ftag fiseg fioff foseg fooff fop".split(' ') {
        register(&mut xml, name, 32, "int", "float");
    }
    xml.push_str("</feature><feature name=\"org.gnu.gdb.i386.sse\">");
    vectors(&mut xml);
    for i in 0..16 {
        register(&mut xml, &format!("xmm{i}"), 128, "vec128", "");
    }
    register(&mut xml, "mxcsr", 32, "int", "vector");
    // Without this gdb does not take the program for one of Linux, and looks for no libraries.
    xml.push_str("</feature><feature name=\"org.gnu.gdb.i386.linux\">");
    register(&mut xml, "orig_rax", 64, "int", "system");
    xml.push_str("</feature><feature name=\"org.gnu.gdb.i386.segments\">");
    for name in ["fs_base", "gs_base"] {
        register(&mut xml, name, 64, "int", "");
    }
    xml.push_str("</feature><feature name=\"org.gnu.gdb.i386.avx\">");
    for i in 0..16 {
        register(&mut xml, &format!("ymm{i}h"), 128, "uint128", "");
    }
    if WIDE_PLACES.is_some() {
        xml.push_str("</feature><feature name=\"org.gnu.gdb.i386.avx512\">");
        vectors(&mut xml);
        xml.push_str("<vector id=\"v2ui128\" type=\"uint128\" count=\"2\"/>");
        for i in 16..32 {
            register(&mut xml, &format!("xmm{i}"), 128, "vec128", "");
        }
        for i in 16..32 {
            register(&mut xml, &format!("ymm{i}h"), 128, "uint128", "");
        }
        for i in 0..8 {
            register(&mut xml, &format!("k{i}"), 64, "uint64", "");
        }
        for i in 0..32 {
            register(&mut xml, &format!("zmm{i}h"), 256, "v2ui128", "");
        }
    }
    xml.push_str("</feature></target>");
    xml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_word_says_what_each_register_holds() {
        let mut stack = [[0; 10]; 8];
        stack[0] = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]; // 1.0
        stack[2] = [0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0x7f]; // not a number
                                                            // The top is register 6: st0 is 6, st1 is 7 and zero, st2 is 0.
        assert_eq!(tags(6, 0b1100_0001, &stack), 0b01_00_11_11_11_11_11_10);
    }

    #[test]
    fn the_bytes_are_as_many_as_described() {
        let xml = description();
        let bits: usize = xml
            .split("bitsize=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse::<usize>().unwrap())
            .sum();
        for vectors in [&[][..], &[0; 512], &[0; 1000], &[0xff; 4096]] {
            let registers = Amd64Registers::new(&Stop::default(), vectors);
            let mut bytes = 0;
            registers.gdb_serialize(|_| bytes += 1);
            assert_eq!(bytes * 8, bits);
        }
    }
}
