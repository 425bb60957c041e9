//! Bytes that processes under one limit hold, in memory that they share.

use std::fs::{self, OpenOptions};
use std::hash::BuildHasher as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gpuheap_catch::messages;
use rustc_hash::FxBuildHasher;

use crate::{forks, settings};

/// Most devices that have an account.
pub(crate) const DEVICES: usize = 64;

/// Most processes that share a limit. A later process has no entry, so the limit keeps its bytes if
/// it is killed.
const PROCESSES: usize = 255;

/// Account of a device, or the share of a process in it.
#[repr(C)]
struct Account {
    /// Bytes of live memory and of pending requests. The driver has not answered pending requests.
    bytes: AtomicU64,
    /// Bytes of pending requests, and in steps of [`CHANGE`] the number of changes. Each request is
    /// added here before `bytes` has it, and removed later than there. While this word is
    /// unchanged, the difference is at most the live bytes.
    pending: AtomicU64,
}

/// One change of [`Account::pending`]. No device has so many bytes.
const CHANGE: u64 = 1 << 48;

/// Reason for which an account has no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The live bytes alone leave no room.
    WithLive,
    /// Pending requests may fail and make room.
    WithPending,
}

/// Share of one process.
#[repr(C)]
struct Entry {
    /// [`identity`] of the process; 0 for a free entry.
    owner: AtomicU64,
    accounts: [Account; DEVICES],
}

/// Accounts of all processes, and the share of each.
#[repr(C)]
pub(crate) struct Ledger {
    /// Key of the device of each account; 0 for a free account.
    devices: [AtomicU64; DEVICES],
    totals: [Account; DEVICES],
    entries: [Entry; PROCESSES],
}

/// `gpuheap run` makes a file of this size.
const _: () = assert!(size_of::<Ledger>() <= 512 << 10);

/// This process's entry. The upper half is the count of forks. The lower half is a state, or the
/// entry's number plus `ENTRY`.
static OWN: AtomicU64 = AtomicU64::new(0);
const SEARCHED: u64 = 1;
const NO_ENTRY: u64 = 2;
const ENTRY: u64 = 3;

/// File name of the shared ledger.
static FILE_NAME: OnceLock<Vec<u8>> = OnceLock::new();

