//! Keeps a heap for each device whose primary context the program allocates in.
//!
//! The heap's memory belongs to the primary context. Contexts that the program made are not served.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use gpuheap::{Device, Error, Heap, PoolKind, Stream};
use gpuheap_capi::{LiveStream, Open};
use gpuheap_catch::messages;
use gpuheap_driver::{CUcontext, CUdevice, CUstream, fork};

use crate::figures::{Marks, PlainBytes};
use crate::{real, resets, settings};

/// Maximum number of heaps that a process opens. It opens one for each device, and another after
/// each reset of a device. A machine has 16 devices at most.
const MOST: usize = 256;

/// The heaps, in the order in which they were opened. After a reset, a heap's pointer is null.
static HEAPS: [AtomicPtr<Served>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];

/// Number of heaps ever opened.
static OPENED: AtomicUsize = AtomicUsize::new(0);

/// `true` once a heap could not be opened. No heap is opened after that, because the reason does
/// not change.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A device with its heap. The value is never freed, because other threads may use the heap during
/// a reset of the device.
pub(crate) struct Served {
    context: CUcontext,
    pub(crate) device: Device,
    pub(crate) heap: Heap,
    /// Stream-ordered allocations, made by `cuMemAllocAsync`.
    in_order: Open,
    /// Allocations without stream order, made by `cuMemAlloc`.
    in_no_order: Open,
    /// Stream on which allocations without stream order are made.
    pub(crate) plain: Stream,
    /// `true` if an allocation on the stream `plain` may get memory that earlier work still uses.
    /// The heap then orders the stream after that work, and the allocation waits for the stream.
    pub(crate) plain_may_wait: AtomicBool,
    pub(crate) plain_bytes: PlainBytes,
    pub(crate) marks: Marks,
}

impl Served {
    /// Returns the table of allocations without stream order if `is_plain`, else the table of
    /// stream-ordered allocations.
    pub(crate) fn table(&self, is_plain: bool) -> &Open {
        if is_plain { &self.in_no_order } else { &self.in_order }
    }

    /// Returns the live allocation of the heap that begins at an address. The table that `is_plain`
    /// selects is searched first.
    pub(crate) fn find(&self, address: u64, is_plain: bool) -> Option<Allocation> {
        [is_plain, !is_plain].into_iter().find_map(|is_plain| {
            let bytes = self.table(is_plain).bytes_at(address)?;
            Some(Allocation { bytes, is_plain })
        })
    }
}

/// A live allocation of a heap.
pub(crate) struct Allocation {
    /// Size as requested.
    pub(crate) bytes: u64,
    /// `true` if the allocation was made without stream order.
    pub(crate) is_plain: bool,
}

/// Returns all open heaps. In a forked child, returns no heap, because a thread of the parent may
/// hold the heaps' locks.
pub(crate) fn all() -> impl Iterator<Item = &'static Served> {
    let opened = if fork::count() == 0 { OPENED.load(Ordering::Acquire).min(MOST) } else { 0 };
    // SAFETY: heaps are never freed.
    HEAPS[..opened].iter().filter_map(|heap| unsafe { heap.load(Ordering::Acquire).as_ref() })
}

/// Returns the heap of the calling thread's context; `None` if that context is not served.
#[inline]
pub(crate) fn current_heap() -> Option<&'static Served> {
    heap_of(current_context()?)
}

/// Returns the heap of a stream's context; `None` if that context is not served.
#[inline]
pub(crate) fn heap_of_stream(stream: CUstream) -> Option<&'static Served> {
    if [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD].contains(&stream) {
        return current_heap();
    }
    let mut context = CUcontext::NULL;
    let code = real::cuStreamGetCtx(stream, &mut context);
    if code.is_success() { heap_of(context) } else { None }
}

/// Returns the calling thread's context, if it has one.
#[inline]
pub(crate) fn current_context() -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    let code = real::cuCtxGetCurrent(&mut context);
    (code.is_success() && context != CUcontext::NULL).then_some(context)
}

/// Stops the use of a device's heap and resets gpuheap's `Device`. Call it before the program
/// resets the device. The reset ends all live memory of the heap.
pub(crate) fn reset(device: CUdevice) {
    if fork::count() != 0 {
        return;
    }
    resets::count(device);
    let opened = OPENED.load(Ordering::Acquire).min(MOST);
    for place in &HEAPS[..opened] {
        let found = place.load(Ordering::Acquire);
        // SAFETY: heaps are never freed.
        let Some(served) = (unsafe { found.as_ref() }) else { continue };
        if served.device.ordinal() != device {
            continue;
        }
        let null = ptr::null_mut();
        if place.compare_exchange(found, null, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            resets::add(device, &served.heap);
            // SAFETY: the program is about to reset the device, and no longer uses the memory. If
            // this reset fails, the program's own reset returns the error.
            let _: Result<Device, Error> = unsafe { served.device.clone().reset() };
        }
    }
}

