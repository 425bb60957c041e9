//! Files in the user's state folder: `$XDG_STATE_HOME/gpuheap`.

use std::io::Error;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Returns the path of a file in the user's state folder.
///
/// # Errors
///
/// Returns a failure if neither XDG_STATE_HOME nor HOME names a folder.
pub(crate) fn path(name: &str) -> Result<PathBuf, Failure> {
    let folder = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            Failure::could_not_look("neither XDG_STATE_HOME nor HOME names a folder to write to")
        })?;
    Ok(state.join("gpuheap").join(name))
}

/// Writes a file and the folders above it. A reader finds the old text or the new one, also if this
/// process is ended meanwhile.
///
/// # Errors
///
/// Returns a failure if the file cannot be written.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: Error| {
        let name = path.display();
        Failure::could_not_look(format!(
            "{name}: {error}; set XDG_STATE_HOME to a folder that can be written"
        ))
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    // Two processes that write at one time must not share the new file.
    let new = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(|error| {
        let _ = std::fs::remove_file(&new);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpuheap/baseline.json");
        write(&path, "old and long").unwrap();
        let reader = std::fs::File::open(&path).unwrap();
        write(&path, "new").unwrap();
        // The file that was open is another one: it was not written over.
        assert_eq!(std::io::read_to_string(reader).unwrap(), "old and long");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(write(Path::new("/proc/gpuheap/x"), "").is_err());
    }
}
