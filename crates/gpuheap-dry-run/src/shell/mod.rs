//! Shells: shared objects without code that bear the name of a vendor's library.
//!
//! PyTorch's libraries find their CUDA libraries by a path of their own (`DT_RPATH`), before
//! `LD_LIBRARY_PATH`. The loader takes a library that is already loaded if its name (`DT_SONAME`)
//! matches. So a shell is preloaded for each library that has a stand-in, and the vendor's file is
//! not opened.
//!
//! A shell defines no function. It defines the version of the vendor's library, because the loader
//! checks that. The stand-ins have the functions. They are preloaded too, and export the functions
//! without a version: the loader accepts that for any version. A shell needs its stand-in, so that
//! `dlsym` finds the functions by the shell's handle, as JAX does.

mod elf;

use std::path::Path;

/// CUDA runtimes that `libgpuheap_emu_cudart.so` stands in for.
pub(crate) const CUDART: [&str; 2] = ["libcudart.so.12", "libcudart.so.13"];

/// Libraries that `libgpuheap_emu_libraries.so` stands in for.
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

/// Returns the version that the vendor's library defines, and that PyTorch's libraries need. The
/// vendor names most versions as the file.
fn version(soname: &'static str) -> &'static str {
    match soname {
        NVSHMEM => "NVSHMEM",
        _ => soname,
    }
}

/// Returns the file of the shell of a library whose functions `stand_in` has.
pub(crate) fn build(soname: &'static str, stand_in: &Path) -> Vec<u8> {
    elf::bytes(soname, version(soname), &stand_in.to_string_lossy())
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