/// Returns the ledger: of the settings' file, else of this process alone.
pub(crate) fn get() -> &'static Ledger {
    static LEDGER: OnceLock<&'static Ledger> = OnceLock::new();
    static ALONE: Ledger = Ledger::new();
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
        Account { bytes: AtomicU64::new(0), pending: AtomicU64::new(0) }
    }

    /// Adds a pending request, unless the bytes are then above the limit.
    fn reserve(&self, bytes: u64, limit: u64) -> Result<(), Full> {
        let limit = limit.min(CHANGE - 1);
        let sum = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        let pending = self.pending.load(Ordering::SeqCst);
        let held = self.bytes.load(Ordering::SeqCst);
        if sum(held).is_none() {
            let is_one_moment = self.pending.load(Ordering::SeqCst) == pending;
            let live = held.saturating_sub(pending % CHANGE);
            return Err(match is_one_moment && sum(live).is_none() {
                true => Full::WithLive,
                false => Full::WithPending,
            });
        }
        self.pending.fetch_add(bytes + CHANGE, Ordering::SeqCst);
        let added = self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum);
        added.map(drop).map_err(|_| {
            self.answered(bytes);
            Full::WithPending
        })
    }

    /// Removes the bytes of a request from the pending ones.
    fn answered(&self, bytes: u64) {
        self.pending.fetch_add(CHANGE.wrapping_sub(bytes), Ordering::SeqCst);
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
            devices: [const { AtomicU64::new(0) }; DEVICES],
            totals: [const { Account::new() }; DEVICES],
            entries: [const { Entry::new() }; PROCESSES],
        }
    }

    /// Returns the index of the account of a device; `None` if all accounts have other devices.
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

    /// Adds a pending request to an account, unless the bytes are then above the limit.
    pub(crate) fn reserve(&self, index: usize, bytes: u64, limit: u64) -> Result<(), Full> {
        // Frees the entry of an earlier program of this process.
        let own = self.own_entry();
        if let Some(total) = self.totals.get(index) {
            total.reserve(bytes, limit)?;
        }
        if let Some(account) = own.and_then(|entry| entry.accounts.get(index)) {
            account.pending.fetch_add(bytes + CHANGE, Ordering::SeqCst);
            account.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Removes bytes of live memory, or of a pending request that failed.
    pub(crate) fn remove(&self, index: usize, bytes: u64) {
        for account in self.share_and_total(index) {
            account.bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    /// Removes the bytes of a request from the pending ones. If it failed, [`Ledger::remove`] is
    /// called first.
    pub(crate) fn answered(&self, index: usize, bytes: u64) {
        self.share_and_total(index).for_each(|account| account.answered(bytes));
    }

    /// Returns this process's share of an account, and then the account. In this order, the limit
    /// is too low if the process is killed between changes, and never too high.
    fn share_and_total(&self, index: usize) -> impl Iterator<Item = &Account> {
        let share = self.own_entry().and_then(|entry| entry.accounts.get(index));
        share.into_iter().chain(self.totals.get(index))
    }

    fn own_entry(&self) -> Option<&Entry> {
        let forks = u64::from(forks::count()) << 32;
        loop {
            let known = OWN.load(Ordering::Acquire);
            let is_known = known >> 32 == forks >> 32 && known as u32 != 0;
            match known % (1 << 32) {
                SEARCHED if is_known => thread::yield_now(),
                NO_ENTRY if is_known => return None,
                number if is_known => return self.entries.get((number - ENTRY) as usize),
                _ => {
                    let searched = forks | SEARCHED;
                    let order = (Ordering::AcqRel, Ordering::Acquire);
                    if OWN.compare_exchange(known, searched, order.0, order.1).is_ok() {
                        let found = self.take_entry().map_or(NO_ENTRY, |at| at as u64 + ENTRY);
                        OWN.store(forks | found, Ordering::Release);
                    }
                }
            }
        }
    }

    /// Takes an entry for this process. An entry with its identity has the share of the program
    /// that this one replaced with `exec`.
    fn take_entry(&self) -> Option<usize> {
        let own = identity();
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let retake = |entry: &Entry| {
            let owner = entry.owner.load(Ordering::Acquire);
            let is_taken = owner % PROGRAM == own
                && entry.owner.compare_exchange(owner, REAPED, order.0, order.1).is_ok();
            if is_taken {
                self.give_back(entry);
                // A process that saw the earlier program end does not reap this one.
                entry.owner.store(owner.wrapping_add(PROGRAM), Ordering::Release);
            }
            is_taken
        };
        if let Some(index) = self.entries.iter().position(retake) {
            return Some(index);
        }
        let take = |entry: &Entry| entry.owner.compare_exchange(0, own, order.0, order.1).is_ok();
        self.entries.iter().position(take)
    }

    fn give_back(&self, entry: &Entry) {
        for (total, share) in self.totals.iter().zip(&entry.accounts) {
            total.bytes.fetch_sub(share.bytes.swap(0, Ordering::SeqCst), Ordering::SeqCst);
            total.answered(share.pending.swap(0, Ordering::SeqCst) % CHANGE);
        }
    }

    /// Gives back the shares of programs that have ended. Returns `true` if there were some.
    pub(crate) fn reap(&self) -> bool {
        let own = self.own_entry();
        let mut found = false;
        for (entry, program) in self.entries.iter().zip(&PROGRAMS) {
            let owner = entry.owner.load(Ordering::Acquire);
            let is_own = own.is_some_and(|own| ptr::eq(own, entry));
            if owner == 0 || owner == REAPED || is_own || runs(owner, program) {
                continue;
            }
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if entry.owner.compare_exchange(owner, REAPED, order.0, order.1).is_ok() {
                self.give_back(entry);
                entry.owner.store(0, Ordering::Release);
                found = true;
            }
        }
        found
    }
}

/// Owner of an entry whose share one process gives back. An entry without an owner is free.
const REAPED: u64 = u64::MAX;

/// Bits of the process id in an [`identity`]; Linux has no larger ids.
const PID_BITS: u32 = 22;

/// One program of a process in [`Entry::owner`]. The bits below are the [`identity`], with 34 bits
/// for the start time in hundredths of a second: 5 years.
const PROGRAM: u64 = 1 << 56;

/// Returns the number of this process: its id and its start time, because ids are used again.
fn identity() -> u64 {
    let started = Stat::of("self").map_or(0, |stat| stat.started);
    (u64::from(std::process::id()) | started << PID_BITS) % PROGRAM
}

/// Programs of the entries that were last seen to map the ledger. Reading all mappings of a large
/// process takes milliseconds.
static PROGRAMS: [AtomicU64; PROCESSES] = [const { AtomicU64::new(0) }; PROCESSES];

/// Fields of `/proc/PID/stat`.
struct Stat {
    has_ended: bool,
    started: u64,
    /// Hash of the addresses of the program, its stack, arguments and variables; `None` without the
    /// right to read them.
    program: Option<u64>,
}

impl Stat {
    fn of(process: &str) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name before the fields may have spaces and parentheses.
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // The first thread may end before the others. All memory is free once none is left.
        let has_ended = fields.first().is_some_and(|state| "ZX".contains(state));
        let has_ended = has_ended && number(17)? <= 1;
        let places = fields.get(23..26)?.iter().chain(fields.get(42..49)?);
        let program = (number(25)? > 0).then(|| FxBuildHasher.hash_one(places.collect::<Vec<_>>()));
        Some(Stat { has_ended, started: number(19)?, program })
    }
}

/// Returns `true` unless the program of a process has surely ended, or was replaced with `exec`.
/// `seen` is the program that was last seen to map the ledger.
fn runs(owner: u64, seen: &AtomicU64) -> bool {
    let (pid, started) = (owner % (1 << PID_BITS), (owner % PROGRAM) >> PID_BITS);
    let exists = libc::pid_t::try_from(pid).is_ok_and(|pid| {
        // SAFETY: signal 0 only checks that the process exists.
        let found = unsafe { libc::kill(pid, 0) } == 0;
        // Without the right to send signals, the error is another one.
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
    // A program that replaced the recorded one does not map the ledger, or has taken the entry. The
    // text is empty after the end of the first thread.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Some(name) = FILE_NAME.get().filter(|_| !maps.is_empty()) else { return true };
    let is_mapped = maps.windows(name.len().max(1)).any(|part| part == name);
    if is_mapped && let Some(program) = program {
        seen.store(program, Ordering::Relaxed);
    }
    is_mapped
}
