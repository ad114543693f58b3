//! The corpus: behaviour and memory references of every program, in every way of rewriting.

mod common;

use common::*;
use tests::harness::{difference, Tally, Tools};

/// The start of every run: natively each case does what its directives say, and does it again.
#[test]
fn corpus_is_as_described() {
    let mut tally = Tally::default();
    let dir = tempfile::tempdir().unwrap();
    for case in corpus() {
        if let Some(why) = case.skip_reason() {
            tally.skip(&case.name, &why);
            continue;
        }
        let check = || -> Result<(), String> {
            let first = spec(&case).run(None, dir.path()).map_err(|e| e.to_string())?;
            if first.status != status(case.end) {
                let out = String::from_utf8_lossy(&first.stdout).into_owned();
                return Err(format!("ended with {:?}, not {:?}: {out}", first.status, case.end));
            }
            // The file bound over itself is the same program at the same path.
            let second =
                spec(&case).run(Some(&case.path), dir.path()).map_err(|e| e.to_string())?;
            difference(&first, &second)
        };
        tally.record(&case.name, check());
    }
    tally.finish("corpus_is_as_described");
}

/// The oracle does not disturb what it looks at, and sees the same twice.
#[test]
fn oracle_is_repeatable() {
    let mut tally = Tally::default();
    for case in oracle_cases(&mut tally) {
        let dir = tempfile::tempdir().unwrap();
        let check = || -> Result<(), String> {
            let first = oracle(&spec(&case), dir.path(), ORACLE_LIMIT)?;
            if !first.summary.cut_short && first.summary.status != status(case.end) {
                let status = first.summary.status;
                return Err(format!("ended with {status:?} under the oracle, not {:?}", case.end));
            }
            let second = oracle(&spec(&case), dir.path(), ORACLE_LIMIT)?;
            same_listing(&first.blocks, &second.blocks, None, false)?;
            same_listing(&first.memrefs, &second.memrefs, Some(&first.maps), false).map(drop)
        };
        tally.record(&case.name, check());
    }
    tally.finish("oracle_is_repeatable");
}

#[test]
fn corpus_same_behaviour() {
    let mut tally = Tally::default();
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(why) => {
            tally.skip("everything", &why);
            return tally.finish("corpus_same_behaviour");
        }
    };
    for case in corpus() {
        if let Some(why) = case.skip_reason() {
            tally.skip(&case.name, &why);
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let native = match spec(&case).run(None, dir.path()) {
            Ok(native) => native,
            Err(e) => {
                tally.record(&case.name, Err(e.to_string()));
                continue;
            }
        };
        for mode in [STATIC, DYNAMIC, STATIC_NONE, DYNAMIC_NONE] {
            let check = || -> Result<(), String> {
                let rewritten = dir.path().join(mode.name);
                tools.rewrite(&case.path, &rewritten, mode)?;
                let run = spec(&case).run(Some(&rewritten), dir.path());
                difference(&native, &run.map_err(|e| e.to_string())?)
            };
            tally.record(&format!("{} {}", case.name, mode.name), check());
        }
    }
    tally.finish("corpus_same_behaviour");
}

#[test]
fn corpus_memrefs_equal_oracle() {
    let mut tally = Tally::default();
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(why) => {
            tally.skip("everything", &why);
            return tally.finish("corpus_memrefs_equal_oracle");
        }
    };
    for case in oracle_cases(&mut tally) {
        let dir = tempfile::tempdir().unwrap();
        let truth = match oracle(&spec(&case), dir.path(), ORACLE_LIMIT) {
            Ok(truth) => truth,
            Err(e) => {
                tally.record(&case.name, Err(e));
                continue;
            }
        };
        for mode in [STATIC, DYNAMIC] {
            let name = format!("{} {}", case.name, mode.name);
            let equal = recovered_equals(&truth, &spec(&case), tools, mode, dir.path());
            tally.record(&name, equal);
        }
    }
    tally.finish("corpus_memrefs_equal_oracle");
}
