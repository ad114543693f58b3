//! `dep prepare`: what the runtime of a recorded program runs instead of the path of an exec.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

/// The command line.
#[derive(Args)]
pub struct Arguments {
    /// The recording
    #[arg(long, value_name = "FOLDER")]
    recording: PathBuf,
    /// The program or script that is about to be started
    path: PathBuf,
}

/// Answers in one write. Whoever asks runs the path as it is if there is no answer.
pub fn run(arguments: &Arguments) -> ExitCode {
    let Arguments { recording, path } = arguments;
    let answer = record::prepare::for_recording(recording, path).to_bytes();
    match std::io::stdout().lock().write_all(&answer).and_then(|()| std::io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
