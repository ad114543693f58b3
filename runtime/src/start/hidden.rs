//! What the recorder has put into the program's environment: it is read, and taken out again.

use crate::base::lineage::{Lineage, EXE, EXECFN, NAME, OF_RECORDING};
use crate::base::sys::{self, nr};
use crate::start::stack::{at, Start};
use alloc::ffi::CString;
use alloc::vec::Vec;

/// What a set-user-id program is told is not to be trusted.
fn is_trusted(start: &Start) -> bool {
    start.get(at::SECURE).unwrap_or(0) == 0
}

/// What the environment says of where the program comes from.
pub fn read(start: &Start) -> Lineage {
    if !is_trusted(start) {
        return Lineage::default();
    }
    let value = |name: &str| start.environment(name).filter(|value| !value.is_empty());
    let mut lineage = Lineage { exe: value(EXE).map(Into::into), ..Lineage::default() };
    let Some(recorder) = value("DEP_RECORDER") else { return lineage };
    let follows = start.environment("DEP_FOLLOW").is_none_or(|value| value != c"0");
    lineage.recorder = follows.then(|| recorder.into());
    lineage.recording = value("DEP_RECORDING").map(Into::into);
    let here = working_directory();
    for name in OF_RECORDING {
        let given = value(name).map(|value| value.to_bytes());
        let value = match (name, given) {
            ("DEP_FILE", given) => Some(pattern(given, &here)),
            ("DEP_CACHE", None) => cache(start),
            ("DEP_CACHE", Some(folder)) => Some(absolute(folder, &here)),
            ("DEP_LIBRARIES", Some(folders)) => {
                let folders = folders.split(|&byte| byte == b':');
                let folders: Vec<_> = folders
                    .filter(|folder| !folder.is_empty())
                    .map(|folder| absolute(folder, &here))
                    .collect();
                Some(folders.join(&b':'))
            }
            (_, given) => given.map(Into::into),
        };
        let Some(value) = value else { continue };
        let text = [name.as_bytes(), b"=", &value].concat();
        lineage.variables.extend(CString::new(text));
    }
    lineage
}

/// The trace's pattern, for programs that run elsewhere.
fn pattern(given: Option<&[u8]>, here: &[u8]) -> Vec<u8> {
    let given = given.unwrap_or(b"%e.%p.dep");
    if given.starts_with(b"/") || given == b"null:" {
        return given.into();
    }
    let mut all = Vec::new();
    for &byte in here {
        all.push(byte);
        if byte == b'%' {
            all.push(byte);
        }
    }
    all.push(b'/');
    all.extend_from_slice(given);
    all
}

/// The recorder's cache, as the first program's environment has it: later ones may have no HOME.
fn cache(start: &Start) -> Option<Vec<u8>> {
    let value = |name: &str| start.environment(name).map(|value| value.to_bytes());
    let absolute = |folder: &&[u8]| folder.starts_with(b"/");
    if let Some(folder) = value("XDG_CACHE_HOME").filter(absolute) {
        return Some([folder, b"/deprewrite"].concat());
    }
    value("HOME").filter(absolute).map(|home| [home, b"/.cache/deprewrite"].concat())
}

fn absolute(path: &[u8], here: &[u8]) -> Vec<u8> {
    match path.starts_with(b"/") {
        true => path.into(),
        false => [here, b"/", path].concat(),
    }
}

fn working_directory() -> Vec<u8> {
    let mut buffer = alloc::vec![0u8; 4096];
    // SAFETY: the kernel fills the buffer.
    let len = unsafe { sys::call(nr::GETCWD, &[buffer.as_mut_ptr() as usize, buffer.len()]) };
    // With the zero behind it. The root's path would double the slash.
    buffer.truncate(len.unwrap_or(1).saturating_sub(1));
    if buffer == b"/" {
        buffer.clear();
    }
    buffer
}

/// Makes the program look as the one that was asked for, and takes the variables out.
pub fn hide(start: &Start) {
    if !is_trusted(start) {
        return;
    }
    if let Some(path) = start.environment(EXECFN).filter(|path| !path.is_empty()) {
        // The string stays where it is.
        start.set(at::EXECFN, path.as_ptr() as u64);
        set_name(start.environment(NAME).unwrap_or(path).to_bytes());
    }
    if start.environment("DEP_RECORDER").is_some() {
        for name in OF_RECORDING {
            start.remove(name);
        }
    }
    for name in [EXECFN, NAME, EXE] {
        start.remove(name);
    }
}

/// The name of the process, as the kernel makes it of the path.
fn set_name(path: &[u8]) {
    const PR_SET_NAME: usize = 15;
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let mut zero_terminated = [0u8; 16];
    for (to, from) in zero_terminated[..15].iter_mut().zip(name) {
        *to = *from;
    }
    // SAFETY: the kernel reads a zero-terminated name.
    let _ = unsafe { sys::call(nr::PRCTL, &[PR_SET_NAME, zero_terminated.as_ptr() as usize]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    /// A stack as the kernel leaves it, with what lies behind it.
    fn stack(environment: &[&CStr]) -> Vec<u64> {
        let mut words = alloc::vec![1, c"program".as_ptr() as u64, 0];
        words.extend(environment.iter().map(|entry| entry.as_ptr() as u64));
        words.extend([0, at::SECURE, 0, at::EXECFN, c"/cache/program".as_ptr() as u64, 0, 0, 77]);
        words
    }

    #[test]
    fn what_is_removed_leaves_the_rest_in_order() {
        let environment =
            [c"A=1", c"DEP_EXE=/bin/x", c"B=2", c"DEP_EXECFN=x", c"DEP_EXECUTOR=3", c"C="];
        let mut words = stack(&environment);
        let start = Start { stack: words.as_mut_ptr(), argc: 1 };
        start.remove(EXE);
        start.remove(EXECFN);
        start.remove("DEP_FILE");
        assert_eq!(start.get(at::SECURE), Some(0));
        assert!(start.get(at::EXECFN).is_some() && start.environment(EXE).is_none());
        let kept: Vec<_> = [0, 2, 4, 5].map(|i: usize| environment[i].as_ptr() as u64).into();
        assert_eq!(words[3..7], kept);
        assert_eq!((words[7], words[8], words[12], words[13]), (0, at::SECURE, 0, 0));
        assert_eq!((words[1], words.last().copied()), (stack(&[])[1], Some(77)));
    }

    #[test]
    fn the_last_one_of_a_name_is_the_recorders() {
        let environment = [c"DEP_EXE=/program/s", c"A=1", c"DEP_EXE=/recorder/s"];
        let mut words = stack(&environment);
        let start = Start { stack: words.as_mut_ptr(), argc: 1 };
        assert_eq!(start.environment(EXE), Some(c"/recorder/s"));
        start.remove(EXE);
        assert_eq!(start.environment(EXE), Some(c"/program/s"));
    }

    #[test]
    fn a_pattern_is_good_in_every_directory() {
        assert_eq!(pattern(Some(b"%p.dep"), b"/a%b"), b"/a%%b/%p.dep");
        assert_eq!(pattern(None, b""), b"/%e.%p.dep");
        assert_eq!(pattern(Some(b"null:"), b"/a"), b"null:");
        assert_eq!(pattern(Some(b"/t/%p"), b"/a"), b"/t/%p");
    }
}
