//! Tests of the order of work, with operands that were freed or were last used on other streams,
//! threads or devices.

use std::sync::Barrier;
use std::thread;

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, DeviceArray, Error, MemoryKind, PoolKind, SharedArray};
use gpuheap_pool::testing::Random;
use ndarray::s;

use crate::reference::Bench;
use crate::support::{assert_all_returned, assert_no_findings, emulated, heap};

/// Checks the order with the emulator's happens-before check.
#[test]
fn operation_waits_for_operand_streams() {
    for seed in 0..24 {
        let schedule = if seed == 0 { Schedule::OnDemand } else { Schedule::Seeded(seed) };
        let bench = Bench::new(schedule);
        let streams = [(); 3].map(|()| bench.device.stream().unwrap());
        let mut random = Random(seed);
        let mut arrays: Vec<(SharedArray<i64>, i64)> = Vec::new();
        for _ in 0..60 {
            let mut pick = |count: usize| random.below(count as u64) as usize;
            let target = bench.heap.on(&streams[pick(3)]);
            if arrays.len() < 3 {
                let value = pick(100) as i64;
                arrays.push((target.filled(2000, value).unwrap().into_shared(), value));
                continue;
            }
            let (i, j) = (pick(arrays.len()), pick(arrays.len()));
            let (a, b) = (arrays[i].clone(), arrays[j].clone());
            match pick(8) {
                0 => a.0.device_ptr(&streams[pick(3)]).map(drop).unwrap(),
                1 => drop(arrays.swap_remove(i)),
                2 => {
                    arrays[i].0.add_assign(&b.0).unwrap();
                    let sum = a.1.wrapping_add(b.1);
                    let shared = arrays.iter_mut().filter(|one| is_same(&one.0, &a.0));
                    shared.for_each(|one| one.1 = sum);
                }
                3 => assert_eq!(a.0.sum().unwrap(), a.1.wrapping_mul(2000)),
                4 => arrays.push((a.0.copy_slice(s![..;-1]).unwrap().into_shared(), a.1)),
                5 => arrays.push(((&a.0 * 3).unwrap().into_shared(), a.1.wrapping_mul(3))),
                _ => arrays.push(((&a.0 - &b.0).unwrap().into_shared(), a.1.wrapping_sub(b.1))),
            }
        }
        for (array, value) in &arrays {
            assert_eq!(array.to_vec().unwrap(), [*value; 2000], "{seed}");
        }
        drop(arrays);
        bench.end();
    }
}

fn is_same(one: &SharedArray<i64>, other: &SharedArray<i64>) -> bool {
    let stream = other.stream();
    one.device_ptr(&stream).unwrap() == other.device_ptr(&stream).unwrap()
}

#[test]
fn work_runs_on_left_stream() {
    let bench = Bench::new(Schedule::OnDemand);
    let streams = [(); 2].map(|()| bench.device.stream().unwrap());
    let a = bench.heap.on(&streams[0]).filled(1000, 7_u32).unwrap();
    let mut b = bench.heap.on(&streams[1]).filled(1000, 2_u32).unwrap();
    let c = (&a - &b).unwrap();
    assert!([&a, &b, &c].iter().all(|one| one.stream().id() == streams[0].id()));
    a.device_ptr(&streams[1]).unwrap();
    b.mul_assign(&a).unwrap();
    assert_eq!(b.stream().id(), streams[0].id());
    let d = 2 * (&a + &c).unwrap();
    assert_eq!(d.as_ref().unwrap().stream().id(), streams[0].id());
    assert_eq!(d.unwrap().to_vec().unwrap(), [24; 1000]);
    assert_eq!(b.to_vec().unwrap(), [14; 1000]);
    drop((a, b, c));
    bench.end();
}

