//! A device's primary context: held, entered, and lost.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use gpuheap_driver::{
    BlockChecks, CUcontext, CUdevice, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, Driver, DriverError, check,
};
use gpuheap_pool::{Gone, Moments, SourceError};

use super::gate::HostGate;
use super::granules::Granules;
use super::holders::{Holder, Holders, Visited};
use super::info::DeviceInfo;
use super::turn::Turn;
use super::virtual_memory::{NoVirtualMemory, VirtualMemory};
use crate::error::{Error, Fault, driver_error, failure};
use crate::fork;
use crate::sync;
use crate::thread_cache;

/// The emulator behind an emulated device; in a build without the emulator no device has one.
#[cfg(feature = "emulator")]
pub(crate) type Emulator = Arc<gpuheap_emu::Emulator>;
#[cfg(not(feature = "emulator"))]
pub(crate) type Emulator = std::convert::Infallible;

/// Devices of one driver, and how they came to be opened.
pub(super) struct Origin {
    pub(super) emulator: Option<Emulator>,
    /// Why an emulated device stands in for a GPU, if it does.
    pub(super) fallback: Option<String>,
}

/// A device's primary context, held while this lives.
///
/// There is one of these for each context that is alive, however often its device is opened.
pub(crate) struct Context {
    driver: Arc<dyn Driver>,
    emulator: Option<Emulator>,
    /// `true` if the driver has further devices.
    has_siblings: bool,
    /// `true` if the device belongs to Windows and WSL2 lends it.
    is_wsl2: bool,
    /// Kept here, where asking costs one load.
    has_block_checks: bool,
    info: DeviceInfo,
    raw: CUcontext,
    /// Which one of the process this is: a driver uses handles again, this is never used again.
    number: u64,
    /// The count of forks when it was retained.
    forks: u32,
    /// It was reset: what the driver kept for it is gone.
    lost: AtomicBool,
    /// The contexts whose memory this one's device was asked to reach, by number, and whether it
    /// does.
    peers: Mutex<Vec<(u64, bool)>>,
    /// The other devices that reach this one's memory.
    readers: Mutex<Vec<CUdevice>>,
    /// What the probe of its virtual memory said, once it was made.
    virtual_memory: OnceLock<Result<VirtualMemory, NoVirtualMemory>>,
    pub(crate) holders: Holders,
    /// Taken by the request that reaches into other heaps at the end of the reclaim steps.
    pub(crate) turn: Turn,
    /// Granules of the device in which several heaps have small allocations.
    pub(crate) granules: Granules,
    /// Who may be at work: the device, or the host in unified memory.
    pub(crate) gate: HostGate,
    /// The device's own heap, while anything uses it.
    pub(crate) heap: Mutex<Option<Weak<dyn Holder>>>,
    /// State that a floor above keeps with the context, from its first use on.
    attachment: OnceLock<Box<dyn Attachment>>,
    /// Progress of its work, as far as it was learnt.
    pub(crate) moments: Arc<Moments>,
}

/// State that a floor above keeps with a context.
pub(crate) trait Attachment: Any + Send + Sync {
    /// Gives back what it has of the driver's, because the context ends.
    fn end(&mut self, context: &Context);
}

/// Why a context could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextError {
    Gone(Gone),
    Driver(DriverError),
}

