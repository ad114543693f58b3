//! Where gdb finds the libraries of the recorded process.
//!
//! Those of this machine serve if they are the ones that were recorded. Where other files stand for
//! them, as in a packed recording, gdb is given a folder that has links to all that were mapped: by their
//! paths, and by the names under which others ask for them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use trace::events::Event;
use trace::Error;

use crate::replay::Ready;

/// gdb's commands that say where the libraries are.
pub fn commands(ready: &Ready) -> Result<Vec<String>, Error> {
    let mut all = files(ready)?;
    if ready.script.header.alone != 0 {
        // A thread may never have looked at the list that ld.so has of them.
        all.extend(libraries(ready));
    }
    Ok(all)
}

/// The commands that load the libraries where they were mapped.
fn libraries(ready: &Ready) -> Vec<String> {
    let trace = ready.lineage.first();
    let traces = ready.lineage.traces();
    let events = traces.iter().flat_map(|trace| &trace.process_events);
    let mut all = Vec::new();
    for event in events.filter_map(|placed| placed.event.as_ref()) {
        let Event::Map { start, offset, path, .. } = event else { continue };
        let path = Path::new(OsStr::from_bytes(path));
        if path == trace.program || path.as_os_str().is_empty() {
            continue;
        }
        let file = ready.file(path);
        let Some(mapped) = address_of(&file, *offset) else { continue };
        let distance = start.0.wrapping_sub(mapped);
        let command =
            format!("with confirm off -- add-symbol-file {} -o {distance:#x}", file.display());
        if !all.contains(&command) {
            all.push(command);
        }
    }
    all
}

/// Which address of the file's own is mapped from this offset on.
fn address_of(file: &Path, offset: u64) -> Option<u64> {
    let bytes = std::fs::read(file).ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
    let endian = elf.endian();
    let mut loaded = elf
        .elf_program_headers()
        .iter()
        .filter(|header| header.p_type(endian) == object::elf::PT_LOAD);
    let from = |header: &&_| {
        let header: &object::elf::ProgramHeader64<object::Endianness> = header;
        header.p_offset(endian) / PAGE * PAGE
    };
    let end = |header: &&_| {
        let header: &object::elf::ProgramHeader64<object::Endianness> = header;
        header.p_offset(endian) + header.p_filesz(endian)
    };
    let header = loaded.find(|header| (from(header)..end(header)).contains(&offset))?;
    Some(header.p_vaddr(endian).wrapping_add(offset).wrapping_sub(header.p_offset(endian)))
}

/// What the kernel tells a program of where it lies, made of what was recorded.
pub fn auxiliary_vector(ready: &Ready) -> Result<Vec<u8>, Error> {
    let trace = ready.lineage.first();
    let events = || trace.process_events.iter().filter_map(|placed| placed.event.as_ref());
    let start = events().find_map(|event| match event {
        Event::Map { start, path, .. } => {
            let is_program = **path == *trace.program.as_os_str().as_bytes();
            is_program.then_some(start.0)
        }
        _ => None,
    });
    let interpreter = events().find_map(|event| match event {
        Event::Layout { interpreter, .. } => Some(interpreter.0),
        _ => None,
    });
    let failed = |e: &dyn std::fmt::Display| Error(format!("{}: {e}", ready.original.display()));
    let bytes = std::fs::read(&ready.original).map_err(|e| failed(&e))?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).map_err(|e| failed(&e))?;
    let (endian, header) = (elf.endian(), elf.elf_header());
    let first = address_of(&ready.original, 0).unwrap_or(0);
    let distance = start.unwrap_or(first).wrapping_sub(first);
    let headers = header.e_phoff(endian).wrapping_add(first);
    let words = [
        (AT_PHDR, headers.wrapping_add(distance)),
        (AT_PHENT, header.e_phentsize(endian).into()),
        (AT_PHNUM, header.e_phnum(endian).into()),
        (AT_PAGESZ, PAGE),
        (AT_BASE, interpreter.unwrap_or(0)),
        (AT_ENTRY, header.e_entry(endian).wrapping_add(distance)),
        (AT_NULL, 0),
    ];
    Ok(words.iter().flat_map(|(kind, value)| [*kind, *value]).flat_map(u64::to_le_bytes).collect())
}

const PAGE: u64 = 4096;
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_PAGESZ: u64 = 6;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

