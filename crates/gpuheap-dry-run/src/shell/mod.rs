//! Builds shells. A shell is a shared object without code that has the name of a vendor's library.
//!
//! PyTorch's libraries contain a path (`DT_RPATH`) on which the loader finds CUDA libraries before
//! it reads `LD_LIBRARY_PATH`. But if a library with the needed name (`DT_SONAME`) is already
//! loaded, the loader uses that library. So a shell is preloaded for each library that has a
//! stand-in, and the loader does not open the vendor's file.
//!
//! A shell defines no function. It defines the symbol version of the vendor's library, because the
//! loader checks that version. The stand-ins export the functions, and are preloaded too. The
//! stand-ins' functions have no symbol version, so the loader accepts them for any version. Each
//! shell names its stand-in as needed (`DT_NEEDED`). So `dlsym` with the shell's handle, which JAX
//! uses, finds the functions.

mod elf;

use std::path::Path;

/// Names of the CUDA runtimes that `libgpuheap_emu_cudart.so` replaces.
pub(crate) const CUDART: [&str; 2] = ["libcudart.so.12", "libcudart.so.13"];

/// Names of the libraries that `libgpuheap_emu_libraries.so` replaces.
pub(crate) const LIBRARIES: [&str; 18] = [
    "libcublas.so.12",
    "libcublas.so.13",
    "libcublasLt.so.12",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.11",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.12",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusolver.so.11",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    NVSHMEM,
    "libnvToolsExt.so.1",
];

const NVSHMEM: &str = "libnvshmem_host.so.3";

/// Returns the symbol version that the vendor's library defines, and that PyTorch's libraries need.
/// In most libraries, the version is the file's name.
fn version(soname: &'static str) -> &'static str {
    match soname {
        NVSHMEM => "NVSHMEM",
        _ => soname,
    }
}

/// Returns the bytes of a shell: a shared object without code that has the name `soname` of a
/// vendor's library. `stand_in` exports the library's functions.
pub(crate) fn build(soname: &'static str, stand_in: &Path) -> Vec<u8> {
    elf::bytes(soname, version(soname), &stand_in.to_string_lossy())
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
