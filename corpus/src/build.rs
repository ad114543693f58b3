//! Compiles the programs. A program is built again when its sources or its command change.
//!
//! Variants: `pie` and `no-pie` (dynamic, -O2), `static`, `static-pie`, `O0` (pie), `noplt` (pie,
//! calls through the GOT), `cet` (pie, endbr64). Assembly has no libc: its `static` is a fixed
//! static executable, its `pie` has an interpreter that relocates it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use crate::directives::Directives;
use crate::Case;

#[derive(Debug)]
pub struct BuildError(String);

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BuildError {}

fn failed(path: &Path, e: impl fmt::Display) -> BuildError {
    BuildError(format!("{}: {e}", path.display()))
}

#[derive(Clone, Copy, PartialEq)]
enum Language {
    Asm,
    C,
    Cpp,
    Rust,
}

impl Language {
    fn of(source: &Path) -> Option<Self> {
        match source.extension()?.to_str()? {
            "S" => Some(Self::Asm),
            "c" => Some(Self::C),
            "cc" => Some(Self::Cpp),
            "rs" => Some(Self::Rust),
            _ => None,
        }
    }

    fn usual_variants(self) -> &'static [&'static str] {
        match self {
            Self::Cpp => &["pie"],
            _ => &["pie", "static"],
        }
    }

    fn command(self, variant: &str) -> Option<Vec<&'static str>> {
        let mut command = match self {
            Self::Asm => vec!["gcc", "-nostdlib"],
            Self::C => vec!["gcc", "-std=gnu11", "-w"],
            Self::Cpp => vec!["g++", "-std=gnu++17", "-w"],
            Self::Rust => vec!["rustc", "--edition=2021", "-Awarnings"],
        };
        command.extend_from_slice(match (self, variant) {
            (Self::Asm, "pie") => &["-pie"],
            (Self::Asm, "static" | "no-pie") => &["-static", "-no-pie"],
            (Self::Rust, "pie") => &["-Copt-level=2"],
            (Self::Rust, "O0") => &["-Copt-level=0"],
            (Self::Rust, "static") => &["-Copt-level=2", "-Ctarget-feature=+crt-static"],
            (Self::C | Self::Cpp, "pie") => &["-O2", "-fPIE", "-pie", "-Wl,-z,lazy"],
            (Self::C | Self::Cpp, "no-pie") => &["-O2", "-fno-pie", "-no-pie"],
            (Self::C | Self::Cpp, "static") => &["-O2", "-fno-pie", "-no-pie", "-static"],
            (Self::C | Self::Cpp, "static-pie") => &["-O2", "-fPIE", "-static-pie"],
            (Self::C | Self::Cpp, "O0") => &["-O0", "-fPIE", "-pie"],
            (Self::C | Self::Cpp, "noplt") => &["-O2", "-fPIE", "-pie", "-fno-plt", "-Wl,-z,now"],
            (Self::C | Self::Cpp, "cet") => &["-O2", "-fPIE", "-pie", "-fcf-protection=full"],
            _ => return None,
        });
        Some(command)
    }
}

/// A program in one variant, not yet compiled.
struct Job {
    case: Case,
    source: PathBuf,
    command: Vec<String>,
    libraries: Vec<Library>,
}

struct Library {
    source: PathBuf,
    path: PathBuf,
}

/// Builds everything into `out_dir` and lists it in order of name.
pub fn build_all(out_dir: &Path) -> Result<Vec<Case>, BuildError> {
    fs::create_dir_all(out_dir).map_err(|e| failed(out_dir, e))?;
    let out_dir = fs::canonicalize(out_dir).map_err(|e| failed(out_dir, e))?;
    let lock_path = out_dir.join(".lock");
    let lock = fs::File::create(&lock_path).map_err(|e| failed(&lock_path, e))?;
    lock.lock().map_err(|e| failed(&lock_path, e))?;
    let jobs = jobs(&out_dir)?;
    for library in jobs.iter().flat_map(|j| &j.libraries) {
        compile_library(library)?;
    }
    let next = AtomicUsize::new(0);
    let errors = Mutex::new(Vec::new());
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = compile(&job.command, &job.source, &job.case.path) {
                errors.lock().unwrap().push(e.0);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|s| (0..workers).for_each(|_| drop(s.spawn(work))));
    let errors = errors.into_inner().unwrap();
    if !errors.is_empty() {
        return Err(BuildError(errors.join("\n")));
    }
    Ok(jobs.into_iter().map(|j| j.case).collect())
}

