//! Programs that cannot be recorded, found before they are started.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

const SET_ID: u32 = 0o6000;

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
    let is_roots = facts.mode() & SET_ID != 0 && facts.uid() != own_uid();
    if is_roots {
        return Err(Failure::wrong_use(format!(
            "{shown}: it is set-uid, so the loader ignores the recorder; run a copy without that bit"
        )));
    }
    if is_static(&path) {
        return Err(Failure::wrong_use(format!(
            "{shown}: it is statically linked, so no recorder can be loaded into it; link libc \
             dynamically (a static CUDA runtime is fine)"
        )));
    }
    Ok(())
}

/// Returns the user id of this process.
fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |facts| facts.uid())
}

/// Returns the file of a program: a path, or a name that is searched in `PATH`.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return path.exists().then(|| path.to_owned());
    }
    let folders = env::var_os("PATH")?;
    let mut files = env::split_paths(&folders).map(|folder| folder.join(path));
    files.find(|file| file.is_file())
}

/// Returns `true` for an ELF program that names no loader.
fn is_static(path: &Path) -> bool {
    /// Bytes at the start of a program that hold its headers.
    const HEADERS: u64 = 64 << 10;
    const INTERPRETER: u32 = 3;
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(HEADERS).read_to_end(&mut start));
    // 64-bit, low byte first.
    if read.is_err() || !start.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    let number = |at: usize, bytes: usize| {
        let field = start.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (Some(first), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2))
    else {
        return false;
    };
    let mut kinds = (0..count).map_while(|index| number(first.checked_add(index * size)?, 4));
    count > 0 && !kinds.any(|kind| kind == INTERPRETER as usize)
}
