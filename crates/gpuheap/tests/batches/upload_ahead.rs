//! Tests of batches that are uploaded ahead of their turn.

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Device, DeviceArray, Error, Heap, PoolKind, Staging, Stream, Target};
use gpuheap_pool::testing::Random;

use gpuheap_driver::CUresult;

use crate::support::{assert_all_returned, device, emulated};

/// Size of a batch, in bytes: one segment of the pool, so that a limit of `n` batches admits `n`.
pub(crate) const BATCH: usize = 20 << 20;

pub(crate) fn limited(device: &Device, batches: usize) -> Heap {
    let builder = Heap::builder(device).without_environment().pool(PoolKind::Split);
    builder.hard_limit((batches * BATCH) as u64).build().unwrap()
}

fn batch_of(nth: usize) -> Vec<u8> {
    let mut batch = vec![nth as u8; BATCH];
    batch[BATCH - 1] = 255 - nth as u8;
    batch
}

/// Returns the first and the last byte of a batch, without reading all of it.
fn ends(batch: &DeviceArray<u8>) -> (u8, u8) {
    let read = |at| batch.slice(at..=at).unwrap().to_vec().unwrap()[0];
    (read(0), read(BATCH - 1))
}

/// Calls `each` with `count` batches, each with its index. If `thread` is `true`, a thread uploads
/// them.
fn upload(
    target: &Target,
    count: usize,
    ahead: usize,
    thread: bool,
    mut each: impl FnMut(usize, DeviceArray<u8>),
) {
    let batches = target.batches((0..count).map(batch_of));
    let mut each = |(nth, batch): (usize, Result<_, Error>)| each(nth, batch.unwrap());
    if !thread {
        return batches.prefetch(ahead).enumerate().for_each(each);
    }
    std::thread::scope(|scope| {
        let batches = batches.prefetch_on(scope, ahead).unwrap();
        assert_eq!(batches.len(), count);
        batches.enumerate().for_each(&mut each);
    });
}

#[test]
fn data_ten_times_the_limit() {
    for (ahead, resident, thread) in
        [(0, 1), (1, 2), (2, 3)].into_iter().flat_map(|(a, r)| [(a, r, false), (a, r, true)])
    {
        let device = device(1 << 30, Schedule::Seeded(7));
        let heap = limited(&device, resident);
        let target = heap.target().unwrap();
        upload(&target, 10 * resident, ahead, thread, |nth, batch| {
            assert_eq!(batch.stream().id(), target.stream().id());
            assert_eq!(ends(&batch), (nth as u8, 255 - nth as u8), "{ahead} ahead, {thread}");
        });
        let (usage, most) = (heap.usage().unwrap(), (resident * BATCH) as u64);
        assert!(usage.live_peak <= most, "{ahead} ahead: {usage:?}");
        assert!(thread || usage.live_peak == most, "{ahead} ahead: all of it used");
        assert!(usage.reserved_peak <= most, "{ahead} ahead: {usage:?}");
        assert_all_returned(&device, &heap, "ten times");
    }
}

#[test]
fn at_most_so_many_have_memory() {
    let device = emulated(1 << 30, Schedule::Seeded(8));
    for ahead in [0, 1, 2, 5] {
        let heap = limited(&device, 12);
        let target = heap.target().unwrap();
        let mut live = Vec::new();
        // If nothing is uploaded ahead, the batch is freed when the program drops it.
        upload(&target, 6, ahead, false, |_, _batch| {
            live.push(heap.usage().unwrap().live as usize / BATCH);
        });
        // The first batch is returned as soon as it is uploaded. From the second on, the batches
        // ahead are live too.
        let expected = |nth: usize| if nth == 0 { 1 } else { ahead.clamp(1, 6 - nth) };
        assert_eq!(live, (0..6).map(expected).collect::<Vec<_>>(), "{ahead} ahead");
        assert_eq!(heap.usage().unwrap().live_peak as usize / BATCH, (ahead + 1).min(6));
        upload(&target, 8, ahead, true, |_, batch| {
            ends(&batch);
            assert!(heap.usage().unwrap().live as usize <= (ahead + 1) * BATCH);
        });
        assert!(heap.usage().unwrap().live_peak as usize <= (ahead + 1) * BATCH);
        assert_eq!(heap.usage().unwrap().live, 0);
    }
}

