//! A simulated replay: a list of all its places, so that every answer can be looked up.

use std::rc::Rc;

use abi::steer::{Hits, Position, Stop, Watched, Why};

use crate::debug::machine::{Failed, Goal, Machine, Points};

/// Where the code and the data of [`counting`] are.
pub const CODE: u64 = 0x1000;
pub const DATA: u64 = 0x2000;

/// A place and what led there.
#[derive(Clone, Debug, Default)]
pub struct Instant {
    pub position: Position,
    pub gpr: [u64; 16],
    /// What the instruction in front of this place has accessed.
    pub access: Option<Access>,
    /// The program gets this signal here.
    pub signal: Option<u64>,
    /// The turn that leads here is carried out without a stop in front of it, as `rt_sigreturn` is.
    pub carried_out: bool,
    /// Memory at [`DATA`].
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub address: u64,
    pub len: u64,
    pub writes: bool,
}

impl Access {
    fn meets(&self, points: &Points) -> Option<u64> {
        let meets = |kind| match kind {
            Watched::Write => self.writes,
            Watched::Read => !self.writes,
            Watched::Access => true,
        };
        let touched = |a: u64, len: u64| a < self.address + self.len && self.address < a + len;
        let met = points.watches.iter().find(|w| meets(w.kind()) && touched(w.address, w.len));
        met.map(|w| w.address)
    }
}

#[derive(Clone)]
pub struct Simulated {
    pub all: Rc<Vec<Instant>>,
    code: Rc<Vec<u8>>,
    at: usize,
    /// The signal here was reported.
    pub reported: bool,
    stop: Stop,
}

impl Simulated {
    pub fn new(all: Vec<Instant>, code: Vec<u8>) -> Simulated {
        let mut machine = Simulated {
            all: Rc::new(all),
            code: Rc::new(code),
            at: 0,
            reported: false,
            stop: Stop::default(),
        };
        machine.say(Why::Goal, 0, false);
        machine
    }

    fn say(&mut self, why: Why, detail: u64, stepped: bool) {
        let now = &self.all[self.at];
        self.stop = Stop {
            why,
            detail,
            pid: 1,
            tid: 100,
            threads: 1,
            position: now.position,
            gpr: now.gpr,
            ..Stop::default()
        };
        if stepped {
            self.stop.before = self.all[self.at - 1].position;
        }
    }

    fn met(&self, points: &Points) -> Option<u64> {
        self.all[self.at].access.and_then(|access| access.meets(points))
    }
}

impl Machine for Simulated {
    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn run(&mut self, goal: Goal, hits: Hits, points: &Points) -> Result<(), Failed> {
        let mut met = Stop::default();
        let mut stepped = false;
        let mut first = true;
        loop {
            let here = self.all[self.at].position;
            let (pc, all) = (here.pc, self.all.clone());
            let watch = self.met(points).filter(|_| !first);
            if let Some(address) = watch {
                match hits {
                    Hits::Ignore => {}
                    Hits::Stop => {
                        self.say(Why::Watchpoint, address, stepped);
                        return Ok(());
                    }
                    Hits::Last => {
                        met.hits += 1;
                        (met.hit, met.hit_position) = (Why::Watchpoint, here);
                        met.hit_detail = address;
                    }
                }
            }
            let reached = match goal {
                Goal::Turn(turn) => here.turns >= turn,
                Goal::Place(place) => here == place,
            };
            if reached {
                let led = stepped && !self.all[self.at].carried_out;
                let known = matches!(goal, Goal::Place(_)) && led;
                self.say(Why::Goal, 0, known);
                self.stop.hits = met.hits;
                (self.stop.hit, self.stop.hit_position) = (met.hit, met.hit_position);
                self.stop.hit_detail = met.hit_detail;
                return Ok(());
            }
            if points.breaks.contains(&pc) && !first {
                match hits {
                    Hits::Ignore => {}
                    Hits::Stop => {
                        self.say(Why::Breakpoint, 0, false);
                        return Ok(());
                    }
                    Hits::Last => {
                        met.hits += 1;
                        (met.hit, met.hit_position) = (Why::Breakpoint, here);
                    }
                }
            }
            if let (Some(signal), Hits::Stop, false) = (all[self.at].signal, hits, self.reported) {
                self.reported = true;
                self.say(Why::Signal, signal, false);
                return Ok(());
            }
            if self.at + 1 == all.len() {
                self.say(Why::End, 7, false);
                return Ok(());
            }
            self.at += 1;
            self.reported = false;
            (stepped, first) = (true, false);
        }
    }

