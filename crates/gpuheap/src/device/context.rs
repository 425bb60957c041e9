//! Retains, enters and resets the primary context of a device.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};

use gpuheap_driver::nvtx::MemoryNames;
use gpuheap_driver::{
    BlockChecks, CUcontext, CUdevice, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, Driver, DriverError, check,
};
use gpuheap_pool::{Gone, Moments, SourceError};

use super::captures::Captures;
use super::gate::HostGate;
use super::granules::Granules;
use super::holders::{Holder, Holders, Visited};
use super::info::DeviceInfo;
use super::turn::ReclaimTurn;
use super::virtual_memory::{NoVirtualMemory, VirtualMemory};
use crate::error::{Error, Fault, driver_error, failure};
use crate::fork;
use crate::thread_cache;

#[cfg(feature = "emulator")]
use gpuheap_emu::Emulator;

/// Emulator in a build without emulators. No value of this type exists.
#[cfg(not(feature = "emulator"))]
pub(crate) enum Emulator {}

/// Origin of a device: its emulator if it is emulated, and the reason if it replaces a GPU.
pub(super) struct DeviceOrigin {
    pub(super) emulator: Option<Arc<Emulator>>,
    /// Reason why an emulated device replaces a GPU, if it does.
    pub(super) fallback: Option<String>,
}

/// The primary context of a device, retained while this object lives.
///
/// Each live context has exactly one such object, for any number of opened devices.
pub(crate) struct Context {
    driver: Arc<dyn Driver>,
    emulator: Option<Arc<Emulator>>,
    /// `true` if the driver has more than one device.
    has_siblings: bool,
    /// `true` if the device is a Windows GPU under WSL2.
    is_wsl2: bool,
    /// `true` if an emulated driver checks blocks. Cached, so that a query costs one load.
    has_block_checks: bool,
    info: DeviceInfo,
    raw: CUcontext,
    /// Identifier of the context in this process. Never reused, unlike the driver's handles.
    number: u64,
    /// Number of forks when the context was retained.
    forks: u32,
    /// `true` once the context was reset: its objects in the driver no longer exist.
    lost: AtomicBool,
    /// Lock that keeps a reset apart from other devices' requests that reclaim this device's
    /// memory. The reset takes the write lock, and such a request takes the read lock. Threads that
    /// use the device take neither, because no thread may use the device during a reset.
    resets: RwLock<()>,
    /// Results of [`can_reach`](Context::can_reach), keyed by the other context's number.
    peers: Mutex<Vec<(u64, bool)>>,
    /// Other devices that access this device's memory.
    readers: Mutex<Vec<CUdevice>>,
    /// Result of the probe of virtual memory, once it was made.
    virtual_memory: OnceLock<Result<VirtualMemory, NoVirtualMemory>>,
    pub(crate) holders: Holders,
    /// Streams that were first seen while they captured a graph.
    pub(crate) captures: Captures,
    /// Lock that lets one request at a time reclaim memory from other heaps, as its last step.
    pub(crate) turn: ReclaimTurn,
    /// Granules of the device that small allocations of several heaps share.
    pub(crate) granules: Granules,
    /// Gate between work of the device and the host's access to unified memory.
    pub(crate) gate: HostGate,
    /// The device's own heap, while it is in use.
    pub(crate) heap: Mutex<Option<Weak<dyn Holder>>>,
    /// State that a higher layer keeps with the context, made at its first use.
    attachment: OnceLock<Box<dyn Attachment>>,
    /// Progress of the context's work, as far as it is known.
    pub(crate) moments: Arc<Moments>,
    /// Names of the heaps' memory in a profiler.
    pub(crate) memory_names: OnceLock<&'static MemoryNames>,
}

/// State that a higher layer keeps with a context.
pub(crate) trait Attachment: Any + Send + Sync {
    /// Gives back driver objects when the context ends.
    fn end(&mut self, context: &Context);
}

/// Reason why a context refused an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextError {
    Gone(Gone),
    Driver(DriverError),
}

