//! The table of the runtime's functions, declared once.

/// Expands `$callback!` with every modelled function of the runtime that returns a code.
///
/// A row has the function's name, the per-thread twin if one exists, the implementation, and the
/// arguments. NVIDIA's reference describes the functions. Comments state how functions differ from
/// it. A row has this form:
///
/// ```text
/// name | twin [implementation] (arguments);
/// ```
///
/// The implementation runs in the thread's context, unless the word `no_context` precedes it. It is
/// one of the following.
///
/// * `function`: the driver's function with the same arguments;
/// * `function(expressions)`: the driver's function with the expressions as arguments;
/// * `= expression`: an expression that uses the arguments and returns an `Outcome`;
/// * empty: the function with the row's name in module `functions`.
macro_rules! runtime_functions {
    ($callback:ident) => {
        $callback! {
        // ---- the runtime itself ----

        cudaRuntimeGetVersion [no_context = version.write(version::runtime())] (version: Out<c_int>);
        /// Returns the version of CUDA that the driver supports; 0 if no driver is found.
        cudaDriverGetVersion [no_context = version.write(driver().map_or(0, LibCuda::version))] (version: Out<c_int>);
        cudaProfilerStart [cuProfilerStart] ();
        cudaProfilerStop [cuProfilerStop] ();
        cudaGetDriverEntryPoint | cudaGetDriverEntryPoint_ptsz [no_context] (symbol: Text, function: Out<*mut c_void>, flags: u64, status: Out<c_int>);
        cudaGetDriverEntryPointByVersion | cudaGetDriverEntryPointByVersion_ptsz [no_context] (symbol: Text, function: Out<*mut c_void>, version: c_uint, flags: u64, status: Out<c_int>);
        /// Returns one of the driver's private function tables.
        cudaGetExportTable [cuGetExportTable] (table: Out<*const c_void>, id: In<CUuuid>);

        // ---- devices ----

        cudaGetDeviceCount [no_context cuDeviceGetCount] (count: Out<c_int>);
        cudaGetDevice [no_context = device.write(context::device()?)] (device: Out<c_int>);
        /// Sets the thread's device, and makes the device's primary context current.
        cudaSetDevice [no_context = context::set_device(device)] (device: c_int);
        /// Creates the primary context of a device, but does not make it current.
        cudaInitDevice [no_context = context::primary(device).map(drop)] (device: c_int, _device_flags: c_uint, _flags: c_uint);
        /// Returns the first device.
        cudaChooseDevice [no_context = driver().and_then(|_| device.write(0))] (device: Out<c_int>, _properties: In<c_void>);
        /// Checks that `devices` is not null, and ignores the list.
        cudaSetValidDevices [no_context = driver().and_then(|_| devices.require())] (devices: Out<c_int>, _count: c_int);
        cudaGetDeviceFlags [no_context cuDevicePrimaryCtxGetState(context::device()?, flags, &mut 0)] (flags: Out<c_uint>);
        cudaSetDeviceFlags [no_context cuDevicePrimaryCtxSetFlags_v2(context::device()?, flags)] (flags: c_uint);
        /// Returns the properties of a device, laid out as in CUDA 13.
        cudaGetDeviceProperties [no_context = write_properties::<BYTES_IN_13>(properties, device, false)] (properties: Out<c_void>, device: c_int);
        /// Returns the properties of a device, laid out as in CUDA 12.
        cudaGetDeviceProperties_v2 [no_context = write_properties::<BYTES_IN_12>(properties, device, true)] (properties: Out<c_void>, device: c_int);
        cudaDeviceGetAttribute [no_context cuDeviceGetAttribute] (value: Out<c_int>, attribute: CUdevice_attribute, device: c_int);
        cudaDeviceGetPCIBusId [no_context cuDeviceGetPCIBusId] (id: Out<c_char>, length: c_int, device: c_int);
        cudaDeviceGetByPCIBusId [no_context cuDeviceGetByPCIBusId] (device: Out<c_int>, id: Text);
        cudaDeviceSynchronize [cuCtxSynchronize] ();
        cudaDeviceReset [no_context = context::reset().map(forget_objects)] ();
        cudaDeviceGetLimit [cuCtxGetLimit] (value: Out<usize>, limit: c_int);
        cudaDeviceSetLimit [cuCtxSetLimit] (limit: c_int, value: usize);
        /// Returns that no cache preference is set.
        cudaDeviceGetCacheConfig [= preference.write(0)] (preference: Out<c_int>);
        /// Ignores the preference between cache and shared memory.
        cudaDeviceSetCacheConfig [= Ok(())] (_preference: c_int);
        cudaDeviceGetStreamPriorityRange [cuCtxGetStreamPriorityRange] (least: Out<c_int>, greatest: Out<c_int>);
        cudaDeviceCanAccessPeer [no_context cuDeviceCanAccessPeer] (can: Out<c_int>, device: c_int, peer: c_int);
        cudaDeviceEnablePeerAccess [cuCtxEnablePeerAccess(context::primary(peer)?, flags)] (peer: c_int, flags: c_uint);
        cudaDeviceDisablePeerAccess [cuCtxDisablePeerAccess(context::primary(peer)?)] (peer: c_int);
        cudaDeviceGetP2PAttribute [no_context cuDeviceGetP2PAttribute] (value: Out<c_int>, attribute: c_int, source: c_int, target: c_int);
        cudaDeviceGetDefaultMemPool [no_context cuDeviceGetDefaultMemPool] (pool: Out<CUmemoryPool>, device: c_int);
        cudaDeviceGetMemPool [no_context cuDeviceGetMemPool] (pool: Out<CUmemoryPool>, device: c_int);
        cudaDeviceSetMemPool [no_context cuDeviceSetMemPool] (device: c_int, pool: CUmemoryPool);

        // ---- memory ----

        cudaMemGetInfo [cuMemGetInfo_v2] (free: Out<usize>, total: Out<usize>);
        /// Allocates device memory. If `bytes` is 0, returns a null pointer.
        cudaMalloc [] (pointer: Out<CUdeviceptr>, bytes: usize);
        cudaMallocPitch [] (pointer: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize);
        cudaMallocHost [= functions::cudaHostAlloc((pointer, bytes, 0))] (pointer: Out<*mut c_void>, bytes: usize);
        cudaHostAlloc [] (pointer: Out<*mut c_void>, bytes: usize, flags: c_uint);
        cudaMallocManaged [cuMemAllocManaged] (pointer: Out<CUdeviceptr>, bytes: usize, flags: c_uint);
        cudaFree [cuMemFree_v2] (pointer: CUdeviceptr);
        cudaFreeHost [] (pointer: Out<c_void>);
        cudaHostRegister [cuMemHostRegister_v2] (pointer: Out<c_void>, bytes: usize, flags: c_uint);
        cudaHostUnregister [cuMemHostUnregister] (pointer: Out<c_void>);
        cudaHostGetDevicePointer [cuMemHostGetDevicePointer_v2] (device_pointer: Out<CUdeviceptr>, pointer: Out<c_void>, flags: c_uint);
        cudaHostGetFlags [cuMemHostGetFlags] (flags: Out<c_uint>, pointer: Out<c_void>);
        cudaPointerGetAttributes [] (attributes: Out<PointerAttributes>, pointer: CUdeviceptr);
        /// Advises the driver on the use of managed memory. `place` is a device in CUDA 12, and a
        /// location in CUDA 13.
        cudaMemAdvise [cuMemAdvise_v2(pointer, bytes, advice, location(place))] (pointer: CUdeviceptr, bytes: usize, advice: c_int, place: u64);
        cudaMemAdvise_v2 [cuMemAdvise_v2] (pointer: CUdeviceptr, bytes: usize, advice: c_int, location: CUmemLocation);
        /// Prefetches managed memory. In CUDA 12, `place` is a device, and the next argument is the
        /// stream. In CUDA 13, `place` is a location, and the next arguments are flags and the
        /// stream.
        cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz [] (pointer: CUdeviceptr, bytes: usize, place: u64, flags_or_stream: usize, stream: CUstream);
        cudaMemPrefetchAsync_v2 | cudaMemPrefetchAsync_v2_ptsz [cuMemPrefetchAsync_v2] (pointer: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream: CUstream);
        cudaMemRangeGetAttribute [cuMemRangeGetAttribute] (data: Out<c_void>, data_bytes: usize, attribute: c_int, pointer: CUdeviceptr, bytes: usize);
        cudaMemRangeGetAttributes [cuMemRangeGetAttributes] (data: Out<*mut c_void>, data_bytes: Out<usize>, attributes: Out<c_int>, count: usize, pointer: CUdeviceptr, bytes: usize);
        cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz [cuStreamAttachMemAsync] (stream: CUstream, pointer: CUdeviceptr, bytes: usize, flags: c_uint);

        // ---- copies and fills ----

        cudaMemcpy | cudaMemcpy_ptds [] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, kind: c_int);
        cudaMemcpyAsync | cudaMemcpyAsync_ptsz [] (target: CUdeviceptr, source: CUdeviceptr, bytes: usize, kind: c_int, stream: CUstream);
        cudaMemcpyPeer [cuMemcpyPeer(target, context::primary(target_device)?, source, context::primary(source_device)?, bytes)] (target: CUdeviceptr, target_device: c_int, source: CUdeviceptr, source_device: c_int, bytes: usize);
        cudaMemcpyPeerAsync [cuMemcpyPeerAsync(target, context::primary(target_device)?, source, context::primary(source_device)?, bytes, stream)] (target: CUdeviceptr, target_device: c_int, source: CUdeviceptr, source_device: c_int, bytes: usize, stream: CUstream);
        cudaMemcpy2D | cudaMemcpy2D_ptds [cuMemcpy2DUnaligned_v2(&rectangle(kind, (target, target_pitch), (source, source_pitch), (width, height))?)] (target: CUdeviceptr, target_pitch: usize, source: CUdeviceptr, source_pitch: usize, width: usize, height: usize, kind: c_int);
        cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz [cuMemcpy2DAsync_v2(&rectangle(kind, (target, target_pitch), (source, source_pitch), (width, height))?, stream)] (target: CUdeviceptr, target_pitch: usize, source: CUdeviceptr, source_pitch: usize, width: usize, height: usize, kind: c_int, stream: CUstream);
        cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds [= functions::cudaMemcpy((within(symbol, offset, bytes)?, source, bytes, kind))] (symbol: In<c_void>, source: CUdeviceptr, bytes: usize, offset: usize, kind: c_int);
        cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz [= functions::cudaMemcpyAsync((within(symbol, offset, bytes)?, source, bytes, kind, stream))] (symbol: In<c_void>, source: CUdeviceptr, bytes: usize, offset: usize, kind: c_int, stream: CUstream);
        cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds [= functions::cudaMemcpy((target, within(symbol, offset, bytes)?, bytes, kind))] (target: CUdeviceptr, symbol: In<c_void>, bytes: usize, offset: usize, kind: c_int);
        cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz [= functions::cudaMemcpyAsync((target, within(symbol, offset, bytes)?, bytes, kind, stream))] (target: CUdeviceptr, symbol: In<c_void>, bytes: usize, offset: usize, kind: c_int, stream: CUstream);
        cudaMemset | cudaMemset_ptds [cuMemsetD8_v2(pointer, value as u8, bytes)] (pointer: CUdeviceptr, value: c_int, bytes: usize);
        cudaMemsetAsync | cudaMemsetAsync_ptsz [cuMemsetD8Async(pointer, value as u8, bytes, stream)] (pointer: CUdeviceptr, value: c_int, bytes: usize, stream: CUstream);
        cudaMemset2D | cudaMemset2D_ptds [cuMemsetD2D8_v2(pointer, pitch, value as u8, width, height)] (pointer: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize);
        cudaMemset2DAsync | cudaMemset2DAsync_ptsz [cuMemsetD2D8Async(pointer, pitch, value as u8, width, height, stream)] (pointer: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize, stream: CUstream);
        /// Returns the address of a device variable on the thread's device.
        cudaGetSymbolAddress [= pointer.write(within(symbol, 0, 0)?)] (pointer: Out<CUdeviceptr>, symbol: In<c_void>);
        cudaGetSymbolSize [no_context = driver().and_then(|_| bytes.write(kernels::variable_bytes(symbol)?))] (bytes: Out<usize>, symbol: In<c_void>);

        // ---- pools ----

        /// Allocates memory from the device's current pool, in stream order. If `bytes` is 0,
        /// returns a null pointer.
        cudaMallocAsync | cudaMallocAsync_ptsz [] (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream);
        cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz [] (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        cudaFreeAsync | cudaFreeAsync_ptsz [cuMemFreeAsync] (pointer: CUdeviceptr, stream: CUstream);
        cudaMemPoolCreate [cuMemPoolCreate] (pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>);
        cudaMemPoolDestroy [cuMemPoolDestroy] (pool: CUmemoryPool);
        cudaMemPoolTrimTo [cuMemPoolTrimTo] (pool: CUmemoryPool, keep: usize);
        cudaMemPoolSetAttribute [cuMemPoolSetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        cudaMemPoolGetAttribute [cuMemPoolGetAttribute] (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>);
        cudaMemPoolSetAccess [cuMemPoolSetAccess] (pool: CUmemoryPool, access: In<CUmemAccessDesc>, count: usize);
        cudaMemPoolGetAccess [cuMemPoolGetAccess] (flags: Out<c_int>, pool: CUmemoryPool, location: Out<CUmemLocation>);
        cudaMemGetDefaultMemPool [cuMemGetDefaultMemPool] (pool: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: c_int);
        cudaMemGetMemPool [cuMemGetMemPool] (pool: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: c_int);
        cudaMemSetMemPool [cuMemSetMemPool] (location: Out<CUmemLocation>, kind: c_int, pool: CUmemoryPool);

        // ---- streams ----

        cudaStreamCreate [= create_stream(stream, 0, 0)] (stream: Out<CUstream>);
        cudaStreamCreateWithFlags [= create_stream(stream, flags, 0)] (stream: Out<CUstream>, flags: c_uint);
        cudaStreamCreateWithPriority [= create_stream(stream, flags, priority)] (stream: Out<CUstream>, flags: c_uint, priority: c_int);
        cudaStreamDestroy [= destroy_stream(stream)] (stream: CUstream);
        cudaStreamSynchronize | cudaStreamSynchronize_ptsz [cuStreamSynchronize] (stream: CUstream);
        cudaStreamQuery | cudaStreamQuery_ptsz [cuStreamQuery] (stream: CUstream);
        cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz [cuStreamWaitEvent] (stream: CUstream, event: CUevent, flags: c_uint);
        cudaStreamAddCallback | cudaStreamAddCallback_ptsz [cuStreamAddCallback] (stream: CUstream, callback: CUstreamCallback, data: Out<c_void>, flags: c_uint);
        cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz [cuLaunchHostFunc] (stream: CUstream, function: CUhostFn, data: Out<c_void>);
        cudaStreamGetId | cudaStreamGetId_ptsz [cuStreamGetId] (stream: CUstream, id: Out<u64>);
        cudaStreamGetFlags | cudaStreamGetFlags_ptsz [cuStreamGetFlags] (stream: CUstream, flags: Out<c_uint>);
        cudaStreamGetPriority | cudaStreamGetPriority_ptsz [cuStreamGetPriority] (stream: CUstream, priority: Out<c_int>);
        cudaStreamGetDevice | cudaStreamGetDevice_ptsz [cuStreamGetDevice] (stream: CUstream, device: Out<c_int>);

        // ---- captures and graphs ----

        cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz [cuStreamBeginCapture_v2] (stream: CUstream, mode: CUstreamCaptureMode);
        cudaStreamEndCapture | cudaStreamEndCapture_ptsz [cuStreamEndCapture] (stream: CUstream, graph: Out<CUgraph>);
        cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz [cuStreamIsCapturing] (stream: CUstream, status: Out<CUstreamCaptureStatus>);
        /// Returns the state of a stream's capture. Takes CUDA 13's arguments.
        cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz [cuStreamGetCaptureInfo_v3] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, edges: Out<*const c_void>, count: Out<usize>);
        /// Returns the state of a stream's capture. Takes CUDA 13's arguments.
        cudaStreamGetCaptureInfo_v3 | cudaStreamGetCaptureInfo_v3_ptsz [cuStreamGetCaptureInfo_v3] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, edges: Out<*const c_void>, count: Out<usize>);
        /// Returns the state of a stream's capture. Takes CUDA 12's arguments.
        cudaStreamGetCaptureInfo_v2 | cudaStreamGetCaptureInfo_v2_ptsz [cuStreamGetCaptureInfo_v2] (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>, count: Out<usize>);
        cudaThreadExchangeStreamCaptureMode [cuThreadExchangeStreamCaptureMode] (mode: Out<CUstreamCaptureMode>);
        cudaGraphGetNodes [cuGraphGetNodes] (graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);
        /// Writes an empty graph in Graphviz format, because nodes are not recorded.
        cudaGraphDebugDotPrint [no_context] (graph: CUgraph, path: Text, flags: c_uint);
        cudaGraphInstantiate [cuGraphInstantiateWithFlags] (executable: Out<CUgraphExec>, graph: CUgraph, flags: u64);
        cudaGraphInstantiateWithFlags [cuGraphInstantiateWithFlags] (executable: Out<CUgraphExec>, graph: CUgraph, flags: u64);
        cudaGraphInstantiateWithParams | cudaGraphInstantiateWithParams_ptsz [cuGraphInstantiateWithParams] (executable: Out<CUgraphExec>, graph: CUgraph, parameters: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>);
        cudaGraphUpload | cudaGraphUpload_ptsz [cuGraphUpload] (executable: CUgraphExec, stream: CUstream);
        cudaGraphLaunch | cudaGraphLaunch_ptsz [cuGraphLaunch] (executable: CUgraphExec, stream: CUstream);
        cudaGraphExecDestroy [cuGraphExecDestroy] (executable: CUgraphExec);
        cudaGraphDestroy [cuGraphDestroy] (graph: CUgraph);
        cudaDeviceGetGraphMemAttribute [cuDeviceGetGraphMemAttribute] (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>);
        cudaDeviceSetGraphMemAttribute [cuDeviceSetGraphMemAttribute] (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>);
        cudaDeviceGraphMemTrim [cuDeviceGraphMemTrim] (device: CUdevice);

        // ---- events ----

        cudaEventCreate [cuEventCreate(event, 0_u32)] (event: Out<CUevent>);
        cudaEventCreateWithFlags [cuEventCreate] (event: Out<CUevent>, flags: c_uint);
        cudaEventDestroy [cuEventDestroy_v2] (event: CUevent);
        cudaEventRecord | cudaEventRecord_ptsz [cuEventRecord] (event: CUevent, stream: CUstream);
        cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz [cuEventRecordWithFlags] (event: CUevent, stream: CUstream, flags: c_uint);
        cudaEventQuery [cuEventQuery] (event: CUevent);
        cudaEventSynchronize [cuEventSynchronize] (event: CUevent);
        cudaEventElapsedTime [cuEventElapsedTime] (milliseconds: Out<f32>, start: CUevent, end: CUevent);
        cudaEventElapsedTime_v2 [cuEventElapsedTime_v2] (milliseconds: Out<f32>, start: CUevent, end: CUevent);

        // ---- kernels ----

        cudaLaunchKernel | cudaLaunchKernel_ptsz [= launch(kernels::function(function)?, grid, block, arguments, shared_bytes, stream)] (function: In<c_void>, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz [] (function: In<c_void>, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        cudaLaunchKernelExC | cudaLaunchKernelExC_ptsz [] (config: In<LaunchConfig>, function: In<c_void>, arguments: Out<*mut c_void>);
        /// Launches the kernel that a handle names.
        __cudaLaunchKernel | __cudaLaunchKernel_ptsz [= launch(CUfunction(kernel.0), grid, block, arguments, shared_bytes, stream)] (kernel: CUkernel, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream);
        /// Returns the kernel handle for a registered host function.
        __cudaGetKernel [= kernel.write(kernels::kernel(function)?)] (kernel: Out<CUkernel>, function: In<c_void>);
        /// Returns the kernel handle for a registered host function.
        cudaGetKernel [= kernel.write(kernels::kernel(function)?)] (kernel: Out<CUkernel>, function: In<c_void>);
        /// Returns the driver's function handle for a registered host function.
        cudaGetFuncBySymbol [= function.write(kernels::function(symbol)?)] (function: Out<CUfunction>, symbol: In<c_void>);
        /// Pops the configuration that the calling thread pushed last.
        __cudaPopCallConfiguration [no_context] (grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<CUstream>);
        cudaFuncGetAttributes [] (attributes: Out<FunctionAttributes>, function: In<c_void>);
        cudaFuncSetAttribute [cuFuncSetAttribute(kernels::function(function)?, attribute, value)] (function: In<c_void>, attribute: CUfunction_attribute, value: c_int);
        cudaFuncSetCacheConfig [cuFuncSetCacheConfig(kernels::function(function)?, preference)] (function: In<c_void>, preference: c_int);
        cudaFuncGetName [no_context = name.write(kernels::name(function)?)] (name: Out<*const c_char>, function: In<c_void>);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor [cuOccupancyMaxActiveBlocksPerMultiprocessor(count, kernels::function(function)?, block_threads, shared_bytes)] (count: Out<c_int>, function: In<c_void>, block_threads: c_int, shared_bytes: usize);
        cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags [cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, kernels::function(function)?, block_threads, shared_bytes, flags)] (count: Out<c_int>, function: In<c_void>, block_threads: c_int, shared_bytes: usize, flags: c_uint);
        cudaOccupancyAvailableDynamicSMemPerBlock [cuOccupancyAvailableDynamicSMemPerBlock(bytes, kernels::function(function)?, blocks, block_threads)] (bytes: Out<usize>, function: In<c_void>, blocks: c_int, block_threads: c_int);
        cudaOccupancyMaxPotentialClusterSize [cuOccupancyMaxPotentialClusterSize(blocks, kernels::function(function)?, &driver_config(config)?)] (blocks: Out<c_int>, function: In<c_void>, config: In<LaunchConfig>);
        cudaOccupancyMaxActiveClusters [cuOccupancyMaxActiveClusters(clusters, kernels::function(function)?, &driver_config(config)?)] (clusters: Out<c_int>, function: In<c_void>, config: In<LaunchConfig>);
        cudaLibraryLoadData [cuLibraryLoadData] (library: Out<CUlibrary>, image: In<c_void>, jit_options: Out<c_int>, jit_values: Out<*mut c_void>, jit_count: c_uint, options: Out<c_int>, values: Out<*mut c_void>, count: c_uint);
        cudaLibraryLoadFromFile [cuLibraryLoadFromFile] (library: Out<CUlibrary>, file: Text, jit_options: Out<c_int>, jit_values: Out<*mut c_void>, jit_count: c_uint, options: Out<c_int>, values: Out<*mut c_void>, count: c_uint);
        cudaLibraryUnload [cuLibraryUnload] (library: CUlibrary);
        cudaLibraryGetKernel [cuLibraryGetKernel] (kernel: Out<CUkernel>, library: CUlibrary, name: Text);
        cudaLibraryGetGlobal [cuLibraryGetGlobal] (pointer: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text);
        }
    };
}
