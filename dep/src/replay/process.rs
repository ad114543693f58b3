//! The process that replays.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use abi::script::{Outcome, Verdict, OUTCOME_SIZE, TAKEN};
use replay::Script;
use trace::Error;

use super::ready::Ready;

/// What a replay is to do besides.
#[derive(Default)]
pub struct Besides {
    /// What the program wrote to its standard output and error goes to ours.
    pub output: bool,
    /// The trace that it leaves.
    pub trace: Option<PathBuf>,
    /// Chunks of the trace that are written before the first one has been read; then one for each that was. None: all.
    pub ahead: Option<usize>,
    /// The processes that it forks are replayed with it: the descriptor of the pipe with the tokens.
    pub tree: Option<RawFd>,
    /// The pages of the snapshot that it never touches go to this descriptor, which it inherits.
    pub untouched: Option<RawFd>,
}

/// How often a replay is started before what is in its way counts.
const TRIES: u32 = 3;

/// How it ended.
pub struct Finished {
    /// As it said itself.
    pub outcome: Outcome,
    /// What it said besides.
    pub text: String,
}

/// Runs `output` under the script: how it ended.
pub fn run(ready: &Ready, output: &Path, besides: &Besides) -> Result<Finished, Error> {
    let (all, status) = run_all(ready, output, besides)?;
    first(all, status)
}

/// Runs `output` under the script, and what it forks under theirs: how each ended that said so. Where the kernel has placed
/// something in their way, which is rare, it is tried again.
pub fn run_all(
    ready: &Ready,
    output: &Path,
    besides: &Besides,
) -> Result<(Vec<Finished>, ExitStatus), Error> {
    let mut all = start(ready, output, besides)?.wait()?;
    for _ in 1..TRIES {
        // What it has shown cannot be taken back.
        if besides.output || !all.0.iter().any(Finished::met_something) {
            break;
        }
        if let Some(trace) = &besides.trace {
            let _ = std::fs::remove_file(trace);
        }
        all = start(ready, output, besides)?.wait()?;
    }
    Ok(all)
}

/// What the process says of itself that forked the others.
fn first(all: Vec<Finished>, status: ExitStatus) -> Result<Finished, Error> {
    all.into_iter().find(|finished| finished.outcome.member == 0).ok_or_else(|| unsaid(status))
}

/// A replay on its way.
pub struct Running {
    child: Mutex<Child>,
    says: Mutex<PipeReader>,
    over: AtomicBool,
    /// It writes a chunk for each byte in it.
    pace: Option<PipeWriter>,
}

/// Starts a program that may have been written just now. While it was, another thread may have started a process, which has
/// it open for writing, too, for the moment until it executes its own program.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    const TRIES: usize = 500;
    const EACH: Duration = Duration::from_millis(10);
    for _ in 1..TRIES {
        match command.spawn() {
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => std::thread::sleep(EACH),
            done => return done,
        }
    }
    command.spawn()
}

/// Starts `output` under the script.
pub fn start(ready: &Ready, output: &Path, besides: &Besides) -> Result<Running, Error> {
    let failed = |what: &str, e: std::io::Error| Error(format!("{what}: {e}"));
    let (read, write) = std::io::pipe().map_err(|e| failed("cannot make a pipe", e))?;
    let mut command = Command::new(output);
    // Nothing is read, so the place of the standard input is free: nobody else inherits the pipe.
    command
        .env_clear()
        .env("DEP_REPLAY", &ready.script_path)
        .env("DEP_REPLAY_RESULT", "0")
        .env("DEP_FOLLOW", "0")
        .stdin(Stdio::from(write));
    if let Some(tokens) = besides.tree {
        command.env("DEP_REPLAY_TREE", tokens.to_string());
    }
    if let Some(untouched) = besides.untouched {
        command.env("DEP_REPLAY_UNTOUCHED", untouched.to_string());
    }
    match besides.output {
        // What its ancestors wrote is theirs.
        true => command.env("DEP_REPLAY_OUTPUT", ready.lineage.traces().len().to_string()),
        false => command.stdout(Stdio::null()),
    };
    // Nothing is written there, either.
    let pace = match besides.ahead {
        Some(ahead) if !besides.output => {
            let (paced, mut pace) = std::io::pipe().map_err(|e| failed("cannot make a pipe", e))?;
            pace.write_all(&vec![b'+'; ahead]).map_err(|e| failed("cannot fill a pipe", e))?;
            command.env("DEP_REPLAY_PACE", "1").stdout(Stdio::from(paced));
            Some(pace)
        }
        _ => None,
    };
    match &besides.trace {
        Some(trace) => command.env("DEP_FILE", escaped(trace)),
        None => command.env("DEP_FILE", "null:"),
    };
    let child = spawn(&mut command);
    drop(command);
    let child = child.map_err(|e| failed(&format!("cannot run {}", output.display()), e))?;
    let (child, says, over) = (Mutex::new(child), Mutex::new(read), AtomicBool::new(false));
    Ok(Running { child, says, over, pace })
}

