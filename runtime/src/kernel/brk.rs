//! The program's heap end.

use crate::base::ceiling;
use crate::base::lock::{Forked, Guard, Lock};
use crate::base::once::Once;
use crate::base::own::reserve;
use crate::base::sys;
use abi::layout::page_up;

static BRK: Once<Lock<Brk>> = Once::new();

/// Puts the program's heap in place.
pub fn install(brk: Brk) {
    BRK.install(Lock::new(brk));
}

/// The program's heap.
pub fn brk() -> Guard<'static, Brk> {
    place().lock()
}

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    place().force_unlock(forked);
}

fn place() -> &'static Lock<Brk> {
    BRK.get()
}

/// The virtual `brk`: the heap stays behind the program's own segments, where it would be without
/// the segments that were added.
pub struct Brk {
    pub start: u64,
    pub current: u64,
    /// End of what is mapped.
    mapped: u64,
    /// The heap cannot grow beyond.
    pub limit: u64,
    /// The room up to there is reserved.
    reserved: bool,
}

impl Brk {
    pub fn new(start: u64, limit: u64) -> Brk {
        let mapped = page_up(start);
        let reserved =
            limit > mapped && !sys::address_space_is_limited() && reserve(mapped, limit - mapped);
        Brk { start, current: start, mapped, limit, reserved }
    }

    /// What is reserved for it to grow into.
    pub fn room(&self) -> core::ops::Range<u64> {
        match self.reserved {
            true => self.mapped..self.limit,
            false => 0..0,
        }
    }

    /// The program looks at, or maps, memory that nothing but our reservation may be in: from now on
    /// nothing is there, as natively.
    pub fn uncover(&mut self, start: u64, end: u64) {
        if self.reserved && start < self.limit && self.mapped < end {
            let (at, len) = (self.mapped as usize, (self.limit - self.mapped) as usize);
            // SAFETY: reserved by us, and used by nobody.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at, len]) };
            self.reserved = false;
        }
    }

    /// `brk(wanted)`: the new end, or the old one if it cannot be had.
    pub fn set(&mut self, wanted: u64) -> u64 {
        if wanted < self.start || wanted > self.limit {
            return self.current;
        }
        let end = page_up(wanted);
        if end > self.mapped {
            let prot = sys::PROT_READ | sys::PROT_WRITE;
            let place = if self.reserved { sys::MAP_FIXED } else { sys::MAP_FIXED_NOREPLACE };
            let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | place;
            // SAFETY: reserved, or NOREPLACE: nothing is there.
            match unsafe { sys::mmap(self.mapped, end - self.mapped, prot, flags, -1, 0) } {
                Ok(at) if at == self.mapped => {}
                Ok(at) => {
                    // SAFETY: an old kernel placed it elsewhere; it is new.
                    let _ = unsafe {
                        sys::call(sys::nr::MUNMAP, &[at as usize, (end - self.mapped) as usize])
                    };
                    return self.current;
                }
                Err(_) => return self.current,
            }
        } else if end < self.mapped {
            let (at, len) = (end, self.mapped - end);
            // SAFETY: the program gives this part of its heap back.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, len as usize]) };
            self.reserved = self.reserved && reserve(at, len);
        }
        self.mapped = end;
        self.current = wanted;
        wanted
    }
}

/// Whether nothing but a reservation of ours is at `address`.
pub fn is_reserved(address: u64) -> bool {
    let brk = brk();
    let heap = brk.reserved && (brk.mapped..brk.limit).contains(&address);
    drop(brk);
    let is_nobodys = || ceiling::is_nobodys(&(address..address.saturating_add(1)));
    heap || crate::code::window::is_free(address) || is_nobodys()
}
