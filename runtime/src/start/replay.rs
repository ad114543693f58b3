//! The start of a replay: everything comes to lie where the recorded process had it, and what the kernel
//! has placed in this process goes out of the way.

use crate::base::guards;
use crate::base::own::{choose, own, own_range};
use crate::base::replaying;
use crate::base::signal::{set_kernel_action, Action, SIGKILL, SIGPIPE, SIG_IGN};
use crate::base::sys::{self, nr};
use crate::code::writing::write_program;
use crate::kernel::replay::outcome::{self, impossible_at_start};
use crate::kernel::replay::output::Output;
use crate::kernel::replay::script::{self, Input, Next, Script};
use crate::kernel::replay::{install, restore, steer, tree, Replay};
use crate::recording::trace_file;
use crate::start::stack::{at, Start};
use crate::start::{place, vdso};
use crate::thread::Thread;
use abi::event::{Event, Kind};
use abi::image::ImageHeader;
use abi::layout::{page_down, page_up, tables, AREA_STEP, ARENA_END, ARENA_LEN, PAGE, WINDOW_SIZE};
use abi::script::{Header, TAKEN};
use alloc::vec::Vec;
use core::iter;
use core::ops::Range;

/// What is replayed.
pub struct Given {
    pub header: Header,
    entries: &'static [u8],
    /// What processes map that it forks.
    beside: &'static [u8],
    /// The program's output is shown, behind so many forks.
    shown: Option<u32>,
    steered: Option<i32>,
}

/// The variables of a replay; the program does not see them, as its environment is the recorded one.
const SCRIPT: &str = "DEP_REPLAY";
const RESULT: &str = "DEP_REPLAY_RESULT";
const OUTPUT: &str = "DEP_REPLAY_OUTPUT";
const STEER: &str = "DEP_STEER";
const TREE: &str = "DEP_REPLAY_TREE";
const UNTOUCHED: &str = "DEP_REPLAY_UNTOUCHED";
const PACE: &str = "DEP_REPLAY_PACE";

/// Room of the stack that is mapped from the start; the kernel adds to it, as to a program's.
const FIRST_STACK: u64 = 128 << 10;

/// What the environment asks for, if it asks for a replay. `replays`: the output is made for that.
pub fn given(start: &Start, replays: bool) -> Option<Given> {
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    let path = start.environment(SCRIPT).filter(|path| !secure && !path.is_empty())?;
    if let Some(fd) = number(start, RESULT) {
        outcome::goes_to(fd);
    }
    if !replays {
        impossible_at_start(format_args!("the program was not rewritten for replays (--replays)"));
    }
    // SAFETY: the kernel reads the path.
    let fd = match unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, sys::O_CLOEXEC]) } {
        Ok(fd) => fd as i32,
        Err(errno) => {
            let path = path.to_str().unwrap_or("?");
            impossible_at_start(format_args!("cannot open the script {path} (error {errno})"))
        }
    };
    let Some(header) = script::header(fd) else {
        impossible_at_start(format_args!("the script is none of this version"));
    };
    check(&header);
    replaying::begin();
    end_with_parent();
    if header.alone == 1 {
        replaying::begin_alone();
    }
    // From here on memory of our own lies where the recorded program had nothing.
    choose(header.free[0]..header.free[1]);
    let all = match script::map(fd, header.len.saturating_add(header.beside)) {
        Ok(all) => all,
        Err(why) => impossible_at_start(format_args!("{why}")),
    };
    let (entries, beside) = all.split_at(header.len as usize);
    if let Some(fd) = number(start, UNTOUCHED) {
        guards::goes_to(fd);
    }
    if let Some(fd) = number(start, PACE) {
        trace_file::paced_by(fd);
    }
    if let Some(tokens) = number(start, TREE) {
        tree::begins(path, tokens);
    }
    // SAFETY: opened above.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
    let shown = number(start, OUTPUT).and_then(|count| u32::try_from(count.checked_sub(1)?).ok());
    Some(Given { header, entries, beside, shown, steered: number(start, STEER) })
}

/// A replay has nothing to say when whoever has started it is gone.
fn end_with_parent() {
    const PR_SET_PDEATHSIG: usize = 1;
    // SAFETY: no memory involved.
    let _ = unsafe { sys::call(nr::PRCTL, &[PR_SET_PDEATHSIG, SIGKILL as usize]) };
}

fn number(start: &Start, name: &str) -> Option<i32> {
    start.environment(name)?.to_str().ok()?.parse().ok()
}

fn check(header: &Header) {
    let [free, free_end] = header.free;
    let ordered = free < free_end && header.stack < header.stack_end;
    let aligned = [free, free_end, header.stack_end].iter().all(|at| at.is_multiple_of(PAGE));
    if !ordered || !aligned || !header.window.is_multiple_of(WINDOW_SIZE) {
        impossible_at_start(format_args!("the script is damaged"));
    }
    if [tables(false), tables(true)].iter().any(|t| free < t.end && t.start < free_end) {
        impossible_at_start(format_args!("the script gives the runtime no room"));
    }
}