fn files(ready: &Ready) -> Result<Vec<String>, Error> {
    if ready.files().iter().all(|(recorded, file)| recorded == file) {
        return Ok(vec!["set sysroot /".into()]);
    }
    let folder = ready.folder.join("libraries");
    let (paths, names) = links(ready.files());
    make(&folder, paths, names).map_err(|e| Error(format!("{}: {e}", folder.display())))?;
    let by_name = folder.join(NAMES);
    Ok(vec![
        format!("set sysroot {}", folder.join(PATHS).display()),
        format!("set solib-search-path {}", by_name.display()),
    ])
}

const PATHS: &str = "paths";
const NAMES: &str = "names";

/// Files by their paths.
type Paths = BTreeMap<PathBuf, PathBuf>;
/// Files by their names; `None`: several have that one.
type Names = BTreeMap<OsString, Option<PathBuf>>;

fn links(files: &[(PathBuf, PathBuf)]) -> (Paths, Names) {
    let (mut paths, mut names) = (Paths::new(), Names::new());
    for (recorded, file) in files {
        let soname = soname(file);
        let own = recorded.file_name().map(OsStr::to_owned);
        for name in own.iter().chain(&soname) {
            let path = recorded.with_file_name(name);
            // Programs ask for libraries in /lib, which leads to /usr/lib.
            if let Ok(rest) = path.strip_prefix("/usr") {
                paths.entry(Path::new("/").join(rest)).or_insert_with(|| file.clone());
            }
            paths.entry(path).or_insert_with(|| file.clone());
            let of_name = names.entry(name.clone()).or_insert_with(|| Some(file.clone()));
            if of_name.as_ref() != Some(file) {
                *of_name = None;
            }
        }
    }
    (paths, names)
}

fn make(folder: &Path, paths: Paths, names: Names) -> std::io::Result<()> {
    let by_name =
        names.into_iter().filter_map(|(name, file)| Some((Path::new("/").join(name), file?)));
    for (kind, links) in [(PATHS, paths), (NAMES, by_name.collect())] {
        let folder = folder.join(kind);
        for (path, file) in links {
            let Ok(path) = path.strip_prefix("/") else { continue };
            let link = folder.join(path);
            link.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::os::unix::fs::symlink(std::path::absolute(file)?, link)?;
        }
    }
    Ok(())
}

/// The name under which others ask for a library.
fn soname(file: &Path) -> Option<OsString> {
    let bytes = std::fs::read(file).ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let (entries, strings) = sections.dynamic(endian, &*bytes).ok()??;
    let strings = sections.strings(endian, &*bytes, strings).ok()?;
    let entry = entries.iter().find(|e| e.d_tag(endian) == object::elf::DT_SONAME)?;
    let name = strings.get(entry.val32(endian)?).ok()?;
    // A name, and no path out of the folder.
    let name = Path::new(OsStr::from_bytes(name)).file_name()?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_paths_and_names() {
        let of = |path: &str, file: &str| (PathBuf::from(path), PathBuf::from(file));
        let files = [
            of("/usr/lib/a.so", "/pack/1"),
            of("/opt/b.so", "/pack/2"),
            of("/srv/b.so", "/pack/3"),
        ];
        let (paths, names) = links(&files);
        let file = |path: &str| paths.get(Path::new(path)).and_then(|file| file.to_str());
        assert_eq!((file("/usr/lib/a.so"), file("/lib/a.so")), (Some("/pack/1"), Some("/pack/1")));
        assert_eq!((file("/opt/b.so"), file("/srv/b.so")), (Some("/pack/2"), Some("/pack/3")));
        let name = |name: &str| names.get(OsStr::new(name)).cloned().flatten();
        assert_eq!((name("a.so"), name("b.so")), (Some("/pack/1".into()), None));
    }

    #[test]
    fn links_lead_to_the_files() {
        let here = tempfile::tempdir().expect("a folder");
        let file = here.path().join("file");
        std::fs::write(&file, "contents").expect("a file");
        let (paths, names) = links(&[(PathBuf::from("/usr/lib/a.so"), file)]);
        let folder = here.path().join("libraries");
        make(&folder, paths, names).expect("links");
        for link in ["paths/usr/lib/a.so", "paths/lib/a.so", "names/a.so"] {
            let contents = std::fs::read_to_string(folder.join(link)).expect("a file");
            assert_eq!(contents, "contents", "{link}");
        }
    }
}
