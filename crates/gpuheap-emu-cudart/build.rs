//! Links the library so that it stays in memory once it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs register kernels with the library, and call it until the process ends. If `dlclose`
    // unmapped the library, such programs would crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
