//! Recorded machines of the folder `tests/machines`.

use std::path::{Path, PathBuf};

use gpuheap_doctor::Recording;

/// The folder of machines that others differ from.
pub(crate) fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines")
}

/// Reads a recording, laid over the one that its line `# base: NAME` names.
pub(crate) fn recording(path: &Path) -> Recording {
    Recording::parse(&text(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(path: &Path) -> String {
    let own = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    match own.lines().find_map(|line| line.strip_prefix("# base: ")) {
        None => own,
        Some(base) => {
            let base = machines().join(format!("{}.machine", base.trim()));
            // A remark of the second would be part of the first's last section.
            let from = own.find("== ").unwrap_or(own.len());
            text(&base) + &own[from..]
        }
    }
}

/// Reads a machine of the folder.
pub(crate) fn named(name: &str) -> Recording {
    recording(&machines().join(format!("{name}.machine")))
}
