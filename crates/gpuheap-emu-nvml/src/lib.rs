//! Emulated CUDA devices as a `libnvidia-ml.so.1` for unmodified monitors.
//!
//! A description lists devices and processes. If it lists no devices, the library reports the
//! devices of the emulated driver in this process. Without such a driver, environment variables
//! select the devices. The library also lists the processes that use emulated devices. It finds
//! them in the account, a file in which emulated drivers record the memory of their processes.
//! Without an account, the library lists only this process. The README lists the environment
//! variables and the description's fields.
//!
//! The module `functions` has one table of functions for each subject. Other NVML functions are not
//! exported. A program that looks up such a symbol concludes that the driver is older.
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
