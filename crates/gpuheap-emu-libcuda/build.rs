//! Gives the library the real one's name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program that links the library then needs libcuda.so.1. A later
    // dlopen("libcuda.so.1") finds the library that is already loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The device's threads run this library's code. If dlclose unmapped it, they would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
