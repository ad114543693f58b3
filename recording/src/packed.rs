//! One file of a recording: a tar archive, compressed with zstd, whose first entry is `recording.json`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use crate::manifest::{self, Manifest};
use crate::{at, Error};

/// What each zstd frame starts with.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Of zstd: traces shrink to a fraction already, and more would take minutes.
const LEVEL: i32 = 1;

/// Whether the file looks as if it was made by [`pack`].
pub fn is_packed(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    // Asked first: to open a pipe may take for ever.
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && start == MAGIC
}

/// Makes `file` of the recording in `folder`. It must not exist, and is there whole or not at all. `more`:
/// files from elsewhere, each with its name in the recording.
pub fn pack(folder: &Path, file: &Path, more: &[(PathBuf, PathBuf)]) -> Result<(), Error> {
    let failed = |e: std::io::Error| at(file, format_args!("cannot write: {e}"));
    if file.symlink_metadata().is_ok() {
        return Err(at(file, "there is something of this name; give another one with -o"));
    }
    Manifest::read(folder)?;
    let parent = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut whole = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
    {
        let mut zstd =
            zstd::Encoder::new(BufWriter::new(whole.as_file_mut()), LEVEL).map_err(failed)?;
        zstd.include_checksum(true).map_err(failed)?;
        let mut tar = tar::Builder::new(zstd);
        tar.follow_symlinks(false);
        add(&mut tar, &folder.join(manifest::FILE), Path::new(manifest::FILE))?;
        for path in files(folder)? {
            if path != Path::new(manifest::FILE) {
                add(&mut tar, &folder.join(&path), &path)?;
            }
        }
        for (from, path) in more {
            add(&mut tar, from, path)?;
        }
        let zstd = tar.into_inner().map_err(failed)?;
        zstd.finish().and_then(|mut file| file.flush()).map_err(failed)?;
    }
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    whole.as_file().set_permissions(readable).map_err(failed)?;
    whole.persist_noclobber(file).map_err(|e| failed(e.error))?;
    Ok(())
}

fn add(tar: &mut tar::Builder<impl Write>, from: &Path, path: &Path) -> Result<(), Error> {
    let added = File::open(from).and_then(|mut file| tar.append_file(path, &mut file));
    added.map_err(|e| at(from, format_args!("cannot pack it: {e}")))
}

/// The regular files below a folder, relative to it, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let path = folder.join(&inner);
        for entry in std::fs::read_dir(&path).map_err(|e| at(&path, e))? {
            let entry = entry.map_err(|e| at(&path, e))?;
            let name = inner.join(entry.file_name());
            let kind = entry.file_type().map_err(|e| at(&path, e))?;
            if kind.is_dir() {
                folders.push(name);
            } else if kind.is_file() {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Makes the folder of what [`pack`] made. The folder must not exist; if the file turns out to be
/// damaged, it does not exist afterwards either.
pub fn unpack(file: &Path, folder: &Path) -> Result<(), Error> {
    std::fs::create_dir(folder).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            at(folder, "there is something of this name; give another one with -o")
        }
        _ => at(folder, format_args!("cannot make the folder: {e}")),
    })?;
    let done = unpack_into(file, folder);
    if done.is_err() {
        // What was made here a moment ago, and nothing else.
        let _ = std::fs::remove_dir_all(folder);
    }
    done
}

