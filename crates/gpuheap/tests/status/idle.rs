//! Tests of idle trim. Memory is given back if nothing is allocated or freed for some time.

use std::time::{Duration, Instant};

use gpuheap::emu::Schedule;
use gpuheap::{Heap, MemoryKind, PoolKind};

use crate::support::{assert_all_returned, device};

/// Time after which a waiting test fails. It is far longer than a trim takes.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Counts the trim threads of the process. The trim threads of other tests count too, but they also
/// end, so the count reaches zero.
#[test]
fn idle_trim_returns_every_kind() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::OnDemand);
        let builder = Heap::builder(&device).pool(pool).idle_trim(Duration::from_millis(20));
        let heap = builder.build().unwrap();
        wait_until("no thread watches", || threads() > 0);
        let target = heap.target().unwrap();
        for _ in 0..2 {
            let kept = target.filled(1 << 20, 1_u8).unwrap();
            for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
                drop(target.kind(kind).filled(64 << 20, 1_u8).unwrap());
            }
            wait_until(&format!("{pool}: nothing came back"), || {
                let status = heap.memory_status().unwrap();
                // A live block keeps its own segment.
                let left = status.taken + status.unified.taken + status.pinned.taken;
                left < 64 << 20
            });
            drop(kept);
        }
        drop(target);
        assert_all_returned(&device, &heap, pool.name());
        drop(heap);
        wait_until("the thread goes on without its heap", || threads() == 0);
    }
}

pub(crate) fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "gpuheap-idle").count()
}
