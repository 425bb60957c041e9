//! Tests of batches of an array's rows. A batch has as many rows as memory allows.

use gpuheap::emu::Schedule;
use gpuheap::{Device, Error, Heap, MemoryKind, PoolKind};
use ndarray::{Array1, Array2, Array3, ArrayD, IxDyn, s};

use crate::support::{assert_all_returned, device, emulated};

fn limited(device: &Device, bytes: u64) -> Heap {
    let builder = Heap::builder(device).without_environment().pool(PoolKind::Split);
    builder.hard_limit(bytes).build().unwrap()
}

fn numbers(rows: usize, columns: usize) -> Array2<u32> {
    Array2::from_shape_fn((rows, columns), |(row, column)| (row * columns + column) as u32)
}

#[test]
fn data_beyond_limit_comes_in_order() {
    let data = numbers(20_000, 1024);
    for ahead in [0, 1, 2] {
        let device = device(1 << 30, Schedule::Seeded(1));
        let heap = limited(&device, 24 << 20);
        let mut batches =
            heap.target().unwrap().batches_by_memory(&data, 0.5).unwrap().prefetch(ahead);
        let mut next = 0;
        assert_eq!(batches.rows(), 0..0);
        while let Some(batch) = batches.next() {
            let batch = batch.unwrap();
            let rows = batches.rows();
            assert_eq!((rows.start, rows.len()), (next, batch.shape()[0]));
            let resident = heap.usage().unwrap().live;
            assert!(resident <= 12 << 20, "{resident} bytes, {ahead} ahead");
            let down = batch.to_ndarray().unwrap();
            assert!(down == data.slice(s![rows.clone(), ..]), "rows {rows:?}");
            next = rows.end;
        }
        assert_eq!((next, batches.rows()), (20_000, 20_000..20_000));
        let usage = heap.usage().unwrap();
        assert!(usage.live_peak <= 12 << 20 && usage.reserved_peak <= 24 << 20, "{usage:?}");
        assert_all_returned(&device, &heap, "rows");
    }
}

/// The cache of another heap is given back before a request fails, so a batch may use that memory.
#[test]
fn chunk_counts_other_heaps_cache() {
    let data = Array1::from_elem(128 << 20, 1_u8);
    for pool in PoolKind::ALL {
        let device = emulated(128 << 20, Schedule::Immediate);
        let builder = || Heap::builder(&device).without_environment().pool(pool);
        let [sibling, heap] = [(); 2].map(|()| builder().build().unwrap());
        drop(sibling.target().unwrap().filled(64 << 20, 0_u8).unwrap());
        let live = sibling.target().unwrap().filled(16 << 20, 0_u8).unwrap();
        let target = heap.target().unwrap();
        let mut batches = target.batches_by_memory(&data, 1.0).unwrap();
        let chunk = batches.next().unwrap().unwrap().len() >> 20;
        // The other heap has 16 MiB live and at most 64 MiB cached, so at least 48 of 128 MiB are
        // free. A chunk may also use the cached memory, 112 MiB in all. But `binned` would round
        // 112 MiB up to more than the device has, so its chunk is smaller.
        assert!(chunk > 48, "{pool}: {chunk} MiB of 112");
        drop((batches, live));
    }
}

#[test]
fn chunk_is_fraction_of_free_memory() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let data = Array1::from_elem(64 << 20, 1_u8);
    let first = |heap: &Heap, fraction: f64, ahead: usize| {
        let target = heap.target().unwrap();
        let mut batches = target.batches_by_memory(&data, fraction).unwrap().prefetch(ahead);
        let batch = batches.next().unwrap().unwrap();
        batch.len() >> 20
    };
    let heap = limited(&device, 48 << 20);
    assert_eq!((first(&heap, 1.0, 0), first(&heap, 0.5, 0)), (48, 24));
    assert_eq!((first(&heap, 1.0, 1), first(&heap, 1.0, 2), first(&heap, 0.25, 0)), (24, 16, 12));
    // The size of a batch counts cached memory as available, but not live memory.
    let live = heap.target().unwrap().filled(16 << 20, 0_u8).unwrap();
    assert_eq!((first(&heap, 1.0, 0), first(&heap, 0.5, 0)), (32, 16));
    drop(live);
    assert_eq!(first(&heap, 1.0, 0), 48);
    // Without a limit (also from the environment), batches use the free memory of the device.
    let builder = Heap::builder(&device).without_environment();
    let free = builder.build().unwrap();
    heap.reclaim_all().unwrap();
    assert_eq!(first(&free, 1.0 / 64.0, 0), 16);
    assert_eq!(first(&free, 1.0, 0), 64);
    drop(data);
}

