//! Finds programs that cannot be recorded, before they are started.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getgid, getuid};

use crate::exit::Failure;

/// Refuses a program that is missing, that cannot be executed, or that the loader would start
/// without the recorder.
pub(super) fn check(program: &OsStr) -> Result<(), Failure> {
    let shown = program.display();
    let path = find(program).ok_or_else(|| {
        Failure::wrong_use(format!(
            "{shown}: there is no such program; give its path, or a name that PATH has: gpuheap \
             run -- python train.py"
        ))
    })?;
    let facts = fs::metadata(&path).map_err(|error| {
        Failure::wrong_use(format!("{shown}: {error}; check the path and its permissions"))
    })?;
    if facts.permissions().mode() & 0o111 == 0 || facts.is_dir() {
        return Err(Failure::wrong_use(format!(
            "{shown}: it cannot be executed; for a Python file write gpuheap run -- python {shown}"
        )));
    }
    if is_secure(&path, &facts) {
        return Err(Failure::wrong_use(format!(
            "{shown}: it is set-uid, set-gid or has capabilities, so the loader ignores the \
             recorder; run a copy: cp {shown} copy && gpuheap run -- ./copy"
        )));
    }
    if let Some(reason) = obstacle(&path) {
        return Err(Failure::wrong_use(format!(
            "{shown}: it is {reason}, so no recorder can be loaded into it; link glibc dynamically \
             (a static CUDA runtime is fine)"
        )));
    }
    Ok(())
}

/// Returns `true` if the program has more privileges than this process. The loader then ignores the
/// user's `LD_PRELOAD`.
fn is_secure(path: &Path, facts: &fs::Metadata) -> bool {
    /// Bits of a set-gid program: set-gid and execute. Set-gid alone means mandatory locking.
    const SET_GID: u32 = 0o2010;
    const SET_UID: u32 = 0o4000;
    let (uid, gid) = (getuid(), getgid());
    let sets = |bits: u32| facts.mode() & bits == bits;
    let gets_rights = sets(SET_UID) && facts.uid() != uid.as_raw()
        || sets(SET_GID) && facts.gid() != gid.as_raw()
        || !uid.is_root() && getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok();
    let takes_none = || {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.contains("NoNewPrivs:\t1")
            || statvfs(path).is_ok_and(|of| of.f_flag.contains(StatVfsMountFlags::NOSUID))
    };
    gets_rights && !takes_none()
}

/// Returns the file of a program. If `program` has no folder, searches for it in `PATH`.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return path.exists().then(|| path.to_owned());
    }
    let folders = env::var_os("PATH")?;
    let mut files = env::split_paths(&folders).map(|folder| folder.join(path));
    files.find(|file| file.is_file())
}

/// Returns at most `bytes` bytes of the start of a file; `None` if it cannot be read.
fn start_of(path: &Path, bytes: u64) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    fs::File::open(path).ok()?.take(bytes).read_to_end(&mut start).ok()?;
    Some(start)
}

/// Returns the reason why the loader cannot load the recorder into a program, or into a script's
/// interpreter.
fn obstacle(path: &Path) -> Option<&'static str> {
    /// Number of bytes read from a program's start. They contain its headers and loader's name.
    const HEADERS: u64 = 64 << 10;
    const INTERPRETER: usize = 3;
    let start = start_of(path, HEADERS)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let word = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
        let interpreter = Path::new(OsStr::from_bytes(word));
        // An interpreter that is itself a script is not checked: the recursion might not end.
        let is_script = start_of(interpreter, 2)?.starts_with(b"#!");
        return if is_script { None } else { obstacle(interpreter) };
    }
    if start.starts_with(b"\x7fELF\x01") {
        return Some("a 32-bit program");
    }
    // Only little-endian 64-bit programs are checked. The loader is skipped, because it looks
    // statically linked.
    let name = path.file_name()?.as_bytes();
    if !start.starts_with(b"\x7fELF\x02\x01") || name.starts_with(b"ld") {
        return None;
    }
    let number = |at: usize, bytes: usize| {
        let field = start.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let headers = (0..count).map_while(|index| first.checked_add(index * size));
    let mut interpreters = headers.filter(|at| number(*at, 4) == Some(INTERPRETER));
    let Some(header) = interpreters.next() else {
        return (count > 0).then_some("statically linked");
    };
    let (at, bytes) = (number(header.checked_add(8)?, 8)?, number(header.checked_add(32)?, 8)?);
    let loader = start.get(at..at.checked_add(bytes)?)?;
    loader.windows(4).any(|part| part == b"musl").then_some("linked with musl")
}