impl Context {
    /// Retains the primary context of the driver's device `ordinal`. The device is named `name`.
    pub(super) fn retain(
        driver: Arc<dyn Driver>,
        origin: DeviceOrigin,
        ordinal: i32,
        name: &str,
    ) -> Result<Arc<Context>, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let forks = fork::watch();
        let DeviceOrigin { emulator, fallback } = origin;
        // Queries the emulator's number now, as a part of the device's displayed name. The query
        // takes the emulator's lock, and a forked child that displays the name must not take it.
        let (number, is_wsl2) = query_platform(emulator.as_ref(), ordinal);
        let mut info = DeviceInfo::read(&*driver, ordinal, name, number)?;
        info.fallback = fallback;
        let has_siblings = super::info::count(&*driver)? > 1;
        let mut raw = CUcontext::NULL;
        // SAFETY: the driver writes the context's handle to `raw`, a local of this function.
        let retained = unsafe { driver.cuDevicePrimaryCtxRetain(&mut raw, info.ordinal) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        let gate = HostGate::new(info.concurrent_managed_access);
        Ok(Arc::new(Context {
            has_block_checks: driver.block_checks().is_some(),
            driver,
            emulator,
            has_siblings,
            is_wsl2,
            info,
            raw,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            forks,
            lost: AtomicBool::new(false),
            resets: RwLock::default(),
            peers: Mutex::default(),
            readers: Mutex::default(),
            virtual_memory: OnceLock::new(),
            holders: Holders::default(),
            captures: Captures::default(),
            turn: ReclaimTurn::default(),
            granules: Granules::default(),
            gate,
            heap: Mutex::default(),
            attachment: OnceLock::new(),
            moments: Arc::default(),
            memory_names: OnceLock::new(),
        }))
    }

