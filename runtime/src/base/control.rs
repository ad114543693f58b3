//! The page through which `dep` reaches the running program, and where each thread is.
//!
//! What the words mean says [`abi::control`]. Two parties that must not miss each other (a thread that
//! goes into generated code or into a system call, and whoever wants to stop it or leave it alone) each
//! store first and look then, with a full fence in between.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::descriptors;
use crate::base::lock::Forked;
use crate::base::own::{own, KEPT_FREE};
use crate::base::signal::{PendingSignal, SigInfo, SI_USER};
use crate::base::sys::{self, nr};
use abi::control::{at, place, slot, KICK, KICKERS, LEN, MAGIC, SLOTS_MOST, SLOT_SIZE, TEXT_MOST};
use core::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64, AtomicU8, Ordering::*};

/// Where the page is mapped; naked code looks there.
pub static PAGE: AtomicU64 = AtomicU64::new(0);
/// The descriptor of its file, or -1.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// `si_value` of a kick that a thread of the process sends.
const OWN_KICK: u64 = u64::from_le_bytes(*b"depkick!");
const SI_QUEUE: i32 = -1;
const SI_TIMER: i32 = -2;
const SI_TKILL: i32 = -6;

/// Who has sent a kick.
#[derive(Clone, Copy)]
enum Kicker {
    /// A thread of the process.
    Own,
    /// `dep`, to the thread.
    ThisThread,
    /// `dep`, to the process: another thread may have been meant.
    AnyThread,
}

fn word(offset: u64) -> &'static AtomicU32 {
    debug_assert!(offset < LEN);
    // SAFETY: the page is mapped at start, for good; `dep` and all threads use its words as atomics.
    unsafe { &*((PAGE.load(Relaxed) + offset) as *const AtomicU32) }
}

fn long(offset: u64) -> &'static AtomicU64 {
    debug_assert!(offset < LEN);
    // SAFETY: as for `word`.
    unsafe { &*((PAGE.load(Relaxed) + offset) as *const AtomicU64) }
}

/// Maps the page. `reachable`: in a file that `dep` can find.
pub fn start(reachable: bool) {
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    let fd = if reachable { file(None).unwrap_or(-1) } else { -1 };
    let mapped = match fd {
        -1 => own(LEN, prot, KEPT_FREE, -1, 0),
        fd => own(LEN, prot, sys::MAP_SHARED | sys::MAP_NORESERVE, fd, 0),
    };
    let Ok(page) = mapped else {
        crate::die!("no memory for the page that switches the recording")
    };
    FILE.store(fd, Relaxed);
    PAGE.store(page, Release);
    long(at::MAGIC).store(MAGIC, Release);
}

/// An empty file of the right size, whose name `dep` looks for, out of the program's way or in place of
/// `old`.
fn file(old: Option<i32>) -> Result<i32, i32> {
    const MFD_CLOEXEC: usize = 1;
    if sys::limit(sys::RLIMIT_FSIZE) < LEN {
        return Err(sys::EFBIG);
    }
    // The program needs what there is itself.
    const FEW: u64 = 32;
    if old.is_none() && sys::limit(sys::RLIMIT_NOFILE) < FEW {
        return Err(sys::EMFILE);
    }
    let name = c"deprewrite";
    // SAFETY: the kernel reads the name.
    let fd = unsafe { sys::call(nr::MEMFD_CREATE, &[name.as_ptr() as usize, MFD_CLOEXEC]) }?;
    // SAFETY: no memory involved.
    unsafe { sys::call(nr::FTRUNCATE, &[fd, LEN as usize]) }?;
    Ok(descriptors::replace(old, fd as i32))
}

