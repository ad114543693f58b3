//! The trace file at start: where it is, and what its first frame says.

use crate::base::descriptors::hide;
use crate::base::facts::facts;
use crate::base::sys::{self, nr};
use crate::recording::lifecycle::Phase;
use crate::recording::trace_file::{trace, TraceFile};
use crate::start::stack::{at, program_path, Start};
use abi::event::{xsave_to_bytes, Event, Position};
use abi::ids::LiveAddr;
use abi::image::ImageHeader;
use abi::options::Options;
use abi::trace::{PROCESS, VERSION};

/// Opens the trace file that `DEP_FILE` names, if it names one.
pub fn open_trace(start: &Start, options: Options) -> TraceFile {
    let trace = TraceFile::new(options);
    if trace.phase() != Phase::Closed {
        return trace;
    }
    let secure = start.get(at::SECURE).unwrap_or(0) != 0;
    let pattern = match start.environment("DEP_FILE") {
        Some(pattern) if !secure && !pattern.is_empty() => pattern.to_bytes(),
        _ => b"%e.%p.dep",
    };
    if pattern == b"null:" || pattern == b"/dev/null" {
        return trace;
    }
    let mut path = [0u8; 4096];
    let Some(len) = expand(start, pattern, &mut path) else {
        crate::say!("the path of the trace is too long: nothing is recorded");
        return trace;
    };
    match create(&mut path, len) {
        Ok(fd) => {
            trace.open(hide(fd));
        }
        Err(errno) => {
            let shown = core::str::from_utf8(&path[..len]).unwrap_or("DEP_FILE");
            crate::say!("cannot create {shown} (error {errno}): nothing is recorded");
        }
    }
    trace
}

fn create(path: &mut [u8; 4096], len: usize) -> Result<i32, i32> {
    // O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
    const FLAGS: usize = 0o2 | 0o100 | 0o200 | 0o400000 | sys::O_CLOEXEC;
    for n in 0..1000u32 {
        if n > 0 {
            let mut digits = crate::base::last_words::Line::new();
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
                let mut digits = crate::base::last_words::Line::new();
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

/// Writes the FILE frame.
pub fn describe(start: &Start, header: &ImageHeader, rules: &str) {
    let trace = trace();
    if trace.phase() != Phase::Open {
        return;
    }
    let kind = abi::trace::FrameKind::File;
    let arguments: usize = start.arguments().map(|a| a.count_bytes() + 1).sum();
    let mut frame =
        match trace.new_appender(kind, PROCESS, 0, 8192 + (arguments + rules.len()) as u64) {
            Ok(frame) => frame,
            Err(errno) => {
                trace.lost(errno);
                return;
            }
        };
    let mut now = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { sys::call(nr::CLOCK_GETTIME, &[0, now.as_mut_ptr() as usize]) };
    let nanos = now[0] * 1_000_000_000 + now[1];
    let described = Event::Process {
        version: VERSION,
        options: facts().options.to_word(),
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
        load: LiveAddr(facts().window),
        identity: header.identity,
        first_window: header.tables.first_window as u32,
        jit_window: header.jit_window as u32,
        count: header.tables.unit_count,
    };
    frame.event(Position::NONE, &units);
    let components = xsave_to_bytes(&facts().xsave.components);
    let xsave = Event::Xsave { xcr0: facts().xsave.xcr0, components: components.as_slice() };
    frame.event(Position::NONE, &xsave);
    if !rules.is_empty() {
        frame.event(Position::NONE, &Event::Selection(rules.as_bytes()));
    }
    trace.keep(frame);
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
