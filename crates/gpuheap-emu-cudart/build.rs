//! Keeps the library in memory once it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs register their kernels with the library and call it until the very end of the
    // process. If dlclose unmapped it, they would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
