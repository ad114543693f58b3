//! From the kernel's first instruction to the program's.

use crate::arena::Arena;
use crate::jit::{ExecRange, Jit};
use crate::libraries::Packs;
use crate::lock::Lock;
use crate::memory::{Area, Brk};
use crate::process::{install, process, Process, Threads, XsaveLayout};
use crate::signals;
use crate::statics::Module;
use crate::stubs;
use crate::sys::{self, nr};
use crate::table::Tables;
use crate::thread::Thread;
use crate::trace_file::{Mode, TraceFile};
use abi::event::{xsave_to_bytes, Event, Position};
use abi::ids::LiveAddr;
use abi::image::{flags, ImageHeader, HEADER_SIZE};
use abi::layout::*;
use abi::options::{torture, Options, Pointers};
use abi::trace::{RegisterState, PROCESS, VERSION};
use core::arch::x86_64::{__cpuid_count, _xgetbv};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::*};
use goblin::elf64::program_header::{ProgramHeader, PF_W, PT_LOAD};

/// Auxiliary vector entries that are read or changed.
pub mod at {
    pub const PHDR: u64 = 3;
    pub const PHNUM: u64 = 5;
    pub const BASE: u64 = 7;
    pub const ENTRY: u64 = 9;
    pub const SECURE: u64 = 23;
    pub const EXECFN: u64 = 31;
    pub const SYSINFO_EHDR: u64 = 33;
}

static FEATURES: AtomicU32 = AtomicU32::new(0);
const SSE42: u32 = 1;
const AVX512VL: u32 = 2;

pub fn has_sse42() -> bool {
    FEATURES.load(Relaxed) & SSE42 != 0
}

/// What the kernel left on the stack.
pub struct Start {
    stack: *mut u64,
    argc: usize,
}

impl Start {
    fn argument(&self, i: usize) -> u64 {
        // SAFETY: the kernel put argc, argv, a zero, the environment, a zero there.
        unsafe { *self.stack.add(1 + i) }
    }

    /// Arguments as the kernel packed them: from the first byte to the last zero.
    fn arguments(&self) -> impl Iterator<Item = &CStr> {
        // SAFETY: argv entries are zero-terminated strings.
        (0..self.argc).map(|i| unsafe { CStr::from_ptr(self.argument(i) as *const i8) })
    }

    fn environment(&self, name: &str) -> Option<&CStr> {
        let mut i = self.argc + 1;
        while self.argument(i) != 0 {
            // SAFETY: as above.
            let entry = unsafe { CStr::from_ptr(self.argument(i) as *const i8) };
            if let Some(rest) = entry.to_bytes().strip_prefix(name.as_bytes()) {
                if rest.first() == Some(&b'=') {
                    // SAFETY: a tail of the same string.
                    return Some(unsafe {
                        CStr::from_ptr((self.argument(i) as usize + name.len() + 1) as *const i8)
                    });
                }
            }
            i += 1;
        }
        None
    }

    fn auxiliary(&self) -> *mut [u64; 2] {
        let mut i = self.argc + 1;
        while self.argument(i) != 0 {
            i += 1;
        }
        // SAFETY: the vector follows the environment's zero.
        unsafe { self.stack.add(1 + i + 1).cast() }
    }

    pub fn get(&self, kind: u64) -> Option<u64> {
        self.entry(kind).map(|entry| entry[1])
    }

    fn entry(&self, kind: u64) -> Option<&'static mut [u64; 2]> {
        let mut at = self.auxiliary();
        // SAFETY: the kernel ends the vector with a zero kind.
        unsafe {
            while (*at)[0] != 0 {
                if (*at)[0] == kind {
                    return Some(&mut *at);
                }
                at = at.add(1);
            }
        }
        None
    }

    pub fn set(&self, kind: u64, value: u64) {
        if let Some(entry) = self.entry(kind) {
            entry[1] = value;
        }
    }
}