impl Context {
    /// Retains the primary context of the device that the driver counts as `ordinal`, which people
    /// call `name`.
    pub(super) fn retain(
        driver: Arc<dyn Driver>,
        origin: Origin,
        ordinal: i32,
        name: &str,
    ) -> Result<Arc<Context>, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let forks = fork::watch();
        // Here, where a context takes a hundred times as long, and not at the first allocation.
        sync::prepare();
        let Origin { emulator, fallback } = origin;
        // Asked here and kept: the emulator answers behind its lock, which nothing may take in a
        // forked child, and names are shown there too.
        let (number, is_wsl2) = look(emulator.as_ref(), ordinal);
        let mut info = DeviceInfo::read(&*driver, ordinal, name, number)?;
        info.fallback = fallback;
        let has_siblings = number.is_some() && super::info::count(&*driver)? > 1;
        let mut raw = CUcontext::NULL;
        // SAFETY: the pointer is valid for the call.
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
            peers: Mutex::default(),
            readers: Mutex::default(),
            virtual_memory: OnceLock::new(),
            holders: Holders::default(),
            turn: Turn::default(),
            granules: Granules::default(),
            gate,
            heap: Mutex::default(),
            attachment: OnceLock::new(),
            moments: Arc::default(),
        }))
    }

    /// The state that a floor above keeps with the context; `None` if another type has the place.
    pub(crate) fn attachment<A: Attachment + Default>(&self) -> Option<&A> {
        let attachment: &dyn Any = &**self.attachment.get_or_init(|| Box::<A>::default());
        attachment.downcast_ref()
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The checks that want to know of each block: those of an emulated device, if they are on.
    #[inline]
    pub(crate) fn block_checks(&self) -> Option<&dyn BlockChecks> {
        if self.has_block_checks { self.driver.block_checks() } else { None }
    }

    #[cfg(feature = "emulator")]
    pub(crate) fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// What the device is and can do.
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns `true` if the device is Windows' and lent to WSL2: its host gives freed memory back
    /// late, and calls memory free that cannot be had.
    pub(crate) fn is_wsl2(&self) -> bool {
        self.is_wsl2
    }

    /// Its name in a message that names `other` too. If both are emulated by two emulators, whose
    /// devices may be called alike, the emulator's number is part of it.
    pub(crate) fn beside(&self, other: &Context) -> String {
        let number = self.info.emulator;
        self.text(number.filter(|_| other.info.emulator.is_some() && other.info.emulator != number))
    }

    fn text(&self, emulator: Option<u64>) -> String {
        let DeviceInfo { name, product, ordinal, .. } = &self.info;
        let mut text = format!("{name} ({product}");
        if self.has_siblings {
            // All devices of one emulator have the same name.
            text += &format!(", device {ordinal}");
        }
        if let Some(number) = emulator {
            text += &format!(", emulator {number}");
        }
        text + ")"
    }

    /// Which one of the process it is; never used again.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns `true` if both are the same context of the same driver.
    pub(crate) fn is_same(&self, other: &Context) -> bool {
        self.number == other.number
    }

    /// Returns `true` if both are reached through one driver. The machine's own is one however
    /// often it is opened.
    pub(crate) fn shares_driver(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    /// The driver's handle for it.
    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }

    pub(crate) fn ordinal(&self) -> CUdevice {
        self.info.ordinal
    }

    pub(crate) fn total_memory(&self) -> u64 {
        self.info.total_memory
    }

    /// Returns `true` if the driver has stream-ordered pools for this device.
    pub(crate) fn has_pools(&self) -> bool {
        self.info.memory_pools
    }

    /// Returns what is known of the device's virtual memory, found out by `probe` at the first
    /// question.
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

    /// Refuses a context that cannot be used at all. To be asked before any lock is taken that
    /// another thread of the parent may have held when this process was forked off.
    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), Gone> {
        if self.forks != fork::count() {
            return Err(Gone::Forked);
        }
        if self.lost.load(Ordering::Relaxed) { Err(Gone::Reset) } else { Ok(()) }
    }

    /// Waits for all work of the context. Breaks the capture of a graph that one of its streams is
    /// at: what is not the program's own wish asks before.
    pub(crate) fn synchronize(&self) -> Result<(), ContextError> {
        let moment = self.moments.begin();
        {
            let _current = self.enter_aside()?;
            // SAFETY: no pointers.
            check("cuCtxSynchronize", unsafe { self.driver.cuCtxSynchronize() })?;
        }
        self.moments.complete_all(moment);
        thread_cache::completed(self.number, None);
        Ok(())
    }

    /// Makes the context current on this thread until the guard goes. What was current before
    /// belongs to the program or to another library and is put back.
    ///
    /// Everything that calls the driver passes through here, so nothing reaches it in a forked
    /// child or after a reset.
    pub(crate) fn enter(&self) -> Result<Current<&Context>, ContextError> {
        Current::enter(self)
    }

    /// The same for what the library does for itself, beside the program's work: a capture of a graph
    /// forbids calls such as `cuMemAlloc` and `cuEventQuery`, even on other threads, because they
    /// might be meant to be part of it. Without this they would fail and break the capture.
    pub(crate) fn enter_aside(&self) -> Result<Aside<&Context>, ContextError> {
        Aside::enter(self)
    }

    /// The same with a guard that can be kept, on this thread.
    pub(crate) fn stay_aside(self: &Arc<Self>) -> Result<Aside<Arc<Context>>, ContextError> {
        Aside::enter(self.clone())
    }

    /// Returns `true` if a stream is capturing a graph: it can be neither waited for nor made to
    /// wait for what is outside. So is the default stream while a stream does that it would have to
    /// wait for.
    pub(crate) fn is_capturing(&self, stream: CUstream) -> Result<bool, ContextError> {
        let _current = self.enter()?;
        self.is_capturing_inside(stream)
    }

    /// The same while the context is entered.
    pub(crate) fn is_capturing_inside(&self, stream: CUstream) -> Result<bool, ContextError> {
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: the pointer is valid for the call; the stream is alive, which its user promises.
        match unsafe { self.driver.cuStreamIsCapturing(stream, &mut status) } {
            CUresult::ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            code => Ok(check("cuStreamIsCapturing", code)
                .map(|()| status != CUstreamCaptureStatus::NONE)?),
        }
    }

    /// Returns `true` if work on this device may touch memory of `other`. Peer access, where it
    /// takes any, is enabled by the first question of a pair.
    ///
    /// This covers plain allocations and the virtual memory of our heaps; a stream-ordered pool is
    /// opened to other devices by its own call.
    ///
    /// Heaps that the question kept alive are added to `visited`. The caller drops them with no lock
    /// held.
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

    /// The other devices that are to reach what is mapped from now on.
    pub(crate) fn readers(&self) -> Vec<CUdevice> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets another device reach the virtual memory of the heaps, which says so for each mapping.
    /// These heaps are added to `visited`.
    fn open_to(&self, reader: CUdevice, visited: &mut Visited) -> Result<bool, ContextError> {
        // First, so that what is mapped meanwhile is open too. A device that was reset asks again.
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
        // SAFETY: the pointer is valid for the call.
        let asked =
            unsafe { self.driver.cuDeviceCanAccessPeer(&mut can, self.ordinal(), other.ordinal()) };
        check("cuDeviceCanAccessPeer", asked)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the other context is held by `other`.
        match unsafe { self.driver.cuCtxEnablePeerAccess(other.raw, 0) } {
            // The program or another library was first.
            CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            CUresult::ERROR_PEER_ACCESS_UNSUPPORTED => Ok(false),
            code => Ok(check("cuCtxEnablePeerAccess", code).map(|()| true)?),
        }
    }

    /// Free and total bytes of the device, all processes counted.
    pub(crate) fn memory(&self) -> Result<(u64, u64), ContextError> {
        let (mut free, mut total) = (0, 0);
        let _current = self.enter_aside()?;
        // SAFETY: both pointers are valid for the call.
        let asked = unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) };
        check("cuMemGetInfo_v2", asked)?;
        Ok((free as u64, total as u64))
    }

    /// Ends the context with all that the process has in it, and gives up our reference to it.
    ///
    /// # Safety
    ///
    /// As [`Device::reset`](super::Device::reset).
    pub(super) unsafe fn reset(&self) -> Result<(), ContextError> {
        // Work that failed is a reason for a reset, not against it.
        match self.synchronize() {
            Err(ContextError::Gone(gone)) => return Err(gone.into()),
            Err(ContextError::Driver(_)) | Ok(()) => {}
        }
        for holder in self.holders.all() {
            holder.before_reset();
        }
        self.lost.store(true, Ordering::Relaxed);
        // SAFETY: nobody uses what is in the context from here on, which the caller promises.
        let reset = unsafe { self.driver.cuDevicePrimaryCtxReset_v2(self.ordinal()) };
        let reset = check("cuDevicePrimaryCtxReset_v2", reset);
        self.lost.store(reset.is_ok(), Ordering::Relaxed);
        for holder in self.holders.all() {
            holder.after_reset(reset.is_ok());
        }
        reset?;
        // A reset leaves references as they are (driver 580, and the emulator). Ours is given up
        // while the context is not active, when that ends nothing; a driver that had taken it away
        // would say so here, to no harm. Before the reset it could end the context under others.
        // SAFETY: retained once by `retain`, and `drop` releases no context that is lost.
        let _: CUresult = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.ordinal()) };
        Ok(())
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(None))
    }
}

