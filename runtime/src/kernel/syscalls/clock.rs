//! What the vdso answers without the kernel, where the program has none: the runtime asks it. What is recorded is the
//! call all the same.

use crate::base::facts::facts;
use crate::base::sys::{self, failed, nr};
use crate::logs::inputs::{at_hand, foreign};
use crate::thread::Thread;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The program has forbidden the time stamp counter.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

type Function = unsafe extern "C" fn(usize, usize, usize) -> usize;

/// What is written: where, and so many bytes of the answer.
type Place = (u64, usize);

/// The program is about to say whether the time stamp counter, which the vdso reads, may be read.
pub fn counter_may_be_forbidden() {
    FORBIDDEN.store(true, Relaxed);
}

/// Makes the call; `None`: the kernel is to make it.
pub fn call(thread: &Thread, number: usize, args: &[usize; 6]) -> Option<usize> {
    const NOWHERE: Place = (0, 0);
    let vdso = &facts().vdso;
    let [first, second] = [args[0] as u64, args[1] as u64];
    // Where the function writes, from the start of the answer on.
    let (function, places): (u64, [Place; 2]) = match number {
        nr::CLOCK_GETTIME => (vdso.clock_gettime, [(second, 16), NOWHERE]),
        nr::GETTIMEOFDAY => (vdso.gettimeofday, [(first, 16), (second, 8)]),
        nr::TIME => (vdso.time, [(first, 8), NOWHERE]),
        nr::GETCPU => (vdso.getcpu, [(first, 4), (second, 4)]),
        _ => return None,
    };
    // A filter has to see the call.
    let is_filtered = thread.filter != 0 || thread.kernel_filter != 0;
    let is_shared =
        places.iter().any(|&(at, len)| foreign::may_lie_in(at, at.saturating_add(len as u64)));
    if function == 0
        || is_filtered
        || is_shared
        || FORBIDDEN.load(Relaxed)
        || thread.mailbox.is_pending()
    {
        return None;
    }
    let mut answer = [[0u8; 16]; 2];
    let [a, b] = answer.each_mut().map(|part| part.as_mut_ptr() as usize);
    // SAFETY: what the function takes, with room for what it writes; it lies in the vdso, which stays.
    let result = unsafe {
        let function: Function = core::mem::transmute(function);
        match number {
            nr::CLOCK_GETTIME => function(args[0], a, 0),
            nr::TIME => function(a, 0, 0),
            _ => function(a, b, 0),
        }
    };
    // All but `time` return an `int`.
    let result = if number == nr::TIME { result } else { result as i32 as isize as usize };
    if sys::check(result).is_err() {
        return Some(result);
    }
    for ((at, len), bytes) in places.into_iter().zip(&answer) {
        // For the clock alone a null pointer is not nothing.
        if len == 0 || at == 0 && number != nr::CLOCK_GETTIME {
            continue;
        }
        let bytes = bytes.get(..len).unwrap_or_default();
        // SAFETY: the program wants it there.
        if !unsafe { at_hand::write(at, bytes) } {
            return Some(failed(sys::EFAULT));
        }
    }
    Some(result)
}