#[test]
fn short_memory_reduces_batches_ahead() {
    for (resident, thread) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
        let device = device(1 << 30, Schedule::Seeded(9));
        let heap = limited(&device, resident);
        let mut found = Vec::new();
        upload(&heap.target().unwrap(), 8, 5, thread, |_, batch| found.push(ends(&batch).0));
        assert_eq!(found, (0..8).collect::<Vec<u8>>());
        assert!(heap.usage().unwrap().reserved_peak as usize <= resident * BATCH);
        assert_all_returned(&device, &heap, "fewer");
    }
    // The heap has memory for one batch only, so it cannot upload the next batch ahead. The
    // iterator's length still includes that batch.
    let device = device(1 << 30, Schedule::Seeded(9));
    let heap = limited(&device, 1);
    let mut batches = heap.target().unwrap().batches((0..8).map(batch_of)).prefetch(5);
    for left in (0..8).rev() {
        drop(batches.next().unwrap().unwrap());
        assert_eq!(batches.len(), left);
    }
}

/// If a batch is too large for the heap, its turn returns an error, and later batches follow.
#[test]
fn oversized_batch_errs_at_its_turn() {
    let device = emulated(1 << 30, Schedule::Seeded(9));
    for ahead in [0, 1, 3] {
        let heap = limited(&device, 3);
        let sizes = [1, 1, 4, 1, 1].map(|batches| vec![7_u8; batches * BATCH]);
        let results: Vec<bool> = heap
            .target()
            .unwrap()
            .batches(&sizes)
            .prefetch(ahead)
            .map(|batch| match batch {
                Ok(batch) => batch.slice(5..6).unwrap().to_vec().unwrap() == [7],
                Err(error) => {
                    assert!(error.out_of_memory().is_some(), "{error}");
                    false
                }
            })
            .collect();
        assert_eq!(results, [true, true, false, true, true], "{ahead} ahead");
        assert_all_returned(&device, &heap, "too large");
    }
}

/// Enqueues work on the target's stream and on another stream, and does not wait for it. Copies are
/// staged. Runs under many schedules, and a thread uploads the batches of every third schedule.
#[test]
fn order_holds_whatever_runs_when() {
    let staging = Staging { threads: 2, piece: 32 << 10, slots: 2, threshold: 64 << 10 };
    for seed in 0..60 {
        let device = device(1 << 30, Schedule::Seeded(seed));
        let builder = Heap::builder(&device).without_environment().staging(staging);
        let pool = PoolKind::ALL[seed as usize % PoolKind::ALL.len()];
        let heap = builder.pool(pool).hard_limit(64 << 20).build().unwrap();
        let streams: [Stream; 2] = [(); 2].map(|()| device.stream().unwrap());
        let target = heap.on(&streams[0]);
        let mut random = Random(seed);
        let counts: Vec<usize> = (0..12).map(|_| random.below(60_000) as usize + 1).collect();
        let items = counts.iter().enumerate().map(|(nth, count)| vec![nth as u32; *count]);
        let mut copies = Vec::new();
        let most = random.below(4) as usize;
        let mut take = |batch: Result<DeviceArray<u32>, Error>| {
            let mut batch = batch.unwrap();
            if random.below(3) == 0 {
                batch.device_ptr(&streams[1]).unwrap();
            }
            copies.push(batch.copy().unwrap());
            if random.below(2) == 0 {
                // The next user of this memory must neither see nor undo this write.
                batch.fill(1000).unwrap();
            }
        };
        if seed % 3 == 0 {
            std::thread::scope(|scope| {
                target.batches(items).prefetch_on(scope, most).unwrap().for_each(&mut take);
            });
        } else {
            target.batches(items).prefetch(most).for_each(&mut take);
        }
        for (nth, copy) in copies.iter().enumerate() {
            let found = copy.to_vec().unwrap();
            assert_eq!(found.len(), counts[nth], "seed {seed}, batch {nth}");
            assert!(found.iter().all(|one| *one == nth as u32), "seed {seed}, batch {nth}");
        }
        drop((copies, target));
        assert_all_returned(&device, &heap, &format!("seed {seed}"));
    }
}