/// The number of a device's emulator, `None` for a real device, and whether the device is lent to
/// WSL2.
fn look(emulator: Option<&Emulator>, ordinal: i32) -> (Option<u64>, bool) {
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
                // SAFETY: retained once by `retain`. A failure means that the driver is gone already.
                let _: CUresult =
                    unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.ordinal()) };
            }
            // The driver too is left alone: a thread of the parent may have been inside it.
            #[cfg_attr(
                not(feature = "emulator"),
                allow(clippy::clone_on_copy, reason = "without emulators there is never one")
            )]
            Err(Gone::Forked) => std::mem::forget((self.driver.clone(), self.emulator.clone())),
            Err(Gone::Reset) => {}
        }
    }
}

/// While it lives, a context is current on the thread that made it.
pub(crate) struct Current<C: Deref<Target = Context>> {
    context: C,
    pushed: bool,
}

/// While it lives, a context is current on the thread that made it, and captures keep that thread
/// from nothing.
pub(crate) struct Aside<C: Deref<Target = Context>> {
    current: Current<C>,
    before: Option<CUstreamCaptureMode>,
}

impl<C: Deref<Target = Context>> Current<C> {
    fn enter(context: C) -> Result<Current<C>, ContextError> {
        context.check_alive()?;
        let (driver, mut current) = (&context.driver, CUcontext::NULL);
        // SAFETY: the pointer is valid for the call.
        check("cuCtxGetCurrent", unsafe { driver.cuCtxGetCurrent(&mut current) })?;
        let pushed = current != context.raw;
        if pushed {
            // SAFETY: the context is held by itself.
            check("cuCtxPushCurrent_v2", unsafe { driver.cuCtxPushCurrent_v2(context.raw) })?;
        }
        Ok(Current { context, pushed })
    }
}

