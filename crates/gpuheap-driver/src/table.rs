//! The table of driver functions, declared once.

/// Calls `$callback!` with every function of the driver API that gpuheap knows.
///
/// One row is one variant of a function's ABI:
///
/// ```text
/// base [since symbol, since per_thread_symbol] (arguments);
/// ```
///
/// * `base`: the name that `cuGetProcAddress` is asked for;
/// * `since`: the version of CUDA that brought the variant, 1000 × major + 10 × minor;
/// * `symbol`: what libcuda exports for it;
/// * `per_thread_symbol`: its twin for which the default stream is the calling thread's own, where
///   there is one. It has the same signature;
/// * every function returns a `CUresult`.
///
/// `cuda_functions!(callback, tokens ...)` passes the tokens through, in brackets, before the rows.
/// The types are those of this crate and of `std::ffi`.
#[macro_export]
macro_rules! cuda_functions {
    ($callback:path $(, $($context:tt)*)?) => {
        $callback! { [$($($context)*)?]

        // ---- the driver itself ----

        /// Initialises the driver API.
        cuInit [2000 cuInit] (flags: c_uint);
        /// The version of CUDA that the driver supports.
        cuDriverGetVersion [2020 cuDriverGetVersion] (version: *mut c_int);
        /// The name of a result, a static string.
        cuGetErrorName [6000 cuGetErrorName] (error: CUresult, name: *mut *const c_char);
        /// The text of a result, a static string.
        cuGetErrorString [6000 cuGetErrorString] (error: CUresult, text: *mut *const c_char);
        /// The address of a function by base name and version.
        cuGetProcAddress [11030 cuGetProcAddress] (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
        /// Looks up an entry point, with the reason if there is none.
        cuGetProcAddress [12000 cuGetProcAddress_v2] (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
        /// The runtime's private tables.
        cuGetExportTable [3000 cuGetExportTable] (table: *mut *const c_void, id: *const CUuuid);

        // ---- devices ----

        /// A device by ordinal.
        cuDeviceGet [2000 cuDeviceGet] (device: *mut CUdevice, ordinal: c_int);
        /// How many devices there are.
        cuDeviceGetCount [2000 cuDeviceGetCount] (count: *mut c_int);
        /// A device's name, cut to `length` bytes with the final zero.
        cuDeviceGetName [2000 cuDeviceGetName] (name: *mut c_char, length: c_int, device: CUdevice);
        /// A device's identity.
        cuDeviceGetUuid [9020 cuDeviceGetUuid] (uuid: *mut CUuuid, device: CUdevice);
        /// A device's identity, a MIG instance's own.
        cuDeviceGetUuid [11040 cuDeviceGetUuid_v2] (uuid: *mut CUuuid, device: CUdevice);
        /// A device's memory in bytes.
        cuDeviceTotalMem [3020 cuDeviceTotalMem_v2] (bytes: *mut usize, device: CUdevice);
        /// A device's property.
        cuDeviceGetAttribute [2000 cuDeviceGetAttribute] (value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        /// A device's compute capability.
        cuDeviceComputeCapability [2000 cuDeviceComputeCapability] (major: *mut c_int, minor: *mut c_int, device: CUdevice);
        /// A device's place on the PCI bus, `domain:bus:device.function`.
        cuDeviceGetPCIBusId [4010 cuDeviceGetPCIBusId] (id: *mut c_char, length: c_int, device: CUdevice);
        /// A device by its place on the PCI bus.
        cuDeviceGetByPCIBusId [4010 cuDeviceGetByPCIBusId] (device: *mut CUdevice, id: *const c_char);
        /// Tells whether one device can reach another's memory.
        cuDeviceCanAccessPeer [4000 cuDeviceCanAccessPeer] (can: *mut c_int, device: CUdevice, peer: CUdevice);
        /// A property of the way between two devices.
        cuDeviceGetP2PAttribute [8000 cuDeviceGetP2PAttribute] (value: *mut c_int, attribute: c_int, source: CUdevice, target: CUdevice);
        /// The pool that a device has from the start.
        cuDeviceGetDefaultMemPool [11020 cuDeviceGetDefaultMemPool] (pool: *mut CUmemoryPool, device: CUdevice);
        /// The pool that `cuMemAllocAsync` takes from.
        cuDeviceGetMemPool [11020 cuDeviceGetMemPool] (pool: *mut CUmemoryPool, device: CUdevice);
        /// Makes a pool the one that `cuMemAllocAsync` takes from.
        cuDeviceSetMemPool [11020 cuDeviceSetMemPool] (device: CUdevice, pool: CUmemoryPool);

        // ---- contexts ----

        /// The context that the whole process shares, created if need be.
        cuDevicePrimaryCtxRetain [7000 cuDevicePrimaryCtxRetain] (context: *mut CUcontext, device: CUdevice);
        /// Gives a reference to the primary context back; the last one destroys it.
        cuDevicePrimaryCtxRelease [11000 cuDevicePrimaryCtxRelease_v2] (device: CUdevice);
        /// Destroys all that the process has in the primary context.
        cuDevicePrimaryCtxReset [11000 cuDevicePrimaryCtxReset_v2] (device: CUdevice);
        /// How the primary context waits, and whether it maps host memory.
        cuDevicePrimaryCtxSetFlags [11000 cuDevicePrimaryCtxSetFlags_v2] (device: CUdevice, flags: c_uint);
        /// Tells whether the primary context exists, and its flags.
        cuDevicePrimaryCtxGetState [7000 cuDevicePrimaryCtxGetState] (device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        /// A context of one's own, made current.
        cuCtxCreate [3020 cuCtxCreate_v2] (context: *mut CUcontext, flags: c_uint, device: CUdevice);
        /// Creates a context with execution affinity.
        cuCtxCreate [11040 cuCtxCreate_v3] (context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint, device: CUdevice);
        /// Creates a context with a structure of parameters that may be null.
        cuCtxCreate [12050 cuCtxCreate_v4] (context: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice);
        /// Destroys a context and all that it holds.
        cuCtxDestroy [4000 cuCtxDestroy_v2] (context: CUcontext);
        /// Puts a context on top of the thread's stack of contexts.
        cuCtxPushCurrent [4000 cuCtxPushCurrent_v2] (context: CUcontext);
        /// Takes the top context off the thread's stack.
        cuCtxPopCurrent [4000 cuCtxPopCurrent_v2] (context: *mut CUcontext);
        /// Replaces the top of the thread's stack.
        cuCtxSetCurrent [4000 cuCtxSetCurrent] (context: CUcontext);
        /// The thread's context, or null.
        cuCtxGetCurrent [4000 cuCtxGetCurrent] (context: *mut CUcontext);
        /// The device of the thread's context.
        cuCtxGetDevice [2000 cuCtxGetDevice] (device: *mut CUdevice);
        /// The device of a context, null for the thread's.
        cuCtxGetDevice [13000 cuCtxGetDevice_v2] (device: *mut CUdevice, context: CUcontext);
        /// The flags of the thread's context.
        cuCtxGetFlags [7000 cuCtxGetFlags] (flags: *mut c_uint);
        /// Sets how the thread's context waits.
        cuCtxSetFlags [12010 cuCtxSetFlags] (flags: c_uint);
        /// A number that no other context of the process ever has.
        cuCtxGetId [12000 cuCtxGetId] (context: CUcontext, id: *mut u64);
        /// Waits for all work of the thread's context.
        cuCtxSynchronize [2000 cuCtxSynchronize] ();
        /// Waits for all work of a context, null for the thread's.
        cuCtxSynchronize [13000 cuCtxSynchronize_v2] (context: CUcontext);
        /// Sets a limit such as the heap that kernels allocate from.
        cuCtxSetLimit [3010 cuCtxSetLimit] (limit: c_int, value: usize);
        /// Reads a limit.
        cuCtxGetLimit [3010 cuCtxGetLimit] (value: *mut usize, limit: c_int);
        /// The version of the API that made a context.
        cuCtxGetApiVersion [3020 cuCtxGetApiVersion] (context: CUcontext, version: *mut c_uint);
        /// The lowest and the highest priority of streams.
        cuCtxGetStreamPriorityRange [5050 cuCtxGetStreamPriorityRange] (least: *mut c_int, greatest: *mut c_int);
        /// Lets the thread's context reach a peer's memory.
        cuCtxEnablePeerAccess [4000 cuCtxEnablePeerAccess] (peer: CUcontext, flags: c_uint);
        /// Ends that.
        cuCtxDisablePeerAccess [4000 cuCtxDisablePeerAccess] (peer: CUcontext);

        // ---- code ----

        /// Loads a module: PTX text, a cubin or a fat binary.
        cuModuleLoadData [2000 cuModuleLoadData] (module: *mut CUmodule, image: *const c_void);
        /// Loads a module with options for the compiler.
        cuModuleLoadDataEx [2010 cuModuleLoadDataEx] (module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
        /// Unloads a module.
        cuModuleUnload [2000 cuModuleUnload] (module: CUmodule);
        /// A kernel of a module by name.
        cuModuleGetFunction [2000 cuModuleGetFunction] (function: *mut CUfunction, module: CUmodule, name: *const c_char);
        /// A variable of a module by name.
        cuModuleGetGlobal [3020 cuModuleGetGlobal_v2] (pointer: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
        /// Launches a kernel.
        cuLaunchKernel [4000 cuLaunchKernel, 7000 cuLaunchKernel_ptsz] (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);

        // ---- memory: plain, pitched, pinned, managed, registered ----

        /// Free and total bytes of the current device, of all processes.
        cuMemGetInfo [3020 cuMemGetInfo_v2] (free: *mut usize, total: *mut usize);
        /// Device memory.
        cuMemAlloc [3020 cuMemAlloc_v2] (pointer: *mut CUdeviceptr, bytes: usize);
        /// Device memory in rows, each aligned.
        cuMemAllocPitch [3020 cuMemAllocPitch_v2] (pointer: *mut CUdeviceptr, pitch: *mut usize, width_bytes: usize, height: usize, element_bytes: c_uint);
        /// Frees device or managed memory; waits for the device.
        cuMemFree [3020 cuMemFree_v2] (pointer: CUdeviceptr);
        /// The allocation that a pointer is inside of.
        cuMemGetAddressRange [3020 cuMemGetAddressRange_v2] (base: *mut CUdeviceptr, bytes: *mut usize, pointer: CUdeviceptr);
        /// Pinned host memory.
        cuMemAllocHost [3020 cuMemAllocHost_v2] (pointer: *mut *mut c_void, bytes: usize);
        /// Pinned host memory, with flags.
        cuMemHostAlloc [2020 cuMemHostAlloc] (pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        /// Frees pinned host memory.
        cuMemFreeHost [2000 cuMemFreeHost] (pointer: *mut c_void);
        /// Where the device sees pinned host memory.
        cuMemHostGetDevicePointer [3020 cuMemHostGetDevicePointer_v2] (device_pointer: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
        /// The flags that pinned host memory was made with.
        cuMemHostGetFlags [2030 cuMemHostGetFlags] (flags: *mut c_uint, pointer: *mut c_void);
        /// Pins host memory that is already there.
        cuMemHostRegister [6050 cuMemHostRegister_v2] (pointer: *mut c_void, bytes: usize, flags: c_uint);
        /// Ends that.
        cuMemHostUnregister [4000 cuMemHostUnregister] (pointer: *mut c_void);
        /// Managed memory, which host and device share.
        cuMemAllocManaged [6000 cuMemAllocManaged] (pointer: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        /// Moves managed memory ahead of its use.
        cuMemPrefetchAsync [8000 cuMemPrefetchAsync, 8000 cuMemPrefetchAsync_ptsz] (pointer: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
        /// Prefetches managed memory to a location.
        cuMemPrefetchAsync [12020 cuMemPrefetchAsync_v2, 12020 cuMemPrefetchAsync_v2_ptsz] (pointer: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream: CUstream);
        /// Says how managed memory will be used.
        cuMemAdvise [8000 cuMemAdvise] (pointer: CUdeviceptr, bytes: usize, advice: c_int, device: CUdevice);
        /// Advises on a range of managed memory with a location.
        cuMemAdvise [12020 cuMemAdvise_v2] (pointer: CUdeviceptr, bytes: usize, advice: c_int, location: CUmemLocation);
        /// Returns the advice given for a range of managed memory.
        cuMemRangeGetAttribute [8000 cuMemRangeGetAttribute] (data: *mut c_void, data_bytes: usize, attribute: c_int, pointer: CUdeviceptr, bytes: usize);
        /// Several of these.
        cuMemRangeGetAttributes [8000 cuMemRangeGetAttributes] (data: *mut *mut c_void, data_bytes: *mut usize, attributes: *mut c_int, count: usize, pointer: CUdeviceptr, bytes: usize);
        /// Says which streams use managed memory, from this point of the stream.
        cuStreamAttachMemAsync [6000 cuStreamAttachMemAsync, 7000 cuStreamAttachMemAsync_ptsz] (stream: CUstream, pointer: CUdeviceptr, bytes: usize, flags: c_uint);
        /// A property of the memory that a pointer points to.
        cuPointerGetAttribute [4000 cuPointerGetAttribute] (data: *mut c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);
        /// Several properties; those that do not apply are zeroed.
        cuPointerGetAttributes [7000 cuPointerGetAttributes] (count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, pointer: CUdeviceptr);
        /// Sets a property of an allocation.
        cuPointerSetAttribute [6000 cuPointerSetAttribute] (value: *const c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);

        // ---- copies and fills ----

        /// Copies between any two addresses.
        cuMemcpy [4000 cuMemcpy, 7000 cuMemcpy_ptds] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize);
        /// Copies between two devices.
        cuMemcpyPeer [4000 cuMemcpyPeer, 7000 cuMemcpyPeer_ptds] (target: CUdeviceptr, target_context: CUcontext, source: CUdeviceptr, source_context: CUcontext, bytes: usize);
        /// Copies up.
        cuMemcpyHtoD [3020 cuMemcpyHtoD_v2, 7000 cuMemcpyHtoD_v2_ptds] (target: CUdeviceptr, source: *const c_void, bytes: usize);
        /// Copies down.
        cuMemcpyDtoH [3020 cuMemcpyDtoH_v2, 7000 cuMemcpyDtoH_v2_ptds] (target: *mut c_void, source: CUdeviceptr, bytes: usize);
        /// Copies on the device.
        cuMemcpyDtoD [3020 cuMemcpyDtoD_v2, 7000 cuMemcpyDtoD_v2_ptds] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize);
        /// Copies a rectangle.
        cuMemcpy2D [3020 cuMemcpy2D_v2, 7000 cuMemcpy2D_v2_ptds] (copy: *const CUDA_MEMCPY2D);
        /// Copies a rectangle of any pitch.
        cuMemcpy2DUnaligned [3020 cuMemcpy2DUnaligned_v2, 7000 cuMemcpy2DUnaligned_v2_ptds] (copy: *const CUDA_MEMCPY2D);
        /// Copies between any two addresses, in stream order.
        cuMemcpyAsync [4000 cuMemcpyAsync, 7000 cuMemcpyAsync_ptsz] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: CUstream);
        /// Copies between two devices, in stream order.
        cuMemcpyPeerAsync [4000 cuMemcpyPeerAsync, 7000 cuMemcpyPeerAsync_ptsz] (target: CUdeviceptr, target_context: CUcontext, source: CUdeviceptr, source_context: CUcontext, bytes: usize, stream: CUstream);
        /// Copies up, in stream order.
        cuMemcpyHtoDAsync [3020 cuMemcpyHtoDAsync_v2, 7000 cuMemcpyHtoDAsync_v2_ptsz] (target: CUdeviceptr, source: *const c_void, bytes: usize, stream: CUstream);
        /// Copies down, in stream order.
        cuMemcpyDtoHAsync [3020 cuMemcpyDtoHAsync_v2, 7000 cuMemcpyDtoHAsync_v2_ptsz] (target: *mut c_void, source: CUdeviceptr, bytes: usize, stream: CUstream);
        /// Copies on the device, in stream order.
        cuMemcpyDtoDAsync [3020 cuMemcpyDtoDAsync_v2, 7000 cuMemcpyDtoDAsync_v2_ptsz] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: CUstream);
        /// Copies a rectangle, in stream order.
        cuMemcpy2DAsync [3020 cuMemcpy2DAsync_v2, 7000 cuMemcpy2DAsync_v2_ptsz] (copy: *const CUDA_MEMCPY2D, stream: CUstream);
        /// Fills bytes.
        cuMemsetD8 [3020 cuMemsetD8_v2, 7000 cuMemsetD8_v2_ptds] (pointer: CUdeviceptr, value: u8, count: usize);
        /// Fills 16-bit words.
        cuMemsetD16 [3020 cuMemsetD16_v2, 7000 cuMemsetD16_v2_ptds] (pointer: CUdeviceptr, value: u16, count: usize);
        /// Fills 32-bit words.
        cuMemsetD32 [3020 cuMemsetD32_v2, 7000 cuMemsetD32_v2_ptds] (pointer: CUdeviceptr, value: u32, count: usize);
        /// Fills a rectangle of bytes.
        cuMemsetD2D8 [3020 cuMemsetD2D8_v2, 7000 cuMemsetD2D8_v2_ptds] (pointer: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
        /// Fills a rectangle of 16-bit words.
        cuMemsetD2D16 [3020 cuMemsetD2D16_v2, 7000 cuMemsetD2D16_v2_ptds] (pointer: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize);
        /// Fills a rectangle of 32-bit words.
        cuMemsetD2D32 [3020 cuMemsetD2D32_v2, 7000 cuMemsetD2D32_v2_ptds] (pointer: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize);
        /// Fills bytes, in stream order.
        cuMemsetD8Async [3020 cuMemsetD8Async, 7000 cuMemsetD8Async_ptsz] (pointer: CUdeviceptr, value: u8, count: usize, stream: CUstream);
        /// Fills 16-bit words, in stream order.
        cuMemsetD16Async [3020 cuMemsetD16Async, 7000 cuMemsetD16Async_ptsz] (pointer: CUdeviceptr, value: u16, count: usize, stream: CUstream);
        /// Fills 32-bit words, in stream order.
        cuMemsetD32Async [3020 cuMemsetD32Async, 7000 cuMemsetD32Async_ptsz] (pointer: CUdeviceptr, value: u32, count: usize, stream: CUstream);
        /// Fills a rectangle of bytes, in stream order.
        cuMemsetD2D8Async [3020 cuMemsetD2D8Async, 7000 cuMemsetD2D8Async_ptsz] (pointer: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
        /// Fills a rectangle of 16-bit words, in stream order.
        cuMemsetD2D16Async [3020 cuMemsetD2D16Async, 7000 cuMemsetD2D16Async_ptsz] (pointer: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
        /// Fills a rectangle of 32-bit words, in stream order.
        cuMemsetD2D32Async [3020 cuMemsetD2D32Async, 7000 cuMemsetD2D32Async_ptsz] (pointer: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);

        // ---- stream-ordered pools ----

        /// Memory from the device's pool, usable after this point of the stream.
        cuMemAllocAsync [11020 cuMemAllocAsync, 11020 cuMemAllocAsync_ptsz] (pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        /// Memory from a pool, usable after this point of the stream.
        cuMemAllocFromPoolAsync [11020 cuMemAllocFromPoolAsync, 11020 cuMemAllocFromPoolAsync_ptsz] (pointer: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        /// Gives it back at this point of the stream.
        cuMemFreeAsync [11020 cuMemFreeAsync, 11020 cuMemFreeAsync_ptsz] (pointer: CUdeviceptr, stream: CUstream);
        /// A pool of one's own.
        cuMemPoolCreate [11020 cuMemPoolCreate] (pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
        /// Destroys a pool; its memory goes back when the last allocation does.
        cuMemPoolDestroy [11020 cuMemPoolDestroy] (pool: CUmemoryPool);
        /// Gives cached memory back until no more than `keep` bytes are reserved.
        cuMemPoolTrimTo [11020 cuMemPoolTrimTo] (pool: CUmemoryPool, keep: usize);
        /// Sets a property of a pool.
        cuMemPoolSetAttribute [11020 cuMemPoolSetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        /// Reads a property of a pool.
        cuMemPoolGetAttribute [11020 cuMemPoolGetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        /// Lets other devices reach a pool.
        cuMemPoolSetAccess [11020 cuMemPoolSetAccess] (pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
        /// Tells whether a device reaches a pool.
        cuMemPoolGetAccess [11020 cuMemPoolGetAccess] (flags: *mut c_int, pool: CUmemoryPool, location: *mut CUmemLocation);
        /// The pool that a location has from the start.
        cuMemGetDefaultMemPool [13000 cuMemGetDefaultMemPool] (pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_int);
        /// The pool that a location allocates from.
        cuMemGetMemPool [13000 cuMemGetMemPool] (pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_int);
        /// Makes a pool the one that a location allocates from.
        cuMemSetMemPool [13000 cuMemSetMemPool] (location: *mut CUmemLocation, kind: c_int, pool: CUmemoryPool);

        // ---- virtual memory management ----

        /// Reserves addresses, with nothing behind them.
        cuMemAddressReserve [10020 cuMemAddressReserve] (pointer: *mut CUdeviceptr, bytes: usize, alignment: usize, address: CUdeviceptr, flags: u64);
        /// Gives addresses back.
        cuMemAddressFree [10020 cuMemAddressFree] (pointer: CUdeviceptr, bytes: usize);
        /// Physical memory.
        cuMemCreate [10020 cuMemCreate] (handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64);
        /// Gives a reference to physical memory back; it is freed when no mapping is left either.
        cuMemRelease [10020 cuMemRelease] (handle: CUmemGenericAllocationHandle);
        /// Maps physical memory behind addresses.
        cuMemMap [10020 cuMemMap] (pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64);
        /// Unmaps whole mappings; not stream-ordered, does not wait.
        cuMemUnmap [10020 cuMemUnmap] (pointer: CUdeviceptr, bytes: usize);
        /// Says which devices may read and write a mapped range.
        cuMemSetAccess [10020 cuMemSetAccess] (pointer: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
        /// Returns the access of a location to an address.
        cuMemGetAccess [10020 cuMemGetAccess] (flags: *mut u64, location: *const CUmemLocation, pointer: CUdeviceptr);
        /// The size that physical memory and its mappings come in multiples of.
        cuMemGetAllocationGranularity [10020 cuMemGetAllocationGranularity] (granularity: *mut usize, properties: *const CUmemAllocationProp, option: c_int);
        /// The properties that physical memory was created with.
        cuMemGetAllocationPropertiesFromHandle [10020 cuMemGetAllocationPropertiesFromHandle] (properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
        /// Another reference to the physical memory behind an address.
        cuMemRetainAllocationHandle [11000 cuMemRetainAllocationHandle] (handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);

        // ---- streams ----

        /// A stream.
        cuStreamCreate [2000 cuStreamCreate] (stream: *mut CUstream, flags: c_uint);
        /// A stream of a priority.
        cuStreamCreateWithPriority [5050 cuStreamCreateWithPriority] (stream: *mut CUstream, flags: c_uint, priority: c_int);
        /// Destroys a stream once its work is done; does not wait.
        cuStreamDestroy [4000 cuStreamDestroy_v2] (stream: CUstream);
        /// Waits for a stream's work.
        cuStreamSynchronize [2000 cuStreamSynchronize, 7000 cuStreamSynchronize_ptsz] (stream: CUstream);
        /// Tells whether a stream's work is done.
        cuStreamQuery [2000 cuStreamQuery, 7000 cuStreamQuery_ptsz] (stream: CUstream);
        /// Makes a stream wait for an event; the host does not.
        cuStreamWaitEvent [3020 cuStreamWaitEvent, 7000 cuStreamWaitEvent_ptsz] (stream: CUstream, event: CUevent, flags: c_uint);
        /// Calls the host when the stream gets there, with the stream's status.
        cuStreamAddCallback [5000 cuStreamAddCallback, 7000 cuStreamAddCallback_ptsz] (stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint);
        /// Calls the host when the stream gets there.
        cuLaunchHostFunc [10000 cuLaunchHostFunc, 10000 cuLaunchHostFunc_ptsz] (stream: CUstream, function: CUhostFn, data: *mut c_void);
        /// A number that no other stream of the process ever has.
        cuStreamGetId [12000 cuStreamGetId, 12000 cuStreamGetId_ptsz] (stream: CUstream, id: *mut u64);
        /// The flags that a stream was made with.
        cuStreamGetFlags [5050 cuStreamGetFlags, 7000 cuStreamGetFlags_ptsz] (stream: CUstream, flags: *mut c_uint);
        /// A stream's priority.
        cuStreamGetPriority [5050 cuStreamGetPriority, 7000 cuStreamGetPriority_ptsz] (stream: CUstream, priority: *mut c_int);
        /// A stream's context.
        cuStreamGetCtx [9020 cuStreamGetCtx, 9020 cuStreamGetCtx_ptsz] (stream: CUstream, context: *mut CUcontext);
        /// A stream's context, and its green context, null where it has none.
        cuStreamGetCtx [12050 cuStreamGetCtx_v2, 12050 cuStreamGetCtx_v2_ptsz] (stream: CUstream, context: *mut CUcontext, green: *mut CUgreenCtx);
        /// A stream's device.
        cuStreamGetDevice [12080 cuStreamGetDevice, 12080 cuStreamGetDevice_ptsz] (stream: CUstream, device: *mut CUdevice);
        /// Tells whether a stream is recording a graph instead of running.
        cuStreamIsCapturing [10000 cuStreamIsCapturing, 10000 cuStreamIsCapturing_ptsz] (stream: CUstream, status: *mut CUstreamCaptureStatus);
        /// From here on a stream records a graph instead of running.
        cuStreamBeginCapture [10010 cuStreamBeginCapture_v2, 10010 cuStreamBeginCapture_v2_ptsz] (stream: CUstream, mode: CUstreamCaptureMode);
        /// Ends that and gives the graph.
        cuStreamEndCapture [10000 cuStreamEndCapture, 10000 cuStreamEndCapture_ptsz] (stream: CUstream, graph: *mut CUgraph);
        /// Sets what captures keep the calling thread from doing, and gives what was set before.
        cuThreadExchangeStreamCaptureMode [10010 cuThreadExchangeStreamCaptureMode] (mode: *mut CUstreamCaptureMode);

        // ---- graphs ----

        /// Makes a graph ready to be launched.
        cuGraphInstantiateWithFlags [11040 cuGraphInstantiateWithFlags] (executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
        /// Runs a graph's work in the order of a stream.
        cuGraphLaunch [10000 cuGraphLaunch, 10000 cuGraphLaunch_ptsz] (executable: CUgraphExec, stream: CUstream);
        /// Destroys what can be launched; what runs goes on.
        cuGraphExecDestroy [10000 cuGraphExecDestroy] (executable: CUgraphExec);
        /// Destroys a graph; what was made of it stays.
        cuGraphDestroy [10000 cuGraphDestroy] (graph: CUgraph);

        // ---- events ----

        /// An event.
        cuEventCreate [2000 cuEventCreate] (event: *mut CUevent, flags: c_uint);
        /// Destroys an event.
        cuEventDestroy [4000 cuEventDestroy_v2] (event: CUevent);
        /// Marks a point of a stream.
        cuEventRecord [2000 cuEventRecord, 7000 cuEventRecord_ptsz] (event: CUevent, stream: CUstream);
        /// Records an event with flags.
        cuEventRecordWithFlags [11010 cuEventRecordWithFlags, 11010 cuEventRecordWithFlags_ptsz] (event: CUevent, stream: CUstream, flags: c_uint);
        /// Tells whether the stream has got past the point.
        cuEventQuery [2000 cuEventQuery] (event: CUevent);
        /// Waits until it has.
        cuEventSynchronize [2000 cuEventSynchronize] (event: CUevent);
        /// Milliseconds between two events.
        cuEventElapsedTime [2000 cuEventElapsedTime] (milliseconds: *mut f32, start: CUevent, end: CUevent);
        /// Returns the time between two events; also takes events that were not recorded with
        /// timing on the same device.
        cuEventElapsedTime [12080 cuEventElapsedTime_v2] (milliseconds: *mut f32, start: CUevent, end: CUevent);
        }
    };
}

/// One row of the table: a variant of a function's ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name that `cuGetProcAddress` is asked for.
    pub base: &'static str,
    /// Symbol that libcuda exports.
    pub symbol: &'static str,
    /// The version of CUDA that brought it, 1000 × major + 10 × minor.
    pub since: i32,
    /// The twin with a default stream for each thread, and the version that brought it.
    pub per_thread: Option<(&'static str, i32)>,
}

macro_rules! rows {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// Every row of the table, in its order.
        pub const FUNCTIONS: &[Function] = &[$(Function {
            base: stringify!($base),
            symbol: stringify!($symbol),
            since: $since,
            per_thread: rows!(@per_thread $($pt_since $pt_symbol)?),
        }),*];
    };
    (@per_thread) => { None };
    (@per_thread $since:literal $symbol:ident) => { Some((stringify!($symbol), $since)) };
}

cuda_functions!(rows);

/// The row of a symbol, its per-thread twin's included.
pub fn function(symbol: &str) -> Option<&'static Function> {
    FUNCTIONS
        .iter()
        .find(|row| row.symbol == symbol || row.per_thread.is_some_and(|(name, _)| name == symbol))
}

/// Answer of `cuGetProcAddress` for a base name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The symbol.
    Found(&'static str),
    /// No function of that name.
    NotFound,
    /// The function is newer than the version that was asked for.
    VersionTooOld,
}

/// The symbol of `base` in the newest variant that is not newer than `version`, as
/// `cuGetProcAddress` finds it; with `per_thread`, the twin with a default stream for each thread
/// where there is one.
pub fn lookup(base: &str, version: i32, per_thread: bool) -> Lookup {
    let mut known = false;
    let mut best: Option<(&str, i32)> = None;
    for row in FUNCTIONS.iter().filter(|row| row.base == base) {
        known = true;
        let (symbol, since) = match row.per_thread {
            Some(twin) if per_thread => twin,
            _ => (row.symbol, row.since),
        };
        if since <= version && best.is_none_or(|(_, found)| found < since) {
            best = Some((symbol, since));
        }
    }
    match best {
        Some((symbol, _)) => Lookup::Found(symbol),
        None if known => Lookup::VersionTooOld,
        None => Lookup::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_symbol_stands_once() {
        let mut seen = HashSet::new();
        for row in FUNCTIONS {
            assert!(seen.insert(row.symbol), "{} is declared twice", row.symbol);
            assert!(row.symbol.starts_with(row.base), "{row:?}");
            if let Some((twin, since)) = row.per_thread {
                assert!(seen.insert(twin), "{twin} is declared twice");
                assert!(twin.starts_with(row.symbol) && since >= row.since, "{row:?}");
            }
        }
    }

    #[test]
    fn a_lookup_takes_the_newest_variant_that_is_not_too_new() {
        assert_eq!(lookup("cuMemAdvise", 12_010, false), Lookup::Found("cuMemAdvise"));
        assert_eq!(lookup("cuMemAdvise", 12_020, false), Lookup::Found("cuMemAdvise_v2"));
        assert_eq!(lookup("cuMemcpyHtoD", 12_000, true), Lookup::Found("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(lookup("cuMemcpyHtoD", 12_000, false), Lookup::Found("cuMemcpyHtoD_v2"));
        // Without a twin that is old enough there is nothing, as from a real driver.
        assert_eq!(lookup("cuMemcpyHtoD", 4000, true), Lookup::VersionTooOld);
        assert_eq!(lookup("cuMemcpyHtoD", 4000, false), Lookup::Found("cuMemcpyHtoD_v2"));
        assert_eq!(lookup("cuMemAlloc", 2000, false), Lookup::VersionTooOld);
        assert_eq!(lookup("cuTeleport", 13_000, false), Lookup::NotFound);
    }
}
