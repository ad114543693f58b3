//! The man pages and the shell completions, made of the command lines as clap knows them.
//!
//! The commands themselves do not carry this: a packager writes the files once, with
//! `cargo run -p manual -- DIR`, and installs what is in DIR below the prefix's `share`.
#![forbid(unsafe_code)]

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::io::{Result, Write};
use std::path::Path;

/// Where a shell looks for completions, below `share`.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commands that there are.
pub fn commands() -> Vec<Command> {
    vec![rewriter::options::Arguments::command(), dep::args::Args::command()]
}

/// Writes all files into folders below `share`.
pub fn write(share: &Path) -> Result<()> {
    let man = share.join("man/man1");
    std::fs::create_dir_all(&man)?;
    for command in commands() {
        let name = command.get_name().to_owned();
        for (shell, folder) in SHELLS {
            let folder = share.join(folder);
            std::fs::create_dir_all(&folder)?;
            let file = match shell {
                // bash-completion looks for the command's own name.
                Shell::Bash => name.clone(),
                shell => clap_complete::Generator::file_name(&shell, &name),
            };
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
            std::fs::write(folder.join(file), text)?;
        }
        pages(command.disable_help_subcommand(true), &man)?;
    }
    Ok(())
}

/// The page of a command, and one of each of its subcommands, whose options it does not have.
fn pages(mut command: Command, man: &Path) -> Result<()> {
    // A subcommand is called what the shell is told: `dep info`, and its page `dep-info`.
    command.build();
    let source = format!("{} {VERSION}", command.get_name());
    page(&command, &source, man)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        page(sub, &source, man)?;
    }
    Ok(())
}

fn page(command: &Command, source: &str, man: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let command = command.clone().version(VERSION).display_name(&name);
    let page = clap_mangen::Man::new(command).title(name.to_uppercase()).source(source);
    let mut file = std::fs::File::create(man.join(format!("{name}.1")))?;
    page.render(&mut file)?;
    file.flush()
}