fn unpack_into(file: &Path, folder: &Path) -> Result<(), Error> {
    let damaged = |e: std::io::Error| {
        at(file, format_args!("damaged, truncated, or not a packed recording: {e}"))
    };
    let packed = File::open(file).map_err(|e| at(file, e))?;
    let zstd = zstd::Decoder::with_buffer(BufReader::new(packed)).map_err(damaged)?;
    let mut tar = tar::Archive::new(zstd.single_frame());
    let mut first = true;
    for entry in tar.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path().map_err(damaged)?.into_owned();
        let kind = entry.header().entry_type();
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        let is_file = matches!(kind, EntryType::Regular | EntryType::GNUSparse);
        if !is_file || !is_inside || (first && path != Path::new(manifest::FILE)) {
            return Err(at(
                file,
                format_args!("not a packed recording: it has {}", path.display()),
            ));
        }
        first = false;
        let to = folder.join(&path);
        let failed = |e: std::io::Error| at(&to, format_args!("cannot write: {e}"));
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        // What the archive's bytes are to blame for cannot be told from what the disk is: both are said.
        entry.unpack(&to).map_err(|e| {
            at(file, format_args!("cannot unpack {}: {}", path.display(), cause(&e)))
        })?;
    }
    // The rest is read to its end: the check of the contents stands there.
    let mut rest = tar.into_inner();
    std::io::copy(&mut rest, &mut std::io::sink()).map_err(damaged)?;
    match first {
        true => Err(at(file, "not a packed recording: it is empty")),
        false => Ok(()),
    }
}

/// The innermost reason: the outer ones name temporary files.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Name, VERSION};

    fn folder(at: &Path) -> PathBuf {
        let folder = at.join("a.rec");
        std::fs::create_dir_all(folder.join("traces")).expect("folders");
        let manifest = Manifest {
            version: VERSION,
            tool: "dep 0.0.0".into(),
            command: Vec::new(),
            program: Name::Text("/bin/true".into()),
            directory: Name::Text("/".into()),
            options: Vec::new(),
            rewrite: Vec::new(),
            cache: None,
            start_ns: 1,
            pid: None,
            end: None,
        };
        manifest.write(&folder).expect("written");
        let trace: Vec<u8> =
            (0..100_000u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
        std::fs::write(folder.join("traces/1.dep"), trace).expect("written");
        folder
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed_and_damage_is_seen() {
        let here = tempfile::tempdir().expect("a folder");
        let from = folder(here.path());
        let file = here.path().join("a.tar.zst");
        pack(&from, &file, &[]).expect("packed");
        assert!(pack(&from, &file, &[]).is_err());
        assert!(is_packed(&file) && !is_packed(&from) && !is_packed(&from.join("traces/1.dep")));
        let to = here.path().join("b.rec");
        unpack(&file, &to).expect("unpacked");
        for name in [manifest::FILE, "traces/1.dep"] {
            let read = |folder: &Path| std::fs::read(folder.join(name)).expect("there");
            assert_eq!(read(&from), read(&to), "{name}");
        }
        assert!(unpack(&file, &to).is_err() && to.join(manifest::FILE).is_file());

        let whole = std::fs::read(&file).expect("packed");
        let bad = here.path().join("bad.tar.zst");
        let broken = here.path().join("c.rec");
        let refused = |bytes: &[u8]| {
            std::fs::write(&bad, bytes).expect("written");
            let why = unpack(&bad, &broken).expect_err("damaged").to_string();
            assert!(!why.contains('\n') && why.contains("bad.tar.zst"), "{why}");
            assert!(!broken.exists());
        };
        for len in [4, 5, 100, whole.len() / 2, whole.len() - 4, whole.len() - 1] {
            refused(&whole[..len]);
        }
        for place in [20, whole.len() / 3, whole.len() / 2, whole.len() - 2] {
            let mut changed = whole.clone();
            changed[place] ^= 0x55;
            refused(&changed);
        }
    }

    #[test]
    fn an_archive_of_something_else_is_refused() {
        let here = tempfile::tempdir().expect("a folder");
        let file = here.path().join("x.tar.zst");
        let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).expect("zstd"));
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        tar.append_data(&mut header, "other", &b"x"[..]).expect("added");
        let bytes = tar.into_inner().expect("tar").finish().expect("zstd");
        std::fs::write(&file, bytes).expect("written");
        let why = unpack(&file, &here.path().join("x")).expect_err("refused").to_string();
        assert!(why.ends_with("not a packed recording: it has other"), "{why}");
    }
}
