//! Tests that batches are uploaded, handed out and freed at the right time.

use gpuheap::emu::Schedule;
use gpuheap::{Adapt, DeviceArray, Error, Host, MemoryKind, PoolKind, Scope, SharedArray};
use ndarray::{Array1, Array2, arr1};

use crate::support::{assert_all_returned, emulated, heap, make_heap};

/// Number of elements of a batch. With this many, an upload does not join the batch with others.
const MANY: usize = 10_000;

fn batch_of(nth: u32) -> Vec<u32> {
    vec![nth; MANY]
}

#[test]
fn batches_come_in_order() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    let target = heap.target().unwrap();
    let mut sums = Vec::new();
    for (nth, batch) in target.batches([[1_i32, 2], [3, 4]]).enumerate() {
        let sum: i32 = batch.unwrap().to_vec().unwrap().iter().sum();
        sums.push(format!("Batch {}: [{sum}]", nth + 1));
    }
    assert_eq!(sums, ["Batch 1: [3]", "Batch 2: [7]"]);

    let mut batches = target.batches((0..5).map(batch_of));
    assert_eq!(heap.usage().unwrap().live, 0);
    let mut all = Vec::new();
    for batch in batches.by_ref() {
        // The next step of the loop frees this batch, although the program still holds it.
        all.push(batch.unwrap());
        assert_eq!(heap.usage().unwrap().live, 4 * MANY as u64);
        assert!(all.last().unwrap().to_vec().unwrap() == batch_of(all.len() as u32 - 1));
    }
    assert_eq!(heap.usage().unwrap().live, 0);
    assert!(batches.next().is_none() && all.iter().all(DeviceArray::is_freed));
    assert_eq!(heap.usage().unwrap().live_peak, 4 * MANY as u64);
    drop((batches, all));
    assert_all_returned(&device, &heap, "in order");
}

#[test]
fn the_devices_own_heap_serves() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let batches = device.batches(vec![vec![1.5_f32; 3]; 4]).unwrap();
    assert_eq!(batches.len(), 4);
    let sums: Vec<f32> =
        batches.map(|batch| batch.unwrap().to_vec().unwrap().iter().sum()).collect();
    assert_eq!(sums, [4.5; 4]);
}

#[test]
fn leaving_early_frees_the_last_batch() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(2), PoolKind::Split);
    let target = heap.target().unwrap();
    for ahead in [0, 2] {
        let mut kept = None;
        for batch in target.batches((0..9).map(batch_of)).prefetch(ahead) {
            let batch = batch.unwrap();
            if batch.to_vec().unwrap()[0] == 4 {
                kept = Some(batch);
                break;
            }
        }
        assert_eq!(heap.usage().unwrap().live, 0, "{ahead} ahead");
        assert!(kept.unwrap().is_freed());
    }
    assert_all_returned(&device, &heap, "break");
}

#[test]
fn ended_batch_errs() {
    let (_device, heap) = make_heap(1 << 30, Schedule::Seeded(2), PoolKind::Split);
    let line = line!() + 1;
    let mut batches = heap.target().unwrap().batches((0..2).map(batch_of));
    let first = batches.next().unwrap().unwrap();
    let _second = batches.next().unwrap().unwrap();
    let error = first.to_vec().unwrap_err();
    assert!(error.is_freed());
    let text = error.to_string().replace(&format!("{}:{line}", file!()), "PLACE");
    insta::assert_snapshot!(text, @"the array was freed when the turn of its batch ended, of the batches asked for at PLACE; hand it to their keep to use it longer, or make a copy during its turn");
    assert!(first.copy().unwrap_err().is_freed());
    assert!(first.free().unwrap_err().is_freed());
}

#[test]
fn results_and_kept_batches_stay() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), PoolKind::Split);
    let target = heap.target().unwrap();
    for ahead in [0, 1] {
        let mut batches = target.batches((0..4).map(batch_of)).prefetch(ahead);
        let (mut made, mut kept) = (Vec::new(), Vec::new());
        while let Some(batch) = batches.next() {
            let batch = batch.unwrap();
            made.push(batch.copy().unwrap());
            made.push(batch.target().filled(3, made.len() as u32).unwrap());
            // A shared handle is enough to keep the batch.
            kept.push(batches.keep(batch).into_shared());
        }
        for (nth, pair) in made.chunks(2).enumerate() {
            assert!(pair[0].to_vec().unwrap() == batch_of(nth as u32));
            assert_eq!(pair[1].to_vec().unwrap(), [2 * nth as u32 + 1; 3]);
            assert!(kept[nth].to_vec().unwrap() == batch_of(nth as u32));
        }
        drop(batches);
        assert!(kept.iter().all(|kept| !kept.is_freed()));
    }
    assert_all_returned(&device, &heap, "kept");
}