impl Running {
    /// Waits for its end: what it says of itself.
    pub fn finish(&self) -> Result<Finished, Error> {
        let (all, status) = self.wait()?;
        first(all, status)
    }

    /// Waits for its end: what it and the processes that it forked say of themselves.
    fn wait(&self) -> Result<(Vec<Finished>, ExitStatus), Error> {
        let failed = |what: &str, e: std::io::Error| Error(format!("{what}: {e}"));
        let mut said = Vec::new();
        let heard = {
            let mut says = self.says.lock().unwrap_or_else(PoisonError::into_inner);
            says.read_to_end(&mut said)
        };
        let status = self.child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        self.over.store(true, SeqCst);
        let status = status.map_err(|e| failed("cannot wait for the replay", e))?;
        heard.map_err(|e| failed("cannot hear how the replay ended", e))?;
        let mut all = Vec::new();
        let mut rest = &said[..];
        while let Some(outcome) = Outcome::from_bytes(rest) {
            let text = usize::try_from(outcome.text).ok();
            let Some(text) = text.and_then(|len| rest[OUTCOME_SIZE..].get(..len)) else { break };
            rest = &rest[OUTCOME_SIZE + text.len()..];
            let text = String::from_utf8_lossy(text).trim_end().replace('\n', " ");
            all.push(Finished { outcome, text });
        }
        Ok((all, status))
    }

    /// Whether it has ended, and somebody who waited knows it.
    pub fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// It may write one more chunk.
    pub fn may_go_on(&self) {
        // It may have ended.
        let _ = self.pace.as_ref().map(|mut pace| pace.write_all(b"+"));
    }

    /// Nobody wants more of it.
    pub fn kill(&self) {
        // (Once it was waited for, this does nothing.)
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

/// The replay ended without a word.
pub fn unsaid(status: ExitStatus) -> Error {
    Error(format!("the replay did not say how it ended: {}", ended(status)))
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".into(),
    }
}

/// A path, for a pattern.
fn escaped(path: &Path) -> std::ffi::OsString {
    crate::recorder::escaped(path)
}

impl Finished {
    /// Whether there was something at addresses that the recorded program used.
    fn met_something(&self) -> bool {
        self.outcome.verdict == Verdict::Impossible && self.text.contains(TAKEN)
    }

    /// Whether the replay did what the recording did, as far as that goes.
    pub fn is_equal(&self, script: &Script) -> bool {
        match self.outcome.verdict {
            Verdict::Ended => true,
            // A recording that has its end says how it ended.
            Verdict::Exhausted => script.end != replay::End::Whole,
            Verdict::Differs | Verdict::Impossible => false,
        }
    }

    /// In one line.
    pub fn line(&self, script: &Script) -> String {
        let Outcome { verdict, thread, turns, pc, .. } = self.outcome;
        let equal = format!(
            "replayed {} turns, {} events: equal to the recording",
            script.turns, script.events
        );
        match (verdict, self.is_equal(script)) {
            (Verdict::Impossible, _) => format!("cannot be replayed: {}", self.text),
            (_, false) => format!(
                "differs from the recording at turn {turns} of thread {}, at pc {pc:#x}: {}",
                script.thread_name(thread),
                self.text
            ),
            // (What comes behind is replayed by itself.)
            (_, true) if script.end.is_whole() => equal,
            (_, true) => format!("{equal}, which is replayable {}", script.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_program_that_is_being_written_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::copy("/bin/true", &program).unwrap();
        let written = fs::OpenOptions::new().append(true).open(&program).unwrap();
        let busy = Command::new(&program).spawn().map(|_| ()).map_err(|e| e.kind());
        assert_eq!(busy, Err(ErrorKind::ExecutableFileBusy));
        let closes = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(written);
        });
        assert!(spawn(&mut Command::new(&program)).unwrap().wait().unwrap().success());
        closes.join().unwrap();
    }
}
