# Everything that is done more than once. The commands work without `just`, too.

workloads := "bench/small.tsv"

# All tests; CONTRIBUTING.md says what they need
test:
    cargo test --release --workspace

# Accept what the snapshots show now; look at the difference before committing it
bless:
    INSTA_UPDATE=always cargo test --release -p instrument
    INSTA_UPDATE=always cargo test --release -p rewriter --test generated
    INSTA_UPDATE=always cargo test --release -p dep --lib --test damaged

# Slowdowns and sizes: `just bench --rounds 9 --instrument none`, `just workloads=FILE bench`
bench *ARGS:
    cargo build --release -p rewriter -p dep
    ${CARGO_TARGET_DIR:-target}/release/dep compare --workloads {{workloads}} {{ARGS}}

# Time of single stages on real code: `just microbench walk`
microbench *ARGS:
    cargo bench -p rewriter --bench stages -- {{ARGS}}

# The table and the figure of docs/bench.md, and the README's means, from a new run: `just compare --rounds 3`
compare *ARGS:
    tools/compare {{ARGS}}

# Engines that generate code, and docs/bench.md's table of them: `just engines sbcl`
engines *ARGS:
    tools/engines {{ARGS}}

# How much of a run BugNet would log, as tables: `ONLY='gzip mcf' just first-loads`
first-loads:
    tools/first-loads

# Recording for a replay beside other tools, as a table: `just record-peers 5`
record-peers *ARGS:
    tools/record-peers {{ARGS}}

# A stage as text: `just dump /usr/bin/gzip cfg --function 0x4000`
dump PROGRAM STAGE='cfg' *ARGS:
    cargo run --release -q -p rewriter -- {{PROGRAM}} --dump {{STAGE}} {{ARGS}}

# Each fuzz target for SECONDS, or those that are named: `just fuzz 60 1 trace`
fuzz SECONDS='1800' *ARGS:
    tools/fuzz {{SECONDS}} {{ARGS}}

# Real programs with the rare paths made common
torture:
    tools/torture

# What a change has to pass
ci:
    .ci/run

# Man pages and completions for bash, zsh and fish, in folders as below a prefix's `share`
man DIR='target/share':
    cargo run --release -q -p manual -- {{DIR}}

# Rewrite a program of the system, run it, look at its profile
demo PROGRAM='/usr/bin/gzip':
    ./demo {{PROGRAM}}
