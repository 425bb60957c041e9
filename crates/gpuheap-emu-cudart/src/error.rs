//! Result codes of the CUDA runtime, and calls to the driver that the process has loaded. Each code
//! of the driver has the same number in the runtime.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use gpuheap_driver::{CUresult, LibCuda, OpenError, abi};

/// Outcome of a call: a value, or the code of the failure.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;
pub(crate) type Text = abi::Text<CUresult>;

/// A grid or block has a size that no device can launch.
pub(crate) const INVALID_CONFIGURATION: CUresult = CUresult(9);
/// The pitch is smaller than the width of a row.
pub(crate) const INVALID_PITCH: CUresult = CUresult(12);
/// No variable of the device is registered at the address.
pub(crate) const INVALID_SYMBOL: CUresult = CUresult(13);
/// No driver was found, or the driver is too old.
pub(crate) const INSUFFICIENT_DRIVER: CUresult = CUresult(35);
/// The kernel was launched without a configuration.
pub(crate) const MISSING_CONFIGURATION: CUresult = CUresult(52);
/// No kernel is registered at the address.
pub(crate) const INVALID_DEVICE_FUNCTION: CUresult = CUresult(98);

thread_local! {
    static LAST: Cell<CUresult> = const { Cell::new(CUresult::SUCCESS) };
}

/// Records the code of a failed call as the thread's last error.
pub(crate) fn record(code: CUresult) -> CUresult {
    if !code.is_success() {
        LAST.set(code);
    }
    code
}

/// Returns the thread's last error.
pub(crate) fn last() -> CUresult {
    LAST.get()
}

/// Returns the thread's last error and clears it.
pub(crate) fn take_last() -> CUresult {
    LAST.replace(CUresult::SUCCESS)
}

/// Converts the driver's code to an outcome.
pub(crate) fn check(code: CUresult) -> Outcome {
    match code {
        CUresult::SUCCESS => Ok(()),
        CUresult::MISSING_SYMBOL => Err(CUresult::ERROR_CALL_REQUIRES_NEWER_DRIVER),
        code => Err(code),
    }
}

/// Returns the process's driver. The first call finds and initialises the driver.
pub(crate) fn driver() -> Outcome<&'static LibCuda> {
    static DRIVER: OnceLock<Result<LibCuda, CUresult>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        LibCuda::open().map_err(|error| match error {
            OpenError::Initialise { code, .. } => code,
            _ => INSUFFICIENT_DRIVER,
        })
    });
    driver.as_ref().map_err(|code| *code)
}

/// Calls a function of the driver with arguments of the program, and returns the outcome.
macro_rules! call {
    ($function:ident($($arg:expr),* $(,)?)) => {
        match $crate::error::driver() {
            Ok(driver) => {
                // SAFETY: each argument comes from the program's call, or points to a local of the
                // right type. The program called a function with the same contract.
                let code = unsafe {
                    ::gpuheap_driver::Driver::$function(driver, $(::gpuheap_driver::abi::Raw::raw($arg)),*)
                };
                $crate::error::check(code)
            }
            Err(code) => Err(code),
        }
    };
}
pub(crate) use call;

/// Returns the name of a code as a static C string.
pub(crate) fn name(code: CUresult) -> *const c_char {
    let found = CODES.iter().find(|(number, _)| *number == code.0);
    found.map_or("unrecognized error code\0", |(_, name)| *name).as_ptr().cast()
}

/// Returns the text of a code as a static C string. [`TEXTS_OF_RUNTIME`] has precedence over the
/// driver's texts.
pub(crate) fn text(code: CUresult) -> *const c_char {
    static TEXTS: OnceLock<HashMap<i32, CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let texts = CODES.iter().filter_map(|(number, _)| {
            let own = TEXTS_OF_RUNTIME.iter().find(|(own, _)| own == number).map(|(_, text)| *text);
            let text = own.or_else(|| CUresult(*number).driver_text())?;
            Some((*number, CString::new(text).ok()?))
        });
        texts.collect()
    });
    texts.get(&code.0).map_or_else(|| name(code), |text| text.as_ptr())
}

