//! Open-addressing map from original addresses to numbers, of units or of versions.

use abi::ids::LiveAddr;
use alloc::vec::Vec;

#[derive(Clone, Copy, Default)]
struct Slot {
    address: LiveAddr,
    /// The number + 1; 0: never used.
    number: u32,
    removed: bool,
}

#[derive(Default)]
pub struct AddressMap {
    slots: Vec<Slot>,
    used: usize,
}

impl AddressMap {
    fn place(&self, address: LiveAddr) -> usize {
        let mask = self.slots.len() - 1;
        let mut i = (address.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.slots[i].number != 0 && self.slots[i].address != address {
            i = (i + 1) & mask;
        }
        i
    }

    /// The number that `address` has.
    pub fn get(&self, address: LiveAddr) -> Option<u32> {
        self.find(address).filter(|slot| !slot.removed).map(|slot| slot.number - 1)
    }

    fn find(&self, address: LiveAddr) -> Option<&Slot> {
        if self.slots.is_empty() {
            return None;
        }
        Some(&self.slots[self.place(address)]).filter(|slot| slot.number != 0)
    }

    pub fn set(&mut self, address: LiveAddr, number: u32) {
        if self.used * 2 >= self.slots.len() {
            self.grow();
        }
        let i = self.place(address);
        self.used += usize::from(self.slots[i].number == 0);
        self.slots[i] = Slot { address, number: number + 1, removed: false };
    }

    pub fn remove(&mut self, address: LiveAddr) {
        if !self.slots.is_empty() {
            let i = self.place(address);
            self.slots[i].removed = true;
        }
    }

    fn grow(&mut self) {
        let len = (self.slots.len() * 2).max(4096);
        let old = core::mem::replace(&mut self.slots, alloc::vec![Slot::default(); len]);
        for slot in old.into_iter().filter(|slot| slot.number != 0) {
            let i = self.place(slot.address);
            self.slots[i] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_set_and_forgets_what_was_removed() {
        let mut map = AddressMap::default();
        assert_eq!(map.get(LiveAddr(1)), None);
        for i in 0..10_000u32 {
            map.set(LiveAddr(u64::from(i) * 3), i);
        }
        map.remove(LiveAddr(30));
        assert_eq!(map.get(LiveAddr(30)), None);
        map.set(LiveAddr(30), 77);
        assert_eq!(map.get(LiveAddr(30)), Some(77));
        assert_eq!(map.get(LiveAddr(9_999 * 3)), Some(9_999));
        assert_eq!(map.get(LiveAddr(1)), None);
    }
}
