//! Tests of a heap's flush, and of the memory that stays reserved.

use gpuheap::driver::CUresult;
use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{FlushedKind, MemoryKind, PoolKind};

use crate::support::{assert_all_returned, emulated, heap, make_heap};

const MIB: u64 = 1 << 20;

#[test]
fn flush_empties_pools_of_all_kinds() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
        let target = heap.target().unwrap();
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
            drop(target.kind(kind).filled(40 << 20, 1_u8).unwrap());
        }
        let report = heap.flush().unwrap();
        let kinds: Vec<_> = report.kinds.iter().map(|kind| kind.kind).collect();
        assert_eq!(kinds, [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned]);
        for kind in &report.kinds {
            let FlushedKind { live, live_allocations, still_cached, .. } = *kind;
            assert_eq!((live, live_allocations, still_cached), (0, 0, 0), "{pool}");
            // `none` returns freed memory to the driver before the flush.
            let cached = if pool == PoolKind::None { 0 } else { 40 * MIB };
            assert!(kind.given_back >= cached, "{pool}: {kind:?}");
            assert!(cached > 0 || kind.given_back == 0, "{pool}: {kind:?}");
        }
        assert_eq!(heap.flush().unwrap().given_back(), 0, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn flush_report_explains_kept_memory() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let [mine, other] = [(); 2].map(|()| heap(&device, PoolKind::Split));
    let target = mine.target().unwrap();
    let live = target.zeroed::<u8, _>(4 << 20).unwrap();
    drop(target.zeroed::<u8, _>(4 << 20).unwrap());
    drop(target.zeroed::<u8, _>(32 << 20).unwrap());
    let pinned = target.kind(MemoryKind::Pinned).zeroed::<u8, _>(1 << 20).unwrap();
    let theirs = other.target().unwrap().zeroed::<u8, _>(64 << 20).unwrap();
    let report = mine.flush().unwrap();
    insta::assert_snapshot!("one_heap", report);
    insta::assert_snapshot!("one_heap_json", report.to_json());
    assert_eq!(report.given_back(), 32 * MIB);
    assert_eq!((report.other_heaps, report.context_and_others), (64 * MIB, Some(0)));
    drop(theirs);
    let report = device.flush().unwrap();
    insta::assert_snapshot!("all_heaps", report);
    assert_eq!((report.given_back(), report.other_heaps), (64 * MIB, 0));
    drop((live, pinned));
    assert_all_returned(&device, &mine, "mine");
    drop((mine, target, other));
    assert_eq!(device.flush().unwrap().kinds, []);
}

/// If the driver does not report its free memory, the texts say "unknown" for the figures that
/// depend on it. All other figures are still reported.
#[test]
fn flush_report_marks_unknown_figures() {
    for pool in PoolKind::ALL {
        let device = emulated(1 << 30, Schedule::Immediate);
        let heap = heap(&device, pool);
        let target = heap.target().unwrap();
        let live = target.zeroed::<u8, _>(40 << 20).unwrap();
        drop(target.zeroed::<u8, _>(64 << 20).unwrap());
        let emulator = device.emulator().unwrap();
        let silent = Fault::nth("cuMemGetInfo_v2", 1, CUresult::ERROR_UNKNOWN).onwards();
        emulator.set_faults(FaultPlan::new([silent]));
        let status = heap.memory_status().unwrap();
        let reports = [heap.flush().unwrap(), device.flush().unwrap()];
        emulator.set_faults(FaultPlan::default());
        assert_eq!((status.device_used, status.device_total), (None, 1 << 30), "{pool}");
        let text = status.to_string();
        let first = text.lines().next().unwrap();
        assert_eq!(first, "Effective GPU memory usage: unknown (of 1 GiB)", "{pool}");
        assert!(status.allocated >= 40 * MIB && status.to_json().contains("\"device_used\":null"));
        let given_back: u64 = reports.iter().map(|report| report.given_back()).sum();
        assert_eq!(given_back > 0, pool != PoolKind::None, "{pool}");
        for report in reports {
            let figures = (report.device_free, report.context_and_others, report.device_total);
            assert_eq!(figures, (None, None, 1 << 30), "{pool}");
            let text = report.to_string();
            assert!(text.contains(": unknown, of 1 GiB\n"), "{pool}: {text}");
            assert!(text.contains("\n  context and other processes: unknown"), "{pool}: {text}");
            assert!(text.contains(" MiB live in 1 allocation"), "{pool}: {text}");
            let json = report.to_json();
            for field in ["context_and_others", "device_free"] {
                assert!(json.contains(&format!("\"{field}\":null")), "{pool}: {json}");
            }
        }
        drop(live);
        assert_all_returned(&device, &heap, pool.name());
    }
}
