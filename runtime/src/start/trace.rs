//! The trace file at start: where it is, and what its first frame says.

use crate::base::descriptors::hide;
use crate::base::facts::facts;
use crate::base::sys::{self, nr};
use crate::recording::appender::put_event;
use crate::recording::description::process_now;
use crate::recording::lifecycle::Phase;
use crate::recording::naming::Naming;
use crate::recording::trace_file::{trace, TraceFile};
use crate::start::stack::{at, program_path, Start};
use abi::event::{xsave_to_bytes, Event};
use abi::ids::LiveAddr;
use abi::image::ImageHeader;
use abi::options::Options;
use alloc::vec::Vec;

/// The trace, and the file that `DEP_FILE` names, if it names one.
pub fn new_trace(start: &Start, options: Options) -> (TraceFile, Option<i32>) {
    let mut trace = TraceFile::new(options);
    if trace.phase() != Phase::Closed {
        return (trace, None);
    }
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    let pattern = match start.environment("DEP_FILE") {
        Some(pattern) if !secure && !pattern.is_empty() => pattern.to_bytes(),
        _ => b"%e.%p.dep",
    };
    if pattern == b"null:" || pattern == b"/dev/null" {
        return (trace, None);
    }
    let naming = Naming::new(pattern, program_path(start));
    match naming.create(sys::getpid()) {
        Ok(fd) => {
            let follow = start.environment("DEP_FOLLOW").is_none_or(|word| word != c"0");
            if follow && !secure && naming.has_pid() {
                trace.follow(naming.absolute());
            }
            (trace, Some(hide(fd)))
        }
        Err(refused) => {
            let (path, errno) = (refused.path(), refused.errno);
            crate::say!("cannot create {path} (error {errno}): nothing is recorded");
            (trace, None)
        }
    }
}

/// Says what every trace of the program says, and opens the one in `file`. `rules`: what is recorded,
/// if that is not all.
pub fn open_trace(start: &Start, header: &ImageHeader, rules: &str, file: Option<i32>) {
    let Some(fd) = file else { return };
    let mut all = Vec::new();
    let mut say = |event: &_| put_event(&mut all, event);
    let mut real = [0u8; 4096];
    say(&Event::Program(real_path(start, &mut real)));
    let mut arguments = Vec::new();
    for argument in start.arguments() {
        arguments.extend_from_slice(argument.to_bytes_with_nul());
    }
    if !arguments.is_empty() {
        say(&Event::Arguments(&arguments));
    }
    say(&Event::StaticUnits {
        load: LiveAddr(facts().window),
        identity: header.identity,
        first_window: header.tables.first_window as u32,
        jit_window: header.jit_window as u32,
        count: header.tables.unit_count,
    });
    let components = xsave_to_bytes(&facts().xsave.components);
    say(&Event::Xsave { xcr0: facts().xsave.xcr0, components: components.as_slice() });
    if !rules.is_empty() {
        say(&Event::Selection(rules.as_bytes()));
    }
    trace().introduce(all);
    if trace().open(fd) {
        trace().describe(&process_now(facts().options), sys::getppid(), &[]);
    }
}

/// The path of the running file: /proc/self/exe where there is one, else as it was started.
pub fn real_path<'a>(start: &Start, buffer: &'a mut [u8; 4096]) -> &'a [u8] {
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
