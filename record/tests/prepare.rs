//! What runs instead of a path, and where it comes from.

use record::prepare::{for_recording_with, known, prepare, Prepared};
use record::program::Program;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use store::Store;

/// A folder with a cache and a program that is not young any more.
struct Place {
    dir: tempfile::TempDir,
    store: Store,
}

fn tags() -> Vec<String> {
    vec!["--control-flow".into(), "tags".into()]
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(&dir.path().join("cache"), rewriter::BUILD, 1 << 30);
        Place { store: store.expect("a cache"), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A copy of a small program.
    fn program(&self, name: &str) -> PathBuf {
        let to = self.path(name);
        std::fs::copy("/bin/true", &to).expect("a program");
        to
    }

    fn prepare(&self, path: &Path, options: &[String]) -> Prepared {
        prepare(path, options, &self.store).expect("a cache that can be used")
    }

    fn run(&self, path: &Path, options: &[String]) -> Program {
        match self.prepare(path, options) {
            Prepared::Run(program) => *program,
            Prepared::Native { reason } => panic!("{}: {reason}", path.display()),
        }
    }

    fn refused(&self, path: &Path) -> String {
        match self.prepare(path, &[]) {
            Prepared::Run(_) => panic!("{}: not refused", path.display()),
            Prepared::Native { reason } => reason,
        }
    }

    fn programs(&self) -> usize {
        let of_programs = |listed: &store::Listed| listed.file.starts_with("programs");
        store::list(&self.path("cache")).iter().filter(|listed| of_programs(listed)).count()
    }
}

fn starts(program: &Program) -> bool {
    let mut command = std::process::Command::new(&program.output);
    command.env("DEP_FILE", "null:");
    loop {
        match command.status() {
            // A process that another test has forked has the file open for writing until it executes.
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            status => return status.expect("starts").success(),
        }
    }
}

#[test]
fn one_file_has_one_output_whatever_it_is_called() {
    let place = Place::new();
    let first = place.run(&place.program("a"), &tags());
    assert!(starts(&first));
    assert_eq!(first.exe, place.path("a").canonicalize().expect("a path"));
    assert!(first.script_arguments.is_empty());
    std::fs::hard_link(place.path("a"), place.path("b")).expect("links");
    std::os::unix::fs::symlink(place.path("a"), place.path("c")).expect("links");
    place.program("d");
    for name in ["a", "b", "c", "d"] {
        assert_eq!(place.run(&place.path(name), &tags()).output, first.output, "{name}");
    }
    assert_eq!(place.programs(), 1);
    // Of other options, and of other contents, it is another.
    let full = ["--control-flow", "full-pc"].map(String::from);
    let other = place.run(&place.path("a"), &full);
    assert_ne!(other.identity, first.identity);
    let mut bytes = std::fs::read(place.path("d")).expect("reads");
    bytes.push(0);
    std::fs::write(place.path("d"), bytes).expect("writes");
    assert_ne!(place.run(&place.path("d"), &tags()).output, first.output);
    assert_eq!(place.programs(), 3);
}

#[test]
fn a_system_program_is_remembered_and_what_is_gone_is_made_again() {
    let place = Place::new();
    let path = Path::new("/bin/true");
    let first = place.run(path, &[]);
    assert!(!first.packs.is_empty());
    let memos = || std::fs::read_dir(place.store.folder().join("memo")).expect("lists").count();
    let remembered = memos();
    assert!(remembered > first.packs.len(), "{remembered}");
    assert_eq!(place.run(path, &[]), first);
    assert_eq!(memos(), remembered);
    type Damage = fn(&Path);
    let cut: Damage = |path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        let file = std::fs::File::options().write(true).open(path).expect("opens");
        file.set_len(5000).expect("cuts");
    };
    let remove: Damage = |path| std::fs::remove_file(path).expect("removes");
    let library = &first.packs[0].path;
    let bytes = [&first.output, library].map(|path| std::fs::read(path).expect("reads"));
    for damage in [cut, remove] {
        for (path, bytes) in [&first.output, library].into_iter().zip(&bytes) {
            damage(path);
            let again = place.run(Path::new("/bin/true"), &[]);
            assert_eq!((&again.output, again.identity), (&first.output, first.identity));
            let now = std::fs::read(path).expect("reads");
            // A translation of a library has other numbers for its units then.
            assert_eq!(now.len(), bytes.len());
            assert!(path == library || now == *bytes);
            assert!(starts(&again));
        }
    }
    // A memo that makes no sense is none.
    for memo in std::fs::read_dir(place.store.folder().join("memo")).expect("lists").flatten() {
        std::fs::write(memo.path(), "nonsense\n{}").expect("writes");
    }
    assert_eq!(place.run(path, &[]).output, first.output);
}

