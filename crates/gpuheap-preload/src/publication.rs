//! Publishes the process's live memory to other processes of the user (`GPUHEAP_PUBLISH`).

use std::sync::{Arc, Mutex, TryLockError};

use gpuheap_catch::messages;
use gpuheap_driver::{CUdevice, CUuuid};
use gpuheap_publish::{Access, HeapStatus, Member, Membership, RECORDED, join};

use crate::{real, settings};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceBytes {
    pub(crate) live: u64,
    /// High-water mark of `live`.
    pub(crate) peak: u64,
}

/// Membership of the recorder of this process.
static MEMBERSHIP: Mutex<Option<Membership>> = Mutex::new(None);

/// Publisher of the recorder's bytes on the process's socket. `F` returns the bytes of each device.
struct RecordedBytes<F>(F);

/// Publishes the bytes of the devices that `devices` returns, if the settings enable it. A failure
/// is written to stderr, and the recording goes on.
pub(crate) fn begin(devices: impl Fn() -> Vec<(u32, DeviceBytes)> + Send + Sync + 'static) {
    if !settings::get().publish {
        return;
    }
    match join(Arc::new(RecordedBytes(devices)), Access::Read) {
        Ok(membership) => replace(Some(membership)),
        Err(error) => messages::write(&format!("the process is not published: {error}")),
    }
}

/// Removes the socket.
pub(crate) fn end() {
    replace(None);
}

fn replace(membership: Option<Membership>) {
    // In a forked child, a thread of the parent may have held the lock. The socket then stays until
    // a client finds that the process has ended, and removes the socket.
    let before = match MEMBERSHIP.try_lock() {
        Ok(mut locked) => std::mem::replace(&mut *locked, membership),
        Err(TryLockError::Poisoned(locked)) => {
            std::mem::replace(&mut *locked.into_inner(), membership)
        }
        Err(TryLockError::WouldBlock) => membership,
    };
    drop(before);
}

impl<F: Fn() -> Vec<(u32, DeviceBytes)> + Send + Sync> Member for RecordedBytes<F> {
    fn heaps(&self) -> Vec<HeapStatus> {
        let status = |(device, bytes): (u32, DeviceBytes)| HeapStatus {
            device: format!("cuda:{device}"),
            uuid: uuid(device).unwrap_or_default(),
            pool: RECORDED.to_owned(),
            live: bytes.live,
            live_peak: bytes.peak,
            reserved: bytes.live,
            ..HeapStatus::default()
        };
        (self.0)().into_iter().map(status).collect()
    }
}

/// Returns the UUID of a device in NVML's format; `None` if the driver does not answer.
fn uuid(device: u32) -> Option<String> {
    let (device, mut uuid) = (CUdevice::try_from(device).ok()?, CUuuid::default());
    // `gpuheap status` finds devices by the whole device's UUID. `_v2` may return another UUID.
    let is_known = real::cuDeviceGetUuid(&mut uuid, device).is_success()
        || real::cuDeviceGetUuid_v2(&mut uuid, device).is_success();
    is_known.then(|| uuid.to_string())
}
