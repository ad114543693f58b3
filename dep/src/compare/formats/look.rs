//! What is in the traces of one program: bytes of the streams, samples to compress, time to recover.
//!
//! One trace after another is open. All of it happens in one thread, so that processor time is the time of one
//! processor.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};

use bench::{FormatSizes, Formats, Left, Look, Part, Recovery, StreamKind, ThreadSizes};
use rustix::time::{clock_gettime, ClockId};
use trace::compile::CompiledUnit;
use trace::streams::Buffer;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::{Thread, Trace};

use super::compress::{self, Sample};
use super::{ADDRESSES, OURS, WHOLE};

/// The control-flow stream of each format is looked at in one of the traces, and the memory stream, too. The
/// last number: bytes of a word of the stream.
const STREAMS: [(StreamKind, &str, [&str; 2], usize); 5] = [
    (StreamKind::ControlFlow, "full-pc", WHOLE, 8),
    (StreamKind::ControlFlow, "tags", OURS, 2),
    (StreamKind::ControlFlow, "bits", ["bits", "registers"], 1),
    (StreamKind::Memory, ADDRESSES, WHOLE, 8),
    (StreamKind::Memory, "registers", OURS, 8),
];

/// Bytes of a reference in the list: pc, address, and size and type, 8 each.
pub const ENTRY: usize = 24;

pub struct Reader {
    /// Instructions that are compressed.
    pub sample: u64,
    /// Of measuring recovery.
    pub rounds: u32,
    /// References of the list, at most.
    pub list: u64,
}

impl Look for Reader {
    fn look(&mut self, traces: &[Left], say: &mut dyn FnMut(&str)) -> Result<Formats, String> {
        let mut formats = Formats::default();
        let mut chunks = Vec::new();
        for left in traces {
            say(&format!("{}, reading", left.variant));
            let (sizes, parts) = sizes(left).map_err(|e| format!("{}: {e}", left.variant))?;
            formats.sizes.push(sizes);
            chunks.push(parts);
            interruption()?;
        }
        if formats.is_cut() {
            compare_the_same(&mut formats.sizes, &chunks);
        }
        for (stream, format, of, word) in STREAMS {
            say(&format!("{format}, compressing"));
            let left = named(traces, of)?;
            let sample = sample(left, self.sample, stream, format, word);
            let sample = sample.map_err(|e| format!("{}: {e}", left.variant))?;
            formats.compressed.push(compress::all(&sample)?);
        }
        say("recovering");
        formats.recovery = self.recover(named(traces, OURS)?, named(traces, WHOLE)?)?;
        Ok(formats)
    }
}

fn interruption() -> Result<(), String> {
    match bench::was_interrupted() {
        true => Err("interrupted".into()),
        false => Ok(()),
    }
}

fn named<'a>(traces: &'a [Left], [control_flow, memory]: [&str; 2]) -> Result<&'a Left, String> {
    let name = format!("{control_flow} {memory}");
    traces.iter().find(|left| left.variant == name).ok_or(format!("{name}: no trace"))
}

fn open(left: &Left) -> Result<Trace, String> {
    Trace::open_with(&left.trace, Some(&left.output)).map_err(|e| e.to_string())
}

/// What was recovered; the sum is there so that every value is looked at.
#[derive(Default)]
struct Seen {
    references: u64,
    sum: u64,
}

impl Seen {
    fn add(&mut self, pc: u64, address: u64, kind: u64) {
        self.references += 1;
        self.sum = self.sum.wrapping_add(pc ^ address.rotate_left(17) ^ kind.rotate_left(40));
    }
}

/// Size and type in a word.
fn kind(reference: &MemoryReference) -> u64 {
    u64::from(reference.size) << 1 | u64::from(reference.write)
}

struct Recover(Seen);

impl Sink for Recover {
    const REFERENCES: bool = true;
    fn reference(&mut self, r: MemoryReference) {
        self.0.add(r.pc.0, r.address.0, kind(&r));
    }
}

/// Only how far it is.
struct Follow {
    left: u64,
}

