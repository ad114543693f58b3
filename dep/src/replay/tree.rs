//! All processes of a recording are replayed together: each program that was started once, and the processes
//! that it forked where it did.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::Sender;

use nix::fcntl::{fcntl, FcntlArg, FdFlag, OFlag};
use recording::originals::{Originals, Wanted};
use recording::{Recording, TraceName};
use replay::lineage::Parents;
use replay::script::{write_part, Family, Part};
use replay::{Lineage, Script};
use tempfile::TempDir;
use trace::Error;

use super::process::{run_all, unsaid, Besides, Finished};
use super::ready::SCRIPT;
use super::{named, one, ordered, say, Arguments, Ready, Told};
use crate::args::Which;
use crate::cleanup::Guard;

/// A process that is replayed where its parent forks it.
struct Member {
    /// Its place among what is replayed.
    at: usize,
    /// Under which its script is found.
    member: u64,
    script: Script,
    damage: Vec<String>,
}

/// A program that was started, and the processes that it forked.
struct Tree {
    /// Process id and start of the first one.
    key: (u64, u64),
    /// Its place; `None`: it is not replayed itself.
    at: Option<usize>,
    members: Vec<Member>,
    family: Family,
    /// For the scripts.
    folder: TempDir,
}

/// What can be run beside other things.
enum Job {
    Alone(usize),
    Tree(Box<Tree>),
}

/// Replays these processes, and says of each what it came to, in their order.
pub fn replay(
    arguments: &Arguments,
    recording: &Recording,
    names: &[TraceName],
    mut done: impl FnMut(u8),
) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error(format!("cannot make a folder for the replays: {e}"));
    let mut builder = tempfile::Builder::new();
    let folder = match recording.temporary() {
        Some(unpacked) => builder.prefix("replays.").tempdir_in(unpacked),
        None => builder.prefix("dep.").tempdir(),
    };
    let folder = folder.map_err(failed)?;
    // What was unpacked is looked after already.
    let _guard = recording.temporary().is_none().then(|| Guard::new(folder.path()));
    let at_once = ordered::at_once(arguments.output);
    let tokens = tokens(folder.path(), at_once - 1)?;
    let originals = Originals::open(&recording.folder)?;
    let folder = folder.path();
    let replays = Replays { arguments, recording, names, originals, folder, tokens: &tokens };
    let jobs = replays.jobs();
    let run = |job: &_, sender: &Results| replays.run(job, sender);
    ordered::run(&jobs, at_once, names.len(), run, |told| done(say(arguments, told)));
    Ok(())
}

/// A pipe with so many tokens, which never makes anybody wait.
fn tokens(folder: &Path, count: usize) -> Result<File, Error> {
    let failed = |e: std::io::Error| Error(format!("cannot make a pipe: {e}"));
    let path = folder.join("tokens");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).map_err(|e| failed(e.into()))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut pipe = options.open(&path).map_err(failed)?;
    // There is room for as many.
    pipe.write_all(&vec![b'+'; count.min(1024)]).map_err(failed)?;
    fcntl(&pipe, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|e| failed(e.into()))?;
    Ok(pipe)
}

type Results = Sender<(usize, Result<Told, Error>)>;

struct Replays<'a> {
    arguments: &'a Arguments,
    recording: &'a Recording,
    names: &'a [TraceName],
    originals: Originals,
    folder: &'a Path,
    tokens: &'a File,
}

