//! Drivers on which the suite runs, and macros for their calls.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, Options, Profile, Schedule};

/// Calls a function of the driver and returns its code.
macro_rules! code {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the tests pass valid pointers. The driver detects stale handles.
        unsafe { $gpu.driver.$function($($arg),*) }
    };
}

/// Calls a function of the driver that must succeed.
macro_rules! ok {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(code!($gpu, $function($($arg),*)), CUresult::SUCCESS, stringify!($function))
    };
}

/// Calls a function of the driver that must succeed. Returns the value that the function writes
/// to its first argument.
macro_rules! made {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let mut made = Default::default();
        ok!($gpu, $function(&mut made, $($arg),*));
        made
    }};
}

pub(crate) use {code, made, ok};

/// A driver with a context that is current on this thread.
pub(crate) struct Gpu<'d> {
    pub(crate) driver: &'d dyn Driver,
    pub(crate) name: String,
    pub(crate) device: CUdevice,
    pub(crate) context: CUcontext,
}

/// Runs a test on the real device that the environment names. If the environment names no device,
/// runs the test on the emulator under every schedule.
pub(crate) fn on_every_driver(test: impl Fn(&Gpu<'_>)) {
    run(true, test);
}

/// Runs a test of misuse on every driver. The emulator's checks are off, because the checks would
/// report the misuse.
pub(crate) fn on_every_driver_unchecked(test: impl Fn(&Gpu<'_>)) {
    run(false, test);
}

/// Runs a long test on the real device or, to save time, with only one schedule of the emulator.
/// The test must not depend on the order between streams.
pub(crate) fn on_every_driver_once(test: impl Fn(&Gpu<'_>)) {
    if std::env::var_os("GPUHEAP_TEST_DEVICE").is_some() {
        return run(true, test);
    }
    let emulator = Emulator::new(Options::default());
    with_context(&emulator, "the emulator".to_owned(), 0, &test);
    assert_eq!(emulator.findings().unwrap(), []);
}

/// Runs a test on two devices of one driver. If the environment enables real devices, these are the
/// first two GPUs. Otherwise, they are emulated. The first device is current. The emulator's checks
/// are off, because the tests use memory that a device may not access.
pub(crate) fn on_two_devices(test: impl Fn(&Gpu<'_>, &Gpu<'_>)) {
    let both = |driver: &dyn Driver, name: &str| {
        with_context(driver, name.to_owned(), 1, |far| {
            with_context(driver, name.to_owned(), 0, |near| test(near, far));
            ok!(far, cuCtxSetCurrent(far.context));
        });
    };
    if std::env::var_os("GPUHEAP_TEST_DEVICE").is_some() {
        if std::env::var_os("GPUHEAP_TEST_TWO_DEVICES").is_some() {
            let real = real();
            both(&*real, "two GPUs");
        }
        return;
    }
    for schedule in [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(1)] {
        let devices = vec![Profile::h200(), Profile::h200()];
        let emulator = Emulator::new(Options { schedule, devices, ..Options::default() });
        both(&emulator, &format!("{schedule:?}"));
    }
}

/// Returns the real driver. Tests run one at a time, because each test compares the device's free
/// memory.
fn real() -> MutexGuard<'static, LibCuda> {
    static REAL: OnceLock<Mutex<LibCuda>> = OnceLock::new();
    let real = REAL.get_or_init(|| Mutex::new(LibCuda::open().unwrap()));
    real.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(checks: bool, test: impl Fn(&Gpu<'_>)) {
    if let Ok(wanted) = std::env::var("GPUHEAP_TEST_DEVICE") {
        let ordinal = wanted.strip_prefix("cuda:").expect("GPUHEAP_TEST_DEVICE is cuda:N");
        let real = real();
        // A failed test may have left memory allocated, so the context is reset.
        // SAFETY: no other test runs.
        assert!(unsafe { real.cuDevicePrimaryCtxReset_v2(ordinal.parse().unwrap()) }.is_success());
        return with_context(&*real, wanted.clone(), ordinal.parse().unwrap(), |gpu| {
            // If the process has several devices, the first stream of a context takes memory. The
            // test must not count this memory.
            ok!(gpu, cuStreamDestroy_v2(gpu.stream()));
            test(gpu);
        });
    }
    let lag = Schedule::Lag(Duration::from_micros(50));
    let mut schedules = vec![Schedule::Immediate, Schedule::OnDemand, lag];
    schedules.extend((0..4).map(Schedule::Seeded));
    for schedule in schedules {
        let emulator = Emulator::new(Options { schedule, checks, ..Options::default() });
        with_context(&emulator, format!("{schedule:?}"), 0, &test);
        if checks {
            assert_eq!(emulator.findings().unwrap(), [], "{schedule:?}");
        }
    }
}

fn with_context(driver: &dyn Driver, name: String, device: CUdevice, test: impl Fn(&Gpu<'_>)) {
    let mut gpu = Gpu { driver, name, device, context: CUcontext::NULL };
    ok!(gpu, cuInit(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut gpu.context, device));
    ok!(gpu, cuCtxSetCurrent(gpu.context));
    test(&gpu);
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
    ok!(gpu, cuDevicePrimaryCtxRelease_v2(device));
}

impl Gpu<'_> {
    pub(crate) fn allocate(&self, bytes: usize) -> CUdeviceptr {
        let mut pointer = 0;
        ok!(self, cuMemAlloc_v2(&mut pointer, bytes));
        pointer
    }

    pub(crate) fn free(&self, pointer: CUdeviceptr) {
        ok!(self, cuMemFree_v2(pointer));
    }

    pub(crate) fn stream(&self) -> CUstream {
        let mut stream = CUstream::NULL;
        ok!(self, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
        stream
    }

    pub(crate) fn event(&self) -> CUevent {
        let mut event = CUevent::NULL;
        ok!(self, cuEventCreate(&mut event, 0));
        event
    }

    pub(crate) fn used(&self) -> i64 {
        let (mut free, mut total) = (0, 0);
        ok!(self, cuMemGetInfo_v2(&mut free, &mut total));
        (total - free) as i64
    }

    pub(crate) fn upload(&self, target: CUdeviceptr, data: &[u8]) {
        ok!(self, cuMemcpyHtoD_v2(target, data.as_ptr().cast(), data.len()));
    }

    pub(crate) fn download(&self, source: CUdeviceptr, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        ok!(self, cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), source, bytes));
        data
    }

    /// Returns pinned memory of the driver as a slice.
    pub(crate) fn pinned<'m>(&self, bytes: usize) -> &'m mut [u8] {
        let mut pointer: *mut c_void = std::ptr::null_mut();
        ok!(self, cuMemAllocHost_v2(&mut pointer, bytes));
        // SAFETY: the driver has just allocated this block. Tests free the block at their end or
        // not at all.
        unsafe {
            std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes);
            std::slice::from_raw_parts_mut(pointer.cast(), bytes)
        }
    }

    pub(crate) fn unpin(&self, memory: &mut [u8]) {
        ok!(self, cuMemFreeHost(memory.as_mut_ptr().cast()));
    }
}
