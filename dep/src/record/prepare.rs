//! What is run instead of a program: its output, rewritten into the recording.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use recording::folder::PROGRAMS;
use rewriter::options::Arguments;

/// What to run.
pub enum Prepared {
    Run {
        /// The file to execute.
        output: PathBuf,
        /// Real path of the original: of a script, its interpreter.
        original: PathBuf,
        /// Of a script: what its name is replaced with.
        script: Vec<OsString>,
    },
    /// It cannot be recorded: why.
    Native(String),
}

/// Scripts whose interpreters are scripts, as deep as the kernel goes.
const DEPTH: usize = 5;

pub fn prepare(folder: &Path, file: &Path, flags: &[String]) -> Prepared {
    let mut script: Vec<OsString> = Vec::new();
    let mut file = file.to_owned();
    for _ in 0..=DEPTH {
        let Some((interpreter, argument)) = interpreter(&file) else {
            return rewrite(folder, &file, flags, script);
        };
        // The kernel puts the interpreter's argument and the script before what it has.
        let mut front: Vec<OsString> = vec![interpreter.clone().into_os_string()];
        front.extend(argument);
        front.push(file.into_os_string());
        front.extend(script.drain(..).skip(1));
        script = front;
        file = interpreter;
    }
    Prepared::Native("its interpreter is a script of a script of a script".into())
}

/// The interpreter of a script, and its argument.
fn interpreter(file: &Path) -> Option<(PathBuf, Option<OsString>)> {
    let mut line = Vec::new();
    std::fs::File::open(file).ok()?.take(256).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|byte| b" \t".contains(byte)).unwrap_or(line.len());
    let (path, argument) = line.split_at(end);
    let argument = argument.trim_ascii();
    let argument = (!argument.is_empty()).then(|| OsStr::from_bytes(argument).to_owned());
    (!path.is_empty()).then(|| (PathBuf::from(OsStr::from_bytes(path)), argument))
}

fn rewrite(folder: &Path, file: &Path, flags: &[String], script: Vec<OsString>) -> Prepared {
    let original = match file.canonicalize() {
        Ok(original) => original,
        Err(error) => return Prepared::Native(format!("{}: {error}", file.display())),
    };
    let to = folder.join(PROGRAMS).join("new");
    if let Err(error) = std::fs::create_dir_all(&to) {
        return Prepared::Native(format!("{}: {error}", to.display()));
    }
    let output = to.join(original.file_name().unwrap_or(OsStr::new("program")));
    let fixed = [
        "deprewrite".into(),
        "--quiet".into(),
        original.clone().into_os_string(),
        "-o".into(),
        output.clone().into_os_string(),
    ];
    let all = fixed.into_iter().chain(flags.iter().map(OsString::from));
    let arguments = match Arguments::try_parse_from(all) {
        Ok(arguments) => arguments,
        Err(error) => return Prepared::Native(error.to_string()),
    };
    match rewriter::rewrite::run(&arguments) {
        Ok(()) => Prepared::Run { output, original, script },
        Err(error) => Prepared::Native(format!("{}: {error}", original.display())),
    }
}
