//! What a terminal shows while something takes long.

use std::io::IsTerminal;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What a terminal shows while it takes long.
pub struct Progress(Option<(ProgressBar, Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// What is quicker than this comes out of the cache.
    const LONG: Duration = Duration::from_millis(300);

    /// Until [`Progress::finish`] it says `what`.
    pub fn start(what: String) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::default_spinner());
        let (done, wait) = channel();
        let drawn = bar.clone();
        let thread = std::thread::spawn(move || {
            if wait.recv_timeout(Progress::LONG) == Err(RecvTimeoutError::Timeout) {
                drawn.set_draw_target(ProgressDrawTarget::stderr());
                drawn.set_message(what);
                drawn.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Progress(Some((bar, done, thread)))
    }

    pub fn finish(self) {
        let Some((bar, done, thread)) = self.0 else { return };
        drop(done);
        let _ = thread.join();
        bar.finish_and_clear();
    }
}
