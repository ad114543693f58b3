//! Recordings of inputs: the program does what it does natively, and all that it could not compute is
//! there, in the order in which a replay needs it.

mod common;

use std::path::{Path, PathBuf};

use common::*;
use tests::harness::{difference, is_refused, Mode, Run, RunSpec, Tally, Tools};
use tests::inputs::{events, kind, Recorded};
use tests::sys::Status;

const STATIC: Mode = Mode { name: "static-inputs", flags: &["--instrument", "inputs"] };
const DYNAMIC: Mode =
    Mode { name: "dynamic-inputs", flags: &["--translate", "dynamic", "--instrument", "inputs"] };
const IN_MEMORY: Mode = Mode {
    name: "thread-block-inputs",
    flags: &["--pointers", "thread-block", "--torture", "tiny-buffers", "--instrument", "inputs"],
};

/// What the runtime says once of a recording that has met something it cannot follow.
const NOT_REPLAYED: &str = "the recording cannot be replayed from there on";

/// Takes the line out that says that the recording cannot be replayed.
fn without_notice(mut run: Run) -> Run {
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    if text.contains(NOT_REPLAYED) {
        let kept: Vec<_> =
            text.split_inclusive('\n').filter(|l| !l.contains(NOT_REPLAYED)).collect();
        run.stderr = kept.concat().into_bytes();
    }
    run
}

/// Runs `spec` natively and recorded. Both do the same, and the traces are valid.
fn recorded(spec: &RunSpec, mode: Mode, dir: &Path) -> Result<Run, String> {
    let tools = Tools::get();
    let native = spec.run(None, dir).map_err(|e| e.to_string())?;
    let rewritten = dir.join(mode.name);
    tools.rewrite_sharing(&spec.program, &rewritten, mode.flags)?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    let run = without_notice(run);
    difference(&native, &run)?;
    verify_all(&run.traces, tools, &rewritten)?;
    Ok(run)
}

#[test]
fn the_corpus_behaves_and_its_recordings_are_valid() {
    let mut tally = Tally::start("the_corpus_behaves_and_its_recordings_are_valid");
    let tools = Tools::get();
    // Each in one way: that is enough of all of them.
    let cases: Vec<_> =
        corpus().into_iter().zip([STATIC, DYNAMIC, IN_MEMORY].into_iter().cycle()).collect();
    tally.side_by_side(&cases, |outcomes, (case, mode)| {
        if let Some(why) = case.skip_reason_in("inputs") {
            return outcomes.skip(&case.name, &why);
        }
        let dir = tempfile::tempdir().unwrap();
        let check = || -> Result<(), String> {
            if case.refused.is_none() {
                return recorded(&spec(case), *mode, dir.path()).map(drop);
            }
            let rewritten = dir.path().join(mode.name);
            tools.rewrite_sharing(&case.path, &rewritten, mode.flags)?;
            let run = spec(case).run(Some(&rewritten), dir.path());
            is_refused(&without_notice(run.map_err(|e| e.to_string())?))
        };
        outcomes.record(&format!("{} {}", case.name, mode.name), check());
    });
    tally.finish();
}

/// A C program of these sources, built in `dir`.
fn build(dir: &Path, source: &str) -> PathBuf {
    let (text, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&text, source).unwrap();
    let mut compiler = std::process::Command::new("cc");
    let done = compiler.args(["-O1", "-o"]).arg(&program).arg(&text).status().unwrap();
    assert!(done.success());
    program
}

/// Records the program, whose status has to be `status`, and returns the events of its first thread.
fn record(spec: &RunSpec, dir: &Path, status: i32) -> (Vec<Recorded>, Run) {
    let run = recorded(spec, STATIC, dir).unwrap();
    assert_eq!(run.status, Status::Exited(status));
    let mut all = events(first_trace(&run.traces).unwrap()).unwrap();
    all.retain(|event| event.thread == 0);
    (all, run)
}

const READ: u64 = 0;
const MMAP: u64 = 9;

