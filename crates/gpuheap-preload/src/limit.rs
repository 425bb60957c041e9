//! Limit of the process's device memory, and requests that fail on purpose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_driver::CUdevice;
use gpuheap_driver::abi::Arg as _;

use crate::real;
use crate::settings::{self, Limit};

/// Most devices that have an account.
const DEVICES: usize = 64;

/// Longest wait for other threads' requests, which may fail and give back their share.
const PATIENCE: Duration = Duration::from_secs(1);

/// Account of a device.
struct Account {
    /// Bytes of live memory, and of requests that the driver has not answered.
    used: AtomicU64,
    /// Number of requests that the driver has not answered.
    pending: AtomicU64,
}

static ACCOUNTS: [Account; DEVICES] =
    [const { Account { used: AtomicU64::new(0), pending: AtomicU64::new(0) } }; DEVICES];

/// Number of requests, and their bytes.
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static REQUESTED: AtomicU64 = AtomicU64::new(0);

/// Bytes in the account of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    device: usize,
    bytes: u64,
}

/// Refusal of a request, because of the limit or on purpose.
#[derive(Debug)]
pub(crate) struct Refused;

/// Bytes of a request that the driver has not answered.
#[derive(Debug)]
pub(crate) struct Pending {
    charge: Charge,
    is_limited: bool,
}

/// Takes the bytes of a request from the limit of a device.
pub(crate) fn reserve(device: CUdevice, bytes: u64) -> Result<Pending, Refused> {
    let settings = settings::get();
    if settings.fail_nth > 0 || settings.fail_after > 0 {
        let number = REQUESTS.fetch_add(1, Ordering::Relaxed) + 1;
        let sum = REQUESTED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if number == settings.fail_nth || settings.fail_after > 0 && sum > settings.fail_after {
            return Err(Refused);
        }
    }
    let device = device as usize;
    let unlimited = Pending { charge: Charge { device, bytes: 0 }, is_limited: false };
    let (Some(limit), Some(account)) = (of_device(device), ACCOUNTS.get(device)) else {
        return Ok(unlimited);
    };
    let began = Instant::now();
    loop {
        // Read first: if no request is pending here, the sum below has no share of one that fails.
        let pending = account.pending.load(Ordering::Acquire);
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        if add(account.used.load(Ordering::Acquire)).is_some() {
            account.pending.fetch_add(1, Ordering::AcqRel);
            if account.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok() {
                return Ok(Pending { charge: Charge { device, bytes }, is_limited: true });
            }
            account.pending.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        if pending == 0 || bytes > limit || began.elapsed() > PATIENCE {
            return Err(Refused);
        }
        thread::yield_now();
    }
}

impl Pending {
    /// Ends the request: it succeeded.
    pub(crate) fn succeeded(self) -> Charge {
        self.settle();
        self.charge
    }

    /// Ends the request: it failed, so its bytes are given back.
    pub(crate) fn failed(self) {
        self.charge.give_back();
        self.settle();
    }

    fn settle(&self) {
        if self.is_limited
            && let Some(account) = ACCOUNTS.get(self.charge.device)
        {
            account.pending.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Charge {
    /// Gives the bytes back to the limit.
    pub(crate) fn give_back(self) {
        if self.bytes > 0
            && let Some(account) = ACCOUNTS.get(self.device)
        {
            account.used.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

/// Returns the limit of a device and its used bytes; `None` if the device has no limit.
pub(crate) fn figures(device: CUdevice) -> Option<(u64, u64)> {
    let device = device as usize;
    let used = ACCOUNTS.get(device)?.used.load(Ordering::Acquire);
    Some((of_device(device)?, used))
}

/// Returns the limit of a device in bytes.
fn of_device(device: usize) -> Option<u64> {
    match settings::get().limit? {
        Limit::Bytes(bytes) => Some(bytes),
        Limit::Percent(percent) => {
            static TOTALS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
            let known = TOTALS.get(device)?;
            let mut total = known.load(Ordering::Relaxed);
            if total == 0 {
                let mut bytes = 0_usize;
                // SAFETY: the pointer is valid until the call returns.
                let place = unsafe { (&raw mut bytes).typed() };
                let device = CUdevice::try_from(device).ok()?;
                if !real::cuDeviceTotalMem_v2(place, device).is_success() {
                    return None;
                }
                total = bytes as u64;
                known.store(total, Ordering::Relaxed);
            }
            Some((total as f64 * percent / 100.0) as u64)
        }
    }
}
