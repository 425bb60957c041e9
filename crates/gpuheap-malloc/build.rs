//! Passes link options for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgpuheap_malloc.so");
    // Hides the symbols of the linked C interface, because a program may contain another version.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Keeps the library mapped after `dlclose`: fork and exit handlers may still run its code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
