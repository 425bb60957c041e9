//! Tests closing a heap whose streams have ended, and frees that fail.

use gpuheap::PoolKind;
use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap_capi::gpuheap_close;
use gpuheap_driver::CUresult;

use crate::client::{Client, Status, destroy_stream, last_error, make_stream};
use crate::support::{assert_no_findings, emulated};

const LARGE: u64 = 30 << 20;

/// A kernel's error is reported by the next wait, here the wait in `gpuheap_close`.
#[test]
fn failed_close_touches_no_ended_stream() {
    for pool in PoolKind::ALL {
        let device = emulated(96 << 20, Schedule::OnDemand);
        let emulator = device.emulator().unwrap().clone();
        let client = Client::new(&device, pool);
        let stream = make_stream(&device);
        client.allocate(3 << 20, stream).unwrap().fill(&device, 1, stream);
        let freed = client.allocate(LARGE, stream).unwrap();
        freed.fill(&device, 1, stream);
        assert_eq!(client.free(freed), Status::Ok);
        destroy_stream(&device, stream);
        let fault = Fault::nth("cuCtxSynchronize", 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([fault]));
        let calls = || ["cuEventRecord", "cuStreamWaitEvent"].map(|name| emulator.calls_of(name));
        let before = calls();
        assert_eq!(call!(gpuheap_close(client.0)), Status::Driver);
        assert_eq!(calls(), before, "{pool}");
        assert_no_findings(&device, pool.name());
    }
}

/// A free never returns `Refused` once it has taken the memory from the program, even if a driver
/// call fails.
#[test]
fn free_counts_despite_driver_failure() {
    for pool in [PoolKind::None, PoolKind::Driver] {
        let device = emulated(96 << 20, Schedule::Immediate);
        let emulator = device.emulator().unwrap().clone();
        let client = Client::new(&device, pool);
        let stream = make_stream(&device);
        let memory = client.allocate(1 << 20, stream).unwrap();
        let free = if pool == PoolKind::None { "cuMemFree_v2" } else { "cuMemFreeAsync" };
        let fault = Fault::nth(free, 1, CUresult::ERROR_OUT_OF_MEMORY);
        emulator.set_faults(FaultPlan::new([fault]));
        assert_eq!(client.free_on(memory, stream), Status::Driver, "{pool}: {}", last_error());
        assert_eq!(client.free_on(memory, stream), Status::UnknownAddress);
        emulator.set_faults(FaultPlan::default());
        assert_eq!(call!(gpuheap_close(client.0)), Status::Ok);
    }
}
