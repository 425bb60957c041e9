//! Units in which device memory is given out.

/// Unit by which device memory in use changes, bytes: measured on the H200. Virtual memory
/// management has the same granularity.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Memory that a pool takes from the device at a time, bytes: measured on the H200.
pub(crate) const CHUNK: u64 = 32 << 20;

/// Multiple that an allocation's place in a pool is rounded up to, bytes: measured on the H200.
pub(crate) const POOL_ALIGN: u64 = 512;