/// # Safety
/// Called once, by the entry point, on the blob's own stack. `stack` is the program's initial
/// stack, `base` the blob's load address, `params` what the rewriter put into it.
pub unsafe fn boot(stack: *mut u64, base: u64, params: [u64; 4]) -> ! {
    // SAFETY: the kernel put argc there.
    let start = Start { stack, argc: unsafe { *stack } as usize };
    let window = base.wrapping_sub(params[0]);
    if !window.is_multiple_of(WINDOW_SIZE) {
        crate::die!(
            "the kernel did not honour the program's alignment (Linux 6.10 or later is needed)"
        );
    }
    // SAFETY: the rewriter put the header there.
    let bytes =
        unsafe { core::slice::from_raw_parts((window + params[1]) as *const u8, HEADER_SIZE) };
    let Some(header) = ImageHeader::from_bytes(bytes) else {
        crate::die!("damaged output file: the image header is not valid");
    };
    let Some(mut options) = Options::from_word(header.options) else {
        crate::die!("damaged output file: unknown options");
    };
    let xsave = detect();
    let avx512vl = FEATURES.load(Relaxed) & AVX512VL != 0;
    let statics =
        header.tables.code_len > 0 && (header.flags & flags::NEEDS_AVX512VL == 0 || avx512vl);
    if !avx512vl {
        options.pointers = Pointers::ThreadBlock;
    }
    let pie = header.flags & flags::PIE != 0;
    let mut area_end = if pie { AREA_END_PIE } else { AREA_END_FIXED };
    if address_space_is_limited() {
        // What is reserved counts: take no more than a program needs.
        area_end = area_end.min(page_up(header.runtime_end) + (384 << 20));
    }
    let reserve = || Area::reserve(window, window + header.runtime_end, area_end);
    let area = reserve().or_else(|| crate::vdso::move_away(&start).then(reserve).flatten());
    let Some(area) = area else {
        crate::die!("no address space for the code cache and the libraries");
    };
    let Ok(arena) = Arena::new(area.start, ARENA_LEN) else {
        crate::die!("no memory for the code cache");
    };
    let top = area.end - random_pages(area.end - (64 << 20), area.end);
    let trace = open_trace(&start, options);
    let folders = match start.get(at::SECURE) {
        Some(0) | None => start.environment("DEP_LIBRARIES").map_or(&[][..], |f| f.to_bytes()),
        Some(_) => &[],
    };
    // SAFETY: the header is the rewriter's, of this file.
    let packs = unsafe { Packs::new(&header, window, avx512vl, folders) };
    let tables = Tables::new(window, options, start.stack as u64);
    let jit = Jit::new(options, window, packs, arena, tables, top);
    if options.undo() && !crate::undo::map_sync_page() {
        crate::die!("the address space below 2 GiB is taken");
    }
    let runtime = window + header.runtime..window + header.runtime_end;
    let added = keep_together(&start, window, window + params[1]..runtime.end);
    // SAFETY: the only thread, and nothing has asked for it.
    unsafe {
        install(Process {
            header,
            window,
            options,
            runtime,
            brk: Lock::new(brk(&header, window, added.start)),
            added,
            jit: Lock::new(jit),
            actions: Lock::new(signals::Actions::new()),
            trace,
            threads: Threads::default(),
            filters: Lock::new(alloc::vec::Vec::new()),
            filter_of_all: AtomicU32::new(0),
            xsave,
            tiny_buffers: options.torture & torture::TINY_BUFFERS != 0,
        });
    }
    describe(&start, &header);
    restore_elf_header(&header, window);
    add_program_code(&header, window);
    if header.flags & flags::EXECUTABLE_STACK != 0 {
        // The kernel puts the path at the upper end.
        let end = page_up(program_path(&start).as_ptr_range().end as u64);
        process().jit.lock().add_executable(ExecRange::stack(end));
    }
    if statics {
        // SAFETY: as above.
        crate::statics::add(unsafe { Module::program(&header, window) });
    }
    crate::vdso::add(&start);
    signals::install_handlers();
    let entry = enter_program(&start, &header, window);
    first_thread(&start, entry)
}

