//! Movements at random, compared with the list of all places.

use abi::steer::{Position, Watched};

use crate::debug::machine::Watch;
use crate::debug::simulated::{Access, Instant, Simulated};
use crate::debug::timeline::{Event, Timeline};

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A run of `len` places that follow the rules of positions: forward jumps, turns, repeated instructions,
/// system calls, loops of several lengths, signals.
fn random_run(random: &mut Random, len: usize) -> Vec<Instant> {
    let mut all = Vec::new();
    let mut now = Position { turns: 0, entry: 0, pc: 100, rcx: 0 };
    let (mut access, mut turns) = (None, 0);
    while all.len() < len {
        let signal = (random.below(50) == 0).then_some(11);
        let carried_out = now.turns != turns && now.turns.is_multiple_of(5);
        turns = now.turns;
        all.push(Instant { position: now, access, signal, carried_out, ..Instant::default() });
        access = match random.below(4) {
            0 => Some(Access {
                address: random.below(40),
                len: 1 + random.below(8),
                writes: random.below(3) > 0,
            }),
            _ => None,
        };
        match random.below(10) {
            _ if now.rcx > 1 => now.rcx -= 1,
            0..3 => {
                now.turns += 1;
                now.pc = 100 + random.below(30);
            }
            3 => {
                now.entry += 48;
                now.pc = 100 + random.below(60);
            }
            4 => {
                now.pc += 1;
                now.rcx = 1 + random.below(6);
            }
            _ => now.pc += 1 + random.below(4),
        }
        if now.rcx == 1 {
            now.rcx = 0;
            now.pc += 1;
        }
    }
    all
}

/// What a movement from place `at` has to lead to, looked up in the list.
struct Oracle<'a> {
    all: &'a [Instant],
    timeline: &'a Timeline<Simulated>,
}

impl Oracle<'_> {
    fn met(&self, i: usize) -> Option<u64> {
        let access = self.all[i].access?;
        let meets = |w: &&Watch| {
            let kind = match w.kind() {
                Watched::Write => access.writes,
                Watched::Read => !access.writes,
                Watched::Access => true,
            };
            kind && w.address < access.address + access.len && access.address < w.address + w.len
        };
        self.timeline.points.watches.iter().find(meets).map(|w| w.address)
    }

    fn is_break(&self, i: usize) -> bool {
        self.timeline.points.breaks.contains(&self.all[i].position.pc)
    }

    fn forward(&self, mut at: usize, mut reported: bool) -> (usize, Event) {
        loop {
            if let (Some(signal), false) = (self.all[at].signal, reported) {
                return (at, Event::Signal(signal));
            }
            reported = false;
            if at + 1 == self.all.len() {
                return (at, Event::End(7));
            }
            at += 1;
            if let Some(address) = self.met(at) {
                return (at, Event::Watchpoint(address));
            }
            if self.is_break(at) {
                return (at, Event::Breakpoint);
            }
        }
    }

    fn step(&self, at: usize, reported: bool) -> (usize, Event) {
        if let (Some(signal), false) = (self.all[at].signal, reported) {
            return (at, Event::Signal(signal));
        }
        match self.all.len() {
            len if at + 1 == len => (at, Event::End(7)),
            _ => (at + 1, self.met(at + 1).map_or(Event::Stepped, Event::Watchpoint)),
        }
    }

    fn step_back(&self, at: usize) -> (usize, Event) {
        match at.checked_sub(1) {
            None => (0, Event::Begin),
            // The program gets a signal first: what is taken back is the instruction all the same.
            Some(front) => (front, self.met(at).map_or(Event::Stepped, Event::Watchpoint)),
        }
    }

    fn back(&self, mut at: usize) -> (usize, Event) {
        while at > 0 {
            let met = self.met(at);
            at -= 1;
            if let Some(address) = met {
                return (at, Event::Watchpoint(address));
            }
            if self.is_break(at) {
                return (at, Event::Breakpoint);
            }
        }
        (0, Event::Begin)
    }
}

fn place(timeline: &Timeline<Simulated>) -> usize {
    let here = timeline.here();
    timeline.now().all.iter().position(|i| i.position == here).unwrap()
}

