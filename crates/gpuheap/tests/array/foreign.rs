//! Arrays over memory that other code allocated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, DeviceArray, MemoryKind, PoolKind, Stream};
use gpuheap_driver::{CU_MEM_ATTACH_GLOBAL, check};

use crate::support::{assert_all_returned, device, heap, make_heap};

/// Memory of one kind, allocated by the driver. Dropping this frees the memory.
struct Foreign<'a> {
    device: &'a Device,
    kind: MemoryKind,
    address: u64,
}

impl Foreign<'_> {
    fn new(device: &Device, kind: MemoryKind, bytes: usize) -> Foreign<'_> {
        let (mut address, mut host) = (0, std::ptr::null_mut());
        let taken = device.with_current(|driver| {
            // SAFETY: the pointers are valid.
            unsafe {
                match kind {
                    MemoryKind::Device => driver.cuMemAlloc_v2(&mut address, bytes),
                    MemoryKind::Unified => {
                        driver.cuMemAllocManaged(&mut address, bytes, CU_MEM_ATTACH_GLOBAL)
                    }
                    _ => driver.cuMemHostAlloc(&mut host, bytes, 0),
                }
            }
        });
        check("allocate", taken.unwrap()).unwrap();
        if !host.is_null() {
            address = host as u64;
        }
        Foreign { device, kind, address }
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory. If other code freed it, the call fails and the checks
        // report it.
        let _ = self.device.with_current(|driver| unsafe {
            match self.kind {
                MemoryKind::Pinned => driver.cuMemFreeHost(self.address as *mut _),
                _ => driver.cuMemFree_v2(self.address),
            }
        });
    }
}

#[test]
fn wrapped_pointer_is_not_freed() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let target = heap.target().unwrap();
    for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
        let memory = Foreign::new(&device, kind, 4096);
        for end in 0..4 {
            // SAFETY: the memory is long enough, is filled before any read, and outlives the array.
            let mut a: DeviceArray<f32, _> =
                unsafe { target.wrap(memory.address, (2, 3)) }.unwrap();
            a.fill(1.5).unwrap();
            assert_eq!((a.kind(), a.to_vec().unwrap()), (kind, vec![1.5; 6]));
            assert_eq!(a.device_ptr(target.stream()).unwrap(), memory.address);
            assert_eq!(a.copy().unwrap().kind(), kind);
            match end {
                0 => drop(a),
                1 => a.free().unwrap(),
                2 => assert_eq!(a.release().unwrap(), 0),
                _ => assert!(a.into_shared().free_early().unwrap()),
            }
        }
        device.synchronize().unwrap();
    }
    assert_all_returned(&device, &heap, "wrapped");
}

#[test]
fn owner_callback_runs_once() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    for end in 0..6 {
        let calls = Arc::new(AtomicU64::new(0));
        let memory = Foreign::new(&device, MemoryKind::Device, 4096);
        let (seen, expected) = (calls.clone(), (memory.address, streams[1].id()));
        let owner = move |address: u64, stream: &Stream| {
            assert_eq!((address, stream.id()), expected);
            seen.fetch_add(1, Ordering::Relaxed);
        };
        let (_, report) = heap.scope(|scope| {
            let target = scope.on(&streams[0]);
            // SAFETY: the memory is long enough, is filled before any read, and outlives the array.
            let mut a = unsafe { target.wrap_owned::<u8, _>(memory.address, 4096, owner) }.unwrap();
            a.fill(1).unwrap();
            a.device_ptr(&streams[1]).unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), 0);
            match end {
                0 => drop(a),
                1 => a.free().unwrap(),
                2 => assert_eq!(a.release().unwrap(), 0),
                3 => {
                    let (a, b) = (a.into_shared(), 0);
                    let clone = a.clone();
                    assert!(clone.free_early().unwrap() && !a.free_early().unwrap(), "{b}");
                }
                4 => std::mem::forget(a),
                _ => drop(scope.keep(a)),
            }
        });
        assert_eq!(
            (calls.load(Ordering::Relaxed), report.freed),
            (1, u64::from(end == 4)),
            "{end}"
        );
        device.synchronize().unwrap();
    }
    assert_all_returned(&device, &heap, "owned");
}

/// If memory is freed in stream order, work that is still running may use it.
#[test]
fn an_owner_frees_in_stream_order() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let mut address = 0;
    let taken = device.with_current(|driver| {
        // SAFETY: the pointer is valid and the stream alive.
        unsafe { driver.cuMemAllocAsync(&mut address, 1 << 20, streams[0].raw()) }
    });
    check("cuMemAllocAsync", taken.unwrap()).unwrap();
    let freed = |address: u64, stream: &Stream| {
        let context = stream.device();
        let freed = context.with_current(|driver| {
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe { driver.cuMemFreeAsync(address, stream.raw()) }
        });
        check("cuMemFreeAsync", freed.unwrap()).unwrap();
    };
    // SAFETY: the memory is long enough, is filled before it is read, and only `freed` frees it.
    let a = unsafe { heap.on(&streams[0]).wrap_owned::<u8, _>(address, 1 << 20, freed) };
    let mut a = a.unwrap();
    a.fill(3).unwrap();
    let b = heap.on(&streams[1]).copy_of(&a).unwrap();
    drop(a);
    assert_eq!(b.to_vec().unwrap(), vec![3; 1 << 20]);
    drop(b);
    assert_all_returned(&device, &heap, "ordered");
}

