//! `dep debug`: a replay under gdb, forwards and backwards.

pub mod machine;
pub mod process;
mod registers;
mod root;
mod server;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod simulated;
mod timeline;
#[cfg(test)]
mod timeline_tests;
mod wire;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use trace::Error;

use crate::args::{which, Which};
use crate::caller;
use crate::cleanup::Guard;
use crate::known::Known;
use crate::replay::{Named, Ready, Watched};
use crate::Warnings;
pub use machine::{Calls, Failed, Goal, Machine, Points, Watch};
pub use process::Steered;
use server::Server;
use timeline::Timeline;
use wire::{Stream, Wire};

/// The command line.
#[derive(ClapArgs)]
pub struct Arguments {
    /// The recording (its folder, or the one file of it), or the trace of one process
    pub file: PathBuf,
    /// This process of the recording; PID.K: what it was after its K-th exec
    #[arg(short, long, value_name = "PID", value_parser = which)]
    pub process: Option<Which>,
    /// Of a process whose threads were watched, the one with this thread id, which is replayed alone; without it the first
    #[arg(long, value_name = "TID")]
    pub thread: Option<u32>,
    /// Of a process whose threads were watched: what was done before they were
    #[arg(long, conflicts_with = "thread")]
    pub beginning: bool,
    /// Wait there for a debugger, instead of starting gdb: HOST:PORT, or the path of a socket to make
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The program that was rewritten, if the recording does not say where it is
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// The rewritten program that was recorded, if it is no longer where it ran
    #[arg(long, value_name = "FILE")]
    pub rewritten: Option<PathBuf>,
    /// Further arguments of gdb, as in `-- -ex 'break main'`
    #[arg(last = true, value_name = "GDB ARGUMENTS", conflicts_with = "listen")]
    pub gdb: Vec<String>,
}

const SIGINT: i32 = 2;

impl From<Failed> for Error {
    fn from(Failed(why): Failed) -> Error {
        Error(why)
    }
}

/// The command.
pub fn run(arguments: &Arguments) -> ExitCode {
    if arguments.listen.is_none() {
        // What is typed to interrupt is for gdb, which passes it on.
        caller::is_to_ignore(SIGINT);
        let _ = signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)));
    }
    match debug(arguments) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("dep: {error}");
            ExitCode::from(2)
        }
    }
}

fn debug(arguments: &Arguments) -> Result<ExitCode, Error> {
    let ready = Ready::new(&Named {
        file: &arguments.file,
        process: arguments.process,
        program: arguments.program.as_deref(),
        output: arguments.rewritten.as_deref(),
        thread: Some(match arguments.beginning {
            true => Watched::Beginning,
            false => Watched::Named(arguments.thread),
        }),
        lineage: None,
    })?;
    // Breakpoints are written into code that is translated when it runs.
    let output = ready.output_with("none", &["--translate", "dynamic"])?;
    let machine = Steered::start(&ready, &output)?;
    let is_alone = ready.script.header.alone != 0;
    if is_alone {
        let mut warnings = Warnings::default();
        let code = |at, bytes: &mut [u8]| machine.read(at, bytes);
        let known = Known::of(&ready, &mut warnings, code)?;
        machine.knows(known);
        let tid = machine.stop().tid;
        eprintln!("dep: thread {tid} alone: what it has neither loaded nor stored cannot be read");
    }
    let timeline = Timeline::new(machine)?;
    let program = ready.original.display().to_string();
    let before = ready.script.before;
    let is_cut = ready.lineage.first().first_stretch().is_some();
    if is_cut {
        eprintln!("dep: a ring: what was recorded before turn {before} was not kept");
    }
    let stack = is_cut.then_some(ready.script.header.stack);
    let mut server = Server::new(timeline, &program, Some(ready.script.last_turn()), stack);
    if is_alone {
        server.places(root::auxiliary_vector(&ready)?);
    }
    match &arguments.listen {
        Some(address) => {
            let libraries = root::commands(&ready)?;
            let stream = wait_at(address, &program, &libraries, ready.guard.as_ref())?;
            server.serve(Wire::new(stream))?;
            Ok(ExitCode::SUCCESS)
        }
        None => with_gdb(&mut server, &ready, &arguments.gdb),
    }
}