#[test]
fn any_shape_with_rows() {
    let device = device(1 << 30, Schedule::Seeded(2));
    let heap = limited(&device, 24 << 20);
    let target = heap.target().unwrap();
    let count = |shape: &[usize]| -> Result<usize, Error> {
        let data = ArrayD::from_elem(IxDyn(shape), 1.5_f64);
        let batches = target.batches_by_memory(&data, 0.1)?;
        batches.map(|batch| Ok(batch?.to_vec()?.len())).sum()
    };
    assert_eq!(count(&[1000]).unwrap(), 1000);
    assert_eq!(count(&[100_000, 3, 2]).unwrap(), 600_000);
    assert_eq!((count(&[0, 5]).unwrap(), count(&[5, 0]).unwrap(), count(&[0]).unwrap()), (0, 0, 0));
    let error = count(&[]).unwrap_err().to_string();
    assert!(error.contains("no axis has no rows"), "{error}");
    // Tests layouts that are not row-major: columns, and every other row from the end.
    let data = numbers(100, 5000);
    for view in [data.t(), data.slice(s![..;-2, 3..])] {
        let mut next = 0;
        for batch in target.batches_by_memory(&view, 0.01).unwrap() {
            let down = batch.unwrap().to_ndarray().unwrap();
            assert!(down == view.slice(s![next..next + down.nrows(), ..]));
            next += down.nrows();
        }
        assert_eq!(next, view.nrows());
    }
    let cube = Array3::from_elem((10, 20, 30), [1_u8, 2, 3]);
    let batch = target.batches_by_memory(&cube, 1.0).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.shape(), [10, 20, 30]);
    drop(batch);
    assert_all_returned(&device, &heap, "shapes");
}

#[test]
fn invalid_fraction_is_error() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let heap = limited(&device, 24 << 20);
    let target = heap.target().unwrap();
    let data = Array1::from_elem(10, 1_u8);
    for fraction in [0.0, -0.5, 1.0001, f64::NAN, f64::INFINITY] {
        let error = target.batches_by_memory(&data, fraction).unwrap_err().to_string();
        assert!(error.contains("write one above 0 and at most 1"), "{error}");
    }
    for fraction in [f64::MIN_POSITIVE, 1.0] {
        assert!(target.batches_by_memory(&data, fraction).unwrap().flatten().count() > 0);
    }
}

/// After the batches were made, other code takes memory, so a batch no longer fits.
#[test]
fn batches_are_halved_until_they_fit() {
    for ahead in [0, 2] {
        let device = device(1 << 30, Schedule::Seeded(3));
        let heap = limited(&device, 64 << 20);
        let target = heap.target().unwrap();
        let data = numbers(16 << 10, 1024);
        let mut batches = target.batches_by_memory(&data, 1.0).unwrap().prefetch(ahead);
        let others = target.filled(44 << 20, 1_u8).unwrap();
        let mut found = Vec::new();
        while let Some(batch) = batches.next() {
            let batch = batch.unwrap();
            assert!(batch.to_ndarray().unwrap() == data.slice(s![batches.rows(), ..]));
            found.push(batches.rows().len());
        }
        assert_eq!(found.iter().sum::<usize>(), 16 << 10);
        assert!(found[0] * 4096 <= 20 << 20, "{found:?}");
        if ahead == 0 {
            assert_eq!(found, [4096; 4]);
        }
        drop((batches, others));
        assert_all_returned(&device, &heap, "halved");
    }
}

#[test]
fn oversized_row_is_error() {
    let device = emulated(1 << 30, Schedule::Seeded(3));
    let heap = limited(&device, 8 << 20);
    let target = heap.target().unwrap();
    let data = numbers(3, 4 << 20);
    let mut batches = target.batches_by_memory(&data, 1.0).unwrap().prefetch(1);
    let error = batches.next().unwrap().unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.requested, evidence.limit), (16 << 20, Some(8 << 20)));
    insta::assert_snapshot!(error, @"row 0 does not fit, and a batch has one row at least; free memory, or split the array along another axis: out of GPU memory: 16 MiB requested, 8 MiB short, because the request is larger than the limit; raise the limit by 8 MiB (HeapBuilder::hard_limit, Heap::set_limits or GPUHEAP_MEMORY_LIMIT), or work in smaller pieces (split pool: 0 reserved of a limit of 8 MiB; device: 1 GiB of 1 GiB free)");
    assert!(batches.next().is_none(), "it is the last");
    let _live = target.filled(5 << 20, 1_u8).unwrap();
    let data = numbers(2, 1 << 20);
    let error = target.batches_by_memory(&data, 1.0).unwrap().last().unwrap().unwrap_err();
    insta::assert_snapshot!(error, @"row 0 does not fit, and a batch has one row at least; free memory, or split the array along another axis: out of GPU memory: 4 MiB requested, 2 MiB short, because the limit is reached; raise the limit by 2 MiB (HeapBuilder::hard_limit, Heap::set_limits or GPUHEAP_MEMORY_LIMIT), or free 2 MiB first, in whole segments (split pool: 5 MiB live, 1 MiB cached (largest 1 MiB), 6 MiB reserved of a limit of 8 MiB; device: 1018 MiB of 1 GiB free; tried 5 reclaim steps; none freed memory)");
}