    fn step(&mut self, points: &Points) -> Result<(), Failed> {
        let all = self.all.clone();
        if let (Some(signal), false) = (all[self.at].signal, self.reported) {
            self.reported = true;
            self.say(Why::Signal, signal, false);
        } else if self.at + 1 == all.len() {
            self.say(Why::End, 7, false);
        } else {
            self.at += 1;
            self.reported = false;
            match self.met(points) {
                Some(address) => self.say(Why::Watchpoint, address, true),
                None => self.say(Why::Goal, 0, true),
            }
        }
        Ok(())
    }

    fn fork(&mut self) -> Result<Simulated, Failed> {
        Ok(self.clone())
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let data = &self.all[self.at].data;
        for (base, bytes) in [(CODE, &*self.code), (DATA, data)] {
            if let Some(from) = address.checked_sub(base).and_then(|o| bytes.get(o as usize..)) {
                if !from.is_empty() {
                    let len = from.len().min(buffer.len());
                    buffer[..len].copy_from_slice(&from[..len]);
                    return len;
                }
            }
        }
        0
    }

    fn thread(&mut self, _: u64) -> Result<Stop, Failed> {
        Err(Failed("there is one thread".into()))
    }
}

/// A program that counts: `rounds` times it adds 1 to rax, stores rax at [`DATA`] in every third round, and
/// goes on.
pub fn counting(rounds: u64) -> Simulated {
    #[rustfmt::skip]
    let code = vec![
        0x48, 0xff, 0xc0,                               // 1000 inc rax
        0x48, 0xff, 0xca,                               // 1003 dec rdx
        0x75, 0x0d,                                     // 1006 jne 1015
        0x48, 0x89, 0x04, 0x25, 0x00, 0x20, 0x00, 0x00, // 1008 mov [2000], rax
        0xba, 0x03, 0x00, 0x00, 0x00,                   // 1010 mov edx, 3
        0x48, 0xff, 0xc9,                               // 1015 dec rcx
        0x75, 0xe6,                                     // 1018 jne 1000
        0x0f, 0x0b,                                     // 101a ud2
    ];
    let (mut rax, mut rcx, mut rdx, mut turns) = (0, rounds, 3, 0);
    let mut data = vec![0; 16];
    let mut all = Vec::new();
    let mut pc = CODE;
    loop {
        let mut gpr = [0; 16];
        (gpr[0], gpr[1], gpr[2]) = (rax, rcx, rdx);
        let position = Position { turns, entry: 0, pc, rcx };
        let stored = all.last().is_some_and(|i: &Instant| i.position.pc == 0x1008);
        let access = stored.then_some(Access { address: DATA, len: 8, writes: true });
        let signal = (pc == 0x101a).then_some(4);
        all.push(Instant {
            position,
            gpr,
            access,
            signal,
            data: data.clone(),
            ..Instant::default()
        });
        pc = match pc {
            0x1000 => {
                rax += 1;
                0x1003
            }
            0x1003 => {
                rdx -= 1;
                0x1006
            }
            0x1006 if rdx != 0 => 0x1015,
            0x1006 => 0x1008,
            0x1008 => {
                data[..8].copy_from_slice(&rax.to_le_bytes());
                0x1010
            }
            0x1010 => {
                rdx = 3;
                0x1015
            }
            0x1015 => {
                rcx -= 1;
                0x1018
            }
            0x1018 => {
                turns += 1;
                if rcx != 0 {
                    0x1000
                } else {
                    0x101a
                }
            }
            _ => break,
        };
    }
    Simulated::new(all, code)
}
