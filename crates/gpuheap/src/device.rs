//! Devices: real ones through the machine's driver, emulated ones anywhere.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gpuheap_driver::{
    CUcontext, CUdevice, CUdevice_attribute, CUresult, Driver, DriverError, LibCuda, check,
};
use gpuheap_emu::{Emulator, Options, Profile};

use crate::error::{Error, ErrorKind};
use crate::size::Size;
use crate::stream::Stream;

/// One device, real or emulated, with its primary context held.
///
/// Cheap to clone: clones are the same device.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
    emulator: Option<Arc<Emulator>>,
}

impl Device {
    /// Opens a device by its name: `cuda:0` (a real one by ordinal), `emulated` (an H200 of no
    /// substance), `emulated:16GiB`, `emulated:t4`. Blocks while the driver makes the context,
    /// about 0.1 s.
    ///
    /// # Errors
    ///
    /// A name of another form, an unknown profile, no driver, no such device; the text says what
    /// would do.
    pub fn open(name: &str) -> Result<Device, Error> {
        if let Some(ordinal) = name.strip_prefix("cuda:") {
            let ordinal = ordinal.parse().map_err(|_| unknown_device(name))?;
            let driver = LibCuda::open().map_err(ErrorKind::Open)?;
            return Device::retain(Arc::new(driver), ordinal, None);
        }
        match name.strip_prefix("emulated") {
            Some("") => Device::emulated(Profile::h200()),
            Some(what) if what.starts_with(':') => Device::emulated(profile(&what[1..])?),
            _ => Err(unknown_device(name)),
        }
    }

    /// The first real GPU, else an emulated H200. A machine that has a GPU (`/dev/nvidiactl` or
    /// `/dev/dxg`) whose driver does not work is an error, never a silent fall back.
    ///
    /// # Errors
    ///
    /// As [`open`](Device::open).
    pub fn open_default() -> Result<Device, Error> {
        let has_gpu = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"];
        if has_gpu.iter().any(|path| Path::new(path).exists()) {
            Device::open("cuda:0")
        } else {
            Device::open("emulated")
        }
    }

    /// An emulated device that looks like `profile`, its work done at once, without the
    /// emulator's checks.
    ///
    /// # Errors
    ///
    /// A profile without room for a context.
    pub fn emulated(profile: Profile) -> Result<Device, Error> {
        Device::emulated_with(Options { checks: false, ..Options::with_device(profile) })
    }

    /// The first device of an emulator with these options.
    ///
    /// # Errors
    ///
    /// What the options make fail.
    pub fn emulated_with(options: Options) -> Result<Device, Error> {
        let emulator = Arc::new(Emulator::new(options));
        // SAFETY: no pointers.
        check("cuInit", unsafe { emulator.cuInit(0) })?;
        Device::retain(emulator.clone(), 0, Some(emulator))
    }

    /// A stream of the device that does not wait for the default stream.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn stream(&self) -> Result<Stream, Error> {
        Stream::new(self.context.clone())
    }

    /// The legacy default stream.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn default_stream(&self) -> Result<Stream, Error> {
        Stream::legacy(self.context.clone())
    }

    /// Waits for all work of the device's context.
    ///
    /// # Errors
    ///
    /// What that work failed with.
    pub fn synchronize(&self) -> Result<(), Error> {
        Ok(self.context.synchronize()?)
    }

    /// The emulator behind an emulated device.
    pub fn emulator(&self) -> Option<&Arc<Emulator>> {
        self.emulator.as_ref()
    }

    /// The driver that the device is reached through.
    pub fn driver(&self) -> &dyn Driver {
        &*self.context.driver
    }

    /// The device's number in the driver's order.
    pub fn ordinal(&self) -> i32 {
        self.context.ordinal
    }

    /// The device's memory, bytes.
    pub fn total_memory(&self) -> u64 {
        self.context.total_memory
    }

    /// Runs `work` with the device's context current on this thread.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn with_current<R>(&self, work: impl FnOnce(&dyn Driver) -> R) -> Result<R, Error> {
        let _current = self.context.enter()?;
        Ok(work(&*self.context.driver))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn retain(
        driver: Arc<dyn Driver>,
        ordinal: i32,
        emulator: Option<Arc<Emulator>>,
    ) -> Result<Device, Error> {
        let real = emulator.is_none();
        let context = Arc::new(Context::retain(driver, ordinal, real)?);
        Ok(Device { context, emulator })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}

