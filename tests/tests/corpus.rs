//! The corpus: behaviour and memory references of every program, in every way of rewriting.

mod common;

use std::path::Path;

use common::*;
use corpus::Case;
use tests::harness::{difference, is_refused, Mode, Tally, Tools};

/// Ways that a program is run in besides [`STATIC`] and [`DYNAMIC`].
const MORE_WAYS: [Mode; 6] =
    [STATIC_ANY, UNDO_STATIC, UNDO_DYNAMIC, UNDO_ANY, STATIC_NONE, DYNAMIC_NONE];

/// One output of so many carries its libraries, the others share them.
const CARRIED: usize = 8;

/// The ways of the case with this number: every other one for one variant of each program, and for the others one in turn
/// (WAYS=all: all).
fn ways(number: usize, case: &Case, names: &[String]) -> Vec<Mode> {
    let more = match is_variant(case, names) && !every_way() {
        true => vec![MORE_WAYS[number % MORE_WAYS.len()]],
        false => every_other(&case.name, &MORE_WAYS).copied().collect(),
    };
    [STATIC, DYNAMIC].into_iter().chain(more).collect()
}

/// The start of every run: natively each case does what its directives say, and does it again.
#[test]
fn corpus_is_as_described() {
    let mut tally = Tally::start("corpus_is_as_described");
    tally.side_by_side(&corpus(), |outcomes, case| {
        if let Some(why) = case.skip_reason() {
            return outcomes.skip(&case.name, &why);
        }
        let dir = tempfile::tempdir().unwrap();
        let check = || -> Result<(), String> {
            let first = spec(case).run(None, dir.path()).map_err(|e| e.to_string())?;
            if first.status != status(case.end) {
                let out = String::from_utf8_lossy(&first.stdout).into_owned();
                return Err(format!("ended with {:?}, not {:?}: {out}", first.status, case.end));
            }
            // The file bound over itself is the same program at the same path.
            let second = spec(case).run(Some(&case.path), dir.path()).map_err(|e| e.to_string())?;
            difference(&first, &second)
        };
        outcomes.record(&case.name, check());
    });
    tally.finish();
}

/// The oracle does not disturb what it looks at, and sees the same twice.
#[test]
fn oracle_is_repeatable() {
    let mut tally = Tally::start("oracle_is_repeatable");
    let mut cases: Vec<_> = oracle_cases(&mut tally).into_iter().enumerate().collect();
    // The same oracle steps all of them: a third takes a minute.
    cases.retain(|(number, _)| every_way() || number % 3 == 0);
    tally.side_by_side(&cases, |outcomes, (_, case)| {
        let dir = tempfile::tempdir().unwrap();
        let mut check = || -> Result<(), String> {
            let first = oracle(&spec(case), dir.path(), REPEAT_LIMIT)?;
            if !first.summary.cut_short && first.summary.status != status(case.end) {
                let status = first.summary.status;
                return Err(format!("ended with {status:?} under the oracle, not {:?}", case.end));
            }
            let second = oracle(&spec(case), dir.path(), REPEAT_LIMIT)?;
            if first.summary.cut_short {
                outcomes.prefix_only(&case.name);
            }
            // A call that a signal keeps from starting is stepped twice. So listings that end behind the same number of
            // steps need not end at the same place.
            let cut = first.summary.cut_short && second.summary.cut_short;
            let by_lines = |a: &Truth, b: &Truth, list: fn(&Truth) -> (&Path, Option<&Path>)| {
                let lines = |path: &Path| -> Result<usize, String> {
                    let text = std::fs::read(path).map_err(|e| e.to_string())?;
                    Ok(text.iter().filter(|&&byte| byte == b'\n').count())
                };
                let ((in_a, maps_of_a), (in_b, maps_of_b)) = (list(a), list(b));
                let [of_a, of_b] = [lines(in_a)?, lines(in_b)?];
                match of_a.abs_diff(of_b) {
                    more if cut && more > 16 => Err(format!("{more} lines more in one of them")),
                    _ if cut && of_a > of_b => same_listing_cut(in_b, in_a, maps_of_b, Cut::Both),
                    _ if cut => same_listing_cut(in_a, in_b, maps_of_a, Cut::Both),
                    _ => same_listing(in_a, in_b, maps_of_a, false),
                }
            };
            by_lines(&first, &second, |truth| (&truth.blocks, None))?;
            by_lines(&first, &second, |truth| (&truth.memrefs, Some(&truth.maps))).map(drop)
        };
        let outcome = check();
        outcomes.record(&case.name, outcome);
    });
    tally.finish();
}

#[test]
fn corpus_same_behaviour() {
    let mut tally = Tally::start("corpus_same_behaviour");
    let tools = Tools::get();
    let cases: Vec<_> = corpus().into_iter().enumerate().collect();
    let names: Vec<String> = cases.iter().map(|(_, case)| case.name.clone()).collect();
    tally.side_by_side(&cases, |outcomes, (number, case)| {
        if let Some(why) = case.skip_reason() {
            return outcomes.skip(&case.name, &why);
        }
        let dir = tempfile::tempdir().unwrap();
        let native = match spec(case).run(None, dir.path()) {
            Ok(native) => native,
            Err(e) => return outcomes.record(&case.name, Err(e.to_string())),
        };
        for (way, mode) in ways(*number, case, &names).into_iter().enumerate() {
            let check = || -> Result<(), String> {
                let rewritten = dir.path().join(mode.name);
                // An output that carries its libraries takes a second more: each way, for some programs.
                match (number + way) % CARRIED {
                    0 => tools.rewrite(&case.path, &rewritten, mode.flags)?,
                    _ => tools.rewrite_sharing(&case.path, &rewritten, mode.flags)?,
                }
                let run = spec(case).run(Some(&rewritten), dir.path());
                let run = run.map_err(|e| e.to_string())?;
                match case.refused {
                    Some(_) => is_refused(&run)?,
                    None => difference(&native, &run)?,
                }
                verify_all(&run.traces, tools, &rewritten)
            };
            outcomes.record(&format!("{} {}", case.name, mode.name), check());
        }
    });
    tally.finish();
}

#[test]
fn corpus_memrefs_equal_oracle() {
    let mut tally = Tally::start("corpus_memrefs_equal_oracle");
    let tools = Tools::get();
    let cases = oracle_cases(&mut tally);
    tally.side_by_side(&cases, |outcomes, case| {
        if let Some(why) = &case.refused {
            return outcomes.skip(&case.name, &format!("refused: the program {why}"));
        }
        let dir = tempfile::tempdir().unwrap();
        let truth = match oracle(&spec(case), dir.path(), ORACLE_LIMIT) {
            Ok(truth) => truth,
            Err(e) => return outcomes.record(&case.name, Err(e)),
        };
        for mode in [STATIC, DYNAMIC, STATIC_ANY] {
            let name = format!("{} {}", case.name, mode.name);
            if truth.summary.cut_short {
                outcomes.prefix_only(&name);
            }
            let equal = recovered_equals(&truth, &spec(case), tools, mode, dir.path());
            outcomes.record(&name, equal);
        }
    });
    tally.finish();
}