    /// Returns the state that a higher layer keeps with the context; `None` if the state is of
    /// another type.
    pub(crate) fn attachment<A: Attachment + Default>(&self) -> Option<&A> {
        let attachment: &dyn Any = &**self.attachment.get_or_init(|| Box::<A>::default());
        attachment.downcast_ref()
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Returns the emulated device's checks of blocks, if they are on.
    #[inline]
    pub(crate) fn block_checks(&self) -> Option<&dyn BlockChecks> {
        if self.has_block_checks { self.driver.block_checks() } else { None }
    }

    #[cfg(feature = "emulator")]
    pub(crate) fn emulator(&self) -> Option<&Arc<Emulator>> {
        self.emulator.as_ref()
    }

    /// Returns the device's description.
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns `true` if the device is a Windows GPU under WSL2: its host returns freed memory
    /// late, and reports memory as free that cannot be allocated.
    pub(crate) fn is_wsl2(&self) -> bool {
        self.is_wsl2
    }

    /// Returns the device's name for a message that also names `other`. If different emulators
    /// emulate the two devices, their names may be equal. The returned name then includes the
    /// emulator's number.
    pub(crate) fn beside(&self, other: &Context) -> String {
        let number = self.info.emulator;
        self.text(number.filter(|_| other.info.emulator.is_some() && other.info.emulator != number))
    }

    fn text(&self, emulator: Option<u64>) -> String {
        let DeviceInfo { name, product, .. } = &self.info;
        let mut text = format!("{name} ({product}");
        // A real device's name already distinguishes it.
        if self.info.emulator.is_some()
            && let Some(sibling) = self.sibling_name()
        {
            text += &format!(", {sibling}");
        }
        if let Some(number) = emulator {
            text += &format!(", emulator {number}");
        }
        text + ")"
    }

    /// Returns the device's name if the driver has several devices. All devices of one emulator
    /// have equal names, so a number replaces the name of an emulated device.
    pub(crate) fn sibling_name(&self) -> Option<String> {
        let name = match self.info.emulator {
            Some(_) => format!("device {}", self.ordinal()),
            None => self.info.name.clone(),
        };
        self.has_siblings.then_some(name)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns `true` if both are the same context of the same driver.
    pub(crate) fn is_same(&self, other: &Context) -> bool {
        self.number == other.number
    }

    /// Returns `true` if both contexts use one driver. All real devices share the machine's driver.
    pub(crate) fn shares_driver(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    /// Returns the driver's handle.
    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }

    pub(crate) fn ordinal(&self) -> CUdevice {
        self.info.ordinal
    }

    pub(crate) fn total_memory(&self) -> u64 {
        self.info.total_memory
    }

    /// Returns the properties of the device's virtual memory. The first call runs `probe`.
    pub(crate) fn virtual_memory_by(
        &self,
        probe: impl FnOnce() -> Result<VirtualMemory, NoVirtualMemory>,
    ) -> Result<VirtualMemory, NoVirtualMemory> {
        if let Some(known) = self.virtual_memory.get() {
            return *known;
        }
        match probe() {
            Err(passing) if passing.is_passing() => Err(passing),
            lasting => *self.virtual_memory.get_or_init(|| lasting),
        }
    }

    /// Returns an error if the context cannot be used. Call this before taking any lock that
    /// another thread of the parent may have held when this process was forked.
    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), Gone> {
        if self.forks != fork::count() {
            return Err(Gone::Forked);
        }
        if self.lost.load(Ordering::Relaxed) { Err(Gone::Reset) } else { Ok(()) }
    }

    /// Waits for all work of the context. If one of the context's streams is capturing a graph, the
    /// wait breaks that capture. Check for captures first, unless the program requested the wait.
    pub(crate) fn synchronize(&self) -> Result<(), ContextError> {
        let moment = self.moments.begin();
        {
            let _current = self.enter_aside()?;
            // SAFETY: the call takes no pointers, and the context is current.
            check("cuCtxSynchronize", unsafe { self.driver.cuCtxSynchronize() })?;
        }
        self.moments.complete_all(moment);
        thread_cache::note_completed(self.number, None);
        Ok(())
    }

    /// Makes the context current on this thread until the guard is dropped. The context that was
    /// current before belongs to the program or to another library, and is restored.
    ///
    /// Every driver call passes through here, so the library makes no driver call in a forked child
    /// or after a reset.
    pub(crate) fn enter(&self) -> Result<Current<&Context>, ContextError> {
        Current::enter(self)
    }

    /// Enters the context for the library's own calls, as opposed to work of the program. While any
    /// thread captures a graph, calls such as `cuMemAlloc` and `cuEventQuery` fail and break the
    /// capture, unless the calling thread has allowed such calls. The guard allows them on this
    /// thread.
    pub(crate) fn enter_aside(&self) -> Result<Aside<&Context>, ContextError> {
        Aside::enter(self)
    }

    /// Enters as [`enter_aside`](Context::enter_aside) does. The guard owns a reference to the
    /// context, so this thread can store the guard.
    pub(crate) fn stay_aside(self: &Arc<Self>) -> Result<Aside<Arc<Context>>, ContextError> {
        Aside::enter(self.clone())
    }

    /// Returns `true` if a stream is capturing a graph. Such a stream can neither wait for work
    /// outside the capture nor be waited for. For the default stream, also returns `true` if any
    /// stream that the default stream would have to wait for is capturing.
    pub(crate) fn is_capturing(&self, stream: CUstream) -> Result<bool, ContextError> {
        let _current = self.enter()?;
        self.is_capturing_inside(stream)
    }

    /// Queries the capture as [`is_capturing`](Context::is_capturing) does, with the context
    /// entered already.
    pub(crate) fn is_capturing_inside(&self, stream: CUstream) -> Result<bool, ContextError> {
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: `status` outlives the call. `stream` is alive: the caller is using it.
        match unsafe { self.driver.cuStreamIsCapturing(stream, &mut status) } {
            CUresult::ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            code => Ok(check("cuStreamIsCapturing", code)
                .map(|()| status != CUstreamCaptureStatus::NONE)?),
        }
    }

    /// Returns `true` if work on this device may access memory of `other`. If peer access is
    /// needed, the first call for a pair enables it.
    ///
    /// This covers plain allocations and the virtual memory of heaps. A separate call opens a
    /// stream-ordered pool to other devices.
    ///
    /// Adds the heaps that it visits to `visited`, so that none of them ends while a lock is held.
    /// The caller drops `visited` with no lock held.
    pub(crate) fn can_reach(
        &self,
        other: &Context,
        visited: &mut Visited,
    ) -> Result<bool, ContextError> {
        self.check_alive()?;
        other.check_alive()?;
        if self.is_same(other) {
            return Ok(true);
        }
        if !self.shares_driver(other) {
            return Ok(false);
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, reached)) = peers.iter().find(|(number, _)| *number == other.number) {
            return Ok(*reached);
        }
        let reached = self.enable_peer(other)? && other.open_to(self.ordinal(), visited)?;
        peers.push((other.number, reached));
        Ok(reached)
    }

