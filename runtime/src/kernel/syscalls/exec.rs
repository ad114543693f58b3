//! `execve` and `execveat`: another program starts in this process. If there is a recorder, it says
//! what to execute instead, so that the program goes on recorded.
//!
//! In a child of vfork all memory is its parent's. What is in use when the program is executed stays
//! with the thread ([`ForExec`]), and no lock is held then.

use crate::base::last_words::Line;
use crate::base::lineage::{lineage, EXE, EXECFN, NAME};
use crate::base::namespaces;
use crate::base::program::{read_program_string, read_program_words, try_read_program_bytes};
use crate::base::signal;
use crate::base::stat::Stat;
use crate::base::sys::{self, nr};
use crate::kernel::ring;
use crate::kernel::syscalls::{errand, exe_link, seccomp, traced, Outcome};
use crate::thread::for_exec::ForExec;
use crate::thread::Thread;
use abi::answer;
use abi::event::{Event, WHOLE_UNIT};
use abi::file::State;
use abi::layout::{LEAST_ADDRESSES, PAGE, TOO_FEW_ADDRESSES};
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::fmt::Write;

/// Words in a vector of strings; with more of them the kernel refuses the call anyway.
const MOST_STRINGS: usize = 1 << 21;
const PATH_MAX: usize = 4096;

/// What the program asks for.
struct Request {
    /// As the call is made if nothing else is executed.
    args: [usize; 6],
    directory: usize,
    path_at: usize,
    path: [u8; PATH_MAX],
    /// Bytes of the path, as far as it can be read.
    len: usize,
    is_whole: bool,
    /// It is the link to this program, whose file is not there any more.
    is_lost: bool,
    flags: usize,
    arguments: u64,
    environment: u64,
}

impl Request {
    fn new(number: usize, args: &[usize; 6]) -> Request {
        let (directory, first, flags) = match number {
            nr::EXECVE => (sys::AT_FDCWD, 0, 0),
            _ => (args[0], 1, args[4]),
        };
        let mut path = [0u8; PATH_MAX];
        let is_whole = read_program_string(args[first] as u64, &mut path).is_ok();
        let len = path.iter().position(|&byte| byte == 0).unwrap_or(PATH_MAX - 1);
        let mut request = Request {
            args: *args,
            directory,
            path_at: args[first],
            path,
            len,
            is_whole,
            is_lost: false,
            flags,
            arguments: args[first + 1] as u64,
            environment: args[first + 2] as u64,
        };
        let follows = len > 0 && flags & sys::AT_SYMLINK_NOFOLLOW == 0;
        let exe = lineage().exe.as_deref().filter(|_| follows);
        if let Some(exe) = exe.filter(|_| exe_link::is_link(directory, request.path())) {
            // The program itself, not the file that runs in its place.
            request.is_lost = Kind::of(0, sys::AT_FDCWD, exe).is_none();
            if !request.is_lost {
                request.path_at = exe.as_ptr() as usize;
                request.args[first] = request.path_at;
            }
        }
        request
    }

    /// As the program gave it.
    fn path(&self) -> &[u8] {
        &self.path[..self.len]
    }

    /// The descriptor itself is to be executed.
    fn is_descriptor(&self) -> bool {
        self.len == 0 && self.flags & sys::AT_EMPTY_PATH != 0
    }

    /// The path that goes through a descriptor, as the kernel makes it up for the program.
    fn by_descriptor(&self) -> Option<Line> {
        if self.directory == sys::AT_FDCWD || self.path().starts_with(b"/") {
            return None;
        }
        let mut line = Line::new();
        let _ = write!(line, "/dev/fd/{}", self.directory as i32);
        Some(line)
    }

    /// The path that the kernel shows the program in AT_EXECFN, and the interpreter of a script.
    fn shown(&self) -> Vec<u8> {
        match self.by_descriptor() {
            None => self.path().into(),
            Some(folder) if self.len == 0 => folder.text().into(),
            Some(folder) => [folder.text(), b"/", self.path()].concat(),
        }
    }

    /// Whether the flags are those of a call that executes. Others the kernel refuses, or it says only whether the file
    /// could be executed (AT_EXECVE_CHECK, Linux 6.14).
    fn executes(&self) -> bool {
        self.flags & !(sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH) == 0
    }

