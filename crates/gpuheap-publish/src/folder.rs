//! The folder of the sockets: `$XDG_RUNTIME_DIR/gpuheap`, else `/tmp/gpuheap-UID`.
//!
//! A socket is named `PID-START.sock`. `START` is the time at which the process started, in ticks
//! of 10 ms since boot. Further copies of the library in a process use `PID-START-2.sock` and so
//! on.

use std::fs::{self, DirBuilder};
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Maximum number of files, of any kind, that are read in a folder of sockets. A machine has at
/// most about 1,000 GPU processes.
const MOST_SOCKETS: usize = 10_000;

/// Maximum number of copies of the library in a process. The program, Python, the drop-in library
/// and the recorder may each have one.
const MOST_COPIES: u32 = 9;

/// Socket of a process that publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Pid in the socket's name. For a process in another PID namespace, this process sees another
    /// pid.
    pub pid: u32,
    /// Time at which the process started, in ticks of 10 ms since boot.
    pub start_ticks: u64,
    /// Owner of the folder.
    pub uid: u32,
}

impl Socket {
    /// Removes the socket if its folder belongs to this user.
    pub(crate) fn remove(&self) {
        // A user could replace the folder by a link, so root removes nothing in a user's folder.
        if self.uid == own_uid() {
            // Another process may have removed the socket already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the sockets of this user's processes. Root gets the sockets of all users' processes.
/// Skips sockets in folders that other users can write.
pub fn sockets() -> Vec<Socket> {
    let own = candidates().into_iter().map(|folder| (folder, own_uid()));
    let mut folders: Vec<(PathBuf, u32)> = own.collect();
    if own_uid() == 0 {
        folders.extend(folders_of_users());
    }
    folders.sort();
    folders.dedup();
    let mut found: Vec<Socket> = Vec::new();
    for (folder, uid) in folders {
        // A folder that does not exist has no sockets.
        found.extend(sockets_in(&folder, uid).into_iter().flatten());
    }
    found.sort_by(|one, other| (one.pid, &one.path).cmp(&(other.pid, &other.path)));
    found
}

/// Returns the sockets in a folder that belongs to `uid`.
///
/// # Errors
///
/// The folder is a link, belongs to another user, or is open to other users.
pub fn sockets_in(folder: &Path, uid: u32) -> io::Result<Vec<Socket>> {
    check(folder, uid)?;
    let entries = fs::read_dir(folder)?.flatten().take(MOST_SOCKETS);
    let parsed = entries.filter_map(|entry| {
        let (pid, start_ticks) = parse_name(entry.file_name().to_str()?)?;
        Some(Socket { path: entry.path(), pid, start_ticks, uid })
    });
    Ok(parsed.collect())
}

/// Binds this process's socket in the first usable folder. Only this user can enter the folder.
pub(crate) fn bind() -> io::Result<(UnixListener, PathBuf)> {
    let start = start_ticks("self").ok_or_else(|| Error::other("/proc/self/stat: no start"))?;
    let mut reasons = Vec::new();
    for folder in candidates() {
        match prepare(&folder).and_then(|()| bind_in(&folder, start)) {
            Ok(bound) => return Ok(bound),
            Err(error) => reasons.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(Error::other(reasons.join("; ")))
}

/// Returns paths to which this process may record when a client requests a recording, the preferred
/// path first. The paths are in the working directory and in the folders of gpuheap's sockets.
/// Clients cannot choose a path, so they cannot overwrite a file of the user.
pub(crate) fn recordings() -> Vec<PathBuf> {
    let private = candidates().into_iter().filter(|folder| check(folder, own_uid()).is_ok());
    let folders = std::env::current_dir().into_iter().chain(private);
    folders.map(|folder| folder.join(format!("gpuheap-{}.gph", std::process::id()))).collect()
}

/// Returns the time at which a process started, in ticks of 10 ms since boot; `None` if it has
/// ended.
pub(crate) fn start_ticks(pid: &str) -> Option<u64> {
    // The start time is field 22 of the file, and `status` returns the fields from 3 on.
    status(pid)?.split_whitespace().nth(19)?.parse().ok()
}

/// Returns `true` if the process has ended, and its parent has not yet read the exit code.
pub(crate) fn is_zombie(pid: u32) -> bool {
    status(&pid.to_string()).is_some_and(|status| status.starts_with('Z'))
}

/// Returns the fields of `/proc/PID/stat` after the name. The first field is the state.
fn status(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain blanks and parentheses.
    Some(stat.rsplit_once(')')?.1.trim_start().to_owned())
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the folders that this user's processes may use, the preferred folder first.
fn candidates() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // Under `sudo -E`, `XDG_RUNTIME_DIR` is the folder of the user who runs sudo. That user could
    // replace folders in it.
    let is_own = |path: &PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|found| {
            found.is_dir() && found.uid() == own_uid() && found.mode() & 0o022 == 0
        })
    };
    let runtime = runtime.filter(|path| path.is_absolute()).filter(is_own);
    let runtime = runtime.map(|path| path.join("gpuheap"));
    let shared = PathBuf::from(format!("/tmp/gpuheap-{}", own_uid()));
    runtime.into_iter().chain([shared]).collect()
}

/// Returns the folders of all users, each with its expected owner.
fn folders_of_users() -> Vec<(PathBuf, u32)> {
    let list = |path: &str| fs::read_dir(path).into_iter().flatten().flatten();
    let runtime = list("/run/user").filter_map(|entry| {
        let uid = entry.file_name().to_str()?.parse().ok()?;
        Some((entry.path().join("gpuheap"), uid))
    });
    let shared = list("/tmp").filter_map(|entry| {
        let uid = entry.file_name().to_str()?.strip_prefix("gpuheap-")?.parse().ok()?;
        Some((entry.path(), uid))
    });
    runtime.chain(shared).collect()
}

/// Makes the folder if it is missing, and checks it.
fn prepare(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    check(folder, own_uid())
}

/// Checks that `folder` is not a link, and that only `uid` can enter it.
fn check(folder: &Path, uid: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let refuse = |reason: String| Err(Error::new(ErrorKind::PermissionDenied, reason));
    if !found.is_dir() {
        return refuse("is a link or a file, and not a folder; remove it".to_owned());
    }
    if found.uid() != uid {
        return refuse(format!("belongs to user {}, and not to user {uid}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return refuse("is open to other users; chmod 700 it".to_owned());
    }
    Ok(())
}

fn bind_in(folder: &Path, start: u64) -> io::Result<(UnixListener, PathBuf)> {
    let pid = std::process::id();
    for copy in 1..=MOST_COPIES {
        let suffix = if copy == 1 { String::new() } else { format!("-{copy}") };
        let path = folder.join(format!("{pid}-{start}{suffix}.sock"));
        let bound = match UnixListener::bind(&path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if UnixStream::connect(&path).is_ok() {
                    continue;
                }
                // A process of an earlier boot left this file.
                fs::remove_file(&path)?;
                UnixListener::bind(&path)
            }
            bound => bound,
        };
        return Ok((bound?, path));
    }
    Err(Error::other(format!("this process has {MOST_COPIES} sockets already")))
}

/// Parses `PID-START.sock` and `PID-START-COPY.sock`.
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_suffix(".sock")?.splitn(3, '-');
    let pid = parts.next()?.parse().ok()?;
    let start = parts.next()?.parse().ok()?;
    match parts.next() {
        Some(copy) => copy.parse::<u32>().is_ok().then_some((pid, start)),
        None => Some((pid, start)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn socket_names_are_parsed() {
        assert_eq!(parse_name("12-345.sock"), Some((12, 345)));
        assert_eq!(parse_name("12-345-2.sock"), Some((12, 345)));
        for name in ["12-345", "12.sock", "-1-2.sock", "1-2-x.sock", "1-2-3-4.sock", "a-1.sock"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn unsafe_folder_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("gpuheap");
        assert!(prepare(&folder).is_ok());
        let reason = |uid| check(&folder, uid).unwrap_err().to_string();
        assert!(reason(own_uid() + 1).contains("belongs to user"), "{}", reason(own_uid() + 1));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(reason(own_uid()).contains("chmod 700"), "{}", reason(own_uid()));
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(prepare(&folder).unwrap_err().to_string().contains("a link"));
    }
}