/// Error texts of the CUDA runtime, keyed by code. The driver lacks these codes, or has other texts
/// for them.
const TEXTS_OF_RUNTIME: &[(i32, &str)] = &[
    (0, "no error"),
    (INVALID_CONFIGURATION.0, "invalid configuration argument"),
    (INVALID_PITCH.0, "invalid pitch argument"),
    (INVALID_SYMBOL.0, "invalid device symbol"),
    (INSUFFICIENT_DRIVER.0, "CUDA driver version is insufficient for CUDA runtime version"),
    (MISSING_CONFIGURATION.0, "launch of a kernel without a configuration"),
    (INVALID_DEVICE_FUNCTION.0, "invalid device function"),
];

macro_rules! codes {
    ($($number:literal $name:ident,)*) => {
        /// Number and name of each code.
        const CODES: &[(i32, &str)] = &[$(($number, concat!(stringify!($name), "\0"))),*];
    };
}

codes! {
    0 cudaSuccess, 1 cudaErrorInvalidValue, 2 cudaErrorMemoryAllocation,
    3 cudaErrorInitializationError, 4 cudaErrorCudartUnloading, 5 cudaErrorProfilerDisabled,
    6 cudaErrorProfilerNotInitialized, 7 cudaErrorProfilerAlreadyStarted,
    8 cudaErrorProfilerAlreadyStopped, 9 cudaErrorInvalidConfiguration,
    12 cudaErrorInvalidPitchValue, 13 cudaErrorInvalidSymbol, 16 cudaErrorInvalidHostPointer,
    17 cudaErrorInvalidDevicePointer, 18 cudaErrorInvalidTexture, 19 cudaErrorInvalidTextureBinding,
    20 cudaErrorInvalidChannelDescriptor, 21 cudaErrorInvalidMemcpyDirection,
    22 cudaErrorAddressOfConstant, 23 cudaErrorTextureFetchFailed, 24 cudaErrorTextureNotBound,
    25 cudaErrorSynchronizationError, 26 cudaErrorInvalidFilterSetting,
    27 cudaErrorInvalidNormSetting, 28 cudaErrorMixedDeviceExecution, 31 cudaErrorNotYetImplemented,
    32 cudaErrorMemoryValueTooLarge, 34 cudaErrorStubLibrary, 35 cudaErrorInsufficientDriver,
    36 cudaErrorCallRequiresNewerDriver, 37 cudaErrorInvalidSurface,
    43 cudaErrorDuplicateVariableName, 44 cudaErrorDuplicateTextureName,
    45 cudaErrorDuplicateSurfaceName, 46 cudaErrorDevicesUnavailable,
    49 cudaErrorIncompatibleDriverContext, 52 cudaErrorMissingConfiguration,
    53 cudaErrorPriorLaunchFailure, 65 cudaErrorLaunchMaxDepthExceeded,
    66 cudaErrorLaunchFileScopedTex, 67 cudaErrorLaunchFileScopedSurf,
    68 cudaErrorSyncDepthExceeded, 69 cudaErrorLaunchPendingCountExceeded,
    98 cudaErrorInvalidDeviceFunction, 100 cudaErrorNoDevice, 101 cudaErrorInvalidDevice,
    102 cudaErrorDeviceNotLicensed, 103 cudaErrorSoftwareValidityNotEstablished,
    127 cudaErrorStartupFailure, 200 cudaErrorInvalidKernelImage, 201 cudaErrorDeviceUninitialized,
    205 cudaErrorMapBufferObjectFailed, 206 cudaErrorUnmapBufferObjectFailed,
    207 cudaErrorArrayIsMapped, 208 cudaErrorAlreadyMapped, 209 cudaErrorNoKernelImageForDevice,
    210 cudaErrorAlreadyAcquired, 211 cudaErrorNotMapped, 212 cudaErrorNotMappedAsArray,
    213 cudaErrorNotMappedAsPointer, 214 cudaErrorECCUncorrectable, 215 cudaErrorUnsupportedLimit,
    216 cudaErrorDeviceAlreadyInUse, 217 cudaErrorPeerAccessUnsupported, 218 cudaErrorInvalidPtx,
    219 cudaErrorInvalidGraphicsContext, 220 cudaErrorNvlinkUncorrectable,
    221 cudaErrorJitCompilerNotFound, 222 cudaErrorUnsupportedPtxVersion,
    223 cudaErrorJitCompilationDisabled, 224 cudaErrorUnsupportedExecAffinity,
    225 cudaErrorUnsupportedDevSideSync, 226 cudaErrorContained, 300 cudaErrorInvalidSource,
    301 cudaErrorFileNotFound, 302 cudaErrorSharedObjectSymbolNotFound,
    303 cudaErrorSharedObjectInitFailed, 304 cudaErrorOperatingSystem,
    400 cudaErrorInvalidResourceHandle, 401 cudaErrorIllegalState, 402 cudaErrorLossyQuery,
    500 cudaErrorSymbolNotFound, 600 cudaErrorNotReady, 700 cudaErrorIllegalAddress,
    701 cudaErrorLaunchOutOfResources, 702 cudaErrorLaunchTimeout,
    703 cudaErrorLaunchIncompatibleTexturing, 704 cudaErrorPeerAccessAlreadyEnabled,
    705 cudaErrorPeerAccessNotEnabled, 708 cudaErrorSetOnActiveProcess,
    709 cudaErrorContextIsDestroyed, 710 cudaErrorAssert, 711 cudaErrorTooManyPeers,
    712 cudaErrorHostMemoryAlreadyRegistered, 713 cudaErrorHostMemoryNotRegistered,
    714 cudaErrorHardwareStackError, 715 cudaErrorIllegalInstruction,
    716 cudaErrorMisalignedAddress, 717 cudaErrorInvalidAddressSpace, 718 cudaErrorInvalidPc,
    719 cudaErrorLaunchFailure, 720 cudaErrorCooperativeLaunchTooLarge,
    721 cudaErrorTensorMemoryLeak, 800 cudaErrorNotPermitted, 801 cudaErrorNotSupported,
    802 cudaErrorSystemNotReady, 803 cudaErrorSystemDriverMismatch,
    804 cudaErrorCompatNotSupportedOnDevice, 805 cudaErrorMpsConnectionFailed,
    806 cudaErrorMpsRpcFailure, 807 cudaErrorMpsServerNotReady, 808 cudaErrorMpsMaxClientsReached,
    809 cudaErrorMpsMaxConnectionsReached, 810 cudaErrorMpsClientTerminated,
    811 cudaErrorCdpNotSupported, 812 cudaErrorCdpVersionMismatch,
    900 cudaErrorStreamCaptureUnsupported, 901 cudaErrorStreamCaptureInvalidated,
    902 cudaErrorStreamCaptureMerge, 903 cudaErrorStreamCaptureUnmatched,
    904 cudaErrorStreamCaptureUnjoined, 905 cudaErrorStreamCaptureIsolation,
    906 cudaErrorStreamCaptureImplicit, 907 cudaErrorCapturedEvent,
    908 cudaErrorStreamCaptureWrongThread, 909 cudaErrorTimeout,
    910 cudaErrorGraphExecUpdateFailure, 911 cudaErrorExternalDevice,
    912 cudaErrorInvalidClusterSize, 913 cudaErrorFunctionNotLoaded,
    914 cudaErrorInvalidResourceType, 915 cudaErrorInvalidResourceConfiguration,
    999 cudaErrorUnknown,
}
