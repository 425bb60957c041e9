//! Names of the exported functions that always fail.

/// Expands `$callback!` with the names of functions that PyCUDA 2026.1 links and the emulator does
/// not model. They handle arrays, textures, sharing between processes and kernel linking, or launch
/// kernels in the way used before CUDA 4.
macro_rules! refused_functions {
    ($callback:ident) => {
        $callback! {
            cuArray3DCreate_v2, cuArray3DGetDescriptor_v2, cuArrayCreate_v2,
            cuArrayDestroy, cuArrayGetDescriptor_v2, cuCtxGetCacheConfig,
            cuCtxGetSharedMemConfig, cuCtxSetCacheConfig, cuCtxSetSharedMemConfig,
            cuFuncSetBlockShape, cuFuncSetSharedSize, cuIpcCloseMemHandle,
            cuIpcGetEventHandle, cuIpcGetMemHandle, cuIpcOpenEventHandle,
            cuIpcOpenMemHandle_v2, cuLaunch, cuLaunchGrid, cuLaunchGridAsync,
            cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkComplete, cuLinkCreate_v2,
            cuLinkDestroy, cuMemcpy3DAsync_v2, cuMemcpy3DPeer, cuMemcpy3DPeerAsync,
            cuMemcpy3D_v2, cuMemcpyAtoA_v2, cuMemcpyAtoD_v2, cuMemcpyAtoH_v2,
            cuMemcpyDtoA_v2, cuMemcpyHtoA_v2, cuModuleGetSurfRef, cuModuleGetTexRef,
            cuParamSetSize, cuParamSetTexRef, cuParamSetf, cuParamSeti, cuParamSetv,
            cuProfilerInitialize, cuSurfRefGetArray, cuSurfRefSetArray, cuTexRefCreate,
            cuTexRefDestroy, cuTexRefGetAddressMode, cuTexRefGetAddress_v2,
            cuTexRefGetArray, cuTexRefGetFilterMode, cuTexRefGetFlags,
            cuTexRefGetFormat, cuTexRefSetAddress2D_v3, cuTexRefSetAddressMode,
            cuTexRefSetAddress_v2, cuTexRefSetArray, cuTexRefSetFilterMode,
            cuTexRefSetFlags, cuTexRefSetFormat
        }
    };
}
