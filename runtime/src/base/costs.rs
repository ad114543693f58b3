//! What costs microseconds each time: how often it happened, and where first. Counted where the time is spent
//! anyway.

use abi::event::{Cost, COST_PCS};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const ALL: [Cost; 4] = [Cost::Fault, Cost::Closed, Cost::Compared, Cost::Missed];
/// A program misses once for all that it calls; fewer say nothing.
const FEW_MISSES: u64 = 10_000;

/// How often one of them has happened.
struct Account {
    count: AtomicU64,
    /// The first places; 0 behind the last.
    pcs: [AtomicU64; COST_PCS],
}

#[link_section = ".data.at_fork"]
static ACCOUNTS: [Account; ALL.len()] = [const { Account::new() }; ALL.len()];

impl Account {
    const fn new() -> Account {
        Account { count: AtomicU64::new(0), pcs: [const { AtomicU64::new(0) }; COST_PCS] }
    }

    fn of(what: Cost) -> Option<&'static Account> {
        ACCOUNTS.get((what.to_u32() as usize).wrapping_sub(1))
    }

    fn add(&self, pc: u64) {
        self.count.fetch_add(1, Relaxed);
        for place in &self.pcs {
            let there = match place.load(Relaxed) {
                0 => place.compare_exchange(0, pc, Relaxed, Relaxed).unwrap_or_else(|other| other),
                other => other,
            };
            if there == pc || there == 0 {
                return;
            }
        }
    }

    fn clear(&self) {
        self.count.store(0, Relaxed);
        self.pcs.iter().for_each(|place| place.store(0, Relaxed));
    }

    fn read(&self) -> (u64, [u64; COST_PCS]) {
        let pcs = core::array::from_fn(|i| self.pcs.get(i).map_or(0, |pc| pc.load(Relaxed)));
        (self.count.load(Relaxed), pcs)
    }
}

/// It has happened to the program's code at `pc`.
pub fn count(what: Cost, pc: u64) {
    if let Some(account) = Account::of(what) {
        account.add(pc);
    }
}

/// In a forked child: nothing has happened yet.
pub fn forked() {
    ACCOUNTS.iter().for_each(Account::clear);
}

/// What has happened often enough to be told: how often, and where.
pub fn all() -> impl Iterator<Item = (Cost, u64, [u64; COST_PCS])> {
    let told = |what: Cost| {
        let (count, pcs) = Account::of(what)?.read();
        let least = if what == Cost::Missed { FEW_MISSES } else { 1 };
        (count >= least).then_some((what, count, pcs))
    };
    ALL.into_iter().filter_map(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_places_are_kept_once_each() {
        let account = Account::new();
        for n in 0..100 {
            account.add(1 + n % 20);
            account.add(5);
        }
        assert_eq!(account.read(), (200, [1, 5, 2, 3, 4, 6, 7, 8, 9, 10]));
        account.clear();
        assert_eq!(account.read(), (0, [0; COST_PCS]));
    }

    #[test]
    fn each_has_an_account() {
        let mut places: alloc::vec::Vec<_> =
            ALL.iter().map(|&what| core::ptr::from_ref(Account::of(what).unwrap())).collect();
        places.dedup();
        assert_eq!(places.len(), ALL.len());
        assert!(Account::of(Cost::Unknown(9)).is_none());
    }
}
