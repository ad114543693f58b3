//! The programs that are measured, and how each is started natively, rewritten, or under a tool.

use std::ffi::{OsStr, OsString};
use std::io::Result as IoResult;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::measure;

pub struct Program {
    pub name: String,
    pub path: PathBuf,
    how: How,
}

enum How {
    /// What follows the program in a shell command, as the shell reads it.
    Shell(String),
    Direct {
        arguments: Vec<OsString>,
        stdin: Option<PathBuf>,
    },
}

/// What is executed in the program's place.
pub enum Executed<'a> {
    Native,
    /// A rewritten program, which still sees the original's name.
    File(&'a Path),
    /// A tool that is given the program.
    Under(&'a [OsString]),
}

impl Program {
    pub fn direct(path: &Path, arguments: &[OsString], stdin: Option<&Path>) -> Program {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let how = How::Direct { arguments: arguments.to_vec(), stdin: stdin.map(Path::to_owned) };
        Program { name, path: path.to_owned(), how }
    }

    /// A list of programs: a line `NAME<TAB>COMMAND` for each.
    pub fn list(file: &Path) -> Result<Vec<Program>, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
        let programs: Result<Vec<_>, _> = lines.map(Program::parse).collect();
        programs.map_err(|e| format!("{}: {e}", file.display()))
    }

    fn parse(line: &str) -> Result<Program, String> {
        let (name, command) = line.split_once('\t').ok_or(format!("no tab in: {line}"))?;
        let (program, rest) = command.trim().split_once(' ').unwrap_or((command.trim(), ""));
        if !program.starts_with('/') {
            return Err(format!("{name}: {program} is not an absolute path"));
        }
        let how = How::Shell(rest.into());
        Ok(Program { name: name.into(), path: program.into(), how })
    }

    /// For people.
    pub fn command_line(&self) -> String {
        let rest = match &self.how {
            How::Shell(rest) => rest.clone(),
            How::Direct { arguments, stdin } => {
                let mut words: Vec<_> =
                    arguments.iter().map(|a| readable(&a.to_string_lossy())).collect();
                words.extend(stdin.iter().map(|file| format!("<{}", file.display())));
                words.join(" ")
            }
        };
        format!("{} {rest}", self.path.display()).trim_end().to_owned()
    }

    /// The program's run with its arguments.
    pub fn command(&self, executed: &Executed) -> IoResult<Command> {
        match &self.how {
            How::Shell(rest) => shell(&self.script(executed, rest)),
            How::Direct { arguments, stdin } => self.plain(executed, arguments, stdin.as_deref()),
        }
    }

    /// The program with other arguments, and without the shell.
    pub fn start(&self, executed: &Executed, arguments: &[OsString]) -> IoResult<Command> {
        self.plain(executed, arguments, None)
    }

    /// What runs around the program, without it.
    pub fn nothing(&self) -> IoResult<Command> {
        let how = match &self.how {
            How::Shell(_) => How::Shell(String::new()),
            How::Direct { .. } => How::Direct { arguments: Vec::new(), stdin: None },
        };
        let nothing = Program { name: "true".into(), path: "/bin/true".into(), how };
        nothing.command(&Executed::Native)
    }

    fn plain(
        &self,
        executed: &Executed,
        arguments: &[OsString],
        stdin: Option<&Path>,
    ) -> IoResult<Command> {
        use std::os::unix::process::CommandExt;
        let mut command = match executed {
            Executed::Native => Command::new(&self.path),
            Executed::File(file) => {
                let mut command = Command::new(file);
                command.arg0(&self.path);
                command
            }
            Executed::Under(tool) => {
                let mut command = Command::new(&tool[0]);
                command.args(&tool[1..]).arg(&self.path);
                command
            }
        };
        command.args(arguments);
        measure::stdin(&mut command, stdin)?;
        Ok(command)
    }

    /// Everything is run through the same function of the shell, so that it costs the same
    /// everywhere.
    fn script(&self, executed: &Executed, rest: &str) -> String {
        let name = quote(self.path.as_os_str());
        let exec = match executed {
            Executed::Native => format!("-a {name} {name}"),
            Executed::File(file) => format!("-a {name} {}", quote(file.as_os_str())),
            Executed::Under(tool) => {
                let words: Vec<_> = tool.iter().map(|word| quote(word)).collect();
                format!("{} {name}", words.join(" "))
            }
        };
        format!("program() {{ (exec {exec} \"$@\"); }}\nprogram {rest}")
    }
}

fn shell(script: &str) -> IoResult<Command> {
    // dash has no `exec -a`.
    let mut command = Command::new("bash");
    command.arg("-c").arg(script);
    measure::stdin(&mut command, None)?;
    Ok(command)
}

fn quote(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"))
}

fn readable(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => quote(OsStr::new(word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_is_exchanged() {
        let line = "mcf\t/usr/bin/glpsol a b >/dev/null && grep x y";
        let p = Program::parse(line).unwrap();
        assert_eq!((p.name.as_str(), p.path.as_path()), ("mcf", Path::new("/usr/bin/glpsol")));
        assert_eq!(p.command_line(), line[4..]);
        let How::Shell(rest) = &p.how else { panic!("not through the shell") };
        let script = p.script(&Executed::File(Path::new("/tmp/it's")), rest);
        assert!(script.contains(r"exec -a '/usr/bin/glpsol' '/tmp/it'\''s' "), "{script}");
        assert!(script.ends_with("\nprogram a b >/dev/null && grep x y"), "{script}");
        let tool = ["valgrind".into(), "-q".into()];
        let script = p.script(&Executed::Under(&tool), rest);
        assert!(script.contains("exec 'valgrind' '-q' '/usr/bin/glpsol' "), "{script}");
        assert!(Program::parse("x gzip").is_err());
        assert!(Program::parse("x\tgzip").is_err());
    }

    #[test]
    fn a_command_line_can_be_copied() {
        let arguments = ["-c", "it's", ""].map(OsString::from);
        let p = Program::direct(Path::new("/bin/x"), &arguments, Some(Path::new("in")));
        assert_eq!(p.name, "x");
        assert_eq!(p.command_line(), r"/bin/x -c 'it'\''s' '' <in");
    }
}