/// In a forked child: it has a page of its own, at the same place. `shares`: descriptors are those of
/// its parent, too.
pub fn forked(_: &Forked, shares: bool) {
    let page = PAGE.load(Relaxed);
    let (slots, off) = (word(at::SLOTS).load(Relaxed), word(at::OFF).load(Relaxed));
    let old = FILE.load(Relaxed);
    let fd = match old {
        // Nobody else has ever reached it: it is a copy.
        -1 => return Slot::all().for_each(|slot| slot.set_place(place::GONE)),
        _ if shares => file(None).unwrap_or(-1),
        old => file(Some(old)).unwrap_or_else(|_| {
            descriptors::close(old);
            -1
        }),
    };
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    let flags = match fd {
        -1 => KEPT_FREE,
        _ => sys::MAP_SHARED | sys::MAP_NORESERVE,
    };
    // SAFETY: in place of the page, which belongs to the parent.
    let map = || unsafe { sys::mmap(page, LEN, prot, flags | sys::MAP_FIXED, fd, 0) };
    if sys::beyond_limits(map).is_err() {
        crate::die!("no memory for the page that switches the recording");
    }
    FILE.store(fd, Relaxed);
    word(at::SLOTS).store(slots, Relaxed);
    word(at::OFF).store(off, Relaxed);
    long(at::MAGIC).store(MAGIC, Release);
}

// --- requests ---

/// What `dep` wants.
pub struct Request {
    pub number: u32,
    pub command: u32,
    /// When it was made (CLOCK_MONOTONIC, nanoseconds).
    pub since: u64,
}

/// What is answered.
pub struct Answer {
    pub outcome: u32,
    pub threads: u32,
    pub interrupted: u32,
    pub took: u64,
}

/// Whether a request waits.
pub fn is_posted() -> bool {
    word(at::POSTED).load(Acquire) != word(at::DONE).load(Relaxed)
}

/// The request that waits.
pub fn posted() -> Option<Request> {
    let number = word(at::POSTED).load(Acquire);
    (number != word(at::DONE).load(Acquire)).then(|| Request {
        number,
        command: word(at::COMMAND).load(Relaxed),
        since: long(at::REQUESTED).load(Relaxed),
    })
}

/// Copies the text of the request.
pub fn text(to: &mut [u8; TEXT_MOST]) -> &[u8] {
    let len = (word(at::TEXT_LEN).load(Relaxed) as usize).min(TEXT_MOST);
    let from = (PAGE.load(Relaxed) + at::TEXT) as *const AtomicU8;
    for (i, byte) in to.iter_mut().take(len).enumerate() {
        // SAFETY: inside the page.
        *byte = unsafe { (*from.add(i)).load(Relaxed) };
    }
    to.get(..len).unwrap_or_default()
}

/// The request is carried out.
pub fn answer(request: &Request, answer: &Answer) {
    word(at::OUTCOME).store(answer.outcome, Relaxed);
    word(at::THREADS).store(answer.threads, Relaxed);
    word(at::INTERRUPTED).store(answer.interrupted, Relaxed);
    long(at::TOOK).store(answer.took, Relaxed);
    word(at::DONE).store(request.number, Release);
}

/// The recording is switched off now, or is not.
pub fn set_off(off: bool) {
    // (In a child, what is not written stays its parent's page.)
    if word(at::OFF).load(Relaxed) != u32::from(off) {
        word(at::OFF).store(u32::from(off), Relaxed);
    }
}

// --- slots ---

/// What is known about one thread; it stays with the thread's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(u64);

impl Slot {
    /// The next one. The last one serves all that have no slot of their own: nothing is switched then.
    pub fn next() -> Slot {
        let n = word(at::SLOTS).fetch_add(1, AcqRel);
        let last = SLOTS_MOST as u32 - 1;
        if n >= last {
            word(at::SLOTS).store(last + 1, Relaxed);
        }
        Slot::number(n.min(last))
    }

    fn number(n: u32) -> Slot {
        Slot(PAGE.load(Relaxed) + at::FIRST_SLOT + SLOT_SIZE * u64::from(n))
    }

