//! From the kernel's first instruction to the program's.

use crate::base::facts::{facts, install, Entries, Facts, Vdso};
use crate::base::lineage;
use crate::base::own::{is_randomized, keep_spare, random, reserve};
use crate::base::processor::{detect, has_avx512vl, has_avx_alone, has_bmi2};
use crate::base::signal::current_mask;
use crate::base::sys::{self, address_space_is_limited, limit, RLIMIT_AS};
use crate::base::{ceiling, census, control};
use crate::code::arena::Arena;
use crate::code::executable::ExecRange;
use crate::code::far::{Far, FRONT};
use crate::code::jit as translator;
use crate::code::jit::{jit, Jit};
use crate::code::packs::Packs;
use crate::code::span::Span;
use crate::code::statics::{self, Module};
use crate::code::table::LookUps;
use crate::code::translation::Image;
use crate::code::window::{keep_free_in_front, Area};
use crate::code::world::CodeMemory;
use crate::gate::{dispatch, handler, stubs};
use crate::kernel::brk::{self, Brk};
use crate::kernel::headers::restore_elf_header;
use crate::kernel::replay::outcome::impossible_at_start;
use crate::kernel::replay::overrun;
use crate::kernel::signals::{actions, pending};
use crate::kernel::switch;
use crate::kernel::syscalls::mapping::report_file;
use crate::kernel::threads;
use crate::kernel::{baton, ring};
use crate::logs::inputs::{covered, view};
use crate::logs::{log, log_of};
use crate::recording::lifecycle::Phase;
use crate::recording::trace_file;
use crate::start::replay::Given;
use crate::start::stack::{at, program_path, Start};
use crate::start::trace::{new_trace, open_trace, real_path};
use crate::start::{hidden, loader, lower, misses, place, replay, selection, vdso};
use crate::thread::Thread;
use abi::event::Event;
use abi::ids::LiveAddr;
use abi::image::{flags, ImageHeader, HEADER_SIZE};
use abi::layout::{
    page_up, AREA_END_FIXED, AREA_END_PIE, AREA_STEP, ARENA_END, ARENA_LEN, PAGE, WINDOW_SIZE,
};
use abi::options::{torture, Options, Pointers};
use abi::ring::Ring;
use core::ffi::CStr;
use core::ops::Range;

/// Of a limit of addresses: from there on the room that the longer output of a replay may take is kept free.
const ENOUGH_FOR_FRONT: u64 = 4 << 30;

