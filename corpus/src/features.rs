//! What this CPU can do, by the names of /proc/cpuinfo, and whether the kernel has a vsyscall page.

use std::collections::HashSet;
use std::sync::LazyLock;

static PRESENT: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|l| l.starts_with("flags")).and_then(|l| l.split_once(':'));
    let mut present: HashSet<String> =
        flags.map(|(_, f)| f.split_whitespace().map(str::to_owned).collect()).unwrap_or_default();
    if std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("[vsyscall]")) {
        present.insert("vsyscall".to_owned());
    }
    present
});

pub fn missing(wanted: &[String]) -> Vec<&str> {
    wanted.iter().filter(|f| !PRESENT.contains(*f)).map(String::as_str).collect()
}
