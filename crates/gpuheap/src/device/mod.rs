//! Devices: real ones through the machine's driver, emulated ones anywhere.

mod context;
mod gate;
mod info;
mod machine;

use std::fmt;
use std::sync::Arc;

use gpuheap_driver::{CUstream, Driver, check};
use gpuheap_emu::{Emulator, Options, Profile};

pub(crate) use context::{Aside, Context, ContextError, Gone, Holder};
pub(crate) use gate::HostBorrowed;
pub use info::DeviceInfo;

use crate::error::{Error, ErrorKind};
use crate::settings::{self, Settings};
use crate::size::{Bytes, Size};
use crate::source::GRANULE;
use crate::stream::Stream;

/// One device, real or emulated, with its primary context held.
///
/// Cheap to clone: clones are the same device, and so is a real one that is opened again while it
/// is open.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
}

impl Device {
    /// Opens a device by its name: `cuda:0` (a real one by ordinal), `emulated` (an H200 of no
    /// substance), `emulated:16GiB`, `emulated:t4`. Blocks while the driver makes the context,
    /// about 0.1 s.
    ///
    /// # Errors
    ///
    /// A name of another form, an unknown profile, a size below 2 MiB, no driver, no such device; the text says what
    /// would do.
    pub fn open(name: &str) -> Result<Device, Error> {
        match Name::parse(name)? {
            Name::Real(ordinal) => Ok(Device::from(machine::context(ordinal)?)),
            Name::Emulated(profile) => Device::first(name, fast(profile)),
        }
    }

    /// The device that `GPUHEAP_DEVICE` names; where it names none the first real GPU, else an
    /// emulated H200. [`describe`](Device::describe) says which. A machine that has a GPU whose
    /// driver does not work is an error, never a silent fall back.
    ///
    /// # Errors
    ///
    /// As [`open`](Device::open); a variable of the environment that means nothing.
    pub fn open_default() -> Result<Device, Error> {
        settings::warn_once();
        if let Some(name) = &Settings::get()?.device {
            return Device::open(name);
        }
        match machine::driver_if_any()? {
            Some(_) => Device::open("cuda:0"),
            None => Device::open("emulated"),
        }
    }

    /// What [`open`](Device::open) could open: the real devices, then the emulated one. Makes no
    /// context; blocks while the driver starts, up to seconds where it was not started before.
    ///
    /// # Errors
    ///
    /// A driver that is there and does not work, with the reason.
    pub fn list() -> Result<Vec<DeviceInfo>, Error> {
        let mut devices = Vec::new();
        if let Some(driver) = machine::driver_if_any()? {
            for ordinal in 0..info::count(&*driver)? {
                devices.push(DeviceInfo::read(
                    &*driver,
                    ordinal,
                    &format!("cuda:{ordinal}"),
                    false,
                )?);
            }
        }
        let emulator = start(fast(Profile::h200()))?;
        devices.push(DeviceInfo::read(&*emulator, 0, EMULATED, true)?);
        Ok(devices)
    }

    /// An emulated device that looks like `profile`, its work done at once, without the
    /// emulator's checks.
    ///
    /// # Errors
    ///
    /// A profile without room for a context.
    pub fn emulated(profile: Profile) -> Result<Device, Error> {
        Device::emulated_with(fast(profile))
    }

    /// The first device of an emulator with these options.
    ///
    /// # Errors
    ///
    /// What the options make fail.
    pub fn emulated_with(options: Options) -> Result<Device, Error> {
        Device::first(EMULATED, options)
    }

    /// All devices of one emulator with these options, in its order: they reach each other as
    /// those of one machine do.
    ///
    /// # Errors
    ///
    /// What the options make fail.
    pub fn emulated_devices(options: Options) -> Result<Vec<Device>, Error> {
        let emulator = start(options)?;
        let count = info::count(&*emulator)?;
        (0..count).map(|ordinal| Device::of_emulator(&emulator, ordinal, EMULATED)).collect()
    }

    /// What [`open`](Device::open) calls it: `cuda:0`, `emulated:t4`. Those made of
    /// [options](Device::emulated_with) or of a profile are just `emulated`.
    pub fn name(&self) -> &str {
        &self.context.info().name
    }