/// # Safety
/// Called once, by the entry point, on the blob's own stack. `stack` is the program's initial
/// stack, `base` the blob's load address, `params` what the rewriter put into it, `entry` the address
/// of the entry point.
pub unsafe fn boot(stack: *mut u64, base: u64, params: [u64; 4], entry: u64) -> ! {
    // SAFETY: the kernel put argc there.
    let start = Start { stack, argc: unsafe { *stack } as usize };
    let window = base.wrapping_sub(params[0]);
    // SAFETY: the rewriter put the header there.
    let bytes =
        unsafe { core::slice::from_raw_parts((window + params[1]) as *const u8, HEADER_SIZE) };
    let Some(header) = ImageHeader::from_bytes(bytes) else {
        crate::die!("damaged output file: the image header is not valid");
    };
    if !window.is_multiple_of(WINDOW_SIZE) {
        // SAFETY: the header is the rewriter's, of this file, and nothing has been done yet.
        unsafe { place::move_to_window(&header, window, &start, entry) }
    }
    let Some(mut options) = Options::from_word(header.options) else {
        crate::die!("damaged output file: unknown options");
    };
    let replay = replay::given(&start, options.process.replays);
    let start = match &replay {
        // SAFETY: as above; nothing else points to the kernel's stack.
        Some(given) => unsafe { given.take_places(start, &header, window, entry) },
        None if goes_below_a_ceiling(&start, &header, window, options) => {
            if let Some(low) = lower::window(window) {
                // SAFETY: as above: nothing has been done yet.
                unsafe { place::move_to(low, &header, window, &start, entry) }
            }
            lower::lower(start, window)
        }
        None => start,
    };
    let xsave = detect();
    let avx512vl = has_avx512vl();
    let reaches_high = !options.process.high_tables || has_bmi2();
    options.process.high_tables &= reaches_high;
    let pointers = pointers_here(options, avx512vl);
    // Code that was made ahead of time has them in one place.
    let runs = reaches_high && pointers == options.process.pointers;
    let statics = header.tables.code_len > 0
        && (header.flags & flags::NEEDS_AVX512VL == 0 || avx512vl)
        && runs;
    options.process.pointers = pointers;
    // SAFETY: the header is the rewriter's, of this file.
    let selected = unsafe { selection::choose(&start, &header, window, options) };
    options.recording.selective |= !selected.selection.is_everything();
    let statics = statics && !selected.reselected;
    let pie = header.flags & flags::PIE != 0;
    let mut area_end = if pie { AREA_END_PIE } else { AREA_END_FIXED };
    if address_space_is_limited() {
        // What is reserved counts: take no more than a program needs, where a replay takes it.
        let cache = if options.is_repeatable() { ARENA_END - ARENA_LEN } else { 0 };
        area_end = area_end.min(page_up(header.runtime_end).max(cache) + (384 << 20));
    }
    // It goes before anything is placed: it could lie in the midst of the area. (What is replayed has gone out of
    // the way already.)
    let vdso = match options.recording.inputs() && replay.is_none() {
        true => vdso::keep(&start),
        false => Vdso::default(),
    };
    let output_end = page_up(window + header.runtime_end);
    let mapped = replay.as_ref().map_or_else(Default::default, |given| given.mapped(window));
    let behind = match options.is_repeatable() {
        true => place_of_replays(window, area_end).max(output_end),
        false => output_end,
    };
    let behind = replay
        .as_ref()
        .map_or(behind, |given| given.room_for_code(window, behind, output_end, &mapped));
    // The kernel likes to place the vdso there.
    let area = || Area::reserve(window, behind, area_end, start.get(at::SYSINFO_EHDR));
    let area = area().or_else(|| vdso::move_away(&start).then(area).flatten());
    let Some(area) = area else {
        crate::die!("no address space for the code cache and the libraries");
    };
    if options.recording.inputs() && limit(RLIMIT_AS) >= ENOUGH_FOR_FRONT {
        keep_free_in_front(output_end, &area);
    }
    let Ok(mut arena) = Arena::new(area.start, ARENA_LEN) else {
        crate::die!("no memory for the code cache");
    };
    if options.process.torture & torture::SCATTERED != 0 {
        // With what is kept for what is translated on the way.
        arena.fills_up_at(5 << 18);
    }
    let top = match replay {
        Some(_) => area.end,
        None => area.end - random_pages(area.end - (64 << 20), area.end),
    };
    control::start(options.recording.records());
    let when = begins(&start, &header);
    let ring = ring_of(&start, options);
    let started_ns = sys::now_ns();
    options.recording.ring |= ring.is_some();
    let (trace, file) = new_trace(&start, options);
    let folders = match start.get(at::SECURE) {
        Some(0) | None => {
            Some(start.environment("DEP_LIBRARIES").map_or(&[][..], |f| f.to_bytes()))
        }
        Some(_) => None,
    };
    // SAFETY: the header is the rewriter's, of this file.
    let mut packs = unsafe { Packs::new(&header, window, avx512vl, runs, folders, selected.rules) };
    if replay.is_some() {
        packs.replays(arena.range().end..area.end, mapped);
    }
    let serial = is_serial(&start, options);
    let mut entries = entries();
    let far = far(&mut arena, window, &mut entries);
    if options.recording.undo() {
        entries.log_call = arena.put_log_call();
    }
    let stack = replay.as_ref().map_or(start.stack as u64, |given| given.header.stack);
    // SAFETY: the header is the rewriter's, of this file.
    let prepared = unsafe { misses::find(&header, window, options) };
    let tables = LookUps::new(window, options, entries, stack, prepared);
    let image = Image::new(&header, window, selected.reselected);
    let all_code = Jit::new(options, image, packs, selected.selection, arena, tables, far, top);
    if let Err(why) = log_of(options).start() {
        crate::die!("{why}");
    }
    let runtime = window + header.runtime..window + header.runtime_end;
    let added = keep_together(&header, window, window + params[1]..runtime.end, &start);
    brk::install(match &replay {
        Some(given) => Brk::new(given.header.brk, added.start.max(page_up(given.header.brk))),
        None => program_break(&header, window, added.start),
    });
    if let Some(given) = &replay {
        given.begin(area.start..area.end);
    }
    translator::install(all_code);
    trace_file::install(trace);
    actions::start();
    install(Facts {
        header,
        window,
        options,
        runtime,
        added,
        xsave,
        tiny_buffers: options.process.torture & torture::TINY_BUFFERS != 0,
        pauses: options.process.torture & torture::PAUSES != 0,
        keeps_calls: options.process.torture & torture::KEPT_CALLS != 0,
        serial,
        vdso,
        entries,
    });
    lineage::install(hidden::read(&start));
    open_trace(&start, &header, &selected.text, file);
    // SAFETY: the header is the rewriter's, of this file; the program has not started.
    unsafe { restore_elf_header(&header, window) };
    add_program_code(&header, window);
    if header.flags & flags::EXECUTABLE_STACK != 0 {
        // The kernel puts the path at the upper end.
        let end = match &replay {
            Some(given) => given.header.stack_end,
            None => page_up(program_path(&start).as_ptr_range().end as u64),
        };
        jit().add_executable(ExecRange::stack(end));
    }
    if statics {
        // SAFETY: as above; nobody runs it yet.
        unsafe {
            let code = window + header.tables.code;
            if statics::prepare_slots(&header.tables, window, code).is_err() {
                crate::die!("no memory for what the program's jumps lead to");
            }
            statics::add(Module::program(&header, window));
            // As the kernel has mapped it.
            jit().is_read_only(window, window.saturating_add(WINDOW_SIZE));
        }
    }
    if !options.is_repeatable() {
        vdso::add(&start);
    }
    let stack_end = page_up(program_path(&start).as_ptr_range().end as u64);
    keep_spare();
    actions::install_handlers();
    let entry = enter_program(&start, &header, window, replay.as_ref());
    let main = if header.main == 0 { 0 } else { window + header.main };
    let stack = start.stack as u64..stack_end;
    let inputs_alone = options.recording.inputs() && !options.recording.both();
    if inputs_alone
        && !options.recording.watches()
        && !options.process.replays
        && ring.is_none()
        && (window != 0 || ceiling::above().is_some())
        && view::has_fsgsbase(start.entries())
    {
        view::begins_if_shared();
    }
    switch::start(when, main);
    hidden::hide(&start);
    if options.recording.inputs() {
        trace_file::trace().say_of_program(&Event::Layout {
            window: LiveAddr(window),
            brk: LiveAddr(brk::brk().start),
            interpreter: LiveAddr(start.get(at::BASE).unwrap_or(0)),
            stack: LiveAddr(stack.start),
            stack_end: LiveAddr(stack.end),
        });
        let limit = sys::limit(sys::RLIMIT_STACK);
        trace_file::trace().say_of_program(&Event::StackLimit(limit));
    }
    if let Some(ring) = ring.filter(|_| trace_file::trace().phase() == Phase::Open) {
        ring::start(ring::Settings {
            ring,
            interpreter: start.get(at::BASE).unwrap_or(0),
            area: area.start..area.end,
            since_ns: started_ns,
        });
    }
    first_thread(stack, entry, view::has_fsgsbase(start.entries()), replay.as_ref())
}

