//! The table of driver functions, declared once.

/// Expands `$callback!` with every function of the driver API that gpuheap knows.
///
/// Each row describes one variant of a function's ABI:
///
/// ```text
/// base [since symbol, since per_thread_symbol] (arguments);
/// ```
///
/// * `base`: the base name, for `cuGetProcAddress`;
/// * `since`: the version of CUDA that added the variant, 1000 × major + 10 × minor;
/// * `symbol`: the symbol that libcuda exports for the variant;
/// * `per_thread_symbol`: the symbol of the variant's twin, if it has a twin. The twin has the same
///   signature, and uses the calling thread's own default stream;
/// * `arguments`: the arguments. Every function returns a `CUresult`.
///
/// `cuda_functions!(callback, tokens ...)` passes the tokens to the callback, in brackets, before
/// the rows. The argument types are from this crate and from `std::ffi`.
#[macro_export]
macro_rules! cuda_functions {
    ($callback:path $(, $($context:tt)*)?) => {
        $callback! { [$($($context)*)?]

        // ---- the driver itself ----

        /// Initialises the driver API.
        cuInit [2000 cuInit] (flags: c_uint);
        /// Returns the version of CUDA that the driver supports.
        cuDriverGetVersion [2020 cuDriverGetVersion] (version: *mut c_int);
        /// Returns the name of a result as a static string.
        cuGetErrorName [6000 cuGetErrorName] (error: CUresult, name: *mut *const c_char);
        /// Returns the text of a result as a static string.
        cuGetErrorString [6000 cuGetErrorString] (error: CUresult, text: *mut *const c_char);
        /// Returns the address of a function by base name and version.
        cuGetProcAddress [11030 cuGetProcAddress] (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
        /// Returns the address of the function with this base name and version. If no function is
        /// found, writes the reason.
        cuGetProcAddress [12000 cuGetProcAddress_v2] (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
        /// Returns one of the driver's private tables of functions. The CUDA runtime uses them.
        cuGetExportTable [3000 cuGetExportTable] (table: *mut *const c_void, id: *const CUuuid);
        /// Starts the collection of a profiler's data.
        cuProfilerStart [4000 cuProfilerStart] ();
        /// Stops the collection of a profiler's data.
        cuProfilerStop [4000 cuProfilerStop] ();

        // ---- checkpoints of processes ----

        /// Returns a process's checkpoint state.
        cuCheckpointProcessGetState [12080 cuCheckpointProcessGetState] (pid: c_int, state: *mut CUprocessState);
        /// Locks a process, so that its calls to CUDA wait.
        cuCheckpointProcessLock [12080 cuCheckpointProcessLock] (pid: c_int, arguments: *mut CUcheckpointLockArgs);
        /// Moves the device memory of a locked process to the host.
        cuCheckpointProcessCheckpoint [12080 cuCheckpointProcessCheckpoint] (pid: c_int, arguments: *mut c_void);
        /// Moves the memory of a checkpointed process back to the device.
        cuCheckpointProcessRestore [12080 cuCheckpointProcessRestore] (pid: c_int, arguments: *mut c_void);
        /// Unlocks a process, so that its calls to CUDA continue.
        cuCheckpointProcessUnlock [12080 cuCheckpointProcessUnlock] (pid: c_int, arguments: *mut c_void);

        // ---- devices ----

        /// Returns the device with this ordinal.
        cuDeviceGet [2000 cuDeviceGet] (device: *mut CUdevice, ordinal: c_int);
        /// Returns the number of devices.
        cuDeviceGetCount [2000 cuDeviceGetCount] (count: *mut c_int);
        /// Returns a device's name, cut to `length` bytes with the final zero.
        cuDeviceGetName [2000 cuDeviceGetName] (name: *mut c_char, length: c_int, device: CUdevice);
        /// Returns a device's UUID.
        cuDeviceGetUuid [9020 cuDeviceGetUuid] (uuid: *mut CUuuid, device: CUdevice);
        /// Returns a device's UUID. For a MIG instance, returns the instance's UUID.
        cuDeviceGetUuid [11040 cuDeviceGetUuid_v2] (uuid: *mut CUuuid, device: CUdevice);
        /// Returns a device's memory, in bytes.
        cuDeviceTotalMem [3020 cuDeviceTotalMem_v2] (bytes: *mut usize, device: CUdevice);
        /// Returns a property of a device.
        cuDeviceGetAttribute [2000 cuDeviceGetAttribute] (value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        /// Returns a device's compute capability.
        cuDeviceComputeCapability [2000 cuDeviceComputeCapability] (major: *mut c_int, minor: *mut c_int, device: CUdevice);
        /// Returns a device's address on the PCI bus, `domain:bus:device.function`.
        cuDeviceGetPCIBusId [4010 cuDeviceGetPCIBusId] (id: *mut c_char, length: c_int, device: CUdevice);
        /// Returns the device with this address on the PCI bus.
        cuDeviceGetByPCIBusId [4010 cuDeviceGetByPCIBusId] (device: *mut CUdevice, id: *const c_char);
        /// Returns whether one device can access the memory of another device.
        cuDeviceCanAccessPeer [4000 cuDeviceCanAccessPeer] (can: *mut c_int, device: CUdevice, peer: CUdevice);
        /// Returns a property of the connection between two devices.
        cuDeviceGetP2PAttribute [8000 cuDeviceGetP2PAttribute] (value: *mut c_int, attribute: c_int, source: CUdevice, target: CUdevice);
        /// Returns the device's default pool. The driver creates that pool.
        cuDeviceGetDefaultMemPool [11020 cuDeviceGetDefaultMemPool] (pool: *mut CUmemoryPool, device: CUdevice);
        /// Returns the pool that `cuMemAllocAsync` allocates from.
        cuDeviceGetMemPool [11020 cuDeviceGetMemPool] (pool: *mut CUmemoryPool, device: CUdevice);
        /// Sets the pool that `cuMemAllocAsync` allocates from.
        cuDeviceSetMemPool [11020 cuDeviceSetMemPool] (device: CUdevice, pool: CUmemoryPool);

        // ---- contexts ----

        /// Retains a device's primary context: the context that the whole process shares. Creates
        /// it if necessary.
        cuDevicePrimaryCtxRetain [7000 cuDevicePrimaryCtxRetain] (context: *mut CUcontext, device: CUdevice);
        /// Releases a reference to the primary context. Releasing the last reference destroys the
        /// context.
        cuDevicePrimaryCtxRelease [11000 cuDevicePrimaryCtxRelease_v2] (device: CUdevice);
        /// Destroys all objects of the process in the primary context.
        cuDevicePrimaryCtxReset [11000 cuDevicePrimaryCtxReset_v2] (device: CUdevice);
        /// Sets how threads wait for the primary context's work, and whether the context can map
        /// host memory.
        cuDevicePrimaryCtxSetFlags [11000 cuDevicePrimaryCtxSetFlags_v2] (device: CUdevice, flags: c_uint);
        /// Returns whether the primary context exists, and its flags.
        cuDevicePrimaryCtxGetState [7000 cuDevicePrimaryCtxGetState] (device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        /// Creates a context and makes the context current.
        cuCtxCreate [3020 cuCtxCreate_v2] (context: *mut CUcontext, flags: c_uint, device: CUdevice);
        /// Creates a context with execution affinity.
        cuCtxCreate [11040 cuCtxCreate_v3] (context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint, device: CUdevice);
        /// Creates a context with a structure of parameters that may be null.
        cuCtxCreate [12050 cuCtxCreate_v4] (context: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice);
        /// Destroys a context and all objects in the context.
        cuCtxDestroy [4000 cuCtxDestroy_v2] (context: CUcontext);
        /// Adds a reference to the current context and returns the context.
        cuCtxAttach [2000 cuCtxAttach] (context: *mut CUcontext, flags: c_uint);
        /// Removes a reference to the current context. Removing the last reference destroys the
        /// context.
        cuCtxDetach [2000 cuCtxDetach] (context: CUcontext);
        /// Pushes a context onto the calling thread's stack of contexts. The context becomes
        /// current.
        cuCtxPushCurrent [4000 cuCtxPushCurrent_v2] (context: CUcontext);
        /// Pops the top context of the calling thread's stack of contexts.
        cuCtxPopCurrent [4000 cuCtxPopCurrent_v2] (context: *mut CUcontext);
        /// Replaces the top context of the calling thread's stack of contexts.
        cuCtxSetCurrent [4000 cuCtxSetCurrent] (context: CUcontext);
        /// Returns the calling thread's current context, or null.
        cuCtxGetCurrent [4000 cuCtxGetCurrent] (context: *mut CUcontext);
        /// Returns the device of the current context.
        cuCtxGetDevice [2000 cuCtxGetDevice] (device: *mut CUdevice);
        /// Returns the device of a context. Null names the current context.
        cuCtxGetDevice [13000 cuCtxGetDevice_v2] (device: *mut CUdevice, context: CUcontext);
        /// Returns the flags of the current context.
        cuCtxGetFlags [7000 cuCtxGetFlags] (flags: *mut c_uint);
        /// Sets how threads wait for the current context's work.
        cuCtxSetFlags [12010 cuCtxSetFlags] (flags: c_uint);
        /// Returns a context's id. The process never reuses the id.
        cuCtxGetId [12000 cuCtxGetId] (context: CUcontext, id: *mut u64);
        /// Waits for all work of the current context.
        cuCtxSynchronize [2000 cuCtxSynchronize] ();
        /// Waits for all work of a context. Null names the current context.
        cuCtxSynchronize [13000 cuCtxSynchronize_v2] (context: CUcontext);
        /// Sets a limit of the current context, such as the size of the heap that kernels allocate
        /// from.
        cuCtxSetLimit [3010 cuCtxSetLimit] (limit: c_int, value: usize);
        /// Returns a limit of the current context.
        cuCtxGetLimit [3010 cuCtxGetLimit] (value: *mut usize, limit: c_int);
        /// Returns the version of the API with which a context was created.
        cuCtxGetApiVersion [3020 cuCtxGetApiVersion] (context: CUcontext, version: *mut c_uint);
        /// Returns the lowest and the highest priority of streams.
        cuCtxGetStreamPriorityRange [5050 cuCtxGetStreamPriorityRange] (least: *mut c_int, greatest: *mut c_int);
        /// Allows the current context to access the memory of a peer context.
        cuCtxEnablePeerAccess [4000 cuCtxEnablePeerAccess] (peer: CUcontext, flags: c_uint);
        /// Ends the current context's access to the memory of a peer context.
        cuCtxDisablePeerAccess [4000 cuCtxDisablePeerAccess] (peer: CUcontext);

        // ---- code ----

        /// Loads a module from PTX text, a cubin or a fat binary.
        cuModuleLoadData [2000 cuModuleLoadData] (module: *mut CUmodule, image: *const c_void);
        /// Loads a module from a file.
        cuModuleLoad [2000 cuModuleLoad] (module: *mut CUmodule, file: *const c_char);
        /// Loads a module from a fat binary.
        cuModuleLoadFatBinary [2000 cuModuleLoadFatBinary] (module: *mut CUmodule, image: *const c_void);
        /// Loads a module with options for the compiler.
        cuModuleLoadDataEx [2010 cuModuleLoadDataEx] (module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
        /// Unloads a module.
        cuModuleUnload [2000 cuModuleUnload] (module: CUmodule);
        /// Returns the kernel with this name from a module.
        cuModuleGetFunction [2000 cuModuleGetFunction] (function: *mut CUfunction, module: CUmodule, name: *const c_char);
        /// Returns the variable with this name from a module.
        cuModuleGetGlobal [3020 cuModuleGetGlobal_v2] (pointer: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
        /// Returns 1 if kernels are loaded immediately, 2 if a kernel is loaded at its first use.
        cuModuleGetLoadingMode [11070 cuModuleGetLoadingMode] (mode: *mut c_int);
        /// Loads a library of kernels. It belongs to no context.
        cuLibraryLoadData [12000 cuLibraryLoadData] (library: *mut CUlibrary, image: *const c_void, jit_options: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint);
        /// Loads a library of kernels from a file.
        cuLibraryLoadFromFile [12000 cuLibraryLoadFromFile] (library: *mut CUlibrary, file: *const c_char, jit_options: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint);
        /// Unloads a library of kernels.
        cuLibraryUnload [12000 cuLibraryUnload] (library: CUlibrary);
        /// Returns the kernel with this name from a library.
        cuLibraryGetKernel [12000 cuLibraryGetKernel] (kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
        /// Returns a library's module in the current context.
        cuLibraryGetModule [12000 cuLibraryGetModule] (module: *mut CUmodule, library: CUlibrary);
        /// Returns the variable with this name from a library.
        cuLibraryGetGlobal [12000 cuLibraryGetGlobal] (pointer: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
        /// Returns the function that represents a library's kernel in the current context.
        cuKernelGetFunction [12000 cuKernelGetFunction] (function: *mut CUfunction, kernel: CUkernel);
        /// Returns a property of a kernel on a device.
        cuKernelGetAttribute [12000 cuKernelGetAttribute] (value: *mut c_int, attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice);
        /// Sets a property of a kernel on a device.
        cuKernelSetAttribute [12000 cuKernelSetAttribute] (attribute: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice);
        /// Sets a kernel's preference between cache and shared memory.
        cuKernelSetCacheConfig [12000 cuKernelSetCacheConfig] (kernel: CUkernel, preference: c_int, device: CUdevice);
        /// Returns a property of a kernel.
        cuFuncGetAttribute [2020 cuFuncGetAttribute] (value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
        /// Sets a property of a kernel.
        cuFuncSetAttribute [9000 cuFuncSetAttribute] (function: CUfunction, attribute: CUfunction_attribute, value: c_int);
        /// Sets a kernel's preference between cache and shared memory.
        cuFuncSetCacheConfig [3000 cuFuncSetCacheConfig] (function: CUfunction, preference: c_int);
        /// Returns the module of a kernel.
        cuFuncGetModule [11000 cuFuncGetModule] (module: *mut CUmodule, function: CUfunction);
        /// Returns how many blocks of a kernel can run on a multiprocessor at once.
        cuOccupancyMaxActiveBlocksPerMultiprocessor [6050 cuOccupancyMaxActiveBlocksPerMultiprocessor] (count: *mut c_int, function: CUfunction, block_threads: c_int, shared_bytes: usize);
        /// Returns how many blocks of a kernel can run on a multiprocessor at once. Takes flags.
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags [7000 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags] (count: *mut c_int, function: CUfunction, block_threads: c_int, shared_bytes: usize, flags: c_uint);
        /// Returns the block size with the highest occupancy, and the smallest grid with that
        /// occupancy.
        cuOccupancyMaxPotentialBlockSize [6050 cuOccupancyMaxPotentialBlockSize] (blocks: *mut c_int, block_threads: *mut c_int, function: CUfunction, shared_bytes_of: CUoccupancyB2DSize, shared_bytes: usize, limit: c_int);
        /// Returns the dynamic shared memory that each block can have if `blocks` blocks run on a
        /// multiprocessor at once.
        cuOccupancyAvailableDynamicSMemPerBlock [10020 cuOccupancyAvailableDynamicSMemPerBlock] (bytes: *mut usize, function: CUfunction, blocks: c_int, block_threads: c_int);
        /// Returns the largest cluster that a launch can have.
        cuOccupancyMaxPotentialClusterSize [11070 cuOccupancyMaxPotentialClusterSize] (blocks: *mut c_int, function: CUfunction, launch: *const CUlaunchConfig);
        /// Returns how many clusters of a launch can run on the device at once.
        cuOccupancyMaxActiveClusters [11070 cuOccupancyMaxActiveClusters] (clusters: *mut c_int, function: CUfunction, launch: *const CUlaunchConfig);
        /// Encodes a description of a tiled tensor, for a kernel that loads the tensor.
        cuTensorMapEncodeTiled [12000 cuTensorMapEncodeTiled] (map: *mut c_void, data_type: c_int, rank: c_uint, address: *mut c_void, sizes: *const u64, strides: *const u64, box_sizes: *const c_uint, element_strides: *const c_uint, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);
        /// Launches a kernel.
        cuLaunchKernel [4000 cuLaunchKernel, 7000 cuLaunchKernel_ptsz] (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
        /// Launches a kernel with attributes, such as the size of its clusters.
        cuLaunchKernelEx [11060 cuLaunchKernelEx, 11060 cuLaunchKernelEx_ptsz] (launch: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void);
        /// Launches a kernel whose blocks can wait for each other.
        cuLaunchCooperativeKernel [9000 cuLaunchCooperativeKernel, 9000 cuLaunchCooperativeKernel_ptsz] (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void);

        // ---- memory: plain, pitched, pinned, managed, registered ----

        /// Returns the free and total bytes of the current device's memory. Memory that any process
        /// uses is not free.
        cuMemGetInfo [3020 cuMemGetInfo_v2] (free: *mut usize, total: *mut usize);
        /// Allocates device memory.
        cuMemAlloc [3020 cuMemAlloc_v2] (pointer: *mut CUdeviceptr, bytes: usize);
        /// Allocates device memory in rows. The start of each row is aligned.
        cuMemAllocPitch [3020 cuMemAllocPitch_v2] (pointer: *mut CUdeviceptr, pitch: *mut usize, width_bytes: usize, height: usize, element_bytes: c_uint);
        /// Frees device or managed memory. Waits for the device.
        cuMemFree [3020 cuMemFree_v2] (pointer: CUdeviceptr);
        /// Returns the start and size of the allocation that contains a pointer.
        cuMemGetAddressRange [3020 cuMemGetAddressRange_v2] (base: *mut CUdeviceptr, bytes: *mut usize, pointer: CUdeviceptr);
        /// Allocates pinned host memory.
        cuMemAllocHost [3020 cuMemAllocHost_v2] (pointer: *mut *mut c_void, bytes: usize);
        /// Allocates pinned host memory, with flags.
        cuMemHostAlloc [2020 cuMemHostAlloc] (pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        /// Frees pinned host memory.
        cuMemFreeHost [2000 cuMemFreeHost] (pointer: *mut c_void);
        /// Returns the device address of pinned host memory.
        cuMemHostGetDevicePointer [3020 cuMemHostGetDevicePointer_v2] (device_pointer: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
        /// Returns the flags with which pinned host memory was allocated.
        cuMemHostGetFlags [2030 cuMemHostGetFlags] (flags: *mut c_uint, pointer: *mut c_void);
        /// Pins host memory of the caller.
        cuMemHostRegister [6050 cuMemHostRegister_v2] (pointer: *mut c_void, bytes: usize, flags: c_uint);
        /// Unpins host memory of the caller.
        cuMemHostUnregister [4000 cuMemHostUnregister] (pointer: *mut c_void);
        /// Allocates managed memory. Host and device share it.
        cuMemAllocManaged [6000 cuMemAllocManaged] (pointer: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        /// Prefetches managed memory to a device or the host.
        cuMemPrefetchAsync [8000 cuMemPrefetchAsync, 8000 cuMemPrefetchAsync_ptsz] (pointer: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
        /// Prefetches managed memory to a location.
        cuMemPrefetchAsync [12020 cuMemPrefetchAsync_v2, 12020 cuMemPrefetchAsync_v2_ptsz] (pointer: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream: CUstream);
        /// Prefetches ranges of managed memory. Each group of ranges has a separate target
        /// location.
        cuMemPrefetchBatchAsync [13000 cuMemPrefetchBatchAsync, 13000 cuMemPrefetchBatchAsync_ptsz] (pointers: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, firsts: *mut usize, locations_count: usize, flags: u64, stream: CUstream);
        /// Discards the content of ranges of managed memory.
        cuMemDiscardBatchAsync [13000 cuMemDiscardBatchAsync, 13000 cuMemDiscardBatchAsync_ptsz] (pointers: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64, stream: CUstream);
        /// Discards the content of ranges of managed memory, and prefetches the ranges without
        /// copying content.
        cuMemDiscardAndPrefetchBatchAsync [13000 cuMemDiscardAndPrefetchBatchAsync, 13000 cuMemDiscardAndPrefetchBatchAsync_ptsz] (pointers: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, firsts: *mut usize, locations_count: usize, flags: u64, stream: CUstream);
        /// Advises the driver how a range of managed memory will be used.
        cuMemAdvise [8000 cuMemAdvise] (pointer: CUdeviceptr, bytes: usize, advice: c_int, device: CUdevice);
        /// Advises the driver how a range of managed memory will be used, and at which location.
        cuMemAdvise [12020 cuMemAdvise_v2] (pointer: CUdeviceptr, bytes: usize, advice: c_int, location: CUmemLocation);
        /// Returns one attribute of a range of managed memory, such as advice or the last prefetch.
        cuMemRangeGetAttribute [8000 cuMemRangeGetAttribute] (data: *mut c_void, data_bytes: usize, attribute: c_int, pointer: CUdeviceptr, bytes: usize);
        /// Returns several attributes of a range of managed memory.
        cuMemRangeGetAttributes [8000 cuMemRangeGetAttributes] (data: *mut *mut c_void, data_bytes: *mut usize, attributes: *mut c_int, count: usize, pointer: CUdeviceptr, bytes: usize);
        /// Sets, in stream order, which streams may use a range of managed memory.
        cuStreamAttachMemAsync [6000 cuStreamAttachMemAsync, 7000 cuStreamAttachMemAsync_ptsz] (stream: CUstream, pointer: CUdeviceptr, bytes: usize, flags: c_uint);
        /// Returns a property of the memory that a pointer points to.
        cuPointerGetAttribute [4000 cuPointerGetAttribute] (data: *mut c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);
        /// Returns several properties of the memory that a pointer points to. Properties that do
        /// not apply are zeroed.
        cuPointerGetAttributes [7000 cuPointerGetAttributes] (count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, pointer: CUdeviceptr);
        /// Sets a property of an allocation.
        cuPointerSetAttribute [6000 cuPointerSetAttribute] (value: *const c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);

        // ---- copies and fills ----

        /// Copies between any two addresses.
        cuMemcpy [4000 cuMemcpy, 7000 cuMemcpy_ptds] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize);
        /// Copies between two devices.
        cuMemcpyPeer [4000 cuMemcpyPeer, 7000 cuMemcpyPeer_ptds] (target: CUdeviceptr, target_context: CUcontext, source: CUdeviceptr, source_context: CUcontext, bytes: usize);
        /// Copies from host to device.
        cuMemcpyHtoD [3020 cuMemcpyHtoD_v2, 7000 cuMemcpyHtoD_v2_ptds] (target: CUdeviceptr, source: *const c_void, bytes: usize);
        /// Copies from device to host.
        cuMemcpyDtoH [3020 cuMemcpyDtoH_v2, 7000 cuMemcpyDtoH_v2_ptds] (target: *mut c_void, source: CUdeviceptr, bytes: usize);
        /// Copies on the device.
        cuMemcpyDtoD [3020 cuMemcpyDtoD_v2, 7000 cuMemcpyDtoD_v2_ptds] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize);
        /// Copies a rectangle.
        cuMemcpy2D [3020 cuMemcpy2D_v2, 7000 cuMemcpy2D_v2_ptds] (copy: *const CUDA_MEMCPY2D);
        /// Copies a rectangle. The pitch has no limit.
        cuMemcpy2DUnaligned [3020 cuMemcpy2DUnaligned_v2, 7000 cuMemcpy2DUnaligned_v2_ptds] (copy: *const CUDA_MEMCPY2D);
        /// Copies between any two addresses, in stream order.
        cuMemcpyAsync [4000 cuMemcpyAsync, 7000 cuMemcpyAsync_ptsz] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: CUstream);
        /// Copies between two devices, in stream order.
        cuMemcpyPeerAsync [4000 cuMemcpyPeerAsync, 7000 cuMemcpyPeerAsync_ptsz] (target: CUdeviceptr, target_context: CUcontext, source: CUdeviceptr, source_context: CUcontext, bytes: usize, stream: CUstream);
        /// Copies from host to device, in stream order.
        cuMemcpyHtoDAsync [3020 cuMemcpyHtoDAsync_v2, 7000 cuMemcpyHtoDAsync_v2_ptsz] (target: CUdeviceptr, source: *const c_void, bytes: usize, stream: CUstream);
        /// Copies from device to host, in stream order.
        cuMemcpyDtoHAsync [3020 cuMemcpyDtoHAsync_v2, 7000 cuMemcpyDtoHAsync_v2_ptsz] (target: *mut c_void, source: CUdeviceptr, bytes: usize, stream: CUstream);
        /// Copies on the device, in stream order.
        cuMemcpyDtoDAsync [3020 cuMemcpyDtoDAsync_v2, 7000 cuMemcpyDtoDAsync_v2_ptsz] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: CUstream);
        /// Copies a rectangle, in stream order.
        cuMemcpy2DAsync [3020 cuMemcpy2DAsync_v2, 7000 cuMemcpy2DAsync_v2_ptsz] (copy: *const CUDA_MEMCPY2D, stream: CUstream);
        /// Fills memory with copies of a byte.
        cuMemsetD8 [3020 cuMemsetD8_v2, 7000 cuMemsetD8_v2_ptds] (pointer: CUdeviceptr, value: u8, count: usize);
        /// Fills memory with copies of a 16-bit word.
        cuMemsetD16 [3020 cuMemsetD16_v2, 7000 cuMemsetD16_v2_ptds] (pointer: CUdeviceptr, value: u16, count: usize);
        /// Fills memory with copies of a 32-bit word.
        cuMemsetD32 [3020 cuMemsetD32_v2, 7000 cuMemsetD32_v2_ptds] (pointer: CUdeviceptr, value: u32, count: usize);
        /// Fills a rectangle of bytes.
        cuMemsetD2D8 [3020 cuMemsetD2D8_v2, 7000 cuMemsetD2D8_v2_ptds] (pointer: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
        /// Fills a rectangle of 16-bit words.
        cuMemsetD2D16 [3020 cuMemsetD2D16_v2, 7000 cuMemsetD2D16_v2_ptds] (pointer: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize);
        /// Fills a rectangle of 32-bit words.
        cuMemsetD2D32 [3020 cuMemsetD2D32_v2, 7000 cuMemsetD2D32_v2_ptds] (pointer: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize);
        /// Fills memory with copies of a byte, in stream order.
        cuMemsetD8Async [3020 cuMemsetD8Async, 7000 cuMemsetD8Async_ptsz] (pointer: CUdeviceptr, value: u8, count: usize, stream: CUstream);
        /// Fills memory with copies of a 16-bit word, in stream order.
        cuMemsetD16Async [3020 cuMemsetD16Async, 7000 cuMemsetD16Async_ptsz] (pointer: CUdeviceptr, value: u16, count: usize, stream: CUstream);
        /// Fills memory with copies of a 32-bit word, in stream order.
        cuMemsetD32Async [3020 cuMemsetD32Async, 7000 cuMemsetD32Async_ptsz] (pointer: CUdeviceptr, value: u32, count: usize, stream: CUstream);
        /// Fills a rectangle of bytes, in stream order.
        cuMemsetD2D8Async [3020 cuMemsetD2D8Async, 7000 cuMemsetD2D8Async_ptsz] (pointer: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
        /// Fills a rectangle of 16-bit words, in stream order.
        cuMemsetD2D16Async [3020 cuMemsetD2D16Async, 7000 cuMemsetD2D16Async_ptsz] (pointer: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
        /// Fills a rectangle of 32-bit words, in stream order.
        cuMemsetD2D32Async [3020 cuMemsetD2D32Async, 7000 cuMemsetD2D32Async_ptsz] (pointer: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);

        // ---- stream-ordered pools ----

        /// Allocates memory from the device's current pool, in stream order.
        cuMemAllocAsync [11020 cuMemAllocAsync, 11020 cuMemAllocAsync_ptsz] (pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        /// Allocates memory from a pool, in stream order.
        cuMemAllocFromPoolAsync [11020 cuMemAllocFromPoolAsync, 11020 cuMemAllocFromPoolAsync_ptsz] (pointer: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        /// Frees memory of a pool, in stream order.
        cuMemFreeAsync [11020 cuMemFreeAsync, 11020 cuMemFreeAsync_ptsz] (pointer: CUdeviceptr, stream: CUstream);
        /// Creates a pool.
        cuMemPoolCreate [11020 cuMemPoolCreate] (pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
        /// Destroys a pool. The pool's memory returns to the device once the last allocation from
        /// the pool is freed.
        cuMemPoolDestroy [11020 cuMemPoolDestroy] (pool: CUmemoryPool);
        /// Returns cached memory to the device until at most `keep` bytes are reserved.
        cuMemPoolTrimTo [11020 cuMemPoolTrimTo] (pool: CUmemoryPool, keep: usize);
        /// Sets a property of a pool.
        cuMemPoolSetAttribute [11020 cuMemPoolSetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        /// Returns a property of a pool.
        cuMemPoolGetAttribute [11020 cuMemPoolGetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        /// Sets which devices may access a pool's memory.
        cuMemPoolSetAccess [11020 cuMemPoolSetAccess] (pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
        /// Returns how a location may access a pool's memory.
        cuMemPoolGetAccess [11020 cuMemPoolGetAccess] (flags: *mut c_int, pool: CUmemoryPool, location: *mut CUmemLocation);
        /// Returns a location's default pool. The driver creates that pool.
        cuMemGetDefaultMemPool [13000 cuMemGetDefaultMemPool] (pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_int);
        /// Returns the current pool of a location. Allocations at the location come from this pool.
        cuMemGetMemPool [13000 cuMemGetMemPool] (pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_int);
        /// Sets the current pool of a location. Allocations at the location come from this pool.
        cuMemSetMemPool [13000 cuMemSetMemPool] (location: *mut CUmemLocation, kind: c_int, pool: CUmemoryPool);

        // ---- virtual memory management ----

        /// Reserves addresses without memory.
        cuMemAddressReserve [10020 cuMemAddressReserve] (pointer: *mut CUdeviceptr, bytes: usize, alignment: usize, address: CUdeviceptr, flags: u64);
        /// Frees reserved addresses.
        cuMemAddressFree [10020 cuMemAddressFree] (pointer: CUdeviceptr, bytes: usize);
        /// Allocates physical memory.
        cuMemCreate [10020 cuMemCreate] (handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64);
        /// Releases a reference to physical memory. The memory is freed once no reference and no
        /// mapping is left.
        cuMemRelease [10020 cuMemRelease] (handle: CUmemGenericAllocationHandle);
        /// Maps physical memory to reserved addresses.
        cuMemMap [10020 cuMemMap] (pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64);
        /// Unmaps whole mappings immediately. Does not follow stream order and does not wait for
        /// work.
        cuMemUnmap [10020 cuMemUnmap] (pointer: CUdeviceptr, bytes: usize);
        /// Sets which devices may read and write a mapped range.
        cuMemSetAccess [10020 cuMemSetAccess] (pointer: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
        /// Returns how a location may access an address.
        cuMemGetAccess [10020 cuMemGetAccess] (flags: *mut u64, location: *const CUmemLocation, pointer: CUdeviceptr);
        /// Returns the granularity: sizes of physical memory and of mappings are multiples of it.
        cuMemGetAllocationGranularity [10020 cuMemGetAllocationGranularity] (granularity: *mut usize, properties: *const CUmemAllocationProp, option: c_int);
        /// Returns the properties with which physical memory was created.
        cuMemGetAllocationPropertiesFromHandle [10020 cuMemGetAllocationPropertiesFromHandle] (properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
        /// Returns a handle with which another process can import physical memory.
        cuMemExportToShareableHandle [10020 cuMemExportToShareableHandle] (shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: c_int, flags: u64);
        /// Imports physical memory of another process.
        cuMemImportFromShareableHandle [10020 cuMemImportFromShareableHandle] (handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: c_int);
        /// Returns another reference to the physical memory that is mapped at an address.
        cuMemRetainAllocationHandle [11000 cuMemRetainAllocationHandle] (handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);

        // ---- streams ----

        /// Creates a stream.
        cuStreamCreate [2000 cuStreamCreate] (stream: *mut CUstream, flags: c_uint);
        /// Creates a stream with a priority.
        cuStreamCreateWithPriority [5050 cuStreamCreateWithPriority] (stream: *mut CUstream, flags: c_uint, priority: c_int);
        /// Destroys a stream once its work is done. Does not wait.
        cuStreamDestroy [4000 cuStreamDestroy_v2] (stream: CUstream);
        /// Waits for a stream's work.
        cuStreamSynchronize [2000 cuStreamSynchronize, 7000 cuStreamSynchronize_ptsz] (stream: CUstream);
        /// Returns whether a stream's work is done.
        cuStreamQuery [2000 cuStreamQuery, 7000 cuStreamQuery_ptsz] (stream: CUstream);
        /// Makes a stream wait for an event. The host does not wait.
        cuStreamWaitEvent [3020 cuStreamWaitEvent, 7000 cuStreamWaitEvent_ptsz] (stream: CUstream, event: CUevent, flags: c_uint);
        /// Calls a host function, in stream order, with the stream's status.
        cuStreamAddCallback [5000 cuStreamAddCallback, 7000 cuStreamAddCallback_ptsz] (stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint);
        /// Calls a host function, in stream order.
        cuLaunchHostFunc [10000 cuLaunchHostFunc, 10000 cuLaunchHostFunc_ptsz] (stream: CUstream, function: CUhostFn, data: *mut c_void);
        /// Writes a 32-bit word to device memory, in stream order.
        cuStreamWriteValue32 [11070 cuStreamWriteValue32_v2, 11070 cuStreamWriteValue32_v2_ptsz] (stream: CUstream, pointer: CUdeviceptr, value: u32, flags: c_uint);
        /// Returns a stream's id. The process never reuses the id.
        cuStreamGetId [12000 cuStreamGetId, 12000 cuStreamGetId_ptsz] (stream: CUstream, id: *mut u64);
        /// Returns the flags with which a stream was created.
        cuStreamGetFlags [5050 cuStreamGetFlags, 7000 cuStreamGetFlags_ptsz] (stream: CUstream, flags: *mut c_uint);
        /// Returns a stream's priority.
        cuStreamGetPriority [5050 cuStreamGetPriority, 7000 cuStreamGetPriority_ptsz] (stream: CUstream, priority: *mut c_int);
        /// Returns a stream's context.
        cuStreamGetCtx [9020 cuStreamGetCtx, 9020 cuStreamGetCtx_ptsz] (stream: CUstream, context: *mut CUcontext);
        /// Returns a stream's context and its green context. The green context is null if the
        /// stream has none.
        cuStreamGetCtx [12050 cuStreamGetCtx_v2, 12050 cuStreamGetCtx_v2_ptsz] (stream: CUstream, context: *mut CUcontext, green: *mut CUgreenCtx);
        /// Returns a stream's device.
        cuStreamGetDevice [12080 cuStreamGetDevice, 12080 cuStreamGetDevice_ptsz] (stream: CUstream, device: *mut CUdevice);
        /// Returns whether a stream is recording a graph instead of running.
        cuStreamIsCapturing [10000 cuStreamIsCapturing, 10000 cuStreamIsCapturing_ptsz] (stream: CUstream, status: *mut CUstreamCaptureStatus);
        /// Returns the state of a stream's capture. If the capture is active, also returns the
        /// capture's id and graph.
        cuStreamGetCaptureInfo [11030 cuStreamGetCaptureInfo_v2, 11030 cuStreamGetCaptureInfo_v2_ptsz] (stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
        /// Returns the state of a stream's capture. If the capture is active, also returns the
        /// capture's id, its graph and the data of its edges.
        cuStreamGetCaptureInfo [12030 cuStreamGetCaptureInfo_v3, 12030 cuStreamGetCaptureInfo_v3_ptsz] (stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, edges: *mut *const c_void, count: *mut usize);
        /// Begins a capture: from here on, the stream records a graph instead of running.
        cuStreamBeginCapture [10010 cuStreamBeginCapture_v2, 10010 cuStreamBeginCapture_v2_ptsz] (stream: CUstream, mode: CUstreamCaptureMode);
        /// Ends a capture and returns the graph.
        cuStreamEndCapture [10000 cuStreamEndCapture, 10000 cuStreamEndCapture_ptsz] (stream: CUstream, graph: *mut CUgraph);
        /// Sets which calls are forbidden on the calling thread during captures. Returns the
        /// previous setting.
        cuThreadExchangeStreamCaptureMode [10010 cuThreadExchangeStreamCaptureMode] (mode: *mut CUstreamCaptureMode);

        // ---- graphs ----

        /// Creates an executable graph from a graph.
        cuGraphInstantiateWithFlags [11040 cuGraphInstantiateWithFlags] (executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
        /// Creates an executable graph from a graph. If the creation fails, writes the reason.
        cuGraphInstantiateWithParams [12000 cuGraphInstantiateWithParams, 12000 cuGraphInstantiateWithParams_ptsz] (executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
        /// Uploads an executable graph to the device without launching it, in stream order.
        cuGraphUpload [11010 cuGraphUpload, 11010 cuGraphUpload_ptsz] (executable: CUgraphExec, stream: CUstream);
        /// Launches an executable graph, in stream order.
        cuGraphLaunch [10000 cuGraphLaunch, 10000 cuGraphLaunch_ptsz] (executable: CUgraphExec, stream: CUstream);
        /// Returns a graph's nodes, or their number if `nodes` is null.
        cuGraphGetNodes [10000 cuGraphGetNodes] (graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
        /// Destroys an executable graph. Running launches continue.
        cuGraphExecDestroy [10000 cuGraphExecDestroy] (executable: CUgraphExec);
        /// Destroys a graph. Executable graphs created from it stay valid.
        cuGraphDestroy [10000 cuGraphDestroy] (graph: CUgraph);
        /// Creates a user object. Once no reference is left, the driver calls `destroy`.
        cuUserObjectCreate [11030 cuUserObjectCreate] (object: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint);
        /// Releases the program's references to a user object.
        cuUserObjectRelease [11030 cuUserObjectRelease] (object: CUuserObject, count: c_uint);
        /// Makes a graph hold references to a user object. The references last until the graph, its
        /// executable graphs and all their launches have ended.
        cuGraphRetainUserObject [11030 cuGraphRetainUserObject] (graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
        /// Returns one attribute of the memory that graphs allocate on a device.
        cuDeviceGetGraphMemAttribute [11040 cuDeviceGetGraphMemAttribute] (device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void);
        /// Resets a high-water mark of the memory that graphs allocate on a device.
        cuDeviceSetGraphMemAttribute [11040 cuDeviceSetGraphMemAttribute] (device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void);
        /// Returns to the device the unused memory that graphs allocated.
        cuDeviceGraphMemTrim [11040 cuDeviceGraphMemTrim] (device: CUdevice);

        // ---- events ----

        /// Creates an event.
        cuEventCreate [2000 cuEventCreate] (event: *mut CUevent, flags: c_uint);
        /// Destroys an event.
        cuEventDestroy [4000 cuEventDestroy_v2] (event: CUevent);
        /// Records an event, in stream order.
        cuEventRecord [2000 cuEventRecord, 7000 cuEventRecord_ptsz] (event: CUevent, stream: CUstream);
        /// Records an event, in stream order, with flags.
        cuEventRecordWithFlags [11010 cuEventRecordWithFlags, 11010 cuEventRecordWithFlags_ptsz] (event: CUevent, stream: CUstream, flags: c_uint);
        /// Returns whether the work before the event's last record has completed.
        cuEventQuery [2000 cuEventQuery] (event: CUevent);
        /// Waits until the work before the event's last record has completed.
        cuEventSynchronize [2000 cuEventSynchronize] (event: CUevent);
        /// Returns the milliseconds between two events.
        cuEventElapsedTime [2000 cuEventElapsedTime] (milliseconds: *mut f32, start: CUevent, end: CUevent);
        /// Returns the milliseconds between two events.
        cuEventElapsedTime [12080 cuEventElapsedTime_v2] (milliseconds: *mut f32, start: CUevent, end: CUevent);
        }
    };
}

/// A row of the table of driver functions: one variant of a function, such as `cuMemAlloc_v2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Base name, for `cuGetProcAddress`.
    pub base: &'static str,
    /// Symbol that libcuda exports.
    pub symbol: &'static str,
    /// Version of CUDA that added the variant, 1000 × major + 10 × minor.
    pub since: i32,
    /// Symbol of the per-thread twin, and the version of CUDA that added the twin; `None` if the
    /// variant has no twin.
    pub per_thread: Option<(&'static str, i32)>,
}

macro_rules! rows {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// All rows, in the order of the table.
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

/// Returns the row of [`FUNCTIONS`] with `symbol` as its symbol or its per-thread twin's symbol.
pub fn function(symbol: &str) -> Option<&'static Function> {
    FUNCTIONS
        .iter()
        .find(|row| row.symbol == symbol || row.per_thread.is_some_and(|(name, _)| name == symbol))
}

/// Result of `cuGetProcAddress` for a base name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Symbol of the function.
    Found(&'static str),
    /// No function has that name.
    NotFound,
    /// The function is newer than the requested version.
    VersionTooOld,
}

/// Returns the symbol that `cuGetProcAddress` finds for `base`: the symbol of the newest variant
/// that is not newer than `version`. If `per_thread` is `true` and the function has a per-thread
/// twin, returns the twin's symbol.
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
    fn lookup_finds_newest_allowed_variant() {
        assert_eq!(lookup("cuMemAdvise", 12_010, false), Lookup::Found("cuMemAdvise"));
        assert_eq!(lookup("cuMemAdvise", 12_020, false), Lookup::Found("cuMemAdvise_v2"));
        assert_eq!(lookup("cuMemcpyHtoD", 12_000, true), Lookup::Found("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(lookup("cuMemcpyHtoD", 12_000, false), Lookup::Found("cuMemcpyHtoD_v2"));
        // If only the per-thread twin is too new, the lookup fails, as in a real driver.
        assert_eq!(lookup("cuMemcpyHtoD", 4000, true), Lookup::VersionTooOld);
        assert_eq!(lookup("cuMemcpyHtoD", 4000, false), Lookup::Found("cuMemcpyHtoD_v2"));
        assert_eq!(lookup("cuMemAlloc", 2000, false), Lookup::VersionTooOld);
        assert_eq!(lookup("cuTeleport", 13_000, false), Lookup::NotFound);
    }
}
