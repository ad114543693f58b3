//! Forwards and backwards through a replay.
//!
//! A replay runs forwards only. Going back is the nearest copy of it in front of where one wants to be
//! (a *checkpoint*), and forwards from there. The checkpoints lie the closer the nearer they are to where
//! one looked last, so that a way back costs about as much as what lies between, and there is a
//! bounded number of them.

use abi::steer::{Hits, Position, Stop, Why};

use crate::debug::machine::{Failed, Goal, Machine, Points};

/// Checkpoints that are kept.
const KEPT: usize = 24;
/// Turns that are run at once: in between, somebody is asked whether to go on.
const PIECE: u64 = 20_000_000;
/// Turns below which no checkpoint is worth its making.
const CLOSE: u64 = 20_000;

/// What a movement has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next instruction, or the one before.
    Stepped,
    Breakpoint,
    /// Forwards behind what wrote, backwards in front of it; its address.
    Watchpoint(u64),
    /// The program is about to get this signal.
    Signal(u64),
    /// In front of a system call with this number.
    Call(u64),
    /// Behind it.
    CallReturn(u64),
    /// Nothing was recorded before.
    Begin,
    /// Nothing was recorded behind; what [`Why::End`] says of it.
    End(u64),
    /// Somebody wants it to stop.
    Interrupted,
}

/// Asked now and then whether to stop.
pub type Interrupt<'a> = &'a mut dyn FnMut() -> bool;

/// What was met, and where; nothing, if there was none.
type Met = Option<(Event, Position)>;

/// A replay, and copies of it at earlier places.
pub struct Timeline<M> {
    now: M,
    /// In the order of their places. The first stands where the recording begins.
    kept: Vec<M>,
    /// Places whose checkpoints stay.
    pinned: Vec<Position>,
    pub points: Points,
    piece: u64,
    close: u64,
}

impl<M: Machine> Timeline<M> {
    /// `now` stands where the recording begins.
    pub fn new(mut now: M) -> Result<Timeline<M>, Failed> {
        let kept = vec![now.fork()?];
        let points = Points::default();
        Ok(Timeline { now, kept, pinned: Vec::new(), points, piece: PIECE, close: CLOSE })
    }

    pub fn now(&self) -> &M {
        &self.now
    }

    pub fn now_mut(&mut self) -> &mut M {
        &mut self.now
    }

    pub fn stop(&self) -> &Stop {
        self.now.stop()
    }

    pub fn here(&self) -> Position {
        self.now.stop().position
    }

    /// Where the recording begins.
    pub fn beginning(&self) -> Position {
        self.kept[0].stop().position
    }

