//! Which code of the process is recorded: the rules, and what they amount to in what is mapped.
//!
//! The rewriter's rules and those of the environment hold both. Ahead-of-time code of a module was made
//! for the rewriter's: where the environment takes something away, that module runs from the run-time
//! translator. All modules do if their ahead-of-time code relies on all code that enters it being recorded.

use crate::base::last_words::Line;
use crate::base::sys::{self, nr};
use crate::code::span::Span;
use crate::recording::trace_file::trace;
use abi::event::Event;
use abi::ids::LiveAddr;
use abi::layout::page_down;
use abi::options::RecordingOptions;
use abi::selection::{base_of, functions, soname, Function, Ranges, Rules, Selected};
use abi::selection::{GENERATED, MAIN, VDSO};
use alloc::string::String;
use alloc::vec::Vec;
use instrument::planner::stack_is_known;

/// A mapped piece of a file.
struct Module {
    span: Span,
    /// What its ranges count from.
    base: u64,
    ranges: Ranges,
}

impl Module {
    /// The addresses of `span` as its ranges count.
    fn addresses(&self, span: Span) -> Ranges {
        let first = span.start.0.wrapping_sub(self.base);
        Ranges::new([[first, first.saturating_add(span.len())]])
    }

    fn announce(&self, code: Span) {
        let here = self.ranges.common(&self.addresses(code));
        let words = here.pieces().as_flattened().iter();
        let pieces: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        trace().process_event(&Event::Selected {
            start: code.start,
            len: code.len(),
            base: LiveAddr(self.base),
            pieces: &*pieces,
        });
    }
}

/// What is selected, by address.
#[derive(Default)]
pub struct Selection {
    /// The rewriter's rules.
    rules: Rules,
    /// Those of the environment.
    environment: Rules,
    modules: Vec<Module>,
    generated: Ranges,
    /// Ahead-of-time code relies on what is known of all code that enters it, and not all is recorded.
    none_ahead: bool,
}

impl Selection {
    pub fn new(rules: Rules, environment: Rules, recording: RecordingOptions) -> Selection {
        let none_ahead = stack_is_known(recording) && !environment.is_everything();
        let mut selection = Selection { rules, environment, none_ahead, ..Selection::default() };
        selection.generated = selection.ranges(&[GENERATED], &[]);
        selection
    }

    /// Whether all code is.
    pub fn is_everything(&self) -> bool {
        self.rules.is_everything() && self.environment.is_everything()
    }

    fn is_nothing(&self) -> bool {
        self.rules.is_nothing() || self.environment.is_nothing()
    }

    fn ranges(&self, names: &[&str], functions: &[Function]) -> Ranges {
        let environment = self.environment.ranges(names, functions);
        self.rules.ranges(names, functions).common(&environment)
    }