/// A scope frees batches that the program kept with `keep`, and arrays made from batches.
#[test]
fn scopes_are_kept_to() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), PoolKind::Split);
    for ahead in [0, 1] {
        let ((copy, kept, unkept), report) = heap.scope(|scope| {
            let mut batches = scope.target().unwrap().batches((0..3).map(batch_of)).prefetch(ahead);
            let first = batches.next().unwrap().unwrap();
            let copy = first.copy().unwrap();
            let second = batches_next(&mut batches);
            let kept = batches.keep(second);
            let unkept = batches_next(&mut batches);
            (copy, kept, unkept)
        });
        assert!(copy.is_freed() && kept.is_freed() && unkept.is_freed());
        assert_eq!((report.freed, report.freed_bytes), (2, 8 * MANY as u64));
    }
    let (kept, _) = heap.thread_scope(|scope| {
        let target = heap.target().unwrap();
        let mut batches = target.batches((0..2).map(batch_of));
        let copy = batches.next().unwrap().unwrap().copy().unwrap();
        std::mem::forget(batches.next().unwrap().unwrap().copy().unwrap());
        scope.keep(copy)
    });
    assert!(kept.to_vec().unwrap() == batch_of(0));
    drop(kept);

    // After the scope has ended, a request for a batch returns an error.
    let (mut batches, _) =
        heap.scope(|scope| scope.target().unwrap().batches((0..2).map(batch_of)));
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("the scope that began at"), "{error}");
    drop(batches);
    assert_all_returned(&device, &heap, "scopes");
}

/// Tests batches that are not freed before their scope ends, because the batches were forgotten,
/// returned, or uploaded ahead of the step that uses them.
#[test]
fn scopes_free_batches_too() {
    for (ahead, of_thread) in [(0, false), (0, true), (2, false), (2, true)] {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), PoolKind::Split);
        let mut live = 0;
        let work = |scope: &Scope| {
            let target = if of_thread { heap.target() } else { scope.target() }.unwrap();
            let mut forgotten = target.batches((0..5).map(batch_of)).prefetch(ahead);
            let forgotten = (batches_next(&mut forgotten), batches_next(&mut forgotten), forgotten);
            std::mem::forget(forgotten);
            let mut returned = target.batches((0..5).map(batch_of)).prefetch(ahead);
            let kept = scope.keep(batches_next(&mut returned));
            let last = batches_next(&mut returned);
            let again = batches_next(&mut returned);
            let again = returned.keep(again);
            live = heap.usage().unwrap().live;
            (returned, kept, last, again)
        };
        let ((mut returned, kept, last, again), report) =
            if of_thread { heap.thread_scope(work) } else { heap.scope(work) };
        assert!(last.to_vec().unwrap_err().is_freed() && again.is_freed());
        let text = again.to_vec().unwrap_err().to_string();
        assert!(text.contains("at the end of the scope that began at"), "{text}");
        assert_eq!(heap.usage().unwrap().live, 4 * MANY as u64, "{ahead} ahead: {report}");
        assert_eq!(report.freed_bytes, live - 4 * MANY as u64, "{ahead} ahead: {report}");
        assert_eq!((report.kept.len(), report.failed.len()), (1, 0));
        // The end of the scope freed the batches that were uploaded ahead, so their turns return
        // errors. With a target of the scope, later uploads fail too.
        for left in (0..2).rev() {
            // With the heap's own target, uploads after the end of the thread's scope succeed.
            if of_thread && (ahead == 0 || left == 0) {
                assert!(batches_next(&mut returned).to_vec().unwrap() == batch_of(4 - left));
                continue;
            }
            let error = returned.next().unwrap().unwrap_err().to_string();
            assert!(error.contains("the scope that began at"), "{left} left: {error}");
        }
        assert!(returned.next().is_none());
        assert!(kept.to_vec().unwrap() == batch_of(0));
        drop((returned, kept, last, again));
        assert_all_returned(&device, &heap, "scopes");
    }
}

#[test]
fn scope_frees_batches() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), PoolKind::Split);
    std::thread::scope(|threads| {
        let ((fed, first), report) = heap.scope(|scope| {
            let batches = scope.target().unwrap().batches((0..50).map(batch_of));
            let mut fed = batches.prefetch_on(threads, 2).unwrap();
            let first = batches_next(&mut fed);
            (fed, first)
        });
        assert!(first.is_freed() && report.freed >= 1, "{report}");
        assert_eq!(fed.filter(Result::is_ok).count(), 0);
    });
    let rows = Array1::from_elem(1 << 20, 7_u32);
    let share = f64::from(1 << 20) / device.total_memory() as f64;
    let ((mut batches, first), report) = heap.scope(|scope| {
        let mut batches = scope.target().unwrap().batches_by_memory(&rows, share).unwrap();
        let first = batches_next(&mut batches);
        (batches, first)
    });
    assert!(first.is_freed() && report.freed == 1 && heap.usage().unwrap().live == 0, "{report}");
    assert!(batches.next().unwrap().is_err());
    drop((batches, first));
    assert_all_returned(&device, &heap, "scopes");
}

