//! Compresses the traces of a recording: while it is made, by threads beside the program, and to its end when
//! nothing is written to it any more.
//!
//! A chunk that is complete is written to the pieces beside its trace, and the trace gets a hole where it was. So
//! each byte is in one of them at any moment, and what is killed leaves what can be read.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::trace::{FrameHeader, FrameKind, HEADER_SIZE};
use nix::fcntl::{fallocate, FallocateFlags};
use nix::sys::signal::{SigSet, SigmaskHow};
use trace::file::{has_length, TraceFile};
use trace::pieces::{beside, compress, Head, Writer};
use trace::source::Source;

use crate::folder;
use crate::{at, Error, TraceName};

/// A piece is not made larger where a frame ends.
const PIECE: u64 = 4 << 20;
/// While the program runs, what is complete and smaller waits for more.
const LEAST: u64 = 1 << 20;
/// How often the threads look for what is complete.
const EACH: Duration = Duration::from_millis(20);

/// How much time is spent on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strength {
    /// Half a gigabyte a second on one processor.
    Fast,
    /// A quarter of that.
    Small,
}

impl Strength {
    /// Of zstd.
    fn level(self) -> i32 {
        match self {
            Strength::Fast => 3,
            Strength::Small => 9,
        }
    }
}

/// A lock that a thread which panicked has held protects nothing that is half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

// --- while the program runs ---

/// A trace that is being recorded.
struct Growing {
    path: PathBuf,
    raw: Arc<File>,
    pieces: Arc<Mutex<Writer>>,
    /// Where the next frame is.
    next: u64,
    /// Complete chunks behind each other: where they start, and where they end.
    run: Option<(u64, u64)>,
}

/// Complete chunks behind each other.
struct Job {
    path: PathBuf,
    raw: Arc<File>,
    pieces: Arc<Mutex<Writer>>,
    start: u64,
    end: u64,
}

impl Growing {
    fn open(path: PathBuf) -> std::io::Result<Growing> {
        let raw = OpenOptions::new().read(true).write(true).open(&path)?;
        let pieces = Writer::create(&beside(&path))?;
        Ok(Growing {
            path,
            raw: Arc::new(raw),
            pieces: Arc::new(Mutex::new(pieces)),
            next: 0,
            run: None,
        })
    }

    /// Goes on along the frames until there is enough to compress.
    fn job(&mut self) -> Option<Job> {
        loop {
            let (start, end) = self.run.unwrap_or((self.next, self.next));
            if end - start >= PIECE {
                return self.take();
            }
            let mut bytes = [0; HEADER_SIZE];
            let is_there = self.raw.read_exact_at(&mut bytes, self.next).is_ok();
            let header =
                FrameHeader::from_bytes(&bytes).filter(|header| is_there && has_length(header));
            let Some(header) = header else {
                // Not written yet, or never: the rest is done at the end.
                return if end - start >= LEAST { self.take() } else { None };
            };
            let at = self.next;
            self.next += header.frame_len;
            // Others may still be written to.
            if header.kind == FrameKind::Record as u16 && header.is_complete() {
                self.run = Some((start, self.next));
                continue;
            }
            if end > start && end == at {
                return self.take();
            }
            self.run = None;
        }
    }

    fn take(&mut self) -> Option<Job> {
        let (start, end) = self.run.take()?;
        let (path, raw, pieces) = (self.path.clone(), self.raw.clone(), self.pieces.clone());
        Some(Job { path, raw, pieces, start, end })
    }
}

impl Job {
    /// One that is not whole stays as it is until the end.
    fn run(&self, level: i32) -> Result<(), Error> {
        let failed = |e: std::io::Error| at(&self.path, format_args!("cannot compress it: {e}"));
        let mut bytes = vec![0; usize::try_from(self.end - self.start).unwrap_or(usize::MAX)];
        self.raw.read_exact_at(&mut bytes, self.start).map_err(failed)?;
        let mut heads = Vec::new();
        let mut from = 0;
        while let Some(header) = bytes.get(from..).and_then(FrameHeader::from_bytes) {
            let frame_len = usize::try_from(header.frame_len).unwrap_or(usize::MAX);
            let Some(frame) = from.checked_add(frame_len).and_then(|to| bytes.get(from..to)) else {
                return Ok(());
            };
            if !TraceFile::is_whole_record(frame) {
                return Ok(());
            }
            heads.push(head(self.start + from as u64, frame));
            from += frame_len;
        }
        if from != bytes.len() {
            return Ok(());
        }
        let piece = compress(self.start, &bytes, &heads, level).map_err(failed)?;
        lock(&self.pieces).append(&piece).map_err(failed)?;
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let [start, len] =
            [self.start, self.end - self.start].map(|n| i64::try_from(n).unwrap_or(0));
        // A file system that knows no holes has both until the end.
        let _ = fallocate(&*self.raw, hole, start, len);
        Ok(())
    }
}

