//! A folder that does not outlive the command, not even if the command is interrupted.

use std::path::Path;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// While it lives, a signal that ends this process removes the folder first. Afterwards the signals do
/// nothing more, until somebody else listens to them.
pub struct Guard(Option<(Handle, JoinHandle<()>)>);

impl Guard {
    pub fn new(folder: &Path) -> Guard {
        let caught = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|&s| !crate::caller::ignores(s));
        let Ok(mut signals) = Signals::new(caught) else { return Guard(None) };
        let handle = signals.handle();
        let folder = folder.to_owned();
        let thread = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _ = std::fs::remove_dir_all(folder);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        Guard(Some((handle, thread)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.0.take() {
            handle.close();
            // A signal that came before has its effect now, and none when the folder is in use.
            let _ = thread.join();
        }
    }
}
