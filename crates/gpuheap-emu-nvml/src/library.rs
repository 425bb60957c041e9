//! Keeps the process's emulated machine, and runs the body of every NVML function.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use gpuheap_emu::Messages;

use crate::args::Handle;
use crate::code::{Code, Outcome};
use crate::description::{Device, Instance};
use crate::machine::{Machine, Row};

const MESSAGES: Messages = Messages("nvml");

/// The emulated machine, or the error in the environment variables. Created at the first
/// initialisation.
static MACHINE: OnceLock<Result<Machine, String>> = OnceLock::new();

/// Number of initialisations minus the number of shutdowns.
static USERS: AtomicU32 = AtomicU32::new(0);

/// State of one call of an NVML function.
pub(crate) struct Nvml {
    symbol: &'static str,
    pub(crate) machine: &'static Machine,
}

/// Device, or MIG instance of a device, on which a call operates.
pub(crate) struct Target<'m> {
    machine: &'m Machine,
    pub(crate) index: usize,
    pub(crate) device: &'m Device,
    pub(crate) instance: Option<(usize, &'m Instance)>,
}

/// Counts an initialisation. The first initialisation creates the machine with `make`. Only this
/// function reports errors in the environment variables.
pub(crate) fn initialise(symbol: &'static str, make: fn() -> Result<Machine, String>) -> Outcome {
    let machine = MACHINE.get_or_init(|| {
        MESSAGES.say_panics();
        make()
    });
    let machine = machine.as_ref().map_err(|error| {
        MESSAGES.say(error);
        Code::INVALID_ARGUMENT
    })?;
    if let Some(failure) = machine.description().failures.get(symbol) {
        return Err(*failure);
    }
    USERS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Counts one initialisation less.
pub(crate) fn shut_down(symbol: &'static str) -> Outcome {
    call(symbol, |_| {
        let less = |users: u32| users.checked_sub(1);
        let taken = USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(|_| ()).map_err(|_| Code::UNINITIALIZED)
    })
}

/// Runs the body of an NVML function. Fails if the library is not initialised, or if the user's
/// description of the machine has a failure for the function.
pub(crate) fn call(symbol: &'static str, body: impl FnOnce(&Nvml) -> Outcome) -> Outcome {
    let machine = MACHINE.get().and_then(|machine| machine.as_ref().ok());
    let machine = machine.filter(|_| USERS.load(Ordering::Relaxed) > 0);
    let machine = machine.ok_or(Code::UNINITIALIZED)?;
    match machine.description().failures.get(symbol) {
        Some(failure) => Err(*failure),
        None => body(&Nvml { symbol, machine }),
    }
}

impl Nvml {
    /// Returns the device or instance that the handle identifies.
    pub(crate) fn target(&self, handle: Handle) -> Outcome<Target<'static>> {
        let (index, instance) = handle.indices();
        let device = self.machine.devices.get(index).ok_or(Code::INVALID_ARGUMENT)?;
        if let Some(failure) = device.failures.get(self.symbol) {
            return Err(*failure);
        }
        let instance = match instance {
            None => None,
            Some(at) => {
                let found = device.mig.iter().flatten().nth(at);
                Some((at, found.ok_or(Code::INVALID_ARGUMENT)?))
            }
        };
        Ok(Target { machine: self.machine, index, device, instance })
    }

    pub(crate) fn device(&self, handle: Handle) -> Outcome<&'static Device> {
        let target = self.target(handle)?;
        if target.instance.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(target.device) }
    }
}

impl Target<'_> {
    /// Returns the processes on the device. For a MIG instance, returns only its processes.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = self.machine.rows(self.index);
        if let Some((at, _)) = self.instance {
            rows.retain(|row| row.instance == Some(at));
        }
        rows
    }
}
