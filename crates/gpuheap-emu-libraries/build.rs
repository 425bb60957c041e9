//! Links the library so that it stays in memory once it is loaded: it writes a report when the
//! process ends.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