    /// Whether the call can succeed, as far as the path says. (No path: the descriptor itself.)
    fn is_there(&self) -> bool {
        self.executes() && (self.len == 0 || is_executable(self.directory, self.path_at))
    }
}

/// Whether the file at the path at `path_at` may be executed, by the process's real rights.
fn is_executable(directory: usize, path_at: usize) -> bool {
    const EXECUTE: usize = 1;
    // SAFETY: the kernel reads the path.
    unsafe { sys::call(nr::FACCESSAT, &[directory, path_at, EXECUTE]) }.is_ok()
}

/// What is executed.
enum Choice {
    /// What the program asks for. The kernel refuses it, or nobody follows.
    AsItIs,
    /// The same, although it should go on recorded: why it does not.
    NotFollowed(Vec<u8>),
    /// What the recorder has said ([`ForExec::answer`]).
    Instead,
}

/// (By itself: its paths are no part of the stack of every call.)
#[inline(never)]
pub(super) fn exec(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Outcome {
    let request = Request::new(number, args);
    let mut choice = match &lineage().recorder {
        Some(recorder) if request.is_whole && request.executes() => {
            choose(thread, &request, recorder)
        }
        _ => Choice::AsItIs,
    };
    if matches!(choice, Choice::Instead | Choice::NotFollowed(_)) && thread.mailbox.is_pending() {
        // It came in while the recorder was asked, and it is this program's.
        return Outcome::Again;
    }
    thread.event(WHOLE_UNIT, &Event::Exec(request.path()));
    // Many paths are tried in turn.
    if thread.filter != 0 && request.is_there() {
        seccomp::before_exec(thread);
    }
    if request.is_there() {
        ring::before_exec(thread);
    }
    if request.is_there() {
        traced::before_exec(thread);
    }
    if matches!(choice, Choice::Instead) {
        let errno = execute(thread, &request);
        let mut line = Line::new();
        let _ = write!(line, "its rewritten copy cannot be executed (error {errno})");
        choice = Choice::NotFollowed(line.text().into());
    }
    let note = match choice {
        Choice::NotFollowed(reason) => {
            thread.event(WHOLE_UNIT, &Event::NotFollowed(&reason));
            Note::leave(request.path(), &reason)
        }
        _ => None,
    };
    // SAFETY: the program's own call.
    let result = thread.with_true_mask(|_| unsafe { sys::raw(number, request.args) });
    if let Some(note) = note {
        note.take_back();
    }
    thread.for_exec = Default::default();
    Outcome::Done(result)
}

/// Executes what the recorder has said. Returns the error if that fails.
fn execute(thread: &mut Thread, request: &Request) -> i32 {
    let Some(args) = instead(&mut thread.for_exec, request) else { return sys::EINVAL };
    // SAFETY: zero-terminated strings and vectors; what is the program's, the kernel checks.
    let result = thread.with_true_mask(|_| unsafe { sys::call(nr::EXECVE, &args) });
    result.err().unwrap_or(0)
}

/// The arguments of the call that executes what the recorder has said.
fn instead(memory: &mut ForExec, request: &Request) -> Option<[usize; 3]> {
    let fields: Vec<&[u8]> = memory.answer.split_inclusive(|&byte| byte == 0).collect();
    let [_, output, exe, script @ ..] = &fields[..] else { return None };
    let shown = request.shown();
    let text = &mut memory.text;
    text.clear();
    let mut put = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b"=", value, b"\0"] {
            text.extend_from_slice(part);
        }
    };
    put(EXECFN, &shown);
    let exe = exe.strip_suffix(b"\0").unwrap_or(exe);
    put(EXE, exe);
    if request.is_descriptor() && names_by_file() {
        let path = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
        put(NAME, path.rsplit(|&byte| byte == b'/').next().unwrap_or(path));
    }
    let shown_at = text.as_ptr() as u64 + EXECFN.len() as u64 + 1;
    let own = text.split_inclusive(|&byte| byte == 0).map(|string| string.as_ptr() as u64);
    let handed_on = lineage().variables.iter().map(|variable| variable.as_ptr() as u64);
    memory.environment.extend(handed_on.chain(own).chain([0]));
    let arguments = match script {
        [] => request.arguments,
        [interpreter @ .., _] => {
            // The script is found by the path that the program has given.
            let given = memory.arguments.iter().skip(1).copied();
            let first = interpreter.iter().map(|argument| argument.as_ptr() as u64);
            memory.arguments = first.chain([shown_at]).chain(given).chain([0]).collect();
            memory.arguments.as_ptr() as u64
        }
    };
    Some([output.as_ptr() as usize, arguments as usize, memory.environment.as_ptr() as usize])
}

