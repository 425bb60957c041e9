//! Codes of the runtime, and calls to the driver that return an [`Outcome`]. Each code of the
//! driver is also a code of the runtime, with the same number.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use gpuheap_driver::{CUresult, abi};

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

/// Calls a function of the driver with arguments of the program, and returns the outcome.
macro_rules! call {
    ($driver:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &::gpuheap_driver::LibCuda = $driver;
        // SAFETY: each argument is from the program's call, or points to a local of the right type.
        // The program called a function with the same contract as the driver's function.
        let code = unsafe {
            ::gpuheap_driver::Driver::$function(driver, $(::gpuheap_driver::abi::Raw::raw($arg)),*)
        };
        $crate::error::check(code)
    }};
}
pub(crate) use call;

/// Returns the name of a code as a static C string.
pub(crate) fn name(code: CUresult) -> *const c_char {
    let found = CODES.iter().find(|(number, _)| *number == code.0);
    found.map_or(c"unrecognized error code", |(_, name)| *name).as_ptr()
}

/// Returns the text of a code as a static C string. Uses the driver's text, if the driver has the
/// code and [`TEXTS_OF_RUNTIME`] does not.
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

/// Numbers and texts of codes that the driver lacks, or for which the runtime has another text.
const TEXTS_OF_RUNTIME: &[(i32, &str)] = &[
    (0, "no error"),
    (INVALID_CONFIGURATION.0, "invalid configuration argument"),
    (INVALID_PITCH.0, "invalid pitch argument"),
    (INVALID_SYMBOL.0, "invalid device symbol"),
    (INSUFFICIENT_DRIVER.0, "CUDA driver version is insufficient for CUDA runtime version"),
    (MISSING_CONFIGURATION.0, "launch of a kernel without a configuration"),
    (INVALID_DEVICE_FUNCTION.0, "invalid device function"),
];

