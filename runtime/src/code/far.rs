//! Look-ups of addresses outside of the window, which the tables do not have, without the runtime.
//!
//! The low 16 bits of an address choose a slot, and that leads to a chain of pieces of code, one for each
//! address. Each compares the whole address and goes on to its translation, or to the next piece; the
//! last one goes to the miss stub. A piece never changes: a new one is put in front of its chain, by one
//! store. If the translation is closed or dead, its gate knows the way on.
//!
//! The pieces lie in the code cache between units. So a signal that comes in there is delivered at the
//! next boundary, as in any other cold code.

use crate::base::own::anonymous;
use crate::code::world::CodeMemory;
use abi::ids::{CodeAddr, CodeOff, LiveAddr};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};
use instrument::emit::{Code, FarLink};

/// The code that looks into the slots lies in front of all other code.
pub const FRONT: CodeOff = CodeOff(64);
/// Its room.
pub const FRONT_LEN: u32 = 80;

const SLOTS: usize = 1 << 16;
/// A chain that gets longer starts anew: most of what it has is not used any more.
const LONGEST: usize = 24;

/// The slots, and what their chains have.
pub struct Far {
    slots: &'static [AtomicU64],
    chains: BTreeMap<u16, Vec<LiveAddr>>,
    /// The miss stub.
    miss: u64,
    /// High half of the window.
    window_high: u32,
}

impl Far {
    /// Without chains; `None` if there is no memory. `window`, `miss`: start of the window, the miss stub.
    pub fn new(window: u64, miss: u64) -> Option<Far> {
        let at = anonymous((SLOTS * 8) as u64).ok()?;
        // SAFETY: a new mapping of this size, all zero, that is never given back.
        let slots = unsafe { core::slice::from_raw_parts(at as *const AtomicU64, SLOTS) };
        Some(Far::with(slots, window, miss))
    }

    fn with(slots: &'static [AtomicU64], window: u64, miss: u64) -> Far {
        Far { slots, chains: BTreeMap::new(), miss, window_high: (window >> 32) as u32 }
    }

    /// The code that looks into the slots, for [`FRONT`], which is executed at `at`. `None`: the miss
    /// stub is out of reach.
    pub fn front(&self, at: CodeAddr) -> Option<Vec<u8>> {
        let mut code = Code { bytes: Vec::new(), base: at.0 };
        let reaches = code.far_front(self.slots.as_ptr() as u64, self.miss);
        (reaches && code.bytes.len() <= FRONT_LEN as usize).then_some(code.bytes)
    }

    /// From now on `address`, which lies outside of the window, leads to its translation at `to`, which
    /// may be entered from anywhere.
    pub fn set(&mut self, address: LiveAddr, to: CodeAddr, memory: &mut impl CodeMemory) {
        if (address.0 >> 32) as u32 == self.window_high {
            return;
        }
        let slot = &self.slots[usize::from(address.0 as u16)];
        let chain = self.chains.entry(address.0 as u16).or_default();
        if chain.contains(&address) {
            return;
        }
        if chain.len() == LONGEST {
            chain.clear();
            slot.store(0, Release);
        }
        let next = slot.load(Relaxed);
        let at = memory.live(memory.used());
        let mut code = Code { bytes: Vec::new(), base: at.0 };
        let reaches = code.far_link(FarLink {
            address: address.0,
            to: to.0,
            next: (next != 0).then_some(next),
            miss: self.miss,
            window_high: self.window_high,
        });
        if reaches {
            memory.append(&code.bytes);
            chain.push(address);
            slot.store(at.0, Release);
        }
    }

    /// All of it misses.
    pub fn clear(&mut self) {
        for slot in self.chains.keys() {
            self.slots[usize::from(*slot)].store(0, Release);
        }
        self.chains.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::test_support::{FakeCode, CODE, WINDOW};
    use alloc::boxed::Box;

    const MISS: u64 = WINDOW + 0x600_0000;
    const ELSEWHERE: u64 = 0x7f00_1234_5670;

    fn far() -> Far {
        let slots: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Far::with(Box::leak(slots.into_boxed_slice()), WINDOW, MISS)
    }

    fn start(far: &Far, address: u64) -> u64 {
        far.slots[usize::from(address as u16)].load(Relaxed)
    }

    #[test]
    fn a_chain_grows_in_front_and_has_each_address_once() {
        let (mut far, mut code) = (far(), FakeCode::new());
        let (a, b) = (LiveAddr(ELSEWHERE), LiveAddr(ELSEWHERE + (1 << 16)));
        far.set(a, CodeAddr(CODE), &mut code);
        let first = start(&far, a.0);
        assert_ne!(first, 0);
        far.set(b, CodeAddr(CODE), &mut code);
        let second = start(&far, b.0);
        assert_ne!(second, first);
        let used = code.used();
        far.set(a, CodeAddr(CODE), &mut code);
        assert_eq!((start(&far, a.0), code.used()), (second, used));
        far.clear();
        assert_eq!(start(&far, a.0), 0);
        far.set(a, CodeAddr(CODE), &mut code);
        assert_ne!(start(&far, a.0), 0);
    }

    #[test]
    fn the_window_has_tables() {
        let (mut far, mut code) = (far(), FakeCode::new());
        let used = code.used();
        far.set(LiveAddr(WINDOW + 0x1234), CodeAddr(CODE), &mut code);
        assert_eq!((start(&far, WINDOW + 0x1234), code.used()), (0, used));
    }

    #[test]
    fn a_chain_is_never_longer_than_that() {
        let (mut far, mut code) = (far(), FakeCode::new());
        for n in 0..200u64 {
            far.set(LiveAddr(ELSEWHERE + (n << 16)), CodeAddr(CODE), &mut code);
            assert!(far.chains.values().all(|chain| chain.len() <= LONGEST));
        }
    }

    #[test]
    fn the_front_has_room() {
        let far = far();
        assert!(far.front(CodeAddr(CODE + u64::from(FRONT.0))).is_some());
    }
}