fn not_followed(why: &str) -> Choice {
    Choice::NotFollowed(why.as_bytes().into())
}

fn choose(thread: &mut Thread, request: &Request, recorder: &CStr) -> Choice {
    let file = match File::open(request) {
        Ok(file) => file,
        Err(sys::EMFILE | sys::ENFILE) => return not_followed("no file descriptor is free"),
        Err(_) => return Choice::AsItIs,
    };
    let Some(what) = file.kind() else { return Choice::AsItIs };
    if let Some(why) = what.privilege().or_else(other_rights) {
        return not_followed(why);
    }
    if sys::limit(sys::RLIMIT_AS) < LEAST_ADDRESSES {
        return not_followed(TOO_FEW_ADDRESSES);
    }
    let Some(place) = file.place(what) else { return not_followed("/proc is not mounted") };
    let path = place.reached.as_deref().unwrap_or(&place.shown);
    if has_capabilities(path) {
        return not_followed("it has file capabilities");
    }
    let vectors = [request.arguments, request.environment].map(read_vector);
    let [Some(arguments), Some(environment)] = vectors else { return Choice::AsItIs };
    if environment.iter().any(|&entry| starts_with(entry, b"DEP_RECORDER=")) {
        return not_followed("it has a recorder of its own");
    }
    if thread.filter != 0 {
        // The kernel gets it, and may end whoever makes a call that the program does not.
        return not_followed(
            "the program's filter of system calls (seccomp) would apply to the runtime",
        );
    }
    if namespaces::next_child_is_first() {
        return not_followed("the recorder would be the first process of a PID namespace");
    }
    let memory = &mut thread.for_exec;
    (memory.arguments, memory.environment) = (arguments, environment);
    let about = Some((CString::from(path), what.state));
    if memory.asked != about {
        memory.asked = None;
        let answer = match lineage().exe.as_deref().filter(|_| request.is_lost) {
            // This very file, in place of the same one.
            Some(exe) => Ok(run_answer(path.to_bytes(), exe.to_bytes())),
            None => match remembered(&place, what) {
                Some(answer) => Ok(answer),
                None => ask(recorder, path),
            },
        };
        match answer {
            Ok(answer) => memory.answer = answer,
            Err(why) => return Choice::NotFollowed(why),
        }
        memory.asked = about;
    }
    if let ([b"run", output, _, b""], true) = (&fields_of(&memory.answer)[..], place.is_lost()) {
        // What the recorder could say is how it was reached.
        memory.answer = run_answer(output, place.shown.to_bytes());
    }
    match &fields_of(&memory.answer)[..] {
        [b"run", output, exe, script @ .., b""] if !output.is_empty() && !exe.is_empty() => {
            if !script.is_empty() && request.by_descriptor().is_some() && is_closed(request) {
                // Its interpreter could not open it.
                return Choice::AsItIs;
            }
            Choice::Instead
        }
        [b"native", reason, b""] => Choice::NotFollowed(reason.to_vec()),
        _ => not_followed("the recorder's answer is not understood"),
    }
}

/// The fields of an answer. Behind the last zero there is an empty one.
fn fields_of(answer: &[u8]) -> Vec<&[u8]> {
    answer.split(|&byte| byte == 0).collect()
}

/// The answer that `output` is to be executed in place of `exe`.
fn run_answer(output: &[u8], exe: &[u8]) -> Vec<u8> {
    [b"run", output, exe, b""].join(&0)
}

