//! Functions that initialise the library and shut it down.

use std::ffi::c_uint;

use gpuheap_driver::export;

use crate::code::Outcome;
use crate::machine::Machine;
use crate::settings::{Settings, variable};
use crate::{functions, library};

/// Symbols of the functions in this file.
const SYMBOLS: &[&str] = &["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"];

export! {
    fn nvmlInit() -> Outcome {
        library::initialise("nvmlInit", machine)
    }

    fn nvmlInit_v2() -> Outcome {
        library::initialise("nvmlInit_v2", machine)
    }

    fn nvmlInitWithFlags(_flags: c_uint) -> Outcome {
        library::initialise("nvmlInitWithFlags", machine)
    }

    fn nvmlShutdown() -> Outcome {
        library::shut_down("nvmlShutdown")
    }
}

/// Creates the machine that the environment variables describe.
fn machine() -> Result<Machine, String> {
    let settings = Settings::read(variable)?;
    let devices = settings.description.devices.iter().flatten();
    let failures = devices.map(|device| &device.failures).chain([&settings.description.failures]);
    for name in failures.flat_map(|failures| failures.keys()) {
        if !functions::is_served(name) && !SYMBOLS.contains(&name.as_str()) {
            return Err(format!(
                "failures: {name:?} is no function of this library; write one as it is exported, \
                 such as nvmlDeviceGetMemoryInfo_v2"
            ));
        }
    }
    Machine::new(settings)
}
