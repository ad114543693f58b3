//! What system calls say about the order of threads.

use std::collections::HashMap;

use super::order::{Order, Place};

/// A system call that returned.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub number: u64,
    pub arguments: [u64; 6],
    pub result: i64,
}

impl Call {
    fn succeeded(&self) -> bool {
        self.result >= 0
    }
}

/// Which objects descriptors lead to.
#[derive(Default)]
pub struct Descriptors {
    objects: HashMap<u64, Place>,
    count: u32,
    /// Some were open before, and nobody knows what they lead to.
    unknown: bool,
}

impl Descriptors {
    /// Some are open already.
    pub fn unknown() -> Descriptors {
        Descriptors { unknown: true, ..Descriptors::default() }
    }

    fn new_object(&mut self) -> Place {
        self.count += 1;
        Place::Object(self.count)
    }

    fn of(&mut self, descriptor: u64) -> Place {
        if let Some(&place) = self.objects.get(&descriptor) {
            return place;
        }
        // For all we know they are the two ends of a pipe, copies, or sockets.
        let place = if self.unknown { Place::Sockets } else { self.new_object() };
        self.objects.insert(descriptor, place);
        place
    }
}

/// The numbers that are meant here.
mod nr {
    pub const READS: &[u64] = &[0, 17, 19, 43, 45, 47, 288, 295, 299, 327];
    pub const WRITES: &[u64] = &[1, 3, 18, 20, 42, 44, 46, 48, 286, 296, 307, 328];
    /// From the second argument's descriptor to the first one's.
    pub const SENDFILE: u64 = 40;
    /// From the first argument's descriptor to that of this argument.
    pub const SPLICE: u64 = 275;
    pub const TEE: u64 = 276;
    pub const COPY_FILE_RANGE: u64 = 326;
    pub const POLLS: &[u64] = &[7, 23, 232, 270, 271, 281, 441];
    pub const EPOLL_CTL: u64 = 233;
    pub const CLOSE: u64 = 3;
    pub const PIPE: u64 = 22;
    pub const PIPE2: u64 = 293;
    pub const SOCKETPAIR: u64 = 53;
    pub const SOCKET: u64 = 41;
    pub const ACCEPT: u64 = 43;
    pub const ACCEPT4: u64 = 288;
    pub const DUP: u64 = 32;
    pub const DUP2: u64 = 33;
    pub const DUP3: u64 = 292;
    pub const FCNTL: u64 = 72;
    pub const FLOCK: u64 = 73;
    pub const SIGNALFD: &[u64] = &[282, 289];
    pub const KILLS: &[u64] = &[37, 38, 62, 129, 200, 223, 234, 297, 424];
    pub const SIGTIMEDWAIT: u64 = 128;
    pub const WAITS: &[u64] = &[61, 247];
    pub const MESSAGES: &[u64] = &[65, 66, 69, 70, 220, 242, 243];
    pub const FUTEX: u64 = 202;
    pub const MMAP: u64 = 9;
    pub const MUNMAP: u64 = 11;
    pub const BRK: u64 = 12;
    pub const MREMAP: u64 = 25;
    pub const MAKERS: &[u64] = &[56, 57, 58, 435];
}

/// What a futex call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Futex {
    Waits,
    Wakes,
    /// Both, and at the second word, too.
    Moves,
    Other,
}

/// The words of a futex call, and what it does with them.
pub fn futex(call: &Call) -> Option<(Futex, u64, u64)> {
    if call.number != nr::FUTEX {
        return None;
    }
    let [word, operation, _, _, second, _] = call.arguments;
    let what = match operation & 0x7f {
        0 | 6 | 8 | 9 | 13 => Futex::Waits,
        1 | 7 | 10 => Futex::Wakes,
        3 | 4 | 5 | 11 | 12 => Futex::Moves,
        _ => Futex::Other,
    };
    Some((what, word, second))
}

/// `flock`, and `fcntl` with F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW.
fn locks_a_file(call: &Call) -> bool {
    call.number == nr::FLOCK
        || call.number == nr::FCNTL && matches!(call.arguments[1], 6 | 7 | 37 | 38)
}

