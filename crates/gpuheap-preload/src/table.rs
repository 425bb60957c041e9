//! Declares the functions of the driver that this library replaces.

use gpuheap_driver::{CUresult, abi};

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;
pub(crate) type Text = abi::Text<CUresult>;

/// Calls `$callback!` with every function that this library replaces:
///
/// ```text
/// driver_api [how] symbol (arguments);
/// ```
///
/// `how` selects how a call is handled:
///
/// * `allocates KIND BYTES`: allocates memory of a known size. The first argument gets the address.
/// * `allocates KIND BYTES STREAM`: allocates such memory for use on a stream.
/// * `frees SPACE`: frees the first argument, in this space of addresses.
/// * `frees SPACE STREAM`: frees the first argument, in the order of a stream.
/// * `by MODULE`: calls the module's function that has the same name as the symbol.
/// * `ends_primary`: may end the primary context of the device.
/// * `copies waits BYTES from END to END`: copies, and waits until the copy is done. A function
///   that does not wait has `returns` in place of `waits`. An END is on the `Device`, at a `Host`
///   address, or at an `Either` address.
/// * `copies waits COPY`: copies a rectangle or a volume that a structure describes.
/// * `searches`: looks up a function. The result is replaced with this library's function.
macro_rules! recorded_functions {
    ($callback:path) => {
        $callback! {

        // ---- plain memory ----

        driver_api [allocates Device bytes] cuMemAlloc_v2 (pointer: Out<CUdeviceptr>, bytes: usize);
        driver_api [by allocate] cuMemAllocPitch_v2 (pointer: Out<CUdeviceptr>, pitch: Out<usize>, width_bytes: usize, height: usize, element_bytes: c_uint);
        driver_api [allocates Managed bytes] cuMemAllocManaged (pointer: Out<CUdeviceptr>, bytes: usize, flags: c_uint);
        driver_api [frees 0] cuMemFree_v2 (pointer: CUdeviceptr);
        driver_api [allocates Pinned bytes] cuMemAllocHost_v2 (pointer: Out<*mut c_void>, bytes: usize);
        driver_api [allocates Pinned bytes] cuMemHostAlloc (pointer: Out<*mut c_void>, bytes: usize, flags: c_uint);
        driver_api [frees 0] cuMemFreeHost (pointer: *mut c_void);
        driver_api [by allocate] cuMemHostRegister_v2 (pointer: *mut c_void, bytes: usize, flags: c_uint);
        driver_api [frees 0] cuMemHostUnregister (pointer: *mut c_void);

        // ---- stream-ordered memory ----

        driver_api [allocates StreamOrdered bytes stream] cuMemAllocAsync (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        driver_api [allocates StreamOrdered bytes stream.per_thread()] cuMemAllocAsync_ptsz (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        driver_api [allocates Pool bytes stream] cuMemAllocFromPoolAsync (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        driver_api [allocates Pool bytes stream.per_thread()] cuMemAllocFromPoolAsync_ptsz (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        driver_api [frees 0 stream] cuMemFreeAsync (pointer: CUdeviceptr, stream: CUstream);
        driver_api [frees 0 stream.per_thread()] cuMemFreeAsync_ptsz (pointer: CUdeviceptr, stream: CUstream);

        // ---- virtual memory management ----

        driver_api [by virtual_memory] cuMemCreate (handle: Out<u64>, bytes: usize, properties: In<CUmemAllocationProp>, flags: u64);
        driver_api [by virtual_memory] cuMemRelease (handle: u64);
        driver_api [by virtual_memory] cuMemRetainAllocationHandle (handle: Out<u64>, address: *mut c_void);
        driver_api [by virtual_memory] cuMemMap (pointer: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64);
        driver_api [by virtual_memory] cuMemUnmap (pointer: CUdeviceptr, bytes: usize);

        // ---- arrays ----

        driver_api [by arrays] cuArrayCreate_v2 (array: Out<*mut c_void>, description: In<ArrayDescription>);
        driver_api [by arrays] cuArray3DCreate_v2 (array: Out<*mut c_void>, description: In<Array3DDescription>);
        driver_api [frees 2] cuArrayDestroy (array: *mut c_void);
        driver_api [by arrays] cuMipmappedArrayCreate (array: Out<*mut c_void>, description: In<Array3DDescription>, levels: c_uint);
        driver_api [frees 2] cuMipmappedArrayDestroy (array: *mut c_void);

        // ---- memory of other processes, and of graphs ----

        driver_api [by allocate] cuIpcOpenMemHandle_v2 (pointer: Out<CUdeviceptr>, handle: IpcHandle, flags: c_uint);
        driver_api [frees 3] cuIpcCloseMemHandle (pointer: CUdeviceptr);
        driver_api [by allocate] cuGraphAddMemAllocNode (node: Out<*mut c_void>, graph: *mut c_void, before: In<c_void>, count: usize, parameters: Out<GraphAllocation>);
        driver_api [by allocate] cuGraphAddMemFreeNode (node: Out<*mut c_void>, graph: *mut c_void, before: In<c_void>, count: usize, pointer: CUdeviceptr);

        // ---- contexts ----

        driver_api [by contexts] cuCtxDestroy_v2 (context: CUcontext);
        driver_api [ends_primary] cuDevicePrimaryCtxRelease (device: CUdevice);
        driver_api [ends_primary] cuDevicePrimaryCtxRelease_v2 (device: CUdevice);
        driver_api [ends_primary] cuDevicePrimaryCtxReset (device: CUdevice);
        driver_api [ends_primary] cuDevicePrimaryCtxReset_v2 (device: CUdevice);
        driver_api [by contexts] cuDevicePrimaryCtxRetain (context: Out<CUcontext>, device: CUdevice);

        // ---- figures ----

        driver_api [by memory_info] cuMemGetInfo_v2 (free: Out<usize>, total: Out<usize>);
        driver_api [by memory_info] cuDeviceTotalMem_v2 (bytes: Out<usize>, device: CUdevice);

        // ---- copies ----

        driver_api [copies waits bytes from (Host from) to Device] cuMemcpyHtoD_v2 (to: CUdeviceptr, from: *mut c_void, bytes: usize);
        driver_api [copies waits bytes from (Host from) to Device] cuMemcpyHtoD_v2_ptds (to: CUdeviceptr, from: *mut c_void, bytes: usize);
        driver_api [copies returns bytes from (Host from) to Device] cuMemcpyHtoDAsync_v2 (to: CUdeviceptr, from: *mut c_void, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from (Host from) to Device] cuMemcpyHtoDAsync_v2_ptsz (to: CUdeviceptr, from: *mut c_void, bytes: usize, stream: CUstream);
        driver_api [copies waits bytes from Device to (Host to)] cuMemcpyDtoH_v2 (to: *mut c_void, from: CUdeviceptr, bytes: usize);
        driver_api [copies waits bytes from Device to (Host to)] cuMemcpyDtoH_v2_ptds (to: *mut c_void, from: CUdeviceptr, bytes: usize);
        driver_api [copies returns bytes from Device to (Host to)] cuMemcpyDtoHAsync_v2 (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from Device to (Host to)] cuMemcpyDtoHAsync_v2_ptsz (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api [copies waits bytes from Device to Device] cuMemcpyDtoD_v2 (to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyDtoD_v2_ptds (to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
        driver_api [copies returns bytes from Device to Device] cuMemcpyDtoDAsync_v2 (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from Device to Device] cuMemcpyDtoDAsync_v2_ptsz (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api [copies waits bytes from (Either from) to (Either to)] cuMemcpy (to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
        driver_api [copies waits bytes from (Either from) to (Either to)] cuMemcpy_ptds (to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
        driver_api [copies returns bytes from (Either from) to (Either to)] cuMemcpyAsync (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from (Either from) to (Either to)] cuMemcpyAsync_ptsz (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        driver_api [copies waits bytes from Device to Device] cuMemcpyPeer (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyPeer_ptds (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize);
        driver_api [copies returns bytes from Device to Device] cuMemcpyPeerAsync (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from Device to Device] cuMemcpyPeerAsync_ptsz (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
        driver_api [copies waits bytes from (Host from) to Device] cuMemcpyHtoA_v2 (array: *mut c_void, offset: usize, from: *mut c_void, bytes: usize);
        driver_api [copies waits bytes from (Host from) to Device] cuMemcpyHtoA_v2_ptds (array: *mut c_void, offset: usize, from: *mut c_void, bytes: usize);
        driver_api [copies waits bytes from Device to (Host to)] cuMemcpyAtoH_v2 (to: *mut c_void, array: *mut c_void, offset: usize, bytes: usize);
        driver_api [copies waits bytes from Device to (Host to)] cuMemcpyAtoH_v2_ptds (to: *mut c_void, array: *mut c_void, offset: usize, bytes: usize);
        driver_api [copies returns bytes from (Host from) to Device] cuMemcpyHtoAAsync_v2 (array: *mut c_void, offset: usize, from: *mut c_void, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from (Host from) to Device] cuMemcpyHtoAAsync_v2_ptsz (array: *mut c_void, offset: usize, from: *mut c_void, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from Device to (Host to)] cuMemcpyAtoHAsync_v2 (to: *mut c_void, array: *mut c_void, offset: usize, bytes: usize, stream: CUstream);
        driver_api [copies returns bytes from Device to (Host to)] cuMemcpyAtoHAsync_v2_ptsz (to: *mut c_void, array: *mut c_void, offset: usize, bytes: usize, stream: CUstream);
        driver_api [copies waits bytes from Device to Device] cuMemcpyDtoA_v2 (array: *mut c_void, offset: usize, from: CUdeviceptr, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyDtoA_v2_ptds (array: *mut c_void, offset: usize, from: CUdeviceptr, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyAtoD_v2 (to: CUdeviceptr, array: *mut c_void, offset: usize, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyAtoD_v2_ptds (to: CUdeviceptr, array: *mut c_void, offset: usize, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyAtoA_v2 (to: *mut c_void, to_offset: usize, from: *mut c_void, offset: usize, bytes: usize);
        driver_api [copies waits bytes from Device to Device] cuMemcpyAtoA_v2_ptds (to: *mut c_void, to_offset: usize, from: *mut c_void, offset: usize, bytes: usize);
        driver_api [copies waits copy] cuMemcpy2D_v2 (copy: In<CUDA_MEMCPY2D>);
        driver_api [copies waits copy] cuMemcpy2D_v2_ptds (copy: In<CUDA_MEMCPY2D>);
        driver_api [copies waits copy] cuMemcpy2DUnaligned_v2 (copy: In<CUDA_MEMCPY2D>);
        driver_api [copies waits copy] cuMemcpy2DUnaligned_v2_ptds (copy: In<CUDA_MEMCPY2D>);
        driver_api [copies returns copy] cuMemcpy2DAsync_v2 (copy: In<CUDA_MEMCPY2D>, stream: CUstream);
        driver_api [copies returns copy] cuMemcpy2DAsync_v2_ptsz (copy: In<CUDA_MEMCPY2D>, stream: CUstream);
        driver_api [copies waits copy] cuMemcpy3D_v2 (copy: In<Volume>);
        driver_api [copies waits copy] cuMemcpy3D_v2_ptds (copy: In<Volume>);
        driver_api [copies returns copy] cuMemcpy3DAsync_v2 (copy: In<Volume>, stream: CUstream);
        driver_api [copies returns copy] cuMemcpy3DAsync_v2_ptsz (copy: In<Volume>, stream: CUstream);
        driver_api [copies waits copy] cuMemcpy3DPeer (copy: In<Volume>);
        driver_api [copies waits copy] cuMemcpy3DPeer_ptds (copy: In<Volume>);
        driver_api [copies returns copy] cuMemcpy3DPeerAsync (copy: In<Volume>, stream: CUstream);
        driver_api [copies returns copy] cuMemcpy3DPeerAsync_ptsz (copy: In<Volume>, stream: CUstream);

        // ---- searches ----

        driver_api [searches] cuGetProcAddress (symbol: Text, function: Out<*mut c_void>, version: c_int, flags: u64);
        driver_api [searches] cuGetProcAddress_v2 (symbol: Text, function: Out<*mut c_void>, version: c_int, flags: u64, status: Out<c_int>);
        }
    };
}
