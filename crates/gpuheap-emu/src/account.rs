//! File in which several processes account for the device memory that they share.
//!
//! Each process has a slot in the file and locks the slot through its own open file description.
//! The kernel releases the lock when the description's last descriptor is closed. So a slot becomes
//! free when its process ends, like memory of a real device. If a forked child inherited the
//! descriptor, the slot becomes free when the child ends. Until then, the slot contains the pid of
//! the parent, even if the parent has ended.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;

/// First bytes of the file, which identify its format.
const MAGIC: [u8; 16] = *b"gpuheap account1";

/// Maximum number of processes that share an account file.
const SLOTS: u64 = 256;

/// Maximum number of devices in an account file. In practice, emulated machines have eight at most.
const DEVICES: usize = 16;

/// Size of a slot, in bytes. It has a pid and one byte count per device, of eight bytes each.
const SLOT_BYTES: u64 = 8 * (1 + DEVICES as u64);

/// Start and length of the byte range whose lock serialises changes to the file.
const ORDER: (u64, u64) = (0, 1);

/// A process's slot in a file that accounts for device memory.
pub struct Account {
    file: File,
    slot: u64,
    /// Serialises the threads of this process, because they share the file's lock.
    threads: Mutex<()>,
}

/// Memory of one process, as read from the process's slot in the account file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// ID of the process that took the slot. It may have ended if a forked child still holds the
    /// slot.
    pub pid: u32,
    /// Memory in use on each device, in bytes.
    pub bytes: Vec<u64>,
}

impl Account {
    /// Maximum number of devices in an account file.
    pub const MOST_DEVICES: usize = DEVICES;

    /// Opens the account in a file and takes a slot. Creates the file if it is missing. Blocks
    /// while another process changes the account.
    ///
    /// # Errors
    ///
    /// The file cannot be written, is not an account file, or is in use by 256 processes.
    pub fn open(path: &Path) -> io::Result<Account> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let order = Order::take(&file)?;
        if file.metadata()?.len() == 0 {
            file.write_all_at(&MAGIC, 0)?;
        }
        check(&file)?;
        for slot in 0..SLOTS {
            if lock(&file, Lock::Try, slot_range(slot))? {
                write(&file, slot, &Entry { pid: std::process::id(), bytes: vec![0; DEVICES] })?;
                drop(order);
                return Ok(Account { file, slot, threads: Mutex::new(()) });
            }
        }
        Err(io::Error::other(format!("{SLOTS} processes use the account already")))
    }

    /// Returns the entries of the account file at `path`, in no particular order. Leaves out slots
    /// that neither a process nor its forked child holds. Does not block.
    ///
    /// # Errors
    ///
    /// The file is missing, cannot be read, or is not an account file.
    pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
        let file = File::open(path)?;
        check(&file)?;
        entries(&file, None)
    }

    /// Takes memory of a device. Returns `false` if all processes together would use more than
    /// `capacity`, or if the file cannot be written.
    pub(crate) fn charge(&self, device: usize, bytes: u64, capacity: u64) -> bool {
        let change = |own: &mut u64, all: u64| {
            let is_within = all.checked_add(bytes).is_some_and(|sum| sum <= capacity);
            if is_within {
                *own += bytes;
            }
            is_within
        };
        self.change(device, change).unwrap_or(false)
    }

    pub(crate) fn release(&self, device: usize, bytes: u64) {
        let change = |own: &mut u64, _: u64| {
            *own = own.saturating_sub(bytes);
            true
        };
        // After a failure, the memory stays counted until the process ends and frees its slot.
        let _ = self.change(device, change);
    }

    /// Returns the memory that all processes together use on a device; 0 if the account file cannot
    /// be read.
    pub(crate) fn used(&self, device: usize) -> u64 {
        let entries = entries(&self.file, Some(self.slot)).unwrap_or_default();
        sum(&entries, device)
    }

    /// Changes a device's byte count in this process's slot of the account file. Locks the file, so
    /// that no other thread or process changes it meanwhile.
    fn change(&self, device: usize, by: impl FnOnce(&mut u64, u64) -> bool) -> io::Result<bool> {
        let _threads = self.threads.lock();
        let _order = Order::take(&self.file)?;
        let all = sum(&entries(&self.file, Some(self.slot))?, device);
        let mut own = read(&self.file, self.slot)?;
        let beyond = || io::Error::other(format!("an account has {DEVICES} devices"));
        let is_done = by(own.bytes.get_mut(device).ok_or_else(beyond)?, all);
        write(&self.file, self.slot, &own)?;
        Ok(is_done)
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("slot", &self.slot).finish_non_exhaustive()
    }
}

fn sum(entries: &[Entry], device: usize) -> u64 {
    let bytes = entries.iter().filter_map(|entry| entry.bytes.get(device));
    bytes.fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

fn check(file: &File) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0)?;
    let is_account = magic == MAGIC;
    is_account.then_some(()).ok_or_else(|| io::Error::other("the file is no account"))
}