/// What the call has mapped.
fn mapped_by(event: &Input) -> Option<Range<u64>> {
    if let Event::Region { start, len, kind, .. } = event {
        let is_there = *kind == abi::event::RegionKind::Program;
        return (!is_there).then(|| start.0..start.0.saturating_add(*len));
    }
    let Event::Syscall { number, arguments: [_, length, third, ..], result } = event else {
        return None;
    };
    let len = match *number as usize {
        nr::MMAP => *length,
        nr::MREMAP => *third,
        _ => return None,
    };
    let start = sys::check(*result as usize).ok()? as u64;
    Some(start..start.saturating_add(page_up(len)))
}

impl Given {
    /// The runtime, its program and what the kernel has placed go to where they have to be. The runtime
    /// may start again for that, with another stack. Returns where the arguments are from now on.
    ///
    /// # Safety
    /// As for [`place::move_to`]; nobody has a pointer into the kernel's stack but `start`.
    pub unsafe fn take_places(
        &self,
        start: Start,
        image: &ImageHeader,
        window: u64,
        entry: u64,
    ) -> Start {
        let wanted = self.header.window;
        let start = if own_range().contains(&(start.stack as u64)) {
            start
        } else {
            let _ = vdso::move_away(&start);
            move_stack(&start)
        };
        if window != wanted {
            if window == 0 || wanted == 0 {
                impossible_at_start(format_args!(
                    "the recording is of another program: it lies at fixed addresses, and this one does not, or the other way round"
                ));
            }
            if !place::is_free(wanted) {
                impossible_at_start(format_args!("the addresses from {wanted:#x} on {TAKEN}"));
            }
            // SAFETY: as promised; nothing is there.
            unsafe { place::move_to(wanted, image, window, &start, entry) }
        }
        self.map_stack();
        start
    }

    /// The recorded stack, which the kernel makes grow as far as its limit allows, as it did there.
    fn map_stack(&self) {
        const MAP_GROWSDOWN: usize = 0x100;
        let Header { stack, stack_end, stack_limit, .. } = self.header;
        if stack_limit != 0 {
            sys::set_limit(sys::RLIMIT_STACK, stack_limit);
        }
        let from = page_down(stack).saturating_sub(FIRST_STACK);
        let flags =
            sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | MAP_GROWSDOWN | sys::MAP_FIXED_NOREPLACE;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        // SAFETY: NOREPLACE: nothing is there.
        match unsafe { sys::mmap(from, stack_end - from, prot, flags, -1, 0) } {
            Ok(at) if at == from => {}
            _ => impossible_at_start(format_args!(
                "the addresses {from:#x} to {stack_end:#x} of the recorded stack {TAKEN}"
            )),
        }
    }

    /// The snapshot has the stack as it was. Two mappings next to each other, the lower of which grows, grow
    /// further than the limit allows.
    fn unmap_stack(&self) {
        let Header { stack, stack_end, .. } = self.header;
        let from = page_down(stack).saturating_sub(FIRST_STACK);
        // SAFETY: mapped by `map_stack`, and nobody has used it yet.
        let _ = unsafe { sys::call(nr::MUNMAP, &[from as usize, (stack_end - from) as usize]) };
    }

    /// The path of the interpreter's file, if the recording says it.
    pub fn interpreter(&self) -> Option<Vec<u8>> {
        let mut script = Script::new(self.entries);
        while let Next::Entry(entry) = script.peek() {
            match entry.event()? {
                Event::ThreadStart { .. } => script.take(&entry),
                Event::Mapped { path, .. } => return Some([path, b"\0"].concat()),
                _ => break,
            }
        }
        None
    }

    /// What the recorded program has mapped in its window at any time, and the processes that it forks.
    pub fn mapped(&self, window: u64) -> Vec<Range<u64>> {
        let mut mapped = Vec::new();
        for entries in [self.entries, self.beside] {
            let mut script = Script::new(entries);
            while let Next::Entry(entry) = script.peek() {
                let maps = matches!(entry.kind(), Kind::Syscall | Kind::Region);
                if let (true, Some(event)) = (maps, entry.event()) {
                    let range =
                        mapped_by(&event).filter(|range| range.start < window + WINDOW_SIZE);
                    mapped.extend(range.filter(|range| window < range.end));
                }
                script.take(&entry);
            }
        }
        mapped.sort_unstable_by_key(|range| (range.start, range.end));
        mapped.dedup();
        mapped
    }