    /// Places of the checkpoints.
    pub fn kept(&self) -> impl Iterator<Item = Position> + '_ {
        self.kept.iter().map(|m| m.stop().position)
    }

    // --- forwards ---

    /// One instruction.
    pub fn step(&mut self) -> Result<Event, Failed> {
        self.now.step(&self.points)?;
        self.event(Event::Stepped)
    }

    /// On to the next point, or to the end.
    pub fn forward(&mut self, interrupt: Interrupt) -> Result<Event, Failed> {
        loop {
            let turn = self.here().turns.saturating_add(self.piece);
            self.now.run(Goal::Turn(turn), Hits::Stop, &self.points)?;
            let at_goal = self.now.stop().why == Why::Goal;
            if !at_goal {
                return self.event(Event::Stepped);
            }
            if self.is_break(self.here()) {
                return Ok(Event::Breakpoint);
            }
            self.keep_here()?;
            if interrupt() {
                return Ok(Event::Interrupted);
            }
        }
    }

    /// What a movement forwards has led to; `goal`: where it was to go, if that is where it is.
    fn event(&self, goal: Event) -> Result<Event, Failed> {
        let stop = self.now.stop();
        match stop.why {
            Why::Goal => Ok(goal),
            Why::Breakpoint => Ok(Event::Breakpoint),
            Why::Watchpoint => Ok(Event::Watchpoint(stop.detail)),
            Why::Signal => Ok(Event::Signal(stop.detail)),
            Why::Call => Ok(Event::Call(stop.detail)),
            Why::CallReturn => Ok(Event::CallReturn(stop.detail)),
            Why::End => Ok(Event::End(stop.detail)),
            Why::Failed => Err(Failed("the replay has failed".into())),
            Why::Refused => Err(Failed("the replay refuses to go on".into())),
        }
    }

    fn is_break(&self, place: Position) -> bool {
        self.points.breaks.contains(&place.pc)
    }

    // --- to a place ---

    /// To a place that was seen before.
    pub fn go(&mut self, place: Position) -> Result<(), Failed> {
        if self.here() == place {
            return Ok(());
        }
        self.start_before(place, |at| at <= place)?;
        self.approach(place)
    }

    /// To the first place behind `turn` turns, or to the end.
    pub fn seek_turn(&mut self, turn: u64, interrupt: Interrupt) -> Result<Event, Failed> {
        if turn == 0 {
            self.go(self.beginning())?;
            return Ok(Event::Begin);
        }
        let nearest = Position { turns: turn, ..Position::default() };
        self.start_before(nearest, |at| at.turns < turn)?;
        loop {
            let next = self.here().turns.saturating_add(self.piece).min(turn);
            self.now.run(Goal::Turn(next), Hits::Ignore, &Points::default())?;
            match self.now.stop().why {
                Why::Goal if next == turn => return Ok(Event::Stepped),
                Why::Goal => self.keep_here()?,
                _ => return self.event(Event::Stepped),
            }
            if interrupt() {
                return Ok(Event::Interrupted);
            }
        }
    }

    /// Where one can go on to `place` from: from here, or from the last checkpoint that fits.
    fn start_before(
        &mut self,
        place: Position,
        fits: impl Fn(Position) -> bool,
    ) -> Result<(), Failed> {
        let last = self.kept.partition_point(|m| fits(m.stop().position)).max(1) - 1;
        let here = self.here();
        if fits(here) && here >= self.kept[last].stop().position && here <= place {
            return Ok(());
        }
        self.now = self.kept[last].fork()?;
        Ok(())
    }

    /// On to `place`, with checkpoints on the way that lie the closer the nearer they are to it.
    fn approach(&mut self, place: Position) -> Result<(), Failed> {
        loop {
            let left = place.turns.saturating_sub(self.here().turns);
            if left <= self.close {
                break;
            }
            let turn = self.here().turns + left / 2;
            self.now.run(Goal::Turn(turn), Hits::Ignore, &Points::default())?;
            self.expect_goal()?;
            self.keep(place)?;
        }
        if self.here() != place {
            self.now.run(Goal::Place(place), Hits::Ignore, &Points::default())?;
            self.expect_goal()?;
        }
        match self.here() == place {
            true => Ok(()),
            false => Err(Failed(format!(
                "the replay does not come to the same place again: {:x?} instead of {place:x?}",
                self.here()
            ))),
        }
    }

    fn expect_goal(&self) -> Result<(), Failed> {
        match self.now.stop().why {
            Why::Goal => Ok(()),
            why => Err(Failed(format!("the replay does not do the same again: {why:?}"))),
        }
    }

    // --- backwards ---

    /// One instruction back.
    pub fn step_back(&mut self) -> Result<Event, Failed> {
        let from = self.here();
        let Some(before) = self.before(from)? else { return Ok(Event::Begin) };
        self.go(before)?;
        if self.points.watches.is_empty() {
            return Ok(Event::Stepped);
        }
        // What was taken back: did it write?
        let mut probe = self.now.fork()?;
        probe.run(Goal::Place(from), Hits::Last, &self.points)?;
        let stop = probe.stop();
        match stop.hit {
            Why::Watchpoint if stop.hits > 0 => Ok(Event::Watchpoint(stop.hit_detail)),
            _ => Ok(Event::Stepped),
        }
    }

    /// The place in front of `place`; `None` at the beginning.
    fn before(&mut self, place: Position) -> Result<Option<Position>, Failed> {
        if place <= self.beginning() {
            return Ok(None);
        }
        let known = |now: &M| Some(now.stop().before).filter(|&b| b != Position::default());
        if self.here() != place || known(&self.now).is_none() {
            // Whoever comes from further back does the last part step by step.
            self.start_before(place, |at| at < place)?;
            self.approach(place)?;
        }
        match known(&self.now) {
            Some(before) => Ok(Some(before)),
            None => self.before_from_last_turn(place).map(Some),
        }
    }

    /// The same where the turn in front of `place` is `rt_sigreturn`: nothing stops in front of that. So all that comes
    /// from the turn before on is done step by step.
    fn before_from_last_turn(&mut self, place: Position) -> Result<Position, Failed> {
        let unknown = || Failed(format!("the replay does not say what is in front of {place:x?}"));
        let turn = place.turns.checked_sub(1).ok_or_else(unknown)?;
        self.start_before(place, |at| at.turns <= turn)?;
        if self.here().turns < turn {
            self.now.run(Goal::Turn(turn), Hits::Ignore, &Points::default())?;
            self.expect_goal()?;
        }
        loop {
            let before = self.here();
            self.now.step(&Points::default())?;
            let here = self.here();
            let goes_on = matches!(self.now.stop().why, Why::Goal | Why::Signal);
            if here == place && before < place {
                return Ok(before);
            }
            if !goes_on || here > place {
                return Err(unknown());
            }
        }
    }

    /// Back to the point that was met last, or to the beginning.
    pub fn back(&mut self, interrupt: Interrupt) -> Result<Event, Failed> {
        let from = self.here();
        let mut end = from;
        while end > self.beginning() {
            let window = self.kept.partition_point(|m| m.stop().position < end).max(1) - 1;
            let start = self.kept[window].stop().position;
            self.now = self.kept[window].fork()?;
            let Some(last) = self.last_met(end, interrupt)? else {
                self.go(from)?;
                return Ok(Event::Interrupted);
            };
            match last {
                Some((Event::Watchpoint(address), behind)) => {
                    if let Some(front) = self.before(behind)? {
                        self.go(front)?;
                    }
                    return Ok(Event::Watchpoint(address));
                }
                Some((event, place)) => {
                    self.go(place)?;
                    return Ok(event);
                }
                None => end = start,
            }
        }
        self.go(self.beginning())?;
        Ok(Event::Begin)
    }

    /// What is met last from here (here included) to in front of `end`. (What writes last in front of `end`
    /// is met, too: behind it is `end`.) The outer `None`: it was interrupted.
    fn last_met(&mut self, end: Position, interrupt: Interrupt) -> Result<Option<Met>, Failed> {
        let here = self.here();
        let mut last = self.is_break(here).then_some((Event::Breakpoint, here));
        loop {
            let left = end.turns.saturating_sub(self.here().turns);
            let piece = self.piece.min((left / 2).max(self.close));
            let goal = match left > piece {
                true => Goal::Turn(self.here().turns + piece),
                false => Goal::Place(end),
            };
            self.now.run(goal, Hits::Last, &self.points)?;
            self.expect_goal()?;
            let stop = self.now.stop();
            match stop.hit {
                _ if stop.hits == 0 => {}
                Why::Watchpoint => {
                    last = Some((Event::Watchpoint(stop.hit_detail), stop.hit_position));
                }
                Why::Call => last = Some((Event::Call(stop.hit_detail), stop.hit_position)),
                Why::CallReturn => {
                    last = Some((Event::CallReturn(stop.hit_detail), stop.hit_position));
                }
                _ => last = Some((Event::Breakpoint, stop.hit_position)),
            }
            let here = self.here();
            if here >= end {
                return Ok(Some(last));
            }
            if self.is_break(here) {
                last = Some((Event::Breakpoint, here));
            }
            self.keep(end)?;
            if interrupt() {
                return Ok(None);
            }
        }
    }

    /// After a failure: at the last checkpoint that is not behind here.
    pub fn recover(&mut self) -> Result<(), Failed> {
        let here = self.here();
        let last = self.kept.partition_point(|m| m.stop().position <= here).max(1) - 1;
        self.now = self.kept[last].fork()?;
        Ok(())
    }

    // --- checkpoints ---

    /// Keeps a checkpoint here that stays.
    pub fn pin(&mut self) -> Result<(), Failed> {
        self.pinned.push(self.here());
        self.keep_here()
    }

    fn keep_here(&mut self) -> Result<(), Failed> {
        self.keep(self.here())
    }

    /// Keeps a checkpoint here, on the way to `looked_at`.
    fn keep(&mut self, looked_at: Position) -> Result<(), Failed> {
        let here = self.here();
        let at = self.kept.partition_point(|m| m.stop().position < here);
        if self.kept.get(at).is_some_and(|m| m.stop().position == here) {
            return Ok(());
        }
        let copy = self.now.fork()?;
        self.kept.insert(at, copy);
        if self.kept.len() > KEPT + self.pinned.len() {
            if let Some(least) = self.least_useful(looked_at) {
                drop(self.kept.remove(least));
            }
        }
        Ok(())
    }

    /// The checkpoint whose neighbours lie closest, measured by how far off they are.
    fn least_useful(&self, looked_at: Position) -> Option<usize> {
        let turns: Vec<u64> = self.kept.iter().map(|m| m.stop().position.turns).collect();
        let loss = |&i: &usize| {
            let gap = turns.get(i + 1).copied().unwrap_or(u64::MAX).saturating_sub(turns[i - 1]);
            let distance = turns[i].abs_diff(looked_at.turns) + 1;
            (u128::from(gap) << 32) / u128::from(distance)
        };
        let may_go =
            |&i: &usize| !self.pinned.contains(&self.kept[i].stop().position) && turns[i] > 0;
        (1..self.kept.len()).filter(may_go).min_by_key(loss)
    }

    #[cfg(test)]
    pub fn with_distances(mut self, piece: u64, close: u64) -> Timeline<M> {
        (self.piece, self.close) = (piece, close);
        self
    }
}
