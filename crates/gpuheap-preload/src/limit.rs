//! Limit of the device memory of a process or of all processes of a run, and requests that fail on
//! purpose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_driver::CUdevice;
use gpuheap_driver::abi::Arg as _;

use crate::ledger::{self, DEVICES};
use crate::real;
use crate::settings::{self, Limit};

/// Longest wait for other threads' requests. They may fail and give back their share.
const PATIENCE: Duration = Duration::from_secs(1);

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
    let ledger = ledger::get();
    let unlimited = Pending { charge: Charge { device, bytes: 0 }, is_limited: false };
    let (Some(limit), Some(account)) = (of_device(device), ledger.account(device)) else {
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
                ledger.note(device, |own| {
                    own.pending.fetch_add(1, Ordering::AcqRel);
                    own.used.fetch_add(bytes, Ordering::AcqRel);
                });
                return Ok(Pending { charge: Charge { device, bytes }, is_limited: true });
            }
            account.pending.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        if bytes > limit || began.elapsed() > PATIENCE || (pending == 0 && !ledger.reap()) {
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
        let (ledger, device) = (ledger::get(), self.charge.device);
        if self.is_limited
            && let Some(account) = ledger.account(device)
        {
            ledger.note(device, |own| {
                own.pending.fetch_sub(1, Ordering::AcqRel);
            });
            account.pending.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Charge {
    /// Gives the bytes back to the limit.
    pub(crate) fn give_back(self) {
        let ledger = ledger::get();
        if self.bytes > 0
            && let Some(account) = ledger.account(self.device)
        {
            ledger.note(self.device, |own| {
                own.used.fetch_sub(self.bytes, Ordering::AcqRel);
            });
            account.used.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

/// Returns the limit of a device and its used bytes; `None` if the device has no limit.
pub(crate) fn figures(device: CUdevice) -> Option<(u64, u64)> {
    let device = device as usize;
    let limit = of_device(device)?;
    let ledger = ledger::get();
    ledger.reap();
    Some((limit, ledger.account(device)?.used.load(Ordering::Acquire)))
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