/// What the recorder has answered before of the file there, if nothing that the answer depends on has changed.
fn remembered(place: &Place, what: Kind) -> Option<Vec<u8>> {
    if place.is_lost() {
        return None;
    }
    let path = place.shown.to_bytes();
    let name = answer::name(path, what.state);
    let folder = lineage().recording.as_deref()?;
    let bytes = contents(&CString::new([folder.to_bytes(), b"/", name.as_bytes()].concat()).ok()?)?;
    let (files, answer) = answer::decode(&bytes)?;
    let is_as_it_was = |&(path, state): &answer::Dependency| {
        let path = CString::new(path);
        path.is_ok_and(|path| Kind::of(0, sys::AT_FDCWD, &path).map(|there| there.state) == state)
    };
    let fields = fields_of(answer);
    let [b"run", output, ..] = &fields[..] else { return None };
    let holds = files.first()?.0 == path
        && files.iter().all(is_as_it_was)
        && is_executable(sys::AT_FDCWD, CString::new(*output).ok()?.as_ptr() as usize);
    holds.then(|| answer.into())
}

/// What is in a small file.
fn contents(path: &CStr) -> Option<Vec<u8>> {
    const O_NONBLOCK: usize = 0o4000;
    let flags = sys::O_CLOEXEC | sys::O_NOFOLLOW | O_NONBLOCK;
    // SAFETY: the kernel reads the path.
    let descriptor = unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, flags]) }.ok()?;
    // (Pages that are not read into are as dear as the call.)
    let len = Stat::of(descriptor).map_or(0, |stat| stat.size()).min(answer::LONGEST as u64);
    let mut bytes = alloc::vec![0u8; len as usize];
    let args = [descriptor, bytes.as_mut_ptr() as usize, bytes.len(), 0];
    // SAFETY: the kernel writes at most that many bytes; the descriptor is closed once.
    let read = unsafe {
        let read = sys::call(nr::PREAD64, &args);
        let _ = sys::call(nr::CLOSE, &[descriptor]);
        read
    };
    bytes.truncate(read.ok()?);
    Some(bytes)
}

/// Asks the recorder what to execute instead.
fn ask(recorder: &CStr, path: &CStr) -> Result<Vec<u8>, Vec<u8>> {
    let lineage = lineage();
    let folder = lineage.recording.as_deref().unwrap_or_default();
    let arguments = [recorder, c"prepare", c"--recording", folder, path];
    let environment: Vec<&CStr> = lineage.variables.iter().map(|entry| entry.as_c_str()).collect();
    errand::run(&arguments, &environment)
}

/// The descriptor in the request is closed when another program is executed.
fn is_closed(request: &Request) -> bool {
    const F_GETFD: usize = 1;
    const FD_CLOEXEC: usize = 1;
    // SAFETY: no memory involved.
    let flags = unsafe { sys::call(nr::FCNTL, &[request.directory, F_GETFD]) };
    flags.is_ok_and(|flags| flags & FD_CLOEXEC != 0)
}

/// A process whose rights are not all its user's. The kernel starts each program as it does a
/// set-user-id one, which is told nothing.
fn other_rights() -> Option<&'static str> {
    // SAFETY: no memory involved.
    let [user, effective, group, effective_group] =
        [nr::GETUID, nr::GETEUID, nr::GETGID, nr::GETEGID]
            .map(|number| unsafe { sys::raw(number, [0; 6]) });
    let differs = user != effective || group != effective_group;
    differs.then_some("the process's real and effective user or group differ")
}

/// The file that the request is about.
struct File<'a> {
    descriptor: usize,
    request: &'a Request,
}

