//! What this CPU can do, by the names of /proc/cpuinfo.

use std::collections::HashSet;
use std::sync::LazyLock;

static PRESENT: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|l| l.starts_with("flags")).and_then(|l| l.split_once(':'));
    flags.map(|(_, f)| f.split_whitespace().map(str::to_owned).collect()).unwrap_or_default()
});

pub fn missing(wanted: &[String]) -> Vec<&str> {
    wanted.iter().filter(|f| !PRESENT.contains(*f)).map(String::as_str).collect()
}
