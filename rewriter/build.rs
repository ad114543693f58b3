//! Builds the runtime, which is another program for another environment, with a cargo of its own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What outputs are made by. Their hash names the folder in the cache, so that another build of these
/// never uses what this one made.
const SOURCES: &[&str] =
    &["runtime", "instrument", "lifter", "abi", "rewriter/src", "Cargo.toml", "Cargo.lock"];
const FLAGS: &[&str] = &[
    "-Crelocation-model=pie",
    "-Ctarget-feature=+crt-static",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-Wl,--no-dynamic-linker,--no-eh-frame-hdr,--build-id=none,-z,norelro,--hash-style=sysv",
];

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        let path = root.join(source);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
            hash(&path, &mut hasher);
        }
    }
    let blob = build_runtime(&root, &PathBuf::from(variable("OUT_DIR")).join("runtime"));
    // The runtime also depends on the compiler.
    hash(&blob, &mut hasher);
    println!("cargo:rustc-env=DEPREWRITE_BUILD={:016x}", hasher.finish());
    println!("cargo:rustc-env=DEPREWRITE_RUNTIME={}", blob.display());
}

/// Adds a file, or all files in a folder, to the hash.
fn hash(path: &Path, hasher: &mut DefaultHasher) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        return paths.iter().for_each(|path| hash(path, hasher));
    }
    path.file_name().hash(hasher);
    std::fs::read(path).unwrap_or_default().hash(hasher);
}

fn build_runtime(root: &Path, target_dir: &Path) -> PathBuf {
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(root)
        .args(["rustc", "--package", "runtime", "--bin", "blob", "--features", "blob"])
        .args(["--profile", "blob", "--locked", "--target", TARGET, "--target-dir"])
        .arg(target_dir)
        .arg("--")
        .args(FLAGS);
    // What the outer cargo was told is not meant for a freestanding program.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let outer = text.contains("RUSTFLAGS")
            || text.contains("WRAPPER")
            || text.starts_with("CARGO_PROFILE")
            || text.starts_with("CARGO_CFG")
            || text.starts_with("CARGO_FEATURE")
            || text == "CARGO_TARGET_DIR"
            || text == "CARGO_BUILD_TARGET"
            || text == "CARGO_BUILD_TARGET_DIR"
            || text == "LLVM_PROFILE_FILE";
        if outer {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().unwrap_or_else(|e| panic!("cannot start cargo: {e}"));
    if !output.status.success() {
        panic!("building the runtime failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    target_dir.join(TARGET).join("blob").join("blob")
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}
