//! The environment in which a program finds the emulated device.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::Options;
use crate::card::Device;
use crate::folder::Folder;
use crate::verdict::Counts;

/// Returns the environment variables to set for a program. In lists such as `LD_PRELOAD`, entries
/// for the dry run precede the user's entries.
pub(crate) fn variables(
    options: &Options,
    device: &Device,
    folder: &Folder,
) -> BTreeMap<&'static str, OsString> {
    let mut set = BTreeMap::from([
        ("LD_LIBRARY_PATH", prepend("LD_LIBRARY_PATH", [folder.libraries()])),
        ("PYTHONPATH", prepend("PYTHONPATH", [folder.python()])),
        ("GPUHEAP_EMULATED_DEVICE", device.describe(options.devices).into()),
        ("GPUHEAP_EMULATED_KERNELS", "no-op".into()),
        (RUNTIME, "1".into()),
        ("GPUHEAP_EMULATED_REPORT", text(&folder.reports())),
        ("GPUHEAP_EMULATED_ACCOUNT", text(&folder.account())),
    ]);
    if !folder.preloaded().is_empty() {
        set.insert("LD_PRELOAD", prepend("LD_PRELOAD", folder.preloaded()));
    }
    if !options.results.is_empty() {
        let results = serde_json::to_string(&options.results).unwrap_or_default();
        set.insert("GPUHEAP_DRY_RUN_READS", results.into());
    }
    if let Counts::AtMost(count) = options.counts {
        set.insert("GPUHEAP_DRY_RUN_SMALLEST_COUNT", count.to_string().into());
    }
    if let Some(steps) = options.steps {
        set.insert("GPUHEAP_DRY_RUN_STEPS", steps.to_string().into());
    }
    if let Some(limit) = options.time_limit {
        set.insert("GPUHEAP_DRY_RUN_SECONDS", limit.as_secs_f64().to_string().into());
    }
    set
}

/// Variable that makes the hook load the stand-ins of the CUDA runtime and libraries.
pub(crate) const RUNTIME: &str = "GPUHEAP_EMULATED_RUNTIME";

/// Variable that names a line of the program. Only at this line, the Python hook makes operators
/// such as `nonzero` find as few elements as possible.
pub(crate) const SMALLEST_LINE: &str = "GPUHEAP_DRY_RUN_SMALLEST_LINE";
/// Variable that names the remedies for the hook to switch on.
const REMEDY: &str = "GPUHEAP_DRY_RUN_REMEDY";
/// Variables with the settings of PyTorch's allocator. PyTorch prefers the first variable.
const SETTINGS: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Returns the variables that switch on remedies. Commas separate the names of remedies.
pub(crate) fn remedy(names: &str) -> Vec<(&'static str, OsString)> {
    let mut set = vec![(REMEDY, names.into())];
    if names.split(',').any(|name| name == "expandable_segments") {
        let users = SETTINGS.iter().find_map(env::var_os).filter(|value| !value.is_empty());
        let settings = users.into_iter().chain(["expandable_segments:True".into()]);
        let settings = settings.collect::<Vec<OsString>>().join(OsStr::new(","));
        set.push((SETTINGS[0], settings));
    }
    set
}

/// Variables to remove from the program's environment: they would change or hide the emulated
/// device.
pub(crate) const REMOVED: [&str; 8] = [
    "CUDA_VISIBLE_DEVICES",
    "GPUHEAP_DRY_RUN_READS",
    "GPUHEAP_DRY_RUN_SMALLEST_COUNT",
    SMALLEST_LINE,
    "GPUHEAP_EMULATED_CHECKS",
    "GPUHEAP_EMULATED_DRIVER",
    "GPUHEAP_EMULATED_SCHEDULE",
    "GPUHEAP_EMULATED_NVML",
];

fn text(path: &Path) -> OsString {
    path.as_os_str().to_owned()
}

/// Returns `first` and the variable's current value as one list, joined by colons.
pub(crate) fn prepend<P: AsRef<Path>>(
    variable: &str,
    first: impl IntoIterator<Item = P>,
) -> OsString {
    join(first.into_iter().map(|path| text(path.as_ref())).chain(env::var_os(variable)))
}

/// Returns the values that are not empty, joined by colons.
pub(crate) fn join(values: impl Iterator<Item = OsString>) -> OsString {
    values.filter(|value| !value.is_empty()).collect::<Vec<_>>().join(OsStr::new(":"))
}
