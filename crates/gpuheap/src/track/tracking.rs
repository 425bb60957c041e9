//! Levels of detail that are recorded for each outstanding allocation.

use std::fmt;

use serde::Serialize;

/// Amount of detail recorded for each outstanding allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Tracking {
    /// No record.
    #[default]
    Off,
    /// The allocating line, the thread and the time.
    Counts,
    /// The allocating line, the thread, the time and the whole stack.
    Backtraces,
}

impl Tracking {
    /// All levels, in the order in which they are displayed.
    pub const ALL: [Tracking; 3] = [Tracking::Off, Tracking::Counts, Tracking::Backtraces];

    /// Returns the name that settings and the command line use.
    pub fn name(self) -> &'static str {
        match self {
            Tracking::Off => "off",
            Tracking::Counts => "counts",
            Tracking::Backtraces => "backtraces",
        }
    }

    /// Returns the tracking with that name.
    ///
    /// # Errors
    ///
    /// No tracking has that name; the error's text lists the names.
    pub fn parse(name: &str) -> Result<Tracking, UnknownTracking> {
        Tracking::ALL
            .into_iter()
            .find(|tracking| tracking.name() == name)
            .ok_or_else(|| UnknownTracking(name.to_owned()))
    }
}

impl fmt::Display for Tracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no tracking has. The error's text lists the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTracking(String);

impl fmt::Display for UnknownTracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Tracking::ALL.iter().map(|tracking| tracking.name()).collect();
        write!(f, "'{}' is not a kind of tracking; write {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownTracking {}