impl File<'_> {
    /// The error is that of the call that the program makes.
    fn open(request: &Request) -> Result<File<'_>, i32> {
        if request.is_descriptor() {
            return Ok(File { descriptor: request.directory, request });
        }
        let link = match request.flags & sys::AT_SYMLINK_NOFOLLOW {
            0 => 0,
            _ => sys::O_NOFOLLOW,
        };
        let flags = sys::O_PATH | sys::O_CLOEXEC | link;
        // SAFETY: the kernel reads the path.
        let descriptor =
            unsafe { sys::call(nr::OPENAT, &[request.directory, request.path_at, flags]) }?;
        Ok(File { descriptor, request })
    }

    /// What it is, if the kernel executes it.
    fn kind(&self) -> Option<Kind> {
        const EXECUTE: usize = 1;
        /// The rights that count are the effective ones.
        const AT_EACCESS: usize = 0x200;
        let what = Kind::of(sys::AT_EMPTY_PATH, self.descriptor, c"")?;
        if what.mode & Kind::TYPE != Kind::REGULAR || what.mode & 0o111 == 0 {
            return None;
        }
        let flags = AT_EACCESS | sys::AT_EMPTY_PATH;
        let args = [self.descriptor, c"".as_ptr() as usize, EXECUTE, flags];
        // SAFETY: the kernel reads the path.
        let may = unsafe { sys::call(nr::FACCESSAT2, &args) };
        // Linux before 5.8 has no such call, and filters of system calls refuse what they do not know.
        (may != Err(sys::EACCES) && !self.is_busy()).then_some(what)
    }

    /// Whether somebody has it open for writing, as far as the kernel says that beforehand: from Linux
    /// 6.14 on.
    fn is_busy(&self) -> bool {
        const CHECK: usize = 0x10000;
        const ETXTBSY: i32 = 26;
        let (empty, flags) = (c"".as_ptr() as usize, sys::AT_EMPTY_PATH | CHECK);
        let arguments = [empty, 0];
        let at = arguments.as_ptr() as usize;
        // SAFETY: the kernel reads the strings, and executes nothing: one that does not know the flag
        // refuses the call.
        let result =
            unsafe { sys::call(nr::EXECVEAT, &[self.descriptor, empty, at, at + 8, flags]) };
        result == Err(ETXTBSY)
    }

    /// Where it is.
    fn place(&self, what: Kind) -> Option<Place> {
        let mut link = Line::new();
        let _ = write!(link, "/proc/self/fd/{}\0", self.descriptor as i32);
        let mut path = alloc::vec![0u8; PATH_MAX];
        let args = [link.text().as_ptr() as usize, path.as_mut_ptr() as usize, path.len() - 1];
        // SAFETY: the kernel reads the path, and writes at most that many bytes.
        let len = unsafe { sys::call(nr::READLINK, &args) }.ok()?;
        path.truncate(len);
        let shown = CString::new(path).ok()?;
        if Kind::of(0, sys::AT_FDCWD, &shown).is_some_and(|there| there == what) {
            return Some(Place { shown, reached: None });
        }
        let mut other = Line::new();
        let _ = write!(other, "/proc/{}/fd/{}", sys::getpid(), self.descriptor as i32);
        Some(Place { shown, reached: CString::new(other.text()).ok() })
    }
}

/// Where a file is.
struct Place {
    /// The path that the kernel shows.
    shown: CString,
    /// A path that leads there from another process, if that one does not: the file has been deleted,
    /// or has never had a name.
    reached: Option<CString>,
}

impl Place {
    fn is_lost(&self) -> bool {
        self.reached.is_some()
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        if !self.request.is_descriptor() {
            // SAFETY: opened above.
            let _ = unsafe { sys::call(nr::CLOSE, &[self.descriptor]) };
        }
    }
}

/// What the kernel says of a file: which one it is, its mode, and when it was changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    mode: u32,
    state: State,
}

impl Kind {
    const TYPE: u32 = 0o170000;
    const REGULAR: u32 = 0o100000;

    fn of(flags: usize, directory: usize, path: &CStr) -> Option<Kind> {
        // struct stat: device, inode, links, mode and user.
        let mut stat = [0u64; 18];
        let args = [directory, path.as_ptr() as usize, stat.as_mut_ptr() as usize, flags];
        // SAFETY: the kernel reads the path and fills the structure.
        unsafe { sys::call(nr::NEWFSTATAT, &args) }.ok()?;
        Some(Kind { mode: stat[3] as u32, state: State::of_stat(&stat) })
    }

    /// The rights that it gives, which a copy would not.
    fn privilege(self) -> Option<&'static str> {
        const SET_USER: u32 = 0o4000;
        const SET_GROUP: u32 = 0o2010;
        match self.mode {
            mode if mode & SET_USER != 0 => Some("a set-user-id program"),
            mode if mode & SET_GROUP == SET_GROUP => Some("a set-group-id program"),
            _ => None,
        }
    }
}

