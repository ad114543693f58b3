//! Replays beside each other, and what is said of them in one order.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{channel, Sender};
use std::thread::available_parallelism;

/// How many replays run at once. `in_one_order`: what programs write is shown.
pub fn at_once(in_one_order: bool) -> usize {
    match in_one_order {
        true => 1,
        false => available_parallelism().map_or(1, NonZero::get),
    }
}

/// Runs `work` on all jobs, so many at once. What they send, each for one of so many `places`, goes to `done` in the order
/// of the places.
pub fn run<J: Sync, T: Send>(
    jobs: &[J],
    at_once: usize,
    places: usize,
    work: impl Fn(&J, &Sender<(usize, T)>) + Sync,
    mut done: impl FnMut(T),
) {
    let (sender, results) = channel();
    let mut waiting: Vec<Option<T>> = (0..places).map(|_| None).collect();
    let mut next = 0;
    let mut hear = |(at, result): (usize, T)| {
        if let Some(slot) = waiting.get_mut(at) {
            *slot = Some(result);
        }
        while let Some(result) = waiting.get_mut(next).and_then(Option::take) {
            done(result);
            next += 1;
        }
    };
    if at_once.min(jobs.len()) < 2 {
        for job in jobs {
            work(job, &sender);
            results.try_iter().for_each(&mut hear);
        }
        return;
    }
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(jobs.len()) {
            let (taken, work, sender) = (&taken, &work, sender.clone());
            scope.spawn(move || {
                while let Some(job) = jobs.get(taken.fetch_add(1, Relaxed)) {
                    work(job, &sender);
                }
            });
        }
        drop(sender);
        results.into_iter().for_each(hear);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_their_places() {
        let jobs: Vec<usize> = (0..50).collect();
        let mut seen = Vec::new();
        // Each sends for two places, the later one first.
        let work = |&job: &usize, sender: &Sender<(usize, usize)>| {
            for at in [2 * job + 1, 2 * job] {
                sender.send((at, at)).unwrap();
            }
        };
        for at_once in [1, 3] {
            seen.clear();
            run(&jobs, at_once, 100, work, |at| seen.push(at));
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        }
    }
}
