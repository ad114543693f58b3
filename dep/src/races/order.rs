//! What orders threads: places at which one leaves what it knows, and another takes it.
//!
//! Memory that is used to synchronise has a place for each eight bytes; what the kernel keeps (a pipe, the
//! signals that are under way) has one each.

use std::collections::HashMap;

use super::clocks::Clock;

/// Where knowledge is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Eight bytes of memory.
    Word(u64),
    /// What descriptors lead to.
    Object(u32),
    /// Something was left in any object.
    AnyObject,
    Signals,
    /// Child processes that have ended.
    Children,
    /// Semaphores and messages of System V and POSIX.
    Messages,
    /// Locks of files.
    FileLocks,
    /// A thread that a call is about to make or has made: its kernel id.
    Child(u32),
    /// A thread that has ended, by its process id.
    Ended(u64),
    /// The program's sockets.
    Sockets,
}

/// What threads know, and what was left for them.
#[derive(Default)]
pub struct Order {
    threads: Vec<Clock>,
    places: HashMap<Place, Clock>,
    /// Where those wait now that waited for a word.
    requeued: HashMap<u64, Vec<u64>>,
}

impl Order {
    /// The thread's own time.
    pub fn time(&self, thread: usize) -> u32 {
        self.threads.get(thread).map_or(1, |clock| clock.get(thread))
    }

    /// What a thread knows that has been named before.
    pub fn known(&self, thread: usize) -> &Clock {
        &self.threads[thread]
    }

    /// What the thread knows.
    pub fn clock(&mut self, thread: usize) -> &mut Clock {
        while self.threads.len() <= thread {
            let mut clock = Clock::default();
            clock.set(self.threads.len(), 1);
            self.threads.push(clock);
        }
        &mut self.threads[thread]
    }

    /// The thread leaves what it knows.
    pub fn release(&mut self, thread: usize, place: Place) {
        self.clock(thread);
        let clock = &mut self.threads[thread];
        self.places.entry(place).or_default().join(clock);
        let time = clock.get(thread);
        clock.set(thread, time.saturating_add(1));
    }

    /// The thread takes what was left.
    pub fn acquire(&mut self, thread: usize, place: Place) {
        self.clock(thread);
        if let Some(left) = self.places.get(&place) {
            self.threads[thread].join(left);
        }
    }

    /// The thread begins where the other one is.
    pub fn begin(&mut self, thread: usize, parent: usize) {
        let known = self.clock(parent).clone();
        self.clock(thread).join(&known);
        let time = known.get(parent);
        self.threads[parent].set(parent, time.saturating_add(1));
    }

    /// The thread takes what was left there, once; false: nothing was.
    pub fn take(&mut self, thread: usize, place: Place) -> bool {
        self.acquire(thread, place);
        self.places.remove(&place).is_some()
    }

    /// Who waits for the word waits for the other one now.
    pub fn requeue(&mut self, from: u64, to: u64) {
        let all = self.requeued.entry(from).or_default();
        if !all.contains(&to) {
            all.push(to);
        }
    }

    /// A thread that waited for the word goes on.
    pub fn woken(&mut self, thread: usize, word: u64) {
        self.acquire(thread, Place::Word(word & !7));
        for to in self.requeued.get(&word).cloned().unwrap_or_default() {
            self.acquire(thread, Place::Word(to & !7));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_taken() {
        let mut order = Order::default();
        assert_eq!(order.time(0), 1);
        order.release(0, Place::Word(8));
        assert_eq!((order.time(0), order.clock(1).get(0)), (2, 0));
        order.acquire(1, Place::Word(16));
        assert_eq!(order.clock(1).get(0), 0, "another place");
        order.acquire(1, Place::Word(8));
        assert_eq!(order.clock(1).get(0), 1);
    }

    #[test]
    fn children_know_what_came_before_them_only() {
        let mut order = Order::default();
        order.release(0, Place::Signals);
        order.begin(1, 0);
        assert_eq!((order.clock(1).get(0), order.time(0)), (2, 3));
    }

    #[test]
    fn whoever_was_moved_is_woken_elsewhere() {
        let mut order = Order::default();
        order.requeue(0x100, 0x200);
        order.release(0, Place::Word(0x200));
        order.woken(1, 0x100);
        assert_eq!(order.clock(1).get(0), 1);
    }
}