    /// What it is and can do, as it was when it was opened.
    pub fn describe(&self) -> DeviceInfo {
        self.context.info().clone()
    }

    /// Whether it is an emulated one.
    pub fn is_emulated(&self) -> bool {
        self.context.info().is_emulated
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

    /// A stream that somebody else made, by the driver's handle for it: `CUstream` and
    /// `cudaStream_t` are the same. It is not destroyed here. The handle 0 is the legacy default
    /// stream.
    ///
    /// # Safety
    ///
    /// `raw` is 0, one of the driver's default streams, or a stream that is alive. It stays alive until
    /// each heap that the result was used with has been told of its end by
    /// [`retire`](crate::Heap::retire), or is gone, and, where the result is used without a heap, until
    /// the last use of it and of its clones before that.
    ///
    /// If streams ended before a heap was told, [`retire_all`](crate::Heap::retire_all) is the next
    /// call with that heap, its blocks and its arrays since the first of them ended.
    ///
    /// Once a heap was told, the handle is used for no more work on memory that was allocated before,
    /// unless that memory is freed on another stream behind the work.
    ///
    /// What a heap does with the handle of a stream that ended in silence is undefined: a driver may
    /// crash, and where it has given the handle to a new stream, memory goes to that one while the old
    /// one's work on it still runs.
    ///
    /// # Errors
    ///
    /// A thread's own default stream (`CU_STREAM_PER_THREAD`), for the reason that [`Stream`] gives;
    /// a stream of another context than the device's primary one; the driver's own.
    pub unsafe fn foreign_stream(&self, raw: CUstream) -> Result<Stream, Error> {
        // SAFETY: the caller keeps this function's contract.
        unsafe { Stream::foreign(self.context.clone(), raw, false) }
    }

    /// The same of a stream whose end nobody announces, for hooks that are not told of it. What is freed
    /// on it is fenced by an event at its free, so that heaps need the stream no more once all was
    /// freed. [`Heap::retire`](crate::Heap::retire), also after its end, spares them what they keep of
    /// it.
    ///
    /// Such a free asks the driver whether the stream captures a graph, and records the event (140 ns on
    /// an H200). A heap keeps at most 32 events of a stream and uses them again: with that many, each
    /// free asks about older ones too (130 ns a question, one or two of them), and where the device has
    /// got to none, the newest is recorded again. Who then wants a block that was freed early waits for
    /// the later frees with it.
    ///
    /// # Safety
    ///
    /// `raw` is 0, one of the driver's default streams, or a stream that is alive. It is alive
    ///
    /// * while clones of the result are used and not [retired](Stream::is_retired), and while arrays
    ///   live whose last use was on it;
    /// * when a block is freed that was allocated on it, unless that is
    ///   [`free_on_unchecked`](crate::Block::free_on_unchecked) of another stream.
    ///
    /// # Errors
    ///
    /// As [`foreign_stream`](Device::foreign_stream).
    pub unsafe fn unannounced_stream(&self, raw: CUstream) -> Result<Stream, Error> {
        // SAFETY: the caller keeps this function's contract.
        unsafe { Stream::foreign(self.context.clone(), raw, true) }
    }

    /// Waits for all work of the device's context.
    ///
    /// # Errors
    ///
    /// What that work failed with.
    pub fn synchronize(&self) -> Result<(), Error> {
        Ok(self.context.synchronize()?)
    }

    /// Whether work on this device may touch memory of `other`, which takes peer access between
    /// two devices. It is enabled by the first question that finds it possible, and stays so.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn can_reach(&self, other: &Device) -> Result<bool, Error> {
        Ok(self.context.can_reach(&other.context)?)
    }

