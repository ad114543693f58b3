//! The files of a recording that its traces need: links to what is in the cache.

use crate::program::Program;
use rewriter::shared::{state_of, Pack};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use store::{Hash, Stamp};

/// An identity as a name: 32 hexadecimal digits.
pub fn identity_name([a, b]: [u64; 2]) -> String {
    format!("{a:016x}{b:016x}")
}

/// Keeps a program and the translations that it uses in the recording at `folder`. Returns the path at
/// which the program may be started: in the recording, unless nothing may be executed there.
pub fn keep(folder: &Path, program: &Program) -> Result<PathBuf> {
    let name = program.output.file_name().unwrap_or("program".as_ref());
    let own = folder.join("programs").join(identity_name(program.identity));
    // If it cannot be made, or is there: the link says so.
    let _ = std::fs::create_dir(&own);
    let kept = own.join(name);
    take(&program.output, &kept, program.stamp.ino)?;
    for pack in &program.packs {
        keep_pack(folder, pack)?;
    }
    let mounted = rustix::fs::statvfs(folder)?;
    match mounted.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        true => Ok(program.output.clone()),
        false => Ok(kept),
    }
}

/// Notes in the recording at `folder` which program an output was made of: a replay needs it.
pub fn note_original(folder: &Path, program: &Program) -> Result<()> {
    let notes = folder.join("originals/programs");
    let note = notes.join(identity_name(program.identity));
    if note.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&notes)?;
    write_whole(&note, program.exe.as_os_str().as_bytes())
}

/// Keeps the original of a program in the recording at `folder`, as `dep pack` does: its contents are these, as long as
/// nobody writes to it. `opened`: a path that leads to it now.
pub fn keep_original(folder: &Path, original: &Path, opened: &Path, content: &Hash) -> Result<()> {
    let own = folder.join("originals").join(content.as_str());
    let kept = own.join(original.file_name().unwrap_or("program".as_ref()));
    if kept.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&own)?;
    let temporary = own.join(format!(".{}", std::process::id()));
    let copied = std::fs::copy(opened, &temporary).and_then(|_| {
        // Who may read it or start it, may do so here, with no other rights than their own.
        let mode = 0o600 | temporary.metadata()?.mode() & 0o755;
        std::fs::set_permissions(&temporary, Permissions::from_mode(mode))?;
        match Hash::of_reader(File::open(&temporary)?)? == *content {
            true => std::fs::rename(&temporary, &kept),
            false => Err(ErrorKind::InvalidData.into()),
        }
    });
    let _ = std::fs::remove_file(&temporary);
    copied
}

/// The file is there whole or not at all, whoever else writes the same.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_file_name(format!(".{}", std::process::id()));
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(&temporary, path)
}

/// Has the programs of the recording at `folder` know the answer for `path` without asking, as long as the files that it
/// depends on are as they were. Whether it can be written changes nothing.
pub fn remember_answer(
    folder: &Path,
    path: &Path,
    depends: &[(PathBuf, Option<Stamp>)],
    answer: &[u8],
) {
    let state = |stamp: &Option<Stamp>| stamp.as_ref().map(state_of);
    // (Of another path than the one that was asked for it would never be found.)
    let Some((first, Some(asked))) = depends.first().map(|(first, of)| (first, state(of))) else {
        return;
    };
    if first != path || !path.is_absolute() {
        return;
    }
    let files = depends.iter().map(|(path, stamp)| (path.as_os_str().as_bytes(), state(stamp)));
    let bytes = abi::answer::encode(files, answer);
    let to = folder.join(abi::answer::name(path.as_os_str().as_bytes(), asked));
    let answers = folder.join(abi::answer::FOLDER);
    let _ = std::fs::create_dir_all(&answers).and_then(|()| write_whole(&to, &bytes));
}

/// Another translation of the same library may have the name: then it has a folder of its own.
fn keep_pack(folder: &Path, pack: &Pack) -> Result<()> {
    let libraries = folder.join("libraries");
    let name = pack.path.file_name().unwrap_or("library".as_ref());
    let kept = libraries.join(name);
    if take(&pack.path, &kept, pack.stamp.ino)? || is_pack(&kept, pack.identity) {
        return Ok(());
    }
    let own = libraries.join(identity_name(pack.identity)).join(name);
    take(&pack.path, &own, pack.stamp.ino).map(drop)
}

fn is_pack(path: &Path, identity: [u64; 2]) -> bool {
    let mut bytes = [0; abi::library::HEADER_SIZE];
    let read =
        File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    let header = read.ok().and_then(|()| abi::library::PackHeader::from_bytes(&bytes));
    header.is_some_and(|header| header.identity == identity)
}

/// Links `from`, whose inode is `ino`, or copies it where it cannot be linked. Says whether `to` is that
/// file now; a file that was there before and is another stays.
fn take(from: &Path, to: &Path, ino: u64) -> Result<bool> {
    let link = || std::fs::hard_link(from, to);
    let linked = match link() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(to.parent().unwrap_or(Path::new(".")))?;
            link()
        }
        other => other,
    };
    match linked {
        Ok(()) => return Ok(true),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            return Ok(std::fs::symlink_metadata(to)?.ino() == ino);
        }
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(e),
        Err(_) => {}
    }
    // Another file system, too many links, or links to files of others are not allowed.
    let source = File::open(from)?;
    let unique =
        Hash::of(format!("{}{:?}", std::process::id(), std::time::Instant::now()).as_bytes());
    let temporary = to.with_file_name(format!(".{unique}"));
    let copied = std::fs::copy(from, &temporary).and_then(|_| {
        std::fs::set_permissions(&temporary, source.metadata()?.permissions())?;
        match std::fs::hard_link(&temporary, to) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            // Where there are no links at all.
            Err(_) => std::fs::rename(&temporary, to),
            Ok(()) => Ok(()),
        }
    });
    let _ = std::fs::remove_file(&temporary);
    copied.map(|()| true)
}

/// Puts a line into the notes of the recording at `folder`, once. Whether it can be written changes
/// nothing: it is about what could not be done.
pub fn note(folder: &Path, line: &str) {
    let notes = folder.join("notes");
    let path = notes.join(format!("cache-{}", &Hash::of(line.as_bytes()).as_str()[..8]));
    if !path.exists() {
        let _ = std::fs::create_dir_all(&notes);
        let _ = std::fs::write(path, format!("{line}\n"));
    }
}
