//! Folders that do not outlive the command, not even if the command is interrupted.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// What goes when a signal ends this process, and who waits for that.
struct Watch {
    listener: Option<(Handle, JoinHandle<()>)>,
    /// Folders and files. Those that are gone by then stay in the list: their names are not used again.
    paths: Vec<PathBuf>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { listener: None, paths: Vec::new() });

fn watch() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A signal that ends this process removes the folder first, and what else is to go. That holds for as long as the process
/// lives, or until the folder is [kept](Guard::keeps).
pub struct Guard(());

impl Guard {
    pub fn new(folder: &Path) -> Guard {
        let mut watch = watch();
        watch.paths.push(folder.to_owned());
        if watch.listener.is_none() {
            watch.listener = listener();
        }
        Guard(())
    }

    /// The file is to be removed, too, until [`Guard::forgets`] it.
    pub fn removes(&self, file: &Path) {
        watch().paths.push(file.to_owned());
    }

    /// The file is gone.
    pub fn forgets(&self, file: &Path) {
        watch().paths.retain(|one| one != file);
    }

    /// The folder is there to stay. A signal that came before has its effect now; from here on signals do nothing, until
    /// somebody else listens to them.
    pub fn keeps(self, folder: &Path) {
        let listener = watch().listener.take();
        if let Some((handle, thread)) = listener {
            handle.close();
            let _ = thread.join();
        }
        watch().paths.retain(|one| one != folder);
    }
}

/// Waits for a signal that ends the process.
fn listener() -> Option<(Handle, JoinHandle<()>)> {
    let caught = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|&s| !crate::caller::ignores(s));
    let mut signals = Signals::new(caught).ok()?;
    let handle = signals.handle();
    let thread = std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for path in &watch().paths {
                // The one or the other.
                let _ = std::fs::remove_dir_all(path);
                let _ = std::fs::remove_file(path);
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Some((handle, thread))
}
