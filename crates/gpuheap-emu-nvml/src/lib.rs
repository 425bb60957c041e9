//! Emulated CUDA devices as a `libnvidia-ml.so.1` for unmodified monitors.
//!
//! The devices are those of a description, or of the emulated driver in the same process, or of
//! the environment that sets that driver up. Processes are those of the description, and those
//! that use emulated devices: of the account that they share, or this one. The README has the
//! variables and the description's fields.
//!
//! The functions stand in `functions`, one table for each subject. A function that is not there is
//! not exported: programs that look symbols up take it for one of a newer driver.
//!
//! Nothing runs when the library is loaded or unloaded, and no panic leaves it.
#![cfg(unix)]

mod args;
mod code;
mod description;
mod driver;
mod export;
mod functions;
mod library;
mod machine;
mod settings;
mod start;
mod types;