impl<C: Deref<Target = Context>> Aside<C> {
    fn enter(context: C) -> Result<Aside<C>, ContextError> {
        let current = Current::enter(context)?;
        let mut mode = CUstreamCaptureMode::RELAXED;
        // SAFETY: the pointer is valid for the call.
        let exchanged =
            unsafe { current.context.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        // Where that fails, all is as without a capture.
        Ok(Aside { before: exchanged.is_success().then_some(mode), current })
    }
}

impl<C: Deref<Target = Context>> Drop for Aside<C> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            let driver = &self.current.context.driver;
            // SAFETY: the pointer is valid for the call; sets what was set before.
            let _: CUresult = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
}

impl<C: Deref<Target = Context>> Drop for Current<C> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: the pointer is valid for the call; pops what `enter` pushed.
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
    use super::*;
    use crate::emu::{Fault, FaultPlan, Options, Profile};
    use crate::{Device, Error, Heap, PoolKind};

    /// Notes how the context was when it was told.
    struct Notes(Arc<Context>, Mutex<Vec<Result<(), ContextError>>>);

    impl Holder for Notes {
        fn before_reset(&self) {
            self.1.lock().unwrap_or_else(PoisonError::into_inner).push(self.0.synchronize());
        }

        fn after_reset(&self, _is_reset: bool) {}

        fn open_to(&self, _reader: CUdevice) -> Result<(), SourceError> {
            Ok(())
        }

        fn is_any_capturing(&self) -> bool {
            false
        }

        fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
            self
        }
    }

    #[test]
    fn a_device_that_was_reset_is_a_reader_once() -> Result<(), Error> {
        let profile = Profile::with_memory(64 << 20);
        let devices = vec![profile.clone(), profile];
        let mut devices = Device::emulated_devices(Options { devices, ..Options::default() })?;
        let (owner, reader) = (devices.remove(1), devices.remove(0));
        let heap = Heap::builder(&owner).pool(PoolKind::Stitched).build()?;
        let stream = owner.stream()?;
        let _block = heap.allocate(1, &stream)?;
        assert!(reader.can_reach(&owner)?);
        // SAFETY: nothing else uses this device.
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
    fn holders_are_told_once_and_before_the_context_ends() -> Result<(), Error> {
        let device = Device::emulated(Profile::with_memory(1 << 20))?;
        let context = device.context().clone();
        let notes = Arc::new(Notes(context.clone(), Mutex::default()));
        let holder: Arc<dyn Holder> = notes.clone();
        context.holders.register(Arc::downgrade(&holder), Arc::default());
        let gone: Arc<dyn Holder> = Arc::new(Notes(context.clone(), Mutex::default()));
        context.holders.register(Arc::downgrade(&gone), Arc::default());
        drop(gone);
        // SAFETY: nothing else uses this device.
        let fresh = unsafe { device.reset() }?;
        // SAFETY: nothing else uses this device.
        let _again = unsafe { fresh.reset() }?;
        let seen = notes.1.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(seen, [Ok(())]);
        assert_eq!(context.synchronize(), Err(Gone::Reset.into()));
        Ok(())
    }
}
