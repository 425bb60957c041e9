//! Live memory of the process, for other processes of the user that read it (`GPUHEAP_PUBLISH`).

use std::sync::{Arc, Mutex, TryLockError};

use gpuheap_catch::messages;
use gpuheap_driver::{CUdevice, CUuuid};
use gpuheap_publish::{Access, HeapStatus, Member, Membership, RECORDED, join};

use crate::{real, settings};

/// Bytes of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceBytes {
    pub(crate) live: u64,
    /// High-water mark of `live`.
    pub(crate) peak: u64,
}

/// Source of the bytes of each device.
pub(crate) trait Bytes: Sync {
    /// Returns the bytes of each device, by device.
    fn devices(&self) -> Vec<(u32, DeviceBytes)>;
}

/// Membership of the recorder of this process.
static MEMBERSHIP: Mutex<Option<Membership>> = Mutex::new(None);

/// The recorder as a member of the process's socket.
struct RecordedBytes(&'static dyn Bytes);

/// Publishes the recorder's memory, if the settings say so. A failure is written to stderr, and the
/// recording goes on.
pub(crate) fn begin(recorder: &'static dyn Bytes) {
    if !settings::get().publish {
        return;
    }
    match join(Arc::new(RecordedBytes(recorder)), Access::Read) {
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
    // a command removes it.
    let before = match MEMBERSHIP.try_lock() {
        Ok(mut locked) => std::mem::replace(&mut *locked, membership),
        Err(TryLockError::Poisoned(locked)) => {
            std::mem::replace(&mut *locked.into_inner(), membership)
        }
        Err(TryLockError::WouldBlock) => membership,
    };
    drop(before);
}

impl Member for RecordedBytes {
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
        self.0.devices().into_iter().map(status).collect()
    }
}

/// Returns the UUID of a device in NVML's format; `None` if the driver does not answer.
fn uuid(device: u32) -> Option<String> {
    let (device, mut uuid) = (CUdevice::try_from(device).ok()?, CUuuid::default());
    // Without `_v2`, the UUID of the whole device, by which `gpuheap status` finds it.
    let is_known = real::cuDeviceGetUuid(&mut uuid, device).is_success()
        || real::cuDeviceGetUuid_v2(&mut uuid, device).is_success();
    let hex = format!("{:032x}", u128::from_be_bytes(uuid.bytes));
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    is_known.then(|| format!("GPU-{a}-{b}-{c}-{d}-{e}"))
}