    /// As a translator asks, for code in `piece`, which lies in one mapping.
    pub fn around(&self, piece: Span) -> Selected<'_> {
        if self.is_everything() {
            return Selected::EVERYTHING;
        }
        let elsewhere = !self.is_nothing();
        let module = self.modules.iter().find(|m| m.span.contains(piece.start));
        match module {
            Some(Module { span, base, ranges }) => Selected {
                base: *base,
                // What lies in front of the mapping is far behind it.
                len: span.end.0 - base,
                pieces: ranges.pieces(),
                elsewhere,
            },
            None => Selected {
                base: piece.start.0,
                len: piece.len(),
                pieces: self.generated.pieces(),
                elsewhere,
            },
        }
    }

    // --- what is mapped ---

    /// The program is mapped at `span`; `own` is what the rewriter has chosen of it. Returns whether
    /// its ahead-of-time code can be used.
    /// `alone`: the rules are for this program, not for all of a recording.
    pub fn add_program(
        &mut self,
        span: Span,
        window: u64,
        own: Ranges,
        names: &[&str],
        alone: bool,
    ) -> bool {
        if self.is_everything() {
            return true;
        }
        let functions = match self.environment.asks_for_functions(names) {
            true => functions_of(c"/proc/self/exe"),
            false => Vec::new(),
        };
        let has_code =
            |piece: &[u64; 2]| piece[0] < span.end.0 - window && span.start.0 - window < piece[1];
        for selector in self.environment.only.iter().chain(&self.environment.skip) {
            let of_program = !selector.module.is_empty() && selector.is_of(names);
            // A module named by a glob may be another one, too.
            let of_program = of_program && !selector.module.contains(['*', '?']);
            let ranges = selector.ranges(names, &functions);
            if alone && of_program && !ranges.pieces().iter().any(has_code) {
                crate::die!("DEP_ONLY, DEP_SKIP: {selector}: the program has no such code");
            }
        }
        let ranges = own.common(&self.environment.ranges(names, &functions));
        let same = ranges == own && !self.none_ahead;
        // The trace does not exist yet.
        self.modules.push(Module { span, base: window, ranges });
        same
    }

    /// Tells the trace what is selected of `code`, which is mapped already.
    pub fn announce(&self, code: Span) {
        let module = self.modules.iter().find(|m| m.span.contains(code.start));
        module.into_iter().for_each(|m| m.announce(code));
    }

    /// Executable memory `span` is mapped, from `offset` in the file `fd`.
    pub fn add_file(&mut self, span: Span, fd: i32, offset: u64) {
        if self.is_everything() {
            return;
        }
        let read = |at: u64, len: u64| read_at(fd, at, len);
        let mut link = Line::new();
        let mut path = [0u8; 1024];
        let path = path_of(fd, &mut link, &mut path);
        let name = core::str::from_utf8(path.rsplit(|&b| b == b'/').next().unwrap_or(path));
        let own: Option<String> = soname(read);
        let names: Vec<&str> =
            [name.ok(), own.as_deref()].into_iter().flatten().filter(|n| !n.is_empty()).collect();
        let asks =
            self.rules.asks_for_functions(&names) || self.environment.asks_for_functions(&names);
        let functions = if asks { functions(read) } else { Vec::new() };
        let address = base_of(read, offset).map_or(offset, page_down);
        let base = span.start.0.wrapping_sub(address);
        let ranges = self.ranges(&names, &functions);
        self.add(span, base, ranges);
    }

    /// The kernel's code is at `span`.
    pub fn add_vdso(&mut self, span: Span) {
        if !self.is_everything() {
            let ranges = self.ranges(&[VDSO], &[]);
            self.add(span, span.start.0, ranges);
        }
    }

    fn add(&mut self, span: Span, base: u64, ranges: Ranges) {
        self.remove(span);
        let module = Module { span, base, ranges };
        module.announce(span);
        self.modules.push(module);
    }

    /// What is mapped at `span` was translated ahead of time for `own`. Returns whether that can be
    /// used.
    pub fn accepts(&mut self, span: Span, own: Ranges) -> bool {
        if self.is_everything() {
            return own.is_everything();
        }
        if self.none_ahead {
            return false;
        }
        let module = self.modules.iter().find(|m| m.span.contains(span.start));
        // What is recorded of it is known already, and what is translated when it runs must agree.
        module.is_some_and(|m| {
            let here = m.addresses(span);
            m.ranges.common(&here) == own.common(&here)
        })
    }

    /// Whether any part of `span` belongs to a file of which a part is selected.
    pub fn touches(&self, span: Span) -> bool {
        self.modules.iter().any(|m| m.span.touches(span))
    }

    /// `span` does not belong to a file any more.
    pub fn remove(&mut self, span: Span) {
        for module in core::mem::take(&mut self.modules) {
            if !module.span.touches(span) {
                self.modules.push(module);
                continue;
            }
            let front = Span { start: module.span.start, end: span.start };
            let back = Span { start: span.end, end: module.span.end };
            for left in [front, back].into_iter().filter(|left| !left.is_empty()) {
                let ranges = module.ranges.clone();
                self.modules.push(Module { span: left, base: module.base, ranges });
            }
        }
    }

    /// What was at `from` is at `to` now.
    pub fn moved(&mut self, from: Span, to: Span) {
        let of = self.modules.iter().find(|m| m.span.contains(from.start));
        let found = of.map(|m| (m.base, m.ranges.clone()));
        self.remove(from);
        self.remove(to);
        if let Some((base, ranges)) = found {
            let base = base.wrapping_add(to.start.from_start(from.start));
            self.add(to, base, ranges);
        }
    }
}

/// Names of the program.
pub fn names_of_program<'a>(paths: [&'a [u8]; 3]) -> Vec<&'a str> {
    let base = |path: &'a [u8]| core::str::from_utf8(path.rsplit(|&b| b == b'/').next()?).ok();
    let names = paths.into_iter().filter_map(base).filter(|name| !name.is_empty());
    names.chain([MAIN]).collect()
}

fn path_of<'a>(fd: i32, link: &mut Line, path: &'a mut [u8; 1024]) -> &'a [u8] {
    use core::fmt::Write;
    let _ = write!(link, "/proc/self/fd/{fd}\0");
    let args = [link.text().as_ptr() as usize, path.as_mut_ptr() as usize, path.len()];
    // SAFETY: the kernel reads the name and fills the path.
    let n = unsafe { sys::call(nr::READLINK, &args) }.unwrap_or(0);
    path.get(..n).unwrap_or_default()
}

fn functions_of(path: &core::ffi::CStr) -> Vec<Function> {
    // SAFETY: the kernel reads the path.
    let fd = unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, sys::O_CLOEXEC]) };
    let Ok(fd) = fd else { return Vec::new() };
    let found = functions(|at, len| read_at(fd as i32, at, len));
    // SAFETY: opened above.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd]) };
    found
}

/// `len` bytes at `at`, if the file has so many.
fn read_at(fd: i32, at: u64, len: u64) -> Option<Vec<u8>> {
    const MOST: u64 = 256 << 20;
    let len = usize::try_from(len).ok().filter(|&len| len as u64 <= MOST)?;
    let mut bytes = alloc::vec![0u8; len];
    let mut done = 0;
    while done < len {
        let rest = bytes.get_mut(done..)?;
        let args = [fd as usize, rest.as_mut_ptr() as usize, rest.len(), at as usize + done];
        // SAFETY: the kernel writes at most that many bytes.
        match unsafe { sys::call(nr::PREAD64, &args) } {
            Ok(n @ 1..) => done += n,
            _ => return None,
        }
    }
    Some(bytes)
}
