//! Makes devices for tests that run hostile code. Also makes arrays that surround another array,
//! and detect stray writes beyond its ends.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, DeviceArray, Heap, MemoryKind, PoolKind, Target};

/// Every kind of memory that heaps hand out.
pub(crate) const KINDS: [MemoryKind; 3] =
    [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Unified];

/// Makes an emulated device of `memory` bytes with the checks on.
pub(crate) fn device(memory: u64, schedule: Schedule) -> Device {
    let profile = Profile::with_memory(memory).without_context();
    Device::emulated_with(Options { schedule, ..Options::with_device(profile) }).unwrap()
}

/// Makes two emulated devices of one driver, each of `memory` bytes, with the checks on.
pub(crate) fn two_devices(memory: u64, schedule: Schedule) -> [Device; 2] {
    let profile = || Profile::with_memory(memory).without_context();
    let options = Options { devices: vec![profile(), profile()], schedule, ..Options::default() };
    Device::emulated_devices(options).unwrap().try_into().unwrap()
}

pub(crate) fn heap(device: &Device, pool: PoolKind) -> Heap {
    Heap::builder(device).pool(pool).without_environment().build().unwrap()
}

/// Makes a heap of each pool, each on its own device, with a name for messages.
pub(crate) fn heaps(schedule: Schedule) -> impl Iterator<Item = (Device, Heap, &'static str)> {
    PoolKind::ALL.into_iter().map(move |pool| {
        let device = device(1 << 30, schedule);
        let heap = heap(&device, pool);
        (device, heap, pool.name())
    })
}

/// Asserts that no memory is live, that the heap holds none, and that the emulator found nothing.
pub(crate) fn assert_clean(device: &Device, heap: &Heap, what: &str) {
    device.synchronize().unwrap();
    heap.flush().unwrap();
    for kind in KINDS.into_iter().chain([MemoryKind::Registered]) {
        let usage = heap.usage_of(kind).unwrap();
        assert_eq!((usage.live, usage.live_blocks), (0, 0), "{what}: {kind}: {usage:?}");
    }
    assert_no_findings(device, what);
}

/// Asserts that the emulator found nothing.
pub(crate) fn assert_no_findings(device: &Device, what: &str) {
    if let Some(emulator) = device.emulator() {
        let findings = emulator.findings().unwrap();
        assert!(findings.is_empty(), "{what}: {findings:#?}");
    }
}

/// Arrays allocated before and after the array under test (the victim), with known contents.
pub(crate) struct Neighbours(Vec<DeviceArray<u8>>);

/// Number of elements of a neighbour.
const LENGTH: usize = 512;

impl Neighbours {
    /// Makes neighbours, and `victim` between them.
    pub(crate) fn around<V>(target: &Target, victim: impl FnOnce(&Target) -> V) -> (Neighbours, V) {
        let made = |tag: u8| target.filled(LENGTH, tag).unwrap();
        let mut arrays: Vec<DeviceArray<u8>> = (1..5).map(made).collect();
        let victim = victim(target);
        arrays.extend((5..9).map(made));
        (Neighbours(arrays), victim)
    }

    /// Asserts that every neighbour is unchanged.
    pub(crate) fn check(&self, what: &str) {
        for (array, tag) in self.0.iter().zip(1..) {
            assert_eq!(array.to_vec().unwrap(), [tag; LENGTH], "{what}: neighbour {tag}");
        }
    }
}

/// A value that panics when it is dropped.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a bomb");
        }
    }
}