/// `moves` movements at random with points at random.
fn wander(seed: u64, len: usize, moves: usize) -> [usize; 7] {
    let mut random = Random(seed);
    let all = random_run(&mut random, len);
    assert!(all.is_sorted_by(|a, b| a.position < b.position), "the run breaks the rules");
    let machine = Simulated::new(all.clone(), Vec::new());
    let (piece, close) = (1 + random.below(60), 1 + random.below(20));
    let mut timeline = Timeline::new(machine).unwrap().with_distances(piece, close);
    let mut kinds = [0; 7];
    for n in 0..moves {
        let points = &mut timeline.points;
        match random.below(8) {
            0 => drop(points.breaks.insert(100 + random.below(90))),
            1 => points.breaks.clear(),
            2 => {
                let kind = [Watched::Write, Watched::Read, Watched::Access];
                let kind = kind[random.below(3) as usize];
                points.watches.insert(Watch::new(random.below(60), 1 + random.below(4), kind));
            }
            3 => points.watches.clear(),
            _ => {}
        }
        let (at, reported) = (place(&timeline), timeline.now().reported);
        let oracle = Oracle { all: &all, timeline: &timeline };
        let what = random.below(6);
        let wanted = match what {
            0 => oracle.forward(at, reported),
            1 => oracle.step(at, reported),
            2 => oracle.step_back(at),
            3 => oracle.back(at),
            4 => (random.below(len as u64) as usize, Event::Stepped),
            _ => {
                let turn = all[random.below(len as u64) as usize].position.turns;
                let first = all.iter().position(|i| i.position.turns >= turn);
                (first.unwrap_or(0), if turn == 0 { Event::Begin } else { Event::Stepped })
            }
        };
        let never: &mut dyn FnMut() -> bool = &mut || false;
        let event = match what {
            0 => timeline.forward(never),
            1 => timeline.step(),
            2 => timeline.step_back(),
            3 => timeline.back(never),
            4 => timeline.go(all[wanted.0].position).map(|()| Event::Stepped),
            _ => timeline.seek_turn(all[wanted.0].position.turns, never),
        };
        let event = event.unwrap_or_else(|e| panic!("seed {seed}, move {n}: {}", e.0));
        let got = (place(&timeline), event);
        assert_eq!(got, wanted, "seed {seed}, move {n} of kind {what} from {at}");
        assert!(timeline.kept().is_sorted());
        kinds[match event {
            Event::Stepped => 0,
            Event::Breakpoint => 1,
            Event::Watchpoint(_) => 2,
            Event::Signal(_) => 3,
            Event::Begin => 4,
            Event::End(_) => 5,
            // A simulated replay makes no system calls.
            Event::Interrupted | Event::Call(_) | Event::CallReturn(_) => 6,
        }] += 1;
    }
    kinds
}

#[test]
fn movements_lead_where_the_list_of_all_places_says() {
    let mut seen = [0; 7];
    for seed in 0..60 {
        for (all, n) in seen.iter_mut().zip(wander(seed, 400, 600)) {
            *all += n;
        }
    }
    assert!(seen[..6].iter().all(|&n| n > 100), "not every event was seen: {seen:?}");
}

#[test]
fn a_long_run_needs_few_checkpoints() {
    wander(1000, 20_000, 1500);
}

#[test]
fn interrupts_stop_both_ways() {
    let all = random_run(&mut Random(5), 3000);
    let machine =
        Simulated::new(all.iter().map(|i| Instant { signal: None, ..i.clone() }).collect(), vec![]);
    let mut timeline = Timeline::new(machine).unwrap().with_distances(50, 10);
    assert_eq!(timeline.forward(&mut || true).unwrap(), Event::Interrupted);
    let first = timeline.here();
    assert!(first.turns > 0 && first.turns < 60);
    assert_eq!(timeline.forward(&mut || false).unwrap(), Event::End(7));
    let end = timeline.here();
    assert_eq!(timeline.back(&mut || true).unwrap(), Event::Interrupted);
    assert_eq!(timeline.here(), end, "a search that is given up changes nothing");
    assert_eq!(timeline.back(&mut || false).unwrap(), Event::Begin);
    assert_eq!(timeline.here(), all[0].position);
}

#[test]
fn pinned_checkpoints_stay() {
    let machine = Simulated::new(random_run(&mut Random(6), 5000), vec![]);
    let mut timeline = Timeline::new(machine).unwrap().with_distances(20, 5);
    timeline.seek_turn(700, &mut || false).unwrap();
    let pinned = timeline.here();
    timeline.pin().unwrap();
    for turn in [1, 1200, 3, 1100, 900, 2, 1300] {
        timeline.seek_turn(turn, &mut || false).unwrap();
        timeline.seek_turn(turn + 1, &mut || false).unwrap();
        assert!(timeline.kept().any(|place| place == pinned));
    }
}

#[test]
fn a_replay_that_does_something_else_is_noticed() {
    let all = random_run(&mut Random(7), 500);
    let mut timeline = Timeline::new(Simulated::new(all.clone(), vec![])).unwrap();
    timeline.go(all[300].position).unwrap();
    let mut other = random_run(&mut Random(8), 500);
    other[0].position = all[0].position;
    let mut other = Timeline::new(Simulated::new(other, vec![])).unwrap();
    assert!(other.go(all[300].position).is_err());
    other.recover().unwrap();
    assert_eq!(other.here(), all[0].position);
}