/// Whether the program's memory is to lie below a ceiling: its threads may have views, and it lies where its file says, or some
/// of its memory may (heaps of Java, of Lisp, MAP_32BIT).
fn goes_below_a_ceiling(
    start: &Start,
    header: &ImageHeader,
    window: u64,
    options: Options,
) -> bool {
    (window == 0 || options.recording.watches())
        && options.recording.inputs()
        && !options.recording.both()
        && !options.process.replays
        && header.flags & flags::KEEPS_PLACES == 0
        && !address_space_is_limited()
        && view::has_fsgsbase(start.entries())
}

/// How much of a recording of inputs is kept, if not all.
fn ring_of(start: &Start, options: Options) -> Option<Ring> {
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    let kept = options.recording.inputs() && !options.process.replays && !secure;
    let wanted = start.environment("DEP_RING").filter(|text| kept && !text.is_empty())?;
    if options.recording.both() {
        crate::die!("DEP_RING: inputs that are recorded beside a profile have no ring");
    }
    match wanted.to_str().ok().and_then(Ring::parse) {
        Some(ring) => Some(ring),
        None => crate::die!("DEP_RING: expected {}", abi::ring::EXPECTED),
    }
}

/// Whether one thread runs at a time, and in which order then.
fn is_serial(start: &Start, options: Options) -> bool {
    let wanted = options.process.torture & torture::SERIAL != 0
        || options.recording.inputs() && !options.recording.watched;
    let serial = wanted && !options.process.replays;
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    let wanted = start.environment("DEP_SCHEDULE").filter(|_| serial && !secure);
    if let Some(text) = wanted {
        match text.to_str().ok().and_then(baton::Schedule::parse) {
            Some(schedule) => baton::start(schedule),
            None => crate::die!("DEP_SCHEDULE: expected random:SEED, with a number for SEED"),
        }
    }
    serial
}