/// Each `read` of the program's input is in the recording, with the bytes that it gave the program.
#[test]
fn what_was_read_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let text: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let spec = RunSpec::new("/bin/dd").args(&["bs=70001", "status=none"]).stdin(&text);
    let (all, run) = record(&spec, dir.path(), 0);
    assert_eq!(run.stdout, text);
    assert_eq!(all[0].kind, kind::THREAD_START);
    assert_eq!(all[1].kind, kind::WRITTEN, "the stack");
    assert!(all.windows(2).all(|pair| pair[0].turns <= pair[1].turns));
    assert!(all.last().unwrap().turns > 1000);
    // A buffer of this size takes more than one event.
    assert!(all.iter().any(|e| e.kind == kind::WRITTEN && e.word(1) == 64 << 10));
    let (mut read, mut pending) = (Vec::new(), Vec::new());
    for event in &all {
        match event.kind {
            kind::WRITTEN => pending.push(event),
            kind::SYSCALL if event.word(0) == READ => {
                let (buffer, result) = (event.word(2), event.word(7) as i64);
                let mut at = buffer;
                for written in pending.drain(..) {
                    assert_eq!(written.word(0), at);
                    at += written.word(1);
                    if event.word(1) == 0 {
                        read.extend_from_slice(written.written());
                    }
                }
                assert_eq!(at - buffer, result as u64);
            }
            _ => pending.clear(),
        }
    }
    assert!(read == text, "{} of {} bytes, or others", read.len(), text.len());
    let mut mapped = all.windows(2).filter(|pair| pair[0].kind == kind::MAPPED);
    assert!(mapped.clone().count() > 3, "libraries");
    assert!(mapped.all(|pair| pair[1].kind == kind::SYSCALL && pair[1].word(0) == MMAP));
}

/// The time is asked of the kernel: there is no vdso. Instructions that ask are answered.
#[test]
fn time_and_answers_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(
        dir.path(),
        r"
        #include <sys/auxv.h>
        #include <sys/time.h>
        #include <x86intrin.h>
        int main(void) {
            struct timeval t;
            for (int i = 0; i < 10; i++)
                gettimeofday(&t, 0);
            unsigned long long sum = 0;
            for (int i = 0; i < 7; i++)
                sum ^= __rdtsc();
            return 5 + (sum == 1);
        }",
    );
    let (all, _) = record(&RunSpec::new(program), dir.path(), 5);
    const GETTIMEOFDAY: u64 = 96;
    let times = all.iter().filter(|e| e.kind == kind::SYSCALL && e.word(0) == GETTIMEOFDAY);
    assert_eq!(times.count(), 10);
    let answers: Vec<_> = all.iter().filter(|e| e.kind == kind::ANSWER).collect();
    let last = &answers[answers.len() - 7..];
    assert!(
        last.iter().all(|answer| answer.word(0) == last[0].word(0)),
        "one instruction, seven times"
    );
    // rdx and rax.
    let time = |answer: &Recorded| answer.word(4) << 32 | answer.word(1);
    let times: Vec<_> = last.iter().map(|answer| time(answer)).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
}

/// A signal that a timer sends arrives somewhere; one that an instruction raises needs no place.
#[test]
fn signals_have_their_places_and_frames() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(
        dir.path(),
        r"
        #include <setjmp.h>
        #include <signal.h>
        #include <sys/time.h>
        static volatile int alarms;
        static sigjmp_buf out;
        static void alarmed(int s) { alarms++; }
        static void faulted(int s) { siglongjmp(out, 1); }
        int main(void) {
            signal(SIGALRM, alarmed);
            signal(SIGSEGV, faulted);
            struct itimerval every = {{0, 2000}, {0, 2000}};
            setitimer(ITIMER_REAL, &every, 0);
            while (alarms < 20);
            struct itimerval never = {{0, 0}, {0, 0}};
            setitimer(ITIMER_REAL, &never, 0);
            if (!sigsetjmp(out, 1))
                *(volatile int *)8 = 1;
            return 9;
        }",
    );
    let (all, _) = record(&RunSpec::new(program), dir.path(), 9);
    const SIGALRM: u32 = 14;
    let (mut alarms, mut faults) = (0, 0);
    for (i, event) in all.iter().enumerate().filter(|(_, event)| event.kind == kind::SIGNAL) {
        let signal = event.word(0) as u32;
        let pc = event.word(2);
        let frame = all[..i].iter().rev().take_while(|e| e.kind == kind::WRITTEN).count();
        assert!(frame > 0);
        let in_front = &all[i - frame - 1];
        // The handler's stack pointer is where the frame begins.
        let (stack_pointer, start) = (event.word(3 + 4), all[i - frame].word(0));
        assert_eq!(stack_pointer, start);
        if signal == SIGALRM {
            assert_eq!(in_front.kind, kind::ARRIVED);
            assert_eq!((in_front.word(16), in_front.turns), (pc, event.turns));
            alarms += 1;
        } else {
            assert_ne!(in_front.kind, kind::ARRIVED, "a fault comes again by itself");
            faults += 1;
        }
    }
    assert!(alarms >= 20 && faults == 1, "{alarms} alarms, {faults} faults");
    assert_eq!(all.iter().filter(|e| e.kind == kind::RESUME).count(), alarms);
}

