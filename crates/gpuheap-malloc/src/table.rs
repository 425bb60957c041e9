//! Declares the functions of the driver and the runtime that this library replaces.

use gpuheap_driver::{CUresult, abi};

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;
pub(crate) type Text = abi::Text<CUresult>;

/// Calls `$callback!` with every function that this library replaces:
///
/// ```text
/// library [how] symbol (arguments);
/// ```
///
/// `library` is the module of the function, `driver_api` or `runtime_api`. `how` is empty if the
/// module contains a function named `symbol`. Otherwise `how` selects how the call is passed on:
///
/// * `begins_capture`: notes that streams capture graphs, then calls the real function.
/// * `counts KIND BYTES`: calls the real function. If the call succeeds, counts `BYTES` as memory
///   that no heap serves.
/// * `of_pool FUNCTION`: calls the real function. If the call succeeds, calls `FUNCTION` of module
///   `pools` with the same arguments.
/// * `makes_handle`: refuses memory of a heap, else calls the real function.
/// * `per_thread SYMBOL`: calls the module's function `SYMBOL`, with the thread's own default
///   stream instead of the null stream.
///
/// Every function returns a `CUresult`, also in the runtime: the error codes that this library
/// returns have the same numbers there.
macro_rules! interposed_functions {
    ($callback:path) => {
        $callback! {

        // ---- the driver ----

        driver_api [] cuInit (flags: c_uint);
        driver_api [] cuMemAlloc_v2 (pointer: Out<CUdeviceptr>, bytes: usize);
        driver_api [] cuMemFree_v2 (pointer: CUdeviceptr);
        driver_api [] cuMemAllocAsync (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        driver_api [per_thread cuMemAllocAsync] cuMemAllocAsync_ptsz (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        driver_api [] cuMemFreeAsync (pointer: CUdeviceptr, stream: CUstream);
        driver_api [per_thread cuMemFreeAsync] cuMemFreeAsync_ptsz (pointer: CUdeviceptr, stream: CUstream);
        driver_api [] cuMemGetInfo_v2 (free: Out<usize>, total: Out<usize>);
        driver_api [makes_handle] cuIpcGetMemHandle (handle: Out<c_void>, pointer: CUdeviceptr);
        driver_api [] cuStreamDestroy (stream: CUstream);
        driver_api [] cuStreamDestroy_v2 (stream: CUstream);
        driver_api [begins_capture] cuStreamBeginCapture (stream: CUstream, mode: c_int);
        driver_api [begins_capture] cuStreamBeginCapture_ptsz (stream: CUstream, mode: c_int);
        driver_api [begins_capture] cuStreamBeginCapture_v2 (stream: CUstream, mode: c_int);
        driver_api [begins_capture] cuStreamBeginCapture_v2_ptsz (stream: CUstream, mode: c_int);
        driver_api [begins_capture] cuStreamBeginCaptureToGraph (stream: CUstream, graph: CUgraph, nodes: In<c_void>, edges: In<c_void>, count: usize, mode: c_int);
        driver_api [begins_capture] cuStreamBeginCaptureToGraph_ptsz (stream: CUstream, graph: CUgraph, nodes: In<c_void>, edges: In<c_void>, count: usize, mode: c_int);
        driver_api [counts Managed bytes] cuMemAllocManaged (pointer: Out<CUdeviceptr>, bytes: usize, flags: c_uint);
        driver_api [counts Pitched width_bytes.saturating_mul(height)] cuMemAllocPitch_v2 (pointer: Out<CUdeviceptr>, pitch: Out<usize>, width_bytes: usize, height: usize, element_bytes: c_uint);
        driver_api [counts Pool bytes] cuMemAllocFromPoolAsync (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        driver_api [counts Pool bytes] cuMemAllocFromPoolAsync_ptsz (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        driver_api [of_pool trim] cuMemPoolTrimTo (pool: CUmemoryPool, keep: usize);
        driver_api [of_pool set_attribute] cuMemPoolSetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        driver_api [of_pool add_to_figure] cuMemPoolGetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        driver_api [counts Virtual bytes] cuMemCreate (handle: Out<u64>, bytes: usize, properties: In<c_void>, flags: u64);
        driver_api [counts Array 0] cuArrayCreate_v2 (array: Out<*mut c_void>, description: In<c_void>);
        driver_api [counts Array 0] cuArray3DCreate_v2 (array: Out<*mut c_void>, description: In<c_void>);
        driver_api [counts Array 0] cuMipmappedArrayCreate (array: Out<*mut c_void>, description: In<c_void>, levels: c_uint);
        driver_api [counts Imported 0] cuIpcOpenMemHandle_v2 (pointer: Out<CUdeviceptr>, handle: IpcHandle, flags: c_uint);
        driver_api [] cuDevicePrimaryCtxReset (device: CUdevice);
        driver_api [] cuDevicePrimaryCtxReset_v2 (device: CUdevice);
        driver_api [] cuGetProcAddress (symbol: Text, function: Out<*mut c_void>, version: c_int, flags: u64);
        driver_api [] cuGetProcAddress_v2 (symbol: Text, function: Out<*mut c_void>, version: c_int, flags: u64, status: Out<c_int>);

        // ---- the runtime ----

        runtime_api [] cudaMalloc (pointer: Out<CUdeviceptr>, bytes: usize);
        runtime_api [] cudaFree (pointer: CUdeviceptr);
        runtime_api [] cudaMallocAsync (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        runtime_api [per_thread cudaMallocAsync] cudaMallocAsync_ptsz (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        runtime_api [] cudaFreeAsync (pointer: CUdeviceptr, stream: CUstream);
        runtime_api [per_thread cudaFreeAsync] cudaFreeAsync_ptsz (pointer: CUdeviceptr, stream: CUstream);
        runtime_api [] cudaMemGetInfo (free: Out<usize>, total: Out<usize>);
        runtime_api [of_pool trim] cudaMemPoolTrimTo (pool: CUmemoryPool, keep: usize);
        runtime_api [of_pool set_attribute] cudaMemPoolSetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        runtime_api [of_pool add_to_figure] cudaMemPoolGetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        runtime_api [makes_handle] cudaIpcGetMemHandle (handle: Out<c_void>, pointer: CUdeviceptr);
        runtime_api [] cudaStreamDestroy (stream: CUstream);
        runtime_api [begins_capture] cudaStreamBeginCapture (stream: CUstream, mode: c_int);
        runtime_api [begins_capture] cudaStreamBeginCapture_ptsz (stream: CUstream, mode: c_int);
        runtime_api [begins_capture] cudaStreamBeginCaptureToGraph (stream: CUstream, graph: CUgraph, nodes: In<c_void>, edges: In<c_void>, count: usize, mode: c_int);
        runtime_api [begins_capture] cudaStreamBeginCaptureToGraph_ptsz (stream: CUstream, graph: CUgraph, nodes: In<c_void>, edges: In<c_void>, count: usize, mode: c_int);
        runtime_api [] cudaDeviceReset ();
        }
    };
}