/// Number and name of each code.
#[rustfmt::skip]
const CODES: &[(i32, &CStr)] = &[
    (0, c"cudaSuccess"),
    (1, c"cudaErrorInvalidValue"),
    (2, c"cudaErrorMemoryAllocation"),
    (3, c"cudaErrorInitializationError"),
    (4, c"cudaErrorCudartUnloading"),
    (5, c"cudaErrorProfilerDisabled"),
    (6, c"cudaErrorProfilerNotInitialized"),
    (7, c"cudaErrorProfilerAlreadyStarted"),
    (8, c"cudaErrorProfilerAlreadyStopped"),
    (9, c"cudaErrorInvalidConfiguration"),
    (12, c"cudaErrorInvalidPitchValue"),
    (13, c"cudaErrorInvalidSymbol"),
    (16, c"cudaErrorInvalidHostPointer"),
    (17, c"cudaErrorInvalidDevicePointer"),
    (18, c"cudaErrorInvalidTexture"),
    (19, c"cudaErrorInvalidTextureBinding"),
    (20, c"cudaErrorInvalidChannelDescriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection"),
    (22, c"cudaErrorAddressOfConstant"),
    (23, c"cudaErrorTextureFetchFailed"),
    (24, c"cudaErrorTextureNotBound"),
    (25, c"cudaErrorSynchronizationError"),
    (26, c"cudaErrorInvalidFilterSetting"),
    (27, c"cudaErrorInvalidNormSetting"),
    (28, c"cudaErrorMixedDeviceExecution"),
    (31, c"cudaErrorNotYetImplemented"),
    (32, c"cudaErrorMemoryValueTooLarge"),
    (34, c"cudaErrorStubLibrary"),
    (35, c"cudaErrorInsufficientDriver"),
    (36, c"cudaErrorCallRequiresNewerDriver"),
    (37, c"cudaErrorInvalidSurface"),
    (43, c"cudaErrorDuplicateVariableName"),
    (44, c"cudaErrorDuplicateTextureName"),
    (45, c"cudaErrorDuplicateSurfaceName"),
    (46, c"cudaErrorDevicesUnavailable"),
    (49, c"cudaErrorIncompatibleDriverContext"),
    (52, c"cudaErrorMissingConfiguration"),
    (53, c"cudaErrorPriorLaunchFailure"),
    (65, c"cudaErrorLaunchMaxDepthExceeded"),
    (66, c"cudaErrorLaunchFileScopedTex"),
    (67, c"cudaErrorLaunchFileScopedSurf"),
    (68, c"cudaErrorSyncDepthExceeded"),
    (69, c"cudaErrorLaunchPendingCountExceeded"),
    (98, c"cudaErrorInvalidDeviceFunction"),
    (100, c"cudaErrorNoDevice"),
    (101, c"cudaErrorInvalidDevice"),
    (102, c"cudaErrorDeviceNotLicensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished"),
    (127, c"cudaErrorStartupFailure"),
    (200, c"cudaErrorInvalidKernelImage"),
    (201, c"cudaErrorDeviceUninitialized"),
    (205, c"cudaErrorMapBufferObjectFailed"),
    (206, c"cudaErrorUnmapBufferObjectFailed"),
    (207, c"cudaErrorArrayIsMapped"),
    (208, c"cudaErrorAlreadyMapped"),
    (209, c"cudaErrorNoKernelImageForDevice"),
    (210, c"cudaErrorAlreadyAcquired"),
    (211, c"cudaErrorNotMapped"),
    (212, c"cudaErrorNotMappedAsArray"),
    (213, c"cudaErrorNotMappedAsPointer"),
    (214, c"cudaErrorECCUncorrectable"),
    (215, c"cudaErrorUnsupportedLimit"),
    (216, c"cudaErrorDeviceAlreadyInUse"),
    (217, c"cudaErrorPeerAccessUnsupported"),
    (218, c"cudaErrorInvalidPtx"),
    (219, c"cudaErrorInvalidGraphicsContext"),
    (220, c"cudaErrorNvlinkUncorrectable"),
    (221, c"cudaErrorJitCompilerNotFound"),
    (222, c"cudaErrorUnsupportedPtxVersion"),
    (223, c"cudaErrorJitCompilationDisabled"),
    (224, c"cudaErrorUnsupportedExecAffinity"),
    (225, c"cudaErrorUnsupportedDevSideSync"),
    (226, c"cudaErrorContained"),
    (300, c"cudaErrorInvalidSource"),
    (301, c"cudaErrorFileNotFound"),
    (302, c"cudaErrorSharedObjectSymbolNotFound"),
    (303, c"cudaErrorSharedObjectInitFailed"),
    (304, c"cudaErrorOperatingSystem"),
    (400, c"cudaErrorInvalidResourceHandle"),
    (401, c"cudaErrorIllegalState"),
    (402, c"cudaErrorLossyQuery"),
    (500, c"cudaErrorSymbolNotFound"),
    (600, c"cudaErrorNotReady"),
    (700, c"cudaErrorIllegalAddress"),
    (701, c"cudaErrorLaunchOutOfResources"),
    (702, c"cudaErrorLaunchTimeout"),
    (703, c"cudaErrorLaunchIncompatibleTexturing"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled"),
    (705, c"cudaErrorPeerAccessNotEnabled"),
    (708, c"cudaErrorSetOnActiveProcess"),
    (709, c"cudaErrorContextIsDestroyed"),
    (710, c"cudaErrorAssert"),
    (711, c"cudaErrorTooManyPeers"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered"),
    (713, c"cudaErrorHostMemoryNotRegistered"),
    (714, c"cudaErrorHardwareStackError"),
    (715, c"cudaErrorIllegalInstruction"),
    (716, c"cudaErrorMisalignedAddress"),
    (717, c"cudaErrorInvalidAddressSpace"),
    (718, c"cudaErrorInvalidPc"),
    (719, c"cudaErrorLaunchFailure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge"),
    (721, c"cudaErrorTensorMemoryLeak"),
    (800, c"cudaErrorNotPermitted"),
    (801, c"cudaErrorNotSupported"),
    (802, c"cudaErrorSystemNotReady"),
    (803, c"cudaErrorSystemDriverMismatch"),
    (804, c"cudaErrorCompatNotSupportedOnDevice"),
    (805, c"cudaErrorMpsConnectionFailed"),
    (806, c"cudaErrorMpsRpcFailure"),
    (807, c"cudaErrorMpsServerNotReady"),
    (808, c"cudaErrorMpsMaxClientsReached"),
    (809, c"cudaErrorMpsMaxConnectionsReached"),
    (810, c"cudaErrorMpsClientTerminated"),
    (811, c"cudaErrorCdpNotSupported"),
    (812, c"cudaErrorCdpVersionMismatch"),
    (900, c"cudaErrorStreamCaptureUnsupported"),
    (901, c"cudaErrorStreamCaptureInvalidated"),
    (902, c"cudaErrorStreamCaptureMerge"),
    (903, c"cudaErrorStreamCaptureUnmatched"),
    (904, c"cudaErrorStreamCaptureUnjoined"),
    (905, c"cudaErrorStreamCaptureIsolation"),
    (906, c"cudaErrorStreamCaptureImplicit"),
    (907, c"cudaErrorCapturedEvent"),
    (908, c"cudaErrorStreamCaptureWrongThread"),
    (909, c"cudaErrorTimeout"),
    (910, c"cudaErrorGraphExecUpdateFailure"),
    (911, c"cudaErrorExternalDevice"),
    (912, c"cudaErrorInvalidClusterSize"),
    (913, c"cudaErrorFunctionNotLoaded"),
    (914, c"cudaErrorInvalidResourceType"),
    (915, c"cudaErrorInvalidResourceConfiguration"),
    (999, c"cudaErrorUnknown"),
];
