//! Prefetch and advice.

use std::ffi::c_int;

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Advice, Device, DeviceArray, Location, MemoryKind, PoolKind, Target};
use gpuheap_driver::check;

use crate::support::{assert_all_returned, assert_no_findings, device, heap};

const READ_MOSTLY: c_int = 1;
const PREFERRED: c_int = 2;
const ACCESSED_BY: c_int = 3;
const LAST_PREFETCH: c_int = 4;
const HOST: c_int = -1;
const NOWHERE: c_int = -2;
/// Size of an array in bytes. It is a multiple of every page size.
const BYTES: usize = 4 << 20;

fn attribute(array: &DeviceArray<u8>, attribute: c_int) -> c_int {
    let address = array.device_ptr(&array.stream()).unwrap();
    let mut value = 99;
    let asked = array.device().with_current(|driver| {
        let to = (&raw mut value).cast();
        // SAFETY: these attributes are 32 bits wide, and the array is live.
        unsafe { driver.cuMemRangeGetAttribute(to, 4, attribute, address, BYTES) }
    });
    check("cuMemRangeGetAttribute", asked.unwrap()).unwrap();
    value
}

fn moves(device: &Device) -> bool {
    device.describe().concurrent_managed_access
}

fn target(device: &Device, pool: PoolKind) -> Target {
    heap(device, pool).on(&device.stream().unwrap()).kind(MemoryKind::Unified)
}

#[test]
fn prefetched_pages_keep_content() {
    let device = device(1 << 30, Schedule::Seeded(3));
    if !moves(&device) {
        return;
    }
    let target = target(&device, PoolKind::Simple);
    let array = target.filled(BYTES, 7_u8).unwrap();
    let ordinal = device.describe().ordinal;
    array.prefetch(Location::Host).unwrap();
    array.stream().synchronize().unwrap();
    assert_eq!(attribute(&array, LAST_PREFETCH), HOST);
    assert_eq!(array.as_slice().unwrap()[BYTES - 1], 7);
    array.prefetch(Location::Device).unwrap();
    assert_eq!(attribute(&array, LAST_PREFETCH), ordinal);
    // Prefetches a part of the array and an empty part. A range outside the array is refused.
    array.slice(2..5).unwrap().prefetch(Location::Host).unwrap();
    array.slice(3..3).unwrap().prefetch(Location::Host).unwrap();
    array.slice(..0).unwrap().advise(Advice::ReadMostly).unwrap();
    assert!(array.slice(2..BYTES + 1).is_err());
    let shared = array.into_shared();
    assert!(shared.free_early().unwrap());
    assert!(shared.prefetch(Location::Host).unwrap_err().is_freed());
    assert!(shared.advise(Advice::ReadMostly).unwrap_err().is_freed());
    assert_no_findings(&device, "prefetch");
}

#[test]
fn advice_is_set_unset_not_inherited() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split] {
        let device = device(1 << 30, Schedule::OnDemand);
        if !moves(&device) {
            return;
        }
        let ordinal = device.describe().ordinal;
        let target = target(&device, pool);
        let array = target.filled(BYTES, 1_u8).unwrap();
        let all = [
            Advice::ReadMostly,
            Advice::PreferredLocation(Location::Host),
            Advice::AccessedBy(Location::Device),
        ];
        let seen = |array: &DeviceArray<u8>| {
            [READ_MOSTLY, PREFERRED, ACCESSED_BY].map(|what| attribute(array, what))
        };
        for advice in &all {
            array.advise(advice.clone()).unwrap();
        }
        assert_eq!(seen(&array), [1, HOST, ordinal], "{pool}");
        for advice in &all {
            array.unadvise(advice.clone()).unwrap();
        }
        assert_eq!(seen(&array), [0, NOWHERE, NOWHERE], "{pool}");
        for advice in &all {
            array.advise(advice.clone()).unwrap();
        }
        let address = array.device_ptr(&array.stream()).unwrap();
        drop(array);
        let next = target.filled(BYTES, 2_u8).unwrap();
        assert_eq!(next.device_ptr(&next.stream()).unwrap(), address, "{pool}");
        assert_eq!(seen(&next), [0, NOWHERE, NOWHERE], "{pool}");
        // A free by `free_early` withdraws advice too.
        next.advise(Advice::ReadMostly).unwrap();
        let shared = next.into_shared();
        shared.free_early().unwrap();
        let next = target.filled(BYTES, 3_u8).unwrap();
        assert_eq!(seen(&next), [0, NOWHERE, NOWHERE], "{pool}");
        drop((shared, next));
        assert_all_returned(&device, target.heap(), pool.name());
    }
}

#[test]
fn other_kinds_refuse_prefetch() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = target(&device, PoolKind::Split);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let array = target.kind(kind).filled((2, 3), 1_u8).unwrap();
        let error = array.prefetch(Location::Device).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "an array of shape [2, 3] in {kind} memory cannot be prefetched, because its pages \
                 never move; allocate it as unified memory"
            )
        );
        let error = array.advise(Advice::ReadMostly).unwrap_err().to_string();
        assert!(error.contains("cannot be advised, because"), "{error}");
    }
}

#[test]
fn prefetch_accepts_devices_of_machine() {
    let two = vec![Profile::h200(), Profile::h200()];
    let options = Options { devices: two, ..Options::default() };
    let devices = Device::emulated_devices(options).unwrap();
    let array = target(&devices[0], PoolKind::Split).filled(BYTES, 1_u8).unwrap();
    array.prefetch(Location::Other(devices[1].clone())).unwrap();
    assert_eq!(attribute(&array, LAST_PREFETCH), 1);
    array.advise(Advice::PreferredLocation(Location::Other(devices[1].clone()))).unwrap();
    assert_eq!(attribute(&array, PREFERRED), 1);
    let stranger = Device::open("emulated:1GiB").unwrap();
    let error = array.prefetch(Location::Other(stranger)).unwrap_err().to_string();
    assert!(error.contains("knows nothing of") && error.contains("copy_to"), "{error}");
}