    /// All that were ever in use.
    pub fn all() -> impl Iterator<Item = Slot> {
        (0..word(at::SLOTS).load(Acquire).min(SLOTS_MOST as u32)).map(Slot::number)
    }

    fn at(self, offset: u64) -> &'static AtomicU32 {
        // SAFETY: a slot lies in the page.
        unsafe { &*((self.0 + offset) as *const AtomicU32) }
    }

    /// Two flags: a kick of `dep`, and one of our own, is on its way.
    fn kicked(self) -> [&'static AtomicU8; 2] {
        // SAFETY: two bytes of the slot, which nobody takes for a larger word.
        [0, 1].map(|n| unsafe { &*((self.0 + slot::KICKED + n) as *const AtomicU8) })
    }

    /// A thread begins, in the runtime. What it is called is known later.
    pub fn begin(self) {
        self.at(slot::TID).store(0, Relaxed);
        self.kicked().iter().for_each(|flag| flag.store(0, Relaxed));
        self.set_place(place::RUNTIME);
    }

    /// The calling thread is the one of this slot.
    pub fn is_mine(self) {
        self.at(slot::PID).store(sys::getpid(), Relaxed);
        self.at(slot::TID).store(sys::gettid(), Release);
    }

    /// The thread's id; 0 while it begins.
    pub fn tid(self) -> u32 {
        self.at(slot::TID).load(Acquire)
    }

    /// Whether its thread is one of the calling process.
    pub fn is_of_process(self) -> bool {
        self.at(slot::PID).load(Relaxed) == sys::getpid()
    }

    pub fn place(self) -> u32 {
        self.at(slot::PLACE).load(SeqCst)
    }

    pub fn set_place(self, place: u32) {
        self.at(slot::PLACE).store(place, SeqCst);
    }

    /// Brings the thread out of generated code, if it is there. True if it was sent a signal.
    pub fn kick(self) -> bool {
        let [_, flag] = self.kicked();
        flag.store(1, SeqCst);
        let (tid, pid) = (self.at(slot::TID).load(Acquire), self.at(slot::PID).load(Relaxed));
        if self.place() != place::CODE || tid == 0 {
            flag.store(0, SeqCst);
            return false;
        }
        let info = own_kick();
        let args = [pid as usize, tid as usize, KICK as usize, info.0.as_ptr() as usize];
        // SAFETY: the kernel reads the info.
        let sent = unsafe { sys::call(nr::RT_TGSIGQUEUEINFO, &args) }.is_ok();
        if !sent {
            flag.store(0, SeqCst);
        }
        sent
    }

    /// Lets kicks that are on their way arrive, so that they interrupt nothing that follows. Whoever
    /// announced one and was killed is not waited for for ever.
    pub fn let_kicks_in(self, is_blocked: impl Fn() -> bool) {
        const ROUNDS: u32 = 20_000;
        const STEP: [u64; 2] = [0, 50_000];
        fence(SeqCst);
        for _ in 0..ROUNDS {
            if self.kicked().iter().all(|flag| flag.load(SeqCst) == 0) || is_blocked() {
                return;
            }
            const NANOSLEEP: usize = 35;
            // SAFETY: the kernel reads the time.
            let _ = unsafe { sys::call(NANOSLEEP, &[STEP.as_ptr() as usize, 0]) };
        }
        self.kicked().iter().for_each(|flag| flag.store(0, Relaxed));
    }

    /// A kick has arrived at the thread.
    fn arrived(self, from: Kicker) {
        let [of_dep, own] = self.kicked();
        match from {
            Kicker::Own => own.store(0, SeqCst),
            Kicker::ThisThread => of_dep.store(0, SeqCst),
            Kicker::AnyThread => Slot::all().for_each(|slot| {
                let [of_dep, _] = slot.kicked();
                of_dep.store(0, SeqCst);
            }),
        }
    }
}

// --- kicks ---

