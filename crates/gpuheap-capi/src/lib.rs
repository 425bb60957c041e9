//! gpuheap for C, for languages that call C, and for the allocator hooks of other libraries.
//!
//! The functions are documented in `include/gpuheap.h`, which cbindgen generates from this crate. A
//! Rust program uses the crate `gpuheap` instead. To hand a heap of its own to C, it uses
//! [`gpuheap_heap::new`] from this crate.
//!
//! Every function is entered through `entry.rs`, which catches panics and turns a failure into a
//! status and a text. In a forked child no function takes a lock.

mod blocks;
mod calls;
mod entry;
mod handle;
mod options;
mod statistics;
mod streams;
mod version;

pub use calls::{
    gpuheap_allocate, gpuheap_allocation_size, gpuheap_close, gpuheap_free, gpuheap_free_on,
    gpuheap_get_statistics, gpuheap_memory_status, gpuheap_open, gpuheap_reclaim,
    gpuheap_reclaim_all, gpuheap_set_limits, gpuheap_stream_ended,
};
pub use entry::{gpuheap_last_error, gpuheap_status};
pub use handle::gpuheap_heap;
pub use options::gpuheap_options;
pub use statistics::gpuheap_statistics;
pub use version::{
    GPUHEAP_VERSION_MAJOR, GPUHEAP_VERSION_MINOR, GPUHEAP_VERSION_PATCH, gpuheap_version,
};
