//! `--dump-signal`: what is kept of the processes that run is written down when somebody asks for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::signal::Signal;
use recording::Recording;

use super::child::{Answer, PASSED_ON};
use crate::control::dump_to;

/// A signal as users write it; one of those that `dep record` passes on otherwise.
pub fn signal(text: &str) -> Result<i32, String> {
    let known = |name: &str| Signal::from_str(name).ok().map(|signal| signal as i32);
    let number = text.parse().ok().or_else(|| known(text)).or_else(|| known(&format!("SIG{text}")));
    number.filter(|number| PASSED_ON.contains(number)).ok_or_else(|| {
        let all = PASSED_ON.iter().filter_map(|&number| Signal::try_from(number).ok());
        let all: Vec<_> = all.map(|signal| signal.as_str().trim_start_matches("SIG")).collect();
        format!("expected one of {}", all.join(", "))
    })
}

/// Writes what is kept of each process of the recording in `folder` that runs, to a file in `directory`.
pub fn of(folder: &Path, directory: &Path) -> Answer {
    let (folder, directory) = (folder.to_owned(), directory.to_owned());
    Box::new(move || all(&folder, &directory))
}

fn all(folder: &Path, directory: &Path) {
    let recording = match Recording::open(folder) {
        Ok(recording) => recording,
        Err(error) => return say!("{error}"),
    };
    let pids: BTreeSet<u64> = recording.traces.iter().map(|name| name.pid).collect();
    let runs = |pid: &u64| Path::new("/proc").join(pid.to_string()).exists();
    for pid in pids.into_iter().filter(runs) {
        let Ok(number) = u32::try_from(pid) else { continue };
        let path = free(directory, number);
        match dump_to(number, &path) {
            Ok(line) => say!("{line}: {}", path.display()),
            Err(error) => say!("{error}"),
        }
    }
}

/// A name that nobody has: `PID.dump.dep`, `PID.1.dump.dep`, ...
fn free(directory: &Path, pid: u32) -> PathBuf {
    let name = |number: u32| match number {
        0 => directory.join(format!("{pid}.dump.dep")),
        number => directory.join(format!("{pid}.{number}.dump.dep")),
    };
    let mut paths = (0..u32::MAX).map(name).filter(|path| path.symlink_metadata().is_err());
    paths.next().unwrap_or_else(|| name(0))
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["USR2", "SIGUSR2", "12"] {
            assert_eq!(signal(text), Ok(12), "{text}");
        }
        for bad in ["", "KILL", "9", "SEGV", "SIG", "0", "usr2 "] {
            assert!(signal(bad).is_err(), "{bad}");
        }
    }
}
