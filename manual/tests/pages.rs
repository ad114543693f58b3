//! What is generated says everything that the commands take.

use clap::Command;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

fn generated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    manual::write(folder.path()).expect("pages are written");
    folder
}

/// Each command and subcommand under the name of its page.
fn every_command() -> Vec<(String, Command)> {
    let mut all = Vec::new();
    for command in manual::commands() {
        let name = command.get_name().to_owned();
        // A hidden one has no page.
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            all.push((format!("{name}-{}", sub.get_name()), sub.clone()));
        }
        all.push((name, command));
    }
    all
}

/// The long options of a command; `hidden`: only those that are no one's business.
fn options(command: &Command, hidden: bool) -> Vec<String> {
    let all = command.get_arguments().filter(|argument| argument.is_hide_set() == hidden);
    all.filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
}

/// A dash as roff wants it, so that it can be searched for and copied.
fn in_roff(option: &str) -> String {
    format!("--{option}").replace('-', "\\-")
}

#[test]
fn every_page_has_every_option_with_its_help() {
    let folder = generated();
    let mut options_seen = 0;
    for (name, command) in every_command() {
        let path = folder.path().join(format!("man/man1/{name}.1"));
        let page = read_to_string(&path).expect(&name);
        assert!(page.contains(&format!(".TH {} 1", name.to_uppercase())), "{name}: title");
        for option in options(&command, false) {
            assert!(page.contains(&format!("{}\\fR", in_roff(&option))), "{name}: --{option}");
            options_seen += 1;
        }
        for option in options(&command, true) {
            assert!(!page.contains(&in_roff(&option)), "{name} shows the hidden --{option}");
        }
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            assert!(argument.get_help().is_some(), "{name}: {} has no help", argument.get_id());
        }
    }
    // The two commands have so many at least: the loops above have seen something.
    assert!(options_seen > 40, "{options_seen}");
}

#[test]
fn every_shell_completes_every_option() {
    let folder = generated();
    for command in manual::commands() {
        let name = command.get_name();
        let files = [
            (format!("bash-completion/completions/{name}"), "--"),
            (format!("zsh/site-functions/_{name}"), "--"),
            (format!("fish/vendor_completions.d/{name}.fish"), "-l "),
        ];
        for (file, dashes) in files {
            let text = read_to_string(folder.path().join(&file)).expect(&file);
            let subs: Vec<&Command> = command.get_subcommands().collect();
            for sub in &subs {
                assert!(text.contains(sub.get_name()), "{file}: {}", sub.get_name());
            }
            for option in subs.iter().copied().chain([&command]).flat_map(|c| options(c, false)) {
                assert!(text.contains(&format!("{dashes}{option}")), "{file}: --{option}");
            }
        }
    }
}

/// Runs a checker of a generated file, if it is installed.
fn no_complaint(program: &str, arguments: &[&str], file: &Path) {
    match std::process::Command::new(program).args(arguments).arg(file).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let file = file.display();
            assert!(output.status.success() && said.is_empty(), "{program} of {file}: {said}");
        }
        Err(error) => println!("skipped: {program} cannot be started ({error})"),
    }
}

fn files(folder: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert!(!files.is_empty());
    files
}

#[test]
fn groff_and_the_shell_accept_what_is_generated() {
    let folder = generated();
    for page in files(folder.path().join("man/man1")) {
        no_complaint("groff", &["-man", "-ww", "-Tutf8", "-z"], &page);
    }
    for script in files(folder.path().join("bash-completion/completions")) {
        no_complaint("bash", &["-n"], &script);
    }
}
