//! Passes link options for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgpuheap_malloc.so");
    // The C interface is linked in and not offered: a program may have another version of it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Fork and exit handlers may run its code: unmapped by dlclose, they would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
