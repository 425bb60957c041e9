//! Sets the soname of the real driver, and makes `dlclose` leave the library loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // With this soname, programs that link the library need `libcuda.so.1`, and a later
    // `dlopen("libcuda.so.1")` finds this library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The emulated device's threads run code of this library, so `dlclose` must not unmap it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
