//! Runs the probes of `gpuheap_driver::probe` on the emulator. Runs them once without failures, and
//! once for each driver call with a failure of that call.
#![allow(clippy::unwrap_used)]

use gpuheap_driver::probe::{self, PinnedMemory, Probe, ProbeError};
use gpuheap_driver::{CUresult, DriverError};
use gpuheap_emu::{Emulator, Fault, FaultPlan, Options, Profile};

const MIB: u64 = 1 << 20;

fn emulator(profile: Profile) -> Emulator {
    let gpu = Emulator::new(Options::with_device(profile));
    // SAFETY: no pointers.
    unsafe { assert!(gpuheap_driver::Driver::cuInit(&gpu, 0).is_success()) };
    gpu
}

/// Runs every probe, and returns the failed driver calls.
fn run(gpu: &Emulator) -> Vec<DriverError> {
    let mut failed = Vec::new();
    failed.extend(probe::devices(gpu).err());
    failed.extend(probe::uuid(gpu, 0).err());
    let probe = match Probe::new(gpu, 0) {
        Ok(probe) => probe,
        Err(error) => {
            failed.push(error);
            return failed;
        }
    };
    let probes = [
        probe.virtual_memory().map(drop),
        probe.pool(),
        probe.managed_memory().map(drop),
        probe.used_bytes().map(drop).map_err(ProbeError::Failed),
    ];
    failed.extend(probes.into_iter().filter_map(|result| match result {
        Err(ProbeError::Failed(error)) => Some(error),
        _ => None,
    }));
    match probe.pinned_memory(256 * MIB) {
        Ok(pinned) => failed.extend(pinned.refused),
        Err(error) => failed.push(error),
    }
    failed
}

#[test]
fn probes_return_their_memory() {
    let gpu = emulator(Profile::h200());
    let probe = Probe::new(&gpu, 0).unwrap();
    let context = probe.used_bytes().unwrap();
    assert!(context > 100 * MIB, "{context}");
    let found = probe.virtual_memory().unwrap();
    assert_eq!((found.granularity, found.reserved), (2 * MIB, 64 << 30));
    assert_eq!(probe.pool(), Ok(()));
    assert_eq!(probe.managed_memory(), Ok(true));
    let pinned = probe.pinned_memory(300 * MIB).unwrap();
    assert_eq!(pinned, PinnedMemory { bytes: 384 * MIB, refused: None });
    assert_eq!(probe.used_bytes(), Ok(context));
    drop(probe);
    let usage = gpu.usage(0);
    assert_eq!((usage.context, usage.plain, usage.pools, usage.vmm), (0, 0, 0, 0));
    assert_eq!(gpu.findings().unwrap(), []);
    assert_eq!(probe::devices(&gpu), Ok(1));
    assert!(probe::uuid(&gpu, 0).unwrap().starts_with("GPU-"), "{:?}", probe::uuid(&gpu, 0));
    assert_eq!(probe::uuid(&gpu, 1).unwrap_err().function(), "cuDeviceGet");
}

#[test]
fn unsupported_memory_kind_is_skipped() {
    let gpu = emulator(Profile { vmm: false, pools: false, ..Profile::h200() });
    let probe = Probe::new(&gpu, 0).unwrap();
    let missing = "virtual memory management";
    assert_eq!(probe.virtual_memory(), Err(ProbeError::NotSupported(missing)));
    assert_eq!(probe.pool(), Err(ProbeError::NotSupported("stream-ordered pools")));
}

#[test]
fn pinning_ends_where_the_driver_refuses() {
    let gpu = emulator(Profile::h200());
    let probe = Probe::new(&gpu, 0).unwrap();
    let refusal = CUresult::ERROR_OUT_OF_MEMORY;
    gpu.set_faults(FaultPlan::new([Fault::nth("cuMemHostAlloc", 3, refusal).onwards()]));
    let pinned = probe.pinned_memory(1024 * MIB).unwrap();
    assert_eq!(pinned.bytes, 256 * MIB);
    assert_eq!(pinned.refused, Some(DriverError::new("cuMemHostAlloc", refusal)));
    assert_eq!(gpu.calls_of("cuMemFreeHost"), 2);
}

#[test]
fn failed_probe_call_is_named() {
    let gpu = emulator(Profile::h200());
    let before = gpu.calls();
    assert_eq!(run(&gpu), []);
    let calls = gpu.calls() - before;
    assert!(calls > 30, "{calls}");
    let code = CUresult::ERROR_UNKNOWN;
    for nth in 1..=calls {
        let gpu = emulator(Profile::h200());
        gpu.set_faults(FaultPlan::fail_call(nth, code));
        let failed = run(&gpu);
        // Every failure is reported, except in the last two calls, because a `drop` makes them.
        let is_told = nth <= calls - 2;
        assert_eq!(failed.first().map(DriverError::code), is_told.then_some(code), "call {nth}");
        // One failed call makes at most one probe fail.
        assert!(failed.len() <= 1, "call {nth}: {failed:?}");
    }
}
