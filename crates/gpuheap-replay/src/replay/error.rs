//! Errors of replays.

use std::fmt;

use crate::models::SettingError;

/// Reasons for which a replay fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplayError {
    /// A setting of a model is not possible on the device.
    Setting(SettingError),
    /// The device or its driver failed. The text names the trace, the pool, and the driver's error.
    Device(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(error) => error.fmt(f),
            Self::Device(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<SettingError> for ReplayError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}