fn own_kick() -> SigInfo {
    let mut info = SigInfo::fault(KICK, SI_QUEUE, 0);
    for (to, from) in info.0.iter_mut().skip(24).zip(OWN_KICK.to_le_bytes()) {
        *to = from;
    }
    info
}

/// A kick that the thread sends itself.
pub fn kick_of_own() -> PendingSignal {
    PendingSignal { number: KICK, info: own_kick() }
}

fn field<const N: usize>(info: &SigInfo, at: usize) -> [u8; N] {
    info.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

/// Whether the signal is a kick of our own, and not one of the program's.
pub fn is_own_kick(signal: i32, info: &SigInfo) -> bool {
    signal == KICK && info.code() == SI_QUEUE && u64::from_le_bytes(field(info, 24)) == OWN_KICK
}

/// Whether the signal is a kick that a timer of the thread's has sent ([`timer_of_kicks`]).
pub fn is_timed_kick(signal: i32, info: &SigInfo) -> bool {
    signal == KICK && info.code() == SI_TIMER && u64::from_le_bytes(field(info, 24)) == OWN_KICK
}

/// A timer that kicks the calling thread after `first` nanoseconds, and every `then` from there on (0: not
/// again). `None` if the kernel has none to give.
pub fn timer_of_kicks(first: u64, then: u64) -> Option<i32> {
    const SIGEV_THREAD_ID: u32 = 4;
    // struct sigevent: value, signal, how, thread
    let mut event = [0u64; 8];
    event[0] = OWN_KICK;
    event[1] = u64::from(KICK.cast_unsigned()) | u64::from(SIGEV_THREAD_ID) << 32;
    event[2] = u64::from(sys::gettid());
    let mut timer = 0i32;
    let args = [sys::CLOCK_MONOTONIC, event.as_ptr() as usize, &raw mut timer as usize];
    // SAFETY: the kernel reads the event and writes the timer's number.
    unsafe { sys::call(nr::TIMER_CREATE, &args) }.ok()?;
    const SECOND: u64 = 1_000_000_000;
    let times = [then / SECOND, then % SECOND, first / SECOND, first % SECOND];
    let args = [timer as usize, 0, times.as_ptr() as usize, 0];
    // SAFETY: the kernel reads the times.
    match unsafe { sys::call(nr::TIMER_SETTIME, &args) } {
        Ok(_) => Some(timer),
        Err(_) => {
            end_timer(timer);
            None
        }
    }
}

/// The timer kicks no more, once the caller has KICK unblocked.
pub fn end_timer(timer: i32) {
    // SAFETY: no memory involved.
    let _ = unsafe { sys::call(nr::TIMER_DELETE, &[timer as usize]) };
}

/// Whether the signal is a kick, which has arrived at the thread of `slot`: then `info` is that of
/// our own from now on.
pub fn take_kick(slot: Slot, signal: i32, info: &mut SigInfo) -> bool {
    if signal != KICK {
        return false;
    }
    if is_own_kick(signal, info) {
        slot.arrived(Kicker::Own);
        return true;
    }
    if is_timed_kick(signal, info) {
        // Nobody waits for it.
        *info = own_kick();
        return true;
    }
    let from = match info.code() {
        SI_USER => Kicker::AnyThread,
        SI_TKILL => Kicker::ThisThread,
        _ => return false,
    };
    // The sender; 0: of another namespace, or there was no room to say so.
    let sender = u32::from_le_bytes(field(info, 16));
    let kicker = |n| word(at::KICKERS + 4 * n).load(Acquire);
    let known = (0..KICKERS).any(|n| kicker(n) != 0 && (sender == 0 || kicker(n) == sender));
    let [_, own] = slot.kicked();
    let kicked = sender == 0 && own.load(SeqCst) != 0;
    if !known && !kicked {
        return false;
    }
    slot.arrived(from);
    if sender == 0 {
        slot.arrived(Kicker::Own);
    }
    *info = own_kick();
    true
}
