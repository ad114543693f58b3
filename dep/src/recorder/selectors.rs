//! Selectors that named nothing in all that was recorded. They may be meant for one program of many, so only
//! the whole recording tells; most likely they are mistyped.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use abi::selection::{functions, soname, Part, Rules, Selector, MAIN};
use recording::Recording;
use trace::events::Event;
use trace::Trace;

/// A file whose code ran.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Module {
    path: PathBuf,
    is_program: bool,
}

/// The selectors that named no code of any program or library.
pub fn without_code(rules: &Rules, recording: &Recording) -> Vec<Selector> {
    let all = rules.only.iter().chain(&rules.skip);
    // Code that belongs to no file may come or not.
    let mut missing: Vec<Selector> = all.filter(|s| !s.module.starts_with('[')).cloned().collect();
    if missing.is_empty() {
        return missing;
    }
    let traces = recording.traces.iter().map(|&name| Trace::open_outline(&recording.path(name)));
    // What a trace that cannot be read has is not known.
    let Ok(modules) = traces.map(|trace| trace.map(|trace| modules(&trace))).collect() else {
        return Vec::new();
    };
    let modules: Vec<BTreeSet<Module>> = modules;
    for module in modules.into_iter().flatten().collect::<BTreeSet<_>>() {
        missing.retain(|selector| !is_in(selector, &module));
    }
    missing
}

fn modules(trace: &Trace) -> BTreeSet<Module> {
    let mut all = BTreeSet::from([Module { path: trace.program.clone(), is_program: true }]);
    for event in &trace.process_events {
        if let Some(Event::Map { path, .. }) = &event.event {
            let path = PathBuf::from(OsStr::from_bytes(path));
            let is_program = path == trace.program;
            all.insert(Module { path, is_program });
        }
    }
    all
}

fn is_in(selector: &Selector, module: &Module) -> bool {
    let file = File::open(&module.path);
    let read = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.as_ref().ok()?.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let base = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut names = vec![base(&module.path)];
    names.extend(module.path.canonicalize().ok().map(|path| base(&path)));
    names.extend(soname(read));
    names.extend(module.is_program.then(|| MAIN.to_owned()));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Nobody is accused for a file that is gone.
    selector.is_of(&names)
        && (file.is_err()
            || match selector.part {
                Part::Function(_) => !selector.ranges(&names, &functions(read)).pieces().is_empty(),
                Part::Whole | Part::Range(..) => true,
            })
}
