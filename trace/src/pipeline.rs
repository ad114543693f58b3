//! Recovers chunks in parallel and hands the results over in order.
//!
//! Worker w takes jobs w, w + n, w + 2n, ...; each has a bounded queue, so that the memory in use
//! does not depend on how far the slowest worker is behind.

use std::sync::mpsc::{sync_channel, Receiver, SyncSender};

use abi::ids::LiveAddr;

use crate::open::Trace;
use crate::walk::{ChunkEnd, Falls, Sink, Violation, Walker};

/// Batches that may wait in one queue.
const QUEUE: usize = 4;

/// A chunk to recover: positions in [`Trace::threads`] and in its chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// In [`Trace::threads`].
    pub thread: usize,
    /// In the thread's chunks.
    pub chunk: usize,
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
    pub fn begins_block(&self, trace: &Trace, job: &Job, pc: LiveAddr) -> bool {
        let seq = seq(trace, job);
        match self.last {
            _ if seq == 0 => true,
            Some((thread, last, falls)) if thread == job.thread && last + 1 == seq => {
                !falls.reaches(pc)
            }
            _ => false,
        }
    }

    /// The chunk of `job` has been read, and its last block `falls` there; `None`: it is damaged.
    pub fn ended(&mut self, trace: &Trace, job: &Job, falls: Option<Falls>) {
        self.last = falls.map(|falls| (job.thread, seq(trace, job), falls));
    }
}

fn seq(trace: &Trace, job: &Job) -> u32 {
    trace.threads[job.thread].chunks[job.chunk].frame.header.seq
}

/// All chunks of the threads that `wanted` names, thread by thread.
pub fn jobs(trace: &Trace, wanted: impl Fn(&crate::Thread) -> bool) -> Vec<Job> {
    let threads = trace.threads.iter().enumerate().filter(|(_, t)| wanted(t));
    threads
        .flat_map(|(thread, t)| (0..t.chunks.len()).map(move |chunk| Job { thread, chunk }))
        .collect()
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

/// Runs all `jobs`, with a fresh sink for each. `consume` returns false to stop.
pub fn run<S: BatchSink>(
    trace: &Trace,
    jobs: &[Job],
    make: impl Fn(Job, Outlet<S::Batch, S::Kept>) -> S + Sync,
    mut consume: impl FnMut(Job, Piece<S::Batch>) -> bool,
) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = cores.min(jobs.len());
    std::thread::scope(|scope| {
        let mut queues: Vec<Receiver<Message<S::Batch>>> = Vec::new();
        for first in 0..workers {
            let (sender, receiver) = sync_channel(QUEUE);
            queues.push(receiver);
            let make = &make;
            scope.spawn(move || {
                let mut walker = Walker::new(trace);
                let mut outlet = Outlet { sender, open: true, kept: S::Kept::default() };
                for job in jobs.iter().skip(first).step_by(workers) {
                    let mut sink = make(*job, outlet);
                    let end = walker.walk(&trace.threads[job.thread], job.chunk, &mut sink);
                    outlet = sink.finish();
                    if !outlet.open || outlet.sender.send(Message::End(Box::new(end))).is_err() {
                        return;
                    }
                }
            });
        }
        for (number, &job) in jobs.iter().enumerate() {
            loop {
                // A worker that is gone has panicked; the scope reports that.
                let Ok(message) = queues[number % workers].recv() else { return };
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