/// Reserves the gaps between the segments that were added, of which `added` is a part: the kernel
/// would give them to the program, in the midst of our own memory. Returns the range of all.
fn keep_together(start: &Start, window: u64, added: Range<u64>) -> Range<u64> {
    let (Some(at), Some(count)) = (start.get(at::PHDR), start.get(at::PHNUM)) else {
        return added;
    };
    // SAFETY: the kernel says where the output's program headers are.
    let headers =
        unsafe { core::slice::from_raw_parts(at as *const ProgramHeader, count as usize) };
    let (mut first, mut end) = (added.start, None);
    for p in headers.iter().filter(|p| p.p_type == PT_LOAD) {
        let from = page_down(window + p.p_vaddr);
        let to = page_up(window + p.p_vaddr + p.p_memsz);
        if from < added.end && added.start < to {
            if let Some(end) = end.filter(|&end| end < from) {
                crate::memory::reserve(end, from - end);
            }
            first = first.min(from);
            end = end.max(Some(to));
        }
    }
    first..added.end
}

fn detect() -> XsaveLayout {
    let mut layout = XsaveLayout::default();
    let mut features = 0;
    let leaf1 = __cpuid_count(1, 0);
    if leaf1.ecx & 1 << 20 != 0 {
        features |= SSE42;
    }
    let os_saves = leaf1.ecx & 1 << 27 != 0;
    if os_saves {
        // SAFETY: OSXSAVE is set.
        layout.xcr0 = unsafe { xgetbv() };
        for i in 2..63 {
            if layout.xcr0 & 1 << i != 0 {
                let leaf = __cpuid_count(0xd, i);
                layout.components[i as usize] = (leaf.eax, leaf.ebx);
            }
        }
        let leaf7 = __cpuid_count(7, 0);
        let wanted = 1 << 16 | 1 << 31; // AVX512F, AVX512VL
        if layout.xcr0 & 0xe6 == 0xe6 && leaf7.ebx & wanted == wanted {
            features |= AVX512VL;
        }
    }
    FEATURES.store(features, Relaxed);
    layout
}

#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: the caller has checked OSXSAVE.
    unsafe { _xgetbv(0) }
}

fn brk(header: &ImageHeader, window: u64, added: u64) -> Brk {
    let end = page_up(window + header.image_end);
    let limit = added.max(end);
    Brk::new(end + random_pages(end, limit), limit)
}

pub fn address_space_is_limited() -> bool {
    sys::limit(sys::RLIMIT_AS) != u64::MAX
}

/// Distance of the heap from the program, as the kernel randomises it (none with ASLR off).
fn random_pages(from: u64, limit: u64) -> u64 {
    const ADDR_NO_RANDOMIZE: usize = 0x40000;
    const PERSONALITY: usize = 135;
    // SAFETY: asks only.
    let persona = unsafe { sys::raw(PERSONALITY, [0xffff_ffff, 0, 0, 0, 0, 0]) };
    if persona & ADDR_NO_RANDOMIZE != 0 {
        return 0;
    }
    let room = (limit - from) / 2;
    random() % (room.min(32 << 20) / PAGE).max(1) * PAGE
}

pub fn random() -> u64 {
    let mut word = 0u64;
    // SAFETY: the kernel writes one word.
    let _ = unsafe { sys::call(nr::GETRANDOM, &[&mut word as *mut u64 as usize, 8, 1]) };
    word
}

