//! Reads recorded machines of the folder `tests/machines`.

use std::path::Path;

use gpuheap_doctor::Recording;

pub(crate) use crate::recorded::machines;
use crate::recorded::text;

/// Reads a recording. If it has a line `# base: NAME`, adds the sections of recording NAME.
pub(crate) fn recording(path: &Path) -> Recording {
    Recording::parse(&text(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a machine of the folder.
pub(crate) fn named(name: &str) -> Recording {
    recording(&machines().join(format!("{name}.machine")))
}
