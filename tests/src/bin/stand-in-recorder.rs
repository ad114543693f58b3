//! `stand-in-recorder prepare --recording FOLDER PATH`: says what to execute instead of PATH, by the
//! protocol between a rewritten program and its recorder, and with as little as that takes.
//!
//! FOLDER/asked gets a line for each question. FOLDER/behave, if it is there, says how to misbehave.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [prepare, option, folder, path] = &arguments[..] else { return Err("usage".into()) };
    if prepare != "prepare" || option != "--recording" {
        return Err("usage".into());
    }
    let (folder, path) = (Path::new(folder), Path::new(path));
    let mut asked = File::options().create(true).append(true).open(folder.join("asked"))?;
    asked.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
    let behave = fs::read_to_string(folder.join("behave")).unwrap_or_default();
    let fields = match behave.trim() {
        "fail" => return Err("as it was told".into()),
        "kill" => {
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
            return Ok(());
        }
        "nonsense" => vec![b"walk".to_vec(), b"the dog".to_vec()],
        "missing" => vec![b"run".to_vec(), b"/nonexistent/output".to_vec(), b"/bin/sh".to_vec()],
        "silent" => Vec::new(),
        how => {
            if how == "slow" {
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
            answer(folder, path).unwrap_or_else(|e| vec![b"native".to_vec(), e.to_string().into()])
        }
    };
    let all: Vec<u8> = fields.into_iter().flat_map(|field| field.into_iter().chain([0])).collect();
    std::io::stdout().write_all(&all)?;
    Ok(())
}

fn answer(folder: &Path, path: &Path) -> Outcome<Vec<Vec<u8>>> {
    let mut program = path.to_owned();
    let mut script: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut head = Vec::new();
        File::open(&program)?.take(256).read_to_end(&mut head)?;
        let Some(line) = head.strip_prefix(b"#!") else { break };
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (interpreter, option) = (&line[..end], line[end..].trim_ascii());
        let option = Some(option.to_vec()).filter(|option| !option.is_empty());
        let own = script.is_empty().then(|| path.as_os_str().as_bytes().to_vec());
        let front = [Some(interpreter.to_vec()), option, own].into_iter().flatten();
        script.splice(..0, front);
        program = OsStr::from_bytes(interpreter).into();
    }
    let real = program.canonicalize().unwrap_or(program);
    let output = output(folder, &real)?;
    let run = [b"run".to_vec(), output.into_os_string().into_encoded_bytes()];
    Ok(run.into_iter().chain([real.into_os_string().into_encoded_bytes()]).chain(script).collect())
}

/// The rewritten program, which is made if it is not there.
fn output(folder: &Path, real: &Path) -> Outcome<PathBuf> {
    let deprewrite = folder.join("deprewrite").canonicalize()?;
    let of =
        |path: &Path| fs::metadata(path).map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.size()));
    let key = format!("{:?}{:?}", of(&deprewrite)?, of(real)?).replace(['(', ')', ' '], "");
    let cache = PathBuf::from(std::env::var_os("DEP_CACHE").ok_or("no DEP_CACHE")?).join(key);
    let name = real.file_name().ok_or("no name")?;
    let output = cache.join(name);
    if !output.exists() {
        fs::create_dir_all(&cache)?;
        let new = cache.join(format!("new.{}", std::process::id()));
        let made = Command::new(deprewrite).arg("-q").arg(real).arg("-o").arg(&new).output()?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().into());
        }
        fs::rename(new, &output)?;
    }
    Ok(output)
}
