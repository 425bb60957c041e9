//! Gives the library the name of the real NVML, and keeps it in memory once it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // With this name, a later `dlopen("libnvidia-ml.so.1")` finds the loaded library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Texts of errors are in this library's memory. If `dlclose` unmapped the library, programs
    // that read such a text would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
