//! Names the `cfg` of builds whose counters can be read.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(fuzz_counters)");
    println!("cargo::rerun-if-changed=build.rs");
}