/// What the call leaves for others, at its begin: nobody waits for it to return.
pub fn leaves(call: &Call, thread: usize, order: &mut Order, descriptors: &mut Descriptors) {
    let [first, second, third, ..] = call.arguments;
    let number = call.number;
    if let Some((what, word, other)) = futex(call) {
        if matches!(what, Futex::Wakes | Futex::Moves) {
            order.release(thread, Place::Word(word & !7));
        }
        if what == Futex::Moves {
            order.release(thread, Place::Word(other & !7));
            order.requeue(word, other);
        }
        return;
    }
    let written = match number {
        _ if nr::WRITES.contains(&number) => Some(first),
        nr::SENDFILE => Some(first),
        nr::SPLICE | nr::COPY_FILE_RANGE => Some(third),
        nr::TEE => Some(second),
        _ => None,
    };
    if let Some(descriptor) = written {
        let object = descriptors.of(descriptor);
        order.release(thread, object);
        order.release(thread, Place::AnyObject);
    }
    match number {
        nr::EPOLL_CTL => order.release(thread, Place::AnyObject),
        _ if locks_a_file(call) => order.release(thread, Place::FileLocks),
        _ if nr::KILLS.contains(&number) => order.release(thread, Place::Signals),
        _ if nr::MESSAGES.contains(&number) => order.release(thread, Place::Messages),
        _ => {}
    }
}

/// What the call has told its thread when it returns; `written`: what the kernel wrote for it.
pub fn takes(
    call: &Call,
    thread: usize,
    order: &mut Order,
    descriptors: &mut Descriptors,
    written: &[(u64, Vec<u8>)],
) {
    let [first, second, ..] = call.arguments;
    let number = call.number;
    if let Some((what, word, other)) = futex(call) {
        if matches!(what, Futex::Waits | Futex::Moves) {
            order.woken(thread, word);
        }
        if what == Futex::Moves {
            order.woken(thread, other);
        }
        return;
    }
    if !call.succeeded() {
        return;
    }
    let read = match number {
        _ if nr::READS.contains(&number) => Some(first),
        nr::SENDFILE => Some(second),
        nr::SPLICE | nr::TEE | nr::COPY_FILE_RANGE => Some(first),
        _ => None,
    };
    if let Some(descriptor) = read {
        let object = descriptors.of(descriptor);
        order.acquire(thread, object);
        if descriptors.unknown {
            // It may be one of signalfd.
            order.acquire(thread, Place::Signals);
        }
    }
    match number {
        _ if nr::POLLS.contains(&number) && call.result > 0 => {
            order.acquire(thread, Place::AnyObject);
        }
        _ if locks_a_file(call) => order.acquire(thread, Place::FileLocks),
        nr::SIGTIMEDWAIT => order.acquire(thread, Place::Signals),
        _ if nr::WAITS.contains(&number) => order.acquire(thread, Place::Children),
        _ if nr::MESSAGES.contains(&number) => order.acquire(thread, Place::Messages),
        _ => {}
    }
    descriptors.follow(call, written);
    if nr::MAKERS.contains(&number) {
        order.acquire(thread, Place::Ended(call.result.unsigned_abs()));
    }
}

/// Whether the call has made a thread or a process.
pub fn makes(call: &Call) -> bool {
    nr::MAKERS.contains(&call.number) && call.result > 0
}

/// What the call leaves behind what the kernel wrote for it: a thread that was made knows that.
pub fn leaves_behind(call: &Call, thread: usize, order: &mut Order) {
    if makes(call) {
        let tid = u32::try_from(call.result).unwrap_or(0);
        order.release(thread, Place::Child(tid));
    }
}

