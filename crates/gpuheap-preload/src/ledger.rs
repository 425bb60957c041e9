//! Keeps a ledger in shared memory. It counts the bytes of processes that share a limit.

use std::fs::{self, OpenOptions};
use std::hash::BuildHasher as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_catch::messages;
use rustc_hash::FxBuildHasher;

use crate::{forks, settings};

/// Maximum number of devices that have an account.
pub(crate) const DEVICES: usize = 64;

/// Maximum number of processes with a separate entry. Later processes share one entry, so if one of
/// them is killed, its bytes stay counted.
const PROCESSES: usize = 255;

/// Number of times that a waiting thread yields. After that, the thread sleeps between attempts. A
/// change under the lock takes less than a microsecond.
const FAST_ROUNDS: u32 = 100;
const SLEEP: Duration = Duration::from_micros(100);

/// Time between checks that the holder of the lock still runs.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Bytes on one device, of one process or of all processes. The ledger's lock guards all changes.
#[repr(C)]
struct Account {
    /// Bytes of live memory and of pending requests. The driver has not answered pending requests.
    bytes: AtomicU64,
    /// Bytes of pending requests.
    pending: AtomicU64,
}

/// Reason why an account has no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The live bytes alone leave no room.
    WithLive,
    /// Pending requests may fail and make room.
    WithPending,
}

/// Bytes of one process on each device.
#[repr(C)]
struct Entry {
    /// [`identity`] of the process; 0 for a free entry.
    owner: AtomicU64,
    accounts: [Account; DEVICES],
}

/// Bytes of each process, and of all processes together, on each device. Several processes map the
/// ledger into their memory.
#[repr(C)]
pub(crate) struct Ledger {
    /// Value of [`Entry::owner`] for the process that holds the lock; 0 if the lock is free.
    holder: AtomicU64,
    /// Key of the device at each index of `totals`; 0 for a free index.
    devices: [AtomicU64; DEVICES],
    /// Sums of all entries, by device.
    totals: [Account; DEVICES],
    /// Bytes of each process. The last entry is for all processes without a separate entry.
    entries: [Entry; PROCESSES + 1],
}

/// Lock of a ledger, held until the value is dropped.
struct Lock<'a>(&'a Ledger);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.0.holder.store(0, Ordering::Release);
    }
}

/// `gpuheap run` makes a file of 512 KiB.
const _: () = assert!(size_of::<Ledger>() <= 512 << 10);

/// Place of this process in [`Ledger::entries`]. The upper 32 bits are [`forks::count`]. The lower
/// 32 bits are [`SEARCHED`] during the search for an entry, then `ENTRY` plus the entry's index.
static OWN: AtomicU64 = AtomicU64::new(0);
const SEARCHED: u64 = 1;
const ENTRY: u64 = 2;

/// Value of [`Ledger::holder`] while this process holds the lock.
static OWNER: AtomicU64 = AtomicU64::new(0);

/// File name of the shared ledger.
static FILE_NAME: OnceLock<Vec<u8>> = OnceLock::new();

/// Ledger of this process alone.
static ALONE: Ledger = Ledger::new();

/// Returns the ledger in the file that the settings name. If they name none, the ledger is private.
pub(crate) fn get() -> &'static Ledger {
    static LEDGER: OnceLock<&'static Ledger> = OnceLock::new();
    LEDGER.get_or_init(|| {
        let Some(path) = settings::get().ledger.as_deref() else { return &ALONE };
        let name = path.file_name().unwrap_or_default();
        let _ = FILE_NAME.set(name.as_bytes().to_vec());
        map(path).unwrap_or_else(|| {
            messages::write(&format!(
                "{}: cannot be mapped; this process has the whole limit of --limit-tree",
                path.display()
            ));
            &ALONE
        })
    })
}

/// Maps the file that `gpuheap run` made.
fn map(path: &Path) -> Option<&'static Ledger> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    if file.metadata().ok()?.len() < size_of::<Ledger>() as u64 {
        return None;
    }
    // SAFETY: the mapping is new, of an open file that is long enough. It is never unmapped. All
    // fields that other processes may change are atomics.
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
        Account { bytes: AtomicU64::new(0), pending: AtomicU64::new(0) }
    }

    fn get(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.pending.load(Ordering::Relaxed))
    }

    fn set(&self, bytes: u64, pending: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.pending.store(pending, Ordering::Relaxed);
    }

    fn add(&self, (bytes, pending): (u64, u64)) {
        let (held, waiting) = self.get();
        self.set(held.saturating_add(bytes), waiting.saturating_add(pending));
    }

    fn remove(&self, (bytes, pending): (u64, u64)) {
        let (held, waiting) = self.get();
        self.set(held.saturating_sub(bytes), waiting.saturating_sub(pending));
    }
}

impl Entry {
    const fn new() -> Entry {
        Entry { owner: AtomicU64::new(0), accounts: [const { Account::new() }; DEVICES] }
    }
}

