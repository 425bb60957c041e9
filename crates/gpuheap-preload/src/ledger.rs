//! Bytes that processes under one limit hold, in memory that they share.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{forks, settings};

/// Most devices that have an account.
pub(crate) const DEVICES: usize = 16;

/// Most processes that share a limit. A later process has no entry, so the limit keeps its bytes if
/// it is killed.
const PROCESSES: usize = 255;

/// Account of a device.
#[repr(C)]
pub(crate) struct Account {
    /// Bytes of live memory, and of requests that the driver has not answered.
    pub(crate) used: AtomicU64,
    /// Number of requests that the driver has not answered.
    pub(crate) pending: AtomicU64,
}

/// Share of one process.
#[repr(C)]
struct Entry {
    /// Process id; 0 for a free entry.
    pid: AtomicU64,
    accounts: [Account; DEVICES],
}

/// Accounts of all processes, and the share of each.
#[repr(C)]
pub(crate) struct Ledger {
    totals: [Account; DEVICES],
    entries: [Entry; PROCESSES],
}

/// Number of this process's entry plus 1, and the forks at that time in the upper half.
static OWN: AtomicU64 = AtomicU64::new(0);

/// Returns the ledger: of the settings' file, else of this process alone.
pub(crate) fn get() -> &'static Ledger {
    static LEDGER: OnceLock<&'static Ledger> = OnceLock::new();
    static ALONE: Ledger = Ledger::new();
    LEDGER.get_or_init(|| {
        let shared = settings::get().ledger.as_deref().and_then(map);
        shared.unwrap_or(&ALONE)
    })
}

/// Maps the file that `gpuheap run` made.
fn map(path: &str) -> Option<&'static Ledger> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    if file.metadata().ok()?.len() < size_of::<Ledger>() as u64 {
        return None;
    }
    // SAFETY: a new mapping of an open file that is long enough. It is never unmapped, and atomics
    // may be changed by other processes.
    unsafe {
        let mapped = libc::mmap(
            ptr::null_mut(),
            size_of::<Ledger>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if mapped == libc::MAP_FAILED { None } else { Some(&*mapped.cast::<Ledger>()) }
    }
}

impl Account {
    const fn new() -> Account {
        Account { used: AtomicU64::new(0), pending: AtomicU64::new(0) }
    }
}

impl Entry {
    const fn new() -> Entry {
        Entry { pid: AtomicU64::new(0), accounts: [const { Account::new() }; DEVICES] }
    }
}

impl Ledger {
    const fn new() -> Ledger {
        Ledger {
            totals: [const { Account::new() }; DEVICES],
            entries: [const { Entry::new() }; PROCESSES],
        }
    }

    pub(crate) fn account(&self, device: usize) -> Option<&Account> {
        self.totals.get(device)
    }

    /// Adds a change of the device's account to this process's share.
    pub(crate) fn note(&self, device: usize, change: impl Fn(&Account)) {
        if let Some(entry) = self.own_entry()
            && let Some(account) = entry.accounts.get(device)
        {
            change(account);
        }
    }

    fn own_entry(&self) -> Option<&Entry> {
        let forks = u64::from(forks::count());
        let known = OWN.load(Ordering::Relaxed);
        if known != 0 && known >> 32 == forks {
            return self.entries.get((known as u32 - 1) as usize);
        }
        let pid = u64::from(std::process::id());
        let take = |entry: &Entry| {
            entry.pid.load(Ordering::Relaxed) == pid
                || entry.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = self.entries.iter().position(take)?;
        OWN.store(forks << 32 | (index as u64 + 1), Ordering::Relaxed);
        self.entries.get(index)
    }

    /// Gives back the shares of processes that have ended. Returns `true` if there were some.
    pub(crate) fn reap(&self) -> bool {
        let mut found = false;
        for entry in &self.entries {
            let pid = entry.pid.load(Ordering::Acquire);
            if pid == 0 || is_alive(pid) {
                continue;
            }
            // One process gives back; an entry without accounts is free.
            const REAPED: u64 = u64::MAX;
            if entry.pid.compare_exchange(pid, REAPED, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                continue;
            }
            for (total, account) in self.totals.iter().zip(&entry.accounts) {
                total.used.fetch_sub(account.used.swap(0, Ordering::AcqRel), Ordering::AcqRel);
                let pending = account.pending.swap(0, Ordering::AcqRel);
                total.pending.fetch_sub(pending, Ordering::AcqRel);
            }
            entry.pid.store(0, Ordering::Release);
            found = true;
        }
        found
    }
}

fn is_alive(pid: u64) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return true };
    // SAFETY: signal 0 only checks that the process exists.
    let found = unsafe { libc::kill(pid, 0) };
    // A process that has ended and was not waited for has no memory on a device.
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    found == 0 && !state().rsplit(')').next().unwrap_or_default().starts_with(" Z")
}
