//! Recorded machines of the folder `tests/machines`.

use std::path::{Path, PathBuf};

use gpuheap_doctor::Recording;

/// Returns the folder of recorded machines. Fixtures are based on these machines.
pub(crate) fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines")
}

/// Reads a recording. If it has a line `# base: NAME`, adds the sections of that base.
pub(crate) fn recording(path: &Path) -> Recording {
    Recording::parse(&text(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(path: &Path) -> String {
    let own = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    match own.lines().find_map(|line| line.strip_prefix("# base: ")) {
        None => own,
        Some(base) => {
            let base = machines().join(format!("{}.machine", base.trim()));
            // A remark of the second recording would become part of the last section of the first
            // recording.
            let from = own.find("== ").unwrap_or(own.len());
            text(&base) + &own[from..]
        }
    }
}

/// Reads a machine of the folder.
pub(crate) fn named(name: &str) -> Recording {
    recording(&machines().join(format!("{name}.machine")))
}
