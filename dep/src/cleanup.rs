//! A folder that does not outlive the command, not even if the command is interrupted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// While it lives, a signal that ends this process removes the folder first, and what else is to go. Afterwards
/// the signals do nothing more, until somebody else listens to them.
pub struct Guard {
    listener: Option<(Handle, JoinHandle<()>)>,
    others: Arc<Mutex<Vec<PathBuf>>>,
}

impl Guard {
    pub fn new(folder: &Path) -> Guard {
        let caught = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|&s| !crate::caller::ignores(s));
        let others = Arc::new(Mutex::new(Vec::<PathBuf>::new()));
        let Ok(mut signals) = Signals::new(caught) else {
            return Guard { listener: None, others };
        };
        let files = Arc::clone(&others);
        let handle = signals.handle();
        let folder = folder.to_owned();
        let thread = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _ = std::fs::remove_dir_all(folder);
                for file in files.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    let _ = std::fs::remove_file(file);
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        Guard { listener: Some((handle, thread)), others }
    }

    /// The file is to be removed, too, until [`Guard::forgets`] it.
    pub fn removes(&self, file: &Path) {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).push(file.to_owned());
    }

    /// The file is gone.
    pub fn forgets(&self, file: &Path) {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| one != file);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.listener.take() {
            handle.close();
            // A signal that came before has its effect now, and none when the folder is in use.
            let _ = thread.join();
        }
    }
}