/// Opens the trace file that `DEP_FILE` names.
fn open_trace(start: &Start, options: Options) -> TraceFile {
    if !options.records() {
        return TraceFile::new(Mode::Off, -1, options);
    }
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    let pattern = match start.environment("DEP_FILE") {
        Some(pattern) if !secure && !pattern.is_empty() => pattern.to_bytes(),
        _ => b"%e.%p.dep",
    };
    if pattern == b"null:" || pattern == b"/dev/null" {
        return TraceFile::new(Mode::Discard, -1, options);
    }
    let mut path = [0u8; 4096];
    let Some(len) = expand(start, pattern, &mut path) else {
        crate::say!("the path of the trace is too long: nothing is recorded");
        return TraceFile::new(Mode::Discard, -1, options);
    };
    match create(&mut path, len) {
        Ok(fd) => TraceFile::new(Mode::File, crate::descriptors::hide(fd), options),
        Err(errno) => {
            let shown = core::str::from_utf8(&path[..len]).unwrap_or("DEP_FILE");
            crate::say!("cannot create {shown} (error {errno}): nothing is recorded");
            TraceFile::new(Mode::Discard, -1, options)
        }
    }
}

fn create(path: &mut [u8; 4096], len: usize) -> Result<i32, i32> {
    // O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
    const FLAGS: usize = 0o2 | 0o100 | 0o200 | 0o400000 | sys::O_CLOEXEC;
    for n in 0..1000u32 {
        if n > 0 {
            let mut digits = crate::last_words::Line::new();
            use core::fmt::Write;
            let _ = write!(digits, ".{n}");
            let suffix = digits.text();
            if len + suffix.len() >= path.len() {
                break;
            }
            path[len..len + suffix.len()].copy_from_slice(suffix);
            path[len + suffix.len()] = 0;
        }
        // SAFETY: the path is zero-terminated.
        match unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, FLAGS, 0o644]) } {
            Err(sys::EEXIST) => {}
            other => return other.map(|fd| fd as i32),
        }
    }
    Err(sys::EEXIST)
}

/// `%e`: name of the program file, `%p`: process id, `%%`: a percent sign.
fn expand(start: &Start, pattern: &[u8], out: &mut [u8; 4096]) -> Option<usize> {
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        let to = out.get_mut(len..len + bytes.len())?;
        to.copy_from_slice(bytes);
        len += bytes.len();
        Some(())
    };
    let mut rest = pattern;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tail.first()) {
            (b'%', Some(b'e')) => {
                let path = program_path(start);
                put(path.rsplit(|&b| b == b'/').next().unwrap_or(path))?;
                rest = &tail[1..];
            }
            (b'%', Some(b'p')) => {
                let mut digits = crate::last_words::Line::new();
                use core::fmt::Write;
                let _ = write!(digits, "{}", sys::getpid());
                put(digits.text())?;
                rest = &tail[1..];
            }
            (b'%', Some(b'%')) => {
                put(b"%")?;
                rest = &tail[1..];
            }
            _ => put(&[byte])?,
        }
    }
    put(&[0])?;
    Some(len - 1)
}

fn program_path(start: &Start) -> &'static [u8] {
    match start.get(at::EXECFN) {
        // SAFETY: the kernel's zero-terminated path.
        Some(path) => unsafe { CStr::from_ptr(path as *const i8) }.to_bytes(),
        None => b"program",
    }
}

/// Writes the FILE frame.
fn describe(start: &Start, header: &ImageHeader) {
    let process = process();
    if process.trace.mode() != Mode::File {
        return;
    }
    let kind = abi::trace::FrameKind::File;
    let arguments: usize = start.arguments().map(|a| a.count_bytes() + 1).sum();
    let mut frame = match process.trace.new_appender(kind, PROCESS, 0, 8192 + arguments as u64) {
        Ok(frame) => frame,
        Err(errno) => {
            process.trace.lost(errno);
            return;
        }
    };
    let mut now = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { sys::call(nr::CLOCK_GETTIME, &[0, now.as_mut_ptr() as usize]) };
    let nanos = now[0] * 1_000_000_000 + now[1];
    let described = Event::Process {
        version: VERSION,
        options: process.options.to_word(),
        pid: u64::from(sys::getpid()),
        start_ns: nanos,
    };
    frame.event(Position::NONE, &described);
    let mut real = [0u8; 4096];
    frame.event(Position::NONE, &Event::Program(real_path(start, &mut real)));
    if arguments > 0 {
        let mut all = alloc::vec::Vec::new();
        for argument in start.arguments() {
            all.extend_from_slice(argument.to_bytes_with_nul());
        }
        frame.event(Position::NONE, &Event::Arguments(&all));
    }
    let units = Event::StaticUnits {
        load: LiveAddr(process.window),
        identity: header.identity,
        first_window: header.tables.first_window as u32,
        jit_window: header.jit_window as u32,
        count: header.tables.unit_count,
    };
    frame.event(Position::NONE, &units);
    let components = xsave_to_bytes(&process.xsave.components);
    let xsave = Event::Xsave { xcr0: process.xsave.xcr0, components: components.as_slice() };
    frame.event(Position::NONE, &xsave);
    process.trace.keep(frame);
}