    /// Returns the other devices that get access to new mappings.
    pub(crate) fn readers(&self) -> Vec<CUdevice> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives another device access to the virtual memory of this device's heaps, mapping by
    /// mapping. Adds these heaps to `visited`.
    fn open_to(&self, reader: CUdevice, visited: &mut Visited) -> Result<bool, ContextError> {
        // Adds `reader` to `readers` before it opens the existing mappings, so that `reader` also
        // gets access to mappings made meanwhile. A device that was reset is in the list already.
        let is_new = {
            let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
            let is_new = !readers.contains(&reader);
            readers.extend(is_new.then_some(reader));
            is_new
        };
        let first = visited.len();
        visited.extend(self.holders.all());
        let opened = visited[first..].iter().try_for_each(|heap| heap.open_to(reader));
        if opened.is_err() && is_new {
            let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
            readers.retain(|known| *known != reader);
        }
        match opened {
            Ok(()) => Ok(true),
            Err(SourceError::Driver(error)) => Err(driver_error(error).into()),
            Err(SourceError::Gone(gone)) => Err(gone.into()),
            Err(_) => Ok(false),
        }
    }

    fn enable_peer(&self, other: &Context) -> Result<bool, ContextError> {
        let _current = self.enter_aside()?;
        let mut can = 0;
        // SAFETY: the driver writes one integer to the local `can`; both ordinals are plain
        // numbers.
        let code =
            unsafe { self.driver.cuDeviceCanAccessPeer(&mut can, self.ordinal(), other.ordinal()) };
        check("cuDeviceCanAccessPeer", code)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: `other` retains its primary context for the call.
        match unsafe { self.driver.cuCtxEnablePeerAccess(other.raw, 0) } {
            // The program or another library has enabled peer access before.
            CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            CUresult::ERROR_PEER_ACCESS_UNSUPPORTED => Ok(false),
            code => Ok(check("cuCtxEnablePeerAccess", code).map(|()| true)?),
        }
    }

    /// Returns the free and the total bytes of the device, for all processes together.
    pub(crate) fn memory(&self) -> Result<(u64, u64), ContextError> {
        let (mut free, mut total) = (0, 0);
        let _current = self.enter_aside()?;
        // SAFETY: `free` and `total` outlive the call.
        let code = unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) };
        check("cuMemGetInfo_v2", code)?;
        Ok((free as u64, total as u64))
    }

    /// Delays resets until the guard is dropped. Blocks while a reset runs.
    pub(crate) fn no_reset(&self) -> RwLockReadGuard<'_, ()> {
        self.resets.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the context with everything that the process has in it, and releases this reference to
    /// it.
    ///
    /// # Safety
    ///
    /// The requirements of [`Device::reset`](super::Device::reset).
    pub(super) unsafe fn reset(&self) -> Result<(), ContextError> {
        // Failed work does not prevent the reset: failed work is the usual reason for a reset.
        match self.synchronize() {
            Err(ContextError::Gone(gone)) => return Err(gone.into()),
            Err(ContextError::Driver(_)) | Ok(()) => {}
        }
        let _reset = self.resets.write().unwrap_or_else(PoisonError::into_inner);
        for holder in self.holders.all() {
            holder.before_reset();
        }
        self.lost.store(true, Ordering::Relaxed);
        // SAFETY: the caller guarantees that objects of the context are not used from here on.
        let reset = unsafe { self.driver.cuDevicePrimaryCtxReset_v2(self.ordinal()) };
        let reset = check("cuDevicePrimaryCtxReset_v2", reset);
        self.lost.store(reset.is_ok(), Ordering::Relaxed);
        for holder in self.holders.all() {
            holder.after_reset(reset.is_ok());
        }
        reset?;
        // A reset keeps references to the context (driver 580, and the emulator). The context is
        // not active now, so this release ends nothing. If a driver dropped the reference at the
        // reset, this call returns a harmless error. A release before the reset could end the
        // context while others hold it. SAFETY: `retain` retained the context once, and `drop` does
        // not release a lost context.
        let _: CUresult = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.ordinal()) };
        Ok(())
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(None))
    }
}