impl Replays<'_> {
    /// Sorts the processes into trees, and writes the scripts of those that are forked.
    fn jobs(&self) -> Vec<Job> {
        let mut parents = Parents::default();
        let mut trees: Vec<(Tree, HashSet<u64>)> = Vec::new();
        let mut alone = Vec::new();
        for (at, &name) in self.names.iter().enumerate() {
            let place = match Lineage::with_parents(self.recording, name, &mut parents) {
                Ok(lineage) => self.sort(at, &lineage, &mut trees),
                Err(_) => None,
            };
            // Its own replay says what stands in the way.
            if place.is_none() {
                alone.push(at);
            }
        }
        let mut jobs: Vec<Job> = Vec::new();
        for (tree, _) in trees {
            match (tree.at, tree.members.is_empty()) {
                (Some(at), true) => alone.push(at),
                (Some(_), false) => jobs.push(Job::Tree(Box::new(tree))),
                (None, _) => alone.extend(tree.members.iter().map(|member| member.at)),
            }
        }
        jobs.extend(alone.into_iter().map(Job::Alone));
        // In the order in which it is said what they came to.
        jobs.sort_by_key(|job| match job {
            Job::Alone(at) => *at,
            Job::Tree(tree) => tree.at.unwrap_or(0),
        });
        jobs
    }

    /// Puts a process into its tree; `None`: it has to be replayed alone.
    fn sort(
        &self,
        at: usize,
        lineage: &Lineage,
        trees: &mut Vec<(Tree, HashSet<u64>)>,
    ) -> Option<()> {
        let key = (lineage.first().pid, lineage.first().start_ns);
        let place = match trees.iter().position(|(tree, _)| tree.key == key) {
            Some(place) => place,
            None => {
                let folder =
                    tempfile::Builder::new().prefix("tree.").tempdir_in(self.folder).ok()?;
                let (members, family) = (Vec::new(), Family::default());
                trees.push((Tree { key, at: None, members, family, folder }, HashSet::new()));
                trees.len() - 1
            }
        };
        let (tree, members) = trees.get_mut(place)?;
        if !lineage.is_forked() {
            tree.at = Some(at);
            return Some(());
        }
        // A number that was given twice names one script only.
        let member = lineage.member();
        if !members.insert(member) {
            return None;
        }
        let script = self.script(member, lineage, tree.folder.path())?;
        tree.family.add(lineage, &script).ok()?;
        let damage = lineage.last().damage.iter().map(ToString::to_string).collect();
        tree.members.push(Member { at, member, script, damage });
        Some(())
    }

    /// Writes the script of a forked process. `None`: something is in the way.
    fn script(&self, member: u64, lineage: &Lineage, folder: &Path) -> Option<Script> {
        let interpreter = self.originals.interpreter(lineage.first()).ok()?;
        let mut resolve = |wanted: &Wanted| self.originals.file(wanted);
        let path = folder.join(format!("{SCRIPT}.{member}"));
        let mut file = BufWriter::new(File::create(&path).ok()?);
        let interpreter = interpreter.as_deref();
        let script = write_part(lineage, Part::Forked, interpreter, &mut resolve, &mut file);
        if script.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        script.ok()
    }

    fn run(&self, job: &Job, results: &Results) {
        // Who listens is there until all have been heard.
        let tell = |at: usize, told| drop(results.send((at, told)));
        match job {
            Job::Alone(at) => tell(*at, self.alone(*at)),
            Job::Tree(tree) => {
                let (first, all) = match self.tree(tree) {
                    Ok((first, all)) => (Ok(first), all),
                    Err(error) => (Err(error), Vec::new()),
                };
                tree.at.into_iter().zip(Some(first)).for_each(|(at, told)| tell(at, told));
                for member in &tree.members {
                    let mine = |f: &&Finished| f.outcome.member == member.member;
                    match all.iter().find(mine) {
                        Some(finished) => {
                            let (name, damaged) = (self.name(member.at), !member.damage.is_empty());
                            let told = Told::new(&member.script, finished, &name, damaged);
                            tell(member.at, Ok(Told { damage: member.damage.clone(), ..told }));
                        }
                        // It was never forked, or could not say how it ended.
                        None => tell(member.at, self.alone(member.at)),
                    }
                }
            }
        }
    }

    fn which(&self, at: usize) -> Option<Which> {
        self.names.get(at).map(|name| Which { pid: name.pid, image: Some(name.image) })
    }

    /// In front of its line.
    fn name(&self, at: usize) -> String {
        self.names.get(at).map_or_else(String::new, |name| format!("{name} "))
    }

    fn alone(&self, at: usize) -> Result<Told, Error> {
        let named = named(self.arguments, self.which(at));
        let ready = Ready::in_folder(&named, self.recording, self.folder)?;
        one(self.arguments, &ready, &self.name(at))
    }

    /// Replays a tree: what its first process came to, and how each other one ended.
    fn tree(&self, tree: &Tree) -> Result<(Told, Vec<Finished>), Error> {
        let at = tree.at.unwrap_or(0);
        let named = named(self.arguments, self.which(at));
        let ready = Ready::of_tree(&named, self.recording, tree.folder.path(), &tree.family)?;
        let straight = tree.members.iter().all(|member| member.script.straight);
        let output = ready.plain_output(straight)?;
        let (output_shown, tree) = (self.arguments.output, Some(self.tokens.as_raw_fd()));
        let besides = Besides { output: output_shown, tree, ..Besides::default() };
        let (all, status) = run_all(&ready, &output, &besides)?;
        let first = all.iter().find(|f| f.outcome.member == 0).ok_or_else(|| unsaid(status))?;
        let damage: Vec<String> =
            ready.lineage.last().damage.iter().map(ToString::to_string).collect();
        let told = Told::new(&ready.script, first, &self.name(at), !damage.is_empty());
        Ok((Told { damage, ..told }, all))
    }
}
