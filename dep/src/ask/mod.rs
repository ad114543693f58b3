//! Questions that are asked of a recording of inputs, and answered by a replay.

mod between;
pub mod calls;
mod expression;
mod hits;
pub mod kernel;
mod place;
pub mod values;
pub mod when;
pub mod whole;

use abi::steer::Hits;
use trace::Error;

use crate::debug::{Failed, Goal, Machine, Points, Steered};
use crate::replay::Ready;

/// Turns that are run at once.
const PIECE: u64 = 20_000_000;

/// Starts it; it stands where the recording begins.
pub fn start(ready: &Ready) -> Result<Steered, Error> {
    // Breakpoints are written into code that is translated when it runs.
    let output = ready.output_with("none", &["--translate", "dynamic"])?;
    Ok(Steered::start(ready, &output)?)
}

/// On to what is to be stopped at, or some way.
fn run(machine: &mut Steered, points: &Points) -> Result<(), Failed> {
    let turn = machine.stop().position.turns.saturating_add(PIECE);
    machine.run(Goal::Turn(turn), Hits::Stop, points)
}