#[test]
fn what_must_not_or_cannot_be_rewritten_runs_as_it_is() {
    let place = Place::new();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    let path = place.program("set");
    mode(&path, 0o4755);
    assert!(place.refused(&path).contains("set-user-id"));
    mode(&path, 0o2755);
    assert!(place.refused(&path).contains("set-group-id"));
    // Not that: the bit means something else.
    mode(&path, 0o2745);
    place.run(&path, &[]);
    let text = place.path("text");
    std::fs::write(&text, "no program").expect("writes");
    mode(&text, 0o755);
    assert_eq!(place.refused(&text), "unsupported input: not an ELF file");
    let output = place.run(&place.program("a"), &[]).output;
    assert!(place.refused(&output).contains("was written by deprewrite"));
    let script = place.path("script");
    std::fs::write(&script, format!("#!{}\n", text.display())).expect("writes");
    mode(&script, 0o755);
    assert_eq!(place.refused(&script), "unsupported input: not an ELF file");
    let program = place.program("interpreter");
    std::fs::write(&script, format!("#!{} x y \n", program.display())).expect("writes");
    let run = place.run(&script, &[]);
    let expected = [program.as_os_str(), "x y".as_ref(), script.as_os_str()];
    assert_eq!(run.script_arguments, expected);
    let answer = Prepared::Run(Box::new(run.clone())).to_bytes();
    let fields: Vec<_> = answer.split(|b| *b == 0).collect();
    assert_eq!(fields[0], b"run");
    assert_eq!((fields.len(), fields[5]), (7, script.as_os_str().as_encoded_bytes()));
    // With capabilities of its own, where the test may give them.
    let capabilities =
        [1, 0, 0, 2, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].map(|byte: u8| byte);
    let file = std::fs::File::open(&program).expect("opens");
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::fsetxattr(&file, "security.capability", &capabilities, flags) {
        Ok(()) => assert!(place.refused(&program).contains("capabilities")),
        Err(e) => eprintln!("skipped: cannot give capabilities: {e}"),
    }
}

#[test]
fn options_are_checked() {
    let place = Place::new();
    let program = place.program("a");
    for wrong in ["--nonsense", "--json", "--output=x", "x", "--ring"] {
        match place.prepare(&program, &[wrong.into()]) {
            Prepared::Native { reason: why } => {
                assert!(why.starts_with("options for rewriting: ") && !why.contains('\n'), "{why}");
            }
            Prepared::Run(_) => panic!("{wrong}: not refused"),
        }
    }
}

#[test]
fn what_is_known_is_answered_at_once() {
    let place = Place::new();
    let folder = place.path("x.rec");
    std::fs::create_dir(&folder).expect("makes");
    // Older than the clock's steps, so that it may be known by its stat.
    let (path, cache) = (Path::new("/bin/true"), place.path("cache"));
    assert_eq!(known(&folder, path, &tags(), Some(&cache)), None);
    assert_eq!(std::fs::read_dir(&folder).expect("lists").count(), 0);
    let made = for_recording_with(&folder, path, &tags(), Some(&cache));
    assert!(matches!(made, Prepared::Run(_)), "{made:?}");
    assert_eq!(known(&folder, path, &tags(), Some(&cache)), Some(made));
    assert_eq!(known(&folder, path, &[], Some(&cache)), None);
    assert_eq!(known(&folder, path, &tags(), Some(&place.path("other"))), None);
}

#[test]
fn a_recording_remembers_what_was_answered_of_files_that_are_settled() {
    let place = Place::new();
    let folder = place.path("x.rec");
    std::fs::create_dir(&folder).expect("makes");
    let answers = || std::fs::read_dir(folder.join("answers")).into_iter().flatten().flatten();
    let answer = |path: &Path| {
        for_recording_with(&folder, path, &tags(), Some(&place.path("cache"))).to_bytes()
    };
    answer(&place.program("young"));
    assert_eq!(answers().count(), 0);
    // Made just now, and remembered from before.
    for _ in 0..2 {
        let answer = answer(Path::new("/bin/true"));
        let all: Vec<_> = answers().collect();
        assert_eq!(all.len(), 1);
        let bytes = std::fs::read(all[0].path()).expect("reads");
        let (files, remembered) = abi::answer::decode(&bytes).expect("it is whole");
        assert_eq!((files[0].0, remembered), (&b"/bin/true"[..], &answer[..]));
        // What names its libraries counts, too.
        assert!(files.iter().any(|(path, _)| *path == b"/etc/ld.so.cache"), "{files:?}");
        std::fs::remove_file(all[0].path()).expect("removes");
    }
    answer(Path::new("/no/such/program"));
    assert_eq!(answers().count(), 0);
}

#[test]
fn embedded_libraries_count() {
    let place = Place::new();
    let embed = ["--libraries", "embed"].map(String::from);
    let program = place.run(&place.program("a"), &embed);
    assert!(program.packs.is_empty());
    assert!(starts(&program));
}

#[test]
fn a_recording_keeps_what_runs() {
    let place = Place::new();
    let folder = place.path("x.rec");
    std::fs::create_dir(&folder).expect("makes");
    let cache = place.path("cache");
    let answer =
        |path: &Path, cache: &Path| match for_recording_with(&folder, path, &tags(), Some(cache)) {
            Prepared::Run(program) => *program,
            Prepared::Native { reason } => panic!("{reason}"),
        };
    let path = place.program("a");
    let program = answer(&path, &cache);
    assert!(program.output.starts_with(folder.join("programs")), "{:?}", program.output);
    let packs = std::fs::read_dir(folder.join("libraries")).expect("lists").count();
    assert_eq!(packs, program.packs.len());
    // It does not need the cache any more.
    store::clear(&cache).expect("clears");
    assert!(starts(&program));
    // Made again, the translations of libraries may be others: both are kept.
    let again = answer(&path, &cache);
    assert_eq!(again.output, program.output);
    assert!(starts(&again));
    // Without a cache the recording has its own, and a note.
    let file = place.path("file");
    std::fs::write(&file, "").expect("writes");
    assert!(starts(&answer(&path, &file)));
    let notes: Vec<_> = std::fs::read_dir(folder.join("notes")).expect("notes").flatten().collect();
    assert_eq!(notes.len(), 1);
    let text = std::fs::read_to_string(notes[0].path()).expect("a note");
    assert!(text.starts_with("the cache cannot be used: ") && text.lines().count() == 1, "{text}");
}
