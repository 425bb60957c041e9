//! Gives the library the name of the real one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A later dlopen("libnvidia-ml.so.1") finds the library that is already loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Texts of errors belong to this library. If dlclose unmapped it, programs could not read them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
