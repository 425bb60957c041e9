//! The table of the runtime's functions, declared once.

/// Calls `$callback!` with every function of the runtime that is modelled and returns a code.
///
/// A row is a function, the driver's function that it is in the thread's context (none for one that
/// module `functions` has), its per-thread twin if it has one, and its arguments:
///
/// ```text
/// name [driver, twin] (arguments);
/// ```
macro_rules! runtime_functions {
    ($callback:ident) => {
        $callback! {
        // ---- the runtime itself ----

        /// Returns the version of the runtime.
        cudaRuntimeGetVersion [,] (version: Out<c_int>);
        /// Returns the version of CUDA that the driver supports; 0 if there is no driver.
        cudaDriverGetVersion [,] (version: Out<c_int>);
        /// Starts the collection of a profiler's data.
        cudaProfilerStart [cuProfilerStart,] ();
        /// Stops the collection of a profiler's data.
        cudaProfilerStop [cuProfilerStop,] ();
        /// Returns a function of the driver by base name.
        cudaGetDriverEntryPoint [,cudaGetDriverEntryPoint_ptsz] (symbol: Text, function: Out<*mut c_void>, flags: u64, status: Out<c_int>);
        /// Returns a function of the driver by base name and version.
        cudaGetDriverEntryPointByVersion [,cudaGetDriverEntryPointByVersion_ptsz] (symbol: Text, function: Out<*mut c_void>, version: c_uint, flags: u64, status: Out<c_int>);
        /// Returns one of the driver's private tables.
        cudaGetExportTable [cuGetExportTable,] (table: Out<*const c_void>, id: In<CUuuid>);

        // ---- devices ----

        /// Returns the number of devices.
        cudaGetDeviceCount [,] (count: Out<c_int>);
        /// Returns the thread's device.
        cudaGetDevice [,] (device: Out<c_int>);
        /// Sets the thread's device and makes its primary context current.
        cudaSetDevice [,] (device: c_int);
        /// Creates the primary context of a device, and does not make it current.
        cudaInitDevice [,] (device: c_int, device_flags: c_uint, flags: c_uint);
        /// Returns the first device.
        cudaChooseDevice [,] (device: Out<c_int>, properties: In<c_void>);
        /// Accepts a list of devices, and changes nothing.
        cudaSetValidDevices [,] (devices: Out<c_int>, count: c_int);
        /// Returns how the thread's device waits.
        cudaGetDeviceFlags [,] (flags: Out<c_uint>);
        /// Sets how the thread's device waits.
        cudaSetDeviceFlags [,] (flags: c_uint);
        /// Returns the properties of a device, laid out as in CUDA 13.
        cudaGetDeviceProperties [,] (properties: Out<c_void>, device: c_int);
        /// Returns the properties of a device, laid out as in CUDA 12.
        cudaGetDeviceProperties_v2 [,] (properties: Out<c_void>, device: c_int);
        /// Returns a property of a device.
        cudaDeviceGetAttribute [,] (value: Out<c_int>, attribute: CUdevice_attribute, device: c_int);
        /// Returns a device's place on the PCI bus.
        cudaDeviceGetPCIBusId [,] (id: Out<c_char>, length: c_int, device: c_int);
        /// Returns a device by its place on the PCI bus.
        cudaDeviceGetByPCIBusId [,] (device: Out<c_int>, id: Text);
        /// Waits for all work of the thread's device.
        cudaDeviceSynchronize [cuCtxSynchronize,] ();
        /// Destroys everything that the process has on the thread's device.
        cudaDeviceReset [,] ();
        /// Returns a limit of the thread's device.
        cudaDeviceGetLimit [cuCtxGetLimit,] (value: Out<usize>, limit: c_int);
        /// Sets a limit of the thread's device.
        cudaDeviceSetLimit [cuCtxSetLimit,] (limit: c_int, value: usize);
        /// Returns that no preference between cache and shared memory is set.
        cudaDeviceGetCacheConfig [,] (preference: Out<c_int>);
        /// Accepts a preference between cache and shared memory, and changes nothing.
        cudaDeviceSetCacheConfig [,] (preference: c_int);
        /// Returns the lowest and the highest priority of streams.
        cudaDeviceGetStreamPriorityRange [cuCtxGetStreamPriorityRange,] (least: Out<c_int>, greatest: Out<c_int>);
        /// Returns whether one device can use another's memory.
        cudaDeviceCanAccessPeer [,] (can: Out<c_int>, device: c_int, peer: c_int);
        /// Lets the thread's device use a peer's memory.
        cudaDeviceEnablePeerAccess [,] (peer: c_int, flags: c_uint);
        /// Ends the access of the thread's device to a peer's memory.
        cudaDeviceDisablePeerAccess [,] (peer: c_int);
        /// Returns a property of the connection between two devices.
        cudaDeviceGetP2PAttribute [,] (value: Out<c_int>, attribute: c_int, source: c_int, target: c_int);
        /// Returns the pool that a device has from the start.
        cudaDeviceGetDefaultMemPool [,] (pool: Out<CUmemoryPool>, device: c_int);
        /// Returns the pool that `cudaMallocAsync` allocates from.
        cudaDeviceGetMemPool [,] (pool: Out<CUmemoryPool>, device: c_int);
        /// Sets the pool that `cudaMallocAsync` allocates from.
        cudaDeviceSetMemPool [,] (device: c_int, pool: CUmemoryPool);

        // ---- memory ----

        /// Returns the free and total bytes of the thread's device.
        cudaMemGetInfo [cuMemGetInfo_v2,] (free: Out<usize>, total: Out<usize>);
        /// Allocates device memory. No bytes give a null pointer.
        cudaMalloc [,] (pointer: Out<CUdeviceptr>, bytes: usize);
        /// Allocates device memory in rows, each aligned.
        cudaMallocPitch [,] (pointer: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize);
        /// Allocates pinned host memory.
        cudaMallocHost [,] (pointer: Out<*mut c_void>, bytes: usize);
        /// Allocates pinned host memory, with flags.
        cudaHostAlloc [,] (pointer: Out<*mut c_void>, bytes: usize, flags: c_uint);
        /// Allocates managed memory.
        cudaMallocManaged [cuMemAllocManaged,] (pointer: Out<CUdeviceptr>, bytes: usize, flags: c_uint);
        /// Frees device or managed memory.
        cudaFree [cuMemFree_v2,] (pointer: CUdeviceptr);
        /// Frees pinned host memory.
        cudaFreeHost [,] (pointer: Out<c_void>);
        /// Pins host memory of the caller.
        cudaHostRegister [cuMemHostRegister_v2,] (pointer: Out<c_void>, bytes: usize, flags: c_uint);
        /// Unpins host memory of the caller.
        cudaHostUnregister [cuMemHostUnregister,] (pointer: Out<c_void>);
        /// Returns the address at which the device sees pinned host memory.
        cudaHostGetDevicePointer [cuMemHostGetDevicePointer_v2,] (device_pointer: Out<CUdeviceptr>, pointer: Out<c_void>, flags: c_uint);
        /// Returns the flags with which pinned host memory was allocated.
        cudaHostGetFlags [cuMemHostGetFlags,] (flags: Out<c_uint>, pointer: Out<c_void>);
        /// Returns the kind and the addresses of the memory behind a pointer.
        cudaPointerGetAttributes [,] (attributes: Out<PointerAttributes>, pointer: CUdeviceptr);
        /// Sets how managed memory will be used. The place is a device in CUDA 12 and a location in
        /// 13.
        cudaMemAdvise [,] (pointer: CUdeviceptr, bytes: usize, advice: c_int, place: u64);
        /// Sets how managed memory will be used, with a location.
        cudaMemAdvise_v2 [cuMemAdvise_v2,] (pointer: CUdeviceptr, bytes: usize, advice: c_int, location: CUmemLocation);
        /// Moves managed memory. The place is a device in CUDA 12, followed by the stream, and a
        /// location in 13, with flags between.
        cudaMemPrefetchAsync [,cudaMemPrefetchAsync_ptsz] (pointer: CUdeviceptr, bytes: usize, place: u64, flags_or_stream: usize, stream: CUstream);
        /// Moves managed memory to a location.
        cudaMemPrefetchAsync_v2 [cuMemPrefetchAsync_v2, cudaMemPrefetchAsync_v2_ptsz] (pointer: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream: CUstream);
        /// Returns the advice given for a range of managed memory.
        cudaMemRangeGetAttribute [cuMemRangeGetAttribute,] (data: Out<c_void>, data_bytes: usize, attribute: c_int, pointer: CUdeviceptr, bytes: usize);
        /// Returns several of these attributes.
        cudaMemRangeGetAttributes [cuMemRangeGetAttributes,] (data: Out<*mut c_void>, data_bytes: Out<usize>, attributes: Out<c_int>, count: usize, pointer: CUdeviceptr, bytes: usize);
        /// Sets which streams use managed memory.
        cudaStreamAttachMemAsync [cuStreamAttachMemAsync, cudaStreamAttachMemAsync_ptsz] (stream: CUstream, pointer: CUdeviceptr, bytes: usize, flags: c_uint);

        // ---- copies and fills ----

        /// Copies bytes.
        cudaMemcpy [,cudaMemcpy_ptds] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, kind: c_int);
        /// Copies bytes, in stream order.
        cudaMemcpyAsync [,cudaMemcpyAsync_ptsz] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, kind: c_int, stream: CUstream);
        /// Copies between two devices.
        cudaMemcpyPeer [,] (target: CUdeviceptr, target_device: c_int, source: CUdeviceptr, source_device: c_int, bytes: usize);
        /// Copies between two devices, in stream order.
        cudaMemcpyPeerAsync [,] (target: CUdeviceptr, target_device: c_int, source: CUdeviceptr, source_device: c_int, bytes: usize, stream: CUstream);
        /// Copies a rectangle.
        cudaMemcpy2D [,cudaMemcpy2D_ptds] (target: CUdeviceptr, target_pitch: usize, source: CUdeviceptr, source_pitch: usize, width: usize, height: usize, kind: c_int);
        /// Copies a rectangle, in stream order.
        cudaMemcpy2DAsync [,cudaMemcpy2DAsync_ptsz] (target: CUdeviceptr, target_pitch: usize, source: CUdeviceptr, source_pitch: usize, width: usize, height: usize, kind: c_int, stream: CUstream);
        /// Copies to a variable of the device.
        cudaMemcpyToSymbol [,cudaMemcpyToSymbol_ptds] (symbol: In<c_void>, source: CUdeviceptr, bytes: usize, offset: usize, kind: c_int);
        /// Copies to a variable of the device, in stream order.
        cudaMemcpyToSymbolAsync [,cudaMemcpyToSymbolAsync_ptsz] (symbol: In<c_void>, source: CUdeviceptr, bytes: usize, offset: usize, kind: c_int, stream: CUstream);
        /// Copies from a variable of the device.
        cudaMemcpyFromSymbol [,cudaMemcpyFromSymbol_ptds] (target: CUdeviceptr, symbol: In<c_void>, bytes: usize, offset: usize, kind: c_int);
        /// Copies from a variable of the device, in stream order.
        cudaMemcpyFromSymbolAsync [,cudaMemcpyFromSymbolAsync_ptsz] (target: CUdeviceptr, symbol: In<c_void>, bytes: usize, offset: usize, kind: c_int, stream: CUstream);
        /// Fills bytes.
        cudaMemset [,cudaMemset_ptds] (pointer: CUdeviceptr, value: c_int, bytes: usize);
        /// Fills bytes, in stream order.
        cudaMemsetAsync [,cudaMemsetAsync_ptsz] (pointer: CUdeviceptr, value: c_int, bytes: usize, stream: CUstream);
        /// Fills a rectangle of bytes.
        cudaMemset2D [,cudaMemset2D_ptds] (pointer: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize);
        /// Fills a rectangle of bytes, in stream order.
        cudaMemset2DAsync [,cudaMemset2DAsync_ptsz] (pointer: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize, stream: CUstream);
        /// Returns the address of a variable on the thread's device.
        cudaGetSymbolAddress [,] (pointer: Out<CUdeviceptr>, symbol: In<c_void>);
        /// Returns the size of a variable of the device.
        cudaGetSymbolSize [,] (bytes: Out<usize>, symbol: In<c_void>);

        // ---- pools ----

        /// Allocates memory from the device's pool. No bytes give a null pointer.
        cudaMallocAsync [,cudaMallocAsync_ptsz] (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        /// Allocates memory from a pool.
        cudaMallocFromPoolAsync [,cudaMallocFromPoolAsync_ptsz] (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        /// Frees pool memory at this point of the stream.
        cudaFreeAsync [cuMemFreeAsync, cudaFreeAsync_ptsz] (pointer: CUdeviceptr, stream: CUstream);
        /// Creates a pool.
        cudaMemPoolCreate [cuMemPoolCreate,] (pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>);
        /// Destroys a pool.
        cudaMemPoolDestroy [cuMemPoolDestroy,] (pool: CUmemoryPool);
        /// Returns cached memory to the device until at most `keep` bytes are reserved.
        cudaMemPoolTrimTo [cuMemPoolTrimTo,] (pool: CUmemoryPool, keep: usize);
        /// Sets a property of a pool.
        cudaMemPoolSetAttribute [cuMemPoolSetAttribute,] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        /// Returns a property of a pool.
        cudaMemPoolGetAttribute [cuMemPoolGetAttribute,] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        /// Lets other devices use a pool's memory.
        cudaMemPoolSetAccess [cuMemPoolSetAccess,] (pool: CUmemoryPool, access: In<CUmemAccessDesc>, count: usize);
        /// Returns whether a device may use a pool's memory.
        cudaMemPoolGetAccess [cuMemPoolGetAccess,] (flags: Out<c_int>, pool: CUmemoryPool, location: Out<CUmemLocation>);
        /// Returns the pool that a location has from the start.
        cudaMemGetDefaultMemPool [cuMemGetDefaultMemPool,] (pool: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: c_int);
        /// Returns the pool that a location allocates from.
        cudaMemGetMemPool [cuMemGetMemPool,] (pool: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: c_int);
        /// Sets the pool that a location allocates from.
        cudaMemSetMemPool [cuMemSetMemPool,] (location: Out<CUmemLocation>, kind: c_int, pool: CUmemoryPool);

        // ---- streams ----

        /// Creates a stream.
        cudaStreamCreate [,] (stream: Out<CUstream>);
        /// Creates a stream with flags.
        cudaStreamCreateWithFlags [cuStreamCreate,] (stream: Out<CUstream>, flags: c_uint);
        /// Creates a stream with a priority.
        cudaStreamCreateWithPriority [cuStreamCreateWithPriority,] (stream: Out<CUstream>, flags: c_uint, priority: c_int);
        /// Destroys a stream once its work is done.
        cudaStreamDestroy [cuStreamDestroy_v2,] (stream: CUstream);
        /// Waits for a stream's work.
        cudaStreamSynchronize [cuStreamSynchronize, cudaStreamSynchronize_ptsz] (stream: CUstream);
        /// Returns whether a stream's work is done.
        cudaStreamQuery [cuStreamQuery, cudaStreamQuery_ptsz] (stream: CUstream);
        /// Makes a stream wait for an event.
        cudaStreamWaitEvent [cuStreamWaitEvent, cudaStreamWaitEvent_ptsz] (stream: CUstream, event: CUevent, flags: c_uint);
        /// Calls a host function at this point of the stream, with the stream's status.
        cudaStreamAddCallback [cuStreamAddCallback, cudaStreamAddCallback_ptsz] (stream: CUstream, callback: CUstreamCallback, data: Out<c_void>, flags: c_uint);
        /// Calls a host function at this point of the stream.
        cudaLaunchHostFunc [cuLaunchHostFunc, cudaLaunchHostFunc_ptsz] (stream: CUstream, function: CUhostFn, data: Out<c_void>);
        /// Returns a number that no other stream of the process ever has.
        cudaStreamGetId [cuStreamGetId, cudaStreamGetId_ptsz] (stream: CUstream, id: Out<u64>);
        /// Returns the flags with which a stream was created.
        cudaStreamGetFlags [cuStreamGetFlags, cudaStreamGetFlags_ptsz] (stream: CUstream, flags: Out<c_uint>);
        /// Returns a stream's priority.
        cudaStreamGetPriority [cuStreamGetPriority, cudaStreamGetPriority_ptsz] (stream: CUstream, priority: Out<c_int>);
        /// Returns a stream's device.
        cudaStreamGetDevice [cuStreamGetDevice, cudaStreamGetDevice_ptsz] (stream: CUstream, device: Out<c_int>);

        // ---- captures and graphs ----

        /// Begins a capture.
        cudaStreamBeginCapture [cuStreamBeginCapture_v2, cudaStreamBeginCapture_ptsz] (stream: CUstream, mode: CUstreamCaptureMode);
        /// Ends a capture and returns the graph.
        cudaStreamEndCapture [cuStreamEndCapture, cudaStreamEndCapture_ptsz] (stream: CUstream, graph: Out<CUgraph>);
        /// Returns whether a stream is recording a graph.
        cudaStreamIsCapturing [cuStreamIsCapturing, cudaStreamIsCapturing_ptsz] (stream: CUstream, status: Out<CUstreamCaptureStatus>);
        /// Returns the state of a stream's capture, as in CUDA 13.
        cudaStreamGetCaptureInfo [cuStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo_ptsz] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, edges: Out<*const c_void>, count: Out<usize>);
        /// Returns the state of a stream's capture, as in CUDA 13.
        cudaStreamGetCaptureInfo_v3 [cuStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo_v3_ptsz] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, edges: Out<*const c_void>, count: Out<usize>);
        /// Returns the state of a stream's capture, as in CUDA 12.
        cudaStreamGetCaptureInfo_v2 [cuStreamGetCaptureInfo_v2, cudaStreamGetCaptureInfo_v2_ptsz] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, count: Out<usize>);
        /// Sets which calls captures forbid the calling thread.
        cudaThreadExchangeStreamCaptureMode [cuThreadExchangeStreamCaptureMode,] (mode: Out<CUstreamCaptureMode>);
        /// Returns a graph's nodes, or their number.
        cudaGraphGetNodes [cuGraphGetNodes,] (graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);
        /// Writes an empty graph in the language of Graphviz: the nodes of a graph are not kept.
        cudaGraphDebugDotPrint [,] (graph: CUgraph, path: Text, flags: c_uint);
        /// Creates an executable graph from a graph.
        cudaGraphInstantiate [cuGraphInstantiateWithFlags,] (executable: Out<CUgraphExec>, graph: CUgraph, flags: u64);
        /// Creates an executable graph from a graph.
        cudaGraphInstantiateWithFlags [cuGraphInstantiateWithFlags,] (executable: Out<CUgraphExec>, graph: CUgraph, flags: u64);
        /// Creates an executable graph from a graph, and says why it failed if it did.
        cudaGraphInstantiateWithParams [cuGraphInstantiateWithParams, cudaGraphInstantiateWithParams_ptsz] (executable: Out<CUgraphExec>, graph: CUgraph, parameters: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>);
        /// Prepares a device for an executable graph.
        cudaGraphUpload [cuGraphUpload, cudaGraphUpload_ptsz] (executable: CUgraphExec, stream: CUstream);
        /// Runs a graph's work in the order of a stream.
        cudaGraphLaunch [cuGraphLaunch, cudaGraphLaunch_ptsz] (executable: CUgraphExec, stream: CUstream);
        /// Destroys an executable graph.
        cudaGraphExecDestroy [cuGraphExecDestroy,] (executable: CUgraphExec);
        /// Destroys a graph.
        cudaGraphDestroy [cuGraphDestroy,] (graph: CUgraph);
        /// Returns a figure of the memory that graphs allocate on a device.
        cudaDeviceGetGraphMemAttribute [cuDeviceGetGraphMemAttribute,] (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>);
        /// Resets a high-water mark of the memory that graphs allocate on a device.
        cudaDeviceSetGraphMemAttribute [cuDeviceSetGraphMemAttribute,] (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>);
        /// Returns memory that graphs do not use to the device.
        cudaDeviceGraphMemTrim [cuDeviceGraphMemTrim,] (device: CUdevice);

        // ---- events ----

        /// Creates an event.
        cudaEventCreate [,] (event: Out<CUevent>);
        /// Creates an event with flags.
        cudaEventCreateWithFlags [cuEventCreate,] (event: Out<CUevent>, flags: c_uint);
        /// Destroys an event.
        cudaEventDestroy [cuEventDestroy_v2,] (event: CUevent);
        /// Records an event at this point of a stream.
        cudaEventRecord [cuEventRecord, cudaEventRecord_ptsz] (event: CUevent, stream: CUstream);
        /// Records an event with flags.
        cudaEventRecordWithFlags [cuEventRecordWithFlags, cudaEventRecordWithFlags_ptsz] (event: CUevent, stream: CUstream, flags: c_uint);
        /// Returns whether the stream has passed the event's record.
        cudaEventQuery [cuEventQuery,] (event: CUevent);
        /// Waits until the stream has passed the event's record.
        cudaEventSynchronize [cuEventSynchronize,] (event: CUevent);
        /// Returns the milliseconds between two events.
        cudaEventElapsedTime [cuEventElapsedTime,] (milliseconds: Out<f32>, start: CUevent, end: CUevent);
        /// Returns the milliseconds between two events.
        cudaEventElapsedTime_v2 [cuEventElapsedTime_v2,] (milliseconds: Out<f32>, start: CUevent, end: CUevent);

        // ---- kernels ----

        /// Launches a kernel.
        cudaLaunchKernel [,cudaLaunchKernel_ptsz] (function: In<c_void>, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Launches a kernel whose blocks can wait for each other.
        cudaLaunchCooperativeKernel [,cudaLaunchCooperativeKernel_ptsz] (function: In<c_void>, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Launches a kernel with attributes.
        cudaLaunchKernelExC [,cudaLaunchKernelExC_ptsz] (config: In<LaunchConfig>, function: In<c_void>, arguments: Out<*mut c_void>);
        /// Launches a kernel by its handle.
        __cudaLaunchKernel [,__cudaLaunchKernel_ptsz] (kernel: CUkernel, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Returns the handle of a kernel by the host's function.
        __cudaGetKernel [,] (kernel: Out<CUkernel>, function: In<c_void>);
        /// Returns the handle of a kernel by the host's function.
        cudaGetKernel [,] (kernel: Out<CUkernel>, function: In<c_void>);
        /// Returns the driver's handle of a kernel by the host's function.
        cudaGetFuncBySymbol [,] (function: Out<CUfunction>, symbol: In<c_void>);
        /// Returns the configuration of the launch that the thread makes.
        __cudaPopCallConfiguration [,] (grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<CUstream>);
        /// Returns the properties of a kernel.
        cudaFuncGetAttributes [,] (attributes: Out<FunctionAttributes>, function: In<c_void>);
        /// Sets a property of a kernel.
        cudaFuncSetAttribute [,] (function: In<c_void>, attribute: CUfunction_attribute, value: c_int);
        /// Sets a kernel's preference between cache and shared memory.
        cudaFuncSetCacheConfig [,] (function: In<c_void>, preference: c_int);
        /// Returns the name of a kernel.
        cudaFuncGetName [,] (name: Out<*const c_char>, function: In<c_void>);
        /// Returns the most blocks of a kernel that run on a multiprocessor at once.
        cudaOccupancyMaxActiveBlocksPerMultiprocessor [,] (count: Out<c_int>, function: In<c_void>, block_threads: c_int, shared_bytes: usize);
        /// Returns the most blocks of a kernel that run on a multiprocessor at once, with flags.
        cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags [,] (count: Out<c_int>, function: In<c_void>, block_threads: c_int, shared_bytes: usize, flags: c_uint);
        /// Returns the shared memory that a block can have.
        cudaOccupancyAvailableDynamicSMemPerBlock [,] (bytes: Out<usize>, function: In<c_void>, blocks: c_int, block_threads: c_int);
        /// Returns the largest cluster that a launch can have.
        cudaOccupancyMaxPotentialClusterSize [,] (blocks: Out<c_int>, function: In<c_void>, config: In<LaunchConfig>);
        /// Returns the most clusters of a launch that run at once.
        cudaOccupancyMaxActiveClusters [,] (clusters: Out<c_int>, function: In<c_void>, config: In<LaunchConfig>);
        /// Loads a library of kernels.
        cudaLibraryLoadData [cuLibraryLoadData,] (library: Out<CUlibrary>, image: In<c_void>, jit_options: Out<c_int>, jit_values: Out<*mut c_void>, jit_count: c_uint, options: Out<c_int>, values: Out<*mut c_void>, count: c_uint);
        /// Loads a library of kernels from a file.
        cudaLibraryLoadFromFile [cuLibraryLoadFromFile,] (library: Out<CUlibrary>, file: Text, jit_options: Out<c_int>, jit_values: Out<*mut c_void>, jit_count: c_uint, options: Out<c_int>, values: Out<*mut c_void>, count: c_uint);
        /// Unloads a library of kernels.
        cudaLibraryUnload [cuLibraryUnload,] (library: CUlibrary);
        /// Returns a kernel of a library by name.
        cudaLibraryGetKernel [cuLibraryGetKernel,] (kernel: Out<CUkernel>, library: CUlibrary, name: Text);
        /// Returns a variable of a library by name.
        cudaLibraryGetGlobal [cuLibraryGetGlobal,] (pointer: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text);
        }
    };
}
