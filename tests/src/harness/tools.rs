//! The rewriter and the reader under test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub struct Tools {
    pub deprewrite: PathBuf,
    pub dep: PathBuf,
}

/// One way of rewriting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub name: &'static str,
    pub flags: &'static [&'static str],
}

/// The cache of all tests, as `dep` reads it from its environment: what they run is small, and mostly the same programs
/// and libraries, which take a second each to translate. Its size is limited, as each test translates programs that no
/// other one runs: a run of all tests would leave 4 GB.
pub fn cache() -> [(&'static str, &'static OsStr); 2] {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    let folder = CACHE.get_or_init(|| root().join("target/tmp/cache"));
    [("DEP_CACHE", folder.as_os_str()), ("DEP_CACHE_SIZE", OsStr::new("1G"))]
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

impl Tools {
    /// `DEPREWRITE` and `DEP` if set, else those of this workspace, which are built now. Without
    /// them there is nothing to test: panics.
    pub fn get() -> &'static Self {
        static TOOLS: OnceLock<Result<Tools, String>> = OnceLock::new();
        let tools = TOOLS.get_or_init(Self::look).as_ref();
        tools.unwrap_or_else(|why| panic!("nothing to test: {why}"))
    }

    fn look() -> Result<Self, String> {
        let given = |name| std::env::var_os(name).map(PathBuf::from);
        if let (Some(deprewrite), Some(dep)) = (given("DEPREWRITE"), given("DEP")) {
            return Ok(Self { deprewrite, dep });
        }
        let root = root();
        // Cheap when up to date, and never a stale binary.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let build = Command::new(cargo)
            .args(["build", "--release", "--bin", "deprewrite", "--bin", "dep"])
            .current_dir(root)
            .output()
            .map_err(|e| format!("cargo: {e}"))?;
        if !build.status.success() {
            return Err(format!("no build: {}", String::from_utf8_lossy(&build.stderr)));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let release = target.unwrap_or_else(|| root.join("target")).join("release");
        Ok(Self { deprewrite: release.join("deprewrite"), dep: release.join("dep") })
    }

    /// Rewrites `program` to `output`.
    pub fn rewrite(&self, program: &Path, output: &Path, flags: &[&str]) -> Result<(), String> {
        let mut command = Command::new(&self.deprewrite);
        command.arg(program).arg("-o").arg(output).arg("--quiet").args(flags);
        run(command).map(drop)
    }

    /// As [`Tools::rewrite`], but what is made of a library is made once for all outputs (`--libraries cache`), unless
    /// the flags say something else: an output that carries libc takes ten times as long.
    pub fn rewrite_sharing(
        &self,
        program: &Path,
        output: &Path,
        flags: &[&str],
    ) -> Result<(), String> {
        if flags.iter().any(|&flag| flag == "--libraries" || flag == "dynamic") {
            return self.rewrite(program, output, flags);
        }
        let mut command = Command::new(&self.deprewrite);
        command.arg(program).arg("-o").arg(output).args(["--quiet", "--libraries", "cache"]);
        command.args(flags);
        run(command).map(drop)
    }

    /// The text of `dep WHAT TRACE`, written to `to`. `output` is the rewritten program, which
    /// the trace knows by the path of the original.
    pub fn list(&self, what: &str, trace: &Path, output: &Path, to: &Path) -> Result<(), String> {
        self.list_with(what, &[], trace, output, to).map(drop)
    }

    /// The same with more arguments; returns what `dep` says on stderr.
    pub fn list_with(
        &self,
        what: &str,
        more: &[&str],
        trace: &Path,
        output: &Path,
        to: &Path,
    ) -> Result<String, String> {
        let mut command = Command::new(&self.dep);
        command.arg(what).args(more).arg("--output").arg(output).arg(trace);
        let file = std::fs::File::create(to).map_err(|e| format!("{}: {e}", to.display()))?;
        let output = run_into(command.stdout(file))?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What `dep info --json` says.
    pub fn info(&self, trace: &Path, output: &Path) -> Result<serde_json::Value, String> {
        let mut command = Command::new(&self.dep);
        command.args(["info", "--json", "--output"]).arg(output).arg(trace);
        serde_json::from_slice(&run(command)?).map_err(|e| e.to_string())
    }

    pub fn verify(&self, trace: &Path, output: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.dep);
        command.args(["verify", "--output"]).arg(output).arg(trace);
        run(command).map(drop)
    }
}

fn run(mut command: Command) -> Result<Vec<u8>, String> {
    run_into(command.stdout(std::process::Stdio::piped())).map(|output| output.stdout)
}

fn run_into(command: &mut Command) -> Result<std::process::Output, String> {
    let output = command.envs(cache()).stderr(std::process::Stdio::piped()).spawn();
    let output = output.and_then(|child| child.wait_with_output());
    let output = output.map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    // What `dep verify` has found is its answer, not an error.
    let last: String = said.lines().rev().take(4).map(|line| format!("{line}\n")).collect();
    Err(format!("{command:?}: {}\n{errors}{last}", output.status))
}
