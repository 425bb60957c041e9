//! Emulated CUDA devices as a `libnvidia-ml.so.1` for unmodified monitors.
//!
//! The devices come from a description. Without one, they are the devices of the emulated driver in
//! the process, or of the environment that configures that driver. The processes are from the
//! description, and those that use emulated devices: all of a shared account, or this process
//! alone. The README has the variables and the description's fields.
//!
//! The module `functions` has one table of functions for each subject. Functions that NVML has and
//! these tables lack are not exported. A program that looks up such a symbol sees an older driver.
//!
//! Nothing runs when the library is loaded or unloaded, and no panic leaves it.
#![cfg(unix)]

mod args;
mod code;
mod description;
mod driver;
mod functions;
mod library;
mod machine;
mod settings;
mod start;
mod types;
