use bench::{
    Known, Machine, Measured, ProgramReport, Report, Role, Spread, Start, TraceFigures,
    VariantReport,
};

use super::{figure, table, variant};

fn measured(cpu_seconds: f64) -> Measured {
    Measured { cpu_seconds, wall_seconds: 1.1 * cpu_seconds, resident_bytes: 40 << 20 }
}

fn a_variant(name: &str, role: Role, cpu: &[f64]) -> VariantReport {
    let runs = vec![cpu[0] / 10.0];
    let start = Spread::of(runs.iter().copied()).map(|wall_seconds| Start { wall_seconds, runs });
    let trace = TraceFigures {
        instructions: 1000,
        bytes_per_instruction: 2.25,
        static_share_main: 1.0,
        static_share: 0.99999,
        trace_bytes: 8192,
        control_flow_bytes: 1000,
        memory_bytes: 4000,
        only_first_bytes: None,
    };
    VariantReport {
        name: name.into(),
        role,
        records: role == Role::Rewritten,
        rounds: cpu.iter().copied().map(measured).collect(),
        start: start.map_or(Known::default(), Known::Known),
        trace: match role {
            Role::Rewritten => Known::Known(trace),
            _ => Known::not("nothing is recorded"),
        },
        file_bytes: Some(98_304),
        ..VariantReport::default()
    }
}

fn a_program(name: &str) -> ProgramReport {
    let mut native = a_variant("native", Role::Native, &[0.5, 0.4, 0.6]);
    native.rounds.iter_mut().for_each(|m| m.resident_bytes = 4 << 20);
    ProgramReport {
        name: name.into(),
        command: format!("/usr/bin/{name} -c 'a & b' <in"),
        resident_floor_bytes: 4 << 20,
        output: bench::Output { bytes: 5, sha256: "00".into() },
        variants: vec![
            native,
            a_variant("static", Role::Rewritten, &[0.75, 0.7, 0.8]),
            a_variant("dynamic", Role::Rewritten, &[1.0, 0.9, 1.1]),
        ],
        ..ProgramReport::default()
    }
}

/// A report of `programs`, which are concluded.
pub(super) fn a_report(mut programs: Vec<ProgramReport>) -> Report {
    programs.iter_mut().for_each(ProgramReport::conclude);
    Report {
        machine: Machine {
            processor: "A processor".into(),
            processors: 2,
            system: "A system".into(),
            kernel: "6.18".into(),
            load: Some(0.5),
        },
        deprewrite: "/bin/deprewrite".into(),
        rounds: 3,
        startup: vec!["--version".into()],
        formats: None,
        programs,
    }
}

fn one() -> Report {
    let mut program = a_program("gzip");
    program.variants.push(VariantReport {
        name: "lackey counts".into(),
        role: Role::Peer,
        missing: Some("valgrind is not installed".into()),
        ..VariantReport::default()
    });
    a_report(vec![program])
}

/// Everything that can be said instead of a figure.
fn many() -> Report {
    let with_peer = |mut program: ProgramReport| {
        program.variants.push(a_variant("lackey counts", Role::Peer, &[50.0, 45.0, 60.0]));
        program
    };
    let mut wrong = with_peer(a_program("wrong"));
    wrong.variants[2].wrong = Some("its output differs from the native one".into());
    let mut cut = with_peer(a_program("cut"));
    if let Known::Known(trace) = &mut cut.variants[1].trace {
        trace.only_first_bytes = Some(1 << 30);
    }
    cut.output.bytes = 0;
    cut.variants.iter_mut().for_each(|v| v.start = Known::not("with `--version`, it ends"));
    let failed = ProgramReport {
        name: "failed".into(),
        failed: Some("deprewrite: /bin/x: unsupported input: not an ELF file".into()),
        ..ProgramReport::default()
    };
    a_report(vec![with_peer(a_program("gzip")), wrong, cut, failed])
}

#[test]
fn one_program() {
    let text = table::text(&one());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn several_programs() {
    insta::assert_snapshot!(table::text(&many()));
}

#[test]
fn for_a_page() {
    insta::assert_snapshot!(table::markdown(&many()));
}

#[test]
fn a_wide_table_goes_on_below() {
    let mut program = a_program("gzip");
    let more = (0..5).map(|n| a_variant(&format!("another way {n}"), Role::Rewritten, &[1.0]));
    program.variants.extend(more);
    let text = table::text(&a_report(vec![program, a_program("xz")]));
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert_eq!(text.matches("geometric mean").count(), 2, "{text}");
    assert!(text.contains("another way 4"), "{text}");
}

#[test]
fn as_a_figure() {
    insta::assert_snapshot!(figure::svg(&many()));
}

#[test]
fn a_figure_without_large_ratios_begins_at_zero() {
    let svg = figure::svg(&one());
    assert!(svg.contains(">0</text>") && !svg.contains("logarithmic"), "{svg}");
    assert!(svg.contains("lackey counts: valgrind is not installed"), "{svg}");
}

#[test]
fn as_json() {
    let json = serde_json::to_value(many()).expect("JSON");
    let variant = |program: usize, at: usize| &json["programs"][program]["variants"][at];
    assert_eq!(variant(0, 1)["rounds"].as_array().map(Vec::len), Some(3));
    assert_eq!(variant(0, 1)["figures"]["cpu_ratio"]["median"], 1.5);
    assert_eq!(variant(0, 1)["trace"]["bytes_per_instruction"], 2.25);
    assert_eq!(variant(0, 0)["trace"]["missing"], "nothing is recorded");
    assert_eq!(variant(1, 2)["wrong"], "its output differs from the native one");
    assert!(variant(1, 2)["figures"].is_null() && variant(1, 2)["rounds"][0].is_null());
    assert_eq!(json["machine"]["processor"], "A processor");
    assert!(json["programs"][3]["failed"].is_string());
    // And back.
    let again = Report::parse(&json.to_string()).expect("a report");
    assert_eq!(table::markdown(&again), table::markdown(&many()));
    assert_eq!(figure::svg(&again), figure::svg(&many()));
}

#[test]
fn flags_of_another_way() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let bits = variant("--control-flow bits").expect("flags");
    assert_eq!(bits, ("control-flow bits".to_string(), words("--control-flow bits")));
    let named = variant("small=--memory=none --pointers thread-block").expect("flags");
    assert_eq!(named, ("small".to_string(), words("--memory=none --pointers thread-block")));
    assert!(variant("bits").is_err() && variant("").is_err() && variant("a=b").is_err());
}