/// Waits for a debugger at `address`.
fn wait_at(
    address: &str,
    program: &str,
    libraries: &[String],
    guard: Option<&Guard>,
) -> Result<Stream, Error> {
    let failed = |e: std::io::Error| Error(format!("{address}: {e}"));
    let say = || {
        let libraries: String = libraries.iter().map(|line| format!("-ex '{line}' ")).collect();
        eprintln!("dep: gdb {libraries}-ex 'target remote {address}' {program}");
    };
    if address.contains('/') {
        let socket = Path::new(address);
        let listener = UnixListener::bind(socket).map_err(failed)?;
        guard.inspect(|guard| guard.removes(socket));
        say();
        let accepted = listener.accept();
        let _ = std::fs::remove_file(socket);
        guard.inspect(|guard| guard.forgets(socket));
        return Ok(Stream::Unix(accepted.map_err(failed)?.0));
    }
    let listener = TcpListener::bind(&*numeric(address)).map_err(failed)?;
    if !listener.local_addr().map_err(failed)?.ip().is_loopback() {
        eprintln!("dep: warning: whoever reaches {address} can read the whole recording");
    } else {
        eprintln!("dep: warning: every user of this machine can connect to {address}; a path is a socket of yours");
    }
    say();
    Ok(Stream::Tcp(listener.accept().map_err(failed)?.0))
}

/// This machine's own name as a number. Other names are looked up by the C library, which is linked statically and may
/// meet modules (`/etc/nsswitch.conf`) of another one.
fn numeric(address: &str) -> std::borrow::Cow<'_, str> {
    match address.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}").into(),
        None => address.into(),
    }
}

/// Commands of ours for gdb. It has not seen how libraries came to be there that the program has where it goes.
const SCRIPT: &str = "\
define seek
  monitor ahead $arg0
  stepi
  sharedlibrary
end
document seek
Go to a place of the recording: seek TURN, seek PERCENT%, seek begin, seek end.
end
";

/// Starts gdb, and answers it until it ends.
fn with_gdb(
    server: &mut Server<Steered>,
    ready: &Ready,
    arguments: &[String],
) -> Result<ExitCode, Error> {
    let failed = |what: &'static str| move |e: std::io::Error| Error(format!("{what}: {e}"));
    let (socket, script) = (ready.folder.join("gdb"), ready.folder.join("commands"));
    std::fs::write(&script, SCRIPT).map_err(failed("cannot write gdb's commands"))?;
    let listener = UnixListener::bind(&socket).map_err(failed("cannot make a socket for gdb"))?;
    let libraries = root::commands(ready)?;
    let mut gdb = Command::new("gdb")
        .arg("-q")
        .args(libraries.iter().flat_map(|command| ["-ex", command]))
        .arg("-x")
        .arg(&script)
        .arg("-ex")
        .arg(format!("target remote {}", socket.display()))
        .args(arguments)
        .arg(&ready.original)
        .spawn()
        .map_err(failed("cannot start gdb (`--listen` is for another debugger)"))?;
    let served = match first_connection(&listener, &mut gdb) {
        Ok(Some(stream)) => server.serve(Wire::new(Stream::Unix(stream))).map_err(Error::from),
        Ok(None) => Ok(()),
        Err(e) => Err(Error(format!("gdb does not connect: {e}"))),
    };
    let status = gdb.wait().map_err(failed("cannot wait for gdb"))?;
    served?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

/// gdb's connection; `None`: gdb has ended.
fn first_connection(
    listener: &UnixListener,
    gdb: &mut Child,
) -> std::io::Result<Option<std::os::unix::net::UnixStream>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(Some(stream));
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if gdb.try_wait()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
