//! Programs as the system has them.

mod common;

use std::path::Path;

use common::*;
use tests::harness::{difference, RunSpec, Tally, Tools};

/// Those that are single-stepped, which takes far longer than anything else.
const STEPPED: [&str; 8] = ["true", "gzip", "bzip2", "sqlite3", "perl", "awk", "ls", "static"];

/// A program, and whether two runs of it execute the same instructions.
struct Real {
    name: &'static str,
    spec: RunSpec,
    no_oracle: Option<&'static str>,
}

fn real(name: &'static str, program: &str, args: &[&str]) -> Real {
    Real { name, spec: RunSpec::new(program).args(args), no_oracle: None }
}

impl Real {
    fn stdin(mut self, bytes: &[u8]) -> Self {
        self.spec = self.spec.stdin(bytes);
        self
    }

    fn without_oracle(mut self, why: &'static str) -> Self {
        self.no_oracle = Some(why);
        self
    }
}

fn python() -> Option<String> {
    let known = ["/usr/bin/python3".to_owned()].into_iter();
    let versions = std::fs::read_dir("/root/.pyenv/versions").ok().into_iter().flatten().flatten();
    let mut versions: Vec<_> =
        versions.map(|v| v.path().join("bin/python3").display().to_string()).collect();
    versions.sort();
    known.chain(versions.into_iter().rev()).find(|p| Path::new(p).exists())
}

fn programs() -> Vec<Real> {
    let text: Vec<u8> = (0..4000)
        .flat_map(|i| format!("line {i} of {} {}\n", i * i % 97, i % 7).into_bytes())
        .collect();
    let sql = "create table t(a integer primary key, b text); \
        with recursive c(x) as (select 1 union all select x+1 from c where x<300) \
        insert into t select x, 'row ' || x from c; \
        select count(*), sum(a), max(b) from t where a % 7 = 3; \
        select b from t order by b desc limit 3;";
    let mut all = vec![
        real("true", "/bin/true", &[]),
        real("gzip", "/usr/bin/gzip", &["-9", "-nc"]).stdin(&text),
        real("bzip2", "/usr/bin/bzip2", &["-c"]).stdin(&text[..20000]),
        real("sqlite3", "/usr/bin/sqlite3", &[":memory:", sql]),
        real(
            "perl",
            "/usr/bin/perl",
            &["-e", "my %h; $h{$_ % 17} .= chr(65 + $_ % 26) for 1..2000; print \"$_ $h{$_}\\n\" for sort keys %h; die 'end' if 0; print join ',', map { sprintf '%.3f', sqrt } 1..20;"],
        ),
        real("awk", "/usr/bin/awk", &["{ s[$4] += $2 } END { for (i = 0; i < 7; i++) print i, s[i], sqrt(s[i]) }"])
            .stdin(&text),
        real("ls", "/bin/ls", &["-l", "/usr"]),
        real("sort", "/usr/bin/sort", &["-k", "4", "-n"]).stdin(&text[..8000])
            .without_oracle("asks how many CPUs and how much memory there is"),
        real("grep", "/bin/grep", &["-cE", "(1|3).* of [0-9]+ [25]$"]).stdin(&text)
            .without_oracle("reads /proc/self/maps, whose text differs"),
        real("sed", "/bin/sed", &["-n", "s/line \\([0-9]*\\)5 of/<\\1>/p"]).stdin(&text[..20000]),
        real("sha256sum", "/usr/bin/sha256sum", &[]).stdin(&text),
        real("date", "/bin/date", &["-u", "-d", "@1000000000"]).without_oracle("reads the time"),
        real("env", "/usr/bin/env", &["-u", "HOME", "sh", "-c", "echo $TERM; exit 3"]),
        real(
            "bash",
            "/bin/bash",
            &["-c", "f() { local n=$1; (( n )) && f $((n-1)); echo $n; }; f 20 | tail -3; x=$(echo sub); trap 'echo trap' EXIT; for i in {1..50}; do s+=$i; done; echo ${#s} $x; kill -USR1 $$ 2>/dev/null"],
        ),
        real("dash", "/bin/sh", &["-c", "i=0; while [ $i -lt 200 ]; do i=$((i+1)); done; echo $i; exit 7"]),
    ];
    if let Some(case) = corpus().into_iter().find(|c| c.name == "c/libc_mix.static") {
        all.push(Real { name: "static", spec: spec(&case), no_oracle: None });
    }
    if let Some(python) = python() {
        let script = "import json, re, zlib\nclass A:\n  def __init__(s, n): s.n = n\n\
            d = {str(i): A(i) for i in range(200)}\n\
            print(sum(a.n for a in d.values()), zlib.crc32(b'abc' * 100))\n\
            print(json.dumps({'k': [1, 2.5, None]}), re.sub(r'(\\d+)', r'<\\1>', 'a1b22'))\n\
            try: 1 / 0\nexcept ZeroDivisionError as e: print(e)\n";
        let mut run = real("python3", "/bin/true", &["-S", "-E", "-c", script]);
        run.spec.program = python.into();
        all.push(run.without_oracle("too many instructions to step"));
    }
    all
}

