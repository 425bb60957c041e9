//! Emulated CUDA devices as a `libnvidia-ml.so.1` for unmodified monitors.
//!
//! A description lists the devices. If it lists none, the devices come from the emulated driver
//! in the process, else environment variables select them. The processes belong to the
//! description, and those that use emulated devices. The latter are all processes of a shared
//! account, or only this process. The README lists the environment variables and the description's
//! fields.
//!
//! The module `functions` has one table of functions for each subject. NVML's functions that these
//! tables lack are not exported. To a program that looks up such a symbol, the driver seems older.
//!
//! The library runs no code when it is loaded or unloaded. No panic reaches the program.
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