/// Returns the identifier of a device's emulator (`None` for a real device), and whether the device
/// is a Windows GPU under WSL2.
fn query_platform(emulator: Option<&Arc<Emulator>>, ordinal: i32) -> (Option<u64>, bool) {
    #[cfg(feature = "emulator")]
    if let Some(emulator) = emulator {
        let options = emulator.options();
        let profile = usize::try_from(ordinal).ok().and_then(|at| options.devices.get(at));
        return (Some(emulator.number()), profile.is_some_and(|profile| profile.wsl2));
    }
    #[cfg(not(feature = "emulator"))]
    let _ = (emulator, ordinal);
    (None, std::path::Path::new("/dev/dxg").exists())
}

impl Drop for Context {
    fn drop(&mut self) {
        match self.check_alive() {
            Ok(()) => {
                if let Some(mut attachment) = self.attachment.take() {
                    attachment.end(self);
                }
                // SAFETY: `retain` retained the context once. A failure means that the driver has
                // shut down already.
                let _: CUresult =
                    unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.ordinal()) };
            }
            // The driver is not dropped: a thread of the parent may have been inside it.
            Err(Gone::Forked) => std::mem::forget((self.driver.clone(), self.emulator.clone())),
            Err(Gone::Reset) => {}
        }
    }
}

/// Guard that keeps a context current on the thread that made the guard.
pub(crate) struct Current<C: Deref<Target = Context>> {
    context: C,
    pushed: bool,
}

/// Guard that keeps a context current on the thread that made the guard. While it lives, the thread
/// may make calls such as `cuMemAlloc` that CUDA forbids during a capture.
pub(crate) struct Aside<C: Deref<Target = Context>> {
    current: Current<C>,
    before: Option<CUstreamCaptureMode>,
}

impl<C: Deref<Target = Context>> Current<C> {
    fn enter(context: C) -> Result<Current<C>, ContextError> {
        context.check_alive()?;
        let (driver, mut current) = (&context.driver, CUcontext::NULL);
        // SAFETY: the driver writes one handle, or null, to the local `current`.
        check("cuCtxGetCurrent", unsafe { driver.cuCtxGetCurrent(&mut current) })?;
        let pushed = current != context.raw;
        if pushed {
            // SAFETY: `context` retains this primary context while the guard lives.
            check("cuCtxPushCurrent_v2", unsafe { driver.cuCtxPushCurrent_v2(context.raw) })?;
        }
        Ok(Current { context, pushed })
    }
}

impl<C: Deref<Target = Context>> Aside<C> {
    fn enter(context: C) -> Result<Aside<C>, ContextError> {
        let current = Current::enter(context)?;
        let mut mode = CUstreamCaptureMode::RELAXED;
        // SAFETY: the driver swaps the local `mode` with the mode of this thread.
        let exchanged =
            unsafe { current.context.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        // If the mode cannot be exchanged, the context is entered, but calls in a capture may fail.
        Ok(Aside { before: exchanged.is_success().then_some(mode), current })
    }
}

impl<C: Deref<Target = Context>> Drop for Aside<C> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            let driver = &self.current.context.driver;
            // SAFETY: `mode` is a local with the mode that `enter` replaced on this thread.
            let _: CUresult = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
}