/// The child's turns go on where its parent's were, and its thread id is in its memory.
#[test]
fn a_childs_recording_goes_on_from_its_parents() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(
        dir.path(),
        r#"
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            for (volatile int i = 0; i < 5000; i++);
            int child = fork();
            if (!child) { write(1, "child\n", 6); _exit(4); }
            int status;
            waitpid(child, &status, 0);
            return WEXITSTATUS(status) + 1;
        }"#,
    );
    let (parent, run) = record(&RunSpec::new(program), dir.path(), 5);
    assert_eq!(run.traces.len(), 2);
    let first = first_trace(&run.traces).unwrap();
    let child = run.traces.iter().find(|trace| *trace != first).unwrap();
    let mut child = events(child).unwrap();
    child.retain(|event| event.thread == 0);
    const FORK: u16 = 38;
    let fork = parent.iter().find(|e| e.kind == FORK).unwrap();
    assert!(fork.turns > 5000);
    assert_eq!((child[0].kind, child[0].turns), (kind::THREAD_START, fork.turns));
    // What the kernel wrote in the child alone; bytes that are as they were may be missing.
    let written = child.iter().find(|e| e.kind == kind::WRITTEN).unwrap();
    let pid = (fork.word(0) as u32).to_le_bytes();
    let is_part = pid.windows(written.word(1) as usize).any(|part| part == written.written());
    assert!(written.turns == fork.turns && is_part);
    let end = child.last().unwrap();
    assert_eq!(end.kind, kind::PROCESS_END);
    assert!(end.turns >= fork.turns);
}

/// A killed process leaves a prefix.
#[test]
fn a_killed_process_leaves_a_valid_recording() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(
        dir.path(),
        r#"
        #include <fcntl.h>
        #include <signal.h>
        #include <unistd.h>
        int main(void) {
            char buffer[64];
            int file = open("/dev/zero", O_RDONLY);
            for (int i = 0; i < 20000; i++) {
                read(file, buffer, 1 + i % 64);
                if (i == 12345) kill(getpid(), SIGKILL);
            }
            return 0;
        }"#,
    );
    let run = recorded(&RunSpec::new(program), STATIC, dir.path()).unwrap();
    assert_eq!(run.status, Status::Killed(9));
    let all = events(first_trace(&run.traces).unwrap()).unwrap();
    let reads = all.iter().filter(|e| e.kind == kind::SYSCALL && e.word(0) == READ);
    assert!(reads.count() >= 12346);
}

/// What cannot be followed is said once, on stderr and in the recording; the program goes on.
#[test]
fn what_cannot_be_followed_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(
        dir.path(),
        r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/resource.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static void *waits(void *p) { for (;;) pause(); }
        int main(int argc, char **argv) {
            int shared = argc > 1 && !strcmp(argv[1], "anonymous");
            pthread_t thread;
            if (argc > 2 && pthread_create(&thread, 0, waits, 0)) return 1;
            struct rlimit large = { 1L << 46, 1L << 46 };
            if (argc > 3 && setrlimit(RLIMIT_AS, &large)) return 1;
            int file = memfd_create("x", 0);
            // So much that the process is watched for it.
            size_t size = 1 << 20;
            ftruncate(file, size);
            int flags = shared ? MAP_SHARED | MAP_ANONYMOUS : argc > 1 ? MAP_SHARED : MAP_PRIVATE;
            volatile int *at = mmap(0, size, PROT_READ | PROT_WRITE, flags, shared ? -1 : file, 0);
            if (!fork()) { at[0] = 7; _exit(0); }
            wait(0);
            return at[0];
        }"#,
    );
    let tools = Tools::get();
    let rewritten = dir.path().join("rewritten");
    tools.rewrite_sharing(&program, &rewritten, STATIC.flags).unwrap();
    let is_shared = Some("memory is shared between processes");
    let cases: [(&[&str], i32, Option<&str>); 7] = [
        (&[], 0, None),
        // The process is watched from there on.
        (&["file"], 7, None),
        (&["anonymous"], 7, None),
        (&["file", "threads"], 7, None),
        (&["anonymous", "threads"], 7, None),
        // There may be no room for that.
        (&["file", "threads", "limited"], 7, is_shared),
        (&["anonymous", "threads", "limited"], 7, is_shared),
    ];
    for (args, status, why) in cases {
        let spec = RunSpec::new(&program).args(args);
        let run = spec.run(Some(&rewritten), dir.path()).unwrap();
        assert_eq!(run.status, Status::Exited(status), "{args:?}");
        verify_all(&run.traces, tools, &rewritten).unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        let all = events(first_trace(&run.traces).unwrap()).unwrap();
        let noted: Vec<_> = all.iter().filter(|e| e.kind == kind::UNFOLLOWED).collect();
        match why {
            None => assert!(said.is_empty() && noted.is_empty(), "{args:?}: {said}"),
            Some(why) => {
                assert!(said.contains(why) && said.lines().count() <= 2, "{args:?}: {said}");
                let text = String::from_utf8_lossy(&noted[0].payload[8..]).into_owned();
                assert!(text.starts_with(why), "{text}");
            }
        }
    }
}
