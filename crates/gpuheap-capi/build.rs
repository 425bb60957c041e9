//! Passes link options for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without a soname, a program would search the path at which the library was linked.
    // `rustc-cdylib-link-arg` would also apply to cdylibs that depend on this crate, and give them
    // this name.
    println!("cargo::rustc-link-arg=-Wl,-soname,libgpuheap_capi.so");
    // Keeps the library mapped after `dlclose`: fork and thread-exit handlers may still run its
    // code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