impl Sink for Follow {
    const REFERENCES: bool = false;
    fn executed(&mut self, _unit: &CompiledUnit, count: usize) {
        self.left = self.left.saturating_sub(count as u64);
    }
    fn go_on(&mut self) -> bool {
        self.left > 0
    }
}

/// Writes a list of references.
struct List<W: Write> {
    out: W,
    left: u64,
    failed: Option<std::io::Error>,
}

impl<W: Write> Sink for List<W> {
    const REFERENCES: bool = true;
    fn reference(&mut self, r: MemoryReference) {
        if self.left == 0 || self.failed.is_some() {
            return;
        }
        self.left -= 1;
        let words = [r.pc.0, r.address.0, kind(&r)].map(u64::to_le_bytes);
        self.failed = self.out.write_all(words.as_flattened()).err();
    }
    fn go_on(&mut self) -> bool {
        self.left > 0 && self.failed.is_none()
    }
}

/// Through all chunks of a trace, while `sink` goes on.
fn walk(trace: &Trace, sink: &mut impl Sink) -> Result<(), String> {
    let mut walker = Walker::new(trace);
    for thread in &trace.threads {
        for chunk in 0..thread.chunks.len() {
            let end = walker.walk(thread, chunk, sink).map_err(|e| e.to_string())?;
            if end.stopped {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What each chunk of each thread has.
type Chunks = Vec<(u32, Vec<Part>)>;

fn sizes(left: &Left) -> Result<(FormatSizes, Chunks), String> {
    let trace = open(left)?;
    let (control_flow, memory) = left.variant.split_once(' ').unwrap_or((&left.variant, ""));
    let mut chunks = Chunks::new();
    let mut recover = Recover(Seen::default());
    let mut walker = Walker::new(&trace);
    for thread in &trace.threads {
        let mut parts = Vec::new();
        for chunk in 0..thread.chunks.len() {
            let end = match memory {
                "none" => walker.walk(thread, chunk, &mut Follow { left: u64::MAX }),
                _ => walker.walk(thread, chunk, &mut recover),
            };
            let end = end.map_err(|e| e.to_string())?;
            parts.push(Part {
                instructions: end.instructions,
                control_flow_bytes: end.control_flow.0,
                memory_bytes: end.memory.0,
            });
        }
        chunks.push((thread.index, parts));
    }
    let of = |(thread, parts): &(u32, Vec<Part>)| {
        let all = parts.iter().copied().sum();
        ThreadSizes { thread: *thread, all, compared: all }
    };
    let sizes = FormatSizes {
        control_flow: control_flow.into(),
        memory: memory.into(),
        file_bytes: trace.file.len,
        only_first_bytes: left.only_first_bytes,
        references: (memory != "none").then_some(recover.0.references),
        threads: chunks.iter().map(of).collect(),
    };
    Ok((sizes, chunks))
}

/// A trace that was cut has as many bytes as the others, of less: only what is in all traces is compared, of
/// each thread the chunks from its beginning on.
fn compare_the_same(sizes: &mut [FormatSizes], chunks: &[Chunks]) {
    let threads =
        chunks.iter().flatten().map(|(thread, _)| *thread).max().map_or(0, |last| last + 1);
    let total = |all: &Chunks, thread: u32| -> u64 {
        let parts = all.iter().filter(|(t, _)| *t == thread).flat_map(|(_, parts)| parts);
        parts.map(|part| part.instructions).sum()
    };
    for thread in 0..threads {
        let least = chunks.iter().map(|all| total(all, thread)).min().unwrap_or(0);
        for (sizes, all) in sizes.iter_mut().zip(chunks) {
            let Some(of) = sizes.threads.iter_mut().find(|t| t.thread == thread) else { continue };
            let parts = all.iter().filter(|(t, _)| *t == thread).flat_map(|(_, parts)| parts);
            let (mut begin, mut compared) = (0, Vec::new());
            for part in parts {
                // One that begins within and ends behind it counts: else little might be left.
                if begin < least {
                    compared.push(*part);
                }
                begin += part.instructions;
            }
            of.compared = compared.into_iter().sum();
        }
    }
}

/// One stream of each thread, from its beginning on: all threads together have so many instructions.
fn sample(
    left: &Left,
    instructions: u64,
    stream: StreamKind,
    format: &str,
    word: usize,
) -> Result<Sample, String> {
    let trace = open(left)?;
    let with = |thread: &&Thread| !thread.chunks.is_empty();
    let share = instructions / (trace.threads.iter().filter(with).count() as u64).max(1);
    let (mut done, mut threads) = (0, Vec::new());
    let mut walker = Walker::new(&trace);
    for thread in trace.threads.iter().filter(with) {
        let (mut bytes, mut buffer) = (Vec::new(), Buffer::default());
        let mut follow = Follow { left: share };
        for (number, chunk) in thread.chunks.iter().enumerate() {
            let end = walker.walk(thread, number, &mut follow).map_err(|e| e.to_string())?;
            let streams = trace.file.streams(&chunk.frame, &chunk.registers, buffer);
            let streams = streams.map_err(|e| e.to_string())?;
            let part = match stream {
                StreamKind::ControlFlow => {
                    streams.control_flow().get(..end.control_flow.0 as usize)
                }
                StreamKind::Memory => streams.memory().get(..end.memory.0 as usize),
            };
            bytes.extend_from_slice(part.ok_or("a chunk ends before its units")?);
            buffer = streams.into_buffer();
            done += end.instructions;
            if follow.left == 0 {
                break;
            }
        }
        threads.push(bytes);
        interruption()?;
    }
    Ok(Sample { stream, format: format.into(), word, instructions: done, threads })
}

/// A way to the references of a program: references and bytes that it has seen.
type Way<'a> = (String, Box<dyn FnMut() -> Result<(u64, u64), String> + 'a>);

impl Reader {
    fn recover(&self, ours: &Left, whole: &Left) -> Result<Vec<Recovery>, String> {
        let traces = [open(ours)?, open(whole)?];
        let mut list = self.list(&traces[0], ours)?;
        let recover = |trace: &Trace| -> Result<(u64, u64), String> {
            let mut recover = Recover(Seen::default());
            walk(trace, &mut recover)?;
            std::hint::black_box(recover.0.sum);
            Ok((recover.0.references, trace.file.len))
        };
        let of_trace = whole_references(&traces[1])?;
        let mut ways: Vec<Way> = vec![
            ("read a list of {pc, addr, size, type}".into(), Box::new(|| read_list(&mut list))),
            (
                format!("read the bytes of {}", whole.variant),
                Box::new(|| Ok((of_trace, read_bytes(&traces[1])?))),
            ),
            (format!("recover from {}", whole.variant), Box::new(|| recover(&traces[1]))),
            (format!("recover from {}", ours.variant), Box::new(|| recover(&traces[0]))),
        ];
        let mut all: Vec<Recovery> = Vec::new();
        for (way, run) in &mut ways {
            // The first time brings the file into memory.
            let (references, bytes) = run()?;
            all.push(Recovery { way: way.clone(), references, bytes, cpu_seconds: Vec::new() });
        }
        for _ in 0..self.rounds {
            for ((way, run), of) in ways.iter_mut().zip(&mut all) {
                let start = seconds();
                let seen = run()?;
                of.cpu_seconds.push(seconds() - start);
                if seen != (of.references, of.bytes) {
                    return Err(format!("{way}: not the same twice"));
                }
                interruption()?;
            }
        }
        Ok(all)
    }

    /// A file with the first references of a trace.
    fn list(&self, trace: &Trace, left: &Left) -> Result<File, String> {
        let failed = |e: std::io::Error| format!("a list of references: {e}");
        let dir = left.trace.parent().unwrap_or(&left.trace);
        let file = tempfile::tempfile_in(dir).map_err(failed)?;
        let out = BufWriter::with_capacity(1 << 20, file.try_clone().map_err(failed)?);
        let mut list = List { out, left: self.list, failed: None };
        walk(trace, &mut list)?;
        list.failed.map_or(Ok(()), Err).map_err(failed)?;
        list.out.flush().map_err(failed)?;
        Ok(file)
    }
}

fn whole_references(trace: &Trace) -> Result<u64, String> {
    let mut recover = Recover(Seen::default());
    walk(trace, &mut recover)?;
    Ok(recover.0.references)
}

/// Processor time of this thread.
fn seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// From the beginning to the end, every value once.
fn read_list(list: &mut File) -> Result<(u64, u64), String> {
    let failed = |e: std::io::Error| format!("a list of references: {e}");
    list.rewind().map_err(failed)?;
    let (mut seen, mut piece) = (Seen::default(), vec![0; (1 << 15) * ENTRY]);
    loop {
        let mut filled = 0;
        while filled < piece.len() {
            match list.read(&mut piece[filled..]).map_err(failed)? {
                0 => break,
                n => filled += n,
            }
        }
        for entry in piece[..filled].chunks_exact(ENTRY) {
            seen.add(word(&entry[..8]), word(&entry[8..16]), word(&entry[16..]));
        }
        if filled < piece.len() {
            std::hint::black_box(seen.sum);
            return Ok((seen.references, seen.references * ENTRY as u64));
        }
    }
}

/// All words of both streams of all chunks, once: what any reader of the trace does at least.
fn read_bytes(trace: &Trace) -> Result<u64, String> {
    let (mut bytes, mut sum, mut buffer) = (0, 0_u64, Buffer::default());
    for chunk in trace.threads.iter().flat_map(|thread| &thread.chunks) {
        let streams = trace.file.streams(&chunk.frame, &chunk.registers, buffer);
        let streams = streams.map_err(|e| e.to_string())?;
        for stream in [streams.control_flow(), streams.memory()] {
            bytes += stream.len() as u64;
            let words = stream.chunks_exact(8);
            let rest = word(words.remainder());
            sum = words.fold(sum.wrapping_add(rest), |sum, w| sum.wrapping_add(word(w)));
        }
        buffer = streams.into_buffer();
    }
    std::hint::black_box(sum);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(instructions: u64) -> Part {
        Part { instructions, control_flow_bytes: 2 * instructions, memory_bytes: instructions }
    }

    fn of(chunks: &Chunks) -> FormatSizes {
        let threads = chunks.iter().map(|(thread, parts)| {
            let all = parts.iter().copied().sum();
            ThreadSizes { thread: *thread, all, compared: all }
        });
        FormatSizes { threads: threads.collect(), ..FormatSizes::default() }
    }

    #[test]
    fn what_is_compared_is_in_all_traces() {
        let long = vec![(0, vec![part(10), part(10), part(10), part(10)]), (1, vec![part(5)])];
        let short = vec![(0, vec![part(7), part(8)]), (1, vec![part(2), part(3)])];
        let chunks = [long, short];
        let mut sizes = chunks.each_ref().map(of);
        compare_the_same(&mut sizes, &chunks);
        let compared = |at: usize, thread: usize| sizes[at].threads[thread].compared;
        // 15 instructions of thread 0, and what else is in the chunk that has the last of them.
        assert_eq!((compared(0, 0), compared(1, 0)), (part(20), part(15)));
        assert_eq!((compared(0, 1), compared(1, 1)), (part(5), part(5)));
        assert_eq!(sizes[0].all().instructions, 45);
    }

    #[test]
    fn a_thread_that_one_trace_lacks_is_not_compared() {
        let chunks = [vec![(0, vec![part(4)]), (1, vec![part(4)])], vec![(0, vec![part(4)])]];
        let mut sizes = chunks.each_ref().map(of);
        compare_the_same(&mut sizes, &chunks);
        assert_eq!(sizes[0].compared(), part(4));
        assert_eq!(sizes[0].all(), part(8));
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let mut file = tempfile::tempfile().expect("a file");
        for n in 0..100_000_u64 {
            file.write_all([n, 2 * n, 8].map(u64::to_le_bytes).as_flattened()).expect("an entry");
        }
        let (references, bytes) = read_list(&mut file).expect("a list");
        assert_eq!((references, bytes), (100_000, 2_400_000));
        assert_eq!(read_list(&mut file).expect("again").0, 100_000);
    }
}
