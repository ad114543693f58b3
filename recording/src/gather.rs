//! Brings the files that ran into the recording, so that it can be read when the cache is gone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::ids::OrigAddr;
use trace::events::Event;
use trace::output::{identity_name, OutputFile, Translation};
use trace::Trace;

use crate::folder::{places, LIBRARIES, PROGRAMS};
use crate::{at, Error};

/// Files that traces need, by their identity: where they were when they ran.
#[derive(Default, Debug)]
pub struct Needed {
    programs: BTreeMap<[u64; 2], PathBuf>,
    libraries: BTreeMap<[u64; 2], PathBuf>,
}

impl Needed {
    /// Adds what a trace needs.
    pub fn add(&mut self, trace: &Trace) {
        if let Some(statics) = trace.statics {
            self.programs.entry(statics.identity).or_insert_with(|| trace.program.clone());
        }
        for event in &trace.process_events {
            if let Some(Event::Library { identity, address: OrigAddr(0), path, .. }) = &event.event
            {
                let path = || PathBuf::from(OsStr::from_bytes(path));
                self.libraries.entry(*identity).or_insert_with(path);
            }
        }
    }

    /// Sees that the folder has all of them. Returns a line for each that is not to be had: the
    /// traces that need it cannot be read any more.
    pub fn gather(&self, folder: &Path) -> Vec<Error> {
        let mut lost = Vec::new();
        for (identity, path) in &self.programs {
            lost.extend(program(folder, path, *identity).err());
        }
        for (identity, path) in &self.libraries {
            lost.extend(library(folder, path, *identity).err());
        }
        lost
    }
}

fn program(folder: &Path, path: &Path, identity: [u64; 2]) -> Result<(), Error> {
    let own = folder.join(PROGRAMS).join(identity_name(identity));
    let kept = places(folder).program(path, identity);
    if kept.starts_with(&own) && OutputFile::open(&kept, identity).is_ok() {
        return Ok(());
    }
    // It may have been replaced since it ran.
    OutputFile::open(path, identity)?;
    let name = path.file_name().unwrap_or(OsStr::new("program"));
    take(path, &own, name)
}

fn library(folder: &Path, path: &Path, identity: [u64; 2]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or(OsStr::new("library"));
    let libraries = folder.join(LIBRARIES);
    let own = libraries.join(identity_name(identity));
    let is_kept = |path: PathBuf| Translation::is_pack(&path, identity);
    if is_kept(libraries.join(name)) || is_kept(own.join(name)) {
        return Ok(());
    }
    Translation::open_pack(path, identity)?;
    // Another translation of the same library may have the name.
    match libraries.join(name).exists() {
        false => take(path, &libraries, name),
        true => take(path, &own, name),
    }
}

/// A hard link costs nothing; where there can be none, a copy, which is there whole or not at all.
fn take(file: &Path, folder: &Path, name: &OsStr) -> Result<(), Error> {
    let failed =
        |e: std::io::Error| at(file, format_args!("cannot keep it in {}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let to = folder.join(name);
    if std::fs::hard_link(file, &to).is_ok() {
        return Ok(());
    }
    let mut copy = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mut from = std::fs::File::open(file).map_err(failed)?;
    std::io::copy(&mut from, copy.as_file_mut()).map_err(failed)?;
    let permissions = from.metadata().map_err(failed)?.permissions();
    copy.as_file().set_permissions(permissions).map_err(failed)?;
    match copy.persist_noclobber(&to) {
        Ok(_) => Ok(()),
        // Somebody else has just done the same.
        Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(failed(e.error)),
    }
}
