//! Tests of registered memory. It is outside the limit of pinned memory, but meters count it.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Heap, PoolKind};

use crate::support::{device, heap};

const MIB: u64 = 1 << 20;

/// The limit of pinned memory does not apply to registered memory. Errors must not suggest raising
/// that limit.
#[test]
fn registered_memory_ignores_pinned_limit() {
    let mut profile = Profile::with_memory(256 << 20).without_context();
    profile.pinned_limit = Some(8 << 20);
    let device = Device::emulated_with(Options::with_device(profile)).unwrap();
    let heap = Heap::builder(&device).without_environment().pinned_limit(2 * MIB).build().unwrap();
    let target = heap.target().unwrap();
    drop(target.register(vec![0_u8; 2 << 20]).unwrap());
    let error = target.register(vec![0_u8; 9 << 20]).unwrap_err();
    assert!(!error.to_string().contains("pinned_limit"), "{error}");
    assert_eq!(error.error().out_of_memory().unwrap().limit, None);
}

#[test]
fn meter_counts_registered_memory() {
    let heap = heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split);
    let target = heap.target().unwrap();
    let meter = heap.meter().unwrap().with_thread();
    let array = target.register(vec![1_u8; 1000]).unwrap();
    let used = meter.read().unwrap().thread.unwrap();
    assert_eq!(heap.usage_of(array.kind()).unwrap().live, 1000);
    assert_eq!((used.allocations, used.allocated_bytes), (1, 1000));
}
