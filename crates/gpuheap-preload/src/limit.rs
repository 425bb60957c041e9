//! Refuses requests that exceed the device memory limit of a process or run. For tests of errors,
//! the settings can make it refuse other requests too.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_driver::abi::Arg as _;
use gpuheap_driver::{CUdevice, CUuuid};
use rustc_hash::FxBuildHasher;

use crate::ledger::{self, DEVICES, Full};
use crate::real;
use crate::settings::{self, Limit};

/// Maximum time that a request waits for pending requests, because these may fail and give back
/// bytes. After that, the request is refused. Drivers refuse within a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// Number of times that a waiting request yields. After that, the request sleeps between attempts.
/// Most drivers answer within some microseconds.
const FAST_ROUNDS: u32 = 100;
const SLEEP: Duration = Duration::from_micros(100);

/// Time between searches for processes that were killed while a request was pending.
const REAP_EVERY: Duration = Duration::from_millis(10);

/// Number of requests, and their bytes.
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static REQUESTED: AtomicU64 = AtomicU64::new(0);

/// Bytes in the account of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    /// Index of the device's account.
    account: usize,
    bytes: u64,
}

/// Error for a request that exceeds the limit or that fails on purpose.
#[derive(Debug)]
pub(crate) struct Refused;

/// Bytes of a request that the driver has not answered; 0 if no limit counts them.
#[derive(Debug)]
pub(crate) struct Pending(Charge);

/// Counts the bytes of a request against the limit of a device.
pub(crate) fn reserve(device: CUdevice, bytes: u64) -> Result<Pending, Refused> {
    let settings = settings::get();
    if settings.fail_nth > 0 || settings.fail_after > 0 {
        let number = REQUESTS.fetch_add(1, Ordering::Relaxed) + 1;
        let sum = REQUESTED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if number == settings.fail_nth || settings.fail_after > 0 && sum > settings.fail_after {
            return Err(Refused);
        }
    }
    let Some((limit, account)) = of_device(device).filter(|_| bytes > 0) else {
        return Ok(Pending(Charge::default()));
    };
    let ledger = ledger::get();
    let pending = Pending(Charge { account, bytes });
    let Err(mut full) = ledger.reserve(account, bytes, limit) else { return Ok(pending) };
    let began = Instant::now();
    let mut reaped = began;
    let mut rounds = 0;
    loop {
        let is_full = full == Full::WithLive;
        let is_due = is_full || reaped.elapsed() > REAP_EVERY;
        let has_reaped = is_due && ledger.reap();
        if bytes > limit || is_full && !has_reaped || began.elapsed() > PATIENCE {
            return Err(Refused);
        }
        if is_due {
            reaped = Instant::now();
        }
        rounds += 1;
        if rounds <= FAST_ROUNDS {
            thread::yield_now()
        } else {
            thread::sleep(SLEEP)
        }
        match ledger.reserve(account, bytes, limit) {
            Ok(()) => return Ok(pending),
            Err(now) => full = now,
        }
    }
}

impl Pending {
    /// Ends a request that succeeded.
    pub(crate) fn succeeded(self) -> Charge {
        let Pending(charge) = self;
        if charge.bytes > 0 {
            ledger::get().remove(charge.account, 0, charge.bytes);
        }
        charge
    }

    /// Ends a request that failed, and gives its bytes back.
    pub(crate) fn failed(self) {
        let Pending(Charge { account, bytes }) = self;
        if bytes > 0 {
            ledger::get().remove(account, bytes, bytes);
        }
    }
}

impl Charge {
    /// Gives the bytes back to the limit.
    pub(crate) fn give_back(self) {
        if self.bytes > 0 {
            ledger::get().remove(self.account, self.bytes, 0);
        }
    }
}

/// Returns the limit of a device and its used bytes; `None` if the device has no limit.
pub(crate) fn figures(device: CUdevice) -> Option<(u64, u64)> {
    let (limit, account) = of_device(device)?;
    let ledger = ledger::get();
    ledger.reap();
    Some((limit, ledger.bytes(account)?))
}

/// Returns the limit of a device in bytes, and the index of its account.
pub(crate) fn of_device(device: CUdevice) -> Option<(u64, usize)> {
    let limit = settings::get().limit?;
    let account = account_of(device)?;
    match limit {
        Limit::Bytes(bytes) => Some((bytes, account)),
        Limit::Percent(percent) => {
            static TOTALS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
            let known = TOTALS.get(account)?;
            let mut total = known.load(Ordering::Relaxed);
            if total == 0 {
                let mut bytes = 0_usize;
                // SAFETY: the pointer is valid until the call returns.
                let place = unsafe { (&raw mut bytes).typed() };
                if !real::cuDeviceTotalMem_v2(place, device).is_success() {
                    return None;
                }
                total = bytes as u64;
                known.store(total, Ordering::Relaxed);
            }
            Some(((total as f64 * percent / 100.0) as u64, account))
        }
    }
}

/// Returns the index of a device's account. Processes of a run may number the devices differently,
/// so the UUID decides.
fn account_of(device: CUdevice) -> Option<usize> {
    /// Index of each device's account plus 1, by the device's ordinal; 0 if not known yet.
    static KNOWN: [AtomicUsize; DEVICES] = [const { AtomicUsize::new(0) }; DEVICES];
    let known = KNOWN.get(usize::try_from(device).ok()?)?;
    if let Some(index) = known.load(Ordering::Relaxed).checked_sub(1) {
        return Some(index);
    }
    let mut uuid = CUuuid::default();
    // With `_v2`, each MIG instance of a device has a separate UUID. Older drivers lack `_v2`.
    let has_uuid = real::cuDeviceGetUuid_v2(&mut uuid, device).is_success()
        || real::cuDeviceGetUuid(&mut uuid, device).is_success();
    let key = match has_uuid {
        true => FxBuildHasher.hash_one(uuid.bytes) | 1,
        false => (device as u64 + 1) << 1,
    };
    let index = ledger::get().index_of(key)?;
    // Before `cuInit`, both functions fail.
    if has_uuid {
        known.store(index + 1, Ordering::Relaxed);
    }
    Some(index)
}