#[test]
fn returned_batch_comes_in_halves() {
    for ahead in [0, 1] {
        let device = device(1 << 30, Schedule::Seeded(4));
        let heap = limited(&device, 48 << 20);
        let target = heap.target().unwrap();
        let data = numbers(12 << 10, 1024);
        let mut batches = target.batches_by_memory(&data, 1.0).unwrap().prefetch(ahead);
        let (mut next, mut halved, mut sum) = (0, 0, 0_u64);
        while let Some(batch) = batches.next() {
            let batch = batch.unwrap();
            assert_eq!(batches.rows().start, next, "given back, so they come again");
            // The work on a batch takes twice the batch's memory.
            match batch.copy().and_then(|copy| Ok((copy.copy()?, copy))) {
                Ok((copy, _)) => {
                    sum += copy.to_vec().unwrap().iter().map(|one| u64::from(*one)).sum::<u64>();
                    next = batches.rows().end;
                }
                Err(error) => {
                    assert!(error.out_of_memory().is_some(), "{error}");
                    batches.halve().unwrap();
                    assert!(batch.is_freed() && batches.rows().is_empty());
                    assert_eq!(heap.usage().unwrap().live, 0);
                    halved += 1;
                }
            }
        }
        assert!(halved > 0 && next == 12 << 10, "{halved}, {next}");
        assert_eq!(sum, data.iter().map(|one| u64::from(*one)).sum::<u64>());
        let error = batches.halve().unwrap_err().to_string();
        assert!(error.starts_with("there is no batch to give back"), "{error}");
        assert_all_returned(&device, &heap, "given back");
    }
}

#[test]
fn one_row_is_not_halved() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let heap = limited(&device, 48 << 20);
    let data = numbers(3, 1024);
    let target = heap.target().unwrap();
    let mut batches = target.batches_by_memory(&data, 1e-6).unwrap();
    assert_eq!(batches.size_hint(), (1, Some(3)));
    let batch = batches.next().unwrap().unwrap();
    let error = batches.halve().unwrap_err().to_string();
    assert!(error.starts_with("a batch of 1 row of 4 KiB cannot be halved"), "{error}");
    assert_eq!((batches.rows(), batch.len()), (0..1, 1024));
    let kept = batches.keep(batch);
    assert_eq!(batches.count(), 2);
    assert_eq!(kept.to_vec().unwrap(), data.row(0).to_vec());
}

#[test]
fn other_kinds_have_separate_limits() {
    let device = emulated(1 << 30, Schedule::Seeded(5));
    let builder = Heap::builder(&device).without_environment().pinned_limit(8 << 20);
    let heap = builder.build().unwrap();
    let data = numbers(4096, 1024);
    for kind in [MemoryKind::Pinned, MemoryKind::Unified] {
        let target = heap.target().unwrap().kind(kind);
        let batches = target.batches_by_memory(&data, 0.5).unwrap();
        let rows: usize = batches.map(|batch| batch.unwrap().shape()[0]).sum();
        assert_eq!(rows, 4096);
        let peak = heap.usage_of(kind).unwrap().live_peak;
        assert!(kind != MemoryKind::Pinned || peak == 4 << 20, "{peak}");
    }
    assert_all_returned(&device, &heap, "kinds");
}

#[test]
fn repeating_views_are_batched() {
    let device = emulated(1 << 30, Schedule::Seeded(4));
    let heap = limited(&device, 24 << 20);
    let target = heap.target().unwrap();
    // The array repeats one element, and has more bytes than an address can count.
    let one = ndarray::arr0(1_u64);
    let wide = one.broadcast((1, 1 << 62)).unwrap();
    let mut batches = target.batches_by_memory(&wide, 0.5).unwrap();
    assert!(batches.next().unwrap().is_err());
    assert_eq!((batches.rows(), batches.next().is_none()), (0..1, true));
    drop(batches);
    // The view `many` has as many rows as a view can have. Its rows are `()`, and take no bytes.
    let none = ndarray::arr0(());
    let many = none.broadcast(usize::MAX / 2).unwrap();
    let mut batches = target.batches_by_memory(&many, 0.5).unwrap();
    assert_eq!(batches.next().unwrap().unwrap().len(), usize::MAX / 2);
    drop(batches);
    assert_all_returned(&device, &heap, "repeated");
}