/// When the recording begins.
fn begins(start: &Start, header: &ImageHeader) -> abi::start::Start {
    use abi::start::{Start, EXPECTED};
    let Some(baked) = Start::from_word(header.start) else {
        crate::die!("damaged output file: when its recording begins is unknown");
    };
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    match start.environment("DEP_START").map(|text| text.to_str()) {
        Some(text) if !secure => match text.ok().and_then(Start::parse) {
            Some(wanted) => wanted,
            None => crate::die!("DEP_START: expected {EXPECTED}"),
        },
        _ => baked,
    }
}

/// Reserves the gaps between the segments that were added, of which `added` is a part: the kernel
/// would give them to the program, in the midst of our own memory. It may have put the vdso into one, where no
/// other place was free; that goes out of the way. Returns the range of all.
fn keep_together(
    header: &ImageHeader,
    window: u64,
    added: Range<u64>,
    start: &Start,
) -> Range<u64> {
    let (mut first, mut end) = (added.start, None);
    // SAFETY: the rewriter's table.
    for piece in unsafe { place::pieces(header, window) } {
        let (from, to) = (window + piece.start, window + piece.end);
        if from < added.end && added.start < to {
            if let Some(end) = end.filter(|&end| end < from) {
                let keep = || reserve(end, from - end);
                if !keep() && vdso::move_away(start) {
                    keep();
                }
            }
            first = first.min(from);
            end = end.max(Some(to));
        }
    }
    first..added.end
}

/// Where the code cache of a recording of inputs begins, if it may lie there. The output of a replay is another one, and
/// mostly longer: its cache is to find the same place, and its libraries the same area. So the place is the last one from
/// which the whole program is in reach, and all between the output and it stays free.
fn place_of_replays(window: u64, area_end: u64) -> u64 {
    let last = window + ARENA_END - ARENA_LEN;
    // (Programs at fixed addresses have the tables behind it, and a limit counts what is reserved.)
    let is_room = last + ARENA_LEN + AREA_STEP <= window + area_end;
    if is_room {
        last
    } else {
        0
    }
}

fn program_break(header: &ImageHeader, window: u64, added: u64) -> Brk {
    let end = page_up(window + header.image_end);
    let limit = added.max(end);
    Brk::new(end + random_pages(end, limit), limit)
}

/// Distance of the heap from the program, as the kernel randomises it (none with ASLR off).
fn random_pages(from: u64, limit: u64) -> u64 {
    if !is_randomized() {
        return 0;
    }
    let room = (limit - from) / 2;
    random() % (room.min(32 << 20) / PAGE).max(1) * PAGE
}

fn add_program_code(header: &ImageHeader, window: u64) {
    // SAFETY: the rewriter's table.
    let ranges = unsafe { statics::executable_ranges(header, window) };
    let mut jit = jit();
    for &[start, end, writable] in ranges {
        jit.announce_selection(Span::new(window + start, window + end));
        jit.add_executable(ExecRange {
            span: Span::new(window + start, window + end).whole_pages(),
            writable: writable != 0,
            file: true,
            shared: false,
        });
    }
}

