//! Defines the options that C code sets for a heap.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::time::Duration;

use gpuheap::{HeapBuilder, PoolKind, Tracking};

use crate::entry::{Failure, text};

/// Options for gpuheap_open. Set the whole structure to zero, then size to sizeof(gpuheap_options).
/// If an option is zero, the environment sets it (variables GPUHEAP_*). If the environment does not
/// set it, the default stated here applies.
///
/// Later versions add fields at the end. If a program was compiled with fewer fields, the missing
/// fields have their defaults. If a program sets fields that the library does not know,
/// gpuheap_open refuses the options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpuheap_options {
    /// sizeof(gpuheap_options).
    pub size: usize,
    /// Name of the pool: "stitched" (the default; "split" if the device has no virtual memory
    /// management), "split", "binned", "simple", "driver" or "none".
    pub pool: *const c_char,
    /// Tracking for gpuheap_memory_status: "off" (the default), "counts" or "backtraces". Only
    /// "backtraces" records lines of a C program.
    pub tracking: *const c_char,
    /// Hard limit on the bytes that the heap takes from the driver. If it is 0 and the environment
    /// sets no limit, the heap has none. On WSL2 the default limit is 80 % of the free memory.
    pub hard_limit: u64,
    /// Soft limit, in bytes. Cached memory above it is returned to the driver. If it is 0 and the
    /// environment sets no limit, the heap has no soft limit.
    pub soft_limit: u64,
    /// Idle time in milliseconds. If the heap neither allocates nor frees for so long, a thread
    /// returns all cached memory to the driver. If it is 0, the heap has no such thread.
    pub idle_trim_milliseconds: u64,
    /// Fills memory with zeros when it is freed. 1: yes. -1: never. 0: if the environment sets it.
    pub zero_on_free: i32,
    /// Fills memory with zeros when it is allocated. 1: yes. -1: never. 0: if the environment sets
    /// it.
    pub zero_on_alloc: i32,
    /// 1: takes no option from the environment.
    pub without_environment: i32,
    /// 1: streams may end without a call of gpuheap_stream_ended, for allocator hooks that do not
    /// see the end of streams. A stream must be alive in the calls that it is passed to, and in
    /// gpuheap_free of memory allocated on it.
    ///
    /// This costs driver calls. Every free queries whether the stream is capturing a graph, and
    /// records an event (140 ns on an H200). If 32 events are in use, a free also queries one or
    /// two older events (130 ns each). Every call with a stream queries whether the handle belongs
    /// to a new stream. Frees bypass the thread caches.
    pub unannounced_streams: i32,
    /// Memory that the pool "stitched" may reserve above the peak of live memory, as a share of the
    /// peak: 0.04 is 4 %. If a request needs more, the pool maps free pieces into one range. A
    /// negative value means no slack: the pool always maps free pieces first. The value 0 means
    /// GPUHEAP_SLACK, or 4 % if that is not set. While the device is far from full, these 4 % are
    /// at least 1/72 of the device.
    pub slack: f64,
}

impl gpuheap_options {
    /// Reads the options of a program that may be older or newer than the library.
    ///
    /// # Safety
    ///
    /// `options` is valid for reads of as many bytes as its size field states.
    pub(crate) unsafe fn read(options: *const gpuheap_options) -> Result<gpuheap_options, Failure> {
        /// Size of the options in the first version of gpuheap. No program passes fewer fields.
        const FIRST: usize = offset_of!(gpuheap_options, unannounced_streams) + size_of::<i32>();
        const OURS: usize = size_of::<gpuheap_options>();
        // SAFETY: the size is the first field, so the program has set it.
        let size = unsafe { (&raw const (*options).size).read_unaligned() };
        if size < FIRST {
            return Err(Failure::refused(format!(
                "the options have a size of {size}; set their size to sizeof(gpuheap_options), which \
                 is {OURS}"
            )));
        }
        let bytes = options.cast::<u8>();
        // SAFETY: the caller allows reads of as many bytes as the size field states.
        let more = (OURS..size).any(|at| unsafe { bytes.add(at).read() } != 0);
        if more {
            return Err(Failure::refused(format!(
                "the options have {size} bytes, of which this library, version {}, knows {OURS}, and \
                 others are set; load the library that the program was compiled for",
                env!("CARGO_PKG_VERSION")
            )));
        }
        let mut read = MaybeUninit::<gpuheap_options>::zeroed();
        // SAFETY: the copy is no longer than either structure. Every bit pattern of every field is
        // valid, including zero.
        unsafe {
            bytes.copy_to_nonoverlapping(read.as_mut_ptr().cast(), size.min(OURS));
            Ok(read.assume_init())
        }
    }

    /// Applies these options to a heap builder.
    ///
    /// # Safety
    ///
    /// The texts are null or C strings.
    pub(crate) unsafe fn apply(&self, mut builder: HeapBuilder) -> Result<HeapBuilder, Failure> {
        // SAFETY: the caller passes texts that are null or C strings.
        let (pool, tracking) =
            unsafe { (text(self.pool, "the pool")?, text(self.tracking, "the tracking")?) };
        if let Some(pool) = pool {
            let pool = PoolKind::parse(pool);
            builder = builder.pool(pool.map_err(|error| Failure::refused(error.to_string()))?);
        }
        if let Some(tracking) = tracking {
            let tracking = Tracking::parse(tracking);
            builder = builder.track(tracking.map_err(|error| Failure::refused(error.to_string()))?);
        }
        if self.hard_limit > 0 {
            builder = builder.hard_limit(self.hard_limit);
        }
        if self.soft_limit > 0 {
            builder = builder.soft_limit(self.soft_limit);
        }
        if self.idle_trim_milliseconds > 0 {
            builder = builder.idle_trim(Duration::from_millis(self.idle_trim_milliseconds));
        }
        if self.slack.is_nan() {
            return Err(Failure::refused(
                "slack is not a number; it is a share of the peak, such as 0.04 for 4 %".to_owned(),
            ));
        }
        if self.slack != 0.0 {
            builder = builder.slack(self.slack);
        }
        if let Some(zero) = switch("zero_on_free", self.zero_on_free)? {
            builder = builder.zero_on_free(zero);
        }
        if let Some(zero) = switch("zero_on_alloc", self.zero_on_alloc)? {
            builder = builder.zero_on_alloc(zero);
        }
        if switch("without_environment", self.without_environment)? == Some(true) {
            builder = builder.without_environment();
        }
        Ok(builder)
    }

    /// Returns `true` if streams may end unannounced.
    pub(crate) fn has_unannounced_streams(&self) -> Result<bool, Failure> {
        Ok(switch("unannounced_streams", self.unannounced_streams)? == Some(true))
    }
}

fn switch(name: &str, value: i32) -> Result<Option<bool>, Failure> {
    match value {
        0 => Ok(None),
        1 => Ok(Some(true)),
        -1 => Ok(Some(false)),
        other => Err(Failure::refused(format!(
            "{name} is {other}; it is 1 for on, -1 for off, 0 for what the environment says"
        ))),
    }
}
