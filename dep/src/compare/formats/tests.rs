use bench::{
    Compressed, FormatSizes, Formats, Grammars, Known, Measured, Part, ProgramReport, Recovery,
    Report, Role, StreamKind, ThreadSizes, TraceFigures, VariantReport,
};

use super::{markdown, settings, svg, text, variants};

/// A report of three programs: one that is whole, one of two threads that was cut, one that failed.
fn a_report() -> Report {
    let mut programs = vec![
        a_program("gzip", &[1.0], None),
        a_program("xz-mt", &[0.25, 0.75], Some(256 << 20)),
        ProgramReport {
            name: "failed".into(),
            failed: Some("deprewrite: /bin/x: unsupported input: not an ELF file".into()),
            ..ProgramReport::default()
        },
    ];
    programs[1].variants[2].wrong = Some("its output differs from the native one".into());
    let report = super::super::tests::a_report(programs);
    let formats = Some(settings(10_000_000, 256 << 20));
    Report { rounds: 2, startup: vec![], formats, ..report }
}

fn a_program(name: &str, shares: &[f64], cut: Option<u64>) -> ProgramReport {
    let mut ways = variants(&["--pointers".into(), "thread-block".into()], &["/dev/shm".into()]);
    ways.retain(|way| way.records_to.is_none() || way.name.starts_with("tags registers"));
    let trace = TraceFigures {
        instructions: 40_000_000,
        bytes_per_instruction: 2.0,
        static_share_main: if cut.is_some() { 0.1 } else { 1.0 },
        static_share: 1.0,
        trace_bytes: 80_000_000,
        control_flow_bytes: 10_000_000,
        memory_bytes: 60_000_000,
        only_first_bytes: cut,
    };
    let variant = |(at, way): (usize, bench::Variant)| VariantReport {
        name: way.name.clone(),
        role: if at == 0 { Role::Native } else { Role::Rewritten },
        flags: way.flags(),
        records: way.records(),
        recorded_to: way.records_to.clone(),
        rounds: [1.0, 1.2]
            .map(|cpu| Measured {
                cpu_seconds: cpu * (1.0 + at as f64 / 4.0),
                wall_seconds: 1.0,
                resident_bytes: 1 << 20,
            })
            .to_vec(),
        trace: if at == 0 {
            Known::not("nothing is recorded")
        } else {
            Known::Known(trace.clone())
        },
        ..VariantReport::default()
    };
    ProgramReport {
        name: name.into(),
        command: format!("/usr/bin/{name} -c in"),
        variants: ways.into_iter().enumerate().map(variant).collect(),
        formats: Some(Known::Known(formats(shares, cut))),
        ..ProgramReport::default()
    }
}

/// The bytes of each stream follow from its place in the list, so that no two are the same.
fn formats(shares: &[f64], cut: Option<u64>) -> Formats {
    let mut sizes = Vec::new();
    for (c, (control_flow, bytes)) in [("tags", 2), ("full-pc", 8), ("bits", 1)].iter().enumerate()
    {
        for (m, memory) in ["registers", "addresses", "none"].iter().enumerate() {
            let thread = |(thread, share): (usize, &f64)| {
                let all = Part {
                    instructions: (40e6 * share) as u64,
                    control_flow_bytes: (7e6 * share) as u64 * bytes,
                    memory_bytes: [60e6 * share, 130e6 * share, 0.0][m] as u64 + c as u64,
                };
                let half = Part {
                    instructions: all.instructions / 2,
                    control_flow_bytes: all.control_flow_bytes / 2,
                    memory_bytes: all.memory_bytes / 2,
                };
                let compared = if cut.is_some() { half } else { all };
                ThreadSizes { thread: thread as u32, all, compared }
            };
            sizes.push(FormatSizes {
                control_flow: control_flow.to_string(),
                memory: memory.to_string(),
                file_bytes: 100_000_000 + 1_000_000 * sizes.len() as u64,
                only_first_bytes: cut,
                references: (m < 2).then_some(16_000_000),
                threads: shares.iter().enumerate().map(thread).collect(),
            });
        }
    }
    // The instructions of one run are not those of the others.
    if let (Some(last), None) = (sizes.last_mut(), cut) {
        last.threads[0].all.instructions += 100_000;
    }
    let stream = |at: u64, stream, format: &str, bytes: u64| Compressed {
        stream,
        format: format.into(),
        instructions: 10_000_000,
        bytes,
        zstd_bytes: bytes / (10 + at),
        bzip2_bytes: bytes / (20 + at),
        sequitur: Grammars {
            bytes: bytes / (30 + at),
            sequences: 1,
            symbols: 9,
            rules: 2,
            words: 3,
        },
        expanded_bytes: bytes,
    };
    let way = |way: &str, references, times: [f64; 2]| Recovery {
        way: way.into(),
        references,
        bytes: 100_000_000,
        cpu_seconds: times.to_vec(),
    };
    Formats {
        sizes,
        compressed: vec![
            stream(1, StreamKind::ControlFlow, "full-pc", 14_000_000),
            stream(2, StreamKind::ControlFlow, "tags", 3_500_000),
            stream(3, StreamKind::ControlFlow, "bits", 1_750_000),
            stream(4, StreamKind::Memory, "addresses", 32_000_000),
            stream(5, StreamKind::Memory, "registers", 15_000_000),
        ],
        recovery: vec![
            way("read a list of {pc, addr, size, type}", 8 << 20, [0.03, 0.02]),
            way("read the bytes of full-pc addresses", 16_000_000, [0.05, 0.06]),
            way("recover from full-pc addresses", 16_000_000, [0.8, 0.9]),
            way("recover from tags registers", 16_000_000, [0.5, 0.4]),
        ],
    }
}

#[test]
fn in_text() {
    let text = text(&a_report());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn for_a_page() {
    insta::assert_snapshot!(markdown(&a_report()));
}

#[test]
fn as_a_figure() {
    insta::assert_snapshot!(svg(&a_report()));
}

#[test]
fn as_json_and_back() {
    let report = a_report();
    let json = serde_json::to_string_pretty(&report.programs[1].formats).expect("JSON");
    insta::assert_snapshot!(json);
    let all = serde_json::to_string(&report).expect("JSON");
    let again = Report::parse(&all).expect("a report");
    assert_eq!(text(&again), text(&report));
    assert_eq!(svg(&again), svg(&report));
}

#[test]
fn one_program_has_no_means() {
    let mut report = a_report();
    report.programs.truncate(1);
    let text = text(&report);
    assert!(!text.contains("mean "), "{text}");
    assert!(
        text.contains("/usr/bin/gzip -c in\n") && !text.contains("Streams of each thread"),
        "{text}"
    );
}

#[test]
fn every_format_with_every_other_and_to_each_place() {
    let all = variants(&["--x".into()], &["/a".into(), "/b".into()]);
    let names: Vec<_> = all.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(all.len(), 1 + 3 * 9);
    assert_eq!(names[..3], ["native", "tags registers", "tags addresses"]);
    assert_eq!(names[9..11], ["bits none", "tags registers to /a"]);
    let flags = ["--x", "--control-flow", "bits", "--memory", "none"];
    assert_eq!(all[9].flags(), flags);
    assert_eq!(all[27].records_to.as_deref(), Some(std::path::Path::new("/b")));
    assert!(all[1..].iter().all(bench::Variant::records));
}
