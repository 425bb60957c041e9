//! Tests of meters. A meter has bytes, peak, time and lines of a section of a program.

use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Heap, MemoryKind, PoolKind, Tracking};

use crate::support::{assert_all_returned, device, heap, make_heap};

fn make_array(heap: &Heap, bytes: usize) -> DeviceArray<u8> {
    heap.target().unwrap().zeroed(bytes).unwrap()
}

#[test]
fn nested_meters_count_one_kind_each() {
    let heap = heap(&device(1 << 30, Schedule::Immediate), PoolKind::Stitched);
    let before = make_array(&heap, 100);
    let outer = heap.meter().unwrap();
    let pinned = heap.meter_of(MemoryKind::Pinned).unwrap();
    drop(make_array(&heap, 5000));
    let inner = heap.meter().unwrap();
    let more = make_array(&heap, 300);
    drop(make_array(&heap, 700));
    let reading = inner.read().unwrap();
    let figures = (reading.live_before, reading.live_peak, reading.live, reading.peak());
    assert_eq!(figures, (100, 1100, 400, 1000));
    assert_eq!((reading.allocations, reading.allocated_bytes, reading.frees), (2, 1000, 1));
    drop(before);
    let reading = outer.read().unwrap();
    assert_eq!((reading.live_before, reading.live_peak, reading.live), (100, 5100, 300));
    // The end of the outer meter changes nothing for the inner meter.
    drop(outer);
    drop(make_array(&heap, 1700));
    assert_eq!(inner.read().unwrap().live_peak, 2000);
    drop((inner, more));
    assert_eq!(pinned.read().unwrap().live_peak, 0);
    assert_eq!(heap.meter().unwrap().read().unwrap().live_peak, 0, "nothing of before");
}

#[test]
fn meter_counts_bytes_from_driver() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Binned);
    drop(make_array(&heap, 1000));
    let meter = heap.meter().unwrap();
    let kept = make_array(&heap, 1000);
    drop(make_array(&heap, 5000));
    heap.reclaim_all().unwrap();
    let reading = meter.read().unwrap();
    assert_eq!((reading.taken, reading.given_back), (8192, 8192));
    drop((kept, meter));
    assert_all_returned(&device, &heap, "binned");
}

/// Two threads allocate. One of them also uses another heap and another kind of memory.
#[test]
fn thread_usage_excludes_other_threads() {
    let device = device(1 << 30, Schedule::Immediate);
    let [own, other] = [(); 2].map(|()| heap(&device, PoolKind::Split));
    let meter = own.meter().unwrap().with_thread();
    let theirs = std::thread::scope(|scope| {
        let work = || {
            drop(make_array(&own, 400));
            meter.read().unwrap().thread
        };
        scope.spawn(work).join().unwrap()
    });
    assert_eq!(theirs, None, "read by another thread");
    assert_eq!(own.meter().unwrap().read().unwrap().thread, None);
    drop(make_array(&own, 100));
    drop(other.target().unwrap().kind(MemoryKind::Pinned).zeroed::<u8, _>(50).unwrap());
    own.target().unwrap().zeroed::<u8, _>(1 << 50).unwrap_err();
    let reading = meter.read().unwrap();
    let thread = reading.thread.unwrap();
    assert_eq!((reading.allocations, reading.allocated_bytes), (2, 500));
    assert_eq!((thread.allocations, thread.allocated_bytes), (2, 150));
}

#[test]
fn memory_management_is_part_of_elapsed() {
    let heap = heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split);
    let outer = heap.meter().unwrap().with_thread();
    let array = make_array(&heap, 1 << 20);
    let inner = heap.meter().unwrap().with_thread();
    drop(make_array(&heap, 1 << 20));
    let readings = [inner.read().unwrap(), outer.read().unwrap()];
    let [inside, around] = readings.map(|reading| {
        let spent = reading.thread.unwrap().memory_management;
        assert!(spent > Duration::ZERO && spent <= reading.elapsed, "{reading}");
        spent
    });
    assert!(around >= inside);
    let freeing = heap.meter().unwrap().with_thread();
    drop(array);
    assert!(freeing.read().unwrap().thread.unwrap().memory_management > Duration::ZERO);
}

#[test]
fn panic_ends_measurement() {
    let heap = heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _meter = heap.meter().unwrap().with_thread();
        let _array = make_array(&heap, 7);
        panic!("on purpose")
    }));
    assert!(panicked.is_err());
    let meter = heap.meter().unwrap();
    drop(make_array(&heap, 100));
    let reading = meter.read().unwrap();
    assert_eq!((reading.allocations, reading.allocated_bytes, reading.peak()), (1, 100, 100));
}

#[test]
fn text_has_figures_and_lines() {
    let device = device(1 << 30, Schedule::Immediate);
    let plain = heap(&device, PoolKind::Split);
    let nothing = plain.meter().unwrap().read().unwrap().to_string();
    assert!(nothing.ends_with(" s, 0 allocations"), "{nothing}");
    let tracked = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let meter = tracked.meter().unwrap().with_thread();
    let _kept = make_array(&tracked, 4 << 20);
    let reading = meter.read().unwrap();
    let text = reading.to_string();
    assert!(text.contains(" s, 1 allocation: 4 MiB, peak 4 MiB, "), "{text}");
    assert!(text.contains("% of the time in memory management\n+4 MiB in 1 allocation"), "{text}");
    assert_eq!((reading.changes.allocations, reading.changes.bytes), (1, 4 << 20));
    assert!(reading.to_json().contains(r#""live":4194304,"#));
}
