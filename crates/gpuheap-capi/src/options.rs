//! Options of a heap, as C sets them.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::time::Duration;

use gpuheap::{HeapBuilder, PoolKind, Tracking};

use crate::entry::{Failure, text};

/// Options that gpuheap_open makes a heap of. Set all of it to zero and size to
/// sizeof(gpuheap_options): what is zero is as the environment says (the variables GPUHEAP_*), and
/// by default as said here.
///
/// Later versions add fields at the end. A program that was compiled with fewer gets their defaults;
/// one that sets more than the library knows is refused.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpuheap_options {
    /// sizeof(gpuheap_options).
    pub size: usize,
    /// How memory is cached: "stitched" (the default; "split" where the device
    /// has no virtual memory management), "split", "binned", "simple", "driver" or "none".
    pub pool: *const c_char,
    /// Record that is kept of each allocation for gpuheap_memory_status: "off" (the default),
    /// "counts" or "backtraces". Only the last one says where: the lines of a C program are in its
    /// stacks alone.
    pub tracking: *const c_char,
    /// Bytes never to be exceeded by what is taken from the driver; 0: as the environment
    /// says, else none, and on WSL2 80 % of what is free.
    pub hard_limit: u64,
    /// Bytes above which cached memory is given back; 0: as the environment says,
    /// else none.
    pub soft_limit: u64,
    /// Give all cached memory back once nothing was allocated or freed for that many milliseconds,
    /// from a thread that the heap has for it; 0: no such thread.
    pub idle_trim_milliseconds: u64,
    /// Fill memory with zeros when it is freed: 1, or -1 for not, whatever the environment says.
    pub zero_on_free: i32,
    /// Fill memory with zeros when it is allocated: 1, or -1 for not, whatever the environment says.
    pub zero_on_alloc: i32,
    /// 1: take nothing from the environment.
    pub without_environment: i32,
    /// 1: streams may end without gpuheap_stream_ended, for hooks that are not told of it. A stream has to
    /// be alive in the calls that it is passed to, and in gpuheap_free of what was allocated on it. For
    /// that every free asks the driver whether the stream captures a graph and records an event (140 ns
    /// on an H200), with 32 of them in use asks about older ones too (130 ns each, one or two), and the
    /// driver is asked at every call with a stream whether its handle is a new one's. Frees go past the
    /// caches of threads.
    pub unannounced_streams: i32,
}

impl gpuheap_options {
    /// Reads the options of a program that may be older or newer than the library.
    ///
    /// # Safety
    ///
    /// `options` is valid for reads of the bytes that its size says.
    pub(crate) unsafe fn read(options: *const gpuheap_options) -> Result<gpuheap_options, Failure> {
        /// Of the first version, which every program has at least.
        const FIRST: usize = offset_of!(gpuheap_options, unannounced_streams) + size_of::<i32>();
        const OURS: usize = size_of::<gpuheap_options>();
        // SAFETY: the size comes first, so it is there.
        let size = unsafe { (&raw const (*options).size).read_unaligned() };
        if size < FIRST {
            return Err(Failure::refused(format!(
                "the options have a size of {size}; set their size to sizeof(gpuheap_options), which \
                 is {OURS}"
            )));
        }
        let bytes = options.cast::<u8>();
        // SAFETY: as many bytes as the size says may be read.
        let more = (OURS..size).any(|at| unsafe { bytes.add(at).read() } != 0);
        if more {
            return Err(Failure::refused(format!(
                "the options have {size} bytes, of which this library, version {}, knows {OURS}, and \
                 others are set; load the library that the program was compiled for",
                env!("CARGO_PKG_VERSION")
            )));
        }
        let mut read = MaybeUninit::<gpuheap_options>::zeroed();
        // SAFETY: both have these bytes, and every value of every field is one, zero included.
        unsafe {
            bytes.copy_to_nonoverlapping(read.as_mut_ptr().cast(), size.min(OURS));
            Ok(read.assume_init())
        }
    }

    /// Tells a builder what is said here.
    ///
    /// # Safety
    ///
    /// The texts are null or C strings.
    pub(crate) unsafe fn apply(&self, mut builder: HeapBuilder) -> Result<HeapBuilder, Failure> {
        // SAFETY: as the caller says.
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

    /// Returns whether streams may end unannounced.
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