/// Maps the interpreter, tells the program about itself, and returns where it starts.
fn enter_program(start: &Start, header: &ImageHeader, window: u64, replay: Option<&Given>) -> u64 {
    start.set(at::PHDR, window + header.program_headers);
    start.set(at::PHNUM, header.program_header_count);
    start.set(at::ENTRY, window + header.entry);
    let mut real = [0u8; 4096];
    report_file(
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
    let named = replay.and_then(Given::interpreter);
    let path =
        named.as_ref().and_then(|path| CStr::from_bytes_until_nul(path).ok()).unwrap_or(path);
    match loader::load(path, replay.map(|given| given.header.interpreter)) {
        Ok(loaded) => {
            start.set(at::BASE, loaded.base);
            loaded.entry
        }
        Err(errno) => {
            let shown = path.to_str().unwrap_or("?");
            if replay.is_some() {
                impossible_at_start(format_args!(
                    "the program's interpreter {shown} cannot be loaded (error {errno})"
                ))
            }
            crate::die!("cannot load the program's interpreter {shown} (error {errno})")
        }
    }
}

/// `stack`: what the kernel has left on it.
fn first_thread(stack: Range<u64>, entry: u64, has_fsgsbase: bool, replay: Option<&Given>) -> ! {
    let Ok(thread) = Thread::create() else { crate::die!("no memory for the first thread") };
    thread.index = threads::next_index();
    census::begins();
    thread.tid = sys::gettid();
    thread.adopt();
    switch::begin(thread);
    thread.block.window_high = facts().window >> 32;
    thread.block.jump_entries = facts().options.jump_entries(facts().window);
    thread.block.target = facts().window;
    thread.block.registers.gpr[4] = stack.start;
    thread.block.registers.rip = entry;
    thread.block.registers.rflags = 0x202;
    let entry = match replay {
        Some(given) => given.start_thread(thread, entry),
        None => {
            thread.mailbox.set_mask(current_mask());
            entry
        }
    };
    if view::may_be_watched() && facts().window == 0 && ceiling::above().is_none() {
        crate::die!("this program at fixed addresses cannot be watched (it has a limit of its address space, or needs the kernel's places): use --threads serial");
    }
    if view::may_be_watched() && !has_fsgsbase {
        crate::die!("this processor or kernel does not let a thread set its fs base (FSGSBASE), which watched threads need: use --threads serial");
    }
    thread.block.program_fs = thread.fs_base();
    if view::may_be_watched() {
        covered::place(&stack);
    }
    if !view::take(thread) {
        crate::die!("no address space for the view of a watched thread: use --threads serial");
    }
    view::enter(thread);
    // Whoever started us may have blocked what our own faults raise.
    pending::apply_mask(thread.mailbox);
    threads::begin_recording(thread, thread.index);
    log().program_starts(thread, stack);
    baton::first(thread);
    dispatch::prepare(thread, entry);
    if replay.is_some() {
        overrun::begins();
        dispatch::replayed(thread, true);
    }
    switch::settle(thread);
    // SAFETY: gs points to the block, whose registers and resume address are set.
    unsafe { stubs::leave() }
}

/// Puts the look-up of far addresses in place.
fn far(arena: &mut Arena, window: u64, entries: &mut Entries) -> Option<Far> {
    let far = Far::new(window, entries.miss)?;
    let at = arena.live(FRONT);
    arena.write(FRONT.0, &far.front(at)?);
    entries.far = at.0;
    Some(far)
}

/// Where generated code and the kernel enter the runtime.
fn entries() -> Entries {
    Entries {
        miss: stubs::stub_miss as *const () as u64,
        far: stubs::stub_miss as *const () as u64,
        return_miss: stubs::stub_return_miss as *const () as u64,
        syscall: stubs::stub_syscall as *const () as u64,
        exit: stubs::stub_exit as *const () as u64,
        refuse: stubs::stub_refuse as *const () as u64,
        store: stubs::stub_store as *const () as u64,
        arrive: stubs::stub_arrive as *const () as u64,
        turn: stubs::stub_turn as *const () as u64,
        ask: stubs::stub_ask as *const () as u64,
        watch: stubs::stub_watch as *const () as u64,
        fill: stubs::stub_fill as *const () as u64,
        log_call: 0,
        new_thread: stubs::new_thread as *const () as u64,
        handler: handler::handler as *const () as u64,
        restorer: stubs::restorers(),
    }
}

/// Where this processor has the buffer pointers.
fn pointers_here(options: Options, avx512vl: bool) -> Pointers {
    match options.process.pointers {
        Pointers::ThreadBlock => Pointers::ThreadBlock,
        _ if avx512vl => Pointers::Vector,
        Pointers::Xmm15 if has_avx_alone() && options.may_take_xmm15() => Pointers::Xmm15,
        _ => Pointers::ThreadBlock,
    }
}