/// If a batch is uploaded in a thread scope, the scope's end frees the batch, whichever target
/// requested it.
#[test]
fn thread_scope_covers_its_batches() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), PoolKind::Split);
    let mut batches = heap.target().unwrap().batches((0..3).map(batch_of));
    let (first, report) = heap.thread_scope(|_| batches_next(&mut batches));
    assert!(first.is_freed() && report.freed == 1);
    let second = batches_next(&mut batches);
    assert!(second.to_vec().unwrap() == batch_of(1));
    let (third, _) = heap.thread_scope(|scope| scope.keep(batches_next(&mut batches)));
    assert!(second.is_freed() && third.to_vec().unwrap() == batch_of(2));
    assert!(batches.next().is_none() && !third.is_freed());
    drop((batches, first, second, third));
    assert_all_returned(&device, &heap, "thread scope");
}

fn batches_next<I: Iterator<Item = Result<DeviceArray<u32>, Error>>>(
    batches: &mut I,
) -> DeviceArray<u32> {
    batches.next().unwrap().unwrap()
}

#[test]
fn the_callers_own_arrays_survive() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(4), PoolKind::Split);
    let target = heap.target().unwrap();
    let shared = target.array(&batch_of(7)).unwrap().into_shared();
    let owned = target.array(&batch_of(8)).unwrap();
    for ahead in [0, 2] {
        let items = (0..4).map(|nth| (shared.clone(), owned.view(), batch_of(nth)));
        let mut copies = Vec::new();
        let mut batches = target.batches(items).prefetch(ahead);
        for batch in batches.by_ref() {
            let (same, copy, own): (SharedArray<u32>, DeviceArray<u32>, DeviceArray<u32>) =
                batch.unwrap();
            assert!(same.to_vec().unwrap() == batch_of(7) && copy.to_vec().unwrap() == batch_of(8));
            copies.push((same, copy, own));
        }
        drop(batches);
        assert!(shared.to_vec().unwrap() == batch_of(7) && owned.to_vec().unwrap() == batch_of(8));
        for (same, copy, own) in copies {
            assert!(!same.is_freed() && copy.is_freed() && own.is_freed());
        }
    }
    // `shared` is not in pinned memory, so the batch has a copy that is freed with the batch.
    let pinned = target.kind(MemoryKind::Pinned);
    let up = pinned.batches([shared.clone()]).next().unwrap().unwrap();
    assert!(up.is_freed() && !shared.is_freed());
    drop((shared, owned, up));
    assert_all_returned(&device, &heap, "the caller's");
}

#[derive(Adapt, Clone)]
struct Sample<X, Y> {
    image: X,
    labels: Vec<Y>,
    name: String,
}

#[test]
fn structures_are_freed_whole() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(5), PoolKind::Split);
    let target = heap.target().unwrap();
    let sample = |nth: usize| Sample {
        image: Array2::from_elem((100, 100), nth as f64),
        labels: vec![arr1(&[nth as u8]), arr1(&[1, 2, 3])],
        name: format!("sample {nth}"),
    };
    for ahead in [0, 1, 3] {
        let mut old: Option<Sample<DeviceArray<f64, _>, DeviceArray<u8>>> = None;
        let items = (0..5).map(|nth| Some((sample(nth), nth)));
        for (nth, batch) in target.batches(items).prefetch(ahead).enumerate() {
            let (up, number) = batch.unwrap().unwrap();
            assert_eq!((number, &up.name), (nth, &format!("sample {nth}")));
            let down: Sample<Array2<f64>, Array1<u8>> = Host.adapt(&up).unwrap();
            assert_eq!((down.image[(9, 9)], down.labels[0][0]), (nth as f64, nth as u8));
            // This step freed all arrays of the previous item, also small arrays in a shared block.
            if let Some(old) = old {
                assert!(old.image.is_freed() && old.labels.iter().all(DeviceArray::is_freed));
            }
            old = Some(up);
        }
        assert_eq!(heap.usage().unwrap().live, 0);
    }
    assert_all_returned(&device, &heap, "structures");
}

