//! Where the figures come from.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub system: String,
    pub kernel: String,
    /// What others did when the measurement began: runnable processes, on average over a minute.
    pub load: Option<f64>,
}

impl Machine {
    pub fn here() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key: &str, between: char| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(between)?.1.trim().trim_matches('"').to_owned())
        };
        let unknown = |what| format!("unknown {what}");
        let cpuinfo = read("/proc/cpuinfo");
        let load = read("/proc/loadavg");
        Machine {
            processor: field(&cpuinfo, "model name", ':').unwrap_or(unknown("processor")),
            processors: std::thread::available_parallelism().map_or(0, |n| n.get()),
            system: field(&read("/etc/os-release"), "PRETTY_NAME=", '=')
                .unwrap_or(unknown("system")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load.split(' ').next().and_then(|l| l.parse().ok()),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Machine { processor, processors, system, kernel, load } = self;
        write!(f, "{processor}, {processors} processors, {system}, Linux {kernel}")?;
        load.map_or(Ok(()), |load| write!(f, ", load {load:.2}"))
    }
}
