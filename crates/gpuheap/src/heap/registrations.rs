//! The account of memory of the program's own that is registered with the driver.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_pool::Account;

use crate::heap::usage::Usage;

/// How much is registered. All of it is live, and the driver has what is live and no more.
#[derive(Default)]
pub(crate) struct Registrations {
    ledger: Mutex<Account>,
}

impl Registrations {
    pub(crate) fn add(&self, bytes: u64) {
        let mut ledger = self.lock();
        ledger.took(bytes);
        ledger.allocated(bytes, bytes);
    }

    pub(crate) fn remove(&self, bytes: u64) {
        let mut ledger = self.lock();
        ledger.freed(bytes, bytes);
        ledger.gave_back(bytes);
    }

    pub(crate) fn usage(&self) -> Usage {
        let ledger = *self.lock();
        Usage {
            live: ledger.live,
            live_blocks: ledger.live_blocks,
            live_peak: ledger.live_peak,
            pending: 0,
            cached: 0,
            largest_cached_block: 0,
            reserved: ledger.taken,
            reserved_peak: ledger.live_peak,
            driver_calls: ledger.allocations + ledger.frees,
            ledger: *ledger,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
