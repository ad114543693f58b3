//! What a run found out: code that only the run-time translator had met, from a trace.

use crate::error::{Error, Result};
use crate::input::Input;
use abi::layout::page_up;
use abi::unit::{flags, JitUnit};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use trace::events::Body;
use trace::Trace;

/// Addresses of code, relative to the image.
#[derive(Default)]
pub struct Learned {
    pub program: Vec<u64>,
    /// By the library's real path: also libraries that the program opened while it ran.
    pub libraries: BTreeMap<PathBuf, Vec<u64>>,
}

impl Learned {
    /// Reads the trace at `path`, of a run of a rewritten `input`.
    pub fn read(path: &Path, input: &Input) -> Result<Learned> {
        let trace = Trace::open_alone(path).map_err(|e| Error::File(e.to_string()))?;
        let load = trace.statics.map_or(0, |s| s.load);
        let image = load + input.image_start()..load + input.image_end();
        if !is_run_of(&trace, input, &image) {
            let (path, program) = (path.display(), trace.program.display());
            return Err(Error::File(format!(
                "cannot learn from {path}: a trace of {program}, which was made of another file"
            )));
        }
        let files = files(&trace);
        let mut learned = Learned::default();
        for unit in trace.units.jit().filter(|u| u.body.flags & flags::WIDE != 0) {
            if image.contains(&unit.address) {
                // The program may have changed its code, or the trace may be of another one.
                if is_code_of(input, unit, load) {
                    learned.program.push(unit.address - load);
                }
            } else if let Some((range, file)) = find(&files, unit.address) {
                let addresses = learned.libraries.entry(file.clone()).or_default();
                addresses.push(unit.address - range.start);
            }
        }
        learned.program.sort_unstable();
        learned.libraries.values_mut().for_each(|addresses| addresses.sort_unstable());
        Ok(learned)
    }
}

/// Whether the program of the trace, mapped at `image`, was made of `input`, as far as its size and
/// build-id can tell.
fn is_run_of(trace: &Trace, input: &Input, image: &Range<u64>) -> bool {
    let own = object::File::parse(&*input.bytes).ok();
    let own = own.as_ref().and_then(|file| object::Object::build_id(file).ok().flatten());
    trace.process_events.iter().any(|event| match &event.body {
        Body::Map { start, len, build_id, .. } => {
            let same = own.is_none_or(|own| build_id.is_empty() || own == build_id);
            *start == image.start && *len == page_up(image.end - image.start) && same
        }
        _ => false,
    })
}

fn is_code_of(input: &Input, unit: &JitUnit, load: u64) -> bool {
    input.bytes_at(unit.address - load).is_some_and(|bytes| bytes.starts_with(&unit.code))
}

/// Where files were mapped, whole, by address.
fn files(trace: &Trace) -> Vec<(Range<u64>, PathBuf)> {
    let mut files = Vec::new();
    for event in &trace.process_events {
        if let Body::Map { start, len, offset: 0, path, .. } = &event.body {
            if let Ok(real) = Path::new(OsStr::from_bytes(path)).canonicalize() {
                files.push((*start..start.saturating_add(*len), real));
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
