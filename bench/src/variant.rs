//! The ways in which a program runs, in the order of the table.

use std::path::PathBuf;

use crate::peers::{Peer, PEERS};

#[derive(Clone, PartialEq, Debug)]
pub struct Variant {
    pub name: String,
    pub kind: Kind,
    /// Its traces are written here; all others' are discarded.
    pub records_to: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    Native,
    /// With these flags of `deprewrite`.
    Rewritten(Vec<String>),
    Peer(Peer),
}

/// What is measured beside native, static and dynamic.
#[derive(Clone, Default)]
pub struct Choice {
    /// Options of `deprewrite` with a value that differs from the default, each on its own:
    /// ahead of time and at run time.
    pub options: Vec<(&'static str, String)>,
    /// A name and flags of `deprewrite`.
    pub others: Vec<(String, Vec<String>)>,
    /// Directories that traces are written to, ahead of time.
    pub records_to: Vec<PathBuf>,
    pub peers: bool,
}

impl Variant {
    pub fn all(choice: &Choice) -> Vec<Variant> {
        let variant = |name: String, kind| Variant { name, kind, records_to: None };
        let rewritten = |name, flags| variant(name, Kind::Rewritten(flags));
        let times = [("static", vec![]), ("dynamic", words("--translate dynamic"))];
        let mut all = vec![variant("native".into(), Kind::Native)];
        all.extend(times.clone().map(|(name, flags)| rewritten(name.into(), flags)));
        for (option, value) in &choice.options {
            for (name, mut flags) in times.clone() {
                flags.extend([option.to_string(), value.clone()]);
                all.push(rewritten(format!("{name} {value}"), flags));
            }
        }
        all.extend(choice.others.iter().map(|(n, flags)| rewritten(n.clone(), flags.clone())));
        all.extend(choice.records_to.iter().map(|dir| Variant {
            records_to: Some(dir.clone()),
            ..rewritten(format!("to {}", dir.display()), Vec::new())
        }));
        if choice.peers {
            all.extend(PEERS.map(|peer| variant(peer.name.into(), Kind::Peer(peer))));
        }
        all
    }

    pub fn flags(&self) -> Vec<String> {
        match &self.kind {
            Kind::Native => Vec::new(),
            Kind::Rewritten(flags) => flags.clone(),
            Kind::Peer(peer) => peer.flags(),
        }
    }

    /// Whether its runs leave a trace.
    pub fn records(&self) -> bool {
        let Kind::Rewritten(flags) = &self.kind else { return false };
        let at = flags.iter().rposition(|flag| flag.starts_with("--instrument"));
        let value = at.map(|at| match flags[at].split_once('=') {
            Some((_, value)) => value,
            None => flags.get(at + 1).map_or("", |value| value),
        });
        value != Some("none")
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_alone_both_ways() {
        let choice = Choice {
            options: vec![("--instrument", "none".into()), ("--control-flow", "bits".into())],
            others: vec![("small".into(), words("--memory none"))],
            records_to: vec!["/tmp".into()],
            peers: true,
        };
        let all = Variant::all(&choice);
        let names: Vec<_> = all.iter().map(|v| v.name.as_str()).collect();
        let expected = [
            "native",
            "static",
            "dynamic",
            "static none",
            "dynamic none",
            "static bits",
            "dynamic bits",
            "small",
            "to /tmp",
            "valgrind none",
            "lackey counts",
        ];
        assert_eq!(names, expected);
        assert_eq!(all[6].flags(), words("--translate dynamic --control-flow bits"));
        let recorded: Vec<_> = all.iter().map(Variant::records).collect();
        assert_eq!(recorded.iter().filter(|r| **r).count(), 6);
        assert!(!recorded[3] && !recorded[4] && recorded[5]);
        let equals =
            Variant { kind: Kind::Rewritten(words("--instrument=none")), ..all[1].clone() };
        assert!(!equals.records());
    }
}
