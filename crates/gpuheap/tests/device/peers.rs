//! Tests of several devices that access each other's memory.

use gpuheap::Device;
use gpuheap::emu::{Fault, FaultPlan, Options, Profile, Schedule};
use gpuheap_driver::CUresult;

use crate::support::{assert_no_findings, device, emulated, on_real_gpu};

/// Returns two devices of one driver; fewer on a machine with one GPU.
pub(crate) fn two_devices() -> Vec<Device> {
    if on_real_gpu() {
        let names = Device::list().unwrap().into_iter().filter(|info| !info.is_emulated);
        return names.take(2).map(|info| Device::open(&info.name).unwrap()).collect();
    }
    emulated_pair(Profile::with_memory(1 << 30))
}

fn emulated_pair(profile: Profile) -> Vec<Device> {
    let devices = vec![profile.clone(), profile];
    Device::emulated_devices(Options { devices, ..Options::default() }).unwrap()
}

#[test]
fn emulator_has_requested_device_count() {
    let devices = emulated_pair(Profile::t4());
    assert_eq!(devices.iter().map(Device::ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_ne!(devices[0].describe().pci_bus_id, devices[1].describe().pci_bus_id);
    assert_ne!(devices[0].describe().uuid, devices[1].describe().uuid);
    let none = Device::emulated_devices(Options { devices: Vec::new(), ..Options::default() });
    assert!(none.is_err());
}

#[test]
fn device_reaches_itself_only() {
    let (one, two) = (device(Schedule::Immediate), emulated(Schedule::Immediate));
    assert!(one.can_reach(&one.clone()).unwrap());
    assert!(!one.can_reach(&two).unwrap());
    assert!(!two.can_reach(&one).unwrap());
    assert_no_findings(&two);
}

#[test]
fn peer_access_is_enabled_once() {
    let devices = two_devices();
    let [one, two] = &devices[..] else { return };
    let reaches = one.can_reach(two).unwrap();
    assert_eq!(one.can_reach(two).unwrap(), reaches);
    if let Some(emulator) = one.emulator() {
        assert!(reaches);
        assert_eq!(emulator.calls_of("cuCtxEnablePeerAccess"), 1);
        assert!(two.can_reach(one).unwrap());
        assert_eq!(emulator.calls_of("cuCtxEnablePeerAccess"), 2);
    }
    assert_no_findings(one);
}

#[test]
fn foreign_peer_access_counts() {
    let devices = emulated_pair(Profile::t4());
    let emulator = devices[0].emulator().unwrap();
    let code = CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED;
    emulator.set_faults(FaultPlan::new([Fault::nth("cuCtxEnablePeerAccess", 1, code)]));
    assert!(devices[0].can_reach(&devices[1]).unwrap());
}

#[test]
fn failed_peer_query_is_repeated() {
    let devices = emulated_pair(Profile::t4());
    let emulator = devices[0].emulator().unwrap();
    let fault = Fault::nth("cuDeviceCanAccessPeer", 1, CUresult::ERROR_UNKNOWN);
    emulator.set_faults(FaultPlan::new([fault]));
    assert!(devices[0].can_reach(&devices[1]).is_err());
    assert!(devices[0].can_reach(&devices[1]).unwrap());
}

#[test]
fn wsl2_devices_are_no_peers() {
    let devices = emulated_pair(Profile::wsl2_rtx4060());
    assert!(!devices[0].can_reach(&devices[1]).unwrap());
    assert_eq!(devices[0].emulator().unwrap().calls_of("cuCtxEnablePeerAccess"), 0);
}
