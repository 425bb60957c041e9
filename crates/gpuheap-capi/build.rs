//! Passes link options for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without a soname, a program would look for the library at the path that it was linked with.
    // An argument for cdylibs alone would be one of the cdylibs that depend on this crate too, and
    // they would get this name.
    println!("cargo::rustc-link-arg=-Wl,-soname,libgpuheap_capi.so");
    // Fork and thread-exit handlers may run its code: unmapped by dlclose, they would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