/// The path of the running file: /proc/self/exe where there is one, else as it was started.
fn real_path<'a>(start: &Start, buffer: &'a mut [u8; 4096]) -> &'a [u8] {
    let link = c"/proc/self/exe";
    let args = [link.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY: the kernel reads the path and fills the buffer.
    match unsafe { sys::call(nr::READLINK, &args) } {
        Ok(n) => &buffer[..n],
        Err(_) => {
            let path = program_path(start);
            let n = path.len().min(buffer.len());
            buffer[..n].copy_from_slice(&path[..n]);
            &buffer[..n]
        }
    }
}

/// Puts the program's own ELF header and program headers back where it can read them.
fn restore_elf_header(header: &ImageHeader, window: u64) {
    if header.elf_header_copy == 0 {
        return;
    }
    let copy = (window + header.elf_header_copy) as *const u8;
    change_headers(header, window, |own, at| {
        // SAFETY: the copy lies in the added tables, the program headers behind the ELF header.
        unsafe {
            let from = if at == 0 { copy } else { copy.add(64) };
            core::ptr::copy_nonoverlapping(from, own.as_mut_ptr(), own.len());
        }
    });
}

/// The other way round, for who looks at the process when it has died: a debugger knows the output
/// by them.
pub fn show_output_headers() {
    let process = process();
    if process.header.elf_header_copy == 0 {
        return;
    }
    let path = c"/proc/self/exe".as_ptr() as usize;
    // SAFETY: the kernel reads the path.
    let Ok(fd) = (unsafe { sys::call(nr::OPEN, &[path, sys::O_CLOEXEC]) }) else { return };
    change_headers(&process.header, process.window, |own, at| {
        // SAFETY: the kernel fills them.
        let _ = unsafe {
            sys::call(nr::PREAD64, &[fd, own.as_mut_ptr() as usize, own.len(), at as usize])
        };
    });
    // SAFETY: opened above.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
}

/// Lets `change` write the ELF header and the program headers of the program's image, wherever its
/// segments have the file's first page; it is told where they are in the file.
fn change_headers(header: &ImageHeader, window: u64, change: impl Fn(&mut [u8], u64)) {
    let table = header.program_headers.saturating_sub(header.elf_header);
    let end = table + 56 * header.program_header_count;
    let own = window + header.elf_header_copy + 64;
    // SAFETY: in the added tables.
    let own = unsafe {
        let count = header.program_header_count as usize;
        core::slice::from_raw_parts(own as *const ProgramHeader, count)
    };
    let loads = own.iter().filter(|p| p.p_type == PT_LOAD && p.p_filesz != 0);
    for p in loads.filter(|p| page_down(p.p_offset) == 0) {
        let at = (window + p.p_vaddr - p.p_offset) as usize;
        // Behind the segment's bytes is more of the file, or there are zeros.
        let file_end = p.p_offset + p.p_filesz;
        let file_end = if p.p_memsz > p.p_filesz { file_end } else { page_up(file_end) };
        let there = file_end.min(end.max(64)) as usize;
        let len = page_up(there as u64) as usize;
        let writable = if p.p_flags & PF_W != 0 { sys::PROT_WRITE } else { 0 };
        // SAFETY: pages of the program's own image, which the kernel mapped readable.
        unsafe {
            if sys::call(nr::MPROTECT, &[at, len, sys::PROT_READ | sys::PROT_WRITE]).is_ok() {
                let bytes = core::slice::from_raw_parts_mut(at as *mut u8, there);
                if let Some(bytes) = bytes.get_mut(..64) {
                    change(bytes, 0);
                }
                // 0: no segment has it.
                let bytes = bytes.get_mut(table as usize..end as usize);
                if let Some(bytes) = bytes.filter(|_| table != 0) {
                    change(bytes, table);
                }
                let _ = sys::call(nr::MPROTECT, &[at, len, sys::PROT_READ | writable]);
            }
        }
    }
}

