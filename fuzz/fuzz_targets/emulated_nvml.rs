//! Fuzzes the emulated NVML's environment variables. Each line of the input is a variable's value.

#![no_main]
// The emulated NVML is a shared library, which cannot be linked as a crate. This target compiles
// the library's modules, and does not use all of their items.
#![allow(dead_code)]

#[path = "../../crates/gpuheap-emu-nvml/src/code.rs"]
mod code;
#[path = "../../crates/gpuheap-emu-nvml/src/description.rs"]
mod description;
#[path = "../../crates/gpuheap-emu-nvml/src/driver.rs"]
mod driver;
#[path = "../../crates/gpuheap-emu-nvml/src/machine.rs"]
mod machine;
#[path = "../../crates/gpuheap-emu-nvml/src/settings.rs"]
mod settings;

use libfuzzer_sys::fuzz_target;

use crate::machine::Machine;
use crate::settings::Settings;

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(3, '\n');
    let [driver, device, description] = [(); 3].map(|()| lines.next().unwrap_or("").trim());
    let value = |name: &str| match name {
        "GPUHEAP_EMULATED_DRIVER" => Some(driver),
        "GPUHEAP_EMULATED_DEVICE" => Some(device),
        // A value without `{` is the path of a file. It is left out, so that no file is read.
        "GPUHEAP_EMULATED_NVML" => Some(description).filter(|text| text.starts_with('{')),
        _ => None,
    };
    match Settings::read(|name| value(name).map(str::to_owned)).and_then(Machine::new) {
        Ok(machine) => {
            for device in 0..machine.devices.len() {
                machine.rows(device);
            }
        }
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error}"),
    }
});
