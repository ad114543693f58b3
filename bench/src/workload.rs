//! The list of programs: a line `NAME<TAB>COMMAND` for each.

use std::path::{Path, PathBuf};

/// A shell command whose first word is the program under test.
pub struct Workload {
    pub name: String,
    pub program: PathBuf,
    /// What follows the program in the command, as the shell reads it.
    rest: String,
}

impl Workload {
    pub fn read(list: &Path) -> Result<Vec<Workload>, String> {
        let text = std::fs::read_to_string(list).map_err(|e| format!("{}: {e}", list.display()))?;
        let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
        let workloads: Result<Vec<_>, _> = lines.map(Workload::parse).collect();
        workloads.map_err(|e| format!("{}: {e}", list.display()))
    }

    fn parse(line: &str) -> Result<Workload, String> {
        let (name, command) = line.split_once('\t').ok_or(format!("no tab in: {line}"))?;
        let (program, rest) = command.trim().split_once(' ').unwrap_or((command.trim(), ""));
        if !program.starts_with('/') {
            return Err(format!("{name}: {program} is not an absolute path"));
        }
        Ok(Workload { name: name.into(), program: program.into(), rest: rest.into() })
    }

    /// The command with `file` in the program's place, which still sees its own name. Everything
    /// is run through the same function of the shell, so that it costs the same everywhere.
    pub fn script(&self, file: &Path) -> String {
        let (name, file) = (quote(&self.program), quote(file));
        format!("program() {{ (exec -a {name} {file} \"$@\"); }}\nprogram {}", self.rest)
    }
}

fn quote(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_is_exchanged() {
        let w = Workload::parse("mcf\t/usr/bin/glpsol a b >/dev/null && grep x y").unwrap();
        assert_eq!((w.name.as_str(), w.program.as_path()), ("mcf", Path::new("/usr/bin/glpsol")));
        let script = w.script(Path::new("/tmp/it's"));
        assert!(script.contains(r"exec -a '/usr/bin/glpsol' '/tmp/it'\''s'"), "{script}");
        assert!(script.ends_with("\nprogram a b >/dev/null && grep x y"), "{script}");
        assert!(Workload::parse("x gzip").is_err());
        assert!(Workload::parse("x\tgzip").is_err());
    }
}
