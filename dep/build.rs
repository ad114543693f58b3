//! How the command is linked.
//!
//! `dep record` is started for each recording, and a third of what it costs when all that it needs is at hand
//! was the start of `dep` itself.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    // At a fixed address nothing has to be relocated when it starts: 8000 words in 36 pages.
    println!("cargo:rustc-link-arg-bin=dep=-no-pie");
    println!("cargo:rerun-if-changed=build.rs");
    link_statically();
}

/// Without shared libraries: ld.so maps, relocates and searches three of them, and touches 70 pages.
///
/// `crt-static` is for a whole build, and what cargo builds for itself (procedural macros) cannot have it. So the
/// linker finds the archives where rustc names the libraries: a file `libNAME.so` that is a linker script.
/// Where there are no archives (some systems have them in a package of their own), it stays as it is.
fn link_statically() {
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    // The archives are of the machine that builds.
    if of("CARGO_CFG_TARGET_ENV") != "gnu" || of("HOST") != of("TARGET") {
        return;
    }
    // Before glibc 2.34 the later ones are libraries of their own, and then empty archives.
    let needed = [("gcc_s", "libgcc_eh.a"), ("c", "libc.a"), ("m", "libm.a")];
    let further = ["pthread", "dl", "rt", "util"].map(|name| (name, format!("lib{name}.a")));
    let all: Option<Vec<_>> =
        needed.iter().map(|&(name, archive)| Some((name, archive_of(archive)?))).collect();
    let (Some(mut all), Some(out)) = (all, std::env::var_os("OUT_DIR")) else { return };
    let further = further.iter().map(|(name, archive)| Some((*name, archive_of(archive)?)));
    all.extend(further.flatten());
    let folder = Path::new(&out).join("archives");
    let written = std::fs::create_dir_all(&folder).and_then(|()| {
        all.iter().try_for_each(|(name, archive)| {
            println!("cargo:rerun-if-changed={}", archive.display());
            let script = format!("GROUP ( \"{}\" )\n", archive.display());
            std::fs::write(folder.join(format!("lib{name}.so")), script)
        })
    });
    if written.is_ok() {
        println!("cargo:rustc-link-arg-bin=dep=-static");
        println!("cargo:rustc-link-arg-bin=dep=-L{}", folder.display());
    }
}

/// Where the C compiler has a library of this name.
fn archive_of(name: &str) -> Option<PathBuf> {
    let compiler = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let answer = Command::new(compiler).arg(format!("-print-file-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim());
    (path.is_absolute() && path.exists()).then_some(path)
}