/// What the program is told to do natively it does again under the launcher: the tests' own test.
#[test]
fn real_programs_are_repeatable() {
    let mut tally = Tally::start("real_programs_are_repeatable");
    for program in programs() {
        if !program.spec.program.exists() {
            tally.skip(program.name, "not installed");
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let check = || -> Result<(), String> {
            let run = |file| program.spec.run(file, dir.path()).map_err(|e| e.to_string());
            let first = run(None)?;
            difference(&first, &run(Some(program.spec.program.as_path()))?)
        };
        tally.record(program.name, check());
    }
    tally.finish();
}

#[test]
fn real_programs_same_behaviour() {
    let mut tally = Tally::start("real_programs_same_behaviour");
    let tools = Tools::get();
    tally.side_by_side(&programs(), |outcomes, program| {
        if !program.spec.program.exists() {
            return outcomes.skip(program.name, "not installed");
        }
        let dir = tempfile::tempdir().unwrap();
        for mode in [STATIC, DYNAMIC, STATIC_NONE, DYNAMIC_NONE] {
            let check = || -> Result<(), String> {
                let rewritten = dir.path().join(mode.name);
                match mode {
                    // Its libraries travel along.
                    STATIC => tools.rewrite(&program.spec.program, &rewritten, mode.flags)?,
                    _ => tools.rewrite_sharing(&program.spec.program, &rewritten, mode.flags)?,
                }
                let run = |file| program.spec.run(file, dir.path()).map_err(|e| e.to_string());
                difference(&run(None)?, &run(Some(rewritten.as_path()))?)
            };
            outcomes.record(&format!("{} {}", program.name, mode.name), check());
        }
    });
    tally.finish();
}

#[test]
fn real_memrefs_equal_oracle() {
    let mut tally = Tally::start("real_memrefs_equal_oracle");
    let tools = Tools::get();
    tally.side_by_side(&programs(), |outcomes, program| {
        let installed = program.spec.program.exists();
        let other = (!STEPPED.contains(&program.name)).then_some("others like it are stepped");
        if let Some(why) = program.no_oracle.or(other).or((!installed).then_some("not installed")) {
            return outcomes.skip(program.name, why);
        }
        let dir = tempfile::tempdir().unwrap();
        let mut check = || -> Result<(), String> {
            // Long programs are compared as far as the oracle went.
            let truth = oracle(&program.spec, dir.path(), REAL_LIMIT)?;
            if truth.summary.cut_short {
                outcomes.prefix_only(program.name);
            }
            recovered_equals(&truth, &program.spec, tools, STATIC, dir.path())?;
            recovered_equals(&truth, &program.spec, tools, DYNAMIC, dir.path())
        };
        let outcome = check();
        outcomes.record(program.name, outcome);
    });
    tally.finish();
}
