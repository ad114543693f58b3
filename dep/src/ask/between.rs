//! The part of a recording that is asked about.

use std::ops::Range;

use clap::Args as ClapArgs;

use crate::ask::place;
use crate::replay::Ready;

/// Options of the commands that ask.
#[derive(ClapArgs)]
pub struct Between {
    /// Only this thread (kernel thread id)
    #[arg(long, value_name = "TID")]
    thread: Option<u32>,
    /// Only from here on: TURN, PERCENT%, begin or end
    #[arg(long, value_name = "POSITION")]
    from: Option<String>,
    /// Only up to here
    #[arg(long, value_name = "POSITION")]
    to: Option<String>,
}

impl Between {
    /// The thread that is asked about; `None`: all.
    pub fn thread(&self) -> Option<u32> {
        self.thread
    }

    /// Whether the thread is asked about.
    pub fn is_of(&self, tid: u32) -> bool {
        self.thread.is_none_or(|wanted| wanted == tid)
    }

    /// The turns that are asked about, and whether there is such a thread; `Err`: what is wrong.
    pub fn turns(&self, ready: &Ready) -> Result<Range<u64>, String> {
        if let Some(tid) = self.thread.filter(|&tid| !ready.script.threads.contains(&Some(tid))) {
            return Err(format!("the recording has no thread {tid}"));
        }
        let all = ready.script.last_turn();
        let turn = |option: &str, text: &Option<String>| match text {
            Some(text) => place::turn(text, all).map(Some).map_err(|why| format!("{option} {why}")),
            None => Ok(None),
        };
        let (from, to) = (turn("--from", &self.from)?, turn("--to", &self.to)?);
        match (&self.from, &self.to) {
            (Some(first), Some(last)) if from > to => {
                Err(format!("--from {first} lies behind --to {last}"))
            }
            _ => Ok(from.unwrap_or(0)..to.unwrap_or(u64::MAX).saturating_add(1)),
        }
    }
}