/// The header of the frame at `offset`, which has at least that.
fn head(offset: u64, frame: &[u8]) -> Head {
    let mut head = [0; HEADER_SIZE];
    head.copy_from_slice(&frame[..HEADER_SIZE]);
    (offset, head)
}

struct Shared {
    folder: PathBuf,
    level: i32,
    traces: Mutex<BTreeMap<TraceName, Option<Growing>>>,
    /// Why nothing is compressed any more.
    trouble: Mutex<Option<Error>>,
}

impl Shared {
    fn job(&self) -> Option<Job> {
        if lock(&self.trouble).is_some() {
            return None;
        }
        let mut traces = lock(&self.traces);
        // (What cannot be listed now can be at the end, or that says why.)
        for name in folder::list(&self.folder).unwrap_or_default() {
            traces.entry(name).or_insert_with(|| {
                Growing::open(self.folder.join(folder::TRACES).join(name.file())).ok()
            });
        }
        traces.values_mut().flatten().find_map(Growing::job)
    }

    fn work(&self) -> bool {
        let Some(job) = self.job() else { return false };
        if let Err(error) = job.run(self.level) {
            lock(&self.trouble).get_or_insert(error);
        }
        true
    }
}

/// Threads that compress what is complete while more is recorded.
pub struct Compressor {
    shared: Arc<Shared>,
    workers: Vec<(Sender<()>, JoinHandle<()>)>,
}

impl Compressor {
    /// Of the recording that is made in `folder`.
    pub fn start(folder: &Path, strength: Strength) -> Compressor {
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            level: strength.level(),
            traces: Mutex::default(),
            trouble: Mutex::default(),
        });
        // Signals are for the threads that are there.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
        let workers = (1..processors().max(2)).map(|_| {
            let (stop, stopped) = channel();
            let shared = shared.clone();
            let work = move || {
                while shared.work() || stopped.recv_timeout(EACH) == Err(RecvTimeoutError::Timeout)
                {
                    if stopped.try_recv().is_ok() {
                        break;
                    }
                }
            };
            (stop, std::thread::spawn(work))
        });
        let workers = workers.collect();
        before.map(|before| before.thread_set_mask());
        Compressor { workers, shared }
    }

    /// The program has ended: compresses the rest. What could not be compressed stays as it is, and the errors
    /// say why.
    pub fn finish(self) -> Vec<Error> {
        for (stop, worker) in self.workers {
            let _ = stop.send(());
            let _ = worker.join();
        }
        let (folder, level) = (&self.shared.folder, self.shared.level);
        // They hold the locks of what they write.
        lock(&self.shared.traces).clear();
        if let Some(trouble) = lock(&self.shared.trouble).take() {
            return vec![trouble];
        }
        match folder::list(folder) {
            Ok(names) => all(folder, names, level).err().into_iter().flatten().collect(),
            Err(error) => vec![error],
        }
    }
}

// --- what is complete ---

/// What became of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// It is compressed, now or before.
    Compressed,
    /// A process still writes to it.
    Running,
}

