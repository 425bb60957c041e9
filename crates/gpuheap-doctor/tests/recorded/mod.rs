//! Reads the recorded machines in `tests/machines` of gpuheap-doctor, for use in tests.

#![allow(dead_code, reason = "each suite uses its own part")]

use std::path::{Path, PathBuf};

/// Returns the folder of recorded machines.
pub(crate) fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuheap-doctor/tests/machines")
}

/// Reads the text of a recording. If it has a line `# base: NAME`, puts recording NAME before it.
pub(crate) fn text(path: &Path) -> String {
    let own = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    match own.lines().find_map(|line| line.strip_prefix("# base: ")) {
        None => own,
        Some(base) => {
            // Skips this recording's remarks before its first section. After the base's text, the
            // remarks would become part of the base's last section.
            let from = own.find("== ").unwrap_or(own.len());
            text_of(base.trim()) + &own[from..]
        }
    }
}

/// Reads the text of the recorded machine `name`.
pub(crate) fn text_of(name: &str) -> String {
    text(&machines().join(format!("{name}.machine")))
}

/// Writes the recording of the machine `name` into `folder`. Returns the path of the written file.
pub(crate) fn write(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text_of(name)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    path
}
