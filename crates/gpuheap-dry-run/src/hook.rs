//! The Python modules that a program's interpreter loads at its start.

/// Names and texts of the modules.
pub(crate) const FILES: [(&str, &str); 2] = [
    ("sitecustomize.py", include_str!("hook/sitecustomize.py")),
    ("gpuheap_dry_run_hook.py", include_str!("hook/gpuheap_dry_run_hook.py")),
];