fn jobs(out_dir: &Path) -> Result<Vec<Job>, BuildError> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut sources = Vec::new();
    for dir in ["asm", "c", "cpp", "rust"] {
        let dir = programs.join(dir);
        for entry in fs::read_dir(&dir).map_err(|e| failed(&dir, e))? {
            sources.push(entry.map_err(|e| failed(&dir, e))?.path());
        }
    }
    sources.sort();
    let mut jobs = Vec::new();
    for source in sources {
        let Some(language) = Language::of(&source) else { continue };
        let text = fs::read_to_string(&source).map_err(|e| failed(&source, e))?;
        let directives = Directives::parse(&text).map_err(|e| failed(&source, e))?;
        if directives.library {
            continue;
        }
        let usual = || language.usual_variants().iter().map(|v| (*v).to_owned()).collect();
        let variants: Vec<String> =
            if directives.variants.is_empty() { usual() } else { directives.variants.clone() };
        for variant in variants {
            // What is dlopened or linked is a shared library: there is no static form.
            if variant.starts_with("static") && !directives.shared.is_empty() {
                continue;
            }
            jobs.push(job(out_dir, &source, language, &directives, &variant)?);
        }
    }
    Ok(jobs)
}

fn job(
    out_dir: &Path,
    source: &Path,
    language: Language,
    directives: &Directives,
    variant: &str,
) -> Result<Job, BuildError> {
    let command = language
        .command(variant)
        .ok_or_else(|| failed(source, format_args!("no variant {variant} for its language")))?;
    let mut command: Vec<String> = command.into_iter().map(str::to_owned).collect();
    let folder = source.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{folder}/{stem}.{variant}");
    let path = out_dir.join(name.replace('/', "-"));
    if language == Language::Rust {
        // The name of temporary files, which two variants must not share.
        command.push(format!("--crate-name={stem}_{}", variant.replace('-', "_")));
    }
    command.extend(["-o".to_owned(), path.display().to_string(), source.display().to_string()]);
    let mut libraries = Vec::new();
    for file in &directives.shared {
        let source = source.with_file_name(file);
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let path = out_dir.join(format!("lib{stem}.so"));
        if directives.link.contains(file) {
            command.push(path.display().to_string());
        }
        libraries.push(Library { source, path });
    }
    if !libraries.is_empty() {
        command.push(format!("-Wl,-rpath,{}", out_dir.display()));
    }
    command.extend(directives.flags.iter().cloned());
    let case = Case {
        name,
        path,
        args: directives.args.clone(),
        stdin: directives.stdin.clone(),
        end: directives.end(),
        requires: directives.requires.clone(),
        no_oracle: directives.no_oracle.clone(),
        refused: directives.refused.clone(),
        except: directives.except.clone(),
    };
    Ok(Job { case, source: source.to_owned(), command, libraries })
}

fn compile_library(library: &Library) -> Result<(), BuildError> {
    let compiler = if Language::of(&library.source) == Some(Language::Cpp) { "g++" } else { "gcc" };
    let soname = library.path.file_name().unwrap_or_default().to_string_lossy();
    let command = [compiler, "-O2", "-shared", "-fPIC", "-w", "-o"].map(str::to_owned);
    let files = [&library.path, &library.source].map(|p| p.display().to_string());
    let text = fs::read_to_string(&library.source).map_err(|e| failed(&library.source, e))?;
    let directives = Directives::parse(&text).map_err(|e| failed(&library.source, e))?;
    let command = command.into_iter().chain(files).chain([format!("-Wl,-soname,{soname}")]);
    let command: Vec<_> = command.chain(directives.flags).collect();
    compile(&command, &library.source, &library.path)
}

/// Runs the command unless the output is of this very command and of these sources.
fn compile(command: &[String], source: &Path, output: &Path) -> Result<(), BuildError> {
    let stamp_path = output.with_file_name(format!(
        ".{}.stamp",
        output.file_name().unwrap_or_default().to_string_lossy()
    ));
    let mut stamp = command.join(" ");
    for header in ["common.h", "check.h", "gone.h", "../c/check.h"] {
        stamp += &fs::read_to_string(source.with_file_name(header)).unwrap_or_default();
    }
    stamp += &fs::read_to_string(source).map_err(|e| failed(source, e))?;
    if output.exists() && fs::read_to_string(&stamp_path).is_ok_and(|s| s == stamp) {
        return Ok(());
    }
    let run = Command::new(&command[0]).args(&command[1..]).output();
    let run = run.map_err(|e| failed(source, format_args!("{}: {e}", command[0])))?;
    if !run.status.success() {
        let errors = String::from_utf8_lossy(&run.stderr);
        return Err(failed(source, format_args!("{}\n{errors}", command.join(" "))));
    }
    fs::write(&stamp_path, stamp).map_err(|e| failed(&stamp_path, e))
}
