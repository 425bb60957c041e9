//! The table of the runtime's functions, declared once.

/// Expands `$callback!` with every modelled function of the runtime that returns a code.
///
/// A row has the function's name, the per-thread twin if one exists, the implementation, and the
/// arguments:
///
/// ```text
/// name | twin [implementation] (arguments);
/// ```
///
/// The implementation is one of these. It runs in the thread's context, unless it follows the word
/// `no_context`:
///
/// * `function`: the driver's function with the same arguments;
/// * `function(expressions)`: the driver's function with those arguments;
/// * `= expression`: an expression of the arguments, an `Outcome`;
/// * nothing: the function of that name in module `functions`.
macro_rules! runtime_functions {
    ($callback:ident) => {
        $callback! {
        // ---- the runtime itself ----

        /// Returns the version of the runtime.
        cudaRuntimeGetVersion [no_context = version.write(version::runtime())] (version: Out<c_int>);
        /// Returns the version of CUDA that the driver supports; 0 if no driver is found.
        cudaDriverGetVersion [no_context = version.write(driver().map_or(0, LibCuda::version))] (version: Out<c_int>);
        /// Starts the collection of a profiler's data.
        cudaProfilerStart [cuProfilerStart] ();
        /// Stops the collection of a profiler's data.
        cudaProfilerStop [cuProfilerStop] ();
        /// Returns the driver's function with this base name.
        cudaGetDriverEntryPoint | cudaGetDriverEntryPoint_ptsz [no_context] (symbol: Text, function: Out<*mut c_void>, flags: u64, status: Out<c_int>);
        /// Returns the driver's function with this base name and version.
        cudaGetDriverEntryPointByVersion | cudaGetDriverEntryPointByVersion_ptsz [no_context] (symbol: Text, function: Out<*mut c_void>, version: c_uint, flags: u64, status: Out<c_int>);
        /// Returns one of the driver's private tables of functions.
        cudaGetExportTable [cuGetExportTable] (table: Out<*const c_void>, id: In<CUuuid>);

        // ---- devices ----

        /// Returns the number of devices.
        cudaGetDeviceCount [no_context cuDeviceGetCount] (count: Out<c_int>);
        /// Returns the thread's device.
        cudaGetDevice [no_context = device.write(context::device()?)] (device: Out<c_int>);
        /// Sets the thread's device and makes its primary context current.
        cudaSetDevice [no_context = context::set_device(device)] (device: c_int);
        /// Creates the primary context of a device, but does not make it current.
        cudaInitDevice [no_context = context::primary(device).map(drop)] (device: c_int, _device_flags: c_uint, _flags: c_uint);
        /// Returns the first device.
        cudaChooseDevice [no_context = driver().and_then(|_| device.write(0))] (device: Out<c_int>, _properties: In<c_void>);
        /// Accepts a list of devices, and changes nothing.
        cudaSetValidDevices [no_context = driver().and_then(|_| devices.require())] (devices: Out<c_int>, _count: c_int);
        /// Returns the flags of the thread's device, such as how threads wait for work.
        cudaGetDeviceFlags [no_context cuDevicePrimaryCtxGetState(context::device()?, flags, &mut 0)] (flags: Out<c_uint>);
        /// Sets the flags of the thread's device, such as how threads wait for work.
        cudaSetDeviceFlags [no_context cuDevicePrimaryCtxSetFlags_v2(context::device()?, flags)] (flags: c_uint);
        /// Returns the properties of a device, laid out as in CUDA 13.
        cudaGetDeviceProperties [no_context = write_properties::<BYTES_IN_13>(properties, device, false)] (properties: Out<c_void>, device: c_int);
        /// Returns the properties of a device, laid out as in CUDA 12.
        cudaGetDeviceProperties_v2 [no_context = write_properties::<BYTES_IN_12>(properties, device, true)] (properties: Out<c_void>, device: c_int);
        /// Returns a property of a device.
        cudaDeviceGetAttribute [no_context cuDeviceGetAttribute] (value: Out<c_int>, attribute: CUdevice_attribute, device: c_int);
        /// Returns a device's address on the PCI bus.
        cudaDeviceGetPCIBusId [no_context cuDeviceGetPCIBusId] (id: Out<c_char>, length: c_int, device: c_int);
        /// Returns the device with this address on the PCI bus.
        cudaDeviceGetByPCIBusId [no_context cuDeviceGetByPCIBusId] (device: Out<c_int>, id: Text);
        /// Waits for all work of the thread's device.
        cudaDeviceSynchronize [cuCtxSynchronize] ();
        /// Destroys all objects of the process on the thread's device.
        cudaDeviceReset [no_context = context::reset().map(forget_objects)] ();
        /// Returns a limit of the thread's device.
        cudaDeviceGetLimit [cuCtxGetLimit] (value: Out<usize>, limit: c_int);
        /// Sets a limit of the thread's device.
        cudaDeviceSetLimit [cuCtxSetLimit] (limit: c_int, value: usize);
        /// Returns that no preference between cache and shared memory is set.
        cudaDeviceGetCacheConfig [= preference.write(0)] (preference: Out<c_int>);
        /// Accepts a preference between cache and shared memory, and changes nothing.
        cudaDeviceSetCacheConfig [= Ok(())] (_preference: c_int);
        /// Returns the lowest and the highest priority of streams.
        cudaDeviceGetStreamPriorityRange [cuCtxGetStreamPriorityRange] (least: Out<c_int>, greatest: Out<c_int>);
        /// Returns whether one device can access the memory of another device.
        cudaDeviceCanAccessPeer [no_context cuDeviceCanAccessPeer] (can: Out<c_int>, device: c_int, peer: c_int);
        /// Allows the thread's device to access the memory of a peer device.
        cudaDeviceEnablePeerAccess [cuCtxEnablePeerAccess(context::primary(peer)?, flags)] (peer: c_int, flags: c_uint);
        /// Ends the thread's device's access to the memory of a peer device.
        cudaDeviceDisablePeerAccess [cuCtxDisablePeerAccess(context::primary(peer)?)] (peer: c_int);
        /// Returns a property of the connection between two devices.
        cudaDeviceGetP2PAttribute [no_context cuDeviceGetP2PAttribute] (value: Out<c_int>, attribute: c_int, source: c_int, target: c_int);
        /// Returns the device's default pool. The driver creates that pool.
        cudaDeviceGetDefaultMemPool [no_context cuDeviceGetDefaultMemPool] (pool: Out<CUmemoryPool>, device: c_int);
        /// Returns the pool that `cudaMallocAsync` allocates from.
        cudaDeviceGetMemPool [no_context cuDeviceGetMemPool] (pool: Out<CUmemoryPool>, device: c_int);
        /// Sets the pool that `cudaMallocAsync` allocates from.
        cudaDeviceSetMemPool [no_context cuDeviceSetMemPool] (device: c_int, pool: CUmemoryPool);

        // ---- memory ----

        /// Returns the free and total bytes of the thread's device.
        cudaMemGetInfo [cuMemGetInfo_v2] (free: Out<usize>, total: Out<usize>);
        /// Allocates device memory. If `bytes` is 0, returns a null pointer.
        cudaMalloc [] (pointer: Out<CUdeviceptr>, bytes: usize);
        /// Allocates device memory in rows, each aligned.
        cudaMallocPitch [] (pointer: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize);
        /// Allocates pinned host memory.
        cudaMallocHost [= functions::cudaHostAlloc((pointer, bytes, 0))] (pointer: Out<*mut c_void>, bytes: usize);
        /// Allocates pinned host memory, with flags.
        cudaHostAlloc [] (pointer: Out<*mut c_void>, bytes: usize, flags: c_uint);
        /// Allocates managed memory.
        cudaMallocManaged [cuMemAllocManaged] (pointer: Out<CUdeviceptr>, bytes: usize, flags: c_uint);
        /// Frees device or managed memory.
        cudaFree [cuMemFree_v2] (pointer: CUdeviceptr);
        /// Frees pinned host memory.
        cudaFreeHost [] (pointer: Out<c_void>);
        /// Pins host memory of the caller.
        cudaHostRegister [cuMemHostRegister_v2] (pointer: Out<c_void>, bytes: usize, flags: c_uint);
        /// Unpins host memory of the caller.
        cudaHostUnregister [cuMemHostUnregister] (pointer: Out<c_void>);
        /// Returns the device address of pinned host memory.
        cudaHostGetDevicePointer [cuMemHostGetDevicePointer_v2] (device_pointer: Out<CUdeviceptr>, pointer: Out<c_void>, flags: c_uint);
        /// Returns the flags with which pinned host memory was allocated.
        cudaHostGetFlags [cuMemHostGetFlags] (flags: Out<c_uint>, pointer: Out<c_void>);
        /// Returns the kind and the addresses of the memory that a pointer points to.
        cudaPointerGetAttributes [] (attributes: Out<PointerAttributes>, pointer: CUdeviceptr);
        /// Advises the driver how managed memory will be used. `place` is a device in CUDA 12, and
        /// a location in CUDA 13.
        cudaMemAdvise [cuMemAdvise_v2(pointer, bytes, advice, location(place))] (pointer: CUdeviceptr, bytes: usize, advice: c_int, place: u64);
        /// Advises the driver how managed memory will be used, and at which location.
        cudaMemAdvise_v2 [cuMemAdvise_v2] (pointer: CUdeviceptr, bytes: usize, advice: c_int, location: CUmemLocation);
        /// Prefetches managed memory. In CUDA 12, `place` is a device, and the next argument is the
        /// stream. In CUDA 13, `place` is a location, and the next arguments are flags and the
        /// stream.
        cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz [] (pointer: CUdeviceptr, bytes: usize, place: u64, flags_or_stream: usize, stream: CUstream);
        /// Prefetches managed memory to a location.
        cudaMemPrefetchAsync_v2 | cudaMemPrefetchAsync_v2_ptsz [cuMemPrefetchAsync_v2] (pointer: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream: CUstream);
        /// Returns one attribute of a range of managed memory: advice given, or the last prefetch.
        cudaMemRangeGetAttribute [cuMemRangeGetAttribute] (data: Out<c_void>, data_bytes: usize, attribute: c_int, pointer: CUdeviceptr, bytes: usize);
        /// Returns several attributes of a range of managed memory.
        cudaMemRangeGetAttributes [cuMemRangeGetAttributes] (data: Out<*mut c_void>, data_bytes: Out<usize>, attributes: Out<c_int>, count: usize, pointer: CUdeviceptr, bytes: usize);
        /// Sets, in stream order, which streams may use managed memory.
        cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz [cuStreamAttachMemAsync] (stream: CUstream, pointer: CUdeviceptr, bytes: usize, flags: c_uint);

        // ---- copies and fills ----

        /// Copies bytes.
        cudaMemcpy | cudaMemcpy_ptds [] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, kind: c_int);
        /// Copies bytes, in stream order.
        cudaMemcpyAsync | cudaMemcpyAsync_ptsz [] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, kind: c_int, stream: CUstream);
        /// Copies between two devices.
        cudaMemcpyPeer [cuMemcpyPeer(target, context::primary(target_device)?, source, context::primary(source_device)?, bytes)] (target: CUdeviceptr, target_device: c_int, source: CUdeviceptr, source_device: c_int, bytes: usize);
        /// Copies between two devices, in stream order.
        cudaMemcpyPeerAsync [cuMemcpyPeerAsync(target, context::primary(target_device)?, source, context::primary(source_device)?, bytes, stream)] (target: CUdeviceptr, target_device: c_int, source: CUdeviceptr, source_device: c_int, bytes: usize, stream: CUstream);
        /// Copies a rectangle.
        cudaMemcpy2D | cudaMemcpy2D_ptds [cuMemcpy2DUnaligned_v2(&rectangle(kind, (target, target_pitch), (source, source_pitch), (width, height))?)] (target: CUdeviceptr, target_pitch: usize, source: CUdeviceptr, source_pitch: usize, width: usize, height: usize, kind: c_int);
        /// Copies a rectangle, in stream order.
        cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz [cuMemcpy2DAsync_v2(&rectangle(kind, (target, target_pitch), (source, source_pitch), (width, height))?, stream)] (target: CUdeviceptr, target_pitch: usize, source: CUdeviceptr, source_pitch: usize, width: usize, height: usize, kind: c_int, stream: CUstream);
        /// Copies to a device variable.
        cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds [= functions::cudaMemcpy((within(symbol, offset, bytes)?, source, bytes, kind))] (symbol: In<c_void>, source: CUdeviceptr, bytes: usize, offset: usize, kind: c_int);
        /// Copies to a device variable, in stream order.
        cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz [= functions::cudaMemcpyAsync((within(symbol, offset, bytes)?, source, bytes, kind, stream))] (symbol: In<c_void>, source: CUdeviceptr, bytes: usize, offset: usize, kind: c_int, stream: CUstream);
        /// Copies from a device variable.
        cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds [= functions::cudaMemcpy((target, within(symbol, offset, bytes)?, bytes, kind))] (target: CUdeviceptr, symbol: In<c_void>, bytes: usize, offset: usize, kind: c_int);
        /// Copies from a device variable, in stream order.
        cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz [= functions::cudaMemcpyAsync((target, within(symbol, offset, bytes)?, bytes, kind, stream))] (target: CUdeviceptr, symbol: In<c_void>, bytes: usize, offset: usize, kind: c_int, stream: CUstream);
        /// Fills memory with copies of a byte.
        cudaMemset | cudaMemset_ptds [cuMemsetD8_v2(pointer, value as u8, bytes)] (pointer: CUdeviceptr, value: c_int, bytes: usize);
        /// Fills memory with copies of a byte, in stream order.
        cudaMemsetAsync | cudaMemsetAsync_ptsz [cuMemsetD8Async(pointer, value as u8, bytes, stream)] (pointer: CUdeviceptr, value: c_int, bytes: usize, stream: CUstream);
        /// Fills a rectangle of bytes.
        cudaMemset2D | cudaMemset2D_ptds [cuMemsetD2D8_v2(pointer, pitch, value as u8, width, height)] (pointer: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize);
        /// Fills a rectangle of bytes, in stream order.
        cudaMemset2DAsync | cudaMemset2DAsync_ptsz [cuMemsetD2D8Async(pointer, pitch, value as u8, width, height, stream)] (pointer: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize, stream: CUstream);
        /// Returns the address that a device variable has on the thread's device.
        cudaGetSymbolAddress [= pointer.write(within(symbol, 0, 0)?)] (pointer: Out<CUdeviceptr>, symbol: In<c_void>);
        /// Returns the size of a device variable.
        cudaGetSymbolSize [no_context = driver().and_then(|_| bytes.write(kernels::variable_bytes(symbol)?))] (bytes: Out<usize>, symbol: In<c_void>);

        // ---- pools ----

        /// Allocates memory from the device's current pool, in stream order. If `bytes` is 0,
        /// returns a null pointer.
        cudaMallocAsync | cudaMallocAsync_ptsz [] (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        /// Allocates memory from a pool, in stream order.
        cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz [] (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        /// Frees memory of a pool, in stream order.
        cudaFreeAsync | cudaFreeAsync_ptsz [cuMemFreeAsync] (pointer: CUdeviceptr, stream: CUstream);
        /// Creates a pool.
        cudaMemPoolCreate [cuMemPoolCreate] (pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>);
        /// Destroys a pool.
        cudaMemPoolDestroy [cuMemPoolDestroy] (pool: CUmemoryPool);
        /// Returns cached memory to the device until at most `keep` bytes are reserved.
        cudaMemPoolTrimTo [cuMemPoolTrimTo] (pool: CUmemoryPool, keep: usize);
        /// Sets a property of a pool.
        cudaMemPoolSetAttribute [cuMemPoolSetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        /// Returns a property of a pool.
        cudaMemPoolGetAttribute [cuMemPoolGetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        /// Sets which devices may access a pool's memory.
        cudaMemPoolSetAccess [cuMemPoolSetAccess] (pool: CUmemoryPool, access: In<CUmemAccessDesc>, count: usize);
        /// Returns the access of a location to a pool's memory.
        cudaMemPoolGetAccess [cuMemPoolGetAccess] (flags: Out<c_int>, pool: CUmemoryPool, location: Out<CUmemLocation>);
        /// Returns a location's default pool. The driver creates that pool.
        cudaMemGetDefaultMemPool [cuMemGetDefaultMemPool] (pool: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: c_int);
        /// Returns the current pool of a location: the pool that allocations there come from.
        cudaMemGetMemPool [cuMemGetMemPool] (pool: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: c_int);
        /// Sets the current pool of a location: the pool that allocations there come from.
        cudaMemSetMemPool [cuMemSetMemPool] (location: Out<CUmemLocation>, kind: c_int, pool: CUmemoryPool);

        // ---- streams ----

        /// Creates a stream.
        cudaStreamCreate [= create_stream(stream, 0, 0)] (stream: Out<CUstream>);
        /// Creates a stream with flags.
        cudaStreamCreateWithFlags [= create_stream(stream, flags, 0)] (stream: Out<CUstream>, flags: c_uint);
        /// Creates a stream with a priority.
        cudaStreamCreateWithPriority [= create_stream(stream, flags, priority)] (stream: Out<CUstream>, flags: c_uint, priority: c_int);
        /// Destroys a stream once the stream's work is done.
        cudaStreamDestroy [= destroy_stream(stream)] (stream: CUstream);
        /// Waits for a stream's work.
        cudaStreamSynchronize | cudaStreamSynchronize_ptsz [cuStreamSynchronize] (stream: CUstream);
        /// Returns whether a stream's work is done.
        cudaStreamQuery | cudaStreamQuery_ptsz [cuStreamQuery] (stream: CUstream);
        /// Makes a stream wait for an event.
        cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz [cuStreamWaitEvent] (stream: CUstream, event: CUevent, flags: c_uint);
        /// Calls a host function, in stream order, with the stream's status.
        cudaStreamAddCallback | cudaStreamAddCallback_ptsz [cuStreamAddCallback] (stream: CUstream, callback: CUstreamCallback, data: Out<c_void>, flags: c_uint);
        /// Calls a host function, in stream order.
        cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz [cuLaunchHostFunc] (stream: CUstream, function: CUhostFn, data: Out<c_void>);
        /// Returns a stream's id. The process never reuses the id.
        cudaStreamGetId | cudaStreamGetId_ptsz [cuStreamGetId] (stream: CUstream, id: Out<u64>);
        /// Returns the flags with which a stream was created.
        cudaStreamGetFlags | cudaStreamGetFlags_ptsz [cuStreamGetFlags] (stream: CUstream, flags: Out<c_uint>);
        /// Returns a stream's priority.
        cudaStreamGetPriority | cudaStreamGetPriority_ptsz [cuStreamGetPriority] (stream: CUstream, priority: Out<c_int>);
        /// Returns a stream's device.
        cudaStreamGetDevice | cudaStreamGetDevice_ptsz [cuStreamGetDevice] (stream: CUstream, device: Out<c_int>);

        // ---- captures and graphs ----

        /// Begins a capture.
        cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz [cuStreamBeginCapture_v2] (stream: CUstream, mode: CUstreamCaptureMode);
        /// Ends a capture and returns the graph.
        cudaStreamEndCapture | cudaStreamEndCapture_ptsz [cuStreamEndCapture] (stream: CUstream, graph: Out<CUgraph>);
        /// Returns whether a stream is recording a graph.
        cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz [cuStreamIsCapturing] (stream: CUstream, status: Out<CUstreamCaptureStatus>);
        /// Returns the state of a stream's capture. Has CUDA 13's arguments.
        cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz [cuStreamGetCaptureInfo_v3] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, edges: Out<*const c_void>, count: Out<usize>);
        /// Returns the state of a stream's capture. Has CUDA 13's arguments.
        cudaStreamGetCaptureInfo_v3 | cudaStreamGetCaptureInfo_v3_ptsz [cuStreamGetCaptureInfo_v3] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, edges: Out<*const c_void>, count: Out<usize>);
        /// Returns the state of a stream's capture. Has CUDA 12's arguments.
        cudaStreamGetCaptureInfo_v2 | cudaStreamGetCaptureInfo_v2_ptsz [cuStreamGetCaptureInfo_v2] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, count: Out<usize>);
        /// Sets which calls are forbidden on the calling thread during captures. Returns the
        /// previous setting.
        cudaThreadExchangeStreamCaptureMode [cuThreadExchangeStreamCaptureMode] (mode: Out<CUstreamCaptureMode>);
        /// Returns a graph's nodes, or their number if `nodes` is null.
        cudaGraphGetNodes [cuGraphGetNodes] (graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);
        /// Writes an empty graph in Graphviz format, because a graph's nodes are not recorded.
        cudaGraphDebugDotPrint [no_context] (graph: CUgraph, path: Text, flags: c_uint);
        /// Creates an executable graph from a graph.
        cudaGraphInstantiate [cuGraphInstantiateWithFlags] (executable: Out<CUgraphExec>, graph: CUgraph, flags: u64);
        /// Creates an executable graph from a graph.
        cudaGraphInstantiateWithFlags [cuGraphInstantiateWithFlags] (executable: Out<CUgraphExec>, graph: CUgraph, flags: u64);
        /// Creates an executable graph from a graph. If the creation fails, writes the reason.
        cudaGraphInstantiateWithParams | cudaGraphInstantiateWithParams_ptsz [cuGraphInstantiateWithParams] (executable: Out<CUgraphExec>, graph: CUgraph, parameters: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>);
        /// Uploads an executable graph to the device without launching it, in stream order.
        cudaGraphUpload | cudaGraphUpload_ptsz [cuGraphUpload] (executable: CUgraphExec, stream: CUstream);
        /// Launches an executable graph, in stream order.
        cudaGraphLaunch | cudaGraphLaunch_ptsz [cuGraphLaunch] (executable: CUgraphExec, stream: CUstream);
        /// Destroys an executable graph.
        cudaGraphExecDestroy [cuGraphExecDestroy] (executable: CUgraphExec);
        /// Destroys a graph.
        cudaGraphDestroy [cuGraphDestroy] (graph: CUgraph);
        /// Returns a figure of the memory that graphs allocate on a device.
        cudaDeviceGetGraphMemAttribute [cuDeviceGetGraphMemAttribute] (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>);
        /// Resets a high-water mark of the memory that graphs allocate on a device.
        cudaDeviceSetGraphMemAttribute [cuDeviceSetGraphMemAttribute] (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>);
        /// Returns to the device the unused memory that graphs allocated.
        cudaDeviceGraphMemTrim [cuDeviceGraphMemTrim] (device: CUdevice);

        // ---- events ----

        /// Creates an event.
        cudaEventCreate [cuEventCreate(event, 0_u32)] (event: Out<CUevent>);
        /// Creates an event with flags.
        cudaEventCreateWithFlags [cuEventCreate] (event: Out<CUevent>, flags: c_uint);
        /// Destroys an event.
        cudaEventDestroy [cuEventDestroy_v2] (event: CUevent);
        /// Records an event, in stream order.
        cudaEventRecord | cudaEventRecord_ptsz [cuEventRecord] (event: CUevent, stream: CUstream);
        /// Records an event, in stream order, with flags.
        cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz [cuEventRecordWithFlags] (event: CUevent, stream: CUstream, flags: c_uint);
        /// Returns whether the work that was captured by the event's last record has completed.
        cudaEventQuery [cuEventQuery] (event: CUevent);
        /// Waits until the work that was captured by the event's last record has completed.
        cudaEventSynchronize [cuEventSynchronize] (event: CUevent);
        /// Returns the milliseconds between two events.
        cudaEventElapsedTime [cuEventElapsedTime] (milliseconds: Out<f32>, start: CUevent, end: CUevent);
        /// Returns the milliseconds between two events.
        cudaEventElapsedTime_v2 [cuEventElapsedTime_v2] (milliseconds: Out<f32>, start: CUevent, end: CUevent);

        // ---- kernels ----

        /// Launches a kernel.
        cudaLaunchKernel | cudaLaunchKernel_ptsz [= launch(kernels::function(function)?, grid, block, arguments, shared_bytes, stream)] (function: In<c_void>, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Launches a kernel whose blocks can wait for each other.
        cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz [] (function: In<c_void>, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Launches a kernel with attributes.
        cudaLaunchKernelExC | cudaLaunchKernelExC_ptsz [] (config: In<LaunchConfig>, function: In<c_void>, arguments: Out<*mut c_void>);
        /// Launches the kernel that a handle names.
        __cudaLaunchKernel | __cudaLaunchKernel_ptsz [= launch(CUfunction(kernel.0), grid, block, arguments, shared_bytes, stream)] (kernel: CUkernel, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Returns the handle of the kernel that is registered for a host function.
        __cudaGetKernel [= kernel.write(kernels::kernel(function)?)] (kernel: Out<CUkernel>, function: In<c_void>);
        /// Returns the handle of the kernel that is registered for a host function.
        cudaGetKernel [= kernel.write(kernels::kernel(function)?)] (kernel: Out<CUkernel>, function: In<c_void>);
        /// Returns the driver's function handle of the kernel that is registered for a host
        /// function.
        cudaGetFuncBySymbol [= function.write(kernels::function(symbol)?)] (function: Out<CUfunction>, symbol: In<c_void>);
        /// Returns the configuration of the launch that the calling thread began last.
        __cudaPopCallConfiguration [no_context] (grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<CUstream>);
        /// Returns the properties of a kernel.
        cudaFuncGetAttributes [] (attributes: Out<FunctionAttributes>, function: In<c_void>);
        /// Sets a property of a kernel.
        cudaFuncSetAttribute [cuFuncSetAttribute(kernels::function(function)?, attribute, value)] (function: In<c_void>, attribute: CUfunction_attribute, value: c_int);
        /// Sets a kernel's preference between cache and shared memory.
        cudaFuncSetCacheConfig [cuFuncSetCacheConfig(kernels::function(function)?, preference)] (function: In<c_void>, preference: c_int);
        /// Returns the name of a kernel.
        cudaFuncGetName [no_context = name.write(kernels::name(function)?)] (name: Out<*const c_char>, function: In<c_void>);
        /// Returns how many blocks of a kernel can run on a multiprocessor at once.
        cudaOccupancyMaxActiveBlocksPerMultiprocessor [cuOccupancyMaxActiveBlocksPerMultiprocessor(count, kernels::function(function)?, block_threads, shared_bytes)] (count: Out<c_int>, function: In<c_void>, block_threads: c_int, shared_bytes: usize);
        /// Returns how many blocks of a kernel can run on a multiprocessor at once. Takes flags.
        cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags [cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, kernels::function(function)?, block_threads, shared_bytes, flags)] (count: Out<c_int>, function: In<c_void>, block_threads: c_int, shared_bytes: usize, flags: c_uint);
        /// Returns the dynamic shared memory that each block can have if `blocks` blocks run on a
        /// multiprocessor at once.
        cudaOccupancyAvailableDynamicSMemPerBlock [cuOccupancyAvailableDynamicSMemPerBlock(bytes, kernels::function(function)?, blocks, block_threads)] (bytes: Out<usize>, function: In<c_void>, blocks: c_int, block_threads: c_int);
        /// Returns the largest cluster that a launch can have.
        cudaOccupancyMaxPotentialClusterSize [cuOccupancyMaxPotentialClusterSize(blocks, kernels::function(function)?, &driver_config(config)?)] (blocks: Out<c_int>, function: In<c_void>, config: In<LaunchConfig>);
        /// Returns how many clusters of a launch can run on the device at once.
        cudaOccupancyMaxActiveClusters [cuOccupancyMaxActiveClusters(clusters, kernels::function(function)?, &driver_config(config)?)] (clusters: Out<c_int>, function: In<c_void>, config: In<LaunchConfig>);
        /// Loads a library of kernels.
        cudaLibraryLoadData [cuLibraryLoadData] (library: Out<CUlibrary>, image: In<c_void>, jit_options: Out<c_int>, jit_values: Out<*mut c_void>, jit_count: c_uint, options: Out<c_int>, values: Out<*mut c_void>, count: c_uint);
        /// Loads a library of kernels from a file.
        cudaLibraryLoadFromFile [cuLibraryLoadFromFile] (library: Out<CUlibrary>, file: Text, jit_options: Out<c_int>, jit_values: Out<*mut c_void>, jit_count: c_uint, options: Out<c_int>, values: Out<*mut c_void>, count: c_uint);
        /// Unloads a library of kernels.
        cudaLibraryUnload [cuLibraryUnload] (library: CUlibrary);
        /// Returns the kernel with this name from a library.
        cudaLibraryGetKernel [cuLibraryGetKernel] (kernel: Out<CUkernel>, library: CUlibrary, name: Text);
        /// Returns the variable with this name from a library.
        cudaLibraryGetGlobal [cuLibraryGetGlobal] (pointer: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text);
        }
    };
}