impl Descriptors {
    /// The call has changed which descriptor leads where.
    fn follow(&mut self, call: &Call, written: &[(u64, Vec<u8>)]) {
        let [first, second, _, fourth, ..] = call.arguments;
        let result = call.result.unsigned_abs();
        match call.number {
            nr::CLOSE => {
                self.objects.remove(&first);
            }
            nr::PIPE | nr::PIPE2 | nr::SOCKETPAIR => {
                let at = if call.number == nr::SOCKETPAIR { fourth } else { first };
                let object = self.new_object();
                for descriptor in pair_at(at, written) {
                    self.objects.insert(descriptor, object);
                }
            }
            // Both ends may be this process's.
            nr::SOCKET | nr::ACCEPT | nr::ACCEPT4 => {
                self.objects.insert(result, Place::Sockets);
            }
            nr::DUP => self.same(first, result),
            nr::DUP2 | nr::DUP3 => self.same(first, second),
            nr::FCNTL if matches!(second, 0 | 1030) => self.same(first, result),
            number if nr::SIGNALFD.contains(&number) => {
                self.objects.insert(result, Place::Signals);
            }
            _ => {}
        }
    }

    fn same(&mut self, old: u64, new: u64) {
        let object = self.of(old);
        self.objects.insert(new, object);
    }
}

/// The two numbers that were written at `at`. Bytes that did not change may be missing: they were zero, as
/// far as is known.
fn pair_at(at: u64, written: &[(u64, Vec<u8>)]) -> [u64; 2] {
    let mut bytes = [0u8; 8];
    for (start, new) in written {
        for (address, &byte) in (*start..).zip(new) {
            let slot = address.checked_sub(at).and_then(|o| usize::try_from(o).ok());
            if let Some(slot) = slot.and_then(|o| bytes.get_mut(o)) {
                *slot = byte;
            }
        }
    }
    let word = u64::from_le_bytes(bytes);
    [word & 0xffff_ffff, word >> 32]
}

/// Memory that is another one behind the call.
pub fn renewed(call: &Call) -> [Option<(u64, u64)>; 2] {
    let [first, second, third, ..] = call.arguments;
    if !call.succeeded() {
        return [None, None];
    }
    match call.number {
        nr::MMAP => [Some((call.result.cast_unsigned(), second)), None],
        nr::MUNMAP => [Some((first, second)), None],
        nr::MREMAP => [Some((first, second)), Some((call.result.cast_unsigned(), third))],
        _ => [None, None],
    }
}

/// Where the heap ends behind the call, if that is what it says.
pub fn heap_end(call: &Call) -> Option<u64> {
    (call.number == nr::BRK).then_some(call.result.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64, arguments: [u64; 6], result: i64) -> Call {
        Call { number, arguments, result }
    }

    #[test]
    fn a_pipe_orders_its_writer_before_its_reader() {
        let (mut order, mut fds) = (Order::default(), Descriptors::default());
        let made = call(nr::PIPE2, [0x1000, 0, 0, 0, 0, 0], 0);
        let written = [(0x1000, vec![5, 0, 0, 0, 6, 0, 0, 0])];
        takes(&made, 0, &mut order, &mut fds, &written);
        leaves(&call(1, [6, 0, 1, 0, 0, 0], 1), 0, &mut order, &mut fds);
        takes(&call(0, [7, 0, 1, 0, 0, 0], 1), 1, &mut order, &mut fds, &[]);
        assert_eq!(order.clock(1).get(0), 0, "another object");
        takes(&call(0, [5, 0, 1, 0, 0, 0], 1), 1, &mut order, &mut fds, &[]);
        assert_eq!(order.clock(1).get(0), 1);
    }

    #[test]
    fn a_closed_descriptor_leads_elsewhere() {
        let (mut order, mut fds) = (Order::default(), Descriptors::default());
        leaves(&call(1, [6, 0, 1, 0, 0, 0], 1), 0, &mut order, &mut fds);
        takes(&call(nr::CLOSE, [6, 0, 0, 0, 0, 0], 0), 0, &mut order, &mut fds, &[]);
        takes(&call(0, [6, 0, 1, 0, 0, 0], 1), 1, &mut order, &mut fds, &[]);
        assert_eq!(order.clock(1).get(0), 0);
    }

    #[test]
    fn memory_that_is_mapped_anew() {
        assert_eq!(
            renewed(&call(nr::MMAP, [0, 8192, 3, 2, 0, 0], 0x7000))[0],
            Some((0x7000, 8192))
        );
        assert_eq!(renewed(&call(nr::MMAP, [0, 8192, 3, 2, 0, 0], -12))[0], None);
    }
}
