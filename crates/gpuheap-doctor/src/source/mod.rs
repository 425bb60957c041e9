//! Sources of facts: this machine, or the recording of a machine.

mod here;
mod kcmp;
mod nvml;
mod recorder;
mod recording;
mod windows;

pub use self::here::Here;
pub use self::nvml::KeptNvml;
pub use self::recorder::Recorder;
pub use self::recording::{Recording, RecordingError};
