//! Sets the soname of the real NVML, and makes `dlclose` leave the library loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // With this soname, `dlopen("libnvidia-ml.so.1")` finds this library if it is already loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // `nvmlErrorString` returns pointers into this library. They must stay valid after `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
