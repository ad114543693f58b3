//! Recovers chunks in parallel and hands the results over in order.
//!
//! Each worker takes the next chunk that nobody has, and sends what it finds to a bounded queue of that
//! chunk's; no more than a few chunks are ahead of the one that is listened to. So the memory in use does not depend
//! on how far the slowest worker is behind.

use std::borrow::Cow;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};

use abi::ids::LiveAddr;

use crate::events::Placed;
use crate::open::{Chunk, Trace};
use crate::walk::{ChunkEnd, Falls, Part, Sink, Violation, Walker};

/// Batches that may wait, of all chunks together and at least and at most of one: a worker should come to the end of
/// its chunk while another one is listened to.
const BATCHES: usize = 512;
const FEWEST: usize = 4;
const MOST: usize = 128;

/// A chunk to recover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The thread: equal for its chunks alone.
    pub thread: usize,
    /// What the thread is called.
    pub name: u32,
    /// Number of the chunk in its thread.
    pub seq: u32,
}

/// A job with all that it takes.
#[derive(Debug)]
pub struct Task<'t> {
    /// Which chunk it is.
    pub job: Job,
    /// The chunk.
    pub chunk: Chunk,
    /// The one behind it, if it is known.
    pub following: Option<Chunk>,
    /// What happened in it.
    pub events: Cow<'t, [Placed]>,
    /// The recording ended before the process.
    pub is_lossy: bool,
}

/// How the chunk that is being read follows the one before.
#[derive(Default)]
pub struct Seam {
    /// Thread and sequence number of the last chunk that was read to its end, and where it fell to.
    last: Option<(usize, u32, Falls)>,
}

impl Seam {
    /// Whether a block starts at `pc`, where the chunk of `job` starts: not if the block before goes
    /// on there; and nobody knows if the chunk before is missing or damaged.
    pub fn begins_block(&self, job: &Job, pc: LiveAddr) -> bool {
        match self.last {
            _ if job.seq == 0 => true,
            Some((thread, last, falls)) if thread == job.thread && last + 1 == job.seq => {
                !falls.reaches(pc)
            }
            _ => false,
        }
    }

    /// The chunk of `job` has been read, and its last block `falls` there; `None`: it is damaged.
    pub fn ended(&mut self, job: &Job, falls: Option<Falls>) {
        self.last = falls.map(|falls| (job.thread, job.seq, falls));
    }
}

/// All chunks of the threads that `wanted` names, thread by thread.
pub fn tasks<'t>(
    trace: &'t Trace,
    wanted: impl Fn(&crate::Thread) -> bool,
) -> impl Iterator<Item = Task<'t>> + Send {
    let all = trace.threads.iter().enumerate();
    let threads: Vec<_> = all.filter(|(_, t)| wanted(t)).collect();
    threads.into_iter().flat_map(move |(thread, t)| {
        t.chunks.iter().enumerate().map(move |(number, chunk)| {
            let seq = chunk.frame.header.seq;
            Task {
                job: Job { thread, name: t.name(), seq },
                chunk: *chunk,
                following: t.chunks.get(number + 1).copied(),
                events: Cow::Borrowed(t.events_of(seq)),
                is_lossy: trace.is_lossy,
            }
        })
    })
}

/// How a worker's sink passes batches on.
pub struct Outlet<B, K = ()> {
    sender: SyncSender<Message<B>>,
    open: bool,
    /// What the worker's sinks leave to those that come next: the numbers of units and passages are the same.
    pub kept: K,
}

impl<B, K> Outlet<B, K> {
    /// Sends a batch; false if nobody wants more.
    pub fn send(&mut self, batch: B) -> bool {
        self.open = self.open && self.sender.send(Message::Batch(batch)).is_ok();
        self.open
    }

    /// Whether batches are still wanted.
    pub fn is_open(&self) -> bool {
        self.open
    }
}

/// A sink that collects what it is told into batches.
pub trait BatchSink: Sink {
    /// What it sends.
    type Batch: Send;
    /// What it leaves to the next sink of its worker.
    type Kept: Default;
    /// Sends what is left and returns the outlet.
    fn finish(self) -> Outlet<Self::Batch, Self::Kept>;
}

/// What the consumer gets, in the order of the jobs.
pub enum Piece<B> {
    /// The next batch of the chunk.
    Batch(B),
    /// The chunk is complete, or was found wrong behind what the batches told.
    End(Box<Result<ChunkEnd, Violation>>),
}

enum Message<B> {
    Batch(B),
    End(Box<Result<ChunkEnd, Violation>>),
}

/// Carries all `tasks` out, with a fresh sink for each. `consume` returns false to stop.
pub fn run<'t, S: BatchSink>(
    trace: &Trace,
    tasks: impl Iterator<Item = Task<'t>> + Send,
    make: impl Fn(Job, Outlet<S::Batch, S::Kept>) -> S + Sync,
    consume: impl FnMut(Job, Piece<S::Batch>) -> bool,
) {
    run_and_tell(trace, tasks, make, |_| {}, consume);
}

/// The same; `done` is told of each chunk that need not be read again.
pub fn run_and_tell<'t, S: BatchSink>(
    trace: &Trace,
    tasks: impl Iterator<Item = Task<'t>> + Send,
    make: impl Fn(Job, Outlet<S::Batch, S::Kept>) -> S + Sync,
    done: impl Fn(&Task<'t>) + Sync,
    mut consume: impl FnMut(Job, Piece<S::Batch>) -> bool,
) {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let room = (BATCHES / workers).clamp(FEWEST, MOST);
    // Whoever takes a task says so before somebody else can take the next one.
    let (taken, order) = sync_channel::<(Job, Receiver<Message<S::Batch>>)>(workers);
    let tasks = Mutex::new(tasks.fuse());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (make, done, taken, tasks) = (&make, &done, taken.clone(), &tasks);
            scope.spawn(move || {
                let mut walker = Walker::new(trace);
                let mut kept = S::Kept::default();
                let next = || {
                    let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
                    let task = tasks.next()?;
                    let (sender, receiver) = sync_channel(room);
                    taken.send((task.job, receiver)).is_ok().then_some((task, sender))
                };
                while let Some((task, sender)) = next() {
                    let mut sink = make(task.job, Outlet { sender, open: true, kept });
                    let end = walker.walk_part(&Part::of(&task), &mut sink);
                    done(&task);
                    let outlet = sink.finish();
                    if !outlet.open || outlet.sender.send(Message::End(Box::new(end))).is_err() {
                        return;
                    }
                    kept = outlet.kept;
                }
            });
        }
        drop(taken);
        // What is not received any more keeps nobody.
        for (job, messages) in order {
            loop {
                // A worker that is gone has panicked; the scope reports that.
                let Ok(message) = messages.recv() else { return };
                let (piece, ended) = match message {
                    Message::Batch(batch) => (Piece::Batch(batch), false),
                    Message::End(end) => (Piece::End(end), true),
                };
                if !consume(job, piece) {
                    return;
                }
                if ended {
                    break;
                }
            }
        }
    });
}