#[inline]
fn heap_of(context: CUcontext) -> Option<&'static Served> {
    all().find(|served| served.context == context).or_else(|| open(context))
}

#[cold]
fn open(context: CUcontext) -> Option<&'static Served> {
    static OPENING: Mutex<()> = Mutex::new(());
    if REFUSED.load(Ordering::Relaxed) || fork::count() != 0 {
        return None;
    }
    let ordinal = primary_of(context)?;
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(served) = all().find(|served| served.context == context) {
        return Some(served);
    }
    let opened = OPENED.load(Ordering::Relaxed);
    let place = HEAPS.get(opened)?;
    let settings = settings::get();
    let made = settings.map(|settings| open_heap(context, ordinal, settings.waits));
    let made = match made {
        Some(Ok(made)) => made,
        failed => {
            REFUSED.store(true, Ordering::Relaxed);
            if let Some(Err(error)) = failed {
                messages::write(&format!("no allocation is served: {error}"));
            }
            return None;
        }
    };
    let made = Box::leak(Box::new(made));
    place.store(made, Ordering::Release);
    OPENED.store(opened + 1, Ordering::Release);
    Some(made)
}

/// Returns the device of a context, if the context is primary. `context` is current to the calling
/// thread.
fn primary_of(context: CUcontext) -> Option<CUdevice> {
    let (mut device, mut primary) = (0, CUcontext::NULL);
    if !real::cuCtxGetDevice(&mut device).is_success()
        || !real::cuDevicePrimaryCtxRetain(&mut primary, device).is_success()
    {
        return None;
    }
    // Releasing this reference does not end the context: a current context has another reference.
    let _ = real::cuDevicePrimaryCtxRelease_v2(device);
    (primary == context).then_some(device)
}

fn open_heap(context: CUcontext, ordinal: CUdevice, waits: bool) -> Result<Served, Error> {
    let device = Device::open(&format!("cuda:{ordinal}"))?;
    let mut builder = Heap::builder(&device);
    let is_chosen = std::env::var_os("GPUHEAP_POOL").is_some_and(|pool| !pool.is_empty());
    if !is_chosen && has_peers(&device) {
        // `split` uses plain allocations of the driver. Other devices can access such allocations
        // once the program enables peer access.
        builder = builder.pool(PoolKind::Split);
    }
    let heap = builder.build()?;
    // The default handler reports memory that is live at a thread's end. In a CUDA program, other
    // threads may free that memory.
    heap.on_thread_end(|_| {});
    // If frees do not wait, the program's work may still use freed memory. The legacy default
    // stream runs after that work, unless the work is on a non-blocking stream.
    let plain = if waits { device.stream() } else { device.default_stream() }?;
    for warning in heap.memory_status().into_iter().flat_map(|status| status.warnings) {
        messages::write(&warning);
    }
    let fills = ["GPUHEAP_ZERO_ON_ALLOC", "GPUHEAP_ZERO_ON_FREE"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    Ok(Served {
        context,
        in_order: Open::new(&device, &heap, false),
        in_no_order: Open::new(&device, &heap, false),
        marks: Marks::new(&heap),
        plain_bytes: PlainBytes::default(),
        device,
        heap,
        plain,
        plain_may_wait: AtomicBool::new(fills),
    })
}

/// Returns `true` if the process sees more than one device, or if their number is unknown.
fn has_peers(device: &Device) -> bool {
    let mut count = 0;
    // SAFETY: the pointer is valid for a write.
    let asked = unsafe { device.driver().cuDeviceGetCount(&mut count) };
    !asked.is_success() || count > 1
}

/// Returns `stream` as a live stream. `stream` is an argument of the program's call, or a heap's
/// own stream.
pub(crate) fn live(stream: CUstream) -> LiveStream {
    // SAFETY: CUDA requires that a stream lives while a call uses it. A heap's own stream lives as
    // long as the heap.
    unsafe { LiveStream::new(raw(stream)) }
}

/// Converts a stream to the pointer type that the C interface uses.
pub(crate) fn raw(stream: CUstream) -> *mut c_void {
    ptr::without_provenance_mut(stream.0)
}
