//! Gives the library the real one's name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A later dlopen("libnvidia-ml.so.1") finds the library that is already loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // The texts of errors are this library's. If dlclose unmapped it, programs could not read them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
