//! Names the library as the real one is named.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program that links it then asks the loader for libcuda.so.1, and a later
    // dlopen("libcuda.so.1") finds the library that is already there.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The device's threads run this library's code: unmapped by dlclose, they would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