#[test]
fn owner_callback_may_use_and_panic() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let target = heap.target().unwrap();
    let memory = Foreign::new(&device, MemoryKind::Device, 64);
    let handle: Arc<Mutex<Option<gpuheap::SharedArray<u8>>>> = Arc::default();
    let inside = handle.clone();
    let owner = move |_: u64, _: &Stream| {
        let guard = inside.lock().unwrap();
        let array = guard.as_ref().unwrap();
        assert!(array.is_freed() && array.to_vec().unwrap_err().is_freed());
        assert!(!array.free_early().unwrap() && format!("{array:?}").ends_with("freed"));
        panic!("as planned");
    };
    // SAFETY: the memory is long enough and outlives the array.
    let a = unsafe { target.wrap_owned::<u8, _>(memory.address, 64, owner) }.unwrap().into_shared();
    *handle.lock().unwrap() = Some(a.clone());
    let error = a.free_early().unwrap_err().to_string();
    assert!(error.contains("was to free a wrapped pointer panicked: as planned"), "{error}");
    *handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    drop(a);
    // A drop returns no error, so it drops the owner's panic.
    let owner = |_: u64, _: &Stream| panic!("as planned");
    // SAFETY: the memory is long enough and outlives the array.
    drop(unsafe { target.wrap_owned::<u8, _>(memory.address, 64, owner) }.unwrap());
    assert_all_returned(&device, &heap, "owners");
}

#[test]
fn unwrappable_pointer_names_reason() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let target = heap.target().unwrap();
    let memory = Foreign::new(&device, MemoryKind::Device, 2 << 20);
    let calls = Arc::new(AtomicU64::new(0));
    let refused = |address: u64, count: usize| {
        let calls = calls.clone();
        let owner = move |_: u64, _: &Stream| {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        // SAFETY: never used, because it is refused.
        let wrapped = unsafe { target.wrap_owned::<u32, _>(address, count, owner) };
        wrapped.unwrap_err().to_string()
    };
    let said = refused(0, 3);
    assert_eq!(said, "0x0 cannot be wrapped: it is null, and the shape takes 12 bytes");
    let said = refused(memory.address + 2, 3);
    assert!(said.contains("elements of type u32 lie at multiples of 4 bytes"), "{said}");
    let said = refused(1 << 20, 3);
    assert!(
        said.contains("the driver does not know it; was it freed, or is it pageable"),
        "{said}"
    );
    let pageable = [0_u32; 8];
    let said = refused(pageable.as_ptr() as u64, 3);
    assert!(said.contains("is it pageable memory of the host?"), "{said}");
    let said = refused(memory.address, 1 << 40);
    assert!(said.contains("the driver knows nothing at"), "{said}");
    let said = refused(u64::MAX - 3, 3);
    assert!(said.contains("past every address"), "{said}");
    assert!(refused(memory.address, usize::MAX).contains("larger than any memory"));
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // An array of zero bytes may have any address. SAFETY: no bytes are accessed.
    assert!(unsafe { target.wrap::<u32, _>(0, 0) }.unwrap().to_vec().unwrap().is_empty());
    drop(memory);
    assert_all_returned(&device, &heap, "refused");
}

#[test]
fn pointer_of_other_device_is_refused() {
    let profile = || Profile::with_memory(1 << 30).without_context();
    let options = Options { devices: vec![profile(), profile()], ..Options::default() };
    let devices = Device::emulated_devices(options).unwrap();
    let target = heap(&devices[0], PoolKind::Split).target().unwrap();
    let far = Foreign::new(&devices[1], MemoryKind::Device, 64);
    // SAFETY: never used, because it is refused.
    let error = unsafe { target.wrap::<u8, _>(far.address, 64) }.unwrap_err().to_string();
    assert!(error.contains("it is memory of device 1") && error.contains("device 0"), "{error}");
    let pinned = Foreign::new(&devices[1], MemoryKind::Pinned, 64);
    // SAFETY: the memory is long enough and outlives the array.
    let mut a = unsafe { target.wrap::<u8, _>(pinned.address, 64) }.unwrap();
    a.fill(4).unwrap();
    assert_eq!(a.as_slice().unwrap()[..], [4; 64]);
}

#[test]
fn wrapped_elements_are_checked_for_alignment() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = heap(&device, PoolKind::Split).target().unwrap();
    let memory = Foreign::new(&device, MemoryKind::Pinned, 64);
    // SAFETY: the memory is long enough and outlives the array.
    let mut a = unsafe { target.wrap::<u8, _>(memory.address + 1, 32) }.unwrap();
    a.fill(1).unwrap();
    let error = a.reinterpret::<u32>().unwrap_err().to_string();
    assert!(error.contains("0 bytes into its memory, which is no multiple of 4"), "{error}");
    assert_eq!(
        a.slice(3..7).unwrap().reinterpret::<u32>().unwrap().to_vec().unwrap(),
        [0x0101_0101]
    );
    drop(a);
    device.synchronize().unwrap();
}