fn all(folder: &Path, names: Vec<TraceName>, level: i32) -> Result<Vec<Done>, Vec<Error>> {
    let mut done = Vec::new();
    let mut errors = Vec::new();
    for name in names {
        match whole(&folder.join(folder::TRACES).join(name.file()), level) {
            Ok(what) => done.push(what),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        Ok(done)
    } else {
        Err(errors)
    }
}

/// Compresses the traces of the recording in `folder`.
pub fn recording(folder: &Path, strength: Strength) -> Result<Vec<Done>, Vec<Error>> {
    let names = folder::list(folder).map_err(|error| vec![error])?;
    all(folder, names, strength.level())
}

/// Compresses the trace at `path`.
pub fn trace(path: &Path, strength: Strength) -> Result<Done, Error> {
    whole(path, strength.level())
}

fn whole(path: &Path, level: i32) -> Result<Done, Error> {
    let failed = |e: std::io::Error| at(path, format_args!("cannot compress it: {e}"));
    let source = Source::open(path).map_err(failed)?;
    if source.is_compressed() {
        return Ok(Done::Compressed);
    }
    let found = TraceFile::open(path)?;
    if found.frames.is_empty() {
        return Err(at(path, "not a trace: it has no valid frame"));
    }
    if crate::processes::is_written(path)? {
        return Ok(Done::Running);
    }
    let pieces = beside(path);
    let is_new = !pieces.exists();
    let writer = match is_new {
        true => Writer::create(&pieces),
        false => Writer::resume(&pieces),
    };
    let writer = Mutex::new(writer.map_err(failed)?);
    let rest = Rest { path, source: &source, found: &found, level, writer: &writer };
    let written = rest.write().and_then(|()| {
        lock(&writer).end(found.len).map_err(failed)?;
        like(&pieces, path).and_then(|()| std::fs::rename(&pieces, path)).map_err(failed)
    });
    if written.is_err() && is_new {
        // All that they have is in the trace, too.
        let _ = std::fs::remove_file(&pieces);
    }
    written.map(|()| Done::Compressed)
}

/// Gives a file the permissions of the one at `path`, and the time at which that was last written to: for a
/// trace without an end it is that of its process.
fn like(file: &Path, path: &Path) -> std::io::Result<()> {
    let (file, metadata) = (File::open(file)?, path.metadata()?);
    file.set_permissions(metadata.permissions())?;
    file.set_modified(metadata.modified()?)
}

/// What is in no piece yet.
struct Rest<'a> {
    path: &'a Path,
    source: &'a Source,
    found: &'a TraceFile,
    level: i32,
    writer: &'a Mutex<Writer>,
}

impl Rest<'_> {
    /// Where pieces end: at frames, and no frame is in two.
    fn parts(&self) -> Vec<(u64, u64)> {
        let frames = self.found.frames.iter();
        let mut cuts: Vec<u64> = frames.flat_map(|f| [f.offset, f.offset + f.present]).collect();
        // Where there are none, there is nothing, or what is damaged.
        let gaps = (0..self.found.len).step_by(usize::try_from(PIECE).unwrap_or(usize::MAX));
        let ends: BTreeMap<u64, u64> =
            self.found.frames.iter().map(|f| (f.offset, f.offset + f.present)).collect();
        let in_frame = |cut: u64| ends.range(..cut).next_back().is_some_and(|(_, &end)| end > cut);
        cuts.extend(gaps.filter(|&cut| !in_frame(cut)));
        cuts.push(self.found.len);
        cuts.sort_unstable();
        cuts.dedup();
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for (&start, &end) in cuts.iter().zip(cuts.iter().skip(1)) {
            if self.source.has_piece(start) {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.1 == start && end - last.0 <= PIECE => last.1 = end,
                _ => parts.push((start, end)),
            }
        }
        parts
    }

    fn write(&self) -> Result<(), Error> {
        let parts = self.parts();
        // What says of which process it is comes first: it is there, too, if the file is cut off.
        if let Some(&(start, end)) = parts.first() {
            self.part(start, end)?;
        }
        let next = AtomicUsize::new(1);
        let trouble = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..processors().min(parts.len().max(1)) {
                scope.spawn(|| {
                    while let Some(&(start, end)) = parts.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        if lock(&trouble).is_some() {
                            return;
                        }
                        if let Err(error) = self.part(start, end) {
                            lock(&trouble).get_or_insert(error);
                        }
                    }
                });
            }
        });
        trouble.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn part(&self, start: u64, end: u64) -> Result<(), Error> {
        let failed = |e: std::io::Error| at(self.path, format_args!("cannot compress it: {e}"));
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
        let mut done = 0;
        while done < bytes.len() {
            match self.source.read_at(&mut bytes[done..], start + done as u64).map_err(failed)? {
                0 => return Err(at(self.path, "cannot compress it: it has become shorter")),
                n => done += n,
            }
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        let inside = self.found.frames.iter().filter(|f| (start..end).contains(&f.offset));
        let heads: Vec<Head> = inside
            .filter_map(|frame| {
                let frame_bytes = bytes.get(usize::try_from(frame.offset - start).ok()?..)?;
                (frame_bytes.len() >= HEADER_SIZE).then(|| head(frame.offset, frame_bytes))
            })
            .collect();
        let piece = compress(start, &bytes, &heads, self.level).map_err(failed)?;
        lock(self.writer).append(&piece).map_err(failed)
    }
}
