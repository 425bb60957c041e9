//! Makes `dlclose` leave the library loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs register kernels with the library and call it until they exit, so `dlclose` must not
    // unmap it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
