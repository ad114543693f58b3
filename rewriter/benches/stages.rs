//! How long a stage takes on real code: decode, plan and weave of a program of the system, and the
//! walk through a trace of it.
//!
//! `just microbench` measures. Among the tests each runs once, so that it keeps working.

use abi::options::Options;
use abi::selection::Selected;
use divan::counter::{BytesCount, ItemsCount};
use divan::{black_box, Bencher};
use instrument::fragment::Fragment;
use lifter::discover::discover;
use lifter::image::Image;
use lifter::program::Program;
use rewriter::input::{read_file, Input};
use rewriter::roots;
use rewriter::translate::{inspector, regions};
use std::process::Command;
use std::sync::LazyLock;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::Trace;

const PROGRAM: &str = "/usr/bin/gzip";

fn main() {
    divan::main();
}

struct Code {
    image: Image<'static>,
    program: Program,
}

/// The program's code and what is known about it.
static CODE: LazyLock<Code> = LazyLock::new(|| {
    let bytes = read_file(PROGRAM.as_ref()).expect(PROGRAM);
    let input = Box::leak(Box::new(Input::parse(bytes).expect(PROGRAM)));
    let image = roots::image(input);
    let program = discover(&image, &mut |_, _| ());
    Code { image, program }
});

/// From bytes to functions and blocks.
#[divan::bench]
fn decode(bencher: Bencher) {
    let code = &*CODE;
    bencher
        .counter(BytesCount::new(code.program.text_bytes))
        .bench(|| discover(black_box(&code.image), &mut |_, _| ()));
}

/// What each unit records: liveness and plan.
#[divan::bench]
fn plan(bencher: Bencher) {
    let Code { image, program } = &*CODE;
    let regions: Vec<_> =
        regions(program, &program.functions, image, Selected::EVERYTHING).collect();
    bencher.counter(ItemsCount::new(program.block_count())).bench_local(|| {
        let mut translator = inspector(image, Options::default());
        for (_, source, blocks) in &regions {
            black_box(translator.inspect(blocks, *source));
        }
    });
}

/// Liveness, plan, and the code that comes of them.
#[divan::bench]
fn weave(bencher: Bencher) {
    let Code { image, program } = &*CODE;
    let regions: Vec<_> =
        regions(program, &program.functions, image, Selected::EVERYTHING).collect();
    bencher.counter(ItemsCount::new(program.block_count())).bench_local(|| {
        let mut translator = inspector(image, Options::default());
        let mut fragment = Fragment::new(0);
        for (_, source, blocks) in &regions {
            translator.translate(blocks, *source, &mut fragment);
        }
        fragment
    });
}

/// A trace of the rewritten program, which compresses itself.
static TRACE: LazyLock<Trace> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("gzip.dep-elf");
    let file = folder.path().join("gzip.dep");
    let mut rewrite = Command::new(env!("CARGO_BIN_EXE_deprewrite"));
    rewrite.args([PROGRAM, "--quiet", "--libraries", "runtime", "-o"]).arg(&output);
    assert!(rewrite.status().expect("deprewrite starts").success());
    let mut run = Command::new(&output);
    let run = run.args(["-1", "-c", PROGRAM]).env("DEP_FILE", &file).output().expect("it starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Trace::open(&file).expect("a trace")
});

#[derive(Default)]
struct Count {
    blocks: u64,
    references: u64,
}

impl Sink for Count {
    const REFERENCES: bool = true;

    fn block(&mut self, _: abi::ids::LiveAddr, _: bool) {
        self.blocks += 1;
    }

    fn reference(&mut self, reference: MemoryReference) {
        black_box(reference);
        self.references += 1;
    }
}

fn count(trace: &Trace) -> Count {
    let mut count = Count::default();
    let mut walker = Walker::new(trace);
    for thread in &trace.threads {
        for number in 0..thread.chunks.len() {
            walker.walk(thread, number, &mut count).expect("a valid trace");
        }
    }
    count
}

/// From a trace back to blocks and references, in one thread.
#[divan::bench]
fn walk(bencher: Bencher) {
    let trace = &*TRACE;
    let there = count(trace);
    assert!(there.blocks > 100_000 && there.references > 100_000, "{}", there.blocks);
    bencher.counter(ItemsCount::new(there.blocks)).bench_local(|| count(black_box(trace)).blocks);
}