impl Ledger {
    const fn new() -> Ledger {
        Ledger {
            holder: AtomicU64::new(0),
            devices: [const { AtomicU64::new(0) }; DEVICES],
            totals: [const { Account::new() }; DEVICES],
            entries: [const { Entry::new() }; PROCESSES + 1],
        }
    }

    /// Returns the index of a device's account; `None` if all accounts belong to other devices.
    pub(crate) fn index_of(&self, key: u64) -> Option<usize> {
        self.devices.iter().position(|known| {
            let taken = known.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
            taken.is_ok() || taken == Err(key)
        })
    }

    /// Returns the bytes of live memory and of pending requests in an account.
    pub(crate) fn bytes(&self, index: usize) -> Option<u64> {
        Some(self.totals.get(index)?.bytes.load(Ordering::Acquire))
    }

    /// Counts `bytes` of a pending request in an account. Fails if this would exceed `limit`.
    pub(crate) fn reserve(&self, index: usize, bytes: u64, limit: u64) -> Result<(), Full> {
        let share = self.own_entry();
        let _lock = self.lock(OWNER.load(Ordering::Relaxed));
        let (Some(total), Some(share)) = (self.totals.get(index), share.accounts.get(index)) else {
            return Ok(());
        };
        let fits = |held: u64| held.checked_add(bytes).is_some_and(|sum| sum <= limit);
        let (held, pending) = total.get();
        if !fits(held) {
            let live = held.saturating_sub(pending);
            return Err(if fits(live) { Full::WithPending } else { Full::WithLive });
        }
        [share, total].iter().for_each(|account| account.add((bytes, bytes)));
        Ok(())
    }

    /// Subtracts live `bytes` and `pending` bytes from an account. A request that succeeded stays
    /// live, so its `bytes` are 0. A request that failed is subtracted from both. A free has no
    /// `pending` bytes.
    pub(crate) fn remove(&self, index: usize, bytes: u64, pending: u64) {
        let share = self.own_entry();
        let _lock = self.lock(OWNER.load(Ordering::Relaxed));
        let accounts = [share.accounts.get(index), self.totals.get(index)];
        accounts.into_iter().flatten().for_each(|account| account.remove((bytes, pending)));
    }

    /// Takes the lock for the process `own`. If the previous holder was killed, its change may be
    /// incomplete, so computes the totals again.
    fn lock(&self, own: u64) -> Lock<'_> {
        let (mut rounds, mut checked) = (0, Instant::now());
        loop {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let Err(holder) = self.holder.compare_exchange(0, own, order.0, order.1) else {
                return Lock(self);
            };
            rounds += 1;
            match rounds <= FAST_ROUNDS {
                true => thread::yield_now(),
                false => thread::sleep(SLEEP),
            }
            if checked.elapsed() < CHECK_EVERY {
                continue;
            }
            // The holder may be an earlier program of this process that `exec` replaced.
            let is_earlier = holder != own && holder % PROGRAM == own % PROGRAM;
            let has_ended = is_earlier || holder != 0 && !runs(holder, &AtomicU64::new(0));
            if has_ended && self.holder.compare_exchange(holder, own, order.0, order.1).is_ok() {
                let lock = Lock(self);
                self.sum_up();
                return lock;
            }
            checked = Instant::now();
        }
    }

    /// Computes the totals from the shares.
    fn sum_up(&self) {
        for (index, total) in self.totals.iter().enumerate() {
            total.set(0, 0);
            let shares = self.entries.iter().filter_map(|entry| entry.accounts.get(index));
            shares.for_each(|share| total.add(share.get()));
        }
    }

    fn own_entry(&self) -> &Entry {
        let forks = u64::from(forks::count()) << 32;
        loop {
            let known = OWN.load(Ordering::Acquire);
            let is_known = known >> 32 == forks >> 32 && known as u32 != 0;
            match known % (1 << 32) {
                SEARCHED if is_known => thread::yield_now(),
                number if is_known => {
                    let last = &self.entries[PROCESSES];
                    return self.entries.get((number - ENTRY) as usize).unwrap_or(last);
                }
                _ => {
                    let searched = forks | SEARCHED;
                    let order = (Ordering::AcqRel, Ordering::Acquire);
                    if OWN.compare_exchange(known, searched, order.0, order.1).is_ok() {
                        let entry = self.take_entry() as u64 + ENTRY;
                        OWN.store(forks | entry, Ordering::Release);
                    }
                }
            }
        }
    }

    /// Takes an entry for this process. If `exec` replaced the process's program, reuses the entry
    /// of the earlier program.
    fn take_entry(&self) -> usize {
        let identity = identity();
        let owner = |entry: &Entry| entry.owner.load(Ordering::Acquire);
        let earlier = self.entries.iter().position(|entry| owner(entry) % PROGRAM == identity);
        // After `exec`, the new program needs a new `own`. With the old value, a process that saw
        // the earlier program end could give back the bytes of the new program.
        let own = earlier.map_or(identity, |at| owner(&self.entries[at]).wrapping_add(PROGRAM));
        OWNER.store(own, Ordering::Relaxed);
        if ptr::eq(self, &ALONE) {
            // After a fork, this private ledger is a copy of the parent's. So removes the parent's
            // bytes, and a lock that a thread of the parent may have held.
            let shares = self.entries.iter().flat_map(|entry| &entry.accounts);
            shares.for_each(|share| share.set(0, 0));
            self.sum_up();
            self.holder.store(0, Ordering::Relaxed);
        }
        let _lock = self.lock(own);
        let is_earlier = |at: &usize| owner(&self.entries[*at]) % PROGRAM == identity;
        let free = || self.entries.iter().take(PROCESSES).position(|entry| owner(entry) == 0);
        let Some(at) = earlier.filter(is_earlier).or_else(free) else { return PROCESSES };
        self.give_back(&self.entries[at]);
        self.entries[at].owner.store(own, Ordering::Release);
        at
    }

    fn give_back(&self, entry: &Entry) {
        for (total, share) in self.totals.iter().zip(&entry.accounts) {
            total.remove(share.get());
            share.set(0, 0);
        }
    }

    /// Subtracts the bytes of ended programs from the totals. Returns `true` if one had ended.
    pub(crate) fn reap(&self) -> bool {
        let own = self.own_entry();
        let mut found = false;
        for (entry, program) in self.entries.iter().zip(&PROGRAMS) {
            let owner = entry.owner.load(Ordering::Acquire);
            if owner == 0 || ptr::eq(own, entry) || runs(owner, program) {
                continue;
            }
            let _lock = self.lock(OWNER.load(Ordering::Relaxed));
            // Another process may have reaped the entry first.
            if entry.owner.load(Ordering::Acquire) == owner {
                self.give_back(entry);
                entry.owner.store(0, Ordering::Release);
                found = true;
            }
        }
        found
    }
}

