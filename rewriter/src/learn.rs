//! What a run found out: code that only the run-time translator had met, from a trace.

use crate::error::{Error, Result};
use crate::input::Input;
use abi::event::BUILD_ID_SIZE;
use abi::layout::page_up;
use abi::unit::{flags, JitUnit};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use trace::events::Event;
use trace::Trace;

/// Addresses of code, relative to the image.
#[derive(Default)]
pub struct Learned {
    pub program: Vec<u64>,
    /// All addresses of the program's code that was translated when it ran, ascending.
    pub ran: Vec<u64>,
    /// By the library's real path: also libraries that the program opened while it ran.
    pub libraries: BTreeMap<PathBuf, Vec<u64>>,
}

impl Learned {
    /// Reads traces of runs of a rewritten `input`.
    pub fn read(paths: &[PathBuf], input: &Input) -> Result<Learned> {
        let mut learned = Learned::default();
        if paths.is_empty() {
            return Ok(learned);
        }
        let file = object::File::parse(&*input.bytes).ok();
        let build_id = file.as_ref().and_then(|file| object::Object::build_id(file).ok().flatten());
        for path in paths {
            learned.add(path, input, build_id)?;
        }
        learned.program.sort_unstable();
        learned.ran.sort_unstable();
        learned.libraries.values_mut().for_each(|addresses| addresses.sort_unstable());
        Ok(learned)
    }

    /// Adds what the trace at `path` says.
    fn add(&mut self, path: &Path, input: &Input, build_id: Option<&[u8]>) -> Result<()> {
        let trace = Trace::open_alone(path).map_err(|e| Error::File(e.to_string()))?;
        let load = trace.statics.map_or(0, |s| s.load.0);
        let image = load + input.image_start()..load + input.image_end();
        check_program(&trace, build_id, &image)
            .map_err(|why| Error::File(format!("cannot learn from {}: {why}", path.display())))?;
        let files = files(&trace);
        trace.units.each_jit(|unit| {
            let is_wide = unit.body.flags & flags::WIDE != 0;
            if image.contains(&unit.address.0) {
                // The program may have changed its code, or the trace may be of another one.
                if is_code_of(input, unit, load) {
                    self.ran.push(unit.address.0 - load);
                    self.program.extend(is_wide.then_some(unit.address.0 - load));
                }
                return;
            }
            if !is_wide {
                return;
            }
            if let Some((range, file)) = find(&files, unit.address.0) {
                let addresses = self.libraries.entry(file.clone()).or_default();
                addresses.push(unit.address.0 - range.start);
            }
        });
        Ok(())
    }
}

/// Refuses the trace unless its program, mapped at `image`, was made of the input, as far as its size
/// and build-id can tell.
fn check_program(
    trace: &Trace,
    own: Option<&[u8]>,
    image: &Range<u64>,
) -> std::result::Result<(), String> {
    let mapped = trace.process_events.iter().find_map(|event| match &event.event {
        Some(Event::Map { start, len, build_id, path, .. })
            if trace.program.as_os_str().as_bytes() == &**path =>
        {
            Some((start.0, *len, build_id))
        }
        _ => None,
    });
    let Some((start, len, build_id)) = mapped else {
        return Err("it does not say which program it is of".into());
    };
    // The trace has at most so much of it.
    let own = own.map(|own| &own[..own.len().min(BUILD_ID_SIZE)]);
    let same = own.is_none_or(|own| build_id.is_empty() || own == &**build_id);
    match start == image.start && len == page_up(image.end - image.start) && same {
        true => Ok(()),
        false => Err(format!("its program {} was made of another file", trace.program.display())),
    }
}

fn is_code_of(input: &Input, unit: &JitUnit, load: u64) -> bool {
    input.bytes_at(unit.address.0 - load).is_some_and(|bytes| bytes.starts_with(&unit.code))
}

/// Where files were mapped, whole, by address.
fn files(trace: &Trace) -> Vec<(Range<u64>, PathBuf)> {
    let mut files = Vec::new();
    for event in &trace.process_events {
        if let Some(Event::Map { start, len, offset: 0, path, .. }) = &event.event {
            if let Ok(real) = Path::new(OsStr::from_bytes(path)).canonicalize() {
                files.push((start.0..start.0.saturating_add(*len), real));
            }
        }
    }
    files.sort_by_key(|(range, _)| range.start);
    files
}

fn find(files: &[(Range<u64>, PathBuf)], address: u64) -> Option<&(Range<u64>, PathBuf)> {
    let next = files.partition_point(|(range, _)| range.start <= address);
    files[..next].last().filter(|(range, _)| range.contains(&address))
}