    /// Where the code cache may begin: at `preferred` or from `least` on, where the recorded program, whose
    /// cache may have been elsewhere, has `used` nothing at any time.
    pub fn room_for_code(
        &self,
        window: u64,
        preferred: u64,
        least: u64,
        used: &[Range<u64>],
    ) -> u64 {
        let last = window + ARENA_END - ARENA_LEN;
        let others = (least.next_multiple_of(AREA_STEP)..=last).step_by(AREA_STEP as usize);
        let is_free =
            |start: &u64| used.iter().all(|r| r.end <= *start || start + ARENA_LEN <= r.start);
        let preferred = preferred.next_multiple_of(AREA_STEP);
        iter::once(preferred).chain(others).find(is_free).unwrap_or(preferred)
    }

    /// From here on everything comes from the script. `area`: where the runtime places libraries.
    pub fn begin(&self, area: Range<u64>) {
        let ignored = Action { handler: SIG_IGN, ..Action::default() };
        // SAFETY: no handler.
        unsafe { set_kernel_action(SIGPIPE, &ignored) };
        if let Some(fd) = self.steered {
            steer::start(fd);
        }
        install(Replay {
            script: Script::new(self.entries),
            header: self.header,
            output: Output::new(self.shown),
            area,
        });
    }

    /// Gives the first thread the registers and the stack that it had.
    /// Returns where it goes on: at the program's `entry`, unless a snapshot is where it begins.
    pub fn start_thread(&self, thread: &mut Thread, entry: u64) -> u64 {
        let mut script = Script::new(self.entries);
        if restore::begins(self.entries) {
            if !replaying::is_alone() {
                self.unmap_stack();
            }
            let next = restore::restore(thread, &mut script, self.entries);
            crate::kernel::replay::replay().script = script;
            return next;
        }
        let mut registers = None;
        while let Next::Entry(next) = script.peek() {
            if next.thread != 0
                || !matches!(next.kind(), Kind::ThreadStart | Kind::Written | Kind::Mapped)
            {
                break;
            }
            if next.kind() == Kind::Mapped && self.is_of_a_call(&mut script) {
                break;
            }
            match next.event() {
                Some(Event::ThreadStart { registers: first, .. }) if registers.is_none() => {
                    registers = Some(first);
                }
                Some(Event::Written { address, bytes }) if self.is_stack(address.0, bytes) => {
                    // SAFETY: the stack that was mapped for the program.
                    if !unsafe { write_program(address.0, bytes) } {
                        impossible_at_start(format_args!("the recorded stack cannot be written"));
                    }
                }
                Some(Event::Mapped { .. }) => {}
                _ => break,
            }
            script.take(&next);
        }
        let Some(registers) = registers else {
            impossible_at_start(format_args!(
                "the recording does not say how its first thread starts"
            ));
        };
        if registers.rip != entry {
            let there = registers.rip;
            impossible_at_start(format_args!(
                "the recording is of another program: it starts at {there:#x}, this one at {entry:#x}"
            ));
        }
        thread.block.registers.gpr = registers.gpr;
        thread.block.registers.rip = registers.rip;
        thread.block.registers.rflags = registers.rflags;
        crate::kernel::replay::replay().script = script;
        entry
    }

    fn is_stack(&self, at: u64, bytes: &[u8]) -> bool {
        (page_down(self.header.stack)..self.header.stack_end).contains(&at)
            && at + bytes.len() as u64 <= self.header.stack_end
    }

    /// Whether what is mapped next belongs to a system call, and is not the interpreter.
    fn is_of_a_call(&self, script: &mut Script) -> bool {
        // The stack's contents stand behind the interpreter.
        let mut ahead = Script::new(self.entries);
        while ahead.at() < script.at() {
            let Next::Entry(entry) = ahead.peek() else { return true };
            if entry.kind() == Kind::Written {
                return true;
            }
            ahead.take(&entry);
        }
        false
    }
}

/// Copies what the kernel has put on the stack to memory of our own, with the pointers in it, and unmaps
/// the kernel's stack: the recorded one may have been there.
fn move_stack(start: &Start) -> Start {
    let from = start.stack as u64;
    let Some(range) = vdso::mapping_of(b"[stack]").filter(|range| range.contains(&from)) else {
        impossible_at_start(format_args!("the stack is not found (is /proc mounted?)"));
    };
    let len = range.end - from;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let Ok(to) = own(len + PAGE, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0) else {
        impossible_at_start(format_args!("no memory for the arguments"));
    };
    // The kernel's alignment stays.
    let to = to + from % PAGE;
    // SAFETY: the kernel's stack up to its end, and new memory of that size.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize) };
    let moved = Start { stack: to as *mut u64, argc: start.argc };
    moved.relocate(&range, to.wrapping_sub(from));
    let args = [range.start as usize, (range.end - range.start) as usize];
    // SAFETY: nobody uses the kernel's stack any more: we run on our own.
    let _ = unsafe { sys::call(nr::MUNMAP, &args) };
    moved
}