/// Bits of the process id in an [`identity`]; Linux has no larger ids.
const PID_BITS: u32 = 22;

/// When `exec` replaces a process's program, [`Entry::owner`] grows by this step. The bits below
/// are the [`identity`]. The identity's start time has 34 bits, in hundredths of a second: 5 years.
const PROGRAM: u64 = 1 << 56;

/// Returns this process's id and its start time as one number, because ids are reused.
fn identity() -> u64 {
    let started = Stat::of("self").map_or(0, |stat| stat.started);
    (u64::from(std::process::id()) | started << PID_BITS) % PROGRAM
}

/// For each entry of the ledger, a hash of the program that was last seen to map the ledger's file.
/// The hashes are kept, because reading all mappings of a large process takes milliseconds.
static PROGRAMS: [AtomicU64; PROCESSES] = [const { AtomicU64::new(0) }; PROCESSES];

/// Fields of `/proc/PID/stat`.
struct Stat {
    has_ended: bool,
    started: u64,
    /// Hash of the addresses of the program's code, stack, arguments and variables. `exec` changes
    /// these addresses. `None` if reading them is not permitted.
    program: Option<u64>,
}

impl Stat {
    fn of(process: &str) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name before the fields may have spaces and parentheses.
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // `Z` or `X`: the first thread has ended. Memory is freed only when no thread is left.
        let has_ended = fields.first().is_some_and(|state| "ZX".contains(state));
        let has_ended = has_ended && number(17)? <= 1;
        let places = fields.get(23..26)?.iter().chain(fields.get(42..49)?);
        let program = (number(25)? > 0).then(|| FxBuildHasher.hash_one(places.collect::<Vec<_>>()));
        Some(Stat { has_ended, started: number(19)?, program })
    }
}

/// Returns `false` if the program of a process has surely ended, or was replaced with `exec`.
/// `seen` is the program that was last seen to map the ledger's file.
fn runs(owner: u64, seen: &AtomicU64) -> bool {
    let (pid, started) = (owner % (1 << PID_BITS), (owner % PROGRAM) >> PID_BITS);
    let exists = libc::pid_t::try_from(pid).is_ok_and(|pid| {
        // SAFETY: signal 0 only checks that the process exists.
        let found = unsafe { libc::kill(pid, 0) } == 0;
        // Only `ESRCH` means that no such process exists. A process of another user gives `EPERM`.
        found || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    });
    let Some(stat) = Stat::of(&pid.to_string()).filter(|_| exists) else { return exists };
    if stat.has_ended || started != 0 && stat.started % (PROGRAM >> PID_BITS) != started {
        return false;
    }
    let program = stat.program.map(|program| FxBuildHasher.hash_one((owner, program)) | 1);
    if program.is_some_and(|program| seen.load(Ordering::Relaxed) == program) {
        return true;
    }
    // A running program maps the ledger's file. If `exec` replaced it, the new program does not, or
    // has taken over this entry. If the first thread has ended, the kernel lists no mappings, so
    // the program counts as running.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Some(name) = FILE_NAME.get().filter(|_| !maps.is_empty()) else { return true };
    let is_mapped = maps.windows(name.len().max(1)).any(|part| part == name);
    if is_mapped && let Some(program) = program {
        seen.store(program, Ordering::Relaxed);
    }
    is_mapped
}
