//! Tells the linker about the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Else a program would look for it by the path that it was linked with.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgpuheap_capi.so");
    // A handler of forks and threads may run its code: unmapped by dlclose, they would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
