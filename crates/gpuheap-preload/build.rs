//! Passes link options for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgpuheap_preload.so");
    // Keeps the library mapped after `dlclose`: fork and exit handlers may still run its code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
