//! Names of the libraries that are stood in for.

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

/// Returns the version that the vendor's library defines, as PyTorch's libraries ask for it. The
/// vendor names most versions as the file.
pub(crate) fn version(soname: &'static str) -> &'static str {
    match soname {
        NVSHMEM => "NVSHMEM",
        _ => soname,
    }
}