fn has_capabilities(path: &CStr) -> bool {
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: the kernel reads path and name, and writes nothing.
    unsafe { sys::call(nr::GETXATTR, &[path.as_ptr() as usize, name, 0, 0]) }.is_ok()
}

/// Whether the kernel names a process that executes a descriptor by the file, and not by the
/// descriptor's number: Linux from 6.14 on.
fn names_by_file() -> bool {
    const FIELD: usize = 65;
    let mut names = [0u8; 6 * FIELD];
    // SAFETY: the kernel fills six fields.
    let _ = unsafe { sys::call(nr::UNAME, &[names.as_mut_ptr() as usize]) };
    let mut numbers =
        names[2 * FIELD..3 * FIELD].split(|byte| !byte.is_ascii_digit()).map(|digits| {
            digits
                .iter()
                .fold(0u32, |number, digit| 10 * number.min(1000) + u32::from(digit - b'0'))
        });
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 14)
}

/// The pointers of a vector of the program's, up to its zero; `None` if it cannot be read, or has
/// more than the kernel takes.
fn read_vector(at: u64) -> Option<Vec<u64>> {
    let mut words = Vec::new();
    if at == 0 {
        return Some(words);
    }
    while words.len() < MOST_STRINGS {
        let from = at.checked_add(8 * words.len() as u64)?;
        // The next page may not be there.
        let count = ((PAGE - from % PAGE) / 8).clamp(1, 64) as usize;
        let old = words.len();
        words.resize(old + count, 0);
        read_program_words(from, words.get_mut(old..)?).then_some(())?;
        if let Some(zero) = words[old..].iter().position(|&word| word == 0) {
            words.truncate(old + zero);
            return Some(words);
        }
    }
    None
}

/// Whether a string of the program's starts with `prefix`.
fn starts_with(at: u64, prefix: &[u8; 13]) -> bool {
    let mut bytes = [0u8; 13];
    try_read_program_bytes(at, &mut bytes) == Ok(13) && bytes == *prefix
}

/// A line in the recording: what was not followed, and why.
struct Note {
    descriptor: usize,
    /// Size of the file without the line.
    before: u64,
}

impl Note {
    /// The file for the notes of this process.
    fn path() -> Option<CString> {
        let folder = lineage().recording.as_deref()?;
        let mut name = Line::new();
        let _ = write!(name, "/notes/{}", sys::getpid());
        CString::new([folder.to_bytes(), name.text()].concat()).ok()
    }

    /// Leaves the line. Without a recording, or where that cannot be written, there is none: the trace
    /// has it.
    fn leave(program: &[u8], reason: &[u8]) -> Option<Note> {
        // O_WRONLY | O_CREAT | O_APPEND
        const FLAGS: usize = 0o1 | 0o100 | 0o2000 | sys::O_CLOEXEC | sys::O_NOFOLLOW;
        let path = Note::path()?;
        // SAFETY: the kernel reads the path.
        let opened = unsafe { sys::call(nr::OPEN, &[path.as_ptr() as usize, FLAGS, 0o644]) };
        let descriptor = opened.ok()?;
        let mut stat = [0u64; 18];
        // SAFETY: the kernel fills the structure.
        let _ = unsafe { sys::call(nr::FSTAT, &[descriptor, stat.as_mut_ptr() as usize]) };
        let mut line = [program, b": ", reason].concat();
        for byte in line.iter_mut().filter(|byte| byte.is_ascii_control()) {
            *byte = b'?';
        }
        line.push(b'\n');
        let mask = signal::block_all();
        if sys::write(descriptor as i32, &line) == Err(sys::EFBIG) {
            signal::take_pending(signal::SIGXFSZ);
        }
        signal::set_real_mask(mask);
        Some(Note { descriptor, before: stat[6] })
    }

    /// The program was not executed at all.
    fn take_back(self) {
        // SAFETY: a file of ours, and its path.
        unsafe {
            let _ = sys::call(nr::FTRUNCATE, &[self.descriptor, self.before as usize]);
            if let Some(path) = Note::path().filter(|_| self.before == 0) {
                let _ = sys::call(nr::UNLINK, &[path.as_ptr() as usize]);
            }
            let _ = sys::call(nr::CLOSE, &[self.descriptor]);
        }
    }
}