    /// Ends the device's primary context with all that this process has in it, and opens the
    /// device afresh. For a context that the driver lost to an error, and for the end of tests.
    ///
    /// Heaps give back first what they hold of the host's memory. Whatever was made on the device
    /// before (clones of it, streams, events, heaps, blocks) gives an error from now on that says
    /// so, and frees nothing when it is dropped. Blocks while the device's work is waited for.
    ///
    /// # Safety
    ///
    /// The primary context belongs to the whole process. The caller promises that
    ///
    /// * no other library in it (cuBLAS, another runtime) uses the device any more by what it made
    ///   there before: its memory, streams, modules and handles are destroyed too;
    /// * no other thread uses the device until this returns;
    /// * nothing refers to pinned or unified memory of the device, not even the host, and no raw
    ///   address or handle from before is used again.
    ///
    /// # Errors
    ///
    /// The driver's own: where it refuses the reset, the device stays as it was; where opening
    /// afresh fails, it is gone.
    pub unsafe fn reset(self) -> Result<Device, Error> {
        let old = self.context;
        // SAFETY: the caller keeps this function's contract.
        unsafe { old.reset() }?;
        match old.emulator() {
            None => Ok(Device::from(machine::context(old.ordinal())?)),
            Some(emulator) => Device::of_emulator(emulator, old.ordinal(), &old.info().name),
        }
    }

    /// The emulator behind an emulated device.
    pub fn emulator(&self) -> Option<&Arc<Emulator>> {
        self.context.emulator()
    }

    /// The driver that the device is reached through.
    pub fn driver(&self) -> &dyn Driver {
        self.context.driver()
    }

    /// The device's number in the driver's order.
    pub fn ordinal(&self) -> i32 {
        self.context.ordinal()
    }

    /// The device's memory, bytes.
    pub fn total_memory(&self) -> u64 {
        self.context.total_memory()
    }

    /// Runs `work` with the device's context current on this thread.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn with_current<R>(&self, work: impl FnOnce(&dyn Driver) -> R) -> Result<R, Error> {
        let _current = self.context.enter()?;
        Ok(work(self.context.driver()))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn first(name: &str, options: Options) -> Result<Device, Error> {
        Device::of_emulator(&start(options)?, 0, name)
    }

    fn of_emulator(emulator: &Arc<Emulator>, ordinal: i32, name: &str) -> Result<Device, Error> {
        let context = Context::retain(emulator.clone(), Some(emulator.clone()), ordinal, name)?;
        Ok(Device::from(context))
    }
}

impl From<Arc<Context>> for Device {
    fn from(context: Arc<Context>) -> Device {
        Device { context }
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

const EMULATED: &str = "emulated";

fn fast(profile: Profile) -> Options {
    Options { checks: false, ..Options::with_device(profile) }
}

fn start(options: Options) -> Result<Arc<Emulator>, Error> {
    let emulator = Arc::new(Emulator::new(options));
    // SAFETY: no pointers.
    check("cuInit", unsafe { emulator.cuInit(0) })?;
    Ok(emulator)
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
        _ => Err(ErrorKind::BadSetting.error(format!(
            "'{text}' is neither a profile nor a size; the profiles are {}, a size is like 16GiB",
            Profile::NAMES.join(", ")
        ))),
    }
}

/// A device's name, taken apart.
enum Name {
    Real(i32),
    Emulated(Profile),
}

impl Name {
    fn parse(name: &str) -> Result<Name, Error> {
        let unknown =
            || ErrorKind::BadSetting.error(format!("'{name}' is not a device; write {}", names()));
        if let Some(ordinal) = name.strip_prefix("cuda:") {
            return Ok(Name::Real(ordinal.parse().map_err(|_| unknown())?));
        }
        match name.strip_prefix(EMULATED) {
            Some("") => Ok(Name::Emulated(Profile::h200())),
            Some(what) if what.starts_with(':') => {
                let profile = profile(&what[1..])?;
                match profile.memory_bytes {
                    GRANULE.. => Ok(Name::Emulated(profile)),
                    // Mostly a unit that was forgotten.
                    bytes => Err(ErrorKind::BadSetting.error(format!(
                        "'{name}' is a device of {}, and memory is handed out in steps of {}; write \
                         a larger size with its unit, as in emulated:16GiB",
                        Bytes(bytes),
                        Bytes(GRANULE)
                    ))),
                }
            }
            _ => Err(unknown()),
        }
    }
}

/// Whether [`Device::open`] would know what is meant.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    Name::parse(name).map(|_| ())
}

/// The names that [`Device::open`] takes.
pub(crate) fn names() -> String {
    let profiles = Profile::NAMES.join(", ");
    format!("cuda:0, emulated, emulated:16GiB or emulated:PROFILE with a profile of {profiles}")
}