impl<C: Deref<Target = Context>> Drop for Current<C> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: `popped` outlives the call. It pops the context that `enter` pushed.
            let _: CUresult = unsafe { self.context.driver.cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

impl From<Gone> for ContextError {
    fn from(gone: Gone) -> ContextError {
        ContextError::Gone(gone)
    }
}

impl From<DriverError> for ContextError {
    fn from(error: DriverError) -> ContextError {
        ContextError::Driver(error)
    }
}

impl From<Gone> for Error {
    fn from(gone: Gone) -> Error {
        Fault::Gone(gone).into()
    }
}

impl From<ContextError> for Error {
    fn from(error: ContextError) -> Error {
        match error {
            ContextError::Gone(gone) => gone.into(),
            ContextError::Driver(error) => error.into(),
        }
    }
}

impl From<ContextError> for SourceError {
    fn from(error: ContextError) -> SourceError {
        match error {
            ContextError::Gone(gone) => SourceError::Gone(gone),
            ContextError::Driver(error) => failure(error),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use gpuheap_pool::SourceResult;

    use super::*;
    use crate::emu::{Fault, FaultPlan, Options, Profile};
    use crate::{Device, Error, Heap, PoolKind};

    /// Holder that records the result of a wait for the context before each reset.
    struct Notes(Arc<Context>, Mutex<Vec<Result<(), ContextError>>>);

    impl Holder for Notes {
        fn before_reset(&self) {
            self.1.lock().unwrap_or_else(PoisonError::into_inner).push(self.0.synchronize());
        }

        fn after_reset(&self, _is_reset: bool) {}

        fn open_to(&self, _reader: CUdevice) -> SourceResult {
            Ok(())
        }

        fn is_any_capturing(&self) -> bool {
            false
        }
    }

    #[test]
    fn reset_device_is_a_reader_once() -> Result<(), Error> {
        let profile = Profile::with_memory(64 << 20);
        let devices = vec![profile.clone(), profile];
        let mut devices = Device::emulated_devices(Options { devices, ..Options::default() })?;
        let (owner, reader) = (devices.remove(1), devices.remove(0));
        let heap = Heap::builder(&owner).pool(PoolKind::Stitched).build()?;
        let stream = owner.stream()?;
        let _block = heap.allocate(1, &stream)?;
        assert!(reader.can_reach(&owner)?);
        // SAFETY: only this test uses the device `reader`, and nothing was made on it.
        let reader = unsafe { reader.reset() }?;
        let emulator = owner.emulator().expect("an emulator");
        let failing = Fault::nth("cuMemSetAccess", 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([failing]));
        assert!(reader.can_reach(&owner).is_err());
        assert_eq!(owner.context().readers(), [reader.ordinal()], "as before the failure");
        assert!(reader.can_reach(&owner)?);
        assert_eq!(owner.context().readers(), [reader.ordinal()]);
        Ok(())
    }

    #[test]
    fn holders_are_notified_before_reset() -> Result<(), Error> {
        let device = Device::emulated(Profile::with_memory(1 << 20))?;
        let context = device.context().clone();
        let notes = Arc::new(Notes(context.clone(), Mutex::default()));
        let holder: Arc<dyn Holder> = notes.clone();
        context.holders.register(Arc::downgrade(&holder), Arc::default());
        let gone: Arc<dyn Holder> = Arc::new(Notes(context.clone(), Mutex::default()));
        context.holders.register(Arc::downgrade(&gone), Arc::default());
        drop(gone);
        // SAFETY: this test alone uses the device, and holds only its context.
        let fresh = unsafe { device.reset() }?;
        // SAFETY: the reset above opened the device, and nothing was made on it since.
        let _again = unsafe { fresh.reset() }?;
        let seen = notes.1.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(seen, [Ok(())]);
        assert_eq!(context.synchronize(), Err(Gone::Reset.into()));
        Ok(())
    }
}
