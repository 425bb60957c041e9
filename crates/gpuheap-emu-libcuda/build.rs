//! Gives the library the name of the real driver, and keeps it in memory once it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // With this name, a program that links the library needs `libcuda.so.1`, and a later
    // `dlopen("libcuda.so.1")` finds the loaded library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The emulated device's threads run this library's code. If `dlclose` unmapped the library,
    // these threads would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
