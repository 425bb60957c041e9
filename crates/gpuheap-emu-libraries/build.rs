//! Links the library so that it stays loaded after `dlclose`: it writes a report at process exit.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