/// The current batch does not wait for the upload of the next batches.
#[test]
fn batch_waits_for_own_upload() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let heap = Heap::builder(&device).without_environment().build().unwrap();
    let target = heap.target().unwrap();
    let sources: Vec<_> = (0..3).map(|nth| target.filled(100_000, nth as u8).unwrap()).collect();
    // The batches are copied from arrays on the device, so the host does not wait for the copies.
    let mut batches = target.batches(&sources).prefetch(2);
    drop(batches.next());
    let emulator = device.emulator().unwrap();
    let waits = || emulator.calls_of("cuStreamSynchronize");
    let before = waits();
    let second = batches.next().unwrap().unwrap();
    assert_eq!(waits(), before, "next does not wait");
    // Gets the stream on which the third batch is being uploaded.
    let side = sources[2].stream();
    assert_ne!(side.id(), target.stream().id());
    assert_eq!(second.to_vec().unwrap(), vec![1; 100_000]);
    assert!(!side.is_done().unwrap());
    drop((batches, second));
    drop(sources);
    assert_all_returned(&device, &heap, "alone");
}

/// Memory suffices for two batches. While the program works on one batch, the next is uploaded into
/// the memory of the previous batch. That upload waits only for the work on the previous batch.
#[test]
fn upload_ahead_skips_other_work() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let staging = Staging { threads: 1, piece: 1 << 20, slots: 2, threshold: 1 << 20 };
    let builder = Heap::builder(&device).without_environment().staging(staging);
    let heap = builder.hard_limit(2 * BATCH as u64).build().unwrap();
    let target = heap.target().unwrap();
    let mut batches = target.batches((0..6).map(batch_of)).prefetch(1);
    let mut work = Vec::new();
    for nth in 0..6 {
        let mut batch = batches.next().unwrap().unwrap();
        if let Some(last) = work.last() {
            let last: &gpuheap::Event = last;
            assert!(!last.is_done().unwrap(), "work on the batch before {nth} was waited for");
        }
        batch.fill(nth).unwrap();
        work.push(target.stream().record().unwrap());
    }
    assert!(batches.next().is_none());
    assert_eq!(heap.usage().unwrap().reserved_peak, 2 * BATCH as u64);
    drop(batches);
    assert_all_returned(&device, &heap, "beside");
}

#[test]
fn missing_side_stream_loses_no_batch() {
    let device = emulated(1 << 30, Schedule::Seeded(9));
    let emulator = device.emulator().unwrap().clone();
    let heap = limited(&device, 10);
    let target = heap.target().unwrap();
    let fault = Fault::nth("cuStreamCreate", 1, CUresult::ERROR_UNKNOWN);
    emulator.set_faults(FaultPlan::new([fault.clone()]));
    let batches = target.batches((0..4).map(batch_of)).prefetch(1);
    let found: Vec<_> = batches.map(|batch| ends(&batch.unwrap()).0).collect();
    assert_eq!(found, [0, 1, 2, 3]);

    emulator.set_faults(FaultPlan::new([fault]));
    let rows = ndarray::Array2::from_shape_fn((4, BATCH), |(row, _)| row as u8);
    let batches = target.batches_by_memory(&rows, 0.2).unwrap().prefetch(1);
    let found: Vec<_> = batches.map(|batch| batch.unwrap().to_vec().unwrap()[0]).collect();
    assert_eq!(found, [0, 1, 2, 3]);
    emulator.set_faults(FaultPlan::default());
    assert_all_returned(&device, &heap, "no stream");
}
