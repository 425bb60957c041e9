//! Kinds of facts, and access to them. Sources read them, and a machine has them.

mod cuda;
mod nvml;
mod paths;
mod source;

pub use self::cuda::{CudaProbe, Outcome, PROBES};
pub(crate) use self::cuda::{end_line, parse_probes};
pub use self::nvml::{Gpu, Kind, Listed, Nvml, NvmlFailure};
pub(crate) use self::paths::{device, is_kept_variable, numbered_device, windows_drive};
pub use self::source::{Skipped, Source, Why};
