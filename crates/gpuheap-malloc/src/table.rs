//! The functions that take the place of the driver's and the runtime's, declared once.

/// Calls `$callback!` with every function that programs call here instead of in CUDA's libraries:
///
/// ```text
/// library symbol (arguments);
/// ```
///
/// `library` is the module that serves the function, `driver_api` or `runtime_api`. Every function
/// returns a `CUresult`: the codes of the runtime that are made here have the driver's numbers.
macro_rules! interposed_functions {
    ($callback:path) => {
        $callback! {

        // ---- the driver ----

        driver_api cuInit (flags: c_uint);
        driver_api cuMemAlloc_v2 (pointer: *mut CUdeviceptr, bytes: usize);
        driver_api cuMemFree_v2 (pointer: CUdeviceptr);
        driver_api cuMemAllocAsync (pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api cuMemAllocAsync_ptsz (pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api cuMemFreeAsync (pointer: CUdeviceptr, stream: CUstream);
        driver_api cuMemFreeAsync_ptsz (pointer: CUdeviceptr, stream: CUstream);
        driver_api cuMemGetInfo_v2 (free: *mut usize, total: *mut usize);
        driver_api cuIpcGetMemHandle (handle: *mut c_void, pointer: CUdeviceptr);
        driver_api cuStreamDestroy (stream: CUstream);
        driver_api cuStreamDestroy_v2 (stream: CUstream);
        driver_api cuStreamBeginCapture (stream: CUstream, mode: c_int);
        driver_api cuStreamBeginCapture_ptsz (stream: CUstream, mode: c_int);
        driver_api cuStreamBeginCapture_v2 (stream: CUstream, mode: c_int);
        driver_api cuStreamBeginCapture_v2_ptsz (stream: CUstream, mode: c_int);
        driver_api cuStreamBeginCaptureToGraph (stream: CUstream, graph: *mut c_void, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int);
        driver_api cuStreamBeginCaptureToGraph_ptsz (stream: CUstream, graph: *mut c_void, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int);
        driver_api cuMemAllocManaged (pointer: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        driver_api cuMemAllocPitch_v2 (pointer: *mut CUdeviceptr, pitch: *mut usize, width_bytes: usize, height: usize, element_bytes: c_uint);
        driver_api cuMemAllocFromPoolAsync (pointer: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream);
        driver_api cuMemAllocFromPoolAsync_ptsz (pointer: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream);
        driver_api cuMemPoolTrimTo (pool: CUmemoryPool, keep: usize);
        driver_api cuMemPoolSetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        driver_api cuMemPoolGetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        driver_api cuMemCreate (handle: *mut u64, bytes: usize, properties: *const c_void, flags: u64);
        driver_api cuArrayCreate_v2 (array: *mut *mut c_void, description: *const c_void);
        driver_api cuArray3DCreate_v2 (array: *mut *mut c_void, description: *const c_void);
        driver_api cuMipmappedArrayCreate (array: *mut *mut c_void, description: *const c_void, levels: c_uint);
        driver_api cuIpcOpenMemHandle_v2 (pointer: *mut CUdeviceptr, handle: IpcHandle, flags: c_uint);
        driver_api cuDevicePrimaryCtxReset (device: CUdevice);
        driver_api cuDevicePrimaryCtxReset_v2 (device: CUdevice);
        driver_api cuGetProcAddress (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
        driver_api cuGetProcAddress_v2 (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);

        // ---- the runtime ----

        runtime_api cudaMalloc (pointer: *mut CUdeviceptr, bytes: usize);
        runtime_api cudaFree (pointer: CUdeviceptr);
        runtime_api cudaMallocAsync (pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        runtime_api cudaMallocAsync_ptsz (pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        runtime_api cudaFreeAsync (pointer: CUdeviceptr, stream: CUstream);
        runtime_api cudaFreeAsync_ptsz (pointer: CUdeviceptr, stream: CUstream);
        runtime_api cudaMemGetInfo (free: *mut usize, total: *mut usize);
        runtime_api cudaMemPoolTrimTo (pool: CUmemoryPool, keep: usize);
        runtime_api cudaMemPoolSetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        runtime_api cudaMemPoolGetAttribute (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        runtime_api cudaIpcGetMemHandle (handle: *mut c_void, pointer: CUdeviceptr);
        runtime_api cudaStreamDestroy (stream: CUstream);
        runtime_api cudaStreamBeginCapture (stream: CUstream, mode: c_int);
        runtime_api cudaStreamBeginCapture_ptsz (stream: CUstream, mode: c_int);
        runtime_api cudaStreamBeginCaptureToGraph (stream: CUstream, graph: *mut c_void, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int);
        runtime_api cudaStreamBeginCaptureToGraph_ptsz (stream: CUstream, graph: *mut c_void, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int);
        runtime_api cudaDeviceReset ();
        }
    };
}