/// What an emulated device is to look like: a profile's name or a size.
///
/// # Errors
///
/// Neither; the text lists the profiles.
pub fn profile(text: &str) -> Result<Profile, Error> {
    if let Some(profile) = Profile::named(text) {
        return Ok(profile);
    }
    match Size::parse(text) {
        Ok(Size::Bytes(bytes)) => Ok(Profile::with_memory(bytes)),
        _ => Err(ErrorKind::Refused(format!(
            "'{text}' is neither a profile nor a size; the profiles are {}, a size is like 16GiB",
            Profile::NAMES.join(", ")
        ))
        .into()),
    }
}

fn unknown_device(name: &str) -> Error {
    ErrorKind::Refused(format!(
        "'{name}' is not a device; write cuda:0, emulated, emulated:16GiB or emulated:PROFILE with a profile of {}",
        Profile::NAMES.join(", ")
    ))
    .into()
}

/// A device's primary context, held while this lives.
pub(crate) struct Context {
    driver: Arc<dyn Driver>,
    /// The machine's own driver, of which there is one however often it is opened.
    real: bool,
    ordinal: CUdevice,
    raw: CUcontext,
    name: String,
    total_memory: u64,
    has_pools: bool,
}

impl Context {
    fn retain(driver: Arc<dyn Driver>, ordinal: i32, real: bool) -> Result<Context, Error> {
        let mut count = 0;
        // SAFETY: the pointer is valid for the call.
        check("cuDeviceGetCount", unsafe { driver.cuDeviceGetCount(&mut count) })?;
        if !(0..count).contains(&ordinal) {
            return Err(ErrorKind::Refused(format!(
                "there is no device cuda:{ordinal}; this machine has {count}, counted from cuda:0"
            ))
            .into());
        }
        let (mut device, mut raw) = (0, CUcontext::NULL);
        let mut name = [0; 128];
        let (mut total, mut has_pools) = (0, 0);
        // SAFETY: all pointers are valid for their calls, and the name's length is its buffer's.
        unsafe {
            check("cuDeviceGet", driver.cuDeviceGet(&mut device, ordinal))?;
            let length = name.len() as i32;
            check("cuDeviceGetName", driver.cuDeviceGetName(name.as_mut_ptr(), length, device))?;
            check("cuDeviceTotalMem_v2", driver.cuDeviceTotalMem_v2(&mut total, device))?;
            let attribute = CUdevice_attribute::MEMORY_POOLS_SUPPORTED;
            let asked = driver.cuDeviceGetAttribute(&mut has_pools, attribute, device);
            check("cuDeviceGetAttribute", asked)?;
            let retained = driver.cuDevicePrimaryCtxRetain(&mut raw, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
        }
        let name = name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
        Ok(Context {
            driver,
            real,
            ordinal: device,
            raw,
            name,
            total_memory: total as u64,
            has_pools: has_pools != 0,
        })
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Whether the host of this device gives freed memory back late, as WSL2's does.
    pub(crate) fn gives_back_late(&self) -> bool {
        self.real && Path::new("/dev/dxg").exists()
    }

    /// Whether both are the same context of the same driver.
    pub(crate) fn is_same(&self, other: &Context) -> bool {
        let one_driver = (self.real && other.real) || Arc::ptr_eq(&self.driver, &other.driver);
        one_driver && self.raw == other.raw
    }

    pub(crate) fn ordinal(&self) -> CUdevice {
        self.ordinal
    }

    pub(crate) fn total_memory(&self) -> u64 {
        self.total_memory
    }

    /// Whether the driver has stream-ordered pools for this device.
    pub(crate) fn has_pools(&self) -> bool {
        self.has_pools
    }

    /// Waits for all work of the context.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: no pointers.
        check("cuCtxSynchronize", unsafe { self.driver.cuCtxSynchronize() })
    }

    /// Makes the context current on this thread until the guard goes. What was current before
    /// belongs to the program or to another library and is put back.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DriverError> {
        let mut current = CUcontext::NULL;
        // SAFETY: the pointer is valid for the call.
        check("cuCtxGetCurrent", unsafe { self.driver.cuCtxGetCurrent(&mut current) })?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: the context is held by self.
            check("cuCtxPushCurrent_v2", unsafe { self.driver.cuCtxPushCurrent_v2(self.raw) })?;
        }
        Ok(Current { context: self, pushed })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}, {} ({})", self.ordinal, self.name, self.driver.describe())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`. A failure means that the driver is gone already.
        let _: CUresult = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.ordinal) };
    }
}

/// While it lives, a context is current on the thread that made it.
pub(crate) struct Current<'a> {
    context: &'a Context,
    pushed: bool,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: the pointer is valid for the call; pops what `enter` pushed.
            let _: CUresult = unsafe { self.context.driver.cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
