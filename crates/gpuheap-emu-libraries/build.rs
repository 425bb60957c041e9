//! Makes `dlclose` leave the library loaded, because it writes a report when the process exits.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