#[test]
fn element_types_change_as_asked() {
    let device = emulated(1 << 30, Schedule::Seeded(5));
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    let items = || (0..3).map(|nth| (vec![i64::from(nth); 5], vec![0.5_f64]));
    let mut batches = target.batches(items()).cu().prefetch(1);
    let (a, b): (DeviceArray<f32>, DeviceArray<f32>) = batches.next().unwrap().unwrap();
    assert_eq!((a.to_vec().unwrap(), b.to_vec().unwrap()), (vec![0.0; 5], vec![0.5]));
    assert_eq!(batches.len(), 2);
    drop((a, b, batches));
    let mut batches = target.batches(items()).narrow();
    let (a, b): (DeviceArray<i64>, DeviceArray<f32>) = batches.next().unwrap().unwrap();
    assert_eq!((a.to_vec().unwrap(), b.to_vec().unwrap()), (vec![0; 5], vec![0.5]));
    drop((a, b, batches));
    // The last batch is already on the device, so it is not converted.
    let mut batches = target.batches(items()).prefetch(2);
    assert!(batches.by_ref().take(2).all(|batch| batch.is_ok()));
    let mut batches = batches.cu();
    let error = batches.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("call cu or narrow before the first batch"), "{error}");
    assert!(batches.next().is_none());
    assert_all_returned(&device, &heap, "rules");
}

#[test]
fn other_kinds_of_memory() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(6), PoolKind::Split);
    for kind in [MemoryKind::Unified, MemoryKind::Pinned] {
        let target = heap.target().unwrap().kind(kind);
        for ahead in [0, 2] {
            for (nth, batch) in target.batches((0..5).map(batch_of)).prefetch(ahead).enumerate() {
                let batch = batch.unwrap();
                assert_eq!(batch.kind(), kind);
                assert!(batch.as_slice().unwrap()[..] == batch_of(nth as u32));
                let live = heap.usage_of(kind).unwrap().live / (4 * MANY as u64);
                assert!(live <= 1 + ahead as u64, "{live} batches, {ahead} ahead");
            }
            assert_eq!(heap.usage_of(kind).unwrap().live, 0);
        }
    }
    assert_all_returned(&device, &heap, "kinds");
}

#[test]
fn sizes_are_known() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    for ahead in [0, 1, 9] {
        let mut batches = target.batches(vec![vec![1_u8]; 4]).prefetch(ahead);
        for left in (0..4).rev() {
            assert!(batches.next().unwrap().is_ok());
            assert_eq!((batches.len(), batches.size_hint()), (left, (left, Some(left))));
        }
        assert!(batches.next().is_none() && batches.next().is_none());
        assert_eq!(batches.len(), 0);
        let filtered = target.batches((0..9_u8).filter(|n| n % 2 == 0).map(|n| vec![n]));
        assert_eq!(filtered.size_hint(), (0, Some(9)));
        assert_eq!(target.batches(std::iter::repeat(vec![1_u8])).size_hint(), (usize::MAX, None));
    }
    // An iterator that could continue after its end is not called again.
    let mut calls = 0;
    let odd = std::iter::from_fn(|| {
        calls += 1;
        (calls != 2).then(|| vec![calls])
    });
    let mut batches = target.batches(odd);
    assert!(batches.next().is_some() && batches.next().is_none() && batches.next().is_none());
}

#[test]
fn consumer_of_batch_is_freed_too() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(5), PoolKind::Split);
    let target = heap.target().unwrap();
    let mut results = Vec::new();
    for batch in target.batches((0..3).map(batch_of)) {
        let batch = batch.unwrap();
        results.push(((&batch * 2).unwrap(), (batch * 3).unwrap()));
    }
    for (nth, (made, used_up)) in results.into_iter().enumerate() {
        assert_eq!(made.to_vec().unwrap(), batch_of(2 * nth as u32));
        assert!(used_up.to_vec().unwrap_err().is_freed());
    }
    assert_all_returned(&device, &heap, "used up");
}

#[test]
fn device_arrays_convert_on_target_stream() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(6), PoolKind::Split);
    let elsewhere = heap.on(&device.stream().unwrap());
    let sources: Vec<DeviceArray<f64>> =
        (0..4).map(|nth| elsewhere.filled(MANY, f64::from(nth)).unwrap()).collect();
    let target = heap.target().unwrap();
    let is_right = |nth: usize, batch: Result<DeviceArray<f32>, Error>| {
        let batch = batch.unwrap();
        assert_eq!(batch.stream().id(), target.stream().id());
        assert_eq!(batch.to_vec().unwrap(), vec![nth as f32; MANY]);
    };
    is_right(3, target.narrow(&sources[3]));
    for ahead in [0, 1, 2] {
        let batches = target.batches(&sources).narrow().prefetch(ahead);
        batches.enumerate().for_each(|(nth, batch)| is_right(nth, batch));
        std::thread::scope(|scope| {
            let batches = target.batches(&sources).narrow().prefetch_on(scope, ahead).unwrap();
            batches.enumerate().for_each(|(nth, batch)| is_right(nth, batch));
        });
    }
    drop(sources);
    assert_all_returned(&device, &heap, "converted");
}