/// Returns the entries of the slots that other open file descriptions have locked, and of slot
/// `own`. `own` is the slot of `file`, because an open file description cannot query its own lock.
fn entries(file: &File, own: Option<u64>) -> io::Result<Vec<Entry>> {
    let written = file.metadata()?.len().saturating_sub(MAGIC.len() as u64) / SLOT_BYTES;
    let mut found = Vec::new();
    for slot in 0..written.min(SLOTS) {
        if own == Some(slot) || lock(file, Lock::Ask, slot_range(slot))? {
            found.push(read(file, slot)?);
        }
    }
    Ok(found)
}

fn read(file: &File, slot: u64) -> io::Result<Entry> {
    let mut bytes = [0; SLOT_BYTES as usize];
    file.read_exact_at(&mut bytes, slot_range(slot).0)?;
    let mut words = bytes.chunks_exact(8).map(|word| {
        // A chunk has eight bytes.
        u64::from_le_bytes(word.try_into().unwrap_or_default())
    });
    let pid = words.next().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    Ok(Entry { pid, bytes: words.collect() })
}

fn write(file: &File, slot: u64, entry: &Entry) -> io::Result<()> {
    let words = std::iter::once(u64::from(entry.pid)).chain(entry.bytes.iter().copied());
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    file.write_all_at(&bytes, slot_range(slot).0)
}

/// Returns the start and the length of a slot in the file.
fn slot_range(slot: u64) -> (u64, u64) {
    (MAGIC.len() as u64 + slot * SLOT_BYTES, SLOT_BYTES)
}

/// Guard that holds the file's lock during a change.
struct Order<'f>(&'f File);

impl Order<'_> {
    fn take(file: &File) -> io::Result<Order<'_>> {
        lock(file, Lock::Wait, ORDER).map(|_| Order(file))
    }
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        // If the release fails, closing the file still releases the lock.
        let _ = lock(self.0, Lock::Release, ORDER);
    }
}

#[derive(Clone, Copy)]
enum Lock {
    /// Takes the lock; false if another open file description has the lock.
    Try,
    /// Waits until no other open file description has the lock, then takes the lock.
    Wait,
    /// Releases the lock.
    Release,
    /// Returns whether another open file description has the lock.
    Ask,
}

/// Takes, releases or queries the lock on a range of a file. The owner of the lock is the open file
/// description.
#[cfg(target_os = "linux")]
fn lock(file: &File, how: Lock, (start, length): (u64, u64)) -> io::Result<bool> {
    use std::os::fd::AsRawFd;

    let (command, kind) = match how {
        Lock::Try => (libc::F_OFD_SETLK, libc::F_WRLCK),
        Lock::Wait => (libc::F_OFD_SETLKW, libc::F_WRLCK),
        Lock::Release => (libc::F_OFD_SETLK, libc::F_UNLCK),
        Lock::Ask => (libc::F_OFD_GETLK, libc::F_WRLCK),
    };
    let mut range = libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: start as _,
        l_len: length as _,
        l_pid: 0,
    };
    loop {
        // SAFETY: the descriptor is open, and the structure is valid for reads and writes.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut range) } == 0 {
            let is_free = i32::from(range.l_type) == libc::F_UNLCK;
            return Ok(!matches!(how, Lock::Ask) || !is_free);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::EACCES) if matches!(how, Lock::Try) => return Ok(false),
            _ => return Err(error),
        }
    }
}

/// Always fails, because only Linux has locks of open file descriptions.
#[cfg(not(target_os = "linux"))]
fn lock(_: &File, _: Lock, _: (u64, u64)) -> io::Result<bool> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn account_slots_share_capacity() {
        let path = std::env::temp_dir().join(format!("gpuheap-account-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (one, two) = (Account::open(&path).unwrap(), Account::open(&path).unwrap());
        assert!(one.charge(0, 60, 100) && two.charge(0, 30, 100) && two.charge(1, 100, 100));
        assert!(!two.charge(0, 11, 100) && !two.charge(DEVICES, 1, 100));
        assert!(!two.charge(0, u64::MAX, 100));
        assert_eq!((one.used(0), two.used(0), one.used(1)), (90, 90, 100));
        one.release(0, 50);
        assert!(two.charge(0, 60, 100));

        let read = |device: usize| {
            let entries = Account::read(&path).unwrap();
            assert!(entries.iter().all(|entry| entry.pid == std::process::id()));
            entries.iter().map(|entry| entry.bytes[device]).collect::<Vec<_>>()
        };
        assert_eq!(read(0), [10, 90]);
        // A duplicate of the descriptor, such as one in a forked child, keeps the slot occupied.
        let inherited = one.file.try_clone().unwrap();
        drop(one);
        assert_eq!(read(0), [10, 90]);
        drop(inherited);
        assert_eq!((read(0), two.used(0)), (vec![90], 90));
        // The next user of the file gets the first slot, and starts with no memory.
        let three = Account::open(&path).unwrap();
        assert_eq!((three.slot, read(0)), (0, vec![0, 90]));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn other_files_are_refused() {
        assert!(Account::open(Path::new("/proc/version")).is_err());
        assert!(Account::read(Path::new("Cargo.toml")).is_err());
        assert!(Account::read(Path::new("no such file")).is_err());
    }
}