fn add_program_code(header: &ImageHeader, window: u64) {
    // SAFETY: the rewriter's table.
    let ranges = unsafe { crate::statics::executable_ranges(header, window) };
    let mut jit = process().jit.lock();
    for &[start, end, writable] in ranges {
        jit.add_executable(ExecRange {
            start: page_down(window + start),
            end: page_up(window + end),
            writable: writable != 0,
            file: true,
            shared: false,
        });
    }
}

/// Maps the interpreter, tells the program about itself, and returns where it starts.
fn enter_program(start: &Start, header: &ImageHeader, window: u64) -> u64 {
    start.set(at::PHDR, window + header.program_headers);
    start.set(at::PHNUM, header.program_header_count);
    start.set(at::ENTRY, window + header.entry);
    let mut real = [0u8; 4096];
    crate::syscalls::mapping::report_file(
        window + header.image_start,
        page_up(header.image_end - header.image_start),
        0,
        real_path(start, &mut real),
    );
    if header.interpreter == 0 {
        start.set(at::BASE, 0);
        return window + header.entry;
    }
    // SAFETY: zero-terminated by the rewriter's check.
    let path = unsafe { CStr::from_ptr((window + header.interpreter) as *const i8) };
    if path.is_empty() {
        crate::die!("damaged output file: it does not name its interpreter where the input did");
    }
    match crate::loader::load(path) {
        Ok(loaded) => {
            start.set(at::BASE, loaded.base);
            loaded.entry
        }
        Err(errno) => {
            let shown = path.to_str().unwrap_or("?");
            crate::die!("cannot load the program's interpreter {shown} (error {errno})")
        }
    }
}

fn first_thread(start: &Start, entry: u64) -> ! {
    let Ok(thread) = Thread::create() else { crate::die!("no memory for the first thread") };
    thread.index = process().threads.next_index.fetch_add(1, Relaxed);
    process().threads.live.fetch_add(1, Relaxed);
    thread.tid = sys::gettid();
    thread.adopt();
    thread.block.window_high = process().window >> 32;
    thread.block.target = process().window;
    thread.block.registers.gpr[4] = start.stack as u64;
    thread.block.registers.rip = entry;
    thread.block.registers.rflags = 0x202;
    thread.mask = signals::current_mask();
    crate::threads::begin_recording(thread, thread.index);
    crate::dispatch::prepare(thread, entry);
    // SAFETY: gs points to the block, whose registers and resume address are set.
    unsafe { stubs::leave() }
}

/// The state of a thread whose registers are in its block.
pub fn register_state(thread: &Thread, rip: u64, valid: u64) -> RegisterState {
    RegisterState {
        gpr: thread.block.registers.gpr,
        rip,
        rflags: thread.block.registers.rflags,
        fs_base: thread.fs_base(),
        gs_base: 0,
        valid,
    }
}

/// The heap's lock in a forked child; set by the blob, which owns the allocator.
pub static HEAP_AFTER_FORK: core::sync::atomic::AtomicUsize =
    core::sync::atomic::AtomicUsize::new(0);

/// In a forked child: other threads do not hold the heap any more.
pub fn heap_after_fork() {
    let hook = HEAP_AFTER_FORK.load(Relaxed);
    if hook != 0 {
        // SAFETY: the blob stored a function of this type.
        let hook: fn() = unsafe { core::mem::transmute(hook) };
        hook();
    }
}