/// Operations that return an array do not wait once their kernels are loaded. The only exception is
/// an operation that checks keys.
#[test]
fn only_host_reads_wait() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let emulator = device.emulator().unwrap().clone();
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    let work = || -> Result<Vec<DeviceArray<f32, ndarray::Ix2>>, Error> {
        let mut a = target.filled((100, 100), 1.5_f32)?;
        let b = (&a * 2.0)?;
        a.add_assign(&b)?;
        let row = a.sum_axis(0)?;
        a.write_slice(s![.., ..;2], &row.slice(..50)?)?;
        let mask = a.less_equal(row.slice(..1)?)?;
        let c = mask.cast::<f32>()?;
        let means = (&c - &a.mean_axis(1)?)?;
        Ok(vec![a.copy_transposed()?, b, (-c)?, means])
    };
    drop(work().unwrap());
    let waits = || {
        ["cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuModuleLoadData"]
            .map(|name| emulator.calls_of(name))
    };
    let before = waits();
    let results = work().unwrap();
    assert_eq!(waits(), before);
    assert_eq!(results[1].to_vec().unwrap(), [3.0; 10_000]);
    drop(results);
    assert_all_returned(&device, &heap, "waits");
}

#[test]
fn freed_operand_errs_on_either_side() {
    let bench = Bench::new(Schedule::Seeded(1));
    let target = bench.target();
    let a = target.array(&[1.0_f32, 2.0]).unwrap();
    let gone = target.array(&[1.0_f32, 2.0]).unwrap().into_shared();
    gone.free_early().unwrap();
    let freed = |error: Option<Error>| assert!(error.unwrap().is_freed());
    freed((&a + &gone).err());
    freed((&gone + &a).err());
    freed((&gone + &gone).err());
    freed((2.0 * &gone).err());
    freed((-&gone).err());
    freed((a.copy().unwrap() + &gone).err());
    freed(a.copy().unwrap().add_assign(&gone).err());
    freed(gone.clone().add_assign(&a).err());
    freed(gone.less(1.0).err());
    freed(gone.cast::<f64>().err());
    freed(gone.cast::<f32>().err());
    freed(gone.sum().err());
    freed(gone.sum_axis(0).err());
    freed(gone.mean_axis(0).err());
    freed(gone.copy_slice(s![..;2]).err());
    freed(a.copy().unwrap().write_slice(s![..1], &gone.slice(..1).unwrap()).err());
    freed(gone.clone().write_slice(s![..1], &a.slice(..1).unwrap()).err());
    let keys = target.array(&[0_u8, 0]).unwrap();
    freed(gone.sum_by_key(&keys, 1).err());
    let no_keys = keys.into_shared();
    no_keys.free_early().unwrap();
    freed(a.sum_by_key(&no_keys, 1).err());
    freed(no_keys.count_by_key(1).err());
    let empty = target.zeroed::<f32, _>(0).unwrap().into_shared();
    empty.free_early().unwrap();
    freed((&empty + 1.0).err());
    freed(empty.sum().err());
    freed(empty.sum_axis(0).err());
    assert_eq!(a.to_vec().unwrap(), [1.0, 2.0]);
    drop(a);
    bench.end();
}

#[test]
fn operands_of_other_device_are_refused() {
    let profile = || Profile::with_memory(1 << 30).without_context();
    let options = Options { devices: vec![profile(), profile()], ..Options::default() };
    let mut devices = Device::emulated_devices(options).unwrap();
    devices.push(emulated(1 << 30, Schedule::Immediate));
    let heaps: Vec<_> = devices.iter().map(|device| heap(device, PoolKind::Split)).collect();
    for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
        let arrays: Vec<DeviceArray<i32>> = heaps
            .iter()
            .map(|heap| heap.target().unwrap().kind(kind).array(&[1, 2]).unwrap())
            .collect();
        let here = &arrays[0];
        for far in &arrays[1..] {
            let refused = |error: Option<Error>| {
                let text = error.unwrap().to_string();
                assert!(text.contains("copy_to"), "{text}");
            };
            refused((here + far).err());
            refused((far * here).err());
            refused(here.copy().unwrap().sub_assign(far).err());
            refused((here.copy().unwrap() / far).err());
            refused(here.equal(far).err());
            refused(here.copy().unwrap().write_slice(s![..], far).err());
            refused(here.sum_by_key(far, 3).err());
            // The remedy that the error names.
            let near = far.copy_to(&here.target()).unwrap();
            assert_eq!((here + &near).unwrap().to_vec().unwrap(), [2, 4]);
        }
    }
    for (device, heap) in devices.iter().zip(&heaps) {
        assert_all_returned(device, heap, "devices");
    }
}

