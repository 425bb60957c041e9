//! Lets C, languages that call C, and allocator hooks of other libraries use gpuheap.
//!
//! The functions are documented in `include/gpuheap.h`. cbindgen generates the header from this
//! crate. A Rust program uses the crate `gpuheap` instead. A Rust program that passes its own heap
//! to C code uses [`gpuheap_heap::new`] from this crate.
//!
//! Every function runs its work through `entry.rs`, which catches panics and turns a failure into a
//! status and a text. In a forked child, no function takes a lock.
#![allow(non_camel_case_types, reason = "named as in C")]

mod account;
mod blocks;
mod callbacks;
mod calls;
mod devices;
mod entry;
mod handle;
mod kinds;
mod options;
mod scope;
mod scope_calls;
mod side_table;
mod sites;
mod sized;
mod statistics;
mod streams;
mod texts;
mod version;
mod zeroed_array;

pub use account::{
    GPUHEAP_UNKNOWN, gpuheap_drop_snapshot, gpuheap_fit, gpuheap_flush, gpuheap_flushed,
    gpuheap_leaks, gpuheap_memory_status, gpuheap_snapshot, gpuheap_snapshot_difference,
    gpuheap_take_snapshot, gpuheap_would_fit,
};
pub use callbacks::{
    gpuheap_on_shortage, gpuheap_on_thread_end, gpuheap_shortage, gpuheap_thread_end,
    gpuheap_thread_ended,
};
pub use calls::{
    gpuheap_allocate, gpuheap_allocate_batch, gpuheap_allocation_size, gpuheap_close, gpuheap_fill,
    gpuheap_free, gpuheap_free_batch, gpuheap_free_on, gpuheap_get_statistics, gpuheap_open,
    gpuheap_reclaim, gpuheap_reclaim_all, gpuheap_set_limits, gpuheap_stream_ended,
    gpuheap_used_on, gpuheap_wait,
};
pub use devices::{
    gpuheap_count_devices, gpuheap_device, gpuheap_get_device, gpuheap_get_heap_device,
};
pub use entry::{Failure, gpuheap_last_error, gpuheap_status, reported};
pub use handle::{Open, gpuheap_heap};
pub use kinds::{
    gpuheap_allocate_kind, gpuheap_get_kind_statistics, gpuheap_kind, gpuheap_register,
    gpuheap_reset_device, gpuheap_unregister, gpuheap_wait_for_stream,
};
pub use options::gpuheap_options;
pub use scope::gpuheap_scope_report;
pub use scope_calls::{gpuheap_close_scope, gpuheap_keep, gpuheap_open_scope, gpuheap_scope};
pub use sites::{gpuheap_list_growth, gpuheap_list_leaks, gpuheap_site};
pub use statistics::gpuheap_statistics;
pub use streams::LiveStream;
pub use texts::gpuheap_format;
pub use version::{
    GPUHEAP_VERSION_MAJOR, GPUHEAP_VERSION_MINOR, GPUHEAP_VERSION_PATCH, gpuheap_version,
};
