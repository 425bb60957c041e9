//! The screen of `gpuheap top`: devices, processes, and the lines of code whose memory grows.
//!
//! * [`run`] shows the screen until a key or a signal ends it.
//! * [`Once`] is one frame, as text and as JSON.
//!
//! Three threads read the machine (`reading`), and one thread draws. A frame is a pure function of
//! the state (`view`, `figures`), so tests draw frames without a terminal.

#![forbid(unsafe_code)]

mod draw;
mod figures;
mod history;
mod once;
mod reading;
#[cfg(test)]
#[path = "../../gpuheap-doctor/tests/recorded/mod.rs"]
mod recorded;
mod screen;
mod snapshot;
mod terminal;
#[cfg(test)]
mod tests;
#[cfg(test)]
#[path = "../tests/tmux/mod.rs"]
mod tmux;
mod view;

pub use once::Once;
pub use reading::Options;
pub use screen::{End, run};