/// A result is either correct or an error about a freed operand. While a result is being computed,
/// no other thread gets an operand's memory.
#[test]
fn threads_free_operands_meanwhile() {
    for seed in 0..8 {
        let bench = Bench::new(Schedule::Seeded(seed));
        for _ in 0..20 {
            let a = bench.heap.on(&bench.device.stream().unwrap());
            let a = a.filled(3000, 5_i32).unwrap().into_shared();
            let b = bench.heap.on(&bench.device.stream().unwrap());
            let b = b.filled(3000, 7_i32).unwrap().into_shared();
            let start = Barrier::new(3);
            thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..5 {
                        match &a + &b {
                            Ok(sum) => assert_eq!(sum.to_vec().unwrap(), [12; 3000]),
                            Err(error) => assert!(error.is_freed(), "{error}"),
                        }
                    }
                });
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..5 {
                        match &b - &a {
                            Ok(off) => assert_eq!(off.sum().unwrap(), 6000),
                            Err(error) => assert!(error.is_freed(), "{error}"),
                        }
                    }
                });
                scope.spawn(|| {
                    start.wait();
                    let target = bench.heap.target().unwrap();
                    drop(target.filled(3000, 9_i32).unwrap());
                    b.free_early().unwrap();
                    drop(target.filled(3000, 100_i32).unwrap());
                    a.free_early().unwrap();
                });
            });
        }
        bench.end();
    }
}

/// Tests devices on which host and device must not access unified memory at once. No kernel is
/// launched while the host borrows any unified memory.
#[test]
fn wsl2_host_borrow_blocks_launch() {
    let profile = Profile::wsl2_rtx4060().without_context();
    let device = Device::emulated_with(Options::with_device(profile)).unwrap();
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    let a = target.filled(100, 1.0_f32).unwrap();
    let unified = target.kind(MemoryKind::Unified).filled(100, 2.0_f32).unwrap();
    let borrow = unified.as_slice().unwrap();
    // The first operation has to load its kernel, the last operation does not.
    for result in [&a + &a, &a * 2.0, &a + &a] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("WSL2"), "{text}");
    }
    drop(borrow);
    assert_eq!((&a + &unified).unwrap().to_vec().unwrap(), [3.0; 100]);
    let borrow = unified.as_slice().unwrap();
    assert!((&a + &unified).is_err());
    drop(borrow);
    drop((a, unified));
    assert_all_returned(&device, &heap, "wsl2");
}

/// Each kernel is one module. It is loaded once, even if several threads need it at the same time,
/// and unloaded with the context.
#[test]
fn kernels_load_once_and_unload() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let emulator = device.emulator().unwrap().clone();
    let target = device.heap().unwrap().target().unwrap();
    let a = target.filled(100, 1.0_f32).unwrap();
    assert_eq!(emulator.calls_of("cuModuleLoadData"), 0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| drop((&a + &a).unwrap())));
        }
    });
    let loaded = emulator.calls_of("cuModuleLoadData");
    let unloaded = emulator.calls_of("cuModuleUnload");
    assert_eq!(loaded - unloaded, 1, "{loaded} loaded");
    drop((&a * 2.0).unwrap());
    assert_eq!(emulator.calls_of("cuModuleLoadData"), loaded + 1);
    drop((a, target));
    assert_no_findings(&device, "kernels");
    drop(device);
    assert_eq!(emulator.calls_of("cuModuleUnload"), loaded + 1);
    assert!(emulator.findings().unwrap().is_empty(), "{:?}", emulator.findings().unwrap());
}

#[test]
fn reset_reloads_kernels() {
    let device = emulated(1 << 30, Schedule::Seeded(3));
    let old = device.heap().unwrap().target().unwrap().filled(100, 1_u16).unwrap();
    drop((&old + &old).unwrap());
    // SAFETY: no other thread uses the device, and nothing refers to its memory.
    let device = unsafe { device.reset() }.unwrap();
    assert!((&old + &old).unwrap_err().to_string().contains("reset"));
    drop(old);
    let new = device.heap().unwrap().target().unwrap().filled(100, 1_u16).unwrap();
    assert_eq!((&new + &new).unwrap().to_vec().unwrap(), [2; 100]);
    drop(new);
    assert_no_findings(&device, "reset");
}
